//! Staging while commands run: every command sees one whole version, and nothing is left over.
//!
//! Docker: running programs keep a directory that is renamed beneath a read-only mount of their container.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result};
use skilld_client::v1::{ErrorReason, ExecSpec, ExitReason as Ended, StreamOffsets};
use skilld_tests::exec::{attach, run, shell, start, workspace};
use skilld_tests::{Daemon, Options, wait};
use tempfile::TempDir;

/// Replaced versions that a workspace keeps at most while commands run in it.
const REPLACED_MAX: usize = 4;
/// Maximum time for the daemon to learn the ends of commands.
const PATIENCE: Duration = Duration::from_secs(60);

/// Command that reads both files again and again in its first directory, at least once, and prints what it saw when the
/// test ends it.
const READER: &str = "
import os, pathlib, time
seen = set()
told = False
while not told:
    told = os.path.exists('work/stop')
    seen.add((pathlib.Path('a').read_text(), pathlib.Path('deep/b').read_text()))
    pathlib.Path('out/alive').write_text('yes')
print(len(seen), all(a == b for a, b in seen))
";

fn root() -> Result<TempDir> {
    let root = tempfile::tempdir()?;
    fs::set_permissions(root.path(), PermissionsExt::from_mode(0o755))?;
    Ok(root)
}

/// Writes a version of a skill: two files that contain its number.
fn write(root: &Path, name: &str, version: &str) -> Result<()> {
    let dir = root.join(name);
    fs::create_dir_all(dir.join("deep"))?;
    let document = format!(
        "---\nname: {name}\ndescription: Two files of one version.\nversion: {version}\n---\n"
    );
    fs::write(dir.join("SKILL.md"), document)?;
    fs::write(dir.join("a"), version)?;
    Ok(fs::write(dir.join("deep/b"), version)?)
}

/// Returns the host's `skills/` directory of the only claimed slot.
fn skills_dir(daemon: &Daemon, workspace: &str) -> Result<PathBuf> {
    let number = daemon.record(workspace)?["number"].to_string();
    Ok(daemon.state_dir().join("slots").join(number).join("skills"))
}

fn replaced(dir: &Path) -> Result<usize> {
    let names = fs::read_dir(dir)?
        .map(|entry| Ok(entry?.file_name()))
        .collect::<Result<Vec<_>>>()?;
    let is_replaced =
        |name: &&std::ffi::OsString| name.as_encoded_bytes().starts_with(b".replaced-");
    Ok(names.iter().filter(is_replaced).count())
}

fn reader() -> ExecSpec {
    ExecSpec {
        skill: "pair".to_owned(),
        argv: ["python3", "-c", READER].map(str::to_owned).into(),
        ..Default::default()
    }
}

#[tokio::test]
async fn commands_keep_their_version_through_restagings_up_to_a_bound() -> Result<()> {
    let root = root()?;
    write(root.path(), "pair", "1.0")?;
    let daemon = Daemon::start_with(Options::default().skills(root.path())).await?;
    let client = &daemon.client;
    let name = workspace(client).await?.name;
    let stage = async |digest: &str| {
        let skill = format!("pair@{digest}");
        client.stage_skills(&name, &[skill.as_str()]).await
    };
    let first = client.stage_skills(&name, &["pair"]).await?[0]
        .digest
        .clone();
    write(root.path(), "pair", "2.0")?;
    client.refresh_skills().await?;
    let second = client.stage_skills(&name, &["pair"]).await?[0]
        .digest
        .clone();
    let dir = skills_dir(&daemon, &name)?;
    assert_eq!(replaced(&dir)?, 0, "no command can use it");
    let mut readers = Vec::new();
    for round in 0..REPLACED_MAX {
        readers.push(start(client, &name, "", reader()).await?.name);
        let digest = if round % 2 == 0 { &first } else { &second };
        let staged = stage(digest).await?;
        assert_eq!((&staged[0].digest, staged[0].unchanged), (digest, false));
        assert_eq!(replaced(&dir)?, round + 1);
    }
    // One more would keep too many copies. What is staged already is none.
    let refused = stage(&first).await.expect_err("too many copies");
    let failure = refused.failure().context("a refusal of the daemon")?;
    assert_eq!(
        failure.reason,
        Some(ErrorReason::QuotaExceeded),
        "{failure:?}"
    );
    assert!(failure.message.contains("replaced versions"), "{failure:?}");
    assert!(stage(&second).await?[0].unchanged);
    assert_eq!(replaced(&dir)?, REPLACED_MAX);
    // One reader is killed, the others end by themselves.
    let killed = readers.remove(0);
    client.kill_exec_after(&killed, Duration::ZERO).await?;
    let killed = attach(client, &killed, StreamOffsets::default()).await?;
    assert_eq!(killed.reason(), Ended::KilledByClient, "{killed:?}");
    run(client, &name, shell("touch $WORK_DIR/stop")).await?;
    for reader in readers {
        let outcome = attach(client, &reader, StreamOffsets::default()).await?;
        assert_eq!(outcome.text(), "1 True\n", "{}", outcome.error_text());
    }
    // No command uses the replaced versions any more: the next staging removes them.
    wait::until("a staging is accepted", PATIENCE, async || {
        Ok(stage(&first).await.ok())
    })
    .await?;
    assert_eq!(replaced(&dir)?, 0);
    let text = run(
        client,
        &name,
        shell("ls -A $SKILLS_DIR; cat $SKILLS_DIR/pair/a"),
    )
    .await?;
    assert_eq!(text.text(), ".metadata.json\npair\n1.0");
    daemon.stop().await
}

#[tokio::test]
async fn a_replaced_version_still_leads_to_the_workspace() -> Result<()> {
    let root = root()?;
    write(root.path(), "pair", "1.0")?;
    let daemon = Daemon::start_with(Options::default().skills(root.path())).await?;
    let client = &daemon.client;
    let name = workspace(client).await?.name;
    client.stage_skills(&name, &["pair"]).await?;
    run(client, &name, shell("mkfifo $WORK_DIR/go; mkdir -p $WORK_DIR/.venvs/pair; echo kept >$WORK_DIR/.venvs/pair/x")).await?;
    let text = "cat work/go; cat a deep/b .venv/x; echo written >out/late; ls";
    let waiting = ExecSpec {
        skill: "pair".to_owned(),
        ..shell(text)
    };
    let waiting = start(client, &name, "", waiting).await?.name;
    write(root.path(), "pair", "2.0")?;
    client.refresh_skills().await?;
    client.stage_skills(&name, &["pair"]).await?;
    run(client, &name, shell("echo >$WORK_DIR/go")).await?;
    let outcome = attach(client, &waiting, StreamOffsets::default()).await?;
    let expected = "\n1.01.0kept\nSKILL.md\na\ndeep\ninputs\nout\nwork\n";
    assert_eq!(outcome.text(), expected, "{}", outcome.error_text());
    let late = run(
        client,
        &name,
        shell("cat $OUTPUT_DIR/late $SKILLS_DIR/pair/a $SKILLS_DIR/pair/.venv/x"),
    )
    .await?;
    assert_eq!(
        late.text(),
        "written\n2.0kept\n",
        "the virtual environment survives"
    );
    daemon.stop().await
}
