//! The rpcs of GuestService: decode, call, encode. What they mean is in `guest.proto`.

use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use futures::{Stream, StreamExt};
use prost::Message;
use skilld_proto::guest::GENERATION;
use skilld_proto::guest::v1 as wire;
use skilld_proto::guest::v1::guest_service_server::GuestService;
use skilld_proto::v1;
use skilld_proto::v1::exec_result::Reason;
use skilld_proto::v1::signal_exec_request::Target as ApiTarget;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tonic::{Request, Response, Status, Streaming};

use crate::collect;
use crate::error::Error;
use crate::exec::abandoned::Attached;
use crate::exec::piece::Style;
use crate::exec::poll::Poll;
use crate::exec::reader::{self, Wish};
use crate::exec::readers::ReaderKind;
use crate::exec::stdin::{self, Input};
use crate::exec::{Command, Exec, Phase, positive, size, warm_up};
use crate::files::{ANSWER_BYTES_MAX, list, put, read};
use crate::guest::{Guest, Settings};
use crate::inventory;
use crate::supervisor::wire::Target;

const PAGE_MAX: usize = 1000;
const SIGNAL_MAX: i32 = 64;
/// Rows and columns of a terminal.
const TERMINAL_MAX: u32 = 10_000;
const GRACE_MAX: Duration = Duration::from_secs(60);
/// Streams of events, of the workspace and of one exec: each may hold its buffers full for a reader that stalls.
const EVENTS_MAX: usize = 512;
const EVENTS_OF_ONE_MAX: usize = 128;
/// Streams of input: each may have a window full for a program that does not read.
const INPUTS_MAX: usize = 32;

type Answer<T> = Result<Response<T>, Status>;
type Answers<T> = Pin<Box<dyn Stream<Item = Result<T, Status>> + Send>>;

/// One connection's view of the guest.
#[derive(Debug)]
pub(crate) struct Service {
    guest: Arc<Guest>,
    /// Places for streams, which end with the connection.
    events: Arc<Semaphore>,
    inputs: Semaphore,
}

impl Service {
    pub(crate) fn new(guest: Arc<Guest>) -> Self {
        Self {
            guest,
            events: Arc::new(Semaphore::new(EVENTS_MAX)),
            inputs: Semaphore::new(INPUTS_MAX),
        }
    }

    /// A place for one more stream of events; to be had before anything is started for it.
    fn place(&self) -> Result<OwnedSemaphorePermit, Error> {
        let place = Arc::clone(&self.events).try_acquire_owned();
        place.map_err(|_| Error::TooManyStreams { max: EVENTS_MAX })
    }

    fn events(
        &self,
        place: OwnedSemaphorePermit,
        exec: &Arc<Exec>,
        settings: &Settings,
        kind: ReaderKind,
        request: &wire::AttachExecRequest,
    ) -> Answer<Answers<v1::ExecEvent>> {
        let max = EVENTS_OF_ONE_MAX;
        if exec.state().stream_readers() >= max {
            return Err(Error::TooManyStreams { max }.into());
        }
        let offsets = request.offsets.unwrap_or_default();
        let wish = Wish {
            kind,
            offsets: [offsets.stdout, offsets.stderr],
            style: Style {
                format: request.format(),
                gaps: request.gaps(),
            },
            heartbeat: settings.heartbeat,
        };
        let events = reader::attach(Arc::clone(exec), wish)?;
        // One that is refused is no stream.
        let attached = Attached::note(&self.guest, exec, settings.disconnect_grace);
        let events = events.inspect(move |_| {
            // They last as long as the stream.
            let _ = (&attached, &place);
        });
        Ok(Response::new(Box::pin(events)))
    }
}

#[tonic::async_trait]
impl GuestService for Service {
    type RunExecStream = Answers<v1::ExecEvent>;
    type AttachExecStream = Answers<v1::ExecEvent>;
    type ReadFileStream = Answers<v1::ReadFileResponse>;
    type CollectStream = Answers<v1::CollectOutputsResponse>;

    async fn hello(&self, request: Request<wire::HelloRequest>) -> Answer<wire::HelloResponse> {
        let theirs = request.into_inner().generation;
        Ok(Response::new(wire::HelloResponse {
            generation: theirs.min(GENERATION),
            guest_version: env!("CARGO_PKG_VERSION").to_owned(),
            nonce: self.guest.nonce.clone(),
            running_execs: u32::try_from(self.guest.execs.running()).unwrap_or(u32::MAX),
            workspace: self.guest.workspace(),
            idle_time: self
                .guest
                .execs
                .idle_time()
                .and_then(|idle| idle.try_into().ok()),
        }))
    }

