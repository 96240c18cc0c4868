//! Commands: what they get, what they say, how they end.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use futures::future::{join_all, try_join_all};
use skilld_client::v1::exec_result::Reason as Ended;
use skilld_client::v1::spawn_failure::Stage;
use skilld_client::v1::{
    CreateWorkspaceRequest, ExecSpec, ExecState, ListExecsRequest, Reason, RunExecRequest,
    SignalExecRequest, StartExecRequest, Stdin, StreamOffsets, stdin,
};
use skilld_tests::exec::{argv, attach, run, shell, start, workspace};
use skilld_tests::{Daemon, expect_refusal};
use tokio::io::AsyncReadExt;
use tonic_types::StatusExt;

/// PATH of a command without a skill.
const PATH: &str = "/usr/local/bin:/usr/bin:/bin:/usr/local/sbin:/usr/sbin:/sbin";

fn with_stdin(data: Vec<u8>, spec: ExecSpec) -> ExecSpec {
    let source = Some(stdin::Source::Data(data.into()));
    ExecSpec {
        stdin: Some(Stdin { source }),
        ..spec
    }
}

/// Parses the output of `env --null`.
fn variables(stdout: &[u8]) -> Result<BTreeMap<String, String>> {
    let text = std::str::from_utf8(stdout)?;
    let pairs = text.split_terminator('\0').map(|pair| {
        let (name, value) = pair.split_once('=').context("no =")?;
        Ok((name.to_owned(), value.to_owned()))
    });
    pairs.collect()
}

#[tokio::test]
async fn argv_goes_as_argv_and_shell_text_to_bash() -> Result<()> {
    let (daemon, name) = Daemon::with_workspace().await?;
    let client = &daemon.client;
    let spec = argv(["printf", "%s|", "a b", "$HOME", "*", "", "'\"\\", "ü"]);
    let outcome = run(client, &name, spec).await?;
    assert_eq!(outcome.text(), "a b|$HOME|*||'\"\\|ü|");
    assert_eq!(
        (outcome.exit_code(), outcome.reason()),
        (Some(0), Ended::Exited)
    );

    let commands = "set -- {1..3}; echo $((6*7)) $# $BASH_VERSINFO";
    let outcome = run(client, &name, shell(commands)).await?;
    assert_eq!(outcome.text(), "42 3 5\n");
    daemon.stop().await
}

#[tokio::test]
async fn output_arrives_while_the_program_runs() -> Result<()> {
    let (daemon, name) = Daemon::with_workspace().await?;
    let client = &daemon.client;
    let outcome = run(client, &name, shell("echo first; sleep 0.6; echo second")).await?;
    assert_eq!(outcome.text(), "first\nsecond\n");
    let first = outcome.first_output.context("no output")?;
    assert!(
        first + Duration::from_millis(500) < outcome.exited,
        "{outcome:?}"
    );
    assert!(
        outcome.wall_time() >= Duration::from_millis(600),
        "{outcome:?}"
    );
    assert!(outcome.wall_time() < Duration::from_secs(3), "{outcome:?}");
    daemon.stop().await
}

/// Variables of every command in this test, except RUN_DIR.
const FIXED_VARIABLES: [(&str, &str); 19] = [
    ("PATH", PATH),
    ("HOME", "/workspace/work"),
    ("LANG", "C.UTF-8"),
    ("TMPDIR", "/tmp"),
    ("USER", "skill"),
    ("SHELL", "/bin/bash"),
    ("WORKSPACE", "/workspace"),
    ("WORKSPACE_DIR", "/workspace"),
    ("SKILLS_DIR", "/workspace/skills"),
    ("WORK_DIR", "/workspace/work"),
    ("INPUTS_DIR", "/workspace/work/inputs"),
    ("OUTPUT_DIR", "/workspace/out"),
    ("CLAUDE_PROJECT_DIR", "/workspace/work"),
    ("PIP_DISABLE_PIP_VERSION_CHECK", "1"),
    ("PIP_NO_INDEX", "1"),
    ("UV_OFFLINE", "1"),
    ("UV_PYTHON_DOWNLOADS", "never"),
    ("COLOUR", "green"),
    ("BOTH", "exec"),
];

