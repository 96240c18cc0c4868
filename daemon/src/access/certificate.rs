//! Certificates: those of a file, and the verified one of a client with its names and its expiry.

use std::path::Path;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;
use x509_parser::extensions::GeneralName;
use x509_parser::prelude::{FromDer, X509Certificate};

use super::protected_file::{Secrecy, read_protected_file};

/// Maximum number of alternative names that are read.
const NAMES_MAX: usize = 100;

/// Verified client certificate.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct PeerCertificate {
    /// Alternative names: URIs first, then DNS names, each as in the certificate. The common name never counts.
    pub(crate) names: Vec<String>,
    /// End of the certificate's validity.
    pub(crate) expires: SystemTime,
    /// Certificate and intermediates, to verify them again after a change of the CA or of the revocation list.
    pub(crate) chain: Vec<CertificateDer<'static>>,
}

impl PeerCertificate {
    /// Reads the first certificate of a chain; `None` if it cannot be parsed.
    pub(crate) fn parse(chain: &[CertificateDer<'_>]) -> Option<Self> {
        let (_, certificate) = X509Certificate::from_der(chain.first()?).ok()?;
        let alternative = certificate.subject_alternative_name().ok().flatten();
        let names = alternative
            .iter()
            .flat_map(|names| &names.value.general_names);
        let (mut uris, mut domains) = (Vec::new(), Vec::new());
        for name in names.take(NAMES_MAX) {
            if let GeneralName::URI(uri) = name {
                uris.push((*uri).to_owned());
            } else if let GeneralName::DNSName(domain) = name {
                domains.push((*domain).to_owned());
            }
        }
        uris.append(&mut domains);
        Some(Self {
            names: uris,
            expires: certificate_expiry(&certificate),
            chain: chain.iter().map(|der| der.clone().into_owned()).collect(),
        })
    }
}

/// Returns the end of a certificate's validity.
pub(crate) fn certificate_expiry(certificate: &X509Certificate<'_>) -> SystemTime {
    let seconds = certificate.validity().not_after.timestamp();
    UNIX_EPOCH + Duration::from_secs(u64::try_from(seconds).unwrap_or_default())
}

/// Reads the certificates of a PEM file.
pub(super) fn read_certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>, String> {
    let bytes = read_protected_file(path, Secrecy::Public)?;
    let parsed: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(&bytes).collect();
    let certificates =
        parsed.map_err(|error| format!("{}: is not valid PEM: {error}", path.display()))?;
    if certificates.is_empty() {
        return Err(format!("{}: has no certificate in PEM", path.display()));
    }
    Ok(certificates)
}
