//! Execs: run, start, attach, poll, look, resize, signal, kill, forget. Their stdin has a file of its own.

use std::time::Duration;

use skilld_proto::v1::{
    AttachExecRequest, DeleteExecRequest, Exec, ExecEvent, GetExecRequest, KillExecRequest,
    ListExecsRequest, ListExecsResponse, PollExecRequest, PollExecResponse, ResizeTerminalRequest,
    RunExecRequest, SignalExecRequest, StartExecRequest,
};

use crate::names::{exec_name, new_exec_id, workspace_name};
use crate::retry::{connection_broke, may_resume};
use crate::{Client, Error, ExecStream, Messages, Poller};

impl Client {
    /// Starts an exec and streams its events; the stream ends with the connection. Without an id one is
    /// chosen here, so that a repeated call starts nothing twice.
    pub async fn run_exec(&self, request: RunExecRequest) -> Result<Messages<ExecEvent>, Error> {
        let request = named(request);
        self.retrying(|| {
            let (mut stub, request) = (self.execs(), request.clone());
            async move { stub.run_exec(request).await }
        })
        .await
        .map(Messages::new)
    }

    /// Starts an exec and streams its events, attaching again where the stream broke: the events are
    /// exactly those of an unbroken stream.
    #[must_use]
    pub fn run_resuming(&self, request: RunExecRequest) -> ExecStream {
        ExecStream::run(self.clone(), named(request))
    }

    /// Streams the events of an exec from given offsets; the stream ends with the connection.
    pub async fn attach_exec(
        &self,
        mut request: AttachExecRequest,
    ) -> Result<Messages<ExecEvent>, Error> {
        request.name = exec_name(&request.name);
        self.retrying(|| {
            let (mut stub, request) = (self.execs(), request.clone());
            async move { stub.attach_exec(request).await }
        })
        .await
        .map(Messages::new)
    }

    /// Streams the events of an exec from given offsets, attaching again where the stream broke.
    #[must_use]
    pub fn attach_resuming(&self, mut request: AttachExecRequest) -> ExecStream {
        request.name = exec_name(&request.name);
        ExecStream::attach(self.clone(), request)
    }

    /// Starts an exec and returns when it was spawned or could not be. Without an id one is chosen here.
    pub async fn start_exec(&self, mut request: StartExecRequest) -> Result<Exec, Error> {
        request.workspace = workspace_name(&request.workspace);
        if request.exec_id.is_empty() {
            request.exec_id = new_exec_id();
        }
        self.retrying(|| {
            let (mut stub, request) = (self.execs(), request.clone());
            async move { stub.start_exec(request).await }
        })
        .await
    }

    /// Waits for output or the end of an exec, and returns what came. Repeated on UNAVAILABLE and when the connection
    /// broke: the same offsets bring the same bytes.
    pub async fn poll_exec(&self, mut request: PollExecRequest) -> Result<PollExecResponse, Error> {
        request.name = exec_name(&request.name);
        self.insisting(connection_broke, || {
            let (mut stub, request) = (self.execs(), request.clone());
            async move { stub.poll_exec(request).await }
        })
        .await
    }

    /// Polls again and again, from the offsets of the request on.
    #[must_use]
    pub fn poller(&self, request: PollExecRequest) -> Poller {
        Poller::new(self.clone(), request)
    }

    /// Sets the size of an exec's terminal. Repeated when the connection broke: the last size is what counts.
    pub async fn resize_terminal(&self, mut request: ResizeTerminalRequest) -> Result<(), Error> {
        request.name = exec_name(&request.name);
        self.insisting(may_resume, || {
            let (mut stub, request) = (self.execs(), request.clone());
            async move { stub.resize_terminal(request).await }
        })
        .await
    }

    /// Sends a signal.
    pub async fn signal_exec(&self, mut request: SignalExecRequest) -> Result<Exec, Error> {
        request.name = exec_name(&request.name);
        self.retrying(|| {
            let (mut stub, request) = (self.execs(), request.clone());
            async move { stub.signal_exec(request).await }
        })
        .await
    }

    /// Ends an exec's whole process tree with the server's grace period; returns when it is gone.
    pub async fn kill_exec(&self, name: &str) -> Result<Exec, Error> {
        self.kill(name, None).await
    }

    /// The same with another time between TERM and KILL, of at most 60 s; zero kills at once.
    pub async fn kill_exec_after(&self, name: &str, grace: Duration) -> Result<Exec, Error> {
        self.kill(name, Some(grace)).await
    }

    async fn kill(&self, name: &str, grace: Option<Duration>) -> Result<Exec, Error> {
        // What no Duration of protobuf holds is refused like all that is too long.
        let too_long = prost_types::Duration {
            seconds: i64::MAX,
            nanos: 0,
        };
        let request = KillExecRequest {
            name: exec_name(name),
            grace: grace.map(|grace| grace.try_into().unwrap_or(too_long)),
        };
        self.retrying(|| {
            let (mut stub, request) = (self.execs(), request.clone());
            async move { stub.kill_exec(request).await }
        })
        .await
    }

    /// Returns an exec, by `workspace/exec` or full name.
    pub async fn get_exec(&self, name: &str) -> Result<Exec, Error> {
        let request = GetExecRequest {
            name: exec_name(name),
        };
        self.retrying(|| {
            let (mut stub, request) = (self.execs(), request.clone());
            async move { stub.get_exec(request).await }
        })
        .await
    }

    /// One page of a workspace's execs, in order of their start.
    pub async fn list_execs(
        &self,
        mut request: ListExecsRequest,
    ) -> Result<ListExecsResponse, Error> {
        request.workspace = workspace_name(&request.workspace);
        self.retrying(|| {
            let (mut stub, request) = (self.execs(), request.clone());
            async move { stub.list_execs(request).await }
        })
        .await
    }

    /// Kills an exec if it runs and forgets it with its output.
    pub async fn delete_exec(&self, name: &str) -> Result<(), Error> {
        let request = DeleteExecRequest {
            name: exec_name(name),
        };
        self.retrying(|| {
            let (mut stub, request) = (self.execs(), request.clone());
            async move { stub.delete_exec(request).await }
        })
        .await
    }
}

/// With full names, and an id in any case.
fn named(mut request: RunExecRequest) -> RunExecRequest {
    request.workspace = workspace_name(&request.workspace);
    if request.exec_id.is_empty() {
        request.exec_id = new_exec_id();
    }
    request
}
