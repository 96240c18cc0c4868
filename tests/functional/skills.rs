//! Skills: staged read-only, with their links, from a directory that changes; bad ones are named, not dropped.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use anyhow::{Context, Result, ensure};
use futures::future::try_join_all;
use serde_json::Value;
use skilld_client::v1::{ExecSpec, ListSkillsRequest, Reason, SkillState};
use skilld_tests::exec::{run, shell, workspace};
use skilld_tests::files::read;
use skilld_tests::{Daemon, Options, expect_refusal};
use tempfile::TempDir;

/// Makes a root with one skill, whose script prints its argument.
fn root() -> Result<TempDir> {
    let root = tempfile::tempdir()?;
    fs::set_permissions(root.path(), PermissionsExt::from_mode(0o755))?;
    skill(
        root.path(),
        "greet",
        "---\nname: greet\ndescription: Says hello.\n---\nRun bin/greet.\n",
    )?;
    let script = root.path().join("greet/bin/greet");
    fs::create_dir(root.path().join("greet/bin"))?;
    fs::write(&script, "#!/bin/sh\necho \"hello $1\"\n")?;
    fs::set_permissions(&script, PermissionsExt::from_mode(0o755))?;
    Ok(root)
}

fn skill(root: &Path, folder: &str, document: impl AsRef<[u8]>) -> Result<()> {
    let dir = root.join(folder);
    fs::create_dir_all(&dir)?;
    Ok(fs::write(dir.join("SKILL.md"), document)?)
}

fn in_skill(text: &str) -> ExecSpec {
    ExecSpec {
        skill: "greet".to_owned(),
        ..shell(text)
    }
}

#[tokio::test]
async fn a_skills_links_lead_to_the_workspaces_directories() -> Result<()> {
    let root = root()?;
    let daemon = Daemon::start_with(Options::default().skills(root.path())).await?;
    let client = &daemon.client;
    let name = workspace(client).await?.name;
    let staged = client.stage_skills(&name, &["greet"]).await?;
    assert_eq!((staged[0].files, staged[0].unchanged), (2, false));
    let text = "echo 1 >out/x; echo 2 >work/y; echo 3 >inputs/z; mkdir -p .venv/bin; echo 4 >.venv/v
readlink out work inputs .venv; greet you; cat /workspace/out/x $WORK_DIR/y $INPUTS_DIR/z $WORK_DIR/.venvs/greet/v";
    let outcome = run(client, &name, in_skill(text)).await?;
    assert_eq!(
        outcome.text(),
        "../../out\n../../work\n../../work/inputs\n../../work/.venvs/greet\nhello you\n1\n2\n3\n4\n",
        "{}",
        outcome.error_text()
    );
    assert_eq!(read(client, &name, "out/x").await?, b"1\n");
    assert_eq!(read(client, &name, "skills/greet/out/x").await?, b"1\n");
    daemon.stop().await
}

#[tokio::test]
async fn a_staged_skill_is_read_only() -> Result<()> {
    let root = root()?;
    let daemon = Daemon::start_with(Options::default().skills(root.path())).await?;
    let client = &daemon.client;
    let name = workspace(client).await?.name;
    client.stage_skills(&name, &["greet"]).await?;
    let script = "
import errno, os
def tried(what, *args):
    try: what(*args); print(what.__name__, 'WORKED')
    except OSError as e: print(what.__name__, errno.errorcode[e.errno])
def write(path): open(path, 'w')
tried(write, 'SKILL.md'); tried(write, 'new'); tried(write, '../new'); tried(write, '../.metadata.json')
tried(os.mkdir, 'dir'); tried(os.remove, 'SKILL.md'); tried(os.rename, 'bin', 'nib'); tried(os.remove, 'out')
tried(os.chmod, 'SKILL.md', 0o777); tried(os.utime, 'SKILL.md'); tried(os.symlink, 'a', 'b')
tried(os.rename, '../greet', '../other')
";
    let outcome = run(
        client,
        &name,
        in_skill(&format!("python3 - <<'E'\n{script}E")),
    )
    .await?;
    let text = outcome.text();
    assert_eq!(text.lines().count(), 12, "{outcome:?}");
    for line in text.lines() {
        assert!(line.ends_with(" EROFS"), "{text}");
    }
    daemon.stop().await
}

