//! Failures of earlier systems, tried here: names that are paths or shell text, records that a command rewrites, links
//! that stop a skill, files that vanish while they are collected. docs/conformance.md lists all of them.

use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};

use anyhow::{Context, Result, ensure};
use serde_json::Value;
use skilld_client::v1::input_spec::Source;
use skilld_client::v1::{
    ExecSpec, InputSpec, ListSkillsRequest, Reason, RunExecRequest, SkillState, StageInputsRequest,
};
use skilld_client::{Client, Error};
use skilld_tests::exec::{run, shell, workspace};
use skilld_tests::files::{collect, globs, put, read};
use skilld_tests::{Daemon, Options, expect_refusal};
use tempfile::TempDir;

fn root() -> Result<TempDir> {
    let root = tempfile::tempdir()?;
    fs::set_permissions(root.path(), PermissionsExt::from_mode(0o755))?;
    fs::create_dir(root.path().join("skills"))?;
    Ok(root)
}

fn skill(root: &TempDir, folder: &str, name: &str) -> Result<std::path::PathBuf> {
    let dir = root.path().join("skills").join(folder);
    fs::create_dir_all(&dir)?;
    let text = format!("---\nname: {name:?}\ndescription: Does it.\n---\n# Body\n");
    fs::write(dir.join("SKILL.md"), text)?;
    Ok(dir)
}

fn options(root: &TempDir) -> Options {
    Options::default().skills(&root.path().join("skills"))
}

async fn staged(client: &Client, workspace: &str, inputs: Vec<InputSpec>) -> Result<Vec<String>> {
    let request = StageInputsRequest {
        workspace: workspace.to_owned(),
        inputs,
        ..StageInputsRequest::default()
    };
    let staged = client.stage_inputs(request).await?;
    let paths = staged
        .into_iter()
        .map(|staged| staged.file.unwrap_or_default().path);
    Ok(paths.collect())
}

/// Returns every file beneath a directory of the host with its bytes.
fn contents(dir: &Path) -> Result<Vec<(String, Vec<u8>)>> {
    let mut found = Vec::new();
    for entry in fs::read_dir(dir)? {
        let entry = entry?;
        found.push((
            entry.file_name().to_string_lossy().into_owned(),
            fs::read(entry.path())?,
        ));
    }
    found.sort();
    Ok(found)
}

#[tokio::test]
async fn a_skill_that_is_named_like_a_path_is_staged_beneath_skills_only() -> Result<()> {
    let root = root()?;
    // Wherever a name that is taken for a path would lead to from a slot's directory, or from the root.
    let victim = root.path().join("victim");
    fs::create_dir(&victim)?;
    fs::write(victim.join("file"), "canary")?;
    skill(&root, "up", "../../../victim")?;
    skill(&root, "absolute", &victim.display().to_string())?;
    let daemon = Daemon::start_with(options(&root)).await?;
    let client = &daemon.client;
    let beside = daemon.state_dir().join("slots/victim");
    fs::create_dir_all(&beside)?;
    fs::write(beside.join("file"), "canary")?;
    let listed = client
        .list_skills(ListSkillsRequest::default())
        .await?
        .skills;
    assert_eq!(listed.len(), 2);
    let name = workspace(client).await?.name;
    for skill in &listed {
        let id = skill.name.trim_start_matches("skills/");
        ensure!(
            !id.contains('/') && skill.state() == SkillState::LoadedWithWarnings,
            "{skill:?}"
        );
        client.stage_skills(&name, &[id]).await?;
        let there = shell(&format!("ls /workspace/skills/{id}/SKILL.md"));
        assert_eq!(
            run(client, &name, there).await?.exit_code(),
            Some(0),
            "{id}"
        );
    }
    for wanted in ["../../../victim", "..", "/etc", "a/../../b"] {
        let answer = client.stage_skills(&name, &[wanted]).await;
        expect_refusal(answer, Reason::InvalidRequest).context(wanted)?;
    }
    let canary = [("file".to_owned(), b"canary".to_vec())];
    assert_eq!(contents(&victim)?, canary);
    assert_eq!(contents(&beside)?, canary);
    fs::remove_dir_all(&beside)?;
    daemon.stop().await
}

/// Names of files that mean something to a shell.
const SHELL_TEXT: [&str; 8] = [
    "x'; touch /workspace/pwned; '",
    "x\"; touch /workspace/pwned; \"",
    "$(touch /workspace/pwned)",
    "`touch /workspace/pwned`",
    "a; touch pwned",
    "-rf",
    "a b  c ",
    "*",
];

