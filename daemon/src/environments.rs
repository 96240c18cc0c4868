//! Environments of skills: finds built ones, and builds missing ones in containers of the skill's image.
//!
//! ```text
//! StageSkills, PrepareSkill ─► Environments: one build for each need and image, however many calls wait for it
//!                                  │
//!                                  ▼
//!                              build.rs: a container of the image without a network ─► tar ─► EnvironmentStore
//! ```
//!
//! A build goes on when its callers go away, and the next call finds its environment. A build that failed is not repeated
//! for a while, so that a skill whose packages do not exist is staged as fast as any other.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::broadcast::error::RecvError;
use tokio::sync::{Semaphore, broadcast};
use tokio::time::Instant;

use crate::config::environments::{EnvironmentBuilds, EnvironmentOptions};
use crate::engine::ImageInfo;
use crate::error::{Error, Result};
use crate::fetch::UrlFetcher;
use crate::pool::Pool;
use crate::skills::environments::environment_record::{EnvironmentKey, EnvironmentRecord};
use crate::skills::environments::environment_store::EnvironmentStore;
use crate::skills::{EnvironmentNeed, Problem, StagedSkill};
use crate::workspace::shared_slot_context::SharedSlotContext;

mod build;
mod build_failure;
mod build_policy;
mod environment_cleanup;
mod line_splitter;

use build::run_build;
use build_failure::BuildFailure;
use build_policy::BuildPolicy;

/// Maximum number of builds that run or wait. Further ones are refused.
const QUEUED_BUILDS_MAX: usize = 64;
/// Maximum number of builds and failures that are remembered.
const BUILD_STATES_MAX: usize = 1000;
/// Maximum number of events of a build that wait for a caller; a slower caller misses the oldest lines.
const EVENTS_MAX: usize = 1024;

/// Code of the problem of an environment whose build failed.
const BUILD_FAILED: &str = "environment.build_failed";
/// Reason of a build whose task ended without a result.
pub const LOST_BUILD: &str = "the build ended without a result: the daemon's log has the cause";
/// Code of the problem of an environment that is still being built.
const BUILD_RUNNING: &str = "environment.build_running";
/// Code of the problem of an environment that is not built on this occasion.
const NOT_BUILT: &str = "environment.not_built";
/// Code of the problem of a workspace whose container has no environments.
pub const NOT_MOUNTED: &str = "environment.not_mounted";

/// Environments of this daemon. Clones share them.
#[derive(Debug, Clone)]
pub struct Environments(Arc<EnvironmentBuilder>);

/// Event of a build.
#[derive(Debug, Clone)]
pub enum BuildEvent {
    /// Line that the build wrote.
    Line(String),
    /// End of the build; the last event. A failure has its reason for people.
    Ended(Result<Arc<EnvironmentRecord>, String>),
}

/// Request for the environment of one skill.
#[derive(Debug, Clone)]
pub struct EnvironmentRequest {
    /// Name of the skill, for messages.
    pub skill: String,
    /// Packages that the skill needs.
    pub need: Arc<EnvironmentNeed>,
    /// Pool in whose containers the environment is used.
    pub pool: Arc<Pool>,
    /// Image of those containers. A workspace may be older than the pool's image of today.
    pub image: ImageInfo,
}

impl EnvironmentRequest {
    /// Makes the request for a skill in the image that a pool's new containers have.
    ///
    /// # Errors
    /// [`Error::PoolExhausted`] while the engine does not have the image.
    pub fn for_pool(skill: StagedSkill, pool: &Arc<Pool>) -> Result<Self> {
        Ok(Self {
            skill: skill.name,
            need: skill.environment_need,
            pool: Arc::clone(pool),
            image: pool.require_image()?.clone(),
        })
    }
}

/// Environment that a skill is staged with.
#[derive(Debug, Clone, Default)]
pub struct StagedEnvironment {
    /// Built environment; `None` if the skill needs none, or if it is missing.
    pub record: Option<Arc<EnvironmentRecord>>,
    /// Reasons for which it is missing.
    pub problems: Vec<Problem>,
}

/// Owner of all builds.
#[derive(Debug)]
struct EnvironmentBuilder {
    store: Arc<EnvironmentStore>,
    context: Arc<SharedSlotContext>,
    /// HTTP client through which the proxy of a build reaches package indexes.
    fetcher: UrlFetcher,
    policy: BuildPolicy,
    /// State of each build by the environment's key. Successful builds are absent: the store has their results.
    builds: Mutex<HashMap<EnvironmentKey, BuildState>>,
    /// Permits for builds that run at the same time.
    permits: Semaphore,
}

