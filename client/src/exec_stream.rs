//! Stream of an exec's events that outlives its connections.
//!
//! ```text
//!            RunExec ok                     Closed
//!  opening ─────────────► open ────────────────────► done
//!     ▲                    │ broke, or ended without Closed
//!     └──── backoff ◄──────┘
//! ```
//!
//! Until the exec's Started was seen, the stream is opened by the same RunExec again: its id makes that safe.
//! From then on it is AttachExec at the offsets reached, so no byte comes twice and none is left out; only
//! Started and Exited, which each attach repeats, are dropped here.
//!
//! A RunExec that stages or collects ends with its summary. Its stream is always opened by RunExec, after Started with
//! the position reached, which may lie within a file.

use skilld_proto::v1::exec_event::Event;
use skilld_proto::v1::{
    AttachExecRequest, CollectedFile, ExecEvent, OutputEvent, OutputStream, RunExecRequest,
    RunPosition, StreamOffsets, output_event,
};
use skilld_proto::{count_from_int64, int64_from_count};
use tokio::time::Instant;
use tokio_util::sync::ReusableBoxFuture;
use tonic::{Code, Response, Status, Streaming};

use crate::resource_names::{exec_name, short_id};
use crate::retry::{may_resume, requested_wait};
use crate::{Client, Error, Failure};

/// Stream of one exec's events: at most one Started, exactly one Exited, exactly one Closed, each byte of output once.
/// If the request stages or collects, also each byte of its files once, and exactly one summary.
#[derive(Debug)]
pub struct ExecStream {
    client: Client,
    /// Present until Started was seen, if this stream starts the exec; always, if the request stages or collects.
    run: Option<RunExecRequest>,
    /// Files that were handed over; `None` if the request neither stages nor collects.
    files: Option<ReceivedFiles>,
    /// Name, format and gaps of every attach; its offsets are the bytes handed over so far.
    attach: AttachExecRequest,
    open: Option<Streaming<ExecEvent>>,
    /// Call under way. It is kept, because a caller that stops waiting for the next event must not reset a RunExec that
    /// may have started the exec.
    opening: Option<ReusableBoxFuture<'static, OpenedStream>>,
    /// `true` if the stream makes no further RunExec.
    is_start_cancelled: bool,
    seen: SeenEvents,
    resumed: u32,
    attempts: OpenAttempts,
}

/// Answer to RunExec or AttachExec.
type OpenedStream = Result<Response<Streaming<ExecEvent>>, Status>;

/// Files that were handed over.
#[derive(Debug, Default)]
struct ReceivedFiles {
    /// Number of complete files.
    count: i64,
    /// Number of bytes of the file after them.
    bytes: i64,
    /// Path of that file, once its beginning was handed over.
    path: Option<String>,
}

/// Flags for the events that come once.
#[derive(Debug, Default)]
struct SeenEvents {
    workspace: bool,
    staged: bool,
    started: bool,
    exited: bool,
    closed: bool,
    /// The last event was handed over, or an error that ends the stream.
    end: bool,
}

/// Attempts to open the stream.
#[derive(Debug, Default)]
struct OpenAttempts {
    /// Number of failures since the last new event.
    failures: u32,
    /// Time since which no new event has come; `None` while events come.
    quiet_since: Option<Instant>,
    /// Time of the next attempt; `None` for at once.
    open_at: Option<Instant>,
    /// `true` once the server has taken the request.
    accepted: bool,
}

impl ExecStream {
    pub(crate) fn run(client: Client, request: RunExecRequest) -> Self {
        let workspace = match request.workspace_template {
            Some(_) => &request.exec_id,
            None => &request.parent,
        };
        let name = format!("{}/{}", short_id(workspace), request.exec_id);
        let files = request.is_whole_run().then(ReceivedFiles::default);
        let attach = AttachExecRequest {
            name: exec_name(&name),
            format: request.format,
            ..Default::default()
        };
        Self {
            run: Some(request),
            files,
            ..Self::attach(client, attach)
        }
    }

    pub(crate) fn attach(client: Client, request: AttachExecRequest) -> Self {
        Self {
            client,
            run: None,
            files: None,
            attach: request,
            open: None,
            opening: None,
            is_start_cancelled: false,
            seen: SeenEvents::default(),
            resumed: 0,
            attempts: OpenAttempts::default(),
        }
    }

