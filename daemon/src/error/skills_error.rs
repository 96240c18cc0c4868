//! Errors of the skills crate as errors of the daemon.

use skilld_skills::error::Error as SkillsError;

use super::Error;

impl From<SkillsError> for Error {
    fn from(error: SkillsError) -> Self {
        match error {
            SkillsError::Invalid { field, description } => Self::invalid(field, description),
            SkillsError::SkillNotFound { name, nearest } => Self::SkillNotFound { name, nearest },
            SkillsError::SkillInvalid { name, problem } => Self::SkillInvalid { name, problem },
            SkillsError::VersionTaken {
                name,
                version,
                digest,
            } => Self::VersionTaken {
                name,
                version,
                digest,
            },
            SkillsError::TenantQuota {
                tenant,
                resource,
                used,
                limit,
            } => Self::tenant_quota(&tenant, resource, used, limit),
            SkillsError::SkillReadOnly { name, root } => Self::SkillReadOnly { name, root },
            SkillsError::LeavesSkill { path } => Self::LeavesSkill { path },
            SkillsError::FileNotFound { path, nearest } => Self::FileNotFound { path, nearest },
            SkillsError::WrongFileType { path, wanted } => Self::WrongFileType { path, wanted },
            SkillsError::LimitExceeded { what, limit } => Self::LimitExceeded { what, limit },
            SkillsError::ArchiveInvalid { entry, problem } => {
                Self::ArchiveInvalid { entry, problem }
            }
            SkillsError::Draining => Self::Draining,
            SkillsError::Io { operation, source } => Self::Io { operation, source },
            SkillsError::Internal(message) => Self::Internal(message),
        }
    }
}
