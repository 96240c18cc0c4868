//! The server from a client's view: health, limits, deadlines, resources that do not exist yet, and its end.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use nix::sys::signal::Signal;
use skilld_client::v1::exec_event::{Event, Started};
use skilld_client::v1::exec_result::Reason as Ended;
use skilld_client::v1::{
    AttachExecRequest, CreateWorkspaceRequest, ExecEvent, ExecState, Reason, RunExecRequest,
    StreamOffsets,
};
use skilld_client::{MessageStream, RetryPolicy};
use skilld_tests::exec::{argv, attach, run, shell, start, stdout, workspace};
use skilld_tests::{Daemon, Options, expect_refusal};
use tonic::Code;
use tonic_health::pb::HealthCheckRequest;
use tonic_health::pb::health_check_response::ServingStatus;
use tonic_health::pb::health_client::HealthClient;

/// Reads events until a program has printed a text.
async fn until_said(events: &mut MessageStream<ExecEvent>, text: &[u8]) -> Result<()> {
    let mut said = Vec::new();
    while !said.ends_with(text) {
        let event = events.next().await?.context("the stream ended")?;
        said.extend_from_slice(stdout(&event));
    }
    Ok(())
}

#[tokio::test]
async fn health_can_be_watched_and_ends_with_the_drain() -> Result<()> {
    let mut daemon = Daemon::start().await?;
    let client = daemon.client.clone();
    let mut health = HealthClient::new(client.channel());
    let request = HealthCheckRequest {
        service: "skilld.v1.ExecService".to_owned(),
    };
    let mut watch = health.watch(request).await?.into_inner();
    let first = watch.message().await?.context("no answer")?;
    assert_eq!(first.status(), ServingStatus::Serving);
    // A kill that waits for its grace keeps the drain from being over at once.
    let request = RunExecRequest {
        workspace: workspace(&client).await?.name,
        spec: Some(shell(
            "trap 'echo asked' TERM; echo up; while :; do sleep 1; done",
        )),
        ..RunExecRequest::default()
    };
    let mut events = client.run_exec(request).await?;
    let started = events.next().await?.context("no event")?;
    let Some(Event::Started(Started { name, .. })) = started.event else {
        anyhow::bail!("not Started: {started:?}");
    };
    until_said(&mut events, b"up\n").await?;
    let killing = client.kill_exec_after(&name, Duration::from_secs(2));
    let draining = async {
        until_said(&mut events, b"asked\n").await?;
        daemon.signal(Signal::SIGTERM)?;
        let second = tokio::time::timeout(Duration::from_secs(5), watch.message()).await?;
        let second = second?.context("it ended without a word")?;
        assert_eq!(second.status(), ServingStatus::NotServing);
        anyhow::Ok(())
    };
    let (killed, drained) = tokio::join!(killing, draining);
    drained?;
    let killed = killed?.result.context("no result")?;
    assert_eq!(
        killed.reason(),
        Ended::KilledByClient,
        "a drain waits for it"
    );
    assert_eq!(daemon.wait().await?, Some(0));
    daemon.stop().await
}

#[tokio::test]
async fn a_stop_in_the_middle_of_a_boot_leaves_no_container() -> Result<()> {
    let mut daemon = Daemon::start().await?;
    // It serves, and its first container is being made.
    daemon.signal(Signal::SIGTERM)?;
    assert_eq!(daemon.wait().await?, Some(0));
    daemon.stop().await
}

