//! Artifacts in a bucket of an S3 server that is not ours: `s3.py` beside this file.

use std::os::unix::fs::PermissionsExt;
use std::process::Stdio;

use anyhow::{Context, Result};
use serde_json::Value;
use skilld_client::v1::{
    ArtifactScope, DeleteArtifactRequest, ErrorReason, ListArtifactVersionsRequest,
    ListArtifactsRequest, LoadArtifactRequest,
};
use skilld_client::{Client, RetryPolicy, SaveTarget};
use skilld_tests::exec::{run, shell, workspace};
use skilld_tests::{Daemon, Options, binaries, expect_refusal, wait};
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader, Lines};
use tokio::process::{Child, ChildStdin, ChildStdout, Command};

use crate::foreign::{LIMIT, venv};

const KEY_ID: &str = "key-id-of-this-test";
const SECRET: &str = "secret-of-this-test";

/// S3 server. Dropping the value ends its process.
struct S3 {
    _child: Child,
    stdin: ChildStdin,
    stdout: Lines<BufReader<ChildStdout>>,
    port: u16,
}

impl S3 {
    async fn start(args: &[&str]) -> Result<Self> {
        let mut child = Command::new(venv::program("python").await?)
            .arg("-B")
            .arg(binaries::repository().join("tests/e2e/foreign/s3.py"))
            .args(args)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .kill_on_drop(true)
            .spawn()?;
        let stdin = child.stdin.take().context("stdin")?;
        let mut stdout = BufReader::new(child.stdout.take().context("stdout")?).lines();
        let port = tokio::time::timeout(LIMIT, stdout.next_line())
            .await??
            .context("it says its port")?
            .parse()?;
        Ok(Self {
            _child: child,
            stdin,
            stdout,
            port,
        })
    }

    /// Sends a command word to the server and returns its answer.
    async fn ask(&mut self, word: &str) -> Result<String> {
        self.stdin.write_all(format!("{word}\n").as_bytes()).await?;
        let line = tokio::time::timeout(LIMIT, self.stdout.next_line()).await??;
        line.context("it has ended")
    }

    async fn keys(&mut self) -> Result<Vec<String>> {
        let answer: Value = serde_json::from_str(&self.ask("keys").await?)?;
        let keys = answer.as_array().context("keys")?;
        Ok(keys
            .iter()
            .filter_map(|key| key.as_str().map(ToOwned::to_owned))
            .collect())
    }

    /// Settings of a daemon that keeps its artifacts in this bucket and has no warm containers.
    fn options(&self) -> Options {
        Options::default()
            .set("pools.default.warm", "0")
            .set("artifacts.url", "s3://skilld/pre/fix")
            .set(
                "artifacts.endpoint",
                &format!("http://127.0.0.1:{}", self.port),
            )
            .set("artifacts.allow_http", "true")
    }
}

/// Adds the credentials to the daemon's environment.
fn known(mut options: Options) -> Options {
    let pairs = [
        ("AWS_ACCESS_KEY_ID", KEY_ID),
        ("AWS_SECRET_ACCESS_KEY", SECRET),
    ]
    .map(|(name, value)| (name.to_owned(), value.to_owned()));
    options.env.extend(pairs);
    options
}

fn target(name: &str) -> SaveTarget {
    SaveTarget::new(name, ArtifactScope::default())
}

async fn load(client: &Client, name: &str, version: Option<i64>) -> Result<Vec<u8>> {
    let request = LoadArtifactRequest {
        name: name.to_owned(),
        version,
        ..Default::default()
    };
    let mut reader = client.load_artifact(request).await?;
    let mut data = Vec::new();
    while let Some(piece) = reader.next().await? {
        data.extend_from_slice(&piece);
    }
    Ok(data)
}

async fn delete(client: &Client, name: &str) -> Result<()> {
    let request = DeleteArtifactRequest {
        name: name.to_owned(),
        ..Default::default()
    };
    Ok(client.delete_artifact(request).await?)
}

