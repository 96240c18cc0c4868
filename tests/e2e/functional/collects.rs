//! Collected files that become artifacts: on request, and when an exec ends without a client.
//!
//! Docker: files of real commands are saved while clients, the daemon, workspaces and containers go away.

use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use futures::StreamExt;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use skilld::access::TenantName;
use skilld::artifacts::{
    Artifact, ArtifactName, ArtifactScope as StoreScope, Artifacts, RequestedScope,
};
use skilld::config::Config;
use skilld::shutdown::Tasks;
use skilld_client::v1::collect_outputs_response::Payload;
use skilld_client::v1::exec_collection::State;
use skilld_client::v1::skipped_file::Reason as Skipped;
use skilld_client::v1::{
    CollectOutputsRequest, CollectSpec, ExecCollection, ExecSpec, ListExecsRequest, Reason,
    SaveAsArtifacts, WorkspaceLimits, WorkspaceState,
};
use skilld_client::{Client, Error};
use skilld_tests::exec::{run, shell, sized, start, workspace};
use skilld_tests::files::{collect, globs};
use skilld_tests::{Daemon, Options, docker, expect_refusal, wait};

use crate::functional::workspaces::expire_soon;

/// Time within which a collection has to end.
const PATIENCE: Duration = Duration::from_secs(120);

fn saved<const N: usize>(patterns: [&str; N], prefix: &str) -> CollectSpec {
    CollectSpec {
        save_as_artifacts: Some(SaveAsArtifacts {
            prefix: prefix.to_owned(),
            scope: Some(skilld_client::v1::ArtifactScope {
                app: "app".to_owned(),
                user: "ada".to_owned(),
                session: "s1".to_owned(),
            }),
        }),
        ..globs(patterns)
    }
}

/// Waits until the files of an exec are collected, and returns the result.
async fn collected(client: &Client, name: &str) -> Result<ExecCollection> {
    wait::until("an exec's outputs are collected", PATIENCE, async || {
        let collection = client.get_exec(name).await?.collection;
        Ok(collection.filter(|found| found.state() != State::Pending))
    })
    .await
}

/// Artifact store of a daemon, opened as a second daemon would.
struct Store {
    artifacts: Artifacts,
    scope: StoreScope,
}

impl Store {
    async fn of(state_dir: &Path) -> Result<Self> {
        let config = Config::from_toml("")?.config.artifacts;
        let tasks = Tasks::default();
        Ok(Self {
            artifacts: Artifacts::open(&config, state_dir, PATIENCE, (None, &tasks)).await?,
            scope: RequestedScope::parse("scope", "app", "ada", "s1")?
                .of_tenant(&TenantName::default()),
        })
    }

    async fn versions(&self, name: &str) -> Result<Vec<Artifact>> {
        let name = ArtifactName::parse("name", name)?;
        let page = self.artifacts.versions(&self.scope, &name, None, 100).await;
        Ok(page.map(|page| page.artifacts).unwrap_or_default())
    }

    async fn bytes(&self, name: &str) -> Result<Vec<u8>> {
        let name = ArtifactName::parse("name", name)?;
        let (_, mut chunks) = self.artifacts.load(&self.scope, &name, None).await?;
        let mut bytes = Vec::new();
        while let Some(chunk) = chunks.next().await {
            bytes.extend_from_slice(&chunk?);
        }
        Ok(bytes)
    }
}

