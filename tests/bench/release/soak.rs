//! Long series of execs in one workspace, during which neither memory nor descriptors of daemon and guest grow.

use std::time::Instant;

use anyhow::{Context, Result, ensure};
use futures::{StreamExt, TryStreamExt, stream};
use skilld_client::Client;
use skilld_tests::exec::{argv, run, shell, workspace};
use skilld_tests::{Daemon, usage, wait};

use crate::{DEADLINE, alone, options};

/// Number of execs; `make soak` sets [`VARIABLE`] to more.
const EXECS: usize = 20_000;
const VARIABLE: &str = "SKILLD_SOAK_EXECS";
const AT_ONCE: usize = 16;
/// Number of measurements, spread evenly over the execs.
const LOOKS: usize = 20;
/// Index of the measurement that later ones are compared with. The guest's allocator takes some 10,000 execs to stop
/// growing; from there to 100,000 execs its memory was measured to grow by 3 %.
const WARM_UP: usize = LOOKS / 2 - 1;
/// Memory by which a process may grow besides 5 %: the allocator takes and returns it in steps of some 100 KiB, and the
/// daemon has only 4.6 MB. From the 10,000th exec on a leak of 50 bytes for each is found.
const ALLOCATOR_STEPS_BYTES: u64 = 256 << 10;
/// Maximum number of run directories: one for each exec that is kept or runs.
const RUN_DIRECTORIES_MAX: usize = 256 + AT_ONCE;

/// Maximum number of processes: the guest, and supervisors for the running execs, the next one and an ended one.
const PROCESSES_MAX: usize = 1 + AT_ONCE + 2;

/// Measurement of everything that must not grow; memory in bytes, without pages of files.
#[derive(Debug, Clone, Copy)]
struct Look {
    daemon: u64,
    guest: u64,
    daemon_descriptors: usize,
    guest_descriptors: usize,
    processes: usize,
}

#[tokio::test(flavor = "multi_thread")]
async fn memory_and_descriptors_do_not_grow_over_many_execs() -> Result<()> {
    let _alone = alone().await;
    let execs = match std::env::var_os(VARIABLE) {
        Some(text) => text.to_string_lossy().parse().context(VARIABLE)?,
        None => EXECS,
    };
    let daemon = Daemon::start_with(options()?).await?;
    let name = workspace(&daemon.client).await?.name;
    let guest = usage::guest(&daemon, &name).await?;
    daemon.warm(1).await?;
    let mut looks = Vec::new();
    let started = Instant::now();
    for turn in 0..LOOKS {
        let first = turn * execs / LOOKS;
        let next = (turn + 1) * execs / LOOKS;
        stream::iter(first..next)
            .map(|number| run_numbered_exec(&daemon.client, &name, number))
            .buffer_unordered(AT_ONCE)
            .try_collect::<()>()
            .await?;
        looks.push(look(&daemon, guest).await?);
        println!("{next}: {:?}", looks[turn]);
    }
    println!("{execs} execs took {:?}", started.elapsed());
    let (early, late) = (looks[WARM_UP], looks[WARM_UP..].to_vec());
    for look in late {
        for (what, before, after) in [
            ("daemon", early.daemon, look.daemon),
            ("guest", early.guest, look.guest),
        ] {
            assert!(
                before.abs_diff(after) <= before / 20 + ALLOCATOR_STEPS_BYTES,
                "the {what} had {before} bytes, then {after}"
            );
        }
        assert_eq!(look.daemon_descriptors, early.daemon_descriptors);
        // One supervisor may still be on its way out, with its socket.
        assert!(look.processes <= PROCESSES_MAX, "{look:?}");
        assert!(
            look.guest_descriptors <= early.guest_descriptors + 1,
            "{look:?}"
        );
    }
    let listed = run(
        &daemon.client,
        &name,
        shell("ls $WORKSPACE_DIR/runs | wc -l"),
    )
    .await?;
    let directories: usize = listed.text().trim().parse()?;
    assert!(
        directories <= RUN_DIRECTORIES_MAX,
        "{directories} of them are left"
    );
    daemon.stop().await
}

/// Runs the exec with a number and checks its end. There are a few kinds, most of them minimal.
async fn run_numbered_exec(client: &Client, name: &str, number: usize) -> Result<()> {
    let (spec, expected) = match number % 50 {
        // An orphan that does not hold the pipes.
        7 => (shell("(sleep 60 >/dev/null 2>&1 &); exit 7"), Some(7)),
        17 => (argv(["sh", "-c", "kill -9 $$"]), None),
        27 => (argv(["head", "-c", "20000", "/dev/zero"]), Some(0)),
        37 => (argv(["sh", "-c", "echo out; echo err >&2"]), Some(0)),
        _ => (argv(["true"]), Some(0)),
    };
    let outcome = run(client, name, spec)
        .await
        .with_context(|| format!("exec {number}"))?;
    ensure!(
        outcome.exit_code() == expected,
        "exec {number}: {outcome:?}"
    );
    Ok(())
}

/// Measures once nothing runs in the container and no zombie is left.
async fn look(daemon: &Daemon, guest: u32) -> Result<Look> {
    let pid = daemon.pid().context("the daemon has ended")?;
    let processes = wait::until("all is quiet", DEADLINE, async || {
        let all = usage::list_container_processes(guest)?;
        let quiet = all
            .iter()
            .all(|one| one.name == "skilld-guest" && one.state != 'Z');
        Ok(quiet.then_some(all.len()))
    })
    .await?;
    Ok(Look {
        daemon: usage::anonymous(pid)?,
        guest: usage::anonymous(guest)?,
        daemon_descriptors: usage::descriptors(pid)?,
        guest_descriptors: usage::descriptors(guest)?,
        processes,
    })
}
