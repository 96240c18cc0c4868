//! Execs of the fake that react to what they are sent, each in the way of its first word. `cat` prints it, `ask`
//! prompts and ends with its first line, `bash` echoes it as a terminal does and ends with `exit CODE`, `hold` reads it
//! and does nothing, `deaf` reads nothing, `login` says on stderr what it does and asks on stdout, `parent` ends before
//! its child, which prints once a stream is opened.

use std::collections::BTreeMap;

use futures::{Stream, StreamExt, stream};
use skilld_client::v1::ExitReason;
use skilld_client::v1::exec_event::Event;
use skilld_client::v1::output_event::Content;
use skilld_client::v1::{ClosedEvent, ExitedEvent, OutputEvent, StartedEvent};
use skilld_client::v1::{
    ExecResult, ExecSpec, ExecState, OutputStream, StreamOffsets, WriteStdinRequest,
    WriteStdinResponse,
};
use skilld_client::{Outcome, count_from_int64, int64_from_count};
use tokio::sync::watch;
use tonic::{Code, Status};

use super::{DEADLINE, FakeExec, refusal};

/// Maximum number of bytes that a pipe holds without a reader.
const PIPE_BYTES: usize = 64 * 1024;

/// Input of an exec: bytes, signals and sizes that it was sent.
#[derive(Clone, Debug, Default)]
pub struct Input {
    /// Bytes of its stdin.
    pub bytes: Vec<u8>,
    pub eof: bool,
    /// Bytes that each write with an id has written.
    pub ids: BTreeMap<String, usize>,
    /// Sizes that the terminal was set to, rows and columns.
    pub sizes: Vec<(u32, u32)>,
    pub killed: bool,
    /// `true` once a stream of events was opened.
    pub followed: bool,
}

/// Fault of a write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// Writes the bytes and loses the answer.
    Lost,
    /// Writes half of the bytes and loses the answer.
    Half,
    /// Writes half of the bytes and answers that the deadline passed.
    Deadline,
    /// Refuses the write.
    Refused,
}

/// Returns `true` for programs whose output depends on their input.
pub fn is_live(spec: &ExecSpec) -> bool {
    word(spec) != "forbidden" && (spec.terminal.is_some() || takes_input(spec))
}

fn takes_input(spec: &ExecSpec) -> bool {
    spec.open_stdin
}

fn word(spec: &ExecSpec) -> &str {
    let shell = || spec.shell.split_whitespace().next();
    let first = spec.argv.first().map(String::as_str).or_else(shell);
    first.unwrap_or_default()
}

/// Returns the output so far, and the result if the program has ended.
pub fn output(spec: &ExecSpec, input: &Input) -> (Vec<u8>, Option<ExecResult>) {
    let ended = |outcome, reason| Some(ExecResult::new(reason, Some(outcome)));
    let exit = |code| ended(Outcome::ExitCode(code), ExitReason::Exited);
    let killed = match input.killed {
        true => ended(Outcome::Signal(15), ExitReason::KilledByClient),
        false => None,
    };
    match word(spec) {
        "cat" => {
            let end = killed.or_else(|| input.eof.then(|| exit(0)).flatten());
            (input.bytes.clone(), end)
        }
        "bash" => {
            let text = String::from_utf8_lossy(&input.bytes);
            let code = text
                .split_once("exit ")
                .and_then(|(_, rest)| rest.split_once('\r')?.0.parse().ok());
            let end = killed.or_else(|| code.and_then(exit));
            ([b"$ ".as_slice(), &input.bytes].concat(), end)
        }
        "ask" => {
            let end = killed.or_else(|| input.bytes.contains(&b'\n').then(|| exit(3)).flatten());
            ([b"Name? ".as_slice(), &input.bytes].concat(), end)
        }
        "hold" => (Vec::new(), killed),
        "login" => (b"Name: ".to_vec(), killed),
        "deaf" => (b"started\n".to_vec(), killed),
        "exit" => (Vec::new(), exit(0)),
        "hello" => (b"hello\n".to_vec(), exit(0)),
        "parent" => {
            let child: &[u8] = if input.followed { b"child\n" } else { b"" };
            ([b"parent\n".as_slice(), child].concat(), exit(0))
        }
        "oom" => {
            let end = exit(0).map(|result| ExecResult {
                oom_kills: Some(1),
                ..result
            });
            (b"done\n".to_vec(), end)
        }
        other => panic!("{other:?} does nothing with its stdin"),
    }
}

/// Returns the state of an exec that has this result.
pub fn state(running: &FakeExec, result: Option<&ExecResult>) -> ExecState {
    match result {
        None => ExecState::Running,
        Some(_) if word(&running.spec) == "parent" && !running.input.borrow().followed => {
            ExecState::Exited
        }
        Some(_) => ExecState::Closed,
    }
}