#[tokio::test]
async fn collected_files_are_kept_as_artifacts_if_they_are_whole() -> Result<()> {
    let (daemon, name) = Daemon::with_workspace().await?;
    let client = &daemon.client;
    let make = "cd $OUTPUT_DIR; echo hi > a.md; head -c 700000 /dev/urandom > big; head -c 3000000 /dev/zero > cut; \
                ln -s a.md link; echo x > $'two\\nlines'; echo x > $'l\\xfc'; : > empty";
    run(client, &name, shell(make)).await?;
    let mut spec = saved(["$OUTPUT_DIR/**"], "run/");
    spec.max_file_bytes = 1 << 20;
    let got = collect(client, &name, spec.clone()).await?;
    let expected = ["a.md", "big", "empty"].map(|file| format!("artifact://run/out/{file}@0"));
    assert_eq!(got.summary.artifacts, expected);
    let skipped = got.skipped();
    assert_eq!(skipped.get("out/cut"), Some(&Skipped::NotWhole));
    assert_eq!(skipped.get("out/two\nlines"), Some(&Skipped::NotSaved));
    assert_eq!(skipped.get("out/l\u{fffd}"), Some(&Skipped::NotSaved));
    assert_eq!((skipped.len(), got.files.len()), (3, 7));
    let store = Store::of(&daemon.state_dir()).await?;
    for file in &got.files {
        let artifact = file.end.clone().unwrap_or_default().artifact;
        let Some(artifact) = artifact.strip_prefix("artifact://") else {
            continue;
        };
        let (artifact, version) = artifact.rsplit_once('@').context("a version")?;
        let path = &file.file.path;
        assert_eq!((artifact, version), (format!("run/{path}").as_str(), "0"));
        assert!(store.bytes(artifact).await? == file.data, "{path}");
    }
    let versions = store.versions("run/out/a.md").await?;
    let mime = versions.first().map(|first| first.mime_type.as_str());
    assert_eq!(mime, Some("text/markdown"));
    assert!(store.versions("run/out/cut").await?.is_empty(), "a half");
    assert!(store.versions("run/out/link").await?.is_empty());
    let again = collect(client, &name, spec.clone()).await?;
    let second = again.summary.artifacts.first().map(String::as_str);
    assert_eq!(second, Some("artifact://run/out/a.md@1"));
    daemon.stop().await
}

#[tokio::test]
async fn the_files_of_an_exec_are_saved_once_however_often_they_are_collected() -> Result<()> {
    let (daemon, name) = Daemon::with_workspace().await?;
    let client = &daemon.client;
    let make = || shell("cd $OUTPUT_DIR; echo same > a; echo $RANDOM > b");
    for version in 0..2 {
        let ran = run(client, &name, make()).await?;
        let mut spec = saved(["out/*"], "");
        spec.changed_since_exec = ran.name;
        let expected = ["a", "b"].map(|file| format!("artifact://out/{file}@{version}"));
        for _ in 0..2 {
            let got = collect(client, &name, spec.clone()).await?;
            assert_eq!(got.summary.artifacts, expected);
        }
    }
    let store = Store::of(&daemon.state_dir()).await?;
    assert_eq!(store.versions("out/a").await?.len(), 2, "one of each exec");
    daemon.stop().await
}

#[tokio::test]
async fn a_client_that_goes_away_leaves_whole_artifacts_only() -> Result<()> {
    let mut daemon = Daemon::start().await?;
    let client = daemon.client.clone();
    let name = workspace(&client).await?.name;
    // Each collection takes longer than the client takes to disconnect.
    let make = "cd $OUTPUT_DIR && echo hi > a && truncate -s 100M b{0..9} && echo hi > c";
    assert_eq!(run(&client, &name, shell(make)).await?.exit_code(), Some(0));
    let mut spec = saved(["out/**"], "");
    (spec.max_file_bytes, spec.max_total_bytes) = (1 << 30, 1 << 30);
    let request = CollectOutputsRequest {
        workspace: name.clone(),
        spec: Some(spec),
    };
    let mut messages = client.collect(request).await?;
    loop {
        let message = messages.next().await?.context("a message")?;
        if matches!(message.payload, Some(Payload::FileEnd(_))) {
            break;
        }
    }
    drop(messages);
    // The daemon's end waits for all collections in flight.
    daemon.signal(Signal::SIGTERM)?;
    assert_eq!(daemon.wait().await?, Some(0));
    let store = Store::of(&daemon.state_dir()).await?;
    assert_eq!(store.versions("out/a").await?.len(), 1);
    for number in 0..10 {
        let versions = store.versions(&format!("out/b{number}")).await?;
        let whole = |one: &Artifact| one.size == 100 << 20;
        assert!(versions.iter().all(whole), "half of b{number}");
    }
    assert!(store.versions("out/c").await?.is_empty());
    daemon.stop().await
}

