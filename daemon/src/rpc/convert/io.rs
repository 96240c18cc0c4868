//! Requests about an exec's output and stdin → what the guest is asked. Which workspace and exec they name is
//! resolved by the caller.

use std::time::Duration;

use skilld_proto::guest::v1 as guest;
use skilld_proto::v1 as pb;

use super::{Faults, exec_name, id, wire_duration};
use crate::config::POLL_WAIT_MAX;
use crate::error::Result;

/// Where PollExec does not say when output has settled.
const SETTLE_DEFAULT: Duration = Duration::from_millis(75);
/// Longest time for output to settle.
const SETTLE_MAX: Duration = Duration::from_secs(10);
/// Output of one answer of PollExec where it does not say, bytes.
const POLL_BYTES_DEFAULT: u32 = 64 << 10;
/// Output of one answer of PollExec at most, bytes: three times as many, as text, still fit into a message.
const POLL_BYTES_MAX: u32 = 1 << 20;
/// Data of one WriteStdin, bytes.
const WRITE_BYTES_MAX: usize = 1 << 20;
/// Data of one message of StreamStdin, bytes.
const STREAM_BYTES_MAX: usize = 256 << 10;
const UNKNOWN: &str = "is not a value that this server knows";

/// A poll, without the exec's id.
///
/// # Errors
/// `Invalid` with every fault.
pub fn poll(poll: &pb::PollExecRequest) -> Result<guest::PollExecRequest> {
    let mut faults = Faults::default();
    faults.take("name", exec_name("name", &poll.name).map(drop));
    let wait = up_to(
        &mut faults,
        "wait",
        poll.wait,
        Duration::ZERO,
        POLL_WAIT_MAX,
    );
    let max_bytes = match u32::try_from(poll.max_bytes) {
        Ok(0) => POLL_BYTES_DEFAULT,
        Ok(bytes) if bytes <= POLL_BYTES_MAX => bytes,
        _ => {
            faults.add("max_bytes", format!("must be 0 to {POLL_BYTES_MAX}"));
            0
        }
    };
    if pb::OutputFormat::try_from(poll.format).is_err() {
        faults.add("format", UNKNOWN);
    }
    if pb::Gaps::try_from(poll.gaps).is_err() {
        faults.add("gaps", UNKNOWN);
    }
    let given = poll.settle_time;
    let settle = up_to(
        &mut faults,
        "settle_time",
        given,
        SETTLE_DEFAULT,
        SETTLE_MAX,
    );
    faults.finish()?;
    Ok(guest::PollExecRequest {
        exec_id: String::new(),
        offsets: poll.offsets,
        wait: wire_duration(wait),
        max_bytes,
        format: poll.format,
        gaps: poll.gaps,
        settle_time: wire_duration(settle),
    })
}

/// A write, without the exec's id.
///
/// # Errors
/// `Invalid` with every fault.
pub fn write(write: pb::WriteStdinRequest) -> Result<guest::WriteStdinRequest> {
    let mut faults = Faults::default();
    faults.take("name", exec_name("name", &write.name).map(drop));
    bounded(&mut faults, &write.data, WRITE_BYTES_MAX);
    if !write.write_id.is_empty() {
        faults.take("write_id", id("write_id", &write.write_id).map(drop));
        if write.offset.is_some() {
            faults.add("write_id", "is given instead of an offset");
        }
    }
    let wait = write.wait.map(|_| {
        let unset = Duration::ZERO;
        up_to(&mut faults, "wait", write.wait, unset, POLL_WAIT_MAX)
    });
    faults.finish()?;
    Ok(guest::WriteStdinRequest {
        exec_id: String::new(),
        offset: write.offset,
        data: write.data,
        eof: write.eof,
        write_id: write.write_id,
        wait: wait.and_then(wire_duration),
    })
}

