//! Tests of the readers that a blocked program waits for. No process runs, and the clock is passed in.

use bytes::BytesMut;
use skilld_proto::v1;

use super::super::output_piece::OutputReadOptions;
use super::super::poll::PollRequest;
use super::super::{Exec, ExecPhase};
use super::*;
use crate::output_window::{CHUNK_BYTES, OutputBudget};

/// Returns a BLOCKing exec whose window of stdout is full of `bytes`.
fn blocked_exec(bytes: &[u8]) -> Arc<Exec> {
    let bytes_max = i64::try_from(CHUNK_BYTES).expect("small");
    let spec = v1::ExecSpec {
        retention: Some(v1::ExecRetention {
            stdout_bytes: bytes_max,
            stderr_bytes: bytes_max,
            after_exit: None,
        }),
        on_full: v1::OutputFullPolicy::Block.into(),
        ..Default::default()
    };
    let (id, name) = (String::new(), String::new());
    let (exec, _controls) = Exec::new(
        name,
        id,
        Vec::new().into(),
        spec,
        None,
        &OutputBudget::new(u64::MAX),
    );
    let mut state = exec.state();
    state.phase = ExecPhase::Running;
    let [stdout, _stderr] = &mut state.windows;
    stdout.push(&mut BytesMut::from(bytes), 0);
    drop(state);
    exec
}

/// Returns a full window's worth of text that ends within a character.
fn cut_off_text() -> Vec<u8> {
    let mut text = vec![b'x'; CHUNK_BYTES - 2];
    text.extend_from_slice(b"\xe2\x82");
    text
}

fn register(exec: &Arc<Exec>, kind: ReaderRpc, format: OutputFormat, at: usize) -> ReaderGuard {
    ReaderGuard::register(Arc::clone(exec), kind, format, [at as u64, 0])
}

/// Lets the grace of every stalled reader pass, and returns how many bytes the program may write then.
fn room_after_grace(exec: &Exec) -> u64 {
    let mut state = exec.state();
    let _due = state.next_stall(true);
    state.skip_stalled(Instant::now() + STALL_GRACE);
    state.room(0)
}

async fn poll_now(exec: &Arc<Exec>, at: usize) {
    let poll = PollRequest {
        offsets: [at as u64, 0],
        style: OutputReadOptions {
            format: OutputFormat::Bytes,
            gap_policy: v1::GapPolicy::Accept,
        },
        wait: Duration::ZERO,
        settle: Duration::ZERO,
        bytes_max: CHUNK_BYTES,
    };
    poll.answer(Arc::clone(exec)).await.expect("answered");
}

#[test]
fn a_text_reader_that_waits_for_the_rest_of_a_character_goes_on() {
    let text = cut_off_text();
    let whole = text.len() - 2;
    for kind in [ReaderRpc::Run, ReaderRpc::Attach, ReaderRpc::Poll] {
        let exec = blocked_exec(&text);
        let _stalled = register(&exec, ReaderRpc::Attach, OutputFormat::Text, 0);
        let _waits = register(&exec, kind, OutputFormat::Text, whole);
        assert_eq!(exec.state().room(0), 0);
        assert!(room_after_grace(&exec) > 0, "{kind:?}");
    }
}

#[test]
fn a_reader_that_has_bytes_to_take_does_not_go_on() {
    let text = cut_off_text();
    let whole = text.len() - 2;
    for (format, at) in [
        (OutputFormat::Bytes, whole),
        (OutputFormat::Text, whole - 1),
    ] {
        let exec = blocked_exec(&text);
        let _first = register(&exec, ReaderRpc::Attach, OutputFormat::Text, 0);
        let _second = register(&exec, ReaderRpc::Run, format, at);
        assert_eq!(room_after_grace(&exec), 0, "{format:?} at {at}");
    }
}

#[tokio::test]
async fn polls_without_a_wait_are_a_reader_that_goes_on() {
    let exec = blocked_exec(&[b'x'; CHUNK_BYTES]);
    let _stalled = register(&exec, ReaderRpc::Attach, OutputFormat::Bytes, 0);
    assert_eq!(room_after_grace(&exec), 0, "it is the only reader");
    poll_now(&exec, CHUNK_BYTES).await;
    assert!(room_after_grace(&exec) > 0);
}

#[tokio::test]
async fn a_poll_from_before_the_program_waited_is_no_reader() {
    let exec = blocked_exec(&[b'x'; CHUNK_BYTES]);
    poll_now(&exec, 0).await;
    let _stalled = register(&exec, ReaderRpc::Attach, OutputFormat::Bytes, 0);
    assert_eq!(room_after_grace(&exec), 0);
}
