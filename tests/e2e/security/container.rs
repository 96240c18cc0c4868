//! A container as the engine creates it, without the daemon: the configuration that Docker stored, the actions that are
//! refused inside, and the ordinary programs that still work. Needs the image of `make image`.

use std::collections::HashMap;
use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::os::fd::AsRawFd;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use futures::StreamExt;
use serde_json::{Value, json};
use skilld::engine::docker::connect_engine;
use skilld::engine::{
    ContainerEventKind, ContainerLimits, ContainerSpec, Engine, LABEL_INSTANCE, seccomp,
};
use skilld_tests::{binaries, docker};
use tempfile::TempDir;

use crate::security::DEADLINE;

const IMAGE: &str = "skilld/base:latest";

/// Time limit of a probe with all of its attempts.
const PROBE_TIMEOUT: Duration = Duration::from_secs(300);

/// Label of every container of these tests, by which they are removed.
const LABEL_TEST: &str = "io.skilld.test";

/// Next uid for a container of these tests. The daemon's range lies elsewhere.
static NEXT_UID: AtomicU32 = AtomicU32::new(900_000);

/// Container with a stand-in guest, and the host's end of its socket.
pub(crate) struct Container {
    pub(crate) engine: Arc<dyn Engine>,
    id: String,
    spec: ContainerSpec,
    instance: String,
    _slot: TempDir,
    listener: UnixListener,
}

impl Container {
    /// Creates a slot directory and a container without starting it.
    pub(crate) async fn create(change: impl FnOnce(&mut ContainerSpec)) -> Result<Self> {
        let engine = connect().await?;
        let slot = slot_dir()?;
        engine.prepare(slot.path()).await?;
        let socket = slot.path().join("run/guest.sock");
        // As the daemon does: a container is shown the path by which its socket was bound.
        let directory = fs::File::open(slot.path().join("run"))?;
        let unnamed = format!("/proc/self/fd/{}/guest.sock", directory.as_raw_fd());
        let listener = UnixListener::bind(unnamed)?;
        fs::set_permissions(&socket, fs::Permissions::from_mode(0o666))?;
        let uid = NEXT_UID.fetch_add(1, Ordering::Relaxed);
        let instance = format!("test-{}-{uid}", std::process::id());
        let mut spec = ContainerSpec {
            shared_dirs: Vec::new(),
            workspace_device: None,
            name: format!("skilld-{instance}"),
            labels: HashMap::from([
                (LABEL_INSTANCE.to_owned(), instance.clone()),
                (LABEL_TEST.to_owned(), "engine".to_owned()),
            ]),
            image_id: engine.check_image(IMAGE).await?.id,
            slot_dir: slot.path().to_owned(),
            uid,
            limits: ContainerLimits {
                memory_bytes: 512 << 20,
                cpu_millis: 2000,
                pids: 256,
                disk_bytes: 64 << 20,
                inodes: 16_384,
            },
            tmp_bytes: 32 << 20,
            shm_bytes: 16 << 20,
            terminals: 48,
            oci_runtime: None,
            env: vec!["SKILLD_NONCE=00".to_owned()],
        };
        change(&mut spec);
        fs::create_dir(slot.path().join("mnt"))?;
        fs::write(
            slot.path().join("passwd"),
            format!("skill:x:{uid}:{uid}::/workspace:/bin/sh\n"),
        )?;
        fs::write(slot.path().join("group"), format!("skill:x:{uid}:\n"))?;
        fs::write(slot.path().join("hosts"), "127.0.0.1 localhost sandbox\n")?;
        let id = engine.create(&spec).await?;
        Ok(Self {
            engine,
            id,
            spec,
            instance,
            _slot: slot,
            listener,
        })
    }

    /// Starts the container and waits for the stand-in to connect.
    pub(crate) async fn boot(&self) -> Result<UnixStream> {
        self.engine.start(&self.id).await?;
        let listener = self.listener.try_clone()?;
        listener.set_nonblocking(true)?;
        let listener = tokio::net::UnixListener::from_std(listener)?;
        let (accepted, _) = tokio::time::timeout(DEADLINE, listener.accept())
            .await
            .context("the stand-in did not connect")??;
        let stream = accepted.into_std()?;
        stream.set_nonblocking(false)?;
        stream.set_read_timeout(Some(PROBE_TIMEOUT))?;
        Ok(stream)
    }

