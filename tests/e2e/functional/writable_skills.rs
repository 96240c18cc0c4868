//! Writable skills: private copies that commands can change. The store, other workspaces and the daemon are safe from
//! whatever a command does to them.
//!
//! Docker: commands write through the mounts of a container, within the disk limit that its kernel enforces.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use anyhow::{Context, Result};
use skilld_client::v1::input_spec::Content;
use skilld_client::v1::{
    CreateWorkspaceRequest, ErrorReason, ExecScript, ExecSpec, InputSpec, StageInputsRequest,
    StageSkillsRequest, StagedSkill, WorkspaceLimits,
};
use skilld_client::{Client, Error};
use skilld_tests::exec::{run, shell, workspace};
use skilld_tests::files::read;
use skilld_tests::{Daemon, Options, expect_refusal};
use tempfile::TempDir;

use crate::functional::workspaces::named;

/// Makes a root with the skill `notes`, whose script appends a line to a file beside itself.
fn root() -> Result<TempDir> {
    let root = tempfile::tempdir()?;
    fs::set_permissions(root.path(), PermissionsExt::from_mode(0o755))?;
    let scripts = root.path().join("notes/scripts");
    fs::create_dir_all(&scripts)?;
    fs::write(
        scripts.with_file_name("SKILL.md"),
        "---\nname: notes\ndescription: Keeps notes.\n---\n",
    )?;
    let add = "import pathlib
notes = pathlib.Path(__file__).with_name('notes.txt')
notes.write_text((notes.read_text() if notes.exists() else '') + 'note\\n')
print(len(notes.read_text().splitlines()))
";
    fs::write(scripts.join("add.py"), add)?;
    fs::write(scripts.join("old.sh"), "#!/bin/sh\r\necho old\r\n")?;
    Ok(root)
}

async fn stage(client: &Client, workspace: &str, writable: bool) -> Result<StagedSkill, Error> {
    let request = StageSkillsRequest {
        workspace: workspace.to_owned(),
        skills: vec!["notes".to_owned()],
        writable,
    };
    let staged = client.stage_skills_with(request).await?;
    Ok(staged.into_iter().next().unwrap_or_default())
}

fn in_skill(text: &str) -> ExecSpec {
    ExecSpec {
        skill: "notes".to_owned(),
        ..shell(text)
    }
}

fn script(path: &str) -> ExecSpec {
    ExecSpec {
        skill: "notes".to_owned(),
        script: Some(ExecScript {
            path: path.to_owned(),
            ..ExecScript::default()
        }),
        ..ExecSpec::default()
    }
}

/// Runs a command of the skill and returns what it printed. Fails if it failed.
async fn output(client: &Client, workspace: &str, spec: ExecSpec) -> Result<String> {
    let outcome = run(client, workspace, spec).await?;
    assert_eq!(outcome.exit_code(), Some(0), "{outcome:?}");
    Ok(outcome.text())
}

/// Returns the bytes of all files beneath a directory of the host, by path.
fn contents(dir: &Path) -> Result<Vec<(String, Vec<u8>)>> {
    let mut found = Vec::new();
    for entry in fs::read_dir(dir)? {
        let path = entry?.path();
        if path.is_dir() {
            found.extend(contents(&path)?);
        } else {
            found.push((path.display().to_string(), fs::read(&path)?));
        }
    }
    found.sort();
    Ok(found)
}

