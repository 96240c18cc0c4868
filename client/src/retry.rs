//! Rules for repeating calls: which failures, how often, after which wait. Pure: no clock, no I/O.

use std::time::Duration;

use tonic::{Code, ConnectError, Status};
use tonic_types::StatusExt;

/// Limits for repeating a call, and for attaching a broken stream again.
#[derive(Clone, Debug)]
pub struct RetryPolicy {
    /// Maximum number of calls, the first included; 1 repeats nothing.
    pub attempts_max: u32,
    /// Wait before the second attempt; it doubles with each one. A server's RetryInfo replaces it.
    pub backoff_first: Duration,
    /// Maximum wait. A call is not repeated if the server asks for a longer one.
    pub backoff_max: Duration,
    /// A stream gives up attaching again when it has got nothing for this long. So does a call that may be made any
    /// number of times.
    pub resume_window: Duration,
}

impl Default for RetryPolicy {
    fn default() -> Self {
        Self {
            attempts_max: 5,
            backoff_first: Duration::from_millis(100),
            backoff_max: Duration::from_secs(2),
            // Long enough for a daemon to be replaced.
            resume_window: Duration::from_secs(30),
        }
    }
}

impl RetryPolicy {
    /// Returns a policy that repeats nothing: each failure is returned as it comes.
    #[must_use]
    pub fn none() -> Self {
        Self {
            attempts_max: 1,
            resume_window: Duration::ZERO,
            ..Self::default()
        }
    }

    /// Returns the wait before the call is repeated after `attempt` calls failed, the last of them with `status`;
    /// `None` if it is not repeated.
    #[must_use]
    pub fn after(&self, status: &Status, attempt: u32) -> Option<Duration> {
        if attempt >= self.attempts_max || !nothing_was_started(status) {
            return None;
        }
        match requested_wait(status) {
            Some(wait) if wait > self.backoff_max => None,
            Some(wait) => Some(wait),
            None => Some(self.backoff(attempt)),
        }
    }

    /// Returns the wait after `attempt` failures in a row.
    pub(crate) fn backoff(&self, attempt: u32) -> Duration {
        // After 16 doublings `backoff_max` counts in any case; 32 would overflow.
        let doublings = attempt.saturating_sub(1).min(16);
        (self.backoff_first * (1 << doublings)).min(self.backoff_max)
    }
}

/// Returns `true` for the server's promise (UNAVAILABLE with our ErrorInfo), and if there was no connection. An
/// UNAVAILABLE that the transport made in the middle of a call is neither.
fn nothing_was_started(status: &Status) -> bool {
    status.code() == Code::Unavailable && (is_ours(status) || could_not_connect(status))
}

/// Returns `true` if skilld itself made this status, and not a party on the way.
pub(crate) fn is_ours(status: &Status) -> bool {
    status
        .get_error_details()
        .error_info()
        .is_some_and(|info| info.domain == skilld_proto::ERROR_DOMAIN)
}

/// Returns `true` if the call was not sent because there was no connection.
pub(crate) fn could_not_connect(status: &Status) -> bool {
    let mut source = std::error::Error::source(status);
    while let Some(error) = source {
        if error.is::<ConnectError>() {
            return true;
        }
        source = error.source();
    }
    false
}

/// Returns `true` if repeating a harmless call can help: the connection broke, or the server is stopping or has lost
/// its guest.
pub(crate) fn may_resume(status: &Status) -> bool {
    status.code() == Code::Aborted || connection_broke(status)
}

/// Returns `true` if the server is not reachable, or went away during the call.
pub(crate) fn connection_broke(status: &Status) -> bool {
    match status.code() {
        Code::Unavailable => true,
        // tonic makes one of these, depending on how the connection broke.
        Code::Unknown | Code::Internal | Code::Cancelled => !is_ours(status),
        Code::Ok
        | Code::Aborted
        | Code::InvalidArgument
        | Code::DeadlineExceeded
        | Code::NotFound
        | Code::AlreadyExists
        | Code::PermissionDenied
        | Code::ResourceExhausted
        | Code::FailedPrecondition
        | Code::Unimplemented
        | Code::OutOfRange
        | Code::DataLoss
        | Code::Unauthenticated => false,
    }
}

/// Returns the wait that the server asks for in RetryInfo.
pub(crate) fn requested_wait(status: &Status) -> Option<Duration> {
    status
        .get_error_details()
        .retry_info()
        .and_then(|info| info.retry_delay)
}

#[cfg(test)]
mod tests {
    use super::*;
    use tonic_types::ErrorDetails;

    fn status(code: Code, reason: Option<&str>, delay: Option<Duration>) -> Status {
        let mut details = ErrorDetails::new();
        if let Some(reason) = reason {
            let none: [(String, String); 0] = [];
            details.set_error_info(reason, skilld_proto::ERROR_DOMAIN, none);
        }
        if delay.is_some() {
            details.set_retry_info(delay);
        }
        Status::with_error_details(code, "no", details)
    }

    #[test]
    fn only_unavailable_is_repeated() {
        let policy = RetryPolicy::default();
        for number in 0..=16 {
            let code = Code::from_i32(number);
            let repeated = policy.after(&status(code, Some("X"), None), 1).is_some();
            assert_eq!(repeated, code == Code::Unavailable, "{code:?}");
        }
    }

    #[test]
    fn an_unavailable_of_the_transport_is_not_repeated() {
        let policy = RetryPolicy::default();
        assert_eq!(policy.after(&Status::unavailable("keep-alive"), 1), None);
    }

    #[test]
    fn repetition_is_bounded_and_backs_off() {
        let policy = RetryPolicy::default();
        let status = status(Code::Unavailable, Some("DRAINING"), None);
        let waits: Vec<_> = (1..=6).map(|n| policy.after(&status, n)).collect();
        let ms = |n| Some(Duration::from_millis(n));
        assert_eq!(waits, [ms(100), ms(200), ms(400), ms(800), None, None]);
        assert_eq!(policy.backoff(40), policy.backoff_max);
    }

    #[test]
    fn the_servers_retry_info_is_obeyed_up_to_the_maximum() {
        let policy = RetryPolicy::default();
        let near = Duration::from_millis(700);
        let asks = |delay| status(Code::Unavailable, Some("DRAINING"), Some(delay));
        assert_eq!(policy.after(&asks(near), 1), Some(near));
        assert_eq!(policy.after(&asks(Duration::from_secs(60)), 1), None);
    }
}