    /// Runs a probe inside and returns its checks, all of which must have passed.
    fn probe(&self, guest: &UnixStream, name: &str, args: &[&str]) -> Result<Value> {
        let path = format!("/run/skilld/{name}");
        let argv: Vec<&str> = ["/usr/bin/python3", &path]
            .into_iter()
            .chain(args.iter().copied())
            .collect();
        let answer = run(guest, &argv)?;
        let stdout = answer["stdout"].as_str().unwrap_or_default();
        let report: Value =
            serde_json::from_str(stdout).with_context(|| format!("{name} printed {answer}"))?;
        let checks = report["checks"].as_object().context("checks")?;
        let failed: Vec<String> = checks
            .iter()
            .filter(|(_, check)| check["ok"] != json!(true))
            .map(|(name, check)| format!("{name}: got {}, want {}", check["got"], check["want"]))
            .collect();
        ensure!(
            failed.is_empty(),
            "{} of {} checks failed:\n{}",
            failed.len(),
            checks.len(),
            failed.join("\n")
        );
        Ok(report)
    }

    /// Returns the names of the volumes that Docker made for the container.
    pub(crate) async fn volumes(&self) -> Result<Vec<String>> {
        let docker = docker::connect()?;
        let inspected = docker.inspect_container(&self.id, None).await?;
        let mounts = inspected.mounts.unwrap_or_default();
        Ok(mounts.into_iter().filter_map(|mount| mount.name).collect())
    }

    pub(crate) async fn remove(&self) -> Result<()> {
        self.engine.remove(&self.id).await?;
        ensure!(
            self.engine.inspect(&self.id).await?.is_none(),
            "removed and still there"
        );
        Ok(())
    }
}

/// Removes the container, also when the test panicked.
impl Drop for Container {
    fn drop(&mut self) {
        let removed = std::process::Command::new("docker")
            .args(["rm", "-f", "-v", &self.id])
            .output();
        drop(removed);
    }
}

/// Connects to the engine of the tests, as the daemon does.
async fn connect() -> Result<Arc<dyn Engine>> {
    let host = std::env::var_os("DOCKER_HOST")
        .and_then(|host| host.into_string().ok())
        .unwrap_or_default();
    Ok(connect_engine(&host, DEADLINE, None).await?)
}

fn slot_dir() -> Result<TempDir> {
    let slot = tempfile::tempdir()?;
    fs::create_dir(slot.path().join("skills"))?;
    fs::write(slot.path().join("skills/.metadata.json"), "{}")?;
    fs::create_dir(slot.path().join("run"))?;
    let probes = binaries::repository().join("tests/probes");
    for (from, to) in [
        ("stand_in_guest.py", "skilld-guest"),
        ("isolation.py", "isolation.py"),
        ("limits.py", "limits.py"),
        ("compatibility.py", "compatibility.py"),
    ] {
        let to = slot.path().join("run").join(to);
        fs::copy(probes.join(from), &to)?;
        fs::set_permissions(&to, fs::Permissions::from_mode(0o555))?;
    }
    for folder in ["run", "skills"] {
        fs::set_permissions(slot.path().join(folder), fs::Permissions::from_mode(0o755))?;
    }
    Ok(slot)
}

/// Runs a command through the stand-in, and returns its exit code, stdout and stderr.
pub(crate) fn run(mut guest: &UnixStream, argv: &[&str]) -> Result<Value> {
    writeln!(guest, "{}", json!({ "argv": argv }))?;
    let mut line = String::new();
    BufReader::new(guest).read_line(&mut line)?;
    if line.is_empty() {
        bail!("the stand-in is gone");
    }
    Ok(serde_json::from_str(&line)?)
}

