//! The rpcs of GuestService: decode, call, encode. What they mean is in `guest.proto`.

use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use futures::Stream;
use skilld_proto::guest::GENERATION;
use skilld_proto::guest::v1 as wire;
use skilld_proto::guest::v1::guest_service_server::GuestService;
use skilld_proto::v1;
use skilld_proto::v1::exec_result::Reason;
use skilld_proto::v1::signal_exec_request::Target as ApiTarget;
use tonic::{Request, Response, Status, Streaming};

use crate::collect;
use crate::error::Error;
use crate::exec::reader::{self, Wish};
use crate::exec::{Command, Exec, Phase, warm_up};
use crate::files::{list, put, read};
use crate::guest::{Guest, Settings};
use crate::supervisor::wire::Target;

const PAGE_MAX: usize = 1000;
const SIGNAL_MAX: i32 = 64;
const GRACE_MAX: Duration = Duration::from_secs(60);

type Answer<T> = Result<Response<T>, Status>;
type Answers<T> = Pin<Box<dyn Stream<Item = Result<T, Status>> + Send>>;

/// One connection's view of the guest.
#[derive(Debug)]
pub(crate) struct Service {
    guest: Arc<Guest>,
}

impl Service {
    pub(crate) fn new(guest: Arc<Guest>) -> Self {
        Self { guest }
    }

    fn events(
        exec: Arc<Exec>,
        settings: &Settings,
        request: &wire::AttachExecRequest,
    ) -> Answer<Answers<v1::ExecEvent>> {
        let offsets = request.offsets.unwrap_or_default();
        let wish = Wish {
            offsets: [offsets.stdout, offsets.stderr],
            format: request.format(),
            gaps: request.gaps(),
            heartbeat: settings.heartbeat,
        };
        let events = reader::attach(exec, wish)?;
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
        let (exec, settings) = self.guest.start(request)?;
        Self::events(exec, &settings, &attach)
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
        Self::events(exec, &self.guest.settings()?, &request)
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

    async fn get_exec(&self, request: Request<wire::GetExecRequest>) -> Answer<v1::Exec> {
        let exec = self.guest.exec(&request.get_ref().exec_id)?;
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
        let more = execs.len() > size;
        execs.truncate(size);
        let execs = execs.iter().map(|exec| exec.describe()).collect();
        Ok(Response::new(wire::ListExecsResponse { execs, more }))
    }

    async fn shutdown(&self, _request: Request<wire::ShutdownRequest>) -> Answer<()> {
        self.guest.shutdown().await;
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
}
