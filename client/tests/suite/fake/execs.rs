//! ExecService of the fake: starting once per id, attaching at offsets, breaking off where told.

use std::pin::Pin;

use futures::{Stream, StreamExt, stream};
use skilld_client::v1::exec_service_server::ExecService;
use skilld_client::v1::{
    AttachExecRequest, DeleteExecRequest, Exec, ExecEvent, ExecSpec, ExecState, GetExecRequest,
    KillExecRequest, ListExecsRequest, ListExecsResponse, PollExecRequest, PollExecResponse,
    ResizeTerminalRequest, RunExecRequest, SignalExecRequest, StartExecRequest, StreamOffsets,
    StreamStdinRequest, WriteStdinRequest, WriteStdinResponse,
};
use tokio::sync::watch;
use tonic::{Code, Request, Response, Status, Streaming};

use super::program::{Program, event};
use super::{Break, RunExec, Running, Shared, refusal, unimplemented};

type Events = Pin<Box<dyn Stream<Item = Result<ExecEvent, Status>> + Send>>;

impl Shared {
    fn start(&self, workspace: &str, id: &str, spec: ExecSpec) -> Result<String, Status> {
        let mut state = self.lock();
        if !state.workspaces.contains_key(workspace) {
            return Err(refusal(Code::NotFound, "WORKSPACE_NOT_FOUND", &[]));
        }
        if id.is_empty() {
            return Err(Status::internal("the client chooses the id"));
        }
        let name = format!("{workspace}/execs/{id}");
        if let Some(running) = state.execs.get(&name) {
            return match running.spec == spec {
                true => Ok(name),
                false => Err(refusal(Code::AlreadyExists, "ID_TAKEN", &[])),
            };
        }
        state.starts += 1;
        let running = Running {
            spec,
            killed: watch::Sender::new(false),
            readers: watch::Sender::new(0),
        };
        state.execs.insert(name.clone(), running);
        Ok(name)
    }

    fn running(&self, name: &str) -> Result<Running, Status> {
        let state = self.lock();
        let running = state.execs.get(name).cloned();
        running.ok_or_else(|| refusal(Code::NotFound, "EXEC_NOT_FOUND", &[]))
    }

    fn events(&self, name: &str, from: StreamOffsets) -> Result<Events, Status> {
        let running = self.running(name)?;
        let program = Program::of(&running.spec);
        let first = program.events(name, &running.spec, from);
        let (last, waits) = (program.end(), program.result.is_none());
        let mut killed = running.killed.subscribe();
        let end = stream::once(async move {
            if waits {
                killed
                    .wait_for(|killed| *killed)
                    .await
                    .expect("the exec is kept");
            }
            stream::iter(last)
        });
        let events = stream::iter(first).chain(end.flatten());
        let reader = Reader::new(running.readers);
        let events = events.enumerate().map(move |(seq, next)| {
            let _ = &reader;
            Ok(event(seq, next))
        });
        let mut state = self.lock();
        state.opened_at.push(from);
        Ok(match state.breaks.pop_front() {
            None => events.boxed(),
            Some(Break { after, status }) => {
                let end = stream::iter(status.map(Err));
                events.take(after).chain(end).boxed()
            }
        })
    }

    fn exec(&self, name: &str) -> Result<Exec, Status> {
        let running = self.running(name)?;
        let program = Program::of(&running.spec);
        let killed = *running.killed.borrow();
        let over = killed || program.result.is_some();
        let result = program.ended();
        Ok(Exec {
            name: name.to_owned(),
            state: if over {
                ExecState::Closed
            } else {
                ExecState::Running
            }
            .into(),
            pid: if result
                .as_ref()
                .is_some_and(|result| result.spawn_failure.is_some())
            {
                0
            } else {
                7
            },
            effective_spec: Some(running.spec),
            result: result.filter(|_| over),
            ..Default::default()
        })
    }
}

/// A stream of events; over when it is dropped.
struct Reader(watch::Sender<u32>);

impl Reader {
    fn new(readers: watch::Sender<u32>) -> Self {
        readers.send_modify(|count| *count += 1);
        Self(readers)
    }
}

impl Drop for Reader {
    fn drop(&mut self) {
        self.0.send_modify(|count| *count -= 1);
    }
}

