//! `skillctl`: skilld from a shell. This file starts and ends the program; `cli` knows the commands, each group
//! of commands has a file.

mod artifact;
mod attach_input;
mod audit;
mod cli;
mod collect;
mod command_args;
mod command_group;
mod complete;
mod connection_args;
mod context;
mod context_file;
mod copy;
mod daemon_message;
mod detach_keys;
mod download;
mod error_report;
mod event_follower;
mod exec;
mod exec_output;
mod exec_result;
mod execs;
mod files;
mod foreign_words;
mod health;
mod identity;
mod image;
mod input_arg;
mod interrupt;
mod man_pages;
mod mcp;
mod output;
mod paged_lists;
mod partial_file;
mod proto_json;
mod remove;
mod room_report;
mod run;
mod server;
mod signal_names;
mod skill;
mod skip_notes;
mod stage;
mod stdin;
mod tenant;
mod terminal;
mod terminal_text;
mod token;
mod tool;
mod transcript;
mod transfer_bar;
mod value_formats;
mod version;
mod workspace;
mod workspace_limit_args;

use std::process::ExitCode;

use clap::CommandFactory;

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
