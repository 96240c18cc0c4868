//! Ends of `skillctl run` and `exec` other than the end of the command: signals, closed pipes, detach keys, failures.

use std::io::{PipeReader, Write as _};
use std::os::fd::OwnedFd;
use std::path::Path;
use std::process::Stdio;
use std::time::Duration;

use rustix::process::Signal;
use skilld_client::v1::{CreateWorkspaceRequest, WorkspaceState};
use skilld_testing::collection_messages::{file, summary};
use skilld_testing::{DEADLINE, Fake, PRINTED, STARTS, refusal};
use skilld_tests::pty::Pty;
use tokio::io::AsyncReadExt as _;
use tokio::process::Child;
use tonic::Code;

use crate::commands::{fake, run, skillctl, text};
use crate::commands_tool::signal;

/// Capacity of a pipe in bytes.
const PIPE_BYTES: usize = 64 * 1024;
/// Number of first messages that the program `print` makes until five pieces of output have come: as many as wait to be
/// written while a pipe is full.
const MESSAGES: usize = 6;
/// Number of bytes of stdout in these messages.
const RECEIVED_BYTES: usize = 3 * 64 * 1024;

/// Starts a command whose stdout is a pipe that has no room until its reader reads.
fn start_with_full_pipe(fake: &Fake, words: &[&str]) -> (Child, PipeReader) {
    let (reader, mut writer) = std::io::pipe().expect("a pipe");
    writer.write_all(&[0; PIPE_BYTES]).expect("has room");
    let mut command = skillctl(fake, words);
    command.stdout(writer).stderr(Stdio::null());
    (command.spawn().expect("starts"), reader)
}

async fn exit_code(child: &mut Child) -> Option<i32> {
    let ended = tokio::time::timeout(DEADLINE, child.wait()).await;
    ended.expect("ends in time").expect("ends").code()
}

/// Waits until a condition on the workspaces holds. The fake has no event for their changes.
async fn wait_for_workspaces(fake: &Fake, is_met: impl Fn(&[WorkspaceState]) -> bool) {
    let mut tick = tokio::time::interval(Duration::from_millis(5));
    let waiting = async {
        loop {
            let states: Vec<_> = {
                let state = fake.state.lock();
                let workspaces = state.workspaces.values();
                workspaces.map(|workspace| workspace.state()).collect()
            };
            if is_met(&states) {
                return;
            }
            tick.tick().await;
        }
    };
    let waited = tokio::time::timeout(DEADLINE, waiting).await;
    waited.expect("they change");
}

/// Reads everything from a pipe that was full. The reads are small, so that pieces wait to be written meanwhile.
/// Returns what came after the first bytes.
async fn read_slowly(reader: PipeReader) -> Vec<u8> {
    let mut stdout = tokio::fs::File::from_std(OwnedFd::from(reader).into());
    let mut printed = Vec::new();
    loop {
        let mut part = (&mut stdout).take(512);
        if part.read_to_end(&mut printed).await.expect("reads") == 0 {
            return printed.split_off(PIPE_BYTES);
        }
    }
}

#[tokio::test]
async fn output_before_a_lost_exec_is_printed() {
    let fake = fake();
    fake.calls.break_after(STARTS, MESSAGES, None);
    let gone = refusal(Code::NotFound, "WORKSPACE_NOT_FOUND", &[]);
    fake.calls.refuse("AttachExec", [gone]);
    let (mut child, reader) = start_with_full_pipe(&fake, &["exec", "w", "print"]);
    fake.calls.wait_for("AttachExec", 1).await;
    let printed = read_slowly(reader).await;
    assert_eq!(exit_code(&mut child).await, Some(125));
    let (received, _) = PRINTED.split_at(RECEIVED_BYTES);
    assert!(printed == received, "{} bytes", printed.len());
}

#[tokio::test]
async fn output_before_ctrl_c_is_printed() {
    for words in [&["attach", "w/x"][..], &["logs", "w/x", "-f"]] {
        let fake = fake();
        let started = run(&fake, &["exec", "w", "-d", "--id", "x", "print"]).await;
        assert!(started.status.success());
        fake.calls.break_after("AttachExec", MESSAGES, None);
        fake.calls.hang_after("AttachExec", 0);
        let (mut child, reader) = start_with_full_pipe(&fake, words);
        fake.calls.wait_for("AttachExec", 2).await;
        signal(&child, Signal::INT);
        let printed = read_slowly(reader).await;
        assert_eq!(exit_code(&mut child).await, Some(130), "{words:?}");
        let (received, _) = PRINTED.split_at(RECEIVED_BYTES);
        assert!(printed == received, "{} bytes", printed.len());
    }
}

#[tokio::test]
async fn a_second_ctrl_c_waits_for_no_reader() {
    let fake = fake();
    let (mut child, _reader) = start_with_full_pipe(&fake, &["exec", "w", "--id", "x", "forever"]);
    fake.calls.wait_for(STARTS, 1).await;
    signal(&child, Signal::INT);
    fake.calls.wait_for("KillExec", 1).await;
    signal(&child, Signal::INT);
    assert_eq!(exit_code(&mut child).await, Some(130));
}