#[derive(Debug)]
enum BuildState {
    /// The build runs or waits for a permit; callers subscribe to its events. Its task owns the sender, so a task that
    /// panicked leaves no build behind.
    Running(broadcast::WeakSender<BuildEvent>),
    /// The build failed at this time.
    Failed {
        /// Skill for which it was started.
        skill: String,
        failure: BuildFailure,
        time: Instant,
    },
}

/// Occasion of a build.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum BuildTrigger {
    /// StageSkills: an environment that exists is used, and a failure is not repeated for a while.
    Staging,
    /// PrepareSkill: an environment that exists is used.
    Prepare,
    /// PrepareSkill with `rebuild`.
    Rebuild,
}

impl BuildState {
    /// Returns `true` while the state applies: the build runs, or its failure is not old enough to try again.
    fn is_current(&self) -> bool {
        match self {
            Self::Running(events) => events.strong_count() > 0,
            Self::Failed { failure, time, .. } => time.elapsed() < failure.retention(),
        }
    }
}

impl Environments {
    /// Makes the owner of builds over an opened store.
    #[must_use]
    pub fn new(
        store: Arc<EnvironmentStore>,
        context: Arc<SharedSlotContext>,
        fetcher: UrlFetcher,
    ) -> Self {
        let builds_max = context.config.skills.environments.builds_max;
        Self(Arc::new(EnvironmentBuilder {
            store,
            context,
            fetcher,
            policy: BuildPolicy::default(),
            builds: Mutex::default(),
            permits: Semaphore::new(builds_max.min(Semaphore::MAX_PERMITS)),
        }))
    }

    /// Returns the environment of a skill that is being staged. A missing one is built if the configuration says so, and
    /// waited for until `by`.
    pub async fn find_for_staging(
        &self,
        request: &EnvironmentRequest,
        by: Instant,
    ) -> StagedEnvironment {
        let key = match self.find_known_environment(request).await {
            Ok(known) => return known,
            Err(key) => key,
        };
        let skill = &request.skill;
        let mut events = match self.start_build(key, request, BuildTrigger::Staging) {
            Ok(events) => events,
            Err(problem) => return without_environment(vec![problem]),
        };
        match tokio::time::timeout_at(by, wait_for_end(&mut events)).await {
            Ok(Ok(record)) => with_environment(record),
            Ok(Err(reason)) => without_environment(vec![build_problem(skill, &reason)]),
            Err(_) => {
                let message = format!(
                    "the packages of skill {skill} are still being built: stage it again when they are; `skillctl skill \
                     prepare {skill}` waits for that"
                );
                without_environment(vec![Problem::warning(BUILD_RUNNING, message)])
            }
        }
    }

    /// Returns the problems that staging a skill now would report about its environment. Builds nothing; an environment
    /// that staging would try to build is no problem as long as the daemon has a source of packages.
    pub async fn staging_problems(&self, request: &EnvironmentRequest) -> Vec<Problem> {
        let key = match self.find_known_environment(request).await {
            Ok(known) => return known.problems,
            Err(key) => key,
        };
        if let Some(state @ BuildState::Failed { failure, .. }) = self.0.builds().get(&key)
            && state.is_current()
        {
            return vec![build_problem(&request.skill, failure.reason())];
        }
        if self.options().has_package_source() {
            return Vec::new();
        }
        let message = format!(
            "this daemon has no source from which the packages of skill {} can be installed: set skills.wheelhouse, \
             skills.package_index or skills.node_package_index, or use a pool whose image has them",
            request.skill
        );
        vec![Problem::warning(NOT_BUILT, message)]
    }

