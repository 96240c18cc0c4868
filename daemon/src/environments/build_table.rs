//! Table of builds that run, wait, or failed a short time ago. Those that run or wait are listed with the skills that
//! PrepareSkill named.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;

use parking_lot::Mutex;
use tokio::sync::broadcast;
use tokio::time::Instant;

use super::build_failure::BuildFailure;
use super::{BuildEvent, NOT_BUILT, build_problem};
use crate::skills::Problem;
use crate::skills::environments::environment_record::{EnvironmentKey, EnvironmentRecord};

/// Maximum number of builds of one tenant that run or wait. Further ones are refused.
const QUEUED_BUILDS_MAX: usize = 64;
/// Maximum number of builds and failures that are remembered.
const BUILD_STATES_MAX: usize = 1000;
/// Maximum number of events of a build that wait for a caller; a slower caller misses the oldest lines.
const EVENTS_MAX: usize = 1024;

/// State of each build by the environment's key. Successful builds are absent: the store has their results.
#[derive(Debug, Default)]
pub(super) struct BuildTable(Mutex<HashMap<EnvironmentKey, BuildState>>);

/// Occasion of a build.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum BuildTrigger {
    /// StageSkills: an environment that exists is used, and a failure is not repeated for a while.
    Staging,
    /// PrepareSkill: an environment that exists is used.
    Prepare,
    /// PrepareSkill with `rebuild`: an environment that exists is built again. A build that already runs is joined.
    Rebuild,
}

/// Result of a call that needs an environment.
#[derive(Debug)]
pub(super) enum BuildStart {
    /// The environment exists.
    Built(Arc<EnvironmentRecord>),
    /// A build of it runs or waits already. The last event is its end.
    Joined(broadcast::Receiver<BuildEvent>),
    /// The table has a build now that the caller has to run.
    New(broadcast::Sender<BuildEvent>),
}

#[derive(Debug)]
enum BuildState {
    Running(RunningBuild),
    Failed {
        /// Skill for which the build was started.
        skill: String,
        failure: BuildFailure,
        time: Instant,
    },
}

/// Build that runs or waits for a permit.
#[derive(Debug)]
struct RunningBuild {
    /// Events to which callers subscribe. The build's task owns the sender, so a task that panicked leaves no build behind.
    events: broadcast::WeakSender<BuildEvent>,
    /// Names of the skills for which PrepareSkill asked for the environment.
    prepared_for: BTreeSet<String>,
}

// === impl BuildState ===

impl BuildState {
    /// Returns `true` while the state applies: the build runs, or its failure is not old enough to try again.
    fn is_current(&self) -> bool {
        match self {
            Self::Running(build) => build.events.strong_count() > 0,
            Self::Failed { failure, time, .. } => time.elapsed() < failure.retention(),
        }
    }

    fn is_running(&self) -> bool {
        matches!(self, Self::Running(_))
    }
}

// === impl BuildTable ===

impl BuildTable {
    /// Joins the build of an environment, or adds it to the table. `find_built` looks for the environment in the store; it
    /// runs while the table is locked, and must not use the table.
    ///
    /// # Errors
    /// Problem of a build that failed a short time ago, if a staging asks for it; problem of too many builds.
    pub(super) fn start(
        &self,
        key: &EnvironmentKey,
        skill: &str,
        trigger: BuildTrigger,
        find_built: impl FnOnce() -> Option<Arc<EnvironmentRecord>>,
    ) -> Result<BuildStart, Problem> {
        let prepared_for = match trigger {
            BuildTrigger::Staging => None,
            BuildTrigger::Prepare | BuildTrigger::Rebuild => Some(skill.to_owned()),
        };
        let mut builds = self.0.lock();
        builds.retain(|_, state| state.is_current());
        let mut running = None;
        match builds.get_mut(key) {
            Some(BuildState::Running(build)) => {
                build.prepared_for.extend(prepared_for.clone());
                running = build.events.upgrade();
            }
            Some(BuildState::Failed { failure, .. }) if trigger == BuildTrigger::Staging => {
                return Err(build_problem(skill, failure.reason()));
            }
            Some(BuildState::Failed { .. }) | None => {}
        }
        // A build has its result in the store before it leaves the table. While it runs, it may replace an environment.
        if trigger != BuildTrigger::Rebuild
            && let Some(record) = find_built()
        {
            return Ok(BuildStart::Built(record));
        }
        if let Some(events) = running {
            return Ok(BuildStart::Joined(events.subscribe()));
        }
        let running = builds.iter().filter(|(_, state)| state.is_running());
        let own = running.filter(|(running, _)| running.tenant == key.tenant);
        let queued = own.count();
        if queued >= QUEUED_BUILDS_MAX {
            let message = format!(
                "the packages of skill {skill} are not built now, because {queued} builds run or wait: try again later"
            );
            return Err(Problem::warning(NOT_BUILT, message));
        }
        if builds.len() >= BUILD_STATES_MAX {
            // Without the memory of a failure, the next staging builds again.
            builds.retain(|_, state| state.is_running());
        }
        let (events, _) = broadcast::channel(EVENTS_MAX);
        let build = RunningBuild {
            events: events.downgrade(),
            prepared_for: prepared_for.into_iter().collect(),
        };
        builds.insert(key.clone(), BuildState::Running(build));
        Ok(BuildStart::New(events))
    }

    /// Removes a build that succeeded. Returns the names of the skills for which it was prepared.
    pub(super) fn finish(&self, key: &EnvironmentKey) -> BTreeSet<String> {
        match self.0.lock().remove(key) {
            Some(BuildState::Running(build)) => build.prepared_for,
            Some(BuildState::Failed { .. }) | None => BTreeSet::new(),
        }
    }

