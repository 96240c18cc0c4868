//! Checks of requests about an exec's output and stdin, converted to requests for the guest. The caller resolves the
//! exec's name and fills in its id.

use std::time::Duration;

use skilld_proto::guest::v1 as guest;
use skilld_proto::v1 as pb;

use super::page::Page;
use super::{ViolationCollector, duration_message, parse_exec_name};
use crate::config::POLL_WAIT_MAX;
use crate::error::Result;

/// Time without output after which PollExec treats it as settled, if the request sets none; that of trpc-agent-go.
const SETTLE_DEFAULT: Duration = Duration::from_millis(75);
/// Longest settle time that a request may set.
const SETTLE_MAX: Duration = Duration::from_secs(10);
/// Maximum output of one PollExec answer if the request sets none, in bytes.
const POLL_BYTES_DEFAULT: u32 = 64 << 10;
/// Largest output of one PollExec answer, in bytes. As text it may triple, and still fits into a message.
const POLL_BYTES_MAX: u32 = 1 << 20;
/// Maximum data of one WriteStdin, in bytes.
const WRITE_BYTES_MAX: usize = 1 << 20;
/// Maximum data of one message of StreamStdin, in bytes.
const STREAM_BYTES_MAX: usize = 256 << 10;

/// Checks the page of a `ListExecsRequest`. Returns its size and the guest's position at which it begins.
///
/// # Errors
/// `Invalid` with every violation.
pub fn check_exec_page(size: i32, token: &str) -> Result<(u32, u64)> {
    let page = Page::requested(size, token)?;
    Ok((
        u32::try_from(page.size).unwrap_or(u32::MAX),
        page.start as u64,
    ))
}

/// Checks a `PollExecRequest` and converts it, without the exec's id.
///
/// # Errors
/// `Invalid` with every violation.
pub fn check_poll(poll: &pb::PollExecRequest) -> Result<guest::PollExecRequest> {
    let mut violations = ViolationCollector::default();
    let zero = Duration::ZERO;
    violations.take(parse_exec_name("name", &poll.name));
    let wait = violations.duration_within("wait", poll.wait, zero, POLL_WAIT_MAX);
    let max_bytes = violations.number_or(
        "max_bytes",
        poll.max_bytes,
        POLL_BYTES_DEFAULT,
        POLL_BYTES_MAX,
    );
    violations.known_enum::<pb::OutputFormat>("format", poll.format);
    check_offsets(&mut violations, poll.offsets);
    violations.known_enum::<pb::GapPolicy>("gap_policy", poll.gap_policy);
    let settle =
        violations.duration_within("settle_duration", poll.settle_duration, zero, SETTLE_MAX);
    violations.finish()?;
    Ok(guest::PollExecRequest {
        exec_id: String::new(),
        offsets: poll.offsets,
        wait: duration_message(wait.unwrap_or_default()),
        max_bytes,
        format: poll.format,
        gap_policy: poll.gap_policy,
        settle_duration: duration_message(settle.unwrap_or(SETTLE_DEFAULT)),
    })
}

/// Checks a `WriteStdinRequest` and converts it, without the exec's id.
///
/// # Errors
/// `Invalid` with every violation.
pub fn check_write(write: pb::WriteStdinRequest) -> Result<guest::WriteStdinRequest> {
    let mut violations = ViolationCollector::default();
    violations.take(parse_exec_name("name", &write.name));
    violations.bytes_at_most("data", write.data.len(), WRITE_BYTES_MAX);
    violations.request_id("request_id", &write.request_id);
    if !write.request_id.is_empty() && write.offset.is_some() {
        violations.add("request_id", "is given instead of an offset");
    }
    let offset = check_offset(&mut violations, "offset", write.offset);
    let wait = violations.duration_within("wait", write.wait, Duration::ZERO, POLL_WAIT_MAX);
    violations.finish()?;
    Ok(guest::WriteStdinRequest {
        exec_id: String::new(),
        offset,
        data: write.data,
        eof: write.eof,
        request_id: write.request_id,
        wait: wait.and_then(duration_message),
    })
}

/// Checks the first message of a StreamStdin. Returns the exec's name, and the write without the exec's id.
///
/// # Errors
/// `Invalid` with every violation.
pub fn check_first_write(
    first: pb::StreamStdinRequest,
) -> Result<(String, guest::WriteStdinRequest)> {
    let mut violations = ViolationCollector::default();
    let header = first.header.unwrap_or_default();
    violations.take(parse_exec_name("header.name", &header.name));
    let offset = check_offset(&mut violations, "header.offset", header.offset);
    violations.bytes_at_most("data", first.data.len(), STREAM_BYTES_MAX);
    violations.finish()?;
    let write = guest::WriteStdinRequest {
        offset,
        data: first.data,
        eof: first.eof,
        ..guest::WriteStdinRequest::default()
    };
    Ok((header.name, write))
}

/// Checks an offset of stdin.
fn check_offset(
    violations: &mut ViolationCollector,
    field: &str,
    offset: Option<i64>,
) -> Option<u64> {
    offset.map(|offset| violations.not_negative(field, offset))
}