#[tokio::test]
async fn a_container_lives_and_ends_as_the_engine_says() -> Result<()> {
    let container = Container::create(|_| ()).await?;
    let engine = &container.engine;
    let mut events = engine.events(&container.instance).await?;
    let created = engine.inspect(&container.id).await?.context("created")?;
    assert_eq!((created.running, created.pid), (false, 0));

    let guest = container.boot().await?;
    let running = engine.inspect(&container.id).await?.context("started")?;
    assert!(running.running && running.pid > 1, "{running:?}");
    let credentials =
        nix::sys::socket::getsockopt(&guest, nix::sys::socket::sockopt::PeerCredentials)?;
    assert_eq!(
        (credentials.pid(), credentials.uid()),
        (running.pid, container.spec.uid)
    );

    let listed = engine.list(Some(&container.instance)).await?;
    assert_eq!(listed.len(), 1);
    assert_eq!((&listed[0].id, listed[0].running), (&container.id, true));
    assert_eq!(
        listed[0].labels.get(LABEL_TEST).map(String::as_str),
        Some("engine")
    );
    assert!(
        engine
            .list(None)
            .await?
            .iter()
            .any(|other| other.id == container.id)
    );
    assert!(engine.list(Some("nobody")).await?.is_empty());

    container.remove().await?;
    engine
        .remove(&container.id)
        .await
        .context("removing what is gone is fine")?;
    let mut kinds = Vec::new();
    while kinds.last() != Some(&ContainerEventKind::Removed) {
        let event = tokio::time::timeout(DEADLINE, events.next())
            .await?
            .context("the stream ended")??;
        assert_eq!(event.container_id, container.id);
        kinds.push(event.kind);
    }
    assert_eq!(
        kinds,
        [ContainerEventKind::Died, ContainerEventKind::Removed]
    );
    Ok(())
}

#[tokio::test]
async fn nothing_gets_out_of_a_container() -> Result<()> {
    let container = Container::create(|_| ()).await?;
    let guest = container.boot().await?;
    let uid = container.spec.uid.to_string();
    let report = container.probe(&guest, "isolation.py", &[&uid])?;
    let checks = report["checks"].as_object().context("checks")?.len();
    assert!(checks >= 130, "only {checks} checks were made");
    container.remove().await
}

#[tokio::test]
async fn ordinary_programs_run_under_the_profile() -> Result<()> {
    let container = Container::create(|_| ()).await?;
    let guest = container.boot().await?;
    let report = container.probe(&guest, "compatibility.py", &[])?;
    for needed in [
        "python multiprocessing",
        "python threads",
        "node",
        "git",
        "sqlite3",
        "curl",
        "jq",
    ] {
        assert!(
            report["checks"].get(needed).is_some(),
            "the image has no program for {needed}: {report}"
        );
    }
    container.remove().await
}

#[tokio::test]
async fn a_full_disk_is_enospc_and_the_size_is_what_was_asked() -> Result<()> {
    let container = Container::create(|_| ()).await?;
    let guest = container.boot().await?;
    let stat = run(
        &guest,
        &[
            "/usr/bin/stat",
            "-f",
            "-c",
            "%b*%S %c",
            "/workspace",
            "/tmp",
            "/dev/shm",
        ],
    )?;
    let sizes = stat["stdout"].as_str().unwrap_or_default();
    let expected = [
        (64_u64 << 20, Some("16384")),
        (32 << 20, Some("8192")),
        (16 << 20, None),
    ];
    for (line, (bytes, inodes)) in sizes.lines().zip(expected) {
        let (blocks, rest) = line.split_once('*').context("blocks")?;
        let (size, count) = rest.split_once(' ').context("inodes")?;
        assert_eq!(
            blocks.parse::<u64>()? * size.parse::<u64>()?,
            bytes,
            "{sizes}"
        );
        assert!(inodes.is_none_or(|inodes| inodes == count), "{sizes}");
    }
    for path in ["/workspace/full", "/tmp/full"] {
        let full = run(
            &guest,
            &["/bin/dd", "if=/dev/zero", &format!("of={path}"), "bs=1M"],
        )?;
        let said = full["stderr"].as_str().unwrap_or_default();
        assert!(
            full["exit"] == json!(1) && said.contains("No space left on device"),
            "{full}"
        );
    }
    // What a sparse file pretends to hold is bounded as well.
    let sparse = run(
        &guest,
        &["/usr/bin/truncate", "-s", "1T", "/workspace/sparse"],
    )?;
    assert_ne!(sparse["exit"], json!(0), "{sparse}");
    container.remove().await
}

