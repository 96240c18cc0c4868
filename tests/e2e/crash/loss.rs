//! A workspace is lost, or out of reach for a while: its container paused, its guest killed from the host, its container
//! killed for its memory, its container gone together with Docker. Streams and calls end with an error of that name; an
//! exit that no process saw is never reported. `make release-check` measures how soon the error comes.

use anyhow::{Context, Result};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use skilld_client::{Client, MessageStream, RetryPolicy};
use skilld_proto::Outcome;
use skilld_proto::v1::workspace_failure::Cause;
use skilld_proto::v1::{ExecEvent, RunExecRequest, StreamOffsets, Workspace, WorkspaceState};
use skilld_tests::proxy::Proxy;
use skilld_tests::{Daemon, Options, docker, exec, wait};

use crate::crash::{
    COUNT, DEADLINE, check_count, containers, expect_status, read_bytes, read_until_broken,
    run_shell, with_deadline,
};

/// Starts [`COUNT`], waits until it prints, and returns its further events.
async fn counting(client: &Client, workspace: &str) -> Result<MessageStream<ExecEvent>> {
    let request = RunExecRequest {
        parent: workspace.to_owned(),
        exec_id: "count".to_owned(),
        spec: Some(exec::shell(COUNT)),
        ..RunExecRequest::default()
    };
    let mut events = client.run_exec(request).await?;
    read_bytes(&mut events, 8).await?;
    Ok(events)
}

/// Returns the reason with which a call for the exec is refused.
async fn refused_call(client: &Client, workspace: &str) -> Result<String> {
    let name = format!("{workspace}/execs/count");
    let asked = async { Ok(client.get_exec(&name).await) };
    let asked = with_deadline("the call is refused", asked).await?;
    Ok(expect_status(asked)?.1)
}

/// Checks that an open stream and the calls that follow report the loss.
async fn all_hear(
    client: &Client,
    workspace: &str,
    events: &mut MessageStream<ExecEvent>,
) -> Result<()> {
    let name = format!("{workspace}/execs/count");
    let asked = async {
        // The connection breaks a moment later for some: until then it answers.
        loop {
            match client.get_exec(&name).await {
                Ok(exec) => assert!(exec.result.is_none(), "an end was made up: {exec:?}"),
                Err(error) => return Ok(expect_status(Err::<(), _>(error))?.1),
            }
        }
    };
    let asked = with_deadline("a call reports the loss", asked);
    let ((_, streamed), asked) = tokio::try_join!(read_until_broken(events), asked)?;
    assert_eq!(streamed, "GUEST_LOST");
    let reasons = ["GUEST_LOST", "WORKSPACE_NOT_READY"];
    assert!(reasons.contains(&asked.as_str()), "{asked}");
    Ok(())
}

async fn becomes(client: &Client, name: &str, state: WorkspaceState) -> Result<Workspace> {
    wait::until("the workspace's state", DEADLINE, async || {
        let now = client.get_workspace(name).await?;
        Ok(Some(now).filter(|now| now.state() == state))
    })
    .await
}

/// Lets [`COUNT`] end, reads its events from the first to the last and checks them.
async fn counted(client: &Client, workspace: &str) -> Result<()> {
    run_shell(client, workspace, "touch stop").await?;
    let name = format!("{workspace}/execs/count");
    let reading = exec::attach(client, &name, StreamOffsets::default());
    let outcome = with_deadline("the exec ends", reading).await?;
    check_count(&outcome.stdout)?;
    assert_eq!(outcome.result.outcome(), Some(Outcome::ExitCode(7)));
    Ok(())
}

/// Waits until calls succeed again.
async fn reachable(client: &Client, workspace: &str) -> Result<()> {
    let name = format!("{workspace}/execs/count");
    wait::until("the guest can be reached", DEADLINE, async || {
        Ok(client.get_exec(&name).await.ok().map(drop))
    })
    .await
}

