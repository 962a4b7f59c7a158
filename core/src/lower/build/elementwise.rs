//! Functions of one element and of two.

use metrale_graph::{Node, ValueId};

use super::{Builder, Reader, Result, Step};
use crate::lower::plan::{Combine, Function, Operand, Vector};

impl Builder<'_> {
    pub(super) fn unary(&mut self, node: &Node, reader: &Reader<'_>, f: Function) -> Result<Step> {
        let x = self.reg(reader, 0)?;
        Ok(Step::Unary { f, x, out: self.new_reg(node.outputs[0]) })
    }

    pub(super) fn affine(&mut self, node: &Node, reader: &Reader<'_>) -> Result<Step> {
        let x = self.reg(reader, 0)?;
        let (factor, shift) = (reader.float("factor")?, reader.float("shift")?);
        Ok(Step::Affine { x, factor, shift, out: self.new_reg(node.outputs[0]) })
    }

    pub(super) fn clamp(&mut self, node: &Node, reader: &Reader<'_>) -> Result<Step> {
        let x = self.reg(reader, 0)?;
        let low = reader.optional_float("min")?.unwrap_or(f32::NEG_INFINITY);
        let high = reader.optional_float("max")?.unwrap_or(f32::INFINITY);
        Ok(Step::Clamp { x, low, high, out: self.new_reg(node.outputs[0]) })
    }

    /// Activations are combined by a launch, what is known at load at load.
    pub(super) fn binary(&mut self, node: &Node, reader: &Reader<'_>, f: Combine) -> Result<Option<Step>> {
        let (a, b) = (reader.input(0), reader.input(1));
        if !self.regs.contains_key(&a) && !self.regs.contains_key(&b) {
            self.combine_known(node, reader, f, (a, b))?;
            return Ok(None);
        }
        let operand = match (self.operand(reader, f, (a, b))?, f) {
            (Some(operand), _) => Some((a, operand)),
            (None, Combine::Add | Combine::Mul) => {
                self.operand(reader, f, (b, a))?.map(|operand| (b, operand))
            }
            (None, Combine::Div) => None,
        };
        let Some((first, b)) = operand else {
            return Err(reader.unsupported("this broadcast has no kernel"));
        };
        let (a, width) = (self.regs[&first], self.graph.value(first).width().unwrap_or(0));
        let out = self.new_reg(node.outputs[0]);
        Ok(Some(Step::Binary { f, a, b, width, out }))
    }

    fn combine_known(
        &mut self,
        node: &Node,
        reader: &Reader<'_>,
        f: Combine,
        (a, b): (ValueId, ValueId),
    ) -> Result<()> {
        if self.graph.value(a).shape != self.graph.value(b).shape {
            return Err(reader.unsupported("weights of different shapes have no kernel"));
        }
        let (a, b) = (self.known(reader, a)?, self.known(reader, b)?);
        self.constants.insert(node.outputs[0], Vector::Combined(f, Box::new(a), Box::new(b)));
        Ok(())
    }

    /// `b` as the second operand of the activation `a`, if a kernel broadcasts it so.
    fn operand(
        &mut self,
        reader: &Reader<'_>,
        f: Combine,
        (a, b): (ValueId, ValueId),
    ) -> Result<Option<Operand>> {
        if !self.regs.contains_key(&a) {
            return Ok(None);
        }
        let (a_shape, b_shape) = (&self.graph.value(a).shape, &self.graph.value(b).shape);
        let last = a_shape.len() - 1;
        let one_per_row = b_shape.len() == a_shape.len()
            && b_shape[..last] == a_shape[..last]
            && self.graph.value(b).width() == Some(1);
        Ok(match self.regs.get(&b) {
            Some(reg) if b_shape == a_shape => Some(Operand::Reg(*reg)),
            Some(reg) if one_per_row && f == Combine::Mul => Some(Operand::PerRow(*reg)),
            // A vector as long as the last axes; it repeats.
            None if b_shape.len() < a_shape.len() && a_shape.ends_with(b_shape) => {
                Some(Operand::Vector(self.vector(reader, b)?))
            }
            _ => None,
        })
    }
}
