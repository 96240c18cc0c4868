//! Paths of the binaries under test.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};

/// Path of `skilld` or `skillctl`.
///
/// # Errors
/// When it was not built.
pub fn binary(name: &str) -> Result<PathBuf> {
    existing(match std::env::var_os("SKILLD_BIN_DIR") {
        Some(dir) => PathBuf::from(dir).join(name),
        None => target_dir()?.join("release").join(name),
    })
}

/// Path of an example of the client, which `cargo test` builds beside the tests.
///
/// # Errors
/// When it was not built.
pub fn example(name: &str) -> Result<PathBuf> {
    existing(target_dir()?.join("debug/examples").join(name))
}

/// Path of the daemon with fault points. It is not in `target/release`: `make test` builds it beside the tests.
///
/// # Errors
/// When it was not built.
pub fn skilld_faults() -> Result<PathBuf> {
    let path = target_dir()?.join("debug/skilld-faults");
    ensure!(
        path.exists(),
        "{} is missing: run `cargo build -p skilld --features fault-points`, or `make test`",
        path.display()
    );
    Ok(path)
}

/// Returns the daemon as a command without the SKILLD_ variables of the environment. The daemon would read every one of
/// them, and refuse those that only tests know.
///
/// # Errors
/// When it was not built.
pub fn skilld() -> Result<Command> {
    Ok(without_settings(binary("skilld")?))
}

/// Returns a program as a command without the SKILLD_ variables of the environment.
#[must_use]
pub fn without_settings(binary: PathBuf) -> Command {
    let mut command = Command::new(binary);
    for (name, _) in std::env::vars_os() {
        if name.as_encoded_bytes().starts_with(b"SKILLD_") {
            command.env_remove(name);
        }
    }
    command
}

/// Path of the static guest.
///
/// # Errors
/// When it was not built.
pub fn guest() -> Result<PathBuf> {
    existing(match std::env::var_os("SKILLD_GUEST") {
        Some(path) => PathBuf::from(path),
        None => {
            let triple = format!("{}-unknown-linux-gnu", std::env::consts::ARCH);
            target_dir()?.join(triple).join("guest/skilld-guest")
        }
    })
}

/// Root directory of the repository.
#[must_use]
pub fn repository() -> &'static Path {
    let tests = Path::new(env!("CARGO_MANIFEST_DIR"));
    tests.parent().unwrap_or(tests)
}

/// Directory `target/`, found from the test's own binary in `target/debug/deps/`.
///
/// # Errors
/// When the test was not built by cargo.
pub fn target_dir() -> Result<PathBuf> {
    let exe = std::env::current_exe()?;
    let dir = exe
        .ancestors()
        .find(|dir| dir.join("CACHEDIR.TAG").exists());
    Ok(dir
        .context("the test does not run from cargo's target directory")?
        .to_owned())
}

fn existing(path: PathBuf) -> Result<PathBuf> {
    ensure!(
        path.exists(),
        "{} is missing: run `make build guest`, or `make test`",
        path.display()
    );
    Ok(path)
}
