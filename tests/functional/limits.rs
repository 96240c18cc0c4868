//! The limits of one exec: the kernel keeps them, or the request is refused with the field named.

use anyhow::Result;
use skilld_client::Client;
use skilld_client::v1::exec_result::Reason as Ended;
use skilld_client::v1::{ExecLimits, ExecSpec, Reason, StartExecRequest};
use skilld_tests::exec::{Outcome, argv, run, shell, start};
use skilld_tests::{Daemon, expect_refusal};

#[tokio::test]
async fn every_rlimit_reaches_the_program() -> Result<()> {
    let (daemon, name) = Daemon::with_workspace().await?;
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
    let (daemon, name) = Daemon::with_workspace().await?;
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

#[tokio::test]
async fn output_beyond_its_limit_ends_the_exec_at_that_byte() -> Result<()> {
    let (daemon, name) = Daemon::with_workspace().await?;
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
        spec("head -c 600000 /dev/zero >&2; yes; sleep 1000"),
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

/// Returns the fields for which a spec is refused.
async fn faults(
    client: &Client,
    workspace: &str,
    exec_id: &str,
    spec: ExecSpec,
) -> Result<Vec<String>> {
    let request = StartExecRequest {
        workspace: workspace.to_owned(),
        exec_id: exec_id.to_owned(),
        spec: Some(spec),
    };
    let answer = client.start_exec(request).await;
    let failure = expect_refusal(answer, Reason::InvalidRequest)?;
    let fields = failure.violations.into_iter().map(|fault| fault.field);
    Ok(fields.collect())
}

fn many(count: usize) -> ExecSpec {
    ExecSpec {
        argv: vec!["x".to_owned(); count],
        ..ExecSpec::default()
    }
}

fn env(pairs: Vec<(String, String)>) -> ExecSpec {
    ExecSpec {
        env: pairs.into_iter().collect(),
        ..shell("true")
    }
}

fn numbered(count: usize) -> ExecSpec {
    let pairs = (0..count).map(|number| (format!("V{number}"), String::new()));
    env(pairs.collect())
}

/// Returns specs with one value that is too large, and the name of its field.
fn too_much() -> Vec<(ExecSpec, Vec<String>)> {
    let negative = ExecLimits {
        output_bytes: -1,
        cpu_seconds: -1,
        file_bytes: -1,
        open_files: -1,
        processes: -1,
        address_space_bytes: -1,
    };
    let limits = "output_bytes cpu_seconds file_bytes open_files processes address_space_bytes";
    let limits: Vec<String> = limits
        .split(' ')
        .map(|field| format!("spec.limits.{field}"))
        .collect();
    let named = |fields: &[&str]| fields.iter().map(|field| (*field).to_owned()).collect();
    vec![
        (many(4097), named(&["spec.argv"])),
        (
            argv(["echo", &"x".repeat(128 << 10)]),
            named(&["spec.argv[1]"]),
        ),
        (
            argv([&"x".repeat(120_000) as &str; 9]),
            named(&["spec.argv"]),
        ),
        (shell(&"x".repeat(128 << 10)), named(&["spec.shell"])),
        (numbered(1025), named(&["spec.env"])),
        (
            env(vec![("A".into(), "x".repeat(300 << 10))]),
            named(&["spec.env"]),
        ),
        (
            env(vec![("1A".into(), String::new())]),
            named(&["spec.env[\"1A\"]"]),
        ),
        (
            ExecSpec {
                cwd: "x/".repeat(3000),
                ..shell("true")
            },
            named(&["spec.cwd"]),
        ),
        (
            ExecSpec {
                limits: Some(negative),
                ..shell("true")
            },
            limits,
        ),
    ]
}

#[tokio::test]
async fn values_that_are_too_long_or_too_many_are_refused_with_their_field() -> Result<()> {
    let (daemon, name) = Daemon::with_workspace().await?;
    let client = &daemon.client;
    for (spec, wanted) in too_much() {
        assert_eq!(faults(client, &name, "", spec).await?, wanted);
    }
    for id in ["x".repeat(64), "a/b".into(), "A".into(), "a.".into()] {
        assert_eq!(
            faults(client, &name, &id, shell("true")).await?,
            ["exec_id"],
            "{id}"
        );
    }
    daemon.stop().await
}

#[tokio::test]
async fn the_largest_allowed_values_are_accepted_and_arrive() -> Result<()> {
    let (daemon, name) = Daemon::with_workspace().await?;
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
