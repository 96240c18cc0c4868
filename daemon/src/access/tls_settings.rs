//! TLS of a listener: certificate, key, authorities for client certificates and lists of revoked ones.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::SystemTime;

use rustls::ServerConfig;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{PrivateKeyDer, UnixTime};
use rustls::server::danger::ClientCertVerifier;
use x509_parser::prelude::{FromDer, X509Certificate};

use super::certificate::{PeerCertificate, certificate_expiry, read_certificates};
use super::client_trust::ClientTrust;
use super::protected_file::{Secrecy, read_protected_file};
use super::revocation_list::RevocationList;
use super::watched_file::{FileProblems, WatchedFile};
use crate::config::TlsConfig;
use crate::error::Error;

/// Protocol of the API, as TLS names it.
pub(crate) const HTTP2: &[u8] = b"h2";
/// Protocol of metrics, as TLS names it.
pub(crate) const HTTP1: &[u8] = b"http/1.1";

/// Loaded files of one listener.
#[derive(Debug)]
pub(crate) struct TlsSettings {
    /// Settings for new connections.
    pub(crate) server: Arc<ServerConfig>,
    /// Verifier of client certificates; `None` if the listener accepts none.
    verifier: Option<Arc<dyn ClientCertVerifier>>,
    /// End of validity of the server's certificate.
    pub(crate) expires: SystemTime,
    /// End of validity of the authority that expires first; `None` if the listener accepts no client certificates.
    pub(crate) authority_expires: Option<SystemTime>,
    /// Lists of revoked client certificates.
    revocation_lists: Vec<RevocationList>,
}

impl TlsSettings {
    /// Loads the files of a listener without watching them, for a report. Blocks.
    ///
    /// # Errors
    /// A message that names the faulty file.
    pub(crate) fn load_for_report(config: &TlsConfig) -> Result<Self, String> {
        load_tls(config, false, HTTP2)
    }

    /// Returns `true` if these settings accept a client certificate that earlier ones accepted.
    pub(crate) fn accepts(&self, certificate: &PeerCertificate) -> bool {
        let Some(verifier) = &self.verifier else {
            return false;
        };
        let Some((own, intermediates)) = certificate.chain.split_first() else {
            return false;
        };
        let now = UnixTime::now();
        verifier.verify_client_cert(own, intermediates, now).is_ok()
    }

    /// Returns why the lists may miss revoked certificates; `None` if they are current.
    pub(crate) fn revocation_fault(&self, now: SystemTime) -> Option<String> {
        let faults: Vec<String> = self
            .revocation_lists
            .iter()
            .filter_map(|list| list.find_fault(now))
            .collect();
        (!faults.is_empty()).then(|| faults.join("; "))
    }
}

impl TlsConfig {
    /// Returns the paths of all files.
    pub(crate) fn paths(&self) -> Vec<PathBuf> {
        let optional = [&self.client_ca, &self.crl].into_iter().flatten();
        [&self.cert, &self.key]
            .into_iter()
            .chain(optional)
            .cloned()
            .collect()
    }
}

/// Loads all files of a listener, and watches them. `config_key` is the configuration key of the listener, `protocol` the
/// only one that it offers. `is_required` refuses clients without a certificate in the handshake.
///
/// # Errors
/// [`Error`] that names the faulty file.
pub(crate) fn open_tls(
    config_key: &str,
    config: TlsConfig,
    is_required: bool,
    protocol: &'static [u8],
    problems: &FileProblems,
) -> Result<Arc<WatchedFile<TlsSettings>>, Error> {
    let (key, paths) = (format!("{config_key}.tls"), config.paths());
    let load = move || load_tls(&config, is_required, protocol);
    WatchedFile::open(&key, paths, problems, load).map(Arc::new)
}

/// Loads and checks all files.
fn load_tls(config: &TlsConfig, is_required: bool, protocol: &[u8]) -> Result<TlsSettings, String> {
    crate::fetch::install_crypto_provider();
    let chain = read_certificates(&config.cert)?;
    let expires = chain
        .first()
        .and_then(|first| X509Certificate::from_der(first).ok())
        .map(|(_, certificate)| certificate_expiry(&certificate))
        .ok_or_else(|| {
            format!(
                "{}: its first certificate is malformed",
                config.cert.display()
            )
        })?;
    let key = read_protected_file(&config.key, Secrecy::Secret)?;
    let key = PrivateKeyDer::from_pem_slice(&key).map_err(|error| {
        format!(
            "{}: has no private key in PEM: {error}",
            config.key.display()
        )
    })?;
    let trust = ClientTrust::load(config, is_required)?;
    let builder = ServerConfig::builder();
    let builder = match &trust {
        Some(trust) => builder.with_client_cert_verifier(Arc::clone(&trust.verifier)),
        None => builder.with_no_client_auth(),
    };
    let mut server = builder.with_single_cert(chain, key).map_err(|error| {
        format!(
            "{} and {} do not belong together: {error}",
            config.cert.display(),
            config.key.display()
        )
    })?;
    server.alpn_protocols = vec![protocol.to_vec()];
    Ok(TlsSettings {
        server: Arc::new(server),
        expires,
        authority_expires: trust.as_ref().and_then(|trust| trust.authority_expires),
        verifier: trust.as_ref().map(|trust| Arc::clone(&trust.verifier)),
        revocation_lists: trust
            .map(|trust| trust.revocation_lists)
            .unwrap_or_default(),
    })
}
