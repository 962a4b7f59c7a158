//! Which device a model runs on: `--device`.

use metrale_kernels::cpu::Isa;
use metrale_kernels::cpu::linear::Activations;
use metrale_kernels::cuda;

use super::DeviceOptions;
use crate::config::{DeviceChoice, EngineConfig, IsaChoice};
use crate::device::cpu::{CpuOptions, Numerics};
use crate::device::cuda::CudaOptions;
use crate::lower::plan::ElementType;

/// The device that a configuration asks for. `auto` is the first GPU that this build has kernels for, else the CPU; a GPU
/// that was asked for by name and cannot be used is an error.
pub(super) fn choose(config: &EngineConfig, keep_f32: bool) -> anyhow::Result<DeviceOptions> {
    let activations = if keep_f32 { ElementType::F32 } else { ElementType::BF16 };
    let gpu = DeviceOptions::Cuda(CudaOptions {
        ordinal: 0,
        activations,
        memory_utilization: config.gpu_memory_utilization,
        enforce_eager: config.enforce_eager,
    });
    match config.device {
        DeviceChoice::Cpu => Ok(cpu(config)),
        DeviceChoice::Cuda => match cuda::usable(0) {
            Ok(_) => Ok(gpu),
            Err(error) => {
                anyhow::bail!("error[P0503]: --device cuda: {error}\n   help: use --device cpu or auto")
            }
        },
        DeviceChoice::Auto => match cuda::usable(0) {
            Ok(info) => {
                tracing::info!("--device auto: cuda, {}", info.name);
                Ok(gpu)
            }
            Err(error) => {
                tracing::info!("--device auto: cpu, since no GPU can be used: {error}");
                Ok(cpu(config))
            }
        },
    }
}

fn cpu(config: &EngineConfig) -> DeviceOptions {
    let float32 = config.dtype == crate::config::DtypeChoice::Float32;
    DeviceOptions::Cpu(CpuOptions {
        threads: config.threads.unwrap_or_else(default_threads),
        isa: match config.cpu_isa {
            None => Isa::detect(),
            Some(IsaChoice::Portable) => Isa::Portable,
            Some(IsaChoice::Avx2) => Isa::Avx2,
            Some(IsaChoice::Avx512) => Isa::Avx512,
        },
        numerics: Numerics { activations: if float32 { Activations::F32 } else { Activations::Int8 } },
    })
}

fn default_threads() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}