#[tokio::test]
async fn artifacts_in_a_bucket_are_shared_by_daemons_and_gapless() -> Result<()> {
    let mut s3 = S3::start(&[]).await?;
    let dir = tempfile::tempdir()?;
    let file = dir.path().join("credentials");
    std::fs::write(
        &file,
        format!("# ours\nAWS_ACCESS_KEY_ID={KEY_ID}\nexport AWS_SECRET_ACCESS_KEY='{SECRET}'\n"),
    )?;
    std::fs::set_permissions(&file, PermissionsExt::from_mode(0o600))?;
    let one = Daemon::start_with(known(s3.options())).await?;
    let by_file = s3
        .options()
        .set("artifacts.credentials_file", &file.display().to_string());
    let two = Daemon::start_with(by_file).await?;
    assert_eq!(
        s3.keys().await?,
        Vec::<String>::new(),
        "the probes are gone"
    );

    // Binary, nothing, and more than two parts of 8 MiB.
    let large: Vec<u8> = (0..20_000_001_u32).map(|n| (n / 7 % 251) as u8).collect();
    let all = [b"\0\xff binary".to_vec(), Vec::new(), large];
    for (version, data) in (0..).zip(&all) {
        let source = std::io::Cursor::new(data.clone());
        let saved = one.client.save_artifact(target("dir/a"), source).await?;
        assert_eq!(saved.version, version);
        assert!(
            load(&two.client, "dir/a", None).await? == *data,
            "version {version}"
        );
    }
    assert!(load(&two.client, "dir/a", Some(0)).await? == all[0]);

    let saves = (0..24_u8).map(|n| {
        let client = if n % 2 == 0 { &one.client } else { &two.client };
        async move {
            client
                .save_artifact(target("same"), std::io::Cursor::new([n]))
                .await
        }
    });
    let saved: Result<Vec<_>, _> = futures::future::join_all(saves).await.into_iter().collect();
    let mut versions: Vec<i64> = saved?.iter().map(|saved| saved.version).collect();
    versions.sort_unstable();
    assert_eq!(versions, (0..24).collect::<Vec<_>>());

    let long = "\u{e9}".repeat(256);
    for name in ["A", "a", "user:x", "%2f", long.as_str()] {
        one.client.save_artifact(target(name), &b"x"[..]).await?;
    }
    pages(
        &two.client,
        &["%2f", "A", "a", "dir/a", "same", "user:x", &long],
    )
    .await?;
    let newest = saved_last(&two.client, "same").await?;
    assert_eq!(newest, (10..24).collect::<Vec<_>>());
    for name in ["%2f", "A", "a", "dir/a", "same", "user:x", &long] {
        delete(&two.client, name).await?;
    }
    assert_eq!(s3.keys().await?, Vec::<String>::new());
    assert_eq!(s3.ask("uploads").await?, "0");
    nothing_of_the_credentials_shows(&one).await?;
    one.stop().await?;
    two.stop().await
}

/// Lists all names in pages of two.
async fn pages(client: &Client, expected: &[&str]) -> Result<()> {
    let (mut found, mut request) = (Vec::new(), ListArtifactsRequest::default());
    request.page_size = 2;
    loop {
        let page = client.list_artifacts(request.clone()).await?;
        found.extend(page.artifacts.into_iter().map(|artifact| artifact.name));
        if page.next_page_token.is_empty() {
            break;
        }
        request.page_token = page.next_page_token;
    }
    let names: Vec<String> = expected
        .iter()
        .map(|name| format!("artifacts/{name}"))
        .collect();
    assert_eq!(found, names);
    Ok(())
}

/// Lists the versions from 10 on.
async fn saved_last(client: &Client, name: &str) -> Result<Vec<i64>> {
    let request = ListArtifactVersionsRequest {
        parent: name.to_owned(),
        page_token: "9".to_owned(),
        ..Default::default()
    };
    let listed = client.list_artifact_versions(request).await?;
    Ok(listed
        .artifacts
        .iter()
        .map(|artifact| artifact.version)
        .collect())
}

