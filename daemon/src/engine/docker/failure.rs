//! What Docker's failures mean to us: not reachable, or refused; and what the operator should do about it.

use std::error::Error as StdError;
use std::io::{self, ErrorKind};

use bollard::errors::Error as DockerError;

use crate::error::{Chain, Error, HostFault};

/// Whether Docker answered with this HTTP status.
pub(super) fn is_status(error: &DockerError, status: u16) -> bool {
    matches!(error, DockerError::DockerResponseServerError { status_code, .. } if *status_code == status)
}

/// Turns a failure of `operation` (for instance `create container`) into our error. `socket` is the path that was
/// asked, for the advice.
pub(super) fn to_error(socket: &str, operation: &'static str, error: &DockerError) -> Error {
    let fault = if let DockerError::IOError { err } = error {
        // It passes its own source on, and so hides what it holds.
        HostFault::of(err)
    } else {
        HostFault::of(error)
    };
    if fault == Some(HostFault::TooManyFiles) {
        return HostFault::TooManyFiles.error(operation);
    }
    if unreachable(error) {
        return Error::EngineUnavailable {
            message: advice(socket, error),
        };
    }
    let message = if let DockerError::DockerResponseServerError {
        message,
        status_code,
    } = error
    {
        match message.trim() {
            "" => {
                format!("{socket} answered with status {status_code} and no reason: is it Docker?")
            }
            message => message.to_owned(),
        }
    } else {
        Chain(error).to_string()
    };
    Error::Engine { operation, message }
}

/// Docker gave no answer, as opposed to one that we do not like.
fn unreachable(error: &DockerError) -> bool {
    matches!(
        error,
        DockerError::RequestTimeoutError
            | DockerError::HyperResponseError { .. }
            | DockerError::HyperLegacyError { .. }
            | DockerError::IOError { .. }
            | DockerError::SocketNotFoundError(_)
    )
}

/// What to say and do when the socket does not work.
fn advice(socket: &str, error: &DockerError) -> String {
    match io_kind(error) {
        Some(ErrorKind::NotFound) => not_there(socket),
        Some(ErrorKind::ConnectionRefused) => format!(
            "Docker is not running: nobody listens at {socket}; start it (`systemctl start docker`)"
        ),
        Some(ErrorKind::PermissionDenied) => format!(
            "no permission for {socket}: add the user to the docker group (`usermod -aG docker USER`, then log in \
             again), or run as root"
        ),
        _ => format!("{socket}: {}", Chain(error)),
    }
}

fn not_there(socket: &str) -> String {
    format!(
        "Docker is not running or not installed: there is no {socket}; install it (Debian: `apt install docker.io`) \
         and start it (`systemctl start docker`), or say where its socket is (engine.docker_host)"
    )
}

/// The system's answer that lies at the bottom of an error.
fn io_kind(error: &DockerError) -> Option<ErrorKind> {
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
        to_error("/run/d.sock", "create container", error).to_string()
    }

    fn system(kind: ErrorKind) -> DockerError {
        DockerError::IOError { err: kind.into() }
    }

    #[test]
    fn says_what_to_do_when_docker_is_missing_stopped_or_forbidden() {
        for (error, expected) in [
            (
                DockerError::SocketNotFoundError("/run/d.sock".to_owned()),
                "not running or not installed",
            ),
            (system(ErrorKind::NotFound), "there is no /run/d.sock"),
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
    fn a_shortage_of_descriptors_is_not_taken_for_an_absence() {
        let err = io::Error::from(nix::errno::Errno::EMFILE);
        let error = to_error(
            "/run/d.sock",
            "start container",
            &DockerError::IOError { err },
        );
        let (_, reason) = error.kind();
        assert_eq!(reason, skilld_proto::v1::Reason::TooManyFiles, "{error}");
    }

    #[test]
    fn a_refusal_is_not_taken_for_an_absence() {
        let refused = DockerError::DockerResponseServerError {
            status_code: 409,
            message: "name is taken\n".to_owned(),
        };
        assert!(is_status(&refused, 409));
        assert_eq!(
            text(&refused),
            "the container engine failed to create container: name is taken"
        );
    }
}
