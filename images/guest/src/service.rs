//! gRPC service of the guest: decodes each request, calls the module that does the work, and encodes the response.
//! `guest.proto` defines the RPCs.

use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use futures::{Stream, StreamExt};
use prost::Message;
use skilld_proto::guest::GENERATION;
use skilld_proto::guest::v1 as wire;
use skilld_proto::guest::v1::guest_service_server::GuestService;
use skilld_proto::int64_from_count;
use skilld_proto::v1::signal_exec_request::Target as ApiTarget;
use skilld_proto::v1::{self, ExitReason};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tonic::{Request, Response, Status, Streaming};

use crate::error::Error;
use crate::exec::disconnect::DisconnectGuard;
use crate::exec::event_stream::{self, AttachOptions};
use crate::exec::host::GuestSettings;
use crate::exec::output_piece::OutputReadOptions;
use crate::exec::poll::PollRequest;
use crate::exec::reader_backpressure::ReaderRpc;
use crate::exec::stdin::{self, StdinWrite};
use crate::exec::{Exec, ExecControl, ExecPhase, positive_duration, terminal_size};
use crate::file_collection;
use crate::files::{ANSWER_BYTES_MAX, list, put, read};
use crate::guest::Guest;
use crate::image_inventory;
use crate::supervisor::protocol::SignalTarget;

/// Maximum number of execs on one page of a listing.
const PAGE_MAX: usize = 1000;
/// Highest number of a signal.
const SIGNAL_MAX: i32 = 64;
/// Maximum number of rows and of columns of a terminal.
const TERMINAL_MAX: u32 = 10_000;
/// Longest time between SIGTERM and SIGKILL.
const GRACE_MAX: Duration = Duration::from_secs(60);
/// Maximum number of event streams per connection. A stalled reader may keep the buffers of its stream full.
const EVENT_STREAMS_MAX: usize = 512;
/// Maximum number of event streams per exec.
const EVENT_STREAMS_PER_EXEC_MAX: usize = 128;
/// Maximum number of stdin streams per connection. A program that does not read may keep the window of its stream
/// full.
const STDIN_STREAMS_MAX: usize = 32;

/// Response of a unary RPC.
type RpcResult<T> = Result<Response<T>, Status>;
/// Response stream of an RPC.
type RpcStream<T> = Pin<Box<dyn Stream<Item = Result<T, Status>> + Send>>;

/// gRPC service for one connection.
#[derive(Debug)]
pub(crate) struct GuestRpcService {
    guest: Arc<Guest>,
    /// Permits for event streams. They end with the connection.
    event_streams: Arc<Semaphore>,
    /// Permits for stdin streams.
    stdin_streams: Semaphore,
}

impl GuestRpcService {
    pub(crate) fn new(guest: Arc<Guest>) -> Self {
        Self {
            guest,
            event_streams: Arc::new(Semaphore::new(EVENT_STREAMS_MAX)),
            stdin_streams: Semaphore::new(STDIN_STREAMS_MAX),
        }
    }

    /// Reserves one more event stream. Callers reserve it before they start an exec for it, so that a refused call has
    /// started nothing.
    fn reserve_stream(&self) -> Result<OwnedSemaphorePermit, Error> {
        let permit = Arc::clone(&self.event_streams).try_acquire_owned();
        permit.map_err(|_| Error::TooManyStreams {
            max: EVENT_STREAMS_MAX,
        })
    }

