//! Maps Docker's errors to the daemon's: unreachable or refused, with advice for the operator.

use std::error::Error as StdError;
use std::io::{self, ErrorKind};

use bollard::errors::Error as DockerError;

use super::engine_kind::{EngineKind, EngineTexts};
use crate::engine::seccomp;
use crate::error::{Chain, Error, HostFault};

/// Maximum length of an engine's message in an error, in bytes.
const MESSAGE_BYTES_MAX: usize = 1024;
/// Length of the beginning that remains of a longer message, in bytes.
const MESSAGE_HEAD_BYTES: usize = 640;
/// Mark of what is missing in a long message.
const CUT_MARK: &str = " […] ";
/// Word that replaces the seccomp profile in a message.
const PROFILE_MARK: &str = "[seccomp profile]";
/// Key by which a part of the seccomp profile is recognised.
const PROFILE_KEY: &str = "defaultAction";

/// Returns `true` if Docker responded with this HTTP status.
pub(super) fn has_status(error: &DockerError, status: u16) -> bool {
    matches!(error, DockerError::DockerResponseServerError { status_code, .. } if *status_code == status)
}

/// Maps an error of `operation`, for example `create container`. `socket` is the path of Docker's socket, for the advice.
pub(super) fn map_docker_error(
    socket: &str,
    operation: &'static str,
    error: &DockerError,
) -> Error {
    let fault = if let DockerError::IOError { err } = error {
        // This variant's `source` skips the error that it holds, so look at that error itself.
        HostFault::of(err)
    } else {
        HostFault::of(error)
    };
    if fault == Some(HostFault::TooManyFiles) {
        return HostFault::TooManyFiles.error(operation);
    }
    if is_unreachable(error) {
        return Error::EngineUnavailable {
            message: connection_advice(socket, error),
        };
    }
    if let DockerError::DockerResponseServerError {
        message,
        status_code,
    } = error
    {
        return map_error_response(socket, operation, *status_code, message);
    }
    Error::engine(operation, shorten_message(&Chain(error).to_string()))
}

/// Maps an error response of `operation`: its HTTP status and its message.
pub(super) fn map_error_response(
    socket: &str,
    operation: &'static str,
    status_code: u16,
    message: &str,
) -> Error {
    let message = match message.trim() {
        "" => {
            format!(
                "{socket} responded with status {status_code} and no message: check that it is the engine's socket"
            )
        }
        message => shorten_message(message),
    };
    Error::engine(operation, message)
}

/// Shortens a message of the engine: the log, ListProblems and `pool list` repeat it. The seccomp profile becomes a word,
/// and of a long rest the beginning, which says what failed, and the end, which says why, remain.
pub(super) fn shorten_message(message: &str) -> String {
    let profile = seccomp::profile().trim();
    let literal = format!("{profile:?}");
    let quoted = literal.trim_matches('"');
    let mut text = message
        .replace(profile, PROFILE_MARK)
        .replace(quoted, PROFILE_MARK);
    // What remains of a profile that the engine cut or formatted in its own way.
    if let Some(start) = text.find(PROFILE_KEY) {
        let start = text.get(..start).and_then(|before| before.rfind('{'));
        text.truncate(start.unwrap_or_default());
        text.push_str(PROFILE_MARK);
    }
    if text.len() <= MESSAGE_BYTES_MAX {
        return text;
    }
    let end = text.floor_char_boundary(MESSAGE_HEAD_BYTES);
    let tail = MESSAGE_BYTES_MAX - MESSAGE_HEAD_BYTES - CUT_MARK.len();
    let start = text.ceil_char_boundary(text.len() - tail);
    let (head, tail) = (text.get(..end), text.get(start..));
    format!(
        "{}{CUT_MARK}{}",
        head.unwrap_or_default(),
        tail.unwrap_or_default()
    )
}

/// Returns `true` if Docker did not respond at all, as opposed to an error response.
fn is_unreachable(error: &DockerError) -> bool {
    matches!(
        error,
        DockerError::RequestTimeoutError
            | DockerError::HyperResponseError { .. }
            | DockerError::HyperLegacyError { .. }
            | DockerError::IOError { .. }
            | DockerError::SocketNotFoundError(_)
    )
}

/// Explains why the socket does not work and what the operator can do.
fn connection_advice(socket: &str, error: &DockerError) -> String {
    let engine = EngineKind::from_socket(socket).texts();
    match io_error_kind(error) {
        Some(ErrorKind::NotFound) => missing_socket_advice(engine, socket),
        Some(ErrorKind::ConnectionRefused) => format!(
            "{} is not running: no process listens at {socket}; start it (`{}`)",
            engine.title, engine.start_command
        ),
        Some(ErrorKind::PermissionDenied) => {
            format!("no permission for {socket}: {}", engine.permission_advice)
        }
        _ => shorten_message(&format!("{socket}: {}", Chain(error))),
    }
}

