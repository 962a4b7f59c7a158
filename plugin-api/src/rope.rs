//! Rotary frequencies from a configuration: every scaling rule that published checkpoints use.

use std::f64::consts::PI;

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
    /// The dynamic rule and `LongRoPE` depend on a length: the engine's maximum model length decides, for all positions.
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
        let base = Frequencies { theta, dim: rotary_dim as f64 };
        let max_position: f64 = config.optional("max_position_embeddings")?.unwrap_or(2048.0);
        let original = match scaling.optional("original_max_position_embeddings")? {
            Some(n) => n,
            None => config.optional("original_max_position_embeddings")?.unwrap_or(max_position),
        };
        let length = config.max_model_len().map_or(max_position, |n| n as f64);

        let (inv_freq, attention_factor) = match kind.as_str() {
            "default" | "mrope" => (base.plain(), 1.0),
            "linear" => {
                let factor: f64 = scaling.required("factor")?;
                (base.plain().iter().map(|f| f / factor).collect(), 1.0)
            }
            "dynamic" => (base.dynamic(scaling.required("factor")?, length, max_position), 1.0),
            "llama3" => (base.llama3(scaling, original)?, 1.0),
            "yarn" => base.yarn(scaling, original, max_position)?,
            "longrope" | "su" => base.longrope(scaling, original, max_position, length)?,
            other => {
                return Err(PluginError::new(format!(
                    "rope_type `{other}` is not known; expected default, linear, dynamic, llama3, yarn or longrope"
                )));
            }
        };
        let sections: Vec<usize> = scaling.optional("mrope_section")?.unwrap_or_default();
        let inv_freq = inv_freq.into_iter().map(|f: f64| f as f32).collect();
        let interleaved = scaling.optional("mrope_interleaved")?.unwrap_or(false);
        let blocked_sections = !sections.is_empty() && !interleaved;
        Ok(Self { inv_freq, attention_factor, style: RotaryStyle::Half, sections, blocked_sections })
    }

    /// [`Rope::from_config`] for the first dimensions of a head: the share `partial_rotary_factor` of them, `default` if the key
    /// is missing.
    ///
    /// # Errors
    /// As [`Rope::from_config`].
    pub fn partial(config: &Config, head_dim: usize, default: f64) -> Result<Self> {
        const KEY: &str = "partial_rotary_factor";
        let section = config.section("rope_parameters")?.unwrap_or_else(Config::empty);
        let share = section.optional(KEY)?.or(config.optional(KEY)?).unwrap_or(default);
        Self::from_config(config, (head_dim as f64 * share) as usize)
    }

    /// The same rotation by one stream of positions.
    #[must_use]
    pub fn one_stream(self) -> Self {
        Self { sections: Vec::new(), blocked_sections: false, ..self }
    }

    /// The same rotation by frame, row and column: by `default` pairs each if the configuration does not say how many.
    #[must_use]
    pub fn three_streams(self, default: [usize; 3]) -> Self {
        if self.sections.is_empty() {
            return Self { sections: default.to_vec(), blocked_sections: false, ..self };
        }
        self
    }

    /// The same rotation for interleaved pairs.
    #[must_use]
    pub fn interleaved(self) -> Self {
        Self { style: RotaryStyle::Interleaved, ..self }
    }
}

/// The unscaled geometric progression θ^(−2j/d).
struct Frequencies {
    theta: f64,
    dim: f64,
}

