//! Failures of earlier systems, tried here: names that are paths or shell text, records that a command rewrites, links
//! that stop a skill, files that vanish while they are collected. docs/conformance.md lists all of them.
//!
//! Docker: the shell, the mounts and the file system of a real container resist names, commands and changes meanwhile.

use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};

use anyhow::{Result, ensure};
use serde_json::Value;
use skilld_client::Client;
use skilld_client::v1::input_spec::Content;
use skilld_client::v1::{ErrorReason, ExecSpec, InputSpec, RunExecRequest, StageInputsRequest};
use skilld_tests::exec::{argv, run, shell, workspace};
use skilld_tests::files::{collect, globs, put, read};
use skilld_tests::{Daemon, DefaultDaemon, Options, expect_refusal};
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
    for text in SHELL_TEXT {
        let name = text.replace('/', ":");
        fs::write(dir.join(&name), "of the skill")?;
    }
    let daemon = Daemon::start_with(options(&root)).await?;
    let client = &daemon.client;
    let name = workspace(client).await?.name;
    client.stage_skills(&name, &["s"]).await?;
    for text in SHELL_TEXT {
        let odd = text.replace('/', ":");
        put(client, &name, &format!("work/{odd}"), "bytes").await?;
        let from = |from: String, to: String| InputSpec {
            content: Some(Content::Source(from)),
            path: to,
            ..InputSpec::default()
        };
        let inputs = vec![
            from(
                format!("workspace://work/{odd}"),
                format!("work/copies/{odd}"),
            ),
            from(format!("skill://s/{odd}"), format!("work/skill/{odd}")),
            InputSpec {
                content: Some(Content::Data("data".into())),
                path: format!("out/{odd}"),
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
        parent: name.clone(),
        spec: Some(bad),
        ..RunExecRequest::default()
    };
    let answer = client.run_exec(request).await.map(drop);
    expect_refusal(answer, ErrorReason::InvalidRequest)?;
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
        content: Some(Content::Data("input".into())),
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
            content: Some(Content::Data("{}".into())),
            name: "metadata.json".to_owned(),
            path: to.to_owned(),
            ..InputSpec::default()
        };
        let request = StageInputsRequest {
            workspace: name.clone(),
            inputs: vec![spec],
            ..StageInputsRequest::default()
        };
        let answer = client.stage_inputs(request).await;
        let failure = expect_refusal(answer, ErrorReason::ReadOnly)?;
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
async fn a_file_that_vanishes_during_collection_costs_no_other_file() -> Result<()> {
    let (daemon, name) = DefaultDaemon::with_workspace().await?;
    let client = &daemon.client;
    let commands = "echo steady > $OUTPUT_DIR/steady; echo z > $OUTPUT_DIR/zz";
    run(client, &name, shell(commands)).await?;
    let restless = r"
import os
os.chdir('/workspace/out')
while not os.path.exists('/workspace/work/stop'):
    open('flick', 'w').close(); os.rename('flick', ' flick\n'); os.mkdir('flick'); os.rmdir('flick'); os.unlink(' flick\n')
    open('/workspace/work/begun', 'w').close()
";
    let changing = run(client, &name, argv(["python3", "-c", restless]));
    let collecting = async {
        let begun = shell("until [ -e $WORK_DIR/begun ]; do sleep 0.01; done");
        run(client, &name, begun).await?;
        for _ in 0..50 {
            let got = collect(client, &name, globs(["out/**"])).await?;
            assert_eq!(got.bytes("out/steady")?, b"steady\n");
            assert_eq!(got.bytes("out/zz")?, b"z\n");
        }
        put(client, &name, "work/stop", "").await?;
        anyhow::Ok(())
    };
    let (ran, ()) = tokio::try_join!(changing, collecting)?;
    assert_eq!(ran.exit_code(), Some(0), "{}", ran.error_text());
    daemon.stop().await
}
