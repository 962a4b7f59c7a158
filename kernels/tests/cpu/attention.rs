//! Attention: values kept in the keys, chosen positions, and who chooses them.

use metrale_kernels::cpu::Cpu;
use metrale_kernels::cpu::attention::{
    Attention, Indexer, Mask, Pool, Selected, Sequence, index, paged, paged_selected,
};
use metrale_kernels::cpu::kv_cache::{KvCache, KvDtype, KvShape, write};

use crate::support::{Rng, assert_close, assert_same_bits, cpus, poisoned};

const BLOCK: usize = 16;
/// Tokens in the cache, of which the last `ROWS` are queries: more than two splits of 64 keys, no whole number of pages.
const CONTEXT: usize = 150;
const ROWS: usize = 21;
/// Pages of the sequence, out of order.
const TABLE: [u32; 10] = [3, 0, 7, 1, 9, 2, 8, 4, 6, 5];
const DTYPES: [KvDtype; 2] = [KvDtype::F32, KvDtype::BF16];

fn shape(num_kv_heads: usize, head_dim: usize, value_dim: usize) -> KvShape {
    KvShape { num_blocks: TABLE.len(), block_size: BLOCK, num_kv_heads, head_dim, value_dim }
}

fn slots() -> Vec<u32> {
    (0..CONTEXT).map(|t| TABLE[t / BLOCK] * BLOCK as u32 + (t % BLOCK) as u32).collect()
}

fn sequence() -> [Sequence<'static>; 1] {
    [Sequence { num_tokens: ROWS, context_len: CONTEXT, block_table: &TABLE }]
}

fn causal(num_heads: usize, window: Option<usize>) -> Attention {
    Attention { num_heads, scale: 0.3, mask: Mask::Causal { window }, softcap: None }
}

/// One chunk of heads of every row.
fn heads(x: &[f32], num_heads: usize, dim: usize, keep: std::ops::Range<usize>) -> Vec<f32> {
    x.chunks_exact(dim)
        .take(x.len() / dim / num_heads * num_heads)
        .flat_map(|h| h[keep.clone()].to_vec())
        .collect()
}

#[test]
fn values_in_the_keys_give_the_bits_of_values_of_their_own() {
    let (num_heads, kv_heads, head_dim, value_dim) = (6, 2, 40, 24);
    let mut rng = Rng::new(1);
    let (q, k) = (rng.vec(ROWS * num_heads * head_dim), rng.vec(CONTEXT * kv_heads * head_dim));
    let v = heads(&k, kv_heads, head_dim, 0..value_dim);
    let shape = shape(kv_heads, head_dim, value_dim);
    for cpu in cpus(&[1, 3]) {
        for dtype in DTYPES {
            let (mut apart, mut within) =
                (KvCache::new(shape, dtype).unwrap(), KvCache::with_values_in_keys(shape, dtype).unwrap());
            write(&mut apart, &k, &v, &slots()).unwrap();
            write(&mut within, &k, &[], &slots()).unwrap();
            let run = |cache: &KvCache, window| {
                let mut out = poisoned(ROWS * num_heads * value_dim);
                paged(&cpu, causal(num_heads, window), &q, cache, &sequence(), &mut out).unwrap();
                out
            };
            for window in [None, Some(50)] {
                assert_same_bits(&run(&within, window), &run(&apart, window), "values in keys");
            }
        }
    }
    assert!(KvCache::with_values_in_keys(KvShape { value_dim: 41, ..shape }, KvDtype::F32).is_err());
}

#[test]
fn choosing_every_position_changes_no_bit() {
    let (num_heads, dim) = (4, 24);
    let mut rng = Rng::new(2);
    let (q, k, v) = (rng.vec(ROWS * num_heads * dim), rng.vec(CONTEXT * 2 * dim), rng.vec(CONTEXT * 2 * dim));
    // From the last block to the first, and one twice.
    let per_row: Vec<f32> = (0..CONTEXT.div_ceil(8)).rev().chain([3]).map(|b| b as f32).collect();
    let entries = per_row.repeat(ROWS);
    let selected = Selected { entries: &entries, num_entries: per_row.len(), per_head: false, block: 8 };
    for cpu in cpus(&[1, 3]) {
        for dtype in DTYPES {
            let mut cache = KvCache::new(shape(2, dim, dim), dtype).unwrap();
            write(&mut cache, &k, &v, &slots()).unwrap();
            let (mut all, mut chosen) = (poisoned(q.len()), poisoned(q.len()));
            let how = causal(num_heads, None);
            paged(&cpu, how, &q, &cache, &sequence(), &mut all).unwrap();
            paged_selected(&cpu, how, selected, &q, &cache, &sequence(), &mut chosen).unwrap();
            assert_same_bits(&chosen, &all, "all positions");
        }
    }
}

