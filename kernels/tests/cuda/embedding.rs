use half::{bf16, f16};
use metrale_kernels::cpu::{Format, Weight as HostWeight, embedding as reference};
use metrale_kernels::cuda::embedding::gather;
use metrale_kernels::cuda::{Cuda, Element, Indices, Weight};

use crate::support::{Output, Rng, Tolerance, assert_close, cpu, for_elements, gpu, rounded};

/// Checkpoint bytes of the values.
pub(crate) fn bytes(format: Format, values: &[f32]) -> Vec<u8> {
    match format {
        Format::F32 => values.iter().flat_map(|v| v.to_le_bytes()).collect(),
        Format::F16 => values.iter().flat_map(|v| f16::from_f32(*v).to_le_bytes()).collect(),
        _ => values.iter().flat_map(|v| bf16::from_f32(*v).to_le_bytes()).collect(),
    }
}

fn check<T: Element + Default>(cuda: &Cuda, name: &str) {
    let mut rng = Rng::new(1);
    for format in [Format::F32, Format::BF16, Format::F16] {
        for (vocabulary, width, count) in [(1, 1, 1), (100, 7, 33), (1000, 576, 5), (50, 4096, 65)] {
            let table = bytes(format, &rng.vec(vocabulary * width));
            let ids: Vec<u32> = (0..count).map(|_| rng.below(vocabulary) as u32).collect();
            let host = HostWeight::from_vec(format, vocabulary, width, table.clone()).unwrap();
            let mut expected = vec![0.0; count * width];
            reference::gather(cpu(), &host, &ids, &mut expected).unwrap();
            let table = Weight::new(cuda, format, vocabulary, width, &table).unwrap();
            let mut indices = Indices::new(cuda, count).unwrap();
            indices.set(cuda, &ids, vocabulary).unwrap();
            let mut out = Output::<T>::new(cuda, expected.len());
            out.write(|out| gather(cuda, &table, &indices, out)).unwrap();
            let exact = Tolerance { absolute: 0.0, relative: 0.0 };
            assert_close(
                &out.read(cuda),
                &rounded::<T>(&expected),
                exact,
                &format!("{name} {format:?} {width}"),
            );
        }
    }
}

#[test]
fn gathered_rows_are_exact() {
    let Some(cuda) = gpu() else { return };
    for_elements!(cuda, check);
}

#[test]
fn ids_for_a_larger_vocabulary_are_refused() {
    let Some(cuda) = gpu() else { return };
    let table = Weight::new(cuda, Format::F32, 10, 4, &[0; 160]).unwrap();
    let mut ids = Indices::new(cuda, 1).unwrap();
    ids.set(cuda, &[3], 11).unwrap();
    let mut out = Output::<f32>::new(cuda, 4);
    let error = out.write(|out| gather(cuda, &table, &ids, out)).unwrap_err().to_string();
    assert!(error.contains("ids") && error.contains("11"), "{error}");
}
