//! Ends of commands: the whole process tree ends, its output is kept and the reported time is true.

use std::time::{Duration, Instant, SystemTime};

use anyhow::{Context, Result};
use skilld_client::v1::exec_result::Reason as Ended;
use skilld_client::v1::{ExecSpec, ExecState, Stragglers, StreamOffsets};
use skilld_tests::exec::{attach, run, shell, start, workspace};
use skilld_tests::{Daemon, Options, processes};

/// Command that leaves a child in its own session, a double fork that ignores TERM, and stays itself, ignoring TERM.
const STUBBORN: &str = "echo before; echo trouble >&2
setsid sleep 1001 &
(setsid bash -c 'trap \"\" TERM HUP; sleep 1002 & sleep 1003; sleep 1004' &)
trap '' TERM
touch $WORK_DIR/up
sleep 1005; sleep 1006";

/// Starts a daemon with a short grace period, so that tests see what follows it.
async fn with_grace(grace: &str) -> Result<Daemon> {
    Daemon::start_with(Options::default().set("execs.kill_grace", grace)).await
}

#[tokio::test]
async fn timeout_kills_setsid_double_fork() -> Result<()> {
    let daemon = with_grace("300ms").await?;
    let client = &daemon.client;
    let name = workspace(client).await?.name;
    let spec = ExecSpec {
        timeout: Duration::from_millis(700).try_into().ok(),
        ..shell(STUBBORN)
    };
    let ended = Duration::from_millis(1000);
    let mut soonest = Duration::MAX;
    for _ in 0..4 {
        let outcome = run(client, &name, spec.clone()).await?;
        // Everything of it holds its output, so that the stream ends when nothing is left.
        assert_eq!(processes::list_commands(&daemon, &name)?, [""; 0]);
        assert_eq!(outcome.reason(), Ended::Timeout);
        assert_eq!((outcome.exit_code(), outcome.signal()), (None, Some(9)));
        let said = (outcome.text(), outcome.error_text());
        assert_eq!(said, ("before\n".to_owned(), "trouble\n".to_owned()));
        let wall = outcome.wall_time();
        assert!(wall >= ended && wall < Duration::from_secs(10), "{wall:?}");
        soonest = soonest.min(outcome.closed);
    }
    // The best of four, since other tests run beside this one.
    let after = soonest.saturating_sub(ended);
    assert!(
        after <= Duration::from_millis(100),
        "{after:?} after the grace"
    );
    daemon.stop().await
}

#[tokio::test]
async fn a_kill_ends_the_whole_tree_before_it_answers() -> Result<()> {
    let (daemon, name) = Daemon::with_workspace().await?;
    let client = &daemon.client;
    let exec = start(client, &name, "stubborn", shell(STUBBORN)).await?;
    run(
        client,
        &name,
        shell("until [ -e $WORK_DIR/up ]; do sleep 0.02; done; sleep 0.2"),
    )
    .await?;
    assert!(processes::list_commands(&daemon, &name)?.len() >= 5);
    let started = Instant::now();
    let killed = client.kill_exec(&exec.name).await?;
    let took = started.elapsed();
    assert!(took < Duration::from_secs(10), "{took:?}");
    let result = killed.result.context("no result")?;
    assert_eq!(result.reason(), Ended::KilledByClient);
    assert_eq!(processes::list_commands(&daemon, &name)?, [""; 0]);
    let outcome = attach(client, &exec.name, StreamOffsets::default()).await?;
    assert_eq!(outcome.text(), "before\n");
    // Killing what has ended is fine and changes nothing.
    let again = client.kill_exec(&exec.name).await?;
    assert_eq!(again.state(), ExecState::Closed);
    assert_eq!(
        again.result.context("no result")?.reason(),
        Ended::KilledByClient
    );
    daemon.stop().await
}

#[tokio::test]
async fn pipe_holder_child() -> Result<()> {
    let (daemon, name) = Daemon::with_workspace().await?;
    let client = &daemon.client;
    // The leader prints the time as its last action.
    let script = "sleep 1001 & setsid sleep 1002 & date +%s%N; exit 3";
    let mut soonest = Duration::MAX;
    for _ in 0..6 {
        let begin = SystemTime::now();
        let outcome = run(client, &name, shell(script)).await?;
        assert_eq!(outcome.exit_code(), Some(3), "{outcome:?}");
        let said = Duration::from_nanos(outcome.text().trim().parse()?);
        let exited = begin.duration_since(SystemTime::UNIX_EPOCH)? + outcome.exited;
        soonest = soonest.min(exited.saturating_sub(said));
        // The leak grace is 500 ms.
        let closed = outcome.closed - outcome.exited;
        assert!(closed >= Duration::from_millis(450), "{closed:?}");
        assert!(closed < Duration::from_secs(10), "{closed:?}");
        assert_eq!(processes::list_commands(&daemon, &name)?, [""; 0]);
    }
    assert!(soonest <= Duration::from_millis(50), "{soonest:?}");
    daemon.stop().await
}

#[tokio::test]
async fn background_child_survives_or_dies_as_asked() -> Result<()> {
    let (daemon, name) = Daemon::with_workspace().await?;
    let client = &daemon.client;
    let script = "setsid sleep 1001 & (sleep 1002 &); echo started";
    let with = |stragglers: Stragglers| ExecSpec {
        stragglers: stragglers.into(),
        ..shell(script)
    };
    for stragglers in [Stragglers::Unspecified, Stragglers::Kill] {
        let outcome = run(client, &name, with(stragglers)).await?;
        assert_eq!(
            (outcome.text().as_str(), outcome.reason()),
            ("started\n", Ended::Exited)
        );
        assert_eq!(processes::list_commands(&daemon, &name)?, [""; 0]);
    }
    let kept = run(client, &name, with(Stragglers::Keep)).await?;
    assert_eq!(
        (kept.text().as_str(), kept.exit_code()),
        ("started\n", Some(0))
    );
    // They outlive other execs, too.
    run(client, &name, shell("sleep 0.7")).await?;
    let mut left = processes::list_commands(&daemon, &name)?;
    left.sort();
    assert_eq!(left, ["sleep 1001 ", "sleep 1002 "]);
    // They are still that exec's: killing it ends them.
    client.kill_exec(&kept.name).await?;
    assert_eq!(processes::list_commands(&daemon, &name)?, [""; 0]);
    daemon.stop().await
}

#[tokio::test]
async fn a_timeout_over_the_maximum_is_reported_as_cut() -> Result<()> {
    let options = Options::default()
        .set("execs.timeout_default", "1s")
        .set("execs.timeout_max", "20s");
    let daemon = Daemon::start_with(options).await?;
    let client = &daemon.client;
    let name = workspace(client).await?.name;
    let spec = ExecSpec {
        timeout: Duration::from_secs(3600).try_into().ok(),
        ..shell("echo hi")
    };
    let outcome = run(client, &name, spec).await?;
    let seconds = outcome.spec.timeout.map(|timeout| timeout.seconds);
    assert_eq!(seconds, Some(20), "{:?}", outcome.spec);
    let outcome = run(client, &name, shell("sleep 100")).await?;
    assert_eq!(outcome.reason(), Ended::Timeout);
    assert!(outcome.wall_time() < Duration::from_secs(10), "{outcome:?}");
    daemon.stop().await
}
