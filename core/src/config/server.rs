//! Flags of the HTTP server.

use std::path::PathBuf;
use std::time::Duration;

use clap::builder::BoolishValueParser;

use super::size::parse_count;

/// Flags of the address, access, limits and logs of the server.
#[derive(Clone, Debug, clap::Args)]
#[command(next_help_heading = "Server")]
pub struct ServerConfig {
    /// Names that clients may use for the model; the first one is reported. The MODEL argument if left out.
    #[arg(long, value_name = "NAME", env = "METRALE_SERVED_MODEL_NAME", value_delimiter = ',', num_args = 1..)]
    pub served_model_name: Vec<String>,
    /// Address to listen on.
    #[arg(long, env = "METRALE_HOST", default_value = "127.0.0.1")]
    pub host: String,
    /// Port to listen on; 0 takes any free one.
    #[arg(long, env = "METRALE_PORT", default_value = "8000")]
    pub port: u16,
    /// Unix socket to listen on instead of host and port.
    #[arg(long, value_name = "PATH", env = "METRALE_UDS")]
    pub uds: Option<PathBuf>,
    /// Key that clients must send as `Authorization: Bearer KEY`.
    #[arg(long, value_name = "KEY", env = "METRALE_API_KEY", hide_env_values = true)]
    pub api_key: Option<String>,
    /// Most log-probabilities that a request may ask for per token.
    #[arg(long, value_name = "N", env = "METRALE_MAX_LOGPROBS", default_value = "20")]
    pub max_logprobs: u32,
    /// Largest request body.
    #[arg(long, value_name = "BYTES", env = "METRALE_MAX_BODY_BYTES", default_value = "32M", value_parser = parse_count)]
    pub max_body_bytes: usize,
    /// Seconds that running requests get to finish after SIGTERM or Ctrl-C.
    #[arg(long, value_name = "SECONDS", env = "METRALE_SHUTDOWN_TIMEOUT", default_value = "30", value_parser = parse_seconds)]
    pub shutdown_timeout: Duration,
    /// Log every request (sizes and parameters, never text).
    #[arg(long, env = "METRALE_ENABLE_LOG_REQUESTS", value_parser = BoolishValueParser::new())]
    pub enable_log_requests: bool,
    /// Do not log the load every ten seconds.
    #[arg(long, env = "METRALE_DISABLE_LOG_STATS", value_parser = BoolishValueParser::new())]
    pub disable_log_stats: bool,
}

fn parse_seconds(text: &str) -> Result<Duration, String> {
    let expected = || format!("expected seconds, a number from 0 on, found `{text}`");
    let seconds: f64 = text.parse().map_err(|_| expected())?;
    Duration::try_from_secs_f64(seconds).map_err(|_| expected())
}
