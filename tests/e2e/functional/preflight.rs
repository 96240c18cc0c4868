//! Preflight against the real image: programs and modules that a skill needs, present and missing ones.
//!
//! Docker: the needs of skills are compared with the programs and packages of a real image.

use anyhow::{Context, Result};
use skilld_client::Client;
use skilld_client::v1::{
    ErrorReason, NeedKind, PreflightFinding, PreflightSkillRequest, PreflightSkillResponse,
    ProblemSeverity,
};
use skilld_tests::{Daemon, Options, binaries, expect_refusal};
use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Output;
use tempfile::TempDir;
use tokio::process::Command;

/// Makes a root with a skill whose needs the image meets, and one whose needs it does not.
fn root() -> Result<TempDir> {
    let root = tempfile::tempdir()?;
    fs::set_permissions(root.path(), PermissionsExt::from_mode(0o755))?;
    let write = |path: &str, text: &str| {
        let path = root.path().join(path);
        fs::create_dir_all(path.parent().unwrap_or(Path::new("")))?;
        fs::write(path, text)
    };
    write("fits/SKILL.md", "---\nname: fits\ndescription: d\n---\n")?;
    write(
        "fits/scripts/a.py",
        "#!/usr/bin/env python3\nimport json, sys, sqlite3, yaml, helper\nfrom . import b\n",
    )?;
    write("fits/scripts/helper.py", "import collections.abc\n")?;
    write("fits/requirements.txt", "PyYAML>=5\n")?;
    write("fits/scripts/b.sh", "#!/bin/bash\njq .\n")?;
    write("fits/scripts/c.mjs", "#!/usr/bin/env node\n")?;
    write("lacks/SKILL.md", "---\nname: lacks\ndescription: d\n---\n")?;
    write("lacks/requirements.txt", "requests\nno-such-package\n")?;
    write("lacks/scripts/a.rb", "#!/usr/bin/env ruby\n")?;
    write("lacks/scripts/b.py", "import torch\nimport requests\n")?;
    write(
        "lacks/package.json",
        r#"{"dependencies": {"no-such": "1"}}"#,
    )?;
    Ok(root)
}

/// Compares the needs of a skill with the default pool's image. From then on the daemon knows what the image has.
pub(crate) async fn preflight(client: &Client, name: &str) -> Result<PreflightSkillResponse> {
    Ok(client.preflight_skill(request(name)).await?)
}

fn request(name: &str) -> PreflightSkillRequest {
    PreflightSkillRequest {
        name: name.to_owned(),
        ..Default::default()
    }
}

fn row(finding: &PreflightFinding) -> (NeedKind, &str, bool, &str) {
    assert!(!finding.message.is_empty());
    let error = finding.severity() == ProblemSeverity::Error;
    (finding.kind(), &finding.name, error, &finding.source)
}

#[tokio::test]
async fn software_missing_from_the_image_is_reported_before_any_run() -> Result<()> {
    let root = root()?;
    // No warm container: the first question makes one and takes nothing away.
    let options = Options::default().skills(root.path());
    let daemon = Daemon::start_with(options.set("pools.default.warm", "0")).await?;
    let client = &daemon.client;
    let fits = preflight(client, "fits").await?;
    assert_eq!((fits.findings.len(), fits.ready), (0, true), "{fits:?}");
    assert!(!fits.image.is_empty());
    let lacks = client.preflight_skill(request("lacks")).await?;
    assert!(!lacks.ready);
    let found: Vec<_> = lacks.findings.iter().map(row).collect();
    assert_eq!(
        found,
        [
            (NeedKind::Interpreter, "ruby", true, "scripts/a.rb:1"),
            (
                NeedKind::PythonPackage,
                "no-such-package",
                true,
                "requirements.txt:2"
            ),
            (NeedKind::NodePackage, "no-such", true, "package.json"),
            (NeedKind::PythonPackage, "torch", false, "scripts/b.py:1"),
        ]
    );
    let pool = PreflightSkillRequest {
        pool: "none".to_owned(),
        ..request("fits")
    };
    expect_refusal(
        client.preflight_skill(pool).await,
        ErrorReason::PoolNotFound,
    )?;
    let unknown = client.preflight_skill(request("nothing")).await;
    expect_refusal(unknown, ErrorReason::SkillNotFound)?;
    daemon.stop().await
}

