//! Environments of skills: finds built ones, and builds missing ones in containers of the skill's image.
//!
//! ```text
//! StageSkills, PrepareSkill ─► Environments: one build for each need and image, however many calls wait for it
//!                                  │
//!                                  ▼
//!                              build.rs: a container of the image without a network ─► tar ─► EnvironmentStore
//! ```
//!
//! A build goes on when its callers go away, and the next call finds what it made. A build that failed is not repeated
//! for a while, so that a skill whose packages do not exist is staged as fast as any other.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::broadcast::error::RecvError;
use tokio::sync::{Semaphore, broadcast};
use tokio::time::Instant;

use crate::config::environments::{EnvironmentBuilds, EnvironmentOptions};
use crate::engine::ImageInfo;
use crate::error::{Chain, Error, Result};
use crate::fetch::UrlFetcher;
use crate::pool::Pool;
use crate::skills::environments::environment_record::{EnvironmentKey, EnvironmentRecord};
use crate::skills::environments::environment_store::EnvironmentStore;
use crate::skills::{EnvironmentNeed, Problem};
use crate::workspace::shared_slot_context::SharedSlotContext;

mod build;
mod build_policy;
mod environment_cleanup;

use build::{BuildFailure, run_build};
use build_policy::BuildPolicy;

/// Time for which a failed build is not repeated by a staging. PrepareSkill repeats it at once.
const FAILURE_RETENTION: Duration = Duration::from_secs(600);
/// Maximum number of failed builds that are remembered.
const FAILURES_MAX: usize = 1000;
/// Maximum number of events of a build that wait for a caller; a slower caller misses the oldest lines.
const EVENTS_MAX: usize = 1024;

/// Code of the problem of an environment whose build failed.
pub const BUILD_FAILED: &str = "environment.build_failed";
/// Code of the problem of an environment that is still being built.
const BUILD_RUNNING: &str = "environment.build_running";
/// Code of the problem of an environment that is not built on this occasion.
const NOT_BUILT: &str = "environment.not_built";

/// Environments of this daemon. Clones share them.
#[derive(Debug, Clone)]
pub struct Environments(Arc<EnvironmentBuilder>);

/// Event of a build.
#[derive(Debug, Clone)]
pub enum BuildEvent {
    /// Line that the build wrote.
    Line(String),
    /// End of the build; the last event.
    Ended(Result<Arc<EnvironmentRecord>, Problem>),
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
    /// The build runs or waits for a permit; callers subscribe to its events.
    Running(broadcast::Sender<BuildEvent>),
    /// The build failed at this time.
    Failed(Problem, Instant),
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

/// Result of asking for a build.
enum BuildStart {
    /// The environment was built meanwhile.
    Built(Arc<EnvironmentRecord>),
    /// The build runs.
    Running(broadcast::Receiver<BuildEvent>),
    /// An earlier build failed and is not repeated yet.
    Failed(Problem),
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
        if request.need.is_empty() {
            return StagedEnvironment::default();
        }
        if let Err(problems) = self.check_need(request) {
            return missing(problems);
        }
        let key = self.key_of(request).await;
        if let Some(record) = self.0.store.find(&key) {
            return found(record);
        }
        let skill = &request.skill;
        if self.options().builds == EnvironmentBuilds::Prepare {
            let message = format!(
                "the packages of skill {skill} are not built for this pool: run `skillctl skill prepare {skill}`, then stage \
                 it again"
            );
            return missing(vec![Problem::warning(NOT_BUILT, message)]);
        }
        let mut events = match self.start_build(key, request, BuildTrigger::Staging) {
            BuildStart::Built(record) => return found(record),
            BuildStart::Failed(problem) => return missing(vec![problem]),
            BuildStart::Running(events) => events,
        };
        match tokio::time::timeout_at(by, wait_for_end(&mut events)).await {
            Ok(Ok(record)) => found(record),
            Ok(Err(problem)) => missing(vec![problem]),
            Err(_) => {
                let message = format!(
                    "the packages of skill {skill} are still being built: stage it again when they are; `skillctl skill \
                     prepare {skill}` waits for that"
                );
                missing(vec![Problem::warning(BUILD_RUNNING, message)])
            }
        }
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
        let key = self.key_of(request).await;
        let trigger = match rebuilds {
            true => BuildTrigger::Rebuild,
            false => BuildTrigger::Prepare,
        };
        match self.start_build(key, request, trigger) {
            BuildStart::Running(events) => Ok(events),
            BuildStart::Failed(problem) => Err(vec![problem]),
            BuildStart::Built(record) => {
                let (sender, events) = broadcast::channel(1);
                // The receiver exists, so this succeeds.
                let _receivers = sender.send(BuildEvent::Ended(Ok(record)));
                Ok(events)
            }
        }
    }

    /// Returns the built environment of a skill.
    pub async fn find(&self, request: &EnvironmentRequest) -> Option<Arc<EnvironmentRecord>> {
        self.0.store.find(&self.key_of(request).await)
    }

    /// Notes that an environment was built ahead for a skill, so that it stays while the skill needs it.
    ///
    /// # Errors
    /// `Io`.
    pub async fn mark_prepared(&self, record: &EnvironmentRecord, skill: &str) -> Result<()> {
        let store = Arc::clone(&self.0.store);
        let (name, skill) = (record.name.clone(), skill.to_owned());
        let mark = move || store.mark_prepared(&name, &skill).map_err(Error::from);
        self.0.context.tasks.blocking(mark).await
    }

