//! Advice on what to do next, one sentence per reason.

use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use skilld_proto::v1::Reason;
use tonic::Code;

use super::Failure;

/// Returns the advice for a status.
pub(super) fn status_hint(failure: &Failure) -> Option<String> {
    match failure.reason {
        None => transport_hint(failure.code),
        Some(reason) => reason_hint(reason, failure),
    }
}

/// Returns the advice for a reason of skilld.
fn reason_hint(reason: Reason, failure: &Failure) -> Option<String> {
    let metadata = |key: &str| failure.metadata.get(key).map(String::as_str);
    match reason {
        Reason::SkillNotFound => {
            nearest_hint(failure).or_else(|| Some("list the skills to see which there are".into()))
        }
        Reason::FileNotFound => nearest_hint(failure),
        Reason::PoolExhausted | Reason::QuotaExceeded => Some(exhausted_hint(failure)),
        Reason::Draining => Some("the daemon is stopping or was drained: try again later".into()),
        Reason::EngineUnavailable => {
            Some("the container engine does not answer: look at it with `docker info`".into())
        }
        Reason::WorkspaceNotFound => {
            Some("it was deleted, has expired, or was never there: create one".into())
        }
        Reason::ExecNotFound => {
            Some("its retention is over, or it was never there: list the workspace's execs".into())
        }
        // The message may have the problem already.
        Reason::SkillInvalid => metadata("problem")
            .filter(|problem| !failure.message.contains(problem))
            .map(str::to_owned),
        Reason::IdTaken if metadata("digest").is_some() => {
            Some("give the skill another version".into())
        }
        Reason::IdTaken => Some("choose another id, or leave it out".into()),
        Reason::WorkspaceNotReady => Some("create another workspace".into()),
        Reason::PathEscapes => Some("paths are relative, without a way out by `..`".into()),
        // The message says where to delete a skill of a configured root.
        Reason::ReadOnly if metadata("root").is_some() => None,
        Reason::ReadOnly => Some("write to work/ or out/ instead".into()),
        Reason::DiskFull => Some("delete files, or take a pool with a larger disk".into()),
        Reason::GuestLost => {
            Some("a command may have run: look at the workspace before repeating it".into())
        }
        Reason::OutputDropped => {
            metadata("oldest_offset").map(|oldest| format!("attach from {oldest} or accept gaps"))
        }
        Reason::Internal => metadata("request_id")
            .map(|id| format!("the daemon's log has it under request_id {id}")),
        Reason::LimitUnsupported if metadata("guest_generation").is_some() => {
            Some("create another workspace".into())
        }
        Reason::Deadline => Some("an exec that was started goes on: attach to it".into()),
        Reason::ArtifactNotFound => Some(
            "list the artifacts of this scope to see which there are, and their versions".into(),
        ),
        Reason::StorageUnavailable => {
            Some("the daemon's log says what its artifact store answered".into())
        }
        Reason::NotImplemented => Some("it comes with a later version of skilld".into()),
        // The messages say what there is, and what the limits are.
        Reason::Unspecified
        | Reason::InvalidRequest
        | Reason::PoolNotFound
        | Reason::LimitUnsupported
        | Reason::LimitExceeded
        | Reason::Unauthenticated
        | Reason::PermissionDenied
        | Reason::ArchiveInvalid
        | Reason::ChecksumMismatch
        | Reason::WrongFileType
        | Reason::ExecNotRunning
        | Reason::StdinClosed
        | Reason::FilePermission
        | Reason::StateDiskFull
        | Reason::StateDiskReadOnly
        | Reason::TooManyFiles
        | Reason::FetchFailed
        | Reason::AuthenticationOff
        | Reason::AuditUnavailable => None,
    }
}

/// Returns the question for the names that come nearest to one that does not exist; `None` if there are none.
fn nearest_hint(failure: &Failure) -> Option<String> {
    let names = failure.metadata.get("nearest")?;
    (!names.is_empty()).then(|| format!("did you mean {}?", join_names(names)))
}

/// Returns the advice for a pool or quota that is used up.
fn exhausted_hint(failure: &Failure) -> String {
    let Some(wait) = failure.retry_after else {
        return "delete what is no longer needed, or ask for more".into();
    };
    let again = format!("try again in {}", humantime::format_duration(wait));
    match failure.is_tenant_quota() {
        // Of a tenant's quotas only the rates say when to try again.
        true => again,
        false => format!(
            "{again}; if that does not help, read faster, delete a workspace, or enlarge the pool"
        ),
    }
}

/// Returns the advice for a status that skilld did not make.
fn transport_hint(code: Code) -> Option<String> {
    match code {
        Code::Unavailable | Code::Unknown | Code::Internal => {
            Some("is the daemon still running?".into())
        }
        Code::Unimplemented => {
            Some("this server does not know the call: is it a skilld of this release?".into())
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

/// Returns `a, b or c` for `a,b,c`.
fn join_names(names: &str) -> String {
    let names: Vec<&str> = names.split(',').map(str::trim).collect();
    match names.split_last() {
        Some((last, [])) => (*last).to_owned(),
        Some((last, rest)) => format!("{} or {last}", rest.join(", ")),
        None => String::new(),
    }
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
