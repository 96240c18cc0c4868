//! A daemon that cannot start says why and what to do, and ends with the exit code that tells a supervisor whether to
//! try again.

use std::os::unix::net::UnixListener;
use std::path::Path;
use std::process::Stdio;

use anyhow::{Context, Result, ensure};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use skilld_tests::{Daemon, binaries, docker, exec, wait};
use tokio::io::AsyncWriteExt;
use tokio::process::Command;

use crate::crash::DEADLINE;

const DOCKER: &str = "SKILLD_ENGINE__DOCKER_HOST";
const DOCKER_TIMEOUT: &str = "SKILLD_ENGINE__TIMEOUT";
const GUEST: &str = "SKILLD_ENGINE__GUEST_PATH";
const WHEELHOUSE: &str = "SKILLD_SKILLS__WHEELHOUSE";
const IMAGE: &str = "SKILLD_POOLS__DEFAULT__IMAGE";
const RUNTIME: &str = "SKILLD_POOLS__DEFAULT__OCI_RUNTIME";
const WARM: &str = "SKILLD_POOLS__DEFAULT__WARM";
/// Part of the log line of a daemon that has begun to serve its socket.
const SERVING: &str = "serving socket=";

/// Starts a daemon that must end by itself, and returns its exit code and its stderr.
pub(crate) async fn fails(
    state_dir: &Path,
    env: &[(&str, &str)],
    args: &[&str],
) -> Result<(i32, String)> {
    let mut command = Command::new(binaries::binary("skilld")?);
    command
        .arg("--state-dir")
        .arg(state_dir)
        .args(args)
        .env_clear()
        .env(GUEST, binaries::guest()?)
        .envs(env.iter().copied())
        .stdin(Stdio::null())
        .kill_on_drop(true);
    let ended = tokio::time::timeout(DEADLINE, command.output());
    let output = ended.await.context("it did not end")??;
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    Ok((output.status.code().context(said.clone())?, said))
}

