//! Inputs by reference: where they go, what they are, and which names they get.
//!
//! Docker: inputs from each source become files of a real container, where a command finds them.

use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::Path;

use anyhow::{Context, Result};
use skilld_client::Client;
use skilld_client::v1::input_spec::Content;
use skilld_client::v1::{ErrorReason, InputSpec, StageInputsRequest, StageMode, StagedInput};
use skilld_tests::exec::{run, shell, workspace};
use skilld_tests::files::{put, read, sha256};
use skilld_tests::{Daemon, DefaultDaemon, Options, expect_refusal};
use tempfile::TempDir;

fn reference(from: &str, to: &str) -> InputSpec {
    InputSpec {
        content: Some(Content::Source(from.to_owned())),
        path: to.to_owned(),
        ..InputSpec::default()
    }
}

fn bytes(name: &str, data: &'static [u8]) -> InputSpec {
    InputSpec {
        content: Some(Content::Data(data.into())),
        name: name.to_owned(),
        ..InputSpec::default()
    }
}

async fn stage<const N: usize>(
    client: &Client,
    workspace: &str,
    inputs: [InputSpec; N],
) -> Result<Vec<StagedInput>, skilld_client::Error> {
    let request = StageInputsRequest {
        workspace: workspace.to_owned(),
        inputs: inputs.into(),
        ..StageInputsRequest::default()
    };
    client.stage_inputs(request).await
}

fn paths(staged: &[StagedInput]) -> Vec<&str> {
    let file = |staged: &'_ StagedInput| staged.file.is_some();
    assert!(staged.iter().all(file), "{staged:?}");
    staged
        .iter()
        .filter_map(|staged| staged.file.as_ref())
        .map(|file| file.path.as_str())
        .collect()
}

/// Starts a daemon that may read a folder of the host.
async fn daemon_with(root: &Path) -> Result<Daemon> {
    let roots = format!("[\"{}\"]", root.display());
    Daemon::start_with(Options::default().set("files.host_roots", &roots)).await
}

/// Makes a folder with usual files of a host, and a secret beside it.
fn host() -> Result<TempDir> {
    let place = tempfile::tempdir()?;
    let root = place.path().join("data");
    fs::create_dir_all(root.join("set/deep/er"))?;
    fs::create_dir_all(root.join("set/empty"))?;
    fs::write(root.join("table.csv"), "a,b\n1,2\n")?;
    fs::write(root.join("set/one"), "one")?;
    fs::write(root.join("set/deep/er/two"), "two")?;
    fs::set_permissions(root.join("set/one"), fs::Permissions::from_mode(0o755))?;
    symlink("deep/er/two", root.join("set/stays"))?;
    symlink("../../secret", root.join("set/leaves"))?;
    symlink("../secret", root.join("out"))?;
    fs::write(place.path().join("secret"), "host canary")?;
    Ok(place)
}

#[tokio::test]
async fn inputs_arrive_from_every_source_with_their_bytes() -> Result<()> {
    let host = host()?;
    let root = host.path().join("data");
    let daemon = daemon_with(&root).await?;
    let client = &daemon.client;
    let name = workspace(client).await?.name;
    client.stage_skills(&name, &["text-stats"]).await?;
    put(client, &name, "work/tree/sub/x", "in the workspace").await?;
    let at = |path: &str| format!("host://{}/{path}", root.display());
    let inputs = [
        bytes("hello world.txt", b"hello"),
        reference(&at("table.csv"), ""),
        reference(&at("set"), "work/set"),
        reference("workspace://work/tree", "inputs/copy"),
        reference("skill://text-stats/SKILL.md", "out/"),
    ];
    let staged = stage(client, &name, inputs).await?;
    assert_eq!(
        paths(&staged),
        [
            "work/inputs/hello world.txt",
            "work/inputs/table.csv",
            "work/set",
            "work/inputs/copy",
            "out/SKILL.md"
        ]
    );
    let file = staged[1].file.as_ref().context("a file")?;
    assert_eq!((file.size_bytes, file.mode), (8, 0o644));
    assert_eq!(file.sha256, sha256(b"a,b\n1,2\n"));
    let folder = &staged[2];
    assert_eq!((folder.file_count, folder.size_bytes), (3, 6));
    assert!(folder.note.contains("left out 1"), "{}", folder.note);

    let seen = run(
        client,
        &name,
        shell("cd $WORK_DIR; cat 'inputs/hello world.txt'; find set | sort; readlink set/stays; stat -c %a set/one; cat inputs/copy/sub/x; grep -c . ../out/SKILL.md >&2; ls -A ../.stage"),
    )
    .await?;
    assert_eq!(
        seen.text(),
        "helloset\nset/deep\nset/deep/er\nset/deep/er/two\nset/empty\nset/one\nset/stays\ndeep/er/two\n755\nin the workspace"
    );
    assert_eq!(
        read(client, &name, "inputs/table.csv").await?,
        b"a,b\n1,2\n"
    );

    // On record: for whoever asks the API, for commands, and for the next daemon.
    let view = client.get_workspace(&name).await?;
    let recorded: Vec<_> = view
        .inputs
        .iter()
        .map(|input| (input.path.as_str(), input.source.as_str()))
        .collect();
    assert!(
        recorded.contains(&("work/set", at("set").as_str())),
        "{recorded:?}"
    );
    assert_eq!(recorded.len(), 5);
    let metadata = run(client, &name, shell("cat $WORKSPACE_DIR/metadata.json")).await?;
    let metadata: serde_json::Value = serde_json::from_str(&metadata.text())?;
    assert_eq!(metadata["inputs"].as_array().map(Vec::len), Some(5));
    daemon.stop().await
}

