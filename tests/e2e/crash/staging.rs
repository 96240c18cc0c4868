//! The daemon dies between every two steps of replacing a staged skill by its newer version.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use anyhow::{Context, Result};
use skilld_client::RetryPolicy;
use skilld_tests::exec::workspace;
use skilld_tests::{Daemon, Options, wait};

use crate::crash::fault_points::points;
use crate::crash::{DEADLINE, run_shell};

/// Writes a version of the skill: two files that contain its number.
fn write(root: &Path, version: &str) -> Result<()> {
    let dir = root.join("pair");
    fs::create_dir_all(&dir)?;
    fs::write(
        dir.join("SKILL.md"),
        "---\nname: pair\ndescription: Two files of one version.\n---\n",
    )?;
    fs::write(dir.join("a"), version)?;
    Ok(fs::write(dir.join("b"), version)?)
}

/// Returns the entries beside and beneath a slot's `skills/` that are no skills.
fn leftovers(daemon: &Daemon) -> Result<Vec<String>> {
    let mut found = Vec::new();
    for slot in fs::read_dir(daemon.state_dir().join("slots"))? {
        let slot = slot?.path();
        for dir in [slot.clone(), slot.join("skills")] {
            // A slot that is being made or removed lacks a folder.
            let Ok(entries) = fs::read_dir(dir) else {
                continue;
            };
            for entry in entries {
                let name = entry?.file_name().to_string_lossy().into_owned();
                if name.starts_with(".stage-") || name.starts_with(".replaced-") {
                    found.push(name);
                }
            }
        }
    }
    Ok(found)
}

#[tokio::test]
async fn restaging_survives_a_crash_at_every_step() -> Result<()> {
    for point in points("stage.") {
        crash_at(point).await.context(point)?;
    }
    Ok(())
}

async fn crash_at(point: &str) -> Result<()> {
    let root = tempfile::tempdir()?;
    fs::set_permissions(root.path(), PermissionsExt::from_mode(0o755))?;
    write(root.path(), "1")?;
    // The first staging replaces nothing.
    let times = if point == "stage.replacing" { 1 } else { 2 };
    let options = Options::default()
        .skills(root.path())
        .dies_at(&format!("{point}:{times}"));
    let mut daemon = Daemon::start_with(options).await?;
    let client = daemon.client.clone().with_retry(RetryPolicy::none());
    let name = workspace(&client).await?.name;
    client.stage_skills(&name, &["pair"]).await?;
    write(root.path(), "2")?;
    client.refresh_skills().await?;
    let answer = client.stage_skills(&name, &["pair"]).await;
    assert!(answer.is_err(), "it was answered before it was killed");
    assert_eq!(daemon.wait().await?, None, "it was not killed");
    daemon.heal("pools.default.warm", "1");
    daemon.restart().await?;

    let client = &daemon.client;
    let read = "cat /workspace/skills/pair/a /workspace/skills/pair/b";
    let there = run_shell(client, &name, read).await?;
    let newer = !matches!(point, "stage.prepared" | "stage.replacing");
    assert_eq!(there, if newer { "22" } else { "11" }, "one whole version");
    client.stage_skills(&name, &["pair"]).await?;
    assert_eq!(run_shell(client, &name, read).await?, "22");
    write(root.path(), "3")?;
    client.refresh_skills().await?;
    client.stage_skills(&name, &["pair"]).await?;
    assert_eq!(run_shell(client, &name, read).await?, "33");
    // Whatever was left is gone after a staging while no command runs.
    wait::until("nothing is left over", DEADLINE, async || {
        client.stage_skills(&name, &["pair"]).await?;
        Ok(leftovers(&daemon)?.is_empty().then_some(()))
    })
    .await?;
    daemon.stop().await
}