/// Start that must fail: a variable of the environment, the exit code, and words of the message.
struct Case {
    name: &'static str,
    env: (&'static str, String),
    code: i32,
    says: [&'static str; 2],
}

fn cases(dir: &Path) -> Vec<Case> {
    let case = |name, (key, value): (&'static str, &str), code, says| Case {
        name,
        env: (key, value.to_owned()),
        code,
        says,
    };
    let docker = |name, socket: &str, says| {
        let host = format!("unix://{}", dir.join(socket).display());
        case(name, (DOCKER, &host), 1, says)
    };
    vec![
        docker("no socket", "none.sock", ["not running", "docker_host"]),
        docker(
            "no process listens",
            "silent.sock",
            ["not running", "systemctl start docker"],
        ),
        docker(
            "not Docker",
            "web.sock",
            ["the container engine", "web.sock"],
        ),
        docker("not a socket", "file", ["Docker", "file"]),
        case(
            "tcp",
            (DOCKER, "tcp://127.0.0.1:1"),
            64,
            ["docker_host", "unix://"],
        ),
        case(
            "image",
            (IMAGE, "skilld/none:1"),
            1,
            ["skilld/none:1", "make image"],
        ),
        case(
            "guest",
            (GUEST, "/nonexistent/guest"),
            64,
            ["guest_path", "/nonexistent/guest"],
        ),
        case(
            "wheelhouse",
            (WHEELHOUSE, "/nonexistent/wheels"),
            64,
            ["skills.wheelhouse", "/nonexistent/wheels"],
        ),
        case(
            "runtime",
            (RUNTIME, "none"),
            1,
            ["registered", "oci_runtime"],
        ),
        case("configuration", (WARM, "many"), 64, ["warm", "many"]),
    ]
}

#[tokio::test]
async fn a_failed_start_names_its_reason() -> Result<()> {
    let dir = tempfile::tempdir()?;
    drop(UnixListener::bind(dir.path().join("silent.sock"))?);
    std::fs::write(dir.path().join("file"), "")?;
    let listener = tokio::net::UnixListener::bind(dir.path().join("web.sock"))?;
    let answering = async {
        // Somebody listens there who is not Docker.
        while let Ok((mut peer, _)) = listener.accept().await {
            drop(
                peer.write_all(b"HTTP/1.1 418 I'm a teapot\r\ncontent-length: 0\r\n\r\n")
                    .await,
            );
        }
    };
    let checks = async {
        for case in cases(dir.path()) {
            let (name, value) = (case.env.0, case.env.1.as_str());
            let (code, said) = fails(&dir.path().join("state"), &[(name, value)], &[]).await?;
            assert_eq!(code, case.code, "{}: {said}", case.name);
            for part in case.says {
                assert!(said.contains(part), "{}: no {part:?} in: {said}", case.name);
            }
            let plain = said.contains("error: ") && !said.contains("panicked");
            assert!(plain, "{}: {said}", case.name);
        }
        Ok(())
    };
    tokio::select! {
        () = answering => anyhow::bail!("the listener ended"),
        checked = checks => checked,
    }
}

#[tokio::test]
async fn every_fault_of_a_configuration_is_reported() -> Result<()> {
    let dir = tempfile::tempdir()?;
    let config = dir.path().join("bad.toml");
    std::fs::write(&config, "[pools.default]\nwarm = -1\ncolour = \"red\"\n")?;
    let args = ["--config", &config.to_string_lossy()];
    let (code, said) = fails(&dir.path().join("state"), &[], &args).await?;
    assert_eq!(code, 64, "{said}");
    assert!(said.contains("warm") && said.contains("colour"), "{said}");
    assert!(!dir.path().join("state").exists(), "it opened something");
    Ok(())
}

#[tokio::test]
async fn a_second_daemon_on_the_same_state_is_refused() -> Result<()> {
    let daemon = Daemon::start().await?;
    let (code, said) = fails(&daemon.state_dir(), &[], &[]).await?;
    assert_eq!(code, 1, "{said}");
    assert!(
        said.contains("another skilld runs on it") && said.contains("--state-dir"),
        "{said}"
    );
    // The first one is as it was.
    assert!(daemon.client.is_serving("").await?);
    daemon.stop().await
}

#[tokio::test]
async fn a_failed_start_leaves_no_container() -> Result<()> {
    let dir = tempfile::tempdir()?;
    std::fs::write(dir.path().join("file"), "")?;
    let state = dir.path().join("state");
    for socket in ["file", "file/below"] {
        let listen = format!("unix:{}", dir.path().join(socket).display());
        let (code, said) = fails(&state, &[], &["--listen", &listen]).await?;
        assert_eq!(code, 1, "{said}");
        assert!(
            said.contains("listen on") && said.contains(socket),
            "{said}"
        );
    }
    let instance = std::fs::read_to_string(state.join("instance"))?;
    let id = instance.lines().next().unwrap_or_default();
    let left = docker::containers(id).await?;
    assert!(left.is_empty(), "{left:?}");
    assert_eq!(std::fs::read_dir(state.join("slots"))?.count(), 0);
    Ok(())
}

/// Starts a daemon that waits in its start, ends it once `ready`, and checks that it ended without serving.
async fn interrupted(
    state_dir: &Path,
    env: &[(&str, &str)],
    ready: impl Future<Output = Result<()>>,
) -> Result<()> {
    let log = state_dir.with_extension("log");
    let file = std::fs::File::create(&log)?;
    let mut command = Command::new(binaries::binary("skilld")?);
    command
        .arg("--state-dir")
        .arg(state_dir)
        .env_clear()
        .env(GUEST, binaries::guest()?)
        .envs(env.iter().copied())
        .stdin(Stdio::null())
        .stdout(file.try_clone()?)
        .stderr(file)
        .kill_on_drop(true);
    let mut child = command.spawn()?;
    ready.await?;
    let pid = i32::try_from(child.id().context("it has ended")?)?;
    kill(Pid::from_raw(pid), Signal::SIGTERM)?;
    let ended = tokio::time::timeout(DEADLINE, child.wait()).await;
    let status = ended.context("it did not end")??;
    let log = std::fs::read_to_string(log)?;
    assert_eq!(status.code(), Some(0), "{status}: {log}");
    // A daemon that had gone on to wait would have served before it ended.
    ensure!(!log.contains(SERVING), "it served first: {log}");
    Ok(())
}

#[tokio::test]
async fn a_signal_ends_a_start_that_waits() -> Result<()> {
    // A Docker that takes calls and answers none.
    let dir = tempfile::tempdir()?;
    let silent = tokio::net::UnixListener::bind(dir.path().join("silent.sock"))?;
    let host = format!("unix://{}", dir.path().join("silent.sock").display());
    let asked = async {
        let accepted = tokio::time::timeout(DEADLINE, silent.accept()).await;
        // The connection stays open for the rest of the test.
        std::mem::forget(accepted.context("Docker was not asked")??);
        Ok(())
    };
    let state = dir.path().join("state");
    // Far beyond the time after which the test gives up.
    let env = [(DOCKER, host.as_str()), (DOCKER_TIMEOUT, "1h")];
    interrupted(&state, &env, asked).await?;

    // A workspace whose guest is awaited.
    let mut daemon = Daemon::start().await?;
    wait::until(
        "the log has the line of a daemon that serves",
        DEADLINE,
        async || Ok(daemon.log().contains(SERVING).then_some(())),
    )
    .await?;
    let workspace = exec::workspace(&daemon.client).await?.name;
    let pid = docker::pid(&daemon.container(&workspace)?).await?;
    let guest = Pid::from_raw(pid.context("it runs")?);
    daemon.crash().await?;
    kill(guest, Signal::SIGSTOP)?;
    let record = daemon.record(&workspace)?;
    let number = record.get("number").context("number")?;
    let socket = daemon
        .state_dir()
        .join(format!("slots/{number}/run/guest.sock"));
    let awaited = wait::until("the guest is awaited", DEADLINE, async || {
        Ok(socket.exists().then_some(()))
    });
    interrupted(&daemon.state_dir(), &daemon.settings(), awaited).await?;
    kill(guest, Signal::SIGCONT)?;
    daemon.restart().await?;
    let ran = exec::run(&daemon.client, &workspace, exec::shell("echo here")).await?;
    assert_eq!(ran.text(), "here\n");
    daemon.stop().await
}