#[tokio::test]
async fn ctrl_c_before_the_first_event_ends_a_run_at_once() {
    let fake = fake();
    std::fs::write(fake.path("large.bin"), vec![0; (1 << 20) + 1]).expect("writes");
    for input in [&[][..], &["--keep"], &["--input", "large.bin"]] {
        let words = [&["run"], input, &["--", "forever"]].concat();
        fake.calls.take();
        fake.calls.hold(STARTS);
        let mut child = skillctl(&fake, &words).spawn().expect("starts");
        fake.calls.wait_for(STARTS, 1).await;
        signal(&child, Signal::INT);
        assert_eq!(exit_code(&mut child).await, Some(130), "{words:?}");
        assert_eq!(fake.calls.count("DeleteWorkspace"), 1, "{words:?}");
        assert_eq!(fake.calls.count("KillExec"), 0, "{words:?}");
        fake.calls.release();
        // The server may find out that the call was reset only now.
        fake.state
            .lock()
            .workspaces
            .retain(|name, _| name == "workspaces/w");
    }
}

#[tokio::test]
async fn ctrl_c_while_a_workspace_closes_is_no_failure() {
    let fake = fake();
    let mut command = skillctl(&fake, &["run", "ok", "--", "forever"]);
    command.stdout(Stdio::piped()).stderr(Stdio::null());
    let mut child = command.spawn().expect("starts");
    let mut stdout = child.stdout.take().expect("a pipe");
    let mut line = [0; "started\n".len()];
    stdout.read_exact(&mut line).await.expect("reads");
    for workspace in fake.state.lock().workspaces.values_mut() {
        workspace.state = WorkspaceState::Closing.into();
    }
    signal(&child, Signal::INT);
    fake.calls.wait_for("KillExec", 1).await;
    // The end of the workspace ends the command.
    for exec in fake.state.lock().execs.values() {
        exec.killed.send_replace(true);
    }
    assert_eq!(exit_code(&mut child).await, Some(130));
}

#[tokio::test]
async fn a_pipe_that_closes_after_the_end_of_a_run_is_no_failure() {
    let fake = fake();
    fake.state.lock().keeps_closing = true;
    let (mut child, reader) = start_with_full_pipe(&fake, &["run", "--", "hello"]);
    wait_for_workspaces(&fake, |states| states.contains(&WorkspaceState::Closing)).await;
    drop(reader);
    assert_eq!(exit_code(&mut child).await, Some(141));
}

#[tokio::test]
async fn a_pipe_that_closes_ends_a_run_and_its_workspace() {
    let fake = fake();
    let (mut child, reader) = start_with_full_pipe(&fake, &["run", "--", "forever"]);
    wait_for_workspaces(&fake, |states| states.len() == 2).await;
    drop(reader);
    assert_eq!(exit_code(&mut child).await, Some(141));
    assert_eq!(fake.calls.count("KillExec"), 1);
    assert_eq!(fake.state.lock().workspaces.len(), 1);
}

#[tokio::test]
async fn a_detached_run_goes_on_in_a_workspace_with_an_end() {
    let fake = fake();
    std::fs::write(fake.path("large.bin"), vec![0; (1 << 20) + 1]).expect("writes");
    let large = fake.path("large.bin").display().to_string();
    for (input, idle_seconds) in [
        (&["--input", &large][..], Some(60)),
        (&["--input", &large, "--keep"], None),
        (&[], None),
    ] {
        fake.calls.take();
        let words = [&["run", "-it"], input, &["--", "bash"]].concat();
        let program = Path::new(env!("CARGO_BIN_EXE_skillctl"));
        let mut pty = Pty::run(program, &fake.endpoint(), &words);
        pty.shows("$ ").await;
        let mut tick = tokio::time::interval(Duration::from_millis(5));
        while !pty.is_raw() {
            tick.tick().await;
        }
        pty.types("\x10\x11").await;
        pty.shows("returns to it").await;
        assert_eq!(pty.ends().await, Some(0), "{words:?}");
        assert_eq!(fake.calls.count("KillExec|DeleteWorkspace"), 0);
        let created: Vec<CreateWorkspaceRequest> = fake.calls.requests("CreateWorkspace");
        let idle = created.first().and_then(|request| request.idle_timeout);
        assert_eq!(idle.map(|idle| idle.seconds), idle_seconds, "{words:?}");
    }
    assert_eq!(fake.state.lock().workspaces.len(), 4);
}

#[tokio::test]
async fn a_kept_workspace_is_named_once_it_is_known() {
    let fake = fake();
    // The repeated call does not send the event of the workspace again.
    fake.calls.break_after(STARTS, 0, None);
    let output = run(&fake, &["run", "--keep", "--", "hello"]).await;
    assert_eq!(text(&output.stdout), "hello\n");
    let said = text(&output.stderr);
    assert!(said.contains("kept workspace "), "{said}");
    // Its creation is refused.
    std::fs::write(fake.path("large.bin"), vec![0; (1 << 20) + 1]).expect("writes");
    let words = ["run", "--keep", "--pool", "full", "--input", "large.bin"];
    let output = run(&fake, &[&words[..], &["--", "hello"]].concat()).await;
    assert_eq!(output.status.code(), Some(125));
    assert!(!text(&output.stderr).contains("kept workspace"));
}

#[tokio::test]
async fn the_end_of_a_command_is_noted_though_its_files_are_lost() {
    let fake = fake();
    fake.answer_collections([file("out/r", b"result"), vec![summary()]].concat());
    std::fs::write(fake.path("taken"), "").expect("writes");
    let output = run(&fake, &["run", "--to", "taken", "--", "timeout"]).await;
    assert_eq!(output.status.code(), Some(125));
    let said = text(&output.stderr);
    let lines: Vec<&str> = said.lines().collect();
    assert!(
        matches!(lines[..], [end, error, ..] if end.contains("ran into its timeout") && error.starts_with("error: ")),
        "{said}"
    );
}
