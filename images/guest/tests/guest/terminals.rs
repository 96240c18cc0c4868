//! Pseudo-terminals: what a program sees, and output without loss or delay.

use std::time::{Duration, Instant};

use skilld_proto::Outcome;
use skilld_proto::guest::v1 as wire;
use skilld_proto::v1::spawn_failure::Step;
use skilld_proto::v1::{self, ExitReason};
use tonic::{Code, Streaming};

use crate::support::{
    DEADLINE, Guest, SeenEvents, alive, configuration, duration, in_time, process_state, reason,
    until, with_longer_times,
};

/// Builds a request with a terminal of 30 rows and 100 columns.
fn request(guest: &Guest, id: &str, script: &str) -> wire::StartExecRequest {
    let mut request = guest.request(id, &["bash", "-c", script]);
    if let Some(spec) = &mut request.spec {
        spec.terminal = Some(v1::ExecTerminal {
            rows: 30,
            cols: 100,
            term: "xterm".to_owned(),
        });
    }
    request
}

async fn resize(guest: &Guest, id: &str, rows: u32, cols: u32) -> Result<(), tonic::Status> {
    let exec_id = id.to_owned();
    let request = wire::ResizeTerminalRequest {
        exec_id,
        rows,
        cols,
    };
    let resized = guest.client.clone().resize_terminal(request).await;
    resized.map(drop)
}

/// Reads on until the output ends with `end`.
async fn read_to(seen: &mut SeenEvents, stream: &mut Streaming<v1::ExecEvent>, end: &str) {
    let ends = |seen: &SeenEvents| seen.out.ends_with(end.as_bytes());
    seen.take_until(stream, &format!("{end:?}"), ends).await;
}

#[tokio::test]
async fn the_terminal_is_the_programs_own() {
    let guest = Guest::start().await;
    let script = "stty size; [ -t 0 ] && [ -t 1 ] && [ -t 2 ] && echo all; echo err >&2; \
                  [ \"$(tty)\" = \"$(readlink /proc/self/fd/0)\" ] && echo same; echo there >/dev/tty; \
                  ps -o sid=,pgid=,tpgid= -p $$ | { read a b c; [ $a = $$ ] && [ $b = $$ ] && [ $c = $$ ] && echo leads; }; \
                  ls /proc/self/fd | wc -l";
    let seen = guest.run(request(&guest, "own", script)).await;
    // Lines end as terminals end them. ls has 0, 1, 2 and the directory.
    let expected = "30 100\r\nall\r\nerr\r\nsame\r\nthere\r\nleads\r\n4\r\n";
    assert_eq!(seen.stdout(), expected);
    assert_eq!(seen.err, b"", "everything comes on stdout");
    assert_eq!(seen.outcome(), Outcome::ExitCode(0));
    let total = v1::StreamOffsets::from_counts([expected.len() as u64, 0]);
    assert_eq!(seen.total, Some(total));
    // Neither the guest nor a supervisor took it for its own.
    let stat =
        std::fs::read_to_string(format!("/proc/{}/stat", guest.child.id())).expect("readable");
    let tty = stat
        .rsplit(") ")
        .next()
        .and_then(|rest| rest.split(' ').nth(4));
    assert_eq!(tty, Some("0"), "{stat}");
}

#[tokio::test]
async fn no_byte_before_the_hangup_is_lost() {
    // The grace for stragglers suffices for the child that outlives its leader, however busy the machine is.
    let guest = Guest::configured(wire::ConfigureRequest {
        leak_grace: duration(600_000),
        ..configuration()
    })
    .await;
    for number in 0..40 {
        // The last bytes are written at the very end, by the leader, by a child of it, and by one that outlives it.
        let script = match number % 4 {
            0 => "printf '%0100000d' 7".to_owned(),
            1 => "exec printf '%0100000d' 7".to_owned(),
            2 => "printf '%0100000d' 7 & wait".to_owned(),
            _ => "set -m; (sleep 0.05; printf '%0100000d' 7) & disown; exit 0".to_owned(),
        };
        let seen = guest
            .run(request(&guest, &format!("n{number}"), &script))
            .await;
        assert_eq!(seen.out.len(), 100_000, "{number}: {script}");
        assert_eq!(seen.out.last(), Some(&b'7'), "{script}");
        assert_eq!(seen.outcome(), Outcome::ExitCode(0), "{script}");
    }
}

