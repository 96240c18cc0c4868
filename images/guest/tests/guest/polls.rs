//! Long polls: the time of the answer, and output without loss or repetition.

use std::time::{Duration, Instant};

use skilld_proto::guest::v1 as wire;
use skilld_proto::v1;
use skilld_proto::v1::output_event::Content;
use skilld_proto::{Outcome, int64_from_count};
use tonic::{Code, Status};

use crate::support::{Guest, configuration, duration, in_time, reason, until, with_longer_times};

/// Longest wait and longest settle time of a poll, in milliseconds. The guest cuts longer ones.
const WAIT_MAX: u64 = 60_000;
const SETTLE_MAX: u64 = 10_000;
/// Deadline of a poll that does not wait for its time to be over. It is less than a minute, because the guest cuts each
/// wait to one: a poll that waits in vain answers before a longer deadline.
const EARLY: Duration = Duration::from_secs(50);

/// Output of many polls, joined.
#[derive(Debug, Default)]
struct PolledOutput {
    out: Vec<u8>,
    err: Vec<u8>,
    text: String,
    gaps: Vec<(i64, i64)>,
    next: v1::StreamOffsets,
    answers: usize,
    last: v1::PollExecResponse,
}

/// Builds a poll that waits as long as a poll can.
fn request(id: &str, offsets: v1::StreamOffsets) -> wire::PollExecRequest {
    wire::PollExecRequest {
        exec_id: id.to_owned(),
        offsets: Some(offsets),
        wait: duration(WAIT_MAX),
        max_bytes: 64 * 1024,
        settle_duration: duration(75),
        ..Default::default()
    }
}

async fn poll(guest: &Guest, request: wire::PollExecRequest) -> v1::PollExecResponse {
    try_poll(guest, request).await.expect("polled")
}

/// Polls, and checks that the answer comes long before the wait is over.
async fn poll_early(guest: &Guest, request: wire::PollExecRequest) -> v1::PollExecResponse {
    let answer = tokio::time::timeout(EARLY, poll(guest, request)).await;
    answer.expect("an answer before the wait is over")
}

async fn try_poll(
    guest: &Guest,
    request: wire::PollExecRequest,
) -> Result<v1::PollExecResponse, Status> {
    let mut client = guest.client.clone();
    Ok(client.poll_exec(request).await?.into_inner())
}

async fn start(guest: &Guest, id: &str, script: &str) {
    start_with(guest, id, script, |_| {}).await;
}

async fn start_with(guest: &Guest, id: &str, script: &str, change: impl FnOnce(&mut v1::ExecSpec)) {
    let mut request = guest.request(id, &["bash", "-c", script]);
    change(request.spec.as_mut().expect("a spec"));
    let mut client = guest.client.clone();
    client.start_exec(request).await.expect("started");
}

impl PolledOutput {
    fn take(&mut self, answer: v1::PollExecResponse) {
        for output in &answer.outputs {
            let (at, to) = match output.stream() {
                v1::OutputStream::Stdout => (&mut self.next.stdout_bytes, &mut self.out),
                v1::OutputStream::Stderr => (&mut self.next.stderr_bytes, &mut self.err),
                v1::OutputStream::Unspecified => panic!("no stream"),
            };
            if answer.gaps.is_empty() {
                assert_eq!(output.offset, *at, "each byte once, none left out");
            }
            match output.content.as_ref().expect("content") {
                Content::Data(data) => {
                    *at = output.offset + int64_from_count(data.len() as u64);
                    to.extend_from_slice(data);
                }
                Content::Text(text) => {
                    *at = output.next_offset;
                    self.text.push_str(text);
                }
            }
        }
        let gaps = answer
            .gaps
            .iter()
            .map(|gap| (gap.start_offset, gap.end_offset));
        self.gaps.extend(gaps);
        assert_eq!(answer.next_offsets, Some(self.next));
        self.answers += 1;
        self.last = answer;
    }

    /// Polls until the exec is closed.
    async fn all(guest: &Guest, mut request: wire::PollExecRequest) -> Self {
        let mut polled = Self::default();
        while polled.last.state() != v1::ExecState::Closed || !polled.last.outputs.is_empty() {
            request.offsets = Some(polled.next);
            polled.take(poll(guest, request.clone()).await);
        }
        polled
    }
}

