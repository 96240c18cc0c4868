//! Binary `skilld`: parses flags, loads the configuration, runs the server, and returns the exit code.

use std::process::ExitCode;

use clap::Parser;
use skilld::config::Config;
use skilld::error::Chain;
use skilld::server::{self, cli::Cli};

/// Exit code for a wrong configuration or command line: `EX_USAGE` of sysexits.h.
const EXIT_USAGE: u8 = 64;

pub(crate) fn main() -> ExitCode {
    let cli = match Cli::try_parse() {
        Ok(cli) => cli,
        Err(error) => {
            let wrong = error.use_stderr();
            // A failure to print cannot be reported anywhere else.
            drop(error.print());
            return ExitCode::from(if wrong { EXIT_USAGE } else { 0 });
        }
    };
    if let Some(shell) = cli.completion {
        cli.print_completion(shell);
        return ExitCode::SUCCESS;
    }
    let loaded = match Config::load(&cli.flags()) {
        Ok(loaded) => loaded,
        Err(faults) => {
            print_errors(&faults.to_string());
            return ExitCode::from(EXIT_USAGE);
        }
    };
    if cli.check {
        cli.print_effective(&loaded);
        return ExitCode::SUCCESS;
    }
    let ended = if cli.adopt_copy {
        server::adopt_copy(&loaded.config).map(|done| {
            cli.print_done(&done);
            ExitCode::SUCCESS
        })
    } else {
        server::main(loaded.config)
    };
    match ended {
        Ok(code) => code,
        Err(error) => {
            print_errors(&Chain(&error).to_string());
            ExitCode::FAILURE
        }
    }
}

#[expect(
    clippy::print_stderr,
    reason = "the operator reads this before the log exists"
)]
fn print_errors(text: &str) {
    for line in text.lines() {
        eprintln!("error: {line}");
    }
}
