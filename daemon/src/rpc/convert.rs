//! Between the wire and the daemon's own types: all request validation is here and beneath. A request's faults are
//! collected and answered together.

use std::collections::BTreeMap;
use std::time::{Duration, SystemTime};

use crate::error::{Error, Result, Violation};
use crate::workspace::WorkspaceId;
use data_encoding::HEXLOWER;

pub mod artifact;
pub mod exec;
pub mod file;
pub mod input;
pub mod io;
pub mod publish;
pub mod reading;
pub mod skill;
pub mod workspace;

/// Longest id, bytes.
const ID_BYTES_MAX: usize = 63;
/// Longest page token, bytes. One of skills has three paths in it.
const PAGE_TOKEN_BYTES_MAX: usize = 64 << 10;
const WORKSPACE_PREFIX: &str = "workspaces/";

/// Most faults that are named; the others are counted.
const FAULTS_MAX: usize = 32;
/// Text of all that are named, bytes. A status has it twice, as a message whose bytes may take three each, and in
/// its details; HTTP/2 clients take no more than 16 KiB of headers.
const FAULT_BYTES_MAX: usize = 3 << 10;

/// Collects what is wrong with a request.
#[derive(Debug, Default)]
pub struct Faults {
    named: Vec<Violation>,
    bytes: usize,
    more: usize,
}

impl Faults {
    /// Notes a fault.
    pub fn add(&mut self, field: impl Into<String>, description: impl Into<String>) {
        if self.named.len() >= FAULTS_MAX {
            self.more += 1;
        } else {
            self.note(Violation::new(field, description));
        }
    }

    fn note(&mut self, violation: Violation) {
        let bytes = self.bytes + violation.bytes();
        if self.named.len() >= FAULTS_MAX || bytes > FAULT_BYTES_MAX {
            self.more += 1;
        } else {
            self.bytes = bytes;
            self.named.push(violation);
        }
    }

    /// Takes the value of a check, or notes its faults. Other errors are noted by their text.
    pub fn take<T: Default>(&mut self, field: &str, checked: Result<T>) -> T {
        match checked {
            Ok(value) => value,
            Err(Error::Invalid(violations)) => {
                violations
                    .into_iter()
                    .for_each(|violation| self.note(violation));
                T::default()
            }
            Err(other) => {
                self.add(field, other.to_string());
                T::default()
            }
        }
    }

    /// The request is fine, or what is wrong with it.
    ///
    /// # Errors
    /// [`Error::Invalid`].
    pub fn finish(mut self) -> Result<()> {
        if self.named.is_empty() {
            return Ok(());
        }
        if self.more > 0 {
            let rest = format!("and {} more faults", self.more);
            self.named.push(Violation::new("request", rest));
        }
        Err(Error::Invalid(self.named))
    }
}

/// Checks an id: `[a-z0-9]([a-z0-9._-]{0,61}[a-z0-9])?`.
///
/// # Errors
/// [`Error::Invalid`] naming `field`.
pub fn id(field: &str, text: &str) -> Result<String> {
    let bytes = text.as_bytes();
    let edge = |byte: Option<&u8>| {
        byte.is_some_and(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit())
    };
    let inner = |byte: &u8| {
        byte.is_ascii_lowercase() || byte.is_ascii_digit() || matches!(byte, b'.' | b'_' | b'-')
    };
    let good = bytes.len() <= ID_BYTES_MAX
        && edge(bytes.first())
        && edge(bytes.last())
        && bytes.iter().all(inner);
    if good {
        return Ok(text.to_owned());
    }
    let shown: String = text.chars().take(80).collect();
    Err(Error::invalid(
        field,
        format!(
            "{shown:?} is not an id: 1 to 63 of a-z, 0-9, '.', '_' and '-', with a letter or digit at both ends"
        ),
    ))
}

/// Checks `workspaces/{workspace}`.
///
/// # Errors
/// [`Error::Invalid`] naming `field`.
pub fn workspace_name(field: &str, name: &str) -> Result<WorkspaceId> {
    let Some(rest) = name.strip_prefix(WORKSPACE_PREFIX) else {
        let shown: String = name.chars().take(80).collect();
        return Err(Error::invalid(
            field,
            format!("{shown:?} is not of the form workspaces/{{workspace}}"),
        ));
    };
    Ok(WorkspaceId::new(id(field, rest)?))
}

