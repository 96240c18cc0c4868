//! Results of execs: the limit that was hit, the resources that were used, the limits in force.
//!
//! Docker: the kernel kills for memory and refuses processes and disk space, and counts what a program used.

use std::time::Duration;

use anyhow::{Context, Result};
use skilld_client::v1::{
    ExecLimits, ExecSpec, ExecState, ExitReason as Ended, FullDisk, StreamOffsets, WorkspaceLimits,
};
use skilld_tests::DefaultDaemon;
use skilld_tests::exec::{argv, attach, run, shell, start};

/// Python program that makes 100 processes, none of which ends by itself.
pub(crate) const FORKS: &str =
    "import os, time\nfor i in range(100):\n  if os.fork() == 0: time.sleep(1000)";

/// Claims a workspace of 96 MiB of memory, 16 MiB and 1,024 files of disk, and 64 processes.
async fn small(daemon: &DefaultDaemon) -> Result<String> {
    let limits = WorkspaceLimits {
        memory_bytes: 96 << 20,
        disk_bytes: 16 << 20,
        inodes: 1024,
        pids: 64,
        ..WorkspaceLimits::default()
    };
    daemon.sized(limits).await
}

#[tokio::test]
async fn memory_bomb_is_oom_killed_and_the_workspace_usable_after() -> Result<()> {
    const BOMB: &str = "a = []\nwhile True: a.append(b'x' * (1 << 20))";
    let daemon = DefaultDaemon::share().await?;
    let client = &daemon.client;
    let name = small(&daemon).await?;
    // One that runs all the while, and has nothing to do with it.
    let waits = shell("until [ -e $WORK_DIR/over ]; do sleep 0.05; done; echo ok");
    let bystander = start(client, &name, "bystander", waits).await?;
    let outcome = run(client, &name, argv(["python3", "-c", BOMB])).await?;
    let ended = (outcome.reason(), outcome.signal(), outcome.exit_code());
    assert_eq!(ended, (Ended::OomKilled, Some(9), None), "{outcome:?}");
    assert_eq!(outcome.result.oom_kills(), 1, "{outcome:?}");
    // Beyond the workspace's 96 MiB come the files of the image that Python maps, if another container is charged for them.
    let peak = outcome.result.peak_memory_bytes;
    assert!((48 << 20..192 << 20).contains(&peak), "{peak}");

    // The one that is killed is a child, and its shell reports it.
    let outcome = run(
        client,
        &name,
        shell(&format!("echo one; python3 -c \"{BOMB}\"; exit $?")),
    )
    .await?;
    let ended = (outcome.reason(), outcome.signal(), outcome.exit_code());
    assert_eq!(ended, (Ended::OomKilled, None, Some(137)), "{outcome:?}");
    assert_eq!(outcome.text(), "one\n");

    // What was killed for memory before says nothing of what fails now.
    for (script, wanted) in [("exit 3", Ended::Exited), ("kill -9 $$", Ended::Signaled)] {
        let outcome = run(client, &name, shell(script)).await?;
        assert_eq!((outcome.reason(), outcome.result.oom_kills()), (wanted, 0));
    }
    run(client, &name, shell("touch $WORK_DIR/over")).await?;
    let bystander = attach(client, &bystander.name, StreamOffsets::default()).await?;
    assert_eq!(
        (bystander.reason(), bystander.text().as_str()),
        (Ended::Exited, "ok\n")
    );
    daemon.stop().await
}

/// A chain goes on without the killed child, and well: that is no failure, but its result counts the kill.
#[tokio::test]
async fn an_oom_kill_in_a_chain_that_exits_with_0_is_counted() -> Result<()> {
    const BOMB: &str = "a = []\nwhile True: a.append(b'x' * (1 << 20))";
    let daemon = DefaultDaemon::share().await?;
    let client = &daemon.client;
    let name = small(&daemon).await?;
    let chain = format!("python3 -c \"{BOMB}\"; python3 -c \"{BOMB}\"; echo fine");
    let outcome = run(client, &name, shell(&chain)).await?;
    let ended = (
        outcome.reason(),
        outcome.exit_code(),
        outcome.result.oom_kills(),
    );
    assert_eq!(ended, (Ended::Exited, Some(0), 2), "{outcome:?}");
    assert_eq!(outcome.text(), "fine\n");
    let outcome = run(client, &name, shell("echo later")).await?;
    assert_eq!(outcome.result.oom_kills(), 0, "{outcome:?}");
    daemon.stop().await
}

#[tokio::test]
async fn a_program_that_the_pids_limit_stopped_says_so() -> Result<()> {
    let daemon = DefaultDaemon::share().await?;
    let client = &daemon.client;
    let name = small(&daemon).await?;
    let outcome = run(client, &name, argv(["python3", "-c", FORKS])).await?;
    let ended = (outcome.reason(), outcome.exit_code());
    assert_eq!(ended, (Ended::PidsLimit, Some(1)), "{outcome:?}");
    assert!(
        outcome.error_text().contains("BlockingIOError"),
        "{outcome:?}"
    );
    // It caught that, and did well: the result counts it. What fails later fails for another reason.
    let forgiving = format!(
        "try:\n  {}\nexcept OSError: print('enough')",
        FORKS.replace('\n', "\n  ")
    );
    let outcome = run(client, &name, argv(["python3", "-c", &forgiving])).await?;
    assert_eq!(
        (outcome.reason(), outcome.text().as_str()),
        (Ended::Exited, "enough\n")
    );
    assert!(outcome.result.refused_forks() > 0, "{outcome:?}");
    let outcome = run(client, &name, shell("exit 3")).await?;
    let ended = (outcome.reason(), outcome.result.refused_forks());
    assert_eq!(ended, (Ended::Exited, 0), "{outcome:?}");
    daemon.stop().await
}

