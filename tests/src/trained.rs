//! Small trained checkpoints, with what the transformers library does with them.

use std::path::PathBuf;

use anyhow::{Context, Result};
use metrale_core::factory::RunnerOptions;
use metrale_core::weights::ModelSource;
use metrale_kernels::cpu::kv_cache::KvDtype;
use metrale_kernels::cpu::linear::Activations;
use metrale_plugin_api::abi::PluginModule_Ref;
use serde_json::Value as Json;

use crate::model::{DeviceModel, Setup};

/// A directory of `tests/models`.
#[derive(Debug)]
pub struct Trained {
    /// Where it is.
    pub directory: PathBuf,
    /// golden.json
    pub golden: Json,
}

impl Trained {
    /// Reads what was recorded.
    ///
    /// # Errors
    /// There is no such model.
    pub fn open(name: &str) -> Result<Self> {
        let directory = crate::data_directory().join("models").join(name);
        let golden = std::fs::read(directory.join("golden.json"))
            .with_context(|| format!("{} has no golden.json", directory.display()))?;
        Ok(Self { golden: serde_json::from_slice(&golden)?, directory })
    }

    /// Loads the model for sequences of up to `max_len` tokens.
    ///
    /// # Errors
    /// It cannot be built.
    pub fn load(&self, plugin: PluginModule_Ref, max_len: usize, kv_dtype: KvDtype) -> Result<DeviceModel> {
        self.load_on(plugin, max_len, Setup::cpu(kv_dtype, Activations::F32))
    }

    /// As [`Trained::load`], on any device.
    ///
    /// # Errors
    /// It cannot be built.
    pub fn load_on(&self, plugin: PluginModule_Ref, max_len: usize, setup: Setup) -> Result<DeviceModel> {
        let source = ModelSource::open(&self.directory)?;
        DeviceModel::build_on(plugin, &source, max_len, setup)
    }

    /// As [`Trained::load`], with any options.
    ///
    /// # Errors
    /// It cannot be built.
    pub fn load_with(&self, plugin: PluginModule_Ref, options: &RunnerOptions) -> Result<DeviceModel> {
        DeviceModel::build_with(plugin, &ModelSource::open(&self.directory)?, options)
    }
}

/// A list of numbers, or of anything else, out of golden.json.
///
/// # Errors
/// It is something else.
pub fn list<T: serde::de::DeserializeOwned>(json: &Json) -> Result<Vec<T>> {
    Ok(serde_json::from_value(json.clone())?)
}
