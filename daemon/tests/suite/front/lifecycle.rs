//! Tests of starting, draining and stopping the server.

use std::time::Instant;

use super::*;

#[tokio::test]
async fn second_daemon_on_the_same_state_does_not_start() {
    let daemon = TestDaemon::start("", |_| {}).await;
    let config = config(
        daemon.dir.path(),
        "listen = \"unix:/nowhere/skilld.sock\"",
        |_| {},
    );
    let error = Server::start(config, Arc::<FakeEngine>::clone(&daemon.engine))
        .await
        .expect_err("second")
        .to_string();
    assert!(error.contains("another skilld runs on it"), "{error}");
    // The first daemon still serves.
    get_info(&daemon.client().await).await;
}

#[tokio::test]
async fn instance_id_and_socket_survive_restarts() {
    let daemon = TestDaemon::start("", |_| {}).await;
    let socket = daemon.dir.path().join("skilld.sock");
    let instance = std::fs::read(daemon.dir.path().join("instance")).expect("instance");
    assert!(socket.exists());
    daemon.signal().await;
    let TestDaemon {
        dir,
        engine,
        signals,
        running,
    } = daemon;
    drop(signals);
    assert!(within(running).await.expect("no panic"));
    assert!(!socket.exists(), "the socket is removed at the end");
    // The socket of a killed daemon does not prevent a start.
    drop(std::os::unix::net::UnixListener::bind(&socket).expect("bind"));
    // A process that another test has forked keeps a copy of the listener until it executes its program.
    wait_until("no process has the listener", async || {
        UnixStream::connect(&socket).await.err()
    })
    .await;
    let server = Server::start(config(dir.path(), "", |_| {}), engine)
        .await
        .expect("again");
    assert_eq!(
        std::fs::read(dir.path().join("instance")).expect("instance"),
        instance
    );
    let (signals, received) = mpsc::channel(1);
    signals.send(()).await.expect("send");
    assert!(within(server.run(received)).await);
}

/// Begins an upload and sends its first message only. The daemon limits the wait for that one to 10 s.
async fn begin_upload(
    client: &Client,
) -> (
    mpsc::Sender<pb::SaveArtifactRequest>,
    JoinHandle<Result<(), Status>>,
) {
    let (sender, receiver) = mpsc::channel(1);
    let header = pb::SaveArtifactHeader {
        name: "artifacts/a".to_owned(),
        ..pb::SaveArtifactHeader::default()
    };
    let first = pb::SaveArtifactRequest {
        payload: Some(pb::save_artifact_request::Payload::Header(header)),
    };
    sender.send(first).await.expect("open");
    let mut artifacts = client.artifacts();
    let call = async move {
        let messages = tokio_stream::wrappers::ReceiverStream::new(receiver);
        artifacts.save_artifact(messages).await.map(drop)
    };
    let call = Tasks::default().spawn(call);
    // After the first response the upload has begun; after the second one it has arrived, because a connection keeps
    // the order of requests.
    for _ in 0..2 {
        get_info(client).await;
    }
    (sender, call)
}

#[tokio::test]
async fn signal_drains_then_stops() {
    let daemon = TestDaemon::start("", |_| {}).await;
    let client = daemon.client().await;
    let mut changes = watch_health(client.channel()).await;
    while next_health(&mut changes).await != 1 {}
    let (sender, call) = begin_upload(&client).await;

    daemon.signal().await;
    assert_eq!(next_health(&mut changes).await, 2);
    // The daemon still responds, rejects new work, and waits for the open call.
    get_info(&client).await;
    let status = client
        .workspaces()
        .create_workspace(pb::CreateWorkspaceRequest::default())
        .await
        .expect_err("draining");
    assert_eq!(
        (status.code(), reason(&status).as_str()),
        (Code::Unavailable, "DRAINING")
    );
    assert!(!daemon.running.is_finished());

    drop(sender);
    let saved = within(call).await.expect("no panic");
    saved.expect("an upload that began before the drain");
    // Then the daemon stops, and the health stream ends with a status.
    let end = within(changes.message()).await.expect_err("stopped");
    assert_eq!(
        (end.code(), reason(&end).as_str()),
        (Code::Unavailable, "DRAINING"),
        "{end:?}"
    );
    let pushback = end.metadata().get("grpc-retry-pushback-ms");
    assert!(pushback.is_some(), "what retry policies obey: {end:?}");
    assert!(daemon.wait_for_end().await);
}

