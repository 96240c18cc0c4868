//! Arguments of calls, as the Python part of the package passes them, and the requests that they become.

use std::borrow::Cow;
use std::collections::{BTreeMap, HashMap};
use std::time::Duration;

use bytes::Bytes;
use pyo3::prelude::*;
use pyo3::pybacked::PyBackedBytes;
use pyo3::types::PyString;
use skilld_client::v1::input_spec::Content;
use skilld_client::v1::{
    ArtifactScope, CollectSpec, ExecLimits, ExecSpec, ExecTerminal, InputSpec, RunExecRequest,
    RunOutputs, SaveAsArtifacts, WorkspaceLimits, WorkspaceTemplate,
};

use crate::errors::{CallError, invalid_argument, is_own_exception};

/// Text that is valid Unicode. Python strings can hold lone surrogates, which no message and no file name here can.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct ValidText(pub(crate) String);

impl<'a, 'py> FromPyObject<'a, 'py> for ValidText {
    type Error = PyErr;

    fn extract(object: Borrowed<'a, 'py, PyAny>) -> PyResult<Self> {
        let text = object.cast::<PyString>()?;
        let py = object.py();
        let valid = text.to_cow().map(Cow::into_owned);
        valid.map(Self).map_err(|_| {
            let shown = text.repr().map(|repr| repr.to_string_lossy().into_owned());
            let shown: String = shown.unwrap_or_default().chars().take(80).collect();
            let message =
                format!("{shown} has a lone surrogate, which is no text: pass bytes as a file");
            invalid_argument(py, &message)
        })
    }
}

/// Arguments whose refusal of one text is not wrapped in errors about the dictionary around it.
pub(crate) struct CheckedArguments<T>(pub(crate) T);

impl<'a, 'py, T: FromPyObject<'a, 'py>> FromPyObject<'a, 'py> for CheckedArguments<T> {
    type Error = PyErr;

    fn extract(object: Borrowed<'a, 'py, PyAny>) -> PyResult<Self> {
        let py = object.py();
        object.extract().map(Self).map_err(|error| {
            let error: PyErr = error.into();
            let mut innermost = error.clone_ref(py);
            while let Some(cause) = innermost.cause(py) {
                innermost = cause;
            }
            match is_own_exception(py, &innermost) {
                true => innermost,
                false => error,
            }
        })
    }
}

/// Bytes of a Python object, which are not copied.
pub(crate) fn shared_bytes(data: PyBackedBytes) -> Bytes {
    Bytes::from_owner(data)
}

/// Returns a map of texts as messages have it.
pub(crate) fn text_map(map: HashMap<ValidText, ValidText>) -> BTreeMap<String, String> {
    map.into_iter()
        .map(|(key, value)| (key.0, value.0))
        .collect()
}

/// Returns a list of texts as messages have it.
pub(crate) fn text_list(list: Vec<ValidText>) -> Vec<String> {
    list.into_iter().map(|text| text.0).collect()
}

/// Returns a number of seconds as messages have it.
pub(crate) fn duration(
    name: &str,
    seconds: Option<f64>,
) -> Result<Option<prost_types::Duration>, CallError> {
    let Some(seconds) = seconds else {
        return Ok(None);
    };
    let duration = Duration::try_from_secs_f64(seconds).ok();
    let duration = duration.and_then(|duration| prost_types::Duration::try_from(duration).ok());
    let fault = || CallError::Argument(format!("{name} is {seconds}: give seconds, 0 or more"));
    duration.map(Some).ok_or_else(fault)
}

/// Names that own artifacts.
#[derive(FromPyObject, Debug, Default)]
#[pyo3(from_item_all)]
pub(crate) struct ScopeArguments {
    app: ValidText,
    user: ValidText,
    session: ValidText,
}

impl From<ScopeArguments> for ArtifactScope {
    fn from(scope: ScopeArguments) -> Self {
        Self {
            app: scope.app.0,
            user: scope.user.0,
            session: scope.session.0,
        }
    }
}

/// Limits of a workspace; 0 means the pool's value.
#[derive(FromPyObject, Debug)]
#[pyo3(from_item_all)]
pub(crate) struct LimitArguments {
    memory_bytes: i64,
    cpu_millis: i64,
    pids: i64,
    disk_bytes: i64,
}

impl From<LimitArguments> for WorkspaceLimits {
    fn from(limits: LimitArguments) -> Self {
        Self {
            memory_bytes: limits.memory_bytes,
            cpu_millis: limits.cpu_millis,
            pids: limits.pids,
            disk_bytes: limits.disk_bytes,
            inodes: 0,
        }
    }
}

/// Workspace to claim, for one run or for longer.
#[derive(FromPyObject, Debug)]
#[pyo3(from_item_all)]
pub(crate) struct WorkspaceArguments {
    pub(crate) pool: ValidText,
    pub(crate) labels: HashMap<ValidText, ValidText>,
    pub(crate) env: HashMap<ValidText, ValidText>,
    pub(crate) limits: Option<LimitArguments>,
    pub(crate) idle_timeout: Option<f64>,
    pub(crate) max_lifetime: Option<f64>,
}

