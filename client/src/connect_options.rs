//! Options of a connection: the daemon's address, the files of TLS, the source of the token.

use std::path::{Path, PathBuf};

use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;

use crate::Error;
use crate::credentials::TokenSource;
use crate::environment::environment_variable;

/// Endpoint of a daemon with the default configuration.
pub const DEFAULT_ENDPOINT: &str = "unix:/run/skilld/skilld.sock";

/// Address of a daemon, and what a client needs to be let in.
#[derive(Clone, Debug, Default)]
pub struct ConnectOptions {
    /// Endpoint: `unix:/path`, `https://host:port` or, on the loopback interface, `http://127.0.0.1:port`.
    pub endpoint: String,
    /// PEM file with the authorities that sign the server's certificate; `None` trusts those of the system.
    pub ca_file: Option<PathBuf>,
    /// PEM file with the client's certificate, followed by its intermediates.
    pub cert_file: Option<PathBuf>,
    /// PEM file with the private key of the client's certificate.
    pub key_file: Option<PathBuf>,
    /// Source of the token that every call carries.
    pub token: Option<TokenSource>,
    /// Tenant that every call means; only admins may name another one than their own.
    pub tenant: Option<String>,
}

impl ConnectOptions {
    /// Reads options from the environment: SKILLD_ENDPOINT, SKILLD_CA_FILE, SKILLD_CERT_FILE, SKILLD_KEY_FILE,
    /// SKILLD_TOKEN or SKILLD_TOKEN_FILE, and SKILLD_TENANT. Without the first, the endpoint is [`DEFAULT_ENDPOINT`].
    #[must_use]
    pub fn from_environment() -> Self {
        let file = |name| environment_variable(name).map(PathBuf::from);
        Self {
            endpoint: environment_variable("SKILLD_ENDPOINT")
                .unwrap_or_else(|| DEFAULT_ENDPOINT.to_owned()),
            ca_file: file("SKILLD_CA_FILE"),
            cert_file: file("SKILLD_CERT_FILE"),
            key_file: file("SKILLD_KEY_FILE"),
            token: TokenSource::from_environment(),
            tenant: environment_variable("SKILLD_TENANT"),
        }
    }

    /// Makes options with an endpoint alone.
    #[must_use]
    pub fn new(endpoint: impl Into<String>) -> Self {
        Self {
            endpoint: endpoint.into(),
            ..Self::default()
        }
    }
}

pub(crate) fn read_file(path: &Path) -> Result<Vec<u8>, Error> {
    std::fs::read(path).map_err(|source| Error::Io {
        path: path.to_owned(),
        source,
    })
}

/// Parses the authorities of a PEM file, which has at least one.
pub(crate) fn parse_authorities(
    path: &Path,
    pem: &[u8],
) -> Result<Vec<CertificateDer<'static>>, Error> {
    let bad = |problem: String| Error::Credential {
        credential: format!("the file {}", path.display()),
        problem,
    };
    let authorities: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(pem).collect();
    match authorities {
        Ok(authorities) if authorities.is_empty() => {
            Err(bad("it has no certificate in PEM".to_owned()))
        }
        Ok(authorities) => Ok(authorities),
        Err(error) => Err(bad(error.to_string())),
    }
}
