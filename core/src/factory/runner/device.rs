//! The device that a model is built for.

use metrale_graph::StateDecl;
use metrale_kernels::KernelError;
use metrale_kernels::cuda::Cuda;

use super::size::Budget;
use super::{BuildError, RunnerOptions};
use crate::device::cpu::{CpuDevice, CpuOptions};
use crate::device::cuda::{CudaDevice, CudaOptions, weight_bytes};
use crate::device::{Checkpoint, Device, LoadError, MaxRows, Plans, StateSizes};
use crate::lower::plan::ElementType;
use crate::lower::{DeviceKind, Plan, Taps, Target};

/// Where a model runs, and how numbers are computed there.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum DeviceOptions {
    /// The processor.
    Cpu(CpuOptions),
    /// An NVIDIA GPU.
    Cuda(CudaOptions),
}

/// KV cache of the CPU when the user does not say.
const CPU_KV_BYTES: u64 = 1 << 30;
/// Device memory that libraries and workspaces may take.
const CUDA_RESERVE_BYTES: u64 = 1 << 30;

/// A device before there is a model on it.
pub(super) enum OpenDevice {
    Cpu(CpuOptions),
    Cuda(Box<Cuda>, CudaOptions),
}

impl OpenDevice {
    pub(super) fn open(options: &DeviceOptions) -> Result<Self, KernelError> {
        Ok(match *options {
            DeviceOptions::Cpu(options) => Self::Cpu(options),
            DeviceOptions::Cuda(options) => Self::Cuda(Box::new(Cuda::new(options.ordinal)?), options),
        })
    }

    /// What plans are made for; taps are dropped.
    pub(super) fn target(&self) -> Target {
        let (device, activations) = match self {
            Self::Cpu(_) => (DeviceKind::Cpu, ElementType::F32),
            Self::Cuda(_, options) => (DeviceKind::Cuda, options.activations),
        };
        Target { device, activations, taps: Taps::Drop, images: device == DeviceKind::Cpu }
    }

    /// Whether rows of a model with these plans can be taken back.
    pub(super) fn check_drafts(&self, plans: &Plans, max_num_drafts: usize) -> Result<(), BuildError> {
        let is_recurrent = |plan: &Plan| plan.recurrent_inputs().next().is_some();
        let reason = if max_num_drafts == 0 {
            return Ok(());
        } else if matches!(self, Self::Cuda(..)) && is_recurrent(&plans.text) {
            "the cuda device cannot take rows back from recurrent state yet"
        } else if plans.mtp.iter().any(is_recurrent) {
            "a multi-token-prediction head with recurrent state cannot draft"
        } else {
            return Ok(());
        };
        Err(BuildError::NoDrafts { reason })
    }

    /// Memory that is left for states beside the weights and activations of these plans.
    pub(super) fn budget(&self, plans: &Plans, options: &RunnerOptions) -> Result<Budget, KernelError> {
        let Self::Cuda(cuda, cuda_options) = self else {
            return Ok(Budget { free: free_memory(), default_kv: CPU_KV_BYTES });
        };
        let (free, total) = cuda.memory()?;
        let rows = options.max_num_batched_tokens.max(options.max_num_seqs) as u64;
        let activations: u64 = plans.iter().map(|plan| plan.bytes_per_row() as u64 * rows).sum();
        let allowed = (total as f64 * f64::from(cuda_options.memory_utilization)) as u64;
        let taken = (total - free) as u64 + weight_bytes(plans) + activations + CUDA_RESERVE_BYTES;
        let free = allowed.saturating_sub(taken);
        Ok(Budget { free, default_kv: free })
    }

    /// Loads the model.
    pub(super) fn load(
        self,
        plans: Plans,
        checkpoint: &Checkpoint<'_>,
        max: MaxRows,
        states: (&[StateDecl], StateSizes),
    ) -> Result<Box<dyn Device>, LoadError> {
        Ok(match self {
            Self::Cpu(options) => Box::new(CpuDevice::load(options, plans, checkpoint, max, states)?),
            Self::Cuda(cuda, options) => {
                Box::new(CudaDevice::load((*cuda, options), plans, checkpoint, max, states)?)
            }
        })
    }
}

/// Half of what the machine has free, as far as it tells.
fn free_memory() -> u64 {
    let available = std::fs::read_to_string("/proc/meminfo").ok().and_then(|text| {
        let line = text.lines().find(|l| l.starts_with("MemAvailable:"))?.to_owned();
        line.split_whitespace().nth(1)?.parse::<u64>().ok().map(|kb| kb * 1024)
    });
    available.map_or(u64::MAX, |bytes| bytes / 2)
}