    /// Returns the exec's name, `workspaces/{workspace}/execs/{exec}`, which is known before it was started.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.attach.name
    }

    /// Returns the offsets of the next bytes, at which another reader would continue.
    #[must_use]
    pub fn offsets(&self) -> StreamOffsets {
        self.attach.offsets.unwrap_or_default()
    }

    /// Returns how often the stream was opened again after it broke.
    #[must_use]
    pub fn times_resumed(&self) -> u32 {
        self.resumed
    }

    /// Returns `true` once the server has accepted the request: an exec that the stream starts may have run, even if no
    /// event has come.
    #[must_use]
    pub fn is_accepted(&self) -> bool {
        self.attempts.accepted
    }

    /// Stops starting the exec: a RunExec under way is waited for but not repeated. If it brings no Started, the stream
    /// ends without Closed. Has no effect after Started.
    pub fn cancel_start(&mut self) {
        self.is_start_cancelled = true;
    }

    /// Returns the next event; `None` after Closed and after an error. Cancel safe.
    ///
    /// # Errors
    ///
    /// [`Error::StreamLost`] if the stream broke and could not be opened again in time, [`Error::Status`] if the daemon
    /// refuses.
    pub async fn next(&mut self) -> Result<Option<ExecEvent>, Error> {
        while !self.seen.end {
            match self.step().await {
                Ok(Some(event)) => return Ok(Some(event)),
                Ok(None) => {}
                Err(error) => {
                    self.seen.end = true;
                    self.open = None;
                    return Err(error);
                }
            }
        }
        Ok(None)
    }

    /// Reads one message or makes one attempt to open the stream; `None` if there is nothing to hand over yet.
    async fn step(&mut self) -> Result<Option<ExecEvent>, Error> {
        let Some(stream) = &mut self.open else {
            return self.reopen().await.map(|()| None);
        };
        match stream.message().await {
            Ok(Some(event)) => self.check_event(event),
            Ok(None) => {
                let status = Status::unavailable("the stream ended before its last event");
                self.plan_reopen(status).map(|()| None)
            }
            Err(status) => self.plan_reopen(status).map(|()| None),
        }
    }

    async fn reopen(&mut self) -> Result<(), Error> {
        self.attempts.quiet_since.get_or_insert_with(Instant::now);
        if self.opening.is_none() {
            if self.is_start_cancelled && self.run.is_some() && !self.seen.started {
                self.seen.end = true;
                return Ok(());
            }
            if let Some(open_at) = self.attempts.open_at {
                tokio::time::sleep_until(open_at).await;
            }
        }
        let opening = match self.opening.take() {
            Some(opening) => opening,
            None => open_events(&self.client, self.next_run(), &self.attach),
        };
        let opened = self.opening.insert(opening).await;
        self.opening = None;
        match opened {
            Ok(response) => {
                if self.attempts.accepted {
                    self.resumed += 1;
                }
                self.attempts.accepted = true;
                self.attempts.open_at = None;
                self.open = Some(response.into_inner());
                Ok(())
            }
            Err(status) => self.plan_reopen(status),
        }
    }

    /// Returns the RunExec that opens the stream; `None` to attach.
    fn next_run(&self) -> Option<RunExecRequest> {
        let mut request = self.run.clone()?;
        if let Some(files) = self.files.as_ref().filter(|_| self.seen.started) {
            request.position = Some(RunPosition {
                offsets: Some(self.offsets()),
                file_count: files.count,
                file_bytes: files.bytes,
            });
        }
        Some(request)
    }

    /// Decides whether a break is final; if not, when to open the stream again.
    fn plan_reopen(&mut self, status: Status) -> Result<(), Error> {
        self.open = None;
        let now = Instant::now();
        let attempts = &mut self.attempts;
        attempts.failures += 1;
        let policy = &self.client.retry;
        if !attempts.accepted && status.code() == Code::Unavailable {
            // Nothing was started: the same bounds as for any other call.
            let wait = policy
                .after(&status, attempts.failures)
                .ok_or_else(|| Error::from(status))?;
            attempts.open_at = Some(now + wait);
            return Ok(());
        }
        // The daemon ended the stream of a slow reader for lack of memory, and named the time of the next attempt.
        let displaced = attempts.accepted
            && status.code() == Code::ResourceExhausted
            && requested_wait(&status).is_some();
        if !displaced && !may_resume(&status) {
            return Err(Error::from(status));
        }
        let quiet = now - *attempts.quiet_since.get_or_insert(now);
        if quiet >= policy.resume_window {
            let at = self.offsets();
            return Err(Error::StreamLost {
                exec: self.attach.name.clone(),
                stdout: count_from_int64(at.stdout_bytes),
                stderr: count_from_int64(at.stderr_bytes),
                source: Box::new(Failure::from(status)),
            });
        }
        let backoff = policy.backoff(attempts.failures);
        let wait = requested_wait(&status).unwrap_or(backoff);
        attempts.open_at = Some(now + wait.min(policy.backoff_max));
        Ok(())
    }

    /// Checks an event against what came before, and hands it over unless it is a repetition.
    fn check_event(&mut self, event: ExecEvent) -> Result<Option<ExecEvent>, Error> {
        let new = match &event.event {
            Some(Event::Started(_)) => !std::mem::replace(&mut self.seen.started, true),
            Some(Event::Output(output)) => {
                let next = end_offset(output)?;
                self.advance(output.stream(), output.offset, next)?;
                true
            }
            Some(Event::Gap(gap)) => {
                self.advance(gap.stream(), gap.start_offset, gap.end_offset)?;
                true
            }
            Some(Event::Heartbeat(_)) => true,
            Some(Event::Exited(_)) => !std::mem::replace(&mut self.seen.exited, true),
            Some(Event::Closed(closed)) => {
                self.check_end(closed.total.unwrap_or_default())?;
                self.seen.end = self.files.is_none();
                !std::mem::replace(&mut self.seen.closed, true)
            }
            Some(Event::Workspace(_)) => !std::mem::replace(&mut self.seen.workspace, true),
            Some(Event::Staged(_)) => !std::mem::replace(&mut self.seen.staged, true),
            Some(Event::Summary(_)) => {
                self.seen.end = true;
                true
            }
            Some(Event::File(file)) => self.received_files()?.begin(file)?,
            Some(Event::FileData(data)) => {
                self.received_files()?.add(data.len());
                true
            }
            Some(Event::FileEnd(_)) => {
                self.received_files()?.end();
                true
            }
            // Of a newer server.
            None => false,
        };
        // The exec exists: from now on its stream is opened by AttachExec.
        if self.files.is_none() {
            self.run = None;
        }
        if !new {
            return Ok(None);
        }
        self.attempts.failures = 0;
        self.attempts.quiet_since = None;
        Ok(Some(event))
    }

    fn received_files(&mut self) -> Result<&mut ReceivedFiles, Error> {
        let files = self.files.as_mut();
        files.ok_or_else(|| Error::protocol("it sent files that were not requested"))
    }

    fn advance(&mut self, stream: OutputStream, from: i64, to: i64) -> Result<(), Error> {
        let at = self.attach.offsets.get_or_insert_default();
        let at = match stream {
            OutputStream::Stdout => &mut at.stdout_bytes,
            OutputStream::Stderr => &mut at.stderr_bytes,
            OutputStream::Unspecified => {
                return Err(Error::protocol("it sent output of no stream"));
            }
        };
        if from != *at || to < from {
            let problem = format!("it sent {from} to {to} where {at} was to come");
            return Err(Error::protocol(problem));
        }
        *at = to;
        Ok(())
    }

    fn check_end(&self, total: StreamOffsets) -> Result<(), Error> {
        let at = self.offsets();
        if !self.seen.exited {
            return Err(Error::protocol("it sent Closed before Exited"));
        }
        if at.stdout_bytes < total.stdout_bytes || at.stderr_bytes < total.stderr_bytes {
            return Err(Error::protocol("it closed the stream before its last byte"));
        }
        Ok(())
    }
}

