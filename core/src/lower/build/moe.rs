//! Mixture of experts.

use metrale_graph::Node;

use super::{Builder, Reader, Result, Step};
use crate::lower::plan::{ExpertActivation, Experts, Function, Groups, Moe, Scoring};

impl Builder<'_> {
    pub(super) fn moe(&mut self, node: &Node, reader: &Reader<'_>) -> Result<Step> {
        let (x, logits) = (self.reg(reader, 0)?, self.reg(reader, 1)?);
        let (experts, inner_width) = self.experts(reader)?;
        let scoring =
            reader.choice("router", &[("softmax", Scoring::Softmax), ("sigmoid", Scoring::Sigmoid)])?;
        let bias = self.optional_vector(reader, 5)?;
        let groups = Groups { count: reader.size("num_groups")?, top: reader.size("top_groups")? };
        let groups = (groups.top < groups.count).then_some(groups);
        if scoring == Scoring::Softmax && (bias.is_some() || groups.is_some()) {
            return Err(reader.unsupported("a softmax router with a bias or groups has no kernel"));
        }
        let top_k = reader.size("top_k")?;
        let [hidden] = self.row(reader, reader.input(0))?;
        let (inner, chosen) = (self.scratch(top_k * inner_width), self.scratch(top_k * hidden));
        Ok(Step::Moe(Box::new(Moe {
            x,
            logits,
            scoring,
            bias,
            groups,
            top_k,
            renormalize: reader.flag("renormalize")?,
            scale: reader.float("scale")?,
            experts,
            inner,
            chosen,
            out: self.new_reg(node.outputs[0]),
        })))
    }

    /// The experts, and the width between their matrices.
    fn experts(&mut self, reader: &Reader<'_>) -> Result<(Experts, usize)> {
        let shape = self.graph.value(reader.input(2)).fixed_shape().unwrap_or_default();
        let [count, inner, _] = <[usize; 3]>::try_from(shape)
            .map_err(|found| reader.unsupported(&format!("experts of shape {found:?} have no kernel")))?;
        let up = reader.optional_input(3).map(|id| self.matrix(reader, id)).transpose()?;
        let experts = Experts {
            count,
            gate: self.matrix(reader, reader.input(2))?,
            up,
            down: self.matrix(reader, reader.input(4))?,
            gate_bias: self.optional_vector(reader, 6)?,
            down_bias: self.optional_vector(reader, 8)?,
            activation: expert_activation(reader, up.is_some())?,
        };
        let is_gated = experts.up.is_some();
        if is_gated && (experts.gate_bias.is_some() || reader.optional_input(7).is_some()) {
            return Err(reader.unsupported("gated experts with biases have no kernel"));
        }
        Ok((experts, inner))
    }
}

fn expert_activation(reader: &Reader<'_>, has_up: bool) -> Result<ExpertActivation> {
    let (limit, alpha) = (reader.optional_float("limit")?, reader.float("alpha")?);
    let activation = match (reader.text("activation")?, limit) {
        ("swigluoai", limit) => {
            return Ok(ExpertActivation::SwigluOai { limit: limit.unwrap_or(f32::INFINITY), alpha });
        }
        ("silu", Some(limit)) if has_up => return Ok(ExpertActivation::ClampedSilu { limit }),
        (_, Some(_)) => {
            return Err(reader.unsupported("a limit goes with silu and swigluoai of two matrices"));
        }
        (_, None) => {
            let known = [("silu", Function::Silu), ("relu", Function::Relu), ("gelu", Function::Gelu)];
            reader.choice("activation", &known)?
        }
    };
    Ok(ExpertActivation::Function(activation))
}
