//! Command line of `skilld`.

use std::io::{self, Write};
use std::path::PathBuf;
use std::process::ExitCode;

use clap::error::ErrorKind;
use clap::{CommandFactory, Parser, Subcommand, ValueEnum};
use clap_complete::Shell;

use super::preconditions::check_start;
use crate::config::{ConfigFlags, LoadedConfig};
use crate::doctor::{self, CheckLine, CheckState};

/// Runs Agent Skills in warm, locked-down containers, over gRPC.
#[derive(Debug, Parser)]
#[command(name = "skilld", version, after_help = AFTER_HELP, disable_help_subcommand = true)]
pub struct Cli {
    /// Configuration file (TOML); docs/configuration.md lists the keys
    #[arg(long, value_name = "FILE", global = true)]
    config: Option<PathBuf>,
    /// Socket for clients [default: unix:/run/skilld/skilld.sock]
    #[arg(long, value_name = "unix:PATH", global = true)]
    listen: Option<String>,
    /// State directory; without --listen the socket is then DIR/skilld.sock
    #[arg(long, value_name = "DIR", global = true)]
    state_dir: Option<PathBuf>,
    /// Log filter: a level, or levels per module such as info,skilld::pool=debug
    #[arg(long, value_name = "FILTER", global = true)]
    log: Option<String>,
    /// Check the configuration and what a start needs of this host, print the effective values, and exit
    #[arg(long)]
    pub check: bool,
    /// Give a copied state directory its own id, remove its slots, and exit; docs/backup.md says when
    #[arg(long, conflicts_with = "check")]
    pub adopt_copy: bool,
    /// Print a completion script for a shell and exit
    #[arg(long, value_name = "SHELL", exclusive = true)]
    pub completion: Option<Shell>,
    /// Print the manual page and exit; packages install it
    #[arg(long, hide = true, exclusive = true)]
    pub man_page: bool,
    /// Command to run in place of the daemon.
    #[command(subcommand)]
    pub command: Option<CliCommand>,
}

/// Command to run in place of the daemon.
#[derive(Debug, Subcommand)]
pub enum CliCommand {
    /// Check the host and the configuration, say what to do, and exit; changes nothing
    #[command(after_help = DOCTOR_AFTER_HELP)]
    Doctor {
        /// Format of the report
        #[arg(short, long, value_enum, value_name = "FORMAT", default_value_t = OutputFormat::Text)]
        output: OutputFormat,
    },
}

/// Format of a report.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum OutputFormat {
    /// Lines for people
    Text,
    /// A single JSON document
    Json,
}

const AFTER_HELP: &str = "\
A flag overrides the environment (SKILLD_SECTION__KEY), which overrides the file.

Examples:
  skilld --check --config /etc/skilld.toml
  skilld --state-dir ./state --log debug
  skilld doctor --config /etc/skilld.toml

Exit codes: 0 success, 1 failed to start or abandoned a task at the end, 64 wrong configuration or usage. --check exits with 1 if skilld would not start on this host, a root can't be read, or no container can be made from an image.";

const DOCTOR_AFTER_HELP: &str = "\
Run it as the daemon's user. It works beside a running daemon, and without Docker. Each line has a state (ok, warning, failed), a subject and a finding; a remedy follows whatever is not ok.

Examples:
  skilld doctor
  skilld doctor --config /etc/skilld.toml
  skilld doctor -o json | jq '.checks[] | select(.state != \"ok\")'

Exit codes: 0 nothing failed (warnings do not count), 1 a check failed, 64 wrong configuration or usage.";

impl Cli {
    /// Parses the command line of this process.
    ///
    /// # Errors
    /// What is wrong with it, or the text of `--help` or `--version`.
    pub fn parse_arguments() -> Result<Self, clap::Error> {
        let cli = Self::try_parse()?;
        if cli.command.is_some() && (cli.check || cli.adopt_copy) {
            let message = "--check and --adopt-copy can't be used together with a command";
            return Err(Self::command().error(ErrorKind::ArgumentConflict, message));
        }
        Ok(cli)
    }

    /// Returns the flags that override configuration values.
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

    /// Writes the manual page to stdout.
    pub fn print_man_page(&self) {
        let (mut page, man) = (Vec::new(), clap_mangen::Man::new(Self::command()));
        // Memory takes every write.
        drop(man.section("8").render(&mut page));
        print(&page);
    }

    /// Runs `skilld doctor`: writes its report to stdout and returns the exit code.
    ///
    /// # Errors
    /// When the system refuses the threads that the checks need.
    pub fn run_doctor(&self, output: OutputFormat) -> io::Result<ExitCode> {
        let report = doctor::examine_host(&self.flags(), check_start)?;
        let text = match output {
            OutputFormat::Text => report.to_text(),
            OutputFormat::Json => report.to_json(),
        };
        print(text.as_bytes());
        Ok(ExitCode::from(report.exit_code()))
    }

    /// Runs `skilld --check` after the configuration was loaded: writes it to stdout, and to stderr what this host lacks.
    /// Returns the exit code.
    ///
    /// # Errors
    /// When the system refuses the threads that the checks need.
    pub fn run_check(&self, loaded: &LoadedConfig) -> io::Result<ExitCode> {
        print(loaded.effective.as_bytes());
        let lines = doctor::check_config(&loaded.config, check_start)?;
        let complaints = lines.iter().filter_map(CheckLine::complaint);
        let text: String = complaints.map(|complaint| complaint + "\n").collect();
        // A failed write means that the reader closed the pipe.
        drop(io::stderr().write_all(text.as_bytes()));
        let is_failed = |line: &CheckLine| line.state == CheckState::Failed;
        Ok(match lines.iter().any(is_failed) {
            true => ExitCode::FAILURE,
            false => ExitCode::SUCCESS,
        })
    }

    /// Writes a message to stdout.
    pub fn print_done(&self, done: &str) {
        print(format!("{done}\n").as_bytes());
    }
}

fn print(bytes: &[u8]) {
    // A failed write means that the reader closed the pipe.
    drop(io::stdout().write_all(bytes));
}
