//! Waits for the guest of a slot: after its boot, and again when its connection was lost.
//!
//! The guest of a running container connects again; that of a paused one does so when the container is resumed. The
//! wait is a task of its own, because the slot's task answers other requests meanwhile.

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use skilld_proto::guest::v1 as pb;
use tokio::time::Instant;
use tokio_util::task::AbortOnDropHandle;

use super::guest_link::{GUEST_TIMEOUT, SlotLoss, container_loss};
use super::{SlotActor, answer};
use crate::error::{Chain, Error, HostFault, Result};
use crate::guest::{ExpectedGuest, GuestLink, GuestSocket};
use crate::pool::SlotReport;
use crate::workspace::record::SlotRecord;
use crate::workspace::shared_slot_context::SharedSlotContext;
use crate::workspace::slot_provisioning;
use crate::workspace::slot_state_machine::{LossCause, SlotState};
use crate::workspace::{GrantReply, SLOT_REQUESTS_MAX};

/// Longest wait of a request for a guest that reconnects. Then the request fails with [`Error::GuestLost`].
const PATIENCE: Duration = Duration::from_millis(1500);
/// Longest wait for a guest to reconnect while its container runs. The guest tries at least every 200 ms, so only an
/// overloaded host needs this long.
pub const RECONNECT_TIMEOUT: Duration = Duration::from_secs(10);
/// Length of a pause that ends no call: some of Docker's own commands pause a container for a moment.
const PAUSE_GRACE: Duration = Duration::from_secs(1);
/// Interval between two inspections of a container while requests wait for its guest.
const INSPECT_INTERVAL_MIN: Duration = Duration::from_millis(200);
/// Interval between two inspections of a container once no request waits any more, and between two attempts to bind the
/// guest's socket.
const INSPECT_INTERVAL_MAX: Duration = Duration::from_secs(1);
/// Time limit of one inspection.
const INSPECT_TIMEOUT: Duration = Duration::from_millis(500);
/// Maximum number of inspections before a guest is accepted without knowing its pid.
const PID_ATTEMPTS_MAX: u32 = 4;

/// Wait for a guest to connect.
#[derive(Debug)]
pub(super) struct GuestWait {
    pub(super) context: Arc<SharedSlotContext>,
    pub(super) record: SlotRecord,
    /// Longest wait while the container runs.
    pub(super) timeout: Duration,
    /// Longest wait while the container is paused.
    pub(super) pause_timeout: Duration,
}

/// Step that the daemon awaits from a guest.
enum AwaitedStep {
    Connects(GuestSocket),
    /// The guest is connected and has to answer.
    Answers(GuestLink),
}

/// Result of inspecting a container whose guest is awaited.
enum InspectionOutcome {
    /// The container runs; its first process, 0 if unknown.
    Runs(i32),
    /// The container is paused; its first process, 0 if unknown.
    Paused(i32),
    /// The engine did not answer.
    Unknown,
}

/// Wait for a guest whose connection was lost.
#[derive(Debug)]
pub(super) struct GuestReconnect {
    task: AbortOnDropHandle<Result<GuestLink, SlotLoss>>,
    /// Time until which requests wait.
    patience: Instant,
    waiting: Vec<GrantReply>,
}

// === impl GuestWait ===

impl GuestWait {
    /// Waits until the guest has connected, its container has ended, or the time is over. A connection breaks before
    /// the engine knows that the container died, so this inspects the container repeatedly.
    pub(super) async fn wait_for_link(&self, socket: GuestSocket) -> Result<GuestLink, SlotLoss> {
        self.wait_for_guest(AwaitedStep::Connects(socket), None)
            .await
    }

