//! `skillctl`: skilld from a shell. This file starts and ends the program; `cli` knows the command line, `commands` has
//! a file for each command or group of commands.
//!
//! `commands` use `output` (what is printed) and `terminal` (keys, signals, raw mode), and `output` uses `terminal`.

mod cli;
mod commands;
mod foreign_words;
mod output;
mod terminal;

use std::process::ExitCode;

use clap::CommandFactory;

use crate::commands::complete;
use crate::output::error_report;

/// Exit code for a command that failed, unless it passes on a program's code.
const FAILURE_CODE: u8 = 1;
/// Exit code for a wrong command line of such a command.
const USAGE_CODE: u8 = 2;

fn main() -> ExitCode {
    match complete::answer_shell(cli::Cli::command) {
        Ok(true) => return ExitCode::SUCCESS,
        Ok(false) => {}
        Err(error) => return print_usage_error(error),
    }
    let cli = match cli::Cli::parse_line() {
        Ok(cli) => cli,
        Err(error) => return print_usage_error(error),
    };
    // Two workers: output that waits for its reader must not hold up the connection.
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build();
    let ended = match runtime {
        Ok(runtime) => {
            let ended = runtime.block_on(cli.run());
            // A read of stdin that never ends must not keep the program.
            runtime.shutdown_background();
            ended
        }
        Err(error) => Err(error.into()),
    };
    ExitCode::from(match ended {
        Ok(code) => code,
        Err(error) => {
            let code = cli::failure_code(&cli::typed_command(), FAILURE_CODE);
            error_report::report_error(&error, code)
        }
    })
}

/// Prints help to stdout with code 0; a usage error to stderr, with code 125 for a command that passes on a program's
/// code and 2 for the others.
fn print_usage_error(error: clap::Error) -> ExitCode {
    if !error.use_stderr() {
        // Nothing can be done if that fails.
        drop(error.print());
        return ExitCode::SUCCESS;
    }
    let command = cli::typed_command();
    let error = foreign_words::explain(error, &command);
    if cli::asks_for_json(std::env::args_os()) {
        error_report::report_usage_error(&error.to_string());
    } else {
        drop(error.print());
    }
    ExitCode::from(cli::failure_code(&command, USAGE_CODE))
}
