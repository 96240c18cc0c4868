//! Polling, and what else is done to execs that are there.

use prost_types::Timestamp;
use skilld_client::v1::output_event::Content;
use skilld_client::v1::{ErrorReason, ExecState, KillExecRequest, OutputStream, PollExecRequest};
use tonic::{Code, Status};

use crate::commands::{fake, skillctl};
use skilld_testing::{Fake, PRINTED, refusal};

async fn run(fake: &Fake, words: &[&str]) -> (Option<i32>, Vec<u8>, String) {
    let output = skillctl(fake, words).output().await.expect("runs");
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    (output.status.code(), output.stdout, said)
}

async fn start(fake: &Fake, words: &[&str]) {
    let words = [&["exec", "w", "-d", "--id", "x", "--"], words].concat();
    assert_eq!(run(fake, &words).await.1, b"w/x\n");
}

#[tokio::test]
async fn a_poller_gets_each_byte_once_and_the_end() {
    let fake = fake();
    start(&fake, &["print"]).await;
    let client = fake.client().await;
    let mut poller = client.poller(PollExecRequest {
        name: "w/x".into(),
        max_bytes: 100_000,
        ..Default::default()
    });
    // What a restart of the daemon looks like from here.
    let broken = [
        Status::unavailable("broken"),
        Status::unknown("transport error"),
        refusal(Code::Unavailable, "DRAINING", &[]),
    ];
    fake.calls.refuse("PollExec", broken);
    let (mut stdout, mut stderr, mut last) = (Vec::new(), Vec::new(), None);
    while let Some(answer) = poller.next().await.expect("polls") {
        assert!(last.is_none_or(|last: bool| !last), "one after the last");
        for piece in &answer.outputs {
            let Some(Content::Data(data)) = &piece.content else {
                panic!("bytes were asked for");
            };
            match piece.stream() {
                OutputStream::Stderr => stderr.extend_from_slice(data),
                OutputStream::Stdout | OutputStream::Unspecified => stdout.extend_from_slice(data),
            }
        }
        assert_eq!(answer.next_offsets, Some(poller.offsets()));
        last = Some(answer.outputs.is_empty());
        assert_eq!(answer.state(), ExecState::Closed);
        assert!(answer.result.is_some());
    }
    assert_eq!(last, Some(true));
    assert_eq!(stdout, *PRINTED);
    assert!(!stderr.is_empty());
    assert!(poller.next().await.expect("is over").is_none());
}

#[tokio::test]
async fn a_poll_is_not_repeated_when_the_server_says_no() {
    let fake = fake();
    start(&fake, &["print"]).await;
    let client = fake.client().await;
    for code in [Code::OutOfRange, Code::Aborted, Code::NotFound] {
        let refused = refusal(code, "OUTPUT_DROPPED", &[("oldest_offset", "7")]);
        fake.calls.refuse("PollExec", [refused]);
        let request = PollExecRequest {
            name: "w/x".into(),
            ..Default::default()
        };
        let error = client.poll_exec(request).await.expect_err("refused");
        assert_eq!(error.code(), Some(code));
        assert_eq!(error.reason(), Some(ErrorReason::OutputDropped));
    }
    assert_eq!(fake.calls.count("PollExec"), 3, "one of each code");
}

#[tokio::test]
async fn poll_prints_what_there_is_and_where_to_go_on() {
    let fake = fake();
    start(&fake, &["forever"]).await;
    let (code, stdout, said) = run(&fake, &["poll", "w/x"]).await;
    assert_eq!((code, stdout.as_slice()), (Some(0), &b"started\n"[..]));
    assert_eq!(said, "skillctl: it runs; go on with --offset 8,0\n");
    let words = ["poll", "w/x", "--offset", "3", "--max-bytes", "2"];
    let (_, stdout, said) = run(&fake, &words).await;
    assert_eq!(stdout, b"rt");
    assert!(said.contains("--offset 5,0"), "{said}");
    run(&fake, &["kill", "w/x"]).await;
    let (code, stdout, said) = run(&fake, &["poll", "w/x", "--offset", "8,0"]).await;
    assert_eq!((code, stdout.len()), (Some(0), 0));
    assert!(said.contains("killed (SIGTERM) on request; go on with --offset 8,0"));

    let words = [
        "poll", "w/x", "--wait", "2s", "--settle", "10ms", "-o", "json",
    ];
    let (_, stdout, said) = run(&fake, &words).await;
    assert_eq!(said, "");
    let answer: serde_json::Value = serde_json::from_slice(&stdout).expect("json");
    assert_eq!(answer["outputs"][0]["data"], "c3RhcnRlZAo=");
    assert_eq!(answer["outputs"][0]["text"], "started\n");
    assert_eq!(answer["gaps"], serde_json::json!([]));
    assert_eq!(answer["state"], "EXEC_STATE_CLOSED");
    let requests = fake.calls.requests::<PollExecRequest>("PollExec");
    let asked = requests.last().expect("polled");
    assert_eq!(asked.wait.expect("is set").seconds, 2);
    assert_eq!(asked.settle_duration.expect("is set").nanos, 10_000_000);
}

