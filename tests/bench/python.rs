//! Section `python`: `Sandbox.run` of the Python package, and 64 threads of it, beside the same from Rust.

use std::path::PathBuf;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use futures::future::try_join_all;
use serde::Deserialize;
use serde::de::DeserializeOwned;
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

/// Package whose container runtime does the same, and a dependency that it does not declare.
const TRPC_PACKAGES: [&str; 2] = ["trpc-agent-py==1.2.0", "greenlet==3.5.6"];
/// Number of runs of that runtime in each part.
const TRPC_RUNS: usize = 10;

/// Figures that the script of the package prints, in nanoseconds.
#[derive(Debug, Deserialize)]
struct PythonFigures {
    /// Times of runs.
    run_ns: Vec<u64>,
    /// Time in which the threads together made as many runs.
    threads_ns: u64,
    #[serde(flatten)]
    report: ReportFigures,
}

/// Times of a command that writes a file, in nanoseconds.
#[derive(Debug, Deserialize)]
struct ReportFigures {
    write_ns: Vec<u64>,
    /// Times of the same with the file collected.
    collect_ns: Vec<u64>,
}

/// Measured times of the command that writes a file, for one package.
#[derive(Debug)]
struct ReportSeries {
    write: FigureSeries,
    collect: FigureSeries,
}

impl ReportSeries {
    fn new() -> Self {
        let [write, collect] = std::array::from_fn(|_| FigureSeries::times());
        Self { write, collect }
    }

    fn add(&mut self, figures: &ReportFigures) -> Result<()> {
        add_times(&mut self.write, &figures.write_ns)?;
        add_times(&mut self.collect, &figures.collect_ns)
    }
}

fn add_times(series: &mut FigureSeries, nanoseconds: &[u64]) -> Result<()> {
    let mut times = nanoseconds.iter().copied().map(Duration::from_nanos);
    times.try_for_each(|took| series.time(took))
}

/// Measures `true` by one caller and by 64, and a command that writes a file beside the container runtime of another
/// package.
pub(crate) async fn python(bench: &BenchOptions) -> Result<Vec<TableRow>> {
    let interpreter = install_wheel().await?;
    let trpc = make_environment("bench-trpc-venv", &TRPC_PACKAGES).await?;
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
    let [mut ours, mut theirs] = std::array::from_fn(|_| ReportSeries::new());
    let script = binaries::repository().join("client/python/benches/run.py");
    let trpc_script = binaries::repository().join("tests/bench/trpc_container.py");
    for _ in 0..PARTS {
        let mut command = Command::new(&interpreter);
        command.arg(&script).arg(daemon.endpoint());
        let figures: PythonFigures = read_figures(command.arg(runs.to_string())).await?;
        add_times(&mut python, &figures.run_ns)?;
        ours.add(&figures.report)?;
        let threads = Duration::from_nanos(figures.threads_ns);
        python_rate.rate(u64::try_from(runs)?, threads)?;
        let first = names.first().context("no workspace")?;
        for _ in 0..runs {
            let ran = daemon_calls::run_exec(client, first, shell("true")).await?;
            rust.time(ran.end)?;
        }
        let started = Instant::now();
        run_at_once(client, &names, runs).await?;
        rust_rate.rate(u64::try_from(runs)?, started.elapsed())?;
        let mut command = Command::new(&trpc);
        command.arg(&trpc_script).arg("skilld/base:latest");
        theirs.add(&read_figures(command.arg(TRPC_RUNS.to_string())).await?)?;
    }
    daemon.stop().await?;
    let one = TableRow::new("Sandbox.run of `true` in Python", &python, OVER_RUST);
    let all = TableRow::new("64 threads of it", &python_rate, Budget::Share(0.8));
    let write = TableRow::new("Sandbox.run, a file written", &ours.write, Budget::None);
    let collect = TableRow::new(
        "Sandbox.run, the file collected",
        &ours.collect,
        Budget::None,
    );
    Ok(vec![
        one.against("RunExec from Rust", &rust),
        all.against("64 tasks of RunExec from Rust", &rust_rate),
        write.against("trpc-agent-py's container runtime", &theirs.write),
        collect.against("trpc-agent-py's container runtime", &theirs.collect),
    ])
}

/// Runs a script and returns the figures in the last line that it prints.
async fn read_figures<F: DeserializeOwned>(script: &mut Command) -> Result<F> {
    let text = run_program(script).await?;
    let mut lines = text.lines();
    let line = lines.rfind(|line| line.starts_with('{'));
    Ok(serde_json::from_str(line.context("no figures")?)?)
}

/// Runs a program, which has to succeed, and returns what it printed.
async fn run_program(program: &mut Command) -> Result<String> {
    let ended = program.output().await?;
    let stderr = String::from_utf8_lossy(&ended.stderr);
    ensure!(ended.status.success(), "{program:?} failed: {stderr}");
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
    let wheel = run_program(&mut build).await?;
    make_environment("bench-venv", &[wheel.trim_end()]).await
}

/// Makes a virtual environment with these packages in the target directory. Returns its interpreter.
async fn make_environment(name: &str, packages: &[&str]) -> Result<PathBuf> {
    let venv = binaries::target_dir()?.join(name);
    let mut make = Command::new("python3");
    run_program(make.args(["-m", "venv", "--clear"]).arg(&venv)).await?;
    let mut install = Command::new(venv.join("bin/pip"));
    install.args(["install", "--quiet", "--disable-pip-version-check"]);
    run_program(install.args(packages)).await?;
    Ok(venv.join("bin/python"))
}
