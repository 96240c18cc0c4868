//! Checks of the files that prove identities: certificates of listeners, and the files of `[auth]`.

use std::time::{Duration, SystemTime};

use super::path_facts::{PATH_TIMEOUT, run_within};
use super::report::{CheckLine, split_remedy};
use crate::access::{TlsSettings, check_identity_files};
use crate::config::{Config, ListenAddress, TlsConfig};
use crate::shutdown::Tasks;

/// Check of a listener's certificates.
const CERTIFICATE_CHECK: &str = "certificate";
/// Check of a file of `[auth]`.
const IDENTITY_CHECK: &str = "identity_file";
/// Time before the end of a certificate's validity from which on it is a warning.
const EXPIRY_WARNING: Duration = Duration::from_secs(30 * 24 * 60 * 60);
/// Remedy for files that are faulty; the finding says how.
const CORRECT_FILE: &str = "correct the file; the daemon does not start before";

/// Files of one listener or of `[auth]`, as they were loaded.
#[derive(Debug)]
pub(super) struct CertificateFacts {
    /// Configuration key.
    key: String,
    /// Loaded files, or what is wrong with them.
    loaded: Result<TlsSettings, String>,
}

/// Loads the certificates of all listeners, and checks the files of `[auth]`.
pub(super) async fn check_identities(config: &Config, tasks: &Tasks) -> Vec<CheckLine> {
    let mut lines = Vec::new();
    for (key, tls) in listeners_with_tls(config) {
        let loading = run_within(PATH_TIMEOUT, tasks, move || {
            TlsSettings::load_for_report(&tls)
        });
        let loaded = loading.await.unwrap_or_else(|| Err(hung()));
        let facts = CertificateFacts { key, loaded };
        lines.extend(check_certificates(&facts, SystemTime::now()));
    }
    let owned = config.clone();
    let checking = run_within(PATH_TIMEOUT, tasks, move || check_identity_files(&owned));
    match checking.await {
        None => lines.push(CheckLine::failed(
            IDENTITY_CHECK,
            "auth",
            hung(),
            CORRECT_FILE,
        )),
        Some(files) => lines.extend(files.into_iter().map(|(key, checked)| match checked {
            Ok(path) => CheckLine::ok(IDENTITY_CHECK, key, format!("{} is valid", path.display())),
            Err(fault) => failed(IDENTITY_CHECK, key, &fault),
        })),
    }
    lines
}

fn hung() -> String {
    "its file system does not answer".to_owned()
}

fn listeners_with_tls(config: &Config) -> Vec<(String, TlsConfig)> {
    let listeners = config.listeners.iter().enumerate();
    let with_tls = listeners.filter_map(|(index, listener)| match &listener.address {
        ListenAddress::Tcp { tls, .. } | ListenAddress::Metrics { tls, .. } => {
            Some((format!("listeners.{index}.tls"), tls.clone()?))
        }
        ListenAddress::Unix { .. } => None,
    });
    with_tls.collect()
}

fn failed(check: &'static str, key: &str, fault: &str) -> CheckLine {
    let (finding, remedy) = match fault.contains(": run `") {
        true => split_remedy(fault, CORRECT_FILE),
        false => (fault.to_owned(), CORRECT_FILE.to_owned()),
    };
    CheckLine::failed(check, key, finding, remedy)
}

/// Checks what a listener's files hold.
fn check_certificates(facts: &CertificateFacts, now: SystemTime) -> Vec<CheckLine> {
    let key = facts.key.as_str();
    let settings = match &facts.loaded {
        Ok(settings) => settings,
        Err(fault) => return vec![failed(CERTIFICATE_CHECK, key, fault)],
    };
    let mut lines = vec![check_validity(
        key,
        "its certificate",
        settings.expires,
        now,
    )];
    if let Some(expires) = settings.authority_expires {
        lines.push(check_validity(
            key,
            "an authority in client_ca",
            expires,
            now,
        ));
    }
    if let Some(fault) = settings.revocation_fault(now) {
        let remedy = "install the current list of the authority that signs the clients";
        lines.push(CheckLine::warning(CERTIFICATE_CHECK, key, fault, remedy));
    }
    lines
}

fn check_validity(key: &str, subject: &str, expires: SystemTime, now: SystemTime) -> CheckLine {
    let time = humantime::format_rfc3339_seconds(expires);
    let remedy = "replace the file by a renewed certificate, which needs no restart";
    if expires <= now {
        let finding = format!("{subject} expired at {time}");
        return CheckLine::failed(CERTIFICATE_CHECK, key, finding, remedy);
    }
    if expires <= now + EXPIRY_WARNING {
        let finding = format!("{subject} expires at {time}");
        return CheckLine::warning(CERTIFICATE_CHECK, key, finding, remedy);
    }
    CheckLine::ok(
        CERTIFICATE_CHECK,
        key,
        format!("{subject} is valid until {time}"),
    )
}

#[cfg(test)]
mod tests {
    use super::super::report::CheckState;
    use super::*;

    #[test]
    fn a_certificate_that_expires_within_thirty_days_is_a_warning() {
        const DAY: Duration = Duration::from_secs(24 * 60 * 60);
        let now = SystemTime::now();
        for (days, state) in [
            (0, CheckState::Failed),
            (1, CheckState::Warning),
            (30, CheckState::Warning),
            (31, CheckState::Ok),
        ] {
            let line = check_validity("listeners.0.tls", "it", now + DAY * days, now);
            assert_eq!(line.state, state, "{days} days");
        }
    }
}
