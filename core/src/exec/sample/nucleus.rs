//! Top-p: the smallest set of most probable tokens whose mass reaches p, found without sorting the vocabulary.

/// A token that may still be chosen.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Candidate {
    pub(super) token: u32,
    /// Unnormalised probability.
    pub(super) weight: f32,
}

/// First guess of how many tokens a nucleus has.
const FIRST_GUESS: usize = 64;

/// Keeps the nucleus of `candidates`, whose weights add up to `total`: a token stays if the mass of all more probable
/// ones is below `top_p`. At least one stays. Equal weights rank by token id.
pub(super) fn keep_nucleus(candidates: &mut Vec<Candidate>, total: f64, top_p: f32) {
    let tail = (1.0 - f64::from(top_p)) * total;
    // All tokens below this weight together weigh less than the tail, so none of them is in the nucleus.
    let negligible = tail / candidates.len().max(1) as f64;
    candidates.retain(|c| f64::from(c.weight) > negligible);

    let needed = f64::from(top_p) * total;
    let mut sorted = 0;
    let mut mass = 0.0;
    let mut guess = FIRST_GUESS;
    while sorted < candidates.len() {
        let rest = &mut candidates[sorted..];
        let num = guess.min(rest.len());
        if num < rest.len() {
            rest.select_nth_unstable_by(num, more_probable);
        }
        rest[..num].sort_unstable_by(more_probable);
        for (index, c) in rest[..num].iter().enumerate() {
            if mass >= needed {
                let keep = (sorted + index).max(1);
                candidates.truncate(keep);
                return;
            }
            mass += f64::from(c.weight);
        }
        sorted += num;
        guess *= 4;
    }
}

fn more_probable(a: &Candidate, b: &Candidate) -> std::cmp::Ordering {
    b.weight.total_cmp(&a.weight).then(a.token.cmp(&b.token))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn nucleus(weights: &[f32], top_p: f32) -> Vec<u32> {
        let mut candidates: Vec<_> =
            (0..).zip(weights).map(|(token, &weight)| Candidate { token, weight }).collect();
        let total = weights.iter().map(|w| f64::from(*w)).sum();
        keep_nucleus(&mut candidates, total, top_p);
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