#[tokio::test]
async fn a_program_that_the_full_disk_stopped_says_so() -> Result<()> {
    let daemon = DefaultDaemon::share().await?;
    let client = &daemon.client;
    let name = small(&daemon).await?;
    let commands = "head -c 40M /dev/zero >$OUTPUT_DIR/fill";
    let outcome = run(client, &name, shell(commands)).await?;
    let ended = (outcome.reason(), outcome.exit_code());
    assert_eq!(ended, (Ended::DiskFull, Some(1)), "{outcome:?}");
    // A full disk alone is no failure.
    let outcome = run(client, &name, shell("df $WORKSPACE_DIR >/dev/null")).await?;
    assert_eq!(
        (outcome.reason(), outcome.exit_code()),
        (Ended::Exited, Some(0))
    );
    run(client, &name, shell("rm $OUTPUT_DIR/fill")).await?;
    assert_eq!(
        run(client, &name, shell("exit 3")).await?.reason(),
        Ended::Exited
    );
    // No more files, with bytes to spare.
    let outcome = run(client, &name, shell("cd $OUTPUT_DIR && touch {1..1100}")).await?;
    let ended = (outcome.reason(), outcome.exit_code());
    assert_eq!(ended, (Ended::DiskFull, Some(1)), "{outcome:?}");
    daemon.stop().await
}

#[tokio::test]
async fn a_result_names_a_full_tmp_and_a_full_shm() -> Result<()> {
    let (daemon, name) = DefaultDaemon::with_workspace().await?;
    let client = &daemon.client;
    for path in ["/tmp", "/dev/shm"] {
        let fill = format!("head -c 100M /dev/zero >{path}/fill");
        let full = FullDisk {
            path: path.to_owned(),
            size_bytes: 64 << 20,
        };
        let outcome = run(client, &name, shell(&fill)).await?;
        let ended = (outcome.reason(), outcome.exit_code());
        assert_eq!(ended, (Ended::DiskFull, Some(1)), "{outcome:?}");
        assert_eq!(outcome.result.full_disks, std::slice::from_ref(&full));
        // So does a program that goes on, and succeeds.
        let outcome = run(client, &name, shell(&format!("{fill}; echo on"))).await?;
        let ended = (outcome.reason(), outcome.exit_code());
        assert_eq!(ended, (Ended::Exited, Some(0)), "{outcome:?}");
        assert_eq!(outcome.result.full_disks, [full]);
        let outcome = run(client, &name, shell(&format!("rm {path}/fill"))).await?;
        assert_eq!(outcome.result.full_disks, []);
    }
    daemon.stop().await
}

#[tokio::test]
async fn a_result_says_what_was_used_and_what_was_in_force() -> Result<()> {
    const WORK: &str = "import os, time\n\
        hold = bytearray(os.urandom(40 << 20))\n\
        while time.process_time() < 0.4: pass\n\
        while os.times().system < 0.2: os.read(os.open('/dev/zero', 0), 1 << 16)\n\
        time.sleep(0.3)";
    let (daemon, name) = DefaultDaemon::with_workspace().await?;
    let client = &daemon.client;
    let limits = ExecLimits {
        output_bytes: 1 << 20,
        open_files: 4000,
        ..ExecLimits::default()
    };
    let spec = ExecSpec {
        limits: Some(limits),
        ..argv(["python3", "-c", WORK])
    };
    let outcome = run(client, &name, spec).await?;
    assert_eq!(outcome.exit_code(), Some(0), "{outcome:?}");
    let result = &outcome.result;
    let time = |given: Option<prost_types::Duration>| {
        Duration::try_from(given.unwrap_or_default()).unwrap_or_default()
    };
    let (user, sys) = (time(result.user_duration), time(result.system_duration));
    // The kernel divides the time between the two by samples, so only the program's own figures bound it.
    assert!(user > Duration::ZERO, "{result:?}");
    assert!(sys >= Duration::from_millis(200), "{result:?}");
    assert!(user + sys >= Duration::from_millis(400), "{result:?}");
    assert!(
        outcome.wall_time() >= user + sys + Duration::from_millis(300),
        "{result:?}"
    );
    let peak = result.peak_memory_bytes;
    assert!((40 << 20..200 << 20).contains(&peak), "{peak}");
    assert_eq!(result.effective_limits, Some(limits));
    // Without limits of its own it has none, and says so; so does one that never ran.
    for spec in [shell(":"), argv(["no-such-program"])] {
        let result = run(client, &name, spec).await?.result;
        assert_eq!(
            result.effective_limits,
            Some(ExecLimits::default()),
            "{result:?}"
        );
    }
    let exec = client.get_exec(&outcome.name).await?;
    assert_eq!(exec.state(), ExecState::Closed);
    assert_eq!(exec.result.context("no result")?, *result);
    daemon.stop().await
}
