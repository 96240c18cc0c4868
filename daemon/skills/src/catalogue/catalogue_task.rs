//! The task that owns the catalogue. It scans after change reports, on an interval, after a remote root was fetched and
//! on request, and publishes each snapshot. Everything else reads snapshots and holds no lock.
//!
//! ```text
//! change reports ─ debounce ─┐
//! interval ──────────────────┼─► scan (blocking thread) ─► watch::Sender<Option<Arc<Catalogue>>>
//! rescan requests ───────────┘
//! ```

use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::sync::{mpsc, oneshot, watch};
use tokio::time::sleep;

use super::catalogue_snapshot::Catalogue;
use super::source_scanner::{ScanExtent, SourceScanner};
use crate::content_store::ContentStore;
use crate::error::{Error, Result};
use crate::skills_options::SkillsOptions;
use crate::sources::Sources;
use crate::task_spawner::TaskSpawner;

/// Time from a change report to the scan that it causes; reports in between cause no further scan.
const DEBOUNCE: Duration = Duration::from_millis(100);
/// Maximum of that time. Up to it the debounce is as long as the last scan, so that steady changes leave the task idle
/// half of the time.
const DEBOUNCE_MAX: Duration = Duration::from_millis(900);
/// Shortest time between two interval scans.
const INTERVAL_MIN: Duration = Duration::from_secs(2);
/// Duration of a scan is multiplied by this to get the time to the next interval scan, so that the catalogue scans for
/// at most 2 % of the time.
const INTERVAL_FACTOR: u32 = 50;
/// Capacity of the queue of rescan requests; further requests wait.
const REQUESTS_MAX: usize = 64;

/// A request for a scan and the channel for its snapshot.
#[derive(Debug)]
struct RescanRequest {
    scope: ScanExtent,
    reply: oneshot::Sender<Arc<Catalogue>>,
}

/// Handle to the catalogue's task. Clones share it.
#[derive(Debug, Clone)]
pub(crate) struct CatalogueHandle {
    snapshot: watch::Receiver<Option<Arc<Catalogue>>>,
    requests: mpsc::Sender<RescanRequest>,
    /// `true` while every root can be read.
    pub(crate) is_readable: watch::Receiver<bool>,
}

/// State of the task that owns the catalogue.
#[derive(Debug)]
struct CatalogueTask {
    sources: Arc<Sources>,
    store: Arc<ContentStore>,
    tasks: TaskSpawner,
    requests: mpsc::Receiver<RescanRequest>,
    snapshot: watch::Sender<Option<Arc<Catalogue>>>,
    is_readable: watch::Sender<bool>,
    options: SkillsOptions,
    /// `None` while a scan runs, or after one panicked.
    scanner: Option<SourceScanner>,
}

impl CatalogueHandle {
    /// Starts the task; the first scan begins at once.
    pub(crate) fn start(
        options: &SkillsOptions,
        sources: Arc<Sources>,
        store: Arc<ContentStore>,
        tasks: &TaskSpawner,
    ) -> Self {
        let (request_sender, requests) = mpsc::channel(REQUESTS_MAX);
        let (snapshot, snapshots) = watch::channel(None);
        let (is_readable, readable) = watch::channel(true);
        let task = CatalogueTask {
            sources,
            store,
            tasks: tasks.clone(),
            requests,
            snapshot,
            is_readable,
            options: options.clone(),
            scanner: Some(SourceScanner::new(options)),
        };
        // The daemon's tracker waits for the task.
        drop(tasks.spawn(task.run()));
        Self {
            snapshot: snapshots,
            requests: request_sender,
            is_readable: readable,
        }
    }

    /// Returns the latest snapshot; waits for the first one.
    ///
    /// # Errors
    /// `Draining` when the daemon stops first.
    pub(crate) async fn snapshot(&self) -> Result<Arc<Catalogue>> {
        let mut snapshots = self.snapshot.clone();
        let snapshot = snapshots.wait_for(Option::is_some).await;
        snapshot
            .ok()
            .and_then(|snapshot| snapshot.clone())
            .ok_or(Error::Draining)
    }

