//! Runs: reads the events of an exec into one result, and hands out its output on the way where the caller wants it.
//! Cancelled runs are ended by a clean-up that goes on when its caller stops waiting.

use std::convert::Infallible;
use std::mem;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict};
use skilld_client::v1::exec_event::Event;
use skilld_client::v1::{ExecEvent, OutputStream, output_event};
use skilld_client::{Client, ExecStream};
use tokio::sync::Mutex;
use tokio::time::sleep;

use crate::connection::Connection;
use crate::errors::{CallError, was_found};
use crate::results::{
    EndAnswer, OutputAnswer, ProblemAnswer, StagedInputAnswer, StagedSkillAnswer, SummaryAnswer,
};

/// Grace period between SIGTERM and SIGKILL of a command.
pub(crate) const KILL_GRACE: Duration = Duration::from_secs(2);
/// Wait before the first repeated search for the command of a cancelled run; doubled each time up to `RETRY_MAX`.
const RETRY_FIRST: Duration = Duration::from_millis(20);
const RETRY_MAX: Duration = Duration::from_secs(1);

/// Result of a run, with its output and files.
#[derive(IntoPyObject, IntoPyObjectRef, Debug, Default)]
struct RunAnswer {
    /// Name of the exec, `workspace/exec`.
    exec: String,
    end: Option<EndAnswer>,
    stdout: Vec<u8>,
    stderr: Vec<u8>,
    /// Number of bytes that were dropped before this reader got them.
    lost: i64,
    skills: Vec<StagedSkillAnswer>,
    inputs: Vec<StagedInputAnswer>,
    files: Vec<OutputAnswer>,
    summary: Option<SummaryAnswer>,
    warnings: Vec<ProblemAnswer>,
}

/// Result that stays with its stream, so that a caller whose wait was cancelled can ask for it again.
struct SharedRunAnswer(Arc<RunAnswer>);

impl<'py> IntoPyObject<'py> for SharedRunAnswer {
    type Target = PyDict;
    type Output = Bound<'py, PyDict>;
    type Error = PyErr;

    fn into_pyobject(self, py: Python<'py>) -> PyResult<Self::Output> {
        (&*self.0).into_pyobject(py)
    }
}

/// Bytes that become `bytes` of Python.
#[derive(Clone, Debug)]
pub(crate) struct PieceData(pub(crate) Bytes);

impl<'py> IntoPyObject<'py> for PieceData {
    type Target = PyBytes;
    type Output = Bound<'py, PyBytes>;
    type Error = Infallible;

    fn into_pyobject(self, py: Python<'py>) -> Result<Self::Output, Infallible> {
        Ok(PyBytes::new(py, &self.0))
    }
}

/// Pieces that are handed out one by one. A piece is kept until the next call shows that the caller has it: a call that
/// was cancelled loses none.
#[derive(Debug)]
pub(crate) struct HandedPieces<T> {
    count: u64,
    last: Option<T>,
}

impl<T: Clone> HandedPieces<T> {
    pub(crate) fn new() -> Self {
        let (count, last) = (0, None);
        Self { count, last }
    }

    /// Returns the last piece if the caller, who has received `received` pieces, has not got it.
    pub(crate) fn unreceived(&self, received: u64) -> Option<T> {
        self.last.clone().filter(|_| self.count > received)
    }

    /// Keeps and returns a new piece.
    pub(crate) fn hand_out(&mut self, piece: T) -> T {
        self.count += 1;
        self.last = Some(piece.clone());
        piece
    }
}

/// Piece of output: the name of its stream, and its bytes.
type OutputPiece = (&'static str, PieceData);

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
                let name = if is_stderr { "stderr" } else { "stdout" };
                return Some((name, PieceData(data)));
            }
            Event::Gap(gap) => self.lost += gap.end_offset - gap.start_offset,
            Event::Exited(exited) => self.end = exited.result.map(EndAnswer::from),
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
                    file.finish(end);
                }
            }
            Event::Summary(summary) => {
                self.summary = summary.outputs.map(SummaryAnswer::from);
                self.warnings = summary.warnings.into_iter().map(Into::into).collect();
            }
            Event::Workspace(_) | Event::Started(_) | Event::Heartbeat(_) | Event::Closed(_) => {}
        }
        None
    }
}

/// Function that makes the stream of events.
type StreamStart = Box<dyn FnOnce(&Client) -> ExecStream + Send>;

/// Stream of a run's output, which its first method opens. Its methods take turns.
#[pyclass(frozen, module = "skilld._skilld")]
pub(crate) struct RunStream {
    connection: Connection,
    state: Arc<Mutex<RunState>>,
    name: String,
    /// Id of the workspace that the run claims for itself.
    own_workspace: Option<String>,
}

