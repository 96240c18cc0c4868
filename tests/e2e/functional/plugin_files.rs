//! Programs of a plugin's skill while the programs of execs are restricted.
//!
//! Docker: seccomp and the mounts of a container decide which file a path leads to and whether it may run.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use anyhow::{Context, Result};
use skilld_client::Client;
use skilld_client::v1::spawn_failure::Step;
use skilld_client::v1::{ExecPrograms, ExecSpec};
use skilld_tests::exec::{argv, run, shell, workspace};
use skilld_tests::{Daemon, Options};
use tempfile::TempDir;

/// Folder of the plugin of the skill `deploy` in a workspace.
const PLUGIN: &str = "/workspace/skills/.plugins/deploy";

fn write(path: &Path, text: &str, mode: u32) -> Result<()> {
    fs::create_dir_all(path.parent().context("no parent")?)?;
    fs::write(path, text)?;
    Ok(fs::set_permissions(path, PermissionsExt::from_mode(mode))?)
}

/// Makes a root with a plugin whose skill `deploy` has a program, and shares files with others.
fn root() -> Result<TempDir> {
    let root = tempfile::tempdir()?;
    fs::set_permissions(root.path(), PermissionsExt::from_mode(0o755))?;
    let plugin = root.path().join("acme");
    let skill = plugin.join("skills/deploy");
    for (path, text, mode) in [
        (".claude-plugin/plugin.json", "{\"name\": \"acme\"}", 0o644),
        ("shared/note.txt", "shared\n", 0o644),
        ("shared/tool", "#!/bin/sh\necho tool\n", 0o755),
    ] {
        write(&plugin.join(path), text, mode)?;
    }
    for (path, text, mode) in [
        (
            "SKILL.md",
            "---\nname: deploy\ndescription: d\n---\n",
            0o644,
        ),
        ("bin/hello", "#!/bin/sh\necho hello\n", 0o755),
    ] {
        write(&skill.join(path), text, mode)?;
    }
    Ok(root)
}

/// Starts a daemon with the plugin and stages its skill. Returns the daemon and the workspace's name.
async fn staged() -> Result<(Daemon, TempDir, String)> {
    let root = root()?;
    let daemon = Daemon::start_with(Options::default().skills(root.path())).await?;
    let name = workspace(&daemon.client).await?.name;
    daemon.client.stage_skills(&name, &["deploy"]).await?;
    Ok((daemon, root, name))
}

fn in_skill(spec: ExecSpec) -> ExecSpec {
    ExecSpec {
        skill: "deploy".to_owned(),
        ..spec
    }
}

/// Runs a command of the skill and returns what it printed. Fails if it failed.
async fn output(client: &Client, name: &str, spec: ExecSpec) -> Result<String> {
    let outcome = run(client, name, in_skill(spec)).await?;
    assert_eq!(outcome.exit_code(), Some(0), "{outcome:?}");
    Ok(outcome.text())
}

#[tokio::test]
async fn plugin_programs_run_while_programs_are_restricted() -> Result<()> {
    let (daemon, _root, name) = staged().await?;
    let client = &daemon.client;
    let link = "/workspace/skills/deploy/bin/hello";
    let physical = format!("{PLUGIN}/skills/deploy/bin/hello");
    let restricted = |allowed: &[&str], program: &str| {
        in_skill(ExecSpec {
            programs: Some(ExecPrograms {
                allowed: allowed.iter().map(|&entry| entry.to_owned()).collect(),
                denied: Vec::new(),
            }),
            ..argv([program])
        })
    };
    for entry in ["hello", link, &physical] {
        for program in ["hello", "bin/hello", "./bin/hello", link, &physical] {
            let printed = output(client, &name, restricted(&[entry], program)).await?;
            assert_eq!(printed, "hello\n", "{entry} {program}");
        }
    }
    // Links that lead out of the skill: to the workspace's files, and of those to programs of the image.
    let plant = "cp bin/hello work/hello; ln -s /usr/bin/id work/wc; ln -s \"$SKILL_DIR/bin/hello\" work/again";
    output(client, &name, shell(plant)).await?;
    for (allowed, program, why) in [
        (&["hello"][..], "work/hello", "commands can write"),
        (&[][..], "work/hello", "commands can write"),
        (&["hello", "wc"][..], "work/wc", "none of those"),
        // It is the allowed file under a name that is not.
        (&["hello"][..], "work/again", "none of those"),
        (&["hello"][..], "../../shared/tool", "none of those"),
    ] {
        let outcome = run(client, &name, restricted(allowed, program)).await?;
        let failure = outcome
            .result
            .spawn_failure
            .clone()
            .with_context(|| format!("{program} ran: {outcome:?}"))?;
        assert_eq!(failure.step(), Step::Program, "{failure:?}");
        assert!(failure.message.contains(why), "{program}: {failure:?}");
    }
    // What the plugin shares is as read-only as the skill.
    let tool = format!("{PLUGIN}/shared/tool");
    let printed = output(client, &name, restricted(&[&tool], "../../shared/tool")).await?;
    assert_eq!(printed, "tool\n");
    daemon.stop().await
}
