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

use skilld_proto::v1::exec_event::{Event, Output, output};
use skilld_proto::v1::{AttachExecRequest, ExecEvent, OutputStream, RunExecRequest, StreamOffsets};
use tokio::time::Instant;
use tokio_util::sync::ReusableBoxFuture;
use tonic::{Code, Response, Status, Streaming};

use crate::resource_names::{exec_name, short_id};
use crate::retry::{may_resume, requested_wait};
use crate::{Client, Error, Failure};

/// Stream of one exec's events: at most one Started, exactly one Exited, exactly one Closed, each byte of output once.
#[derive(Debug)]
pub struct ExecStream {
    client: Client,
    /// Present until Started was seen, if this stream starts the exec.
    run: Option<RunExecRequest>,
    /// Name, format and gaps of every attach; its offsets are the bytes handed over so far.
    attach: AttachExecRequest,
    open: Option<Streaming<ExecEvent>>,
    /// The call under way. Kept, because a caller that stops waiting for the next event must not reset a RunExec
    /// of which nobody could say then whether it started something.
    opening: Option<ReusableBoxFuture<'static, OpenedStream>>,
    /// No other RunExec is to be made.
    start_given_up: bool,
    seen: SeenEvents,
    resumed: u32,
    trouble: StreamFailures,
}

/// Answer to RunExec or AttachExec.
type OpenedStream = Result<Response<Streaming<ExecEvent>>, Status>;

/// Flags for the events that come once.
#[derive(Debug, Default)]
struct SeenEvents {
    started: bool,
    exited: bool,
    /// Closed was handed over, or an error that ends the stream.
    end: bool,
}

/// Record of the failures since the last new event.
#[derive(Debug, Default)]
struct StreamFailures {
    failures: u32,
    quiet_since: Option<Instant>,
    open_at: Option<Instant>,
    /// The server took the request at least once.
    accepted: bool,
}

impl ExecStream {
    pub(crate) fn run(client: Client, request: RunExecRequest) -> Self {
        let name = format!("{}/{}", short_id(&request.workspace), request.exec_id);
        let attach = AttachExecRequest {
            name: exec_name(&name),
            format: request.format,
            ..Default::default()
        };
        Self {
            run: Some(request),
            ..Self::attach(client, attach)
        }
    }

