//! `Client`: connection, workspaces and execs of one daemon.

use std::collections::HashMap;
use std::path::PathBuf;
use std::time::Duration;

use pyo3::prelude::*;
use pyo3::pybacked::PyBackedBytes;
use skilld_client::v1::create_workspace_request::Expiry;
use skilld_client::v1::{
    AttachExecRequest, CreateWorkspaceRequest, ListExecsRequest, ListWorkspacesRequest,
    RenewWorkspaceRequest, ResizeTerminalRequest, StreamOffsets, WorkspaceLimits,
};
use skilld_client::{ConnectOptions, TokenSource};
use tokio::sync::oneshot;

use crate::arguments::{
    CheckedArguments, RunArguments, ValidText, WorkspaceArguments, duration, shared_bytes, text_map,
};
use crate::connection::Connection;
use crate::errors::{CallError, was_found};
use crate::results::{ExecAnswer, WorkspaceAnswer};
use crate::run::{KILL_GRACE, RunStream};
use crate::runtime::CallEngine;

/// Connection to a daemon. With `blocking`, its methods wait for their answers; otherwise they return awaitables.
#[pyclass(frozen, module = "skilld._skilld")]
pub(crate) struct Client {
    pub(crate) connection: Connection,
}

/// Returns the point in time that is this many seconds away.
fn time_after(seconds: f64) -> Result<prost_types::Timestamp, CallError> {
    let fault = || CallError::Argument(format!("timeout is {seconds}: give seconds, 0 or more"));
    let after = Duration::try_from_secs_f64(seconds).map_err(|_| fault())?;
    let time = std::time::SystemTime::now().checked_add(after);
    time.map(prost_types::Timestamp::from).ok_or_else(fault)
}