#[tokio::test]
async fn the_limits_shown_are_those_in_force() -> Result<()> {
    let options = Options::default()
        .set("execs.timeout_max", "77s")
        .set("execs.timeout_default", "33s")
        .set("workspaces.count_max", "5")
        .set("files.collect_files_max", "123")
        .set("server.message_bytes_max", "2MiB");
    let daemon = Daemon::start_with(options).await?;
    let limits = daemon.info.limits.context("no limits")?;
    let seconds = |given: Option<prost_types::Duration>| given.map(|given| given.seconds);
    assert_eq!(seconds(limits.exec_timeout_max), Some(77));
    assert_eq!(seconds(limits.exec_timeout_default), Some(33));
    assert_eq!((limits.workspaces, limits.collect_files_max), (5, 123));
    assert_eq!(limits.message_bytes, 2 << 20);
    assert_eq!(limits.stage_archive_entries, 20_000);
    let engine = daemon.info.engine.clone().context("no engine")?;
    let name = skilld_tests::docker::engine_name().await?;
    assert_eq!((engine.name.as_str(), engine.available), (name, true));
    assert!(engine.oci_runtimes.contains(&"runc".to_owned()));
    assert_eq!(
        (
            daemon.info.pools.as_slice(),
            daemon.info.default_pool.as_str()
        ),
        (&["default".to_owned()][..], "default")
    );
    ensure!(
        daemon.info.seccomp_digest.starts_with("sha256:"),
        "{:?}",
        daemon.info
    );
    daemon.stop().await
}

#[tokio::test]
async fn a_clients_deadline_ends_its_call_and_not_the_exec() -> Result<()> {
    let (daemon, name) = Daemon::with_workspace().await?;
    let client = &daemon.client;
    let mut request = tonic::Request::new(RunExecRequest {
        workspace: name.clone(),
        exec_id: "slow".to_owned(),
        spec: Some(shell("echo one; sleep 1.5; echo two")),
        ..RunExecRequest::default()
    });
    request.set_timeout(Duration::from_millis(500));
    let started = Instant::now();
    let mut events = client.execs().run_exec(request).await?.into_inner();
    let status = loop {
        match events.message().await {
            Ok(Some(_)) => {}
            Ok(None) => anyhow::bail!("the stream ended with OK"),
            Err(status) => break status,
        }
    };
    let took = started.elapsed();
    ensure!(
        matches!(status.code(), Code::DeadlineExceeded | Code::Cancelled),
        "{status:?}"
    );
    assert!(
        (Duration::from_millis(450)..Duration::from_millis(1200)).contains(&took),
        "{took:?}"
    );
    let exec = client.get_exec(&format!("{name}/execs/slow")).await?;
    assert_eq!(exec.state(), ExecState::Running);
    let outcome = attach(client, &exec.name, StreamOffsets::default()).await?;
    assert_eq!(
        (outcome.text().as_str(), outcome.exit_code()),
        ("one\ntwo\n", Some(0))
    );
    daemon.stop().await
}

#[tokio::test]
async fn an_exec_goes_on_while_the_daemon_is_replaced() -> Result<()> {
    let options = Options::default().set("server.drain_timeout", "300ms");
    let mut daemon = Daemon::start_with(options).await?;
    let client = daemon.client.clone().with_retry(RetryPolicy::none());
    let name = workspace(&client).await?.name;
    let text = "for i in {1..30}; do echo line $i; sleep 0.1; done; exit 5";
    let exec = start(&client, &name, "steady", shell(text)).await?.name;
    let request = AttachExecRequest {
        name: exec.clone(),
        ..AttachExecRequest::default()
    };
    let mut events = client.attach_exec(request).await?;
    events.next().await?.context("no event")?;
    daemon.signal(Signal::SIGTERM)?;
    let error = loop {
        match tokio::time::timeout(Duration::from_secs(10), events.next()).await? {
            Ok(Some(_)) => {}
            Ok(None) => anyhow::bail!("the stream ended with OK"),
            Err(error) => break error,
        }
    };
    expect_refusal::<()>(Err(error), Reason::Draining)?;
    let refusal = client
        .create_workspace(CreateWorkspaceRequest::default())
        .await;
    assert!(refusal.is_err(), "{refusal:?}");
    assert_eq!(daemon.wait().await?, Some(0));

    daemon.restart().await?;
    let client = &daemon.client;
    let found = client.get_exec(&exec).await?;
    assert_eq!(found.state(), ExecState::Running, "{found:?}");
    let outcome = attach(client, &exec, StreamOffsets::default()).await?;
    let whole: String = (1..=30).map(|i| format!("line {i}\n")).collect();
    assert_eq!((outcome.text(), outcome.exit_code()), (whole, Some(5)));
    assert_eq!(
        run(client, &name, argv(["echo", "new"])).await?.text(),
        "new\n"
    );
    daemon.stop().await
}
