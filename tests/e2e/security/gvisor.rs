//! A pool on gVisor, where Docker has it registered (docs/gvisor.md says how). `make release-check` measures its execs.

use std::io::Write as _;

use anyhow::Result;
use skilld_tests::{Daemon, Options, docker, exec};

use crate::security::sh;

async fn is_registered() -> Result<bool> {
    let info = docker::connect()?.info().await?;
    if docker::engine_name().await? == "podman" {
        // It lists runtimes that are not installed, and uses its default only.
        return Ok(info.default_runtime.as_deref() == Some("runsc"));
    }
    Ok(info.runtimes.unwrap_or_default().contains_key("runsc"))
}

/// Prints that the test is skipped, past the capture of its output: libtest counts it as passed.
fn note_skipped(instead: &str) {
    let thread = std::thread::current();
    let test = thread.name().unwrap_or("a test");
    let line = format!("{test}: skipped: Docker has no runtime runsc; {instead}");
    // A closed stderr has no reader.
    let _unread = writeln!(std::io::stderr(), "{line}");
}

#[tokio::test]
async fn a_pool_runs_on_gvisor_where_it_is_registered() -> Result<()> {
    let options = Options::default().set("pools.default.oci_runtime", "runsc");
    if !is_registered().await? {
        note_skipped("only the refusal of the pool is tested");
        let refused = Daemon::start_with(options).await;
        let message = format!("{:#}", refused.expect_err("started without its runtime"));
        for part in ["runsc", "default", "registered", "exit status: 1"] {
            assert!(message.contains(part), "{part}: {message}");
        }
        return Ok(());
    }
    let daemon = Daemon::start_with(options).await?;
    let client = &daemon.client;
    let workspace = exec::workspace(client).await?.name;
    let kernel = sh(client, &workspace, "dmesg | head -3 || cat /proc/version").await?;
    println!("{kernel}");
    client.stage_skills(&workspace, &["csv-report"]).await?;
    let csv = "region,revenue\\nnorth,3\\nsouth,4\\nnorth,5\\n";
    sh(
        client,
        &workspace,
        &format!("printf '{csv}' > inputs/sales.csv"),
    )
    .await?;
    let mut spec = exec::argv([
        "python",
        "scripts/csv_report.py",
        "--group-by",
        "region",
        "--sum",
        "revenue",
        "inputs/sales.csv",
    ]);
    spec.skill = "csv-report".to_owned();
    let outcome = exec::run(client, &workspace, spec).await?;
    assert_eq!(outcome.exit_code(), Some(0), "{}", outcome.error_text());
    let report = sh(client, &workspace, "cat out/*.json").await?;
    assert!(report.contains("north") && report.contains('8'), "{report}");
    client.delete_workspace(&workspace).await?;
    daemon.stop().await
}