/// Checks `workspaces/{workspace}/execs/{exec}`.
///
/// # Errors
/// [`Error::Invalid`] naming `field`.
pub fn exec_name(field: &str, name: &str) -> Result<(WorkspaceId, String)> {
    let parts = name
        .strip_prefix(WORKSPACE_PREFIX)
        .and_then(|rest| rest.split_once("/execs/"));
    let Some((workspace, exec)) = parts else {
        let shown: String = name.chars().take(160).collect();
        let form = "workspaces/{workspace}/execs/{exec}";
        return Err(Error::invalid(
            field,
            format!("{shown:?} is not of the form {form}"),
        ));
    };
    Ok((WorkspaceId::new(id(field, workspace)?), id(field, exec)?))
}

/// A duration that has to be positive, if it is given.
///
/// # Errors
/// [`Error::Invalid`] naming `field`.
pub fn duration(field: &str, given: Option<prost_types::Duration>) -> Result<Option<Duration>> {
    let Some(given) = given else { return Ok(None) };
    match Duration::try_from(given) {
        Ok(duration) if !duration.is_zero() => Ok(Some(duration)),
        _ => Err(Error::invalid(field, "must be longer than 0 s")),
    }
}

/// A point in time, as the time that is left until then.
///
/// # Errors
/// [`Error::Invalid`] naming `field` when it is past.
pub fn remaining(field: &str, given: Option<prost_types::Timestamp>) -> Result<Option<Duration>> {
    let Some(given) = given else { return Ok(None) };
    SystemTime::try_from(given)
        .ok()
        .and_then(|time| time.duration_since(SystemTime::now()).ok())
        .map(Some)
        .ok_or_else(|| Error::invalid(field, "must be in the future"))
}

/// A page's size: 0 means `default`.
///
/// # Errors
/// [`Error::Invalid`].
pub fn page_size(given: i32, default: usize, max: usize) -> Result<usize> {
    match usize::try_from(given) {
        Ok(0) => Ok(default),
        Ok(size) if size <= max => Ok(size),
        _ => Err(Error::invalid("page_size", format!("must be 0 to {max}"))),
    }
}

/// A page token: bounded, and printable as far as it goes into errors.
///
/// # Errors
/// [`Error::Invalid`].
pub fn page_token(given: &str) -> Result<&str> {
    if given.len() > PAGE_TOKEN_BYTES_MAX {
        return Err(Error::invalid(
            "page_token",
            "is not one that this server made",
        ));
    }
    Ok(given)
}

/// Checks environment variables: names, number and size.
pub fn env(
    faults: &mut Faults,
    field: &str,
    env: &BTreeMap<String, String>,
    count_max: usize,
    bytes_max: usize,
) {
    if env.len() > count_max {
        faults.add(
            field,
            format!("{} variables; at most {count_max}", env.len()),
        );
        return;
    }
    let bytes: usize = env
        .iter()
        .map(|(name, value)| name.len() + value.len() + 2)
        .sum();
    if bytes > bytes_max {
        faults.add(field, format!("{bytes} bytes; at most {bytes_max}"));
    }
    for (name, value) in env {
        let mut chars = name.bytes();
        let good = chars
            .next()
            .is_some_and(|byte| byte.is_ascii_alphabetic() || byte == b'_')
            && chars.all(|byte| byte.is_ascii_alphanumeric() || byte == b'_');
        let shown: String = name.chars().take(80).collect();
        if !good {
            faults.add(
                format!("{field}[{shown:?}]"),
                "is not a name: letters, digits and '_', not beginning with a digit",
            );
        } else if value.contains('\0') {
            faults.add(format!("{field}[{shown:?}]"), "has a NUL byte in its value");
        }
    }
}

/// Wall time for the wire.
#[must_use]
pub fn timestamp(time: SystemTime) -> Option<prost_types::Timestamp> {
    Some(prost_types::Timestamp::from(time))
}

/// A duration for the wire.
#[must_use]
pub fn wire_duration(duration: Duration) -> Option<prost_types::Duration> {
    prost_types::Duration::try_from(duration).ok()
}

/// A count for the wire.
#[must_use]
pub fn int64(count: u64) -> i64 {
    i64::try_from(count).unwrap_or(i64::MAX)
}

