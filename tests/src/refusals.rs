//! Checkpoints that a plugin's models cannot be loaded from.

use anyhow::{Context, Result, ensure};
use metrale_core::factory::{build_runner, open_attrs};
use metrale_core::weights::ModelSource;
use metrale_graph::checkpoint::{Dtype, safetensors, write};
use metrale_kernels::cpu::kv_cache::KvDtype;
use metrale_kernels::cpu::linear::Activations;
use metrale_plugin_api::abi::PluginModule_Ref;

use crate::golden::Golden;
use crate::model::{Setup, options};

/// What happens to a tensor.
#[derive(Clone, Copy, Debug)]
pub enum Damage {
    /// It is not there.
    Missing,
    /// It has another name.
    Renamed,
    /// Its axes are swapped.
    Transposed,
    /// It holds integers.
    Integers,
}

/// Notes of a build from the golden checkpoint with `change` applied to every tensor: keep it, change it, or drop it.
///
/// # Errors
/// The checkpoint cannot be read, or the model not be built; the text of the latter is the error.
pub fn build_changed(
    plugin: PluginModule_Ref,
    golden: &Golden,
    change: impl Fn(&str) -> Option<Damage>,
) -> Result<Vec<String>> {
    let directory = golden.model_directory()?;
    let path = directory.path().join("model.safetensors");
    let bytes = std::fs::read(&path)?;
    let file = safetensors::parse(&bytes)?;
    let mut tensors = Vec::new();
    for tensor in &file.tensors {
        let (name, shape) = (tensor.name.clone(), tensor.shape.clone());
        let (start, len) = (tensor.offset as usize, tensor.num_bytes as usize);
        let data = bytes[start..start + len].to_vec();
        tensors.extend(match change(&name) {
            None => Some((name, tensor.dtype, shape, data)),
            Some(Damage::Missing) => None,
            Some(Damage::Renamed) => Some((format!("{name}x"), tensor.dtype, shape, data)),
            Some(Damage::Transposed) => Some((name, tensor.dtype, shape.into_iter().rev().collect(), data)),
            Some(Damage::Integers) => {
                let count: usize = shape.iter().product();
                Some((name, Dtype::I32, shape, vec![0; 4 * count]))
            }
        });
    }
    let tensors: Vec<_> = tensors
        .iter()
        .map(|(name, dtype, shape, bytes)| write::Tensor { name, dtype: *dtype, shape, bytes })
        .collect();
    std::fs::write(&path, write::safetensors(&tensors, &[])?)?;
    let source = ModelSource::open(directory.path())?;
    let options = options(64, Setup::cpu(KvDtype::F32, Activations::F32));
    let built = build_runner(plugin, &open_attrs(&source, options.max_model_len), Some(&source), &options)?;
    Ok(built.notes)
}

/// Every kind of damage to a tensor is refused by its name.
///
/// # Errors
/// The model is built all the same, or the error does not name the tensor.
pub fn is_refused_by_name(plugin: PluginModule_Ref, golden: &Golden, tensor: &str) -> Result<()> {
    for damage in [Damage::Missing, Damage::Renamed, Damage::Transposed, Damage::Integers] {
        let refused = build_changed(plugin, golden, |name| (name == tensor).then_some(damage));
        let error =
            refused.err().with_context(|| format!("{}: {tensor} {damage:?} is taken", golden.name))?;
        ensure!(format!("{error:#}").contains(tensor), "{}: {tensor} {damage:?}: {error:#}", golden.name);
    }
    Ok(())
}
