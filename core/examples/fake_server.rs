//! The `metrale` command over a scripted engine: every flag, endpoint and signal without a model.
//!
//! `cargo run --example fake_server -- serve fake --port 8123`

use std::process::ExitCode;

use metrale_core::config::EngineConfig;
use metrale_core::server::ServedModel;

#[allow(dead_code)]
#[path = "../tests/server/support/mod.rs"]
mod support;

fn main() -> ExitCode {
    metrale_core::cli::main(std::env::args_os(), load)
}

/// `METRALE_FAKE_SLOW=1` answers nothing until it is killed.
#[allow(clippy::unnecessary_wraps)]
fn load(config: &EngineConfig) -> anyhow::Result<ServedModel> {
    let reply = "Hello from a scripted engine, Grüße!";
    let engine = if std::env::var_os("METRALE_FAKE_SLOW").is_some() {
        support::engine::FakeEngine::stepping(reply)
    } else {
        support::engine::FakeEngine::replying(reply)
    };
    let model = support::model(&engine);
    Ok(ServedModel {
        root: config.model.clone(),
        max_model_len: config.max_model_len.unwrap_or(256),
        ..model
    })
}