#[tonic::async_trait]
impl ExecService for Shared {
    type RunExecStream = Events;
    type AttachExecStream = Events;

    async fn run_exec(&self, request: Request<RunExecRequest>) -> Result<Response<Events>, Status> {
        let request = request.into_inner();
        self.run_calls.send_modify(|count| *count += 1);
        let mut missed = self.missed_kills.subscribe();
        let run_exec = self.lock().run_exec;
        match run_exec {
            RunExec::Refused if *missed.borrow() == 0 => {
                return Err(refusal(Code::Unavailable, "DRAINING", &[]));
            }
            RunExec::Late => {
                missed.wait_for(|count| *count > 0).await.expect("is kept");
            }
            RunExec::Refused | RunExec::Starts => {}
        }
        let spec = request.spec.unwrap_or_default();
        let name = self.start(&request.workspace, &request.exec_id, spec)?;
        Ok(Response::new(self.events(&name, StreamOffsets::default())?))
    }

    async fn start_exec(
        &self,
        request: Request<StartExecRequest>,
    ) -> Result<Response<Exec>, Status> {
        let request = request.into_inner();
        let spec = request.spec.unwrap_or_default();
        let name = self.start(&request.workspace, &request.exec_id, spec)?;
        Ok(Response::new(self.exec(&name)?))
    }

    async fn attach_exec(
        &self,
        request: Request<AttachExecRequest>,
    ) -> Result<Response<Events>, Status> {
        let request = request.into_inner();
        let from = request.offsets.unwrap_or_default();
        Ok(Response::new(self.events(&request.name, from)?))
    }

    /// Answers when no stream of the exec is left.
    async fn kill_exec(&self, request: Request<KillExecRequest>) -> Result<Response<Exec>, Status> {
        let name = request.into_inner().name;
        let running = self.running(&name).inspect_err(|_| {
            self.missed_kills.send_modify(|count| *count += 1);
        })?;
        running.killed.send_replace(true);
        // A program that its readers hold up ends when they read or leave.
        let mut readers = running.readers.subscribe();
        readers
            .wait_for(|count| *count == 0)
            .await
            .expect("is kept");
        Ok(Response::new(self.exec(&name)?))
    }

    async fn signal_exec(
        &self,
        request: Request<SignalExecRequest>,
    ) -> Result<Response<Exec>, Status> {
        let name = request.into_inner().name;
        Ok(Response::new(self.exec(&name)?))
    }

    async fn get_exec(&self, request: Request<GetExecRequest>) -> Result<Response<Exec>, Status> {
        let name = request.into_inner().name;
        Ok(Response::new(self.exec(&name)?))
    }

    async fn list_execs(
        &self,
        request: Request<ListExecsRequest>,
    ) -> Result<Response<ListExecsResponse>, Status> {
        let prefix = format!("{}/", request.into_inner().workspace);
        let names: Vec<String> = self.lock().execs.keys().cloned().collect();
        let names = names.iter().filter(|name| name.starts_with(&prefix));
        let execs = names
            .map(|name| self.exec(name))
            .collect::<Result<_, _>>()?;
        Ok(Response::new(ListExecsResponse {
            execs,
            ..Default::default()
        }))
    }

    async fn delete_exec(
        &self,
        request: Request<DeleteExecRequest>,
    ) -> Result<Response<()>, Status> {
        self.lock().execs.remove(&request.into_inner().name);
        Ok(Response::new(()))
    }

    async fn poll_exec(
        &self,
        _: Request<PollExecRequest>,
    ) -> Result<Response<PollExecResponse>, Status> {
        unimplemented()
    }

    async fn write_stdin(
        &self,
        _: Request<WriteStdinRequest>,
    ) -> Result<Response<WriteStdinResponse>, Status> {
        unimplemented()
    }

    async fn stream_stdin(
        &self,
        _: Request<Streaming<StreamStdinRequest>>,
    ) -> Result<Response<WriteStdinResponse>, Status> {
        unimplemented()
    }

    async fn resize_terminal(
        &self,
        _: Request<ResizeTerminalRequest>,
    ) -> Result<Response<()>, Status> {
        unimplemented()
    }
}