#[tokio::test]
async fn a_terminal_that_nobody_has_open_for_a_while_is_not_hung_up() {
    let guest = Guest::start().await;
    // The shell lets go of its terminal and takes it up again; it must not be told of a hangup meanwhile.
    let script = "trap 'echo hup >>hup' HUP; echo before; exec 0<&- 1>&- 2>&-; \
                  for i in 1 2 3 4 5 6 7 8 9 10; do sleep 0.02 0<&- 1>&- 2>&-; done; \
                  exec 0</dev/tty 1>/dev/tty 2>&1; echo after; exit 5";
    let seen = guest.run(request(&guest, "away", script)).await;
    assert_eq!(seen.stdout(), "before\r\nafter\r\n");
    assert_eq!(seen.outcome(), Outcome::ExitCode(5));
    assert!(!guest.workspace().join("hup").exists());
}

#[tokio::test]
async fn pty_resize_is_seen_by_the_program() {
    let guest = Guest::start().await;
    let script = "trap 'changed=1' WINCH; stty size; echo ready; while :; do \
                  sleep 0.01; if [ $changed ]; then changed=; stty size; fi; done";
    let mut stream = guest
        .client
        .clone()
        .run_exec(request(&guest, "size", script))
        .await
        .expect("runs")
        .into_inner();
    let mut seen = SeenEvents::default();
    read_to(&mut seen, &mut stream, "30 100\r\nready\r\n").await;
    resize(&guest, "size", 50, 132).await.expect("resized");
    read_to(&mut seen, &mut stream, "ready\r\n50 132\r\n").await;
    resize(&guest, "size", 10_000, 1).await.expect("resized");
    read_to(&mut seen, &mut stream, "50 132\r\n10000 1\r\n").await;

    for (rows, cols) in [(0, 1), (1, 0), (10_001, 1), (1, u32::MAX)] {
        let refused = resize(&guest, "size", rows, cols)
            .await
            .expect_err("no size");
        assert_eq!(refused.code(), Code::InvalidArgument);
        assert_eq!(reason(&refused), "INVALID_REQUEST");
    }
    let check = async |id: &str| {
        let refused = resize(&guest, id, 1, 1).await.expect_err(id);
        (refused.code(), reason(&refused))
    };
    let not_running = (Code::FailedPrecondition, "EXEC_NOT_RUNNING".to_owned());
    let missing = (Code::NotFound, "EXEC_NOT_FOUND".to_owned());
    assert_eq!(check("nobody").await, missing);
    let pipes = guest.request("pipes", &["sleep", "100"]);
    guest.client.clone().start_exec(pipes).await.expect("runs");
    assert_eq!(check("pipes").await, not_running);
    guest.run(request(&guest, "over", ":")).await;
    assert_eq!(check("over").await, not_running);
}

