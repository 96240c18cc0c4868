//! Checks of the validity of the certificates of listeners. A start uses them although they have expired; it refuses
//! files that are faulty in another way.

use std::time::{Duration, SystemTime};

use super::report::CheckLine;
use super::{PATH_TIMEOUT, run_within};
use crate::access::TlsSettings;
use crate::config::{Config, ListenAddress, TlsConfig};
use crate::shutdown::Tasks;

const CHECK: &str = "certificate";
/// Time before the end of a certificate's validity from which on it is a warning.
const EXPIRY_WARNING: Duration = Duration::from_secs(30 * 24 * 60 * 60);

/// Checks the certificates of all listeners. Files that can't be loaded are left out.
pub(super) async fn check_certificates(config: &Config, tasks: &Tasks) -> Vec<CheckLine> {
    let (mut lines, now) = (Vec::new(), SystemTime::now());
    for (key, tls) in listeners_with_tls(config) {
        let load = move || TlsSettings::load_for_report(&tls);
        let Some(Ok(settings)) = run_within(PATH_TIMEOUT, tasks, load).await else {
            continue;
        };
        lines.push(check_validity(
            &key,
            "its certificate",
            settings.expires,
            now,
        ));
        if let Some(expires) = settings.authority_expires {
            let line = check_validity(&key, "an authority in client_ca", expires, now);
            lines.push(line);
        }
        if let Some(fault) = settings.revocation_fault(now) {
            let remedy = "install the current list of the authority that signs the clients";
            lines.push(CheckLine::warning(CHECK, key, fault, remedy));
        }
    }
    lines
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

fn check_validity(key: &str, subject: &str, expires: SystemTime, now: SystemTime) -> CheckLine {
    let time = humantime::format_rfc3339_seconds(expires);
    let remedy = "replace the file by a renewed certificate, which needs no restart";
    if expires <= now {
        let finding = format!("{subject} expired at {time}");
        return CheckLine::failed(CHECK, key, finding, remedy);
    }
    if expires <= now + EXPIRY_WARNING {
        let finding = format!("{subject} expires at {time}");
        return CheckLine::warning(CHECK, key, finding, remedy);
    }
    CheckLine::ok(CHECK, key, format!("{subject} is valid until {time}"))
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
