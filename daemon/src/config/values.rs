//! Serde functions for configuration values: times and sizes with units, counts, paths and optional texts.
//!
//! Most functions are used as `#[serde(deserialize_with = "values::…")]`, so that a value is parsed and checked in one
//! step and its fault names the key. [`seconds`] and [`number`] are used as `#[serde(default = "values::…")]`, by fields
//! without a key that tests change.

use std::path::PathBuf;
use std::time::Duration;

use bytesize::ByteSize;
use serde::de::{Deserialize, Deserializer, Error as _};

/// Longest time of any key: 365 days.
const TIME_MAX: Duration = Duration::from_secs(365 * 24 * 60 * 60);
/// Largest number of processor cores of one container.
const CPUS_MAX: f64 = 1024.0;

/// Returns a time of `SECONDS`, for a field without a key.
pub(super) fn seconds<const SECONDS: u64>() -> Duration {
    Duration::from_secs(SECONDS)
}

/// Returns `NUMBER`, for a field without a key.
pub(super) fn number<const NUMBER: usize>() -> usize {
    NUMBER
}

/// Deserializes a string with `parse`; the message of a failure becomes the fault of the key.
pub(super) fn parsed<'de, D: Deserializer<'de>, T>(
    source: D,
    parse: impl FnOnce(&str) -> Result<T, String>,
) -> Result<T, D::Error> {
    parse(&String::deserialize(source)?).map_err(D::Error::custom)
}

/// Deserializes a time such as `"30s"`: over zero and at most a year.
pub(super) fn time<'de, D: Deserializer<'de>>(source: D) -> Result<Duration, D::Error> {
    parsed(source, parse_time)
}

/// Deserializes a time as [`time`] does; the empty text means `None`.
pub(super) fn optional_time<'de, D: Deserializer<'de>>(
    source: D,
) -> Result<Option<Duration>, D::Error> {
    let text = optional_text(source)?;
    let time = text.map(|text| parse_time(&text)).transpose();
    time.map_err(D::Error::custom)
}

fn parse_time(text: &str) -> Result<Duration, String> {
    match humantime::parse_duration(text) {
        Ok(time) if time.is_zero() => Err("must be over zero".to_owned()),
        Ok(time) if time > TIME_MAX => Err(format!("{text} is over a year")),
        Ok(time) => Ok(time),
        Err(_) => Err(format!("{text:?} is not a time; write it like \"30s\"")),
    }
}

/// Deserializes a size such as `"256MiB"` into a number of bytes, at least 1.
pub(super) fn size<'de, D: Deserializer<'de>>(source: D) -> Result<u64, D::Error> {
    parsed(source, parse_size)
}

/// Deserializes a size as [`size`] does; the empty text means `None`.
pub(super) fn optional_size<'de, D: Deserializer<'de>>(source: D) -> Result<Option<u64>, D::Error> {
    let text = optional_text(source)?;
    let size = text.map(|text| parse_size(&text)).transpose();
    size.map_err(D::Error::custom)
}

fn parse_size(text: &str) -> Result<u64, String> {
    let size: ByteSize = text
        .parse()
        .map_err(|_| format!("{text:?} is not a size; write it like \"256MiB\""))?;
    // Protocol messages carry sizes as int64.
    Some(size.as_u64())
        .filter(|&bytes| bytes > 0 && i64::try_from(bytes).is_ok())
        .ok_or_else(|| format!("{text} is not between 1 and 2^63 bytes"))
}

/// Deserializes a count that is at least 1.
pub(super) fn count<'de, D, T>(source: D) -> Result<T, D::Error>
where
    D: Deserializer<'de>,
    T: Deserialize<'de> + Default + PartialEq,
{
    let count = T::deserialize(source)?;
    if count == T::default() {
        return Err(D::Error::custom("must be at least 1, is 0"));
    }
    Ok(count)
}

/// Deserializes a number of processor cores into thousandths of a core.
pub(super) fn cpu_millis<'de, D: Deserializer<'de>>(source: D) -> Result<u64, D::Error> {
    let cpus = f64::deserialize(source)?;
    if !(0.01..=CPUS_MAX).contains(&cpus) {
        let message = format!("must be between 0.01 and {CPUS_MAX}, is {cpus}");
        return Err(D::Error::custom(message));
    }
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "between 10 and 1,024,000, as checked above"
    )]
    let millis = (cpus * 1000.0).round() as u64;
    Ok(millis)
}

/// Deserializes permission bits that are written as octal text, for instance `"0660"`.
pub(super) fn file_mode<'de, D: Deserializer<'de>>(source: D) -> Result<u32, D::Error> {
    parsed(source, |text| {
        u32::from_str_radix(text, 8)
            .ok()
            .filter(|&mode| mode <= 0o777)
            .ok_or_else(|| format!("{text:?} is not a mode; write it like \"0660\""))
    })
}

/// Deserializes a path; a relative one is resolved against the working directory.
pub(super) fn path<'de, D: Deserializer<'de>>(source: D) -> Result<PathBuf, D::Error> {
    parsed(source, absolute_path)
}

/// Deserializes a list of paths; relative ones are resolved against the working directory.
pub(super) fn paths<'de, D: Deserializer<'de>>(source: D) -> Result<Vec<PathBuf>, D::Error> {
    list(source, absolute_path)
}

/// Deserializes a list of strings with `parse`. One failure reports all elements that are wrong.
pub(super) fn list<'de, D: Deserializer<'de>, T>(
    source: D,
    mut parse: impl FnMut(&str) -> Result<T, String>,
) -> Result<Vec<T>, D::Error> {
    let (mut values, mut faults) = (Vec::new(), Vec::new());
    for text in Vec::<String>::deserialize(source)? {
        match parse(&text) {
            Ok(value) => values.push(value),
            Err(fault) => faults.push(fault),
        }
    }
    if faults.is_empty() {
        return Ok(values);
    }
    Err(D::Error::custom(faults.join("; ")))
}

/// Deserializes a text; the empty one means `None`.
pub(super) fn optional_text<'de, D: Deserializer<'de>>(
    source: D,
) -> Result<Option<String>, D::Error> {
    let text = String::deserialize(source)?;
    Ok(Some(text).filter(|text| !text.is_empty()))
}

/// Deserializes a path; the empty text means `None`, and a relative path is resolved against the working directory.
pub(super) fn optional_path<'de, D: Deserializer<'de>>(
    source: D,
) -> Result<Option<PathBuf>, D::Error> {
    let text = optional_text(source)?;
    let path = text.map(|text| absolute_path(&text)).transpose();
    path.map_err(D::Error::custom)
}

/// Resolves a path against the working directory.
///
/// # Errors
/// A message if the text is blank or has a NUL byte.
pub(super) fn absolute_path(text: &str) -> Result<PathBuf, String> {
    if text.trim().is_empty() || text.contains('\0') {
        return Err("must be a path".to_owned());
    }
    std::path::absolute(text).map_err(|error| format!("{text:?}: {error}"))
}