fn text_of(answer: &v1::PollExecResponse) -> String {
    let part = |output: &v1::OutputEvent| match output.content.clone() {
        Some(Content::Data(data)) => String::from_utf8_lossy(&data).into_owned(),
        Some(Content::Text(text)) => text,
        None => String::new(),
    };
    answer.outputs.iter().map(part).collect()
}

#[tokio::test]
async fn a_poll_answers_at_once_when_the_exec_ends() {
    let guest = Guest::start().await;
    start(&guest, "mute", "sleep 0.3; exit 7").await;
    let answer = poll_early(&guest, request("mute", v1::StreamOffsets::default())).await;
    assert_eq!(answer.outputs.len(), 0);
    let result = answer.result.expect("a result");
    assert_eq!(result.outcome(), Some(Outcome::ExitCode(7)));

    // A poll after the end has everything at once.
    start(&guest, "end", "printf bye; exit 7").await;
    let all = PolledOutput::all(&guest, request("end", v1::StreamOffsets::default())).await;
    assert_eq!(all.out, b"bye");
    let again = poll_early(&guest, request("end", v1::StreamOffsets::default())).await;
    assert_eq!(text_of(&again), "bye");
    assert_eq!(again.state(), v1::ExecState::Closed);
}

#[tokio::test]
async fn a_child_that_holds_the_pipe_does_not_delay_a_poll() {
    let guest = Guest::configured(wire::ConfigureRequest {
        leak_grace: duration(10 * WAIT_MAX),
        ..configuration()
    })
    .await;
    // The output does not settle, neither before nor after the end.
    let script = "while sleep 0.05; do printf x; done & sleep 0.2; exit 7";
    start(&guest, "held", script).await;
    let slow = wire::PollExecRequest {
        settle_duration: duration(SETTLE_MAX),
        ..request("held", v1::StreamOffsets::default())
    };
    // On a busy machine the output may settle before the end.
    let mut answer = poll_early(&guest, slow.clone()).await;
    while answer.state() == v1::ExecState::Running {
        let next = wire::PollExecRequest {
            offsets: answer.next_offsets,
            ..slow.clone()
        };
        answer = poll_early(&guest, next).await;
    }
    assert_eq!(answer.state(), v1::ExecState::Exited);
    let result = answer.result.expect("a result");
    assert_eq!(result.outcome(), Some(Outcome::ExitCode(7)));
}

#[tokio::test]
async fn polls_between_exit_and_close_wait_for_the_close() {
    let guest = Guest::start().await;
    start(&guest, "left", "sleep 1000 > /dev/null 2>&1 & exit 7").await;
    let all = PolledOutput::all(&guest, request("left", v1::StreamOffsets::default())).await;
    // One answer has the result of the leader, and one the end of its child, unless both came at once.
    assert!(all.answers <= 2, "{}", all.answers);
    let result = all.last.result.expect("a result");
    assert_eq!(result.outcome(), Some(Outcome::ExitCode(7)));
}

#[tokio::test]
async fn a_poll_waits_until_output_has_settled() {
    let guest = Guest::start().await;
    let script = "for i in 1 2 3 4 5; do echo $i; sleep 0.05; done; sleep 1000";
    with_longer_times(async |id, settle| {
        let settle = settle.min(SETTLE_MAX);
        let begin = Instant::now();
        start(&guest, id, script).await;
        let patient = wire::PollExecRequest {
            settle_duration: duration(settle),
            ..request(id, v1::StreamOffsets::default())
        };
        let answer = poll(&guest, patient).await;
        let took = begin.elapsed();
        assert_eq!(answer.state(), v1::ExecState::Running);
        assert!(answer.result.is_none());
        if text_of(&answer) != "1\n2\n3\n4\n5\n" {
            return false;
        }
        // The four pauses before the last line, and its settle time.
        assert!(took >= Duration::from_millis(200 + settle), "{took:?}");
        let at_once = wire::PollExecRequest {
            settle_duration: None,
            ..request(id, v1::StreamOffsets::default())
        };
        let answer = poll_early(&guest, at_once).await;
        assert_eq!(text_of(&answer), "1\n2\n3\n4\n5\n");
        true
    })
    .await;
}

