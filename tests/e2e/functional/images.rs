//! Images: checks of an operator's own, and pulls with the credentials of Docker's client.
//!
//! Docker: it alone imports images, pulls from a registry with credentials and replaces what a tag names.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use sha2::{Digest, Sha256};
use skilld_client::v1::{
    CheckImageRequest, CheckImageResponse, CreateWorkspaceRequest, ProblemSeverity,
};
use skilld_tests::test_image::{TEST_LABEL, TestImage, remove_image};
use skilld_tests::{Daemon, Options, docker, wait};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;

/// Time within which a pull from the same host ends, on a busy machine.
const LIMIT: Duration = Duration::from_secs(180);
/// Credentials of the registry in these tests, `ada:swordfish`, as base64.
const AUTH: &str = "YWRhOnN3b3JkZmlzaA==";
const MANIFEST_TYPE: &str = "application/vnd.docker.distribution.manifest.v2+json";

/// Imports an image without files with these changes, each an instruction of a Dockerfile.
fn import_empty_image(kind: &str, changes: &[&str]) -> Result<TestImage> {
    let image = TestImage::named(kind);
    let dir = tempfile::tempdir()?;
    let path = dir.path().join("empty.tar");
    std::fs::write(&path, empty_tar())?;
    let mut command = std::process::Command::new("docker");
    let label = format!("LABEL {}", TestImage::label());
    command.args(["import", "--change", &label]);
    for change in changes {
        command.args(["--change", change]);
    }
    let output = command.arg(&path).arg(image.name()).output()?;
    ensure!(output.status.success(), "{output:?}");
    Ok(image)
}

/// Returns a tar archive without entries: two blocks of zeroes.
fn empty_tar() -> Vec<u8> {
    vec![0; 1024]
}

async fn check_image(daemon: &Daemon, image: &str) -> Result<CheckImageResponse> {
    let request = CheckImageRequest {
        image: image.to_owned(),
        pool: String::new(),
    };
    Ok(daemon.client.check_image(request).await?)
}

fn errors(answer: &CheckImageResponse) -> Vec<&str> {
    answer
        .findings
        .iter()
        .filter(|finding| finding.severity() == ProblemSeverity::Error)
        .map(|finding| finding.code.as_str())
        .collect()
}

/// Waits until a daemon has this number of containers.
async fn wait_for_containers(daemon: &Daemon, count: usize) -> Result<()> {
    wait::until("the containers of checks are gone", LIMIT, async || {
        let left = daemon.containers().await?.len();
        Ok((left == count).then_some(()))
    })
    .await
}

#[tokio::test]
async fn an_image_is_checked_as_a_pool_would_use_it() -> Result<()> {
    let daemon = Daemon::start().await?;
    daemon.warm(1).await?;
    let answer = check_image(&daemon, "skilld/base:latest").await?;
    assert_eq!(errors(&answer), Vec::<&str>::new(), "{answer:?}");
    assert!(answer.usable, "{answer:?}");
    assert!(answer.python_version.starts_with("3."), "{answer:?}");
    assert!(
        answer.program_count() > 100 && answer.python_package_count() > 0,
        "{answer:?}"
    );
    assert!(
        answer.size_bytes > 0 && answer.start_duration.is_some(),
        "{answer:?}"
    );
    let pool = daemon.client.get_pool("default").await?;
    assert_eq!((pool.image_id, pool.claimed), (answer.image_id, 0));
    wait_for_containers(&daemon, 1).await?;
    daemon.stop().await
}

#[tokio::test]
async fn an_image_without_a_shell_or_with_a_volume_is_not_usable() -> Result<()> {
    let daemon = Daemon::start_with(Options::default().set("pools.default.warm", "0")).await?;
    let empty = import_empty_image("empty", &[])?;
    let answer = check_image(&daemon, empty.name()).await?;
    assert_eq!(
        errors(&answer),
        ["image.no_sh", "image.no_bash"],
        "{answer:?}"
    );
    let volume = import_empty_image("volume", &["VOLUME /data"])?;
    let answer = check_image(&daemon, volume.name()).await?;
    assert_eq!(errors(&answer), ["image.unusable"]);
    assert_eq!(
        answer.findings[0].message,
        "it declares VOLUME /data: build it without volumes"
    );
    let answer = check_image(&daemon, "skilld-test/none:1").await?;
    assert_eq!(errors(&answer), ["image.missing"]);
    wait_for_containers(&daemon, 0).await?;
    daemon.stop().await
}

/// Registry of one image that wants credentials. Dropping the value stops it and removes the image from Docker.
struct Registry {
    /// Reference of the image without tag and digest.
    name: String,
    /// Digest of the image's manifest.
    digest: String,
    /// Values of the Authorization headers that came, and of those that were absent.
    seen: Arc<Mutex<Vec<Option<String>>>>,
    _tasks: JoinSet<()>,
}

