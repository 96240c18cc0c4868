//! The program; all of it is in the library, so that what handles requests can be fuzzed.

use std::process::ExitCode;

fn main() -> ExitCode {
    skilld_guest::main()
}
