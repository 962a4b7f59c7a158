//! The `metrale` program.

use std::process::ExitCode;

fn main() -> ExitCode {
    metrale_core::cli::main(
        std::env::args_os(),
        metrale_core::factory::load,
        metrale_core::factory::load_runner,
    )
}
