//! Count of the open calls, for which a drain waits.

use std::sync::Arc;

use tokio::sync::watch;

/// Number of open calls that a drain waits for. A call is open until the end of its response's body. Clones share the
/// count.
#[derive(Debug, Clone)]
pub struct OpenCalls(Arc<watch::Sender<usize>>);

/// Counts one call as open until it is dropped.
#[derive(Debug)]
pub(super) struct OpenCallGuard(OpenCalls);

impl Default for OpenCalls {
    fn default() -> Self {
        Self(Arc::new(watch::Sender::new(0)))
    }
}

impl OpenCalls {
    /// Waits until no call is open.
    pub async fn wait_for_none(&self) {
        // The wait fails only if the sender is dropped, and `self` holds it.
        drop(self.0.subscribe().wait_for(|count| *count == 0).await);
    }

    /// Returns the current number of open calls.
    pub fn count(&self) -> usize {
        *self.0.borrow()
    }

    /// Counts one more call.
    pub(super) fn open(&self) -> OpenCallGuard {
        self.0.send_modify(|count| *count += 1);
        OpenCallGuard(self.clone())
    }
}

impl Drop for OpenCallGuard {
    fn drop(&mut self) {
        self.0.0.send_modify(|count| *count -= 1);
    }
}

#[cfg(test)]
mod tests {
    use futures::FutureExt;

    use super::*;

    #[tokio::test]
    async fn open_calls_are_counted_until_they_are_dropped() {
        let calls = OpenCalls::default();
        let (one, two) = (calls.open(), calls.open());
        assert_eq!(calls.count(), 2);
        drop(one);
        assert!(calls.wait_for_none().now_or_never().is_none());
        drop(two);
        calls.wait_for_none().await;
    }
}
