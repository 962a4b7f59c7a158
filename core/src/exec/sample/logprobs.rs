//! Log-probabilities under the model's raw distribution, before any processing.

/// A token with its log-probability under the model's raw distribution.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct TokenLogprob {
    /// Token id.
    pub token: u32,
    /// Natural logarithm of its probability (log-softmax of the raw logits).
    pub logprob: f32,
    /// 1 for the most likely token.
    pub rank: u32,
}

/// Log-probabilities at one position.
#[derive(Clone, Debug, PartialEq)]
pub struct PositionLogprobs {
    /// The token that stands at this position.
    pub chosen: TokenLogprob,
    /// The most likely tokens, best first.
    pub top: Vec<TokenLogprob>,
}

use super::reduce;

/// Log-probabilities of `chosen` and of the `num_top` most likely tokens. `logits` are finite, `chosen` is one of them.
pub(super) fn logprobs(
    logits: &[f32],
    chosen: u32,
    num_top: usize,
    scratch: &mut Vec<f32>,
) -> PositionLogprobs {
    let max = reduce::max(logits);
    scratch.clear();
    scratch.extend(logits.iter().map(|l| reduce::exp(l - max)));
    let log_sum = reduce::sum(scratch).ln();
    let logprob = |l: f32| (f64::from(l - max) - log_sum) as f32;

    let chosen_logit = logits[chosen as usize];
    let num_better = logits.iter().fold(0, |n, l| n + u32::from(*l > chosen_logit));
    let top = most_likely(logits, num_top, scratch)
        .into_iter()
        .enumerate()
        .map(|(i, token)| TokenLogprob {
            token,
            logprob: logprob(logits[token as usize]),
            rank: i as u32 + 1,
        })
        .collect();
    let chosen = TokenLogprob { token: chosen, logprob: logprob(chosen_logit), rank: num_better + 1 };
    PositionLogprobs { chosen, top }
}

/// The `num` most likely tokens, best first, lower ids first among equals.
fn most_likely(logits: &[f32], num: usize, scratch: &mut Vec<f32>) -> Vec<u32> {
    if num == 0 {
        return Vec::new();
    }
    let threshold = reduce::kth_largest(logits, num, scratch);
    let mut tokens: Vec<u32> =
        (0_u32..).zip(logits).filter(|(_, l)| **l >= threshold).map(|(token, _)| token).collect();
    tokens.sort_by(|&a, &b| logits[b as usize].total_cmp(&logits[a as usize]));
    tokens.truncate(num);
    tokens
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn logprobs_are_the_raw_log_softmax() {
        let logits = [1.0_f32, 3.0, -2.0, 3.0, 0.5];
        let log_sum = logits.iter().map(|l| f64::from(*l).exp()).sum::<f64>().ln();
        let found = logprobs(&logits, 0, 3, &mut Vec::new());
        assert_eq!((found.chosen.token, found.chosen.rank), (0, 3));
        let tops: Vec<_> = found.top.iter().map(|t| (t.token, t.rank)).collect();
        assert_eq!(tops, [(1, 1), (3, 2), (0, 3)]);
        for t in found.top.iter().chain([&found.chosen]) {
            let expected = f64::from(logits[t.token as usize]) - log_sum;
            assert!((f64::from(t.logprob) - expected).abs() < 1e-6);
        }
    }

    #[test]
    fn all_tokens_can_be_asked_for() {
        let found = logprobs(&[0.0, 1.0], 1, 2, &mut Vec::new());
        assert_eq!(found.top.iter().map(|t| t.token).collect::<Vec<_>>(), [1, 0]);
        assert!(logprobs(&[0.0, 1.0], 1, 0, &mut Vec::new()).top.is_empty());
    }
}
