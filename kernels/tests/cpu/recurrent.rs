//! Convolution and delta rule: as defined, and with rows that are taken back.

use metrale_kernels::cpu::Cpu;
use metrale_kernels::cpu::conv::{Conv1d, DraftRows, KeptInputs, SlotSequence, SlotState, causal_conv1d};
use metrale_kernels::cpu::delta_rule::{DeltaInputs, DeltaShape, HeadMap, gated_delta_rule};
use metrale_kernels::cpu::elementwise::Unary;

use crate::support::{Rng, assert_close, assert_same_bits, cpus, poisoned};

const KERNEL: usize = 4;
const CHANNELS: usize = 150;
const HK: usize = 2;
const HV: usize = 4;
const DK: usize = 8;
const DV: usize = 12;
const NUM_SLOTS: usize = 5;
const MAX_DRAFTS: usize = 3;

/// An op that carries state, over rows that hold all its inputs.
#[derive(Clone, Copy, Debug)]
enum Op {
    Conv,
    Delta { per_channel: bool },
}

const OPS: [Op; 3] = [Op::Conv, Op::Delta { per_channel: false }, Op::Delta { per_channel: true }];

impl Op {
    /// Widths of the inputs in a row: x, or q, k, v, g and beta.
    fn inputs(self) -> Vec<usize> {
        match self {
            Self::Conv => vec![CHANNELS],
            Self::Delta { per_channel } => {
                vec![HK * DK, HK * DK, HV * DV, if per_channel { HV * DK } else { HV }, HV]
            }
        }
    }

    fn out_width(self) -> usize {
        match self {
            Self::Conv => CHANNELS,
            Self::Delta { .. } => HV * DV,
        }
    }

    fn state_len(self) -> usize {
        match self {
            Self::Conv => (KERNEL - 1) * CHANNELS,
            Self::Delta { .. } => HV * DK * DV,
        }
    }

    /// Numbers per row that are kept of a draft: all inputs but the query.
    fn kept_width(self) -> usize {
        let skipped = usize::from(!matches!(self, Self::Conv));
        self.inputs()[skipped..].iter().sum()
    }

    fn rows(self, rng: &mut Rng, num: usize) -> Vec<Vec<f32>> {
        let width = self.inputs().iter().sum();
        let mut rows: Vec<Vec<f32>> = (0..num).map(|_| rng.vec(width)).collect();
        if let Self::Delta { .. } = self {
            // Log decays are negative.
            let (start, len) = (2 * HK * DK + HV * DV, self.inputs()[3]);
            rows.iter_mut().flat_map(|r| &mut r[start..start + len]).for_each(|g| *g = -g.abs());
        }
        rows
    }

    fn run(
        self,
        cpu: &Cpu,
        rows: &[&Vec<f32>],
        sequences: &[SlotSequence],
        state: SlotState<'_>,
    ) -> Vec<f32> {
        let (mut start, mut inputs) = (0, Vec::new());
        for width in self.inputs() {
            inputs.push(rows.iter().flat_map(|r| r[start..start + width].to_vec()).collect::<Vec<f32>>());
            start += width;
        }
        let mut out = poisoned(rows.len() * self.out_width());
        match self {
            Self::Conv => {
                let weight = Rng::new(7).vec(CHANNELS * KERNEL);
                let conv =
                    Conv1d { weight: &weight, bias: None, kernel: KERNEL, activation: Unary::Identity };
                causal_conv1d(cpu, conv, &inputs[0], sequences, state, &mut out).unwrap();
            }
            Self::Delta { .. } => {
                let [q, k, v, g, beta] = &inputs[..] else { unreachable!() };
                let inputs = DeltaInputs { q, k, v, g, beta };
                let shape = DeltaShape {
                    num_key_heads: HK,
                    num_value_heads: HV,
                    key_dim: DK,
                    value_dim: DV,
                    head_map: HeadMap::Grouped,
                };
                gated_delta_rule(cpu, shape, inputs, sequences, state, &mut out).unwrap();
            }
        }
        out
    }

    /// All rows of one sequence at once: outputs and the state after them.
    fn whole(self, cpu: &Cpu, rows: &[Vec<f32>]) -> (Vec<f32>, Vec<f32>) {
        let mut state = vec![0.0; self.state_len()];
        let sequence = SlotSequence { num_tokens: rows.len(), slot: 0 };
        let out = self.run(cpu, &rows.iter().collect::<Vec<_>>(), &[sequence], (&mut state).into());
        (out, state)
    }
}

#[test]
fn a_convolution_is_the_sum_over_its_last_inputs() {
    let rows = Op::Conv.rows(&mut Rng::new(1), 9);
    let weight = Rng::new(7).vec(CHANNELS * KERNEL);
    let mut expected = Vec::new();
    for t in 0..rows.len() {
        for c in 0..CHANNELS {
            let taps = (0..KERNEL).filter(|i| t + i + 1 >= KERNEL);
            let term = |i: usize| f64::from(weight[c * KERNEL + i]) * f64::from(rows[t + i + 1 - KERNEL][c]);
            expected.push(taps.map(term).sum());
        }
    }
    for cpu in cpus(&[1, 3]) {
        assert_close(&Op::Conv.whole(&cpu, &rows).0, &expected, |_| 1e-6, "convolution");
    }
}