    /// Scans again and returns the snapshot of a scan that began after this call.
    ///
    /// # Errors
    /// `Draining` when the daemon stops first.
    pub(crate) async fn rescan(&self, scope: ScanExtent) -> Result<Arc<Catalogue>> {
        let (reply, answer) = oneshot::channel();
        let request = RescanRequest { scope, reply };
        self.requests
            .send(request)
            .await
            .map_err(|_| Error::Draining)?;
        answer.await.map_err(|_| Error::Draining)
    }
}

impl CatalogueTask {
    async fn run(mut self) {
        let stop = self.tasks.stop.clone();
        stop.run_until_cancelled(self.keep_current()).await;
    }

    async fn keep_current(&mut self) {
        let mut fetched = self.sources.remote.watch_attempts();
        let mut scope = ScanExtent::Changed;
        let mut replies = Vec::new();
        loop {
            let started = Instant::now();
            let is_unwatched_change = self.scan(scope, std::mem::take(&mut replies)).await;
            let elapsed = started.elapsed();
            let mut wait = INTERVAL_MIN.max(elapsed * INTERVAL_FACTOR);
            // Only a scan of all folders finds changes that nobody reported, whatever the next request asks for.
            scope = ScanExtent::Published;
            if is_unwatched_change {
                wait = DEBOUNCE;
                scope = ScanExtent::Changed;
            }
            let debounce = DEBOUNCE.max(elapsed.min(DEBOUNCE_MAX));
            tokio::select! {
                request = self.requests.recv() => {
                    // Without a handle nobody reads snapshots any more.
                    let Some(request) = request else { return };
                    scope = scope.max(request.scope);
                    replies.push(request.reply);
                }
                () = reported(self.scanner.as_ref()) => {
                    scope = scope.max(ScanExtent::Changed);
                    tokio::select! {
                        () = sleep(debounce) => {}
                        Some(request) = self.requests.recv() => {
                            scope = scope.max(request.scope);
                            replies.push(request.reply);
                        }
                    }
                }
                Ok(()) = fetched.changed() => scope = scope.max(ScanExtent::Changed),
                () = sleep(wait) => scope = scope.max(ScanExtent::Changed),
            }
            while let Ok(request) = self.requests.try_recv() {
                scope = scope.max(request.scope);
                replies.push(request.reply);
            }
        }
    }

    /// Scans once and publishes the snapshot. Returns `true` if directories are watched from now on whose changes since
    /// the scan nobody reported, so that a second scan must follow.
    async fn scan(
        &mut self,
        scope: ScanExtent,
        replies: Vec<oneshot::Sender<Arc<Catalogue>>>,
    ) -> bool {
        let mut scanner = self
            .scanner
            .take()
            .unwrap_or_else(|| SourceScanner::new(&self.options));
        let (sources, store) = (Arc::clone(&self.sources), Arc::clone(&self.store));
        #[cfg(test)]
        let gate = Arc::clone(&self.options.scan_gate);
        let work = move || {
            #[cfg(test)]
            drop(gate.lock());
            let outcome = scanner.scan(&sources, scope, &store);
            Ok::<_, Error>((scanner, outcome))
        };
        let outcome = match self.tasks.blocking(work).await {
            Ok((scanner, outcome)) => {
                self.scanner = Some(scanner);
                outcome
            }
            Err(error) => {
                tracing::error!(%error, "the scan of skills failed");
                return false;
            }
        };
        self.publish(&outcome.catalogue);
        for reply in replies {
            // The caller may have gone away.
            let _gone = reply.send(Arc::clone(&outcome.catalogue));
        }
        outcome.is_unwatched_change
    }

    fn publish(&self, catalogue: &Arc<Catalogue>) {
        let is_readable = catalogue.is_readable;
        self.is_readable
            .send_if_modified(|before| std::mem::replace(before, is_readable) != is_readable);
        self.snapshot.send_if_modified(|latest| {
            let is_new = latest
                .as_ref()
                .is_none_or(|latest| !Arc::ptr_eq(latest, catalogue));
            *latest = Some(Arc::clone(catalogue));
            is_new
        });
    }
}

/// Waits until a change is reported to this scanner; for ever without one.
async fn reported(scanner: Option<&SourceScanner>) {
    match scanner {
        Some(scanner) => scanner.reported().await,
        None => std::future::pending().await,
    }
}
