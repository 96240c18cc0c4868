//! Failures of builds: decides from the end of a build's command whether another try can succeed, and says what to do.

use std::collections::BTreeSet;
use std::time::Duration;

use skilld_proto::Outcome;
use skilld_proto::v1 as pb;
use skilld_proto::v1::ExitReason;
use skilld_proto::v1::spawn_failure::Step;

use crate::config::environments::EnvironmentOptions;
use crate::error::{Chain, Error, Result};
use crate::fetch::{BYTES_LIMIT_ADVICE, authority_advice};
use crate::skills::environments::environment_store::STORE_SIZE;
use crate::workspace::internal_pool::CommandEnd;

/// Exit status of the build script if image, wheelhouse and index cannot meet the need.
const NEED_STATUS: i32 = 3;

/// Failure of a build, with a reason for people.
#[derive(Debug, Clone)]
pub(super) enum BuildFailure {
    /// The same packages fail again.
    Permanent(String),
    /// The host, the engine or an index failed: another try may succeed.
    Transient(String),
}

impl BuildFailure {
    /// Returns the reason.
    pub(super) fn reason(&self) -> &str {
        match self {
            Self::Permanent(reason) | Self::Transient(reason) => reason,
        }
    }

    /// Returns the time for which a staging does not build again. PrepareSkill builds at once.
    pub(super) fn retention(&self) -> Duration {
        match self {
            Self::Permanent(_) => Duration::from_secs(600),
            Self::Transient(_) => Duration::from_secs(30),
        }
    }
}

impl From<Error> for BuildFailure {
    fn from(error: Error) -> Self {
        let chain = Chain(&error).to_string();
        if let Error::LimitExceeded { what, .. } = &error
            && what != STORE_SIZE
        {
            return Self::Permanent(format!(
                "the packages are too large: {chain}; depend on less (skills.build_disk limits their size)"
            ));
        }
        if let Error::ArchiveInvalid { .. } = &error {
            return Self::Permanent(format!("the packages cannot be stored: {chain}"));
        }
        // Environments that others use may fill the store.
        Self::Transient(chain)
    }
}

/// Checks how the build's command ended. `refusals` are the reasons for which the proxy refused requests.
pub(super) fn check_end(
    end: &CommandEnd,
    options: &EnvironmentOptions,
    refusals: &BTreeSet<String>,
) -> Result<(), BuildFailure> {
    if end.is_success() {
        return Ok(());
    }
    let tail = String::from_utf8_lossy(&end.stderr_tail);
    let last = tail
        .lines()
        .rev()
        .find(|line| !line.trim().is_empty())
        .unwrap_or("it wrote no message")
        .trim();
    let (disk, memory) = (options.build_disk_bytes, options.build_memory_bytes());
    let ended_by = end.result.reason();
    let limit_reason = if ended_by == ExitReason::Timeout {
        let timeout = options.build_timeout;
        let limits = "(skills.build_timeout), or than execs.timeout_max";
        Some(format!(
            "the build took longer than {timeout:?} {limits}; its last message was: {last}"
        ))
    } else if ended_by == ExitReason::DiskFull {
        Some(format!(
            "the packages are larger than {disk} bytes (skills.build_disk)"
        ))
    } else if ended_by == ExitReason::OutputLimit {
        Some(format!(
            "the packages are larger than {disk} bytes (skills.build_disk), or than all environments of the tenant may be \
             (environment_bytes)"
        ))
    } else if is_program_missing(&end.result) {
        let advice = "use an image that has it";
        Some(format!(
            "the image has no python3, which builds environments: {advice}"
        ))
    } else if end.result.oom_kills() > 0 {
        Some(format!(
            "the build needed more than {memory} bytes of memory (skills.build_disk and 1 GiB)"
        ))
    } else {
        None
    };
    let is_need = end.result.outcome() == Some(Outcome::ExitCode(NEED_STATUS));
    let is_too_large = |refusal: &String| refusal.ends_with(BYTES_LIMIT_ADVICE);
    let is_permanent = limit_reason.is_some() || is_need || refusals.iter().any(is_too_large);
    let spawn_failure = end.result.spawn_failure.as_ref();
    let message = spawn_failure.map_or(last, |failure| &failure.message);
    let mut reason = limit_reason.unwrap_or_else(|| message.to_owned());
    let advice = authority_advice(&reason);
    reason += advice;
    for refusal in refusals {
        reason += "; ";
        reason += refusal;
    }
    Err(match is_permanent {
        true => BuildFailure::Permanent(reason),
        false => BuildFailure::Transient(reason),
    })
}