async fn nothing_of_the_credentials_shows(daemon: &Daemon) -> Result<()> {
    let name = workspace(&daemon.client).await?.name;
    let seen = run(
        &daemon.client,
        &name,
        shell("env; tr '\\0' '\\n' < /proc/1/environ || true"),
    )
    .await?;
    let effective = binaries::skilld()?
        .arg("--check")
        .envs(daemon.settings())
        .output()?;
    let effective = String::from_utf8(effective.stdout)?;
    assert!(effective.contains("s3://skilld/pre/fix"), "{effective}");
    for text in [daemon.log(), seen.text(), effective] {
        for word in [KEY_ID, SECRET, "AWS_"] {
            let shown = text
                .lines()
                .find(|line| line.contains(word) && !line.contains("credentials_file"));
            assert_eq!(shown, None);
        }
    }
    Ok(())
}

#[tokio::test]
async fn old_leftovers_of_a_killed_daemon_in_a_bucket_are_removed() -> Result<()> {
    let mut s3 = S3::start(&[]).await?;
    let mut daemon = Daemon::start_with(known(s3.options())).await?;
    let client = daemon.client.clone().with_retry(RetryPolicy::none());
    let (mut sender, receiver) = tokio::io::duplex(1 << 20);
    let saving = client.save_artifact(target("a"), receiver);
    let killing = async {
        sender.write_all(&vec![7; 12 << 20]).await?;
        wait::until("a part is there", LIMIT, async || {
            Ok((s3.ask("uploads").await? == "1").then_some(()))
        })
        .await?;
        daemon.crash().await
    };
    let (saved, killed) = futures::future::join(saving, killing).await;
    killed?;
    saved
        .err()
        .context("it was answered before it was killed")?;
    daemon.restart().await?;
    // Another daemon might be at it.
    assert_eq!(
        (s3.ask("uploads").await?.as_str(), s3.keys().await?.len()),
        ("1", 1)
    );
    let listed = daemon
        .client
        .list_artifacts(ListArtifactsRequest::default())
        .await?;
    assert!(listed.artifacts.is_empty());
    daemon.crash().await?;
    s3.ask("age").await?;
    daemon.restart().await?;
    wait::until("it is removed", LIMIT, async || {
        Ok((s3.ask("uploads").await? == "0" && s3.keys().await?.is_empty()).then_some(()))
    })
    .await?;
    assert_eq!(
        daemon
            .client
            .save_artifact(target("a"), &b"x"[..])
            .await?
            .version,
        0
    );
    daemon.stop().await
}

#[tokio::test]
async fn an_unreachable_bucket_is_reported_and_recovers() -> Result<()> {
    let s3 = S3::start(&[]).await?;
    let daemon = Daemon::start_with(known(s3.options())).await?;
    let client = daemon.client.clone().with_retry(RetryPolicy::none());
    client.save_artifact(target("a"), &b"x"[..]).await?;
    drop(s3);
    let listed = client.list_artifacts(ListArtifactsRequest::default());
    let listed = tokio::time::timeout(LIMIT, listed).await?;
    expect_refusal(listed, ErrorReason::StorageUnavailable)?;
    let saved = client.save_artifact(target("a"), tokio::io::repeat(7).take(1 << 20));
    let saved = tokio::time::timeout(LIMIT, saved).await?;
    expect_refusal(saved, ErrorReason::StorageUnavailable)?;
    let service = "skilld.v1.ArtifactService";
    wait::until("health says so", LIMIT, async || {
        Ok((!client.is_serving(service).await?).then_some(()))
    })
    .await?;
    assert!(client.is_serving("").await?, "the others serve");
    daemon.stop().await
}

#[tokio::test]
async fn a_bucket_that_cannot_be_used_keeps_the_daemon_from_starting() -> Result<()> {
    let s3 = S3::start(&[]).await?;
    let naive = S3::start(&["naive"]).await?;
    let gone = S3::start(&[]).await?;
    let nobody = gone.options();
    drop(gone);
    for (options, part) in [
        (naive.options(), "If-None-Match"),
        (
            s3.options().set("artifacts.url", "s3://other"),
            "artifact store",
        ),
        (nobody, "artifact store"),
    ] {
        let started = Daemon::start_with(known(options)).await;
        let error = format!("{:#}", started.err().context("it must not start")?);
        assert!(
            error.contains("the artifact store cannot be used"),
            "{error}"
        );
        assert!(error.contains(part), "{error}");
        assert!(!error.contains(SECRET), "{error}");
    }
    Ok(())
}
