//! Programs of the fake daemon, by their first word.

use std::sync::LazyLock;

use bytes::Bytes;
use skilld_client::v1::ExitReason;
use skilld_client::v1::exec_event::Event;
use skilld_client::v1::output_event::Content;
use skilld_client::v1::spawn_failure::Step;
use skilld_client::v1::{ClosedEvent, ExitedEvent, OutputEvent, StartedEvent};
use skilld_client::v1::{
    EndedProcesses, ExecEvent, ExecResult, ExecSpec, FullDisk, OutputStream, SpawnFailure,
    StragglerPolicy, StreamOffsets,
};
use skilld_client::{Outcome, int64_from_count};

const CHUNK_BYTES: usize = 64 * 1024;

/// Output of `print` on stdout; stderr gets the first half of it.
pub static PRINTED: LazyLock<Bytes> = LazyLock::new(|| super::noise(1024 * 1024 + 17));

/// Output of a program in its order, and its end; a program without an end waits to be killed.
pub(crate) struct Program {
    pub(crate) pieces: Vec<(OutputStream, Bytes)>,
    pub(crate) result: Option<ExecResult>,
}

impl Program {
    pub(crate) fn of(spec: &ExecSpec) -> Self {
        let words: Vec<&str> = if let Some(script) = &spec.script {
            script.argv.iter().map(String::as_str).collect()
        } else if spec.shell.is_empty() {
            spec.argv.iter().map(String::as_str).collect()
        } else {
            spec.shell.split_whitespace().collect()
        };
        let number = || {
            words
                .get(1)
                .and_then(|word| word.parse().ok())
                .unwrap_or(0_i32)
        };
        let line = |text: String| vec![(OutputStream::Stdout, Bytes::from(text + "\n"))];
        let exit = |code| ended(Some(Outcome::ExitCode(code)), ExitReason::Exited);
        match words.first().copied().unwrap_or_default() {
            "exit" => Self::new(Vec::new(), exit(number())),
            "timeout" => Self::new(
                line("so far".into()),
                ended(Some(Outcome::Signal(9)), ExitReason::Timeout),
            ),
            "segv" => Self::new(
                Vec::new(),
                ended(Some(Outcome::Signal(11)), ExitReason::Signaled),
            ),
            // A chain that goes on without the child that the kernel killed for memory.
            "oom" => Self::new(
                line("done".into()),
                exit(0).map(|result| ExecResult {
                    oom_kills: Some(number().abs().into()),
                    ..result
                }),
            ),
            "server" => Self::new(
                line("started".into()),
                exit(0).map(|result| ExecResult {
                    ended_processes: (spec.stragglers() != StragglerPolicy::Keep)
                        .then(ended_server),
                    ..result
                }),
            ),
            "full" => Self::new(
                Vec::new(),
                exit(0).map(|result| ExecResult {
                    full_disks: vec![FullDisk {
                        path: "/tmp".into(),
                        size_bytes: 64 << 20,
                    }],
                    ..result
                }),
            ),
            "no-room" => Self::new(full_for_a_while(), exit(number())),
            "readonly" => Self::new(refused_write(), exit(1)),
            "print" => Self::new(print(), exit(0)),
            "flood" => Self::new(flood(), exit(0)),
            "spec" => Self::new(
                line(format!("{:?} {} {:?}", spec.argv, spec.shell, spec.env)),
                exit(0),
            ),
            "cat" => Self::new(stdin(spec), exit(0)),
            "forever" => Self {
                pieces: line("started".into()),
                result: None,
            },
            "missing" => Self::not_started(Step::Exec, 2, "ENOENT: missing"),
            "forbidden" => {
                let why = "\"forbidden\" is /bin/f, which nobody permits";
                Self::not_started(Step::Program, 13, why)
            }
            _ => Self::new(line(words.join(" ")), exit(0)),
        }
    }

    fn not_started(step: Step, errno: i32, message: &str) -> Self {
        let failure = SpawnFailure {
            step: step.into(),
            error_number: errno,
            message: message.into(),
        };
        Self::new(Vec::new(), Some(ExecResult::spawn_failed(failure)))
    }

    fn new(pieces: Vec<(OutputStream, Bytes)>, result: Option<ExecResult>) -> Self {
        Self { pieces, result }
    }

    fn total(&self) -> StreamOffsets {
        let mut total = StreamOffsets::default();
        for (stream, data) in &self.pieces {
            *end(&mut total, *stream) += int64_from_count(data.len() as u64);
        }
        total
    }

