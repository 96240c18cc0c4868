//! Checks of requests about an exec's output and stdin, converted to requests for the guest. The caller resolves the
//! exec's name and fills in its id.

use std::time::Duration;

use skilld_proto::guest::v1 as guest;
use skilld_proto::v1 as pb;

use super::{ViolationCollector, duration_message, parse_exec_name};
use crate::config::POLL_WAIT_MAX;
use crate::error::Result;

const PAGE_SIZE_DEFAULT: u32 = 100;
const PAGE_SIZE_MAX: u32 = 1000;
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

/// Checks the page of a `ListExecsRequest`. Returns its size and the exec id after which it begins (empty for the
/// first).
///
/// # Errors
/// `Invalid` with every violation.
pub fn check_exec_page(size: i32, token: &str) -> Result<(u32, String)> {
    let mut violations = ViolationCollector::default();
    let size = violations.number_or("page_size", size, PAGE_SIZE_DEFAULT, PAGE_SIZE_MAX);
    let after = match violations.page_token(token) {
        "" => None,
        token => violations.id("page_token", token),
    };
    violations.finish()?;
    Ok((size, after.unwrap_or_default()))
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
    violations.known_enum::<pb::Gaps>("gaps", poll.gaps);
    let settle = violations.duration_within("settle_time", poll.settle_time, zero, SETTLE_MAX);
    violations.finish()?;
    Ok(guest::PollExecRequest {
        exec_id: String::new(),
        offsets: poll.offsets,
        wait: duration_message(wait.unwrap_or_default()),
        max_bytes,
        format: poll.format,
        gaps: poll.gaps,
        settle_time: duration_message(settle.unwrap_or(SETTLE_DEFAULT)),
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
    if !write.write_id.is_empty() {
        violations.id("write_id", &write.write_id);
        if write.offset.is_some() {
            violations.add("write_id", "is given instead of an offset");
        }
    }
    let wait = violations.duration_within("wait", write.wait, Duration::ZERO, POLL_WAIT_MAX);
    violations.finish()?;
    Ok(guest::WriteStdinRequest {
        exec_id: String::new(),
        offset: write.offset,
        data: write.data,
        eof: write.eof,
        write_id: write.write_id,
        wait: wait.and_then(duration_message),
    })
}

/// Checks the first message of a StreamStdin and converts it, without the exec's id.
///
/// # Errors
/// `Invalid` with every violation.
pub fn check_first_write(first: pb::StreamStdinRequest) -> Result<guest::WriteStdinRequest> {
    let mut violations = ViolationCollector::default();
    violations.take(parse_exec_name("name", &first.name));
    violations.bytes_at_most("data", first.data.len(), STREAM_BYTES_MAX);
    violations.finish()?;
    Ok(stream_write(first))
}

/// Checks a later message of a StreamStdin and converts it. Its name is empty or that of the first message.
///
/// # Errors
/// `Invalid` with every violation.
pub fn check_next_write(
    next: pb::StreamStdinRequest,
    name: &str,
) -> Result<guest::WriteStdinRequest> {
    let mut violations = ViolationCollector::default();
    if !next.name.is_empty() && next.name != name {
        violations.add("name", "differs from the first message's");
    }
    violations.bytes_at_most("data", next.data.len(), STREAM_BYTES_MAX);
    violations.finish()?;
    Ok(stream_write(next))
}

fn stream_write(message: pb::StreamStdinRequest) -> guest::WriteStdinRequest {
    guest::WriteStdinRequest {
        exec_id: String::new(),
        offset: message.offset,
        data: message.data,
        eof: message.eof,
        ..guest::WriteStdinRequest::default()
    }
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
        let settle = Duration::try_from(request.settle_time.expect("set")).expect("positive");
        assert_eq!(settle, Duration::from_millis(75));

        let longest = pb::PollExecRequest {
            wait: seconds(60),
            max_bytes: 1 << 20,
            settle_time: seconds(10),
            ..asked.clone()
        };
        let request = check_poll(&longest).expect("good");
        assert_eq!((request.wait, request.max_bytes), (seconds(60), 1 << 20));
        let at_once = pb::PollExecRequest {
            settle_time: seconds(0),
            ..asked
        };
        assert_eq!(check_poll(&at_once).expect("good").settle_time, seconds(0));

        let wrong = pb::PollExecRequest {
            name: "nonsense".into(),
            offsets: None,
            wait: seconds(61),
            max_bytes: -1,
            format: 99,
            gaps: 99,
            settle_time: seconds(11),
        };
        let Err(Error::Invalid(violations)) = check_poll(&wrong) else {
            panic!("must be refused")
        };
        let fields: Vec<_> = violations.iter().map(|fault| &*fault.field).collect();
        let all = ["name", "wait", "max_bytes", "format", "gaps", "settle_time"];
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
        let known = |write_id: &str, wait| pb::WriteStdinRequest {
            write_id: write_id.into(),
            wait: seconds(wait),
            ..single(name, 1)
        };
        let checked = check_write(known("call-1", 60)).expect("good");
        assert_eq!((&*checked.write_id, checked.wait), ("call-1", seconds(60)));
        assert_eq!(fields(check_write(known("A", 61))), ["write_id", "wait"]);
        let both = pb::WriteStdinRequest {
            offset: Some(0),
            ..known("a", 0)
        };
        assert_eq!(fields(check_write(both)), ["write_id"]);
        let message = |name: &str, bytes| pb::StreamStdinRequest {
            name: name.into(),
            data: data(bytes),
            ..Default::default()
        };
        assert_eq!(fields(check_first_write(message(name, 256 << 10))), [""; 0]);
        let large = (256 << 10) + 1;
        assert_eq!(
            fields(check_first_write(message("", large))),
            ["name", "data"]
        );
        assert_eq!(fields(check_next_write(message("", 1), name)), [""; 0]);
        assert_eq!(fields(check_next_write(message(name, 1), name)), [""; 0]);
        let other = message("workspaces/w/execs/f", large);
        assert_eq!(fields(check_next_write(other, name)), ["name", "data"]);
    }
}