/// First byte of a connection that begins with TLS.
const TLS_HANDSHAKE: u8 = 0x16;

/// Contents that the registry serves by their paths, each with its media type.
type Contents = BTreeMap<String, (&'static str, Vec<u8>)>;

impl Registry {
    async fn start() -> Result<Self> {
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let name = format!("{}/tools", listener.local_addr()?);
        let (contents, digest) = contents(&name)?;
        let (contents, seen) = (Arc::new(contents), Arc::default());
        let mut tasks = JoinSet::new();
        let heard = Arc::clone(&seen);
        tasks.spawn(async move {
            let mut connections = JoinSet::new();
            while let Ok((stream, _)) = listener.accept().await {
                let (contents, heard) = (Arc::clone(&contents), Arc::clone(&heard));
                // Docker may give up on a connection; that is no fault of the registry.
                connections.spawn(async move { drop(serve(stream, &contents, &heard).await) });
            }
        });
        Ok(Self {
            name,
            digest,
            seen,
            _tasks: tasks,
        })
    }

    fn seen(&self) -> Vec<Option<String>> {
        self.seen
            .lock()
            .expect("no test panics with the lock")
            .clone()
    }
}

impl Drop for Registry {
    fn drop(&mut self) {
        remove_image(&format!("{}@{}", self.name, self.digest));
        remove_image(&format!("{}:1", self.name));
    }
}

fn digest_of(bytes: &[u8]) -> String {
    let hex: String = Sha256::digest(bytes)
        .iter()
        .map(|byte| format!("{byte:02x}"))
        .collect();
    format!("sha256:{hex}")
}

/// Makes an image with one empty layer, which no other registry has: a test removes its own from Docker. Returns what
/// the registry serves, and the digest of the manifest.
fn contents(name: &str) -> Result<(Contents, String)> {
    let tar = empty_tar();
    let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    std::io::Write::write_all(&mut encoder, &tar)?;
    let layer = encoder.finish()?;
    let architecture = match std::env::consts::ARCH {
        "aarch64" => "arm64",
        _ => "amd64",
    };
    let config = serde_json::json!({
        "architecture": architecture, "os": "linux",
        "config": {"Labels": {TEST_LABEL: std::env::temp_dir()}},
        "rootfs": {"type": "layers", "diff_ids": [digest_of(&tar)]},
        "history": [{"created_by": name}],
    });
    let config = serde_json::to_vec(&config)?;
    let part = |kind: &str, bytes: &[u8]| {
        let digest = digest_of(bytes);
        serde_json::json!({"mediaType": kind, "size": bytes.len(), "digest": digest})
    };
    let manifest = serde_json::json!({
        "schemaVersion": 2, "mediaType": MANIFEST_TYPE,
        "config": part("application/vnd.docker.container.image.v1+json", &config),
        "layers": [part("application/vnd.docker.image.rootfs.diff.tar.gzip", &layer)],
    });
    let manifest = serde_json::to_vec(&manifest)?;
    let digest = digest_of(&manifest);
    let blob = |bytes: &[u8]| format!("/v2/tools/blobs/{}", digest_of(bytes));
    let contents = Contents::from([
        ("/v2/".to_owned(), ("application/json", b"{}".to_vec())),
        (blob(&config), ("application/octet-stream", config)),
        (blob(&layer), ("application/octet-stream", layer)),
        (
            "/v2/tools/manifests/1".to_owned(),
            (MANIFEST_TYPE, manifest.clone()),
        ),
        (
            format!("/v2/tools/manifests/{digest}"),
            (MANIFEST_TYPE, manifest),
        ),
    ]);
    Ok((contents, digest))
}

/// Answers one request and closes the connection.
async fn serve(
    mut stream: TcpStream,
    contents: &Contents,
    seen: &Mutex<Vec<Option<String>>>,
) -> Result<()> {
    let mut request = Vec::new();
    while !request.ends_with(b"\r\n\r\n") && request.len() < 16 << 10 {
        // Docker tries TLS first.
        if stream.read_buf(&mut request).await? == 0 || request.first() == Some(&TLS_HANDSHAKE) {
            return Ok(());
        }
    }
    let request = String::from_utf8(request)?;
    let mut words = request.split(' ');
    let (method, path) = (
        words.next().unwrap_or_default(),
        words.next().unwrap_or_default(),
    );
    let header = |line: &str| {
        let (name, value) = line.split_once(": ")?;
        name.eq_ignore_ascii_case("authorization")
            .then(|| value.to_owned())
    };
    let authorization = request.lines().find_map(header);
    let is_known = authorization.as_deref() == Some(&format!("Basic {AUTH}"));
    seen.lock()
        .expect("no test panics with the lock")
        .push(authorization);
    let denied = b"{\"errors\": []}".to_vec();
    let (status, kind, body) = match contents.get(path) {
        _ if !is_known => ("401 Unauthorized", "application/json", denied),
        Some((kind, body)) => ("200 OK", *kind, body.clone()),
        None => ("404 Not Found", "application/json", denied),
    };
    let head = format!(
        "HTTP/1.1 {status}\r\nConnection: close\r\nDocker-Distribution-Api-Version: registry/2.0\r\n\
         WWW-Authenticate: Basic realm=\"tests\"\r\nContent-Type: {kind}\r\nContent-Length: {}\r\n\
         Docker-Content-Digest: {}\r\n\r\n",
        body.len(),
        digest_of(&body)
    );
    stream.write_all(head.as_bytes()).await?;
    if method != "HEAD" {
        stream.write_all(&body).await?;
    }
    Ok(stream.shutdown().await?)
}

/// Writes a client configuration with an entry for a registry.
fn write_client_config(dir: &Path, registry: &str, auth: &str) -> Result<()> {
    let config = serde_json::json!({"auths": {registry: {"auth": auth}}});
    Ok(std::fs::write(dir.join("config.json"), config.to_string())?)
}

/// Returns options with a second pool, whose image is pulled.
fn with_private_pool(image: &str, client_config: &Path) -> Options {
    Options::default()
        .set("engine.docker_config", &client_config.display().to_string())
        .set("pools.private.image", image)
        .set("pools.private.pull", "missing")
        .set("pools.private.warm", "0")
        .set("pools.private.max", "2")
        // The daemon's own default is too short to boot a container on a busy machine.
        .set("pools.private.claim_timeout", "4m")
}

#[tokio::test]
async fn a_private_image_is_pulled_with_docker_client_credentials() -> Result<()> {
    let registry = Registry::start().await?;
    let dir = tempfile::tempdir()?;
    let host = registry.name.trim_end_matches("/tools");
    write_client_config(dir.path(), host, AUTH)?;
    let pinned = format!("{}:1@{}", registry.name, registry.digest);
    let daemon = Daemon::start_with(with_private_pool(&pinned, dir.path())).await?;
    let pool = wait::until("the image is pulled", LIMIT, async || {
        let pool = daemon.client.get_pool("private").await?;
        // The pull is a problem until the pool has learned of its end.
        let is_there = !pool.image_id.is_empty() && pool.problem.is_empty();
        Ok(is_there.then_some(pool))
    })
    .await?;
    let request = CreateWorkspaceRequest {
        pool: "private".to_owned(),
        ..CreateWorkspaceRequest::default()
    };
    let workspace = daemon.client.create_workspace(request).await?;
    assert_eq!(workspace.pool, "pools/private");
    let pulled = format!("{}@{}", registry.name, registry.digest);
    let found = docker::connect()?.inspect_image(&pulled).await?;
    assert_eq!(found.id, Some(pool.image_id));
    let expected = Some(format!("Basic {AUTH}"));
    assert!(registry.seen().contains(&expected), "{:?}", registry.seen());
    let log = daemon.log();
    assert!(log.contains("pulled an image"), "{log}");
    assert!(!log.contains("swordfish") && !log.contains(AUTH), "{log}");
    daemon.stop().await
}

#[tokio::test]
async fn a_pull_without_credentials_is_a_problem_of_its_pool_only() -> Result<()> {
    let registry = Registry::start().await?;
    let dir = tempfile::tempdir()?;
    let image = format!("{}:1", registry.name);
    let daemon = Daemon::start_with(with_private_pool(&image, dir.path())).await?;
    let client = &daemon.client;
    let problem = wait::until("the pull fails", LIMIT, async || {
        let mut problems = client
            .list_problems(Default::default())
            .await?
            .problems
            .into_iter();
        Ok(problems.find(|problem| problem.code == "pool.image_pull_failed"))
    })
    .await?;
    assert_eq!(problem.subject, "pools/private");
    assert!(problem.message.contains(&image), "{}", problem.message);
    assert!(client.is_serving("").await?);
    client
        .create_workspace(CreateWorkspaceRequest::default())
        .await?;
    // The operator logs in; the next try finds the credentials.
    let host = registry.name.trim_end_matches("/tools");
    write_client_config(dir.path(), host, AUTH)?;
    wait::until("the image is pulled", LIMIT, async || {
        let pool = client.get_pool("private").await?;
        Ok((!pool.image_id.is_empty()).then_some(()))
    })
    .await?;
    // The failed pull is a problem until the pool has learned of the other one's end.
    wait::until("no problem is left", LIMIT, async || {
        let problems = client.list_problems(Default::default()).await?.problems;
        let mut subjects = problems.iter().map(|problem| problem.subject.as_str());
        Ok(subjects
            .all(|subject| subject != "pools/private")
            .then_some(()))
    })
    .await?;
    daemon.stop().await.context("stop")
}
