//! `skillctl exec -it` and `attach -i` in a terminal: keys, sizes, leaving, and the terminal as it was before on every
//! way out.

use std::path::Path;
use std::process::Stdio;
use std::time::Duration;

use rustix::process::Signal;
use skilld_client::v1::{ExecState, ExecTerminal};
use skilld_tests::pty::Pty;
use tonic::Code;

use crate::commands::{fake, skillctl};
use crate::followed_execs::refuse_until_killed;
use skilld_testing::live::{Fault, until};
use skilld_testing::{DEADLINE, EVENTS, Fake, STARTS, refusal};

/// Number of tries; one without a pause of the machine is enough.
const TRIES: usize = 5;

const SHELL: [&str; 7] = ["exec", "w", "-it", "--id", "x", "--", "bash"];

fn skillctl_in_pty(fake: &Fake, words: &[&str]) -> Pty {
    let program = Path::new(env!("CARGO_BIN_EXE_skillctl"));
    Pty::run(program, &fake.endpoint(), words)
}

/// In a session, with the prompt on the screen.
async fn session(fake: &Fake) -> Pty {
    let mut pty = skillctl_in_pty(fake, &SHELL);
    pty.shows("$ ").await;
    // The prompt may come before our terminal is raw.
    until_raw(&pty).await;
    pty
}

async fn until_raw(pty: &Pty) {
    // Nothing tells of a terminal's mode.
    let mut tick = tokio::time::interval(Duration::from_millis(5));
    let raw = async {
        while !pty.is_raw() {
            tick.tick().await;
        }
    };
    let raw = tokio::time::timeout(DEADLINE, raw).await;
    raw.expect("becomes raw");
}

#[tokio::test]
async fn every_key_goes_to_the_program_and_its_code_is_ours() {
    let fake = fake();
    let mut pty = session(&fake).await;
    {
        let spec = fake.exec("x").spec;
        let terminal = ExecTerminal {
            rows: 24,
            cols: 80,
            term: "test-256".into(),
        };
        assert_eq!(spec.terminal, Some(terminal));
        assert!(spec.open_stdin);
        assert!(spec.timeout.expect("is set").seconds > 24 * 3600);
    }
    // One by one, and those that our own kernel would act on among them: Ctrl-C, -Z, -\, -D, -S, -Q, -V.
    for key in "a\x03\x1a\x1c\x04\x13\x11\x16\x7f\x1b\n".chars() {
        pty.types(&key.to_string()).await;
        assert_eq!(pty.shows(&key.to_string()).await, key.to_string());
    }
    // A held key comes with the next.
    pty.types("\x10").await;
    pty.types("p").await;
    pty.shows("\x10p").await;
    pty.types("exit 7\r").await;
    assert_eq!(pty.ends().await, Some(7));
}

#[tokio::test]
async fn keys_are_written_once_whatever_breaks() {
    let fake = fake();
    let mut pty = session(&fake).await;
    for fault in [Fault::Lost, Fault::Half, Fault::Refused, Fault::Deadline] {
        fake.state.lock().faults.push_back(fault);
        pty.types("0123456789").await;
        assert_eq!(pty.shows("9").await, "0123456789", "{fault:?}");
    }
    // The events break as well; what is typed meanwhile is shown afterwards.
    fake.state.lock().faults.push_back(Fault::Lost);
    pty.types("exit 3\r").await;
    assert_eq!(pty.ends().await, Some(3));
}

#[tokio::test]
async fn a_paste_is_not_sent_key_by_key() {
    let fake = fake();
    let mut pty = session(&fake).await;
    let paste = "x".repeat(3000) + "!";
    // What comes while a write is under way is sent together, however soon the server answers.
    fake.calls.hold("WriteStdin");
    pty.types(&paste).await;
    fake.calls.release();
    assert_eq!(pty.shows("!").await, paste);
    let writes = fake.calls.count("WriteStdin");
    assert!(writes < 50, "{writes} writes");
    pty.types("exit 0\r").await;
    assert_eq!(pty.ends().await, Some(0));
}