#[tokio::test]
async fn a_reference_or_place_that_leads_out_is_refused() -> Result<()> {
    let (daemon, name) = DefaultDaemon::with_workspace().await?;
    let client = &daemon.client;
    for (from, to, reason) in [
        ("host://etc/passwd", "", ErrorReason::InvalidRequest),
        ("file:///etc/passwd", "", ErrorReason::InvalidRequest),
        ("workspace://../x", "", ErrorReason::PathEscapes),
        ("skill://../../etc/passwd", "", ErrorReason::InvalidRequest),
        ("skill://text-stats/../../x", "", ErrorReason::PathEscapes),
        ("workspace://work", "../x", ErrorReason::PathEscapes),
        (
            "workspace://work",
            "inputs/../../../etc/x",
            ErrorReason::PathEscapes,
        ),
        ("workspace://work", "skills/x", ErrorReason::ReadOnly),
    ] {
        let staged = stage(client, &name, [reference(from, to)]).await;
        expect_refusal(staged, reason).with_context(|| format!("{from} → {to}"))?;
    }
    // The configuration lists no directory of the host.
    let staged = stage(client, &name, [reference("host:///etc/passwd", "")]).await;
    let failure = expect_refusal(staged, ErrorReason::PermissionDenied)?;
    assert!(
        failure.message.contains("files.host_roots"),
        "{}",
        failure.message
    );
    assert_eq!(client.get_workspace(&name).await?.inputs, []);
    daemon.stop().await
}

#[tokio::test]
async fn names_do_not_collide_and_the_same_input_is_not_staged_twice() -> Result<()> {
    let mut daemon = Daemon::start().await?;
    let client = daemon.client.clone();
    let name = workspace(&client).await?.name;
    let both = || {
        [
            bytes("C:\\data\\report.csv", b"1"),
            bytes("REPORT.csv", b"2"),
        ]
    };
    let staged = stage(&client, &name, both()).await?;
    assert_eq!(
        paths(&staged),
        ["work/inputs/report.csv", "work/inputs/REPORT_2.csv"]
    );
    assert!(!staged.iter().any(|staged| staged.unchanged));
    // The next turn of a conversation brings the same files, maybe to the next daemon.
    daemon.crash().await?;
    daemon.restart().await?;
    let client = daemon.client.clone();
    let again = stage(&client, &name, both()).await?;
    assert_eq!(paths(&again), paths(&staged));
    assert!(again.iter().all(|staged| staged.unchanged), "{again:?}");
    // What a command has changed, or removed, is staged again; other bytes of that name get another one.
    run(
        &client,
        &name,
        shell("cd $INPUTS_DIR; rm report.csv; echo changed > REPORT_2.csv"),
    )
    .await?;
    let again = stage(&client, &name, both()).await?;
    assert_eq!(paths(&again), paths(&staged));
    assert!(!again.iter().any(|staged| staged.unchanged), "{again:?}");
    assert_eq!(read(&client, &name, "inputs/REPORT_2.csv").await?, b"2");
    let other = stage(&client, &name, [bytes("report.csv", b"3")]).await?;
    assert_eq!(paths(&other), ["work/inputs/report_3.csv"]);
    assert_eq!(client.get_workspace(&name).await?.inputs.len(), 3);
    daemon.stop().await
}

#[tokio::test]
async fn workspace_files_and_skills_can_be_linked_as_inputs() -> Result<()> {
    let (daemon, name) = DefaultDaemon::with_workspace().await?;
    let client = &daemon.client;
    client.stage_skills(&name, &["text-stats"]).await?;
    put(client, &name, "work/big", "big").await?;
    let link = |from: &str, to: &str| InputSpec {
        mode: StageMode::Link.into(),
        ..reference(from, to)
    };
    let data = InputSpec {
        mode: StageMode::Link.into(),
        ..bytes("data", b"data")
    };
    let staged = stage(
        client,
        &name,
        [
            link("workspace://work/big", ""),
            link("skill://text-stats", "work/deep/skill"),
            data,
        ],
    )
    .await?;
    let modes: Vec<_> = staged.iter().map(StagedInput::mode).collect();
    assert_eq!(modes, [StageMode::Link, StageMode::Link, StageMode::Copy]);
    assert!(staged[2].note.contains("copied"), "{}", staged[2].note);
    let seen = run(client, &name, shell("cd $WORK_DIR; readlink inputs/big deep/skill; cat inputs/big; head -1 deep/skill/SKILL.md")).await?;
    assert_eq!(
        seen.text(),
        "../../work/big\n../../skills/text-stats\nbig---\n"
    );
    daemon.stop().await
}

#[tokio::test]
async fn requests_that_stage_at_once_do_not_mix() -> Result<()> {
    let (daemon, name) = DefaultDaemon::with_workspace().await?;
    let client = &daemon.client;
    let texts: [&'static [u8]; 8] = [b"0", b"1", b"2", b"3", b"4", b"5", b"6", b"7"];
    let staging = texts.map(|text| stage(client, &name, [bytes("same.txt", text)]));
    let staged = futures::future::try_join_all(staging).await?;
    for (staged, text) in staged.iter().zip(texts) {
        assert_eq!(read(client, &name, paths(staged)[0]).await?, text);
    }
    let listed = run(client, &name, shell("ls $INPUTS_DIR | wc -l")).await?;
    assert_eq!(listed.text(), "8\n");
    daemon.stop().await
}
