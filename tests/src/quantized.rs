//! A llama GGUF file with random weights in every format that the CPU kernels read.

use anyhow::Result;
use metrale_graph::checkpoint::gguf::Value;
use metrale_graph::checkpoint::{Dtype, write};

const HIDDEN: usize = 256;
const FFN: usize = 512;
const KV: usize = 128;
const VOCAB: usize = 320;

/// Name, format and shape of each matrix of a layer.
const LAYERS: [[(&str, Dtype, [usize; 2]); 7]; 2] = [
    [
        ("attn_q", Dtype::Q4K, [HIDDEN, HIDDEN]),
        ("attn_k", Dtype::Q5K, [KV, HIDDEN]),
        ("attn_v", Dtype::Q6K, [KV, HIDDEN]),
        ("attn_output", Dtype::Q4_0, [HIDDEN, HIDDEN]),
        ("ffn_gate", Dtype::Q4_1, [FFN, HIDDEN]),
        ("ffn_up", Dtype::Q5_0, [FFN, HIDDEN]),
        ("ffn_down", Dtype::Q5_1, [HIDDEN, FFN]),
    ],
    [
        ("attn_q", Dtype::F16, [HIDDEN, HIDDEN]),
        ("attn_k", Dtype::BF16, [KV, HIDDEN]),
        ("attn_v", Dtype::F32, [KV, HIDDEN]),
        ("attn_output", Dtype::Q8_0, [HIDDEN, HIDDEN]),
        ("ffn_gate", Dtype::Q4K, [FFN, HIDDEN]),
        ("ffn_up", Dtype::Q4K, [FFN, HIDDEN]),
        ("ffn_down", Dtype::Q6K, [HIDDEN, FFN]),
    ],
];

/// The file, and the stored bytes of the matrices that a step multiplies with (all but the embedding table).
///
/// # Errors
/// The file cannot be written.
pub fn llama_gguf(seed: u64) -> Result<(Vec<u8>, u64)> {
    let mut random = Random(seed);
    let mut tensors = vec![
        random.tensor("token_embd.weight".into(), Dtype::Q8_0, &[VOCAB, HIDDEN]),
        random.tensor("output_norm.weight".into(), Dtype::F32, &[HIDDEN]),
        random.tensor("output.weight".into(), Dtype::Q6K, &[VOCAB, HIDDEN]),
    ];
    let mut product_bytes = tensors[2].3.len() as u64;
    for (layer, matrices) in LAYERS.iter().enumerate() {
        for norm in ["attn_norm", "ffn_norm"] {
            tensors.push(random.tensor(format!("blk.{layer}.{norm}.weight"), Dtype::F32, &[HIDDEN]));
        }
        for (name, dtype, shape) in matrices {
            let tensor = random.tensor(format!("blk.{layer}.{name}.weight"), *dtype, shape);
            product_bytes += tensor.3.len() as u64;
            tensors.push(tensor);
        }
    }
    let metadata = [
        ("general.architecture", Value::String("llama".into())),
        ("llama.block_count", Value::U32(LAYERS.len() as u32)),
        ("llama.context_length", Value::U32(512)),
        ("llama.embedding_length", Value::U32(HIDDEN as u32)),
        ("llama.feed_forward_length", Value::U32(FFN as u32)),
        ("llama.attention.head_count", Value::U32(4)),
        ("llama.attention.head_count_kv", Value::U32(2)),
        ("llama.attention.layer_norm_rms_epsilon", Value::F32(1e-5)),
        ("llama.rope.freq_base", Value::F32(10_000.0)),
        ("llama.vocab_size", Value::U32(VOCAB as u32)),
    ];
    let views: Vec<_> = tensors
        .iter()
        .map(|(name, dtype, shape, bytes)| write::Tensor { name, dtype: *dtype, shape, bytes })
        .collect();
    Ok((write::gguf(&metadata, &views)?, product_bytes))
}

type Stored = (String, Dtype, Vec<usize>, Vec<u8>);

/// xorshift64*.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }

    /// Weights of some hundredths, norms about 1.
    fn tensor(&mut self, name: String, dtype: Dtype, shape: &[usize]) -> Stored {
        let elements: usize = shape.iter().product();
        let mut float = |center: f32| center + (self.next() % 2001) as f32 / 20_000.0 - 0.05;
        let bytes = match dtype {
            Dtype::F32 if shape.len() == 1 => (0..elements).flat_map(|_| float(1.0).to_le_bytes()).collect(),
            Dtype::F32 => (0..elements).flat_map(|_| float(0.0).to_le_bytes()).collect(),
            Dtype::F16 => (0..elements).flat_map(|_| half::f16::from_f32(float(0.0)).to_le_bytes()).collect(),
            Dtype::BF16 => {
                (0..elements).flat_map(|_| half::bf16::from_f32(float(0.0)).to_le_bytes()).collect()
            }
            quantised => self.blocks(quantised, elements),
        };
        (name, dtype, shape.to_vec(), bytes)
    }

    /// Random quants under scales that give values about 0.
    fn blocks(&mut self, dtype: Dtype, elements: usize) -> Vec<u8> {
        // Offsets of the f16 fields in a block, and what they hold.
        let (block_len, block_bytes, fields): (_, _, &[(usize, f32)]) = match dtype {
            Dtype::Q4_0 => (32, 18, &[(0, 0.01)]),
            Dtype::Q4_1 => (32, 20, &[(0, 0.01), (2, -0.075)]),
            Dtype::Q5_0 => (32, 22, &[(0, 0.005)]),
            Dtype::Q5_1 => (32, 24, &[(0, 0.005), (2, -0.08)]),
            Dtype::Q8_0 => (32, 34, &[(0, 0.0005)]),
            Dtype::Q4K => (256, 144, &[(0, 0.0003), (2, 0.002)]),
            Dtype::Q5K => (256, 176, &[(0, 0.000_15), (2, 0.002)]),
            _ => (256, 210, &[(208, 0.000_02)]),
        };
        let mut bytes: Vec<u8> =
            (0..elements / block_len * block_bytes).map(|_| (self.next() >> 32) as u8).collect();
        for block in bytes.chunks_exact_mut(block_bytes) {
            for &(at, value) in fields {
                block[at..at + 2].copy_from_slice(&half::f16::from_f32(value).to_le_bytes());
            }
        }
        bytes
    }
}