#[tokio::test]
async fn a_child_that_holds_the_terminal_does_not_delay_the_end() {
    let guest = Guest::start().await;
    let script = |then: &str| {
        format!(
            "set -m; (trap '' HUP TERM; echo $BASHPID >pid; {then}) & disown; until [ -s pid ]; do :; done; echo done"
        )
    };
    let begin = Instant::now();
    let hold = request(&guest, "hold", &script("while :; do sleep 1; done"));
    let seen = in_time("the end", guest.run(hold)).await;
    let closed = begin.elapsed();
    assert_eq!(seen.stdout(), "done\r\n");
    assert!(closed >= Duration::from_millis(500), "{closed:?}");
    let pid = std::fs::read_to_string(guest.workspace().join("pid")).expect("a pid");
    until("the child is killed", || !alive(pid.trim())).await;

    // Left alive, and talkative: its output is not waited for.
    std::fs::remove_file(guest.workspace().join("pid")).expect("there");
    let mut keep = request(
        &guest,
        "keep",
        &script("while :; do echo x || sleep 1; done"),
    );
    if let Some(spec) = &mut keep.spec {
        spec.stragglers = v1::StragglerPolicy::Keep.into();
    }
    let seen = in_time("the end", guest.run(keep)).await;
    assert_eq!(seen.outcome(), Outcome::ExitCode(0));
    let pid = std::fs::read_to_string(guest.workspace().join("pid")).expect("a pid");
    assert!(alive(pid.trim()), "it was to be kept");
    let kill = wire::KillExecRequest {
        exec_id: "keep".to_owned(),
        grace: duration(0),
        ..Default::default()
    };
    guest.client.clone().kill_exec(kill).await.expect("killed");
    until("it is gone", || !alive(pid.trim())).await;
}

#[tokio::test]
async fn a_full_window_holds_the_terminals_program_back() {
    let guest = Guest::start().await;
    let mut client = guest.client.clone();
    let mut block = request(
        &guest,
        "block",
        "for i in {1..200}; do printf '%01000d' $i; done; touch over",
    );
    if let Some(spec) = &mut block.spec {
        spec.retention = Some(v1::ExecRetention {
            stdout_bytes: 64 * 1024,
            ..Default::default()
        });
    }
    client.start_exec(block).await.expect("started");
    let total = async || {
        let exec_id = "block".to_owned();
        let exec = client
            .clone()
            .get_exec(wire::GetExecRequest { exec_id })
            .await;
        exec.expect("there")
            .into_inner()
            .total
            .expect("offsets")
            .stdout_bytes
    };
    while total().await < 64 * 1024 {}
    // It has to stay there: what is seen must not grow for a while.
    tokio::time::sleep(Duration::from_millis(200)).await;
    assert_eq!(total().await, 64 * 1024);
    assert!(!guest.workspace().join("over").exists(), "it did not wait");
    let seen = SeenEvents::all(guest.attach("block", 0).await)
        .await
        .expect("ends well");
    assert_eq!(seen.out.len(), 200_000);
    let expected: String = (1..=200).map(|i| format!("{i:01000}")).collect();
    assert!(seen.out == expected.as_bytes());
}

#[tokio::test]
async fn limits_hold_for_terminals_too() {
    let guest = Guest::start().await;
    with_longer_times(async |id, timeout| {
        let script = "trap '' TERM HUP; echo before; while :; do sleep 1; done";
        let mut late = request(&guest, id, script);
        if let Some(spec) = &mut late.spec {
            spec.timeout = duration(timeout);
        }
        let begin = Instant::now();
        let seen = guest.run(late).await;
        let took = begin.elapsed();
        assert_eq!(seen.reason(), ExitReason::Timeout);
        if seen.out.is_empty() {
            return false;
        }
        assert_eq!(seen.stdout(), "before\r\n");
        assert_eq!(seen.outcome(), Outcome::Signal(9));
        // The timeout and the grace.
        assert!(took >= Duration::from_millis(timeout + 200), "{took:?}");
        true
    })
    .await;

    let mut loud = request(&guest, "loud", "yes");
    if let Some(spec) = &mut loud.spec {
        spec.limits = Some(v1::ExecLimits {
            output_bytes: 100_001,
            ..Default::default()
        });
    }
    let seen = guest.run(loud).await;
    assert_eq!(
        (seen.reason(), seen.out.len()),
        (ExitReason::OutputLimit, 100_001)
    );

    with_longer_times(async |id, silence| {
        let id = format!("silent-{id}");
        let mut silent = request(&guest, &id, "echo one; sleep 1000");
        if let Some(spec) = &mut silent.spec {
            spec.no_output_timeout = duration(silence);
        }
        let seen = guest.run(silent).await;
        assert_eq!(seen.reason(), ExitReason::NoOutputTimeout);
        seen.stdout() == "one\r\n"
    })
    .await;
}

