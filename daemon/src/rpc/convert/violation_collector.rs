//! Collector of a request's violations, with one helper for each kind of field: enums, numbers, durations, lengths,
//! names.
//!
//! A helper returns the checked value, or a stand-in after adding a violation, so that checking goes on and the client
//! gets all violations in one status.

use std::collections::BTreeMap;
use std::fmt::Display;
use std::time::{Duration, SystemTime};

use super::{parse_id, parse_workspace_name};
use crate::error::{Error, Result, Violation};
use crate::exec::ARG_BYTES_MAX;
use crate::workspace::WorkspaceId;

/// Maximum number of violations that a status lists; the others are counted.
const VIOLATIONS_MAX: usize = 32;
/// Maximum size of all listed violations, in bytes. A status carries each twice (percent-encoded in its message, and in
/// its details), and HTTP/2 clients accept 16 KiB of headers.
const VIOLATION_BYTES_MAX: usize = 3 << 10;
/// Maximum length of a page token, in bytes. A token of ListSkills has three paths in it.
const PAGE_TOKEN_BYTES_MAX: usize = 64 << 10;
/// Maximum length of an idempotency key, in bytes.
const REQUEST_ID_BYTES_MAX: usize = 128;
/// Maximum number of characters of a client's text that a violation repeats.
const SHOWN_CHARS_MAX: usize = 80;

/// Collector of a request's violations.
#[derive(Debug, Default)]
pub struct ViolationCollector {
    listed: Vec<Violation>,
    /// Size of the listed violations, in bytes.
    bytes: usize,
    /// Number of violations that are not listed.
    more: usize,
    /// First error with a reason of its own, such as a path that leaves the workspace. It is the answer if there are no
    /// violations.
    other: Option<Error>,
}

// === impl ViolationCollector ===

impl ViolationCollector {
    /// Adds a violation of one field.
    pub fn add(&mut self, field: impl Into<String>, description: impl Display) {
        if self.listed.len() >= VIOLATIONS_MAX {
            self.more += 1;
        } else {
            self.add_violation(Violation::new(field, description.to_string()));
        }
    }

    fn add_violation(&mut self, violation: Violation) {
        let bytes = self.bytes + violation.bytes();
        if self.listed.len() >= VIOLATIONS_MAX || bytes > VIOLATION_BYTES_MAX {
            self.more += 1;
        } else {
            self.bytes = bytes;
            self.listed.push(violation);
        }
    }

    /// Returns the value of a check, or adds its violations. Any other error is kept for [`Self::finish`].
    pub fn take<T>(&mut self, checked: Result<T>) -> Option<T> {
        match checked {
            Ok(value) => Some(value),
            Err(Error::Invalid(violations)) => {
                for violation in violations {
                    self.add_violation(violation);
                }
                None
            }
            Err(other) => {
                self.other.get_or_insert(other);
                None
            }
        }
    }

    /// Ends the check of a request.
    ///
    /// # Errors
    /// [`Error::Invalid`] with all violations; if there are none, the first other error of a check.
    pub fn finish(mut self) -> Result<()> {
        if self.listed.is_empty() {
            return self.other.map_or(Ok(()), Err);
        }
        if self.more > 0 {
            let rest = format!("and {} more faults", self.more);
            self.listed.push(Violation::new("request", rest));
        }
        Err(Error::Invalid(self.listed))
    }

    /// Ends the check of a request and returns a value that is present unless its check failed.
    ///
    /// # Errors
    /// Those of [`Self::finish`].
    pub fn finish_with<T>(self, value: Option<T>) -> Result<T> {
        self.finish()?;
        value.ok_or_else(|| {
            Error::Internal("a request's value is missing without a violation".into())
        })
    }

    // === Enums and numbers ===

    /// Checks that the server knows an enum's value.
    pub fn known_enum<E: TryFrom<i32>>(&mut self, field: &str, value: i32) -> Option<E> {
        let known = E::try_from(value).ok();
        if known.is_none() {
            self.add(field, "is not a value that this server knows");
        }
        known
    }

    /// Checks that a number is not negative.
    pub fn not_negative(&mut self, field: &str, value: i64) -> u64 {
        u64::try_from(value).unwrap_or_else(|_| {
            self.add(field, "must not be negative");
            0
        })
    }

    /// Checks that a number is 0 to `max`, and replaces 0, which stands for an unset field, by `default`.
    pub fn number_or<N, T>(&mut self, field: &str, value: N, default: T, max: T) -> T
    where
        T: TryFrom<N> + Copy + Default + PartialOrd + Display,
    {
        match T::try_from(value) {
            Ok(number) if number == T::default() => default,
            Ok(number) if number <= max => number,
            _ => {
                self.add(field, format_args!("must be 0 to {max}"));
                default
            }
        }
    }

    /// Checks the size of a page; 0 means `default`, and more than `max` means `max`.
    pub fn page_size(&mut self, value: i32, default: usize, max: usize) -> usize {
        let size = self.not_negative("page_size", value.into());
        match usize::try_from(size).unwrap_or(max) {
            0 => default,
            size => size.min(max),
        }
    }

    // === Durations ===

