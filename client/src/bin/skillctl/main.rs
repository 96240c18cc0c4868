//! `skillctl`: skilld from a shell. This file starts and ends the program; `cli` knows the commands, each group
//! of commands has a file.

mod artifact;
mod attach;
mod cli;
mod collect;
mod complete;
mod context;
mod copy;
mod exec;
mod execs;
mod fail;
mod files;
mod follow;
mod input;
mod interrupt;
mod json;
mod keys;
mod limits;
mod logs;
mod mcp;
mod output;
mod partial;
mod poll;
mod progress;
mod remove;
mod result;
mod run;
mod script;
mod server;
mod session;
mod signals;
mod skill;
mod stage;
mod stdin;
mod terminal;
mod tool;
mod transcript;
mod values;
mod version;
mod wait;
mod workspace;

use std::process::ExitCode;

use clap::Parser;

fn main() -> ExitCode {
    match complete::run() {
        Ok(true) => return ExitCode::SUCCESS,
        Ok(false) => {}
        Err(error) => return usage(&error),
    }
    let cli = match cli::Cli::try_parse() {
        Ok(cli) => cli,
        Err(error) => return usage(&error),
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
        Err(error) => fail::report(&error),
    })
}

/// Prints help to stdout with code 0, a usage error to stderr with code 2.
fn usage(error: &clap::Error) -> ExitCode {
    if error.use_stderr() && cli::asks_for_json(std::env::args_os()) {
        fail::report_usage(&error.to_string());
    } else {
        // Nothing can be done if that fails.
        drop(error.print());
    }
    ExitCode::from(u8::try_from(error.exit_code()).unwrap_or(2))
}
