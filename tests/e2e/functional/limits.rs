//! The limits of one exec, at their bounds and beyond.
//!
//! Docker: the kernel enforces them on programs in a container, within the limits of the container itself.

use anyhow::Result;
use skilld_client::v1::{ExecLimits, ExecSpec, ExitReason as Ended};
use skilld_tests::DefaultDaemon;
use skilld_tests::exec::{Outcome, argv, run, shell, start};

#[tokio::test]
async fn every_rlimit_reaches_the_program() -> Result<()> {
    let (daemon, name) = DefaultDaemon::with_workspace().await?;
    let client = &daemon.client;
    let limits = ExecLimits {
        cpu_seconds: 100,
        file_bytes: 1 << 20,
        open_files: 50,
        processes: 40,
        address_space_bytes: 1 << 30,
        ..ExecLimits::default()
    };
    // Soft and hard alike: what may be raised again is no limit.
    let ulimits = "for h in S H; do echo $(ulimit -$h -t) $(ulimit -$h -f) $(ulimit -$h -n) $(ulimit -$h -u) $(ulimit -$h -v); done";
    let outcome = run(client, &name, with(limits, shell(ulimits))).await?;
    let line = "100 1024 50 40 1048576\n";
    assert_eq!(outcome.text(), line.repeat(2));
    assert_eq!(outcome.spec.limits, Some(limits));

    daemon.stop().await
}

fn with(limits: ExecLimits, spec: ExecSpec) -> ExecSpec {
    ExecSpec {
        limits: Some(limits),
        ..spec
    }
}

#[tokio::test]
async fn every_rlimit_is_kept() -> Result<()> {
    let (daemon, name) = DefaultDaemon::with_workspace().await?;
    let client = &daemon.client;
    let check = async |limits, script: &str| -> Result<Outcome> {
        run(client, &name, with(limits, argv(["python3", "-c", script]))).await
    };
    let only = ExecLimits::default();
    let outcome = check(
        ExecLimits {
            cpu_seconds: 1,
            ..only
        },
        "while True: pass",
    )
    .await?;
    let ended = (outcome.reason(), outcome.signal());
    // Beyond a hard limit of processor time there is only KILL.
    assert_eq!(ended, (Ended::Signaled, Some(9)), "{outcome:?}");
    let write = "import signal; signal.signal(signal.SIGXFSZ, signal.SIG_DFL)\n\
                 with open('/workspace/work/f', 'wb', 0) as f:\n  while True: f.write(b'x' * 4096)";
    let outcome = check(
        ExecLimits {
            file_bytes: 1 << 20,
            ..only
        },
        write,
    )
    .await?;
    assert_eq!(
        (outcome.reason(), outcome.signal()),
        (Ended::Signaled, Some(25))
    );
    let size = run(client, &name, shell("stat -c %s $WORK_DIR/f")).await?;
    assert_eq!(size.text(), "1048576\n");
    for (limits, script, error) in [
        (
            ExecLimits {
                open_files: 20,
                ..only
            },
            "a = [open('/dev/null') for i in range(30)]",
            "Too many open files",
        ),
        (
            ExecLimits {
                address_space_bytes: 256 << 20,
                ..only
            },
            "bytearray(1 << 30)",
            "MemoryError",
        ),
        (
            ExecLimits {
                processes: 8,
                ..only
            },
            "import os, time\nfor i in range(20):\n  if os.fork() == 0: time.sleep(100)",
            "BlockingIOError",
        ),
    ] {
        let outcome = check(limits, script).await?;
        assert!(outcome.error_text().contains(error), "{outcome:?}");
        // An exec's own limit is not the workspace's.
        assert_eq!(
            (outcome.reason(), outcome.exit_code()),
            (Ended::Exited, Some(1))
        );
    }
    daemon.stop().await
}

/// Python program that waits until all bytes of stderr are read. `head` leaves part of its own in the pipe, and nothing
/// orders the reads of two pipes.
const UNTIL_READ: &str = "
import fcntl, termios
while any(fcntl.ioctl(2, termios.FIONREAD, bytes(4))): pass
";

#[tokio::test]
async fn output_beyond_its_limit_ends_the_exec_at_that_byte() -> Result<()> {
    let (daemon, name) = DefaultDaemon::with_workspace().await?;
    let client = &daemon.client;
    let limits = ExecLimits {
        output_bytes: 1_000_001,
        ..ExecLimits::default()
    };
    let spec = |script: &str| ExecSpec {
        limits: Some(limits),
        ..shell(script)
    };
    // Both streams count.
    let outcome = run(
        client,
        &name,
        spec(&format!(
            "head -c 600000 /dev/zero >&2; python3 -c '{UNTIL_READ}'; yes; sleep 1000"
        )),
    )
    .await?;
    assert_eq!(outcome.reason(), Ended::OutputLimit, "{:?}", outcome.result);
    assert_eq!(
        (outcome.stderr.len(), outcome.stdout.len()),
        (600_000, 400_001)
    );
    assert!(outcome.stdout.starts_with(b"y\ny\n"));
    // As much as is allowed is allowed.
    let outcome = run(client, &name, spec("head -c 1000001 /dev/zero")).await?;
    assert_eq!(
        (outcome.reason(), outcome.stdout.len()),
        (Ended::Exited, 1_000_001)
    );
    daemon.stop().await
}

fn many(count: usize) -> ExecSpec {
    ExecSpec {
        argv: vec!["x".to_owned(); count],
        ..ExecSpec::default()
    }
}

fn numbered(count: usize) -> ExecSpec {
    let variables = (0..count).map(|number| (format!("V{number}"), String::new()));
    ExecSpec {
        env: variables.collect(),
        ..shell("true")
    }
}

#[tokio::test]
async fn the_largest_allowed_values_are_accepted_and_arrive() -> Result<()> {
    let (daemon, name) = DefaultDaemon::with_workspace().await?;
    let client = &daemon.client;
    let id = "x".repeat(63);
    let largest = shell(&format!("#{}\necho $#", "x".repeat((128 << 10) - 10)));
    assert_eq!(
        start(client, &name, &id, largest).await?.name,
        format!("{name}/execs/{id}")
    );
    let mut count = many(4096);
    count
        .argv
        .splice(0..2, ["bash".to_owned(), "-c".to_owned()]);
    count.argv[2] = "echo $#".to_owned();
    assert_eq!(run(client, &name, count).await?.text(), "4092\n");
    let outcome = run(client, &name, numbered(1024)).await?;
    assert_eq!(outcome.exit_code(), Some(0));
    daemon.stop().await
}