/// The first message of a stream, without the exec's id.
///
/// # Errors
/// `Invalid` with every fault.
pub fn first_write(first: pb::StreamStdinRequest) -> Result<guest::WriteStdinRequest> {
    let mut faults = Faults::default();
    faults.take("name", exec_name("name", &first.name).map(drop));
    bounded(&mut faults, &first.data, STREAM_BYTES_MAX);
    faults.finish()?;
    Ok(streamed(first))
}

/// A message that follows: it may say the same name again, or none.
///
/// # Errors
/// `Invalid` with every fault.
pub fn next_write(next: pb::StreamStdinRequest, name: &str) -> Result<guest::WriteStdinRequest> {
    let mut faults = Faults::default();
    if !next.name.is_empty() && next.name != name {
        faults.add("name", "differs from the first message's");
    }
    bounded(&mut faults, &next.data, STREAM_BYTES_MAX);
    faults.finish()?;
    Ok(streamed(next))
}

fn streamed(message: pb::StreamStdinRequest) -> guest::WriteStdinRequest {
    guest::WriteStdinRequest {
        exec_id: String::new(),
        offset: message.offset,
        data: message.data,
        eof: message.eof,
        ..guest::WriteStdinRequest::default()
    }
}

fn bounded(faults: &mut Faults, data: &[u8], max: usize) {
    if data.len() > max {
        faults.add("data", format!("{} bytes; at most {max}", data.len()));
    }
}

/// A duration from 0 on; `unset` where none is given.
fn up_to(
    faults: &mut Faults,
    field: &str,
    given: Option<prost_types::Duration>,
    unset: Duration,
    max: Duration,
) -> Duration {
    let Some(given) = given else { return unset };
    match Duration::try_from(given) {
        Ok(duration) if duration <= max => duration,
        _ => {
            let max = humantime::format_duration(max);
            faults.add(field, format!("must be 0 to {max}"));
            unset
        }
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
    fn a_poll_gets_its_defaults_and_every_fault_is_named_at_once() {
        let asked = pb::PollExecRequest {
            name: "workspaces/w/execs/e".into(),
            ..Default::default()
        };
        let request = poll(&asked).expect("good");
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
        let request = poll(&longest).expect("good");
        assert_eq!((request.wait, request.max_bytes), (seconds(60), 1 << 20));
        let at_once = pb::PollExecRequest {
            settle_time: seconds(0),
            ..asked
        };
        assert_eq!(poll(&at_once).expect("good").settle_time, seconds(0));

        let wrong = pb::PollExecRequest {
            name: "nonsense".into(),
            offsets: None,
            wait: seconds(61),
            max_bytes: -1,
            format: 99,
            gaps: 99,
            settle_time: seconds(11),
        };
        let Err(Error::Invalid(violations)) = poll(&wrong) else {
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
        assert_eq!(fields(write(single(name, 1 << 20))), [""; 0]);
        assert_eq!(fields(write(single("x", (1 << 20) + 1))), ["name", "data"]);
        let known = |write_id: &str, wait| pb::WriteStdinRequest {
            write_id: write_id.into(),
            wait: seconds(wait),
            ..single(name, 1)
        };
        let checked = write(known("call-1", 60)).expect("good");
        assert_eq!((&*checked.write_id, checked.wait), ("call-1", seconds(60)));
        assert_eq!(fields(write(known("A", 61))), ["write_id", "wait"]);
        let both = pb::WriteStdinRequest {
            offset: Some(0),
            ..known("a", 0)
        };
        assert_eq!(fields(write(both)), ["write_id"]);
        let message = |name: &str, bytes| pb::StreamStdinRequest {
            name: name.into(),
            data: data(bytes),
            ..Default::default()
        };
        assert_eq!(fields(first_write(message(name, 256 << 10))), [""; 0]);
        let large = (256 << 10) + 1;
        assert_eq!(fields(first_write(message("", large))), ["name", "data"]);
        assert_eq!(fields(next_write(message("", 1), name)), [""; 0]);
        assert_eq!(fields(next_write(message(name, 1), name)), [""; 0]);
        let other = message("workspaces/w/execs/f", large);
        assert_eq!(fields(next_write(other, name)), ["name", "data"]);
    }
}
