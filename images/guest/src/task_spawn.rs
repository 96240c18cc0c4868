//! The only place that spawns tasks. They end with the guest process, which ends with its container.

use std::future::Future;

/// Spawns a task on the guest's only thread.
#[expect(
    clippy::disallowed_methods,
    reason = "PID 1 has no shutdown of its own: no task outlives what owns it, the process"
)]
pub(crate) fn spawn<F>(task: F)
where
    F: Future<Output = ()> + Send + 'static,
{
    tokio::spawn(task);
}