    /// Attaches a reader to an exec and returns its event stream.
    fn open_event_stream(
        &self,
        permit: OwnedSemaphorePermit,
        exec: &Arc<Exec>,
        settings: &GuestSettings,
        kind: ReaderRpc,
        request: &wire::AttachExecRequest,
    ) -> RpcResult<RpcStream<v1::ExecEvent>> {
        let max = EVENT_STREAMS_PER_EXEC_MAX;
        if exec.state().stream_readers() >= max {
            return Err(Error::TooManyStreams { max }.into());
        }
        let offsets = request.offsets.unwrap_or_default();
        let options = AttachOptions {
            kind,
            offsets: offsets.counts(),
            style: OutputReadOptions {
                format: request.format(),
                gap_policy: request.gap_policy(),
            },
            heartbeat: settings.heartbeat,
        };
        let events = event_stream::attach_reader(Arc::clone(exec), options)?;
        // Register after the attach: a refused attach is no stream.
        let attached = DisconnectGuard::register(&self.guest.host, exec, settings.disconnect_grace);
        let guarded_events = events.inspect(move |_| {
            // The closure owns both for as long as the stream lives.
            let _ = (&attached, &permit);
        });
        Ok(Response::new(Box::pin(guarded_events)))
    }
}

#[tonic::async_trait]
impl GuestService for GuestRpcService {
    type RunExecStream = RpcStream<v1::ExecEvent>;
    type AttachExecStream = RpcStream<v1::ExecEvent>;
    type ReadFileStream = RpcStream<v1::ReadFileResponse>;
    type CollectStream = RpcStream<v1::CollectOutputsResponse>;

    async fn hello(&self, request: Request<wire::HelloRequest>) -> RpcResult<wire::HelloResponse> {
        let theirs = request.into_inner().generation;
        Ok(Response::new(wire::HelloResponse {
            generation: theirs.min(GENERATION),
            guest_version: env!("CARGO_PKG_VERSION").to_owned(),
            nonce: self.guest.nonce.clone(),
            running_execs: u32::try_from(self.guest.host.execs.running()).unwrap_or(u32::MAX),
            workspace: self.guest.workspace(),
            idle_duration: self
                .guest
                .host
                .execs
                .idle_time()
                .and_then(|idle| idle.try_into().ok()),
        }))
    }

    async fn configure(&self, request: Request<wire::ConfigureRequest>) -> RpcResult<()> {
        self.guest.configure(request.get_ref())?;
        // The daemon sends Configure on each connection once it serves, so clients can attach again from here on.
        self.guest.host.connected.send_replace(true);
        Ok(Response::new(()))
    }

    async fn warm_up(&self, request: Request<wire::WarmUpRequest>) -> RpcResult<()> {
        self.guest.warm_up(request.into_inner()).await?;
        Ok(Response::new(()))
    }

    async fn run_exec(
        &self,
        request: Request<wire::StartExecRequest>,
    ) -> RpcResult<Self::RunExecStream> {
        let request = request.into_inner();
        let attach = wire::AttachExecRequest {
            format: request.format,
            ..Default::default()
        };
        let permit = self.reserve_stream()?;
        let (exec, settings) = self.guest.start_exec(request)?;
        let events = self.open_event_stream(permit, &exec, &settings, ReaderRpc::Run, &attach)?;
        let mut events = Box::pin(events.into_inner().peekable());
        // Headers and first event then travel in one write, which wakes the daemon once instead of twice.
        let _first = events.as_mut().peek().await;
        Ok(Response::new(events))
    }

    async fn start_exec(&self, request: Request<wire::StartExecRequest>) -> RpcResult<v1::Exec> {
        let (exec, _) = self.guest.start_exec(request.into_inner())?;
        exec.wait_until(|state| state.phase != ExecPhase::Starting)
            .await;
        Ok(Response::new(exec.describe()))
    }

    async fn attach_exec(
        &self,
        request: Request<wire::AttachExecRequest>,
    ) -> RpcResult<Self::AttachExecStream> {
        let request = request.into_inner();
        let exec = self.guest.host.find_exec(&request.exec_id)?;
        let (permit, settings) = (self.reserve_stream()?, self.guest.settings()?);
        self.open_event_stream(permit, &exec, &settings, ReaderRpc::Attach, &request)
    }