    async fn wait_for_guest(
        &self,
        awaited: AwaitedStep,
        configure: Option<pb::ConfigureRequest>,
    ) -> Result<GuestLink, SlotLoss> {
        let started = Instant::now();
        let mut last = self.inspect().await?;
        // The pid is part of the guest's proof and selects the commands' CPU group, so a slow engine is asked again.
        for _ in 1..PID_ATTEMPTS_MAX {
            if let InspectionOutcome::Unknown = last {
                last = self.inspect().await?;
            }
        }
        let pid = match last {
            InspectionOutcome::Runs(pid) | InspectionOutcome::Paused(pid) => pid,
            InspectionOutcome::Unknown => 0,
        };
        let expected = self.context.expected(&self.record, pid).await;
        let accept = self.accept_guest(awaited, &expected, configure);
        tokio::pin!(accept);
        // Running and paused have separate limits, each counted from the last change.
        let mut since = Instant::now();
        loop {
            let limit = match last {
                InspectionOutcome::Runs(_) | InspectionOutcome::Unknown => self.timeout,
                InspectionOutcome::Paused(_) => self.pause_timeout,
            };
            if since.elapsed() >= limit {
                return Err(timeout_loss(&last, limit));
            }
            let pause = if started.elapsed() < PATIENCE {
                INSPECT_INTERVAL_MIN
            } else {
                INSPECT_INTERVAL_MAX
            };
            let inspect_at = (since + limit).min(Instant::now() + pause);
            tokio::select! {
                link = &mut accept => return link.map_err(|error| {
                    tracing::error!(error = %Chain(&error), "guest's socket failed");
                    SlotLoss { cause: LossCause::GuestLost, message: "the guest's socket failed".to_owned() }
                }),
                () = tokio::time::sleep_until(inspect_at) => {
                    let now = self.inspect().await?;
                    if matches!(now, InspectionOutcome::Paused(_)) != matches!(last, InspectionOutcome::Paused(_)) {
                        since = Instant::now();
                    }
                    last = now;
                }
            }
        }
    }

    async fn inspect(&self) -> Result<InspectionOutcome, SlotLoss> {
        let id = self.record.container_id.as_deref().unwrap_or_default();
        let inspection = self.context.engine.inspect(id);
        match tokio::time::timeout(INSPECT_TIMEOUT, inspection).await {
            Ok(Ok(Some(state))) if state.paused => Ok(InspectionOutcome::Paused(state.pid)),
            Ok(Ok(Some(state))) if state.running => Ok(InspectionOutcome::Runs(state.pid)),
            Ok(Ok(state)) => Err(container_loss(state)),
            Ok(Err(error)) => {
                tracing::warn!(error = %Chain(&error), "container was not inspected");
                Ok(InspectionOutcome::Unknown)
            }
            Err(_) => Ok(InspectionOutcome::Unknown),
        }
    }

    /// Waits for a guest to reconnect and configures it again, since it may have missed that.
    async fn wait_for_reconnect(
        self,
        connected: Option<GuestLink>,
        configure: Option<pb::ConfigureRequest>,
    ) -> Result<GuestLink, SlotLoss> {
        let awaited = match connected {
            Some(link) => AwaitedStep::Answers(link),
            None => {
                let bound = tokio::select! {
                    bound = self.bind_socket() => bound,
                    loss = self.wait_for_loss() => return Err(loss),
                };
                AwaitedStep::Connects(bound.map_err(|error| {
                    tracing::error!(error = %Chain(&error), "guest's socket was not bound again");
                    SlotLoss {
                        cause: LossCause::GuestLost,
                        message: "the guest's connection broke".to_owned(),
                    }
                })?)
            }
        };
        self.wait_for_guest(awaited, configure).await
    }

    /// Accepts the guest and configures it. A guest that does not answer is disconnected and may connect once more.
    async fn accept_guest(
        &self,
        mut awaited: AwaitedStep,
        expected: &ExpectedGuest,
        configure: Option<pb::ConfigureRequest>,
    ) -> Result<GuestLink> {
        loop {
            let link = match awaited {
                AwaitedStep::Connects(socket) => socket.accept(expected).await?,
                AwaitedStep::Answers(link) => link,
            };
            let Some(request) = configure.clone() else {
                return Ok(link);
            };
            let mut guest = link.client.clone();
            let configured = tokio::time::timeout(GUEST_TIMEOUT, guest.configure(request)).await;
            if let Ok(Ok(_)) = configured {
                return Ok(link);
            }
            tracing::warn!(slot = self.record.number, answer = ?configured, "guest connected, but does not answer");
            awaited = AwaitedStep::Connects(self.bind_socket().await?);
            link.cut();
        }
    }

