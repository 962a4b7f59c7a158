//! Whatever the bytes are, the parsers answer with an error or with tensors that lie inside the file.

#![allow(clippy::unwrap_used)]

use metrale_graph::checkpoint::gguf::{self, Array, Value};
use metrale_graph::checkpoint::index::Index;
use metrale_graph::checkpoint::write::{self, Tensor};
use metrale_graph::checkpoint::{Dtype, TensorInfo, safetensors};
use proptest::prelude::*;

fn tensors() -> [Tensor<'static>; 3] {
    [
        Tensor { name: "model.embed_tokens.weight", dtype: Dtype::BF16, shape: &[4, 3], bytes: &[1; 24] },
        Tensor { name: "model.norm.weight", dtype: Dtype::F32, shape: &[3], bytes: &[2; 12] },
        Tensor { name: "scalar", dtype: Dtype::I64, shape: &[], bytes: &[3; 8] },
    ]
}

fn valid_safetensors() -> Vec<u8> {
    write::safetensors(&tensors(), &[("format", "pt")]).unwrap()
}

fn valid_gguf() -> Vec<u8> {
    let metadata = [
        ("general.architecture", Value::String("llama".into())),
        ("llama.block_count", Value::U32(2)),
        ("tokens", Value::Array(Array::String(vec!["a".into(), "bc".into()]))),
        ("nested", Value::Array(Array::Array(vec![Array::F32(vec![1.0]), Array::U8(vec![1, 2])]))),
        ("flag", Value::Bool(true)),
    ];
    write::gguf(&metadata, &tensors()).unwrap()
}

/// One way to damage a file.
#[derive(Clone, Debug)]
enum Damage {
    Flip(usize, u8),
    /// Eight bytes at once: hits whole counts, lengths and offsets.
    Word(usize, u64),
    Cut(usize),
    Extend(Vec<u8>),
    Repeat(usize, usize),
}

fn damage() -> impl Strategy<Value = Damage> {
    let word =
        prop_oneof![Just(u64::MAX), Just(1 << 63), Just(1 << 40), Just(1 << 32), 0..1024u64, any::<u64>()];
    prop_oneof![
        4 => (any::<usize>(), 1u8..).prop_map(|(at, bits)| Damage::Flip(at, bits)),
        4 => (any::<usize>(), word).prop_map(|(at, value)| Damage::Word(at, value)),
        1 => any::<usize>().prop_map(Damage::Cut),
        1 => prop::collection::vec(any::<u8>(), 1..64).prop_map(Damage::Extend),
        1 => (any::<usize>(), 1usize..64).prop_map(|(at, n)| Damage::Repeat(at, n)),
    ]
}

fn apply(mut file: Vec<u8>, damage: &[Damage]) -> Vec<u8> {
    for step in damage {
        let length = file.len().max(1);
        match step {
            Damage::Flip(at, bits) => {
                if let Some(byte) = file.get_mut(at % length) {
                    *byte ^= bits;
                }
            }
            Damage::Word(at, value) => {
                for (byte, new) in file.iter_mut().skip(at % length).zip(value.to_le_bytes()) {
                    *byte = new;
                }
            }
            Damage::Cut(at) => file.truncate(at % length),
            Damage::Extend(bytes) => file.extend(bytes),
            Damage::Repeat(at, n) => {
                let chunk: Vec<u8> = file.iter().copied().skip(at % length).take(*n).collect();
                let at = (at % length).min(file.len());
                file.splice(at..at, chunk);
            }
        }
    }
    file
}

/// The promise of the parsers about a file that they accept.
fn check_tensors(tensors: &[TensorInfo], file: &[u8]) -> Result<(), TestCaseError> {
    for tensor in tensors {
        prop_assert!(tensor.offset + tensor.num_bytes <= file.len() as u64);
        prop_assert_eq!(tensor.dtype.num_bytes(&tensor.shape), Some(tensor.num_bytes));
    }
    let mut spans: Vec<_> =
        tensors.iter().filter(|t| t.num_bytes > 0).map(|t| (t.offset, t.offset + t.num_bytes)).collect();
    spans.sort_unstable();
    prop_assert!(spans.windows(2).all(|pair| pair[0].1 <= pair[1].0));
    Ok(())
}

/// Our reader against the reference library on the same bytes.
fn check_safetensors(file: &[u8]) -> Result<(), TestCaseError> {
    let ours = safetensors::parse(file);
    let reference = ::safetensors::SafeTensors::deserialize(file);
    match (ours, reference) {
        (Ok(ours), reference) => {
            check_tensors(&ours.tensors, file)?;
            let reference = reference.map_err(|e| TestCaseError::fail(format!("only we accept it: {e}")))?;
            prop_assert_eq!(ours.tensors.len(), reference.len());
            for tensor in &ours.tensors {
                let view = reference.tensor(&tensor.name).unwrap();
                prop_assert_eq!(view.shape(), tensor.shape.as_slice());
                prop_assert_eq!(view.dtype().to_string(), tensor.dtype.name());
                let begin = tensor.offset as usize;
                prop_assert_eq!(view.data(), &file[begin..begin + tensor.num_bytes as usize]);
            }
        }
        // Every error can be printed.
        (Err(error), _) => prop_assert!(!error.to_string().is_empty()),
    }
    Ok(())
}

fn check_gguf(file: &[u8]) -> Result<(), TestCaseError> {
    match gguf::parse(file) {
        Ok(parsed) => {
            check_tensors(&parsed.tensors, file)?;
            prop_assert!(parsed.metadata.to_json().len() == parsed.metadata.iter().len());
        }
        Err(error) => prop_assert!(!error.to_string().is_empty()),
    }
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2048))]

    #[test]
    fn arbitrary_bytes_never_panic(bytes in prop::collection::vec(any::<u8>(), 0..512)) {
        check_safetensors(&bytes)?;
        check_gguf(&bytes)?;
        let _ = Index::parse(&bytes);
    }

    #[test]
    fn arbitrary_bytes_behind_a_valid_start_never_panic(bytes in prop::collection::vec(any::<u8>(), 0..512)) {
        let mut gguf = write::gguf(&[], &[]).unwrap()[..8].to_vec();
        gguf.extend([3, 0, 0, 0, 0, 0, 0, 0, 2, 0, 0, 0, 0, 0, 0, 0]);
        gguf.extend(&bytes);
        check_gguf(&gguf)?;
        let mut st = (bytes.len() as u64).to_le_bytes().to_vec();
        st.extend(&bytes);
        check_safetensors(&st)?;
    }

    #[test]
    fn damaged_safetensors_never_panic(damage in prop::collection::vec(damage(), 1..4)) {
        check_safetensors(&apply(valid_safetensors(), &damage))?;
    }

    #[test]
    fn damaged_gguf_never_panics(damage in prop::collection::vec(damage(), 1..4)) {
        check_gguf(&apply(valid_gguf(), &damage))?;
    }

    #[test]
    fn headers_that_are_json_never_panic(
        dtype in "(F32|BF16|U8|F4|[A-Z0-9_]{0,6})",
        shape in prop::collection::vec(prop_oneof![0..8u64, any::<u64>()], 0..5),
        offsets in prop::array::uniform2(prop_oneof![0..64u64, any::<u64>()]),
        data in 0usize..64,
    ) {
        let entry = serde_json::json!({ "dtype": dtype, "shape": shape, "data_offsets": offsets });
        let header = serde_json::json!({ "w": entry }).to_string();
        let mut file = (header.len() as u64).to_le_bytes().to_vec();
        file.extend(header.as_bytes());
        file.resize(file.len() + data, 0);
        check_safetensors(&file)?;
    }
}
