//! Problems of skills' environments: those that were not built, and those that lack something.

use super::EnvironmentRequest;
use crate::skills::Problem;
use crate::skills::environments::environment_record::EnvironmentRecord;

/// Code of the problem of an environment whose build failed.
const BUILD_FAILED: &str = "environment.build_failed";
/// Code of the problem of a package of a built environment that may not work.
const BUILD_WARNING: &str = "environment.warning";

impl EnvironmentRequest {
    /// Returns the refused parts of the need, and what else is noteworthy, as problems of the skill. Their messages name
    /// the files.
    pub fn need_problems(&self) -> Vec<Problem> {
        let problems = self.need.problems.iter();
        let of_skill = |problem: &Problem| Problem {
            subject: self.skill.clone(),
            line: 0,
            ..problem.clone()
        };
        problems.map(of_skill).collect()
    }
}

/// Returns the problem of a skill whose environment was not built.
pub fn build_problem(skill: &str, reason: &str) -> Problem {
    let message = format!("the packages of skill {skill} were not built: {reason}");
    Problem {
        subject: skill.to_owned(),
        ..Problem::error(BUILD_FAILED, message)
    }
}

/// Returns the problem of a preparation that installs nothing for a reason that only warns a staging.
pub(super) fn preparation_error(skill: &str, problem: &Problem) -> Problem {
    Problem {
        subject: skill.to_owned(),
        ..Problem::error(problem.code, problem.message.as_str())
    }
}

/// Returns what people should know of a built environment: parts of the need that were refused, and packages that may not
/// work.
pub fn environment_remarks(
    request: &EnvironmentRequest,
    record: &EnvironmentRecord,
) -> Vec<Problem> {
    let warnings = record.report.warnings.iter();
    let warnings = warnings.map(|text| Problem {
        subject: request.skill.clone(),
        ..Problem::warning(BUILD_WARNING, text.as_str())
    });
    let refused = request.need_problems().into_iter();
    refused.chain(warnings).collect()
}
