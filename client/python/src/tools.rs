//! `Toolset` and `ToolSession`: the skill tools for models, on top of `skilld-tools`.

use std::future::Future;
use std::sync::Arc;

use pyo3::prelude::*;
use pyo3::types::{PyByteArray, PyBytes, PyMapping, PySequence, PyString};
use pythonize::{depythonize, pythonize};
use serde_json::Value;
use skilld_tools::host_tools::HostTools;
use skilld_tools::prompt::Provider;
use skilld_tools::state::SessionState;
use skilld_tools::{Session, SkillSession, Skills, ToolCall, ToolOptions};
use tokio::sync::{Mutex, OnceCell};

use crate::arguments::ValidText;
use crate::call::PythonAnswer;
use crate::client::Client;
use crate::connection::Connection;
use crate::errors::{CallError, invalid_argument};

/// JSON value that becomes dictionaries, lists and their like.
struct JsonValue(Value);

impl<'py> IntoPyObject<'py> for JsonValue {
    type Target = PyAny;
    type Output = Bound<'py, PyAny>;
    type Error = PyErr;

    fn into_pyobject(self, py: Python<'py>) -> PyResult<Self::Output> {
        Ok(pythonize(py, &self.0)?)
    }
}

/// Maximum depth of a value from Python. Deeper ones, and those that contain themselves, would overflow the stack.
const DEPTH_MAX: usize = 128;

/// Returns `true` if a value has at most `depth` levels of dictionaries, lists and their like.
fn is_shallow(object: &Bound<'_, PyAny>, depth: usize) -> PyResult<bool> {
    let is_text = object.is_instance_of::<PyString>()
        || object.is_instance_of::<PyBytes>()
        || object.is_instance_of::<PyByteArray>();
    let items = match (object.cast::<PyMapping>(), object.cast::<PySequence>()) {
        (Ok(mapping), _) => mapping.values()?.into_any(),
        (Err(_), Ok(items)) if !is_text => items.clone().into_any(),
        (Err(_), Ok(_) | Err(_)) => return Ok(true),
    };
    for item in items.try_iter()? {
        if depth == 0 || !is_shallow(&item?, depth - 1)? {
            return Ok(false);
        }
    }
    Ok(true)
}

/// Reads a JSON value from dictionaries, lists and their like.
fn read_json(object: &Bound<'_, PyAny>, name: &str) -> PyResult<Value> {
    if !is_shallow(object, DEPTH_MAX)? {
        let message = format!("{name} contains itself, or has more than {DEPTH_MAX} levels");
        return Err(invalid_argument(object.py(), &message));
    }
    depythonize(object).map_err(|error| {
        let message = format!("{name} has something that JSON has not: {error}");
        invalid_argument(object.py(), &message)
    })
}

fn read_provider(py: Python<'_>, name: &str) -> PyResult<Provider> {
    match name {
        "openai" => Ok(Provider::OpenAiChat),
        "openai-responses" => Ok(Provider::OpenAiResponses),
        "anthropic" => Ok(Provider::Anthropic),
        _ => Err(invalid_argument(
            py,
            &format!("unknown provider {name:?}: openai, openai-responses or anthropic"),
        )),
    }
}

/// Skill tools of a daemon with the options of a host. It connects with the first call.
#[pyclass(frozen, module = "skilld._skilld")]
pub(crate) struct Toolset {
    connection: Connection,
    shared: Arc<SharedTools>,
}

/// Options, and the tools once the daemon was connected.
struct SharedTools {
    options: ToolOptions,
    /// Tools of sessions that prepare requests, which then have the text of loaded skills.
    prompted: OnceCell<Skills>,
    /// Tools of sessions whose host makes the requests: results of tools have the text of loaded skills.
    inlined: OnceCell<Skills>,
}

impl SharedTools {
    async fn skills(
        &self,
        client: skilld_client::Client,
        prepares: bool,
    ) -> Result<&Skills, CallError> {
        let connect = || async {
            let mut options = self.options.clone();
            options.inline_skills |= !prepares;
            let tools = skilld_tools::Toolset::new(client, options, HostTools::new())?;
            Ok(Skills::new(tools))
        };
        let cell = if prepares {
            &self.prompted
        } else {
            &self.inlined
        };
        cell.get_or_try_init(connect).await
    }
}

