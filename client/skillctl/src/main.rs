//! `skillctl`: skilld from a shell. This file starts and ends the program; `cli` knows the commands, each group
//! of commands has a file.

mod artifact;
mod attach;
mod attach_input;
mod audit;
mod cli;
mod collect;
mod command_args;
mod command_group;
mod complete;
mod connection_args;
mod context;
mod copy;
mod detach_keys;
mod download;
mod error_report;
mod event_follower;
mod exec;
mod exec_result;
mod execs;
mod files;
mod health;
mod identity;
mod image;
mod input_arg;
mod interrupt;
mod logs;
mod man_pages;
mod mcp;
mod output;
mod paged_lists;
mod partial_file;
mod poll;
mod proto_json;
mod remove;
mod run;
mod server;
mod signal_names;
mod skill;
mod stage;
mod stdin;
mod tenant;
mod terminal;
mod token;
mod tool;
mod transcript;
mod transfer_bar;
mod value_formats;
mod version;
mod wait;
mod workspace;
mod workspace_limit_args;

use std::process::ExitCode;

use clap::CommandFactory;

fn main() -> ExitCode {
    match complete::answer_shell(cli::Cli::command) {
        Ok(true) => return ExitCode::SUCCESS,
        Ok(false) => {}
        Err(error) => return print_usage_error(&error),
    }
    let cli = match cli::Cli::parse_line() {
        Ok(cli) => cli,
        Err(error) => return print_usage_error(&error),
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
        Err(error) => error_report::report_error(&error),
    })
}

/// Prints help to stdout with code 0, a usage error to stderr with code 2.
fn print_usage_error(error: &clap::Error) -> ExitCode {
    if error.use_stderr() && cli::asks_for_json(std::env::args_os()) {
        error_report::report_usage_error(&error.to_string());
    } else {
        // Nothing can be done if that fails.
        drop(error.print());
    }
    ExitCode::from(u8::try_from(error.exit_code()).unwrap_or(2))
}
