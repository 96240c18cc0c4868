//! The one place that spawns: a guest's tasks end with the guest, which ends only with its container.

use std::future::Future;

/// Runs a task beside the others, on the guest's only thread.
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
