//! `skillctl exec -it` with a real shell, which behaves like a local login.

use std::time::Duration;

use anyhow::{Context, Result};
use nix::sys::signal::Signal;
use skilld_client::v1::ExecState;
use skilld_client::v1::exec_result::Reason;
use skilld_tests::exec::workspace;
use skilld_tests::{Daemon, binaries};

use crate::pty::Pty;

const PROMPT: &str = "ready> ";
/// Command line of a shell without the image's prompt and start-up files.
const BASH: [&str; 4] = ["--", "bash", "--norc", "--noprofile"];

fn skillctl(daemon: &Daemon, words: &[&str]) -> Result<Pty> {
    let program = binaries::binary("skillctl")?;
    Ok(Pty::run(&program, &daemon.endpoint(), words))
}

/// Starts a shell with the id `shell` in a terminal of 24 rows and 80 columns, and waits for its first prompt.
async fn shell(daemon: &Daemon, workspace: &str) -> Result<Pty> {
    let id = workspace.trim_start_matches("workspaces/");
    let env = format!("PS1={PROMPT}");
    let words = ["exec", id, "-it", "--id", "shell", "--env", &env];
    let mut pty = skillctl(daemon, &[&words[..], &BASH[..]].concat())?;
    pty.shows(PROMPT).await;
    Ok(pty)
}

#[tokio::test]
async fn a_shell_in_a_terminal_feels_like_a_login() -> Result<()> {
    let daemon = Daemon::start().await?;
    let name = workspace(&daemon.client).await?.name;
    let mut pty = shell(&daemon, &name).await?;
    assert!(pty.is_raw());

    // What is typed is shown by the other side, and only once.
    pty.types("echo $((6 * 7))\r").await;
    let line = pty.shows(PROMPT).await;
    assert!(line.contains("echo $((6 * 7))\r\n42\r\n"), "{line:?}");
    pty.types("tty; echo $TERM\r").await;
    let line = pty.shows(PROMPT).await;
    assert!(
        line.contains("/dev/pts/") && line.contains("\ntest-256\r\n"),
        "{line:?}"
    );

    pty.types("stty size\r").await;
    pty.shows("\n24 80\r\n").await;
    // The kernel keeps a blocked signal until it is waited for, and carries out SIGINT by itself: neither is lost,
    // whenever it comes. A handler in bash or Python runs between two steps, and a signal just before a wait would not
    // end that wait.
    let program = [
        "import os, signal",
        "signal.signal(signal.SIGINT, signal.SIG_DFL)",
        "changed = [signal.SIGWINCH]",
        "signal.pthread_sigmask(signal.SIG_BLOCK, changed)",
        "print(\"wait\" \"ing\")",
        "[print(*os.get_terminal_size()[::-1]) for _ in iter(lambda: signal.sigwait(changed), 0)]",
    ];
    pty.types(&format!("python3 -c '{}'\r", program.join("; ")))
        .await;
    pty.shows("waiting").await;
    pty.resize(50, 132);
    pty.shows("\n50 132\r\n").await;
    pty.types("\x03").await;
    pty.shows(PROMPT).await;

    // Ctrl-C is the program's, not ours. It is in the foreground when it speaks itself.
    pty.types("bash -c 'echo slee\"\"ping; exec sleep 100'\r")
        .await;
    pty.shows("sleeping").await;
    pty.types("\x03").await;
    pty.shows(PROMPT).await;
    pty.types("echo code=$?\r").await;
    pty.shows("code=130").await;
    // So is Ctrl-Z.
    pty.types("bash -c 'echo slee\"\"ping; exec sleep 100'\r")
        .await;
    pty.shows("sleeping").await;
    pty.types("\x1a").await;
    pty.shows("Stopped").await;
    pty.shows(PROMPT).await;
    // Without `-f` it does not wait for a job that was stopped, and `exit` says that there is one.
    pty.types("kill -9 %1; wait -f %1; echo no-jo''bs\r").await;
    pty.shows("no-jobs").await;
    pty.shows(PROMPT).await;
    pty.types("exit 7\r").await;
    assert_eq!(pty.ends().await, Some(7));
    daemon.stop().await
}

