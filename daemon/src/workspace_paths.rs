//! Lexical rules for paths in a workspace. Pure: no function here accesses a file system. The guest opens all files
//! beneath /workspace and so decides where a path with symbolic links leads.
//!
//! A client writes a path in one of three forms:
//!
//! * relative to the workspace, or to a base that the caller gives (a skill's root for a command's cwd),
//! * absolute, beneath `/workspace`,
//! * with a leading variable: `$OUTPUT_DIR/x`, `${WORK_DIR}/x`. A `$` elsewhere is an ordinary character;
//!   `./$x` names a file that begins with `$`.
//!
//! A resolved path is relative to the workspace, without `.`, `..` and empty components; `""` is the workspace.

use crate::error::{Error, Result};

pub use skilld_skills::placeholders::{
    SkillFolder, resolve_placeholders, resolve_placeholders_for_shell,
};

/// Path of the workspace in the container.
pub const WORKSPACE_DIR: &str = "/workspace";
/// Path of the staged skills in the container; read-only for commands.
pub const SKILLS_DIR: &str = "/workspace/skills";
/// Path for intermediate files in the container, which is also the home directory of commands.
pub const WORK_DIR: &str = "/workspace/work";
/// Path of the user's input files in the container.
pub const INPUTS_DIR: &str = "/workspace/work/inputs";
/// Path for result files in the container.
pub const OUTPUT_DIR: &str = "/workspace/out";
/// Path in the container that contains one directory per exec.
pub const RUNS_DIR: &str = "/workspace/runs";
/// Absolute path of the environments of skills in a container; each has a folder there.
pub const ENVIRONMENTS_DIR: &str = "/opt/skilld/environments";
/// Absolute path of the operator's wheels in a container.
pub const WHEELHOUSE_DIR: &str = "/opt/skilld/wheelhouse";
/// Directory of shared data in a container, as XDG_DATA_DIRS lists them: programs look for fonts in its folder `fonts`.
pub const DATA_DIR: &str = "/opt/skilld";
/// Absolute path of the operator's fonts and OCR languages in a container.
pub const FONTS_DIR: &str = "/opt/skilld/fonts";

/// Name of the workspace's metadata file.
pub const METADATA_FILE: &str = "metadata.json";

/// Maximum length of a path in a workspace, in bytes.
pub const PATH_BYTES_MAX: usize = 4096;
/// Maximum length of one path component, in bytes.
pub const COMPONENT_BYTES_MAX: usize = 255;
/// Maximum number of components of a path in a workspace.
pub const DEPTH_MAX: usize = 128;
pub use skilld_skills::skill_path::SKILL_PATH_BYTES_MAX;

/// Base directory and variable values for resolving a path of a client.
#[derive(Debug, Clone, Copy, Default)]
pub struct PathContext<'a> {
    /// Base of relative paths, itself relative to the workspace and normalised; `""` is the workspace. Only with this
    /// base does `inputs/x` mean `work/inputs/x`. In a skill's root the symbolic link `inputs` has the same effect.
    pub base: &'a str,
    /// Exec id for `$RUN_DIR`; `None` if the variable has no value.
    pub exec: Option<&'a str>,
    /// Skill name for `$SKILL_DIR` and `$SKILL_NAME`; `None` if these variables have no value.
    pub skill: Option<&'a str>,
}

/// Resolves a client's path to a path relative to the workspace. Errors name `field`.
///
/// Resolves `..` lexically, without regard to symbolic links.
///
/// # Errors
///
/// `PathEscapes` if the path leaves the workspace. `Invalid` for an unknown variable, a NUL, or a path that exceeds
/// [`PATH_BYTES_MAX`], [`COMPONENT_BYTES_MAX`] or [`DEPTH_MAX`].
pub fn resolve_path(field: &str, path: &str, scope: PathContext<'_>) -> Result<String> {
    check_text(field, path, PATH_BYTES_MAX)?;
    let (base, rest) = split_base(field, path, scope)?;
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
    join_components(
        field,
        components,
        is_relative(path) && scope.base.is_empty(),
    )
}

/// Normalises the path of a file in a skill: removes `.` and empty components. Does not replace variables. Errors name
/// `field`.
///
/// # Errors
///
/// `LeavesSkill` if the path is absolute or contains `..`. `Invalid` if it contains a control character or a backslash,
/// or exceeds a limit.
pub fn normalise_skill_path(field: &str, path: &str) -> Result<String> {
    Ok(skilld_skills::skill_path::normalise_skill_path(
        field, path,
    )?)
}

