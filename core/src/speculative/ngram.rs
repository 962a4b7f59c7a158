//! Prompt lookup: the last tokens stood in the sequence before, so what followed them then is the draft.
//!
//! As in vLLM and transformers: the longest n-gram that occurs earlier counts, at its earliest occurrence.

/// Lengths of the n-grams that are looked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NgramSizes {
    /// Shortest, at least 1.
    pub min: usize,
    /// Longest.
    pub max: usize,
}

impl NgramSizes {
    /// From `[min, max]` as a user gives them. With only one given, both are that; with none, 5, as in vLLM.
    ///
    /// # Errors
    /// The range is empty.
    pub(super) fn new([min, max]: [Option<usize>; 2]) -> Result<Self, String> {
        const DEFAULT: usize = 5;
        let sizes = Self { min: min.or(max).unwrap_or(DEFAULT), max: max.or(min).unwrap_or(DEFAULT) };
        if sizes.min == 0 || sizes.min > sizes.max {
            return Err(format!(
                "prompt lookup of n-grams from {} to {} tokens; expected at least 1, and min not above max",
                sizes.min, sizes.max
            ));
        }
        Ok(sizes)
    }
}

/// Adds up to `num` tokens to `drafts` that may follow `tokens`; none if nothing is found.
pub fn propose(tokens: &[u32], sizes: NgramSizes, num: usize, drafts: &mut Vec<u32>) {
    for size in (sizes.min..=sizes.max).rev() {
        // The last n-gram itself is no earlier occurrence.
        let Some(last) = tokens.len().checked_sub(size).filter(|start| *start > 0) else { continue };
        let found = tokens[..tokens.len() - 1].windows(size).position(|w| *w == tokens[last..]);
        if let Some(start) = found {
            let follow = &tokens[start + size..];
            drafts.extend_from_slice(&follow[..num.min(follow.len())]);
            return;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn proposed(tokens: &[u32], min: usize, max: usize, num: usize) -> Vec<u32> {
        let mut drafts = Vec::new();
        propose(tokens, NgramSizes { min, max }, num, &mut drafts);
        drafts
    }

    #[test]
    fn the_longest_ngram_counts_at_its_earliest_occurrence() {
        let tokens = [1, 2, 3, 9, 2, 3, 8, 1, 2, 3];
        assert_eq!(proposed(&tokens, 1, 3, 2), [9, 2], "1 2 3 at the start");
        assert_eq!(proposed(&tokens, 1, 2, 2), [9, 2], "2 3 after the start, not the one before 8");
        assert_eq!(proposed(&tokens, 4, 5, 2), [0; 0]);
    }

    #[test]
    fn it_never_proposes_past_the_end() {
        assert_eq!(proposed(&[7, 7], 1, 3, 3), [7]);
        assert_eq!(proposed(&[7], 1, 3, 3), [0; 0]);
        assert_eq!(proposed(&[], 1, 3, 3), [0; 0]);
        assert_eq!(proposed(&[4, 5, 4], 1, 1, 3), [5, 4]);
    }
}
