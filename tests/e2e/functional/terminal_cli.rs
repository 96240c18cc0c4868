//! `skillctl exec -it` with a real shell, which behaves like a local login.
//!
//! Docker: keys, sizes and job control pass from the terminal of the installed `skillctl` to the image's bash.

use anyhow::Result;
use skilld_tests::pty::Pty;
use skilld_tests::{Daemon, DefaultDaemon, binaries};

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
    let (daemon, name) = DefaultDaemon::with_workspace().await?;
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
