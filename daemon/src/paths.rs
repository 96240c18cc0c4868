//! The lexical rules for paths inside a workspace. Pure: nothing here touches a file system. What a name
//! really leads to is decided by the guest, which opens everything beneath /workspace.
//!
//! A path as a client writes it is one of
//!
//! * relative, to the workspace or to the base that the caller gives (a skill's root for a command's cwd),
//! * absolute beneath `/workspace`,
//! * one of these with a leading variable: `$OUTPUT_DIR/x`, `${WORK_DIR}/x`. A `$` elsewhere is a character
//!   like others; `./$x` names a file that begins with one.
//!
//! and comes out relative to the workspace, without `.`, `..` and doubled slashes; `""` is the workspace.

use crate::error::{Error, Result};

mod class;
mod placeholders;

pub use placeholders::{resolve_placeholders, resolve_placeholders_for_shell};

/// Where the workspace is in the container.
pub const WORKSPACE_DIR: &str = "/workspace";
/// Skills, read-only.
pub const SKILLS_DIR: &str = "/workspace/skills";
/// Free for the commands' use.
pub const WORK_DIR: &str = "/workspace/work";
/// The user's files.
pub const INPUTS_DIR: &str = "/workspace/work/inputs";
/// Results.
pub const OUTPUT_DIR: &str = "/workspace/out";
/// One directory per exec.
pub const RUNS_DIR: &str = "/workspace/runs";

/// Name of the file in the workspace that describes it.
pub const METADATA: &str = "metadata.json";

/// Longest path, bytes.
pub const PATH_BYTES_MAX: usize = 4096;
/// Longest component, bytes.
pub const COMPONENT_BYTES_MAX: usize = 255;
/// Most components.
pub const DEPTH_MAX: usize = 128;
/// Longest path in a skill, bytes.
pub const SKILL_PATH_BYTES_MAX: usize = 512;
/// Most components of it.
const SKILL_DEPTH_MAX: usize = 32;

/// Where a path is resolved: what is relative to what, and which variables there are.
#[derive(Debug, Clone, Copy, Default)]
pub struct Scope<'a> {
    /// Base of relative paths, relative to the workspace and normalised; `""` is the workspace, and only there
    /// does `inputs/x` mean `work/inputs/x` (in a skill's root the link `inputs` does the same).
    pub base: &'a str,
    /// Id of the exec that `$RUN_DIR` belongs to.
    pub exec: Option<&'a str>,
    /// Name of the skill that `$SKILL_DIR` and `$SKILL_NAME` belong to.
    pub skill: Option<&'a str>,
}

/// Resolves a path to one relative to the workspace. `field` is named in the error.
///
/// `..` is resolved lexically, before any link is looked at.
///
/// # Errors
/// `PathEscapes` for a path that leaves the workspace; `Invalid` for an unknown variable, a NUL, or one of
/// [`PATH_BYTES_MAX`], [`COMPONENT_BYTES_MAX`], [`DEPTH_MAX`].
pub fn resolve(field: &str, path: &str, scope: Scope<'_>) -> Result<String> {
    check_text(field, path, PATH_BYTES_MAX)?;
    let (base, rest) = split(field, path, scope)?;
    let mut components: Vec<&str> = Vec::new();
    for component in base.split('/').chain(rest.split('/')) {
        match component {
            "" | "." => {}
            ".." => {
                components.pop().ok_or_else(|| Error::PathEscapes {
                    path: path.to_owned(),
                })?;
            }
            name => components.push(name),
        }
    }
    finish(
        field,
        components,
        is_relative(path) && scope.base.is_empty(),
    )
}