/// Returns the output on stderr, which only polls hand over.
pub fn errors(spec: &ExecSpec) -> Vec<u8> {
    match word(spec) {
        "login" => b"connecting\n".to_vec(),
        _ => Vec::new(),
    }
}

/// Returns the events from an offset of stdout.
pub fn events(name: String, running: &FakeExec, from: u64) -> impl Stream<Item = Event> + use<> {
    let spec = running.spec.clone();
    let started = Event::Started(StartedEvent {
        name,
        pid: 7,
        effective_spec: Some(spec.clone()),
        start_time: None,
    });
    let start = (running.input.subscribe(), Some(from));
    let rest = stream::unfold(start, move |(mut input, at)| {
        let spec = spec.clone();
        async move {
            // Nothing comes after Closed.
            let at = at?;
            let has_news = |input: &Input| {
                let (bytes, end) = output(&spec, input);
                bytes.len() as u64 > at || end.is_some()
            };
            let now = input.wait_for(has_news).await.ok()?.clone();
            let (bytes, end) = output(&spec, &now);
            let total = bytes.len() as u64;
            let mut events = Vec::new();
            let rest = bytes.get(usize::try_from(at).expect("small")..);
            for (index, piece) in rest.unwrap_or_default().chunks(64 * 1024).enumerate() {
                events.push(Event::Output(OutputEvent {
                    stream: OutputStream::Stdout.into(),
                    offset: int64_from_count(at + index as u64 * 64 * 1024),
                    content: Some(Content::Data(piece.to_vec().into())),
                    ..Default::default()
                }));
            }
            let next = end.is_none().then_some(total);
            if let Some(result) = end {
                events.push(Event::Exited(ExitedEvent {
                    result: Some(result),
                }));
                events.push(Event::Closed(ClosedEvent {
                    total: Some(StreamOffsets {
                        stdout_bytes: int64_from_count(total),
                        stderr_bytes: 0,
                    }),
                    ..Default::default()
                }));
            }
            Some((stream::iter(events), (input, next)))
        }
    });
    stream::iter([started]).chain(rest.flatten())
}

/// Writes to an exec's stdin by the rules of the API.
pub async fn write(
    running: &FakeExec,
    request: &WriteStdinRequest,
) -> Result<WriteStdinResponse, Status> {
    let (data, eof) = (&request.data, request.eof);
    let refused = |reason| refusal(Code::FailedPrecondition, reason, &[]);
    if !takes_input(&running.spec) {
        return Err(refused("STDIN_CLOSED"));
    }
    let is_over = |input: &Input| output(&running.spec, input).1.is_some();
    let mut outcome = Err(refused("EXEC_NOT_RUNNING"));
    let mut fits = true;
    running.input.send_modify(|input| {
        if is_over(input) {
            return;
        }
        let committed = input.bytes.len() as u64;
        let known = input.ids.get(&request.request_id).copied().unwrap_or(0);
        let at = request
            .offset
            .map_or(committed - known as u64, count_from_int64);
        let skip = committed.checked_sub(at);
        let Some(skip) = skip.and_then(|skip| usize::try_from(skip).ok()) else {
            outcome = Err(refusal(Code::OutOfRange, "INVALID_REQUEST", &[]));
            return;
        };
        let fresh = data.get(skip..).unwrap_or_default();
        if input.eof && !fresh.is_empty() {
            outcome = Err(refused("STDIN_CLOSED"));
            return;
        }
        let room = match word(&running.spec) {
            "deaf" => PIPE_BYTES.saturating_sub(input.bytes.len()),
            _ => usize::MAX,
        };
        fits = fresh.len() <= room;
        let taken = fresh.get(..room.min(fresh.len())).unwrap_or_default();
        input.bytes.extend_from_slice(taken);
        if !request.request_id.is_empty() {
            *input.ids.entry(request.request_id.clone()).or_default() += taken.len();
        }
        input.eof |= eof && fits;
        outcome = Ok(WriteStdinResponse {
            committed_offset: int64_from_count(input.bytes.len() as u64),
            unwritten_bytes: int64_from_count((fresh.len() - taken.len()) as u64),
            eof_unwritten: eof && !input.eof,
        });
    });
    if !fits && request.wait.is_none() {
        let mut input = running.input.subscribe();
        input.wait_for(is_over).await.expect("is kept");
        return Err(refused("EXEC_NOT_RUNNING"));
    }
    outcome
}

/// Waits until the input of an exec satisfies a condition.
pub async fn until(running: &FakeExec, what: impl Fn(&Input) -> bool) -> Input {
    let mut input: watch::Receiver<Input> = running.input.subscribe();
    let seen = tokio::time::timeout(DEADLINE, input.wait_for(|input| what(input)));
    match seen.await {
        Ok(input) => input.expect("is kept").clone(),
        Err(_) => panic!("never came: {:?}", running.input.borrow()),
    }
}