/// Explains how to install or find the engine if its socket does not exist.
fn missing_socket_advice(engine: &EngineTexts, socket: &str) -> String {
    format!(
        "{} is not running or not installed: {socket} does not exist; install it (Debian: `apt install {}`) and start \
         it (`{}`), or set engine.docker_host to the path of its socket",
        engine.title, engine.package, engine.start_command
    )
}

/// Returns the kind of the I/O error at the root of an error chain, if it has one.
fn io_error_kind(error: &DockerError) -> Option<ErrorKind> {
    if let DockerError::SocketNotFoundError(_) = error {
        return Some(ErrorKind::NotFound);
    }
    if let DockerError::IOError { err } = error {
        return Some(err.kind());
    }
    let mut next = error.source();
    while let Some(current) = next {
        if let Some(system) = current.downcast_ref::<io::Error>() {
            return Some(system.kind());
        }
        next = current.source();
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(error: &DockerError) -> String {
        map_docker_error("/run/d.sock", "create container", error).to_string()
    }

    fn system(kind: ErrorKind) -> DockerError {
        DockerError::IOError { err: kind.into() }
    }

    #[test]
    fn errors_advise_if_docker_is_missing_stopped_or_forbidden() {
        for (error, expected) in [
            (
                DockerError::SocketNotFoundError("/run/d.sock".to_owned()),
                "not running or not installed",
            ),
            (system(ErrorKind::NotFound), "/run/d.sock does not exist"),
            (
                system(ErrorKind::ConnectionRefused),
                "systemctl start docker",
            ),
            (system(ErrorKind::PermissionDenied), "docker group"),
        ] {
            assert!(text(&error).contains(expected), "{}", text(&error));
        }
    }

    #[test]
    fn descriptor_shortage_is_not_reported_as_missing_docker() {
        let err = io::Error::from(nix::errno::Errno::EMFILE);
        let error = map_docker_error(
            "/run/d.sock",
            "start container",
            &DockerError::IOError { err },
        );
        let (_, reason) = error.kind();
        assert_eq!(
            reason,
            skilld_proto::v1::ErrorReason::TooManyFiles,
            "{error}"
        );
    }

    /// Returns the message of an error response with this text.
    fn refusal(message: String) -> String {
        let error = DockerError::DockerResponseServerError {
            status_code: 500,
            message,
        };
        let error = map_docker_error("/run/d.sock", "create container", &error);
        let Error::Engine { message, .. } = error else {
            panic!("{error:?}");
        };
        message
    }

    #[test]
    fn seccomp_profile_is_not_repeated_in_an_error() {
        let profile = seccomp::profile();
        let escaped = serde_json::to_string(profile).expect("JSON");
        let compact: serde_json::Value = serde_json::from_str(profile).expect("JSON");
        for text in [
            profile,
            escaped.trim_matches('"'),
            &compact.to_string(),
            profile.get(..2000).expect("a part"),
        ] {
            let said = format!("opening seccomp profile failed: open {text}: file name too long");
            let message = refusal(said);
            assert!(
                message.starts_with("opening seccomp profile failed: open [seccomp profile]"),
                "{message}"
            );
            assert!(message.len() < 100, "{} bytes: {message}", message.len());
        }
        // The reason after a profile that was repeated as it was sent remains.
        assert_eq!(
            refusal(format!("open {}: file name too long", profile.trim())),
            "open [seccomp profile]: file name too long"
        );
    }

    #[test]
    fn long_message_of_an_engine_keeps_its_beginning_and_its_end() {
        let short = "é".repeat(MESSAGE_BYTES_MAX / 2);
        assert_eq!(refusal(short.clone()), short);
        // An odd number of bytes before them puts both cuts inside a character.
        for shift in ["", "x"] {
            let long = format!("create: {shift}{}: the reason", "é".repeat(100_000));
            let message = refusal(long);
            assert!(message.len() <= MESSAGE_BYTES_MAX, "{}", message.len());
            assert!(message.len() > MESSAGE_BYTES_MAX - 4, "{}", message.len());
            assert!(message.starts_with("create: "), "{message}");
            assert!(message.ends_with("é: the reason"), "{message}");
            assert_eq!(message.matches(CUT_MARK).count(), 1);
        }
        let stream = DockerError::DockerStreamError {
            error: "x".repeat(5000),
        };
        let error = map_docker_error("/run/d.sock", "pull image", &stream).to_string();
        assert!(error.len() < MESSAGE_BYTES_MAX + 100, "{}", error.len());
    }

    #[test]
    fn refused_call_is_not_reported_as_missing_docker() {
        let refused = DockerError::DockerResponseServerError {
            status_code: 409,
            message: "name is taken\n".to_owned(),
        };
        assert!(has_status(&refused, 409));
        assert_eq!(
            text(&refused),
            "the container engine failed to create container: name is taken"
        );
    }
}