impl ReceivedFiles {
    /// Counts the beginning of a file. Returns `false` if it was handed over before.
    fn begin(&mut self, file: &CollectedFile) -> Result<bool, Error> {
        if !file.has_end() {
            self.count += 1;
            return Ok(true);
        }
        match self.path.replace(file.path.clone()) {
            None => Ok(true),
            Some(path) if path == file.path => Ok(false),
            Some(path) => {
                let problem = format!("it continued {path:?} with {:?}: files changed", file.path);
                Err(Error::protocol(problem))
            }
        }
    }

    /// Counts bytes of the current file.
    fn add(&mut self, bytes: usize) {
        self.bytes += int64_from_count(bytes as u64);
    }

    /// Counts the end of the current file.
    fn end(&mut self) {
        self.count += 1;
        (self.bytes, self.path) = (0, None);
    }
}

/// Makes the call that opens the stream.
fn open_events(
    client: &Client,
    run: Option<RunExecRequest>,
    attach: &AttachExecRequest,
) -> ReusableBoxFuture<'static, OpenedStream> {
    let mut stub = client.execs();
    match run {
        Some(request) => ReusableBoxFuture::new(async move { stub.run_exec(request).await }),
        None => {
            let request = attach.clone();
            ReusableBoxFuture::new(async move { stub.attach_exec(request).await })
        }
    }
}

/// Returns the offset after a piece of output.
fn end_offset(output: &OutputEvent) -> Result<i64, Error> {
    match &output.content {
        Some(output_event::Content::Data(data)) => Ok(output
            .offset
            .saturating_add(int64_from_count(data.len() as u64))),
        Some(output_event::Content::Text(_)) => Ok(output.next_offset),
        None => Err(Error::protocol("it sent output without content")),
    }
}
