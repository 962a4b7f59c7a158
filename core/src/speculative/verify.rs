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

#[cfg(test)]
mod tests {
    use super::*;

    const VOCAB: u32 = 3;
    /// Chances are multiples of one sixth, and so are the draws: every outcome can be counted.
    const PARTS: u32 = 6;

    /// Chances of the token after `prefix`, in sixths; every prefix has others.
    fn chances(prefix: &[u32], salt: u32) -> [u32; VOCAB as usize] {
        let mixed = prefix.iter().fold(salt, |h, t| h.wrapping_mul(31).wrapping_add(t + 7));
        let first = mixed % (PARTS + 1);
        let second = mixed / 7 % (PARTS - first + 1);
        [first, second, PARTS - first - second]
    }

    /// The token that a draw below `PARTS` chooses after `prefix`.
    fn choose(prefix: &[u32], salt: u32, draw: u32) -> u32 {
        let mut below = 0;
        let hit = |chance: &u32| {
            below += chance;
            draw < below
        };
        chances(prefix, salt).iter().position(hit).unwrap() as u32
    }

    /// Three tokens, the first of them verified with these drafts; and how many drafts that step accepted.
    fn text(drafts: &[u32], salt: u32, draws: [u32; 3]) -> (Vec<u32>, usize) {
        let mut text = Vec::new();
        let mut verification = Verification::new(drafts);
        while verification.accept({
            let token = choose(&text, salt, draws[text.len()]);
            text.push(token);
            token
        }) {}
        let num_accepted = verification.num_accepted();
        assert_eq!(text.len(), num_accepted + 1);
        while text.len() < 3 {
            text.push(choose(&text, salt, draws[text.len()]));
        }
        (text, num_accepted)
    }

    /// Every text has exactly its chance, whatever the drafts; and the first is accepted as often as it can be.
    #[test]
    fn the_distribution_of_texts_does_not_depend_on_drafts() {
        let draws = || (0..PARTS.pow(3)).map(|i| [i / PARTS.pow(2), i / PARTS % PARTS, i % PARTS]);
        let texts = || (0..VOCAB.pow(3)).map(|i| vec![i / VOCAB.pow(2), i / VOCAB % VOCAB, i % VOCAB]);
        for salt in 0..40 {
            for drafts in (0..VOCAB.pow(2)).map(|i| [i / VOCAB, i % VOCAB]) {
                for num_drafts in 0..=2 {
                    let drafts = &drafts[..num_drafts];
                    let found: Vec<_> = draws().map(|draws| text(drafts, salt, draws)).collect();
                    for expected in texts() {
                        let count = found.iter().filter(|(text, _)| *text == expected).count();
                        let chance = |i: usize| chances(&expected[..i], salt)[expected[i] as usize];
                        assert_eq!(
                            count as u32,
                            chance(0) * chance(1) * chance(2),
                            "{expected:?} {drafts:?}"
                        );
                    }
                    if let Some(&draft) = drafts.first() {
                        let accepted = found.iter().filter(|(_, n)| *n > 0).count();
                        let chance = chances(&[], salt)[draft as usize];
                        assert_eq!(accepted as u32, chance * PARTS.pow(2));
                    }
                }
            }
        }
    }
}
