//! Warnings about software that a skill needs and that is not installed. They come when the skill is loaded, and, about
//! its packages, when a run of it failed. Pure; every family adds them to its results.

use skilld_client::short_id;
use skilld_client::v1::{Problem, Skill, StagedSkill};
use skilld_common::excerpts::{cut_chars, join_first};

use crate::prompt::untrusted_text::one_line;

/// Maximum number of packages or programs that a warning names.
const NAMES_SHOWN_MAX: usize = 20;
/// Maximum number of reasons in a warning.
const REASONS_SHOWN_MAX: usize = 3;
/// Maximum number of characters of one reason. A build writes the last lines of its output into it.
const REASON_CHARS_MAX: usize = 400;
/// Code of the problem of a package that is installed, and may not work.
const INSTALLED_CODE: &str = "environment.warning";
/// Beginning of the codes of problems with a skill's packages.
const CODE_PREFIX: &str = "environment.";

/// Returns a warning of one line if commands of a skill would not find software that it needs.
pub(crate) fn describe_missing_packages(skill: &Skill) -> Option<String> {
    let missing = skill.missing_packages.as_ref()?;
    let packages =
        (!missing.problems.is_empty()).then(|| format_warning(&missing.names, &missing.problems));
    let software = (!missing.software.is_empty()).then(|| {
        format!(
            "not installed here: {}; commands that need it will fail",
            list_names(&missing.software)
        )
    });
    let pools: Vec<String> = missing.pools.iter().map(|pool| short_id(pool)).collect();
    let pools = match pools.as_slice() {
        [] => None,
        [pool] => Some(format!("The pool {} has all of it", one_line(pool))),
        pools => Some(format!("The pools {} have all of it", list_names(pools))),
    };
    let parts: Vec<String> = software.into_iter().chain(packages).chain(pools).collect();
    (!parts.is_empty()).then(|| parts.join(". "))
}

/// Returns a warning if a skill was staged without packages that it names.
pub(crate) fn describe_staging_problems(staged: &StagedSkill) -> Option<String> {
    let problems: Vec<Problem> = staged
        .problems
        .iter()
        .filter(|problem| problem.code.starts_with(CODE_PREFIX) && problem.code != INSTALLED_CODE)
        .cloned()
        .collect();
    (!problems.is_empty()).then(|| format_warning(&[], &problems))
}

/// Returns a warning that names packages, the effect of their absence, and its reasons.
fn format_warning(names: &[String], problems: &[Problem]) -> String {
    let reasons = problems
        .iter()
        .take(REASONS_SHOWN_MAX)
        .map(|problem| cut_chars(&one_line(&problem.message), REASON_CHARS_MAX))
        .collect::<Vec<_>>()
        .join("; ");
    match names.is_empty() {
        true => format!(
            "packages of this skill may not be installed, and scripts that import them will fail: {reasons}"
        ),
        false => format!(
            "packages of this skill are not installed: {}; scripts that import them will fail. Reason: {reasons}",
            list_names(names)
        ),
    }
}

/// Returns the first names and the number of the others.
fn list_names(names: &[String]) -> String {
    join_first(names.iter().map(|name| one_line(name)), NAMES_SHOWN_MAX)
}

#[cfg(test)]
mod tests {
    use skilld_client::v1::MissingPackages;

    use super::*;

    fn problem(code: &str, message: &str) -> Problem {
        Problem {
            code: code.into(),
            message: message.into(),
            ..Problem::default()
        }
    }

    #[test]
    fn a_short_warning_names_packages_effect_and_reason() {
        let names: Vec<String> = (0..200).map(|number| format!("package-{number}")).collect();
        let long = format!("the build failed\n{}", "line of output\n".repeat(1000));
        let skill = Skill {
            missing_packages: Some(MissingPackages {
                names: names.clone(),
                problems: vec![problem("environment.build_failed", &long); 50],
                software: vec!["ffmpeg".into(), "soffice or libreoffice".into()],
                pools: vec!["pools/office".into(), "pools/web".into()],
            }),
            ..Skill::default()
        };
        let warning = describe_missing_packages(&skill).expect("a warning");
        let begin = "not installed here: ffmpeg, soffice or libreoffice; commands that need it will fail. packages of \
                     this skill are not installed: package-0, package-1, ";
        assert!(warning.starts_with(begin), "{warning}");
        assert!(
            warning.contains("package-19 and 180 more; scripts that import them will fail. Reason: the build failed line"),
            "{warning}"
        );
        assert!(
            warning.ends_with(". The pools office, web have all of it"),
            "{warning}"
        );
        assert!(warning.len() < 2000 && !warning.contains('\n'), "{warning}");
        assert_eq!(describe_missing_packages(&Skill::default()), None);
    }

    #[test]
    fn only_problems_with_packages_are_warnings_about_packages() {
        let mut staged = StagedSkill {
            problems: vec![problem("skill.x", "x"), problem(INSTALLED_CODE, "x")],
            ..StagedSkill::default()
        };
        assert_eq!(describe_staging_problems(&staged), None);
        staged
            .problems
            .push(problem("environment.not_built", "why"));
        let wanted = "packages of this skill may not be installed, and scripts that import them will fail: why";
        assert_eq!(describe_staging_problems(&staged).as_deref(), Some(wanted));
    }
}