#[tokio::test]
async fn docker_stored_the_configuration_in_full() -> Result<()> {
    let container = Container::create(|_| ()).await?;
    if docker::engine_name().await? == "podman" {
        return podman_stored_the_configuration(&container).await;
    }
    let docker = docker::connect()?;
    let stored = serde_json::to_value(docker.inspect_container(&container.id, None).await?)?;
    let slot = container.spec.slot_dir.to_string_lossy().into_owned();
    let uid = container.spec.uid;
    for (pointer, expected) in [
        ("/Config/User", json!(format!("{uid}:{uid}"))),
        ("/Config/Entrypoint", json!(["/run/skilld/skilld-guest"])),
        ("/Config/Hostname", json!("sandbox")),
        ("/Config/Healthcheck/Test", json!(["NONE"])),
        ("/Config/WorkingDir", json!("/")),
        ("/HostConfig/Privileged", json!(false)),
        ("/HostConfig/CapDrop", json!(["ALL"])),
        ("/HostConfig/CapAdd", json!([])),
        ("/HostConfig/ReadonlyRootfs", json!(true)),
        ("/HostConfig/NetworkMode", json!("none")),
        ("/HostConfig/IpcMode", json!("private")),
        ("/HostConfig/CgroupnsMode", json!("private")),
        ("/HostConfig/Memory", json!(512 << 20)),
        ("/HostConfig/CpuPeriod", json!(10_000)),
        ("/HostConfig/CpuQuota", json!(20_000)),
        ("/HostConfig/CpuShares", json!(512)),
        ("/HostConfig/PidsLimit", json!(256)),
        ("/HostConfig/OomScoreAdj", json!(500)),
        ("/HostConfig/ShmSize", json!(16 << 20)),
        ("/HostConfig/LogConfig/Type", json!("none")),
        ("/HostConfig/RestartPolicy/Name", json!("no")),
        ("/HostConfig/Init", json!(false)),
        ("/HostConfig/AutoRemove", json!(false)),
        ("/HostConfig/Mounts/0/Source", json!(format!("{slot}/run"))),
        ("/HostConfig/Mounts/1/ReadOnly", json!(true)),
        (
            "/HostConfig/Mounts/2/Target",
            json!("/workspace/metadata.json"),
        ),
        ("/HostConfig/Mounts/6/Target", json!("/etc/hosts")),
        ("/HostConfig/Mounts/7/Target", json!("/dev/pts")),
        (
            "/HostConfig/Mounts/7/VolumeOptions/DriverConfig/Options/type",
            json!("devpts"),
        ),
    ] {
        assert_eq!(stored.pointer(pointer), Some(&expected), "{pointer}");
    }
    let security = stored
        .pointer("/HostConfig/SecurityOpt")
        .context("security options")?;
    let options: Vec<&str> = security
        .as_array()
        .context("a list")?
        .iter()
        .filter_map(Value::as_str)
        .collect();
    assert!(options.contains(&"no-new-privileges:true"));
    assert!(options.contains(&format!("seccomp={}", seccomp::profile()).as_str()));
    let masked = stored
        .pointer("/HostConfig/MaskedPaths")
        .context("masked paths")?;
    assert!(masked.as_array().context("a list")?.len() >= 41, "{masked}");
    container.remove().await
}

