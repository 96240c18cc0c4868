//! Constructors of errors that many places make.

use std::io;

use super::{Error, Violation};

impl Error {
    /// Makes an error with one violation of one field.
    pub fn invalid(field: impl Into<String>, description: impl Into<String>) -> Self {
        Self::Invalid(vec![Violation::new(field, description)])
    }

    /// Changes the paths of the fields in violations.
    pub(crate) fn map_fields(self, rename: impl Fn(&str) -> String) -> Self {
        let Self::Invalid(mut violations) = self else {
            return self;
        };
        for violation in &mut violations {
            violation.field = rename(&violation.field);
        }
        Self::Invalid(violations)
    }

    /// Makes the error of an operation on the host, for instance `read /var/lib/…`.
    pub(crate) fn io(operation: impl Into<String>, source: io::Error) -> Self {
        let operation = operation.into();
        Self::Io { operation, source }
    }

    /// Makes the error of a part without which the daemon does not start, with what to do.
    pub(crate) fn start(what: &'static str, why: impl Into<String>) -> Self {
        let why = why.into();
        Self::Start { what, why }
    }

    /// Makes the error of an operation that the container engine refused.
    pub(crate) fn engine(operation: &'static str, message: impl Into<String>) -> Self {
        let message = message.into();
        Self::Engine { operation, message }
    }

    /// Makes the error of an image that cannot be used.
    pub(crate) fn image(image: impl Into<String>, why: impl Into<String>) -> Self {
        let (image, why) = (image.into(), why.into());
        Self::Image { image, why }
    }

    /// Makes the error of a guest that went away or broke the protocol.
    pub(crate) fn guest_lost(workspace: impl Into<String>, why: impl Into<String>) -> Self {
        let (workspace, why) = (workspace.into(), why.into());
        Self::GuestLost { workspace, why }
    }

    /// Makes the error of a deadline that passed during an operation, a gerund such as `saving the artifact`.
    pub(crate) const fn deadline(doing: &'static str) -> Self {
        Self::Deadline { doing }
    }

    /// Makes the error of a count or memory budget that is used up.
    pub(crate) fn quota_exceeded(subject: impl Into<String>, limit: u64) -> Self {
        let subject = subject.into();
        Self::QuotaExceeded { subject, limit }
    }

    /// Makes the error of a number of bytes or entries over a limit.
    pub(crate) fn limit_exceeded(what: impl Into<String>, limit: u64) -> Self {
        let what = what.into();
        Self::LimitExceeded { what, limit }
    }

    /// Makes the error of a tenant's quota that is used up until the tenant releases something.
    pub(crate) fn tenant_quota(
        tenant: &impl ToString,
        resource: &'static str,
        used: u64,
        limit: u64,
    ) -> Self {
        Self::TenantQuota {
            tenant: tenant.to_string(),
            resource,
            used,
            limit,
            retry_after: None,
        }
    }
}
