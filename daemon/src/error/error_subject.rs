//! Subjects of errors, for google.rpc.ResourceInfo and google.rpc.QuotaFailure.

use super::Error;

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

    /// Returns type and name of the resource that does not exist or is taken.
    pub(super) fn resource(&self) -> Option<(&'static str, &str)> {
        if let Self::WorkspaceNotFound { name } = self {
            Some(("skilld.dev/Workspace", name))
        } else if let Self::SkillNotFound { name, .. } | Self::SkillNotStaged { name, .. } = self {
            Some(("skilld.dev/Skill", name))
        } else if let Self::ArtifactNotFound { name, .. } = self {
            Some(("skilld.dev/Artifact", name))
        } else if let Self::VersionTaken { name, .. } | Self::SkillReadOnly { name, .. } = self {
            Some(("skilld.dev/Skill", name))
        } else if let Self::PoolNotFound { name, .. } = self {
            Some(("skilld.dev/Pool", name))
        } else if let Self::IdTaken { name } = self {
            Some(("skilld.dev/Resource", name))
        } else {
            None
        }
    }
}