#[test]
fn a_delta_rule_follows_its_recurrence() {
    for per_channel in [false, true] {
        let op = Op::Delta { per_channel };
        let rows = op.rows(&mut Rng::new(2), 7);
        let mut state = vec![0.0_f64; op.state_len()];
        let mut expected = Vec::new();
        for row in &rows {
            let (q, rest) = row.split_at(HK * DK);
            let (k, rest) = rest.split_at(HK * DK);
            let (v, rest) = rest.split_at(HV * DV);
            let (g, beta) = rest.split_at(op.inputs()[3]);
            for h in 0..HV {
                let (s, key) = (&mut state[h * DK * DV..][..DK * DV], h / (HV / HK) * DK);
                for (i, value) in s.iter_mut().enumerate() {
                    *value *= f64::from(if per_channel { g[h * DK + i / DV] } else { g[h] }).exp();
                }
                for j in 0..DV {
                    let read: f64 = (0..DK).map(|i| s[i * DV + j] * f64::from(k[key + i])).sum();
                    let delta = f64::from(beta[h]) * (f64::from(v[h * DV + j]) - read);
                    (0..DK).for_each(|i| s[i * DV + j] += f64::from(k[key + i]) * delta);
                    expected.push((0..DK).map(|i| s[i * DV + j] * f64::from(q[key + i])).sum());
                }
            }
        }
        for cpu in cpus(&[1, 3]) {
            assert_close(&op.whole(&cpu, &rows).0, &expected, |_| 1e-4, "delta rule");
        }
    }
}

/// A sequence that is computed with drafts, some of them wrong.
struct Drafting {
    rows: Vec<Vec<f32>>,
    slot: usize,
    num_computed: usize,
    drafts: DraftRows,
}

#[test]
fn drafts_that_are_taken_back_leave_no_trace() {
    for cpu in cpus(&[1, 3]) {
        for op in OPS {
            let mut rng = Rng::new(3);
            let slots = [3, 0, 4];
            let sequence = |slot: usize, rng: &mut Rng| Drafting {
                rows: op.rows(rng, 60 + slot),
                slot,
                num_computed: 0,
                drafts: DraftRows::default(),
            };
            let mut running: Vec<_> = slots.into_iter().map(|slot| sequence(slot, &mut rng)).collect();
            let expected: Vec<_> = running.iter().map(|s| op.whole(&cpu, &s.rows)).collect();
            let mut state = vec![0.0; NUM_SLOTS * op.state_len()];
            let mut kept = poisoned(NUM_SLOTS * MAX_DRAFTS * op.kept_width());
            while running.iter().any(|s| s.num_computed < s.rows.len()) {
                let wrong = op.rows(&mut rng, MAX_DRAFTS);
                let (mut rows, mut sequences, mut drafts, mut num_right) = (vec![], vec![], vec![], vec![]);
                for s in &mut running {
                    let left = s.rows.len() - s.num_computed;
                    // The last step of a sequence has no drafts, so that its state is complete.
                    let num_known = if left <= 5 { left } else { 1 + rng.below(2) };
                    s.drafts.num_drafts = if left <= 5 { 0 } else { rng.below(MAX_DRAFTS + 1) };
                    let right = rng.below(s.drafts.num_drafts + 1);
                    let known = s.num_computed..s.num_computed + num_known + right;
                    rows.extend(&s.rows[known]);
                    rows.extend(&wrong[right..s.drafts.num_drafts]);
                    sequences
                        .push(SlotSequence { num_tokens: num_known + s.drafts.num_drafts, slot: s.slot });
                    drafts.push(s.drafts);
                    num_right.push(right);
                }
                let inputs = KeptInputs { rows: &drafts, inputs: &mut kept, max_drafts: MAX_DRAFTS };
                let found = op.run(&cpu, &rows, &sequences, SlotState::with_drafts(&mut state, inputs));
                let (mut first, width) = (0, op.out_width());
                for (((s, sequence), right), (expected, _)) in
                    running.iter_mut().zip(&sequences).zip(&num_right).zip(&expected)
                {
                    let num = sequence.num_tokens - s.drafts.num_drafts + right;
                    let (found, at) = (&found[first * width..], s.num_computed * width);
                    let what = format!("{op:?}, slot {}", s.slot);
                    assert_same_bits(&found[..num * width], &expected[at..at + num * width], &what);
                    first += sequence.num_tokens;
                    s.num_computed += num;
                    s.drafts.num_accepted = *right;
                }
            }
            for (s, (_, expected)) in running.iter().zip(&expected) {
                let found = &state[s.slot * op.state_len()..][..op.state_len()];
                assert_same_bits(found, expected, "the state at the end");
            }
        }
    }
}

#[test]
fn drafts_that_do_not_fit_are_refused() {
    let (cpu, op) = (Cpu::new(1), Op::Conv);
    let rows = op.rows(&mut Rng::new(4), 2);
    let weight = vec![1.0; CHANNELS * KERNEL];
    let conv = Conv1d { weight: &weight, bias: None, kernel: KERNEL, activation: Unary::Identity };
    let (x, mut out) = (rows.concat(), poisoned(2 * CHANNELS));
    let (mut state, mut kept) = (vec![0.0; op.state_len()], vec![0.0; MAX_DRAFTS * CHANNELS]);
    let bad = [
        (vec![DraftRows { num_accepted: 0, num_drafts: 3 }], "num_drafts"),
        (vec![DraftRows { num_accepted: 4, num_drafts: 1 }], "num_accepted"),
        (vec![], "drafts"),
    ];
    for (drafts, argument) in &bad {
        let inputs = KeptInputs { rows: drafts, inputs: &mut kept, max_drafts: MAX_DRAFTS };
        let state = SlotState::with_drafts(&mut state, inputs);
        let sequence = SlotSequence { num_tokens: 2, slot: 0 };
        let error = causal_conv1d(&cpu, conv, &x, &[sequence], state, &mut out).unwrap_err().to_string();
        assert!(error.contains(&format!("`{argument}`")), "{error}");
    }
}