    /// Binds the guest's socket. Retries while the disk is full or read-only or descriptors are lacking; the container
    /// keeps running.
    async fn bind_socket(&self) -> Result<GuestSocket> {
        let run_dir = self.context.slot_dir(self.record.number).join("run");
        loop {
            match GuestSocket::bind(&run_dir) {
                Err(error) if HostFault::of(&error).is_some() => {
                    tracing::debug!(slot = self.record.number, error = %Chain(&error), "guest's socket is bound later");
                }
                bound => return bound,
            }
            tokio::time::sleep(INSPECT_INTERVAL_MAX).await;
        }
    }

    /// Waits until the container has ended.
    async fn wait_for_loss(&self) -> SlotLoss {
        loop {
            tokio::time::sleep(INSPECT_INTERVAL_MAX).await;
            if let Err(loss) = self.inspect().await {
                return loss;
            }
        }
    }
}

fn timeout_loss(look: &InspectionOutcome, limit: Duration) -> SlotLoss {
    let message = match look {
        InspectionOutcome::Runs(_) => format!("the guest did not connect within {limit:?}"),
        InspectionOutcome::Unknown => {
            format!("the guest did not connect within {limit:?}, and the engine did not answer")
        }
        InspectionOutcome::Paused(_) => format!("the container was paused for more than {limit:?}"),
    };
    SlotLoss {
        cause: LossCause::GuestLost,
        message,
    }
}

// === impl SlotActor ===

impl SlotActor {
    /// Handles the loss of the guest's connection: the container died, or the guest will connect again.
    pub(super) async fn on_link_lost(&mut self) {
        self.link = None;
        self.start_reconnect(None).await;
    }

    /// Starts to wait for the guest, which may have connected already.
    pub(super) async fn start_reconnect(&mut self, connected: Option<GuestLink>) {
        if self.record.container_id.is_none() || self.reconnect.is_some() {
            return;
        }
        if self.state == SlotState::Ready {
            self.report(SlotReport::Withdrawn).await;
        }
        let wait = GuestWait {
            context: Arc::clone(&self.context),
            record: self.record.clone(),
            timeout: RECONNECT_TIMEOUT,
            pause_timeout: self.context.config.engine.pause_timeout,
        };
        let configure = self
            .record
            .claim
            .as_ref()
            .map(|claim| slot_provisioning::configure_request(&self.context, &claim.workspace));
        let stop = self.context.tasks.stop.clone();
        let task = self.context.tasks.spawn(async move {
            tokio::select! {
                // The slot's task stops as well and leaves everything as it is.
                () = stop.cancelled() => std::future::pending().await,
                link = wait.wait_for_reconnect(connected, configure) => link,
            }
        });
        self.reconnect = Some(GuestReconnect {
            task: AbortOnDropHandle::new(task),
            patience: Instant::now() + PATIENCE,
            waiting: Vec::new(),
        });
    }

    /// Disconnects a guest that does not answer, which ends its calls, and waits for it.
    pub(super) async fn cut_silent_guest(&mut self) {
        if let Some(link) = self.link.take() {
            link.cut();
            self.on_link_lost().await;
        }
    }

    /// Handles the end of the wait.
    pub(super) async fn on_reconnected(&mut self, connected: Result<GuestLink, SlotLoss>) {
        let Some(reconnect) = self.reconnect.take() else {
            return;
        };
        match connected {
            Ok(link) => {
                tracing::info!("guest connected again");
                self.link = Some(link);
                self.publish();
                if self.state == SlotState::Ready {
                    self.report(SlotReport::Ready).await;
                }
            }
            Err(loss) => {
                // First, because the engine may take long to remove the container.
                self.refuse_waiting(reconnect, &loss);
                self.lose(loss.cause, loss.message, SystemTime::now()).await;
                return;
            }
        }
        for reply in reconnect.waiting {
            self.on_grant(reply);
        }
    }