/// Checks the offsets of both output streams.
pub(super) fn check_offsets(
    violations: &mut ViolationCollector,
    offsets: Option<pb::StreamOffsets>,
) {
    let offsets = offsets.unwrap_or_default();
    violations.not_negative("offsets.stdout_bytes", offsets.stdout_bytes);
    violations.not_negative("offsets.stderr_bytes", offsets.stderr_bytes);
}

/// Checks a later message of a StreamStdin and converts it.
///
/// # Errors
/// `Invalid` with every violation.
pub fn check_next_write(next: pb::StreamStdinRequest) -> Result<guest::WriteStdinRequest> {
    let mut violations = ViolationCollector::default();
    if next.header.is_some() {
        violations.add("header", "comes in the first message only");
    }
    violations.bytes_at_most("data", next.data.len(), STREAM_BYTES_MAX);
    violations.finish()?;
    Ok(guest::WriteStdinRequest {
        data: next.data,
        eof: next.eof,
        ..guest::WriteStdinRequest::default()
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::Error;

    fn seconds(seconds: i64) -> Option<prost_types::Duration> {
        Some(prost_types::Duration { seconds, nanos: 0 })
    }

    #[test]
    fn a_poll_gets_its_defaults_and_reports_every_fault_at_once() {
        let asked = pb::PollExecRequest {
            name: "workspaces/w/execs/e".into(),
            ..Default::default()
        };
        let request = check_poll(&asked).expect("good");
        assert_eq!(request.max_bytes, 64 << 10);
        assert_eq!(request.wait, seconds(0));
        let settle = Duration::try_from(request.settle_duration.expect("set")).expect("positive");
        assert_eq!(settle, Duration::from_millis(75));

        let longest = pb::PollExecRequest {
            wait: seconds(60),
            max_bytes: 1 << 20,
            settle_duration: seconds(10),
            ..asked.clone()
        };
        let request = check_poll(&longest).expect("good");
        assert_eq!((request.wait, request.max_bytes), (seconds(60), 1 << 20));
        let at_once = pb::PollExecRequest {
            settle_duration: seconds(0),
            ..asked
        };
        assert_eq!(
            check_poll(&at_once).expect("good").settle_duration,
            seconds(0)
        );

        let wrong = pb::PollExecRequest {
            name: "nonsense".into(),
            offsets: None,
            wait: seconds(61),
            max_bytes: -1,
            format: 99,
            gap_policy: 99,
            settle_duration: seconds(11),
        };
        let Err(Error::Invalid(violations)) = check_poll(&wrong) else {
            panic!("must be refused")
        };
        let fields: Vec<_> = violations.iter().map(|fault| &*fault.field).collect();
        let all = [
            "name",
            "wait",
            "max_bytes",
            "format",
            "gap_policy",
            "settle_duration",
        ];
        assert_eq!(fields, all);
    }

    #[test]
    fn writes_are_bounded_and_stay_with_one_exec() {
        let name = "workspaces/w/execs/e";
        let data = |bytes: usize| vec![0; bytes].into();
        let fields = |checked: Result<guest::WriteStdinRequest>| match checked {
            Ok(_) => vec![],
            Err(Error::Invalid(violations)) => {
                violations.into_iter().map(|fault| fault.field).collect()
            }
            Err(other) => vec![other.to_string()],
        };
        let single = |name: &str, bytes| pb::WriteStdinRequest {
            name: name.into(),
            data: data(bytes),
            ..Default::default()
        };
        assert_eq!(fields(check_write(single(name, 1 << 20))), [""; 0]);
        assert_eq!(
            fields(check_write(single("x", (1 << 20) + 1))),
            ["name", "data"]
        );
        let known = |request_id: &str, wait| pb::WriteStdinRequest {
            request_id: request_id.into(),
            wait: seconds(wait),
            ..single(name, 1)
        };
        let checked = check_write(known("call-1", 60)).expect("good");
        assert_eq!(
            (&*checked.request_id, checked.wait),
            ("call-1", seconds(60))
        );
        assert_eq!(fields(check_write(known("é", 61))), ["request_id", "wait"]);
        let both = pb::WriteStdinRequest {
            offset: Some(0),
            ..known("a", 0)
        };
        assert_eq!(fields(check_write(both)), ["request_id"]);
        let message = |header, bytes| pb::StreamStdinRequest {
            header,
            data: data(bytes),
            ..Default::default()
        };
        let header = |name: &str, offset| {
            let name = name.into();
            Some(pb::StreamStdinHeader { name, offset })
        };
        let large = (256 << 10) + 1;
        let first = |message| fields(check_first_write(message).map(|(_, write)| write));
        assert_eq!(first(message(header(name, None), large - 1)), [""; 0]);
        let faults = first(message(header("", Some(-1)), large));
        assert_eq!(faults, ["header.name", "header.offset", "data"]);
        let next = |message| fields(check_next_write(message));
        assert_eq!(next(message(None, 1)), [""; 0]);
        let repeated = message(header(name, None), large);
        assert_eq!(next(repeated), ["header", "data"]);
    }
}
