//! The Python environment with the foreign clients: made once below `target/`, kept for later runs.

use std::fs::{self, File};
use std::path::PathBuf;

use anyhow::{Context, Result, anyhow};
use nix::fcntl::{Flock, FlockArg};
use skilld_tests::binaries;
use tokio::process::Command;
use tokio::sync::OnceCell;

use crate::foreign::output;

const REQUIREMENTS: &str = include_str!("requirements.txt");

static VENV: OnceCell<PathBuf> = OnceCell::const_new();

/// Returns the path of a program of the environment, which is created if it does not exist.
pub(crate) async fn program(name: &str) -> Result<PathBuf> {
    let venv = VENV.get_or_try_init(make).await?;
    Ok(venv.join("bin").join(name))
}

async fn make() -> Result<PathBuf> {
    let venv = binaries::target_dir()?.join("foreign-venv");
    // Another run of the tests may be making it.
    let lock = File::create(venv.with_extension("lock"))?;
    let lock = Flock::lock(lock, FlockArg::LockExclusive).map_err(|(_, errno)| anyhow!(errno))?;
    let stamp = venv.join("requirements.txt");
    if fs::read_to_string(&stamp).is_ok_and(|made| made == REQUIREMENTS) {
        return Ok(venv);
    }
    output(Command::new("python3").args(["-m", "venv", "--clear"]).arg(&venv))
        .await
        .context(
            "python3 makes no virtual environment, which the test of foreign clients needs; install it (Debian, \
             Ubuntu: sudo apt-get install python3-venv)",
        )?;
    let requirements = venv.join("wanted.txt");
    fs::write(&requirements, REQUIREMENTS)?;
    let pip = [
        "-m",
        "pip",
        "install",
        "--quiet",
        "--disable-pip-version-check",
        "-r",
    ];
    output(
        Command::new(venv.join("bin/python"))
            .args(pip)
            .arg(&requirements),
    )
    .await
    .context("pip cannot install the foreign clients; is a Python package index reachable?")?;
    fs::rename(&requirements, &stamp)?;
    drop(lock);
    Ok(venv)
}