/// A count for the wire.
#[must_use]
pub fn int32(count: usize) -> i32 {
    i32::try_from(count).unwrap_or(i32::MAX)
}

/// Hex digits of the sha256 of bytes.
#[must_use]
pub fn digest(bytes: &[u8]) -> String {
    use sha2::Digest;
    HEXLOWER.encode(&sha2::Sha256::digest(bytes))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_are_one_harmless_path_segment() {
        for good in ["a", "0", "a-b", "a.b_c-9", &"x".repeat(63)] {
            assert_eq!(id("f", good).expect(good), good);
        }
        let hostile = [
            "",
            ".",
            "..",
            "-a",
            "a-",
            "a/b",
            "../x",
            "a\0b",
            "A",
            "ä",
            "a b",
            "a\n",
            "%2e%2e",
            "a..",
            &"x".repeat(64),
            &"x".repeat(300),
        ];
        for bad in hostile {
            assert!(id("f", bad).is_err(), "{bad:?}");
        }
    }

    #[test]
    fn names_have_exactly_their_form() {
        assert_eq!(
            workspace_name("name", "workspaces/w1")
                .expect("good")
                .as_str(),
            "w1"
        );
        for bad in [
            "w1",
            "workspaces/",
            "workspaces/a/b",
            "/workspaces/a",
            "workspaces/../x",
            "skills/a",
        ] {
            assert!(workspace_name("name", bad).is_err(), "{bad:?}");
        }
        let (workspace, exec) = exec_name("name", "workspaces/w/execs/e").expect("good");
        assert_eq!((workspace.as_str(), exec.as_str()), ("w", "e"));
        for bad in [
            "workspaces/w",
            "workspaces/w/execs/",
            "workspaces/w/execs/a/execs/b",
            "workspaces//execs/e",
        ] {
            assert!(exec_name("name", bad).is_err(), "{bad:?}");
        }
    }

    #[test]
    fn environment_names_are_checked_all_at_once() {
        let mut faults = Faults::default();
        let vars = [
            ("GOOD_1", "x"),
            ("1BAD", "x"),
            ("A=B", "x"),
            ("", "x"),
            ("NUL", "a\0b"),
            ("A-B", ""),
        ];
        let vars = vars
            .map(|(name, value)| (name.to_owned(), value.to_owned()))
            .into();
        env(&mut faults, "env", &vars, 128, 1 << 16);
        let Err(Error::Invalid(violations)) = faults.finish() else {
            panic!("must be refused")
        };
        assert_eq!(violations.len(), 5, "{violations:?}");
    }

    #[test]
    fn environment_is_bounded() {
        let many = (0..3).map(|n| (format!("V{n}"), "x".repeat(10))).collect();
        for (count_max, bytes_max, fault) in [(2, 99, "3 variables"), (3, 20, "42 bytes")] {
            let mut faults = Faults::default();
            env(&mut faults, "env", &many, count_max, bytes_max);
            let Err(Error::Invalid(violations)) = faults.finish() else {
                panic!("must be refused")
            };
            assert_eq!(violations.len(), 1);
            assert!(
                violations[0].description.starts_with(fault),
                "{violations:?}"
            );
        }
    }

    #[test]
    fn many_faults_are_counted_not_listed() {
        let mut faults = Faults::default();
        for n in 0..40_000 {
            faults.add(format!("field[{n}]"), "is bad");
        }
        let Err(Error::Invalid(violations)) = faults.finish() else {
            panic!("must be refused")
        };
        assert_eq!(violations.len(), FAULTS_MAX + 1);
        let last = &violations[FAULTS_MAX];
        assert_eq!(last.description, "and 39968 more faults");
    }

    #[test]
    fn the_largest_faults_fit_into_the_headers_of_a_status() {
        let mut faults = Faults::default();
        for _ in 0..100 {
            faults.add("\u{1f980}".repeat(99), "\u{1f980}".repeat(999));
            faults.add("f", "x");
        }
        let status = tonic::Status::from(faults.finish().expect_err("faults"));
        let mut headers = http::HeaderMap::new();
        status.add_header(&mut headers).expect("fits");
        let sizes = headers.iter();
        let bytes: usize = sizes
            .map(|(name, value)| name.as_str().len() + value.len() + 32)
            .sum();
        assert!(bytes < 16 << 10, "{bytes}");
    }
}