#[tokio::test]
async fn a_poll_ends_when_its_wait_is_over() {
    let guest = Guest::start().await;
    start(&guest, "mute", "sleep 1000").await;
    let begin = Instant::now();
    let brief = wire::PollExecRequest {
        wait: duration(200),
        ..request("mute", v1::StreamOffsets::default())
    };
    let answer = poll_early(&guest, brief).await;
    let took = begin.elapsed();
    assert!(took >= Duration::from_millis(200), "{took:?}");
    assert_eq!((answer.outputs.len(), answer.gaps.len()), (0, 0));
    assert_eq!(answer.next_offsets, Some(v1::StreamOffsets::default()));
    assert_eq!(answer.state(), v1::ExecState::Running);

    let not_at_all = wire::PollExecRequest {
        wait: None,
        ..request("mute", v1::StreamOffsets::default())
    };
    poll_early(&guest, not_at_all).await;

    // Output that never settles is handed over at the end of the wait.
    let script = "while sleep 0.02; do echo x; echo > said; done";
    start(&guest, "busy", script).await;
    let said = guest.workspace().join("said");
    until("the program has printed a line", || said.exists()).await;
    let brief = wire::PollExecRequest {
        wait: duration(300),
        settle_duration: duration(SETTLE_MAX),
        ..request("busy", v1::StreamOffsets::default())
    };
    let answer = poll_early(&guest, brief).await;
    assert!(text_of(&answer).starts_with("x\n"), "{answer:?}");
}

#[tokio::test]
async fn a_prompt_without_a_newline_comes_once() {
    let guest = Guest::start().await;
    start(&guest, "prompt", "printf 'name? '; sleep 1000").await;
    let mut polled = PolledOutput::default();
    polled.take(poll_early(&guest, request("prompt", polled.next)).await);
    assert_eq!(polled.out, b"name? ");
    let next = wire::PollExecRequest {
        wait: duration(300),
        ..request("prompt", polled.next)
    };
    polled.take(poll(&guest, next).await);
    assert_eq!(polled.out, b"name? ", "it does not come again");
}

#[tokio::test]
async fn a_poll_brings_at_most_what_was_asked_for() {
    let guest = Guest::start().await;
    // The output never settles.
    let script = "head -c 200000 /dev/zero; while sleep 0.05; do printf x; done";
    start(&guest, "much", script).await;
    let slow = |max_bytes, offsets| wire::PollExecRequest {
        max_bytes,
        settle_duration: duration(SETTLE_MAX),
        ..request("much", offsets)
    };
    let answer = poll_early(&guest, slow(1000, v1::StreamOffsets::default())).await;
    assert_eq!(answer.next_offsets.expect("offsets").stdout_bytes, 1000);
    let offsets = v1::StreamOffsets {
        stdout_bytes: 1000,
        stderr_bytes: 0,
    };
    let answer = poll_early(&guest, slow(150_000, offsets)).await;
    assert_eq!(answer.next_offsets.expect("offsets").stdout_bytes, 151_000);
    let sizes = answer.outputs.iter().map(|output| match &output.content {
        Some(Content::Data(data)) => data.len(),
        _ => panic!("bytes"),
    });
    assert_eq!(sizes.clone().sum::<usize>(), 150_000);
    assert!(sizes.max() <= Some(64 * 1024));
}

#[tokio::test]
async fn neither_stream_keeps_the_other_from_a_poll() {
    let guest = Guest::start().await;
    let script = "head -c 500000 /dev/zero; echo trouble >&2; sleep 1000";
    start(&guest, "both", script).await;
    let all = |state: v1::Exec| state.total.expect("offsets").stderr_bytes == 8;
    let get = wire::GetExecRequest {
        exec_id: "both".to_owned(),
    };
    let mut client = guest.client.clone();
    while !all(client
        .get_exec(get.clone())
        .await
        .expect("there")
        .into_inner())
    {}
    let answer = poll(&guest, request("both", v1::StreamOffsets::default())).await;
    let next = answer.next_offsets.expect("offsets");
    assert_eq!((next.stdout_bytes, next.stderr_bytes), (64 * 1024 - 8, 8));
}