#[tokio::test]
async fn a_shell_that_was_left_goes_on_and_is_found_again() -> Result<()> {
    let daemon = Daemon::start().await?;
    let client = daemon.client.clone();
    let name = workspace(&client).await?.name;
    let mut pty = shell(&daemon, &name).await?;
    pty.types("X=kept; (sleep 0.5; echo mean''while) &\r").await;
    pty.shows(PROMPT).await;
    pty.types("\x10\x11").await;
    let note = pty.shows("returns to it").await;
    assert_eq!(pty.ends().await, Some(0));
    let exec = format!("{name}/execs/shell");
    assert_eq!(client.get_exec(&exec).await?.state(), ExecState::Running);

    // By the words of the note.
    let command = note.split('`').nth(1).context("a command")?;
    let words: Vec<&str> = command.split(' ').skip(1).collect();
    let mut pty = skillctl(&daemon, &words)?;
    // The rest of the line that it was left on, and nothing of before.
    let missed = pty.shows("meanwhile").await;
    assert!(!missed.contains("X=kept"), "{missed:?}");
    pty.types("\recho $X\r").await;
    pty.shows("\nkept\r\n").await;
    pty.types("\x10\x11").await;
    pty.shows("returns to it").await;
    assert_eq!(pty.ends().await, Some(0));

    // From another terminal, without the words: the shell shows its prompt again.
    let short = exec.replace("workspaces/", "").replace("/execs/", "/");
    let mut pty = skillctl(&daemon, &["attach", "-i", &short])?;
    pty.shows(PROMPT).await;
    pty.types("exit 3\r").await;
    assert_eq!(pty.ends().await, Some(3));
    daemon.stop().await
}

#[tokio::test]
async fn a_shell_outlives_the_daemon_and_loses_no_key() -> Result<()> {
    let mut daemon = Daemon::start().await?;
    let name = workspace(&daemon.client).await?.name;
    let mut pty = shell(&daemon, &name).await?;
    for (round, signal) in [Signal::SIGKILL, Signal::SIGTERM].into_iter().enumerate() {
        pty.types("for i in $(seq 1 400); do echo line-$i; sleep 0.01; done; echo de''ad\r")
            .await;
        pty.shows("line-5\r").await;
        daemon.signal(signal)?;
        daemon.wait().await?;
        // Keys that are typed while there is nobody to take them, and while the shell is busy.
        pty.types(&format!("echo round-{round}-$((40 + 2))\r"))
            .await;
        daemon.restart().await?;
        let lines = pty.shows("\ndead\r\n").await;
        for i in 6..=400 {
            let line = format!("\nline-{i}\r\n");
            assert_eq!(lines.matches(&line).count(), 1, "{signal:?} {line:?}");
        }
        let answer = format!("\nround-{round}-42\r\n");
        pty.shows(&answer).await;
        pty.shows(PROMPT).await;
    }
    pty.types("exit 5\r").await;
    assert_eq!(pty.ends().await, Some(5));
    daemon.stop().await
}

#[tokio::test]
async fn the_terminal_is_restored_when_skillctl_or_the_workspace_goes() -> Result<()> {
    let (daemon, name) = Daemon::with_workspace().await?;
    let client = &daemon.client;
    let mut pty = shell(&daemon, &name).await?;
    pty.signal(rustix::process::Signal::TERM);
    assert_eq!(pty.ends().await, Some(130));
    // It took the shell along, which has no time for a TERM.
    let exec = client.get_exec(&format!("{name}/execs/shell")).await?;
    let result = exec.result.context("has ended")?;
    assert_eq!(result.reason(), Reason::KilledByClient);

    let name = workspace(client).await?.name;
    let mut pty = shell(&daemon, &name).await?;
    client.delete_workspace(&name).await?;
    let code = pty.ends_within(Duration::from_secs(40)).await;
    assert!(code.is_some_and(|code| code != 0), "{code:?}");
    daemon.stop().await
}