/// A path of a file in a skill, as somebody wrote it, without `.` and empty components. Variables are nothing special
/// here. `field` is named in the error.
///
/// # Errors
/// `LeavesSkill` for `..` and absolute ones; `Invalid` for what no path of a skill has.
pub fn in_skill(field: &str, path: &str) -> Result<String> {
    if path.len() > SKILL_PATH_BYTES_MAX {
        let message = format!("must be at most {SKILL_PATH_BYTES_MAX} bytes");
        return Err(Error::invalid(field, message));
    }
    if path.contains(|c: char| c.is_control() || c == '\\') {
        let message = "must have no control character and no backslash; folders are separated by /";
        return Err(Error::invalid(field, message));
    }
    let components: Vec<&str> = path
        .split('/')
        .filter(|part| !matches!(*part, "" | "."))
        .collect();
    if path.starts_with('/') || components.contains(&"..") {
        return Err(Error::LeavesSkill {
            path: path.to_owned(),
        });
    }
    if components.len() > SKILL_DEPTH_MAX {
        let message = format!("must have at most {SKILL_DEPTH_MAX} components");
        return Err(Error::invalid(field, message));
    }
    if components
        .iter()
        .any(|component| component.len() > COMPONENT_BYTES_MAX)
    {
        let message = format!("must have no component of more than {COMPONENT_BYTES_MAX} bytes");
        return Err(Error::invalid(field, message));
    }
    Ok(components.join("/"))
}

/// Resolves the leading part of a glob as [`resolve`] does, and leaves its pattern alone. Braces, classes and `**`
/// are matched by the guest; what globset cannot parse is refused here, with its reason. A glob that ends in a slash, or
/// that is the workspace itself, means everything beneath that directory.
///
/// # Errors
/// As [`resolve`]; every `..` is `PathEscapes`.
pub fn glob(field: &str, pattern: &str, scope: Scope<'_>) -> Result<String> {
    check_text(field, pattern, PATH_BYTES_MAX)?;
    let pattern = &class::without_slash(pattern).map_err(|why| Error::invalid(field, why))?;
    let (base, rest) = split(field, pattern, scope)?;
    if rest.split(['/', ',', '{', '}']).any(|part| part == "..") {
        return Err(Error::PathEscapes {
            path: pattern.to_owned(),
        });
    }
    let mut components: Vec<&str> = base
        .split('/')
        .chain(rest.split('/'))
        .filter(|component| !matches!(*component, "" | "."))
        .collect();
    if pattern.ends_with('/') && components.last().is_some_and(|last| *last != "**") {
        components.push("**");
    }
    let mut glob = finish(
        field,
        components,
        is_relative(pattern) && scope.base.is_empty(),
    )?;
    if pattern.is_empty() {
        return Err(Error::invalid(field, "is empty: write `**` for all files"));
    }
    if glob.is_empty() {
        glob.push_str("**");
    }
    globset::GlobBuilder::new(&glob)
        .literal_separator(true)
        .backslash_escape(true)
        .empty_alternates(true)
        .build()
        .map_err(|error| Error::invalid(field, error.to_string()))?;
    Ok(glob)
}

/// Checks that a resolved path may be written: only StageSkills writes at and beneath `skills/`, and only the daemon
/// itself writes `metadata.json`.
///
/// # Errors
/// `ReadOnly`.
pub fn writable(path: &str) -> Result<()> {
    if matches!(path.split('/').next(), Some("skills" | METADATA)) {
        return Err(Error::ReadOnly {
            path: path.to_owned(),
        });
    }
    Ok(())
}

/// A resolved path as commands see it.
#[must_use]
pub fn absolute(path: &str) -> String {
    if path.is_empty() {
        WORKSPACE_DIR.to_owned()
    } else {
        format!("{WORKSPACE_DIR}/{path}")
    }
}

fn check_text(field: &str, text: &str, bytes_max: usize) -> Result<()> {
    if text.contains('\0') {
        return Err(Error::invalid(field, "contains a NUL"));
    }
    if text.len() > bytes_max {
        return Err(Error::invalid(
            field,
            format!("has {} bytes; at most {bytes_max} are allowed", text.len()),
        ));
    }
    Ok(())
}

/// Written without a variable and without a leading slash.
fn is_relative(path: &str) -> bool {
    !path.starts_with('/') && variable(path).is_none()
}

