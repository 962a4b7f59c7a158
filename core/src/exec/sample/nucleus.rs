//! Top-p: the smallest set of most probable tokens whose mass reaches p, found by weighted selection,
//! without sorting.

use std::cmp::Ordering;

/// A token that may still be chosen.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Candidate {
    pub(super) token: u32,
    /// Unnormalised probability.
    pub(super) weight: f32,
}

impl Candidate {
    /// More probable first, lower ids first among equals.
    fn rank(self, other: Self) -> Ordering {
        other.weight.total_cmp(&self.weight).then(self.token.cmp(&other.token))
    }
}

/// Tokens below this weight, of `num` that weigh `total`, are outside the nucleus: all of them together weigh less
/// than what top-p drops.
pub(super) fn negligible_weight(num: usize, total: f64, top_p: f32) -> f32 {
    let dropped = (1.0 - f64::from(top_p)) * total;
    // Rounding up would drop a token of exactly this weight.
    ((dropped / num.max(1) as f64) as f32).next_down()
}

/// Keeps the nucleus of `candidates`: a token stays if the mass of all more probable ones is below `top_p` of
/// `total`. At least one stays. Equal weights rank by token id; the order of those that stay is unspecified.
pub(super) fn keep_nucleus(candidates: &mut Vec<Candidate>, total: f64, top_p: f32) {
    let needed = f64::from(top_p) * total;
    // The most probable `start + 1` are in the nucleus, the least probable from `end` on are not.
    let (mut start, mut end) = (0, candidates.len());
    let mut mass_before_start = 0.0;
    while end - start > 1 {
        let mid = usize::midpoint(start, end);
        candidates[start..end].select_nth_unstable_by(mid - start, |a, b| a.rank(*b));
        let mass = candidates[start..mid].iter().map(|c| f64::from(c.weight)).sum::<f64>();
        if mass_before_start + mass >= needed {
            end = mid;
        } else {
            mass_before_start += mass;
            start = mid;
        }
    }
    candidates.truncate(end);
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn nucleus(weights: &[f32], top_p: f32) -> Vec<u32> {
        let mut candidates: Vec<_> =
            (0..).zip(weights).map(|(token, &weight)| Candidate { token, weight }).collect();
        let total = weights.iter().map(|w| f64::from(*w)).sum();
        let negligible = negligible_weight(weights.len(), total, top_p);
        candidates.retain(|c| c.weight >= negligible);
        keep_nucleus(&mut candidates, total, top_p);
        candidates.sort_by(|a, b| a.rank(*b));
        candidates.iter().map(|c| c.token).collect()
    }

    #[test]
    fn the_token_that_reaches_p_is_the_last_kept() {
        assert_eq!(nucleus(&[0.25, 0.5, 0.125, 0.125], 0.5), [1]);
        assert_eq!(nucleus(&[0.25, 0.5, 0.125, 0.125], 0.6), [1, 0]);
        assert_eq!(nucleus(&[0.25, 0.5, 0.125, 0.125], 0.8), [1, 0, 2]);
        assert_eq!(nucleus(&[0.25, 0.5, 0.125, 0.125], 1e-9), [1]);
    }

    proptest! {
        #[test]
        fn it_equals_the_definition_on_a_full_sort(
            weights in proptest::collection::vec(1..10_000_u32, 1..600), top_p in 0.01..0.99_f32,
        ) {
            let weights: Vec<f32> = weights.into_iter().map(|w| w as f32).collect();
            let total: f64 = weights.iter().map(|w| f64::from(*w)).sum();
            let mut order: Vec<u32> = (0..weights.len() as u32).collect();
            order.sort_by(|&a, &b| weights[b as usize].total_cmp(&weights[a as usize]));
            let mut before = 0.0;
            let expected: Vec<u32> = order.into_iter().take_while(|&t| {
                let keep = before < f64::from(top_p) * total;
                before += f64::from(weights[t as usize]);
                keep
            }).collect();
            prop_assert_eq!(nucleus(&weights, top_p), expected);
        }
    }
}
