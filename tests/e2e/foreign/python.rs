//! Python with grpcio and reflection: `client.py` beside this file, from create to delete.

use std::collections::BTreeMap;

use anyhow::{Context, Result};
use serde_json::{Value, json};
use sha2::{Digest, Sha256};
use skilld_tests::{Daemon, binaries};
use tokio::process::Command;

use crate::foreign::{output, venv};

#[tokio::test]
async fn python_runs_a_skill_by_reflection() -> Result<()> {
    let python = venv::program("python").await?;
    let daemon = Daemon::start().await?;
    let table = binaries::repository().join("tests/data/sales.csv");
    let client = binaries::repository().join("tests/e2e/foreign/client.py");
    for version in ["v1", "v1alpha"] {
        let mut command = Command::new(&python);
        command
            .arg("-B")
            .arg(&client)
            .arg(daemon.state_dir().join("skilld.sock"))
            .arg(version)
            .arg(&table);
        let saw: Value = serde_json::from_str(&output(&mut command).await?)?;
        check(&saw, &std::fs::read(&table)?).with_context(|| format!("{version}: {saw:#}"))?;
    }
    daemon.stop().await
}

fn check(saw: &Value, table: &[u8]) -> Result<()> {
    let services = saw["services"].as_array().context("services")?;
    for service in [
        "WorkspaceService",
        "ExecService",
        "FileService",
        "SkillService",
    ] {
        let name = json!(format!("skilld.v1.{service}"));
        assert!(services.contains(&name), "{service} is not listed");
    }
    assert_eq!(saw["skill"][0], "skills/csv-report");
    let digest: String = Sha256::digest(table)
        .iter()
        .map(|byte| format!("{byte:02x}"))
        .collect();
    assert_eq!(
        saw["staged"],
        json!([["work/inputs/sales.csv", table.len(), digest]])
    );
    assert_eq!(saw["lines"], "first\nsecond\n");
    assert_eq!(saw["gone"], json!(["NOT_FOUND", true]));

    let files = saw["files"].as_object().context("files")?;
    let json = files
        .iter()
        .find(|(path, _)| path.ends_with("report.json"))
        .and_then(|(_, text)| text.as_str())
        .context("report.json")?;
    let report: Value = serde_json::from_str(json)?;
    let expected = rows_by_region(table)?;
    assert_eq!(report["rows"], json!(expected.values().sum::<u64>()));
    let groups = report["groups"][0]["values"].as_array().context("groups")?;
    let found: BTreeMap<String, u64> = groups
        .iter()
        .filter_map(|group| Some((group["value"].as_str()?.to_owned(), group["rows"].as_u64()?)))
        .collect();
    assert_eq!(found, expected);
    let markdown = files.iter().find(|(path, _)| path.ends_with("report.md"));
    assert!(
        markdown.is_some_and(|(_, text)| text.as_str().is_some_and(|text| text.contains("region")))
    );
    Ok(())
}

/// Sums the table without the skill: no quotes precede the third column.
fn rows_by_region(table: &[u8]) -> Result<BTreeMap<String, u64>> {
    let mut rows = BTreeMap::new();
    for line in std::str::from_utf8(table)?.lines().skip(1) {
        let region = line.split(',').nth(2).context("region")?;
        *rows.entry(region.to_owned()).or_insert(0) += 1;
    }
    Ok(rows)
}