#[tokio::test]
async fn a_resize_reaches_the_server() {
    let fake = fake();
    let mut pty = session(&fake).await;
    let running = fake.exec("x");
    pty.resize(50, 132);
    until(&running, |input| input.sizes.last() == Some(&(50, 132))).await;
    // Many at once: the last one counts, and not each of them is sent.
    for cols in 1..=200 {
        pty.resize(51, cols);
    }
    let input = until(&running, |input| input.sizes.last() == Some(&(51, 200))).await;
    assert!(input.sizes.len() <= 202, "{}", input.sizes.len());
    pty.types("exit 0\r").await;
    assert_eq!(pty.ends().await, Some(0));
}

#[tokio::test]
async fn detaching_leaves_it_running_and_says_how_to_return() {
    let fake = fake();
    let mut pty = session(&fake).await;
    pty.types("abc").await;
    pty.shows("abc").await;
    pty.types("\x10\x11").await;
    let note = pty.shows("returns to it").await;
    assert!(
        note.contains("\nskillctl: w/x goes on; `skillctl attach -i w/x --offset 5`"),
        "{note:?}"
    );
    assert_eq!(pty.ends().await, Some(0));
    let running = fake.exec("x");
    assert_eq!(running.input.borrow().bytes, b"abc");
    assert!(!running.input.borrow().killed);

    // What it says meanwhile is shown on the return, and its screen is drawn again.
    running
        .input
        .send_modify(|input| input.bytes.extend(b"meanwhile"));
    let mut pty = skillctl_in_pty(&fake, &["attach", "-i", "w/x", "--offset", "5"]);
    assert_eq!(pty.shows("meanwhile").await, "meanwhile");
    until(&running, |input| {
        input.sizes.ends_with(&[(25, 80), (24, 80)])
    })
    .await;
    until_raw(&pty).await;
    // What was typed before the keys that leave still goes out.
    pty.types("d\x10\x11").await;
    pty.shows("returns to it").await;
    assert_eq!(pty.ends().await, Some(0));
    assert!(running.input.borrow().bytes.ends_with(b"meanwhiled"));

    // Without an offset it starts at the end; other keys leave it if so wanted.
    let words = ["attach", "-i", "w/x", "--detach-keys", "ctrl-],q"];
    let mut pty = skillctl_in_pty(&fake, &words);
    until_raw(&pty).await;
    pty.types("e\x10\x11").await;
    assert_eq!(pty.shows("\x11").await, "e\x10\x11");
    pty.types("\x1dq").await;
    assert_eq!(pty.ends().await, Some(0));
    let mut pty = skillctl_in_pty(&fake, &["attach", "-i", "w/x"]);
    until_raw(&pty).await;
    pty.types("exit 9\r").await;
    assert_eq!(pty.ends().await, Some(9));
}

#[tokio::test]
async fn a_signal_ends_the_session_and_the_exec() {
    for signal in [Signal::TERM, Signal::INT, Signal::HUP] {
        let fake = fake();
        let mut pty = session(&fake).await;
        pty.signal(signal);
        assert_eq!(pty.ends().await, Some(130), "{signal:?}");
        assert!(fake.exec("x").input.borrow().killed, "{signal:?}");
    }
}

#[tokio::test]
async fn a_signal_to_an_attached_session_leaves_the_exec() {
    for signal in [Signal::TERM, Signal::INT, Signal::HUP] {
        let fake = fake();
        let words = ["exec", "w", "-dit", "--id", "x", "--", "bash"];
        let started = skillctl(&fake, &words).output().await.expect("runs");
        assert_eq!(started.stdout, b"w/x\n");
        let mut pty = skillctl_in_pty(&fake, &["attach", "-i", "w/x"]);
        until_raw(&pty).await;
        pty.signal(signal);
        pty.shows("skillctl kill w/x").await;
        assert_eq!(pty.ends().await, Some(130), "{signal:?}");
        assert!(!fake.exec("x").input.borrow().killed, "{signal:?}");
    }
}

#[tokio::test]
async fn an_error_restores_the_terminal_before_it_is_shown() {
    let fake = fake();
    let refused = refusal(Code::Internal, "INTERNAL", &[]);
    fake.calls.break_after(EVENTS, 3, Some(refused));
    let mut pty = session(&fake).await;
    pty.types("a").await;
    // Each line starts at the left again.
    pty.shows("error: internal happened (INTERNAL)\r\n").await;
    assert_eq!(pty.ends().await, Some(125));
}

