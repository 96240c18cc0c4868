//! Reads paths in the workspace as models write them. Every argument that is a path, a glob or a reference to a file of
//! the workspace goes through one notation: `out/x`, `/out/x`, `/workspace/out/x` and `workspace://out/x` are one file.

use std::borrow::Cow;

use crate::skill_file_path::SkillFilePath;
use crate::tool_error::ToolError;

/// Scheme of references to files of the workspace.
const SCHEME: &str = "workspace://";
/// Path of the workspace in the container.
const ROOT: &str = "/workspace";
/// Directories at the top of the workspace. Models also write them as absolute paths: `/out/x`.
const AREAS: [&str; 5] = ["skills", "work", "out", "runs", "inputs"];
/// Links in the folder of each skill to directories of the workspace, beside `inputs`. Collections, saved artifacts and
/// written files follow no links.
const SKILL_LINKS: [&str; 2] = ["out", "work"];
/// Variables that a path may begin with, and the directories that they name.
const VARIABLES: [(&str, &str); 5] = [
    ("WORKSPACE_DIR", ""),
    ("WORK_DIR", "work"),
    ("INPUTS_DIR", "work/inputs"),
    ("OUTPUT_DIR", "out"),
    ("RUN_DIR", "runs"),
];

/// Returns a path or a glob without the scheme `workspace://`, and an absolute one in the workspace relative to it.
/// Anything else stays as it is: the daemon resolves variables and refuses paths that lead elsewhere.
#[must_use]
pub fn relative_to_workspace(given: &str) -> Cow<'_, str> {
    let trimmed = given.trim();
    let path = trimmed.strip_prefix(SCHEME).unwrap_or(trimmed);
    match strip_root(path) {
        Some(inside) if first_name(inside) == "inputs" => format!("work/{inside}").into(),
        Some(inside) => inside.into(),
        None => path.into(),
    }
}

/// Returns a path or a glob as [`relative_to_workspace`] does, and one through a link in a skill's folder, such as
/// `skills/NAME/out/x`, as that of the workspace's own directory. It does not find the files of a skill that has a
/// directory of its own in the place of a link, so it is only for what follows no links.
pub(crate) fn without_skill_links(given: &str) -> Cow<'_, str> {
    let trimmed = given.trim();
    let path = trimmed.strip_prefix(SCHEME).unwrap_or(trimmed);
    let in_skill = match SkillFilePath::parse(path) {
        SkillFilePath::Named(_, inside) | SkillFilePath::Own(inside) => inside,
        SkillFilePath::NamedPlugin(..) | SkillFilePath::OwnPlugin(_) | SkillFilePath::Other => "",
    };
    match first_name(in_skill) {
        "inputs" => format!("work/{in_skill}").into(),
        link if SKILL_LINKS.contains(&link) => in_skill.into(),
        _ => relative_to_workspace(given),
    }
}

/// Returns a working directory as the daemon takes it: absolute or with a variable, or relative to a base that the
/// daemon chooses.
pub(crate) fn working_directory(given: &str) -> String {
    let path = given.trim().replace('\\', "/");
    let is_based = path.starts_with(SCHEME) || strip_root(&path).is_some();
    match relative_to_workspace(&path) {
        inside if is_based && !inside.starts_with(['/', '$']) => format!("{ROOT}/{inside}"),
        other => other.into_owned(),
    }
}

/// Returns what follows the workspace's root in an absolute path; `None` if the path is relative or leads elsewhere.
fn strip_root(path: &str) -> Option<&str> {
    let absolute = path.strip_prefix('/')?.trim_start_matches('/');
    let inside = absolute
        .strip_prefix("workspace")
        .filter(|rest| rest.is_empty() || rest.starts_with('/'));
    match inside {
        Some(rest) => Some(rest.trim_start_matches('/')),
        None => {
            let first = first_name(absolute);
            (first.is_empty() || AREAS.contains(&first)).then_some(absolute)
        }
    }
}

fn first_name(path: &str) -> &str {
    path.split('/').next().unwrap_or_default()
}

/// Normalises the path of a file to one relative to the workspace, beneath one of the directories `areas`. `inputs/` is
/// `work/inputs/`; `place` says in the error where a file may be.
///
/// # Errors
///
/// [`ToolError::InvalidArguments`] if the path is empty, names a directory or leads elsewhere.
pub(crate) fn file_path(given: &str, areas: &[&str], place: &str) -> Result<String, ToolError> {
    let refused = |why: &str| ToolError::arguments(format!("path {given:?} {why}"));
    let text = given.trim().replace('\\', "/");
    if text.is_empty() {
        return Err(ToolError::arguments("path is required"));
    }
    let text = without_skill_links(&text);
    let text = expand_variable(&text).ok_or_else(|| refused("begins with an unknown variable"))?;
    if text.ends_with('/') {
        return Err(refused("is a folder, not a file"));
    }
    let parts: Vec<&str> = text
        .split('/')
        .filter(|part| !matches!(*part, "" | "."))
        .collect();
    if parts.contains(&"..") {
        return Err(refused("must not contain .."));
    }
    match parts.split_first() {
        Some((&"inputs", [_, ..])) => Ok(format!("work/{}", parts.join("/"))),
        Some((area, [_, ..])) if areas.contains(area) => Ok(parts.join("/")),
        _ => Err(refused(&format!("must be a file beneath {place}"))),
    }
}