/// Returns `true` if no process was started because the image has no such program.
fn is_program_missing(result: &pb::ExecResult) -> bool {
    let failure = result.spawn_failure.as_ref();
    failure.is_some_and(|failure| failure.step() == Step::Exec)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Config;

    fn failure(
        reason: ExitReason,
        code: Option<i32>,
        stderr: &str,
        refusals: &[&str],
    ) -> BuildFailure {
        let end = CommandEnd {
            result: pb::ExecResult::new(reason, code.map(Outcome::ExitCode)),
            stderr_tail: stderr.as_bytes().to_vec(),
        };
        let options = Config::from_toml("")
            .expect("defaults")
            .config
            .skills
            .environments;
        let reasons = refusals.iter().map(|text| (*text).to_owned()).collect();
        check_end(&end, &options, &reasons).expect_err("a failure")
    }

    #[test]
    fn index_faults_are_retried_soon_and_faults_of_a_need_are_not() {
        let exited = ExitReason::Exited;
        let need = failure(exited, Some(3), "x\nno such package: six\n\n", &[]);
        assert_eq!(need.reason(), "no such package: six");
        let fetch = failure(
            exited,
            Some(1),
            "the build failed: 503",
            &["a.b answered 503"],
        );
        assert_eq!(fetch.reason(), "the build failed: 503; a.b answered 503");
        assert!(matches!(fetch, BuildFailure::Transient(_)));
        assert!(fetch.retention() < need.retention());
        for reason in [
            ExitReason::Timeout,
            ExitReason::OutputLimit,
            ExitReason::DiskFull,
        ] {
            let limit = failure(reason, None, "", &[]);
            assert!(matches!(limit, BuildFailure::Permanent(_)), "{limit:?}");
        }
    }

    #[test]
    fn an_index_behind_an_unknown_authority_says_what_to_set() {
        for message in [
            "uv pip failed: invalid peer certificate: UnknownIssuer",
            "a.b did not answer as it should (SELF_SIGNED_CERT_IN_CHAIN): request to https://a.b/c failed",
        ] {
            let unknown = failure(ExitReason::Exited, Some(1), message, &[]);
            assert!(unknown.reason().contains("skills.package_ca_file"));
            assert!(matches!(unknown, BuildFailure::Transient(_)), "{unknown:?}");
        }
    }

    #[test]
    fn an_image_without_python_and_each_limit_are_named() {
        for (reason, named) in [
            (ExitReason::Timeout, "skills.build_timeout"),
            (ExitReason::OutputLimit, "skills.build_disk"),
            (ExitReason::DiskFull, "skills.build_disk"),
        ] {
            let text = failure(reason, None, "", &[]);
            assert!(text.reason().contains(named), "{text:?}");
        }
        let hung = failure(ExitReason::Timeout, None, "installing x\n", &[]);
        assert!(
            hung.reason()
                .ends_with("its last message was: installing x")
        );
    }

    #[test]
    fn a_missing_program_is_permanent_and_a_failed_fork_transient() {
        let spawn_failed = |stage: Step, message: &str| {
            let end = CommandEnd {
                result: pb::ExecResult {
                    reason: ExitReason::SpawnFailed.into(),
                    spawn_failure: Some(pb::SpawnFailure {
                        step: stage.into(),
                        message: message.to_owned(),
                        ..pb::SpawnFailure::default()
                    }),
                    ..pb::ExecResult::default()
                },
                stderr_tail: Vec::new(),
            };
            let config = Config::from_toml("").expect("defaults").config;
            check_end(&end, &config.skills.environments, &BTreeSet::new()).expect_err("a failure")
        };
        let missing = spawn_failed(Step::Exec, "ENOENT python3");
        assert!(
            matches!(missing, BuildFailure::Permanent(_))
                && missing.reason().contains("no python3")
        );
        let host = spawn_failed(Step::Fork, "EAGAIN");
        assert!(matches!(host, BuildFailure::Transient(_)) && host.reason() == "EAGAIN");
    }
}
