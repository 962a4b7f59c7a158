//! The device, poisoned outputs, random data and comparisons.

use std::sync::OnceLock;

use metrale_kernels::cpu::Cpu;
use metrale_kernels::cuda::{Buffer, Cuda, Element, ViewMut};

/// Elements behind an output that must stay as they are.
const MARGIN: usize = 64;

/// The first device, or nothing after saying so.
pub(crate) fn gpu() -> Option<&'static Cuda> {
    static GPU: OnceLock<Option<Cuda>> = OnceLock::new();
    let gpu = GPU.get_or_init(|| match Cuda::new(0) {
        Ok(cuda) => Some(cuda),
        Err(error) => {
            assert!(std::env::var_os("METRALE_REQUIRE_GPU").is_none(), "a GPU is required: {error}");
            eprintln!("!!! SKIPPED: no CUDA kernel was tested: {error} !!!");
            None
        }
    });
    gpu.as_ref()
}

/// The reference.
pub(crate) fn cpu() -> &'static Cpu {
    static CPU: OnceLock<Cpu> = OnceLock::new();
    CPU.get_or_init(|| Cpu::new(2))
}

/// Random numbers (xorshift64*).
pub(crate) struct Rng(u64);

impl Rng {
    pub(crate) fn new(seed: u64) -> Self {
        Self(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    pub(crate) fn next(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }

    pub(crate) fn below(&mut self, n: usize) -> usize {
        ((self.next() >> 33) as usize) % n
    }

    /// Uniform in -1..1.
    pub(crate) fn unit(&mut self) -> f32 {
        ((self.next() >> 40) as f32 / (1u64 << 23) as f32) - 1.0
    }

    pub(crate) fn vec(&mut self, len: usize) -> Vec<f32> {
        (0..len).map(|_| self.unit()).collect()
    }

    /// Mostly ordinary values, some large, tiny, zero.
    pub(crate) fn hard(&mut self, len: usize) -> Vec<f32> {
        let mut one = || {
            let v = self.unit();
            match self.below(16) {
                0 => v * 1e3,
                1 => v * 1e-6,
                2 => 0.0,
                3 => -0.0,
                4 => v * 1e-30,
                _ => v,
            }
        };
        (0..len).map(|_| one()).collect()
    }

    /// As [`hard`](Self::hard), some not finite.
    pub(crate) fn wild(&mut self, len: usize) -> Vec<f32> {
        let mut values = self.hard(len);
        for value in &mut values {
            match self.below(64) {
                0 => *value = f32::NAN,
                1 => *value = f32::INFINITY,
                2 => *value = f32::NEG_INFINITY,
                _ => {}
            }
        }
        values
    }

    /// 0..n in random order.
    pub(crate) fn permutation(&mut self, n: usize) -> Vec<u32> {
        let mut all: Vec<u32> = (0..n as u32).collect();
        for i in (1..n).rev() {
            all.swap(i, self.below(i + 1));
        }
        all
    }
}

/// The values as elements.
pub(crate) fn elements<T: Element>(values: &[f32]) -> Vec<T> {
    values.iter().map(|&v| T::from_f32(v)).collect()
}

/// The values as the elements hold them.
pub(crate) fn rounded<T: Element>(values: &[f32]) -> Vec<f32> {
    values.iter().map(|&v| T::from_f32(v).to_f32()).collect()
}

/// Elements on the device.
pub(crate) fn put<T: Element>(cuda: &Cuda, values: &[f32]) -> Buffer<T> {
    Buffer::from_slice(cuda, &elements::<T>(values)).unwrap()
}

/// An output whose elements are NaN until they are written, with a margin behind it.
pub(crate) struct Output<T> {
    buffer: Buffer<T>,
    len: usize,
}

impl<T: Element + Default> Output<T> {
    pub(crate) fn new(cuda: &Cuda, len: usize) -> Self {
        Self::holding(cuda, &vec![f32::NAN; len])
    }

    /// An output that is read, too.
    pub(crate) fn holding(cuda: &Cuda, values: &[f32]) -> Self {
        let len = values.len();
        let mut buffer = Buffer::zeroed(cuda, len + MARGIN).unwrap();
        let mut view = buffer.view_mut();
        view.fill_bytes(cuda, 0xff).unwrap();
        view.range(0..len).unwrap().upload(cuda, &elements::<T>(values)).unwrap();
        Self { buffer, len }
    }

    /// Calls `f` with the output.
    pub(crate) fn write<R>(&mut self, f: impl FnOnce(&mut ViewMut<'_, T>) -> R) -> R {
        f(&mut self.buffer.view_mut().range(0..self.len).unwrap())
    }

    /// The values, after checking the margin.
    #[track_caller]
    pub(crate) fn read(&self, cuda: &Cuda) -> Vec<f32> {
        let mut all: Vec<f32> = self.buffer.view().to_vec(cuda).unwrap().into_iter().map(T::to_f32).collect();
        assert!(all[self.len..].iter().all(|v| v.is_nan()), "something was written behind the output");
        all.truncate(self.len);
        all
    }
}

/// How far a result may be from the expected one: `absolute` + `relative` * |expected|.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Tolerance {
    pub(crate) absolute: f32,
    pub(crate) relative: f32,
}

impl Tolerance {
    /// For f32 arithmetic whose result is stored as `T`.
    pub(crate) fn of<T: Element>(absolute: f32, relative: f32) -> Self {
        // Half a unit in the last place of bf16, and a little for results near the middle of two.
        Self { absolute, relative: relative + T::pick(0.0, 1.0 / 256.0 + 1e-4) }
    }
}

/// Fails unless the results are close; what is not finite must be equal.
#[track_caller]
pub(crate) fn assert_close(found: &[f32], expected: &[f32], tolerance: Tolerance, what: &str) {
    assert_eq!(found.len(), expected.len(), "{what}: length");
    for (i, (&f, &e)) in found.iter().zip(expected).enumerate() {
        let allowed = tolerance.absolute + tolerance.relative * e.abs();
        let close = if e.is_nan() { f.is_nan() } else { f == e || (f - e).abs() <= allowed };
        assert!(close, "{what}: element {i} is {f}, expected {e} +- {allowed}");
    }
}

/// Runs a generic test for both element types.
macro_rules! for_elements {
    ($cuda:expr, $f:ident) => {
        $f::<f32>($cuda, "f32");
        $f::<half::bf16>($cuda, "bf16");
    };
}
pub(crate) use for_elements;