#[pymethods]
impl Toolset {
    #[new]
    fn new(py: Python<'_>, client: &Client, options: &Bound<'_, PyAny>) -> PyResult<Self> {
        let options = serde_json::from_value(read_json(options, "options")?);
        let fault = |error| invalid_argument(py, &format!("options: {error}"));
        let shared = SharedTools {
            options: options.map_err(fault)?,
            prompted: OnceCell::new(),
            inlined: OnceCell::new(),
        };
        Ok(Self {
            connection: client.connection.clone(),
            shared: Arc::new(shared),
        })
    }

    /// Starts or continues a conversation, in an existing workspace unless that is empty.
    fn session(
        &self,
        app: ValidText,
        user: ValidText,
        session: ValidText,
        agent: ValidText,
        workspace: ValidText,
    ) -> ToolSession {
        let shared = SharedSession {
            tools: Arc::clone(&self.shared),
            name: Session {
                app: app.0,
                user: user.0,
                session: session.0,
                agent: agent.0,
                workspace: workspace.0,
            },
            opened: Mutex::default(),
        };
        ToolSession {
            connection: self.connection.clone(),
            shared: Arc::new(shared),
        }
    }
}

/// Conversation with skills. Each method waits for its answer if its first argument is True, and is awaited otherwise.
#[pyclass(frozen, module = "skilld._skilld")]
pub(crate) struct ToolSession {
    connection: Connection,
    shared: Arc<SharedSession>,
}

struct SharedSession {
    tools: Arc<SharedTools>,
    name: Session,
    opened: Mutex<OpenedSession>,
}

/// Session with the tools that it was opened with.
#[derive(Default)]
struct OpenedSession {
    /// `true` if the host prepares requests, `false` if it takes the tools alone; `None` until a call shows it.
    prepares: Option<bool>,
    session: Option<(bool, Arc<SkillSession>)>,
}

impl SharedSession {
    /// Returns the session. `prepares` is `None` for calls of both kinds of hosts; the first other one decides.
    async fn open(
        &self,
        client: skilld_client::Client,
        prepares: Option<bool>,
    ) -> Result<Arc<SkillSession>, CallError> {
        let opened = &mut *self.opened.lock().await;
        opened.prepares = opened.prepares.or(prepares);
        let prepares = opened.prepares.unwrap_or(true);
        let earlier = match &opened.session {
            Some((kind, session)) if *kind == prepares => return Ok(Arc::clone(session)),
            Some((_, session)) => Some(session.state().await),
            None => None,
        };
        let skills = self.tools.skills(client, prepares).await?;
        let session = Arc::new(skills.session_of(self.name.clone()));
        if let Some(state) = earlier {
            session.restore(state).await;
        }
        opened.session = Some((prepares, Arc::clone(&session)));
        Ok(session)
    }

    /// Ends the session with all tools that were opened: a session of the same name has the same workspace.
    async fn end(&self, client: skilld_client::Client) -> Result<(), CallError> {
        let opened = [self.tools.prompted.get(), self.tools.inlined.get()];
        let mut opened: Vec<&Skills> = opened.into_iter().flatten().collect();
        if opened.is_empty() {
            opened.push(self.tools.skills(client, true).await?);
        }
        for skills in opened {
            skills.session_of(self.name.clone()).end().await?;
        }
        Ok(())
    }
}

impl ToolSession {
    /// Makes a call on the session, in the way that the caller wants.
    fn call_session<T: PythonAnswer, F>(
        &self,
        py: Python<'_>,
        blocking: bool,
        work: impl FnOnce(Arc<SharedSession>, skilld_client::Client) -> F + Send + 'static,
    ) -> PyResult<Py<PyAny>>
    where
        F: Future<Output = Result<T, CallError>> + Send + 'static,
    {
        let shared = Arc::clone(&self.shared);
        let connection = self.connection.in_mode(blocking);
        connection.call(py, move |client| work(shared, client))
    }
}

