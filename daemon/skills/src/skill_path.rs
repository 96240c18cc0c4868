//! The lexical rules for paths of files in a skill. Pure.

use crate::error::{Error, Result};

/// Maximum length of a path in a skill, in bytes.
pub const SKILL_PATH_BYTES_MAX: usize = 512;
/// Maximum number of components of a path in a skill.
const SKILL_DEPTH_MAX: usize = 32;
/// Maximum length of one component, in bytes.
const COMPONENT_BYTES_MAX: usize = 255;

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
