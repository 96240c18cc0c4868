//! Costs of skilld: contents and size of its programs, memory of idle workspaces, and times as ratios to Docker's, measured
//! side by side.

use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use bollard::exec::{CreateExecOptions, StartExecResults};
use futures::StreamExt;
use skilld_tests::docker::Sleeper;
use skilld_tests::{Daemon, Options, binaries, docker, exec, usage};

use crate::{MIB, alone};

/// Returns the percentile of times.
fn percentile(times: &mut [Duration], percent: usize) -> Duration {
    times.sort_unstable();
    times[(times.len() * percent / 100).min(times.len() - 1)]
}

#[test]
fn a_release_has_no_fault_points() -> Result<()> {
    let path = binaries::binary("skilld")?;
    let program = std::fs::read(&path)?;
    let contains = |text: &str| {
        let bytes = text.as_bytes();
        program.windows(bytes.len()).any(|window| window == bytes)
    };
    assert!(contains("SKILLD_"), "its texts can't be read");
    assert!(!contains("FAULT_POINT"), "{}", path.display());
    Ok(())
}

#[test]
fn the_guest_is_small() -> Result<()> {
    let path = binaries::guest()?;
    let bytes = std::fs::metadata(&path)?.len();
    println!("guest: {bytes} bytes");
    assert!(bytes <= 4 * MIB, "{} has {bytes} bytes", path.display());
    Ok(())
}

#[tokio::test]
async fn idle_workspaces_cost_little_memory() -> Result<()> {
    let _alone = alone().await;
    let daemon = Daemon::start_with(Options::default().set("pools.default.warm", "2")).await?;
    let mut guests = Vec::new();
    for _ in 0..10 {
        let workspace = exec::workspace(&daemon.client).await?.name;
        // A used workspace has allocated what a command needs.
        exec::run(&daemon.client, &workspace, exec::shell("echo hi")).await?;
        guests.push(usage::guest(&daemon, &workspace).await?);
    }
    daemon.warm(2).await?;
    for pid in guests {
        let bytes = usage::resident(pid)?;
        assert!(bytes <= 5 * MIB, "guest {pid} has {} KiB", bytes / 1024);
    }
    let bytes = usage::resident(daemon.pid().context("pid")?)?;
    println!("daemon with 10 idle workspaces: {} KiB", bytes / 1024);
    assert!(bytes <= 64 * MIB, "the daemon has {} KiB", bytes / 1024);
    daemon.stop().await
}

/// Runs `docker exec`, through the Engine API as a client would, and returns the time to its exit.
async fn time_docker_exec(docker: &bollard::Docker, container: &str) -> Result<Duration> {
    let started = Instant::now();
    let options = CreateExecOptions {
        cmd: Some(vec!["true"]),
        attach_stdout: Some(true),
        ..CreateExecOptions::default()
    };
    let made = docker.create_exec(container, options).await?;
    if let StartExecResults::Attached { mut output, .. } = docker.start_exec(&made.id, None).await?
    {
        while output.next().await.is_some() {}
    }
    Ok(started.elapsed())
}

#[tokio::test]
async fn an_exec_is_much_faster_than_docker_exec() -> Result<()> {
    let _alone = alone().await;
    let daemon = Daemon::start().await?;
    let workspace = exec::workspace(&daemon.client).await?.name;
    let sleeper = Sleeper::start(&[]).await?;
    let docker = docker::connect()?;
    daemon.warm(1).await?;
    let (mut ours, mut theirs) = (Vec::new(), Vec::new());
    // Side by side, so that whatever else the machine does slows both.
    for _ in 0..20 {
        for _ in 0..10 {
            let outcome = exec::run(&daemon.client, &workspace, exec::argv(["true"])).await?;
            assert_eq!(outcome.exit_code(), Some(0));
            ours.push(outcome.closed);
        }
        theirs.push(time_docker_exec(&docker, &sleeper.id).await?);
    }
    let (half, slow) = (percentile(&mut ours, 50), percentile(&mut ours, 95));
    let docker = percentile(&mut theirs, 50);
    println!("exec: p50 {half:?}, p95 {slow:?}; docker exec: p50 {docker:?}");
    assert!(half * 8 <= docker, "p50 {half:?} against {docker:?}");
    assert!(slow <= docker * 2, "p95 {slow:?} against {docker:?}");
    daemon.stop().await
}

#[tokio::test]
async fn a_claim_is_much_faster_than_a_container() -> Result<()> {
    let _alone = alone().await;
    let started = Instant::now();
    let daemon = Daemon::start().await?;
    let serving = started.elapsed();
    daemon.warm(1).await?;
    let warm = started.elapsed();
    let (mut ours, mut theirs) = (Vec::new(), Vec::new());
    for _ in 0..5 {
        daemon.warm(1).await?;
        let claim = Instant::now();
        exec::workspace(&daemon.client).await?;
        ours.push(claim.elapsed());
        daemon.warm(1).await?;
        let container = Instant::now();
        let sleeper = Sleeper::start(&[]).await?;
        theirs.push(container.elapsed());
        drop(sleeper);
    }
    let (claim, container) = (percentile(&mut ours, 50), percentile(&mut theirs, 50));
    println!(
        "serving after {serving:?}, warm after {warm:?}; claim {claim:?}; container {container:?}"
    );
    assert!(
        claim * 8 <= container,
        "a claim took {claim:?}, a container {container:?}"
    );
    // Serving needs no container; the first warm one needs one, and a guest that answers.
    assert!(
        warm <= serving + container * 10,
        "warm after {warm:?}, a container takes {container:?}"
    );
    daemon.stop().await
}