#[tokio::test]
async fn second_signal_ends_the_drain() {
    let daemon = TestDaemon::start("", |config| {
        config.server.drain_timeout = Duration::from_secs(3600);
    })
    .await;
    let client = daemon.client().await;
    let (_sender, call) = begin_upload(&client).await;
    daemon.signal().await;
    daemon.signal().await;
    // The client neither sends nor disconnects.
    assert!(daemon.wait_for_end().await, "everything ended");
    check_ended_by_the_stop(call).await;
}

/// Checks that the stop ended an upload.
async fn check_ended_by_the_stop(call: JoinHandle<Result<(), Status>>) {
    let ended = within(call).await.expect("no panic");
    let status = ended.expect_err("an upload without an end");
    assert_eq!(
        (status.code(), reason(&status).as_str()),
        (Code::Unavailable, "DRAINING"),
        "{status:?}"
    );
}

#[tokio::test]
async fn drain_ends_at_its_timeout() {
    let daemon = TestDaemon::start("", |config| {
        config.server.drain_timeout = Duration::from_millis(300);
    })
    .await;
    let client = daemon.client().await;
    let (_sender, call) = begin_upload(&client).await;
    let start = Instant::now();
    daemon.signal().await;
    assert!(daemon.wait_for_end().await);
    let took = start.elapsed();
    assert!(took >= Duration::from_millis(300), "{took:?}");
    check_ended_by_the_stop(call).await;
}

#[test]
fn the_daemon_exits_1_with_an_error_without_docker() {
    let dir = tempfile::tempdir().expect("temporary directory");
    let output = std::process::Command::new(env!("CARGO_BIN_EXE_skilld"))
        .arg("--state-dir")
        .arg(dir.path())
        .env_clear()
        .env("SKILLD_ENGINE__DOCKER_HOST", "unix:///nowhere/docker.sock")
        .env("SKILLD_ENGINE__GUEST_PATH", env!("CARGO_BIN_EXE_skilld"))
        .output()
        .expect("run skilld");
    assert_eq!(output.status.code(), Some(1));
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(
        stderr.contains("error: ") && stderr.contains("/nowhere/docker.sock"),
        "{stderr}"
    );
}

#[test]
fn hangups_while_the_daemon_starts_do_not_end_it() {
    use nix::sys::signal::{Signal, kill};
    let dir = tempfile::tempdir().expect("temporary directory");
    // This Docker accepts connections and never answers.
    let socket = dir.path().join("docker.sock");
    let docker = std::os::unix::net::UnixListener::bind(&socket).expect("bound");
    let mut daemon = std::process::Command::new(env!("CARGO_BIN_EXE_skilld"))
        .arg("--state-dir")
        .arg(dir.path().join("state"))
        .env_clear()
        .env(
            "SKILLD_ENGINE__DOCKER_HOST",
            format!("unix://{}", socket.display()),
        )
        .env("SKILLD_ENGINE__GUEST_PATH", env!("CARGO_BIN_EXE_skilld"))
        .stderr(std::process::Stdio::null())
        .spawn()
        .expect("run skilld");
    let pid = nix::unistd::Pid::from_raw(daemon.id().try_into().expect("a pid"));
    let connection = docker.accept().expect("it starts");
    for _ in 0..1000 {
        kill(pid, Signal::SIGHUP).expect("sent");
    }
    kill(pid, Signal::SIGTERM).expect("sent");
    let ended = daemon.wait().expect("it ends");
    assert_eq!(ended.code(), Some(0), "{ended}");
    drop(connection);
}