#[tokio::test]
async fn what_an_exec_leaves_is_collected_without_anyone_there() -> Result<()> {
    // A straggler that ends by itself ends the grace, so a long one costs no time.
    let options = Options::default().set("execs.leak_grace", "5m");
    let daemon = Daemon::start_with(options).await?;
    let client = &daemon.client;
    let workspace = workspace(client).await?.name;
    let old = shell("echo old > $OUTPUT_DIR/old; sleep 0.02");
    run(client, &workspace, old).await?;
    // What a straggler writes within the leak grace counts, and so does what a failed command wrote.
    let text = "echo one > $OUTPUT_DIR/one; echo log > $RUN_DIR/log; \
                (sleep 0.1; echo late > $OUTPUT_DIR/late) & exit 3";
    let mut spec = shell(text);
    spec.collect = Some(saved(["out/**", "$RUN_DIR/*"], "job/"));
    let started = start(client, &workspace, "job", spec.clone()).await?;
    let effective = started.effective_spec.and_then(|spec| spec.collect);
    let effective = effective.context("the request")?;
    assert_eq!(effective.globs, ["out/**", "runs/job/*"]);
    let name = format!("{workspace}/execs/job");
    assert_eq!(effective.changed_since_exec, name);
    let collection = collected(client, &name).await?;
    assert_eq!(collection.state(), State::Done, "{collection:?}");
    let expected = ["out/late", "out/one", "runs/job/log"];
    let expected = expected.map(|path| format!("artifact://job/{path}@0"));
    assert_eq!(collection.summary.unwrap_or_default().artifacts, expected);

    // The same request is the same exec: nothing is collected twice.
    start(client, &workspace, "job", spec).await?;
    let request = ListExecsRequest {
        workspace: workspace.clone(),
        ..ListExecsRequest::default()
    };
    let listed = client.list_execs(request).await?.execs;
    let listed = listed.into_iter().find(|exec| exec.name == name);
    let listed = listed.and_then(|exec| exec.collection).context("told")?;
    assert_eq!(listed.state(), State::Done);
    let store = Store::of(&daemon.state_dir()).await?;
    assert_eq!(store.versions("job/out/one").await?.len(), 1);
    assert_eq!(store.bytes("job/out/late").await?, b"late\n");
    assert!(store.versions("job/out/old").await?.is_empty());
    daemon.stop().await
}

#[tokio::test]
async fn on_exit_collection_over_a_quota_fails_and_says_so() -> Result<()> {
    // A version of two bytes, with its files and their directories.
    const SMALL: i64 = 2 + 4 * 4096;
    const LIMIT: i64 = 2 * SMALL + 1000;
    let dir = tempfile::tempdir()?;
    let tenants = format!(
        "[tenants.a]\nartifact_bytes = \"{LIMIT}B\"\n[[peers]]\nuid = {}\ntenant = \"a\"\nroles = [\"admin\"]\n",
        nix::unistd::geteuid()
    );
    let file = dir.path().join("tenants.toml");
    std::fs::write(&file, tenants)?;
    let options = Options::default().set("auth.tenants_file", &file.display().to_string());
    let daemon = Daemon::start_with(options).await?;
    let client = &daemon.client;
    let workspace = workspace(client).await?.name;
    let mut spec = shell("cd $OUTPUT_DIR; echo a > a; head -c 5000 /dev/zero > big; echo c > c");
    spec.collect = Some(saved(["out/**"], ""));
    start(client, &workspace, "job", spec).await?;
    let collection = collected(client, &format!("{workspace}/execs/job")).await?;
    assert_eq!(collection.state(), State::Failed, "{collection:?}");
    let error = format!("tenant a has used its quota of artifact_bytes: {SMALL} of {LIMIT}");
    assert_eq!(collection.error, error);
    let summary = collection.summary.unwrap_or_default();
    // The others fit, and were saved.
    assert_eq!(
        summary.artifacts,
        ["artifact://out/a@0", "artifact://out/c@0"]
    );
    let skipped = summary.skipped.first().context("the big one")?;
    assert_eq!(
        (skipped.path.as_str(), skipped.reason()),
        ("out/big", Skipped::QuotaExceeded)
    );
    let usage = client.get_usage().await?.resources;
    let bytes = usage.iter().find(|it| it.resource == "artifact_bytes");
    let bytes = bytes.map(|it| (it.used, it.limit));
    assert_eq!(bytes, Some((2 * SMALL, Some(LIMIT))));
    daemon.stop().await
}

