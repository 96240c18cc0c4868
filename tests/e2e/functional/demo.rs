//! The main job: a skill, staged read-only, runs its script on a user's file; its report is collected; nothing is left.
//!
//! Docker: the whole system does it, from the client or the installed `skillctl` to Python in a container and back.

use std::process::Stdio;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use serde_json::Value;
use skilld_client::TransferProgress;
use skilld_client::v1::{ExecSpec, ListFilesRequest};
use skilld_tests::exec::{argv, run, workspace};
use skilld_tests::files::{collect, globs, sha256};
use skilld_tests::{Daemon, binaries, wait};
use tokio::process::Command;

/// Deadline for the end of a workspace.
const SOON: Duration = Duration::from_secs(60);

const COMMAND: [&str; 9] = [
    "python",
    "scripts/csv_report.py",
    "--group-by",
    "region",
    "--group-by",
    "product",
    "--sum",
    "revenue",
    "inputs/sales.csv",
];

/// Checks a report of tests/data/sales.csv against the table itself.
fn check_report(report: &[u8]) -> Result<()> {
    let table = std::fs::read_to_string(binaries::repository().join("tests/data/sales.csv"))?;
    let rows = table.lines().count() - 1;
    let report: Value = serde_json::from_slice(report)?;
    assert_eq!(report["rows"], Value::from(rows));
    assert_eq!(report["bytes"], Value::from(table.len()));
    let columns = report["columns"].as_array().context("columns")?;
    let names: Vec<&str> = columns
        .iter()
        .filter_map(|column| column["name"].as_str())
        .collect();
    let header: Vec<&str> = table
        .lines()
        .next()
        .context("no header")?
        .split(',')
        .collect();
    assert_eq!(names, header);
    let groups = report["groups"].as_array().context("groups")?;
    assert_eq!(groups.len(), 2);
    for group in groups {
        let values = group["values"].as_array().context("values")?;
        let counted: i64 = values
            .iter()
            .filter_map(|value| value["rows"].as_i64())
            .sum();
        assert_eq!(counted, i64::try_from(rows)?, "{}", group["by"]);
    }
    Ok(())
}

#[tokio::test]
async fn a_skill_reports_on_a_users_file() -> Result<()> {
    let daemon = Daemon::start().await?;
    let client = &daemon.client;
    daemon.warm(1).await?;
    let containers = daemon.containers().await?;
    let made = workspace(client).await?;

    let staged = client.stage_skills(&made.name, &["csv-report"]).await?;
    assert_eq!(staged[0].path, "/workspace/skills/csv-report");
    let table = binaries::repository().join("tests/data/sales.csv");
    let sent = client
        .upload_path(
            &made.name,
            &table,
            "inputs/sales.csv",
            TransferProgress::none(),
        )
        .await?;
    assert_eq!(sent.files[0].path, "work/inputs/sales.csv");
    assert_eq!(sent.files[0].sha256, sha256(&std::fs::read(&table)?));

    let spec = ExecSpec {
        skill: "csv-report".to_owned(),
        ..argv(COMMAND)
    };
    let outcome = run(client, &made.name, spec).await?;
    assert_eq!(outcome.exit_code(), Some(0), "{}", outcome.error_text());
    let first = outcome.first_output.context("it says nothing")?;
    assert!(first < outcome.exited, "{outcome:?}");

    let collection = collect(client, &made.name, globs(["out/**"])).await?;
    assert_eq!(collection.paths(), ["out/report.json", "out/report.md"]);
    assert!(!collection.summary.limits_hit, "{:?}", collection.summary);
    check_report(collection.bytes("out/report.json")?)?;
    let text = std::str::from_utf8(collection.bytes("out/report.md")?)?;
    assert!(text.starts_with("# "), "{text}");
    assert_eq!(collection.files[0].file.mime_type, "application/json");
    assert!(collection.files.iter().all(|file| file.file.is_text));

    // The report was written through the skill's link `out`; the skill itself is as it was.
    let request = ListFilesRequest {
        parent: made.name.clone(),
        path: "skills/csv-report".to_owned(),
        recursive: true,
        ..ListFilesRequest::default()
    };
    let listed = client.list_files(request).await?;
    ensure!(
        !listed
            .files
            .iter()
            .any(|file| file.path.contains("report.json"))
    );

    client.delete_workspace(&made.name).await?;
    for container in daemon.containers().await? {
        ensure!(
            !containers.contains(&container),
            "{container} is still there"
        );
    }
    daemon.stop().await
}

/// `skillctl`, connected to the daemon.
fn skillctl(daemon: &Daemon) -> Result<Command> {
    let mut command = Command::new(binaries::binary("skillctl")?);
    command
        .env("SKILLD_ENDPOINT", daemon.endpoint())
        .stdin(Stdio::null())
        .kill_on_drop(true);
    Ok(command)
}

#[tokio::test]
async fn skillctl_run_does_the_whole_job() -> Result<()> {
    let daemon = Daemon::start().await?;
    daemon.warm(1).await?;
    let dir = tempfile::tempdir()?;
    let table = binaries::repository().join("tests/data/sales.csv");
    let output = skillctl(&daemon)?
        .args(["run", "csv-report", "--input"])
        .arg(&table)
        .args(["--to"])
        .arg(dir.path())
        .arg("--")
        .args(COMMAND)
        .output()
        .await?;
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(0), "{said}");
    check_report(&std::fs::read(dir.path().join("out/report.json"))?)?;
    ensure!(std::fs::metadata(dir.path().join("out/report.md"))?.len() > 100);

    // stdout is the program's, byte for byte, and so is its exit code.
    let script = "printf 'a\\0b\\377'; printf 'to stderr' >&2; exit 42";
    let output = skillctl(&daemon)?
        .args(["run", "text-stats", "--", "bash", "-c", script])
        .output()
        .await?;
    assert_eq!(output.status.code(), Some(42));
    assert_eq!(output.stdout, b"a\0b\xff");
    assert!(output.stderr.starts_with(b"to stderr"), "{output:?}");

    // The only container left is the next warm one. The daemon deletes the workspace of a run when the run has ended.
    wait::until("no workspace is left", SOON, async || {
        let list = skillctl(&daemon)?
            .args(["-o", "json", "workspace", "list"])
            .output()
            .await?;
        let list: Value = serde_json::from_slice(&list.stdout)?;
        Ok((list == serde_json::json!({"workspaces": []})).then_some(()))
    })
    .await?;
    daemon.stop().await
}
