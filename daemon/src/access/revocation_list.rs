//! List of revoked client certificates: its issuer and until when it is current. The TLS library applies it; this file
//! finds out what the library does not report.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use rustls::pki_types::{CertificateDer, CertificateRevocationListDer};
use x509_parser::prelude::{CertificateRevocationList, FromDer, X509Certificate};

/// List of revoked certificates.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct RevocationList {
    /// Distinguished name of the issuer.
    issuer: String,
    /// `true` if one of the configured authorities has the issuer's name.
    is_of_authority: bool,
    /// Time by which the issuer publishes the next list; `None` if it does not say.
    next_update: Option<SystemTime>,
}

impl RevocationList {
    /// Reads a list. `authorities` are those whose client certificates are accepted.
    ///
    /// # Errors
    /// A fragment that says what is wrong with the list.
    pub(crate) fn parse(
        list: &CertificateRevocationListDer<'_>,
        authorities: &[CertificateDer<'_>],
    ) -> Result<Self, String> {
        let parsed = CertificateRevocationList::from_der(list);
        let (_, list) = parsed.map_err(|error| format!("is not a revocation list: {error}"))?;
        let issuer = list.issuer();
        let is_of_authority = authorities.iter().any(|authority| {
            let parsed = X509Certificate::from_der(authority);
            parsed.is_ok_and(|(_, authority)| authority.subject().as_raw() == issuer.as_raw())
        });
        let next_update = list.next_update().map(|time| {
            let seconds = u64::try_from(time.timestamp()).unwrap_or_default();
            UNIX_EPOCH + Duration::from_secs(seconds)
        });
        Ok(Self {
            issuer: issuer.to_string(),
            is_of_authority,
            next_update,
        })
    }

    /// Returns why the list may miss revoked certificates, and what to do; `None` if it is current.
    pub(crate) fn find_fault(&self, now: SystemTime) -> Option<String> {
        let issuer = &self.issuer;
        if !self.is_of_authority {
            return Some(format!(
                "the revocation list is of {issuer:?}, which is no authority in client_ca, so it revokes none of their \
                 certificates: use the list of the authority that signs the clients, or add that authority to client_ca"
            ));
        }
        let next_update = self.next_update.filter(|time| *time <= now)?;
        let time = humantime::format_rfc3339_seconds(next_update);
        Some(format!(
            "the revocation list of {issuer:?} should have been replaced by {time}: it stays in force, but later \
             revocations are unknown; install the current list, which needs no restart"
        ))
    }
}
