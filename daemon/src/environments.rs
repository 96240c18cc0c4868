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
//!
//! Each tenant has environments of its own. Their builds take turns, and their sizes have a share of the store each.

use std::collections::BTreeSet;
use std::sync::Arc;

use tokio::sync::broadcast;
use tokio::sync::broadcast::error::RecvError;
use tokio::time::Instant;

use crate::access::{AccessControl, TenantName, TenantPermits};
use crate::config::environments::{EnvironmentBuilds, EnvironmentOptions};
use crate::engine::ImageInfo;
use crate::error::{Chain, Error, Result};
use crate::fetch::UrlFetcher;
use crate::pool::Pool;
use crate::skills::environments::environment_record::{EnvironmentKey, EnvironmentRecord};
use crate::skills::environments::environment_store::EnvironmentStore;
use crate::skills::{EnvironmentNeed, Problem, StagedSkill};
use crate::workspace::shared_slot_context::SharedSlotContext;

mod build;
mod build_failure;
mod build_policy;
mod build_table;
mod environment_cleanup;
mod environment_problems;
mod inferred_need;
mod line_splitter;

use build_policy::BuildPolicy;
use build_table::{BuildStart, BuildTable, BuildTrigger};
use environment_problems::preparation_error;
pub use environment_problems::{build_problem, environment_remarks};
use inferred_need::build_need;

/// Reason of a build whose task ended without a result.
pub const LOST_BUILD: &str = "the build ended without a result: the daemon's log has the cause";
/// Code of the problem of an environment that is still being built.
const BUILD_RUNNING: &str = "environment.build_running";
/// Code of the problem of an environment that is not built on this occasion.
const NOT_BUILT: &str = "environment.not_built";
/// Code of the problem of a prepared environment that may be removed although its skill needs it.
const NOT_KEPT: &str = "environment.not_kept";
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

/// Environment that PrepareSkill or StageSkills waits for.
#[derive(Debug)]
pub enum AwaitedEnvironment {
    /// The environment exists.
    Built(Arc<EnvironmentRecord>),
    /// The environment is being built; the last event is the end.
    Building(broadcast::Receiver<BuildEvent>),
}

