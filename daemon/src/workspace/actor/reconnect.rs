//! The part of a slot's task that waits for a guest: the first time, and again when its connection broke.
//!
//! A container that runs has its guest, so the guest connects again; one that is paused does so when it goes on. The wait
//! is a task of its own: the slot's task answers everybody else meanwhile.

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use skilld_proto::guest::v1 as pb;
use tokio::sync::oneshot;
use tokio::time::Instant;
use tokio_util::task::AbortOnDropHandle;

use super::link::{GUEST_TIMEOUT, Loss, ended};
use super::{Actor, answer};
use crate::error::{Chain, Error, Result};
use crate::guest::{Expected, Link, Socket};
use crate::workspace::record::Record;
use crate::workspace::slot::{self, Context};
use crate::workspace::state::{Cause, State};
use crate::workspace::{COMMANDS_MAX, Grant};

/// How long requests wait for a guest that is coming back. Then they hear that it is lost.
const PATIENCE: Duration = Duration::from_millis(1500);
/// How long a guest may take to connect again while its container runs before it counts as lost. It tries every 200 ms
/// at least, so this is for a host that hardly moves.
pub const RECONNECT_TIMEOUT: Duration = Duration::from_secs(10);
/// A pause that is shorter breaks no call: some of Docker's own commands pause for a moment.
const PAUSE_GRACE: Duration = Duration::from_secs(1);
/// Between looks at a container whose guest is awaited: at first, and once requests do not wait any more.
const LOOK_INTERVAL: (Duration, Duration) = (Duration::from_millis(200), Duration::from_secs(1));
/// An engine that takes longer to say how a container is has not said it.
const LOOK_TIMEOUT: Duration = Duration::from_millis(500);
/// Looks at a container before its guest is let in without its pid being known.
const LOOKS_MAX: u32 = 4;

/// A guest that is to connect.
#[derive(Debug)]
pub(super) struct Wait {
    pub(super) context: Arc<Context>,
    pub(super) record: Record,
    /// From when on it counts as lost while its container runs.
    pub(super) timeout: Duration,
    /// The same while its container is paused.
    pub(super) pause_timeout: Duration,
}

/// What is awaited of a guest.
enum Awaited {
    Connects(Socket),
    /// It has connected, and is to answer.
    Answers(Link),
}

/// How a container is while its guest is awaited.
enum Look {
    /// Its first process, 0 if unknown.
    Runs(i32),
    /// The same.
    Paused(i32),
    /// The engine does not say.
    Unknown,
}

/// A guest that is awaited again.
#[derive(Debug)]
pub(super) struct Reconnect {
    task: AbortOnDropHandle<Result<Link, Loss>>,
    was_warm: bool,
    /// Until then requests wait.
    patience: Instant,
    waiting: Vec<oneshot::Sender<Result<Grant>>>,
}

// === impl Wait ===

impl Wait {
    /// Waits until the guest has connected, its container has ended, or the time is over. A connection breaks before
    /// the engine knows that the container died, so this looks more than once.
    pub(super) async fn link(&self, socket: Socket) -> Result<Link, Loss> {
        self.guest(Awaited::Connects(socket), None).await
    }

    async fn guest(
        &self,
        awaited: Awaited,
        configure: Option<pb::ConfigureRequest>,
    ) -> Result<Link, Loss> {
        let started = Instant::now();
        let mut last = self.look().await?;
        // The pid is half of the proof, and by it commands get their CPU group: a slow engine is asked again.
        for _ in 1..LOOKS_MAX {
            if let Look::Unknown = last {
                last = self.look().await?;
            }
        }
        let pid = match last {
            Look::Runs(pid) | Look::Paused(pid) => pid,
            Look::Unknown => 0,
        };
        let expected = self.context.expected(&self.record, pid).await;
        let accept = self.accept(awaited, &expected, configure);
        tokio::pin!(accept);
        // Each state has its own clock, and starts anew when it comes back.
        let mut since = Instant::now();
        loop {
            let limit = match last {
                Look::Runs(_) | Look::Unknown => self.timeout,
                Look::Paused(_) => self.pause_timeout,
            };
            if since.elapsed() >= limit {
                return Err(late(&last, limit));
            }
            let pause = if started.elapsed() < PATIENCE {
                LOOK_INTERVAL.0
            } else {
                LOOK_INTERVAL.1
            };
            let look_again = (since + limit).min(Instant::now() + pause);
            tokio::select! {
                link = &mut accept => return link.map_err(|error| {
                    tracing::error!(error = %Chain(&error), "guest's socket failed");
                    Loss { cause: Cause::GuestLost, message: "the guest's socket failed".to_owned() }
                }),
                () = tokio::time::sleep_until(look_again) => {
                    let now = self.look().await?;
                    if matches!(now, Look::Paused(_)) != matches!(last, Look::Paused(_)) {
                        since = Instant::now();
                    }
                    last = now;
                }
            }
        }
    }