#[tokio::test]
async fn a_paused_container_is_reported_and_recovers() -> Result<()> {
    // A pause that lasts is a loss; this one never lasts that long.
    let options = Options::default().set("engine.pause_timeout", "1h");
    let mut daemon = Daemon::start_with(options).await?;
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
    let refused = refused_call(&client, &workspace).await?;
    assert_eq!(refused, "GUEST_LOST");

    // A start does not take it for ended either.
    daemon.crash().await?;
    daemon.restart().await?;
    let client = daemon.client.clone();
    assert_eq!(
        client.get_workspace(&workspace).await?.state(),
        WorkspaceState::Ready
    );
    let refused = refused_call(&client, &workspace).await?;
    assert_eq!(refused, "GUEST_LOST");

    docker::unpause(&container).await?;
    reachable(&client, &workspace).await?;
    counted(&client, &workspace).await?;
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
    wait::until("both are replaced", DEADLINE, async || {
        let now = containers(&daemon).await?;
        let pool = client.get_pool("default").await?;
        Ok((pool.warm == 1 && now.is_disjoint(&before)).then_some(()))
    })
    .await?;
    client.delete_workspace(&workspace).await?;
    daemon.stop().await
}

#[tokio::test]
async fn a_guest_killed_from_the_host_fabricates_no_exit() -> Result<()> {
    let daemon = Daemon::start().await?;
    let client = &daemon.client;
    let workspace = exec::workspace(client).await?.name;
    let neighbour = exec::workspace(client).await?.name;
    let mut events = counting(client, &workspace).await?;
    let container = daemon.container(&workspace)?;
    let pid = docker::pid(&container).await?.context("it runs")?;
    daemon.warm(1).await?;

    kill(Pid::from_raw(pid), Signal::SIGKILL)?;
    all_hear(client, &workspace, &mut events).await?;
    let failed = becomes(client, &workspace, WorkspaceState::Failed).await?;
    let failure = failed.failure.context("failure")?;
    assert_eq!(failure.cause(), Cause::ContainerLost, "{failure:?}");
    assert_eq!(run_shell(client, &neighbour, "echo fine").await?, "fine\n");

    // A warm container, which no client has claimed, is replaced.
    let claimed = daemon.container(&neighbour)?;
    let ours = containers(&daemon).await?;
    let warm = ours
        .iter()
        .find(|id| **id != claimed && **id != container)
        .context("a warm one")?;
    let pid = docker::pid(warm).await?.context("it runs")?;
    kill(Pid::from_raw(pid), Signal::SIGKILL)?;
    wait::until(
        "the killed warm container is replaced",
        DEADLINE,
        async || {
            let pool = client.get_pool("default").await?;
            Ok((pool.warm == 1 && !containers(&daemon).await?.contains(warm)).then_some(()))
        },
    )
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
    let container_pid = docker::pid(&daemon.container(&workspace)?).await?;
    let pid = Pid::from_raw(container_pid.context("it runs")?);
    kill(pid, Signal::SIGSTOP)?;
    let (_, reason) = read_until_broken(&mut events).await?;
    assert_eq!(reason, "GUEST_LOST");
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
    wait::until("the pool is new", DEADLINE, async || {
        let pool = client.get_pool("default").await?;
        let now = containers(&daemon).await?;
        Ok((pool.warm == 1 && now.is_disjoint(&before)).then_some(()))
    })
    .await?;
    let new = exec::workspace(&client).await?.name;
    assert_eq!(run_shell(&client, &new, "echo new").await?, "new\n");
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
    read_bytes(&mut events, 1000).await?;
    proxy.reopen()?;
    run_shell(client, &workspace, "touch stop").await?;
    let ending = async {
        while events.next().await?.is_some() {}
        Ok(())
    };
    with_deadline("the stream ends", ending).await?;
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
    assert_eq!(
        run_shell(client, &workspace, "echo usable").await?,
        "usable\n"
    );
    let mut events = counting(client, &workspace).await?;
    kill(Pid::from_raw(pid), Signal::SIGKILL)?;
    all_hear(client, &workspace, &mut events).await?;
    let failed = becomes(client, &workspace, WorkspaceState::Failed).await?;
    let failure = failed.failure.context("failure")?;
    assert_eq!(failure.cause(), Cause::OomKilled, "{failure:?}");
    daemon.stop().await
}
