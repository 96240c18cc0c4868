//! Entry point of the guest program. All of its code is in the library, so that the fuzz targets can call it.

use std::process::ExitCode;

fn main() -> ExitCode {
    skilld_guest::main()
}