    async fn configure(&self, request: Request<wire::ConfigureRequest>) -> Answer<()> {
        self.guest.configure(request.get_ref())?;
        // Sent on each connection once the daemon serves: only then can others attach again.
        self.guest.connected.send_replace(true);
        Ok(Response::new(()))
    }

    async fn warm_up(&self, request: Request<wire::WarmUpRequest>) -> Answer<()> {
        warm_up::warm_up(&self.guest, request.into_inner()).await?;
        Ok(Response::new(()))
    }

    async fn run_exec(
        &self,
        request: Request<wire::StartExecRequest>,
    ) -> Answer<Self::RunExecStream> {
        let request = request.into_inner();
        let attach = wire::AttachExecRequest {
            format: request.format,
            ..Default::default()
        };
        let place = self.place()?;
        let (exec, settings) = self.guest.start(request)?;
        self.events(place, &exec, &settings, ReaderKind::Starter, &attach)
    }

    async fn start_exec(&self, request: Request<wire::StartExecRequest>) -> Answer<v1::Exec> {
        let (exec, _) = self.guest.start(request.into_inner())?;
        exec.until(|state| state.phase != Phase::Starting).await;
        Ok(Response::new(exec.describe()))
    }

    async fn attach_exec(
        &self,
        request: Request<wire::AttachExecRequest>,
    ) -> Answer<Self::AttachExecStream> {
        let request = request.into_inner();
        let exec = self.guest.exec(&request.exec_id)?;
        let (place, settings) = (self.place()?, self.guest.settings()?);
        self.events(place, &exec, &settings, ReaderKind::Attached, &request)
    }

    async fn signal_exec(&self, request: Request<wire::SignalExecRequest>) -> Answer<v1::Exec> {
        let request = request.into_inner();
        let signal = request.signal;
        if !(1..=SIGNAL_MAX).contains(&signal) {
            let (field, problem) = ("signal", "must be 1 to 64");
            return Err(Error::Invalid { field, problem }.into());
        }
        let target = match request.target() {
            ApiTarget::Unspecified | ApiTarget::Leader => Target::Leader,
            ApiTarget::Group => Target::Group,
            ApiTarget::Tree => Target::Tree,
        };
        let exec = self.guest.exec(&request.exec_id)?;
        exec.until(|state| state.phase != Phase::Starting).await;
        let ended = exec.state().phase >= Phase::Exited;
        if ended || !exec.command(Command::Signal { target, signal }).await {
            let id = request.exec_id;
            return Err(Error::ExecNotRunning { id }.into());
        }
        Ok(Response::new(exec.describe()))
    }

    async fn kill_exec(&self, request: Request<wire::KillExecRequest>) -> Answer<v1::Exec> {
        let request = request.into_inner();
        let exec = self.guest.exec(&request.exec_id)?;
        let mut reason = request.reason();
        if reason == Reason::Unspecified {
            reason = Reason::KilledByClient;
        }
        let grace = request
            .grace
            .and_then(|grace| Duration::try_from(grace).ok());
        let grace = grace.map(|grace| grace.min(GRACE_MAX));
        if exec.command(Command::Kill { grace, reason }).await {
            exec.until(|state| state.gone).await;
        }
        Ok(Response::new(exec.describe()))
    }

    async fn poll_exec(
        &self,
        request: Request<wire::PollExecRequest>,
    ) -> Answer<v1::PollExecResponse> {
        let request = request.into_inner();
        let exec = self.guest.exec(&request.exec_id)?;
        let offsets = request.offsets.unwrap_or_default();
        let poll = Poll {
            offsets: [offsets.stdout, offsets.stderr],
            style: Style {
                format: request.format(),
                gaps: request.gaps(),
            },
            wait: positive(request.wait).unwrap_or_default(),
            settle: positive(request.settle_time).unwrap_or_default(),
            bytes_max: usize::try_from(request.max_bytes).unwrap_or(usize::MAX),
        };
        Ok(Response::new(poll.answer(exec).await?))
    }

    async fn write_stdin(
        &self,
        request: Request<wire::WriteStdinRequest>,
    ) -> Answer<v1::WriteStdinResponse> {
        let request = request.get_ref();
        let exec = self.guest.exec(&request.exec_id)?;
        let written = stdin::write(&exec, Input::of(request)).await?;
        Ok(Response::new(v1::WriteStdinResponse {
            committed_offset: written.committed,
            unwritten_bytes: written.left,
            eof_unwritten: written.eof_left,
        }))
    }