    async fn look(&self) -> Result<Look, Loss> {
        let id = self.record.container_id.as_deref().unwrap_or_default();
        let asked = self.context.engine.inspect(id);
        match tokio::time::timeout(LOOK_TIMEOUT, asked).await {
            Ok(Ok(Some(state))) if state.paused => Ok(Look::Paused(state.pid)),
            Ok(Ok(Some(state))) if state.running => Ok(Look::Runs(state.pid)),
            Ok(Ok(state)) => Err(ended(state)),
            Ok(Err(error)) => {
                tracing::warn!(error = %Chain(&error), "engine does not say how the container is");
                Ok(Look::Unknown)
            }
            Err(_) => Ok(Look::Unknown),
        }
    }

    /// The same for a guest of before, which is told again what it is: it may have missed that.
    async fn link_again(
        self,
        connected: Option<Link>,
        configure: Option<pb::ConfigureRequest>,
    ) -> Result<Link, Loss> {
        let awaited = match connected {
            Some(link) => Awaited::Answers(link),
            None => Awaited::Connects(self.bind().map_err(|error| {
                tracing::error!(error = %Chain(&error), "guest cannot connect again");
                Loss {
                    cause: Cause::GuestLost,
                    message: "the guest's connection broke".to_owned(),
                }
            })?),
        };
        self.guest(awaited, configure).await
    }

    /// A guest that does not answer what it is told is cut, and may connect once more.
    async fn accept(
        &self,
        mut awaited: Awaited,
        expected: &Expected,
        configure: Option<pb::ConfigureRequest>,
    ) -> Result<Link> {
        loop {
            let link = match awaited {
                Awaited::Connects(socket) => socket.accept(expected).await?,
                Awaited::Answers(link) => link,
            };
            let Some(request) = configure.clone() else {
                return Ok(link);
            };
            let mut guest = link.client.clone();
            let told = tokio::time::timeout(GUEST_TIMEOUT, guest.configure(request)).await;
            if let Ok(Ok(_)) = told {
                return Ok(link);
            }
            tracing::warn!(slot = self.record.number, answer = ?told, "guest connected and does not answer");
            awaited = Awaited::Connects(self.bind()?);
            link.cut();
        }
    }

    fn bind(&self) -> Result<Socket> {
        Socket::bind(&self.context.slot_dir(self.record.number).join("run"))
    }
}

fn late(look: &Look, limit: Duration) -> Loss {
    let message = match look {
        Look::Runs(_) => format!("the guest did not connect within {limit:?}"),
        Look::Unknown => {
            format!("the guest did not connect within {limit:?}, and the engine does not say why")
        }
        Look::Paused(_) => format!("the container was paused for more than {limit:?}"),
    };
    Loss {
        cause: Cause::GuestLost,
        message,
    }
}

// === impl Actor ===

impl Actor {
    /// The guest's connection broke: the container died, or the guest will connect again.
    pub(super) fn on_link_lost(&mut self) {
        self.link = None;
        self.wait_for_guest(None);
    }

    /// Awaits the guest, which may have connected already.
    pub(super) fn wait_for_guest(&mut self, connected: Option<Link>) {
        if self.record.container_id.is_none() || self.reconnect.is_some() {
            return;
        }
        // Nobody gets it while it is not known what became of it. One that was handed out is not offered again.
        let was_warm = self.state == State::Ready && self.pool.withdraw(self.record.number);
        let wait = Wait {
            context: Arc::clone(&self.context),
            record: self.record.clone(),
            timeout: RECONNECT_TIMEOUT,
            pause_timeout: self.context.config.engine.pause_timeout,
        };
        let claim = self.record.claim.as_ref().filter(|_| !was_warm);
        let configure = claim.map(|claim| slot::configure_request(&self.context, &claim.workspace));
        let stop = self.context.tasks.stop.clone();
        let task = self.context.tasks.spawn(async move {
            tokio::select! {
                // The slot's task ends as well, and leaves everything as it is.
                () = stop.cancelled() => std::future::pending().await,
                link = wait.link_again(connected, configure) => link,
            }
        });
        self.reconnect = Some(Reconnect {
            task: AbortOnDropHandle::new(task),
            was_warm,
            patience: Instant::now() + PATIENCE,
            waiting: Vec::new(),
        });
    }