#[tokio::test]
async fn no_name_is_ever_shell_text() -> Result<()> {
    let root = root()?;
    let dir = skill(&root, "s", "s")?;
    for name in SHELL_TEXT {
        let name = name.replace('/', ":");
        fs::write(dir.join(&name), "of the skill")?;
    }
    let daemon = Daemon::start_with(options(&root)).await?;
    let client = &daemon.client;
    let name = workspace(client).await?.name;
    client.stage_skills(&name, &["s"]).await?;
    for odd in SHELL_TEXT {
        let odd = odd.replace('/', ":");
        put(client, &name, &format!("work/{odd}"), "bytes").await?;
        let from = |from: String, to: String| InputSpec {
            source: Some(Source::From(from)),
            to,
            ..InputSpec::default()
        };
        let inputs = vec![
            from(
                format!("workspace://work/{odd}"),
                format!("work/copies/{odd}"),
            ),
            from(format!("skill://s/{odd}"), format!("work/skill/{odd}")),
            InputSpec {
                source: Some(Source::Data("data".into())),
                to: format!("out/{odd}"),
                ..InputSpec::default()
            },
        ];
        let paths = staged(client, &name, inputs).await?;
        assert_eq!(paths[0], format!("work/copies/{odd}"));
        for (path, bytes) in paths.iter().zip(["bytes", "of the skill", "data"]) {
            assert_eq!(read(client, &name, path).await?, bytes.as_bytes(), "{path}");
        }
    }
    let got = collect(client, &name, globs(["out/**"])).await?;
    assert_eq!(got.files.len(), SHELL_TEXT.len());
    // A name of the environment cannot be a command either.
    let bad = ExecSpec {
        env: [("A=1; touch /workspace/pwned; B".to_owned(), "1".to_owned())].into(),
        ..shell("true")
    };
    let request = RunExecRequest {
        workspace: name.clone(),
        spec: Some(bad),
        ..RunExecRequest::default()
    };
    let answer = client.run_exec(request).await.map(drop);
    expect_refusal(answer, Reason::InvalidRequest)?;
    let look = shell("find /workspace /tmp -name pwned | wc -l");
    assert_eq!(run(client, &name, look).await?.text(), "0\n");
    daemon.stop().await
}

#[tokio::test]
async fn a_command_cannot_rewrite_what_is_on_record_or_poison_a_skill() -> Result<()> {
    let root = root()?;
    let dir = skill(&root, "s", "s")?;
    fs::write(dir.join("run.sh"), "echo good\n")?;
    let daemon = Daemon::start_with(options(&root)).await?;
    let client = &daemon.client;
    let name = workspace(client).await?.name;
    client.stage_skills(&name, &["s"]).await?;
    let data = InputSpec {
        source: Some(Source::Data("input".into())),
        name: "a.txt".to_owned(),
        ..InputSpec::default()
    };
    staged(client, &name, vec![data]).await?;
    let before = read(client, &name, "metadata.json").await?;
    let attempts = r#"cd /workspace; n=0
try() { "$@" 2>/dev/null && { echo "$*"; n=$((n + 1)); }; }
forged='{"skills": {"s": "0"}, "inputs": []}'
for file in metadata.json skills/.metadata.json skills/s/SKILL.md skills/s/run.sh; do
    try rm -f $file; try chmod 777 $file; try mv $file /tmp/x; try sh -c "echo '$forged' > $file"; try truncate -s 0 $file
done
try rm -rf skills/s; try mv skills/s skills/t; try mkdir skills/new; try ln -s /tmp skills/link; try touch skills/s/new
try mount -t tmpfs none skills; try umount metadata.json
echo '{}' > mine; try mv mine metadata.json; try ln -sf mine metadata.json; try ln -f mine metadata.json
echo $n"#;
    let outcome = run(client, &name, shell(attempts)).await?;
    assert_eq!(outcome.text(), "0\n");
    // An input cannot take its place either, nor what is in a folder that is staged.
    for to in ["metadata.json", "/workspace/./metadata.json", "./"] {
        let spec = InputSpec {
            source: Some(Source::Data("{}".into())),
            name: "metadata.json".to_owned(),
            to: to.to_owned(),
            ..InputSpec::default()
        };
        let request = StageInputsRequest {
            workspace: name.clone(),
            inputs: vec![spec],
            ..StageInputsRequest::default()
        };
        let answer = client.stage_inputs(request).await;
        let failure = expect_refusal(answer, Reason::ReadOnly)?;
        assert!(failure.message.contains("only the daemon"), "{failure:?}");
    }
    let view = client.get_workspace(&name).await?;
    assert_eq!((view.skills.len(), view.inputs.len()), (1, 1));
    let again = client.stage_skills(&name, &["s"]).await?;
    ensure!(again[0].unchanged, "{again:?}");
    let metadata: Value = serde_json::from_slice(&before)?;
    assert_eq!(metadata["skills"]["s"], again[0].digest);
    let kept = shell("cat /workspace/metadata.json");
    assert_eq!(run(client, &name, kept).await?.stdout, before);
    let same = shell("cmp /workspace/metadata.json /workspace/skills/.metadata.json");
    assert_eq!(run(client, &name, same).await?.exit_code(), Some(0));
    let good = ExecSpec {
        skill: "s".to_owned(),
        ..shell("bash run.sh")
    };
    assert_eq!(run(client, &name, good).await?.text(), "good\n");
    daemon.stop().await
}

