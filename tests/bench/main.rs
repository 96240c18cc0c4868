//! `make bench`: measures skilld beside what it replaces, in one run, and prints one table. What each row means and
//! how it is measured stands in docs/benchmarks.md, to which `--record` adds an entry.
//!
//! Modules in reading order: `report` (figures, budgets, the table), `environment` (what it ran on), `reference`
//! (Docker and local processes), `ours` (the same through skilld), then one module per section of the table.

mod claim;
mod environment;
mod exec;
mod files;
mod fleet;
mod live;
mod many;
mod ours;
mod reference;
mod report;
mod skills;
mod stage;
mod stdout;
mod tools;

use std::io::Write;
use std::path::Path;
use std::process::ExitCode;

use anyhow::{Context, Result, bail};
use skilld_tests::binaries;
use tokio::signal::unix::{SignalKind, signal};

use environment::Environment;
use reference::Reference;
use report::Row;

const USAGE: &str = "usage: bench [--quick] [--record] [--only NAME]...
  --quick      fewer repetitions: about a minute, for a first look
  --only NAME  only this section: exec, rate, live, stdout, many, kill, claim, skills, stage, tools,
               big, small, fleet, flat; may be repeated
  --record     add an entry to docs/benchmarks.md";

/// Every section, in the order of the table.
const SECTIONS: [&str; 14] = [
    "exec", "rate", "live", "stdout", "many", "kill", "claim", "skills", "stage", "tools", "big",
    "small", "fleet", "flat",
];

/// What was asked for.
#[derive(Debug, Default)]
pub(crate) struct Wish {
    quick: bool,
    record: bool,
    only: Vec<String>,
}

impl Wish {
    fn from_args() -> Result<Self> {
        let mut wish = Self::default();
        let mut args = std::env::args().skip(1);
        while let Some(arg) = args.next() {
            match arg.as_str() {
                "--quick" => wish.quick = true,
                "--record" => wish.record = true,
                "--only" => {
                    let name = args.next().context(USAGE)?;
                    if !SECTIONS.contains(&name.as_str()) {
                        bail!("no section {name:?}\n{USAGE}");
                    }
                    wish.only.push(name);
                }
                _ => bail!("{USAGE}"),
            }
        }
        Ok(wish)
    }

    /// `full` repetitions, or `quick` ones.
    pub(crate) fn times(&self, full: usize, quick: usize) -> usize {
        if self.quick { quick } else { full }
    }

    fn sections(&self) -> impl Iterator<Item = &'static str> {
        SECTIONS
            .into_iter()
            .filter(|name| self.only.is_empty() || self.only.iter().any(|only| only == name))
    }
}

#[tokio::main]
async fn main() -> ExitCode {
    let outcome = match Wish::from_args() {
        Ok(wish) => run(&wish).await,
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

async fn run(wish: &Wish) -> Result<()> {
    let environment = Environment::read().await?;
    progress(&environment.text());
    let reference = Reference::new()?;
    let measured = tokio::select! {
        measured = measure(wish, &reference) => measured,
        told = told_to_end() => told.and(Err(anyhow::anyhow!("interrupted"))),
    };
    // Also after a failure: nothing of ours stays.
    let removed = reference.remove_all().await;
    let rows = measured?;
    removed.context("remove the containers that we compared with")?;
    let mut out = std::io::stdout().lock();
    writeln!(out, "{}\n{}", environment.text(), report::table(&rows))?;
    if wish.record {
        let path = binaries::repository().join("docs/benchmarks.md");
        record(&path, wish, &environment, &rows)?;
        writeln!(out, "added an entry to {}", path.display())?;
    }
    Ok(())
}

/// Ctrl-C, or what `kill` and `timeout` send.
async fn told_to_end() -> Result<()> {
    let mut term = signal(SignalKind::terminate())?;
    tokio::select! {
        _ = term.recv() => Ok(()),
        pressed = tokio::signal::ctrl_c() => Ok(pressed?),
    }
}

async fn measure(wish: &Wish, reference: &Reference) -> Result<Vec<Row>> {
    let mut rows = Vec::new();
    for section in wish.sections() {
        let started = std::time::Instant::now();
        progress(&format!("{section} …"));
        let measured = match section {
            "exec" => exec::latency(wish, reference).await,
            "rate" => exec::rate(wish, reference).await,
            "live" => live::live(wish).await,
            "stdout" => stdout::throughput(wish).await,
            "many" => many::many(wish).await,
            "kill" => many::kill(wish).await,
            "claim" => claim::claims(wish, reference).await,
            "tools" => tools::tools(wish, reference).await,
            "skills" => skills::skills(wish).await,
            "stage" => stage::stage(wish, reference).await,
            "big" => files::big(wish).await,
            "small" => files::small(wish, reference).await,
            "fleet" => fleet::fleet(wish).await,
            _ => fleet::flat(wish).await,
        };
        let measured = measured.with_context(|| format!("section {section}"))?;
        for row in &measured {
            progress(&format!("  {}", row.line()));
        }
        progress(&format!("  took {:.0} s", started.elapsed().as_secs_f64()));
        rows.extend(measured);
    }
    Ok(rows)
}

/// Adds an entry at the end; older ones stay as they are.
fn record(path: &Path, wish: &Wish, environment: &Environment, rows: &[Row]) -> Result<()> {
    let mut file = std::fs::OpenOptions::new()
        .append(true)
        .open(path)
        .with_context(|| format!("open {}", path.display()))?;
    let mut asked = String::new();
    if wish.quick {
        asked.push_str(" · `--quick`");
    }
    for only in &wish.only {
        asked.push_str(&format!(" · `--only {only}`"));
    }
    let entry = format!(
        "\n## {}{asked}\n\n{}\n{}\n{}",
        environment.time,
        environment.markdown(),
        report::markdown(rows),
        report::raw(rows)
    );
    Ok(file.write_all(entry.as_bytes())?)
}

/// One line to whoever waits.
pub(crate) fn progress(text: &str) {
    // Nobody may be listening, which changes nothing.
    let _ = writeln!(std::io::stderr(), "{text}");
}