    /// The guest is connected and does not answer: its calls end, and it is awaited.
    pub(super) fn wait_again(&mut self) {
        if let Some(link) = self.link.take() {
            link.cut();
            self.on_link_lost();
        }
    }

    /// The wait is over.
    pub(super) async fn on_reconnected(&mut self, connected: Result<Link, Loss>) {
        let Some(reconnect) = self.reconnect.take() else {
            return;
        };
        match connected {
            Ok(link) => {
                tracing::info!("guest connected again");
                self.link = Some(link);
                self.publish();
                if reconnect.was_warm {
                    self.pool.offer(self.record.number);
                }
            }
            Err(loss) => {
                // First: the engine may take its time to remove what is left.
                self.refuse(reconnect, &loss);
                self.lose(loss.cause, loss.message, SystemTime::now()).await;
                return;
            }
        }
        for waiter in reconnect.waiting {
            let grant = self.grant();
            answer(waiter, grant);
        }
    }

    /// Tells who waits for the guest that it will not come.
    pub(super) fn refuse(&self, reconnect: Reconnect, loss: &Loss) {
        for waiter in reconnect.waiting {
            let lost = self.guest_lost(loss.message.clone());
            answer(waiter, Err(lost));
        }
    }

    /// A request wants to use the workspace. While its guest is awaited it waits, but not for long.
    pub(super) fn on_grant(&mut self, reply: oneshot::Sender<Result<Grant>>) {
        let silent = self.guest_is_silent();
        match &mut self.reconnect {
            Some(reconnect) if self.state == State::Claimed => {
                let patient = Instant::now() < reconnect.patience;
                if patient && reconnect.waiting.len() < COMMANDS_MAX {
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

    /// The engine says that somebody paused the container, or let it go on.
    pub(super) fn on_paused(&mut self, paused: bool) {
        tracing::info!(paused, "container");
        self.pause_over = match (paused, self.pause_over) {
            (true, None) if self.link.is_some() => Some(Instant::now() + PAUSE_GRACE),
            (true, known) => known,
            (false, _) => None,
        };
    }

    /// The timers of this part: when requests do not wait any longer, when a pause breaks calls.
    pub(super) fn reconnect_timers(&self) -> [Option<Instant>; 2] {
        let waiting = |reconnect: &&Reconnect| !reconnect.waiting.is_empty();
        let patience = self.reconnect.as_ref().filter(waiting);
        [
            patience.map(|reconnect| reconnect.patience),
            self.pause_over,
        ]
    }

    /// True if one of these timers was due.
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
        for waiter in std::mem::take(&mut reconnect.waiting) {
            answer(waiter, Err(self.guest_is_silent()));
        }
        true
    }

    /// Nobody will hear of this guest for a while: its calls end, and it is awaited. A warm slot is not worth the wait.
    async fn on_long_pause(&mut self) {
        let id = self.record.container_id.as_deref().unwrap_or_default();
        let asked = self.context.engine.inspect(id);
        let known = tokio::time::timeout(LOOK_TIMEOUT, asked).await;
        if matches!(known, Ok(Ok(Some(state))) if state.running && !state.paused) {
            // That it goes on was not heard.
            return;
        }
        let Some(link) = self.link.take() else {
            return;
        };
        link.cut();
        if self.state == State::Ready {
            let message = "the container was paused".to_owned();
            self.lose(Cause::GuestLost, message, SystemTime::now())
                .await;
        } else {
            self.on_link_lost();
        }
    }

    fn guest_is_silent(&self) -> Error {
        let why = "it does not answer now, and may do so again: its container is paused or ending";
        self.guest_lost(why.to_owned())
    }

    fn guest_lost(&self, why: String) -> Error {
        let claim = self.record.claim.as_ref();
        Error::GuestLost {
            workspace: claim.map_or_else(
                || format!("slot {}", self.record.number),
                |claim| format!("workspaces/{}", claim.workspace),
            ),
            why,
        }
    }
}

/// Completes when the wait for a guest is over; never without one.
pub(super) async fn reconnected(reconnect: Option<&mut Reconnect>) -> Result<Link, Loss> {
    let Some(reconnect) = reconnect else {
        return std::future::pending().await;
    };
    (&mut reconnect.task).await.unwrap_or_else(|error| {
        let message = format!("the wait for the guest broke off: {error}");
        Err(Loss {
            cause: Cause::GuestLost,
            message,
        })
    })
}
