//! Section `python`: `Sandbox.run` of the Python package, and 64 threads of it, beside the same from Rust.

use std::path::PathBuf;
use std::time::Instant;

use anyhow::{Context, Result, ensure};
use futures::future::try_join_all;
use serde::Deserialize;
use skilld_client::Client;
use skilld_tests::exec::{shell, workspace};
use skilld_tests::{Daemon, binaries};
use tokio::process::Command;

use crate::report::{Budget, FigureSeries, TableRow};
use crate::{BenchOptions, daemon_calls};

/// Number of threads, and of tasks beside them.
const THREADS: usize = 64;
/// Number of workspaces that they share.
const WORKSPACES: usize = 4;
/// Number of parts that both sides measure in turn.
const PARTS: usize = 5;
/// Maximum time that Python adds to the median: 0.5 ms.
const OVER_RUST: Budget = Budget::Over(500_000);

/// Figures that the script prints.
#[derive(Debug, Deserialize)]
struct PythonFigures {
    /// Times of runs, in nanoseconds.
    run_ns: Vec<u64>,
    /// Time in which the threads together made as many runs, in nanoseconds.
    threads_ns: u64,
}

/// Measures `true` by one caller and by 64.
pub(crate) async fn python(bench: &BenchOptions) -> Result<Vec<TableRow>> {
    let interpreter = install_wheel().await?;
    let options = daemon_calls::daemon_options().set("engine.uid_count", "8192");
    let daemon = Daemon::start_with(options).await?;
    let client = &daemon.client;
    let mut names = Vec::new();
    for _ in 0..WORKSPACES {
        names.push(workspace(client).await?.name);
    }
    daemon_calls::wait_until_warm(client, "default").await?;
    let runs = bench.times(2_000, 640) / PARTS;
    let [mut python, mut rust] = std::array::from_fn(|_| FigureSeries::times());
    let [mut python_rate, mut rust_rate] = std::array::from_fn(|_| FigureSeries::rates());
    let script = binaries::repository().join("client/python/benches/run.py");
    for _ in 0..PARTS {
        let mut command = Command::new(&interpreter);
        command.arg(&script).arg(daemon.endpoint());
        command.arg(runs.to_string());
        let figures: PythonFigures = serde_json::from_str(&printed(&mut command).await?)?;
        for took in figures.run_ns {
            python.time(std::time::Duration::from_nanos(took))?;
        }
        let threads = std::time::Duration::from_nanos(figures.threads_ns);
        python_rate.rate(u64::try_from(runs)?, threads)?;
        let first = names.first().context("no workspace")?;
        for _ in 0..runs {
            let ran = daemon_calls::run_exec(client, first, shell("true")).await?;
            rust.time(ran.end)?;
        }
        let started = Instant::now();
        run_at_once(client, &names, runs).await?;
        rust_rate.rate(u64::try_from(runs)?, started.elapsed())?;
    }
    daemon.stop().await?;
    let one = TableRow::new("Sandbox.run of `true` in Python", &python, OVER_RUST);
    let all = TableRow::new("64 threads of it", &python_rate, Budget::Share(0.8));
    Ok(vec![
        one.against("RunExec from Rust", &rust),
        all.against("64 tasks of RunExec from Rust", &rust_rate),
    ])
}

/// Runs a program, which has to succeed, and returns what it printed.
async fn printed(program: &mut Command) -> Result<String> {
    let ended = program.output().await?;
    let said = String::from_utf8_lossy(&ended.stderr);
    ensure!(ended.status.success(), "{program:?} failed: {said}");
    Ok(String::from_utf8(ended.stdout)?)
}

/// Makes `runs` calls, of which [`THREADS`] are open at once.
async fn run_at_once(client: &Client, names: &[String], runs: usize) -> Result<()> {
    let tasks = (0..THREADS).map(|task| async move {
        for run in (task..runs).step_by(THREADS) {
            let name = names.get(run % names.len()).context("no workspace")?;
            daemon_calls::run_exec(client, name, shell("true")).await?;
        }
        anyhow::Ok(())
    });
    try_join_all(tasks).await.map(drop)
}

/// Builds the wheel with the profile of releases and installs it. Returns the interpreter that has it.
async fn install_wheel() -> Result<PathBuf> {
    let target = binaries::target_dir()?;
    let mut build = Command::new(binaries::repository().join("client/python/wheel.sh"));
    build.arg("release").env("CARGO_TARGET_DIR", &target);
    let wheel = printed(&mut build).await?;
    let venv = target.join("bench-venv");
    let made = Command::new("python3")
        .args(["-m", "venv", "--clear"])
        .arg(&venv)
        .status();
    ensure!(made.await?.success(), "python3 cannot make an environment");
    let install = Command::new(venv.join("bin/pip"))
        .args(["install", "--quiet", "--disable-pip-version-check"])
        .arg(wheel.trim_end())
        .status();
    ensure!(install.await?.success(), "pip cannot install the wheel");
    Ok(venv.join("bin/python"))
}