    async fn signal_exec(&self, request: Request<wire::SignalExecRequest>) -> RpcResult<v1::Exec> {
        let request = request.into_inner();
        let signal = request.signal;
        if !(1..=SIGNAL_MAX).contains(&signal) {
            return Err(Error::invalid("signal", "must be 1 to 64").into());
        }
        let target = match request.target() {
            ApiTarget::Unspecified | ApiTarget::Leader => SignalTarget::Leader,
            ApiTarget::Group => SignalTarget::Group,
            ApiTarget::Tree => SignalTarget::Tree,
        };
        let exec = self.guest.host.find_exec(&request.exec_id)?;
        exec.wait_until(|state| state.phase != ExecPhase::Starting)
            .await;
        let signal = ExecControl::Signal { target, signal };
        exec.send_signal(&request.request_id, signal).await?;
        Ok(Response::new(exec.describe()))
    }

    async fn kill_exec(&self, request: Request<wire::KillExecRequest>) -> RpcResult<v1::Exec> {
        let request = request.into_inner();
        let exec = self.guest.host.find_exec(&request.exec_id)?;
        let mut reason = request.reason();
        if reason == ExitReason::Unspecified {
            reason = ExitReason::KilledByClient;
        }
        let grace = request
            .grace
            .and_then(|grace| Duration::try_from(grace).ok())
            .map(|grace| grace.min(GRACE_MAX));
        if exec.send_control(ExecControl::Kill { grace, reason }).await {
            exec.wait_until(|state| state.gone).await;
        }
        Ok(Response::new(exec.describe()))
    }

    async fn poll_exec(
        &self,
        request: Request<wire::PollExecRequest>,
    ) -> RpcResult<v1::PollExecResponse> {
        let request = request.into_inner();
        let exec = self.guest.host.find_exec(&request.exec_id)?;
        let offsets = request.offsets.unwrap_or_default();
        let poll = PollRequest {
            offsets: offsets.counts(),
            style: OutputReadOptions {
                format: request.format(),
                gap_policy: request.gap_policy(),
            },
            wait: positive_duration(request.wait).unwrap_or_default(),
            settle: positive_duration(request.settle_duration).unwrap_or_default(),
            bytes_max: usize::try_from(request.max_bytes).unwrap_or(usize::MAX),
        };
        Ok(Response::new(poll.answer(exec).await?))
    }

    async fn write_stdin(
        &self,
        request: Request<wire::WriteStdinRequest>,
    ) -> RpcResult<v1::WriteStdinResponse> {
        let request = request.get_ref();
        let exec = self.guest.host.find_exec(&request.exec_id)?;
        let written = stdin::write_stdin(&exec, StdinWrite::from_message(request)).await?;
        Ok(Response::new(v1::WriteStdinResponse {
            committed_offset: int64_from_count(written.committed),
            unwritten_bytes: int64_from_count(written.left),
            eof_unwritten: written.eof_left,
        }))
    }

    async fn stream_stdin(
        &self,
        request: Request<Streaming<wire::WriteStdinRequest>>,
    ) -> RpcResult<v1::WriteStdinResponse> {
        let max = STDIN_STREAMS_MAX;
        let permit = self.stdin_streams.try_acquire();
        let _permit = permit.map_err(|_| Error::TooManyStreams { max })?;
        let committed_offset = stdin::stream_stdin(&self.guest.host, request.into_inner()).await?;
        Ok(Response::new(v1::WriteStdinResponse {
            committed_offset: int64_from_count(committed_offset),
            unwritten_bytes: 0,
            eof_unwritten: false,
        }))
    }

    async fn resize_terminal(
        &self,
        request: Request<wire::ResizeTerminalRequest>,
    ) -> RpcResult<()> {
        let request = request.into_inner();
        for (field, value) in [("rows", request.rows), ("cols", request.cols)] {
            if !(1..=TERMINAL_MAX).contains(&value) {
                return Err(Error::invalid(field, "must be 1 to 10,000").into());
            }
        }
        let exec = self.guest.host.find_exec(&request.exec_id)?;
        let id = request.exec_id;
        if exec.spec.terminal.is_none() {
            return Err(Error::NoTerminal { id }.into());
        }
        exec.wait_until(|state| state.phase != ExecPhase::Starting)
            .await;
        if !exec.resize(terminal_size(request.rows, request.cols)) {
            return Err(Error::ExecNotRunning { id }.into());
        }
        Ok(Response::new(()))
    }

