use half::bf16;
use metrale_kernels::cpu::attention as reference;
use metrale_kernels::cpu::kv_cache as host_cache;
use metrale_kernels::cuda::attention::{Attention, Rows, Sequence, Visible, paged};
use metrale_kernels::cuda::kv_cache::{KvCache, KvDtype, KvShape, write};
use metrale_kernels::cuda::{Cuda, Element, Indices};

use crate::support::{Output, Rng, Tolerance, assert_close, cpu, gpu, put, rounded};

/// (num_heads, num_kv_heads, head_dim, value_dim)
const HEADS: [(usize, usize, usize, usize); 9] = [
    (4, 4, 64, 64),
    (8, 2, 128, 128),
    (9, 3, 64, 64),
    (16, 2, 256, 256),
    (6, 1, 80, 80),
    (4, 2, 16, 16),
    (8, 1, 192, 128),
    (5, 1, 64, 64),
    (2, 2, 256, 256),
];
const BLOCK: usize = 16;

/// Contexts of a batch as (rows, context), with pages in random order; unused slots hold NaN.
struct Batch {
    shape: KvShape,
    tables: Vec<Vec<u32>>,
    sequences: Vec<(usize, usize)>,
}

impl Batch {
    fn new(rng: &mut Rng, sequences: &[(usize, usize)], kv_heads: usize, hd: usize, vd: usize) -> Self {
        let blocks: usize = sequences.iter().map(|s| s.1.div_ceil(BLOCK)).sum();
        let num_blocks = blocks + 3;
        let mut pages = rng.permutation(num_blocks).into_iter();
        let tables = sequences.iter().map(|s| pages.by_ref().take(s.1.div_ceil(BLOCK)).collect()).collect();
        let shape =
            KvShape { num_blocks, block_size: BLOCK, num_kv_heads: kv_heads, head_dim: hd, value_dim: vd };
        Self { shape, tables, sequences: sequences.to_vec() }
    }

    fn slots(&self) -> Vec<u32> {
        let slot = |table: &[u32], i: usize| table[i / BLOCK] * BLOCK as u32 + (i % BLOCK) as u32;
        let all = self.sequences.iter().zip(&self.tables);
        all.flat_map(|(s, table)| (0..s.1).map(|i| slot(table, i))).collect()
    }

    fn sequences(&self) -> Vec<Sequence<'_>> {
        let all = self.sequences.iter().zip(&self.tables);
        all.map(|(&(num_tokens, context_len), block_table)| Sequence { num_tokens, context_len, block_table })
            .collect()
    }
}

struct Case {
    window: Option<usize>,
    softcap: Option<f32>,
    visible: Visible,
}

const CASES: [Case; 4] = [
    Case { window: None, softcap: None, visible: Visible::Causal },
    Case { window: Some(37), softcap: None, visible: Visible::Causal },
    Case { window: None, softcap: Some(2.0), visible: Visible::Causal },
    Case { window: None, softcap: None, visible: Visible::All },
];

