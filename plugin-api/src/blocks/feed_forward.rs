//! SwiGLU feed-forward layers and experts under their usual tensor names.

use crate::error::Result;
use crate::graph::{Graph, Value};
use crate::ops::Experts;
use crate::weights::{Role, Weights};

impl Graph {
    /// `down(silu(gate(x)) · up(x))` with the tensors `gate_proj`, `up_proj` and `down_proj`, `inner` wide in between.
    ///
    /// # Errors
    /// `x` is not of this graph.
    #[track_caller]
    pub fn swiglu(&self, x: Value, w: &Weights, inner: usize) -> Result<Value> {
        let width = self.shape(x)?.last().copied().flatten().unwrap_or(0);
        let gate = self.silu(self.project(x, w, "gate_proj.weight", inner, Role::Column)?)?;
        let up = self.project(x, w, "up_proj.weight", inner, Role::Column)?;
        self.project(self.mul(gate, up)?, w, "down_proj.weight", width, Role::Row)
    }

    /// Experts of `gate_proj`, `up_proj` and `down_proj`: one tensor per expert (`0.gate_proj.weight`), or two for all experts
    /// (`gate_up_proj` `[experts, 2 · inner, hidden]` with the rows of gate first, and `down_proj`).
    ///
    /// # Errors
    /// The host refuses a shape.
    #[track_caller]
    pub fn swiglu_experts(
        &self,
        w: &Weights,
        experts: usize,
        [inner, hidden]: [usize; 2],
    ) -> Result<Experts> {
        let each = |name: &str, shape: &[usize]| {
            self.expert_weights(w.name(&format!("{{e}}.{name}.weight")), experts, shape)
        };
        let gate_up = self.weight(w.name("gate_up_proj"), &[experts, 2 * inner, hidden], Role::Expert)?;
        let half = |i: usize| self.weight_slice(gate_up, 1, i * inner, (i + 1) * inner);
        let down = self.weight(w.name("down_proj"), &[experts, hidden, inner], Role::Expert)?;
        Ok(Experts::swiglu(
            self.first_of(&[each("gate_proj", &[inner, hidden])?, half(0)?])?,
            self.first_of(&[each("up_proj", &[inner, hidden])?, half(1)?])?,
            self.first_of(&[each("down_proj", &[hidden, inner])?, down])?,
        ))
    }
}
