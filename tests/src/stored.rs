//! The tensors of a golden model, to be written again in another form.

use std::path::Path;

use anyhow::{Context, Result};
use metrale_graph::checkpoint::{Dtype, safetensors, write};

use crate::golden::Golden;

/// A tensor in memory.
#[derive(Clone, Debug)]
pub struct Stored {
    /// Name in the file.
    pub name: String,
    /// Element type.
    pub dtype: Dtype,
    /// Out-features first.
    pub shape: Vec<usize>,
    /// Little endian.
    pub bytes: Vec<u8>,
}

impl Stored {
    /// All tensors of a golden model, by name.
    ///
    /// # Errors
    /// The file is broken.
    pub fn of(golden: &Golden) -> Result<Vec<Self>> {
        let directory = golden.model_directory()?;
        let file = std::fs::read(directory.path().join("model.safetensors"))?;
        let headers = safetensors::parse(&file)?;
        let headers = metrale_graph::checkpoint::Headers::from_safetensors(vec![(String::new(), headers)])?;
        let stored = headers.iter().map(|tensor| {
            let (start, len) = (tensor.offset as usize, tensor.num_bytes as usize);
            let (name, dtype, shape) = (tensor.name.clone(), tensor.dtype, tensor.shape.clone());
            Self { name, dtype, shape, bytes: file[start..start + len].to_vec() }
        });
        Ok(stored.collect())
    }

    /// The same values in F32.
    ///
    /// # Errors
    /// The type is neither F32 nor BF16.
    pub fn widened(&self) -> Result<Self> {
        let bytes = match self.dtype {
            Dtype::F32 => self.bytes.clone(),
            Dtype::BF16 => {
                self.bytes.as_chunks::<2>().0.iter().flat_map(|[low, high]| [0, 0, *low, *high]).collect()
            }
            other => anyhow::bail!("{}: {other} is not a type of golden models", self.name),
        };
        Ok(Self { dtype: Dtype::F32, bytes, ..self.clone() })
    }

    /// As the writers take it.
    #[must_use]
    pub fn view(&self) -> write::Tensor<'_> {
        write::Tensor { name: &self.name, dtype: self.dtype, shape: &self.shape, bytes: &self.bytes }
    }
}

/// Writes a model directory with the configuration of a golden model and these tensors.
///
/// # Errors
/// A file cannot be written.
pub fn write_model(golden: &Golden, tensors: &[Stored], to: &Path) -> Result<()> {
    let from = golden.model_directory()?;
    std::fs::copy(from.path().join("config.json"), to.join("config.json"))?;
    let views: Vec<_> = tensors.iter().map(Stored::view).collect();
    let file = write::safetensors(&views, &[("format", "pt")])?;
    std::fs::write(to.join("model.safetensors"), file).context("model.safetensors")
}
