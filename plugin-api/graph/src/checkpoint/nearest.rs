//! Names that a person could have meant: the "nearest" lines of a missing-tensor error.

use std::cmp::Reverse;

/// Candidates that get an exact edit distance; the rest is ruled out by shared prefix and suffix.
const SHORTLIST: usize = 64;
/// Longest name that is compared: an edit distance costs the product of two lengths.
const MAX_NAME_BYTES: usize = 1024;
/// Edits that a different layer or expert number counts for: the same tensor of another layer is a worse answer than
/// a similar tensor of the same layer.
const NUMBER_PENALTY: usize = 8;

/// Positions of up to `n` of `names` that are most like `wanted`, best first. Linear in the total length of the names
/// plus a constant number of edit distances.
pub(super) fn nearest<'a>(wanted: &str, names: impl Iterator<Item = &'a str>, n: usize) -> Vec<usize> {
    if wanted.len() > MAX_NAME_BYTES {
        return Vec::new();
    }
    let candidates = names.enumerate().filter(|(_, name)| name.len() <= MAX_NAME_BYTES);
    let mut shortlist: Vec<(usize, usize, &str)> =
        candidates.map(|(i, name)| (shared_ends(wanted, name), i, name)).collect();
    let keep = SHORTLIST.max(n);
    if shortlist.len() > keep {
        shortlist.select_nth_unstable_by_key(keep - 1, |&(shared, i, _)| (Reverse(shared), i));
        shortlist.truncate(keep);
    }
    let mut ranked: Vec<_> =
        shortlist.into_iter().map(|(_, i, name)| (distance(wanted, name), name, i)).collect();
    ranked.sort_unstable();
    ranked.into_iter().take(n).map(|(_, _, i)| i).collect()
}

/// Bytes that two names have in common at both ends.
fn shared_ends(a: &str, b: &str) -> usize {
    let prefix = a.bytes().zip(b.bytes()).take_while(|(x, y)| x == y).count();
    let suffix = a.bytes().rev().zip(b.bytes().rev()).take_while(|(x, y)| x == y).count();
    (prefix + suffix).min(a.len()).min(b.len())
}

fn distance(wanted: &str, name: &str) -> usize {
    // One name inside a longer scope is the commonest mistake ("model." against "model.language_model.").
    if extends(wanted, name) || extends(name, wanted) {
        return 1;
    }
    let edits = strsim::levenshtein(wanted, name);
    if numbers(wanted).eq(numbers(name)) { edits } else { edits + NUMBER_PENALTY }
}

/// True if `long` is `short` with more components in front.
fn extends(long: &str, short: &str) -> bool {
    long.strip_suffix(short).is_some_and(|scope| scope.ends_with('.'))
}

fn numbers(name: &str) -> impl Iterator<Item = &str> {
    name.split('.').filter(|part| part.bytes().all(|b| b.is_ascii_digit()))
}
