//! Skills that users publish from a shell: into the store, into workspaces, replaced, deleted; and what is refused.

use std::fs;
use std::io::Write as _;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::Path;
use std::process::Stdio;
use std::time::Duration;

use anyhow::{Result, ensure};
use rustix::fs::{CWD, FileType, Mode, mknodat};
use skilld_client::v1::{ExecSpec, ListSkillsRequest, RefreshSkillsRequest};
use skilld_tests::exec::{run, shell, workspace};
use skilld_tests::files::read;
use skilld_tests::{Daemon, Options, binaries};
use tempfile::TempDir;
use tokio::net::TcpListener;
use tokio::process::Command;

/// Function that places a hostile file at a path.
type Make = fn(&Path) -> Result<()>;

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

/// Starts a daemon with an empty root, beside a folder to publish.
async fn start() -> Result<(Daemon, TempDir, TempDir)> {
    let (root, place) = (tempfile::tempdir()?, tempfile::tempdir()?);
    let daemon = Daemon::start_with(Options::default().skills(root.path())).await?;
    write(&place.path().join("greet"), "1.0")?;
    Ok((daemon, root, place))
}

fn stored(daemon: &Daemon) -> Result<usize> {
    Ok(fs::read_dir(daemon.state_dir().join("skills/sha256"))?.count())
}

#[tokio::test]
#[expect(clippy::too_many_lines, reason = "one skill's whole life")]
async fn a_folder_is_published_used_replaced_and_deleted_from_a_shell() -> Result<()> {
    let (daemon, _root, place) = start().await?;
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
    let archive = archive.display().to_string();
    let newer = done(&daemon, &["skill", "publish", &archive]).await?;
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

#[tokio::test]
#[expect(clippy::too_many_lines, reason = "a table")]
async fn a_refused_publication_leaves_nothing() -> Result<()> {
    let (daemon, _root, place) = start().await?;
    let folder = place.path().join("greet");
    let path = folder.display().to_string();
    let hostile = folder.join("hostile");
    let made: [(&str, Make); 3] = [
        ("is a link to /etc/passwd", |it| {
            Ok(symlink("/etc/passwd", it)?)
        }),
        ("is a FIFO", |it| {
            Ok(mknodat(CWD, it, FileType::Fifo, Mode::RWXU, 0)?)
        }),
        // More than the daemon takes, and not a byte of it on disk.
        ("bytes in all, with hostile", |it| {
            Ok(fs::File::create(it)?.set_len(1 << 40)?)
        }),
    ];
    for (expected, make) in made {
        make(&hostile)?;
        let refused = skillctl(&daemon, &["skill", "publish", &path]).await?;
        ensure!(
            refused.code == Some(1) && refused.stderr.contains(expected),
            "{}",
            refused.stderr
        );
        fs::remove_file(&hostile)?;
    }
    let archives: [(&str, tar::EntryType, &[u8], &str); 3] = [
        (
            "a link out",
            tar::EntryType::Symlink,
            b"greet/link",
            "../../etc/passwd",
        ),
        ("a FIFO", tar::EntryType::Fifo, b"greet/pipe", ""),
        (
            "a climbing name",
            tar::EntryType::Regular,
            b"greet/../../x",
            "",
        ),
    ];
    for (what, kind, name, target) in archives {
        let mut builder = tar::Builder::new(Vec::new());
        builder.append_dir_all("greet", &folder)?;
        let mut header = tar::Header::new_ustar();
        header.set_entry_type(kind);
        header.set_size(0);
        header.set_mode(0o644);
        if let Some(field) = header.as_ustar_mut() {
            (&mut field.name[..]).write_all(name)?;
        }
        if !target.is_empty() {
            header.set_link_name_literal(target)?;
        }
        header.set_cksum();
        builder.append(&header, std::io::empty())?;
        let archive = place.path().join("greet.tar");
        fs::write(&archive, builder.into_inner()?)?;
        let archive = archive.display().to_string();
        let refused = skillctl(&daemon, &["skill", "publish", &archive]).await?;
        ensure!(
            refused.stderr.contains("ARCHIVE_INVALID"),
            "{what}: {}",
            refused.stderr
        );
    }
    // What is wrong with a document is said with its line.
    fs::write(
        folder.join("SKILL.md"),
        "---\nname: greet\nextra: a\0b\n---\n",
    )?;
    let refused = skillctl(&daemon, &["skill", "publish", &path]).await?;
    ensure!(
        refused.stderr.contains("skill.nul (line 3)"),
        "{}",
        refused.stderr
    );
    let listed = daemon
        .client
        .list_skills(ListSkillsRequest::default())
        .await?;
    ensure!(listed.skills.is_empty(), "{listed:?}");
    assert_eq!(stored(&daemon)?, 0);
    daemon.stop().await
}

#[tokio::test]
async fn a_refresh_shows_what_changed_in_a_root() -> Result<()> {
    let (daemon, root, place) = start().await?;
    fs::set_permissions(root.path(), PermissionsExt::from_mode(0o755))?;
    let refreshed = done(&daemon, &["skill", "refresh"]).await?;
    assert_eq!(refreshed, "0 loaded, 0 rejected, 0 shadowed\n");
    write(&root.path().join("greet"), "2.0")?;
    let refreshed = done(&daemon, &["skill", "refresh"]).await?;
    assert_eq!(refreshed, "1 loaded, 0 rejected, 0 shadowed\n");
    ensure!(done(&daemon, &["skill", "list"]).await?.contains("2.0"));
    // A root comes before what is published, and is not deleted here.
    write(&place.path().join("greet"), "2.0")?;
    fs::write(place.path().join("greet/more"), "x")?;
    let path = place.path().join("greet").display().to_string();
    let published = skillctl(&daemon, &["skill", "publish", &path]).await?;
    ensure!(published.code == Some(0), "{}", published.stderr);
    ensure!(
        published.stderr.contains("comes first"),
        "{}",
        published.stderr
    );
    done(&daemon, &["skill", "delete", "greet", "--all"]).await?;
    let refused = skillctl(&daemon, &["skill", "delete", "greet", "--all"]).await?;
    ensure!(
        refused.stderr.contains("remove its folder there"),
        "{}",
        refused.stderr
    );
    ensure!(!refused.stderr.contains("work/"), "{}", refused.stderr);
    daemon.stop().await
}

#[tokio::test]
async fn a_refresh_answers_before_its_deadline_and_reports_progress() -> Result<()> {
    // Takes connections and answers none.
    let silent = TcpListener::bind("127.0.0.1:0").await?;
    let url = format!("http://{}/skills.zip", silent.local_addr()?);
    let options = Options::default()
        .set("skills.roots", &format!("[{url:?}]"))
        .set("skills.allow_private_addresses", "true");
    let daemon = Daemon::start_with(options).await?;
    let mut request = tonic::Request::new(RefreshSkillsRequest {});
    request.set_timeout(Duration::from_secs(4));
    let answer = daemon.client.skills().refresh_skills(request).await?;
    let problems = answer.into_inner().problems;
    let said: Vec<_> = problems
        .iter()
        .map(|problem| (problem.code.as_str(), problem.subject.as_str()))
        .collect();
    assert_eq!(said, [("root.pending", url.as_str())]);
    daemon.stop().await
}
