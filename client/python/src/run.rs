//! Runs: reads the events of an exec into one result, and hands out its output on the way where the caller wants it.

use std::mem;
use std::sync::Arc;

use bytes::Bytes;
use pyo3::prelude::*;
use skilld_client::ExecStream;
use skilld_client::v1::exec_event::Event;
use skilld_client::v1::{ExecEvent, OutputStream, output_event};
use tokio::sync::Mutex;

use crate::call::make_call;
use crate::errors::CallError;
use crate::results::{
    EndAnswer, OutputAnswer, ProblemAnswer, StagedInputAnswer, StagedSkillAnswer, SummaryAnswer,
    WorkspaceAnswer,
};

/// Result of a run, with its output and files.
#[derive(IntoPyObject, Debug, Default)]
pub(crate) struct RunAnswer {
    /// Name of the exec, `workspace/exec`.
    pub(crate) exec: String,
    pid: i32,
    end: Option<EndAnswer>,
    stdout: Vec<u8>,
    stderr: Vec<u8>,
    /// Offsets after the output, at which another reader would continue.
    offsets: (i64, i64),
    /// Number of bytes that were dropped before this reader got them.
    lost: i64,
    workspace: Option<WorkspaceAnswer>,
    skills: Vec<StagedSkillAnswer>,
    inputs: Vec<StagedInputAnswer>,
    files: Vec<OutputAnswer>,
    summary: Option<SummaryAnswer>,
    warnings: Vec<ProblemAnswer>,
    /// Number of times that the stream was opened again after it broke.
    resumed: u32,
}

/// Piece of output: the name of its stream, and its bytes.
pub(crate) type OutputPiece = (&'static str, Vec<u8>);

impl RunAnswer {
    /// Adds an event. Returns its output, which is retained only if `retains` is set.
    fn add(&mut self, event: ExecEvent, retains: bool) -> Option<OutputPiece> {
        match event.event? {
            Event::Output(output) => {
                let stream = output.stream();
                let data = match output.content? {
                    output_event::Content::Data(data) => data,
                    output_event::Content::Text(text) => Bytes::from(text),
                };
                let is_stderr = stream == OutputStream::Stderr;
                if retains {
                    let retained = if is_stderr {
                        &mut self.stderr
                    } else {
                        &mut self.stdout
                    };
                    retained.extend_from_slice(&data);
                    return None;
                }
                return Some((if is_stderr { "stderr" } else { "stdout" }, data.into()));
            }
            Event::Started(started) => self.pid = started.pid,
            Event::Gap(gap) => self.lost += gap.end_offset - gap.start_offset,
            Event::Exited(exited) => self.end = exited.result.map(EndAnswer::from),
            Event::Workspace(workspace) => self.workspace = Some(workspace.into()),
            Event::Staged(staged) => {
                self.skills = staged.skills.into_iter().map(Into::into).collect();
                self.inputs = staged.inputs.into_iter().map(Into::into).collect();
            }
            Event::File(file) => self.files.push(file.into()),
            Event::FileData(data) => {
                if let Some(file) = self.files.last_mut() {
                    file.data.extend_from_slice(&data);
                }
            }
            Event::FileEnd(end) => {
                if let Some(file) = self.files.last_mut() {
                    file.sha256 = end.sha256;
                    file.truncated = end.truncated;
                    file.artifact = end.artifact;
                }
            }
            Event::Summary(summary) => {
                self.summary = summary.outputs.map(SummaryAnswer::from);
                self.warnings = summary.warnings.into_iter().map(Into::into).collect();
            }
            Event::Heartbeat(_) | Event::Closed(_) => {}
        }
        None
    }

    fn note_position(&mut self, stream: &ExecStream) {
        let offsets = stream.offsets();
        self.exec = skilld_client::short_id(stream.name());
        self.offsets = (offsets.stdout_bytes, offsets.stderr_bytes);
        self.resumed = stream.times_resumed();
    }
}

/// Reads a stream to its end.
pub(crate) async fn read_run(mut stream: ExecStream) -> Result<RunAnswer, CallError> {
    let mut answer = RunAnswer::default();
    while let Some(event) = stream.next().await? {
        answer.add(event, true);
    }
    answer.note_position(&stream);
    Ok(answer)
}

/// Stream of a run's output. Its methods take turns.
#[pyclass(frozen, module = "skilld._skilld")]
pub(crate) struct RunStream {
    state: Arc<Mutex<(ExecStream, RunAnswer)>>,
    blocking: bool,
    name: String,
}

impl RunStream {
    pub(crate) fn new(stream: ExecStream, blocking: bool) -> Self {
        Self {
            name: skilld_client::short_id(stream.name()),
            state: Arc::new(Mutex::new((stream, RunAnswer::default()))),
            blocking,
        }
    }
}

#[pymethods]
impl RunStream {
    /// Name of the exec, `workspace/exec`.
    #[getter]
    fn name(&self) -> &str {
        &self.name
    }

    /// Waits until the command has started, or could not be started; returns its pid, 0 for none.
    fn started(&self, py: Python<'_>) -> PyResult<Py<PyAny>> {
        let state = Arc::clone(&self.state);
        make_call(py, self.blocking, async move {
            let (stream, answer) = &mut *state.lock().await;
            while answer.pid == 0 && answer.end.is_none() {
                // Output follows the start, so that none is lost here.
                let Some(event) = stream.next().await? else {
                    break;
                };
                let is_start = matches!(event.event, Some(Event::Started(_)));
                answer.add(event, true);
                if is_start {
                    break;
                }
            }
            Ok(answer.pid)
        })
    }

    /// Returns the next piece of output, or None at the end.
    fn next(&self, py: Python<'_>) -> PyResult<Py<PyAny>> {
        let state = Arc::clone(&self.state);
        make_call(py, self.blocking, async move {
            let (stream, answer) = &mut *state.lock().await;
            while let Some(event) = stream.next().await? {
                let piece = answer.add(event, false);
                if piece.is_some() {
                    return Ok(piece);
                }
            }
            Ok(None)
        })
    }

    /// Reads to the end and returns the result. Its output is that which `next` has not returned.
    fn result(&self, py: Python<'_>) -> PyResult<Py<PyAny>> {
        let state = Arc::clone(&self.state);
        make_call(py, self.blocking, async move {
            let (stream, answer) = &mut *state.lock().await;
            while let Some(event) = stream.next().await? {
                answer.add(event, true);
            }
            answer.note_position(stream);
            Ok(mem::take(answer))
        })
    }
}