struct RunState {
    /// Present until the stream was opened.
    start: Option<StreamStart>,
    /// The stream with its client, once it was opened.
    stream: Option<(Client, ExecStream)>,
    /// `true` after the last event, and after an error that ends the stream.
    has_ended: bool,
    pid: Option<i32>,
    pieces: HandedPieces<OutputPiece>,
    answer: RunAnswer,
    /// The complete answer.
    complete: Option<Arc<RunAnswer>>,
}

impl RunState {
    /// Returns the next event of the stream. Cancel safe.
    async fn next_event(&mut self, client: &Client) -> Result<Option<ExecEvent>, CallError> {
        if let Some(start) = self.start.take() {
            self.stream = Some((client.clone(), start(client)));
        }
        let Some((_, stream)) = &mut self.stream else {
            return Ok(None);
        };
        let event = stream.next().await;
        self.has_ended = !matches!(event, Ok(Some(_)));
        let event = event?;
        if let Some(Event::Started(started)) = event.as_ref().and_then(|event| event.event.as_ref())
        {
            self.pid = Some(started.pid);
        }
        Ok(event)
    }
}

impl RunStream {
    pub(crate) fn new(
        connection: Connection,
        start: impl FnOnce(&Client) -> ExecStream + Send + 'static,
        name: String,
        own_workspace: Option<String>,
    ) -> Self {
        let answer = RunAnswer {
            exec: name.clone(),
            ..RunAnswer::default()
        };
        let state = RunState {
            start: Some(Box::new(start)),
            stream: None,
            has_ended: false,
            pid: None,
            pieces: HandedPieces::new(),
            answer,
            complete: None,
        };
        Self {
            connection,
            state: Arc::new(Mutex::new(state)),
            name,
            own_workspace,
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
        self.connection.call(py, |client| async move {
            let mut state = state.lock().await;
            while state.pid.is_none() && state.answer.end.is_none() {
                // Output follows the start, so that none is lost here.
                let Some(event) = state.next_event(&client).await? else {
                    break;
                };
                state.answer.add(event, true);
            }
            Ok(state.pid.unwrap_or_default())
        })
    }

    /// Returns the next piece of output, or None at the end. `received` is the number of pieces that the caller has.
    fn next(&self, py: Python<'_>, received: u64) -> PyResult<Py<PyAny>> {
        let state = Arc::clone(&self.state);
        self.connection.call(py, move |client| async move {
            let mut state = state.lock().await;
            if let Some(piece) = state.pieces.unreceived(received) {
                return Ok(Some(piece));
            }
            while let Some(event) = state.next_event(&client).await? {
                if let Some(piece) = state.answer.add(event, false) {
                    return Ok(Some(state.pieces.hand_out(piece)));
                }
            }
            Ok(None)
        })
    }

    /// Reads to the end and returns the result. Its output is that which `next` has not returned.
    fn result(&self, py: Python<'_>) -> PyResult<Py<PyAny>> {
        let state = Arc::clone(&self.state);
        self.connection.call(py, |client| async move {
            let state = &mut *state.lock().await;
            while let Some(event) = state.next_event(&client).await? {
                state.answer.add(event, true);
            }
            let answer = &mut state.answer;
            let complete = state
                .complete
                .get_or_insert_with(|| Arc::new(mem::take(answer)));
            Ok(SharedRunAnswer(Arc::clone(complete)))
        })
    }

    /// Ends the run: kills its command, and deletes the workspace that it claimed unless that is kept. The clean-up
    /// begins at once and goes on if its caller stops waiting for it.
    fn cancel(&self, py: Python<'_>) -> PyResult<Py<PyAny>> {
        let (state, name) = (Arc::clone(&self.state), self.name.clone());
        let own_workspace = self.own_workspace.clone();
        self.connection.clean_up(py, async move {
            let state = &mut *state.lock().await;
            // A run that never started or has ended, also by an error of the daemon, has nothing to end.
            let Some((client, stream)) = state.stream.as_mut().filter(|_| !state.has_ended) else {
                return;
            };
            kill_run(client, stream, &name).await;
            if let Some(workspace) = own_workspace {
                // The error that made the caller give up counts, not one of the clean-up.
                let _refused = client.delete_workspace_if_exists(&workspace).await;
            }
        })
    }
}

/// Kills the command of a run, also one that starts only while it is cancelled: KillExec cannot find a command that the
/// daemon has not started yet and that would start all the same.
async fn kill_run(client: &Client, stream: &mut ExecStream, name: &str) {
    stream.cancel_start();
    let mut ending = pin!(async { while let Ok(Some(_)) = stream.next().await {} });
    let kill = || async { was_found(client.kill_exec_after(name, KILL_GRACE).await) };
    let mut retry = RETRY_FIRST;
    loop {
        tokio::select! {
            biased;
            () = &mut ending => break,
            killed = kill() => if matches!(killed, Ok(true)) { return },
        }
        tokio::select! {
            biased;
            () = &mut ending => break,
            () = sleep(retry) => retry = (retry * 2).min(RETRY_MAX),
        }
    }
    // Its command may have started after the last search.
    let _refused = kill().await;
}
