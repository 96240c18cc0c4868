//! Text of errors: violations, and parts of messages.

use std::time::Duration;

/// Maximum length of a violation's field, in bytes.
const FIELD_BYTES_MAX: usize = 160;
/// Maximum length of a violation's description, in bytes.
const DESCRIPTION_BYTES_MAX: usize = 1024;

/// Violation of one field of a request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Violation {
    /// Path of the field, for instance `spec.env["FOO BAR"]`.
    pub field: String,
    /// Description of the fault, and of a valid value.
    pub description: String,
}

impl Violation {
    /// Makes a violation. Both texts may quote the client, so they are shortened to fit into a status.
    pub fn new(field: impl Into<String>, description: impl Into<String>) -> Self {
        Self {
            field: cut(field.into(), FIELD_BYTES_MAX),
            description: cut(description.into(), DESCRIPTION_BYTES_MAX),
        }
    }

    /// Returns the size of the violation in a status, in bytes.
    pub fn bytes(&self) -> usize {
        self.field.len() + self.description.len()
    }
}

/// Shortens a text to at most `bytes` bytes, without splitting a character.
fn cut(mut text: String, bytes: usize) -> String {
    text.truncate(text.floor_char_boundary(bytes));
    text
}

/// Returns violations as one line.
pub(super) fn join_violations(violations: &[Violation]) -> String {
    let texts: Vec<String> = violations
        .iter()
        .map(|violation| format!("{}: {}", violation.field, violation.description))
        .collect();
    texts.join("; ")
}

/// Returns an archive entry's name before a predicate; "it" for the whole archive.
pub(super) fn entry_prefix(entry: &str) -> String {
    if entry.is_empty() {
        return "it ".to_owned();
    }
    format!("{entry} ")
}

/// Returns what to do about an image that the engine does not have, by its reference.
pub(super) fn missing_image_remedy(image: &str) -> String {
    let ours = image
        .strip_prefix("skilld/")
        .filter(|rest| !rest.contains('@'))
        .map(|rest| rest.split(':').next().unwrap_or(rest));
    match ours {
        Some("base") => "run `make image`".to_owned(),
        Some(name) => format!("run `make image IMAGE={name}`"),
        None => format!(
            "run `docker pull {image}` (with Podman `podman pull`), or set `pull = \"missing\"` for its pool"
        ),
    }
}

/// Returns the pools that a caller may use, after the name of an unknown one.
pub(super) fn pool_names(pools: &[String]) -> String {
    match pools {
        [] => " for your tenant, which may use none: ask the operator".to_owned(),
        pools => format!("; there are {}", pools.join(", ")),
    }
}

/// Returns similar names as a question; empty without any.
pub(super) fn nearest_hint(names: &[String]) -> String {
    if names.is_empty() {
        return String::new();
    }
    format!("; did you mean {}?", names.join(", "))
}

/// Returns similar skills as a question, and without any where all skills are found.
pub(super) fn nearest_skills(names: &[String]) -> String {
    if names.is_empty() {
        return "; list the skills to see which exist".to_owned();
    }
    nearest_hint(names)
}

/// Returns what to do about a used-up quota of a tenant, by the time after which it permits the call again.
pub(super) fn quota_remedy(retry_after: Option<Duration>) -> String {
    match retry_after {
        Some(wait) => {
            let wait = humantime::format_duration(round_up(wait));
            format!("; try again in {wait}")
        }
        None => "; delete what is no longer needed, or ask the operator for more".to_owned(),
    }
}

/// Rounds a time up to whole seconds, or to milliseconds below one second.
fn round_up(time: Duration) -> Duration {
    let nanoseconds = time.subsec_nanos();
    match time.as_secs() {
        0 => Duration::from_millis(u64::from(nanoseconds.div_ceil(1_000_000))),
        seconds => Duration::from_secs(seconds + u64::from(nanoseconds > 0)),
    }
}

/// Returns a version as `@N`; empty for `None`.
pub(super) fn version_suffix(version: Option<u64>) -> String {
    match version {
        Some(version) => format!("@{version}"),
        None => String::new(),
    }
}

/// Returns a note with the end of a command's stderr; nothing if that is empty.
pub(super) fn stderr_note(stderr_end: &str) -> String {
    match stderr_end.is_empty() {
        true => String::new(),
        false => format!("; its stderr ends with {stderr_end:?}"),
    }
}

#[cfg(test)]
mod tests {
    use tonic::Status;

    use super::*;
    use crate::error::Error;

    #[test]
    fn messages_end_with_what_to_do() {
        let skill = |nearest: &[&str]| Error::SkillNotFound {
            name: "dem".to_owned(),
            nearest: nearest.iter().map(|name| (*name).to_owned()).collect(),
        };
        let quota = |retry_after| Error::TenantQuota {
            tenant: "a".to_owned(),
            resource: "calls",
            used: 4,
            limit: 4,
            retry_after,
        };
        let (name, path) = ("workspaces/w".to_owned(), "skills/x".to_owned());
        for (error, remedy) in [
            (skill(&[]), "; list the skills to see which exist"),
            (skill(&["demo", "other"]), "; did you mean demo, other?"),
            (
                quota(Some(Duration::from_nanos(2_999_001))),
                "; try again in 3ms",
            ),
            (
                quota(Some(Duration::from_millis(61_001))),
                "; try again in 1m 2s",
            ),
            (quota(None), ", or ask the operator for more"),
            (
                Error::WorkspaceNotFound { name: name.clone() },
                "; create one",
            ),
            (
                Error::WorkspaceNotReady {
                    name: name.clone(),
                    state: "closing".to_owned(),
                },
                ": create another one",
            ),
            (
                Error::GuestLost {
                    workspace: name,
                    why: "it closed the connection".to_owned(),
                },
                "; look at the workspace before repeating the call",
            ),
            (Error::ReadOnly { path }, "; write to work/ or out/ instead"),
        ] {
            let status = Status::from(error);
            assert!(status.message().ends_with(remedy), "{status}");
        }
    }
}