/// Request for the environment of one skill.
#[derive(Debug, Clone)]
pub struct EnvironmentRequest {
    /// Tenant for which the environment is.
    pub tenant: TenantName,
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
    /// Makes the request of a tenant for a skill in the image that a pool's new containers have.
    ///
    /// # Errors
    /// [`Error::PoolExhausted`] while the engine does not have the image.
    pub fn for_pool(tenant: &TenantName, skill: StagedSkill, pool: &Arc<Pool>) -> Result<Self> {
        Ok(Self {
            tenant: tenant.clone(),
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
    /// Reasons for which it or a part of it is missing, and packages that may not work.
    pub problems: Vec<Problem>,
}

/// Environment that a skill would be staged with now.
#[derive(Debug, Clone)]
pub struct StagingOutlook {
    /// `true` if the skill needs an environment and has it, or will have it.
    pub has_environment: bool,
    /// Packages that would be missing: refused parts of the need, or all of it.
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
    builds: BuildTable,
    /// Permits for builds that run at the same time, which tenants get in turns.
    permits: TenantPermits,
    /// Source of the tenants' quotas.
    access: Arc<AccessControl>,
}

impl Environments {
    /// Makes the owner of builds over an opened store.
    pub fn new(
        store: Arc<EnvironmentStore>,
        context: Arc<SharedSlotContext>,
        fetcher: UrlFetcher,
        access: Arc<AccessControl>,
    ) -> Self {
        let builds_max = context.config.skills.environments.builds_max;
        Self(Arc::new(EnvironmentBuilder {
            store,
            context,
            fetcher,
            policy: BuildPolicy::default(),
            builds: BuildTable::default(),
            permits: TenantPermits::new(builds_max, access.is_on()),
            access,
        }))
    }

    /// Returns the bytes that count for the environments of a tenant.
    pub fn held_bytes(&self, tenant: &TenantName) -> u64 {
        self.0.store.held_bytes(tenant.as_str())
    }

    /// Returns the bytes that the environments of a tenant may count: those of its quota, and of several tenants at most
    /// half of the store for each. `None` means that only the size of the store limits them.
    pub fn bytes_quota(&self, tenant: &TenantName) -> Option<u64> {
        self.0.bytes_quota(tenant)
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
        let ended = match self.start_build(key, request, BuildTrigger::Staging) {
            Ok(AwaitedEnvironment::Built(record)) => return with_environment(request, record),
            Ok(AwaitedEnvironment::Building(events)) => wait_for_end(events),
            Err(problem) => return without_environment(request, problem),
        };
        match tokio::time::timeout_at(by, ended).await {
            Ok(Ok(record)) => with_environment(request, record),
            Ok(Err(reason)) => without_environment(request, build_problem(skill, &reason)),
            Err(_) => {
                let message = format!(
                    "the packages of skill {skill} are still being built: stage it again when they are; `skillctl skill \
                     prepare {skill}` waits for that"
                );
                without_environment(request, Problem::warning(BUILD_RUNNING, message))
            }
        }
    }

    /// Returns whether a skill that is staged now would have an environment, and the packages that it would lack. Builds
    /// nothing; staging is expected to build what it would try to build if the daemon has a source of packages.
    pub async fn staging_outlook(&self, request: &EnvironmentRequest) -> StagingOutlook {
        // A warning is about packages that are installed.
        let mut problems = request.need_problems();
        problems.retain(Problem::is_error);
        let outlook = |has_environment, problems| StagingOutlook {
            has_environment,
            problems,
        };
        let key = match self.find_known_environment(request).await {
            Ok(known) if known.record.is_some() || request.need.is_empty() => {
                return outlook(known.record.is_some(), problems);
            }
            Ok(known) => return outlook(false, known.problems),
            Err(key) => key,
        };
        if let Some(reason) = self.0.builds.failure_reason(&key) {
            problems.push(build_problem(&request.skill, &reason));
            return outlook(false, problems);
        }
        if self.options().has_package_source() {
            return outlook(true, problems);
        }
        let message = format!(
            "this daemon has no source from which the packages of skill {} can be installed: set skills.wheelhouse, \
             skills.package_index or skills.node_package_index, or use a pool whose image has them",
            request.skill
        );
        problems.push(Problem::warning(NOT_BUILT, message));
        outlook(false, problems)
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
            return Ok(StagedEnvironment {
                record: None,
                problems: request.need_problems(),
            });
        }
        let key = match self.key_of(request).await {
            Ok(key) => key,
            Err(problem) => return Ok(without_environment(request, problem)),
        };
        if let Some(record) = self.0.store.find(&key) {
            return Ok(with_environment(request, record));
        }
        if self.options().builds != EnvironmentBuilds::Prepare {
            return Err(key);
        }
        let skill = &request.skill;
        let message = format!(
            "the packages of skill {skill} are not built for this pool: run `skillctl skill prepare {skill}`, then stage \
             it again"
        );
        let problem = Problem::warning(NOT_BUILT, message);
        Ok(without_environment(request, problem))
    }

    /// Builds the environment of a skill unless it exists, or, if it `rebuilds`, in place of the one that exists. An
    /// earlier failure is tried again. A build goes on, and its environment is marked as prepared, when the caller goes
    /// away; a caller that stays calls [`Self::mark_prepared`] to know that this succeeded.
    ///
    /// # Errors
    /// Problems of the need, and that of a daemon that builds none, cannot read its wheelhouse, or has too many builds.
    pub async fn prepare(
        &self,
        request: &EnvironmentRequest,
        rebuilds: bool,
    ) -> Result<AwaitedEnvironment, Vec<Problem>> {
        // A staging goes on without the packages; a preparation is for nothing else.
        let as_error = |problem: Problem| {
            let error = preparation_error(&request.skill, &problem);
            without_environment(request, error).problems
        };
        let key = self.key_of(request).await.map_err(as_error)?;
        let trigger = match rebuilds {
            true => BuildTrigger::Rebuild,
            false => BuildTrigger::Prepare,
        };
        self.start_build(key, request, trigger).map_err(as_error)
    }

    /// Records that an environment was prepared for a skill, which keeps it while the skill needs it.
    ///
    /// # Errors
    /// Problem of a record that cannot be written.
    pub async fn mark_prepared(
        &self,
        record: &EnvironmentRecord,
        skill: &str,
    ) -> Result<(), Problem> {
        let marked = self
            .0
            .mark_prepared(record, BTreeSet::from([skill.to_owned()]));
        let problem = |error| {
            let message = format!(
                "the packages of skill {skill} are built, and may be removed while nothing uses them: {}; prepare the \
                 skill again",
                Chain(&error)
            );
            Problem::warning(NOT_KEPT, message)
        };
        marked.await.map_err(problem)
    }

    /// Returns the built environment of a skill.
    pub async fn find(&self, request: &EnvironmentRequest) -> Option<Arc<EnvironmentRecord>> {
        if request.need.is_empty() {
            return None;
        }
        self.0.store.find(&self.key_of(request).await.ok()?)
    }

    /// Returns the problems of builds that failed and are not repeated yet.
    pub fn problems(&self) -> Vec<Problem> {
        self.0.builds.problems()
    }

    fn options(&self) -> &EnvironmentOptions {
        &self.0.context.config.skills.environments
    }

    /// Returns the key of the environment that a build of today would make.
    ///
    /// # Errors
    /// Problem of a daemon that builds no environments, or of a wheelhouse that could not be read yet.
    async fn key_of(&self, request: &EnvironmentRequest) -> Result<EnvironmentKey, Problem> {
        if !self.options().is_enabled() {
            let message = format!(
                "skill {} names packages, and this daemon builds no environments (skills.environment_builds = \"never\"): \
                 only packages of the image can be used",
                request.skill
            );
            return Err(Problem::warning(NOT_BUILT, message));
        }
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
            tenant: request.tenant.to_string(),
            need: request.need.digest(),
            image_id: request.image.id.clone(),
            policy: policy.ok_or_else(unreadable)?,
        })
    }