#[tokio::test]
async fn links_to_folders_and_dangling_ones_do_not_stop_a_skill() -> Result<()> {
    let root = root()?;
    let dir = skill(&root, "s", "s")?;
    fs::create_dir_all(dir.join("v1/data"))?;
    fs::write(dir.join("v1/data/x"), "x")?;
    fs::write(
        dir.join("run.sh"),
        "cat current/data/x; readlink current gone\n",
    )?;
    symlink("v1", dir.join("current"))?;
    symlink("v2/none", dir.join("gone"))?;
    symlink("circle", dir.join("circle"))?;
    let daemon = Daemon::start_with(options(&root)).await?;
    let client = &daemon.client;
    let name = workspace(client).await?.name;
    let first = client.stage_skills(&name, &["s"]).await?;
    let spec = || ExecSpec {
        skill: "s".to_owned(),
        ..shell("bash run.sh")
    };
    assert_eq!(run(client, &name, spec()).await?.text(), "xv1\nv2/none\n");
    // The mode of a file is part of what it is, and so is where a link leads.
    fs::set_permissions(dir.join("run.sh"), PermissionsExt::from_mode(0o755))?;
    client.refresh_skills().await?;
    let second = client.stage_skills(&name, &["s"]).await?;
    assert_ne!(second[0].digest, first[0].digest);
    assert_eq!(
        run(
            client,
            &name,
            ExecSpec {
                skill: "s".to_owned(),
                ..shell("test -x run.sh")
            }
        )
        .await?
        .exit_code(),
        Some(0)
    );
    fs::remove_file(dir.join("gone"))?;
    symlink("v1/data", dir.join("gone"))?;
    client.refresh_skills().await?;
    client.stage_skills(&name, &["s"]).await?;
    assert_eq!(run(client, &name, spec()).await?.text(), "xv1\nv1/data\n");
    daemon.stop().await
}

#[tokio::test]
async fn a_name_with_blanks_around_it_is_refused_and_makes_nothing() -> Result<()> {
    let root = root()?;
    skill(&root, "demo", "demo")?;
    let daemon = Daemon::start_with(options(&root)).await?;
    let client = &daemon.client;
    let name = workspace(client).await?.name;
    let look = || shell("cd /workspace/skills; find . -mindepth 1 ! -name .metadata.json | sort");
    for padded in [" demo ", "demo ", " demo", "demo\n", "**demo**", "`demo`"] {
        let answer = client.stage_skills(&name, &[padded]).await;
        expect_refusal(answer, Reason::InvalidRequest).context(padded)?;
        // What is not staged is not run in a folder that was just made for it.
        let spec = ExecSpec {
            skill: padded.to_owned(),
            ..shell("true")
        };
        let ran = run(client, &name, spec).await;
        ensure!(ran.is_err(), "{padded:?}: {ran:?}");
    }
    let spec = ExecSpec {
        skill: "demo".to_owned(),
        ..shell("true")
    };
    let ran = run(client, &name, spec)
        .await
        .err()
        .context("it is not staged")?;
    let reason = ran.downcast_ref::<Error>().and_then(Error::reason);
    assert_eq!(reason, Some(Reason::SkillNotFound), "{ran:?}");
    assert_eq!(run(client, &name, look()).await?.text(), "");
    daemon.stop().await
}

#[tokio::test]
async fn a_file_that_vanishes_while_it_is_collected_costs_no_other_one() -> Result<()> {
    let (daemon, name) = Daemon::with_workspace().await?;
    let client = &daemon.client;
    let commands = "echo steady > $OUTPUT_DIR/steady; echo z > $OUTPUT_DIR/zz";
    run(client, &name, shell(commands)).await?;
    let restless = r"
import os, time
os.chdir('/workspace/out')
for n in range(20_000):
    open('flick', 'w').close(); os.rename('flick', ' flick\n'); os.mkdir('flick'); os.rmdir('flick'); os.unlink(' flick\n')
";
    let over = AtomicBool::new(false);
    let changing = async {
        let ran = run(
            client,
            &name,
            skilld_tests::exec::argv(["python3", "-c", restless]),
        )
        .await;
        over.store(true, Ordering::Relaxed);
        ran
    };
    let collecting = async {
        let mut calls = 0;
        while !over.load(Ordering::Relaxed) {
            let got = collect(client, &name, globs(["out/**"])).await?;
            assert_eq!(got.bytes("out/steady")?, b"steady\n");
            assert_eq!(got.bytes("out/zz")?, b"z\n");
            calls += 1;
        }
        anyhow::Ok(calls)
    };
    let (ran, calls) = tokio::try_join!(changing, collecting)?;
    assert_eq!(ran.exit_code(), Some(0), "{}", ran.error_text());
    ensure!(calls > 1, "{calls} calls");
    daemon.stop().await
}