    /// Returns the environment of a skill, or the reasons for which it is missing.
    ///
    /// # Errors
    /// Key of the environment if a build has to be tried.
    async fn find_known_environment(
        &self,
        request: &EnvironmentRequest,
    ) -> Result<StagedEnvironment, EnvironmentKey> {
        if request.need.is_empty() {
            return Ok(StagedEnvironment::default());
        }
        if let Err(problems) = self.check_need(request) {
            return Ok(without_environment(problems));
        }
        let key = match self.key_of(request).await {
            Ok(key) => key,
            Err(problem) => return Ok(without_environment(vec![problem])),
        };
        if let Some(record) = self.0.store.find(&key) {
            return Ok(with_environment(record));
        }
        if self.options().builds != EnvironmentBuilds::Prepare {
            return Err(key);
        }
        let skill = &request.skill;
        let message = format!(
            "the packages of skill {skill} are not built for this pool: run `skillctl skill prepare {skill}`, then stage \
             it again"
        );
        Ok(without_environment(vec![Problem::warning(
            NOT_BUILT, message,
        )]))
    }

    /// Builds the environment of a skill unless it exists, or, if it `rebuilds`, in place of the one that exists. Returns
    /// the events of the build; the last one is its end. An earlier failure is tried again.
    ///
    /// # Errors
    /// Problems of a need that no build can meet.
    pub async fn prepare(
        &self,
        request: &EnvironmentRequest,
        rebuilds: bool,
    ) -> Result<broadcast::Receiver<BuildEvent>, Vec<Problem>> {
        self.check_need(request)?;
        let key = self
            .key_of(request)
            .await
            .map_err(|problem| vec![problem])?;
        let trigger = match rebuilds {
            true => BuildTrigger::Rebuild,
            false => BuildTrigger::Prepare,
        };
        self.start_build(key, request, trigger)
            .map_err(|problem| vec![problem])
    }

    /// Returns the built environment of a skill.
    pub async fn find(&self, request: &EnvironmentRequest) -> Option<Arc<EnvironmentRecord>> {
        if request.need.is_empty() {
            return None;
        }
        self.0.store.find(&self.key_of(request).await.ok()?)
    }

    /// Records that an environment was prepared for a skill, which keeps it while the skill needs it.
    ///
    /// # Errors
    /// `Io`.
    pub async fn mark_prepared(&self, record: &EnvironmentRecord, skill: &str) -> Result<()> {
        let store = Arc::clone(&self.0.store);
        let (name, skill) = (record.name.clone(), skill.to_owned());
        let mark = move || store.mark_prepared(&name, &skill).map_err(Error::from);
        self.0.context.tasks.blocking(mark).await
    }

    /// Returns the problems of builds that failed and are not repeated yet.
    #[must_use]
    pub fn problems(&self) -> Vec<Problem> {
        let builds = self.0.builds();
        let current = builds.values().filter(|state| state.is_current());
        let mut problems: Vec<Problem> = current
            .filter_map(|state| match state {
                BuildState::Failed { skill, failure, .. } => {
                    Some(build_problem(skill, failure.reason()))
                }
                BuildState::Running(_) => None,
            })
            .collect();
        drop(builds);
        problems.sort_by(|a, b| a.subject.cmp(&b.subject));
        problems
    }

    /// Checks whether builds are allowed at all and whether a build could meet the need.
    fn check_need(&self, request: &EnvironmentRequest) -> Result<(), Vec<Problem>> {
        if !self.options().is_enabled() {
            let message = format!(
                "skill {} names packages, and this daemon builds no environments (skills.environment_builds = \"never\"): \
                 only packages of the image can be used",
                request.skill
            );
            return Err(vec![Problem::warning(NOT_BUILT, message)]);
        }
        if request.need.problems.is_empty() {
            return Ok(());
        }
        Err(request.need.problems.clone())
    }

    fn options(&self) -> &EnvironmentOptions {
        &self.0.context.config.skills.environments
    }

    /// Returns the key of the environment that a build of today would make.
    ///
    /// # Errors
    /// Problem of a wheelhouse that could not be read yet.
    async fn key_of(&self, request: &EnvironmentRequest) -> Result<EnvironmentKey, Problem> {
        let policy = self.0.policy.digest(&self.0.context).await;
        let unreadable = || {
            let message = format!(
                "the packages of skill {} are not built, because the daemon cannot read skills.wheelhouse: make the \
                 directory readable, then stage the skill again",
                request.skill
            );
            Problem::warning(NOT_BUILT, message)
        };
        Ok(EnvironmentKey {
            need: request.need.digest(),
            image_id: request.image.id.clone(),
            policy: policy.ok_or_else(unreadable)?,
        })
    }

