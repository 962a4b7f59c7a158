//! Runs of tokens that must not repeat.

/// Tokens that would complete a run of `size` tokens that `history` has already. None for a size of 0.
pub(super) fn completions(history: &[u32], size: usize) -> impl Iterator<Item = u32> + '_ {
    let start = history.len().checked_sub(size.saturating_sub(1)).filter(|_| size > 0);
    let last = start.map(|start| &history[start..]);
    last.into_iter().flat_map(move |last| {
        history.windows(size).filter_map(move |run| run.strip_prefix(last)?.first().copied())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(history: &[u32], size: usize) -> Vec<u32> {
        completions(history, size).collect()
    }

    #[test]
    fn what_followed_the_same_beginning_is_found() {
        let history = [1, 2, 3, 1, 2, 4, 1, 2];
        assert_eq!(of(&history, 3), [3, 4]);
        assert_eq!(of(&history, 2), [3, 4]);
        assert_eq!(of(&history, 1), history);
    }

    #[test]
    fn a_short_history_and_a_size_of_zero_forbid_nothing() {
        for (history, size) in [(&[1, 2][..], 4), (&[1], 3), (&[1, 1, 1], 0)] {
            assert!(of(history, size).is_empty(), "{history:?}, {size}");
        }
    }
}