#[tokio::test]
async fn the_environment_is_the_documented_minimum() -> Result<()> {
    let daemon = Daemon::start().await?;
    let client = &daemon.client;
    let created = client
        .create_workspace(CreateWorkspaceRequest {
            env: [("COLOUR", "green"), ("BOTH", "workspace")]
                .map(|(name, value)| (name.to_owned(), value.to_owned()))
                .into(),
            ..CreateWorkspaceRequest::default()
        })
        .await?;
    let mut spec = argv(["env", "--null"]);
    spec.env = [("BOTH".to_owned(), "exec".to_owned())].into();
    let outcome = run(client, &created.name, spec.clone()).await?;
    let exec = outcome.name.rsplit('/').next().context("no id")?;
    let run_dir = format!("/workspace/runs/{exec}");
    let minimum = FIXED_VARIABLES
        .into_iter()
        .chain([("RUN_DIR", run_dir.as_str())]);
    let minimum: BTreeMap<String, String> = minimum
        .map(|(name, value)| (name.to_owned(), value.to_owned()))
        .collect();
    assert_eq!(variables(&outcome.stdout)?, minimum);
    let outcome = run(client, &created.name, shell("cd \"$RUN_DIR\" && pwd -P")).await?;
    assert!(
        outcome.text().starts_with("/workspace/runs/"),
        "{outcome:?}"
    );

    // With a skill there is more, and it starts in the skill's root.
    client.stage_skills(&created.name, &["text-stats"]).await?;
    spec.skill = "text-stats".to_owned();
    let outcome = run(client, &created.name, spec).await?;
    let env = variables(&outcome.stdout)?;
    let dir = "/workspace/skills/text-stats";
    let path = format!("{dir}/.venv/bin:{PATH}:{dir}/bin");
    let venv = format!("{dir}/.venv");
    for (name, value) in [
        ("PATH", path.as_str()),
        ("SKILL_NAME", "text-stats"),
        ("SKILL_DIR", dir),
        ("SKILL_ROOT", dir),
        ("CLAUDE_SKILL_DIR", dir),
        ("CLAUDE_PLUGIN_ROOT", dir),
        ("VIRTUAL_ENV", &venv),
        ("PYTHONPATH", &format!("{dir}:/run/skilld/python")),
        ("PYTHONDONTWRITEBYTECODE", "1"),
    ] {
        assert_eq!(env.get(name).map(String::as_str), Some(value), "{name}");
    }
    assert_eq!(env.len(), minimum.len() + 8, "{env:?}");
    let mut pwd = argv(["pwd"]);
    pwd.skill = "text-stats".to_owned();
    assert_eq!(
        run(client, &created.name, pwd).await?.text(),
        format!("{dir}\n")
    );
    daemon.stop().await
}

#[tokio::test]
async fn a_working_directory_is_in_the_workspace_or_refused() -> Result<()> {
    let (daemon, name) = Daemon::with_workspace().await?;
    let client = &daemon.client;
    let commands = "mkdir -p $WORK_DIR/a/b; ln -s /etc $WORK_DIR/out; ln -s a $WORK_DIR/in";
    run(client, &name, shell(commands)).await?;
    for (cwd, expected) in [
        ("", "/workspace/work"),
        ("work/a", "/workspace/work/a"),
        ("$WORK_DIR/a/b", "/workspace/work/a/b"),
        ("${OUTPUT_DIR}", "/workspace/out"),
        ("inputs", "/workspace/work/inputs"),
        ("/workspace/work/a/../a", "/workspace/work/a"),
        ("work/in/b", "/workspace/work/a/b"),
    ] {
        let mut spec = argv(["pwd", "-P"]);
        spec.cwd = cwd.to_owned();
        let outcome = run(client, &name, spec).await?;
        assert_eq!(outcome.text().trim_end(), expected, "{cwd}: {outcome:?}");
    }
    for cwd in [
        "..",
        "/etc",
        "work/../../etc",
        "$WORK_DIR/../..",
        "work/out",
    ] {
        let mut spec = argv(["pwd"]);
        spec.cwd = cwd.to_owned();
        let result = run(client, &name, spec).await;
        expect_refusal(result, Reason::PathEscapes)?;
    }
    // Some failures show only at the start: nothing ran, and the stream reports it.
    let mut spec = argv(["pwd"]);
    spec.cwd = "work/missing".to_owned();
    let outcome = run(client, &name, spec).await?;
    let failure = outcome.result.spawn_failure.clone().context("it ran")?;
    assert_eq!(
        (outcome.reason(), failure.stage()),
        (Ended::SpawnFailed, Stage::Cwd)
    );
    assert_eq!(failure.errno, errno("ENOENT"), "{failure:?}");
    daemon.stop().await
}

