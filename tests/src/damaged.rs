//! Checkpoints with one tensor that is not as it should be: each is refused, and the tensor is named.

use std::collections::BTreeSet;

use anyhow::{Result, ensure};
use metrale_core::factory::{build_runner, open_attrs};
use metrale_core::weights::ModelSource;
use metrale_graph::checkpoint::Dtype;
use metrale_kernels::cpu::kv_cache::KvDtype;
use metrale_kernels::cpu::linear::Activations;
use metrale_plugin_api::abi::PluginModule_Ref;

use crate::cpu::CpuModel;
use crate::golden::{Golden, Goldens};
use crate::model::{Setup, options};
use crate::stored::{Stored, write_model};

#[derive(Clone, Copy, Debug)]
enum Damage {
    Removed,
    Renamed,
    Transposed,
    OfIntegers,
}

/// Damages one tensor of every kind, in the first and the last place that it occurs, and returns how often.
///
/// # Errors
/// A damaged checkpoint loads, or the error does not name the tensor.
pub fn damage_is_named(plugin: PluginModule_Ref) -> Result<usize> {
    let mut count = 0;
    for golden in &Goldens::of(plugin)?.models {
        let tensors = Stored::of(golden)?;
        for place in places(&tensors) {
            let name = &tensors[place].name;
            for damage in [Damage::Removed, Damage::Renamed, Damage::Transposed, Damage::OfIntegers] {
                let mut damaged = tensors.clone();
                if !apply(damage, &mut damaged, place) {
                    continue;
                }
                let refusal = refusal(plugin, golden, &damaged)?;
                ensure!(
                    refusal.as_ref().is_some_and(|text| text.contains(name)),
                    "{}: {name} {damage:?}: {refusal:?}",
                    golden.name
                );
                count += 1;
            }
        }
    }
    Ok(count)
}

/// What is noted at load about a golden model without the tensors that start so.
///
/// # Errors
/// It is refused.
pub fn notes_without(plugin: PluginModule_Ref, golden: &Golden, prefix: &str) -> Result<Vec<String>> {
    let mut tensors = Stored::of(golden)?;
    tensors.retain(|tensor| !tensor.name.starts_with(prefix));
    let directory = tempfile::tempdir()?;
    write_model(golden, &tensors, directory.path())?;
    let source = ModelSource::open(directory.path())?;
    let options = options(64, Setup::cpu(KvDtype::F32, Activations::F32));
    Ok(build_runner(plugin, &open_attrs(&source, options.max_model_len), Some(&source), &options)?.notes)
}

/// The first and the last tensor of each kind: of the same name but for layers and experts.
fn places(tensors: &[Stored]) -> BTreeSet<usize> {
    let kind = |name: &str| -> String {
        name.split('.').map(|part| if part.parse::<usize>().is_ok() { "#" } else { part }).collect()
    };
    let kinds: Vec<String> = tensors.iter().map(|t| kind(&t.name)).collect();
    let first = |k: &String| kinds.iter().position(|other| other == k);
    let last = |k: &String| kinds.iter().rposition(|other| other == k);
    kinds.iter().flat_map(|k| first(k).into_iter().chain(last(k))).collect()
}

/// Whether the tensor can be damaged so: the transpose of a square matrix looks like the matrix.
fn apply(damage: Damage, tensors: &mut Vec<Stored>, place: usize) -> bool {
    let tensor = &mut tensors[place];
    match damage {
        Damage::Removed => drop(tensors.remove(place)),
        Damage::Renamed => tensor.name.push_str("_renamed"),
        Damage::Transposed => match tensor.shape.as_mut_slice() {
            [rows, columns] if rows != columns => std::mem::swap(rows, columns),
            _ => return false,
        },
        Damage::OfIntegers => {
            let elements = tensor.shape.iter().product::<usize>();
            (tensor.dtype, tensor.bytes) = (Dtype::I32, vec![0; 4 * elements]);
        }
    }
    true
}

/// Why a model is refused.
fn refusal(plugin: PluginModule_Ref, golden: &Golden, tensors: &[Stored]) -> Result<Option<String>> {
    let directory = tempfile::tempdir()?;
    write_model(golden, tensors, directory.path())?;
    let source = ModelSource::open(directory.path())?;
    let built = CpuModel::build(plugin, &source, 64, KvDtype::F32, Activations::F32);
    Ok(built.err().map(|e| e.to_string()))
}