#[tokio::test]
async fn each_byte_comes_once_over_many_polls() {
    let guest = Guest::start().await;
    let script = "for i in $(seq 300); do echo line $i; echo err $i >&2; sleep 0.002; done; exit 3";
    for max_bytes in [7, 100, 65536] {
        let id = format!("once{max_bytes}");
        start(&guest, &id, script).await;
        let wish = wire::PollExecRequest {
            max_bytes,
            settle_duration: duration(5),
            ..request(&id, v1::StreamOffsets::default())
        };
        let polled = PolledOutput::all(&guest, wish).await;
        let expect =
            |word: &str| -> String { (1..=300).map(|i| format!("{word} {i}\n")).collect() };
        assert_eq!(String::from_utf8_lossy(&polled.out), expect("line"));
        assert_eq!(String::from_utf8_lossy(&polled.err), expect("err"));
        assert!(polled.answers > 1, "{}", polled.answers);
        let result = polled.last.result.expect("a result");
        assert_eq!(result.outcome(), Some(Outcome::ExitCode(3)));
    }
}

#[tokio::test]
async fn two_pollers_get_the_same_bytes() {
    let guest = Guest::start().await;
    let script = "for i in $(seq 200); do echo line $i; sleep 0.002; done";
    start(&guest, "two", script).await;
    let wish = |max_bytes| wire::PollExecRequest {
        max_bytes,
        settle_duration: duration(1),
        ..request("two", v1::StreamOffsets::default())
    };
    let (small, large) = tokio::join!(
        PolledOutput::all(&guest, wish(11)),
        PolledOutput::all(&guest, wish(65536))
    );
    let expected: String = (1..=200).map(|i| format!("line {i}\n")).collect();
    assert_eq!(String::from_utf8_lossy(&small.out), expected);
    assert_eq!(small.out, large.out);
    let least = expected.len().div_ceil(11);
    assert!(small.answers >= least, "{} answers", small.answers);
}

#[tokio::test]
async fn a_polled_text_is_never_cut_inside_a_character() {
    let guest = Guest::start().await;
    // The character's second byte comes long after the settle time.
    let script =
        r"printf 'a\xc3'; until [ -e go ]; do sleep 0.01; done; printf '\xa9b'; sleep 1000";
    start(&guest, "cut", script).await;
    let text = |id, offsets| wire::PollExecRequest {
        format: v1::OutputFormat::Text.into(),
        settle_duration: duration(20),
        ..request(id, offsets)
    };
    let mut polled = PolledOutput::default();
    polled.take(poll(&guest, text("cut", polled.next)).await);
    assert_eq!((&*polled.text, polled.next.stdout_bytes), ("a", 1));
    let brief = wire::PollExecRequest {
        wait: duration(200),
        ..text("cut", polled.next)
    };
    polled.take(poll(&guest, brief).await);
    assert_eq!((&*polled.text, polled.next.stdout_bytes), ("a", 1));
    std::fs::write(guest.workspace().join("go"), "").expect("written");
    polled.take(poll(&guest, text("cut", polled.next)).await);
    assert_eq!((&*polled.text, polled.next.stdout_bytes), ("a\u{e9}b", 4));

    // However few bytes are asked for at a time, every character arrives.
    let script = "for i in $(seq 50); do printf '\u{20ac}\u{1f600}'; done; printf '\u{e9}' >&2";
    start(&guest, "few", script).await;
    for max_bytes in [1, 3, 9] {
        let wish = wire::PollExecRequest {
            max_bytes,
            ..text("few", v1::StreamOffsets::default())
        };
        let polled = PolledOutput::all(&guest, wish).await;
        let out: String = polled
            .text
            .chars()
            .filter(|char| *char != '\u{e9}')
            .collect();
        assert_eq!(out, "\u{20ac}\u{1f600}".repeat(50));
        assert_eq!(polled.text.chars().count(), 101);
    }

    // The last bytes are no character, and come all the same.
    start(&guest, "half", r"printf 'a\xe2\x82'").await;
    let polled = PolledOutput::all(&guest, text("half", v1::StreamOffsets::default())).await;
    assert_eq!((&*polled.text, polled.next.stdout_bytes), ("a\u{fffd}", 3));
}

