//! `make bench`: measures skilld beside what it replaces, in one run, and prints one table. docs/benchmarks.md describes
//! each row and how it is measured; `--record` writes an entry to tests/bench/results/.
//!
//! Modules in reading order: `report` (figures, budgets, the table), `environment` (the machine), `reference` (Docker and
//! local processes), `inside_reference` (posix_spawn in the same container), `daemon_calls` (the same through skilld),
//! `private_docker` (a Docker with overlay2), then one module per section of the table.

mod access;
mod claim;
mod daemon_calls;
mod environment;
mod environments;
mod exec;
mod files;
mod fleet;
mod inside_reference;
mod live;
mod many;
mod private_docker;
mod python;
mod reference;
mod report;
mod skills;
mod stage;
mod stdout;
mod tools;

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context, Result, bail, ensure};
use skilld_bench::results;
use skilld_tests::docker;
use tokio::signal::unix::{SignalKind, signal};

use environment::Environment;
use private_docker::PrivateDocker;
use reference::DockerReference;
use report::TableRow;

const USAGE: &str = "usage: bench [--quick] [--record] [--only NAME]... [--host-driver]
  --quick        fewer repetitions: about a minute, for a first look
  --only NAME    only this section: exec, rate, live, stdout, many, kill, claim, skills, stage,
                 environments, tools, python, big, small, access, idle, fleet, flat; may be repeated
  --record       write an entry to tests/bench/results/; a complete run also replaces the latest table
                 of docs/benchmarks.md
  --host-driver  measure on the host's storage driver only, also if it is not overlay2";

/// Every section, in the order of the table.
const SECTIONS: [&str; 18] = [
    "exec",
    "rate",
    "live",
    "stdout",
    "many",
    "kill",
    "claim",
    "skills",
    "stage",
    "environments",
    "tools",
    "python",
    "big",
    "small",
    "access",
    "idle",
    "fleet",
    "flat",
];

/// Storage driver on which budgets are read, since it is the one that users have.
const BUDGET_DRIVER: &str = "overlay2";

/// Options of one run.
#[derive(Debug, Default)]
pub(crate) struct BenchOptions {
    quick: bool,
    record: bool,
    host_driver: bool,
    only: Vec<String>,
    /// Set in the second process, which measures on a private Docker: file that takes its part of the entry.
    entry: Option<PathBuf>,
}

impl BenchOptions {
    fn from_args() -> Result<Self> {
        let mut options = Self::default();
        let mut args = std::env::args().skip(1);
        while let Some(arg) = args.next() {
            match arg.as_str() {
                "--quick" => options.quick = true,
                "--record" => options.record = true,
                "--host-driver" => options.host_driver = true,
                "--entry" => options.entry = Some(args.next().context(USAGE)?.into()),
                "--only" => {
                    let name = args.next().context(USAGE)?;
                    if !SECTIONS.contains(&name.as_str()) {
                        bail!("no section {name:?}\n{USAGE}");
                    }
                    options.only.push(name);
                }
                _ => bail!("{USAGE}"),
            }
        }
        Ok(options)
    }

    /// Returns the number of repetitions: `full`, or `quick` with `--quick`.
    pub(crate) fn times(&self, full: usize, quick: usize) -> usize {
        if self.quick { quick } else { full }
    }

    fn sections(&self) -> impl Iterator<Item = &'static str> {
        SECTIONS
            .into_iter()
            .filter(|name| self.only.is_empty() || self.only.iter().any(|only| only == name))
    }

    fn is_complete(&self) -> bool {
        !self.quick && self.only.is_empty()
    }

    /// Returns the arguments that select what is measured, as a user types them.
    fn selection(&self) -> Vec<&str> {
        let quick = self.quick.then_some("--quick");
        let only = self.only.iter().flat_map(|name| ["--only", name.as_str()]);
        quick.into_iter().chain(only).collect()
    }
}

#[tokio::main]
async fn main() -> ExitCode {
    let outcome = match BenchOptions::from_args() {
        Ok(options) => run(&options).await,
        Err(error) => Err(error),
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            progress(&format!("{error:#}"));
            ExitCode::FAILURE
        }
    }
}