impl Frequencies {
    fn pairs(&self) -> impl Iterator<Item = f64> + '_ {
        (0..(self.dim / 2.0) as usize).map(|j| j as f64)
    }

    fn plain(&self) -> Vec<f64> {
        self.pairs().map(|j| self.theta.powf(-2.0 * j / self.dim)).collect()
    }

    fn dynamic(&self, factor: f64, length: f64, max_position: f64) -> Vec<f64> {
        let stretch = (factor * length / max_position - (factor - 1.0)).max(1.0);
        let theta = if length > max_position {
            self.theta * stretch.powf(self.dim / (self.dim - 2.0))
        } else {
            self.theta
        };
        Frequencies { theta, dim: self.dim }.plain()
    }

    /// Llama 3.1: long wavelengths are divided by the factor, short ones kept, those between blended.
    fn llama3(&self, scaling: &Config, original: f64) -> Result<Vec<f64>> {
        let factor: f64 = scaling.required("factor")?;
        let low: f64 = scaling.required("low_freq_factor")?;
        let high: f64 = scaling.required("high_freq_factor")?;
        let scale = |f: f64| {
            let wavelength = 2.0 * PI / f;
            if wavelength < original / high {
                f
            } else if wavelength > original / low {
                f / factor
            } else {
                let smooth = (original / wavelength - low) / (high - low);
                f * ((1.0 - smooth) / factor + smooth)
            }
        };
        Ok(self.plain().into_iter().map(scale).collect())
    }

    /// `YaRN` (Peng et al., 2023): a ramp between interpolated and kept frequencies.
    fn yarn(&self, scaling: &Config, original: f64, max_position: f64) -> Result<(Vec<f64>, f64)> {
        let factor = scaling.optional("factor")?.unwrap_or(max_position / original);
        let beta_fast: f64 = scaling.optional("beta_fast")?.unwrap_or(32.0);
        let beta_slow: f64 = scaling.optional("beta_slow")?.unwrap_or(1.0);
        let truncate = scaling.optional("truncate")?.unwrap_or(true);
        let dim_of =
            |rotations: f64| self.dim * (original / (rotations * 2.0 * PI)).ln() / (2.0 * self.theta.ln());
        let (mut low, mut high) = (dim_of(beta_fast), dim_of(beta_slow));
        if truncate {
            (low, high) = (low.floor(), high.ceil());
        }
        let last = self.dim - 1.0;
        (low, high) = (low.clamp(0.0, last), high.clamp(0.0, last));
        if low == high {
            high += 0.001;
        }
        let blend = |(j, f): (usize, f64)| {
            let ramp = ((j as f64 - low) / (high - low)).clamp(0.0, 1.0);
            f / factor * ramp + f * (1.0 - ramp)
        };
        let freqs = self.plain().into_iter().enumerate().map(blend).collect();
        Ok((freqs, yarn_attention_factor(scaling, factor)?))
    }

    /// `LongRoPE` (Ding et al., 2024): a factor per pair, one set for short and one for long contexts.
    fn longrope(
        &self,
        scaling: &Config,
        original: f64,
        max_position: f64,
        length: f64,
    ) -> Result<(Vec<f64>, f64)> {
        let key = if length > original { "long_factor" } else { "short_factor" };
        let extend: Vec<f64> = scaling.required(key)?;
        if extend.len() * 2 != self.dim as usize {
            let message = format!(
                "{key} has {} entries; {} rotary dimensions need {}",
                extend.len(),
                self.dim,
                self.dim / 2.0
            );
            return Err(PluginError::new(message));
        }
        let factor = scaling.optional("factor")?.unwrap_or(max_position / original);
        let attention = match scaling.optional("attention_factor")? {
            Some(given) => given,
            None if factor <= 1.0 => 1.0,
            None => (1.0 + factor.ln() / original.ln()).sqrt(),
        };
        Ok((self.plain().iter().zip(extend).map(|(f, e)| f / e).collect(), attention))
    }
}

fn yarn_attention_factor(scaling: &Config, factor: f64) -> Result<f64> {
    if let Some(given) = scaling.optional("attention_factor")? {
        return Ok(given);
    }
    let m = |mscale: f64| if factor <= 1.0 { 1.0 } else { 0.1 * mscale * factor.ln() + 1.0 };
    let mscale = scaling.optional::<f64>("mscale")?.filter(|m| *m != 0.0);
    let all_dim = scaling.optional::<f64>("mscale_all_dim")?.filter(|m| *m != 0.0);
    Ok(match (mscale, all_dim) {
        (Some(mscale), Some(all_dim)) => m(mscale) / m(all_dim),
        _ => m(1.0),
    })
}
