//! Text of errors: violations, and parts of messages.

use std::fmt;
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
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.field.len() + self.description.len()
    }
}

/// Shortens a text to at most `bytes` bytes, without splitting a character.
fn cut(mut text: String, bytes: usize) -> String {
    text.truncate(text.floor_char_boundary(bytes));
    text
}

/// Display of violations as one line.
pub(super) struct ViolationList<'a>(pub(super) &'a [Violation]);

impl fmt::Display for ViolationList<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, violation) in self.0.iter().enumerate() {
            let separator = if index == 0 { "" } else { "; " };
            write!(
                f,
                "{separator}{}: {}",
                violation.field, violation.description
            )?;
        }
        Ok(())
    }
}

/// Display of an archive entry's name before a predicate; "it" for the whole archive.
pub(super) struct EntryPrefix<'a>(pub(super) &'a str);

impl fmt::Display for EntryPrefix<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.0.is_empty() {
            return f.write_str("it ");
        }
        write!(f, "{} ", self.0)
    }
}

/// Display of what to do about an image that the engine does not have, by its reference.
pub(super) struct MissingImageRemedy<'a>(pub(super) &'a str);

impl fmt::Display for MissingImageRemedy<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let image = self.0;
        let ours = image
            .strip_prefix("skilld/")
            .filter(|rest| !rest.contains('@'))
            .map(|rest| rest.split(':').next().unwrap_or(rest));
        match ours {
            Some("base") => f.write_str("run `make image`"),
            Some(name) => write!(f, "run `make image IMAGE={name}`"),
            None => write!(
                f,
                "run `docker pull {image}` (with Podman `podman pull`), or set `pull = \"missing\"` for its pool"
            ),
        }
    }
}

/// Display of the pools that a caller may use.
pub(super) struct PoolNames<'a>(pub(super) &'a [String]);

impl fmt::Display for PoolNames<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            [] => f.write_str(" for your tenant, which may use none: ask the operator"),
            pools => write!(f, "; there are {}", pools.join(", ")),
        }
    }
}

/// Display of similar names as a question; empty without any.
pub(super) struct NearestHint<'a>(pub(super) &'a [String]);

impl fmt::Display for NearestHint<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.0.is_empty() {
            return Ok(());
        }
        write!(f, "; did you mean {}?", self.0.join(", "))
    }
}

/// Display of similar skills as a question, and without any of where all skills are found.
pub(super) struct NearestSkills<'a>(pub(super) &'a [String]);

impl fmt::Display for NearestSkills<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            [] => f.write_str("; list the skills to see which exist"),
            names => fmt::Display::fmt(&NearestHint(names), f),
        }
    }
}

/// Display of what to do about a used-up quota of a tenant, by the time after which it permits the call again.
pub(super) struct QuotaRemedy(pub(super) Option<Duration>);

impl fmt::Display for QuotaRemedy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            Some(wait) => write!(f, "; try again in {}", humantime::format_duration(wait)),
            None => f.write_str("; delete what is no longer needed, or ask the operator for more"),
        }
    }
}

/// Display of a version as `@N`; empty for `None`.
pub(super) struct VersionSuffix(pub(super) Option<u64>);

impl fmt::Display for VersionSuffix {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.map_or(Ok(()), |version| write!(f, "@{version}"))
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
            (quota(Some(Duration::from_millis(3))), "; try again in 3ms"),
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
