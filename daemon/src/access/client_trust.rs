//! Client certificates that a listener accepts: its authorities, and lists of revoked certificates.
//!
//! The TLS library finds the list for a certificate by the name of the issuer only, and applies the first one. After the
//! renewal of an authority's key under the same name, two authorities have a list of that name. So each authority has a
//! verifier of its own, which does not know the lists that others of its name have signed, and a certificate is accepted
//! if one verifier accepts it. If authorities have signed a certificate themselves, only they decide about it: otherwise a
//! client could show a path to another one, by a certificate of the old key, and escape the list.

use std::cmp::Reverse;
use std::sync::Arc;
use std::time::SystemTime;

use rustls::client::danger::HandshakeSignatureValid;
use rustls::pki_types::{CertificateDer, CertificateRevocationListDer, UnixTime};
use rustls::server::WebPkiClientVerifier;
use rustls::server::danger::{ClientCertVerified, ClientCertVerifier};
use rustls::{
    CertificateError, DigitallySignedStruct, DistinguishedName, Error, RootCertStore,
    SignatureScheme,
};
use x509_parser::prelude::{FromDer, X509Certificate};

use super::certificate::{certificate_expiry, read_certificates};
use super::revocation_list::{RevocationList, read_revocation_lists};
use crate::config::TlsConfig;

/// Client certificates that a listener accepts.
pub(super) struct ClientTrust {
    pub(super) verifier: Arc<dyn ClientCertVerifier>,
    /// End of validity of the authority that expires first.
    pub(super) authority_expires: Option<SystemTime>,
    pub(super) revocation_lists: Vec<RevocationList>,
}

/// Verifier of the clients of several authorities, each with lists of its own.
#[derive(Debug)]
struct AuthoritiesVerifier {
    /// Knows all authorities, and no lists.
    all: Arc<dyn ClientCertVerifier>,
    each: Vec<AuthorityVerifier>,
}

/// Verifier of the clients of one authority, with its lists.
#[derive(Debug)]
struct AuthorityVerifier {
    authority: CertificateDer<'static>,
    verifier: Arc<dyn ClientCertVerifier>,
}

impl ClientTrust {
    /// Loads the authorities and lists of a listener; `None` if it accepts no client certificates. `is_required` refuses
    /// clients without a certificate in the handshake.
    ///
    /// # Errors
    /// A message that names the faulty file.
    pub(super) fn load(config: &TlsConfig, is_required: bool) -> Result<Option<Self>, String> {
        let Some(path) = &config.client_ca else {
            return Ok(None);
        };
        let authorities = read_certificates(path)?;
        let build = |authorities: &[CertificateDer<'static>], lists| {
            build_verifier(authorities, lists, is_required)
                .map_err(|fault| format!("{}: {fault}", path.display()))
        };
        let mut verifier = build(&authorities, Vec::new())?;
        let mut lists = Vec::new();
        if let Some(path) = &config.crl {
            for list in read_revocation_lists(path)? {
                let parsed = RevocationList::parse(&list, &authorities)
                    .map_err(|fault| format!("{}: {fault}", path.display()))?;
                lists.push((parsed, list));
            }
            // The library applies the first list of an issuer, which has to be the newest.
            lists.sort_by_key(|(parsed, _)| Reverse(parsed.this_update));
            let of_each = authorities.iter().enumerate().map(|(index, authority)| {
                let own = lists
                    .iter()
                    .filter(|(list, _)| list.is_for(index))
                    .map(|(_, list)| list.clone())
                    .collect();
                let verifier = build(std::slice::from_ref(authority), own);
                verifier.map(|verifier| AuthorityVerifier {
                    authority: authority.clone(),
                    verifier,
                })
            });
            let each = of_each.collect::<Result<Vec<_>, String>>()?;
            verifier = Arc::new(AuthoritiesVerifier {
                all: verifier,
                each,
            });
        }
        let parsed = authorities
            .iter()
            .filter_map(|authority| X509Certificate::from_der(authority).ok());
        let expiries = parsed.map(|(_, authority)| certificate_expiry(&authority));
        Ok(Some(Self {
            verifier,
            authority_expires: expiries.min(),
            revocation_lists: lists.into_iter().map(|(parsed, _)| parsed).collect(),
        }))
    }
}

/// Makes the library's verifier for authorities and lists.
fn build_verifier(
    authorities: &[CertificateDer<'static>],
    lists: Vec<CertificateRevocationListDer<'static>>,
    is_required: bool,
) -> Result<Arc<dyn ClientCertVerifier>, String> {
    let mut roots = RootCertStore::empty();
    for certificate in authorities {
        let added = roots.add(certificate.clone());
        added.map_err(|error| format!("is not usable as authority: {error}"))?;
    }
    let mut builder = WebPkiClientVerifier::builder(Arc::new(roots));
    if !lists.is_empty() {
        builder = builder
            .with_crls(lists)
            // Intermediates of an organisation seldom have lists of their own.
            .only_check_end_entity_revocation()
            .allow_unknown_revocation_status();
    }
    if !is_required {
        builder = builder.allow_unauthenticated();
    }
    let verifier = builder.build();
    verifier.map_err(|error| format!("cannot verify clients: {error}"))
}

/// Returns `true` if a certificate is of another authority than the one that refused it.
fn is_of_another(refusal: &Error) -> bool {
    matches!(
        refusal,
        Error::InvalidCertificate(CertificateError::UnknownIssuer | CertificateError::BadSignature)
    )
}

/// Returns `true` if an authority has signed a certificate without an intermediate authority.
fn has_signed(authority: &CertificateDer<'_>, certificate: &CertificateDer<'_>) -> bool {
    let parsed_authority = X509Certificate::from_der(authority);
    let parsed = X509Certificate::from_der(certificate);
    let (Ok((_, authority)), Ok((_, certificate))) = (parsed_authority, parsed) else {
        return false;
    };
    let is_issuer = certificate.issuer().as_raw() == authority.subject().as_raw();
    let key = authority.public_key();
    is_issuer && certificate.verify_signature(Some(key)).is_ok()
}

impl ClientCertVerifier for AuthoritiesVerifier {
    fn offer_client_auth(&self) -> bool {
        self.all.offer_client_auth()
    }

    fn client_auth_mandatory(&self) -> bool {
        self.all.client_auth_mandatory()
    }

    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        self.all.root_hint_subjects()
    }

    fn verify_client_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        now: UnixTime,
    ) -> Result<ClientCertVerified, Error> {
        let signed: Vec<bool> = self
            .each
            .iter()
            .map(|one| has_signed(&one.authority, end_entity))
            .collect();
        let is_direct = signed.contains(&true);
        let mut refusal = Error::InvalidCertificate(CertificateError::UnknownIssuer);
        for (one, signed) in self.each.iter().zip(signed) {
            if is_direct && !signed {
                continue;
            }
            let verifier = &one.verifier;
            match verifier.verify_client_cert(end_entity, intermediates, now) {
                Ok(verified) => return Ok(verified),
                Err(error) if is_of_another(&refusal) => refusal = error,
                Err(_) => {}
            }
        }
        Err(refusal)
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.all.verify_tls12_signature(message, cert, dss)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.all.verify_tls13_signature(message, cert, dss)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.all.supported_verify_schemes()
    }
}
