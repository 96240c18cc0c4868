//! The lexical rules for paths of files in a skill. Pure.

use std::collections::HashMap;
use std::ffi::{OsStr, OsString};
use std::path::Path;

use unicode_normalization::UnicodeNormalization as _;

use crate::error::{Error, Result};

/// Maximum length of a path in a skill, in bytes.
pub const SKILL_PATH_BYTES_MAX: usize = 512;
/// Maximum number of components of a path in a skill.
const SKILL_DEPTH_MAX: usize = 32;
/// Maximum length of one component, in bytes.
const COMPONENT_BYTES_MAX: usize = 255;

/// Returns a path with composed characters (NFC): macOS writes `é` as two.
pub(crate) fn compose_path(path: &str) -> String {
    path.nfc().collect()
}

/// Returns a path with decomposed characters (NFD), as macOS writes it.
pub(crate) fn decompose_path(path: &str) -> String {
    path.nfd().collect()
}

/// Returns a path on disk with composed characters; one that is not UTF-8 as it is.
pub(crate) fn compose_disk_path(path: &OsStr) -> OsString {
    path.to_str()
        .map_or_else(|| path.to_owned(), |path| compose_path(path).into())
}

/// Returns a path in the form in which paths are alike: composed and in lower case.
pub(crate) fn fold_path(path: &str) -> String {
    compose_path(path).to_lowercase()
}

/// Returns the first two paths, or folders of them, that differ only in case or Unicode form.
pub(crate) fn find_case_clash<'a>(
    paths: impl Iterator<Item = &'a Path>,
) -> Option<Box<(String, String)>> {
    let mut spellings: HashMap<String, &Path> = HashMap::new();
    for path in paths {
        for part in path.ancestors().filter(|part| !part.as_os_str().is_empty()) {
            let shown = part.to_string_lossy();
            match spellings.insert(fold_path(&shown), part) {
                None => {}
                // The folders above it are known.
                Some(other) if other == part => break,
                Some(other) => {
                    let known = other.to_string_lossy().into_owned();
                    return Some(Box::new((shown.into_owned(), known)));
                }
            }
        }
    }
    None
}

/// Returns a name for people: at most 256 characters, with invisible ones escaped.
pub(crate) fn printable_name(name: &[u8]) -> String {
    let name = name.get(..1024).unwrap_or(name);
    name.escape_ascii().to_string().chars().take(256).collect()
}

/// Resolves a path relative to a folder of a plugin, as the kernel would without links: returns the path in the plugin.
/// `folder` is normalised.
///
/// # Errors
/// `LeavesSkill` if the path leaves the plugin.
pub(crate) fn resolve_in_plugin(folder: &str, path: &str) -> Result<String> {
    match walk_names(folder.split('/').chain(path.split('/'))) {
        (0, below) => Ok(below.join("/")),
        _ => Err(Error::LeavesSkill {
            path: path.to_owned(),
        }),
    }
}

/// Follows the names of a path as the kernel would without links. Returns how many folders it leads up, and the names
/// beneath.
fn walk_names<'a>(names: impl Iterator<Item = &'a str>) -> (usize, Vec<&'a str>) {
    let (mut parents, mut below) = (0, Vec::new());
    for name in names {
        match name {
            "" | "." => {}
            ".." if below.pop().is_none() => parents += 1,
            ".." => {}
            name => below.push(name),
        }
    }
    (parents, below)
}

/// Normalises the path of a file in a skill or, with `..` at its beginning, in the folders around it. `..` after a name
/// takes that away.
///
/// # Errors
/// As [`normalise_skill_path`], except for `..`.
pub fn normalise_path_in_plugin(field: &str, path: &str) -> Result<String> {
    if path.len() > SKILL_PATH_BYTES_MAX {
        return normalise_skill_path(field, path);
    }
    let (parents, below) = walk_names(path.split('/'));
    let up = "../".repeat(parents);
    let absolute = if path.starts_with('/') { "/" } else { "" };
    let below = normalise_skill_path(field, &format!("{absolute}{}", below.join("/")))?;
    Ok(up + &below)
}

/// Normalises the path of a file in a skill: removes `.` and empty components. Does not replace variables. Errors name
/// `field`.
///
/// # Errors
///
/// `LeavesSkill` if the path is absolute or contains `..`. `Invalid` if it contains a control character or a backslash,
/// or exceeds a limit.
pub fn normalise_skill_path(field: &str, path: &str) -> Result<String> {
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_may_lead_up_to_the_plugin_and_no_further() {
        for (path, normal, in_plugin) in [
            ("a.md", "a.md", Some("skills/s/a.md")),
            ("./a//b.md", "a/b.md", Some("skills/s/a/b.md")),
            ("../../x.md", "../../x.md", Some("x.md")),
            ("docs/../../../x.md", "../../x.md", Some("x.md")),
            ("docs/../a.md", "a.md", Some("skills/s/a.md")),
            ("../../../x.md", "../../../x.md", None),
        ] {
            let found = normalise_path_in_plugin("path", path).expect(path);
            assert_eq!(found, normal, "{path}");
            let resolved = resolve_in_plugin("skills/s", &found).ok();
            assert_eq!(resolved.as_deref(), in_plugin, "{path}");
        }
        for path in ["/etc/passwd", "/../x", "a\\b", "a\0b", &"../".repeat(200)] {
            assert!(normalise_path_in_plugin("path", path).is_err(), "{path:?}");
        }
    }
}