#[tokio::test]
async fn a_writable_skill_changes_only_in_its_own_workspace() -> Result<()> {
    let root = root()?;
    let daemon = Daemon::start_with(Options::default().skills(root.path())).await?;
    let client = &daemon.client;
    let (one, two) = (workspace(client).await?.name, workspace(client).await?.name);
    let staged = stage(client, &one, true).await?;
    assert!(staged.writable && !staged.unchanged);
    assert_eq!(staged.path, "/workspace/skills/notes");
    assert!(stage(client, &two, true).await?.writable);
    let store = daemon.state_dir().join("skills/sha256");
    let before = contents(&store)?;
    assert_eq!(output(client, &one, script("scripts/add.py")).await?, "1\n");
    assert_eq!(output(client, &one, script("scripts/add.py")).await?, "2\n");
    assert_eq!(output(client, &two, script("scripts/add.py")).await?, "1\n");
    assert_eq!(contents(&store)?, before);
    assert_eq!(
        read(client, &one, "skills/notes/scripts/notes.txt").await?,
        b"note\nnote\n"
    );
    // Modes, line ends and links are those of a read-only skill.
    let text = "stat -c %a . scripts scripts/add.py scripts/old.sh; scripts/old.sh; echo 1 >out/x; echo 2 >work/y
cat /workspace/out/x $WORK_DIR/y; readlink -f inputs; python3 -m venv --without-pip .venv && test ! -L .venv";
    assert_eq!(
        output(client, &one, in_skill(text)).await?,
        "755\n755\n644\n755\nold\n1\n2\n/workspace/work/inputs\n"
    );
    // A script that a command wrote runs too, and the copy is an input like any staged skill.
    output(client, &one, in_skill("echo 'print(7)' >scripts/new.py")).await?;
    assert_eq!(output(client, &one, script("scripts/new.py")).await?, "7\n");
    let request = StageInputsRequest {
        workspace: one.clone(),
        inputs: vec![InputSpec {
            content: Some(Content::Source("skill://notes/scripts/".to_owned())),
            path: "work/copy".to_owned(),
            ..InputSpec::default()
        }],
        ..StageInputsRequest::default()
    };
    client.stage_inputs(request).await?;
    assert_eq!(read(client, &one, "work/copy/new.py").await?, b"print(7)\n");
    daemon.stop().await
}

#[tokio::test]
async fn writable_skill_changes_stay_until_it_is_staged_read_only() -> Result<()> {
    let root = root()?;
    let daemon = Daemon::start_with(Options::default().skills(root.path())).await?;
    let client = &daemon.client;
    let name = workspace(client).await?.name;
    let first = stage(client, &name, true).await?;
    output(client, &name, script("scripts/add.py")).await?;
    let again = stage(client, &name, true).await?;
    assert_eq!((again.unchanged, &again.digest), (true, &first.digest));
    assert!(!first.modified && again.modified);
    let skills = client.get_workspace(&name).await?.skills;
    assert!(skills.iter().all(|skill| skill.writable), "{skills:?}");
    assert_eq!(
        output(client, &name, script("scripts/add.py")).await?,
        "2\n"
    );
    let fixed = stage(client, &name, false).await?;
    assert_eq!((fixed.unchanged, fixed.writable), (false, false));
    assert_eq!(
        output(client, &name, in_skill("ls scripts")).await?,
        "add.py\nold.sh\n"
    );
    let denied = run(client, &name, script("scripts/add.py")).await?;
    assert!(
        denied.error_text().contains("Read-only file system"),
        "{denied:?}"
    );
    let fresh = stage(client, &name, true).await?;
    assert!(fresh.writable && !fresh.unchanged);
    // Nothing has changed it yet; then a file is removed, which only its folder shows.
    for (text, is_modified) in [("cat SKILL.md", false), ("rm SKILL.md", true)] {
        output(client, &name, in_skill(text)).await?;
        let again = stage(client, &name, true).await?;
        assert_eq!(
            (again.unchanged, again.modified),
            (true, is_modified),
            "{text}"
        );
    }
    assert_eq!(
        output(client, &name, script("scripts/add.py")).await?,
        "1\n"
    );
    daemon.stop().await
}

#[tokio::test]
async fn changes_of_a_writable_skill_survive_the_daemon() -> Result<()> {
    let root = root()?;
    let mut daemon = Daemon::start_with(Options::default().skills(root.path())).await?;
    let name = workspace(&daemon.client).await?.name;
    stage(&daemon.client, &name, true).await?;
    output(&daemon.client, &name, script("scripts/add.py")).await?;
    daemon.crash().await?;
    daemon.restart().await?;
    let client = &daemon.client;
    let again = stage(client, &name, true).await?;
    assert!(again.writable && again.unchanged, "{again:?}");
    assert_eq!(
        output(client, &name, script("scripts/add.py")).await?,
        "2\n"
    );
    daemon.stop().await
}

