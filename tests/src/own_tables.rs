//! A golden model whose MTP layer has an embedding and a head of its own: the trunk's, with the vocabulary in another order.

use anyhow::{Context, Result, ensure};
use metrale_reference::Tensor;

use crate::differences::Differences;
use crate::golden::Golden;
use crate::stored::{Stored, write_model};

/// Tables of the trunk, and of the MTP layer at `layer`.
fn tables(layer: usize) -> [(&'static str, String); 2] {
    [
        ("model.embed_tokens.weight", format!("model.layers.{layer}.embed_tokens.weight")),
        ("lm_head.weight", format!("model.layers.{layer}.shared_head.head.weight")),
    ]
}

/// Where a token of the trunk's vocabulary stands in the layer's.
fn place(token: usize, vocab_size: usize) -> usize {
    (5 * token + 3) % vocab_size
}

/// Writes the model.
///
/// # Errors
/// It has no such tables.
pub fn model_directory(golden: &Golden, layer: usize) -> Result<tempfile::TempDir> {
    let mut tensors = Stored::of(golden)?;
    for (trunk, own) in tables(layer) {
        let table = tensors.iter().find(|t| t.name == trunk).with_context(|| format!("no {trunk}"))?;
        let (rows, mut made) = (table.shape[0], Stored { name: own, ..table.clone() });
        ensure!(rows % 5 != 0, "{rows} rows: places would coincide");
        let row_bytes = table.bytes.len() / rows;
        for (row, bytes) in table.bytes.chunks_exact(row_bytes).enumerate() {
            made.bytes[place(row, rows) * row_bytes..][..row_bytes].copy_from_slice(bytes);
        }
        tensors.push(made);
    }
    let directory = tempfile::tempdir()?;
    write_model(golden, &tensors, directory.path())?;
    Ok(directory)
}

/// What the MTP layer is fed with, as the tokens of its own vocabulary.
#[must_use]
pub fn next_ids(tokens: &[i64], vocab_size: usize) -> Vec<i64> {
    tokens.iter().map(|&token| place(token as usize, vocab_size) as i64).collect()
}

/// Whether logits are the recorded ones in the order of the layer's vocabulary.
///
/// # Errors
/// They are not.
pub fn logits_match(golden: &Golden, found: &Tensor) -> Result<()> {
    let recorded = golden.required_array("mtp_logits_f32.npy")?;
    let vocab_size = recorded.width();
    let mut expected = vec![0.0; recorded.data().len()];
    for (row, out) in recorded.data().chunks_exact(vocab_size).zip(expected.chunks_exact_mut(vocab_size)) {
        row.iter().enumerate().for_each(|(token, logit)| out[place(token, vocab_size)] = *logit);
    }
    let mut differences = Differences::default();
    differences.compare("logits", found, &Tensor::new(recorded.shape(), expected)?)?;
    ensure!(differences.within_tolerance(), "{}: {differences}", golden.name);
    Ok(())
}
