//! Binary `skilld`: parses flags, loads the configuration, runs the server, and returns the exit code.

use std::fmt::Display;
use std::process::ExitCode;

use skilld::config::{self, Config, EXIT_CONFIG};
use skilld::error::Chain;
use skilld::server;
use skilld::server::cli::{Cli, CliCommand};
use skilld::telemetry::StartupLog;

pub(crate) fn main() -> ExitCode {
    let cli = match Cli::parse_arguments() {
        Ok(cli) => cli,
        Err(error) => return print_usage(&error),
    };
    if let Some(shell) = cli.completion {
        cli.print_completion(shell);
        return ExitCode::SUCCESS;
    }
    if cli.man_page {
        cli.print_man_page();
        return ExitCode::SUCCESS;
    }
    if let Some(CliCommand::Doctor { output }) = cli.command {
        return exit_code(StartupLog::new(false), cli.run_doctor(output));
    }
    // The other commands are for people and scripts, which read text.
    let is_daemon = !cli.check && !cli.adopt_copy;
    let log = StartupLog::new(is_daemon && Config::wants_json_log(Some(&cli.flags())));
    log.report_panics();
    let loaded = match Config::load(&cli.flags()) {
        Ok(loaded) => loaded,
        Err(faults) => {
            log.error(&faults.to_string());
            return ExitCode::from(EXIT_CONFIG);
        }
    };
    for message in config::ignored_variables() {
        log.warn(&message);
    }
    if cli.check {
        return exit_code(log, cli.run_check(&loaded));
    }
    let ended = if cli.adopt_copy {
        server::adopt_copy(&loaded.config).map(|done| {
            cli.print_done(&done);
            ExitCode::SUCCESS
        })
    } else {
        server::main(loaded.config)
    };
    exit_code(log, ended.map_err(|error| Chain(&error).to_string()))
}

/// Prints the text of `--help` or `--version`, or what is wrong with the command line. Returns the exit code.
fn print_usage(error: &clap::Error) -> ExitCode {
    if error.use_stderr() && Config::wants_json_log(None) {
        StartupLog::new(true).error(error.to_string().trim_end());
    } else {
        // A failure to print cannot be reported anywhere else.
        drop(error.print());
    }
    ExitCode::from(if error.use_stderr() { EXIT_CONFIG } else { 0 })
}

/// Writes the error that ended a command, if one did. Returns the exit code.
fn exit_code(log: StartupLog, ended: Result<ExitCode, impl Display>) -> ExitCode {
    ended.unwrap_or_else(|error| {
        log.error(&error.to_string());
        ExitCode::FAILURE
    })
}
