//! Roots that are on servers: fetched in the background, kept in a cache, and read like any other directory.
//!
//! ```text
//! start    what the cache has is there at once; nothing waits for the network
//! task     one for each root: fetch, unpack, publish a generation, wait for the interval; sooner after a failure
//! refresh  asks all servers now
//! ```
//!
//! A failure keeps what there is and is a problem of the root. [`cache`] says how processes that share a cache keep out
//! of each other's way, `gather.rs` what a URL may lead to.

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant, SystemTime};

use data_encoding::HEXLOWER;
use sha2::{Digest as _, Sha256};
use tempfile::TempDir;
use tokio::time::Instant as Deadline;

use super::Problem;
use super::source::{Folders, Source};
use crate::config::{RemoteConfig, SkillRoot, SkillsConfig};
use crate::error::Result;
use crate::fetch::{Fetcher, WebUrl};
use crate::shutdown::Tasks;

mod cache;
mod documents;
mod fault;
mod gather;
#[cfg(test)]
mod tests;
mod unpack;

use cache::{Entry, Generation};
use fault::not_stored;
use gather::Gather;

/// The file of a skill card.
const CARD: &str = "skill-card.json";
/// How long a generation that was replaced is kept, for those that are about to read it.
const GRACE: Duration = Duration::from_secs(60);
/// Until a root whose server did not answer is tried again; doubled up to the interval.
const RETRY: Duration = Duration::from_secs(5);
/// Between two looks whether another process is done with the cache.
const LOCK_WAIT: Duration = Duration::from_millis(50);

/// The roots of a configuration that are URLs. Clones share them.
#[derive(Debug, Clone)]
pub(super) struct Remote {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    fetcher: Fetcher,
    config: RemoteConfig,
    roots: Vec<Arc<Root>>,
    tasks: Tasks,
}

#[derive(Debug)]
struct Root {
    url: WebUrl,
    entry: Entry,
    state: Mutex<State>,
    /// One attempt at a time; the other processes are kept out by the cache's lock.
    turn: tokio::sync::Mutex<()>,
}

#[derive(Debug, Default)]
struct State {
    current: Option<Arc<Generation>>,
    /// Replaced, and since when: readers may not be done with them.
    before: Vec<(Instant, Arc<Generation>)>,
    /// Of the last attempt; `None` before the first.
    failure: Option<Option<Problem>>,
}

/// What an attempt has, until it is over.
#[derive(Debug, Default)]
struct Held {
    work: Option<TempDir>,
    lock: Option<std::fs::File>,
}

// === impl Remote ===

impl Remote {
    /// Looks into the cache; neither waits for a server nor fails.
    pub(super) fn open(config: &SkillsConfig, tasks: Tasks) -> Self {
        let urls = config.roots.iter().filter_map(|root| match root {
            SkillRoot::Dir { .. } => None,
            SkillRoot::Url { url, .. } => Some(url),
        });
        let roots = urls.map(|url| Arc::new(Root::open(url, &config.remote.cache_dir)));
        let config = config.remote.clone();
        let private = config.allow_private_addresses;
        Self {
            inner: Arc::new(Inner {
                fetcher: Fetcher::new(&config.fetch, private, tasks.clone()),
                config,
                roots: roots.collect(),
                tasks,
            }),
        }
    }

    /// Keeps every root fresh until the daemon stops.
    pub(super) fn start(&self) {
        for root in &self.inner.roots {
            let (inner, root) = (Arc::clone(&self.inner), Arc::clone(root));
            drop(self.inner.tasks.spawn(async move {
                let stop = inner.tasks.stop.clone();
                tokio::select! {
                    () = stop.cancelled() => {}
                    () = inner.keep_fresh(&root) => {}
                }
            }));
        }
    }

