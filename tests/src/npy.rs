//! Reads `.npy` files of little-endian f32 or i64, C order: what the golden scripts write.

use std::path::Path;

use anyhow::{Context, Result, ensure};
use metrale_reference::Tensor;

/// Reads one array.
///
/// # Errors
/// The file is missing, not an `.npy` file, or holds something else than f32 or i64 in C order.
pub fn read(path: &Path) -> Result<Tensor> {
    let bytes = std::fs::read(path).with_context(|| format!("cannot read {}", path.display()))?;
    parse(&bytes).with_context(|| path.display().to_string())
}

fn parse(bytes: &[u8]) -> Result<Tensor> {
    ensure!(bytes.starts_with(b"\x93NUMPY\x01"), "not an .npy file of version 1");
    let length: [u8; 2] = bytes.get(8..10).context("cut header")?.try_into()?;
    let data_start = 10 + usize::from(u16::from_le_bytes(length));
    let header = std::str::from_utf8(bytes.get(10..data_start).context("cut header")?)?;
    let integers = header.contains("'descr': '<i8'");
    ensure!(integers || header.contains("'descr': '<f4'"), "neither f32 nor i64: {header}");
    ensure!(header.contains("'fortran_order': False"), "not in C order: {header}");
    let shape =
        header.split_once("'shape': (").and_then(|(_, rest)| rest.split_once(')')).context("no shape")?.0;
    let shape = shape.split(',').map(str::trim).filter(|s| !s.is_empty());
    let shape = shape.map(str::parse).collect::<Result<Vec<usize>, _>>()?;
    if integers {
        let (words, rest) = bytes[data_start..].as_chunks::<8>();
        ensure!(rest.is_empty(), "cut data");
        return Ok(Tensor::new(&shape, words.iter().map(|w| i64::from_le_bytes(*w) as f32).collect())?);
    }
    let (words, rest) = bytes[data_start..].as_chunks::<4>();
    ensure!(rest.is_empty(), "cut data");
    Ok(Tensor::new(&shape, words.iter().map(|w| f32::from_le_bytes(*w)).collect())?)
}
