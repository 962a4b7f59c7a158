//! Engine configuration: flags, environment, TOML file.
