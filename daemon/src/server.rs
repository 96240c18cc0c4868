//! The front door: the order of start and stop.

use std::process::ExitCode;

use anyhow::Result;

use crate::config::Config;

pub mod cli;

/// Runs until told to stop.
///
/// # Errors
/// When it cannot start.
#[expect(clippy::needless_pass_by_value, reason = "owned by what is started")]
pub fn main(config: Config) -> Result<ExitCode> {
    crate::telemetry::init(&config)?;
    anyhow::bail!("serving is not wired yet")
}