    /// Returns the events for a reader that starts at `from`, without the end.
    pub(crate) fn events(&self, name: &str, spec: &ExecSpec, from: StreamOffsets) -> Vec<Event> {
        let mut events = vec![Event::Started(StartedEvent {
            name: name.to_owned(),
            pid: 7,
            effective_spec: Some(spec.clone()),
            start_time: None,
        })];
        let mut at = StreamOffsets::default();
        for (stream, data) in &self.pieces {
            let start = *end(&mut at, *stream);
            *end(&mut at, *stream) += int64_from_count(data.len() as u64);
            let mut wanted = from;
            let skip = end(&mut wanted, *stream)
                .saturating_sub(start)
                .clamp(0, int64_from_count(data.len() as u64));
            let rest = data.slice(usize::try_from(skip).expect("small")..);
            if !rest.is_empty() {
                events.push(Event::Output(OutputEvent {
                    stream: (*stream).into(),
                    offset: start + skip,
                    content: Some(Content::Data(rest)),
                    ..Default::default()
                }));
            }
        }
        events
    }

    /// Returns the result of the program, which is killed if it does not end by itself.
    pub(crate) fn ended(&self) -> Option<ExecResult> {
        let killed = || ended(Some(Outcome::Signal(15)), ExitReason::KilledByClient);
        self.result.clone().or_else(killed)
    }

    pub(crate) fn end(&self) -> [Event; 2] {
        let mut result = self.ended();
        // Only the end of all processes shows which were ended.
        let ended = result.as_mut();
        let ended_processes = ended.and_then(|result| result.ended_processes.take());
        [
            Event::Exited(ExitedEvent { result }),
            Event::Closed(ClosedEvent {
                total: Some(self.total()),
                ended_processes,
            }),
        ]
    }
}

pub(crate) fn event(seq: usize, event: Event) -> ExecEvent {
    ExecEvent {
        seq: int64_from_count(seq as u64),
        event: Some(event),
    }
}

fn end(offsets: &mut StreamOffsets, stream: OutputStream) -> &mut i64 {
    match stream {
        OutputStream::Stderr => &mut offsets.stderr_bytes,
        OutputStream::Stdout | OutputStream::Unspecified => &mut offsets.stdout_bytes,
    }
}

fn ended(outcome: Option<Outcome>, reason: ExitReason) -> Option<ExecResult> {
    Some(ExecResult::new(reason, outcome))
}

/// Returns the process that a command leaves running.
fn ended_server() -> EndedProcesses {
    EndedProcesses {
        count: 1,
        command_lines: vec!["python3 -m http.server 8123".into()],
    }
}

/// Returns what a program prints whose temporary file did not fit, in two pieces.
fn full_for_a_while() -> Vec<(OutputStream, Bytes)> {
    let pieces: [&[u8]; 2] = [b"OSError: [Errno 28] No space", b" left on device\n"];
    pieces
        .map(|piece| (OutputStream::Stdout, Bytes::from_static(piece)))
        .into()
}

/// Returns what a shell prints where it may not write into the folder in which it starts.
fn refused_write() -> Vec<(OutputStream, Bytes)> {
    let line = b"bash: line 1: a.txt: Read-only file system\n";
    vec![(OutputStream::Stderr, Bytes::from_static(line))]
}

fn print() -> Vec<(OutputStream, Bytes)> {
    let mut pieces = Vec::new();
    for (index, start) in (0..PRINTED.len()).step_by(CHUNK_BYTES).enumerate() {
        let chunk = PRINTED.slice(start..(start + CHUNK_BYTES).min(PRINTED.len()));
        if index % 2 == 0 {
            pieces.push((OutputStream::Stderr, chunk.slice(..chunk.len() / 2)));
        }
        pieces.push((OutputStream::Stdout, chunk));
    }
    pieces
}

/// Returns more output than any pipe holds.
fn flood() -> Vec<(OutputStream, Bytes)> {
    let line = Bytes::from("y\n".repeat(CHUNK_BYTES / 2));
    vec![(OutputStream::Stdout, line); 1024]
}

fn stdin(spec: &ExecSpec) -> Vec<(OutputStream, Bytes)> {
    match spec.stdin_data.is_empty() {
        true => Vec::new(),
        false => vec![(OutputStream::Stdout, spec.stdin_data.clone())],
    }
}