#[tokio::test]
async fn a_restart_collects_what_ended_meanwhile_and_once() -> Result<()> {
    let mut daemon = Daemon::start().await?;
    let client = daemon.client.clone();
    let workspace = workspace(&client).await?.name;
    let mut spec = shell(
        "echo first > $OUTPUT_DIR/first; until [ -e $WORK_DIR/go ]; do sleep 0.01; done; echo late > $OUTPUT_DIR/late",
    );
    spec.collect = Some(saved(["out/**"], ""));
    start(&client, &workspace, "job", spec).await?;
    let name = format!("{workspace}/execs/job");
    ensure!(
        client.get_exec(&name).await?.collection.is_none(),
        "it runs"
    );
    let container = daemon.container(&workspace)?;
    daemon.crash().await?;
    let go = "touch /workspace/work/go; until [ -s /workspace/out/late ]; do sleep 0.01; done";
    let gone_on = tokio::process::Command::new("docker")
        .args(["exec", &container, "bash", "-c", go])
        .output()
        .await?;
    ensure!(gone_on.status.success(), "{gone_on:?}");
    daemon.restart().await?;
    let collection = collected(&daemon.client, &name).await?;
    let expected = ["artifact://out/first@0", "artifact://out/late@0"];
    assert_eq!(collection.summary.unwrap_or_default().artifacts, expected);
    daemon.crash().await?;
    daemon.restart().await?;
    let again = collected(&daemon.client, &name).await?;
    assert_eq!(again.state(), State::Done);
    let store = Store::of(&daemon.state_dir()).await?;
    assert_eq!(store.versions("out/late").await?.len(), 1);
    daemon.stop().await
}

#[tokio::test]
async fn a_workspace_ends_after_its_outputs_are_collected() -> Result<()> {
    let (daemon, deleted) = Daemon::with_workspace().await?;
    let client = &daemon.client;
    let expired = workspace(client).await?.name;
    for (workspace, prefix) in [(&deleted, "deleted/"), (&expired, "expired/")] {
        let mut spec = shell("echo x > $OUTPUT_DIR/x; sleep 600");
        spec.collect = Some(saved(["out/**"], prefix));
        start(client, workspace, "job", spec).await?;
        let written = shell("until [ -s $OUTPUT_DIR/x ]; do sleep 0.01; done");
        run(client, workspace, written).await?;
    }
    expire_soon(client, &expired).await?;
    client.delete_workspace(&deleted).await?;
    let store = Store::of(&daemon.state_dir()).await?;
    assert_eq!(store.versions("deleted/out/x").await?.len(), 1);
    wait::until(
        "the other workspace has expired",
        PATIENCE,
        async || match client.get_workspace(&expired).await {
            Err(Error::Status(_)) => Ok(Some(())),
            other => other.map(|_| None).map_err(Into::into),
        },
    )
    .await?;
    assert_eq!(store.versions("expired/out/x").await?.len(), 1);
    daemon.stop().await
}

/// Command that leaves more files than can be saved within a test's time limit: a small one, then 1.6 GB of sparse
/// files.
const MUCH: &str = "echo first > $OUTPUT_DIR/a; for n in 1 2 3 4 5 6 7 8; do truncate -s 200M $OUTPUT_DIR/b$n; done";

fn much() -> ExecSpec {
    let mut collect = saved(["out/**"], "much/");
    (collect.max_file_bytes, collect.max_total_bytes) = (1 << 30, 4 << 30);
    ExecSpec {
        collect: Some(collect),
        ..shell(MUCH)
    }
}

