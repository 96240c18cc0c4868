//! Calls to the daemon as Python sees them: a value at once for blocking callers, an awaitable for those of asyncio.

use std::future::Future;
use std::pin::Pin;

use parking_lot::Mutex;
use pyo3::IntoPyObjectExt;
use pyo3::exceptions::PyRuntimeError;
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use tokio::task::AbortHandle;

use crate::errors::CallError;
use crate::runtime::CallEngine;

/// Value that can be handed to Python from another thread.
pub(crate) trait PythonAnswer: for<'py> IntoPyObject<'py> + Send + 'static {}
impl<T: for<'py> IntoPyObject<'py> + Send + 'static> PythonAnswer for T {}

type CallOutcome = Box<dyn FnOnce(Python<'_>) -> PyResult<Py<PyAny>> + Send>;
type CallFuture = Pin<Box<dyn Future<Output = CallOutcome> + Send>>;

/// Call that starts when it is awaited, once. Cancelling the awaiting task cancels the call.
#[pyclass(frozen, module = "skilld._skilld")]
pub(crate) struct PendingCall {
    work: Mutex<Option<CallFuture>>,
}

/// Returns the answer of a call, or the exception that it raises.
fn finish<T: PythonAnswer>(py: Python<'_>, answer: Result<T, CallError>) -> PyResult<Py<PyAny>> {
    match answer {
        Ok(value) => value.into_py_any(py),
        Err(error) => Err(error.into_exception(py)),
    }
}

/// Makes a call: waits for its answer, or returns a [`PendingCall`].
pub(crate) fn make_call<T: PythonAnswer>(
    py: Python<'_>,
    blocking: bool,
    work: impl Future<Output = Result<T, CallError>> + Send + 'static,
) -> PyResult<Py<PyAny>> {
    if blocking {
        let answer = CallEngine::of_process(py)?.wait(py, work)?;
        return finish(py, answer);
    }
    let work: CallFuture = Box::pin(async move {
        let answer = work.await;
        Box::new(move |py: Python<'_>| finish(py, answer)) as CallOutcome
    });
    let call = PendingCall {
        work: Mutex::new(Some(work)),
    };
    Ok(Py::new(py, call)?.into_any())
}

#[pymethods]
impl PendingCall {
    fn __await__<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        let work = self.work.lock().take();
        let work = work.ok_or_else(|| PyRuntimeError::new_err("the call was awaited before"))?;
        let engine = CallEngine::of_process(py)?;
        engine.check_completer()?;
        static RUNNING_LOOP: PyOnceLock<Py<PyAny>> = PyOnceLock::new();
        let running = RUNNING_LOOP.import(py, "asyncio", "get_running_loop")?;
        let event_loop = running.call0()?;
        let future = event_loop.call_method0("create_future")?;
        let (target, event_loop) = (future.clone().unbind(), event_loop.unbind());
        let complete = engine.completions();
        let task = engine.runtime.spawn(async move {
            let outcome = work.await;
            complete(Box::new(move |py| {
                complete_future(py, &event_loop, target, outcome);
            }));
        });
        let canceller = TaskCanceller {
            task: task.abort_handle(),
        };
        future.call_method1("add_done_callback", (canceller,))?;
        future.call_method0("__await__")
    }
}

/// Hands an outcome to a future in the thread of its loop. A loop that was closed takes nothing more.
fn complete_future(
    py: Python<'_>,
    event_loop: &Py<PyAny>,
    future: Py<PyAny>,
    outcome: CallOutcome,
) {
    let (value, error) = match outcome(py) {
        Ok(value) => (value, py.None()),
        Err(error) => (py.None(), error.into_value(py).into_any()),
    };
    let setter = FutureSetter;
    let _closed =
        event_loop.call_method1(py, "call_soon_threadsafe", (setter, future, value, error));
}

/// Callable that sets the result of a future unless it was cancelled.
#[pyclass(frozen)]
struct FutureSetter;

#[pymethods]
impl FutureSetter {
    fn __call__(
        &self,
        future: &Bound<'_, PyAny>,
        value: &Bound<'_, PyAny>,
        error: &Bound<'_, PyAny>,
    ) -> PyResult<()> {
        if future.call_method0("done")?.is_truthy()? {
            return Ok(());
        }
        match error.is_none() {
            true => future.call_method1("set_result", (value,))?,
            false => future.call_method1("set_exception", (error,))?,
        };
        Ok(())
    }
}

/// Callable that ends the task of a future that was cancelled.
#[pyclass(frozen)]
struct TaskCanceller {
    task: AbortHandle,
}

#[pymethods]
impl TaskCanceller {
    fn __call__(&self, _future: &Bound<'_, PyAny>) {
        self.task.abort();
    }
}