/// Input of a run: a reference that the daemon resolves, bytes, or a tar to unpack.
#[derive(FromPyObject, Debug)]
#[pyo3(from_item_all)]
pub(crate) struct InputArguments {
    path: ValidText,
    source: Option<ValidText>,
    data: Option<PyBackedBytes>,
    is_archive: bool,
}

impl From<InputArguments> for InputSpec {
    fn from(input: InputArguments) -> Self {
        let content = match (input.source, input.data) {
            (Some(source), _) => Some(Content::Source(source.0)),
            (None, data) => {
                let data = data.map(shared_bytes).unwrap_or_default();
                Some(match input.is_archive {
                    true => Content::Archive(data),
                    false => Content::Data(data),
                })
            }
        };
        Self {
            content,
            path: input.path.0,
            ..Self::default()
        }
    }
}

/// Files to collect after a run.
#[derive(FromPyObject, Debug)]
#[pyo3(from_item_all)]
pub(crate) struct OutputArguments {
    globs: Vec<ValidText>,
    max_files: i64,
    max_file_bytes: i64,
    max_total_bytes: i64,
    save: Option<ValidText>,
    scope: Option<ScopeArguments>,
}

impl OutputArguments {
    /// Returns the selection of files. `request_id` makes saving them as artifacts repeatable.
    pub(crate) fn into_spec(self, request_id: &str) -> CollectSpec {
        let scope = self.scope.map(ArtifactScope::from);
        let save_as_artifacts = self.save.map(|prefix| SaveAsArtifacts {
            prefix: prefix.0,
            scope,
            request_id: request_id.to_owned(),
        });
        CollectSpec {
            globs: text_list(self.globs),
            max_files: self.max_files,
            max_file_bytes: self.max_file_bytes,
            max_total_bytes: self.max_total_bytes,
            save_as_artifacts,
            ..CollectSpec::default()
        }
    }
}

/// Command to run, and what belongs to it.
#[derive(FromPyObject, Debug)]
#[pyo3(from_item_all)]
pub(crate) struct RunArguments {
    parent: ValidText,
    exec_id: ValidText,
    argv: Vec<ValidText>,
    shell: ValidText,
    skill: ValidText,
    cwd: ValidText,
    env: HashMap<ValidText, ValidText>,
    stdin: Option<PyBackedBytes>,
    open_stdin: bool,
    terminal: Option<(u32, u32)>,
    timeout: Option<f64>,
    /// Maximum number of bytes of output, beyond which the command is killed; 0 for no maximum.
    output_bytes: i64,
    template: Option<WorkspaceArguments>,
    keep: bool,
    skills: Vec<ValidText>,
    inputs: Vec<InputArguments>,
    /// Owner of the artifacts that inputs name.
    scope: Option<ScopeArguments>,
    outputs: Option<OutputArguments>,
}

impl RunArguments {
    /// Returns the workspace that the run claims and that is not to be kept, by its id.
    pub(crate) fn own_workspace(&self) -> Option<String> {
        let is_own = self.template.is_some() && !self.keep;
        is_own.then(|| self.exec_id.0.clone())
    }

    /// Returns the name of the exec, `workspace/exec`.
    pub(crate) fn exec_name(&self) -> String {
        let workspace = match self.template {
            Some(_) => &self.exec_id.0,
            None => &self.parent.0,
        };
        format!("{workspace}/{}", self.exec_id.0)
    }

    /// Returns the request.
    pub(crate) fn into_request(self) -> Result<RunExecRequest, CallError> {
        let exec_id = self.exec_id.0;
        let spec = ExecSpec {
            argv: text_list(self.argv),
            shell: self.shell.0,
            skill: self.skill.0,
            cwd: self.cwd.0,
            env: text_map(self.env),
            stdin_data: self.stdin.map(shared_bytes).unwrap_or_default(),
            open_stdin: self.open_stdin,
            terminal: self.terminal.map(|(rows, cols)| ExecTerminal {
                rows,
                cols,
                ..ExecTerminal::default()
            }),
            timeout: duration("timeout", self.timeout)?,
            limits: (self.output_bytes > 0).then(|| ExecLimits {
                output_bytes: self.output_bytes,
                ..ExecLimits::default()
            }),
            ..ExecSpec::default()
        };
        let keep = self.keep;
        let template = self.template.map(|template| into_template(template, keep));
        let outputs = self.outputs.map(|outputs| RunOutputs {
            spec: Some(outputs.into_spec(&exec_id)),
            ..RunOutputs::default()
        });
        Ok(RunExecRequest {
            parent: self.parent.0,
            exec_id,
            spec: Some(spec),
            workspace_template: template.transpose()?,
            skills: text_list(self.skills),
            inputs: self.inputs.into_iter().map(InputSpec::from).collect(),
            scope: self.scope.map(ArtifactScope::from),
            outputs,
            ..RunExecRequest::default()
        })
    }
}

fn into_template(
    workspace: WorkspaceArguments,
    keep: bool,
) -> Result<WorkspaceTemplate, CallError> {
    Ok(WorkspaceTemplate {
        pool: workspace.pool.0,
        labels: text_map(workspace.labels),
        env: text_map(workspace.env),
        limits: workspace.limits.map(WorkspaceLimits::from),
        keep,
        idle_timeout: duration("idle_timeout", workspace.idle_timeout)?,
        max_lifetime: duration("max_lifetime", workspace.max_lifetime)?,
    })
}
