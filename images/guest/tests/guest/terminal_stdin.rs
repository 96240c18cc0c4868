//! End of file on a terminal: a character that a program reads, and no end of its input.

use skilld_proto::Outcome;
use skilld_proto::v1;
use tonic::Code;

use crate::stdin::{all, assert_refused, message, says, write};
use crate::support::Guest;

#[tokio::test]
async fn a_terminals_eof_is_a_character_and_not_its_end() {
    let guest = Guest::start().await;
    let script = "stty -echo; read -r first; echo got $first; cat; read -r last; echo then $last";
    let mut request = guest.request("tty", &["bash", "-c", script]);
    if let Some(spec) = &mut request.spec {
        spec.open_stdin = true;
        spec.terminal = Some(v1::ExecTerminal::default());
    }
    let mut client = guest.client.clone();
    client.start_exec(request).await.expect("started");
    let mut at = 0;
    let lines = [
        ("one\n", false, "got one\r\n"),
        ("two\n", true, "two\r\n"),
        ("three\n", false, "then three\r\n"),
    ];
    for (data, eof, answer) in lines {
        let line = message("tty", Some(at), data.as_bytes(), eof);
        at += data.len() as u64;
        // A repeated end is not one more.
        for _ in 0..2 {
            assert_eq!(write(&guest, line.clone()).await.expect("written"), at);
        }
        says(&guest, "tty", answer).await;
    }
    let seen = all(&guest, "tty").await;
    assert!(
        seen.stdout().ends_with("got one\r\ntwo\r\nthen three\r\n"),
        "{:?}",
        seen.stdout()
    );
    assert_eq!(seen.outcome(), Outcome::ExitCode(0));
}

/// Runs shell text on a terminal with an open stdin.
async fn start_terminal(guest: &Guest, id: &str, script: &str) {
    let mut request = guest.request(id, &["bash", "-c", script]);
    if let Some(spec) = &mut request.spec {
        spec.open_stdin = true;
        spec.terminal = Some(v1::ExecTerminal::default());
    }
    let mut client = guest.client.clone();
    client.start_exec(request).await.expect("started");
}

#[tokio::test]
async fn each_eof_without_an_offset_is_one_more_for_a_terminal() {
    let guest = Guest::start().await;
    let script = "cat; echo first; cat; echo second";
    start_terminal(&guest, "tty", script).await;
    for answer in ["first\r\n", "second\r\n"] {
        let end = message("tty", None, b"", true);
        assert_eq!(write(&guest, end).await.expect("written"), 0);
        says(&guest, "tty", answer).await;
    }
    assert_eq!(all(&guest, "tty").await.outcome(), Outcome::ExitCode(0));
}

#[tokio::test]
async fn an_older_eof_of_a_terminal_can_be_repeated_too() {
    let guest = Guest::start().await;
    let script = "stty -echo; cat; cat; read -r last; echo then $last";
    start_terminal(&guest, "tty", script).await;
    let lines = [("one\n", 4), ("two\n", 8)];
    let line = |data: &str, end: u64| {
        let offset = end - data.len() as u64;
        message("tty", Some(offset), data.as_bytes(), true)
    };
    for (data, end) in lines {
        assert_eq!(write(&guest, line(data, end)).await.expect("written"), end);
        says(&guest, "tty", &format!("{}\r\n", data.trim())).await;
    }
    for (data, end) in lines {
        assert_eq!(write(&guest, line(data, end)).await.expect("known"), 8);
    }
    // Neither was a third one: this is still read. An end where none was said is none that was.
    let wrong = message("tty", Some(0), b"on", true);
    assert_refused(
        write(&guest, wrong).await,
        Code::OutOfRange,
        "INVALID_REQUEST",
    );
    let last = message("tty", Some(8), b"three\n", false);
    assert_eq!(write(&guest, last).await.expect("written"), 14);
    let seen = all(&guest, "tty").await;
    assert!(seen.stdout().ends_with("then three\r\n"), "{:?}", seen.out);
}
