//! Straightforward dequantisation of checkpoint blocks in f64, and random blocks.

use half::{bf16, f16};
use metrale_kernels::cpu::Format;

use crate::support::Rng;

fn half(bytes: &[u8]) -> f64 {
    f16::from_le_bytes([bytes[0], bytes[1]]).to_f64()
}

/// Values of a row.
pub(crate) fn dequantize(format: Format, row: &[u8]) -> Vec<f64> {
    row.chunks_exact(format.block_bytes()).flat_map(|block| dequantize_block(format, block)).collect()
}

fn dequantize_block(format: Format, b: &[u8]) -> Vec<f64> {
    let nibble = |qs: &[u8], i: usize| u32::from(if i < 16 { qs[i] & 15 } else { qs[i - 16] >> 4 });
    let fifth = |qh: &[u8], i: usize| (u32::from_le_bytes([qh[0], qh[1], qh[2], qh[3]]) >> i & 1) << 4;
    let small = |f: &dyn Fn(usize) -> f64| (0..32).map(f).collect::<Vec<_>>();
    match format {
        Format::F32 => vec![f64::from(f32::from_le_bytes([b[0], b[1], b[2], b[3]]))],
        Format::BF16 => vec![bf16::from_le_bytes([b[0], b[1]]).to_f64()],
        Format::F16 => vec![half(b)],
        Format::Q4_0 => small(&|i| half(b) * (f64::from(nibble(&b[2..], i)) - 8.0)),
        Format::Q4_1 => small(&|i| half(b) * f64::from(nibble(&b[4..], i)) + half(&b[2..])),
        Format::Q5_0 => small(&|i| half(b) * (f64::from(nibble(&b[6..], i) | fifth(&b[2..], i)) - 16.0)),
        Format::Q5_1 => {
            small(&|i| half(b) * f64::from(nibble(&b[8..], i) | fifth(&b[4..], i)) + half(&b[2..]))
        }
        Format::Q8_0 => small(&|i| half(b) * f64::from(b[2 + i] as i8)),
        Format::Q4_K | Format::Q5_K => (0..256).map(|i| k_value(format, b, i)).collect(),
        Format::Q6_K => {
            let mut out = vec![0.0; 256];
            for h in 0..2 {
                for l in 0..32 {
                    let (ql, qh) = (&b[64 * h..], b[128 + 32 * h + l]);
                    let q = [
                        (ql[l] & 15) | (qh & 3) << 4,
                        (ql[32 + l] & 15) | (qh >> 2 & 3) << 4,
                        (ql[l] >> 4) | (qh >> 4 & 3) << 4,
                        (ql[32 + l] >> 4) | (qh >> 6 & 3) << 4,
                    ];
                    for (part, q) in q.into_iter().enumerate() {
                        let position = 32 * part + l;
                        let scale = f64::from(b[192 + 8 * h + position / 16] as i8);
                        out[128 * h + position] = half(&b[208..]) * scale * (f64::from(q) - 32.0);
                    }
                }
            }
            out
        }
    }
}

fn k_value(format: Format, b: &[u8], i: usize) -> f64 {
    let s = i / 32;
    let scales = &b[4..16];
    let (sc, m) = if s < 4 {
        (scales[s] & 63, scales[s + 4] & 63)
    } else {
        ((scales[s + 4] & 15) | (scales[s - 4] >> 6) << 4, (scales[s + 4] >> 4) | (scales[s] >> 6) << 4)
    };
    let qs = if format == Format::Q4_K { &b[16..] } else { &b[48..] };
    let byte = qs[32 * (s / 2) + i % 32];
    let mut q = if s.is_multiple_of(2) { byte & 15 } else { byte >> 4 };
    if format == Format::Q5_K {
        q |= (b[16 + i % 32] >> s & 1) << 4;
    }
    half(b) * f64::from(sc) * f64::from(q) - half(&b[2..]) * f64::from(m)
}

/// Random rows; scales stay in a range in which f32 sums are meaningful, quants take every value.
pub(crate) fn random(format: Format, rng: &mut Rng, num_rows: usize, num_cols: usize) -> Vec<u8> {
    let mut bytes: Vec<u8> = (0..num_rows * format.row_bytes(num_cols)).map(|_| rng.next() as u8).collect();
    let scales: &[usize] = match format {
        Format::Q4_0 | Format::Q5_0 | Format::Q8_0 => &[0],
        Format::Q4_1 | Format::Q5_1 | Format::Q4_K | Format::Q5_K => &[0, 2],
        Format::Q6_K => &[208],
        Format::F32 | Format::BF16 | Format::F16 => &[],
    };
    for block in bytes.chunks_exact_mut(format.block_bytes()) {
        let v = rng.unit();
        match format {
            Format::F32 => block.copy_from_slice(&v.to_le_bytes()),
            Format::BF16 => block.copy_from_slice(&bf16::from_f32(v).to_le_bytes()),
            Format::F16 => block.copy_from_slice(&f16::from_f32(v).to_le_bytes()),
            _ => {}
        }
        for &at in scales {
            let scale = match rng.below(12) {
                0 => 0.0,
                1 => 3e-6,
                _ => rng.unit() * 0.02,
            };
            block[at..at + 2].copy_from_slice(&f16::from_f32(scale).to_le_bytes());
        }
    }
    bytes
}

/// `[num_rows, num_cols]` in f64.
pub(crate) fn matrix(format: Format, bytes: &[u8], num_cols: usize) -> Vec<f64> {
    bytes.chunks_exact(format.row_bytes(num_cols)).flat_map(|row| dequantize(format, row)).collect()
}

/// x as the int8 mode sees it: 32 columns share a scale.
pub(crate) fn round_activations(x: &[f32]) -> Vec<f64> {
    x.chunks(32)
        .flat_map(|block| {
            let largest = block.iter().fold(0.0f32, |a, v| a.max(v.abs()));
            let inverse = if largest < 1e-35 { 0.0 } else { 127.0 / largest };
            let scale = f64::from(if largest < 1e-35 { 0.0 } else { largest / 127.0 });
            block.iter().map(move |v| scale * f64::from((v * inverse).round_ties_even())).collect::<Vec<_>>()
        })
        .collect()
}
