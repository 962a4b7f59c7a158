//! What happens to a finished inner product: bias, residual, gated activation, store.

use super::super::elementwise::Gate;
use super::super::shared::SharedSlice;
use super::super::weight::{GROUP_ROWS, Weight};
use super::Projection;

/// What happens to product + bias.
#[derive(Clone, Copy)]
pub enum Epilogue<'a> {
    /// out = y.
    Store,
    /// out += y.
    Accumulate,
    /// out = residual + y; `residual` is `[T, N]`.
    Residual(&'a [f32]),
    /// out = activation(y, x upᵀ + `up_bias`): the weight of the projection is the gate.
    Gated {
        /// How both become one.
        activation: Gate,
        /// `[N, K]`.
        up: &'a Weight,
        /// `[N]`.
        up_bias: Option<&'a [f32]>,
    },
}

/// A projection as the workers see it; lengths are checked.
pub(crate) struct Target<'a> {
    pub(super) weight: &'a Weight,
    pub(super) bias: Option<&'a [f32]>,
    pub(super) epilogue: Epilogue<'a>,
    pub(super) out: SharedSlice<'a, f32>,
}

impl<'a> Target<'a> {
    pub(super) fn new(p: &'a mut Projection<'_>) -> Self {
        Self { weight: p.weight, bias: p.bias, epilogue: p.epilogue, out: SharedSlice::new(p.out) }
    }

    /// A target without bias that shares its output.
    pub(super) fn shared(weight: &'a Weight, epilogue: Epilogue<'a>, out: SharedSlice<'a, f32>) -> Self {
        Self { weight, bias: None, epilogue, out }
    }

    /// The second weight of a gated projection.
    pub(super) fn up(&self) -> Option<&'a Weight> {
        match self.epilogue {
            Epilogue::Gated { up, .. } => Some(up),
            _ => None,
        }
    }

    /// Finishes products of rows `first..first + count` of the weight for output row `out_row`. `y` are the products
    /// with the weight, `up` those with the second weight; only the first `count` lanes count.
    ///
    /// # Safety
    /// Nothing else accesses these output elements, and they exist.
    #[inline(always)]
    pub(super) unsafe fn finish(
        &self,
        out_row: usize,
        first: usize,
        count: usize,
        y: &[f32; GROUP_ROWS],
        up: &[f32; GROUP_ROWS],
    ) {
        let mut value = *y;
        add_bias(&mut value, self.bias, first, count);
        let start = out_row * self.weight.num_rows() + first;
        // SAFETY: the caller promises the elements.
        let out = unsafe { self.out.part(start..start + count) };
        match self.epilogue {
            Epilogue::Store => {}
            Epilogue::Accumulate => value.iter_mut().zip(&*out).for_each(|(v, o)| *v += *o),
            Epilogue::Residual(residual) => {
                value.iter_mut().zip(&residual[start..start + count]).for_each(|(v, r)| *v += *r);
            }
            Epilogue::Gated { activation, up_bias, .. } => {
                let mut up = *up;
                add_bias(&mut up, up_bias, first, count);
                activation.apply(&mut value, &up);
            }
        }
        out.copy_from_slice(&value[..count]);
    }
}

#[inline(always)]
fn add_bias(value: &mut [f32; GROUP_ROWS], bias: Option<&[f32]>, first: usize, count: usize) {
    if let Some(bias) = bias {
        value.iter_mut().zip(&bias[first..first + count]).for_each(|(v, b)| *v += *b);
    }
}
