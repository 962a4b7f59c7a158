//! How often drafts are right.

use super::config::MAX_DRAFTS;

/// Counts since the start of an engine.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DraftStats {
    /// Times that a sequence was verified with at least one draft.
    pub num_drafts: u64,
    /// Drafts that were verified.
    pub num_draft_tokens: u64,
    /// Drafts that were kept, by their place after the last known token.
    pub num_accepted_per_pos: [u64; MAX_DRAFTS],
}

impl DraftStats {
    /// Takes in one verification.
    pub fn record(&mut self, num_drafts: usize, num_accepted: usize) {
        self.num_drafts += 1;
        self.num_draft_tokens += num_drafts as u64;
        for count in &mut self.num_accepted_per_pos[..num_accepted.min(MAX_DRAFTS)] {
            *count += 1;
        }
    }

    /// Drafts that were kept.
    #[must_use]
    pub fn num_accepted_tokens(&self) -> u64 {
        self.num_accepted_per_pos.iter().sum()
    }

    /// Tokens per verification: the drafts that were kept, and the one that every step gives. 1 without drafts.
    #[must_use]
    pub fn mean_acceptance_length(&self) -> f64 {
        1.0 + self.num_accepted_tokens() as f64 / self.num_drafts.max(1) as f64
    }

    /// What has been counted after `earlier`.
    #[must_use]
    pub fn since(&self, earlier: &Self) -> Self {
        let mut num_accepted_per_pos = self.num_accepted_per_pos;
        num_accepted_per_pos
            .iter_mut()
            .zip(earlier.num_accepted_per_pos)
            .for_each(|(now, then)| *now -= then);
        Self {
            num_drafts: self.num_drafts - earlier.num_drafts,
            num_draft_tokens: self.num_draft_tokens - earlier.num_draft_tokens,
            num_accepted_per_pos,
        }
    }
}

impl std::fmt::Display for DraftStats {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let percent = |n: u64, of: u64| 100.0 * n as f64 / of.max(1) as f64;
        write!(
            f,
            "{:.2} tokens per step ({} of {} drafts accepted, {:.1} %",
            self.mean_acceptance_length(),
            self.num_accepted_tokens(),
            self.num_draft_tokens,
            percent(self.num_accepted_tokens(), self.num_draft_tokens),
        )?;
        let used = self.num_accepted_per_pos.iter().rposition(|n| *n > 0).map_or(0, |last| last + 1);
        for (i, n) in self.num_accepted_per_pos[..used].iter().enumerate() {
            let separator = if i == 0 { "; by place" } else { "," };
            write!(f, "{separator} {:.1} %", percent(*n, self.num_drafts))?;
        }
        write!(f, ")")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn acceptance_is_counted_by_place() {
        let mut stats = DraftStats::default();
        assert_eq!(stats.mean_acceptance_length(), 1.0);
        let earlier = stats;
        for num_accepted in [3, 0, 1, 1] {
            stats.record(3, num_accepted);
        }
        assert_eq!(stats.num_accepted_per_pos, [3, 1, 1]);
        assert_eq!(stats.mean_acceptance_length(), 2.25);
        assert_eq!(stats.since(&earlier), stats);
        assert_eq!(stats.since(&stats), DraftStats::default());
        let expected =
            "2.25 tokens per step (5 of 12 drafts accepted, 41.7 %; by place 75.0 %, 25.0 %, 25.0 %)";
        assert_eq!(stats.to_string(), expected);
    }
}