    async fn stream_stdin(
        &self,
        request: Request<Streaming<wire::WriteStdinRequest>>,
    ) -> Answer<v1::WriteStdinResponse> {
        let max = INPUTS_MAX;
        let place = self.inputs.try_acquire();
        let _place = place.map_err(|_| Error::TooManyStreams { max })?;
        let committed_offset = stdin::stream(&self.guest, request.into_inner()).await?;
        Ok(Response::new(v1::WriteStdinResponse {
            committed_offset,
            unwritten_bytes: 0,
            eof_unwritten: false,
        }))
    }

    async fn resize_terminal(&self, request: Request<wire::ResizeTerminalRequest>) -> Answer<()> {
        let request = request.into_inner();
        for (field, value) in [("rows", request.rows), ("cols", request.cols)] {
            if !(1..=TERMINAL_MAX).contains(&value) {
                let problem = "must be 1 to 10,000";
                return Err(Error::Invalid { field, problem }.into());
            }
        }
        let exec = self.guest.exec(&request.exec_id)?;
        let id = request.exec_id;
        if exec.spec.terminal.is_none() {
            return Err(Error::NoTerminal { id }.into());
        }
        exec.until(|state| state.phase != Phase::Starting).await;
        if !exec.resize(size(request.rows, request.cols)) {
            return Err(Error::ExecNotRunning { id }.into());
        }
        Ok(Response::new(()))
    }

    async fn delete_exec(&self, request: Request<wire::DeleteExecRequest>) -> Answer<()> {
        self.guest.delete(&request.get_ref().exec_id).await?;
        Ok(Response::new(()))
    }

    async fn get_exec(&self, request: Request<wire::GetExecRequest>) -> Answer<v1::Exec> {
        let exec = self.guest.exec(&request.get_ref().exec_id)?;
        Ok(Response::new(exec.describe()))
    }

    async fn wait_exec(&self, request: Request<wire::WaitExecRequest>) -> Answer<v1::Exec> {
        let exec = self.guest.exec(&request.get_ref().exec_id)?;
        exec.until(|state| state.phase == Phase::Closed).await;
        self.guest.execs.told(&exec);
        Ok(Response::new(exec.describe()))
    }

    async fn list_execs(
        &self,
        request: Request<wire::ListExecsRequest>,
    ) -> Answer<wire::ListExecsResponse> {
        let request = request.into_inner();
        let size = usize::try_from(request.page_size)
            .unwrap_or(PAGE_MAX)
            .clamp(1, PAGE_MAX);
        let mut execs = self.guest.execs.list();
        if !request.after.is_empty() {
            let found = execs.iter().position(|exec| exec.id == request.after);
            let id = request.after;
            let skip = found.ok_or(Error::ExecNotFound { id })?;
            execs.drain(..=skip);
        }
        let mut page = wire::ListExecsResponse::default();
        let mut bytes = 0;
        for exec in execs {
            let exec = exec.describe();
            bytes += exec.encoded_len();
            page.more =
                page.execs.len() == size || (bytes > ANSWER_BYTES_MAX && !page.execs.is_empty());
            if page.more {
                break;
            }
            page.execs.push(exec);
        }
        Ok(Response::new(page))
    }

    async fn shutdown(&self, request: Request<wire::ShutdownRequest>) -> Answer<()> {
        let mut reason = request.get_ref().reason();
        if reason == Reason::Unspecified {
            reason = Reason::KilledByClient;
        }
        self.guest.shutdown(reason).await;
        Ok(Response::new(()))
    }

    async fn put_files(
        &self,
        request: Request<Streaming<wire::PutFilesRequest>>,
    ) -> Answer<v1::StageFilesResponse> {
        let stream = request.into_inner();
        put::put(&self.guest, stream).await.map(Response::new)
    }

    async fn read_file(
        &self,
        request: Request<wire::ReadFileRequest>,
    ) -> Answer<Self::ReadFileStream> {
        let file = read::read(&self.guest, request.get_ref())?;
        Ok(Response::new(Box::pin(file)))
    }

    async fn list_files(
        &self,
        request: Request<wire::ListFilesRequest>,
    ) -> Answer<v1::ListFilesResponse> {
        let files = list::list(&self.guest, request.get_ref()).await?;
        Ok(Response::new(files))
    }

    async fn collect(&self, request: Request<wire::CollectRequest>) -> Answer<Self::CollectStream> {
        let spec = request.into_inner().spec.unwrap_or_default();
        let messages = collect::collect(&self.guest, &spec)?;
        Ok(Response::new(Box::pin(messages)))
    }

    async fn inventory(
        &self,
        request: Request<wire::InventoryRequest>,
    ) -> Answer<wire::InventoryResponse> {
        let found = inventory::inventory(request.get_ref()).await;
        Ok(Response::new(found))
    }
}