#[tokio::test]
async fn poll_writes_each_stream_where_it_belongs() {
    let fake = fake();
    start(&fake, &["print"]).await;
    let (code, stdout, said) = run(&fake, &["poll", "w/x", "--max-bytes", "1MiB"]).await;
    assert_eq!(code, Some(0));
    assert_eq!(stdout, PRINTED[..1024 * 1024]);
    assert_eq!(said, "skillctl: exit 0; go on with --offset 1048576,0\n");
    let output = skillctl(&fake, &["poll", "w/x", "--offset", "1048593,0"])
        .output()
        .await
        .expect("runs");
    assert_eq!(output.stdout, b"");
    assert_eq!(output.stderr.get(..32_768), PRINTED.get(..32_768));
}

#[tokio::test]
async fn a_kill_has_the_grace_that_it_was_given() {
    let fake = fake();
    start(&fake, &["forever"]).await;
    for (words, seconds) in [
        (vec!["kill", "w/x"], None),
        (vec!["kill", "w/x", "--grace", "30s"], Some(30)),
        (vec!["kill", "w/x", "--grace", "0"], Some(0)),
    ] {
        let (code, stdout, _) = run(&fake, &words).await;
        assert_eq!(
            (code, stdout.as_slice()),
            (Some(0), &b"w/x killed by client\n"[..])
        );
        let asked = fake.calls.requests::<KillExecRequest>("KillExec");
        let grace = asked.last().and_then(|request| request.grace);
        assert_eq!(grace.map(|grace| grace.seconds), seconds);
    }
}

#[tokio::test]
async fn forget_forgets_all_that_it_is_told() {
    let fake = fake();
    start(&fake, &["forever"]).await;
    let (code, _, said) = run(&fake, &["forget", "w/nope", "w/x"]).await;
    assert_eq!(code, Some(1));
    assert!(said.contains("EXEC_NOT_FOUND"), "{said}");
    assert!(fake.state.lock().execs.is_empty());
}

#[tokio::test]
async fn ps_shows_what_an_exec_takes_and_how_long_it_has_run() {
    let fake = fake();
    let exec = |id, flags, words: &[&'static str]| {
        [&["exec", "w", flags, "--id", id, "--"], words].concat()
    };
    for words in [
        exec("a", "-d", &["forever"]),
        exec("b", "-di", &["cat"]),
        exec("c", "-dit", &["bash"]),
    ] {
        assert_eq!(run(&fake, &words).await.0, Some(0), "{words:?}");
    }
    // Minutes before the next ten, which the commands below do not take.
    let ago = std::time::SystemTime::now() - std::time::Duration::from_secs(5400);
    fake.state.lock().start_time = Some(Timestamp::from(ago));
    let (_, stdout, _) = run(&fake, &["ps", "w"]).await;
    let table = String::from_utf8(stdout).expect("utf-8");
    let lines: Vec<&str> = table.lines().collect();
    for (line, words) in lines.iter().zip([
        ["EXEC", "TIME", "INPUT"],
        ["w/a", "1h 3", "none"],
        ["w/b", "1h 3", "open"],
        ["w/c", "1h 3", "terminal"],
    ]) {
        assert!(words.iter().all(|word| line.contains(word)), "{table}");
    }
    assert_eq!(lines.len(), 4);
    for exec in ["w/b", "w/c"] {
        assert_eq!(run(&fake, &["kill", exec]).await.0, Some(0));
    }
    let (_, stdout, _) = run(&fake, &["ps", "w"]).await;
    let table = String::from_utf8(stdout).expect("utf-8");
    assert_eq!(table.matches(" closed ").count(), 2, "{table}");
    assert!(!table.contains(" open ") && !table.contains(" terminal "));
}
