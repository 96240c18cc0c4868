//! Connection to a daemon, which is made by the first call and shared by all objects of one `Client`.

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use pyo3::prelude::*;
use skilld_client::{Client, ConnectOptions};
use tokio::sync::OnceCell;
use tokio::time::timeout;

use crate::call::{PythonAnswer, make_call};
use crate::errors::CallError;
use crate::runtime::{CallEngine, cleanup_end};

/// First version of the daemon that knows every call of this package, as numbers. Later ones know them too.
const DAEMON_VERSION_MIN: [u64; 3] = [0, 1, 0];

/// Longest clean-up after a cancelled call.
const CLEANUP_TIMEOUT: Duration = Duration::from_secs(20);

/// Connection of one process. Clones share it.
#[derive(Clone, Debug)]
pub(crate) struct Connection {
    shared: Arc<SharedConnection>,
    /// `true` if calls wait for their answers; otherwise they are awaited.
    pub(crate) blocking: bool,
    /// Id of the process that made it.
    pid: u32,
}

#[derive(Debug)]
struct SharedConnection {
    options: ConnectOptions,
    client: OnceCell<Client>,
}

impl Connection {
    pub(crate) fn new(options: ConnectOptions, blocking: bool) -> Self {
        let shared = SharedConnection {
            options,
            client: OnceCell::new(),
        };
        Self {
            shared: Arc::new(shared),
            blocking,
            pid: std::process::id(),
        }
    }

    /// Returns the same connection for calls that wait, or for calls that are awaited.
    pub(crate) fn in_mode(&self, blocking: bool) -> Self {
        Self {
            blocking,
            ..self.clone()
        }
    }

    /// Makes a call, in the way of this connection.
    pub(crate) fn call<T: PythonAnswer, F>(
        &self,
        py: Python<'_>,
        work: impl FnOnce(Client) -> F + Send + 'static,
    ) -> PyResult<Py<PyAny>>
    where
        F: Future<Output = Result<T, CallError>> + Send + 'static,
    {
        self.check_process(py)?;
        let shared = Arc::clone(&self.shared);
        make_call(py, self.blocking, async move {
            let client = shared.connect().await?;
            work(client).await
        })
    }

    /// Returns the client, which is connected if that was not done before.
    pub(crate) async fn client(&self) -> Result<Client, CallError> {
        self.shared.connect().await
    }

    /// Starts clean-up work at once, and returns a call that waits for its end. The work goes on if the caller stops
    /// waiting.
    pub(crate) fn clean_up(
        &self,
        py: Python<'_>,
        work: impl Future<Output = ()> + Send + 'static,
    ) -> PyResult<Py<PyAny>> {
        self.check_process(py)?;
        let end = CallEngine::of_process(py)?.spawn_cleanup(async move {
            let _too_late = timeout(CLEANUP_TIMEOUT, work).await;
        });
        make_call(py, self.blocking, async move {
            cleanup_end(end).await;
            Ok::<(), CallError>(())
        })
    }

    /// Fails in a child of the process that made the connection: its threads do not exist there.
    pub(crate) fn check_process(&self, py: Python<'_>) -> PyResult<()> {
        if std::process::id() == self.pid {
            return Ok(());
        }
        let message = "this object was made before fork(), and its connection belongs to the parent process: make \
            another one here, for instance with Sandbox.connect(sandbox_id)";
        let error = CallError::Refused("USE_AFTER_FORK", message.to_owned());
        Err(error.into_exception(py))
    }
}

impl SharedConnection {
    async fn connect(&self) -> Result<Client, CallError> {
        let connect = || async {
            let client = Client::connect_with(&self.options).await?;
            // A caller that may not ask still gets the answers to its other calls.
            if let Ok(info) = client.server_info().await {
                check_version(&info.version).map_err(|message| {
                    CallError::Refused(
                        "VERSION_MISMATCH",
                        format!("{}: {message}", self.options.endpoint),
                    )
                })?;
            }
            Ok(client)
        };
        self.client.get_or_try_init(connect).await.cloned()
    }
}

/// Returns the fault of a daemon's version, if it is too old for this package.
pub(crate) fn check_version(version: &str) -> Result<(), String> {
    let numbers = version.split(['.', '-', '+']).map(str::parse);
    let numbers: Vec<u64> = numbers.map_while(Result::ok).take(3).collect();
    if numbers.as_slice() >= DAEMON_VERSION_MIN.as_slice() {
        return Ok(());
    }
    let [major, minor, patch] = DAEMON_VERSION_MIN;
    let own = env!("CARGO_PKG_VERSION");
    Err(format!(
        "the daemon has the version {version}, and skilld {own} for Python needs {major}.{minor}.{patch} or a later \
         one: upgrade the daemon, or install the package of its version"
    ))
}
