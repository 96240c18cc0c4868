//! ExecService: runs commands. A call takes a grant of the workspace once; then bytes flow from the guest to the client
//! without the workspace's task.

use futures::{Stream, TryStreamExt};
use skilld_proto::guest::v1 as guest;
use skilld_proto::v1 as pb;
use skilld_proto::v1::exec_service_server::ExecService;
use tokio::time::Instant;
use tonic::{Request, Response, Status, Streaming};

use super::convert::exec::RequestedExec;
use super::convert::run::check_run;
use super::convert::{self, exec as wire, exec_io};
use super::exec_observer::ExecObserver;
use super::relay::{RelayedStream, relay_guest_stream};
use super::role_restriction::restrict_exec;
use super::upload::{self, upload_stream};
use super::{AnswerDeadline, SharedDependencies, allow_missing};
use crate::access::Caller;
use crate::audit::CreatedResource;
use crate::error::{Error, Result};
use crate::exec::StartMode;
use crate::exec_launch::{ExecLauncher, ExecRequest, PreparedLaunch};
use crate::workspace::WorkspaceGrant;
use crate::workspace::running_execs::ExecReservation;

/// Implementation of ExecService.
#[derive(Debug, Clone)]
pub struct ExecRpc(pub SharedDependencies);

impl ExecRpc {
    /// Prepares the launch of a checked request in its workspace.
    pub(super) async fn prepare_exec(
        &self,
        caller: &Caller,
        exec: ExecRequest,
        start: StartMode,
    ) -> Result<(PreparedLaunch, ExecObserver)> {
        let received = Instant::now();
        let workspace = exec.workspace.name();
        let launcher = ExecLauncher {
            registry: &self.0.registry,
            config: &self.0.config.execs,
            engine: &self.0.info,
            tasks: &self.0.tasks,
        };
        let prepared = launcher.prepare_launch(caller, exec, start).await?;
        let observer = ExecObserver::new(
            &self.0.registry.context.metrics,
            &prepared.grant.view.record.pool,
            (workspace, prepared.request.exec_id.clone()),
            received,
        );
        Ok((prepared, observer))
    }

    /// Resolves an exec name to its workspace's grant and the exec's id.
    async fn resolve_exec(&self, caller: &Caller, name: &str) -> Result<(WorkspaceGrant, String)> {
        let (workspace, exec) = convert::parse_exec_name("name", name)?;
        let grant = self.0.registry.get(caller, &workspace)?.grant().await?;
        Ok((grant, exec))
    }
}

/// Asks the guest to start an exec, and returns its events.
pub(super) async fn start_prepared(
    (prepared, mut observer): (PreparedLaunch, ExecObserver),
) -> Result<(
    WorkspaceGrant,
    impl Stream<Item = Result<pb::ExecEvent, Status>> + Send + use<>,
)> {
    let grant = prepared.grant;
    let mut guest = grant.guest.clone();
    // The guest answers once it has the first event, so the start is decided then.
    let started = grant.call(guest.run_exec(prepared.request)).await?;
    observer.set_confirmed(prepared.reservation.and_then(ExecReservation::follow));
    let stream = started.into_inner();
    let observed = stream.inspect_ok(move |event| observer.observe_event(event));
    Ok((grant, observed))
}

#[tonic::async_trait]
impl ExecService for ExecRpc {
    type RunExecStream = RelayedStream<pb::ExecEvent>;
    type AttachExecStream = RelayedStream<pb::ExecEvent>;

    async fn run_exec(
        &self,
        request: Request<pb::RunExecRequest>,
    ) -> Result<Response<Self::RunExecStream>, Status> {
        let caller = Caller::of(&request)?;
        let (created, events) = if request.get_ref().is_whole_run() {
            let unary_timeout = self.0.config.server.unary_timeout;
            let wait_deadline = AnswerDeadline::stream_wait_deadline_of(&request, unary_timeout);
            let plan = check_run(&caller, request.into_inner(), &self.0.config)?;
            self.run_whole(&caller, plan, wait_deadline).await?
        } else {
            let run = request.into_inner();
            let requested = RequestedExec {
                workspace: Some(&run.parent),
                exec_id: &run.exec_id,
                spec: run.spec,
                format: run.format,
            };
            let exec = wire::check_exec(requested, caller.run_policy(), &self.0.config.execs)?;
            let exec_id = exec.exec_id.clone();
            let prepared = self.prepare_exec(&caller, exec, StartMode::Run).await?;
            let (grant, events) = start_prepared(prepared).await?;
            let created = convert::exec_name(&grant.name(), &exec_id);
            (created, relay_guest_stream(events, grant))
        };
        Ok(CreatedResource::attach(created, Response::new(events)))
    }

