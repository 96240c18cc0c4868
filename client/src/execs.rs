//! Execs: run, start, attach, look, signal, kill, forget.

use skilld_proto::v1::{
    AttachExecRequest, DeleteExecRequest, Exec, ExecEvent, GetExecRequest, KillExecRequest,
    ListExecsRequest, ListExecsResponse, PollExecRequest, PollExecResponse, RunExecRequest,
    SignalExecRequest, StartExecRequest, WriteStdinRequest, WriteStdinResponse,
};

use crate::names::{exec_name, new_exec_id, workspace_name};
use crate::{Client, Error, ExecStream, Messages};

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

    /// Waits for output or the end of an exec, and returns what came.
    pub async fn poll_exec(&self, mut request: PollExecRequest) -> Result<PollExecResponse, Error> {
        request.name = exec_name(&request.name);
        self.retrying(|| {
            let (mut stub, request) = (self.execs(), request.clone());
            async move { stub.poll_exec(request).await }
        })
        .await
    }

    /// Writes to an exec's stdin. With an offset a repeated call writes nothing twice.
    pub async fn write_stdin(
        &self,
        mut request: WriteStdinRequest,
    ) -> Result<WriteStdinResponse, Error> {
        request.name = exec_name(&request.name);
        self.retrying(|| {
            let (mut stub, request) = (self.execs(), request.clone());
            async move { stub.write_stdin(request).await }
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
        let request = KillExecRequest {
            name: exec_name(name),
            grace: None,
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
