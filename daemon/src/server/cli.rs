//! Command line of `skilld`.

use std::io::Write;
use std::path::PathBuf;

use clap::{CommandFactory, Parser};
use clap_complete::Shell;

use crate::config::{ConfigFlags, LoadedConfig};

/// Runs Agent Skills in warm, locked-down containers, over gRPC.
#[derive(Debug, Parser)]
#[command(name = "skilld", version, after_help = AFTER_HELP)]
pub struct Cli {
    /// Configuration file (TOML); docs/configuration.md lists the keys
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// Socket for clients [default: unix:/run/skilld/skilld.sock]
    #[arg(long, value_name = "unix:PATH")]
    listen: Option<String>,
    /// State directory; without --listen the socket is then DIR/skilld.sock
    #[arg(long, value_name = "DIR")]
    state_dir: Option<PathBuf>,
    /// Log filter: a level, or levels per module such as info,skilld::pool=debug
    #[arg(long, value_name = "FILTER")]
    log: Option<String>,
    /// Check the configuration, print the effective values, and exit
    #[arg(long)]
    pub check: bool,
    /// Give a copied state directory its own id, remove its slots, and exit; docs/backup.md says when
    #[arg(long, conflicts_with = "check")]
    pub adopt_copy: bool,
    /// Print a completion script for a shell and exit
    #[arg(long, value_name = "SHELL", exclusive = true)]
    pub completion: Option<Shell>,
}

const AFTER_HELP: &str = "\
A flag overrides the environment (SKILLD_SECTION__KEY), which overrides the file.

Examples:
  skilld --check --config /etc/skilld.toml
  skilld --state-dir ./state --log debug

Exit codes: 0 success, 1 failed to start or abandoned a task at the end, 64 wrong configuration or usage.";

impl Cli {
    /// Returns the flags that override configuration values.
    #[must_use]
    pub fn flags(&self) -> ConfigFlags {
        ConfigFlags {
            config: self.config.clone(),
            listen: self.listen.clone(),
            state_dir: self.state_dir.clone(),
            log: self.log.clone(),
        }
    }

    /// Writes the completion script of a shell to stdout.
    pub fn print_completion(&self, shell: Shell) {
        let mut script = Vec::new();
        clap_complete::generate(shell, &mut Self::command(), "skilld", &mut script);
        print(&script);
    }

    /// Writes the effective configuration to stdout.
    pub fn print_effective(&self, loaded: &LoadedConfig) {
        print(loaded.effective.as_bytes());
    }

    /// Writes a message to stdout.
    pub fn print_done(&self, done: &str) {
        print(format!("{done}\n").as_bytes());
    }
}

fn print(bytes: &[u8]) {
    // A failed write means that the reader closed the pipe.
    drop(std::io::stdout().write_all(bytes));
}
