//! Owns the process's tokio runtime and the thread that completes asyncio futures. Both are made on first use, and made
//! again in a child process, because threads do not survive a fork.

use std::future::Future;
use std::pin::pin;
use std::sync::mpsc;
use std::thread::JoinHandle;
use std::time::Duration;

use parking_lot::Mutex;
use pyo3::exceptions::PyRuntimeError;
use pyo3::prelude::*;
use tokio::runtime::{Builder, Runtime};
use tokio::sync::watch;
use tokio::time::timeout;

/// Interval at which a waiting thread looks for signals such as Ctrl-C.
const SIGNAL_INTERVAL: Duration = Duration::from_millis(50);
/// Maximum number of threads that drive connections.
const WORKERS_MAX: usize = 4;
/// Maximum number of completions that wait for the interpreter.
const COMPLETIONS_MAX: usize = 4096;

/// Function that completes a future of asyncio.
pub(crate) type FutureCompletion = Box<dyn FnOnce(Python<'_>) + Send>;

/// Threads of this process.
pub(crate) struct CallEngine {
    /// Id of the process that made the threads.
    pub(crate) pid: u32,
    /// Runtime of all calls.
    pub(crate) runtime: Runtime,
    /// Queue of the thread that completes futures; `None` ends it.
    completions: mpsc::SyncSender<Option<FutureCompletion>>,
    /// Thread that completes futures.
    completer: Mutex<Option<JoinHandle<()>>>,
    /// Ends of clean-ups that were started, `true` for those that have ended.
    cleanups: Mutex<Vec<watch::Receiver<bool>>>,
}

/// Engine of the process. It is locked only by threads that are attached to the interpreter, and never while they
/// detach: so no other thread holds the lock at a fork, which needs the interpreter too.
static ENGINE: Mutex<Option<&'static CallEngine>> = Mutex::new(None);

impl CallEngine {
    /// Returns the engine of this process, which is made if it does not exist. That of a parent process is leaked:
    /// dropping it would wait for threads that do not exist here.
    pub(crate) fn of_process(py: Python<'_>) -> PyResult<&'static Self> {
        let mut engine = ENGINE.lock();
        let pid = std::process::id();
        if let Some(engine) = engine.filter(|engine| engine.pid == pid) {
            return Ok(engine);
        }
        let made: &'static Self = Box::leak(Box::new(Self::start(pid)?));
        *engine = Some(made);
        drop(engine);
        let stop = wrap_pyfunction!(stop_completions, py)?;
        py.import("atexit")?.call_method1("register", (stop,))?;
        Ok(made)
    }

    fn start(pid: u32) -> PyResult<Self> {
        let failed = |error: std::io::Error| {
            PyRuntimeError::new_err(format!("cannot start the threads of skilld: {error}"))
        };
        let cores = std::thread::available_parallelism().map_or(2, usize::from);
        let runtime = Builder::new_multi_thread()
            .worker_threads(cores.min(WORKERS_MAX))
            .thread_name("skilld")
            .enable_all()
            .build()
            .map_err(failed)?;
        let (completions, queue) = mpsc::sync_channel(COMPLETIONS_MAX);
        let completer = std::thread::Builder::new()
            .name("skilld-asyncio".to_owned())
            .spawn(move || run_completions(&queue))
            .map_err(failed)?;
        Ok(Self {
            pid,
            runtime,
            completions,
            completer: Mutex::new(Some(completer)),
            cleanups: Mutex::default(),
        })
    }

    /// Returns a function that hands a completion to the interpreter. After the end of the interpreter it does nothing.
    pub(crate) fn completions(&self) -> impl Fn(FutureCompletion) + Send + 'static {
        let completions = self.completions.clone();
        move |completion| {
            // The queue is full only while the interpreter is busy.
            let _ended = tokio::task::block_in_place(|| completions.send(Some(completion)));
        }
    }

    /// Waits for a future without holding the interpreter, and ends it if a signal handler raises an exception. Signal
    /// handlers run outside of the runtime, so that they can make calls too.
    pub(crate) fn wait<T: Send>(
        &self,
        py: Python<'_>,
        future: impl Future<Output = T> + Send,
    ) -> PyResult<T> {
        let is_main = rustix::thread::gettid() == rustix::process::getpid();
        let mut future = pin!(future);
        loop {
            let waited = py.detach(|| {
                self.runtime.block_on(async {
                    // Only the main thread handles signals.
                    match is_main {
                        true => timeout(SIGNAL_INTERVAL, &mut future).await.ok(),
                        false => Some((&mut future).await),
                    }
                })
            });
            match waited {
                Some(output) => return Ok(output),
                None => py.check_signals()?,
            }
        }
    }

    /// Starts clean-up work that goes on when its caller stops waiting. The interpreter waits for it before it ends.
    pub(crate) fn spawn_cleanup(
        &self,
        work: impl Future<Output = ()> + Send + 'static,
    ) -> watch::Receiver<bool> {
        let (ended, end) = watch::channel(false);
        self.runtime.spawn(async move {
            work.await;
            ended.send_replace(true);
        });
        let mut cleanups = self.cleanups.lock();
        cleanups.retain(|cleanup| !*cleanup.borrow());
        cleanups.push(end.clone());
        end
    }

    /// Fails once the interpreter ends: nothing completes a future then.
    pub(crate) fn check_completer(&self) -> PyResult<()> {
        match self.completer.lock().is_some() {
            true => Ok(()),
            false => Err(PyRuntimeError::new_err(
                "the interpreter is ending: skilld makes no asynchronous call any more",
            )),
        }
    }
}

/// Waits until a clean-up has ended.
pub(crate) async fn cleanup_end(mut end: watch::Receiver<bool>) {
    // A clean-up that panicked has ended too.
    let _panicked = end.wait_for(|ended| *ended).await;
}

/// Completes futures until the interpreter ends. It takes all that wait at once, so that the event loop's thread gives
/// up the interpreter once for them. The runtime's threads never wait for the interpreter.
fn run_completions(queue: &mpsc::Receiver<Option<FutureCompletion>>) {
    while let Ok(Some(first)) = queue.recv() {
        let goes_on = Python::try_attach(|py| {
            first(py);
            for next in queue.try_iter() {
                match next {
                    Some(next) => next(py),
                    None => return false,
                }
            }
            true
        });
        if goes_on != Some(true) {
            return;
        }
    }
}

/// Waits for clean-ups and ends the thread that completes futures: a thread that is attached while the interpreter ends
/// would crash it.
#[pyfunction]
fn stop_completions(py: Python<'_>) {
    let engine = *ENGINE.lock();
    let Some(engine) = engine.filter(|engine| engine.pid == std::process::id()) else {
        return;
    };
    let cleanups = std::mem::take(&mut *engine.cleanups.lock());
    let all_ended = async {
        for cleanup in cleanups {
            cleanup_end(cleanup).await;
        }
    };
    // Ctrl-C ends this wait, and so the clean-ups.
    let _interrupted = engine.wait(py, all_ended);
    let completer = engine.completer.lock().take();
    py.detach(|| {
        let _ended = engine.completions.send(None);
        if let Some(completer) = completer {
            let _panicked = completer.join();
        }
    });
}