#[pymethods]
impl Client {
    #[new]
    #[pyo3(signature = (
        blocking, endpoint=None, token=None, token_file=None, ca_file=None, cert_file=None, key_file=None, tenant=None
    ))]
    #[expect(clippy::too_many_arguments, reason = "these are keywords of Python")]
    fn new(
        blocking: bool,
        endpoint: Option<ValidText>,
        token: Option<ValidText>,
        token_file: Option<PathBuf>,
        ca_file: Option<PathBuf>,
        cert_file: Option<PathBuf>,
        key_file: Option<PathBuf>,
        tenant: Option<ValidText>,
    ) -> Self {
        let mut options = ConnectOptions::from_environment();
        if let Some(endpoint) = endpoint {
            options.endpoint = endpoint.0;
        }
        let token = token.map(|token| TokenSource::Token(token.0));
        options.token = token
            .or(token_file.map(TokenSource::File))
            .or(options.token);
        options.ca_file = ca_file.or(options.ca_file);
        options.cert_file = cert_file.or(options.cert_file);
        options.key_file = key_file.or(options.key_file);
        options.tenant = tenant.map(|tenant| tenant.0).or(options.tenant);
        Self {
            connection: Connection::new(options, blocking),
        }
    }

    /// Creates a workspace. With `discards`, it is deleted if the caller has stopped waiting when it is made: the
    /// daemon goes on with a creation whose caller is gone.
    fn create_workspace(
        &self,
        py: Python<'_>,
        id: ValidText,
        arguments: CheckedArguments<WorkspaceArguments>,
        discards: bool,
    ) -> PyResult<Py<PyAny>> {
        let engine = CallEngine::of_process(py)?;
        self.connection.call(py, move |client| async move {
            let lifetime = duration("max_lifetime", arguments.0.max_lifetime)?;
            let request = CreateWorkspaceRequest {
                workspace_id: id.0,
                pool: arguments.0.pool.0,
                labels: text_map(arguments.0.labels),
                env: text_map(arguments.0.env),
                limits: arguments.0.limits.map(WorkspaceLimits::from),
                idle_timeout: duration("idle_timeout", arguments.0.idle_timeout)?,
                expiry: lifetime.map(Expiry::MaxLifetime),
                ..CreateWorkspaceRequest::default()
            };
            let (answer, created) = oneshot::channel();
            engine.spawn_cleanup(async move {
                let unread = answer.send(client.create_workspace(request).await);
                if let (true, Err(Ok(workspace))) = (discards, unread) {
                    // No caller waits for the error of a deletion.
                    let _refused = client.delete_workspace_if_exists(&workspace.name).await;
                }
            });
            let ended = || CallError::Refused("CANCELLED", "the call has ended".to_owned());
            let workspace = created.await.map_err(|_| ended())??;
            Ok(WorkspaceAnswer::from(workspace))
        })
    }

    fn get_workspace(&self, py: Python<'_>, id: ValidText) -> PyResult<Py<PyAny>> {
        self.connection.call(py, |client| async move {
            let workspace = client.get_workspace(&id.0).await?;
            Ok(WorkspaceAnswer::from(workspace))
        })
    }

    fn list_workspaces(
        &self,
        py: Python<'_>,
        labels: HashMap<ValidText, ValidText>,
    ) -> PyResult<Py<PyAny>> {
        let labels = text_map(labels);
        self.connection.call(py, |client| async move {
            let request = ListWorkspacesRequest {
                labels,
                ..ListWorkspacesRequest::default()
            };
            let all = client.read_all_pages(request).await?.workspaces;
            Ok(all
                .into_iter()
                .map(WorkspaceAnswer::from)
                .collect::<Vec<_>>())
        })
    }

    /// Sets the idle timeout of a workspace, and its end of life, both in seconds from now.
    fn renew_workspace(
        &self,
        py: Python<'_>,
        id: ValidText,
        idle_timeout: Option<f64>,
        expires_in: Option<f64>,
    ) -> PyResult<Py<PyAny>> {
        self.connection.call(py, move |client| async move {
            let request = RenewWorkspaceRequest {
                name: id.0,
                idle_timeout: duration("timeout", idle_timeout)?,
                expire_time: expires_in.map(time_after).transpose()?,
            };
            let workspace = client.renew_workspace(request).await?;
            Ok(WorkspaceAnswer::from(workspace))
        })
    }

    /// Deletes a workspace; returns False if it does not exist.
    fn delete_workspace(&self, py: Python<'_>, id: ValidText) -> PyResult<Py<PyAny>> {
        self.connection.call(py, |client| async move {
            was_found(client.delete_workspace(&id.0).await)
        })
    }

    /// Deletes a workspace after its caller failed or was cancelled. The deletion goes on if the caller stops waiting.
    fn discard_workspace(&self, py: Python<'_>, id: ValidText) -> PyResult<Py<PyAny>> {
        let connection = self.connection.clone();
        self.connection.clean_up(py, async move {
            if let Ok(client) = connection.client().await {
                // The error that made the caller give up counts, not one of the clean-up.
                let _refused = client.delete_workspace_if_exists(&id.0).await;
            }
        })
    }

    /// Returns the stream of a command, which its first method starts.
    fn open_run(
        &self,
        py: Python<'_>,
        arguments: CheckedArguments<RunArguments>,
    ) -> PyResult<RunStream> {
        let (name, own_workspace) = (arguments.0.exec_name(), arguments.0.own_workspace());
        let request = arguments.0.into_request();
        let request = request.map_err(|error| error.into_exception(py))?;
        let connection = self.connection.clone();
        let start = |client: &skilld_client::Client| client.run_resuming(request);
        Ok(RunStream::new(connection, start, name, own_workspace))
    }

    /// Returns the stream of a command from offsets of its output.
    fn attach(&self, name: ValidText, stdout: i64, stderr: i64) -> RunStream {
        let request = AttachExecRequest {
            name: name.0.clone(),
            offsets: Some(StreamOffsets {
                stdout_bytes: stdout,
                stderr_bytes: stderr,
            }),
            ..AttachExecRequest::default()
        };
        let start = |client: &skilld_client::Client| client.attach_resuming(request);
        RunStream::new(self.connection.clone(), start, name.0, None)
    }

    fn get_exec(&self, py: Python<'_>, name: ValidText) -> PyResult<Py<PyAny>> {
        self.connection.call(py, |client| async move {
            let exec = client.get_exec(&name.0).await?;
            Ok(ExecAnswer::from(exec))
        })
    }

    fn list_execs(&self, py: Python<'_>, workspace: ValidText) -> PyResult<Py<PyAny>> {
        self.connection.call(py, |client| async move {
            let request = ListExecsRequest {
                parent: workspace.0,
                ..ListExecsRequest::default()
            };
            let all = client.read_all_pages(request).await?.execs;
            Ok(all.into_iter().map(ExecAnswer::from).collect::<Vec<_>>())
        })
    }

    /// Kills a command with everything that it started; returns False if it does not exist.
    fn kill_exec(&self, py: Python<'_>, name: ValidText) -> PyResult<Py<PyAny>> {
        self.connection.call(py, |client| async move {
            was_found(client.kill_exec_after(&name.0, KILL_GRACE).await)
        })
    }

    /// Appends to the stdin of a command.
    fn write_stdin(
        &self,
        py: Python<'_>,
        name: ValidText,
        data: PyBackedBytes,
        eof: bool,
    ) -> PyResult<Py<PyAny>> {
        self.connection.call(py, move |client| async move {
            let mut writer = client.stdin_end(&name.0);
            writer.write(shared_bytes(data)).await?;
            if eof {
                writer.end().await?;
            }
            Ok(())
        })
    }

    fn resize_terminal(
        &self,
        py: Python<'_>,
        name: ValidText,
        rows: u32,
        cols: u32,
    ) -> PyResult<Py<PyAny>> {
        self.connection.call(py, move |client| async move {
            let request = ResizeTerminalRequest {
                name: name.0,
                rows,
                cols,
            };
            Ok(client.resize_terminal(request).await?)
        })
    }
}