/// Normalises the path of a file in a skill, which may begin with `..` to lead to files of the skill's plugin.
///
/// # Errors
///
/// The errors of [`normalise_skill_path`], except for `..`.
pub fn normalise_path_in_plugin(field: &str, path: &str) -> Result<String> {
    Ok(skilld_skills::skill_path::normalise_path_in_plugin(
        field, path,
    )?)
}

/// Resolves the base of a glob as [`resolve_path`] does, and keeps its pattern. The guest matches braces, classes and
/// `**`, and takes what is no pattern for a name. A glob that ends in a slash, or that names the workspace itself,
/// matches everything beneath that directory.
///
/// # Errors
///
/// The errors of [`resolve_path`]; `PathEscapes` for every `..`.
pub fn resolve_glob(field: &str, pattern: &str, scope: PathContext<'_>) -> Result<String> {
    check_text(field, pattern, PATH_BYTES_MAX)?;
    let (base, rest) = split_base(field, pattern, scope)?;
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
    let mut glob = join_components(
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
    Ok(glob)
}

/// Checks that clients may write to a resolved path. Only StageSkills writes at and beneath `skills/`, and only the
/// daemon writes `metadata.json`.
///
/// # Errors
///
/// `ReadOnly` if clients may not write there.
pub fn check_writable(path: &str) -> Result<()> {
    if matches!(path.split('/').next(), Some("skills" | METADATA_FILE)) {
        return Err(Error::ReadOnly {
            path: path.to_owned(),
        });
    }
    Ok(())
}

/// Converts a resolved path to an absolute path in the container.
pub fn absolute_path(path: &str) -> String {
    if path.is_empty() {
        WORKSPACE_DIR.to_owned()
    } else {
        format!("{WORKSPACE_DIR}/{path}")
    }
}

/// Rejects text with a NUL or with more than `bytes_max` bytes.
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

/// Returns `true` if a path has neither a leading variable nor a leading slash.
fn is_relative(path: &str) -> bool {
    !path.starts_with('/') && leading_variable(path).is_none()
}

/// Splits a path into its base, relative to the workspace, and the rest. Joined by a slash they are the path.
fn split_base<'a>(field: &str, path: &'a str, scope: PathContext<'_>) -> Result<(String, &'a str)> {
    if let Some((name, rest)) = leading_variable(path) {
        // Like in a shell, `$OUTPUT_DIR.old` is `out.old`: text up to the next slash extends the base's last component.
        let glued = rest.split('/').next().unwrap_or_default();
        let value = variable_value(field, name, scope)?;
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

/// Returns the name of a path's leading variable and the text that follows it. `$` begins a variable only before a
/// letter, an underscore or a brace.
fn leading_variable(path: &str) -> Option<(&str, &str)> {
    let rest = path.strip_prefix('$')?;
    if let Some(braced) = rest.strip_prefix('{') {
        // Without a closing brace, return a name that no variable has.
        return Some(braced.split_once('}').unwrap_or((rest, "")));
    }
    let end = rest
        .find(|c: char| !(c.is_ascii_alphanumeric() || c == '_'))
        .unwrap_or(rest.len());
    let (name, rest) = rest.split_at(end);
    let named = name.starts_with(|c: char| c.is_ascii_alphabetic() || c == '_');
    named.then_some((name, rest))
}

/// Returns the value of a variable as a path relative to the workspace.
fn variable_value(field: &str, name: &str, scope: PathContext<'_>) -> Result<String> {
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
        (name, _, _) => {
            let problem = match name {
                "RUN_DIR" | "SKILL_DIR" | "SKILL_NAME" => format!("${name} has no value here"),
                name => format!(
                    "unknown variable ${}",
                    name.chars().take(64).collect::<String>()
                ),
            };
            let known = list_variables(scope);
            Err(Error::invalid(
                field,
                format!("{problem}; use one of {known}"),
            ))
        }
    }
}

/// Lists the variables that have a value in a scope.
fn list_variables(scope: PathContext<'_>) -> String {
    let mut names = "$WORKSPACE_DIR, $SKILLS_DIR, $WORK_DIR, $INPUTS_DIR, $OUTPUT_DIR".to_owned();
    if scope.exec.is_some() {
        names.push_str(", $RUN_DIR");
    }
    if scope.skill.is_some() {
        names.push_str(", $SKILL_DIR, $SKILL_NAME");
    }
    names
}

/// Joins normalised components to a path and checks the limits. `map_inputs` replaces a leading `inputs` by
/// `work/inputs`.
fn join_components(field: &str, mut components: Vec<&str>, map_inputs: bool) -> Result<String> {
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

    const SCOPE: PathContext<'static> = PathContext {
        base: "",
        exec: Some("e1"),
        skill: Some("csv-report"),
    };

    /// Formats a result as one line: the path, or `!` and the kind of error.
    fn format_result(result: Result<String>) -> String {
        match result {
            Ok(path) => path,
            Err(Error::PathEscapes { .. }) => "!escapes".to_owned(),
            Err(Error::Invalid(violations)) => format!("!invalid {}", violations[0].field),
            Err(error) => format!("!{error}"),
        }
    }

    #[test]
    fn paths_resolve_relative_to_the_workspace() {
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
            assert_eq!(
                format_result(resolve_path("f", path, SCOPE)),
                expected,
                "{path:?}"
            );
        }
    }

    #[test]
    fn relative_paths_resolve_against_the_base() {
        let scope = PathContext {
            base: "skills/csv-report",
            ..PathContext::default()
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
            assert_eq!(
                format_result(resolve_path("f", path, scope)),
                expected,
                "{path:?}"
            );
        }
    }

    #[test]
    fn errors_recommend_only_variables_that_have_a_value() {
        for (scope, has_exec, has_skill) in [
            (PathContext::default(), false, false),
            (
                PathContext {
                    exec: Some("e1"),
                    ..PathContext::default()
                },
                true,
                false,
            ),
            (SCOPE, true, true),
        ] {
            for path in ["$NOPE/a", "$SKILL_DIR/a", "$RUN_DIR/a"] {
                let Err(error) = resolve_path("f", path, scope) else {
                    continue;
                };
                let message = error.to_string();
                let (_, advice) = message.split_once("; use one of ").expect("advice");
                assert!(advice.starts_with("$WORKSPACE_DIR, "), "{message}");
                assert_eq!(advice.contains("$RUN_DIR"), has_exec, "{message}");
                assert_eq!(advice.contains("$SKILL_DIR"), has_skill, "{message}");
            }
        }
    }

    #[test]
    fn path_length_component_length_and_depth_are_limited() {
        let component = |len: usize| "c".repeat(len);
        let depth = |count: usize| vec!["d"; count].join("/");
        assert_eq!(
            format_result(resolve_path("f", &component(255), SCOPE)),
            component(255)
        );
        assert_eq!(
            format_result(resolve_path("f", &component(256), SCOPE)),
            "!invalid f"
        );
        assert_eq!(
            format_result(resolve_path("f", &depth(128), SCOPE)),
            depth(128)
        );
        assert_eq!(
            format_result(resolve_path("f", &depth(129), SCOPE)),
            "!invalid f"
        );
        assert_eq!(
            format_result(resolve_path("f", &"./".repeat(2048), SCOPE)),
            ""
        );
        assert_eq!(
            format_result(resolve_path("f", &"./".repeat(2049), SCOPE)),
            "!invalid f"
        );
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
            ("out/[!a]/x", "out/[!a]/x"),
            ("app/[slug]/page.tsx", "app/[slug]/page.tsx"),
            ("app/[[...slug]]/x", "app/[[...slug]]/x"),
            ("out/[a/b]", "out/[a/b]"),
            ("out/[a", "out/[a"),
            ("out/{a", "out/{a"),
            ("out/a\\", "out/a\\"),
            ("a\0", "!invalid f"),
        ] {
            assert_eq!(
                format_result(resolve_glob("f", pattern, SCOPE)),
                expected,
                "{pattern:?}"
            );
        }
    }

    #[test]
    fn depth_limit_includes_the_suffix_of_a_directory_glob() {
        let deep = |components: usize| format!("{}/", vec!["a"; components].join("/"));
        let glob = |components| resolve_glob("f", &deep(components), PathContext::default());
        let longest = glob(DEPTH_MAX - 1).expect("just fits");
        assert_eq!(longest.split('/').count(), DEPTH_MAX);
        glob(DEPTH_MAX).expect_err("one too many with its `**`");
    }

    #[test]
    fn skills_and_metadata_file_are_read_only() {
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
            assert_eq!(check_writable(path).is_ok(), ok, "{path:?}");
        }
    }

    proptest! {
        #[test]
        fn a_resolved_path_stays_inside_and_is_stable(path in "[a./$\\{\\}]{0,40}", base in "(|skills/a)") {
            let scope = PathContext { base: &base, ..PathContext::default() };
            if let Ok(resolved) = resolve_path("f", &path, scope) {
                prop_assert!(!resolved.starts_with('/') && !resolved.ends_with('/'));
                prop_assert!(resolved.split('/').all(|part| !matches!(part, "." | "..")));
                let again = resolve_path("f", &absolute_path(&resolved), scope).expect("still inside");
                prop_assert_eq!(again, resolved);
            }
        }

        #[test]
        fn resolving_any_text_never_panics(path in "\\PC{0,60}") {
            let _ = resolve_path("f", &path, SCOPE);
            let _ = resolve_glob("f", &path, SCOPE);
        }
    }
}
