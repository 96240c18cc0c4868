//! Warm slots of one pool: handed out at once, refilled at each claim, with a bounded queue when none is warm.
//!
//! One task per pool owns the pool's state and makes every decision. All others send it messages:
//!
//! ```text
//! slot tasks ── SlotReport ──►┌──────────┐── launch, discard ──► SlotLauncher (the workspaces)
//! requests ──── claim ───────►│ PoolTask │── SlotReservation ──► requests
//! operators ─── resize ──────►└──────────┘── PoolSnapshot ─────► readers
//! ```
//!
//! The pool knows a slot by its number only. A slot becomes warm after its guest answered, is handed out once, and
//! returns only if the request did not use it. Refilling follows a claim, the end of a slot or the back-off after a
//! failed boot, never a poll.
//!
//! A pool may start before the engine has its image. Until [`image_supply`] finds or pulls the image, it boots nothing and
//! refuses claims.

use std::fmt;
use std::sync::{Arc, OnceLock};

use tokio::sync::{mpsc, oneshot, watch};

use crate::access::TenantName;
use crate::config::PoolConfig;
use crate::engine::{ContainerLimits, ImageInfo};
use crate::error::{DaemonProblem, Error, Result};
use crate::metrics::Metrics;
use crate::shutdown::Tasks;

mod backoff;
pub mod image_supply;
mod reservation;
mod task;

pub use reservation::SlotReservation;
use task::PoolTask;

/// Maximum number of messages that wait for a pool's task. Senders wait when it is reached.
const MESSAGES_MAX: usize = 1024;

/// Makes and ends the slots of a pool. The workspaces implement it, so that a pool depends on no slot's task.
pub trait SlotLauncher: fmt::Debug + Send + Sync {
    /// Starts to boot a slot with these limits and returns its number. The slot's task reports to `pool`.
    ///
    /// # Errors
    /// [`Error::QuotaExceeded`] when no slot number is free.
    fn launch(&self, pool: &Arc<Pool>, limits: ContainerLimits) -> Result<u32>;

    /// Removes a slot that no request uses. Returns immediately and removes the slot in a task.
    fn discard(&self, number: u32);
}

/// Report that a slot's task sends to its pool.
#[derive(Debug)]
pub enum SlotReport {
    /// The guest answered for the first time, or again after its connection was lost.
    Ready,
    /// The slot must not be handed out: its guest is silent, or the slot ends.
    Withdrawn,
    /// The slot did not start. Its container may exist all the same.
    BootFailed(Error),
    /// The container of a failed workspace is gone, so the slot no longer counts against `max`.
    Vacated,
    /// The slot is gone with its directory, container and number.
    Removed,
}

/// Tenant that claims slots, and its weight against others that wait.
#[derive(Debug, Clone)]
pub struct TenantShare {
    /// Name of the tenant.
    pub tenant: TenantName,
    /// A tenant with twice the weight gets twice as many slots while both wait; at least 1.
    pub weight: u32,
}

impl Default for TenantShare {
    fn default() -> Self {
        Self {
            tenant: TenantName::default(),
            weight: 1,
        }
    }
}

/// Message to a pool's task.
#[derive(Debug)]
enum PoolMessage {
    Adopt {
        number: u32,
        is_warm: bool,
        /// Tenant whose workspace the slot is; `None` if it is none.
        holder: Option<TenantName>,
    },
    Open,
    Report {
        number: u32,
        report: SlotReport,
    },
    Claim {
        share: TenantShare,
        limits: ContainerLimits,
        reply: oneshot::Sender<Result<SlotReservation>>,
    },
    RetryBoot,
    ImageFound,
    ImageAbsent(DaemonProblem),
    Resize {
        warm_target: usize,
        reply: oneshot::Sender<()>,
    },
    Close {
        reply: oneshot::Sender<()>,
    },
}

