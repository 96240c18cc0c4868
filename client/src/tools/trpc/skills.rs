//! A skill's name as the tools of this family take it.

use crate::tools::ToolError;

/// As it was given, without what is around it.
pub(super) fn required(skill: &str) -> Result<&str, ToolError> {
    match skill.trim() {
        "" => Err(ToolError::arguments("skill is required")),
        skill => Ok(skill),
    }
}

/// The same of what is loaded or chosen of: what the state remembers, and what the prompt shows, is the current version.
pub(super) fn to_load(skill: &str) -> Result<&str, ToolError> {
    match required(skill)? {
        skill if skill.contains('@') => Err(ToolError::arguments(format!(
            "skill {skill:?}: the current version is loaded; name it without @"
        ))),
        skill => Ok(skill),
    }
}