/// Splits what a path is relative to from the rest; the two joined by a slash are the path.
fn split<'a>(field: &str, path: &'a str, scope: Scope<'_>) -> Result<(String, &'a str)> {
    if let Some((name, rest)) = variable(path) {
        // As in a shell, `$OUTPUT_DIR.old` is `out.old`: the rest continues the last component.
        let glued = rest.split('/').next().unwrap_or_default();
        let value = value_of(field, name, scope)?;
        return Ok((
            format!("{value}{glued}"),
            rest.get(glued.len()..).unwrap_or_default(),
        ));
    }
    if !path.starts_with('/') {
        return Ok((scope.base.to_owned(), path));
    }
    let mut components = path
        .split('/')
        .filter(|component| !matches!(*component, "" | "."));
    let inside = components.next() == WORKSPACE_DIR.strip_prefix('/');
    let at = path.find("workspace").filter(|_| inside);
    match at.and_then(|at| path.get(at + "workspace".len()..)) {
        Some(rest) => Ok((String::new(), rest)),
        None => Err(Error::PathEscapes {
            path: path.to_owned(),
        }),
    }
}

/// The leading variable of a path, and what follows it. `$` and a character that begins no name is no variable.
fn variable(path: &str) -> Option<(&str, &str)> {
    let rest = path.strip_prefix('$')?;
    if let Some(braced) = rest.strip_prefix('{') {
        // Unclosed: a name that no variable has.
        return Some(braced.split_once('}').unwrap_or((rest, "")));
    }
    let end = rest
        .find(|c: char| !(c.is_ascii_alphanumeric() || c == '_'))
        .unwrap_or(rest.len());
    let (name, rest) = rest.split_at(end);
    let named = name.starts_with(|c: char| c.is_ascii_alphabetic() || c == '_');
    named.then_some((name, rest))
}

/// Value of a variable, relative to the workspace.
fn value_of(field: &str, name: &str, scope: Scope<'_>) -> Result<String> {
    let fixed = match name {
        "WORKSPACE_DIR" => Some(WORKSPACE_DIR),
        "SKILLS_DIR" => Some(SKILLS_DIR),
        "WORK_DIR" => Some(WORK_DIR),
        "INPUTS_DIR" => Some(INPUTS_DIR),
        "OUTPUT_DIR" => Some(OUTPUT_DIR),
        _ => None,
    };
    if let Some(absolute) = fixed {
        let inside = absolute.strip_prefix(WORKSPACE_DIR).unwrap_or_default();
        return Ok(inside.trim_start_matches('/').to_owned());
    }
    match (name, scope.exec, scope.skill) {
        ("RUN_DIR", Some(exec), _) => Ok(format!("runs/{exec}")),
        ("SKILL_DIR", _, Some(skill)) => Ok(format!("skills/{skill}")),
        ("SKILL_NAME", _, Some(skill)) => Ok(skill.to_owned()),
        ("RUN_DIR", None, _) | ("SKILL_DIR" | "SKILL_NAME", _, None) => {
            Err(Error::invalid(field, format!("${name} has no value here")))
        }
        _ => Err(Error::invalid(
            field,
            format!(
                "unknown variable ${}; there are $WORKSPACE_DIR, $SKILLS_DIR, $WORK_DIR, $INPUTS_DIR, $OUTPUT_DIR, \
                 and with an exec $RUN_DIR, $SKILL_DIR, $SKILL_NAME",
                name.chars().take(64).collect::<String>()
            ),
        )),
    }
}