    async fn start_exec(
        &self,
        request: Request<pb::StartExecRequest>,
    ) -> Result<Response<pb::Exec>, Status> {
        let caller = Caller::of(&request)?;
        let start = request.into_inner();
        let requested = RequestedExec {
            workspace: Some(&start.parent),
            exec_id: &start.exec_id,
            spec: start.spec,
            format: pb::OutputFormat::Unspecified.into(),
        };
        let exec = wire::check_exec(requested, caller.run_policy(), &self.0.config.execs)?;
        let (prepared, mut observer) = self
            .prepare_exec(&caller, exec, StartMode::Detached)
            .await?;
        let grant = prepared.grant;
        let created = convert::exec_name(&grant.name(), &prepared.request.exec_id);
        let mut guest = grant.guest.clone();
        let exec = grant.call(guest.start_exec(prepared.request)).await?;
        observer.set_confirmed(prepared.reservation.and_then(ExecReservation::follow));
        // Without the sender of an end, the guest is asked for it.
        observer.finish_detached(exec.get_ref());
        Ok(CreatedResource::attach(created, exec))
    }

    async fn attach_exec(
        &self,
        request: Request<pb::AttachExecRequest>,
    ) -> Result<Response<Self::AttachExecStream>, Status> {
        let caller = Caller::of(&request)?;
        let attach = request.into_inner();
        let format = wire::check_attach(&attach)?;
        let (grant, exec_id) = self.resolve_exec(&caller, &attach.name).await?;
        let request = guest::AttachExecRequest {
            exec_id,
            offsets: attach.offsets,
            format: format.into(),
            gap_policy: attach.gap_policy,
        };
        let attached = grant.call(grant.guest.clone().attach_exec(request)).await?;
        let stream = attached.into_inner();
        Ok(Response::new(relay_guest_stream(stream, grant)))
    }

    async fn signal_exec(
        &self,
        request: Request<pb::SignalExecRequest>,
    ) -> Result<Response<pb::Exec>, Status> {
        let caller = Caller::of(&request)?;
        let signal = request.into_inner();
        wire::check_signal(&signal)?;
        let (grant, exec_id) = self.resolve_exec(&caller, &signal.name).await?;
        let request = guest::SignalExecRequest {
            exec_id,
            signal: signal.signal,
            target: signal.target,
            request_id: signal.request_id,
        };
        Ok(grant.call(grant.guest.clone().signal_exec(request)).await?)
    }

    async fn kill_exec(
        &self,
        request: Request<pb::KillExecRequest>,
    ) -> Result<Response<pb::Exec>, Status> {
        let caller = Caller::of(&request)?;
        let kill = request.into_inner();
        wire::check_kill_grace(kill.grace)?;
        let (grant, exec_id) = self.resolve_exec(&caller, &kill.name).await?;
        let reason = pb::ExitReason::KilledByClient.into();
        let request = guest::KillExecRequest {
            exec_id,
            grace: kill.grace,
            reason,
        };
        Ok(grant.call(grant.guest.clone().kill_exec(request)).await?)
    }

    async fn get_exec(
        &self,
        request: Request<pb::GetExecRequest>,
    ) -> Result<Response<pb::Exec>, Status> {
        let caller = Caller::of(&request)?;
        let (grant, exec_id) = self.resolve_exec(&caller, &request.get_ref().name).await?;
        let request = guest::GetExecRequest { exec_id };
        Ok(grant.call(grant.guest.clone().get_exec(request)).await?)
    }

