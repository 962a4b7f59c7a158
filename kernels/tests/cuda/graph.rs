#![allow(unsafe_code)]

use std::sync::Arc;

use half::bf16;
use metrale_kernels::cpu::Format;
use metrale_kernels::cuda::attention::{Attention, Sequence, Visible, paged};
use metrale_kernels::cuda::kv_cache::{KvCache, KvDtype, KvShape};
use metrale_kernels::cuda::linear::{Epilogue, linear};
use metrale_kernels::cuda::norm::{NormWeight, rms_norm};
use metrale_kernels::cuda::{Buffer, Cuda, Rows, Weight};

use crate::embedding::bytes;
use crate::support::{Rng, elements, put};

const WIDTH: usize = 256;

/// Two products, one by the library, a norm between them, and attention over splits.
struct Work {
    cuda: Arc<Cuda>,
    weight: Weight,
    x: Buffer<bf16>,
    normed: Buffer<bf16>,
    out: Buffer<bf16>,
    attended: Buffer<bf16>,
    cache: KvCache,
    rows: Rows,
}

impl Work {
    fn new(tokens: usize) -> Option<Self> {
        // A device of its own: other tests put work on theirs meanwhile.
        crate::support::gpu()?;
        let cuda = Arc::new(Cuda::new(0).unwrap());
        let mut rng = Rng::new(1);
        let weight = bytes(Format::BF16, &rng.vec(WIDTH * WIDTH));
        let shape = KvShape { num_blocks: 64, block_size: 16, num_kv_heads: 1, head_dim: 64, value_dim: 64 };
        let mut rows = Rows::new(&cuda, tokens, 1, 64).unwrap();
        let table: Vec<u32> = (0..64).collect();
        let sequence = Sequence { num_tokens: tokens, context_len: 1024, block_table: &table };
        rows.set(&cuda, shape, Visible::Causal, &[sequence]).unwrap();
        Some(Self {
            weight: Weight::new(&cuda, Format::BF16, WIDTH, WIDTH, &weight).unwrap(),
            x: put::<bf16>(&cuda, &rng.vec(tokens * WIDTH)),
            normed: Buffer::zeroed(&cuda, tokens * WIDTH).unwrap(),
            out: Buffer::zeroed(&cuda, tokens * WIDTH).unwrap(),
            attended: Buffer::zeroed(&cuda, tokens * WIDTH).unwrap(),
            cache: KvCache::new(&cuda, shape, KvDtype::BF16).unwrap(),
            rows,
            cuda,
        })
    }

    fn run(&mut self) -> metrale_kernels::Result<()> {
        let cuda = &self.cuda;
        rms_norm(cuda, self.x.view(), WIDTH, NormWeight::None, 1e-6, &mut self.normed.view_mut())?;
        let epilogue = Epilogue::Residual(self.x.view());
        linear(cuda, self.normed.view(), &self.weight, None, epilogue, &mut self.out.view_mut())?;
        let attention =
            Attention { num_heads: 4, scale: 0.125, window: None, softcap: None, keys_per_split: None };
        let (q, out) = (self.out.view(), &mut self.attended.view_mut());
        paged(cuda, attention, q, &self.cache, &self.rows, out)
    }

    fn result(&self) -> Vec<f32> {
        let all = [&self.out, &self.attended];
        all.iter().flat_map(|b| b.view().to_vec(&self.cuda).unwrap()).map(bf16::to_f32).collect()
    }
}

#[test]
fn a_replayed_graph_computes_what_its_launches_do() {
    for tokens in [1, 6, 20] {
        let Some(mut work) = Work::new(tokens) else { return };
        work.run().unwrap();
        let graph = {
            let cuda = Arc::clone(&work.cuda);
            cuda.record(|| work.run()).unwrap()
        };
        let other = elements::<bf16>(&Rng::new(2).vec(tokens * WIDTH));
        work.x.view_mut().upload(&work.cuda, &other).unwrap();
        work.run().unwrap();
        let expected = work.result();
        work.out.view_mut().fill_bytes(&work.cuda, 0xff).unwrap();
        work.attended.view_mut().fill_bytes(&work.cuda, 0xff).unwrap();
        // SAFETY: `work` keeps every buffer.
        unsafe { work.cuda.replay(&graph).unwrap() };
        assert_eq!(work.result(), expected, "{tokens} rows");
    }
}

#[test]
fn recording_refuses_allocations_and_can_be_tried_again() {
    let Some(mut work) = Work::new(2) else { return };
    let error = work.cuda.record(|| Buffer::<f32>::zeroed(&work.cuda, 1 << 20).map(drop)).unwrap_err();
    assert!(error.to_string().contains("recorded"), "{error}");
    work.run().unwrap();
    assert!(work.result().iter().all(|v| v.is_finite()));
}
