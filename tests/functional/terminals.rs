//! Terminals in a container, through the daemon.

use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use skilld_client::v1::exec_result::Reason as Ended;
use skilld_client::v1::{
    ExecEvent, ExecSpec, Reason, ResizeTerminalRequest, RunExecRequest, Stdin, Terminal,
    WriteStdinRequest, stdin,
};
use skilld_client::{Client, MessageStream};
use skilld_tests::exec::{argv, run, shell, stdout, workspace};
use skilld_tests::{Daemon, Options, expect_refusal, processes};

fn terminal(spec: ExecSpec) -> ExecSpec {
    ExecSpec {
        terminal: Some(Terminal::default()),
        ..spec
    }
}

fn typed(spec: ExecSpec) -> ExecSpec {
    let source = Some(stdin::Source::Open(true));
    ExecSpec {
        stdin: Some(Stdin { source }),
        ..terminal(spec)
    }
}

async fn start(
    client: &Client,
    workspace: &str,
    id: &str,
    spec: ExecSpec,
) -> Result<MessageStream<ExecEvent>> {
    let request = RunExecRequest {
        workspace: workspace.to_owned(),
        exec_id: id.to_owned(),
        spec: Some(spec),
        ..RunExecRequest::default()
    };
    Ok(client.run_exec(request).await?)
}

/// Reads events until the output ends with `end`.
async fn read_to(
    events: &mut MessageStream<ExecEvent>,
    seen: &mut String,
    end: &str,
) -> Result<()> {
    while !seen.ends_with(end) {
        let event = tokio::time::timeout(Duration::from_secs(15), events.next()).await;
        let event = event.with_context(|| format!("{end:?} does not end {seen:?}"))?;
        let event = event?.with_context(|| format!("it ended with {seen:?}"))?;
        seen.push_str(&String::from_utf8_lossy(stdout(&event)));
    }
    Ok(())
}

async fn write(client: &Client, name: &str, data: &str) -> Result<()> {
    let request = WriteStdinRequest {
        name: name.to_owned(),
        data: data.as_bytes().to_vec().into(),
        ..WriteStdinRequest::default()
    };
    client.write_stdin(request).await?;
    Ok(())
}

#[tokio::test]
async fn pty_in_a_container_is_a_terminal_of_the_size_and_name_that_was_asked() -> Result<()> {
    let (daemon, name) = Daemon::with_workspace().await?;
    let client = &daemon.client;
    let script = "tty; stty size; echo $TERM; echo err >&2; ps -o tty= -p $$";
    let outcome = run(client, &name, terminal(shell(script))).await?;
    assert_eq!(
        outcome.text(),
        "/dev/pts/0\r\n24 80\r\nxterm-256color\r\nerr\r\npts/0\r\n"
    );
    assert_eq!(outcome.error_text(), "");
    let effective = outcome.spec.terminal.context("no terminal")?;
    assert_eq!((effective.rows, effective.cols), (24, 80));
    assert_eq!(effective.term, "xterm-256color");
    let spec = ExecSpec {
        terminal: Some(Terminal {
            rows: 7,
            cols: 10_000,
            term: "vt100".to_owned(),
        }),
        ..shell("stty size; echo $TERM")
    };
    assert_eq!(
        run(client, &name, spec).await?.text(),
        "7 10000\r\nvt100\r\n"
    );
    // Typing into it on the user's behalf is what nobody may.
    let inject = "import fcntl, sys\nfor call in 0x5412, 0x541c:\n  try: fcntl.ioctl(0, call, b'x'); print('typed')\n  except OSError as e: print(e.errno)";
    let outcome = run(client, &name, terminal(argv(["python3", "-c", inject]))).await?;
    assert_eq!(outcome.text(), "1\r\n1\r\n");
    // No slot of the guest's is kept by it: as many as one likes, one after the other.
    for _ in 0..30 {
        assert_eq!(
            run(client, &name, terminal(shell("tty"))).await?.text(),
            "/dev/pts/0\r\n"
        );
    }
    daemon.stop().await
}

#[tokio::test]
async fn pty_resize_echo_and_keys_go_through_the_daemon() -> Result<()> {
    let (daemon, name) = Daemon::with_workspace().await?;
    let client = &daemon.client;
    let mut spec = typed(argv(["bash", "--norc", "--noprofile", "--noediting", "-i"]));
    spec.env.insert("PS1".to_owned(), "> ".to_owned());
    let mut events = start(client, &name, "shell", spec).await?;
    let exec = format!("{name}/execs/shell");
    let mut seen = String::new();
    read_to(&mut events, &mut seen, "> ").await?;
    write(client, &exec, "stty size\r").await?;
    read_to(&mut events, &mut seen, "stty size\r\n24 80\r\n> ").await?;
    let resize = |rows, cols| {
        let name = exec.clone();
        let mut stub = client.execs();
        async move {
            let request = ResizeTerminalRequest { name, rows, cols };
            stub.resize_terminal(request).await.map(drop)
        }
    };
    resize(50, 132).await?;
    write(client, &exec, "stty size\r").await?;
    read_to(&mut events, &mut seen, "50 132\r\n> ").await?;
    let failure = expect_refusal(resize(0, 10_001).await, Reason::InvalidRequest)?;
    let fields: Vec<_> = failure
        .violations
        .iter()
        .map(|fault| fault.field.as_str())
        .collect();
    assert_eq!(fields, ["rows", "cols"]);

    write(client, &exec, "echo $((6*7)); sleep 1001\r").await?;
    read_to(&mut events, &mut seen, "42\r\n").await?;
    while !processes::list_commands(&daemon, &name)?.contains(&"sleep 1001 ".to_owned()) {
        tokio::task::yield_now().await;
    }
    write(client, &exec, "\x03").await?;
    read_to(&mut events, &mut seen, "^C\r\n> ").await?;
    write(client, &exec, "exit 7\r").await?;
    let outcome =
        skilld_tests::exec::attach(client, &exec, skilld_client::v1::StreamOffsets::default())
            .await?;
    assert_eq!(
        (outcome.reason(), outcome.exit_code()),
        (Ended::Exited, Some(7))
    );
    assert!(outcome.text().starts_with(&seen), "{outcome:?}");
    expect_refusal(resize(1, 1).await, Reason::ExecNotRunning)?;
    daemon.stop().await
}

#[tokio::test]
async fn pty_idle_stays_up_with_heartbeats() -> Result<()> {
    use skilld_client::v1::exec_event::Event;
    let daemon = Daemon::start_with(Options::default().set("execs.heartbeat", "1s")).await?;
    let client = &daemon.client;
    let name = workspace(client).await?.name;
    let mut events = start(
        client,
        &name,
        "idle",
        typed(shell("read -r line; echo got $line")),
    )
    .await?;
    let begin = Instant::now();
    let mut heartbeats = 0;
    while heartbeats < 6 {
        let event = events.next().await?.context("it ended")?;
        heartbeats += u32::from(matches!(event.event, Some(Event::Heartbeat(_))));
    }
    let took = begin.elapsed();
    assert!(
        (Duration::from_millis(5_500)..Duration::from_secs(9)).contains(&took),
        "{took:?}"
    );
    write(client, &format!("{name}/execs/idle"), "awake\r").await?;
    let mut seen = String::new();
    read_to(&mut events, &mut seen, "awake\r\ngot awake\r\n").await?;
    daemon.stop().await
}
