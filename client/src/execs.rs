//! Execs: run, start, attach, poll, get, list, resize, signal, kill, delete. `stdin` writes to their stdin.

use std::time::Duration;

use skilld_proto::v1::exec_service_client::ExecServiceClient;
use skilld_proto::v1::{
    AttachExecRequest, DeleteExecRequest, Exec, ExecEvent, ExecSpec, GetExecRequest,
    KillExecRequest, ListExecsRequest, ListExecsResponse, PollExecRequest, PollExecResponse,
    ResizeTerminalRequest, ResizeTerminalResponse, RunExecRequest, SignalExecRequest,
    StartExecRequest,
};

use crate::client::retried_calls;
use crate::resource_names::{
    exec_name, id_or_new, new_exec_id, new_request_id, requested_pool, skill_name, workspace_name,
};
use crate::retry::{connection_broke, may_resume};
use crate::{Client, Error, ExecPoller, ExecStream, MessageStream};

retried_calls! { ExecServiceClient:
    /// Starts an exec and returns when it was spawned or could not be. The client chooses an id if the request has
    /// none.
    start_exec(request: StartExecRequest) -> Exec = StartExecRequest {
        parent: workspace_name(&request.parent),
        exec_id: id_or_new(request.exec_id, new_exec_id),
        spec: request.spec.map(complete_spec),
    };

    /// Returns an exec, by `workspace/exec` or full name.
    get_exec(name: &str) -> Exec = GetExecRequest { name: exec_name(name) };

    /// Returns one page of a workspace's execs, in the order of their start.
    list_execs(request: ListExecsRequest) -> ListExecsResponse = ListExecsRequest { parent: workspace_name(&request.parent), ..request };

    /// Kills an exec if it runs and forgets it with its output.
    delete_exec(name: &str) -> () = DeleteExecRequest { name: exec_name(name), allow_missing: false };
}

impl Client {
    /// Starts an exec and streams its events; the stream ends with the connection. The client chooses an id if the
    /// request has none, so that a repeated call starts nothing twice.
    ///
    /// # Errors
    ///
    /// [`Error::Status`] if the daemon refuses the call or cannot be reached.
    pub async fn run_exec(
        &self,
        request: RunExecRequest,
    ) -> Result<MessageStream<ExecEvent>, Error> {
        let request = complete_request(request);
        self.retry_call(request, ExecServiceClient::run_exec)
            .await
            .map(MessageStream::new)
    }

    /// Starts an exec and streams its events, attaching again where the stream broke: the events are
    /// exactly those of an unbroken stream.
    #[must_use]
    pub fn run_resuming(&self, request: RunExecRequest) -> ExecStream {
        ExecStream::run(self.clone(), complete_request(request))
    }

    /// Streams the events of an exec from given offsets; the stream ends with the connection.
    ///
    /// # Errors
    ///
    /// [`Error::Status`] if the daemon refuses the call or cannot be reached.
    pub async fn attach_exec(
        &self,
        mut request: AttachExecRequest,
    ) -> Result<MessageStream<ExecEvent>, Error> {
        request.name = exec_name(&request.name);
        self.retry_call(request, ExecServiceClient::attach_exec)
            .await
            .map(MessageStream::new)
    }

    /// Streams the events of an exec from given offsets, attaching again where the stream broke.
    #[must_use]
    pub fn attach_resuming(&self, mut request: AttachExecRequest) -> ExecStream {
        request.name = exec_name(&request.name);
        ExecStream::attach(self.clone(), request)
    }

    /// Waits for output or the end of an exec, and returns the output that came. Repeated on UNAVAILABLE and when the
    /// connection broke: the same offsets bring the same bytes.
    ///
    /// # Errors
    ///
    /// [`Error::Status`] if the daemon refuses the call or cannot be reached.
    pub async fn poll_exec(&self, mut request: PollExecRequest) -> Result<PollExecResponse, Error> {
        request.name = exec_name(&request.name);
        self.repeat_call(connection_broke, request, ExecServiceClient::poll_exec)
            .await
    }

    /// Returns a poller that continues from the offsets of the request.
    #[must_use]
    pub fn poller(&self, request: PollExecRequest) -> ExecPoller {
        ExecPoller::new(self.clone(), request)
    }

    /// Sends a signal to an exec, once: the client chooses a `request_id` that is left out, and repeats the call when the
    /// connection broke.
    ///
    /// # Errors
    ///
    /// [`Error::Status`] if the daemon refuses the call or cannot be reached.
    pub async fn signal_exec(&self, mut request: SignalExecRequest) -> Result<Exec, Error> {
        request.name = exec_name(&request.name);
        request.request_id = id_or_new(request.request_id, new_request_id);
        self.repeat_call(may_resume, request, ExecServiceClient::signal_exec)
            .await
    }

    /// Sets the size of an exec's terminal. Repeated when the connection broke: only the last size counts.
    ///
    /// # Errors
    ///
    /// [`Error::Status`] if the daemon refuses the call or cannot be reached.
    pub async fn resize_terminal(&self, mut request: ResizeTerminalRequest) -> Result<(), Error> {
        request.name = exec_name(&request.name);
        self.repeat_call(may_resume, request, ExecServiceClient::resize_terminal)
            .await
            .map(|ResizeTerminalResponse {}| ())
    }

    /// Ends an exec's whole process tree with the server's grace period; returns when it is gone.
    ///
    /// # Errors
    ///
    /// [`Error::Status`] if the daemon refuses the call or cannot be reached.
    pub async fn kill_exec(&self, name: &str) -> Result<Exec, Error> {
        self.kill(name, None).await
    }

    /// Kills an exec with a grace period between SIGTERM and SIGKILL of at most 60 s; zero kills at once.
    ///
    /// # Errors
    ///
    /// [`Error::Status`] if the daemon refuses the call or cannot be reached.
    pub async fn kill_exec_after(&self, name: &str, grace: Duration) -> Result<Exec, Error> {
        self.kill(name, Some(grace)).await
    }

    async fn kill(&self, name: &str, grace: Option<Duration>) -> Result<Exec, Error> {
        // A duration that protobuf cannot hold is refused like any other that is too long.
        let too_long = prost_types::Duration {
            seconds: i64::MAX,
            nanos: 0,
        };
        let request = KillExecRequest {
            name: exec_name(name),
            grace: grace.map(|grace| grace.try_into().unwrap_or(too_long)),
        };
        self.retry_call(request, ExecServiceClient::kill_exec).await
    }
}

/// Completes a request: full resource names, and an id if it has none.
fn complete_request(mut request: RunExecRequest) -> RunExecRequest {
    if !request.parent.is_empty() {
        request.parent = workspace_name(&request.parent);
    }
    for skill in &mut request.skills {
        *skill = skill_name(skill);
    }
    if let Some(template) = &mut request.workspace_template {
        template.pool = requested_pool(&template.pool);
    }
    request.exec_id = id_or_new(request.exec_id, new_exec_id);
    request.spec = request.spec.map(complete_spec);
    request
}

/// Completes the name of a skill.
fn complete_spec(mut spec: ExecSpec) -> ExecSpec {
    if !spec.skill.is_empty() {
        spec.skill = skill_name(&spec.skill);
    }
    spec
}
