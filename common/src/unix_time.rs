//! Times as milliseconds since 1970, as records and file names have them.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// Converts a time to milliseconds since 1970; 0 for an earlier time.
pub fn unix_ms(time: SystemTime) -> u64 {
    let since = time.duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
}

/// Converts milliseconds since 1970 to a time; the inverse of [`unix_ms`].
pub fn from_unix_ms(ms: u64) -> SystemTime {
    UNIX_EPOCH + Duration::from_millis(ms)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_time_keeps_its_milliseconds_and_is_never_before_1970() {
        assert_eq!(unix_ms(from_unix_ms(1_764_000_000_123)), 1_764_000_000_123);
        assert_eq!(unix_ms(UNIX_EPOCH + Duration::from_micros(1_999)), 1);
        assert_eq!(unix_ms(UNIX_EPOCH - Duration::from_secs(1)), 0);
    }
}