async fn run(bench: &BenchOptions) -> Result<()> {
    let environment = Environment::probe().await?;
    progress(&environment.text());
    let is_host_only = bench.host_driver || environment.storage_driver == BUDGET_DRIVER;
    let second = match bench.entry.is_none() && !is_host_only {
        true => start_private_docker(bench).await,
        false => None,
    };
    // Without another Docker the budgets are read on this one.
    let reads_budgets = second.is_none();
    let measured = tokio::select! {
        measured = measure_both(bench, &environment, second.as_ref()) => measured,
        signalled = termination_signal() => signalled.and(Err(anyhow::anyhow!("interrupted"))),
    };
    if let Some(docker) = second {
        docker.stop().await?;
    }
    let (rows, private_entry) = measured?;
    let mut out = std::io::stdout().lock();
    let table = report::table(&rows, reads_budgets);
    writeln!(out, "{}\n{table}", environment.text())?;
    let part = Entry::new(bench, &environment, &rows, reads_budgets);
    if let Some(path) = &bench.entry {
        return part.save(path);
    }
    if let Some(private) = &private_entry {
        write!(out, "{}", private.full)?;
    }
    if bench.record {
        let path = record(bench, &environment, &part, private_entry.as_ref())?;
        writeln!(out, "wrote {}", path.display())?;
    }
    Ok(())
}

/// Starts a Docker with overlay2; `None`, with a line that says why, where there can be none.
async fn start_private_docker(bench: &BenchOptions) -> Option<PrivateDocker> {
    let mut images = vec![reference::IMAGE];
    // Loading the larger image takes a minute, which a quick run leaves out together with the rows that need it.
    let is_needed = !bench.quick && bench.sections().any(|section| section == "environments");
    if is_needed
        && docker::has_image(docker::OFFICE_IMAGE)
            .await
            .unwrap_or(false)
    {
        images.push(docker::OFFICE_IMAGE);
    }
    match PrivateDocker::start(&images).await {
        Ok(docker) => Some(docker),
        Err(error) => {
            progress(&format!("no second run on {BUDGET_DRIVER}: {error:#}"));
            None
        }
    }
}

/// Ends when Ctrl-C is pressed, or on the signal that `kill` and `timeout` send.
async fn termination_signal() -> Result<()> {
    let mut term = signal(SignalKind::terminate())?;
    tokio::select! {
        _ = term.recv() => Ok(()),
        pressed = tokio::signal::ctrl_c() => Ok(pressed?),
    }
}

/// Measures on the Docker of this process, and then on the private one, if there is one.
async fn measure_both(
    bench: &BenchOptions,
    environment: &Environment,
    second: Option<&PrivateDocker>,
) -> Result<(Vec<TableRow>, Option<Entry>)> {
    let reference = DockerReference::new()?;
    let measured = tokio::select! {
        measured = measure_sections(bench, &reference, second.is_none()) => measured,
        signalled = termination_signal() => signalled.and(Err(anyhow::anyhow!("interrupted"))),
    };
    // Also after a failure: no container of this run stays.
    let removed = reference.remove_all().await;
    let rows = measured?;
    removed.context("remove the containers of the reference")?;
    let Some(docker) = second else {
        return Ok((rows, None));
    };
    progress(&format!(
        "the same on {BUDGET_DRIVER} (this Docker has {}) …",
        environment.storage_driver
    ));
    let directory = tempfile::tempdir()?;
    let path = directory.path().join("entry.json");
    let status = tokio::process::Command::new(std::env::current_exe()?)
        .args(bench.selection())
        .arg("--entry")
        .arg(&path)
        .env("DOCKER_HOST", docker.host())
        .stdout(std::process::Stdio::null())
        .status()
        .await?;
    ensure!(status.success(), "the run on {BUDGET_DRIVER} failed");
    Ok((rows, Some(Entry::load(&path)?)))
}

