//! Watches the files of identities and certificates: loads changed ones, and ends what they no longer permit.

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use tokio::signal::unix::{Signal, SignalKind, signal};

use super::connections::ConnectionTable;
use super::service_manager::{ServiceState, report_state};
use crate::access::{AccessControl, ConnectionPeer, TlsSettings, WatchedFile};
use crate::audit::AuditLog;
use crate::error::{Error, Result};
use crate::shutdown::Tasks;

/// Interval between looks at the files. A revocation takes effect within this time.
const INTERVAL: Duration = Duration::from_secs(2);
/// Time before the end of a certificate's validity from which on it is a problem.
const EXPIRY_WARNING: Duration = Duration::from_secs(7 * 24 * 60 * 60);

/// Files that may change, and what depends on them.
#[derive(Debug)]
pub(super) struct FileWatch {
    access: Arc<AccessControl>,
    /// Log to reopen after SIGHUP; `None` without one.
    audit: Option<AuditLog>,
    tls: Vec<Arc<WatchedFile<TlsSettings>>>,
    connections: ConnectionTable,
    tasks: Tasks,
    hangup: Signal,
}

impl FileWatch {
    /// Makes the watch.
    pub(super) fn new(
        hangup: Signal,
        (access, audit): (Arc<AccessControl>, Option<AuditLog>),
        tls: Vec<Arc<WatchedFile<TlsSettings>>>,
        connections: ConnectionTable,
        tasks: Tasks,
    ) -> Self {
        Self {
            access,
            audit,
            tls,
            connections,
            tasks,
            hangup,
        }
    }

    /// Looks at the files until the daemon stops, at an interval and after SIGHUP.
    pub(super) async fn run(mut self) {
        let stop = self.tasks.stop.clone();
        loop {
            let mut is_reload = false;
            tokio::select! {
                () = stop.cancelled() => return,
                () = tokio::time::sleep(INTERVAL) => {}
                _ = self.hangup.recv() => {
                    is_reload = true;
                    report_state(ServiceState::Reloading);
                    if let Some(audit) = &self.audit {
                        audit.reopen();
                    }
                }
            }
            let (access, tls) = (Arc::clone(&self.access), self.tls.clone());
            let connections = self.connections.clone();
            let look = move || {
                look_at_files(&access, &tls, &connections);
                Ok(())
            };
            // It fails only when the runtime shuts down.
            drop(self.tasks.blocking(look).await);
            if is_reload {
                report_state(ServiceState::Ready);
            }
        }
    }
}

/// Starts to receive SIGHUP, whose default action ends the process. Call it before files are opened, so that no signal
/// about them is missed.
///
/// # Errors
/// [`Error::Io`] if the process cannot receive SIGHUP.
pub(super) fn listen_for_hangups() -> Result<Signal> {
    signal(SignalKind::hangup()).map_err(|source| Error::io("listen for SIGHUP", source))
}

fn look_at_files(
    access: &AccessControl,
    tls: &[Arc<WatchedFile<TlsSettings>>],
    connections: &ConnectionTable,
) {
    access.reload_changed_files();
    for listener in tls {
        if listener.reload_if_changed() {
            let closed = connections.close_if(|peer| is_refused(listener, peer));
            tracing::info!(
                key = listener.key.as_str(),
                closed,
                "verified client certificates again"
            );
        }
        let (now, expires) = (SystemTime::now(), listener.current().expires);
        let outdated = listener.current().revocation_fault(now);
        let lists = format!("{}.crl", listener.key);
        access.problems.set(&lists, outdated);
        let problem = (expires <= now + EXPIRY_WARNING).then(|| {
            let verb = if expires <= now { "expired" } else { "expires" };
            let time = humantime::format_rfc3339_seconds(expires);
            format!("the certificate {verb} at {time}: replace the file, which needs no restart")
        });
        let certificate = format!("{}.cert", listener.key);
        access.problems.set(&certificate, problem);
    }
    access.end_invalid_streams();
}

/// Returns `true` if a listener's new settings refuse the certificate with which a connection was accepted.
fn is_refused(listener: &WatchedFile<TlsSettings>, peer: &ConnectionPeer) -> bool {
    let certificate = peer.certificate.get();
    peer.listener == listener.key
        && certificate.is_some_and(|certificate| !listener.current().accepts(certificate))
}