fn check<T: Element + Default>(cuda: &Cuda, dtype: KvDtype, sequences: &[(usize, usize)]) {
    let mut rng = Rng::new(1);
    for (heads, kv_heads, hd, vd) in HEADS {
        let batch = Batch::new(&mut rng, sequences, kv_heads, hd, vd);
        let (shape, slots) = (batch.shape, batch.slots());
        let mut host = host_cache::KvCache::new(shape, dtype).unwrap();
        let mut cache = KvCache::new(cuda, shape, dtype).unwrap();
        let all: Vec<u32> = (0..(shape.num_blocks * BLOCK) as u32).collect();
        let mut indices = Indices::new(cuda, all.len()).unwrap();
        indices.set(cuda, &all, all.len()).unwrap();
        let nan = |width: usize| put::<T>(cuda, &vec![f32::NAN; all.len() * kv_heads * width]);
        write(cuda, &mut cache, nan(hd).view(), nan(vd).view(), &indices).unwrap();
        let k = rounded::<T>(&rng.vec(slots.len() * kv_heads * hd));
        let v = rounded::<T>(&rng.vec(slots.len() * kv_heads * vd));
        host_cache::write(&mut host, &k, &v, &slots).unwrap();
        indices.set(cuda, &slots, all.len()).unwrap();
        write(cuda, &mut cache, put::<T>(cuda, &k).view(), put::<T>(cuda, &v).view(), &indices).unwrap();

        let num_rows: usize = sequences.iter().map(|s| s.0).sum();
        let scores = rng.vec(num_rows * heads * hd);
        let q = rounded::<T>(&scores.iter().map(|q| q * 4.0).collect::<Vec<_>>());
        let query = put::<T>(cuda, &q);
        let mut rows = Rows::new(cuda, num_rows, sequences.len(), 128).unwrap();
        for Case { window, softcap, visible } in CASES {
            let mask = match visible {
                Visible::Causal => reference::Mask::Causal { window },
                Visible::All => reference::Mask::Full,
            };
            let scale = 1.0 / (hd as f32).sqrt();
            let attention = reference::Attention { num_heads: heads, scale, mask, softcap };
            let mut expected = vec![0.0; num_rows * heads * vd];
            reference::paged(cpu(), attention, &q, &host, &batch.sequences(), &mut expected).unwrap();
            rows.set(cuda, shape, visible, &batch.sequences()).unwrap();
            let attention = Attention { num_heads: heads, scale, window, softcap, keys_per_split: None };
            let mut out = Output::<T>::new(cuda, expected.len());
            out.write(|out| paged(cuda, attention, query.view(), &cache, &rows, out)).unwrap();
            let what = format!(
                "{heads} / {kv_heads} heads of {hd} / {vd}, window {window:?}, softcap {softcap:?}, {visible:?}, \
                 {dtype:?}"
            );
            // The tensor cores take softmax weights in bf16.
            let tolerance = Tolerance::of::<T>(T::pick(1e-5, 3e-3), 1e-5);
            assert_close(&out.read(cuda), &expected, tolerance, &what);
        }
    }
}

fn check_all(cuda: &Cuda, sequences: &[(usize, usize)]) {
    check::<f32>(cuda, KvDtype::F32, sequences);
    check::<f32>(cuda, KvDtype::BF16, sequences);
    check::<bf16>(cuda, KvDtype::BF16, sequences);
}

#[test]
fn decode_matches_the_cpu() {
    let Some(cuda) = gpu() else { return };
    check_all(cuda, &[(1, 1), (1, 17), (1, 300), (1, 1000), (1, 64), (1, 256)]);
}

#[test]
fn one_short_sequence_matches_the_cpu() {
    let Some(cuda) = gpu() else { return };
    check_all(cuda, &[(1, 5)]);
}

#[test]
fn prefill_and_chunks_match_the_cpu() {
    let Some(cuda) = gpu() else { return };
    check_all(cuda, &[(13, 13), (5, 40), (70, 600), (1, 33)]);
}

#[test]
fn long_prefill_matches_the_cpu() {
    let Some(cuda) = gpu() else { return };
    check_all(cuda, &[(300, 300), (17, 500)]);
}