async fn measure_sections(
    bench: &BenchOptions,
    reference: &DockerReference,
    reads_budgets: bool,
) -> Result<Vec<TableRow>> {
    let mut rows = Vec::new();
    // Ten idle minutes are spent once: on the storage driver whose table is published.
    let sections = bench
        .sections()
        .filter(|&section| reads_budgets || section != "idle");
    for section in sections {
        let started = std::time::Instant::now();
        progress(&format!("{section} …"));
        let outcome = match section {
            "exec" => exec::latency(bench, reference).await,
            "rate" => exec::rate(bench, reference).await,
            "live" => live::live(bench).await,
            "stdout" => stdout::throughput(bench, reference).await,
            "many" => many::many(bench).await,
            "kill" => many::kill(bench).await,
            "claim" => claim::claims(bench, reference).await,
            "tools" => tools::tools(bench, reference).await,
            "python" => python::python(bench).await,
            "skills" => skills::skills(bench).await,
            "stage" => stage::stage(bench, reference).await,
            "environments" => environments::environments(bench, reference).await,
            "big" => files::big(bench).await,
            "small" => files::small(bench, reference).await,
            "access" => access::access(bench).await,
            "idle" => access::idle(bench).await,
            "fleet" => fleet::fleet(bench).await,
            _ => fleet::flat(bench).await,
        };
        let measured = outcome.with_context(|| format!("section {section}"))?;
        for row in &measured {
            progress(&format!("  {}", row.line()));
        }
        progress(&format!("  took {:.0} s", started.elapsed().as_secs_f64()));
        rows.extend(measured);
    }
    Ok(rows)
}

/// Results of a run on one storage driver, as Markdown.
#[derive(Debug)]
struct Entry {
    /// Environment, table and raw figures.
    full: String,
    /// Environment and table.
    summary: String,
}

impl Entry {
    fn new(
        bench: &BenchOptions,
        environment: &Environment,
        rows: &[TableRow],
        reads_budgets: bool,
    ) -> Self {
        let mut title = format!("{} UTC", environment.time);
        for word in bench.selection().join(" ").split(" --") {
            if !word.is_empty() {
                title.push_str(&format!(" · `--{}`", word.trim_start_matches('-')));
            }
        }
        let title = format!("# {title} · {}", environment.storage_driver);
        let note = match reads_budgets {
            true => "",
            false => "Budgets are read on overlay2, below.\n\n",
        };
        let summary = format!(
            "{}\n{}",
            environment.markdown(),
            report::markdown(rows, reads_budgets)
        );
        let full = format!("{title}\n\n{note}{summary}\n{}", report::raw(rows));
        Self { full, summary }
    }

    fn save(&self, path: &Path) -> Result<()> {
        let json = serde_json::json!({ "full": self.full, "summary": self.summary });
        Ok(std::fs::write(path, json.to_string())?)
    }

    fn load(path: &Path) -> Result<Self> {
        let json: serde_json::Value = serde_json::from_slice(&std::fs::read(path)?)?;
        let text = |key: &str| {
            let text = json.get(key).and_then(serde_json::Value::as_str);
            text.map(str::to_owned).context("an entry without its text")
        };
        Ok(Self {
            full: text("full")?,
            summary: text("summary")?,
        })
    }
}

/// Writes the entry; a complete run also becomes the latest table of the documents.
fn record(
    bench: &BenchOptions,
    environment: &Environment,
    part: &Entry,
    private: Option<&Entry>,
) -> Result<PathBuf> {
    let mut entry = part.full.clone();
    if let Some(private) = private {
        entry = format!("{entry}\n{}", private.full);
    }
    let path = results::write_entry(&environment.time, "", &entry)?;
    if bench.is_complete() {
        let summary = &private.unwrap_or(part).summary;
        results::replace_latest("latest", &path, &environment.time, summary)?;
    }
    Ok(path)
}

/// Prints one line of progress for the user who waits.
pub(crate) fn progress(text: &str) {
    // A closed standard error changes nothing about the run.
    let _ = writeln!(std::io::stderr(), "{text}");
}