    /// Replaces a build by its failure.
    pub(super) fn fail(&self, key: EnvironmentKey, skill: String, failure: BuildFailure) {
        let failed = BuildState::Failed {
            skill,
            failure,
            time: Instant::now(),
        };
        self.0.lock().insert(key, failed);
    }

    /// Returns the reason of a build's failure while stagings do not repeat it.
    pub(super) fn failure_reason(&self, key: &EnvironmentKey) -> Option<String> {
        match self.0.lock().get(key).filter(|state| state.is_current())? {
            BuildState::Failed { failure, .. } => Some(failure.reason().to_owned()),
            BuildState::Running(_) => None,
        }
    }

    /// Returns the problems of builds that failed and are not repeated yet, by skill.
    pub(super) fn problems(&self) -> Vec<Problem> {
        let builds = self.0.lock();
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
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key() -> EnvironmentKey {
        EnvironmentKey {
            tenant: "default".to_owned(),
            need: "a".repeat(64),
            image_id: "sha256:b".to_owned(),
            policy: "c".to_owned(),
        }
    }

    fn start(
        table: &BuildTable,
        skill: &str,
        trigger: BuildTrigger,
    ) -> Result<BuildStart, Problem> {
        table.start(&key(), skill, trigger, || None)
    }

    #[test]
    fn a_build_is_prepared_for_every_skill_that_joined_it() {
        let table = BuildTable::default();
        let started = start(&table, "staged", BuildTrigger::Staging).expect("started");
        let BuildStart::New(_events) = started else {
            panic!("{started:?}");
        };
        for skill in ["a", "b", "a"] {
            let joined = start(&table, skill, BuildTrigger::Prepare).expect("joined");
            // The caller goes away at once.
            assert!(matches!(joined, BuildStart::Joined(_)), "{joined:?}");
        }
        assert_eq!(Vec::from_iter(table.finish(&key())), ["a", "b"]);
        let again = start(&table, "a", BuildTrigger::Prepare).expect("started");
        assert!(matches!(again, BuildStart::New(_)), "{again:?}");
    }

    #[test]
    fn environment_that_exists_is_used_also_while_it_is_rebuilt() {
        let table = BuildTable::default();
        let find_built = || Some(Arc::new(EnvironmentRecord::default()));
        let rebuild = table.start(&key(), "a", BuildTrigger::Rebuild, find_built);
        let BuildStart::New(_events) = rebuild.expect("started") else {
            panic!("a rebuild ignores what exists");
        };
        for (skill, trigger) in [("b", BuildTrigger::Prepare), ("c", BuildTrigger::Staging)] {
            let found = table
                .start(&key(), skill, trigger, find_built)
                .expect("found");
            assert!(matches!(found, BuildStart::Built(_)), "{found:?}");
        }
        let joined = table.start(&key(), "d", BuildTrigger::Rebuild, find_built);
        assert!(matches!(joined.expect("joined"), BuildStart::Joined(_)));
        assert_eq!(Vec::from_iter(table.finish(&key())), ["a", "b", "d"]);
    }

    #[tokio::test(start_paused = true)]
    async fn failure_is_forgotten_when_its_time_is_over() {
        let table = BuildTable::default();
        let failure = BuildFailure::Transient("the index is away".to_owned());
        let retention = failure.retention();
        table.fail(key(), "a".to_owned(), failure);
        assert!(table.failure_reason(&key()).is_some());
        tokio::time::advance(retention).await;
        assert_eq!(
            (table.failure_reason(&key()), table.problems()),
            (None, Vec::new())
        );
        let started = start(&table, "a", BuildTrigger::Staging).expect("started");
        assert!(matches!(started, BuildStart::New(_)), "{started:?}");
    }

    #[test]
    fn build_whose_task_was_lost_is_started_again() {
        let table = BuildTable::default();
        for _ in 0..2 {
            let started = start(&table, "a", BuildTrigger::Staging).expect("started");
            // Dropping the sender is what a task that panics does.
            assert!(matches!(started, BuildStart::New(_)), "{started:?}");
        }
    }

    #[test]
    fn failure_refuses_a_staging_and_no_preparation() {
        let table = BuildTable::default();
        let failure = BuildFailure::Permanent("no such package".to_owned());
        table.fail(key(), "first".to_owned(), failure);
        assert_eq!(table.problems()[0].subject, "first");
        let refused = start(&table, "second", BuildTrigger::Staging).expect_err("refused");
        assert_eq!(refused.subject, "second");
        let prepared = start(&table, "second", BuildTrigger::Prepare).expect("started");
        assert!(matches!(prepared, BuildStart::New(_)), "{prepared:?}");
        assert_eq!(table.failure_reason(&key()), None);
    }

    #[test]
    fn builds_beyond_the_queue_of_their_tenant_are_refused() {
        let table = BuildTable::default();
        let started = |tenant: &str, number: usize| {
            let key = EnvironmentKey {
                tenant: tenant.to_owned(),
                need: number.to_string(),
                ..key()
            };
            table.start(&key, "a", BuildTrigger::Staging, || None)
        };
        let _running: Vec<BuildStart> = (0..QUEUED_BUILDS_MAX)
            .map(|number| started("a", number).expect("started"))
            .collect();
        let refused = started("a", QUEUED_BUILDS_MAX).expect_err("refused");
        assert!(refused.message.contains("64 builds"), "{}", refused.message);
        // The builds of another tenant are not joined either.
        let other = started("b", 0).expect("started");
        assert!(matches!(other, BuildStart::New(_)), "{other:?}");
    }
}