#[pymethods]
impl ToolSession {
    /// Id of the workspace in which the session's commands run.
    #[getter]
    fn workspace_id(&self) -> String {
        self.shared.name.workspace_id()
    }

    /// Returns the definitions of the tools to offer now.
    fn tools(&self, py: Python<'_>, blocking: bool) -> PyResult<Py<PyAny>> {
        self.call_session(py, blocking, |shared, client| async move {
            let tools = shared
                .open(client, Some(false))
                .await?
                .definitions()
                .await?;
            Ok(JsonValue(serde_json::to_value(tools).unwrap_or_default()))
        })
    }

    /// Makes one call and returns the text for the model.
    fn call(
        &self,
        py: Python<'_>,
        blocking: bool,
        name: ValidText,
        arguments: &Bound<'_, PyAny>,
        id: ValidText,
    ) -> PyResult<Py<PyAny>> {
        let call = ToolCall {
            id: id.0,
            name: name.0,
            arguments: read_json(arguments, "arguments")?,
        };
        self.call_session(py, blocking, |shared, client| async move {
            Ok(shared.open(client, Some(false)).await?.call(call).await)
        })
    }

    /// Returns a request body with the text of skills and the tools.
    fn prepare(
        &self,
        py: Python<'_>,
        blocking: bool,
        provider: &str,
        body: &Bound<'_, PyAny>,
    ) -> PyResult<Py<PyAny>> {
        let (provider, mut body) = (read_provider(py, provider)?, read_json(body, "body")?);
        self.call_session(py, blocking, move |shared, client| async move {
            shared
                .open(client, Some(true))
                .await?
                .prepare(provider, &mut body)
                .await?;
            Ok(JsonValue(body))
        })
    }

    /// Makes the calls of a reply and returns the messages that answer them.
    fn answer(
        &self,
        py: Python<'_>,
        blocking: bool,
        provider: &str,
        reply: &Bound<'_, PyAny>,
    ) -> PyResult<Py<PyAny>> {
        let (provider, reply) = (read_provider(py, provider)?, read_json(reply, "reply")?);
        self.call_session(py, blocking, move |shared, client| async move {
            let results = shared
                .open(client, Some(true))
                .await?
                .answer(provider, &reply)
                .await?;
            Ok(JsonValue(Value::Array(results)))
        })
    }

    /// Loads skills for the next turn. Returns the names of skills that had to make room.
    fn preload(
        &self,
        py: Python<'_>,
        blocking: bool,
        skills: &Bound<'_, PyAny>,
    ) -> PyResult<Py<PyAny>> {
        let skills = read_json(skills, "skills")?;
        self.call_session(py, blocking, move |shared, client| async move {
            Ok(shared.open(client, None).await?.preload(&skills).await?)
        })
    }

    /// Returns the state, for a host that stores it.
    fn state(&self, py: Python<'_>, blocking: bool) -> PyResult<Py<PyAny>> {
        self.call_session(py, blocking, |shared, client| async move {
            let state = shared.open(client, None).await?.state().await;
            Ok(JsonValue(serde_json::to_value(state).unwrap_or_default()))
        })
    }

    /// Replaces the state by one that the host stored.
    fn restore(
        &self,
        py: Python<'_>,
        blocking: bool,
        state: &Bound<'_, PyAny>,
    ) -> PyResult<Py<PyAny>> {
        let state = serde_json::from_value::<SessionState>(read_json(state, "state")?);
        let state = state.map_err(|error| invalid_argument(py, &format!("state: {error}")))?;
        self.call_session(py, blocking, |shared, client| async move {
            shared.open(client, None).await?.restore(state).await;
            Ok(())
        })
    }

    /// Ends the conversation: deletes its workspace and closes its connections.
    fn end(&self, py: Python<'_>, blocking: bool) -> PyResult<Py<PyAny>> {
        self.call_session(py, blocking, |shared, client| async move {
            shared.end(client).await
        })
    }
}
