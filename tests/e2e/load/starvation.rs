//! A busy tree in one exec: the guest answers and can kill it; the other execs of its workspace and other workspaces go on.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use skilld_client::Client;
use skilld_proto::v1::{ExecSpec, ExecState, ExitReason, ListExecsRequest, StreamOffsets};
use skilld_tests::exec::{self, attach, run, shell, start};
use skilld_tests::{Daemon, DefaultDaemon, Options, processes, wait};

use crate::load::{DEADLINE, alone, with_deadline};

/// Minimum number of processes of a busy tree; the default pool allows 512.
const BUSY_MIN: usize = 480;
/// Number of calls that each guest has to answer.
const CALLS: usize = 30;
/// Timeouts of a tree that must reach its size before, in seconds. The longer ones are for a busy machine.
const TIMEOUTS_S: [u64; 3] = [10, 60, 180];

/// Program in which every process leads a session, ignores each signal that can be ignored, and forks again every millisecond.
const BOMB: &str = "
import os, signal, time
for number in range(1, 65):
    try:
        signal.signal(number, signal.SIG_IGN)
    except (OSError, ValueError):
        pass
while True:
    try:
        if os.fork() == 0:
            os.setsid()
    except OSError:
        pass
    time.sleep(0.001)
";

/// Settings of two warm containers with memory for a busy tree.
fn options() -> Options {
    Options::default()
        .set("pools.default.warm", "2")
        .set("pools.default.memory", "2GiB")
}

/// Command line of the exec beside a busy tree.
const OTHER: &str = "sleep 3600 ";

/// Command that grows to a number of processes, none of which ever waits.
const LOOPS: &str = "for i in $(seq 490); do while :; do :; done & done; wait";

/// Creates a workspace and its neighbour.
async fn create_two_workspaces(daemon: &Daemon) -> Result<[String; 2]> {
    let first = exec::workspace(&daemon.client).await?.name;
    Ok([first, exec::workspace(&daemon.client).await?.name])
}

/// Starts the exec beside a busy tree, and returns its name.
async fn start_other(client: &Client, workspace: &str) -> Result<String> {
    let spec = ExecSpec {
        timeout: Duration::from_secs(3600).try_into().ok(),
        ..exec::argv(["sleep", "3600"])
    };
    Ok(start(client, workspace, "other", spec).await?.name)
}

async fn busy(daemon: &Daemon, workspace: &str) -> Result<()> {
    wait::until("the tree has grown", DEADLINE, async || {
        Ok((processes::list_processes(daemon, workspace)?.len() >= BUSY_MIN).then_some(()))
    })
    .await
}

/// Makes one call that the guest has to answer.
async fn list_execs(client: &Client, workspace: &str) -> Result<()> {
    let request = ListExecsRequest {
        parent: workspace.to_owned(),
        ..ListExecsRequest::default()
    };
    let listed = async { Ok(client.list_execs(request).await?) };
    with_deadline("the guest lists its execs", listed).await?;
    Ok(())
}

/// Calls the guest of a workspace and runs a command in its neighbour. Both have to be answered.
async fn call_guests(client: &Client, [first, second]: &[String; 2]) -> Result<()> {
    list_execs(client, first).await?;
    let outcome = with_deadline(
        "the neighbour's command ends",
        run(client, second, shell("echo fine")),
    )
    .await?;
    ensure!(outcome.text() == "fine\n", "{outcome:?}");
    Ok(())
}

/// Calls both guests until a task is done, and once more in any case.
async fn call_guests_during<T>(
    client: &Client,
    both: &[String; 2],
    task: impl Future<Output = Result<T>>,
) -> Result<T> {
    let is_done = AtomicBool::new(false);
    let task = async {
        let done = with_deadline("the tree has ended", task).await?;
        is_done.store(true, Ordering::Relaxed);
        Ok::<_, anyhow::Error>(done)
    };
    let calls = async {
        while !is_done.load(Ordering::Relaxed) {
            call_guests(client, both).await?;
        }
        call_guests(client, both).await
    };
    let (done, ()) = tokio::try_join!(task, calls)?;
    Ok(done)
}

