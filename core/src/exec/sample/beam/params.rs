//! What a client can ask of beam search.

use crate::error::EngineError;

/// How a beam search runs. Names and semantics follow transformers' `generate`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct BeamParams {
    /// Hypotheses that are continued side by side.
    pub num_beams: usize,
    /// Hypotheses that are reported, best first; at most `num_beams`.
    pub num_return: usize,
    /// A finished hypothesis is worth its log-probability over its length to this power.
    pub length_penalty: f32,
    /// When the search may end with beams still running.
    pub early_stopping: EarlyStopping,
}

/// When a search with `num_beams` finished hypotheses is over.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum EarlyStopping {
    /// `false`: when the best running beam, as long as it is now, would be no better than the worst finished one.
    #[default]
    Heuristic,
    /// `true`: at once.
    WhenFull,
    /// `"never"`: when no running beam can become better than the worst finished one, at any length.
    Never,
}

impl BeamParams {
    /// A search with this many beams that reports the best hypothesis.
    #[must_use]
    pub fn new(num_beams: usize) -> Self {
        Self { num_beams, num_return: 1, length_penalty: 1.0, early_stopping: EarlyStopping::default() }
    }

    /// Refuses values that have no meaning.
    ///
    /// # Errors
    /// Names the parameter.
    pub fn validate(&self) -> Result<(), EngineError> {
        let refuse = |param: &str, message: String| {
            Err(EngineError::InvalidRequest { message, param: Some(param.to_owned()) })
        };
        if self.num_beams == 0 {
            return refuse("num_beams", "num_beams is 0; expected at least 1".to_owned());
        }
        if self.num_return == 0 || self.num_return > self.num_beams {
            let Self { num_return, num_beams, .. } = self;
            return refuse(
                "n",
                format!("{num_return} hypotheses are asked of {num_beams} beams; expected 1 to {num_beams}"),
            );
        }
        if !self.length_penalty.is_finite() {
            let message = format!("length_penalty is {}; expected a finite number", self.length_penalty);
            return refuse("length_penalty", message);
        }
        Ok(())
    }
}
