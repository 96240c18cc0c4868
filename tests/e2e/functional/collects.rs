//! Collected files that become artifacts.
//!
//! Docker: files of real commands are saved while clients and containers go away.

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
use skilld_client::v1::{
    CollectOutputsRequest, CollectSpec, ErrorReason, SaveAsArtifacts, SkipReason as Skipped,
};
use skilld_tests::exec::{run, shell, workspace};
use skilld_tests::files::{collect, globs};
use skilld_tests::{Daemon, docker};

/// Time within which the store has to answer.
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
            ..SaveAsArtifacts::default()
        }),
        ..globs(patterns)
    }
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
async fn files_of_an_exec_are_saved_once_over_many_collections() -> Result<()> {
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

/// Command that leaves a small file and then 1.6 GB of sparse files, more than a connection holds.
const MUCH: &str = "echo first > $OUTPUT_DIR/a; for n in 1 2 3 4 5 6 7 8; do truncate -s 200M $OUTPUT_DIR/b$n; done";

/// Returns how many of the files of [`MUCH`] are artifacts, after checking that each is whole.
async fn count_saved(store: &Store) -> Result<usize> {
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
async fn a_guest_that_is_lost_leaves_whole_artifacts_only() -> Result<()> {
    let (daemon, name) = Daemon::with_workspace().await?;
    let client = &daemon.client;
    run(client, &name, shell(MUCH)).await?;
    let mut spec = saved(["out/**"], "much/");
    (spec.max_file_bytes, spec.max_total_bytes) = (1 << 30, 4 << 30);
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
    let pid = docker::pid(&daemon.container(&name)?).await?;
    kill(Pid::from_raw(pid.context("it runs")?), Signal::SIGKILL)?;
    let lost = loop {
        match messages.next().await {
            Ok(message) => ensure!(message.is_some(), "it ended without an error"),
            Err(error) => break error,
        }
    };
    assert_eq!(lost.reason(), Some(ErrorReason::GuestLost), "{lost}");
    let store = Store::of(&daemon.state_dir()).await?;
    let there = count_saved(&store).await?;
    ensure!((1..9).contains(&there), "{there}");
    client.delete_workspace(&name).await?;
    daemon.stop().await
}