#[tokio::test]
async fn the_metadata_of_a_workspace_is_readable_inside() -> Result<()> {
    let root = root()?;
    let daemon = Daemon::start_with(Options::default().skills(root.path())).await?;
    let client = &daemon.client;
    let name = workspace(client).await?.name;
    let staged = client.stage_skills(&name, &["greet"]).await?;
    let outcome = run(client, &name, shell("cat /workspace/metadata.json")).await?;
    let metadata: Value =
        serde_json::from_slice(&outcome.stdout).with_context(|| outcome.text())?;
    let text = metadata.to_string();
    assert!(
        text.contains(name.trim_start_matches("workspaces/")),
        "{text}"
    );
    assert!(
        text.contains(staged[0].digest.trim_start_matches("sha256:")),
        "{text}"
    );
    assert_eq!(read(client, &name, "metadata.json").await?, outcome.stdout);
    let found = client.get_workspace(&name).await?;
    assert_eq!(
        (found.skills[0].name.as_str(), &found.skills[0].digest),
        ("greet", &staged[0].digest)
    );
    daemon.stop().await
}

#[tokio::test]
async fn a_change_on_disk_is_staged_after_a_refresh() -> Result<()> {
    let root = root()?;
    let daemon = Daemon::start_with(Options::default().skills(root.path())).await?;
    let client = &daemon.client;
    let name = workspace(client).await?.name;
    let first = client.stage_skills(&name, &["greet"]).await?;
    let again = client.stage_skills(&name, &["greet"]).await?;
    assert_eq!(
        (again[0].unchanged, &again[0].digest),
        (true, &first[0].digest)
    );

    fs::write(
        root.path().join("greet/bin/greet"),
        "#!/bin/sh\necho \"good day $1\"\n",
    )?;
    // What is staged does not change under a running program, only by another call.
    assert_eq!(
        run(client, &name, in_skill("greet you")).await?.text(),
        "hello you\n"
    );
    client.refresh_skills().await?;
    let second = client.stage_skills(&name, &["greet"]).await?;
    assert!(!second[0].unchanged && second[0].digest != first[0].digest);
    assert_eq!(
        run(client, &name, in_skill("greet you; ls"))
            .await?
            .text()
            .lines()
            .next(),
        Some("good day you")
    );

    // The older one is still to be had, by its digest.
    let old = format!("greet@{}", first[0].digest);
    client.stage_skills(&name, &[&old]).await?;
    assert_eq!(
        run(client, &name, in_skill("greet you")).await?.text(),
        "hello you\n"
    );
    daemon.stop().await
}

/// Makes a root with one valid skill and five invalid ones.
fn bad_root() -> Result<TempDir> {
    let root = root()?;
    skill(
        root.path(),
        "latin",
        b"---\nname: latin\ndescription: caf\xe9\0\n---\n",
    )?;
    skill(root.path(), "wordless", "---\nname: wordless\n---\n")?;
    skill(
        root.path(),
        "bad-name",
        "---\nname: ../etc\ndescription: Climbs.\n---\n",
    )?;
    skill(
        root.path(),
        "twin",
        "---\nname: greet\ndescription: Another one.\n---\n",
    )?;
    fs::create_dir(root.path().join("linked"))?;
    skill(
        root.path(),
        "linked",
        "---\nname: linked\ndescription: Reaches out.\n---\n",
    )?;
    std::os::unix::fs::symlink("/etc/passwd", root.path().join("linked/passwd"))?;
    Ok(root)
}

