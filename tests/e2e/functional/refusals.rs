//! Connections that the daemon refuses: the log names the reason once, and no flood of them fills the log.
//!
//! Docker: the installed daemon's log is what an operator reads, with the levels and limits of its own settings.

use std::time::{Duration, Instant};

use anyhow::Result;
use nix::sys::signal::Signal;
use skilld_tests::{Daemon, Options, wait};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::UnixStream;

/// Time limit of one answer and of one line of the log.
const LIMIT: Duration = Duration::from_secs(60);
/// HTTP/2 preface, settings, and a request with a scheme and nothing else.
const NO_METHOD: &[u8] =
    b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0\0\0\x01\x01\x05\0\0\0\x01\x86";

/// Connects, sends bytes, and waits until the daemon has answered or closed.
async fn send(daemon: &Daemon, bytes: &[u8]) -> Result<UnixStream> {
    let mut stream = UnixStream::connect(daemon.state_dir().join("skilld.sock")).await?;
    // It may be closed before everything is written.
    let _written = stream.write_all(bytes).await;
    let mut answer = [0; 64];
    let _read = tokio::time::timeout(LIMIT, stream.read(&mut answer)).await?;
    Ok(stream)
}

#[tokio::test]
async fn a_refused_connection_is_logged_once_with_its_reason() -> Result<()> {
    // The daemon's default; the tests' own is another one.
    let options = Options::default().set("log", "info,h2::server=debug");
    let daemon = Daemon::start_with(options).await?;
    for (bytes, reason) in [
        (
            &b"GET / HTTP/1.1\r\nHost: x\r\n\r\n"[..],
            "it speaks HTTP/1",
        ),
        (
            b"\x16\x03\x01\x02\0\x01\0\x01\xfc\x03\x03",
            "it speaks TLS; this listener takes plain text",
        ),
        (b"\0\0\0\0", "it does not speak HTTP/2"),
        (NO_METHOD, "malformed headers: missing method"),
    ] {
        // Open until then: what follows the daemon's first bytes would else not be read.
        let _stream = send(&daemon, bytes).await?;
        wait::until("the reason is in the log", LIMIT, async || {
            Ok(daemon.log().contains(reason).then_some(()))
        })
        .await?;
        let log = daemon.log();
        assert_eq!(log.matches(reason).count(), 1, "{reason}: {log}");
    }
    daemon.stop().await
}

#[tokio::test]
async fn a_flood_of_refused_connections_does_not_fill_the_log() -> Result<()> {
    const CONNECTIONS: usize = 2000;

    let mut daemon = Daemon::start().await?;
    let begun = Instant::now();
    for _ in 0..CONNECTIONS {
        drop(send(&daemon, b"GET / HTTP/1.1\r\n\r\n").await?);
    }
    daemon.signal(Signal::SIGTERM)?;
    daemon.wait().await?;
    let log = daemon.log();
    let lines = log.matches("it speaks HTTP/1").count();
    let reports = log.lines().filter_map(|line| {
        let (_, count) = line.split_once("left_out=")?;
        count.split(' ').next()?.parse::<usize>().ok()
    });
    let left_out: usize = reports.sum();
    // Nothing is lost without being counted.
    assert_eq!(lines + left_out, CONNECTIONS, "{lines} lines");
    // A slow machine takes several intervals, each with lines of its own.
    let intervals = usize::try_from(begun.elapsed().as_secs() / 10)? + 2;
    assert!(lines <= 200 * intervals, "{lines} lines of {CONNECTIONS}");
    assert!(log.contains("server/connection.rs:"), "the place is named");
    daemon.stop().await
}