#[tokio::test]
async fn a_poll_wakes_when_there_is_something() {
    let guest = Guest::start().await;
    let script =
        "for i in 1 2 3; do until [ -e go$i ]; do sleep 0.01; done; echo $i; done; sleep 1000";
    start(&guest, "wake", script).await;
    let mut polled = PolledOutput::default();
    for number in 1..=3 {
        let wish = wire::PollExecRequest {
            settle_duration: None,
            ..request("wake", polled.next)
        };
        let go = guest.workspace().join(format!("go{number}"));
        let permit = async {
            // The poll most likely waits by then.
            tokio::time::sleep(Duration::from_millis(50)).await;
            std::fs::write(go, "").expect("written");
        };
        let (answer, ()) = tokio::join!(poll_early(&guest, wish), permit);
        assert_eq!(text_of(&answer), format!("{number}\n"));
        polled.take(answer);
    }
}

#[tokio::test]
async fn a_poll_says_what_is_gone_or_refuses() {
    let guest = Guest::start().await;
    let small = |spec: &mut v1::ExecSpec| {
        spec.on_full = v1::OutputFullPolicy::DropOldest.into();
        spec.retention = Some(v1::ExecRetention {
            stdout_bytes: 70_000,
            ..Default::default()
        });
    };
    let script = "head -c 1000000 /dev/zero; printf end";
    start_with(&guest, "gap", script, small).await;
    let mut end = poll(&guest, request("gap", v1::StreamOffsets::default())).await;
    while end.state() != v1::ExecState::Closed {
        end = poll(&guest, request("gap", v1::StreamOffsets::default())).await;
    }
    let wish = wire::PollExecRequest {
        max_bytes: 1 << 20,
        ..request("gap", v1::StreamOffsets::default())
    };
    let answer = poll(&guest, wish).await;
    let gaps: Vec<_> = answer
        .gaps
        .iter()
        .map(|gap| (gap.start_offset, gap.end_offset))
        .collect();
    assert_eq!(gaps, [(0, 930_003)]);
    assert_eq!(
        answer.next_offsets.expect("offsets").stdout_bytes,
        1_000_003
    );
    assert_eq!(text_of(&answer).len(), 70_000);
    assert!(text_of(&answer).ends_with("\0end"));

    let strict = wire::PollExecRequest {
        gap_policy: v1::GapPolicy::Refuse.into(),
        ..request("gap", v1::StreamOffsets::default())
    };
    let refused = try_poll(&guest, strict).await.expect_err("refused");
    assert_eq!(
        (refused.code(), &*reason(&refused)),
        (Code::OutOfRange, "OUTPUT_DROPPED")
    );
    let beyond = v1::StreamOffsets {
        stdout_bytes: 1_000_004,
        stderr_bytes: 0,
    };
    let refused = try_poll(&guest, request("gap", beyond))
        .await
        .expect_err("beyond");
    assert_eq!(reason(&refused), "INVALID_REQUEST");
    let refused = try_poll(&guest, request("missing", v1::StreamOffsets::default()))
        .await
        .expect_err("no exec");
    assert_eq!(reason(&refused), "EXEC_NOT_FOUND");
}

#[tokio::test]
async fn a_blocking_exec_goes_on_as_far_as_polls_acknowledge() {
    let guest = Guest::start().await;
    let small = |spec: &mut v1::ExecSpec| {
        spec.retention = Some(v1::ExecRetention {
            stdout_bytes: 70_000,
            ..Default::default()
        });
    };
    let script = "head -c 3000000 /dev/zero; echo x > done";
    start_with(&guest, "block", script, small).await;
    let wish = wire::PollExecRequest {
        max_bytes: 1 << 20,
        settle_duration: duration(SETTLE_MAX),
        ..request("block", v1::StreamOffsets::default())
    };
    // Asking again for the same acknowledges nothing.
    for _ in 0..3 {
        let answer = poll(&guest, wish.clone()).await;
        assert_eq!(answer.next_offsets.expect("offsets").stdout_bytes, 70_000);
    }
    assert!(!guest.workspace().join("done").exists());
    // Answers that waited for the settle time, one for each of 43 windows, would not come by the deadline.
    let all = PolledOutput::all(&guest, wish);
    let polled = in_time("each full window at once", all).await;
    assert_eq!((polled.out.len(), polled.gaps.len()), (3_000_000, 0));
    let done = guest.workspace().join("done");
    until("the program ends", || done.exists()).await;
}