    pub(crate) fn attach(client: Client, request: AttachExecRequest) -> Self {
        Self {
            client,
            run: None,
            attach: request,
            open: None,
            opening: None,
            start_given_up: false,
            seen: SeenEvents::default(),
            resumed: 0,
            trouble: StreamFailures::default(),
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

    /// Stops starting the exec: a RunExec under way is waited for but not repeated, and if no event comes of it the
    /// stream ends without Closed. Has no effect once an event has come.
    pub fn give_up_start(&mut self) {
        self.start_given_up = true;
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
            Ok(Some(event)) => self.take(event),
            Ok(None) => {
                let status = Status::unavailable("the stream ended without Closed");
                self.broke(status).map(|()| None)
            }
            Err(status) => self.broke(status).map(|()| None),
        }
    }

    async fn reopen(&mut self) -> Result<(), Error> {
        self.trouble.quiet_since.get_or_insert_with(Instant::now);
        if self.opening.is_none() {
            if self.start_given_up && self.run.is_some() {
                self.seen.end = true;
                return Ok(());
            }
            if let Some(open_at) = self.trouble.open_at {
                tokio::time::sleep_until(open_at).await;
            }
        }
        let call = || open_events(&self.client, self.run.as_ref(), &self.attach);
        let opened = self.opening.get_or_insert_with(call).await;
        self.opening = None;
        match opened {
            Ok(response) => {
                if self.trouble.accepted {
                    self.resumed += 1;
                }
                self.trouble.accepted = true;
                self.trouble.open_at = None;
                self.open = Some(response.into_inner());
                Ok(())
            }
            Err(status) => self.broke(status),
        }
    }

    /// Decides whether a break is final; if not, when to open the stream again.
    fn broke(&mut self, status: Status) -> Result<(), Error> {
        self.open = None;
        let now = Instant::now();
        let trouble = &mut self.trouble;
        trouble.failures += 1;
        let policy = &self.client.retry;
        if !trouble.accepted && status.code() == Code::Unavailable {
            // Nothing was started: the same bounds as for any other call.
            let wait = policy
                .after(&status, trouble.failures)
                .ok_or_else(|| Error::from(status))?;
            trouble.open_at = Some(now + wait);
            return Ok(());
        }
        // A reader that was slow lost its place to others, and is told when to come back.
        let displaced = trouble.accepted
            && status.code() == Code::ResourceExhausted
            && requested_wait(&status).is_some();
        if !displaced && !may_resume(&status) {
            return Err(Error::from(status));
        }
        let quiet = now - *trouble.quiet_since.get_or_insert(now);
        if quiet >= policy.resume_window {
            let at = self.offsets();
            return Err(Error::StreamLost {
                exec: self.attach.name.clone(),
                stdout: at.stdout,
                stderr: at.stderr,
                source: Box::new(Failure::from(status)),
            });
        }
        let backoff = policy.backoff(trouble.failures);
        let wait = requested_wait(&status).unwrap_or(backoff);
        trouble.open_at = Some(now + wait.min(policy.backoff_max));
        Ok(())
    }

    /// Checks an event against what came before, and hands it over unless it is a repetition.
    fn take(&mut self, event: ExecEvent) -> Result<Option<ExecEvent>, Error> {
        let new = match &event.event {
            Some(Event::Started(_)) => !std::mem::replace(&mut self.seen.started, true),
            Some(Event::Output(output)) => {
                let next = end_offset(output)?;
                self.advance(output.stream(), output.offset, next)?;
                true
            }
            Some(Event::Gap(gap)) => {
                self.advance(gap.stream(), gap.from, gap.to)?;
                true
            }
            Some(Event::Heartbeat(_)) => true,
            Some(Event::Exited(_)) => !std::mem::replace(&mut self.seen.exited, true),
            Some(Event::Closed(closed)) => {
                self.check_end(closed.total.unwrap_or_default())?;
                self.seen.end = true;
                true
            }
            // Of a newer server.
            None => false,
        };
        // The exec is there: from now on its stream is opened by AttachExec.
        self.run = None;
        if !new {
            return Ok(None);
        }
        self.trouble.failures = 0;
        self.trouble.quiet_since = None;
        Ok(Some(event))
    }

    fn advance(&mut self, stream: OutputStream, from: u64, to: u64) -> Result<(), Error> {
        let at = self.attach.offsets.get_or_insert_default();
        let at = match stream {
            OutputStream::Stdout => &mut at.stdout,
            OutputStream::Stderr => &mut at.stderr,
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
        if at.stdout < total.stdout || at.stderr < total.stderr {
            return Err(Error::protocol("it closed the stream before its last byte"));
        }
        Ok(())
    }
}

/// Makes the call that opens the stream.
fn open_events(
    client: &Client,
    run: Option<&RunExecRequest>,
    attach: &AttachExecRequest,
) -> ReusableBoxFuture<'static, OpenedStream> {
    let mut stub = client.execs();
    match run.cloned() {
        Some(request) => ReusableBoxFuture::new(async move { stub.run_exec(request).await }),
        None => {
            let request = attach.clone();
            ReusableBoxFuture::new(async move { stub.attach_exec(request).await })
        }
    }
}

/// Returns the offset after a piece of output.
fn end_offset(output: &Output) -> Result<u64, Error> {
    match &output.content {
        Some(output::Content::Data(data)) => Ok(output.offset + data.len() as u64),
        Some(output::Content::Text(_)) => Ok(output.next_offset),
        None => Err(Error::protocol("it sent output without content")),
    }
}