fn errno(name: &str) -> i32 {
    use nix::errno::Errno;
    let all = [Errno::ENOENT, Errno::EACCES, Errno::ENOEXEC];
    let found = all.into_iter().find(|errno| format!("{errno:?}") == name);
    found.map_or(0, |errno| errno as i32)
}

#[tokio::test]
async fn stdin_given_up_front_is_read_to_its_end() -> Result<()> {
    let (daemon, name) = Daemon::with_workspace().await?;
    let client = &daemon.client;
    let data: Vec<u8> = (0..1_u32 << 18).flat_map(u32::to_le_bytes).collect();
    let outcome = run(client, &name, with_stdin(data.clone(), argv(["cat"]))).await?;
    assert!(
        outcome.stdout == data,
        "{} of {} bytes",
        outcome.stdout.len(),
        data.len()
    );
    // A program that does not read it ends all the same.
    let outcome = run(client, &name, with_stdin(data.clone(), argv(["true"]))).await?;
    assert_eq!(outcome.exit_code(), Some(0));
    // Without any it is at its end at once.
    let outcome = run(client, &name, shell("wc -c; readlink /proc/self/fd/0")).await?;
    assert_eq!(outcome.text(), "0\n/dev/null\n");

    let mut large = data;
    large.push(0);
    let refusal = run(client, &name, with_stdin(large, argv(["cat"]))).await;
    expect_refusal(refusal, Reason::InvalidRequest)?;
    daemon.stop().await
}

#[tokio::test]
async fn exit_codes_and_signals_are_data() -> Result<()> {
    let (daemon, name) = Daemon::with_workspace().await?;
    let client = &daemon.client;
    for code in [0, 1, 124, 137, 255] {
        let outcome = run(client, &name, shell(&format!("exit {code}"))).await?;
        let ended = (outcome.exit_code(), outcome.signal(), outcome.reason());
        assert_eq!(ended, (Some(code), None, Ended::Exited));
    }
    for signal in [1, 9, 11, 15] {
        let outcome = run(client, &name, shell(&format!("kill -{signal} $$"))).await?;
        let ended = (outcome.exit_code(), outcome.signal(), outcome.reason());
        assert_eq!(ended, (None, Some(signal), Ended::Signaled));
    }
    let outcome = run(client, &name, shell("echo out; echo err >&2; echo more")).await?;
    assert_eq!(outcome.text(), "out\nmore\n");
    assert_eq!(outcome.error_text(), "err\n");
    assert_eq!((outcome.total.stdout, outcome.total.stderr), (9, 4));
    daemon.stop().await
}

#[tokio::test]
async fn a_large_output_arrives_whole() -> Result<()> {
    const BYTES: usize = 256 << 20;
    let (daemon, name) = Daemon::with_workspace().await?;
    let client = &daemon.client;
    // No two lines are equal, so that a piece lost, repeated or out of order shows.
    let outcome = run(client, &name, shell("seq 1000000000 | head -c 268435456")).await?;
    assert_eq!(outcome.stdout.len(), BYTES);
    assert_eq!(outcome.total.stdout, BYTES as u64);
    let mut local = tokio::process::Command::new("bash")
        .args(["-c", "seq 1000000000 | head -c 268435456"])
        .stdout(std::process::Stdio::piped())
        .kill_on_drop(true)
        .spawn()?;
    let mut pipe = local.stdout.take().context("no stdout")?;
    let (mut rest, mut chunk) = (outcome.stdout.as_slice(), vec![0; 1 << 20]);
    while !rest.is_empty() {
        let read = pipe.read(&mut chunk).await?;
        ensure!(read > 0, "the same program printed less here");
        let (here, after) = rest.split_at(read.min(rest.len()));
        ensure!(
            here == &chunk[..here.len()],
            "{} bytes from the end",
            rest.len()
        );
        rest = after;
    }
    local.wait().await?;
    daemon.stop().await
}