    /// Joins the build of an environment, or starts it. Returns the events of the build; the last one is its end.
    fn start_build(
        &self,
        key: EnvironmentKey,
        request: &EnvironmentRequest,
        trigger: BuildTrigger,
    ) -> Result<broadcast::Receiver<BuildEvent>, Problem> {
        let mut builds = self.0.builds();
        builds.retain(|_, state| state.is_current());
        match builds.get(&key) {
            Some(BuildState::Running(events)) => {
                if let Some(events) = events.upgrade() {
                    return Ok(events.subscribe());
                }
            }
            Some(BuildState::Failed { failure, .. }) if trigger == BuildTrigger::Staging => {
                return Err(build_problem(&request.skill, failure.reason()));
            }
            _ => {}
        }
        let (sender, events) = broadcast::channel(EVENTS_MAX);
        // A build ends with its result in the store before it leaves the table.
        let present = self.0.store.find(&key);
        if let Some(record) = present.filter(|_| trigger != BuildTrigger::Rebuild) {
            // The receiver exists, so this succeeds.
            let _receivers = sender.send(BuildEvent::Ended(Ok(record)));
            return Ok(events);
        }
        let is_running = |state: &&BuildState| matches!(state, BuildState::Running(_));
        let queued = builds.values().filter(is_running).count();
        if builds.len() >= BUILD_STATES_MAX {
            // Stagings of these try again.
            builds.retain(|_, state| matches!(state, BuildState::Running(_)));
        }
        if queued >= QUEUED_BUILDS_MAX {
            let message = format!(
                "the packages of skill {} are not built now, because {queued} builds run or wait: stage it again later",
                request.skill
            );
            return Err(Problem::warning(NOT_BUILT, message));
        }
        builds.insert(key.clone(), BuildState::Running(sender.downgrade()));
        drop(builds);
        let builder = Arc::clone(&self.0);
        let request = request.clone();
        self.0.context.tasks.spawn(async move {
            builder.build(key, &request, &sender).await;
        });
        Ok(events)
    }
}

impl EnvironmentBuilder {
    /// Runs one build, remembers a failure and sends the result to all callers.
    async fn build(
        &self,
        key: EnvironmentKey,
        request: &EnvironmentRequest,
        events: &broadcast::Sender<BuildEvent>,
    ) {
        let stop = &self.context.tasks.stop;
        let build = async {
            let _permit = self.permits.acquire().await;
            run_build(self, &key, request, events).await
        };
        let built = tokio::select! {
            built = build => built,
            () = stop.cancelled() => Err(Error::Draining.into()),
        };
        let skill = &request.skill;
        let mut builds = self.builds();
        builds.remove(&key);
        let ended = built.map_err(|failure| {
            let reason = failure.reason().to_owned();
            tracing::warn!(skill, why = reason, "environment was not built");
            let failed = BuildState::Failed {
                skill: skill.clone(),
                failure,
                time: Instant::now(),
            };
            builds.insert(key, failed);
            reason
        });
        drop(builds);
        if events.send(BuildEvent::Ended(ended)).is_err() {
            tracing::debug!(skill, "no caller waits for the build any more");
        }
    }

    fn builds(&self) -> MutexGuard<'_, HashMap<EnvironmentKey, BuildState>> {
        self.builds.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Waits for the end of a build.
async fn wait_for_end(
    events: &mut broadcast::Receiver<BuildEvent>,
) -> Result<Arc<EnvironmentRecord>, String> {
    loop {
        match events.recv().await {
            Ok(BuildEvent::Ended(ended)) => return ended,
            // Lines that this call was too slow for do not matter to it.
            Ok(BuildEvent::Line(_)) | Err(RecvError::Lagged(_)) => {}
            Err(RecvError::Closed) => return Err(LOST_BUILD.to_owned()),
        }
    }
}

/// Returns the problem of a skill whose environment was not built.
#[must_use]
pub fn build_problem(skill: &str, reason: &str) -> Problem {
    let message = format!("the packages of skill {skill} were not built: {reason}");
    Problem {
        subject: skill.to_owned(),
        ..Problem::error(BUILD_FAILED, message)
    }
}

fn with_environment(record: Arc<EnvironmentRecord>) -> StagedEnvironment {
    StagedEnvironment {
        record: Some(record),
        problems: Vec::new(),
    }
}

fn without_environment(problems: Vec<Problem>) -> StagedEnvironment {
    StagedEnvironment {
        record: None,
        problems,
    }
}