    /// Joins the build of an environment, or starts it, unless the environment exists.
    fn start_build(
        &self,
        key: EnvironmentKey,
        request: &EnvironmentRequest,
        trigger: BuildTrigger,
    ) -> Result<AwaitedEnvironment, Problem> {
        let find_built = || self.0.store.find(&key);
        let started = self
            .0
            .builds
            .start(&key, &request.skill, trigger, find_built)?;
        let sender = match started {
            BuildStart::Built(record) => return Ok(AwaitedEnvironment::Built(record)),
            BuildStart::Joined(events) => return Ok(AwaitedEnvironment::Building(events)),
            BuildStart::New(sender) => sender,
        };
        let events = sender.subscribe();
        let builder = Arc::clone(&self.0);
        let request = request.clone();
        self.0.context.tasks.spawn(async move {
            builder.build(key, &request, &sender).await;
        });
        Ok(AwaitedEnvironment::Building(events))
    }
}

impl EnvironmentBuilder {
    fn bytes_quota(&self, tenant: &TenantName) -> Option<u64> {
        if !self.access.is_on() {
            return None;
        }
        let share = self.context.config.skills.environments.disk_bytes / 2;
        let limits = self.access.limits(tenant);
        let quota = limits.and_then(|limits| limits.environment_bytes);
        Some(quota.map_or(share, |quota| quota.min(share)))
    }

    /// Runs one build, remembers a failure and sends the result to all callers.
    async fn build(
        &self,
        key: EnvironmentKey,
        request: &EnvironmentRequest,
        events: &broadcast::Sender<BuildEvent>,
    ) {
        let stop = &self.context.tasks.stop;
        let build = async {
            let _permit = self.permits.acquire(request.tenant.as_str()).await;
            build_need(self, &key, request, events).await
        };
        let built = tokio::select! {
            built = build => built,
            () = stop.cancelled() => Err(Error::Draining.into()),
        };
        let skill = &request.skill;
        let ended = match built {
            Ok(record) => {
                let prepared_for = self.builds.finish(&key);
                if let Err(error) = self.mark_prepared(&record, prepared_for).await {
                    let environment = &record.name;
                    tracing::warn!(environment, skill, error = %Chain(&error), "environment is not kept for its skills");
                }
                Ok(record)
            }
            Err(failure) => {
                let reason = failure.reason().to_owned();
                tracing::warn!(skill, why = reason, "environment was not built");
                self.builds.fail(key, skill.clone(), failure);
                Err(reason)
            }
        };
        if events.send(BuildEvent::Ended(ended)).is_err() {
            tracing::debug!(skill, "no caller waits for the build any more");
        }
    }

    /// Records that an environment was prepared for skills, which keeps it while one of them needs it.
    async fn mark_prepared(
        &self,
        record: &EnvironmentRecord,
        skills: BTreeSet<String>,
    ) -> Result<()> {
        if skills.is_empty() {
            return Ok(());
        }
        let store = Arc::clone(&self.store);
        let name = record.name.clone();
        let mark = move || store.mark_prepared(&name, &skills).map_err(Error::from);
        self.context.tasks.blocking(mark).await
    }
}

/// Waits for the end of a build.
async fn wait_for_end(
    mut events: broadcast::Receiver<BuildEvent>,
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

fn with_environment(
    request: &EnvironmentRequest,
    record: Arc<EnvironmentRecord>,
) -> StagedEnvironment {
    StagedEnvironment {
        problems: environment_remarks(request, &record),
        record: Some(record),
    }
}

fn without_environment(request: &EnvironmentRequest, problem: Problem) -> StagedEnvironment {
    let mut problems = request.need_problems();
    problems.push(problem);
    StagedEnvironment {
        record: None,
        problems,
    }
}
