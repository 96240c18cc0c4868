//! ExecService of the fake: starting once per id, attaching at offsets.

use std::pin::Pin;

use futures::stream::BoxStream;
use futures::{Stream, StreamExt, stream};
use skilld_client::v1::OutputEvent;
use skilld_client::v1::exec_event::Event;
use skilld_client::v1::exec_service_server::ExecService;
use skilld_client::v1::output_event::Content;
use skilld_client::v1::{
    AttachExecRequest, DeleteExecRequest, Exec, ExecEvent, ExecResult, ExecSpec, GetExecRequest,
    KillExecRequest, ListExecsRequest, ListExecsResponse, OutputStream, PollExecRequest,
    PollExecResponse, ResizeTerminalRequest, ResizeTerminalResponse, RunExecRequest,
    SignalExecRequest, StartExecRequest, StreamOffsets, StreamStdinRequest, WriteStdinRequest,
    WriteStdinResponse,
};
use skilld_client::{count_from_int64, int64_from_count};
use tokio::sync::watch;
use tonic::{Code, Request, Response, Status, Streaming};

use super::live::{self, Fault};
use super::program::{Program, event};
use super::skills::check_name;
use super::{FakeExec, FakeServices, refusal, unimplemented};

pub(super) type Events = Pin<Box<dyn Stream<Item = Result<ExecEvent, Status>> + Send>>;

impl FakeServices {
    pub(super) fn start(
        &self,
        workspace: &str,
        id: &str,
        mut spec: ExecSpec,
    ) -> Result<String, Status> {
        let mut state = self.lock();
        if let (Some(timeout), Some(most)) = (&mut spec.timeout, state.timeout_max) {
            timeout.seconds = timeout.seconds.min(most);
        }
        if !state.workspaces.contains_key(workspace) {
            return Err(refusal(Code::NotFound, "WORKSPACE_NOT_FOUND", &[]));
        }
        if id.is_empty() {
            return Err(Status::internal("the client chooses the id"));
        }
        if !spec.skill.is_empty() {
            check_name(&spec.skill)?;
        }
        let name = format!("{workspace}/execs/{id}");
        if let Some(running) = state.execs.get(&name) {
            return match running.spec == spec {
                true => Ok(name),
                false => Err(refusal(Code::AlreadyExists, "ID_TAKEN", &[])),
            };
        }
        state.starts += 1;
        let running = FakeExec {
            spec,
            killed: watch::Sender::new(false),
            input: watch::Sender::default(),
            readers: watch::Sender::new(0),
        };
        state.execs.insert(name.clone(), running);
        Ok(name)
    }

    pub(super) fn running(&self, name: &str) -> Result<FakeExec, Status> {
        let state = self.lock();
        let running = state.execs.get(name).cloned();
        running.ok_or_else(|| refusal(Code::NotFound, "EXEC_NOT_FOUND", &[]))
    }

    pub(super) fn events(&self, name: &str, from: StreamOffsets) -> Result<Events, Status> {
        let running = self.running(name)?;
        let events = match live::is_live(&running.spec) {
            true => {
                running.input.send_modify(|input| input.followed = true);
                live::events(
                    name.to_owned(),
                    &running,
                    count_from_int64(from.stdout_bytes),
                )
                .boxed()
            }
            false => Self::told(name, &running, from),
        };
        let reader = Reader::new(running.readers);
        let numbered = events.enumerate().map(move |(seq, next)| {
            let _ = &reader;
            Ok(event(seq, next))
        });
        Ok(numbered.boxed())
    }

    /// Returns the events of a program that reads no stdin.
    fn told(name: &str, running: &FakeExec, from: StreamOffsets) -> BoxStream<'static, Event> {
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
        stream::iter(first).chain(end.flatten()).boxed()
    }

    /// Returns all output of an exec so far, and its result if it has ended.
    pub(super) fn so_far(running: &FakeExec) -> (Vec<u8>, Vec<u8>, Option<ExecResult>) {
        if live::is_live(&running.spec) {
            let (bytes, end) = live::output(&running.spec, &running.input.borrow());
            return (bytes, live::errors(&running.spec), end);
        }
        let program = Program::of(&running.spec);
        let over = *running.killed.borrow() || program.result.is_some();
        let of = |wanted| {
            let pieces = program
                .pieces
                .iter()
                .filter(|(stream, _)| *stream == wanted);
            pieces.flat_map(|(_, data)| data.iter().copied()).collect()
        };
        (
            of(OutputStream::Stdout),
            of(OutputStream::Stderr),
            program.ended().filter(|_| over),
        )
    }

    fn poll(running: &FakeExec, request: &PollExecRequest) -> PollExecResponse {
        let (stdout, stderr, result) = Self::so_far(running);
        let mut at = request.offsets.unwrap_or_default();
        let mut room = match usize::try_from(request.max_bytes).expect("not negative") {
            0 => 64 * 1024,
            max => max,
        };
        let mut output = Vec::new();
        for (stream, bytes, at) in [
            (OutputStream::Stdout, stdout, &mut at.stdout_bytes),
            (OutputStream::Stderr, stderr, &mut at.stderr_bytes),
        ] {
            let rest = bytes
                .get(usize::try_from(*at).expect("small")..)
                .expect("not beyond the end");
            let piece = rest.get(..room.min(rest.len())).expect("is there");
            if !piece.is_empty() {
                output.push(OutputEvent {
                    stream: stream.into(),
                    offset: *at,
                    content: Some(Content::Data(piece.to_vec().into())),
                    ..Default::default()
                });
            }
            *at += int64_from_count(piece.len() as u64);
            room -= piece.len();
        }
        let state = live::state(running, result.as_ref());
        PollExecResponse {
            outputs: output,
            next_offsets: Some(at),
            state: state.into(),
            result,
            ..Default::default()
        }
    }

    fn exec(&self, name: &str) -> Result<Exec, Status> {
        let running = self.running(name)?;
        let (stdout, stderr, result) = Self::so_far(&running);
        let total = [&stdout, &stderr].map(|bytes| bytes.len() as u64);
        let total = Some(StreamOffsets::from_counts(total));
        let state = live::state(&running, result.as_ref());
        let never_ran = |result: &ExecResult| result.spawn_failure.is_some();
        let start_time = self.lock().start_time;
        Ok(Exec {
            name: name.to_owned(),
            state: state.into(),
            pid: match result.as_ref().is_some_and(never_ran) {
                true => 0,
                false => 7,
            },
            effective_spec: Some(running.spec),
            result,
            total,
            start_time,
            ..Default::default()
        })
    }
}