/// Figures of a pool for operators, as of its task's last decision.
#[derive(Debug, Clone, Default)]
pub struct PoolSnapshot {
    /// Number of warm slots that the pool keeps ready.
    pub warm_target: usize,
    /// Number of slots that are ready to be handed out.
    pub warm: usize,
    /// Number of slots that boot.
    pub booting: usize,
    /// Number of slots that are handed out, or end.
    pub claimed: usize,
    /// Number of requests in the queue.
    pub waiting: usize,
    /// Reason why the pool cannot be filled: its image is absent, or its last boot failed. `None` once a boot has worked.
    pub problem: Option<DaemonProblem>,
}

/// Handle of one pool's task.
#[derive(Debug)]
pub struct Pool {
    pub(crate) config: PoolConfig,
    /// Empty until the engine has the image.
    image: OnceLock<ImageInfo>,
    messages: mpsc::Sender<PoolMessage>,
    snapshot: watch::Receiver<PoolSnapshot>,
    /// `true` while the pool can serve requests.
    pub(crate) is_healthy: watch::Receiver<bool>,
    pub(crate) metrics: Arc<Metrics>,
}

impl Pool {
    /// Starts the task of an empty pool. It boots nothing before [`Pool::open`].
    pub fn start(
        tasks: &Tasks,
        config: PoolConfig,
        image: ImageInfo,
        launcher: Arc<dyn SlotLauncher>,
        metrics: Arc<Metrics>,
    ) -> Arc<Self> {
        let image = OnceLock::from(image);
        Self::start_task(tasks, config, image, true, launcher, metrics)
    }

    /// Starts the task of an empty pool whose image the engine does not have yet. `is_needed` makes the daemon unhealthy
    /// until then.
    pub fn start_without_image(
        tasks: &Tasks,
        config: PoolConfig,
        is_needed: bool,
        launcher: Arc<dyn SlotLauncher>,
        metrics: Arc<Metrics>,
    ) -> Arc<Self> {
        let image = OnceLock::new();
        Self::start_task(tasks, config, image, !is_needed, launcher, metrics)
    }

    fn start_task(
        tasks: &Tasks,
        config: PoolConfig,
        image: OnceLock<ImageInfo>,
        is_healthy: bool,
        launcher: Arc<dyn SlotLauncher>,
        metrics: Arc<Metrics>,
    ) -> Arc<Self> {
        let (sender, messages) = mpsc::channel(MESSAGES_MAX);
        let (snapshot_sender, snapshot) = watch::channel(PoolSnapshot::default());
        let (health_sender, is_healthy) = watch::channel(is_healthy);
        let pool = Arc::new(Self {
            config,
            image,
            messages: sender,
            snapshot,
            is_healthy,
            metrics,
        });
        let task = PoolTask::new(Arc::clone(&pool), launcher, snapshot_sender, health_sender);
        let stop = tasks.stop.clone();
        tasks.spawn(stop.run_until_cancelled_owned(task.run(messages)));
        pool
    }

    /// Returns the pool's image as the engine resolved it first; `None` while the engine does not have it.
    pub fn image(&self) -> Option<&ImageInfo> {
        self.image.get()
    }

    /// Returns the pool's image.
    ///
    /// # Errors
    /// [`Error::PoolExhausted`] while the engine does not have it.
    pub fn require_image(&self) -> Result<&ImageInfo> {
        let absent = || Error::PoolExhausted {
            pool: self.config.name.clone(),
            why: format!(
                "the image {} is not there yet: `skillctl problems` says why",
                self.config.image
            ),
        };
        self.image.get().ok_or_else(absent)
    }

    /// Provides the image of a pool that was started without one. The pool then fills itself.
    pub async fn provide_image(&self, image: ImageInfo) {
        if self.image.set(image).is_ok() {
            self.send(PoolMessage::ImageFound).await;
        }
    }