    async fn delete_exec(&self, request: Request<wire::DeleteExecRequest>) -> RpcResult<()> {
        self.guest.delete_exec(&request.get_ref().exec_id).await?;
        Ok(Response::new(()))
    }

    async fn get_exec(&self, request: Request<wire::GetExecRequest>) -> RpcResult<v1::Exec> {
        let exec = self.guest.host.find_exec(&request.get_ref().exec_id)?;
        Ok(Response::new(exec.describe()))
    }

    async fn wait_exec(&self, request: Request<wire::WaitExecRequest>) -> RpcResult<v1::Exec> {
        let exec = self.guest.host.find_exec(&request.get_ref().exec_id)?;
        exec.wait_until(|state| state.phase == ExecPhase::Closed)
            .await;
        Ok(Response::new(exec.describe()))
    }

    async fn list_execs(
        &self,
        request: Request<wire::ListExecsRequest>,
    ) -> RpcResult<wire::ListExecsResponse> {
        let request = request.into_inner();
        let size = usize::try_from(request.page_size)
            .unwrap_or(PAGE_MAX)
            .clamp(1, PAGE_MAX);
        let mut page = wire::ListExecsResponse {
            living: self
                .guest
                .host
                .execs
                .living()
                .try_into()
                .unwrap_or(u32::MAX),
            ..wire::ListExecsResponse::default()
        };
        let (mut bytes, mut last) = (0, 0);
        for (number, exec) in self.guest.host.execs.list_after(request.after) {
            let description = exec.describe();
            bytes += description.encoded_len();
            let is_full = bytes > ANSWER_BYTES_MAX && !page.execs.is_empty();
            if is_full || page.execs.len() == size {
                page.next = last;
                break;
            }
            page.execs.push(description);
            last = number;
        }
        Ok(Response::new(page))
    }

    async fn shutdown(&self, request: Request<wire::ShutdownRequest>) -> RpcResult<()> {
        let mut reason = request.get_ref().reason();
        if reason == ExitReason::Unspecified {
            reason = ExitReason::KilledByClient;
        }
        self.guest.shutdown(reason).await;
        Ok(Response::new(()))
    }

    async fn put_files(
        &self,
        request: Request<Streaming<wire::PutFilesRequest>>,
    ) -> RpcResult<v1::StageFilesResponse> {
        let stream = request.into_inner();
        put::put_files(&self.guest.root, stream)
            .await
            .map(Response::new)
    }

    async fn read_file(
        &self,
        request: Request<wire::ReadFileRequest>,
    ) -> RpcResult<Self::ReadFileStream> {
        let file = read::read_file(&self.guest.root, request.get_ref())?;
        Ok(Response::new(Box::pin(file)))
    }

    async fn list_files(
        &self,
        request: Request<wire::ListFilesRequest>,
    ) -> RpcResult<v1::ListFilesResponse> {
        let files = list::list_files(&self.guest.root, request.get_ref()).await?;
        Ok(Response::new(files))
    }

    async fn collect(
        &self,
        request: Request<wire::CollectRequest>,
    ) -> RpcResult<Self::CollectStream> {
        let spec = request.into_inner().spec.unwrap_or_default();
        let messages = file_collection::collect_outputs(&self.guest, &spec)?;
        Ok(Response::new(Box::pin(messages)))
    }

    async fn inventory(
        &self,
        request: Request<wire::InventoryRequest>,
    ) -> RpcResult<wire::InventoryResponse> {
        let found = image_inventory::scan_image(request.get_ref()).await;
        Ok(Response::new(found))
    }
}