    /// Answers the requests that wait for a guest that is lost.
    pub(super) fn refuse_waiting(&self, reconnect: GuestReconnect, loss: &SlotLoss) {
        for reply in reconnect.waiting {
            let lost = self.guest_lost_error(loss.message.clone());
            answer(reply, Err(lost));
        }
    }

    /// Answers a request for a grant. While the guest reconnects, the request waits, but not for long.
    pub(super) fn on_grant(&mut self, reply: GrantReply) {
        let silent = self.silent_guest_error();
        match &mut self.reconnect {
            Some(reconnect) if self.state == SlotState::Claimed => {
                let may_wait = Instant::now() < reconnect.patience;
                if may_wait && reconnect.waiting.len() < SLOT_REQUESTS_MAX {
                    reconnect.waiting.push(reply);
                } else {
                    answer(reply, Err(silent));
                }
            }
            _ => {
                let grant = self.grant();
                answer(reply, grant);
            }
        }
    }

    /// Handles the engine's report that the container was paused or resumed.
    pub(super) fn on_paused(&mut self, paused: bool) {
        tracing::info!(paused, "container");
        self.pause_over = match (paused, self.pause_over) {
            (true, None) if self.link.is_some() => Some(Instant::now() + PAUSE_GRACE),
            (true, known) => known,
            (false, _) => None,
        };
    }

    /// Returns the timers of the reconnect: the end of requests' waits, and the end of calls after a long pause.
    pub(super) fn reconnect_timers(&self) -> [Option<Instant>; 2] {
        let waiting = |reconnect: &&GuestReconnect| !reconnect.waiting.is_empty();
        let patience = self.reconnect.as_ref().filter(waiting);
        [
            patience.map(|reconnect| reconnect.patience),
            self.pause_over,
        ]
    }

    /// Handles a due timer of the reconnect. Returns `false` if none was due.
    pub(super) async fn on_reconnect_timer(&mut self, now: Instant) -> bool {
        if self.pause_over.is_some_and(|at| at <= now) {
            self.pause_over = None;
            self.on_long_pause().await;
            return true;
        }
        let Some(reconnect) = &mut self.reconnect else {
            return false;
        };
        if reconnect.patience > now || reconnect.waiting.is_empty() {
            return false;
        }
        for reply in std::mem::take(&mut reconnect.waiting) {
            answer(reply, Err(self.silent_guest_error()));
        }
        true
    }

    /// Ends the calls of a paused guest and waits for it. A warm slot is removed instead.
    async fn on_long_pause(&mut self) {
        let id = self.record.container_id.as_deref().unwrap_or_default();
        let inspection = self.context.engine.inspect(id);
        let known = tokio::time::timeout(INSPECT_TIMEOUT, inspection).await;
        if matches!(known, Ok(Ok(Some(state))) if state.running && !state.paused) {
            // The report that it was resumed got lost.
            return;
        }
        let Some(link) = self.link.take() else {
            return;
        };
        link.cut();
        if self.state == SlotState::Ready {
            let message = "the container was paused".to_owned();
            self.lose(LossCause::GuestLost, message, SystemTime::now())
                .await;
        } else {
            self.on_link_lost().await;
        }
    }

    fn silent_guest_error(&self) -> Error {
        let why = "it does not answer now, and may do so again: its container is paused or ending";
        self.guest_lost_error(why.to_owned())
    }

    fn guest_lost_error(&self, why: String) -> Error {
        let claim = self.record.claim.as_ref();
        let workspace = claim.map_or_else(
            || format!("slot {}", self.record.number),
            |claim| format!("workspaces/{}", claim.workspace),
        );
        Error::guest_lost(workspace, why)
    }
}

/// Completes when the wait for a guest ends; never without one.
pub(super) async fn await_reconnect(
    reconnect: Option<&mut GuestReconnect>,
) -> Result<GuestLink, SlotLoss> {
    let Some(reconnect) = reconnect else {
        return std::future::pending().await;
    };
    (&mut reconnect.task).await.unwrap_or_else(|error| {
        let message = format!("the wait for the guest broke off: {error}");
        Err(SlotLoss {
            cause: LossCause::GuestLost,
            message,
        })
    })
}
