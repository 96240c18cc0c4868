//! Remote roots: archives, indexes and skill cards behind URLs, fetched in the background straight into the store.
//!
//! ```text
//! start    what the store has is listed at once; nothing waits for the network
//! task     one for each root: fetch, unpack, store, wait for the interval; sooner after a failure
//! refresh  asks all servers now
//! ```
//!
//! A failure keeps what was fetched before and is a problem of the root. Roots that are folders of one archive share its
//! URL, which is fetched once. `refresh_attempt.rs` says what a URL may lead to, `root_record.rs` what is remembered of
//! it. The files of a card in a folder, whose `base_uri` is a URL, are fetched like a root: `card_files.rs`.

use std::collections::BTreeMap;
use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use data_encoding::HEXLOWER;
use parking_lot::Mutex;
use sha2::{Digest as _, Sha256};
use tokio::sync::watch;
use tokio::time::{Instant, timeout_at};
use tokio_util::sync::CancellationToken;

use super::skill_source::{SkillSource, SourceFolders};
use crate::content_store::{ContentStore, read_record};
use crate::error::{Error, Result};
use crate::fetch::{UrlFetcher, WebUrl};
use crate::parse::problem::Problem;
use crate::skills_options::{RemoteOptions, SkillRoot, SkillsOptions};
use crate::task_spawner::TaskSpawner;
use crate::tenant_permits::{DAEMON_HOLDER, TenantPermits};

mod card_files;
mod fetch_plan;
mod refresh_attempt;
mod refresh_error;
mod root_record;
#[cfg(test)]
mod tests;

use refresh_attempt::RefreshAttempt;
use refresh_error::RefreshError;
use root_record::RootRecord;

/// Time to the next attempt after a failure; doubled by each further one, up to the interval.
const RETRY: Duration = Duration::from_secs(5);
/// Maximum number of simultaneous attempts; each holds a thread.
const ATTEMPTS_MAX: usize = 64;

/// The roots of a configuration that are URLs.
#[derive(Debug)]
pub(crate) struct RemoteRoots {
    context: Arc<RemoteContext>,
    /// Remote roots, one for each URL.
    roots: Vec<Arc<RemoteRoot>>,
    /// Cards of other roots whose files are fetched, by their keys.
    cards: Mutex<BTreeMap<String, Arc<RemoteRoot>>>,
    /// Directory of the records.
    records: PathBuf,
    /// Fetcher for the cards that clients publish.
    client_fetcher: UrlFetcher,
}

/// Everything that the attempts of all roots share.
#[derive(Debug, Clone)]
struct RemoteContext {
    fetcher: UrlFetcher,
    options: RemoteOptions,
    store: Arc<ContentStore>,
    tasks: TaskSpawner,
    permits: TenantPermits,
    /// Number of attempts that ended; the catalogue's task waits for it to change.
    attempts: watch::Sender<u64>,
}

/// URL of one or several roots, and the results of its attempts.
#[derive(Debug)]
struct RemoteRoot {
    url: WebUrl,
    /// The roots as configured; for a card the URL.
    texts: Vec<String>,
    /// Bytes of a card whose files are beneath the URL.
    card: Option<Arc<[u8]>>,
    /// File of its record.
    path: PathBuf,
    status: watch::Sender<RootStatus>,
    /// Held by the attempt in progress.
    turn: tokio::sync::Mutex<()>,
    /// Cancelled when the daemon stops, or when no folder has the card any more.
    stop: CancellationToken,
}

/// Result of the attempts so far.
#[derive(Debug, Clone, Default)]
struct RootStatus {
    record: Option<Arc<RootRecord>>,
    /// End of the most recent attempt that succeeded.
    succeeded_at: Option<Instant>,
    /// Problem of the most recent attempt; `None` if it succeeded or none has ended yet.
    failure: Option<Problem>,
}

// === impl RemoteRoots ===

impl RemoteRoots {
    /// Reads the records in `records`; neither waits for a server nor fails for a record that is damaged.
    ///
    /// # Errors
    /// `Io` when the directory cannot be made.
    pub(crate) fn open(
        options: &SkillsOptions,
        records: &Path,
        store: &Arc<ContentStore>,
        tasks: TaskSpawner,
    ) -> Result<Self> {
        fs::create_dir_all(records).map_err(Error::io(format!("make {}", records.display())))?;
        let mut roots: Vec<RemoteRoot> = Vec::new();
        for root in &options.roots {
            let SkillRoot::Url { text, url, .. } = root else {
                continue;
            };
            match roots.iter_mut().find(|root| root.url == *url) {
                Some(root) => root.texts.push(text.clone()),
                None => roots.push(RemoteRoot::open(url, text, records, store, &tasks)),
            }
        }
        let remote = options.remote.clone();
        let fetcher = |private| UrlFetcher::new(&remote.fetch, private, tasks.clone());
        let client_fetcher = fetcher(remote.published_private_addresses);
        let fetcher = fetcher(remote.allow_private_addresses);
        Ok(Self {
            roots: roots.into_iter().map(Arc::new).collect(),
            cards: Mutex::default(),
            records: records.to_owned(),
            client_fetcher,
            context: Arc::new(RemoteContext {
                fetcher,
                options: remote,
                store: Arc::clone(store),
                tasks,
                permits: TenantPermits::new(ATTEMPTS_MAX, false),
                attempts: watch::Sender::new(0),
            }),
        })
    }

