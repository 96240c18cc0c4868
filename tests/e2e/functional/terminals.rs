//! Terminals in a container, through the daemon.
//!
//! Docker: the terminals are those of the container's own devpts, and seccomp refuses to type into one.

use anyhow::{Context, Result};
use skilld_client::v1::{ExecSpec, ExecTerminal};
use skilld_tests::DefaultDaemon;
use skilld_tests::exec::{argv, run, shell};

fn terminal(spec: ExecSpec) -> ExecSpec {
    ExecSpec {
        terminal: Some(ExecTerminal::default()),
        ..spec
    }
}

#[tokio::test]
async fn a_terminal_in_a_container_has_the_requested_size_and_name() -> Result<()> {
    let (daemon, name) = DefaultDaemon::with_workspace().await?;
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
        terminal: Some(ExecTerminal {
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
    // No command may type into its terminal on the user's behalf.
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