#[tokio::test]
async fn pty_idle_costs_nothing_and_stays_up() {
    let guest = Guest::configured(wire::ConfigureRequest {
        heartbeat: duration(600_000),
        ..configuration()
    })
    .await;
    let script = "stty -echo; echo up; read -r line; echo $line";
    let run = request(&guest, "idle", script);
    let (mut stream, mut seen) = run_typed(&guest, run).await;
    read_to(&mut seen, &mut stream, "up\r\n").await;
    // A guest that spins on the descriptor never sleeps, and one that polls it wakes again and again.
    let pid = guest.child.id().to_string();
    let sleeps = || process_state(&pid) == Some('S');
    until("the guest sleeps", sleeps).await;
    let (begin, before) = (Instant::now(), count_sleeps(&pid));
    tokio::time::sleep(Duration::from_secs(2)).await;
    until("the guest still sleeps", sleeps).await;
    let sleeps = count_sleeps(&pid) - before;
    let elapsed = begin.elapsed();
    let most = 25 * (elapsed.as_secs() + 1);
    assert!(sleeps < most, "{sleeps} in {elapsed:?}");
    write(&guest, "idle", b"late\r").await;
    read_all(&mut seen, &mut stream).await;
    assert_eq!(seen.stdout(), "up\r\nlate\r\n");
}

#[tokio::test]
async fn silent_terminal_sends_heartbeats_and_stays_usable() {
    let guest = Guest::configured(wire::ConfigureRequest {
        heartbeat: duration(50),
        ..configuration()
    })
    .await;
    let script = "stty -echo; echo up; read -r line; echo $line";
    let (mut stream, mut seen) = run_typed(&guest, request(&guest, "idle", script)).await;
    read_to(&mut seen, &mut stream, "up\r\n").await;
    seen.take_until(&mut stream, "heartbeats", |seen| seen.heartbeats >= 5)
        .await;
    write(&guest, "idle", b"awake\r").await;
    read_all(&mut seen, &mut stream).await;
    assert_eq!(seen.stdout(), "up\r\nawake\r\n");
}

/// Returns how often a process has gone to sleep to wait for an event.
fn count_sleeps(pid: &str) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).expect("a process");
    let field = |line: &str| {
        let count = line.strip_prefix("voluntary_ctxt_switches:")?;
        count.trim().parse::<u64>().ok()
    };
    status.lines().find_map(field).expect("the field")
}

#[tokio::test]
async fn stdin_data_with_a_terminal_or_open_stdin_is_refused() {
    let guest = Guest::start().await;
    let mut terminal = request(&guest, "terminal", "cat");
    let mut open = guest.request("open", &["cat"]);
    if let (Some(terminal), Some(open)) = (&mut terminal.spec, &mut open.spec) {
        terminal.stdin_data = "x".into();
        (open.stdin_data, open.open_stdin) = ("x".into(), true);
    }
    for both in [terminal, open] {
        let answer = guest.client.clone().run_exec(both).await;
        let refused = answer.expect_err("it would have two");
        assert_eq!(refused.code(), Code::InvalidArgument);
        assert_eq!(reason(&refused), "INVALID_REQUEST");
    }
}

#[tokio::test]
async fn a_terminal_that_cannot_be_had_fails_the_spawn() {
    // In a mount namespace of its own, where /dev/ptmx is something else.
    let guest = Guest::launched(&[
        "unshare",
        "--mount",
        "sh",
        "-c",
        "mount --bind /dev/null /dev/ptmx && exec \"$@\"",
        "sh",
    ])
    .await;
    let seen = guest.run(request(&guest, "none", "echo never")).await;
    let failure = seen
        .result
        .clone()
        .and_then(|result| result.spawn_failure)
        .expect("a failure");
    assert_eq!(seen.reason(), ExitReason::SpawnFailed);
    assert_eq!((failure.step(), failure.error_number), (Step::Terminal, 22));
    assert!(failure.message.starts_with("EINVAL"), "{failure:?}");
    assert_eq!(seen.out, b"");
    assert_eq!(guest.sh("pipes", "echo fine").await.out, b"fine\n");
}

