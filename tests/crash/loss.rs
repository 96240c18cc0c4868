//! A workspace is lost, or out of reach for a while: its container paused, its guest killed from the host, its container
//! killed for its memory, its container gone together with Docker. Whoever waits for it hears so within two seconds, as
//! an error of that name; an exit that nobody saw is never told.

use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use skilld_client::{Client, MessageStream, RetryPolicy};
use skilld_proto::v1::exec_result::Outcome;
use skilld_proto::v1::workspace_failure::Cause;
use skilld_proto::v1::{ExecEvent, RunExecRequest, StreamOffsets, Workspace, WorkspaceState};
use skilld_tests::proxy::Proxy;
use skilld_tests::{Daemon, Options, docker, exec, wait};

use crate::{broken_off, containers, read, refusal, sh};

/// Longest time until a loss is reported: the promised two seconds, and three for a machine that pauses.
pub(crate) const TOLD: Duration = Duration::from_secs(5);
/// Command that prints 200 lines in 4 s.
const COUNT: &str = "for ((i = 0; i < 200; i++)); do echo $i; sleep 0.02; done; exit 7";

/// Starts an exec, waits until it prints, and returns its further events.
async fn counting(client: &Client, workspace: &str) -> Result<MessageStream<ExecEvent>> {
    let request = RunExecRequest {
        workspace: workspace.to_owned(),
        exec_id: "count".to_owned(),
        spec: Some(exec::shell(COUNT)),
        ..RunExecRequest::default()
    };
    let mut events = client.run_exec(request).await?;
    read(&mut events, 8).await?;
    Ok(events)
}

/// Reads until the stream breaks, and returns the error and the time since `since`.
async fn broken(
    events: &mut MessageStream<ExecEvent>,
    since: Instant,
) -> Result<(String, Duration)> {
    let (_, reason) = broken_off(events).await?;
    Ok((reason, since.elapsed()))
}

/// Checks that an open stream and a pending call report the loss in time.
async fn all_hear(
    client: &Client,
    workspace: &str,
    events: &mut MessageStream<ExecEvent>,
) -> Result<()> {
    let since = Instant::now();
    let name = format!("{workspace}/execs/count");
    let asked = async {
        // The connection breaks a moment later for some: until then it answers.
        loop {
            match client.get_exec(&name).await {
                Ok(exec) => assert!(exec.result.is_none(), "an end was made up: {exec:?}"),
                Err(error) => return Ok((refusal(Err::<(), _>(error))?.1, since.elapsed())),
            }
        }
    };
    let (streamed, asked) = tokio::join!(broken(events, since), asked);
    let (streamed, asked): (_, Result<_>) = (streamed?, asked);
    let asked = asked?;
    assert_eq!(streamed.0, "REASON_GUEST_LOST");
    let reasons = ["REASON_GUEST_LOST", "REASON_WORKSPACE_NOT_READY"];
    assert!(reasons.contains(&asked.0.as_str()), "{asked:?}");
    assert!(
        streamed.1 <= TOLD && asked.1 <= TOLD,
        "{streamed:?}, {asked:?}"
    );
    Ok(())
}

async fn becomes(client: &Client, name: &str, state: WorkspaceState) -> Result<Workspace> {
    wait::until(
        "the workspace's state",
        Duration::from_secs(20),
        async || {
            let now = client.get_workspace(name).await?;
            Ok(Some(now).filter(|now| now.state() == state))
        },
    )
    .await
}

/// Reads the exec's events to the end and checks them.
async fn counted(client: &Client, workspace: &str) -> Result<()> {
    let name = format!("{workspace}/execs/count");
    let outcome = exec::attach(client, &name, StreamOffsets::default()).await?;
    let expected: String = (0..200).map(|line| format!("{line}\n")).collect();
    assert!(outcome.text() == expected, "{} bytes", outcome.stdout.len());
    assert_eq!(outcome.result.outcome, Some(Outcome::ExitCode(7)));
    Ok(())
}

/// Waits until calls succeed again.
async fn reachable(client: &Client, workspace: &str) -> Result<()> {
    let name = format!("{workspace}/execs/count");
    wait::until("it can be reached", Duration::from_secs(20), async || {
        Ok(client.get_exec(&name).await.ok().map(drop))
    })
    .await
}