#[test]
fn only_chosen_positions_are_seen() {
    let (num_heads, kv_heads, dim) = (4, 2, 24);
    let mut rng = Rng::new(3);
    let (q, k) = (rng.vec(ROWS * num_heads * dim), rng.vec(CONTEXT * kv_heads * dim));
    let v = rng.vec(CONTEXT * kv_heads * dim);
    // Every KV head of a row chooses for itself; some entries are empty, some lie ahead of the row.
    let num_entries = 70;
    let entries: Vec<f32> = (0..ROWS * kv_heads * num_entries)
        .map(|_| if rng.below(5) == 0 { -1.0 } else { rng.below(CONTEXT) as f32 })
        .collect();
    let selected = Selected { entries: &entries, num_entries, per_head: true, block: 1 };
    let mut expected = Vec::new();
    for row in 0..ROWS {
        for head in 0..num_heads {
            let kv_head = head / (num_heads / kv_heads);
            let list = &entries[(row * kv_heads + kv_head) * num_entries..][..num_entries];
            let position = CONTEXT - ROWS + row;
            let seen: Vec<usize> = (0..=position).filter(|p| list.contains(&(*p as f32))).collect();
            let of = |x: &[f32], t: usize| x[(t * kv_heads + kv_head) * dim..][..dim].to_vec();
            let query = &q[(row * num_heads + head) * dim..][..dim];
            let dot = |key: Vec<f32>| -> f64 {
                query.iter().zip(key).map(|(a, b)| f64::from(*a) * f64::from(b)).sum()
            };
            let weights: Vec<f64> = seen.iter().map(|t| (0.3 * dot(of(&k, *t))).exp()).collect();
            let sum: f64 = weights.iter().sum();
            let value = |d: usize| -> f64 {
                seen.iter().zip(&weights).map(|(t, w)| w / sum * f64::from(of(&v, *t)[d])).sum()
            };
            expected.extend((0..dim).map(value));
        }
    }
    for cpu in cpus(&[1, 3]) {
        let mut cache = KvCache::new(shape(kv_heads, dim, dim), KvDtype::F32).unwrap();
        write(&mut cache, &k, &v, &slots()).unwrap();
        let mut out = poisoned(q.len());
        let how = causal(num_heads, None);
        paged_selected(&cpu, how, selected, &q, &cache, &sequence(), &mut out).unwrap();
        assert_close(&out, &expected, |_| 1e-5, "chosen positions");
    }
}

fn choose(
    cpu: &Cpu,
    indexer: Indexer,
    q: &[f32],
    weights: Option<&[f32]>,
    k: &[f32],
    dim: usize,
) -> Vec<f32> {
    let mut keys = KvCache::with_values_in_keys(shape(1, dim, dim), KvDtype::F32).unwrap();
    write(&mut keys, k, &[], &slots()).unwrap();
    let lists = if indexer.per_head { indexer.num_heads } else { 1 };
    let mut out = poisoned(ROWS * lists * indexer.top_k);
    index(cpu, indexer, (q, weights), &keys, &sequence(), &mut out).unwrap();
    out
}

/// Scores of the positions up to a row's own for one head, from small whole numbers: exact in f32.
fn exact_scores(q: &[f32], k: &[f32], dim: usize, position: usize) -> Vec<f32> {
    k.chunks_exact(dim).take(position + 1).map(|key| q.iter().zip(key).map(|(a, b)| a * b).sum()).collect()
}

/// The best of them, ties to the lower one.
fn best(scores: &[f32], top_k: usize) -> Vec<f32> {
    let mut order: Vec<usize> = (0..scores.len()).collect();
    order.sort_by(|a, b| scores[*b].total_cmp(&scores[*a]).then(a.cmp(b)));
    (0..top_k).map(|i| order.get(i).map_or(-1.0, |p| *p as f32)).collect()
}

#[test]
fn an_indexer_chooses_the_best_positions() {
    // With seven heads the last tile of heads is a partial one. Small whole numbers give many ties.
    let (num_heads, dim) = (7, 10);
    let mut rng = Rng::new(4);
    let mut whole = |len: usize| -> Vec<f32> { (0..len).map(|_| rng.below(7) as f32 - 3.0).collect() };
    let (q, k) = (whole(ROWS * num_heads * dim), whole(CONTEXT * dim));
    let weights: Vec<f32> = (0..ROWS * num_heads).map(|i| (i % 3) as f32 - 0.5).collect();
    for top_k in [1, 40, 200] {
        let expected: Vec<f32> = (0..ROWS)
            .flat_map(|row| {
                let mut sum = vec![0.0; CONTEXT - ROWS + row + 1];
                for head in 0..num_heads {
                    let at = row * num_heads + head;
                    let scores = exact_scores(&q[at * dim..][..dim], &k, dim, sum.len() - 1);
                    sum.iter_mut().zip(scores).for_each(|(sum, s)| *sum += weights[at] * (0.5 * s).max(0.0));
                }
                best(&sum, top_k)
            })
            .collect();
        let pool = Pool::Positions;
        let indexer = Indexer { num_heads, top_k, scale: 0.5, relu: true, per_head: false, pool };
        for cpu in cpus(&[1, 3]) {
            assert_same_bits(&choose(&cpu, indexer, &q, Some(&weights), &k, dim), &expected, "positions");
        }
    }
}

#[test]
fn an_indexer_chooses_blocks_by_their_best_score_and_its_own_first() {
    let (num_heads, dim, block, top_k) = (3, 10, 8, 4);
    let mut rng = Rng::new(5);
    let mut whole = |len: usize| -> Vec<f32> { (0..len).map(|_| rng.below(7) as f32 - 3.0).collect() };
    let (q, k) = (whole(ROWS * num_heads * dim), whole(CONTEXT * dim));
    for local_blocks in [0, 1, 2] {
        let of_head = |at: usize| {
            let position = CONTEXT - ROWS + at / num_heads;
            let scores = exact_scores(&q[at * dim..][..dim], &k, dim, position);
            let mut blocks: Vec<f32> =
                scores.chunks(block).map(|b| b.iter().copied().fold(f32::NEG_INFINITY, f32::max)).collect();
            let first_local = blocks.len() - local_blocks;
            blocks[first_local..].fill(f32::INFINITY);
            best(&blocks, top_k)
        };
        let expected: Vec<f32> = (0..ROWS * num_heads).flat_map(of_head).collect();
        let pool = Pool::MaxScores { block, local_blocks };
        let indexer = Indexer { num_heads, top_k, scale: 1.0, relu: false, per_head: true, pool };
        for cpu in cpus(&[1, 3]) {
            assert_same_bits(&choose(&cpu, indexer, &q, None, &k, dim), &expected, "blocks");
        }
    }
}