#[tokio::test]
async fn a_writable_skill_uses_disk_and_changes_nothing_if_too_large() -> Result<()> {
    let root = root()?;
    fs::write(root.path().join("notes/data.bin"), vec![7; 5 << 20])?;
    let daemon = Daemon::start_with(Options::default().skills(root.path())).await?;
    let client = &daemon.client;
    let limits = |disk_bytes| WorkspaceLimits {
        disk_bytes,
        ..WorkspaceLimits::default()
    };
    let small = CreateWorkspaceRequest {
        limits: Some(limits(4 << 20)),
        ..named("small")
    };
    let small = client.create_workspace(small).await?.name;
    stage(client, &small, false).await?;
    expect_refusal(stage(client, &small, true).await, ErrorReason::DiskFull)?;
    let text = "stat -c %s data.bin; readlink /workspace/skills/notes; ls -A /workspace/work/.skills /workspace/.stage";
    let left = run(client, &small, in_skill(text)).await?;
    assert_eq!(left.text(), "5242880\n", "{left:?}");
    let large = CreateWorkspaceRequest {
        limits: Some(limits(8 << 20)),
        ..named("large")
    };
    let large = client.create_workspace(large).await?.name;
    stage(client, &large, true).await?;
    let full = run(client, &large, shell("head -c 4M /dev/zero >big")).await?;
    assert!(
        full.error_text().contains("No space left on device"),
        "{full:?}"
    );
    daemon.stop().await
}

#[tokio::test]
async fn restaging_repairs_a_writable_skill_that_a_command_replaced() -> Result<()> {
    let root = root()?;
    let daemon = Daemon::start_with(Options::default().skills(root.path())).await?;
    let client = &daemon.client;
    let name = workspace(client).await?.name;
    stage(client, &name, true).await?;
    let attacks = [
        ("rm -r $copy", ErrorReason::FileNotFound),
        ("rm -r $copy && ln -s / $copy", ErrorReason::InvalidRequest),
        (
            "rm -r $copy && ln -s ../../../../.. $copy",
            ErrorReason::InvalidRequest,
        ),
        ("rm -r $copy && mkfifo $copy", ErrorReason::InvalidRequest),
        (
            "rm -r $copy/scripts && ln -s /etc $copy/scripts",
            ErrorReason::InvalidRequest,
        ),
        (
            "rm $copy/scripts/add.py && mkfifo $copy/scripts/add.py",
            ErrorReason::InvalidRequest,
        ),
    ];
    for (number, (attack, reason)) in attacks.into_iter().enumerate() {
        let text = format!("copy=$(readlink -f /workspace/skills/notes); {attack}");
        output(client, &name, shell(&text)).await?;
        let started = run(client, &name, script("scripts/add.py")).await;
        let error = started
            .err()
            .with_context(|| format!("{attack} was not noticed"))?
            .downcast::<Error>()?;
        assert_eq!(error.reason(), Some(reason), "{attack}: {error}");
        // The first four have lost the copy, and the next staging makes another one.
        let staged = stage(client, &name, true).await?;
        assert_eq!(staged.unchanged, number > 3, "{attack}");
        if staged.unchanged {
            stage(client, &name, false).await?;
            stage(client, &name, true).await?;
        }
        assert_eq!(
            output(client, &name, script("scripts/add.py")).await?,
            "1\n",
            "{attack}"
        );
    }
    // Copies can't be made where a link leads out, and the read-only skill still can.
    output(
        client,
        &name,
        shell("rm -r work/.skills && ln -s / work/.skills"),
    )
    .await?;
    expect_refusal(stage(client, &name, true).await, ErrorReason::PathEscapes)?;
    stage(client, &name, false).await?;
    assert_eq!(
        output(client, &name, in_skill("cat scripts/old.sh | wc -l")).await?,
        "2\n"
    );
    daemon.stop().await
}
