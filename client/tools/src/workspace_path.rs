//! Normalises paths of files in the workspace as models write them.

use crate::tool_error::ToolError;

/// Variables that a path may begin with, and the directories that they name.
const VARIABLES: [(&str, &str); 5] = [
    ("WORKSPACE_DIR", ""),
    ("WORK_DIR", "work"),
    ("INPUTS_DIR", "work/inputs"),
    ("OUTPUT_DIR", "out"),
    ("RUN_DIR", "runs"),
];

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
    let text = text.strip_prefix("workspace://").unwrap_or(&text);
    let text = match text.strip_prefix('/') {
        Some(absolute) => absolute.strip_prefix("workspace/").unwrap_or(absolute),
        None => text,
    };
    let text = expand_variable(text).ok_or_else(|| refused("begins with an unknown variable"))?;
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