/// Returns the path with the directory in place of the variable that it begins with; `None` if there is no such
/// variable.
fn expand_variable(path: &str) -> Option<String> {
    let Some(rest) = path.strip_prefix('$') else {
        return Some(path.to_owned());
    };
    let (name, rest) = match rest.strip_prefix('{') {
        Some(braced) => braced.split_once('}')?,
        None => rest.split_at(rest.find('/').unwrap_or(rest.len())),
    };
    if !(rest.is_empty() || rest.starts_with('/')) {
        return None;
    }
    let known = VARIABLES.iter().find(|(variable, _)| *variable == name);
    known.map(|(_, value)| format!("{value}{rest}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_file_has_one_path_however_it_is_written() {
        for (given, wanted) in [
            ("out/a.txt", "out/a.txt"),
            ("/out/a.txt", "out/a.txt"),
            ("//out//a.txt", "out//a.txt"),
            ("/workspace/out/a.txt", "out/a.txt"),
            ("workspace://out/a.txt", "out/a.txt"),
            ("workspace:///out/a.txt", "out/a.txt"),
            ("workspace:///workspace/out/**", "out/**"),
            ("/out/app/[slug]/page.tsx", "out/app/[slug]/page.tsx"),
            ("/inputs/a", "work/inputs/a"),
            ("/workspace/inputs/a", "work/inputs/a"),
            ("inputs/a", "inputs/a"),
            ("/skills/pdf/a.md", "skills/pdf/a.md"),
            ("/workspace/skills/pdf/out/a", "skills/pdf/out/a"),
            ("$OUTPUT_DIR/a", "$OUTPUT_DIR/a"),
            ("/workspace", ""),
            ("/etc/passwd", "/etc/passwd"),
            ("/output/a", "/output/a"),
            ("/workspaces/out/a", "/workspaces/out/a"),
            ("../out/a", "../out/a"),
        ] {
            assert_eq!(relative_to_workspace(given), wanted, "{given}");
        }
    }

    #[test]
    fn a_path_through_a_link_of_a_skill_is_that_of_the_workspace() {
        for (given, wanted) in [
            ("/workspace/skills/pdf/out/a", "out/a"),
            ("workspace://skills/pdf/out/a", "out/a"),
            ("skills/pdf/out/**", "out/**"),
            ("$SKILLS_DIR/pdf/work/a", "work/a"),
            ("$SKILL_DIR/inputs/a", "work/inputs/a"),
            ("skills/pdf/outer/a", "skills/pdf/outer/a"),
            ("skills/.plugins/pdf/out/a", "skills/.plugins/pdf/out/a"),
            ("/workspace/inputs/a", "work/inputs/a"),
        ] {
            assert_eq!(without_skill_links(given), wanted, "{given}");
        }
    }

    #[test]
    fn a_working_directory_may_be_written_as_the_references_do() {
        for (given, wanted) in [
            ("", ""),
            (" scripts ", "scripts"),
            ("inputs", "inputs"),
            ("/out/a", "/workspace/out/a"),
            ("/", "/workspace/"),
            ("/workspace/out", "/workspace/out"),
            ("/inputs/a", "/workspace/work/inputs/a"),
            ("workspace://out/a", "/workspace/out/a"),
            ("workspace://$WORK_DIR/a", "$WORK_DIR/a"),
            ("work/app/[slug]", "work/app/[slug]"),
            ("/etc", "/etc"),
            ("$WORK_DIR\\a", "$WORK_DIR/a"),
            ("/workspace/skills/pdf/out", "/workspace/skills/pdf/out"),
        ] {
            assert_eq!(working_directory(given), wanted, "{given:?}");
        }
    }

    #[test]
    fn a_path_may_be_written_in_many_ways_and_leads_nowhere_else() {
        let path = |given| file_path(given, &["work", "out", "runs"], "work/, out/ or runs/");
        for (given, wanted) in [
            ("out/a.txt", "out/a.txt"),
            (" workspace://out/./a//b ", "out/a/b"),
            ("$OUTPUT_DIR/a", "out/a"),
            ("${WORK_DIR}/a", "work/a"),
            ("$RUN_DIR/x/log", "runs/x/log"),
            ("$WORKSPACE_DIR/out/a", "out/a"),
            ("/workspace/out/a", "out/a"),
            ("/out/a", "out/a"),
            ("inputs/a", "work/inputs/a"),
            ("out\\a", "out/a"),
            ("out/report [final] {1}.pdf", "out/report [final] {1}.pdf"),
            ("/workspace/skills/pdf/out/a", "out/a"),
            ("skills/pdf/inputs/a", "work/inputs/a"),
        ] {
            assert_eq!(path(given).ok().as_deref(), Some(wanted), "{given}");
        }
        for given in [
            "",
            " ",
            "a",
            "out",
            "out/",
            "out/a/",
            "skills/x/SKILL.md",
            "../out/a",
            "out/../../a",
            "/etc/passwd",
            "$HOME/a",
            "$OUTPUT_DIRX/a",
            "${OUTPUT_DIR/a",
            "metadata.json",
            "workspace://",
        ] {
            assert!(path(given).is_err(), "{given:?}");
        }
        assert!(file_path("runs/x/a", &["work", "out"], "work/ or out/").is_err());
    }
}
