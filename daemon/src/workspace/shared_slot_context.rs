//! State that the tasks of all slots share, and the identity check of their guests.

use std::fs::File;
use std::path::PathBuf;
use std::sync::{Arc, Once};
use std::time::{Duration, SystemTime};

use data_encoding::HEXLOWER;
use skilld_common::unix_time::unix_ms;
use tokio::sync::{Notify, Semaphore};

use crate::access::HeldCounter;
use crate::config::Config;
use crate::engine::oci_runtime::RuntimeKind;
use crate::engine::{Engine, EngineInfo, cgroup};
use crate::error::{Chain, Error};
use crate::guest;
use crate::metrics::Metrics;
use crate::shutdown::Tasks;
use crate::usage::UsageLedger;
use crate::workspace::orphan_removals::OrphanRemovals;
use crate::workspace::record::SlotRecord;
use crate::workspace::slot_table::SlotTable;
use crate::workspace::software_inventory_cache::SoftwareInventoryCache;
use crate::workspace::workspace_table::WorkspaceTable;

/// Time that a uid stays unused before another container gets it, so that the kernel has released everything that it
/// keeps per user.
const UID_QUARANTINE: Duration = Duration::from_secs(10 * 60);
/// Maximum number of containers that boot at the same time. Docker makes them one after the other, so more only wait.
const BOOTS_MAX: usize = 4;
/// Maximum number of checks of images at the same time. Each has one container.
pub const IMAGE_CHECKS_MAX: usize = 2;

/// Interval between two writes of what tenants have used, which is the most that a crash can lose.
const USAGE_SAVE_INTERVAL: Duration = Duration::from_secs(60);

/// State that the tasks of all slots share.
#[derive(Debug)]
pub struct SharedSlotContext {
    /// Configuration of the daemon.
    pub config: Arc<Config>,
    /// Container engine.
    pub engine: Arc<dyn Engine>,
    /// Description of the engine, read at start.
    pub info: EngineInfo,
    /// Tasks of the daemon.
    pub tasks: Tasks,
    /// Instance id of the daemon, which labels its containers.
    pub instance: String,
    /// Slots by number.
    pub slots: SlotTable,
    /// Workspaces by id.
    pub workspaces: Arc<WorkspaceTable>,
    /// Permits for containers that boot at the same time.
    pub boots: Semaphore,
    /// Permits for checks of images at the same time.
    pub image_checks: Semaphore,
    /// Inventories of images that were inspected.
    pub inventories: SoftwareInventoryCache,
    /// Wakes the reconciler before its interval is over.
    pub reconcile: Notify,
    /// Containers without a slot that are being removed.
    pub removals: OrphanRemovals,
    /// Metrics of the daemon.
    pub metrics: Arc<Metrics>,
    /// Counter of running execs.
    pub execs: HeldCounter,
    /// Ledger of what tenants have used.
    pub usage: UsageLedger,
}

impl SharedSlotContext {
    /// Creates the state of a daemon without slots. Slot numbers start at `first_number`, modulo their count.
    pub fn new(
        config: &Arc<Config>,
        engine: Arc<dyn Engine>,
        info: EngineInfo,
        tasks: &Tasks,
        instance: &str,
        first_number: u32,
    ) -> Self {
        let limits = &config.engine;
        let slots = SlotTable::new(
            limits.uid_base,
            limits.uid_count,
            UID_QUARANTINE,
            first_number,
        );
        Self {
            config: Arc::clone(config),
            removals: OrphanRemovals::new(
                Arc::clone(&engine),
                tasks.clone(),
                limits.remove_timeout,
            ),
            engine,
            info,
            tasks: tasks.clone(),
            instance: instance.to_owned(),
            slots,
            workspaces: Arc::default(),
            boots: Semaphore::new(BOOTS_MAX),
            image_checks: Semaphore::new(IMAGE_CHECKS_MAX),
            inventories: SoftwareInventoryCache::default(),
            reconcile: Notify::new(),
            metrics: Arc::default(),
            execs: HeldCounter::new("execs"),
            usage: UsageLedger::default(),
        }
    }

