//! A short causal convolution with its weight and its history.

use crate::error::Result;
use crate::graph::{Graph, Value};
use crate::ops::Activation;
use crate::weights::{Role, Weights};

impl Graph {
    /// Causal depthwise convolution of `x: [T, channels]` with the tensor `conv1d.weight` `[channels, 1, kernel]` over every
    /// `dilation`-th input, then SiLU; the history is the state `state`.
    ///
    /// # Errors
    /// `x` is not of this graph.
    #[track_caller]
    pub fn short_conv(
        &self,
        x: Value,
        w: &Weights,
        state: &str,
        [kernel, dilation]: [usize; 2],
    ) -> Result<Value> {
        let channels = self.shape(x)?.last().copied().flatten().unwrap_or(0);
        let filter = self.weight(w.name("conv1d.weight"), &[channels, 1, kernel], Role::Column)?;
        let filter = self.weight_reshape(filter, &[channels, kernel])?;
        let history = self.conv_state(state, channels, kernel.saturating_sub(1) * dilation + 1)?;
        self.dilated_conv1d(x, filter, history, Activation::Silu, dilation)
    }
}
