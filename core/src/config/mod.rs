//! Engine configuration: flags, environment, TOML file.
//!
//! [`EngineConfig`] and [`ServerConfig`] are plain values with every default filled in; [`resolve`] says where each one
//! came from. Nothing else in the engine reads flags or `METRALE_*` variables.

mod engine;
mod file;
mod resolve;
mod server;
mod size;
#[cfg(test)]
mod tests;

pub use engine::{
    DeviceChoice, DtypeChoice, EngineConfig, IsaChoice, JsonObject, LoadFormat, LogFormat, PluginChoice,
};
pub use file::FileError;
pub use resolve::{ConfigError, Origin, Resolved, Setting, resolve};
pub use server::ServerConfig;
pub use size::{SizeError, parse_count, parse_size};