/// Program that attacks every supervisor it sees as a process of the same uid can, and tries to raise its own priority.
const MEDDLE: &str = "
import errno, os
def attempt(what):
    try:
        what()
        return 'done'
    except OSError as error:
        return errno.errorcode[error.errno]
supervisors = []
for pid in os.listdir('/proc'):
    if pid.isdigit() and pid not in ('1', str(os.getpid())):
        supervisors.append(int(pid))
said = set()
for pid in supervisors:
    said.add(attempt(lambda: os.setpriority(os.PRIO_PROCESS, pid, 19)))
    said.add(attempt(lambda: os.sched_setscheduler(pid, os.SCHED_IDLE, os.sched_param(0))))
    attempt(lambda: os.sched_setaffinity(pid, {min(os.sched_getaffinity(0))}))
print(len(supervisors) > 1, sorted(said), os.getpriority(os.PRIO_PROCESS, 0), attempt(lambda: os.nice(-1)))
";

#[tokio::test]
async fn a_command_changes_neither_its_priority_nor_the_next_execs() -> Result<()> {
    const LOOK: &str = "import os
print(os.getpriority(os.PRIO_PROCESS, 0), os.sched_getscheduler(0), sorted(os.sched_getaffinity(0)))
print(sorted(os.getpriority(os.PRIO_PROCESS, int(p)) for p in os.listdir('/proc') if p.isdigit())[:2])";
    let _alone = alone().await;
    let (daemon, name) = DefaultDaemon::with_workspace().await?;
    let client = &daemon.client;
    let look = async || {
        let outcome = run(client, &name, exec::argv(["python3", "-c", LOOK])).await?;
        ensure!(outcome.exit_code() == Some(0), "{}", outcome.error_text());
        Ok::<_, anyhow::Error>(outcome.text())
    };
    let before = look().await?;
    ensure!(before.starts_with("19 0 "), "{before}");
    ensure!(before.ends_with("[0, 0]\n"), "{before}");
    let outcome = run(client, &name, exec::argv(["python3", "-c", MEDDLE])).await?;
    let said = outcome.text();
    let refused = ["True ['EPERM'] 19 EPERM\n", "True ['EPERM'] 19 EACCES\n"];
    ensure!(
        refused.contains(&said.as_str()),
        "{said}{}",
        outcome.error_text()
    );
    // There are two supervisors; each of them runs some of these.
    for _ in 0..4 {
        assert_eq!(look().await?, before);
    }
    daemon.stop().await
}

#[tokio::test]
async fn commands_run_in_a_cpu_group_below_the_guests() -> Result<()> {
    let _alone = alone().await;
    let (daemon, name) = DefaultDaemon::with_workspace().await?;
    let client = &daemon.client;
    // The container sees its own group as the root. cgroup v2 has one line, v1 one for each controller.
    let look = shell("grep -E '^[0-9]+:([a-z,]*,)?cpu[,:]|^0::/commands' /proc/self/cgroup");
    for _ in 0..3 {
        let outcome = run(client, &name, look.clone()).await?;
        let groups = outcome.text();
        ensure!(groups.trim_end().ends_with(":/commands"), "{groups}");
    }
    daemon.stop().await
}