    /// A root as it is now.
    pub(super) fn source(&self, text: &str, url: &WebUrl) -> Source {
        let mut roots = self.inner.roots.iter();
        let root = roots.find(|root| root.url == *url);
        let (dir, problems) = root.map(|root| root.now()).unwrap_or_default();
        let from_card = root.is_some_and(|root| root.is_card());
        let problems = problems.into_iter();
        Source {
            root: text.to_owned(),
            origin: Some(text.to_owned()),
            from_card,
            folders: dir.map_or(Folders::Missing, Folders::Beneath),
            problems: problems
                .map(|problem| problem.about(Path::new(text)))
                .collect(),
        }
    }

    /// Asks all servers, and returns when all have answered or failed, or at `by`: then there is a problem for each that
    /// goes on being fetched.
    ///
    /// # Errors
    /// Only when the daemon is going down.
    pub(super) async fn refresh(&self, by: Option<Deadline>) -> Result<Vec<Problem>> {
        let asked = SystemTime::now();
        let attempts = self.inner.roots.iter().map(|root| {
            let (inner, root) = (Arc::clone(&self.inner), Arc::clone(root));
            // A client that goes away does not throw away what is half fetched for all.
            let url = root.url.clone();
            let task = self.inner.tasks.spawn(async move {
                let stop = inner.tasks.stop.clone();
                tokio::select! {
                    () = stop.cancelled() => false,
                    done = inner.renew(&root, asked) => done,
                }
            });
            (url, task)
        });
        let mut pending = Vec::new();
        for (url, task) in attempts.collect::<Vec<_>>() {
            let ended = match by {
                None => Ok(task.await),
                Some(by) => tokio::time::timeout_at(by, task).await,
            };
            let Ok(ended) = ended else {
                let message = format!(
                    "{url} is still being fetched; what it had before is there until that is done"
                );
                let problem = Problem::warning("root.pending", message);
                pending.push(problem.about(Path::new(&url.to_string())));
                continue;
            };
            ended.map_err(|error| crate::error::Error::Internal(error.to_string()))?;
        }
        Ok(pending)
    }
}

// === impl Inner ===

impl Inner {
    async fn keep_fresh(&self, root: &Root) {
        let mut retry = RETRY;
        loop {
            let wait = if self.renew(root, SystemTime::now()).await {
                retry = RETRY;
                self.config.refresh_interval
            } else {
                retry = (retry * 2).min(self.config.refresh_interval);
                retry
            };
            tokio::time::sleep(wait).await;
        }
    }

    /// One attempt. Nothing is asked if somebody did since `asked`. False if it failed.
    async fn renew(&self, root: &Root, asked: SystemTime) -> bool {
        let _turn = root.turn.lock().await;
        let mut held = Held::default();
        let attempt = self.attempt(root, asked, &mut held);
        let attempt = tokio::time::timeout(self.config.refresh_timeout, attempt).await;
        // What is left of it may be large, and nobody else may begin before it is gone.
        let Held { work, lock } = held;
        let _gone = off(&self.tasks, move || drop((work, lock))).await;
        let outcome = attempt.unwrap_or_else(|_| {
            let limit = humantime::format_duration(self.config.refresh_timeout);
            let message = format!("{} could not be fetched within {limit}", root.url);
            Err(Problem::error("root.unreachable", message))
        });
        let ok = outcome.is_ok();
        root.state().failure = Some(outcome.err());
        ok
    }

    async fn attempt(
        &self,
        root: &Root,
        asked: SystemTime,
        held: &mut Held,
    ) -> Result<(), Problem> {
        let entry = root.entry.clone();
        self.blocking(move || entry.make()).await?;
        held.lock = Some(self.lock(root).await?);
        let entry = root.entry.clone();
        let newest = self.blocking(move || {
            let newest = entry.newest();
            entry.sweep(newest.as_ref(), GRACE)?;
            Ok(newest)
        });
        let newest = newest.await?.map(Arc::new);
        if let Some(newest) = &newest {
            root.adopt(newest);
            let pinned = root.url.sha256() == Some(newest.ready.sha256.as_str());
            let checked = newest.checked().map_err(|error| not_stored(&error))?;
            if (pinned && newest.ready.settled) || checked >= asked {
                return Ok(());
            }
        }
        let entry = root.entry.clone();
        let work = self.blocking(move || entry.work()).await?;
        let work = held.work.insert(work);
        let gather = Gather {
            fetcher: &self.fetcher,
            config: &self.config,
            tasks: &self.tasks,
            before: newest.as_deref(),
            work: work.path(),
        };
        let gathered = gather.run(&root.url).await?;
        let Some(ready) = gathered else {
            return match newest {
                Some(newest) => self.blocking(move || newest.touch()).await,
                None => Ok(()),
            };
        };
        if let Some(work) = held.work.take() {
            let entry = root.entry.clone();
            let published = self.blocking(move || entry.publish(work, ready)).await?;
            tracing::info!(url = %root.url, number = published.number, "root fetched");
            root.adopt(&Arc::new(published));
        }
        Ok(())
    }

