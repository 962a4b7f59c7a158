//! The weights of one entry point in f32, by the root value that ops read.

use std::collections::BTreeMap;

use metrale_graph::ValueId;
use metrale_graph::checkpoint::TensorInfo;
use metrale_graph::resolve::Resolution;

use crate::error::ModelError;
use crate::tensor::Tensor;

/// Weights of one entry point.
#[derive(Clone, Debug, Default)]
pub struct Weights(BTreeMap<ValueId, Tensor>);

impl Weights {
    /// Computes every weight of a resolution. `bytes_of` gives the stored bytes of a tensor; it is not asked for models
    /// without a checkpoint.
    ///
    /// # Errors
    /// A stored type that cannot be converted.
    pub fn load<'b>(
        resolution: &Resolution,
        bytes_of: &dyn Fn(&TensorInfo) -> &'b [u8],
    ) -> Result<Self, ModelError> {
        let weights = resolution.weights.iter().map(|(id, weight)| {
            let data = weight
                .expr
                .to_f32(bytes_of)
                .map_err(|source| ModelError::Weight { name: weight.name.clone(), source })?;
            Ok((*id, Tensor { shape: weight.shape.clone(), data }))
        });
        weights.collect::<Result<_, ModelError>>().map(Self)
    }

    /// Sets one weight by hand.
    #[must_use]
    pub fn with(mut self, id: ValueId, tensor: Tensor) -> Self {
        self.0.insert(id, tensor);
        self
    }

    pub(crate) fn get(&self, id: ValueId) -> Option<&Tensor> {
        self.0.get(&id)
    }
}
