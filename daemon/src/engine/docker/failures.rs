//! Maps Docker's errors to the daemon's: unreachable or refused, with advice for the operator.

use std::error::Error as StdError;
use std::io::{self, ErrorKind};

use bollard::errors::Error as DockerError;

use crate::error::{Chain, Error, HostFault};

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
    let message = if let DockerError::DockerResponseServerError {
        message,
        status_code,
    } = error
    {
        match message.trim() {
            "" => {
                format!(
                    "{socket} responded with status {status_code} and no message: check that it is Docker's socket"
                )
            }
            message => message.to_owned(),
        }
    } else {
        Chain(error).to_string()
    };
    Error::Engine { operation, message }
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
    match io_error_kind(error) {
        Some(ErrorKind::NotFound) => missing_socket_advice(socket),
        Some(ErrorKind::ConnectionRefused) => format!(
            "Docker is not running: no process listens at {socket}; start it (`systemctl start docker`)"
        ),
        Some(ErrorKind::PermissionDenied) => format!(
            "no permission for {socket}: add the user to the docker group (`usermod -aG docker USER`, then log in \
             again), or run as root"
        ),
        _ => format!("{socket}: {}", Chain(error)),
    }
}

/// Explains how to install or find Docker if its socket does not exist.
fn missing_socket_advice(socket: &str) -> String {
    format!(
        "Docker is not running or not installed: {socket} does not exist; install it (Debian: `apt install docker.io`) \
         and start it (`systemctl start docker`), or set engine.docker_host to the path of its socket"
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
    fn errors_say_what_to_do_when_docker_is_missing_stopped_or_forbidden() {
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
        assert_eq!(reason, skilld_proto::v1::Reason::TooManyFiles, "{error}");
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
