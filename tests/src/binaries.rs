//! Paths of the binaries under test.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};

/// Returns the path of `skilld` or `skillctl`: in the directory SKILLD_BIN_DIR, or in that of the caller's profile.
///
/// # Errors
/// When it was not built.
pub fn binary(name: &str) -> Result<PathBuf> {
    existing(match std::env::var_os("SKILLD_BIN_DIR") {
        Some(dir) => PathBuf::from(dir).join(name),
        None => profile_dir()?.join(name),
    })
}

/// Returns the path of an example of the client, which `cargo test` builds beside the tests.
///
/// # Errors
/// When it was not built.
pub fn example(name: &str) -> Result<PathBuf> {
    existing(profile_dir()?.join("examples").join(name))
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

/// Returns the path of the static guest: SKILLD_GUEST, or that of the caller's profile. A release has a profile of its
/// own for it.
///
/// # Errors
/// When it was not built.
pub fn guest() -> Result<PathBuf> {
    existing(match std::env::var_os("SKILLD_GUEST") {
        Some(path) => PathBuf::from(path),
        None => {
            let triple = format!("{}-unknown-linux-gnu", std::env::consts::ARCH);
            let caller_dir = profile_dir()?;
            let caller = caller_dir.file_name().context("a profile")?;
            let profile = if caller == "release" {
                "guest".as_ref()
            } else {
                caller
            };
            let directory = target_dir()?.join(triple).join(profile);
            directory.join("skilld-guest")
        }
    })
}

/// Returns the root directory of the repository.
#[must_use]
pub fn repository() -> &'static Path {
    let tests = Path::new(env!("CARGO_MANIFEST_DIR"));
    tests.parent().unwrap_or(tests)
}

/// Returns the directory `target/`.
///
/// # Errors
/// When the caller was not built by cargo.
pub fn target_dir() -> Result<PathBuf> {
    let profile = profile_dir()?;
    Ok(profile.parent().unwrap_or(&profile).to_owned())
}

/// Returns the directory of the caller's profile, such as `target/debug/`, found from the caller's own binary in it or
/// in its `deps/`.
fn profile_dir() -> Result<PathBuf> {
    let exe = std::env::current_exe()?;
    let is_profile = |dir: &&Path| {
        let parent = dir.parent();
        parent.is_some_and(|parent| parent.join("CACHEDIR.TAG").exists())
    };
    let dir = exe
        .ancestors()
        .find(is_profile)
        .context("the program does not run from cargo's target directory")?;
    Ok(dir.to_owned())
}

fn existing(path: PathBuf) -> Result<PathBuf> {
    ensure!(
        path.exists(),
        "{} is missing: run `make programs` for tests, `make build guest` for a release",
        path.display()
    );
    Ok(path)
}