    /// The lock on what a root has in the cache; another daemon may be fetching the same.
    async fn lock(&self, root: &Root) -> Result<std::fs::File, Problem> {
        loop {
            let entry = root.entry.clone();
            if let Some(lock) = self.blocking(move || entry.try_lock()).await? {
                return Ok(lock);
            }
            tokio::time::sleep(LOCK_WAIT).await;
        }
    }

    async fn blocking<T: Send + 'static>(
        &self,
        work: impl FnOnce() -> std::io::Result<T> + Send + 'static,
    ) -> Result<T, Problem> {
        let done = off(&self.tasks, work).await?;
        done.map_err(|error| not_stored(&error))
    }
}

/// Does work off the runtime's threads; fails only when the daemon is going down.
async fn off<T: Send + 'static>(
    tasks: &Tasks,
    work: impl FnOnce() -> T + Send + 'static,
) -> Result<T, Problem> {
    let done = tasks.blocking(move || Ok(work())).await;
    done.map_err(|error| Problem::error("root.cache", error.to_string()))
}

// === impl Root ===

impl Root {
    fn open(url: &WebUrl, cache: &Path) -> Self {
        let mut digest = Sha256::new();
        digest.update(url.url().as_str());
        if let Some(sha256) = url.sha256() {
            digest.update(format!("#sha256={sha256}"));
        }
        let name = HEXLOWER.encode(&digest.finalize());
        let entry = Entry::new(cache, &name);
        let state = State {
            current: entry.newest().map(Arc::new),
            ..State::default()
        };
        Self {
            url: url.clone(),
            entry,
            state: Mutex::new(state),
            turn: tokio::sync::Mutex::new(()),
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// From now on this is what the root has.
    fn adopt(&self, generation: &Arc<Generation>) {
        let mut state = self.state();
        state.before.retain(|(since, _)| since.elapsed() < GRACE);
        let same = |current: &Arc<Generation>| current.number == generation.number;
        if !state.current.as_ref().is_some_and(same)
            && let Some(old) = state.current.replace(Arc::clone(generation))
        {
            state.before.push((Instant::now(), old));
        }
    }

    /// Returns `true` if the URL leads to a skill card.
    fn is_card(&self) -> bool {
        let state = self.state();
        state
            .current
            .as_ref()
            .is_some_and(|now| now.ready.is_card())
    }

    /// Its folders of skills, if there are any, and why it is not as it should be.
    fn now(&self) -> (Option<PathBuf>, Vec<Problem>) {
        let state = self.state();
        let dir = state.current.as_ref().map(|current| current.tree());
        let mut problems = Vec::new();
        match (&state.failure, &dir) {
            (None, None) => {
                let message = format!("{} is being fetched for the first time", self.url);
                problems.push(Problem::warning("root.pending", message));
            }
            (Some(Some(problem)), None) => problems.push(problem.clone()),
            (Some(Some(problem)), Some(_)) => {
                let message = format!("{}; what was fetched before is kept", problem.message);
                problems.push(Problem::warning(problem.code, message));
            }
            (None | Some(None), _) => {}
        }
        let skipped = state.current.iter().flat_map(|now| &now.ready.skipped);
        problems.extend(skipped.map(|why| Problem::warning("root.skill_skipped", why.clone())));
        (dir, problems)
    }
}