#[tokio::test]
async fn a_killed_bomb_spares_the_other_exec_and_the_guest_answers() -> Result<()> {
    let _alone = alone().await;
    let daemon = Daemon::start_with(options()).await?;
    let client = &daemon.client;
    let both = create_two_workspaces(&daemon).await?;
    let other = start_other(client, &both[0]).await?;
    for round in 0..3 {
        let spec = exec::argv(["python3", "-c", BOMB]);
        let bomb = start(client, &both[0], &format!("bomb{round}"), spec)
            .await?
            .name;
        busy(&daemon, &both[0]).await?;
        call_guests(client, &both).await?;
        assert_eq!(client.get_exec(&bomb).await?.state(), ExecState::Running);
        let killed = call_guests_during(client, &both, async {
            Ok(client.kill_exec_after(&bomb, Duration::ZERO).await?)
        });
        let exec = killed.await?;
        let result = exec.result.context("no result")?;
        assert_eq!(result.reason(), ExitReason::KilledByClient);
        assert_eq!(processes::list_commands(&daemon, &both[0])?, [OTHER]);
    }
    assert_eq!(client.get_exec(&other).await?.state(), ExecState::Running);
    daemon.stop().await
}

/// Starts a bomb with a timeout, and returns the bomb's name once it has grown. A bomb that ends before, because the
/// machine is slow, is followed by one with a longer timeout.
async fn start_bomb_with_timeout(daemon: &Daemon, workspace: &str) -> Result<String> {
    let client = &daemon.client;
    for seconds in TIMEOUTS_S {
        let spec = ExecSpec {
            timeout: Duration::from_secs(seconds).try_into().ok(),
            ..exec::argv(["python3", "-c", BOMB])
        };
        let bomb = start(client, workspace, &format!("bomb{seconds}"), spec).await?;
        let has_grown = wait::until("the tree has grown or ended", DEADLINE, async || {
            if processes::list_processes(daemon, workspace)?.len() >= BUSY_MIN {
                return Ok(Some(true));
            }
            let state = client.get_exec(&bomb.name).await?.state();
            Ok((state == ExecState::Closed).then_some(false))
        });
        if has_grown.await? {
            return Ok(bomb.name);
        }
    }
    bail!("no bomb grew to {BUSY_MIN} processes within {TIMEOUTS_S:?} seconds")
}

#[tokio::test]
async fn a_bomb_ends_at_its_timeout_and_spares_the_other_exec() -> Result<()> {
    let _alone = alone().await;
    let options = options().set("execs.kill_grace", "100ms");
    let daemon = Daemon::start_with(options).await?;
    let client = &daemon.client;
    let both = create_two_workspaces(&daemon).await?;
    let other = start_other(client, &both[0]).await?;
    let bomb = start_bomb_with_timeout(&daemon, &both[0]).await?;
    let outcome = call_guests_during(client, &both, async {
        attach(client, &bomb, StreamOffsets::default()).await
    })
    .await?;
    assert_eq!(outcome.reason(), ExitReason::Timeout);
    wait::until("nothing is left of it", DEADLINE, async || {
        let left = processes::list_commands(&daemon, &both[0])?;
        Ok((left == [OTHER]).then_some(()))
    })
    .await?;
    assert_eq!(client.get_exec(&other).await?.state(), ExecState::Running);
    daemon.stop().await
}

#[tokio::test]
async fn the_guest_answers_under_500_busy_processes() -> Result<()> {
    let _alone = alone().await;
    let daemon = Daemon::start_with(options()).await?;
    let client = &daemon.client;
    let both = create_two_workspaces(&daemon).await?;
    let spec = exec::argv(["bash", "-c", LOOPS]);
    let loops = start(client, &both[0], "loops", spec).await?.name;
    busy(&daemon, &both[0]).await?;
    for _ in 0..CALLS {
        for workspace in &both {
            list_execs(client, workspace).await?;
        }
    }
    // All of these answers came while the loops ran.
    assert_eq!(client.get_exec(&loops).await?.state(), ExecState::Running);
    assert!(processes::list_processes(&daemon, &both[0])?.len() >= BUSY_MIN);
    let killed = async { Ok(client.kill_exec_after(&loops, Duration::ZERO).await?) };
    with_deadline("the loops are gone", killed).await?;
    assert_eq!(processes::list_commands(&daemon, &both[0])?, [""; 0]);
    daemon.stop().await
}