#[tokio::test]
async fn many_readers_attach_at_any_offset() -> Result<()> {
    let (daemon, name) = Daemon::with_workspace().await?;
    let client = &daemon.client;
    let count = "for i in {1..3000}; do echo line $i; done; sleep 0.3; echo end; echo e >&2";
    let started = start(client, &name, "counter", shell(count)).await?;
    assert_eq!(started.name, format!("{name}/execs/counter"));
    assert_eq!(started.state(), ExecState::Running);
    assert!(started.pid > 1);
    let whole: String = (1..=3000)
        .map(|i| format!("line {i}\n"))
        .collect::<String>()
        + "end\n";
    let start = StreamOffsets::default();
    let readers = (0..8).map(|_| attach(client, &started.name, start));
    for outcome in try_join_all(readers).await? {
        assert!(outcome.text() == whole, "{}", outcome.stdout.len());
        assert_eq!(outcome.error_text(), "e\n");
    }
    // The exec has ended and its output can still be read from any byte on.
    let length = whole.len() as u64;
    for stdout in [1, 4321, length - 1, length] {
        let outcome = attach(client, &started.name, StreamOffsets { stdout, stderr: 2 }).await?;
        assert!(outcome.stdout == whole.as_bytes()[usize::try_from(stdout)?..]);
        assert_eq!(outcome.error_text(), "");
        assert_eq!(
            outcome.total,
            StreamOffsets {
                stdout: length,
                stderr: 2
            }
        );
    }
    let exec = client.get_exec(&started.name).await?;
    assert_eq!(exec.state(), ExecState::Closed);
    assert_eq!(
        exec.total,
        Some(StreamOffsets {
            stdout: length,
            stderr: 2
        })
    );
    daemon.stop().await
}

#[tokio::test]
async fn an_exec_id_starts_one_program() -> Result<()> {
    let (daemon, name) = Daemon::with_workspace().await?;
    let client = &daemon.client;
    let request = |text: &str| RunExecRequest {
        workspace: name.clone(),
        exec_id: "once".to_owned(),
        spec: Some(shell(text)),
        ..RunExecRequest::default()
    };
    let text = "echo x >>$WORK_DIR/count; sleep 0.2; echo done";
    let runs = (0..8).map(|_| async {
        let events = client.run_exec(request(text)).await?;
        skilld_tests::exec::gather(events, StreamOffsets::default(), Instant::now()).await
    });
    for outcome in join_all(runs).await {
        assert_eq!(outcome?.text(), "done\n");
    }
    let count = run(client, &name, shell("cat $WORK_DIR/count")).await?;
    assert_eq!(count.text(), "x\n");
    let other = client.run_exec(request("echo something else")).await;
    expect_refusal(other, Reason::IdTaken)?;
    daemon.stop().await
}

#[tokio::test]
async fn an_exec_outlives_its_stream() -> Result<()> {
    let (daemon, name) = Daemon::with_workspace().await?;
    let client = &daemon.client;
    let request = RunExecRequest {
        workspace: name.clone(),
        exec_id: "long".to_owned(),
        spec: Some(shell("echo one; sleep 0.5; echo two")),
        ..RunExecRequest::default()
    };
    let mut events = client.run_exec(request).await?;
    events.next().await?.context("no event")?;
    drop(events);
    let exec = client.get_exec(&format!("{name}/execs/long")).await?;
    assert_eq!(exec.state(), ExecState::Running);
    let outcome = attach(client, &exec.name, StreamOffsets::default()).await?;
    assert_eq!(
        (outcome.text().as_str(), outcome.exit_code()),
        ("one\ntwo\n", Some(0))
    );
    daemon.stop().await
}