    /// Reports why the image is absent.
    pub async fn report_absent_image(&self, problem: DaemonProblem) {
        self.send(PoolMessage::ImageAbsent(problem)).await;
    }

    /// Returns the figures of the pool.
    pub fn snapshot(&self) -> PoolSnapshot {
        self.snapshot.borrow().clone()
    }

    /// Adds a slot that an earlier daemon made. A slot that is warm is handed out after its [`SlotReport::Ready`].
    /// `holder` is the tenant whose workspace it is.
    pub async fn adopt(&self, number: u32, is_warm: bool, holder: Option<TenantName>) {
        let adopt = PoolMessage::Adopt {
            number,
            is_warm,
            holder,
        };
        self.send(adopt).await;
    }

    /// Lets the pool fill itself, after all slots of an earlier daemon were adopted, or after [`Self::close`].
    pub async fn open(&self) {
        self.send(PoolMessage::Open).await;
    }

    /// Reports a change of a slot.
    pub async fn report(&self, number: u32, report: SlotReport) {
        self.send(PoolMessage::Report { number, report }).await;
    }

    /// Reserves a warm slot, or waits in the queue for one. Limits other than the pool's get a slot that is booted for
    /// this request.
    ///
    /// # Errors
    /// [`Error::PoolExhausted`] when the queue is full, the pool is at its maximum or `claim_timeout` is over;
    /// [`Error::EngineUnavailable`] when no slot is warm and none can be made; [`Error::Draining`] while the daemon
    /// stops.
    pub async fn claim(&self, limits: ContainerLimits) -> Result<SlotReservation> {
        self.claim_for(TenantShare::default(), limits).await
    }

    /// Reserves a slot for a tenant, like [`Self::claim`]. Of the tenants that wait, the one that holds the fewest slots
    /// for its weight is served first.
    ///
    /// # Errors
    /// As [`Self::claim`].
    pub async fn claim_for(
        &self,
        share: TenantShare,
        limits: ContainerLimits,
    ) -> Result<SlotReservation> {
        let (reply, answer) = oneshot::channel();
        let claim = PoolMessage::Claim {
            share,
            limits,
            reply,
        };
        self.send(claim).await;
        answer.await.unwrap_or(Err(Error::Draining))
    }

    /// Waits until a boot fails from now on, and returns its message for operators.
    pub async fn wait_for_failed_boot(&self) -> String {
        let mut snapshot = self.snapshot.clone();
        let known = snapshot
            .borrow_and_update()
            .problem
            .clone()
            .map(|problem| problem.time);
        loop {
            if snapshot.changed().await.is_err() {
                // The pool has stopped, so no boot fails any more.
                std::future::pending::<()>().await;
            }
            let problem = snapshot.borrow_and_update().problem.clone();
            if let Some(problem) = problem
                && Some(problem.time) != known
            {
                return problem.message;
            }
        }
    }

    /// Tries to boot at once, without waiting for the back-off: the engine answers again.
    pub async fn retry_boot(&self) {
        self.send(PoolMessage::RetryBoot).await;
    }

    /// Changes the number of warm slots that the pool keeps. Surplus ones are removed.
    pub async fn resize(&self, warm_target: usize) {
        let (reply, done) = oneshot::channel();
        self.send(PoolMessage::Resize { warm_target, reply }).await;
        wait_for_pool(done).await;
    }

    /// Ends hand-out and refill, and refuses every waiting request. No slot is launched after this returns.
    pub async fn close(&self) {
        let (reply, done) = oneshot::channel();
        self.send(PoolMessage::Close { reply }).await;
        wait_for_pool(done).await;
    }

    async fn send(&self, message: PoolMessage) {
        if self.messages.send(message).await.is_err() {
            tracing::trace!(pool = self.config.name, "pool has stopped");
        }
    }
}

async fn wait_for_pool(done: oneshot::Receiver<()>) {
    if done.await.is_err() {
        tracing::trace!("pool has stopped");
    }
}
