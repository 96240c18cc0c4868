//! Logs: tracing on stderr, as text or as one JSON object per line. Both escape control characters, so that
//! nothing a tenant chose can forge a line or drive a terminal.
//!
//! Levels: ERROR broken · WARN odd but working · INFO a visible change of state · DEBUG a branch taken · TRACE
//! each frame. What programs print, and values of their environment, are never logged above TRACE.

use std::io::IsTerminal;

use anyhow::Context;
use tracing_subscriber::EnvFilter;

use crate::config::Config;

/// Starts logging for this process; once.
///
/// # Errors
/// When the filter is malformed, or a subscriber is there already.
pub fn init(config: &Config) -> anyhow::Result<()> {
    let filter = EnvFilter::try_new(&config.log).context("log filter")?;
    let builder = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(std::io::stderr)
        .with_ansi(!config.log_json && std::io::stderr().is_terminal());
    let result = if config.log_json {
        builder.json().flatten_event(true).try_init()
    } else {
        builder.try_init()
    };
    result.map_err(|error| anyhow::anyhow!("start logging: {error}"))
}
