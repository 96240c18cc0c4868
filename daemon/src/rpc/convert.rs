//! Conversion between the API's messages and the daemon's own types, one file per service.
//!
//! `check_…` functions validate a request and return the daemon's types, or one error with all violations.
//! `…_message` functions make messages from the daemon's types.

use std::time::{Duration, SystemTime};

use crate::error::{Error, Result};
use crate::workspace::WorkspaceId;
use bytes::Bytes;
use data_encoding::HEXLOWER;
use skilld_common::names::is_resource_id;
use violation_collector::shown;

pub mod access;
pub mod artifact;
pub mod environment;
pub mod exec;
pub mod exec_io;
pub mod file;
pub mod input;
pub mod page;
pub mod run;
pub mod skill;
pub mod skill_content;
pub mod skill_material;
pub mod skill_publish;
mod violation_collector;
pub mod workspace;

pub use violation_collector::ViolationCollector;

const WORKSPACE_PREFIX: &str = "workspaces/";
const POOL_PREFIX: &str = "pools/";

/// Parses an id: `[a-z0-9]([a-z0-9._-]{0,61}[a-z0-9])?`.
///
/// # Errors
/// [`Error::Invalid`] naming `field`.
pub fn parse_id(field: &str, text: &str) -> Result<String> {
    if is_resource_id(text) {
        return Ok(text.to_owned());
    }
    Err(Error::invalid(
        field,
        format!(
            "{:?} is not an id: 1 to 63 of a-z, 0-9, '.', '_' and '-', with a letter or digit at both ends",
            shown(text)
        ),
    ))
}

/// Returns the error of a name that is not of the form that its field has.
fn other_form(field: &str, name: &str, form: &str) -> Error {
    let shown = shown(name);
    Error::invalid(field, format!("{shown:?} is not of the form {form}"))
}

/// Parses `workspaces/{workspace}`.
///
/// # Errors
/// [`Error::Invalid`] naming `field`.
pub fn parse_workspace_name(field: &str, name: &str) -> Result<WorkspaceId> {
    let id = name.strip_prefix(WORKSPACE_PREFIX);
    let id = id.ok_or_else(|| other_form(field, name, "workspaces/{workspace}"))?;
    Ok(WorkspaceId::new(parse_id(field, id)?))
}

/// Parses `pools/{pool}`.
///
/// # Errors
/// [`Error::Invalid`] naming `field`.
pub fn parse_pool_name(field: &str, name: &str) -> Result<String> {
    let id = name.strip_prefix(POOL_PREFIX);
    let id = id.ok_or_else(|| other_form(field, name, "pools/{pool}"))?;
    parse_id(field, id)
}

/// Parses the field `pool` of a request, which is empty for the default pool.
///
/// # Errors
/// [`Error::Invalid`].
pub fn requested_pool(name: &str) -> Result<Option<String>> {
    match name {
        "" => Ok(None),
        name => parse_pool_name("pool", name).map(Some),
    }
}

/// Returns the name of a pool.
pub fn pool_name(pool: &str) -> String {
    format!("{POOL_PREFIX}{pool}")
}

/// Returns the name of an exec in a workspace.
pub(super) fn exec_name(workspace: &str, exec_id: &str) -> String {
    format!("{workspace}/execs/{exec_id}")
}

/// Parses `workspaces/{workspace}/execs/{exec}`.
///
/// # Errors
/// [`Error::Invalid`] naming `field`.
pub fn parse_exec_name(field: &str, name: &str) -> Result<(WorkspaceId, String)> {
    let parts = name
        .strip_prefix(WORKSPACE_PREFIX)
        .and_then(|rest| rest.split_once("/execs/"));
    let form = "workspaces/{workspace}/execs/{exec}";
    let (workspace, exec) = parts.ok_or_else(|| other_form(field, name, form))?;
    Ok((
        WorkspaceId::new(parse_id(field, workspace)?),
        parse_id(field, exec)?,
    ))
}

/// Checks a later message of an upload and returns its bytes. `payload` is `Some(None)` for a header.
///
/// # Errors
/// [`Error::Invalid`].
fn check_upload_data(payload: Option<Option<Bytes>>) -> Result<Bytes> {
    let fault = match payload {
        Some(Some(data)) if data.len() <= file::DATA_BYTES_MAX => return Ok(data),
        Some(Some(data)) => {
            let max = file::DATA_BYTES_MAX;
            ("data", format!("{} bytes; at most {max}", data.len()))
        }
        Some(None) => ("header", "comes in the first message only".to_owned()),
        None => ("data", "is missing".to_owned()),
    };
    Err(Error::invalid(fault.0, fault.1))
}

/// Converts a time to its message.
pub fn timestamp_message(time: SystemTime) -> Option<prost_types::Timestamp> {
    Some(prost_types::Timestamp::from(time))
}

/// Converts a duration to its message; `None` if it is over 2^63 seconds.
pub fn duration_message(duration: Duration) -> Option<prost_types::Duration> {
    prost_types::Duration::try_from(duration).ok()
}

/// Converts a count to an int64 field.
pub fn int64(count: impl TryInto<i64>) -> i64 {
    count.try_into().unwrap_or(i64::MAX)
}

/// Converts a count to an int32 field.
pub fn int32(count: usize) -> i32 {
    i32::try_from(count).unwrap_or(i32::MAX)
}

/// Returns the SHA-256 of bytes as hex digits.
pub fn sha256_hex(bytes: &[u8]) -> String {
    use sha2::Digest;
    HEXLOWER.encode(&sha2::Sha256::digest(bytes))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_are_one_harmless_path_segment() {
        for good in ["a", "0", "a-b", "a.b_c-9", &"x".repeat(63)] {
            assert_eq!(parse_id("f", good).expect(good), good);
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
            assert!(parse_id("f", bad).is_err(), "{bad:?}");
        }
    }

    #[test]
    fn names_have_exactly_their_form() {
        assert_eq!(
            parse_workspace_name("name", "workspaces/w1")
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
            assert!(parse_workspace_name("name", bad).is_err(), "{bad:?}");
        }
        let (workspace, exec) = parse_exec_name("name", "workspaces/w/execs/e").expect("good");
        assert_eq!((workspace.as_str(), exec.as_str()), ("w", "e"));
        for bad in [
            "workspaces/w",
            "workspaces/w/execs/",
            "workspaces/w/execs/a/execs/b",
            "workspaces//execs/e",
        ] {
            assert!(parse_exec_name("name", bad).is_err(), "{bad:?}");
        }
    }
}