/// Returns how many of the files of `much` are artifacts, after checking that each is whole.
async fn much_saved(store: &Store) -> Result<usize> {
    let mut found = 0;
    for (name, size) in std::iter::once(("a".to_owned(), 6))
        .chain((1..=8).map(|number| (format!("b{number}"), 200 << 20)))
    {
        let versions = store.versions(&format!("much/out/{name}")).await?;
        ensure!(versions.len() <= 1, "{name}: {versions:?}");
        ensure!(versions.iter().all(|one| one.size == size), "{versions:?}");
        found += versions.len();
    }
    Ok(found)
}

#[tokio::test]
async fn a_collection_that_takes_too_long_fails_and_keeps_what_was_saved() -> Result<()> {
    let options = Options::default().set("files.collect_on_exit_timeout", "100ms");
    let daemon = Daemon::start_with(options).await?;
    let client = &daemon.client;
    let workspace = workspace(client).await?.name;
    start(client, &workspace, "job", much()).await?;
    let collection = collected(client, &format!("{workspace}/execs/job")).await?;
    assert_eq!(collection.state(), State::Failed, "{collection:?}");
    ensure!(
        collection.error.contains("longer than 100ms"),
        "{collection:?}"
    );
    let store = Store::of(&daemon.state_dir()).await?;
    let told = collection.summary.context("what was saved")?.artifacts;
    let there = much_saved(&store).await?;
    ensure!(there < 9, "all of it was saved in time");
    // An artifact that was being installed at that moment may exist without being reported.
    ensure!(
        (told.len()..=told.len() + 1).contains(&there),
        "{told:?}, {there}"
    );
    // The collection stays failed and does not keep the workspace from being deleted.
    let again = collected(client, &format!("{workspace}/execs/job")).await?;
    assert_eq!(again.error, collection.error);
    client.delete_workspace(&workspace).await?;
    daemon.stop().await
}

#[tokio::test]
async fn a_guest_that_is_lost_leaves_whole_artifacts_only_and_no_wait() -> Result<()> {
    let daemon = Daemon::start().await?;
    let client = &daemon.client;
    let store = Store::of(&daemon.state_dir()).await?;
    // Before there is anything to collect, and in the middle of it, where its guest is slow: however long this test
    // stands still after the first file, there are further ones.
    let slow = WorkspaceLimits {
        cpu_millis: 100,
        ..WorkspaceLimits::default()
    };
    let (running, collecting) = (workspace(client).await?.name, sized(client, slow).await?);
    let mut spec = shell("echo x > $OUTPUT_DIR/x; sleep 600");
    spec.collect = Some(saved(["out/**"], "running/"));
    start(client, &running, "job", spec).await?;
    let written = shell("until [ -s $OUTPUT_DIR/x ]; do sleep 0.01; done");
    run(client, &running, written).await?;
    start(client, &collecting, "job", much()).await?;
    wait::until("the first one is saved", PATIENCE, async || {
        Ok((much_saved(&store).await? > 0).then_some(()))
    })
    .await?;
    for workspace in [&running, &collecting] {
        let pid = docker::pid(&daemon.container(workspace)?).await?;
        kill(Pid::from_raw(pid.context("it runs")?), Signal::SIGKILL)?;
    }
    for workspace in [&running, &collecting] {
        wait::until("the loss is told", PATIENCE, async || {
            let now = client.get_workspace(workspace).await?;
            Ok((now.state() == WorkspaceState::Failed).then_some(()))
        })
        .await?;
        // The daemon reports no result of an exec whose end it did not see.
        let gone = client.get_exec(&format!("{workspace}/execs/job")).await;
        expect_refusal(gone, Reason::WorkspaceNotReady)?;
    }
    wait::until("both collections are given up", PATIENCE, async || {
        let log = daemon.log();
        let ended = log
            .lines()
            .filter(|line| line.contains("collected the files of an exec"));
        let failed = ended.filter(|line| line.contains("Failed"));
        Ok((failed.count() == 2).then_some(()))
    })
    .await?;
    let there = much_saved(&store).await?;
    ensure!((1..9).contains(&there), "{there}");
    assert!(store.versions("running/out/x").await?.is_empty());
    for workspace in [&running, &collecting] {
        client.delete_workspace(workspace).await?;
    }
    // The end proves that no slot's directory came back with a note in it.
    daemon.stop().await
}
