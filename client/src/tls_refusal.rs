//! Finds out why a server refuses a client certificate, or a client without one. With TLS 1.3 a client learns that only
//! after its own handshake is complete, when HTTP/2 reports no more than a closed connection.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use rustls::crypto::ring;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::{ClientConfig, RootCertStore};
use tokio::io::AsyncReadExt;
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tonic::transport::Channel;
use tonic_health::pb::HealthCheckRequest;
use tonic_health::pb::health_client::HealthClient;

use crate::connect_options::{ConnectOptions, parse_authorities, read_file};

/// Longest time that the diagnosis takes, with its call and its handshake.
const DIAGNOSIS_TIMEOUT: Duration = Duration::from_secs(3);

/// Makes a call that needs no credential, and returns why the server refuses the client in the TLS handshake, or is
/// not trusted; `None` if the server answers, or fails in another way, which the first call reports.
pub(crate) async fn find_refusal(options: &ConnectOptions, channel: &Channel) -> Option<io::Error> {
    let diagnosis = async {
        let mut health = HealthClient::new(channel.clone());
        let asked = health.check(HealthCheckRequest::default());
        if asked.await.is_ok() {
            return None;
        }
        read_alert(options).await.err().filter(is_tls_refusal)
    };
    tokio::time::timeout(DIAGNOSIS_TIMEOUT, diagnosis)
        .await
        .ok()
        .flatten()
}

/// Returns `true` if one side refused the other in the handshake.
fn is_tls_refusal(error: &io::Error) -> bool {
    let source = error
        .get_ref()
        .and_then(|source| source.downcast_ref::<rustls::Error>());
    matches!(
        source,
        Some(rustls::Error::AlertReceived(_) | rustls::Error::InvalidCertificate(_))
    )
}

/// Makes a TLS handshake of its own and reads, which fails with the server's alert. The server is verified like that of
/// the channel, so no other one sees the certificate.
async fn read_alert(options: &ConnectOptions) -> io::Result<()> {
    let authority = options
        .endpoint
        .strip_prefix("https://")
        .unwrap_or_default()
        .split('/')
        .next()
        .unwrap_or_default();
    let host = authority
        .rsplit_once(':')
        .map_or(authority, |(host, _)| host)
        .trim_start_matches('[')
        .trim_end_matches(']')
        .to_owned();
    let provider = Arc::new(ring::default_provider());
    let config = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map_err(io::Error::other)?
        .with_root_certificates(read_roots(options)?);
    let mut config = match (&options.cert_file, &options.key_file) {
        (Some(cert), Some(key)) => {
            let chain = CertificateDer::pem_file_iter(cert)
                .map_err(io::Error::other)?
                .collect::<Result<_, _>>()
                .map_err(io::Error::other)?;
            let key = PrivateKeyDer::from_pem_file(key).map_err(io::Error::other)?;
            config
                .with_client_auth_cert(chain, key)
                .map_err(io::Error::other)?
        }
        _ => config.with_no_client_auth(),
    };
    config.alpn_protocols = vec![b"h2".to_vec()];
    let name = ServerName::try_from(host).map_err(io::Error::other)?;
    let stream = TcpStream::connect(authority).await?;
    let mut stream = TlsConnector::from(Arc::new(config))
        .connect(name, stream)
        .await?;
    stream.read_u8().await.map(drop)
}

/// Reads the authorities that sign the server's certificate.
fn read_roots(options: &ConnectOptions) -> io::Result<RootCertStore> {
    let mut roots = RootCertStore::empty();
    let Some(path) = &options.ca_file else {
        // Those that cannot be read or used are left out, as the channel does.
        roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
        return Ok(roots);
    };
    let pem = read_file(path).map_err(io::Error::other)?;
    for authority in parse_authorities(path, &pem).map_err(io::Error::other)? {
        roots.add(authority).map_err(io::Error::other)?;
    }
    Ok(roots)
}