#[tokio::test]
async fn a_paused_container_is_reported_and_recovers() -> Result<()> {
    let mut daemon = Daemon::start().await?;
    let client = daemon.client.clone();
    let workspace = exec::workspace(&client).await?.name;
    let mut events = counting(&client, &workspace).await?;
    let container = daemon.container(&workspace)?;

    docker::pause(&container).await?;
    all_hear(&client, &workspace, &mut events).await?;
    assert_eq!(
        client.get_workspace(&workspace).await?.state(),
        WorkspaceState::Ready,
        "it is not lost"
    );
    let asked = Instant::now();
    let refused = refusal(client.get_exec(&format!("{workspace}/execs/count")).await)?;
    assert_eq!(refused.1, "REASON_GUEST_LOST");
    assert!(asked.elapsed() <= TOLD, "{:?}", asked.elapsed());

    // A start does not take it for ended either.
    daemon.crash().await?;
    daemon.restart().await?;
    let client = daemon.client.clone();
    assert_eq!(
        client.get_workspace(&workspace).await?.state(),
        WorkspaceState::Ready
    );
    let asked = Instant::now();
    let refused = refusal(client.get_exec(&format!("{workspace}/execs/count")).await)?;
    assert_eq!(refused.1, "REASON_GUEST_LOST");
    assert!(asked.elapsed() <= TOLD, "{:?}", asked.elapsed());

    docker::unpause(&container).await?;
    reachable(&client, &workspace).await?;
    counted(&client, &workspace).await?;
    daemon.stop().await
}

#[tokio::test]
async fn a_short_pause_breaks_nothing() -> Result<()> {
    let daemon = Daemon::start().await?;
    let client = &daemon.client;
    let workspace = exec::workspace(client).await?.name;
    let mut events = counting(client, &workspace).await?;
    let container = daemon.container(&workspace)?;
    docker::pause(&container).await?;
    docker::unpause(&container).await?;
    while events.next().await?.is_some() {}
    counted(client, &workspace).await?;
    daemon.stop().await
}

#[tokio::test]
async fn a_pause_that_lasts_is_a_loss() -> Result<()> {
    let daemon = Daemon::start_with(Options::default().set("engine.pause_timeout", "2s")).await?;
    let client = &daemon.client;
    let workspace = exec::workspace(client).await?.name;
    daemon.warm(1).await?;
    let container = daemon.container(&workspace)?;
    let before = containers(&daemon).await?;
    let warm = before.iter().find(|id| **id != container);
    docker::pause(warm.context("a warm one")?).await?;
    docker::pause(&container).await?;
    let failed = becomes(client, &workspace, WorkspaceState::Failed).await?;
    let failure = failed.failure.context("failure")?;
    assert_eq!(failure.cause(), Cause::GuestLost, "{failure:?}");
    assert!(failure.message.contains("paused"), "{failure:?}");
    wait::until("both are replaced", Duration::from_secs(20), async || {
        let now = containers(&daemon).await?;
        let pool = client.get_pool("default").await?;
        Ok((pool.warm == 1 && now.is_disjoint(&before)).then_some(()))
    })
    .await?;
    client.delete_workspace(&workspace).await?;
    daemon.stop().await
}

#[tokio::test]
async fn no_fabricated_exit_when_the_guest_is_killed_from_the_host() -> Result<()> {
    let daemon = Daemon::start().await?;
    let client = &daemon.client;
    let workspace = exec::workspace(client).await?.name;
    let neighbour = exec::workspace(client).await?.name;
    let mut events = counting(client, &workspace).await?;
    let container = daemon.container(&workspace)?;
    let pid = docker::pid(&container).await?.context("it runs")?;
    daemon.warm(1).await?;

    let killed = Instant::now();
    kill(Pid::from_raw(pid), Signal::SIGKILL)?;
    all_hear(client, &workspace, &mut events).await?;
    let failed = becomes(client, &workspace, WorkspaceState::Failed).await?;
    assert!(killed.elapsed() <= TOLD, "{:?}", killed.elapsed());
    let failure = failed.failure.context("failure")?;
    assert_eq!(failure.cause(), Cause::ContainerLost, "{failure:?}");
    assert_eq!(sh(client, &neighbour, "echo fine").await?, "fine\n");

    // One that nobody has is replaced.
    let claimed = daemon.container(&neighbour)?;
    let ours = containers(&daemon).await?;
    let warm = ours.iter().find(|id| **id != claimed && **id != container);
    let warm = warm.context("a warm one")?;
    let pid = docker::pid(warm).await?.context("it runs")?;
    kill(Pid::from_raw(pid), Signal::SIGKILL)?;
    wait::until("it is replaced", Duration::from_secs(20), async || {
        let pool = client.get_pool("default").await?;
        Ok((pool.warm == 1 && !containers(&daemon).await?.contains(warm)).then_some(()))
    })
    .await?;
    daemon.stop().await
}

