//! Skills that users publish from a shell: into the store, into workspaces, replaced, deleted.
//!
//! Docker: the installed `skillctl` publishes to the installed `skilld`, and containers run each published version.

use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::Path;
use std::process::Stdio;

use anyhow::{Result, ensure};
use skilld_client::v1::ExecSpec;
use skilld_tests::exec::{run, shell, workspace};
use skilld_tests::files::read;
use skilld_tests::{Daemon, Options, binaries};
use tokio::process::Command;

/// Exit code and output of a command.
struct CommandOutput {
    code: Option<i32>,
    stdout: String,
    stderr: String,
}

async fn skillctl(daemon: &Daemon, words: &[&str]) -> Result<CommandOutput> {
    let output = Command::new(binaries::binary("skillctl")?)
        .args(words)
        .env("SKILLD_ENDPOINT", daemon.endpoint())
        .stdin(Stdio::null())
        .kill_on_drop(true)
        .output()
        .await?;
    Ok(CommandOutput {
        code: output.status.code(),
        stdout: String::from_utf8_lossy(&output.stdout).into_owned(),
        stderr: String::from_utf8_lossy(&output.stderr).into_owned(),
    })
}

/// Runs a command that must succeed, and returns what it printed.
async fn done(daemon: &Daemon, words: &[&str]) -> Result<String> {
    let done = skillctl(daemon, words).await?;
    ensure!(done.code == Some(0), "{words:?}: {}", done.stderr);
    Ok(done.stdout)
}

/// Writes a skill whose script says which version it is, and where a module beside it comes from.
fn write(dir: &Path, version: &str) -> Result<()> {
    let front =
        format!("---\nname: greet\ndescription: Says hello.\nversion: {version}\n---\nRun it.\n");
    fs::create_dir_all(dir.join("scripts"))?;
    fs::create_dir_all(dir.join("shared"))?;
    fs::write(dir.join("SKILL.md"), front)?;
    fs::write(
        dir.join("shared/words.txt"),
        format!("hello from {version}\n"),
    )?;
    let script = dir.join("scripts/greet.sh");
    fs::write(
        &script,
        "#!/bin/sh\ncat \"${0%/*}/words.txt\" | tee \"$OUTPUT_DIR/greeting.txt\"\n",
    )?;
    fs::set_permissions(script, PermissionsExt::from_mode(0o755))?;
    Ok(())
}

fn greeting() -> ExecSpec {
    ExecSpec {
        skill: "greet".to_owned(),
        ..shell("scripts/greet.sh")
    }
}

#[tokio::test]
#[expect(clippy::too_many_lines, reason = "one skill's whole life")]
async fn a_folder_is_published_used_replaced_and_deleted_from_a_shell() -> Result<()> {
    let (root, place) = (tempfile::tempdir()?, tempfile::tempdir()?);
    let daemon = Daemon::start_with(Options::default().skills(root.path())).await?;
    write(&place.path().join("greet"), "1.0")?;
    let client = &daemon.client;
    let folder = place.path().join("greet");
    // What lies beside a skill's files on somebody's machine, and a link between them.
    symlink("../shared/words.txt", folder.join("scripts/words.txt"))?;
    fs::create_dir(folder.join(".git"))?;
    symlink("/etc/passwd", folder.join(".git/HEAD"))?;
    let path = folder.display().to_string();
    let said = done(&daemon, &["skill", "publish", &path]).await?;
    ensure!(said.starts_with("greet 1.0 sha256:"), "{said}");
    ensure!(
        done(&daemon, &["skill", "publish", &path]).await? == said,
        "the same again"
    );
    ensure!(
        done(&daemon, &["skill", "list"])
            .await?
            .contains("\ngreet  1.0")
    );
    let files = done(&daemon, &["skill", "files", "greet"]).await?;
    ensure!(
        files.contains("scripts/words.txt") && !files.contains(".git"),
        "{files}"
    );

    let old = workspace(client).await?.name;
    client.stage_skills(&old, &["greet"]).await?;
    let outcome = run(client, &old, greeting()).await?;
    assert_eq!(
        outcome.text(),
        "hello from 1.0\n",
        "{}",
        outcome.error_text()
    );
    assert_eq!(
        read(client, &old, "out/greeting.txt").await?,
        b"hello from 1.0\n"
    );

    // Other content is another version.
    fs::write(folder.join("shared/words.txt"), "changed\n")?;
    let refused = skillctl(&daemon, &["skill", "publish", &path]).await?;
    ensure!(
        refused.code == Some(1) && refused.stderr.contains("another version"),
        "{}",
        refused.stderr
    );
    write(&folder, "1.1")?;
    let archive = place.path().join("greet.tar.gz");
    let packed = Command::new("tar")
        .args([
            "-C",
            &place.path().display().to_string(),
            "--exclude=.git",
            "-czf",
        ])
        .arg(&archive)
        .arg("greet")
        .status()
        .await?;
    ensure!(packed.success());
    let archive_path = archive.display().to_string();
    let newer = done(&daemon, &["skill", "publish", &archive_path]).await?;
    ensure!(newer.starts_with("greet 1.1 sha256:"), "{newer}");

    let new = workspace(client).await?.name;
    client.stage_skills(&new, &["greet"]).await?;
    for (name, expected) in [(&old, "hello from 1.0\n"), (&new, "hello from 1.1\n")] {
        assert_eq!(run(client, name, greeting()).await?.text(), expected);
    }
    let all = skillctl(&daemon, &["skill", "delete", "greet"]).await?;
    ensure!(
        all.code == Some(1) && all.stderr.contains("--all"),
        "{}",
        all.stderr
    );
    done(&daemon, &["skill", "delete", "greet@1.1"]).await?;
    let listed = done(&daemon, &["skill", "list"]).await?;
    ensure!(
        listed.contains("1.0") && !listed.contains("1.1"),
        "{listed}"
    );
    done(&daemon, &["skill", "delete", "greet", "--all"]).await?;
    ensure!(!done(&daemon, &["skill", "list"]).await?.contains("greet"));
    for (name, expected) in [(&old, "hello from 1.0\n"), (&new, "hello from 1.1\n")] {
        assert_eq!(
            run(client, name, greeting()).await?.text(),
            expected,
            "kept"
        );
    }
    let gone = skillctl(&daemon, &["skill", "delete", "greet@1.1"]).await?;
    ensure!(
        gone.code == Some(1) && gone.stderr.contains("SKILL_NOT_FOUND"),
        "{}",
        gone.stderr
    );
    daemon.stop().await
}
