//! Subjects of errors, for google.rpc.BadRequest, google.rpc.ResourceInfo and google.rpc.QuotaFailure.

use std::borrow::Cow;

use skilld_proto::v1::ErrorReason;

use super::{Error, Violation};

impl Error {
    /// Returns the subject of a quota failure: the name of the count, or the workspace whose guest counts.
    pub(super) fn quota_subject(&self) -> String {
        if let Self::QuotaExceeded { subject, .. } = self {
            subject.clone()
        } else if let Self::TenantQuota {
            tenant, resource, ..
        } = self
        {
            format!("tenants/{tenant}/{resource}")
        } else if let Self::Guest { workspace, .. } = self {
            workspace.clone()
        } else {
            String::new()
        }
    }

    /// Returns the faulty fields of the request. The guest finds at most one, and names it in its metadata.
    pub(super) fn violations(&self) -> Vec<Violation> {
        if let Self::Invalid(violations) = self {
            return violations.clone();
        }
        if let Self::Guest {
            reason: ErrorReason::InvalidRequest | ErrorReason::OutputDropped,
            message,
            metadata,
            ..
        } = self
            && let Some(field) = metadata.get("field")
        {
            let prefix = format!("{field}: ");
            let description = message.strip_prefix(&prefix).unwrap_or(message);
            return vec![Violation::new(field, description)];
        }
        Vec::new()
    }

    /// Returns type and name of the resource that does not exist or is taken.
    pub(super) fn resource(&self) -> Option<(&'static str, Cow<'_, str>)> {
        if let Self::Guest {
            workspace,
            reason: ErrorReason::ExecNotFound,
            metadata,
            ..
        } = self
        {
            // A guest of an older version does not say which exec.
            let exec = metadata.get("exec")?;
            return Some((
                "skilld.dev/Exec",
                format!("{workspace}/execs/{exec}").into(),
            ));
        }
        self.resource_of_daemon()
    }

    /// Returns type and name of a resource that the daemon has no record of, or that is taken.
    fn resource_of_daemon(&self) -> Option<(&'static str, Cow<'_, str>)> {
        if let Self::WorkspaceNotFound { name } = self {
            Some(("skilld.dev/Workspace", name.into()))
        } else if let Self::SkillNotFound { name, .. } | Self::SkillNotStaged { name, .. } = self {
            Some(("skilld.dev/Skill", full_name("skills/", name)))
        } else if let Self::ArtifactNotFound { name, .. } = self {
            Some(("skilld.dev/Artifact", full_name("artifacts/", name)))
        } else if let Self::VersionTaken { name, .. } | Self::SkillReadOnly { name, .. } = self {
            Some(("skilld.dev/Skill", full_name("skills/", name)))
        } else if let Self::PoolNotFound { name, .. } = self {
            Some(("skilld.dev/Pool", full_name("pools/", name)))
        } else if let Self::IdTaken { name } = self {
            Some(("skilld.dev/Resource", name.into()))
        } else {
            None
        }
    }
}

/// Returns the resource name of an id. An id may begin like a collection: the artifact `artifacts/a` is another one
/// than `a`.
pub(super) fn full_name(collection: &str, id: &str) -> Cow<'static, str> {
    format!("{collection}{id}").into()
}
