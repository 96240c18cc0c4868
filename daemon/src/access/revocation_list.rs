//! List of revoked client certificates: its issuer and until when it is current. The TLS library applies it; this file
//! finds out what the library does not report.

use std::path::Path;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, CertificateRevocationListDer};
use x509_parser::error::X509Error;
use x509_parser::prelude::{CertificateRevocationList, FromDer, X509Certificate};

use super::protected_file::{Secrecy, read_protected_file};

/// List of revoked certificates.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct RevocationList {
    /// Distinguished name of the issuer.
    issuer: String,
    /// Relation to each of the configured authorities, in their order.
    signers: Vec<ListSigner>,
    /// Time at which the list was published, in seconds since 1970.
    pub(super) this_update: i64,
    /// Time by which the issuer publishes the next list; `None` if it does not say.
    next_update: Option<SystemTime>,
}

/// Relation of a list to an authority.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ListSigner {
    /// The authority has signed the list.
    Authority,
    /// An authority of the same name with another key has signed the list.
    Namesake,
    /// The issuer has another name.
    Other,
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
        let signers = authorities.iter().map(|der| signer(&list, der));
        let next_update = list.next_update().map(|time| {
            let seconds = u64::try_from(time.timestamp()).unwrap_or_default();
            UNIX_EPOCH + Duration::from_secs(seconds)
        });
        Ok(Self {
            issuer: list.issuer().to_string(),
            signers: signers.collect(),
            this_update: list.last_update().timestamp(),
            next_update,
        })
    }

    /// Returns `true` if the list may be about certificates below the authority with this index. A list of another
    /// name may be that of an intermediate authority.
    pub(super) fn is_for(&self, authority: usize) -> bool {
        self.signers.get(authority) != Some(&ListSigner::Namesake)
    }

    /// Returns why the list may miss revoked certificates, and what to do; `None` if it is current.
    pub(crate) fn find_fault(&self, now: SystemTime) -> Option<String> {
        let issuer = &self.issuer;
        if !self.signers.contains(&ListSigner::Authority) {
            let why = match self.signers.contains(&ListSigner::Namesake) {
                true => {
                    "is signed with a key that no authority of this name in client_ca has, so it revokes none of \
                     their certificates"
                }
                // The TLS library finds a list by the name of the issuer, and refuses all if the key is another one.
                false => {
                    "is of no authority in client_ca: it counts only for clients of an intermediate authority of this \
                     name, and refuses those that another key of that authority has signed"
                }
            };
            return Some(format!(
                "the revocation list of {issuer:?} {why}; use the list of the authority that signs the clients, or add \
                 that authority to client_ca"
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

/// Returns the relation of a list to an authority.
fn signer(list: &CertificateRevocationList<'_>, authority: &CertificateDer<'_>) -> ListSigner {
    let parsed = X509Certificate::from_der(authority);
    let Ok((_, authority)) = parsed else {
        return ListSigner::Other;
    };
    if authority.subject().as_raw() != list.issuer().as_raw() {
        return ListSigner::Other;
    }
    match list.verify_signature(authority.public_key()) {
        // With an algorithm that only the TLS library may know, the name decides.
        Ok(()) | Err(X509Error::SignatureUnsupportedAlgorithm) => ListSigner::Authority,
        Err(_) => ListSigner::Namesake,
    }
}

/// Reads the lists of revoked certificates of a PEM file.
pub(super) fn read_revocation_lists(
    path: &Path,
) -> Result<Vec<CertificateRevocationListDer<'static>>, String> {
    let bytes = read_protected_file(path, Secrecy::Public)?;
    let parsed: Result<Vec<_>, _> = CertificateRevocationListDer::pem_slice_iter(&bytes).collect();
    let lists = parsed.map_err(|error| format!("{}: is not valid PEM: {error}", path.display()))?;
    if lists.is_empty() {
        return Err(format!(
            "{}: has no list of revoked certificates in PEM",
            path.display()
        ));
    }
    Ok(lists)
}
