//! Leaving an exec: Ctrl-C, a reader that goes away, attach later.

use std::os::unix::fs::PermissionsExt;
use std::process::Stdio;
use std::time::Duration;

use tokio::io::{AsyncBufReadExt, AsyncReadExt, BufReader};
use tokio::process::{Child, Command};
use tonic::Code;

use crate::commands::{fake, skillctl};
use skilld_testing::collection_messages::{file, names, summary};
use skilld_testing::{DEADLINE, Fake, STARTS, refusal};

/// Starts it and waits for its first line.
async fn start(fake: &Fake, words: &[&str]) -> Child {
    let mut command = skillctl(fake, words);
    command.stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().expect("starts");
    let mut line = String::new();
    let mut stdout = BufReader::new(child.stdout.take().expect("a pipe"));
    stdout.read_line(&mut line).await.expect("reads");
    assert_eq!(line, "started\n", "output comes while the program runs");
    child.stdout = Some(stdout.into_inner());
    child
}

async fn signal(child: &Child, signal: &str) {
    let pid = child.id().expect("runs").to_string();
    let sent = Command::new("kill")
        .args([signal, &pid])
        .status()
        .await
        .expect("runs");
    assert!(sent.success());
}

#[tokio::test]
async fn ctrl_c_kills_the_exec() {
    for name in ["-INT", "-TERM"] {
        let fake = fake();
        let mut child = start(&fake, &["exec", "w", "--id", "x", "--", "forever"]).await;
        signal(&child, name).await;
        assert_eq!(child.wait().await.expect("ends").code(), Some(130));
        assert!(
            *fake.state.lock().execs["workspaces/w/execs/x"]
                .killed
                .borrow()
        );
    }
}

#[tokio::test]
async fn ctrl_c_makes_run_delete_its_workspace() {
    let fake = fake();
    let mut child = start(&fake, &["run", "ok", "--", "forever"]).await;
    assert_eq!(fake.state.lock().workspaces.len(), 2);
    signal(&child, "-INT").await;
    assert_eq!(child.wait().await.expect("ends").code(), Some(130));
    assert_eq!(fake.state.lock().workspaces.len(), 1);
}

#[tokio::test]
async fn ctrl_c_leaves_what_was_attached_to() {
    let fake = fake();
    let words = ["exec", "w", "-d", "--id", "x", "--", "forever"];
    let output = skillctl(&fake, &words).output().await.expect("runs");
    assert_eq!(output.stdout, b"w/x\n");
    let child = start(&fake, &["attach", "w/x"]).await;
    signal(&child, "-INT").await;
    let output = child.wait_with_output().await.expect("ends");
    assert_eq!(output.status.code(), Some(130));
    assert!(String::from_utf8_lossy(&output.stderr).contains("skillctl kill w/x"));
    assert!(
        !*fake.state.lock().execs["workspaces/w/execs/x"]
            .killed
            .borrow()
    );
    let output = skillctl(&fake, &["kill", "w/x"])
        .output()
        .await
        .expect("runs");
    assert_eq!(output.stdout, b"w/x killed by client\n");
    let output = skillctl(&fake, &["attach", "w/x", "--offset", "5"])
        .output()
        .await
        .expect("runs");
    assert_eq!(output.stdout, b"ed\n");
    assert_eq!(output.status.code(), Some(143));
}

#[tokio::test]
async fn a_reader_that_leaves_ends_it_quietly() {
    let fake = fake();
    let mut command = skillctl(&fake, &["exec", "w", "--id", "x", "--", "flood"]);
    command.stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().expect("starts");
    let mut first = [0; 2];
    let mut stdout = child.stdout.take().expect("a pipe");
    stdout.read_exact(&mut first).await.expect("reads");
    drop(stdout);
    let ended = tokio::time::timeout(DEADLINE, child.wait_with_output()).await;
    let output = ended.expect("does not wait unread").expect("ends");
    assert_eq!(output.status.code(), Some(141));
    assert_eq!(String::from_utf8_lossy(&output.stderr), "");
    assert!(
        *fake.state.lock().execs["workspaces/w/execs/x"]
            .killed
            .borrow()
    );
}

/// Ctrl-C while the first RunExec is under way or was refused; the code it ends with.
async fn interrupted_before_it_started(fake: &Fake) -> Option<i32> {
    let mut command = skillctl(fake, &["exec", "w", "--id", "x", "--", "forever"]);
    let mut child = command.stdout(Stdio::null()).spawn().expect("starts");
    fake.calls.wait_for(STARTS, 1).await;
    signal(&child, "-INT").await;
    let ended = tokio::time::timeout(DEADLINE, child.wait()).await;
    ended.expect("ends soon").expect("ends").code()
}

/// Refuses the first start of an exec, so that the client repeats it, and the second once it was looked for to kill it:
/// clients repeat a call a few times only.
pub(crate) fn refuse_until_killed(fake: &Fake) {
    let draining = || refusal(Code::Unavailable, "DRAINING", &[]);
    fake.calls.refuse(STARTS, [draining()]);
    fake.calls.hold_until(STARTS, "KillExec");
    fake.calls.refuse(STARTS, [draining()]);
}

#[tokio::test]
async fn ctrl_c_before_the_start_means_that_it_never_starts() {
    let fake = fake();
    refuse_until_killed(&fake);
    assert_eq!(interrupted_before_it_started(&fake).await, Some(130));
    assert_eq!(fake.calls.count("KillExec"), 1, "it was looked for");
    assert_eq!(fake.state.lock().starts, 0);
}

#[tokio::test]
async fn ctrl_c_kills_what_starts_after_it_too() {
    let fake = fake();
    fake.calls.hold_until(STARTS, "KillExec");
    assert_eq!(interrupted_before_it_started(&fake).await, Some(130));
    let state = fake.state.lock();
    let killed = |name| state.execs.get(name).map(|exec| *exec.killed.borrow());
    assert_eq!(killed("workspaces/w/execs/x"), Some(true));
    assert_eq!(state.starts, 1);
}

#[tokio::test]
async fn ctrl_c_while_collecting_leaves_no_half_file() {
    for (target, name) in [("--to", "to"), ("--tar", "to/all.tar")] {
        let fake = fake();
        let to = fake.path("to");
        std::fs::create_dir(&to).expect("makes");
        fake.answer_collections(file("data", b"all of it")[..2].to_vec());
        fake.calls.hang_after("CollectOutputs", 2);
        let mut child = skillctl(&fake, &["collect", "w", "data", target, name])
            .spawn()
            .expect("starts");
        let begun = async {
            // Nothing tells of a file that another process makes.
            let mut tick = tokio::time::interval(Duration::from_millis(5));
            while names(&to).is_empty() {
                tick.tick().await;
            }
        };
        let begun = tokio::time::timeout(DEADLINE, begun).await;
        begun.expect("writes a temporary file");
        signal(&child, "-INT").await;
        assert_eq!(child.wait().await.expect("ends").code(), Some(130));
        assert_eq!(names(&to), [""; 0], "{target}");
    }
}

#[tokio::test]
async fn an_archive_has_the_mode_of_any_new_file() {
    let fake = fake();
    fake.answer_collections(vec![summary()]);
    let output = skillctl(&fake, &["collect", "w", "data", "--tar", "all.tar"])
        .output()
        .await
        .expect("runs");
    assert!(output.status.success());
    std::fs::write(fake.path("any"), "").expect("writes");
    let mode = |name| {
        let metadata = std::fs::metadata(fake.path(name)).expect("is there");
        metadata.permissions().mode()
    };
    assert_eq!(mode("all.tar"), mode("any"));
}