#[tokio::test]
async fn skills_that_cannot_be_used_are_listed_with_their_problem() -> Result<()> {
    let root = bad_root()?;
    let daemon = Daemon::start_with(Options::default().skills(root.path())).await?;
    let client = &daemon.client;
    let listed = client.list_skills(ListSkillsRequest::default()).await?;
    let all = format!("{listed:?}");
    let usable: Vec<&str> = listed
        .skills
        .iter()
        .filter(|skill| {
            matches!(
                skill.state(),
                SkillState::Loaded | SkillState::LoadedWithWarnings
            )
        })
        .map(|skill| skill.name.as_str())
        .collect();
    // A name that cannot be one costs a warning, and is never a path.
    assert_eq!(usable, ["skills/etc", "skills/greet"], "{all}");
    for code in [
        "skill.not_utf8",
        "skill.nul",
        "skill.no_description",
        "skill.name_changed",
        "skill.shadowed",
        "skill.link_outside",
    ] {
        ensure!(all.contains(code), "{code} is to be reported: {all}");
    }
    assert!(
        client
            .problems()
            .await?
            .iter()
            .any(|problem| problem.code == "skill.not_utf8")
    );
    daemon.stop().await
}

#[tokio::test]
async fn none_is_staged_when_one_cannot_be() -> Result<()> {
    let root = bad_root()?;
    let daemon = Daemon::start_with(Options::default().skills(root.path())).await?;
    let client = &daemon.client;
    let name = workspace(client).await?.name;
    for skill in ["latin", "wordless", "linked"] {
        let answer = client.stage_skills(&name, &["greet", skill]).await;
        expect_refusal(answer, Reason::SkillInvalid).with_context(|| skill.to_owned())?;
    }
    let there = run(client, &name, shell("ls $SKILLS_DIR")).await?;
    assert_eq!(there.text(), "", "all or none are staged");
    client.stage_skills(&name, &["greet"]).await?;
    assert_eq!(
        run(client, &name, in_skill("greet you")).await?.text(),
        "hello you\n"
    );
    daemon.stop().await
}

#[tokio::test]
async fn an_unknown_skill_is_answered_with_similar_names() -> Result<()> {
    let (daemon, name) = Daemon::with_workspace().await?;
    let client = &daemon.client;
    let answer = client.stage_skills(&name, &["csv-reprot"]).await;
    let failure = expect_refusal(answer, Reason::SkillNotFound)?;
    assert_eq!(failure.metadata["nearest"], "csv-report");
    for bad in ["../csv-report", "", "csv-report@sha256:zz", ".hidden"] {
        let answer = client.stage_skills(&name, &[bad]).await;
        expect_refusal(answer, Reason::InvalidRequest).with_context(|| bad.to_owned())?;
    }
    // One that exists and is not staged is not found by an exec either.
    let answer = run(client, &name, in_skill("true")).await;
    expect_refusal(answer, Reason::SkillNotFound)?;
    daemon.stop().await
}

#[tokio::test]
async fn skills_go_into_many_workspaces_at_once() -> Result<()> {
    let daemon = Daemon::start().await?;
    let client = &daemon.client;
    let names = ["csv-report", "python-math", "text-stats"];
    let jobs = (0..8).map(|_| async {
        let name = workspace(client).await?.name;
        let (first, second) = tokio::join!(
            client.stage_skills(&name, &names),
            client.stage_skills(&name, &names[1..])
        );
        let (first, second) = (first?, second?);
        assert_eq!(first[1].digest, second[0].digest);
        let commands = "ls $SKILLS_DIR; cat $SKILLS_DIR/*/SKILL.md | wc -l";
        let listed = run(client, &name, shell(commands)).await?;
        client.delete_workspace(&name).await?;
        anyhow::Ok(listed.text())
    });
    let listings = try_join_all(jobs).await?;
    assert!(
        listings[0].starts_with("csv-report\npython-math\ntext-stats\n"),
        "{listings:?}"
    );
    for listing in &listings {
        assert_eq!(listing, &listings[0]);
    }
    daemon.stop().await
}
