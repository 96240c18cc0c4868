//! Problems of skills' environments: those that were not built, and those that lack something.

use super::EnvironmentRequest;
use crate::skills::environments::environment_record::EnvironmentRecord;
use crate::skills::{ENVIRONMENT_WARNING, Problem};

/// Code of the problem of an environment whose build failed.
const BUILD_FAILED: &str = "environment.build_failed";
/// Code of the problem of inferred packages that a built environment lacks.
const PACKAGES_LEFT_OUT: &str = "environment.left_out";
/// Beginning of a build's warning about such packages.
pub(super) const LEFT_OUT: &str = "left out: ";

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

/// Returns the problem that a warning of a build is.
fn build_warning(text: &str) -> Problem {
    let code = match text.starts_with(LEFT_OUT) {
        true => PACKAGES_LEFT_OUT,
        false => ENVIRONMENT_WARNING,
    };
    Problem::warning(code, text)
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
        ..build_warning(text)
    });
    let refused = request.need_problems().into_iter();
    refused.chain(warnings).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn warnings_about_absent_packages_have_a_code_of_their_own() {
        for (text, code) in [
            ("left out: docx (inferred)", "environment.left_out"),
            ("docx has an install script", "environment.warning"),
        ] {
            let problem = build_warning(text);
            assert_eq!((problem.code, problem.is_error()), (code, false));
        }
    }
}
