//! Searches small enough to follow by hand.

use super::*;
use crate::exec::sample::SamplingParams;

/// Logits whose softmax has these probabilities.
fn row(probabilities: &[f32]) -> Vec<f32> {
    probabilities.iter().map(|p| p.ln()).collect()
}

fn search(params: BeamParams, max: usize) -> BeamSearch {
    let sampling = SamplingState::new(SamplingParams::default(), 0, &[3], &[]);
    BeamSearch::new(params, sampling, SearchLengths { prompt: 1, uncounted: 1, max }, vec![0])
}

fn close(found: f32, expected: f32) -> bool {
    (found - expected).abs() < 1e-5
}

#[test]
fn a_beam_that_starts_second_can_win() {
    let mut search = search(BeamParams::new(2), 8);
    let rows = [row(&[0.001, 0.55, 0.4, 0.049])];
    assert_eq!(search.advance(rows.iter().map(Vec::as_slice)).unwrap(), Some(vec![0, 0]));
    assert_eq!(search.last_tokens().collect::<Vec<_>>(), [1, 2]);
    // The first beam scatters, the second is sure to end.
    let rows = [row(&[0.25, 0.25, 0.25, 0.25]), row(&[0.997, 0.001, 0.001, 0.001])];
    search.advance(rows.iter().map(Vec::as_slice)).unwrap();
    let best = search.best();
    assert_eq!((best[0].tokens.as_slice(), best[0].ended_by), (&[2, 0][..], Some(0)));
    assert!(close(best[0].score, (0.4_f32 * 0.997).ln() / 2.0));
}

#[test]
fn an_end_outside_the_first_beams_is_not_taken() {
    let mut search = search(BeamParams::new(2), 8);
    let rows = [row(&[0.1, 0.5, 0.4, 1e-6])];
    search.advance(rows.iter().map(Vec::as_slice)).unwrap();
    assert!(search.best().is_empty(), "the end is third of two");
}

#[test]
fn early_stopping_decides_whether_a_full_search_goes_on() {
    // Both ends come first; what runs on is unlikely now and would be sure later.
    let first = [row(&[1e-6, 0.5, 0.4, 0.1])];
    let second = [row(&[0.6, 0.3, 0.05, 0.05]), row(&[0.6, 0.3, 0.05, 0.05])];
    for (early_stopping, goes_on) in
        [(EarlyStopping::WhenFull, false), (EarlyStopping::Heuristic, false), (EarlyStopping::Never, true)]
    {
        let mut search = search(BeamParams { early_stopping, num_return: 2, ..BeamParams::new(2) }, 40);
        search.advance(first.iter().map(Vec::as_slice)).unwrap();
        let next = search.advance(second.iter().map(Vec::as_slice)).unwrap();
        assert_eq!(next.is_some(), goes_on, "{early_stopping:?}");
        assert_eq!(search.best().iter().map(|h| h.tokens[0]).collect::<Vec<_>>(), [1, 2]);
    }
}

#[test]
fn the_longest_length_ends_every_beam() {
    let mut search = search(BeamParams { num_return: 2, length_penalty: 0.0, ..BeamParams::new(2) }, 2);
    let rows = [row(&[0.01, 0.5, 0.4, 0.09])];
    assert_eq!(search.advance(rows.iter().map(Vec::as_slice)).unwrap(), None);
    let best = search.best();
    assert_eq!(best.iter().map(|h| (h.tokens[0], h.ended_by)).collect::<Vec<_>>(), [(1, None), (2, None)]);
    assert!(close(best[0].score, 0.5_f32.ln()));
}

#[test]
fn a_broken_row_is_refused() {
    let mut search = search(BeamParams::new(2), 8);
    let rows = [vec![0.0, f32::NAN, 0.0, 0.0]];
    let error = search.advance(rows.iter().map(Vec::as_slice)).unwrap_err();
    assert!(matches!(error, SampleError::NonFinite { token: 1, .. }));
}
