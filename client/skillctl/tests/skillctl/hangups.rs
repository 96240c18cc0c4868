//! The end of the session in which `skillctl` runs, which it learns from SIGHUP, with a terminal or without.

use std::process::Stdio;

use rustix::process::Signal;
use serde_json::json;
use skilld_testing::{DEADLINE, Fake};
use skilld_tests::pty::open_terminal;
use tokio::io::{AsyncBufReadExt as _, AsyncWriteExt as _, BufReader, Lines};
use tokio::process::{Child, ChildStdout, Command};

use crate::commands_tool::signal;
use crate::{commands, commands_tool};

/// `skillctl` with a disposition of SIGHUP that does not depend on how the tests were started.
struct Program {
    child: Child,
    printed: Lines<BufReader<ChildStdout>>,
}

impl Program {
    fn start(fake: &Fake, hangup: &str, words: &[&str]) -> Self {
        let mut command = Command::new("env");
        command
            .args([hangup, env!("CARGO_BIN_EXE_skillctl")])
            .args(words)
            .env("SKILLD_ENDPOINT", fake.endpoint())
            .current_dir(fake.dir.path())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .kill_on_drop(true);
        let mut child = command.spawn().expect("starts");
        let printed = BufReader::new(child.stdout.take().expect("a pipe")).lines();
        Self { child, printed }
    }

    /// Waits for a line with this in it.
    async fn prints(&mut self, text: &str) {
        let reading = async {
            loop {
                let line = self.printed.next_line().await.expect("reads");
                if line.expect("goes on").contains(text) {
                    return;
                }
            }
        };
        tokio::time::timeout(DEADLINE, reading).await.expect(text);
    }

    async fn ends(&mut self) -> Option<i32> {
        let ended = tokio::time::timeout(DEADLINE, self.child.wait()).await;
        ended.expect("ends in time").expect("ends").code()
    }
}

#[tokio::test]
async fn a_hangup_without_a_terminal_deletes_the_workspace_of_a_run() {
    let fake = commands::fake();
    let words = ["run", "ok", "--", "forever"];
    let mut run = Program::start(&fake, "--default-signal=HUP", &words);
    run.prints("started").await;
    assert_eq!(fake.state.lock().workspaces.len(), 2);
    signal(&run.child, Signal::HUP);
    assert_eq!(run.ends().await, Some(130));
    assert_eq!(fake.state.lock().workspaces.len(), 1);
}

#[tokio::test]
async fn a_hangup_without_a_terminal_deletes_the_workspace_of_mcp() {
    let fake = commands_tool::fake();
    let mut server = Program::start(&fake, "--default-signal=HUP", &["mcp"]);
    let hello = json!({"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": {
        "protocolVersion": "2025-06-18",
        "capabilities": {},
        "clientInfo": {"name": "test", "version": "1"},
    }});
    let ready = json!({"jsonrpc": "2.0", "method": "notifications/initialized"});
    let call = json!({"jsonrpc": "2.0", "id": 2, "method": "tools/call", "params": {
        "name": "skill_run",
        "arguments": {"skill": "alpha", "command": "hello"},
    }});
    let mut stdin = server.child.stdin.take().expect("a pipe");
    for message in [hello, ready, call] {
        let line = format!("{message}\n");
        stdin.write_all(line.as_bytes()).await.expect("is read");
    }
    server.prints("\"id\":2").await;
    assert_eq!(fake.state.lock().workspaces.len(), 1);
    signal(&server.child, Signal::HUP);
    assert_eq!(server.ends().await, Some(0));
    assert!(fake.state.lock().workspaces.is_empty());
    drop(stdin);
}

#[tokio::test]
async fn a_hangup_that_is_ignored_changes_nothing() {
    let fake = commands::fake();
    let words = ["run", "ok", "--", "forever"];
    let mut run = Program::start(&fake, "--ignore-signal=HUP", &words);
    run.prints("started").await;
    signal(&run.child, Signal::HUP);
    let name = fake
        .state
        .lock()
        .execs
        .keys()
        .next()
        .cloned()
        .expect("one runs");
    fake.client().await.kill_exec(&name).await.expect("kills");
    assert_eq!(
        run.ends().await,
        Some(143),
        "it followed the exec to its end"
    );
}

/// Returns `true` if the exec `x` was killed.
fn is_killed(fake: &Fake) -> bool {
    let state = fake.state.lock();
    let exec = state.execs.get("workspaces/w/execs/x");
    exec.is_some_and(|exec| *exec.killed.borrow())
}

#[tokio::test]
async fn a_hangup_leaves_the_command_of_exec_running() {
    let fake = commands::fake();
    let words = ["exec", "w", "--id", "x", "forever"];
    let mut exec = Program::start(&fake, "--default-signal=HUP", &words);
    exec.prints("started").await;
    signal(&exec.child, Signal::HUP);
    assert_eq!(exec.ends().await, None, "the signal ended skillctl");
    assert!(!is_killed(&fake));
    let mut attach = Program::start(&fake, "--default-signal=HUP", &["attach", "w/x"]);
    attach.prints("started").await;
    fake.client().await.kill_exec("w/x").await.expect("kills");
    assert_eq!(attach.ends().await, Some(143));
}

#[tokio::test]
async fn a_terminal_that_is_gone_leaves_the_command_of_exec_running() {
    let fake = commands::fake();
    let (master, terminal) = open_terminal();
    drop(master);
    let mut exec = commands::skillctl(&fake, &["exec", "w", "--id", "x", "forever"]);
    let ended = exec.stdout(Stdio::from(terminal)).status();
    let ended = tokio::time::timeout(DEADLINE, ended).await;
    let status = ended.expect("ends in time").expect("ends");
    assert_eq!(status.code(), Some(141));
    assert!(!is_killed(&fake));
}