async fn write(guest: &Guest, id: &str, data: &[u8]) {
    let exec_id = id.to_owned();
    let request = wire::WriteStdinRequest {
        exec_id,
        data: data.to_vec().into(),
        ..Default::default()
    };
    let written = guest.client.clone().write_stdin(request).await;
    written.expect("written");
}

/// Runs a program with a terminal and an open stdin.
async fn typed(guest: &Guest, id: &str, argv: &[&str]) -> (Streaming<v1::ExecEvent>, SeenEvents) {
    let mut request = guest.request(id, argv);
    request
        .env
        .extend(["TERM=dumb", "PS1=> ", "HISTFILE="].map(str::to_owned));
    run_typed(guest, request).await
}

/// Runs a request with a terminal and an open stdin.
async fn run_typed(
    guest: &Guest,
    mut request: wire::StartExecRequest,
) -> (Streaming<v1::ExecEvent>, SeenEvents) {
    if let Some(spec) = &mut request.spec {
        spec.terminal.get_or_insert_default();
        spec.open_stdin = true;
    }
    let stream = guest.client.clone().run_exec(request).await;
    (stream.expect("runs").into_inner(), SeenEvents::default())
}

async fn read_all(seen: &mut SeenEvents, stream: &mut Streaming<v1::ExecEvent>) {
    while let Some(event) = stream.message().await.expect("an event") {
        seen.take(event);
    }
}

#[tokio::test]
async fn an_eof_for_a_full_terminal_waits_only_as_long_as_requested() {
    let guest = Guest::start().await;
    let script = "stty raw -echo; echo ready; exec sleep 1000";
    let (mut stream, mut seen) = typed(&guest, "full", &["bash", "-c", script]).await;
    read_to(&mut seen, &mut stream, "ready\n").await;
    let mut client = guest.client.clone();
    let mut put = async |data: &[u8], eof| {
        let request = wire::WriteStdinRequest {
            exec_id: "full".to_owned(),
            data: data.to_vec().into(),
            eof,
            wait: Some(prost_types::Duration {
                seconds: 0,
                nanos: 50_000_000,
            }),
            ..Default::default()
        };
        let written = in_time("the answer", client.write_stdin(request)).await;
        written.expect("an answer").into_inner()
    };
    let begin = Instant::now();
    loop {
        let filled = put(&[b'x'; 200_000], false).await;
        assert!(filled.unwritten_bytes > 0 && !filled.eof_unwritten);
        let end = put(b"", true).await;
        assert_eq!(end.unwritten_bytes, 0);
        if end.eof_unwritten {
            return;
        }
        // The kernel had not yet moved all that fits.
        assert!(begin.elapsed() < DEADLINE, "each end was taken");
    }
}

#[tokio::test]
async fn pty_echo_comes_back_before_the_lines_end_and_only_once() {
    let guest = Guest::start().await;
    let (mut stream, mut seen) = typed(&guest, "echo", &["cat"]).await;
    let mut expected = String::new();
    for number in 0..50 {
        // Typed without a newline, the terminal alone answers; the line goes to the program with it.
        let text = format!("word {number}");
        write(&guest, "echo", text.as_bytes()).await;
        expected += &text;
        read_to(&mut seen, &mut stream, &text).await;
        write(&guest, "echo", b"\r").await;
        expected += &format!("\r\n{text}\r\n");
        // Not its echo, which stands behind the line before it just so.
        let both = format!("{text}\r\n{text}\r\n");
        read_to(&mut seen, &mut stream, &both).await;
    }
    // Ctrl-D on an empty line is the end.
    write(&guest, "echo", b"\x04").await;
    read_all(&mut seen, &mut stream).await;
    assert_eq!(seen.stdout(), expected);
    assert_eq!(seen.outcome(), Outcome::ExitCode(0));
}