    /// Sets the metrics, in place of those that nothing reads.
    #[must_use]
    pub fn with_metrics(self, metrics: Arc<Metrics>) -> Self {
        Self { metrics, ..self }
    }

    /// Sets the counters of tenants, in place of those that nothing reads.
    #[must_use]
    pub fn with_tenant_counters(self, execs: HeldCounter, usage: UsageLedger) -> Self {
        Self {
            workspaces: Arc::new(WorkspaceTable::new(usage.clone())),
            execs,
            usage,
            ..self
        }
    }

    /// Directory of all slots.
    pub fn slots_dir(&self) -> PathBuf {
        self.config.state_dir.join("slots")
    }

    /// Directory of one slot.
    pub fn slot_dir(&self, number: u32) -> PathBuf {
        self.slots_dir().join(number.to_string())
    }

    /// Brings the ledger up to date with the time for which workspaces have existed.
    pub fn account_usage(&self) {
        self.workspaces.account(unix_ms(SystemTime::now()));
    }

    /// Writes what tenants have used to the disk now, every [`USAGE_SAVE_INTERVAL`] and at the end, until the daemon stops.
    /// The first write tells the next daemon since when uses may be missing, also after an early crash.
    pub async fn save_usage_periodically(self: Arc<Self>) {
        loop {
            let is_last = self.tasks.stop.is_cancelled();
            let (context, now_ms) = (Arc::clone(&self), unix_ms(SystemTime::now()));
            let save = move || {
                context.workspaces.account(now_ms);
                context.usage.save(&context.config.state_dir, now_ms)
            };
            if let Err(error) = self.tasks.blocking(save).await {
                tracing::warn!(error = %Chain(&error), "usage of tenants was not written");
            }
            if is_last {
                return;
            }
            let pause = tokio::time::sleep(USAGE_SAVE_INTERVAL);
            self.tasks.stop.run_until_cancelled(pause).await;
        }
    }

    /// Returns what a guest is checked against, and the CPU group that it is given. `pid` is the container's first
    /// process.
    pub async fn expected(&self, record: &SlotRecord, pid: i32) -> guest::ExpectedGuest {
        let kind = RuntimeKind::from_name(record.oci_runtime.as_deref().unwrap_or("runc"));
        let shows_pid = kind.reports_guest_pid();
        let is_fake = self.info.name == "fake";
        let has_group = pid != 0 && kind.shares_host_kernel() && !is_fake;
        let container = record.container_id.clone().filter(|_| has_group);
        guest::ExpectedGuest {
            uid: (!self.info.userns_remap && shows_pid && !is_fake).then_some(record.uid),
            pid: (shows_pid && pid != 0).then_some(pid),
            nonce: HEXLOWER.decode(record.nonce.as_bytes()).unwrap_or_default(),
            command_group: match container {
                Some(container) => self.command_group(container, pid).await,
                None => None,
            },
        }
    }

    /// Makes the CPU group of a container's commands, if this daemon may.
    async fn command_group(&self, container: String, pid: i32) -> Option<Arc<File>> {
        let make = move || {
            let operation = format!("make the CPU group of container {container}");
            cgroup::create_command_group(&container, pid)
                .map_err(|source| Error::io(operation, source))
        };
        match self.tasks.blocking(make).await {
            Ok(group) => Some(Arc::new(group)),
            Err(error) => {
                WARN_OF_COMMAND_GROUPS.call_once(|| {
                    tracing::warn!(
                        error = %Chain(&error),
                        "commands have no CPU group of their own, so that many busy ones delay their guest: run skilld as \
                         root, in the host's cgroup namespace"
                    );
                });
                None
            }
        }
    }
}

/// Limits the warning to one line: the ability to make groups depends on the daemon, not on the container.
static WARN_OF_COMMAND_GROUPS: Once = Once::new();
