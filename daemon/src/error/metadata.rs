//! Metadata of errors, for programs that handle them.

use std::collections::HashMap;

use super::error_subject::full_name;
use super::{Error, InputSourceError};

impl Error {
    /// Returns the metadata of google.rpc.ErrorInfo.
    pub(super) fn metadata(&self) -> HashMap<String, String> {
        let pairs: Vec<(&str, String)> = match self {
            Self::SkillNotFound { nearest, .. } | Self::SkillNotStaged { nearest, .. } => {
                vec![("nearest", full_names("skills/", nearest))]
            }
            Self::ScriptNotFound { nearest, .. } => vec![("nearest", nearest.join(","))],
            Self::SkillInvalid { problem, .. } => vec![("problem", problem.clone())],
            Self::PoolNotFound { pools, .. } => vec![("pools", full_names("pools/", pools))],
            Self::WorkspaceNotReady { state, .. } => vec![("state", state.clone())],
            Self::LimitUnsupported { field, .. } => vec![("field", field.clone())],
            Self::FileNotFound { path, nearest } => {
                vec![("path", path.clone()), ("nearest", nearest.join(","))]
            }
            Self::PathEscapes { path }
            | Self::LeavesSkill { path }
            | Self::WrongFileType { path, .. }
            | Self::ReadOnly { path } => vec![("path", path.clone())],
            Self::TenantQuota { used, limit, .. } => {
                vec![("used", used.to_string()), ("limit", limit.to_string())]
            }
            Self::QuotaExceeded { limit, .. } | Self::LimitExceeded { limit, .. } => {
                vec![("limit", limit.to_string())]
            }
            Self::VersionTaken { digest, .. } => vec![("digest", format!("sha256:{digest}"))],
            Self::SkillReadOnly { root, .. } => vec![("root", root.clone())],
            Self::SetupFailed {
                exec, exit_code, ..
            } => vec![("exec", exec.clone()), ("exit_code", exit_code.to_string())],
            Self::ArchiveInvalid { entry, .. } => vec![("entry", entry.clone())],
            Self::ChecksumMismatch { actual, .. } => vec![("sha256", actual.clone())],
            Self::Source {
                fault: InputSourceError::TooMany(limit) | InputSourceError::TooLarge(limit),
                ..
            } => vec![("limit", limit.to_string())],
            Self::Source { from, .. } => vec![("path", from.clone())],
            Self::Guest { metadata, .. } => return metadata.clone(),
            Self::PermissionDenied {
                required: Some(role),
                ..
            } => vec![("required_role", (*role).to_owned())],
            Self::PermissionDenied { required: None, .. }
            | Self::Invalid(_)
            | Self::Unauthenticated { .. }
            | Self::AuthenticationOff
            | Self::AuditUnavailable { .. }
            | Self::WorkspaceNotFound { .. }
            | Self::ArtifactNotFound { .. }
            | Self::ArtifactDamaged { .. }
            | Self::Storage { .. }
            | Self::StorageUnsure { .. }
            | Self::IdTaken { .. }
            | Self::PoolExhausted { .. }
            | Self::Draining
            | Self::Stopped { .. }
            | Self::EngineUnavailable { .. }
            | Self::Engine { .. }
            | Self::Image { .. }
            | Self::ImageMissing { .. }
            | Self::Start { .. }
            | Self::GuestLost { .. }
            | Self::NotImplemented { .. }
            | Self::Deadline { .. }
            | Self::Io { .. }
            | Self::Internal(_) => vec![],
        };
        pairs
            .into_iter()
            .map(|(key, value)| (key.to_owned(), value))
            .collect()
    }
}

/// Returns the resource names of things with these ids, separated by commas.
fn full_names(collection: &str, ids: &[String]) -> String {
    let names = ids.iter().map(|id| full_name(collection, id));
    names.collect::<Vec<_>>().join(",")
}
