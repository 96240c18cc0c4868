//! Kills execs with `on_disconnect: KILL` that no client follows any more. When the last stream of such an exec breaks,
//! the guest kills the exec after a grace period, unless a new stream opens. The grace period pauses while no daemon is
//! connected, because that is not the client's doing.

use std::sync::Arc;
use std::time::{Duration, Instant};

use skilld_proto::v1::{self, ExitReason};
use tokio::sync::watch;

use super::host::ExecHost;
use super::{Exec, ExecControl, ExecPhase, ExecState};
use crate::task_spawn;

/// Counts an open event stream. Dropping the last one starts the grace period after which the exec is killed.
#[derive(Debug)]
pub(crate) struct DisconnectGuard {
    host: Arc<ExecHost>,
    exec: Arc<Exec>,
    grace: Duration,
}

impl DisconnectGuard {
    /// Counts a stream of an exec with on_disconnect KILL. Returns `None` for other execs.
    pub(crate) fn register(
        host: &Arc<ExecHost>,
        exec: &Arc<Exec>,
        grace: Duration,
    ) -> Option<Self> {
        if exec.spec.on_disconnect() != v1::DisconnectPolicy::Kill {
            return None;
        }
        let mut state = exec.state();
        state.streams += 1;
        state.streams_ever += 1;
        drop(state);
        exec.notify_changed();
        Some(Self {
            host: Arc::clone(host),
            exec: Arc::clone(exec),
            grace,
        })
    }
}

impl Drop for DisconnectGuard {
    fn drop(&mut self) {
        let mut state = self.exec.state();
        state.streams -= 1;
        if state.streams == 0 && state.phase < ExecPhase::Exited {
            let (host, exec) = (Arc::clone(&self.host), Arc::clone(&self.exec));
            task_spawn::spawn(kill_after_grace(host, exec, self.grace, state.streams_ever));
        }
    }
}

/// Kills the exec after the grace period. Gives up when another stream opens or the exec ends. `seen` is the number of
/// streams so far.
async fn kill_after_grace(host: Arc<ExecHost>, exec: Arc<Exec>, mut left: Duration, seen: u64) {
    let settled =
        |state: &ExecState| state.streams_ever != seen || state.phase >= ExecPhase::Exited;
    let mut connected = host.connected.subscribe();
    loop {
        tokio::select! {
            () = exec.wait_until(settled) => return,
            () = wait_for_connection(&mut connected, true) => {}
        }
        let begin = Instant::now();
        tokio::select! {
            // In this order a stream that opens, or a connection that breaks, at the end of the grace period prevents
            // the kill.
            biased;
            () = exec.wait_until(settled) => return,
            () = wait_for_connection(&mut connected, false) => {
                left = left.saturating_sub(begin.elapsed());
            }
            () = tokio::time::sleep(left) => {
                let reason = ExitReason::KilledByClient;
                exec.send_control(ExecControl::Kill { grace: None, reason }).await;
                return;
            }
        }
    }
}

/// Waits until `connected` has this value.
async fn wait_for_connection(connected: &mut watch::Receiver<bool>, value: bool) {
    // Fails only after the guest is dropped, which never happens.
    drop(connected.wait_for(|now| *now == value).await);
}