    /// Returns the problems of failed builds.
    #[must_use]
    pub fn problems(&self) -> Vec<Problem> {
        let failed = |state: &BuildState| match state {
            BuildState::Failed(problem, _) => Some(problem.clone()),
            BuildState::Running(_) => None,
        };
        let mut problems: Vec<Problem> = self.0.builds().values().filter_map(failed).collect();
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
    async fn key_of(&self, request: &EnvironmentRequest) -> EnvironmentKey {
        EnvironmentKey {
            need: request.need.digest(),
            image_id: request.image.id.clone(),
            policy: self.0.policy.digest(&self.0.context).await,
        }
    }

    /// Joins the build of an environment, or starts it.
    fn start_build(
        &self,
        key: EnvironmentKey,
        request: &EnvironmentRequest,
        trigger: BuildTrigger,
    ) -> BuildStart {
        let mut builds = self.0.builds();
        match builds.get(&key) {
            Some(BuildState::Running(events)) => return BuildStart::Running(events.subscribe()),
            Some(BuildState::Failed(problem, time))
                if trigger == BuildTrigger::Staging && time.elapsed() < FAILURE_RETENTION =>
            {
                return BuildStart::Failed(problem.clone());
            }
            _ => {}
        }
        // A build ends with its result in the store before it leaves the table.
        let present = self.0.store.find(&key);
        if let Some(record) = present.filter(|_| trigger != BuildTrigger::Rebuild) {
            return BuildStart::Built(record);
        }
        let (sender, events) = broadcast::channel(EVENTS_MAX);
        builds.insert(key.clone(), BuildState::Running(sender.clone()));
        drop(builds);
        let builder = Arc::clone(&self.0);
        let request = request.clone();
        self.0.context.tasks.spawn(async move {
            builder.build(&key, &request, &sender).await;
        });
        BuildStart::Running(events)
    }
}

impl EnvironmentBuilder {
    /// Runs one build, notes how it ended and tells all callers.
    async fn build(
        &self,
        key: &EnvironmentKey,
        request: &EnvironmentRequest,
        events: &broadcast::Sender<BuildEvent>,
    ) {
        let stop = &self.context.tasks.stop;
        let build = async {
            let _permit = self.permits.acquire().await;
            run_build(self, key, request, events).await
        };
        let built = tokio::select! {
            built = build => built,
            () = stop.cancelled() => Err(BuildFailure::Passing(Error::Draining)),
        };
        let mut builds = self.builds();
        builds.remove(key);
        let ended = match built {
            Ok(record) => Ok(record),
            Err(failure) => {
                let problem = failure_problem(&request.skill, &failure);
                tracing::warn!(
                    skill = request.skill,
                    why = problem.message,
                    "environment was not built"
                );
                if let BuildFailure::Need(_) = failure {
                    forget_oldest(&mut builds);
                    let failed = BuildState::Failed(problem.clone(), Instant::now());
                    builds.insert(key.clone(), failed);
                }
                Err(problem)
            }
        };
        drop(builds);
        if events.send(BuildEvent::Ended(ended)).is_err() {
            tracing::debug!(
                skill = request.skill,
                "no caller waits for the build any more"
            );
        }
    }

    fn builds(&self) -> MutexGuard<'_, HashMap<EnvironmentKey, BuildState>> {
        self.builds.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Removes the oldest failure once there are too many.
fn forget_oldest(builds: &mut HashMap<EnvironmentKey, BuildState>) {
    let failures = builds.iter().filter_map(|(key, state)| match state {
        BuildState::Failed(_, time) => Some((*time, key.clone())),
        BuildState::Running(_) => None,
    });
    let failures: Vec<(Instant, EnvironmentKey)> = failures.collect();
    if failures.len() >= FAILURES_MAX
        && let Some((_, oldest)) = failures.into_iter().min()
    {
        builds.remove(&oldest);
    }
}

/// Waits for the end of a build.
async fn wait_for_end(
    events: &mut broadcast::Receiver<BuildEvent>,
) -> Result<Arc<EnvironmentRecord>, Problem> {
    loop {
        match events.recv().await {
            Ok(BuildEvent::Ended(ended)) => return ended,
            // Lines that this call was too slow for do not matter to it.
            Ok(BuildEvent::Line(_)) | Err(RecvError::Lagged(_)) => {}
            Err(RecvError::Closed) => {
                return Err(Problem::error(
                    BUILD_FAILED,
                    "the build ended without a result",
                ));
            }
        }
    }
}

fn failure_problem(skill: &str, failure: &BuildFailure) -> Problem {
    let why = match failure {
        BuildFailure::Need(why) => why.clone(),
        BuildFailure::Passing(error) => Chain(error).to_string(),
    };
    let message = format!("the packages of skill {skill} were not built: {why}");
    Problem {
        subject: skill.to_owned(),
        ..Problem::error(BUILD_FAILED, message)
    }
}

fn found(record: Arc<EnvironmentRecord>) -> StagedEnvironment {
    StagedEnvironment {
        record: Some(record),
        problems: Vec::new(),
    }
}

fn missing(problems: Vec<Problem>) -> StagedEnvironment {
    StagedEnvironment {
        record: None,
        problems,
    }
}
