use metrale_kernels::KernelError;
use metrale_kernels::cuda::{Buffer, Cuda, Indices, Staging, devices, image_archs};

use crate::support::gpu;

#[test]
fn opening_a_device_works_or_says_why_not() {
    match (devices(), Cuda::new(0)) {
        (Ok(all), Ok(cuda)) => assert_eq!(&all[0], cuda.info()),
        (_, Err(KernelError::Device { reason })) => {
            let known = ["driver", "no CUDA kernels", "built for"];
            assert!(known.iter().any(|part| reason.contains(part)), "{reason}");
        }
        (devices, cuda) => panic!("{devices:?}, {cuda:?}"),
    }
}

#[test]
fn a_missing_device_is_named() {
    let Some(_) = gpu() else { return };
    let error = Cuda::new(1000).unwrap_err().to_string();
    assert!(error.contains("1000"), "{error}");
    assert!(image_archs().is_some());
}

#[test]
fn copies_return_what_was_put() {
    let Some(cuda) = gpu() else { return };
    let values: Vec<u32> = (0..100_003).collect();
    let buffer = Buffer::from_slice(cuda, &values).unwrap();
    assert_eq!(buffer.view().to_vec(cuda).unwrap(), values);
    assert_eq!(buffer.view().range(17..20).unwrap().to_vec(cuda).unwrap(), [17, 18, 19]);
    assert!(buffer.view().range(5..200_000).is_err());
    let mut short = [0u32; 3];
    assert!(buffer.view().download(cuda, &mut short).is_err());
}

#[test]
fn staging_can_be_refilled_at_once() {
    let Some(cuda) = gpu() else { return };
    let mut staging = Staging::new(cuda, 1000).unwrap();
    let mut buffers: Vec<Buffer<u32>> = (0..50).map(|_| Buffer::zeroed(cuda, 1000).unwrap()).collect();
    for (i, buffer) in buffers.iter_mut().enumerate() {
        staging.upload(cuda, &vec![i as u32; 1000], &mut buffer.view_mut()).unwrap();
    }
    for (i, buffer) in buffers.iter().enumerate() {
        assert_eq!(buffer.view().to_vec(cuda).unwrap(), vec![i as u32; 1000]);
    }
    assert!(staging.upload(cuda, &vec![0; 1001], &mut buffers[0].view_mut()).is_err());
}

#[test]
fn indices_outside_of_the_limit_are_refused_and_the_old_ones_stay() {
    let Some(cuda) = gpu() else { return };
    let mut indices = Indices::new(cuda, 4).unwrap();
    indices.set(cuda, &[1, 2], 3).unwrap();
    let error = indices.set(cuda, &[0, 3], 3).unwrap_err();
    assert!(matches!(error, KernelError::Index { position: 1, found: 3, limit: 3, .. }), "{error}");
    assert!(indices.set(cuda, &[0; 5], 3).is_err());
    assert_eq!(indices.to_vec(cuda).unwrap(), [1, 2]);
}
