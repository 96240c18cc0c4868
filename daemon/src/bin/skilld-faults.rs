//! Daemon with the fault points of `fault.rs`, for crash tests. Not shipped.

use std::process::ExitCode;

#[path = "../main.rs"]
mod skilld_main;

fn main() -> ExitCode {
    skilld_main::main()
}