#[tokio::test]
async fn an_exec_that_cannot_start_names_the_place_and_the_reason() -> Result<()> {
    let (daemon, name) = Daemon::with_workspace().await?;
    let client = &daemon.client;
    let commands =
        "echo text >$WORK_DIR/plain; printf '\\x7fELF' >$WORK_DIR/bad; chmod +x $WORK_DIR/bad";
    run(client, &name, shell(commands)).await?;
    for (program, wanted) in [
        ("no-such-program", "ENOENT"),
        ("/workspace/work/missing", "ENOENT"),
        ("/workspace/work/plain", "EACCES"),
        ("/workspace", "EACCES"),
        ("/workspace/work/bad", "ENOEXEC"),
    ] {
        let outcome = run(client, &name, argv([program])).await?;
        let failure = outcome.result.spawn_failure.clone().context("it ran")?;
        assert_eq!((outcome.exit_code(), outcome.signal()), (None, None));
        assert_eq!(
            (outcome.reason(), failure.stage()),
            (Ended::SpawnFailed, Stage::Exec)
        );
        assert_eq!(failure.errno, errno(wanted), "{program}: {failure:?}");
        assert!(failure.message.contains(wanted), "{failure:?}");
    }
    let started = start(client, &name, "", argv(["no-such-program"])).await?;
    let result = started.result.clone().context("no result")?;
    assert_eq!((started.pid, result.reason()), (0, Ended::SpawnFailed));
    daemon.stop().await
}

#[tokio::test]
async fn execs_are_listed_in_the_order_of_their_start() -> Result<()> {
    let (daemon, name) = Daemon::with_workspace().await?;
    let client = &daemon.client;
    for id in ["c", "a", "b"] {
        start(client, &name, id, argv(["sleep", "100"])).await?;
    }
    let mut request = ListExecsRequest {
        workspace: name.clone(),
        page_size: 2,
        ..ListExecsRequest::default()
    };
    let first = client.list_execs(request.clone()).await?;
    request.page_token = first.next_page_token;
    ensure!(!request.page_token.is_empty(), "there is more");
    let second = client.list_execs(request).await?;
    assert_eq!(second.next_page_token, "");
    let names: Vec<_> = first
        .execs
        .iter()
        .chain(&second.execs)
        .map(|exec| exec.name.clone())
        .collect();
    assert_eq!(
        names,
        ["c", "a", "b"].map(|id| format!("{name}/execs/{id}"))
    );

    // A signal reaches the one that was meant.
    let signal = SignalExecRequest {
        name: names[1].clone(),
        signal: 15,
        ..SignalExecRequest::default()
    };
    client.signal_exec(signal.clone()).await?;
    let ended = attach(client, &names[1], StreamOffsets::default()).await?;
    assert_eq!(
        (ended.signal(), ended.reason()),
        (Some(15), Ended::Signaled)
    );
    expect_refusal(client.signal_exec(signal).await, Reason::ExecNotRunning)?;
    assert_eq!(
        client.get_exec(&names[0]).await?.state(),
        ExecState::Running
    );
    expect_refusal(
        client.get_exec(&format!("{name}/execs/none")).await,
        Reason::ExecNotFound,
    )?;
    daemon.stop().await
}

#[tokio::test]
async fn an_exec_over_the_count_is_refused() -> Result<()> {
    let options = skilld_tests::Options::default().set("execs.count_max", "3");
    let daemon = Daemon::start_with(options).await?;
    let client = &daemon.client;
    let name = workspace(client).await?.name;
    let start = |id: usize| {
        let spec = Some(argv(["sleep", "100"]));
        let (workspace, exec_id) = (name.clone(), format!("e{id}"));
        client.start_exec(StartExecRequest {
            workspace,
            exec_id,
            spec,
        })
    };
    for id in 0..3 {
        start(id).await?;
    }
    expect_refusal(start(3).await, Reason::QuotaExceeded)?;
    let request = StartExecRequest {
        workspace: name.clone(),
        spec: Some(argv(["sleep", "100"])),
        ..StartExecRequest::default()
    };
    let answer = client.execs().start_exec(request).await;
    let details = answer.err().context("started")?.get_error_details();
    let quota = details.quota_failure().context("no QuotaFailure")?;
    let subjects: Vec<&str> = quota
        .violations
        .iter()
        .map(|one| one.subject.as_str())
        .collect();
    assert_eq!(subjects, [name.as_str()]);
    client.kill_exec(&format!("{name}/execs/e0")).await?;
    start(4).await?;
    daemon.stop().await
}
