//! Checkpoint files from tensors in memory: test fixtures, demo models and the seeds of fuzzing.

use std::borrow::Cow;
use std::collections::HashMap;

use super::gguf::{Array, DEFAULT_ALIGNMENT, MAGIC, MAX_RANK, Value};
use super::{CheckpointError, Dtype};

/// A tensor to write.
#[derive(Clone, Copy, Debug)]
pub struct Tensor<'a> {
    /// Name in the file.
    pub name: &'a str,
    /// Element type of `bytes`.
    pub dtype: Dtype,
    /// PyTorch order, out-features first.
    pub shape: &'a [usize],
    /// The stored form, little endian.
    pub bytes: &'a [u8],
}

impl Tensor<'_> {
    fn check(&self) -> Result<(), CheckpointError> {
        let needed = self.dtype.num_bytes(self.shape);
        if needed == Some(self.bytes.len() as u64) {
            return Ok(());
        }
        let (shape, dtype, bytes) = (self.shape, self.dtype, self.bytes.len());
        Err(self.unwritable(format!("{shape:?} {dtype} is not {bytes} bytes")))
    }

    fn unwritable(&self, reason: String) -> CheckpointError {
        CheckpointError::Unwritable { what: format!("tensor `{}`", self.name), reason }
    }
}

struct View<'a>(&'a Tensor<'a>, safetensors::Dtype);

impl safetensors::View for View<'_> {
    fn dtype(&self) -> safetensors::Dtype {
        self.1
    }

    fn shape(&self) -> &[usize] {
        self.0.shape
    }

    fn data(&self) -> Cow<'_, [u8]> {
        self.0.bytes.into()
    }

    fn data_len(&self) -> usize {
        self.0.bytes.len()
    }
}

/// The bytes of a safetensors file. Tensors are ordered by alignment, then by name.
pub fn safetensors(tensors: &[Tensor<'_>], metadata: &[(&str, &str)]) -> Result<Vec<u8>, CheckpointError> {
    let mut views = Vec::with_capacity(tensors.len());
    for tensor in tensors {
        tensor.check()?;
        let dtype = to_safetensors(tensor.dtype)
            .ok_or_else(|| tensor.unwritable(format!("safetensors has no type {}", tensor.dtype)))?;
        views.push((tensor.name, View(tensor, dtype)));
    }
    let metadata: HashMap<_, _> = metadata.iter().map(|&(k, v)| (k.to_owned(), v.to_owned())).collect();
    let metadata = Some(metadata).filter(|m| !m.is_empty());
    safetensors::serialize(views, metadata).map_err(|e| CheckpointError::Unwritable {
        what: "the safetensors file".to_owned(),
        reason: e.to_string(),
    })
}

fn to_safetensors(dtype: Dtype) -> Option<safetensors::Dtype> {
    if !dtype.in_safetensors() {
        return None;
    }
    serde_json::from_value(dtype.name().into()).ok()
}

/// The bytes of a GGUF version 3 file. Tensors keep their order; `general.alignment` is not honoured.
pub fn gguf(metadata: &[(&str, Value)], tensors: &[Tensor<'_>]) -> Result<Vec<u8>, CheckpointError> {
    let mut out = MAGIC.to_vec();
    out.extend(3u32.to_le_bytes());
    out.extend((tensors.len() as u64).to_le_bytes());
    out.extend((metadata.len() as u64).to_le_bytes());
    for (key, value) in metadata {
        put_str(&mut out, key);
        out.extend((value.value_type() as u32).to_le_bytes());
        put_value(&mut out, value);
    }
    let mut offset = 0;
    for tensor in tensors {
        put_tensor_info(&mut out, tensor, offset)?;
        offset += (tensor.bytes.len() as u64).next_multiple_of(DEFAULT_ALIGNMENT);
    }
    for tensor in tensors {
        pad(&mut out);
        out.extend(tensor.bytes);
    }
    pad(&mut out);
    Ok(out)
}

fn pad(out: &mut Vec<u8>) {
    out.resize(out.len().next_multiple_of(DEFAULT_ALIGNMENT as usize), 0);
}

fn put_tensor_info(out: &mut Vec<u8>, tensor: &Tensor<'_>, offset: u64) -> Result<(), CheckpointError> {
    tensor.check()?;
    let type_id = tensor
        .dtype
        .ggml_id()
        .ok_or_else(|| tensor.unwritable(format!("GGUF has no type {}", tensor.dtype)))?;
    if tensor.shape.len() > MAX_RANK {
        return Err(tensor.unwritable(format!("GGUF has at most {MAX_RANK} dimensions")));
    }
    put_str(out, tensor.name);
    out.extend((tensor.shape.len() as u32).to_le_bytes());
    for &dim in tensor.shape.iter().rev() {
        out.extend((dim as u64).to_le_bytes());
    }
    out.extend(type_id.to_le_bytes());
    out.extend(offset.to_le_bytes());
    Ok(())
}

fn put_str(out: &mut Vec<u8>, text: &str) {
    out.extend((text.len() as u64).to_le_bytes());
    out.extend(text.as_bytes());
}

fn put_value(out: &mut Vec<u8>, value: &Value) {
    match value {
        Value::U8(v) => out.extend(v.to_le_bytes()),
        Value::I8(v) => out.extend(v.to_le_bytes()),
        Value::U16(v) => out.extend(v.to_le_bytes()),
        Value::I16(v) => out.extend(v.to_le_bytes()),
        Value::U32(v) => out.extend(v.to_le_bytes()),
        Value::I32(v) => out.extend(v.to_le_bytes()),
        Value::F32(v) => out.extend(v.to_le_bytes()),
        Value::Bool(v) => out.push(u8::from(*v)),
        Value::String(v) => put_str(out, v),
        Value::Array(v) => put_array(out, v),
        Value::U64(v) => out.extend(v.to_le_bytes()),
        Value::I64(v) => out.extend(v.to_le_bytes()),
        Value::F64(v) => out.extend(v.to_le_bytes()),
    }
}

fn put_array(out: &mut Vec<u8>, array: &Array) {
    out.extend((array.value_type() as u32).to_le_bytes());
    out.extend((array.len() as u64).to_le_bytes());
    match array {
        Array::U8(v) => out.extend(v),
        Array::I8(v) => out.extend(v.iter().flat_map(|x| x.to_le_bytes())),
        Array::U16(v) => out.extend(v.iter().flat_map(|x| x.to_le_bytes())),
        Array::I16(v) => out.extend(v.iter().flat_map(|x| x.to_le_bytes())),
        Array::U32(v) => out.extend(v.iter().flat_map(|x| x.to_le_bytes())),
        Array::I32(v) => out.extend(v.iter().flat_map(|x| x.to_le_bytes())),
        Array::F32(v) => out.extend(v.iter().flat_map(|x| x.to_le_bytes())),
        Array::Bool(v) => out.extend(v.iter().map(|&x| u8::from(x))),
        Array::String(v) => v.iter().for_each(|x| put_str(out, x)),
        Array::Array(v) => v.iter().for_each(|x| put_array(out, x)),
        Array::U64(v) => out.extend(v.iter().flat_map(|x| x.to_le_bytes())),
        Array::I64(v) => out.extend(v.iter().flat_map(|x| x.to_le_bytes())),
        Array::F64(v) => out.extend(v.iter().flat_map(|x| x.to_le_bytes())),
    }
}