/// Returns `true` if a program with this command line is in its terminal's foreground group.
fn in_front(command: &str) -> bool {
    let processes = std::fs::read_dir("/proc").expect("/proc").flatten();
    processes.map(|entry| entry.path()).any(|path| {
        let line = std::fs::read(path.join("cmdline")).unwrap_or_default();
        let stat = std::fs::read_to_string(path.join("stat")).unwrap_or_default();
        let fields: Vec<_> = stat
            .rsplit(") ")
            .next()
            .unwrap_or_default()
            .split(' ')
            .collect();
        let is_it = String::from_utf8_lossy(&line)
            .trim_end_matches('\0')
            .replace('\0', " ")
            == command;
        // Its group, and its terminal's.
        is_it && fields.get(2) == fields.get(5)
    })
}

#[tokio::test]
async fn pty_job_control_keys_reach_the_foreground_group() {
    let guest = Guest::start().await;
    let shell = ["bash", "--norc", "--noprofile", "--noediting", "-i"];
    let (mut stream, mut seen) = typed(&guest, "jobs", &shell).await;
    read_to(&mut seen, &mut stream, "> ").await;
    // Ctrl-C ends what runs in front, with its children, and not the shell.
    write(&guest, "jobs", b"echo up; (sleep 1001; echo never) | cat\r").await;
    read_to(&mut seen, &mut stream, "up\r\n").await;
    until("it is in front", || in_front("sleep 1001")).await;
    write(&guest, "jobs", b"\x03").await;
    read_to(&mut seen, &mut stream, "^C\r\n> ").await;
    write(&guest, "jobs", b"echo code $?\r").await;
    read_to(&mut seen, &mut stream, "code 130\r\n> ").await;
    // Ctrl-Z stops it, and it can go on.
    write(&guest, "jobs", b"echo up; sleep 1002\r").await;
    read_to(&mut seen, &mut stream, "up\r\n").await;
    until("it is in front", || in_front("sleep 1002")).await;
    write(&guest, "jobs", b"\x1a").await;
    read_to(&mut seen, &mut stream, "sleep 1002\r\n> ").await;
    assert!(seen.stdout().contains("Stopped"), "{}", seen.stdout());
    write(&guest, "jobs", b"kill -9 %1; wait; fg; echo done\r").await;
    read_to(&mut seen, &mut stream, "done\r\n> ").await;
    // Ctrl-\ is QUIT; Ctrl-D ends the shell.
    write(
        &guest,
        "jobs",
        b"sh -c 'trap \"echo quit\" QUIT; echo up; sleep 1003; exit 4'\r",
    )
    .await;
    read_to(&mut seen, &mut stream, "up\r\n").await;
    until("it is in front", || in_front("sleep 1003")).await;
    write(&guest, "jobs", b"\x1c").await;
    read_to(&mut seen, &mut stream, "quit\r\n> ").await;
    write(&guest, "jobs", b"exit 7\r").await;
    read_all(&mut seen, &mut stream).await;
    assert_eq!(seen.outcome(), Outcome::ExitCode(7));
    assert!(!seen.stdout().contains("\nnever"), "{}", seen.stdout());
    assert!(
        !seen.stdout().contains("no job control"),
        "{}",
        seen.stdout()
    );
}

#[tokio::test]
async fn an_idle_terminal_answers_after_its_silence() {
    let guest = Guest::start().await;
    let (mut stream, mut seen) =
        typed(&guest, "quiet", &["bash", "-c", "read -r a; echo got $a"]).await;
    let silence =
        tokio::time::timeout(Duration::from_secs(2), read_to(&mut seen, &mut stream, "x")).await;
    assert!(silence.is_err(), "{:?}", seen.stdout());
    write(&guest, "quiet", b"late\r").await;
    read_all(&mut seen, &mut stream).await;
    assert_eq!(seen.stdout(), "late\r\ngot late\r\n");
}