    /// Keeps every root current until the daemon stops.
    pub(crate) fn start(&self) {
        for root in &self.roots {
            self.start_root(root);
        }
    }

    /// Keeps one root current until it is stopped.
    fn start_root(&self, root: &Arc<RemoteRoot>) {
        let (context, root) = (Arc::clone(&self.context), Arc::clone(root));
        drop(self.context.tasks.spawn(async move {
            let keep_current = context.keep_current(&root);
            root.stop.run_until_cancelled(keep_current).await;
        }));
    }

    /// Returns the configured roots and the cards.
    fn all_roots(&self) -> Vec<Arc<RemoteRoot>> {
        let cards = self.cards.lock();
        self.roots.iter().chain(cards.values()).cloned().collect()
    }

    /// Returns a receiver that changes whenever an attempt to fetch a root has ended.
    pub(crate) fn watch_attempts(&self) -> watch::Receiver<u64> {
        self.context.attempts.subscribe()
    }

    /// Returns `true` if a root's skills have this digest, which must then stay in the store.
    pub(crate) fn references(&self, digest: &str) -> bool {
        self.all_roots().iter().any(|root| {
            let status = root.status.borrow();
            let record = status.record.as_ref();
            record.is_some_and(|record| record.tree == digest)
        })
    }

    /// Returns a root as it is now: a folder of what its URL leads to, or all of it. Blocks.
    pub(crate) fn source(&self, text: &str, url: &WebUrl, folder: &str) -> SkillSource {
        let root = self.roots.iter().find(|root| root.url == *url);
        let status = root
            .map(|root| root.status.borrow().clone())
            .unwrap_or_default();
        let record = status.record.as_ref();
        let mut problems = status.problems(url);
        let dir = record.and_then(|record| {
            let dir = record.find_folder(&self.context.store.dir(&record.tree), folder);
            dir.map_err(|problem| problems.push(problem)).ok()
        });
        SkillSource {
            tenant: None,
            root: text.to_owned(),
            origin: Some(text.to_owned()),
            folders: dir.map_or(SourceFolders::Missing, SourceFolders::Beneath),
            problems: problems
                .into_iter()
                .map(|problem| problem.about(Path::new(text)))
                .collect(),
        }
    }

    /// Asks all servers, and returns when all have answered or failed, or at `by`: a problem then names each root that
    /// is still being fetched.
    ///
    /// # Errors
    /// `Internal` when an attempt panicked.
    pub(crate) async fn refresh(&self, by: Option<Instant>) -> Result<Vec<Problem>> {
        let asked = Instant::now();
        let attempts = self.all_roots().into_iter().map(|root| {
            let context = Arc::clone(&self.context);
            let texts = root.texts.clone();
            // The attempt goes on when its client is gone: its result is for all clients.
            let renew = async move { context.renew(&root, asked).await };
            (texts, self.context.tasks.spawn(renew))
        });
        let mut pending = Vec::new();
        for (texts, task) in attempts.collect::<Vec<_>>() {
            let ended = match by {
                None => Ok(task.await),
                Some(by) => timeout_at(by, task).await,
            };
            let Ok(ended) = ended else {
                pending.extend(texts.iter().map(|text| {
                    let message = format!(
                        "{text} is still being fetched; what it had before is there until that is done"
                    );
                    Problem::warning("root.pending", message).about(Path::new(text))
                }));
                continue;
            };
            ended.map_err(|error| Error::Internal(error.to_string()))?;
        }
        Ok(pending)
    }
}

// === impl RemoteContext ===

impl RemoteContext {
    async fn keep_current(self: &Arc<Self>, root: &Arc<RemoteRoot>) {
        let mut retry = RETRY;
        loop {
            let wait = if self.renew(root, Instant::now()).await {
                retry = RETRY;
                self.options.refresh_interval
            } else {
                retry = (retry * 2).min(self.options.refresh_interval);
                retry
            };
            tokio::time::sleep(wait).await;
        }
    }