/// Neither a hanging guest nor the engine reports anything; open calls find out by a probe.
#[tokio::test]
async fn a_guest_that_hangs_is_noticed() -> Result<()> {
    let daemon = Daemon::start().await?;
    let client = &daemon.client;
    let workspace = exec::workspace(client).await?.name;
    let mut events = counting(client, &workspace).await?;
    let pid = docker::pid(&daemon.container(&workspace)?).await?;
    let pid = Pid::from_raw(pid.context("it runs")?);
    kill(pid, Signal::SIGSTOP)?;
    let (reason, after) = broken(&mut events, Instant::now()).await?;
    println!("told after {after:?}");
    assert_eq!(reason, "REASON_GUEST_LOST");
    assert!(after <= Duration::from_secs(20), "{after:?}");
    kill(pid, Signal::SIGCONT)?;
    reachable(client, &workspace).await?;
    counted(client, &workspace).await?;
    daemon.stop().await
}

/// Without live-restore Docker stops its containers when it stops.
#[tokio::test]
async fn containers_that_end_with_docker_are_reported() -> Result<()> {
    let dir = tempfile::tempdir()?;
    let mut proxy = Proxy::open(&dir.path().join("docker.sock"))?;
    let options = Options::default().set("engine.docker_host", &proxy.host());
    let daemon = Daemon::start_with(options).await?;
    let client = daemon.client.clone().with_retry(RetryPolicy::none());
    let workspace = exec::workspace(&client).await?.name;
    daemon.warm(1).await?;
    let mut events = counting(&client, &workspace).await?;
    let mut pids = Vec::new();
    let before = containers(&daemon).await?;
    for container in &before {
        pids.push(docker::pid(container).await?.context("it runs")?);
    }

    proxy.close().await?;
    for pid in pids {
        kill(Pid::from_raw(pid), Signal::SIGKILL)?;
    }
    all_hear(&client, &workspace, &mut events).await?;
    proxy.reopen()?;
    let failed = becomes(&client, &workspace, WorkspaceState::Failed).await?;
    let failure = failed.failure.context("failure")?;
    assert_eq!(failure.cause(), Cause::ContainerLost, "{failure:?}");
    wait::until("the pool is new", Duration::from_secs(30), async || {
        let pool = client.get_pool("default").await?;
        let now = containers(&daemon).await?;
        Ok((pool.warm == 1 && now.is_disjoint(&before)).then_some(()))
    })
    .await?;
    let new = exec::workspace(&client).await?.name;
    assert_eq!(sh(&client, &new, "echo new").await?, "new\n");
    daemon.stop().await
}

/// With live-restore containers and their commands go on while Docker is down.
#[tokio::test]
async fn execs_go_on_while_docker_is_away() -> Result<()> {
    let dir = tempfile::tempdir()?;
    let mut proxy = Proxy::open(&dir.path().join("docker.sock"))?;
    let options = Options::default().set("engine.docker_host", &proxy.host());
    let daemon = Daemon::start_with(options).await?;
    let client = &daemon.client;
    let workspace = exec::workspace(client).await?.name;
    let mut events = counting(client, &workspace).await?;
    proxy.close().await?;
    read(&mut events, 100).await?;
    proxy.reopen()?;
    while events.next().await?.is_some() {}
    counted(client, &workspace).await?;
    daemon.stop().await
}

#[tokio::test]
async fn an_end_for_lack_of_memory_is_reported() -> Result<()> {
    let daemon = Daemon::start().await?;
    let client = &daemon.client;
    let workspace = exec::workspace(client).await?.name;
    let container = daemon.container(&workspace)?;
    let pid = docker::pid(&container).await?.context("it runs")?;
    // The kernel takes a command first. That the container has met its limit is what the engine remembers.
    let bomb = exec::run(client, &workspace, exec::shell("tail /dev/zero")).await?;
    assert_eq!(bomb.signal(), Some(9));
    assert_eq!(sh(client, &workspace, "echo usable").await?, "usable\n");
    let mut events = counting(client, &workspace).await?;
    kill(Pid::from_raw(pid), Signal::SIGKILL)?;
    all_hear(client, &workspace, &mut events).await?;
    let failed = becomes(client, &workspace, WorkspaceState::Failed).await?;
    let failure = failed.failure.context("failure")?;
    assert_eq!(failure.cause(), Cause::OomKilled, "{failure:?}");
    daemon.stop().await
}
