//! Execs with `on_disconnect: KILL`: when the last stream on one that runs breaks, it is killed after a grace, unless
//! another stream comes. The clock stands still while no daemon is connected: that the daemon went away is not the
//! client's doing.

use std::sync::Arc;
use std::time::{Duration, Instant};

use skilld_proto::v1;
use skilld_proto::v1::exec_result::Reason;
use tokio::sync::watch;

use super::{Command, Exec, Phase, State};
use crate::guest::Guest;
use crate::tasks;

/// A stream on an exec, while it lasts.
#[derive(Debug)]
pub(crate) struct Attached {
    guest: Arc<Guest>,
    exec: Arc<Exec>,
    grace: Duration,
}

impl Attached {
    /// Notes a stream on an exec that does not survive its streams; `None` for the others.
    pub(crate) fn note(guest: &Arc<Guest>, exec: &Arc<Exec>, grace: Duration) -> Option<Self> {
        if exec.spec.on_disconnect() != v1::OnDisconnect::Kill {
            return None;
        }
        let mut state = exec.state();
        state.streams += 1;
        state.streams_ever += 1;
        drop(state);
        exec.notify();
        Some(Self {
            guest: Arc::clone(guest),
            exec: Arc::clone(exec),
            grace,
        })
    }
}

impl Drop for Attached {
    fn drop(&mut self) {
        let mut state = self.exec.state();
        state.streams -= 1;
        if state.streams == 0 && state.phase < Phase::Exited {
            let (guest, exec) = (Arc::clone(&self.guest), Arc::clone(&self.exec));
            tasks::spawn(kill_in_time(guest, exec, self.grace, state.streams_ever));
        }
    }
}

/// Kills it when the grace is over. Gives up when there is a stream more than the `seen` ones, or it ends.
async fn kill_in_time(guest: Arc<Guest>, exec: Arc<Exec>, mut left: Duration, seen: u64) {
    let settled = |state: &State| state.streams_ever != seen || state.phase >= Phase::Exited;
    let mut connected = guest.connected.subscribe();
    loop {
        tokio::select! {
            () = exec.until(settled) => return,
            () = becomes(&mut connected, true) => {}
        }
        let begin = Instant::now();
        tokio::select! {
            biased;
            () = exec.until(settled) => return,
            () = becomes(&mut connected, false) => {
                left = left.saturating_sub(begin.elapsed());
            }
            () = tokio::time::sleep(left) => {
                let reason = Reason::KilledByClient;
                exec.command(Command::Kill { grace: None, reason }).await;
                return;
            }
        }
    }
}

async fn becomes(connected: &mut watch::Receiver<bool>, value: bool) {
    // Fails only without the guest, which is there.
    drop(connected.wait_for(|now| *now == value).await);
}
