//! Advice that only this side can give: on connections that cannot be made, and on statuses that skilld did not make.
//! The daemon's messages say what to do about its own errors.

use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use tonic::Code;

/// Returns the advice for a status that skilld did not make.
pub(super) fn transport_hint(code: Code) -> Option<&'static str> {
    match code {
        Code::Unavailable | Code::Unknown | Code::Internal => Some("is the daemon still running?"),
        Code::Unimplemented => {
            Some("this server does not know the call: is it a skilld of this release?")
        }
        Code::Ok
        | Code::Cancelled
        | Code::InvalidArgument
        | Code::DeadlineExceeded
        | Code::NotFound
        | Code::AlreadyExists
        | Code::PermissionDenied
        | Code::ResourceExhausted
        | Code::FailedPrecondition
        | Code::Aborted
        | Code::OutOfRange
        | Code::DataLoss
        | Code::Unauthenticated => None,
    }
}

/// Returns the advice for a connection that could not be made. `socket` is the path of a Unix socket, if it was to one.
pub(crate) fn connect_hint(
    socket: Option<&str>,
    cause: &str,
    error: &(dyn std::error::Error + 'static),
) -> String {
    if let Some(hint) = tls_hint(cause) {
        return hint.to_owned();
    }
    let start =
        "start the daemon with `skilld`, or name another one with --endpoint or SKILLD_ENDPOINT";
    match (io_kind(error), socket) {
        (Some(io::ErrorKind::NotFound), Some(_)) => format!("there is no such socket: {start}"),
        (Some(io::ErrorKind::ConnectionRefused), _) => format!("nobody listens there: {start}"),
        (Some(io::ErrorKind::PermissionDenied), Some(path)) => socket_group_hint(Path::new(path)),
        (_, _) => start.to_owned(),
    }
}

/// Returns the advice for a failed TLS handshake, by the text of the TLS library.
fn tls_hint(cause: &str) -> Option<&'static str> {
    let mismatch = "the TLS handshake failed: compare the certificates of both sides, and the port";
    let hints = [
        (
            "UnknownIssuer",
            "the daemon's certificate is signed by an unknown authority: name the authority's file with --ca-file or SKILLD_CA_FILE",
        ),
        (
            "not valid for name",
            "the daemon's certificate is for another name: write that name in the endpoint, or have the certificate issued for this one",
        ),
        (
            "expired",
            "the daemon's certificate has expired: the operator must renew it; if not, look at this machine's clock",
        ),
        (
            "not valid yet",
            "the daemon's certificate is not valid yet: look at this machine's clock",
        ),
        (
            "InvalidContentType",
            "the server does not speak TLS: write http:// if it is on this machine, or another port",
        ),
        (
            "CertificateRequired",
            "the daemon requires a client certificate: give --cert-file and --key-file",
        ),
        (
            "CertificateRevoked",
            "the daemon refuses this client's certificate, which was revoked: have a new one issued",
        ),
        (
            "CertificateExpired",
            "the daemon refuses this client's certificate, which has expired: renew it",
        ),
        (
            "UnknownCA",
            "the daemon does not know the authority of this client's certificate: have one issued by the daemon's client_ca",
        ),
        (
            "handshake timeout",
            "the server does not answer in TLS: compare the port with the daemon's listeners",
        ),
        ("received fatal alert", mismatch),
        ("invalid peer certificate", mismatch),
    ];
    let hint = hints.into_iter().find(|(text, _)| cause.contains(text));
    hint.map(|(_, hint)| hint)
}

/// Returns the group that may use a socket, as advice.
fn socket_group_hint(path: &Path) -> String {
    let Ok(metadata) = std::fs::symlink_metadata(path) else {
        return "you may not enter the socket's directory: ask the daemon's owner".into();
    };
    match group_name(metadata.gid()) {
        Some(group) => format!(
            "the socket is for the group {group}: `sudo usermod -aG {group} $USER`, then log in again"
        ),
        None => format!("the socket is for the group with id {}", metadata.gid()),
    }
}

fn group_name(gid: u32) -> Option<String> {
    let groups = std::fs::read_to_string("/etc/group").ok()?;
    groups.lines().find_map(|line| {
        let mut fields = line.split(':');
        let name = fields.next()?;
        (fields.nth(1)?.parse() == Ok(gid)).then(|| name.to_owned())
    })
}

fn io_kind(error: &(dyn std::error::Error + 'static)) -> Option<io::ErrorKind> {
    let mut source = error.source();
    while let Some(error) = source {
        if let Some(error) = error.downcast_ref::<io::Error>() {
            return Some(error.kind());
        }
        source = error.source();
    }
    None
}

#[cfg(test)]
mod tests {
    use rustls::pki_types::UnixTime;
    use rustls::{AlertDescription, CertificateError};

    use super::*;

    #[test]
    fn errors_of_the_tls_library_have_advice() {
        let (time, not_before) = (UnixTime::now(), UnixTime::now());
        let early = CertificateError::NotValidYetContext { time, not_before };
        for (error, hint) in [
            (rustls::Error::from(early), "is not valid yet"),
            (CertificateError::BadEncoding.into(), "compare the cert"),
            (CertificateError::UnknownIssuer.into(), "--ca-file"),
            (
                rustls::Error::AlertReceived(AlertDescription::CertificateRequired),
                "the daemon requires a client certificate",
            ),
            (
                rustls::Error::AlertReceived(AlertDescription::HandshakeFailure),
                "the TLS handshake failed",
            ),
        ] {
            let found = tls_hint(&error.to_string()).unwrap_or_default();
            assert!(found.contains(hint), "{error}: {found}");
        }
    }
}
