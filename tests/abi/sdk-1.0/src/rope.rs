//! Rotary frequencies from a configuration: every scaling rule that published checkpoints use.

use crate::config::Config;
use crate::error::{PluginError, Result};
use crate::ops::RotaryStyle;

/// What [`Graph::rope`](crate::Graph::rope) needs to know.
#[derive(Clone, Debug, PartialEq, Default)]
pub struct Rope {
    /// Radians per position of each rotated pair, `[R/2]`.
    pub inv_freq: Vec<f32>,
    /// Multiplies sine and cosine (`YaRN`, `LongRoPE`).
    pub attention_factor: f64,
    /// Which dimensions rotate together.
    pub style: RotaryStyle,
    /// Pairs that take their angle from the temporal, height and width position; empty for one position stream.
    pub sections: Vec<usize>,
    /// Sections follow one another instead of interleaving.
    pub blocked_sections: bool,
}

impl Rope {
    /// Reads `rope_parameters`, or the older `rope_theta` and `rope_scaling`, for `rotary_dim` rotated dimensions.
    ///
    /// # Errors
    /// A rule that is not known, or parameters that are missing or of the wrong type.
    pub fn from_config(config: &Config, rotary_dim: usize) -> Result<Self> {
        if rotary_dim == 0 || !rotary_dim.is_multiple_of(2) {
            return Err(PluginError::new(format!(
                "{rotary_dim} rotary dimensions: expected an even number above 0"
            )));
        }
        let empty = Config::empty();
        let section = match config.section("rope_parameters")? {
            Some(section) => Some(section),
            None => config.section("rope_scaling")?,
        };
        let scaling = section.as_ref().unwrap_or(&empty);
        let theta = match scaling.optional::<f64>("rope_theta")? {
            Some(theta) => theta,
            None => config.optional("rope_theta")?.unwrap_or(10_000.0),
        };
        let kind = match scaling.optional::<String>("rope_type")? {
            Some(kind) => kind,
            None => scaling.optional::<String>("type")?.unwrap_or_else(|| "default".into()),
        };
        let factor: f64 = match kind.as_str() {
            "default" | "mrope" => 1.0,
            "linear" => scaling.required("factor")?,
            other => return Err(PluginError::new(format!("rope_type `{other}` is not known"))),
        };
        let pairs = (0..rotary_dim / 2).map(|j| theta.powf(-2.0 * j as f64 / rotary_dim as f64) / factor);
        let attention_factor = 1.0;
        let sections: Vec<usize> = scaling.optional("mrope_section")?.unwrap_or_default();
        let inv_freq = pairs.map(|f| f as f32).collect();
        let interleaved = scaling.optional("mrope_interleaved")?.unwrap_or(false);
        let blocked_sections = !sections.is_empty() && !interleaved;
        Ok(Self { inv_freq, attention_factor, style: RotaryStyle::Half, sections, blocked_sections })
    }

    /// The same rotation for interleaved pairs.
    #[must_use]
    pub fn interleaved(self) -> Self {
        Self { style: RotaryStyle::Interleaved, ..self }
    }
}
