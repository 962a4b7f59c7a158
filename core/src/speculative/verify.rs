//! Which drafts are kept.

/// Walks through the tokens that a step chose for a sequence, one per verified row, while they are the drafts.
///
/// The step's row of draft i has logits for the token after it, and those hold only if draft i and all before it are what
/// the sequence goes on with. Each token is chosen from its row exactly as it would have been without drafts: with the
/// request's seed, the token's index, and penalties that know the tokens before it. If the choice is the draft, the next
/// row holds too.
///
/// This is rejection sampling for drafts without a distribution of their own (q is 1 at the draft d): d is kept with
/// probability p(d) = min(1, p(d)/q(d)), and otherwise the token comes from p without d, renormalised, which is
/// max(p − q, 0) renormalised. It is more than that: the drafts decide how many steps a text takes, and nothing about
/// the text.
///
/// Leviathan, Kalman, Matias: "Fast Inference from Transformers via Speculative Decoding", arXiv 2211.17192, §2.3.
#[derive(Debug)]
pub struct Verification<'a> {
    drafts: &'a [u32],
    num_accepted: usize,
}

impl<'a> Verification<'a> {
    /// Nothing is verified yet.
    #[must_use]
    pub fn new(drafts: &'a [u32]) -> Self {
        Self { drafts, num_accepted: 0 }
    }

    /// Takes the choice of the next row. False if the rows after it do not hold, or there are none.
    pub fn accept(&mut self, chosen: u32) -> bool {
        let is_draft = self.drafts.get(self.num_accepted) == Some(&chosen);
        self.num_accepted += usize::from(is_draft);
        is_draft
    }

    /// Drafts that were chosen.
    #[must_use]
    pub fn num_accepted(&self) -> usize {
        self.num_accepted
    }
}