    /// Makes one attempt, unless one has succeeded since `asked`. Returns `false` if it failed.
    async fn renew(self: &Arc<Self>, root: &Arc<RemoteRoot>, asked: Instant) -> bool {
        let _turn = root.turn.lock().await;
        let succeeded_at = root.status.borrow().succeeded_at;
        if succeeded_at.is_some_and(|time| time >= asked) {
            return true;
        }
        let (context, target) = (Arc::clone(self), Arc::clone(root));
        let attempt = move || context.attempt(&target);
        let attempted = self
            .tasks
            .blocking_in(&self.permits, DAEMON_HOLDER, attempt);
        let outcome = attempted.await;
        let is_ok = outcome.is_ok();
        root.status.send_modify(|status| match outcome {
            Ok(()) => {
                status.succeeded_at = Some(Instant::now());
                status.failure = None;
            }
            Err(RefreshError(problem)) => status.failure = Some(problem),
        });
        self.attempts.send_modify(|attempts| *attempts += 1);
        is_ok
    }

    /// Fetches a root and makes the result its current record. Blocks.
    fn attempt(&self, root: &RemoteRoot) -> Result<(), RefreshError> {
        let recorded = root.status.borrow().record.clone();
        let before = recorded.filter(|record| self.store.dir(&record.tree).is_dir());
        let is_pinned = |record: &RootRecord| root.url.sha256() == Some(record.sha256.as_str());
        if before
            .as_ref()
            .is_some_and(|record| record.is_final && is_pinned(record))
        {
            return Ok(());
        }
        let work = tempfile::tempdir_in(self.store.tmp())?;
        let attempt = RefreshAttempt::new(self, &root.url, before.as_deref(), work.path());
        // The lease keeps the tree in the store until the record references it.
        let fetched = match &root.card {
            None => attempt.run()?,
            Some(card) => Some(attempt.run_card(card)?),
        };
        let Some((record, _lease)) = fetched else {
            return Ok(());
        };
        if before.as_deref() != Some(&record) {
            self.store.write_record(&root.path, &record, || {})?;
            root.status
                .send_modify(|status| status.record = Some(Arc::new(record)));
            tracing::info!(url = %root.url, "root fetched");
        }
        Ok(())
    }
}

// === impl RemoteRoot ===

impl RemoteRoot {
    fn open(
        url: &WebUrl,
        text: &str,
        records: &Path,
        store: &ContentStore,
        tasks: &TaskSpawner,
    ) -> Self {
        let pin = url.sha256().map(|sha256| format!("#sha256={sha256}"));
        let identity = format!("{}{}", url.url(), pin.unwrap_or_default());
        let name = HEXLOWER.encode(&Sha256::digest(identity));
        Self::read(
            url,
            text,
            records.join(format!("{name}.json")),
            store,
            tasks,
        )
    }

    /// Reads the record of what was fetched from a URL.
    fn read(
        url: &WebUrl,
        text: &str,
        path: PathBuf,
        store: &ContentStore,
        tasks: &TaskSpawner,
    ) -> Self {
        let record = read_record::<RootRecord>(&path)
            .inspect_err(|error| {
                if error.kind() != ErrorKind::NotFound {
                    tracing::warn!(path = %path.display(), %error, "record of a remote root is unreadable");
                }
            })
            .ok()
            .filter(|record| store.verified_content(&record.tree).is_ok());
        let status = RootStatus {
            record: record.map(Arc::new),
            ..RootStatus::default()
        };
        Self {
            url: url.clone(),
            texts: vec![text.to_owned()],
            card: None,
            path,
            status: watch::Sender::new(status),
            turn: tokio::sync::Mutex::default(),
            stop: tasks.stop.child_token(),
        }
    }
}

impl RootStatus {
    /// Returns the problems of the root, without their subject.
    fn problems(&self, url: &WebUrl) -> Vec<Problem> {
        let mut problems = Vec::new();
        match (&self.failure, &self.record) {
            (None, None) => {
                let message = format!("{url} is being fetched for the first time");
                problems.push(Problem::warning("root.pending", message));
            }
            (Some(problem), None) => problems.push(problem.clone()),
            (Some(problem), Some(_)) => {
                let message = format!("{}; what was fetched before is kept", problem.message);
                problems.push(Problem::warning(problem.code, message));
            }
            (None, Some(_)) => {}
        }
        let skipped = self.record.iter().flat_map(|record| &record.skipped);
        problems.extend(skipped.map(|why| Problem::warning("root.skill_skipped", why.clone())));
        let left_out = self.record.iter().flat_map(|record| &record.left_out);
        problems.extend(left_out.map(|(skill, entries)| {
            let separator = if skill.is_empty() { "" } else { ": " };
            Problem::warning("root.left_out", format!("{skill}{separator}{entries}"))
        }));
        problems
    }
}
