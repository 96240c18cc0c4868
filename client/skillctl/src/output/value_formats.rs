//! Values as people write and read them: durations, sizes, `K=V`, `SRC=DEST`, times, names of enums.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::time::{Duration, SystemTime};

use bytesize::ByteSize;
use prost_types::Timestamp;
use skilld_client::v1::StreamOffsets;

/// Parses `1h30m`, `10s`, or a number of seconds.
pub(crate) fn parse_duration(text: &str) -> Result<prost_types::Duration, String> {
    let parsed = match text.parse::<u64>() {
        Ok(seconds) => Duration::from_secs(seconds),
        Err(_) => humantime::parse_duration(text)
            .map_err(|error| format!("{error}; write for instance 90s, 10m or 1h30m"))?,
    };
    prost_types::Duration::try_from(parsed).map_err(|_| "is too long".to_owned())
}

/// Parses `64MiB`, `4k`, or a number of bytes.
pub(crate) fn parse_size(text: &str) -> Result<i64, String> {
    let size: ByteSize = text
        .parse()
        .map_err(|_| "write for instance 4096, 64KiB or 1GiB".to_owned())?;
    i64::try_from(size.as_u64()).map_err(|_| "is too large".to_owned())
}

/// Parses processor cores, `2` or `0.5`, as thousandths of a core.
pub(crate) fn parse_cpus(text: &str) -> Result<i64, String> {
    let malformed = || "write for instance 2 or 0.5".to_owned();
    let (whole, part) = text.split_once('.').unwrap_or((text, ""));
    let digits = |text: &str| text.bytes().all(|byte| byte.is_ascii_digit());
    if part.len() > 3 || !digits(whole) || !digits(part) || whole.len() + part.len() == 0 {
        return Err(malformed());
    }
    let millis = format!("{whole}{part:0<3}").parse();
    millis.map_err(|_| malformed())
}

/// Parses `STDOUT` or `STDOUT,STDERR`, in bytes.
pub(crate) fn parse_offsets(text: &str) -> Result<StreamOffsets, String> {
    let (stdout, stderr) = text.split_once(',').unwrap_or((text, "0"));
    let number = |text: &str| {
        text.parse()
            .map_err(|_| "write for instance 4096 or 4096,0".to_owned())
    };
    Ok(StreamOffsets {
        stdout_bytes: number(stdout)?,
        stderr_bytes: number(stderr)?,
    })
}

/// Returns a path as a glob that matches it alone.
pub(crate) fn escape_glob(path: &str) -> String {
    let mut glob = String::new();
    for c in path.chars() {
        if "*?[]{}\\$".contains(c) {
            glob.push('\\');
        }
        glob.push(c);
    }
    glob
}

/// Parses `KEY=VALUE`.
pub(crate) fn parse_pair(text: &str) -> Result<(String, String), String> {
    match text.split_once('=') {
        Some((key, value)) if !key.is_empty() => Ok((key.to_owned(), value.to_owned())),
        Some(_) | None => Err("write KEY=VALUE".to_owned()),
    }
}

/// Converts pairs to a map; of pairs with the same key the last counts.
pub(crate) fn to_map(pairs: &[(String, String)]) -> BTreeMap<String, String> {
    pairs.iter().cloned().collect()
}

/// Formats a number of bytes, such as `3.4 KiB`; a negative one, which the API never sends, as 0.
pub(crate) fn format_size(count: i64) -> String {
    format_bytes(u64::try_from(count).unwrap_or(0))
}

/// Formats a number of bytes, such as `3.4 KiB`.
pub(crate) fn format_bytes(count: u64) -> String {
    ByteSize::b(count).display().iec().to_string()
}

/// Formats a duration, such as `1m 3s`; whole seconds from ten seconds on.
pub(crate) fn format_duration(duration: Option<&prost_types::Duration>) -> String {
    let Some(duration) = duration.and_then(|given| Duration::try_from(*given).ok()) else {
        return String::new();
    };
    humantime::format_duration(round_duration(duration)).to_string()
}

fn round_duration(duration: Duration) -> Duration {
    if duration < Duration::from_secs(10) {
        Duration::from_millis(u64::try_from(duration.as_millis()).unwrap_or(u64::MAX))
    } else {
        Duration::from_secs(duration.as_secs())
    }
}

/// Formats a time, such as `2026-01-02T03:04:05Z`; seconds since 1970, as `@-1`, before that year and after the year
/// 9999.
pub(crate) fn format_time(time: Option<&Timestamp>) -> String {
    let Some(stamp) = time else {
        return String::new();
    };
    let mut text = String::new();
    // Programs in a workspace choose their files' times. humantime panics before 1970, and after 9999 it fails,
    // which `to_string` would make a panic.
    match to_system_time(time) {
        Some(time)
            if time >= SystemTime::UNIX_EPOCH
                && write!(text, "{}", humantime::format_rfc3339_seconds(time)).is_ok() =>
        {
            text
        }
        Some(_) | None => format!("@{}", stamp.seconds),
    }
}

/// Formats a time as `3m 4s ago` or `in 3m 4s`.
pub(crate) fn format_relative_time(time: Option<&Timestamp>) -> String {
    let Some(time) = to_system_time(time) else {
        return String::new();
    };
    let whole = |duration: Duration| {
        humantime::format_duration(Duration::from_secs(duration.as_secs())).to_string()
    };
    match SystemTime::now().duration_since(time) {
        Ok(past) => format!("{} ago", whole(past)),
        Err(future) => format!("in {}", whole(future.duration())),
    }
}

fn to_system_time(time: Option<&Timestamp>) -> Option<SystemTime> {
    SystemTime::try_from(*time?).ok()
}

/// Returns `loaded with warnings` for `SKILL_STATE_LOADED_WITH_WARNINGS`.
pub(crate) fn enum_words(name: &str, prefix: &str) -> String {
    name.strip_prefix(prefix)
        .unwrap_or(name)
        .to_lowercase()
        .replace('_', " ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_and_sizes_are_read_as_people_write_them() {
        assert_eq!(parse_duration("90").expect("seconds").seconds, 90);
        assert_eq!(parse_duration("1h30m").expect("units").seconds, 5400);
        assert!(parse_duration("soon").is_err_and(|error| error.contains("90s")));
        assert_eq!(parse_size("64KiB"), Ok(65536));
        assert_eq!(parse_size("7"), Ok(7));
        assert!(parse_size("much").is_err());
        for (text, millis) in [("2", 2000), ("0.5", 500), (".25", 250), ("1.125", 1125)] {
            assert_eq!(parse_cpus(text), Ok(millis), "{text}");
        }
        for text in ["", ".", "-1", "1.0001", "two", "1e3"] {
            assert!(parse_cpus(text).is_err(), "{text}");
        }
    }
}