#[test]
fn a_row_does_not_depend_on_the_batch_at_a_given_split_length() {
    let Some(cuda) = gpu() else { return };
    let mut rng = Rng::new(2);
    let contexts = [(1, 1000), (1, 37), (1, 600)];
    let batch = Batch::new(&mut rng, &contexts, 2, 64, 64);
    let mut cache = KvCache::new(cuda, batch.shape, KvDtype::BF16).unwrap();
    let slots = batch.slots();
    let mut indices = Indices::new(cuda, slots.len()).unwrap();
    indices.set(cuda, &slots, batch.shape.num_blocks * BLOCK).unwrap();
    let random = |rng: &mut Rng| put::<bf16>(cuda, &rng.vec(slots.len() * 2 * 64));
    write(cuda, &mut cache, random(&mut rng).view(), random(&mut rng).view(), &indices).unwrap();
    let q = put::<bf16>(cuda, &rng.vec(3 * 4 * 64));
    let attention =
        Attention { num_heads: 4, scale: 0.125, window: None, softcap: None, keys_per_split: Some(128) };
    let run = |which: std::ops::Range<usize>| {
        let mut rows = Rows::new(cuda, 3, 3, 128).unwrap();
        rows.set(cuda, batch.shape, Visible::Causal, &batch.sequences()[which.clone()]).unwrap();
        let mut out = Output::<bf16>::new(cuda, which.len() * 256);
        let q = q.view().range(which.start * 256..which.end * 256).unwrap();
        out.write(|out| paged(cuda, attention, q, &cache, &rows, out)).unwrap();
        out.read(cuda)
    };
    let all = run(0..3);
    for i in 0..3 {
        assert_eq!(run(i..i + 1), all[i * 256..][..256], "sequence {i}");
    }
}

#[test]
fn copied_pages_attend_alike() {
    let Some(cuda) = gpu() else { return };
    let shape = KvShape { num_blocks: 4, block_size: BLOCK, num_kv_heads: 2, head_dim: 64, value_dim: 64 };
    let mut cache = KvCache::new(cuda, shape, KvDtype::F32).unwrap();
    let mut rng = Rng::new(3);
    let mut slots = Indices::new(cuda, 16).unwrap();
    slots.set(cuda, &(32..48).collect::<Vec<_>>(), 64).unwrap();
    let random = |rng: &mut Rng| put::<f32>(cuda, &rng.vec(16 * 2 * 64));
    write(cuda, &mut cache, random(&mut rng).view(), random(&mut rng).view(), &slots).unwrap();
    cache.copy_block(cuda, 2, 0).unwrap();
    cache.copy_block(cuda, 0, 3).unwrap();
    assert!(cache.copy_block(cuda, 0, 4).is_err());
    let q = put::<f32>(cuda, &rng.vec(2 * 64));
    let attention =
        Attention { num_heads: 2, scale: 0.125, window: None, softcap: None, keys_per_split: None };
    let run = |page: u32| {
        let mut rows = Rows::new(cuda, 1, 1, 1).unwrap();
        let sequence = Sequence { num_tokens: 1, context_len: 16, block_table: &[page] };
        rows.set(cuda, shape, Visible::Causal, &[sequence]).unwrap();
        let mut out = Output::<f32>::new(cuda, 128);
        out.write(|out| paged(cuda, attention, q.view(), &cache, &rows, out)).unwrap();
        out.read(cuda)
    };
    assert!(run(2).iter().all(|v| v.is_finite()));
    assert_eq!(run(2), run(0));
    assert_eq!(run(2), run(3));
}

#[test]
fn tables_that_lead_nowhere_are_refused() {
    let Some(cuda) = gpu() else { return };
    let shape = KvShape { num_blocks: 4, block_size: BLOCK, num_kv_heads: 1, head_dim: 64, value_dim: 64 };
    let mut rows = Rows::new(cuda, 8, 2, 2).unwrap();
    let mut set = |num_tokens, context_len, block_table: &[u32]| {
        rows.set(cuda, shape, Visible::Causal, &[Sequence { num_tokens, context_len, block_table }])
    };
    set(1, 17, &[0, 3]).unwrap();
    assert!(set(1, 17, &[0]).is_err(), "too short");
    assert!(set(1, 17, &[0, 4]).is_err(), "no such page");
    assert!(set(3, 2, &[0]).is_err(), "more rows than context");
    assert!(set(1, 33, &[0, 1, 2]).is_err(), "more pages than room");
    assert!(set(9, 9, &[0]).is_err(), "more rows than room");
    assert!(KvCache::new(cuda, KvShape { head_dim: 60, ..shape }, KvDtype::F32).is_err());
}