async fn skillctl(daemon: &Daemon, args: &[&str]) -> Result<Output> {
    let mut command = Command::new(binaries::binary("skillctl")?);
    command.args(args).env("SKILLD_ENDPOINT", daemon.endpoint());
    Ok(command.output().await?)
}

#[tokio::test]
async fn skillctl_checks_reads_and_finds_skills() -> Result<()> {
    let root = root()?;
    let image = [b"\x89PNG\r\n\x1a\n\0\xff".as_slice(), &[7; 300_000]].concat();
    fs::create_dir(root.path().join("fits/assets"))?;
    fs::write(root.path().join("fits/assets/logo.png"), &image)?;
    fs::create_dir(root.path().join("refused"))?;
    fs::write(root.path().join("refused/requirements.txt"), "-e .\n")?;
    let document = "---\nname: refused\ndescription: d\n---\n";
    fs::write(root.path().join("refused/SKILL.md"), document)?;
    fs::create_dir(root.path().join("broken"))?;
    fs::write(root.path().join("broken/SKILL.md"), "no front matter")?;
    let daemon = Daemon::start_with(Options::default().skills(root.path())).await?;
    let text = |output: &Output| String::from_utf8_lossy(&output.stdout).into_owned();
    preflight(&daemon.client, "fits").await?;

    let fits = skillctl(&daemon, &["skill", "check", "fits"]).await?;
    assert_eq!((fits.status.code(), text(&fits).as_str()), (Some(0), ""));
    let lacks = skillctl(&daemon, &["skill", "check", "lacks", "--pool", "default"]).await?;
    assert_eq!(lacks.status.code(), Some(1));
    let lines: BTreeSet<String> = text(&lacks)
        .lines()
        .map(|line| line.split("  ").next().unwrap_or_default().to_owned())
        .collect();
    assert_eq!(
        lines,
        ["SEVERITY", "error", "warning"].map(str::to_owned).into()
    );
    assert!(text(&lacks).contains("scripts/b.py:1"), "{}", text(&lacks));

    // A run says what is missing, and runs.
    let run = ["run", "lacks", "--", "echo ran"];
    let ran = skillctl(&daemon, &run).await?;
    assert_eq!(text(&ran), "ran\n");
    let notes = String::from_utf8_lossy(&ran.stderr).into_owned();
    assert_eq!(notes.matches("requirements.txt:2").count(), 1, "{notes}");
    assert!(!notes.contains("torch"), "{notes}");
    // What the staging and the check both report is printed once.
    let ran = skillctl(&daemon, &["run", "refused", "--", "echo ran"]).await?;
    let notes = String::from_utf8_lossy(&ran.stderr).into_owned();
    assert_eq!(
        notes.matches("\"-e .\" is an option of pip").count(),
        1,
        "{notes}"
    );
    let ran = skillctl(&daemon, &["run", "lacks", "--no-check", "--", "echo ran"]).await?;
    assert!(!String::from_utf8_lossy(&ran.stderr).contains("requirements.txt:2"));

    let files = text(&skillctl(&daemon, &["skill", "files", "fits", "assets"]).await?);
    assert_eq!(files.lines().count(), 2, "{files}");
    let logo = skillctl(&daemon, &["skill", "read", "fits", "assets/LOGO.png"]).await?;
    assert!(logo.stdout == image, "{} bytes", logo.stdout.len());
    assert!(String::from_utf8_lossy(&logo.stderr).contains("this is assets/logo.png"));
    let near = skillctl(&daemon, &["skill", "read", "fits", "logo.png"]).await?;
    let near = (
        near.status.code(),
        String::from_utf8_lossy(&near.stderr).into_owned(),
    );
    assert!(
        near.0 == Some(1) && near.1.contains("did you mean assets/logo.png?"),
        "{near:?}"
    );
    assert!(near.1.contains("skillctl skill files NAME"), "{near:?}");

    let found = text(&skillctl(&daemon, &["skill", "search", "fits"]).await?);
    let first = found.lines().nth(1).context("a match")?;
    assert!(first.starts_with("fits"), "{found}");
    let nothing = skillctl(&daemon, &["skill", "search", "when", "use"]).await?;
    assert_eq!(nothing.status.code(), Some(1));
    let problems = text(&skillctl(&daemon, &["skill", "problems"]).await?);
    assert!(problems.contains("skill.no_front_matter"), "{problems}");
    daemon.stop().await
}