    /// Checks that a duration is longer than zero.
    pub fn positive_duration(
        &mut self,
        field: &str,
        given: Option<prost_types::Duration>,
    ) -> Option<Duration> {
        let duration = Duration::try_from(given?).unwrap_or_default();
        if duration.is_zero() {
            self.add(field, "must be longer than 0 s");
            return None;
        }
        Some(duration)
    }

    /// Checks that a duration is within a range.
    pub fn duration_within(
        &mut self,
        field: &str,
        given: Option<prost_types::Duration>,
        min: Duration,
        max: Duration,
    ) -> Option<Duration> {
        let duration = Duration::try_from(given?)
            .ok()
            .filter(|duration| (min..=max).contains(duration));
        if duration.is_none() {
            let [min, max] = [min, max].map(humantime::format_duration);
            self.add(field, format_args!("must be {min} to {max}"));
        }
        duration
    }

    /// Checks that a point in time is in the future, and returns the time until then.
    pub fn time_until(
        &mut self,
        field: &str,
        given: Option<prost_types::Timestamp>,
    ) -> Option<Duration> {
        let remaining = SystemTime::try_from(given?)
            .ok()
            .and_then(|time| time.duration_since(SystemTime::now()).ok());
        if remaining.is_none() {
            self.add(field, "must be in the future");
        }
        remaining
    }

    // === Lengths ===

    /// Checks that a value has at most `max` bytes.
    pub fn bytes_at_most(&mut self, field: &str, bytes: usize, max: usize) {
        if bytes > max {
            self.add(field, format_args!("{bytes} bytes; at most {max}"));
        }
    }

    /// Checks that a list has 1 to `max` elements. `noun` names them in the plural.
    pub fn one_to(&mut self, field: &str, count: usize, max: usize, noun: &str) {
        if !(1..=max).contains(&count) {
            self.add(field, format_args!("{count} {noun}; must be 1 to {max}"));
        }
    }

    // === Names, tokens and texts ===

    /// Checks `workspaces/{workspace}`.
    pub fn workspace_name(&mut self, field: &str, name: &str) -> Option<WorkspaceId> {
        self.take(parse_workspace_name(field, name))
    }

    /// Checks an id; see [`parse_id`].
    pub fn id(&mut self, field: &str, text: &str) -> Option<String> {
        self.take(parse_id(field, text))
    }

    /// Checks the length of a page token. The caller checks the rest and reports it with
    /// [`Self::unknown_page_token`].
    pub fn page_token<'a>(&mut self, token: &'a str) -> &'a str {
        if token.len() > PAGE_TOKEN_BYTES_MAX {
            self.unknown_page_token();
            return "";
        }
        token
    }

    /// Adds the violation of a page token that this server did not make.
    pub fn unknown_page_token(&mut self) {
        self.add("page_token", "is not one that this server made");
    }

    /// Checks a SHA-256 digest of 64 hex digits, and returns it in lower case. The empty text means none.
    pub fn sha256(&mut self, field: &str, text: &str) -> String {
        let is_hex = text.len() == 64 && text.bytes().all(|byte| byte.is_ascii_hexdigit());
        if !text.is_empty() && !is_hex {
            self.add(field, "must be 64 hex digits");
        }
        text.to_ascii_lowercase()
    }

    /// Checks an idempotency key. The empty text means none.
    pub fn request_id(&mut self, field: &str, text: &str) {
        let is_printable = text.bytes().all(|byte| (b' '..=b'~').contains(&byte));
        if text.len() > REQUEST_ID_BYTES_MAX || !is_printable {
            let rule =
                format_args!("must be at most {REQUEST_ID_BYTES_MAX} bytes of printable ASCII");
            self.add(field, rule);
        }
    }

    /// Checks environment variables: their names, their number, and their size in bytes, each and together.
    pub fn environment(
        &mut self,
        field: &str,
        variables: &BTreeMap<String, String>,
        count_max: usize,
        bytes_max: usize,
    ) {
        let count = variables.len();
        if count > count_max {
            self.add(
                field,
                format_args!("{count} variables; at most {count_max}"),
            );
            return;
        }
        self.bytes_at_most(field, environment_bytes(variables), bytes_max);
        for (name, value) in variables {
            let is_name = name
                .bytes()
                .all(|byte| byte.is_ascii_alphanumeric() || byte == b'_')
                && name.starts_with(|first: char| !first.is_ascii_digit());
            let field = format!("{field}[{:?}]", shown(name));
            let bytes = name.len() + 1 + value.len();
            if !is_name {
                let rule = "is not a name: letters, digits and '_', not beginning with a digit";
                self.add(field, rule);
            } else if value.contains('\0') {
                self.add(field, "has a NUL byte in its value");
            } else if bytes > ARG_BYTES_MAX {
                let message = format_args!(
                    "{bytes} bytes with its name; at most {ARG_BYTES_MAX}: pass long text on stdin or in a file"
                );
                self.add(field, message);
            }
        }
    }
}