/// Guard that counts an open stream of events.
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
impl ExecService for FakeServices {
    type RunExecStream = Events;
    type AttachExecStream = Events;

    async fn run_exec(&self, request: Request<RunExecRequest>) -> Result<Response<Events>, Status> {
        let request = request.into_inner();
        if request.is_whole_run() {
            return self.run_whole(request).await.map(Response::new);
        }
        let spec = request.spec.unwrap_or_default();
        let name = self.start(&request.parent, &request.exec_id, spec)?;
        Ok(Response::new(self.events(&name, StreamOffsets::default())?))
    }

    async fn start_exec(
        &self,
        request: Request<StartExecRequest>,
    ) -> Result<Response<Exec>, Status> {
        let request = request.into_inner();
        let spec = request.spec.unwrap_or_default();
        let name = self.start(&request.parent, &request.exec_id, spec)?;
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
        let workspace = name.split("/execs/").next().unwrap_or_default();
        self.lock().check_ready(workspace)?;
        let running = self.running(&name)?;
        running.killed.send_replace(true);
        running.input.send_modify(|input| input.killed = true);
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
        let prefix = format!("{}/", request.into_inner().parent);
        let names: Vec<String> = self.lock().execs.keys().cloned().collect();
        let execs = names
            .iter()
            .filter(|name| name.starts_with(&prefix))
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
        let name = request.into_inner().name;
        let running = self.running(&name)?;
        running.input.send_modify(|input| input.killed = true);
        self.lock().execs.remove(&name);
        Ok(Response::new(()))
    }

    async fn poll_exec(
        &self,
        request: Request<PollExecRequest>,
    ) -> Result<Response<PollExecResponse>, Status> {
        let request = request.into_inner();
        let running = self.running(&request.name)?;
        let (stdout, stderr, _) = Self::so_far(&running);
        let at = request.offsets.unwrap_or_default();
        let [out, err] = at.counts();
        if out > stdout.len() as u64 || err > stderr.len() as u64 {
            return Err(refusal(Code::InvalidArgument, "INVALID_REQUEST", &[]));
        }
        let news = |_: &live::Input| {
            let answer = Self::poll(&running, &request);
            !answer.outputs.is_empty() || answer.result.is_some()
        };
        let wait = request.wait.and_then(|wait| wait.try_into().ok());
        let mut input = running.input.subscribe();
        // Over or not, it says what there is.
        drop(tokio::time::timeout(wait.unwrap_or_default(), input.wait_for(news)).await);
        Ok(Response::new(Self::poll(&running, &request)))
    }

    async fn write_stdin(
        &self,
        request: Request<WriteStdinRequest>,
    ) -> Result<Response<WriteStdinResponse>, Status> {
        let mut request = request.into_inner();
        let running = self.running(&request.name)?;
        // Only what writes something can go wrong.
        let fault = match request.data.is_empty() && !request.eof {
            true => None,
            false => self.lock().faults.pop_front(),
        };
        match fault {
            Some(Fault::Half | Fault::Deadline) => {
                request.data.truncate(request.data.len() / 2);
                request.eof = false;
            }
            Some(Fault::Refused) => return Err(refusal(Code::Unavailable, "DRAINING", &[])),
            Some(Fault::Lost) | None => {}
        }
        let written = live::write(&running, &request).await?;
        match fault {
            // As tonic says it when a connection breaks.
            Some(Fault::Lost | Fault::Half) => Err(Status::unknown("transport error")),
            Some(Fault::Deadline) => Err(refusal(Code::DeadlineExceeded, "DEADLINE", &[])),
            Some(Fault::Refused) | None => Ok(Response::new(written)),
        }
    }

    async fn stream_stdin(
        &self,
        _: Request<Streaming<StreamStdinRequest>>,
    ) -> Result<Response<WriteStdinResponse>, Status> {
        unimplemented()
    }

    async fn resize_terminal(
        &self,
        request: Request<ResizeTerminalRequest>,
    ) -> Result<Response<ResizeTerminalResponse>, Status> {
        let request = request.into_inner();
        let running = self.running(&request.name)?;
        if running.spec.terminal.is_none() {
            return Err(refusal(Code::FailedPrecondition, "EXEC_NOT_RUNNING", &[]));
        }
        let size = (request.rows, request.cols);
        running.input.send_modify(|input| input.sizes.push(size));
        Ok(Response::new(ResizeTerminalResponse {}))
    }
}