/// Joins normalised components, at most [`DEPTH_MAX`] and none too long.
fn finish(field: &str, mut components: Vec<&str>, map_inputs: bool) -> Result<String> {
    if map_inputs && components.first() == Some(&"inputs") {
        components.insert(0, "work");
    }
    if components.len() > DEPTH_MAX {
        return Err(Error::invalid(
            field,
            format!("is deeper than {DEPTH_MAX} directories"),
        ));
    }
    if components
        .iter()
        .any(|component| component.len() > COMPONENT_BYTES_MAX)
    {
        return Err(Error::invalid(
            field,
            format!("has a component of more than {COMPONENT_BYTES_MAX} bytes"),
        ));
    }
    let path = components.join("/");
    check_text(field, &path, PATH_BYTES_MAX)?;
    Ok(path)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const SCOPE: Scope<'static> = Scope {
        base: "",
        exec: Some("e1"),
        skill: Some("csv-report"),
    };

    /// A result in one line: the path, or what is wrong with it.
    fn shown(result: Result<String>) -> String {
        match result {
            Ok(path) => path,
            Err(Error::PathEscapes { .. }) => "!escapes".to_owned(),
            Err(Error::Invalid(violations)) => format!("!invalid {}", violations[0].field),
            Err(error) => format!("!{error}"),
        }
    }

    #[test]
    fn paths_resolve_to_the_workspace() {
        for (path, expected) in [
            ("", ""),
            (".", ""),
            ("/workspace", ""),
            ("/workspace/", ""),
            ("//workspace//out/./a", "out/a"),
            ("/workspace/workspace/a", "workspace/a"),
            ("a", "a"),
            ("./a//b/./c/", "a/b/c"),
            ("a/../b", "b"),
            ("inputs", "work/inputs"),
            ("inputs/x", "work/inputs/x"),
            ("./inputs/x", "work/inputs/x"),
            ("a/../inputs/x", "work/inputs/x"),
            ("inputs2/x", "inputs2/x"),
            ("/workspace/inputs/x", "inputs/x"),
            ("$WORKSPACE_DIR/inputs/x", "inputs/x"),
            ("$WORK_DIR", "work"),
            ("$WORK_DIR/x", "work/x"),
            ("${WORK_DIR}/x", "work/x"),
            ("${WORK_DIR}x", "workx"),
            ("$OUTPUT_DIR.old/x", "out.old/x"),
            ("$OUTPUT_DIR/../work", "work"),
            ("$INPUTS_DIR/x", "work/inputs/x"),
            ("$SKILLS_DIR/a", "skills/a"),
            ("$WORKSPACE_DIR", ""),
            ("$RUN_DIR/log", "runs/e1/log"),
            ("$SKILL_DIR/bin", "skills/csv-report/bin"),
            ("$SKILL_NAME.txt", "csv-report.txt"),
            ("$5", "$5"),
            ("./$x", "$x"),
            ("a/$WORK_DIR", "a/$WORK_DIR"),
            ("..a/...", "..a/..."),
            ("ü/日本", "ü/日本"),
            ("..", "!escapes"),
            ("a/../..", "!escapes"),
            ("/workspace/..", "!escapes"),
            ("/workspace/../workspace/a", "!escapes"),
            ("$WORK_DIR/../../etc", "!escapes"),
            ("/", "!escapes"),
            ("/etc/passwd", "!escapes"),
            ("/workspaces/a", "!escapes"),
            ("/workspace2", "!escapes"),
            ("/x/../workspace", "!escapes"),
            ("$OUTPUT_DIRECTORY/x", "!invalid f"),
            ("$HOME/x", "!invalid f"),
            ("${HOME}", "!invalid f"),
            ("${WORK_DIR", "!invalid f"),
            ("${}", "!invalid f"),
            ("a\0b", "!invalid f"),
        ] {
            assert_eq!(shown(resolve("f", path, SCOPE)), expected, "{path:?}");
        }
    }

    #[test]
    fn paths_join_their_base() {
        let scope = Scope {
            base: "skills/csv-report",
            ..Scope::default()
        };
        for (path, expected) in [
            ("", "skills/csv-report"),
            ("inputs/x", "skills/csv-report/inputs/x"),
            ("../../work", "work"),
            ("../../../work", "!escapes"),
            ("$OUTPUT_DIR", "out"),
            ("/workspace/out", "out"),
            ("$RUN_DIR", "!invalid f"),
            ("$SKILL_DIR", "!invalid f"),
        ] {
            assert_eq!(shown(resolve("f", path, scope)), expected, "{path:?}");
        }
    }

    #[test]
    fn paths_are_bounded() {
        let component = |len: usize| "c".repeat(len);
        let depth = |count: usize| vec!["d"; count].join("/");
        assert_eq!(shown(resolve("f", &component(255), SCOPE)), component(255));
        assert_eq!(shown(resolve("f", &component(256), SCOPE)), "!invalid f");
        assert_eq!(shown(resolve("f", &depth(128), SCOPE)), depth(128));
        assert_eq!(shown(resolve("f", &depth(129), SCOPE)), "!invalid f");
        assert_eq!(shown(resolve("f", &"./".repeat(2048), SCOPE)), "");
        assert_eq!(shown(resolve("f", &"./".repeat(2049), SCOPE)), "!invalid f");
    }

    #[test]
    fn globs_keep_their_pattern() {
        for (pattern, expected) in [
            ("out/**", "out/**"),
            ("$OUTPUT_DIR/**/*.{csv,json}", "out/**/*.{csv,json}"),
            ("${WORK_DIR}/[a-z]?.txt", "work/[a-z]?.txt"),
            ("/workspace/out/*", "out/*"),
            ("inputs/*.csv", "work/inputs/*.csv"),
            ("./a//b", "a/b"),
            ("**", "**"),
            ("a..b/*", "a..b/*"),
            ("$RUN_DIR/*", "runs/e1/*"),
            ("../*", "!escapes"),
            ("out/../../x", "!escapes"),
            ("{a,../b}", "!escapes"),
            ("{..,a}/b", "!escapes"),
            ("/etc/*", "!escapes"),
            ("out", "out"),
            ("out/", "out/**"),
            ("$OUTPUT_DIR", "out"),
            ("$OUTPUT_DIR/", "out/**"),
            ("work/*/", "work/*/**"),
            ("out/**/", "out/**"),
            (".", "**"),
            ("$WORKSPACE_DIR", "**"),
            ("/workspace/", "**"),
            ("", "!invalid f"),
            ("$NOPE/*", "!invalid f"),
            ("out/[!a]/x", "out/[!a/]/x"),
            ("out/[a/b]", "!invalid f"),
            ("out/[a", "!invalid f"),
            ("out/{a", "!invalid f"),
            ("a\0", "!invalid f"),
        ] {
            assert_eq!(shown(glob("f", pattern, SCOPE)), expected, "{pattern:?}");
        }
    }

    #[test]
    fn a_directory_as_a_glob_is_bounded_with_what_it_stands_for() {
        let deep = |components: usize| format!("{}/", vec!["a"; components].join("/"));
        let glob = |components| glob("f", &deep(components), Scope::default());
        let longest = glob(DEPTH_MAX - 1).expect("just fits");
        assert_eq!(longest.split('/').count(), DEPTH_MAX);
        glob(DEPTH_MAX).expect_err("one too many with its `**`");
    }

    #[test]
    fn a_bad_glob_says_why() {
        let error = glob("spec.globs[0]", "out/[a", SCOPE).expect_err("unclosed class");
        assert!(
            error.to_string().contains("unclosed character class"),
            "{error}"
        );
        assert!(error.to_string().contains("spec.globs[0]"), "{error}");
    }

    #[test]
    fn skills_and_metadata_are_read_only() {
        for (path, ok) in [
            ("skills", false),
            ("skills/a/b", false),
            ("skills2", true),
            ("metadata.json", false),
            ("metadata.json/a", false),
            ("work/metadata.json", true),
            ("work/skills/a", true),
            ("", true),
        ] {
            assert_eq!(writable(path).is_ok(), ok, "{path:?}");
        }
    }

    proptest! {
        #[test]
        fn a_resolved_path_stays_inside_and_is_stable(path in "[a./$\\{\\}]{0,40}", base in "(|skills/a)") {
            let scope = Scope { base: &base, ..Scope::default() };
            if let Ok(resolved) = resolve("f", &path, scope) {
                prop_assert!(!resolved.starts_with('/') && !resolved.ends_with('/'));
                prop_assert!(resolved.split('/').all(|part| !matches!(part, "." | "..")));
                let again = resolve("f", &absolute(&resolved), scope).expect("still inside");
                prop_assert_eq!(again, resolved);
            }
        }

        #[test]
        fn resolving_never_panics(path in "\\PC{0,60}") {
            let _ = resolve("f", &path, SCOPE);
            let _ = glob("f", &path, SCOPE);
        }
    }
}
