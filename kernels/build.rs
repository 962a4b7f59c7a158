//! Compiles the CUDA kernels in `cuda/` into one compressed image, `$OUT_DIR/kernels.fatbin`.
//!
//! Without the `cuda` feature nothing happens; without nvcc the image is empty, which the device reports when it is
//! opened. nvcc is looked for in `METRALE_NVCC` (a path), `CUDA_HOME` and `CUDA_PATH` (toolkit roots), `.cuda/` of this
//! repository (`make cuda-toolchain`), `PATH` and `/usr/local/cuda`. `METRALE_CUDA_ARCHS` limits the targets, for
//! quick builds: `METRALE_CUDA_ARCHS=90a`.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::{env, fs};

type Result<T> = std::result::Result<T, String>;

/// Targets: A100 and relatives, H100 and H200, B200, consumer Blackwell.
const ARCHS: &str = "80,90a,100a,120";

fn main() -> Result<()> {
    println!("cargo::rerun-if-changed=build.rs");
    if env::var_os("CARGO_FEATURE_CUDA").is_none() {
        return Ok(());
    }
    for name in ["METRALE_NVCC", "METRALE_CUDA_ARCHS", "CUDA_HOME", "CUDA_PATH"] {
        println!("cargo::rerun-if-env-changed={name}");
    }
    println!("cargo::rerun-if-changed=cuda");
    let out = PathBuf::from(variable("OUT_DIR")?);
    let image = out.join("kernels.fatbin");
    let archs = env::var("METRALE_CUDA_ARCHS").unwrap_or_else(|_| ARCHS.to_owned());
    match find_nvcc()? {
        Some(nvcc) => compile(&nvcc, &archs, &out, &image)?,
        None => fs::write(&image, []).map_err(|e| format!("{}: {e}", image.display()))?,
    }
    println!("cargo::rustc-env=METRALE_CUDA_ARCHS={archs}");
    Ok(())
}

fn variable(name: &str) -> Result<OsString> {
    env::var_os(name).ok_or_else(|| format!("cargo did not set {name}"))
}

fn find_nvcc() -> Result<Option<PathBuf>> {
    if let Some(path) = env::var_os("METRALE_NVCC").map(PathBuf::from) {
        return if path.is_file() {
            Ok(Some(path))
        } else {
            Err(format!("METRALE_NVCC is {}, which is not a file; expected the path of nvcc", path.display()))
        };
    }
    let root = PathBuf::from(variable("CARGO_MANIFEST_DIR")?);
    let variables = ["CUDA_HOME", "CUDA_PATH"].into_iter().filter_map(env::var_os).map(PathBuf::from);
    let path = env::var_os("PATH").unwrap_or_default();
    let candidates = variables
        .map(|toolkit| toolkit.join("bin/nvcc"))
        .chain([root.join("../.cuda/nvidia/cu13/bin/nvcc")])
        .chain(env::split_paths(&path).map(|folder| folder.join("nvcc")))
        .chain([PathBuf::from("/usr/local/cuda/bin/nvcc")]);
    Ok(candidates.into_iter().find(|nvcc| nvcc.is_file()))
}

/// Compiles all families as one translation unit, so that one image and one module hold every kernel.
fn compile(nvcc: &Path, archs: &str, out: &Path, image: &Path) -> Result<()> {
    let folder = PathBuf::from(variable("CARGO_MANIFEST_DIR")?).join("cuda");
    let mut sources = Vec::new();
    for family in read_dir(&folder)?.into_iter().filter(|path| path.is_dir()) {
        let files = read_dir(&family)?;
        sources.extend(files.into_iter().filter(|path| path.extension().is_some_and(|e| e == "cu")));
    }
    sources.sort();
    let includes: Vec<String> =
        sources.iter().map(|path| format!("#include \"{}\"\n", path.display())).collect();
    let all = out.join("kernels.cu");
    fs::write(&all, includes.concat()).map_err(|e| format!("{}: {e}", all.display()))?;
    let mut command = Command::new(nvcc);
    command.args(["-std=c++17", "-O3", "-fatbin", "-Xfatbin", "-compress-all", "--threads", "0"]);
    for arch in archs.split(',') {
        command.args(["-gencode", &format!("arch=compute_{arch},code=sm_{arch}")]);
    }
    command.arg(&all).arg("-o").arg(image);
    let output = command.output().map_err(|e| format!("cannot run {}: {e}", nvcc.display()))?;
    if output.status.success() {
        Ok(())
    } else {
        Err(format!("{}\n{}", nvcc.display(), String::from_utf8_lossy(&output.stderr)))
    }
}

/// Entries of a folder.
fn read_dir(folder: &Path) -> Result<Vec<PathBuf>> {
    let fail = |e: std::io::Error| format!("{}: {e}", folder.display());
    let entries = fs::read_dir(folder).map_err(fail)?;
    entries.map(|entry| entry.map(|entry| entry.path()).map_err(fail)).collect()
}