#[tokio::test]
async fn a_server_that_is_gone_can_be_left_at_once() {
    let mut fake = fake().mortal();
    let mut pty = session(&fake).await;
    fake.end();
    pty.types("typed to nobody").await;
    pty.types("\x10\x11").await;
    pty.shows("returns to it").await;
    // A session that waits for the server ends with another code.
    assert_eq!(pty.ends().await, Some(0));

    let mut codes = Vec::new();
    for _ in 0..TRIES {
        let mut fake = crate::commands::fake().mortal();
        let mut pty = session(&fake).await;
        fake.end();
        pty.types("typed to nobody").await;
        // One to kill the exec, which cannot be, and one to stop trying. A kill that fails before the second signal
        // comes ends the session with another code.
        pty.signal(Signal::TERM);
        pty.signal(Signal::INT);
        codes.push(pty.ends().await);
        if codes.ends_with(&[Some(130)]) {
            return;
        }
    }
    panic!("no session was interrupted: {codes:?}");
}

#[tokio::test]
async fn a_server_that_stays_away_ends_the_session() {
    let mut fake = fake().mortal();
    let mut pty = session(&fake).await;
    fake.end();
    // As long as a daemon may take to be replaced, half a minute.
    let limit = Duration::from_secs(300);
    assert_eq!(pty.ends_within(limit).await, Some(125));
    pty.shows("error: lost the stream").await;
}

#[tokio::test]
async fn the_terminal_is_not_raw_until_the_exec_starts() {
    let fake = fake();
    refuse_until_killed(&fake);
    let mut pty = skillctl_in_pty(&fake, &SHELL);
    fake.calls.wait_for(STARTS, 1).await;
    assert!(!pty.is_raw());
    // A Ctrl-C as it is typed, which our kernel makes a signal of.
    pty.types("\x03").await;
    assert_eq!(pty.ends().await, Some(130));
    assert_eq!(fake.state.lock().starts, 0);
}

#[tokio::test]
async fn a_program_that_cannot_start_leaves_the_terminal_alone() {
    let fake = fake();
    let mut pty = skillctl_in_pty(&fake, &["exec", "nope", "-it", "--", "bash"]);
    pty.shows("WORKSPACE_NOT_FOUND").await;
    assert_eq!(pty.ends().await, Some(125));
}

#[tokio::test]
async fn an_exec_that_is_killed_elsewhere_ends_the_session() {
    let fake = fake();
    let mut pty = session(&fake).await;
    fake.client().await.kill_exec("w/x").await.expect("kills");
    pty.shows("killed (SIGTERM) on request").await;
    assert_eq!(pty.ends().await, Some(143));
    let exec = fake.client().await.get_exec("w/x").await.expect("is there");
    assert_eq!(exec.state(), ExecState::Closed);
}

#[tokio::test]
async fn a_session_needs_a_terminal_and_says_what_to_do() {
    let fake = fake();
    let words = ["exec", "w", "-dit", "--id", "x", "--", "bash"];
    let started = skillctl(&fake, &words).stdin(Stdio::null()).output();
    assert!(started.await.expect("runs").status.success());
    for (words, said) in [
        (vec!["exec", "w", "-it", "--", "bash"], "leave out -t"),
        (vec!["exec", "w", "-t", "--", "bash"], "leave out -t"),
        (vec!["attach", "-i", "w/x"], "skillctl stdin w/x"),
    ] {
        let output = skillctl(&fake, &words).output().await.expect("runs");
        assert_eq!(output.status.code(), Some(125), "{words:?}");
        let text = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(text.contains(said), "{words:?}: {text}");
    }
    assert_eq!(fake.state.lock().starts, 1);
    let mut pty = skillctl_in_pty(&fake, &["-o", "json", "attach", "-i", "w/x"]);
    pty.shows("leave out -o json").await;
    assert_eq!(pty.ends().await, Some(125));
}

#[tokio::test]
async fn a_terminal_without_keys_has_our_size_and_ends_with_ctrl_c() {
    let fake = fake();
    let mut pty = skillctl_in_pty(&fake, &["exec", "w", "-t", "--id", "x", "--", "bash"]);
    pty.shows("$ ").await;
    assert!(!pty.is_raw());
    pty.resize(30, 100);
    until(&fake.exec("x"), |input| input.sizes == [(30, 100)]).await;
    pty.types("\x03").await;
    assert_eq!(pty.ends().await, Some(130));
    assert!(fake.exec("x").input.borrow().killed);
}