/// Checks what Podman's Docker API can show of the configuration. The rest is in the request, which unit tests compare with
/// Docker's, and in the kernel, which the probes ask.
async fn podman_stored_the_configuration(container: &Container) -> Result<()> {
    let docker = docker::connect()?;
    let stored = serde_json::to_value(docker.inspect_container(&container.id, None).await?)?;
    let uid = container.spec.uid;
    for (pointer, expected) in [
        ("/Config/User", json!(format!("{uid}:{uid}"))),
        ("/Config/Hostname", json!("sandbox")),
        ("/HostConfig/Privileged", json!(false)),
        ("/HostConfig/CapAdd", json!([])),
        ("/HostConfig/ReadonlyRootfs", json!(true)),
        ("/HostConfig/NetworkMode", json!("none")),
        // Its own namespace, which no container joins that does not ask Podman for it.
        ("/HostConfig/IpcMode", json!("shareable")),
        ("/HostConfig/Memory", json!(512 << 20)),
        ("/HostConfig/MemorySwap", json!(512 << 20)),
        ("/HostConfig/CpuPeriod", json!(10_000)),
        ("/HostConfig/CpuQuota", json!(20_000)),
        ("/HostConfig/PidsLimit", json!(256)),
        ("/HostConfig/OomScoreAdj", json!(500)),
        ("/HostConfig/ShmSize", json!(16 << 20)),
        ("/HostConfig/LogConfig/Type", json!("none")),
        ("/HostConfig/AutoRemove", json!(false)),
    ] {
        assert_eq!(stored.pointer(pointer), Some(&expected), "{pointer}");
    }
    let dropped = stored
        .pointer("/HostConfig/CapDrop")
        .and_then(Value::as_array);
    assert!(
        dropped.is_some_and(|dropped| dropped.len() >= 11),
        "{dropped:?}"
    );
    container.remove().await
}

#[tokio::test]
async fn an_error_of_docker_names_the_operation() -> Result<()> {
    let engine = connect().await?;
    let info = engine.describe().await?;
    assert_eq!(info.name, docker::engine_name().await?);
    assert!(info.oci_runtimes.contains(&"runc".to_owned()), "{info:?}");
    engine.ping().await?;

    let error = engine
        .check_image("skilld/does-not-exist:1")
        .await
        .expect_err("no such image");
    assert!(error.to_string().contains("make image"), "{error}");
    let container = Container::create(|_| ()).await?;
    let error = container
        .engine
        .create(&container.spec)
        .await
        .expect_err("the name is taken");
    assert!(
        error
            .to_string()
            .starts_with("the container engine failed to create container: "),
        "{error}"
    );
    let error = engine
        .start("0123456789ab")
        .await
        .expect_err("no such container");
    assert!(
        error.to_string().contains("failed to start container"),
        "{error}"
    );
    assert_eq!(engine.inspect("0123456789ab").await?, None);
    container.remove().await
}

#[tokio::test]
async fn a_missing_slot_directory_is_refused_not_made() -> Result<()> {
    let container = Container::create(|_| ()).await?;
    let mut spec = container.spec.clone();
    spec.name.push_str("-2");
    spec.slot_dir.push("missing");
    let error = container
        .engine
        .create(&spec)
        .await
        .expect_err("no such directory");
    assert!(error.to_string().contains("missing"), "{error}");
    assert!(!spec.slot_dir.exists());
    container.remove().await
}

#[tokio::test]
async fn two_daemons_may_remove_one_container() -> Result<()> {
    let container = Container::create(|_| ()).await?;
    let _guest = container.boot().await?;
    let (first, second) = tokio::join!(container.remove(), container.remove());
    first.and(second)
}

#[tokio::test]
async fn a_paused_container_is_distinguished_from_an_ended_one() -> Result<()> {
    let container = Container::create(|_| ()).await?;
    let _guest = container.boot().await?;
    let docker = docker::connect()?;
    docker.pause_container(&container.id).await?;
    let state = container
        .engine
        .inspect(&container.id)
        .await?
        .context("there")?;
    assert!(state.running && state.paused, "{state:?}");
    let listed = container.engine.list(Some(&container.instance)).await?;
    assert!(listed[0].running && listed[0].paused, "{listed:?}");
    docker.unpause_container(&container.id).await?;
    let state = container
        .engine
        .inspect(&container.id)
        .await?
        .context("there")?;
    assert!(state.running && !state.paused, "{state:?}");
    container.remove().await
}

#[tokio::test]
async fn memory_of_a_container_is_bounded() -> Result<()> {
    let container = Container::create(|spec| spec.limits.memory_bytes = 64 << 20).await?;
    let guest = container.boot().await?;
    let greedy = "b = bytearray(256 << 20)\nfor i in range(0, len(b), 4096): b[i] = 1";
    let ended = run(&guest, &["/usr/bin/python3", "-c", greedy])?;
    assert_eq!(ended["exit"], json!(-9), "{ended}");
    container.remove().await
}
