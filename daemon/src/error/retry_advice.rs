//! Retry advice: which errors carry google.rpc.RetryInfo, and the time in it.

use std::time::Duration;

use skilld_proto::v1::ErrorReason;

use super::Error;

/// Time after which a client should retry, for all errors that end by themselves. A container boots in about that time,
/// and a restarting daemon makes progress.
const RETRY_AFTER: Duration = Duration::from_secs(1);

impl Error {
    /// Returns the time after which a retry makes sense; `None` if the error does not end by itself.
    pub(super) fn retry_after(&self) -> Option<Duration> {
        if let Self::TenantQuota { retry_after, .. } = self {
            return *retry_after;
        }
        let ends_by_itself = matches!(
            self,
            Self::Draining
                | Self::AuditUnavailable { .. }
                | Self::PoolExhausted { .. }
                | Self::EngineUnavailable { .. }
                | Self::Storage { .. }
        );
        let is_quota = self.kind().1 == ErrorReason::QuotaExceeded;
        (ends_by_itself || is_quota || self.host_fault().is_some()).then_some(RETRY_AFTER)
    }
}
