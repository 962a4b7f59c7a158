//! Largest differences between what was computed and what was recorded.

use std::collections::BTreeMap;
use std::fmt;

use anyhow::{Result, ensure};
use metrale_reference::Tensor;

/// Absolute, between f32 implementations.
pub const TOLERANCE: f32 = 1e-3;

/// Largest absolute differences, by what was compared.
#[derive(Debug, Default)]
pub struct Differences(BTreeMap<String, f32>);

impl Differences {
    /// Notes the largest difference of two tensors.
    ///
    /// # Errors
    /// The shapes differ.
    pub fn compare(&mut self, what: &str, found: &Tensor, expected: &Tensor) -> Result<()> {
        ensure!(
            found.shape() == expected.shape(),
            "{what}: found the shape {:?}, expected {:?}",
            found.shape(),
            expected.shape()
        );
        let pairs = found.data().iter().zip(expected.data());
        // `f32::max` would drop a NaN.
        let largest =
            pairs.map(|(f, e)| (f - e).abs()).fold(0.0, |m, d| if d > m || d.is_nan() { d } else { m });
        let entry = self.0.entry(what.to_owned()).or_insert(0.0);
        if largest > *entry || largest.is_nan() {
            *entry = largest;
        }
        Ok(())
    }

    /// Whether everything lies within the tolerance.
    #[must_use]
    pub fn within_tolerance(&self) -> bool {
        self.0.values().all(|d| *d <= TOLERANCE)
    }
}

impl fmt::Display for Differences {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let parts: Vec<_> = self.0.iter().map(|(what, d)| format!("{what} {d:.1e}")).collect();
        f.write_str(&parts.join(", "))
    }
}