    async fn list_execs(
        &self,
        request: Request<pb::ListExecsRequest>,
    ) -> Result<Response<pb::ListExecsResponse>, Status> {
        let caller = Caller::of(&request)?;
        let list = request.into_inner();
        let id = convert::parse_workspace_name("parent", &list.parent)?;
        let (size, after) = exec_io::check_exec_page(list.page_size, &list.page_token)?;
        let workspace = self.0.registry.get(&caller, &id)?;
        let grant = workspace.grant().await?;
        let request = guest::ListExecsRequest {
            after,
            page_size: size,
        };
        let listed = grant.call(grant.guest.clone().list_execs(request)).await?;
        let mut page = listed.into_inner();
        for exec in &mut page.execs {
            restrict_exec(caller.role(), exec);
        }
        let next = (page.next > 0).then(|| page.next.to_string());
        Ok(Response::new(pb::ListExecsResponse {
            execs: page.execs,
            next_page_token: next.unwrap_or_default(),
        }))
    }

    async fn poll_exec(
        &self,
        request: Request<pb::PollExecRequest>,
    ) -> Result<Response<pb::PollExecResponse>, Status> {
        let caller = Caller::of(&request)?;
        let checked = exec_io::check_poll(request.get_ref())?;
        let (grant, exec_id) = self.resolve_exec(&caller, &request.get_ref().name).await?;
        let request = guest::PollExecRequest { exec_id, ..checked };
        // The grant keeps the workspace in use while the poll waits.
        Ok(grant.call(grant.guest.clone().poll_exec(request)).await?)
    }

    async fn write_stdin(
        &self,
        request: Request<pb::WriteStdinRequest>,
    ) -> Result<Response<pb::WriteStdinResponse>, Status> {
        let caller = Caller::of(&request)?;
        let write = request.into_inner();
        let name = write.name.clone();
        let checked = exec_io::check_write(write)?;
        let (grant, exec_id) = self.resolve_exec(&caller, &name).await?;
        let request = guest::WriteStdinRequest { exec_id, ..checked };
        Ok(grant.call(grant.guest.clone().write_stdin(request)).await?)
    }

    async fn stream_stdin(
        &self,
        request: Request<Streaming<pb::StreamStdinRequest>>,
    ) -> Result<Response<pb::WriteStdinResponse>, Status> {
        let caller = Caller::of(&request)?;
        let mut client = request.into_inner();
        let first = upload::first_message(&mut client, &self.0, "header").await?;
        let (name, checked) = exec_io::check_first_write(first)?;
        let (grant, exec_id) = self.resolve_exec(&caller, &name).await?;
        let first = guest::WriteStdinRequest { exec_id, ..checked };
        let check = exec_io::check_next_write;
        let (stream, failure) = upload_stream(first, client, None, check);
        let mut guest = grant.guest.clone();
        let written = grant.call(guest.stream_stdin(stream));
        // Dropping `written` before its end resets the guest's stream; the bytes before that are written.
        tokio::select! {
            // An answer that has arrived takes precedence over a failure.
            biased;
            written = written => Ok(written?),
            Ok(error) = failure => Err(error.into()),
            () = self.0.tasks.stop.cancelled() => {
                let doing = "writing to the exec's stdin";
                Err(Error::Stopped { doing }.into())
            }
        }
    }

    async fn resize_terminal(
        &self,
        request: Request<pb::ResizeTerminalRequest>,
    ) -> Result<Response<pb::ResizeTerminalResponse>, Status> {
        let caller = Caller::of(&request)?;
        let resize = request.into_inner();
        wire::check_terminal_size(resize.rows, resize.cols)?;
        let (grant, exec_id) = self.resolve_exec(&caller, &resize.name).await?;
        let request = guest::ResizeTerminalRequest {
            exec_id,
            rows: resize.rows,
            cols: resize.cols,
        };
        let mut guest = grant.guest.clone();
        grant.call(guest.resize_terminal(request)).await?;
        Ok(Response::new(pb::ResizeTerminalResponse {}))
    }

    async fn delete_exec(
        &self,
        request: Request<pb::DeleteExecRequest>,
    ) -> Result<Response<()>, Status> {
        let caller = Caller::of(&request)?;
        let request = request.into_inner();
        let delete = async {
            let (grant, exec_id) = self.resolve_exec(&caller, &request.name).await?;
            let request = guest::DeleteExecRequest { exec_id };
            grant.call(grant.guest.clone().delete_exec(request)).await
        };
        let deleted = delete.await.map(drop);
        Ok(Response::new(allow_missing(
            deleted,
            request.allow_missing,
        )?))
    }
}
