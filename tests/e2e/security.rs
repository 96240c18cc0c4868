//! Barriers against hostile code in a workspace. One test per promise of docs/security.md that needs a container.

mod container;
mod disclosure;
mod files;
mod guest;
mod gvisor;
mod limits;
mod neighbours;
mod workspace;

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};
use skilld_client::Client;
use skilld_proto::v1::ExecSpec;
use skilld_tests::exec::{self, Outcome};

/// Time limit of a wait for an event, more than ten times the usual wait on a busy machine.
const DEADLINE: Duration = Duration::from_secs(120);

/// Returns a spec that runs a Python text with bytes on stdin.
fn python(script: &str, args: &[&str], input: &str) -> ExecSpec {
    let argv = ["python3", "-c", script]
        .into_iter()
        .chain(args.iter().copied());
    ExecSpec {
        argv: argv.map(str::to_owned).collect(),
        stdin_data: input.to_owned().into(),
        ..ExecSpec::default()
    }
}

/// Runs shell text that must succeed, and returns what it printed.
async fn sh(client: &Client, workspace: &str, text: &str) -> Result<String> {
    let outcome = exec::run(client, workspace, exec::shell(text)).await?;
    ensure!(
        outcome.exit_code() == Some(0),
        "{text}: {:?}: {}",
        outcome.result,
        outcome.error_text()
    );
    Ok(outcome.text())
}

/// Checks that every check of a probe passed, and returns them.
fn all_ok(name: &str, outcome: &Outcome) -> Result<Value> {
    let report: Value = serde_json::from_slice(&outcome.stdout)
        .with_context(|| format!("{name} said {}", outcome.error_text()))?;
    let checks = report["checks"].as_object().context("checks")?;
    let failed: Vec<String> = checks
        .iter()
        .filter(|(_, check)| check["ok"] != json!(true))
        .map(|(name, check)| format!("{name}: got {}, want {}", check["got"], check["want"]))
        .collect();
    ensure!(
        failed.is_empty(),
        "{} of {} checks failed:\n{}",
        failed.len(),
        checks.len(),
        failed.join("\n")
    );
    Ok(report)
}