/// Returns the size of environment variables as the kernel counts it, in bytes: each has a `=` and a NUL.
pub(super) fn environment_bytes<'a>(
    variables: impl IntoIterator<Item = (&'a String, &'a String)>,
) -> usize {
    variables
        .into_iter()
        .map(|(name, value)| name.len() + value.len() + 2)
        .sum()
}

/// Returns the beginning of a client's text, short enough to be repeated in a violation.
pub(super) fn shown(text: &str) -> String {
    text.chars().take(SHOWN_CHARS_MAX).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn violations(collector: ViolationCollector) -> Vec<Violation> {
        let Err(Error::Invalid(violations)) = collector.finish() else {
            panic!("must be refused")
        };
        violations
    }

    #[test]
    fn environment_names_are_checked_all_at_once() {
        let mut collector = ViolationCollector::default();
        let variables = [
            ("GOOD_1", "x"),
            ("1BAD", "x"),
            ("A=B", "x"),
            ("", "x"),
            ("NUL", "a\0b"),
            ("A-B", ""),
        ]
        .map(|(name, value)| (name.to_owned(), value.to_owned()))
        .into();
        collector.environment("env", &variables, 128, 1 << 16);
        let found = violations(collector);
        assert_eq!(found.len(), 5, "{found:?}");
    }

    #[test]
    fn environment_is_bounded() {
        let many = (0..3).map(|n| (format!("V{n}"), "x".repeat(10))).collect();
        for (count_max, bytes_max, fault) in [(2, 99, "3 variables"), (3, 20, "42 bytes")] {
            let mut collector = ViolationCollector::default();
            collector.environment("env", &many, count_max, bytes_max);
            let found = violations(collector);
            assert_eq!(found.len(), 1);
            assert!(found[0].description.starts_with(fault), "{found:?}");
        }
    }

    #[test]
    fn numbers_have_a_default_and_a_maximum() {
        let mut collector = ViolationCollector::default();
        assert_eq!(collector.number_or("n", 0_i32, 25_usize, 100), 25);
        assert_eq!(collector.number_or("n", 100_i64, 25_u64, 100), 100);
        for bad in [-1, 101, i64::MAX, i64::MIN] {
            collector.number_or("n", bad, 25_u32, 100);
        }
        assert_eq!(
            collector.not_negative("n", i64::MAX),
            i64::MAX.unsigned_abs()
        );
        collector.not_negative("n", -1);
        let found = violations(collector);
        let texts: Vec<&str> = found.iter().map(|fault| &*fault.description).collect();
        let out_of_range = "must be 0 to 100";
        let expected = [
            out_of_range,
            out_of_range,
            out_of_range,
            out_of_range,
            "must not be negative",
        ];
        assert_eq!(texts, expected);
    }

    #[test]
    fn durations_have_a_range() {
        let mut collector = ViolationCollector::default();
        let given = |seconds| Some(prost_types::Duration { seconds, nanos: 0 });
        let second = Duration::from_secs(1);
        assert_eq!(
            collector.duration_within("d", given(1), second, second),
            Some(second)
        );
        assert_eq!(collector.positive_duration("d", given(1)), Some(second));
        assert_eq!(collector.duration_within("d", None, second, second), None);
        assert_eq!(collector.positive_duration("d", None), None);
        assert_eq!(collector.positive_duration("d", given(0)), None);
        assert_eq!(collector.positive_duration("d", given(-1)), None);
        for bad in [0, 2, -1, i64::MAX] {
            assert_eq!(
                collector.duration_within("d", given(bad), second, second),
                None
            );
        }
        assert_eq!(violations(collector).len(), 6);
    }

    #[test]
    fn an_error_with_a_reason_of_its_own_counts_after_violations() {
        let escapes = || {
            Err::<(), _>(Error::PathEscapes {
                path: "../x".into(),
            })
        };
        let mut collector = ViolationCollector::default();
        assert_eq!(collector.take(escapes()), None);
        assert!(matches!(collector.finish(), Err(Error::PathEscapes { .. })));
        let mut collector = ViolationCollector::default();
        collector.take(escapes());
        collector.add("f", "is bad");
        assert_eq!(violations(collector).len(), 1);
    }

    #[test]
    fn many_violations_are_counted_not_listed() {
        let mut collector = ViolationCollector::default();
        for n in 0..40_000 {
            collector.add(format!("field[{n}]"), "is bad");
        }
        let found = violations(collector);
        assert_eq!(found.len(), VIOLATIONS_MAX + 1);
        assert_eq!(found[VIOLATIONS_MAX].description, "and 39968 more faults");
    }

    #[test]
    fn the_largest_violations_fit_into_the_headers_of_a_status() {
        let mut collector = ViolationCollector::default();
        for _ in 0..100 {
            collector.add("\u{1f980}".repeat(99), "\u{1f980}".repeat(999));
            collector.add("f", "x");
        }
        let status = tonic::Status::from(collector.finish().expect_err("violations"));
        let mut headers = http::HeaderMap::new();
        status.add_header(&mut headers).expect("fits");
        let sizes = headers.iter();
        let bytes: usize = sizes
            .map(|(name, value)| name.as_str().len() + value.len() + 32)
            .sum();
        assert!(bytes < 16 << 10, "{bytes}");
    }
}
