//! Weights in the form of the CPU kernels. A whole stored tensor is used where it lies; weights that several entry points
//! use are loaded once.

use std::collections::HashMap;
use std::sync::Arc;

use metrale_graph::resolve::ResolvedWeight;
use metrale_kernels::cpu::{Bytes, ThreadPool, Weight};

use crate::device::LoadError;
use crate::device::load::{Checkpoint, Stored, dimensions};

/// Loads the weights of one model.
#[derive(Debug)]
pub(super) struct WeightLoader<'a> {
    pool: &'a ThreadPool,
    pub(super) checkpoint: &'a Checkpoint<'a>,
    loaded: HashMap<String, Weight>,
}

impl<'a> WeightLoader<'a> {
    /// `pool` shares the work of repacking.
    pub(super) fn new(pool: &'a ThreadPool, checkpoint: &'a Checkpoint<'a>) -> Self {
        Self { pool, checkpoint, loaded: HashMap::new() }
    }

    /// A matrix; more than two axes are folded into the rows.
    pub(super) fn matrix(&mut self, weight: &ResolvedWeight) -> Result<Weight, LoadError> {
        let key = format!("{:?}", weight.expr);
        if let Some(known) = self.loaded.get(&key) {
            return Ok(known.clone());
        }
        let (rows, cols) = dimensions(weight);
        let made = match self.checkpoint.stored(weight)? {
            Some((format, stored)) => {
                let bytes: Bytes = match stored {
                    Stored::Tensor(bytes) => Arc::new(bytes),
                    Stored::Gathered(bytes) => Arc::new(bytes),
                };
                let len = (*bytes).as_ref().len();
                Weight::new(self.pool, format, rows, cols, &bytes, 0..len)
            }
            None => Weight::from_f32(rows, cols, &self.checkpoint.values(&weight.expr)?),
        };
        let made = made.map_err(|source| LoadError::Kernel { name: weight.name.clone(), source })?;
        self.loaded.insert(key, made.clone());
        Ok(made)
    }
}
