//! Endpoints `unix:/path`, `https://host:port` and `http://loopback:port`, and the channel to the daemon.

use std::io;
use std::net::IpAddr;
use std::time::Duration;

use tonic::service::interceptor::InterceptedService;
use tonic::transport::{
    Certificate, Channel, ClientTlsConfig, Endpoint as TonicEndpoint, Identity,
};

use crate::Error;
use crate::connect_options::{ConnectOptions, parse_authorities, read_file};
use crate::credentials::Credentials;
use crate::error::{connect_hint, root_cause};
use crate::tls_refusal;

/// Channel to a daemon, which adds the credentials to every call.
pub type Transport = InterceptedService<Channel, Credentials>;

/// Maximum size of a message in either direction, in bytes.
pub(crate) const MESSAGE_BYTES_MAX: usize = 4 * 1024 * 1024;

/// Bytes that the server may send ahead of the reader of one stream. The server sends them again after a broken
/// connection, so this is well below what an exec keeps.
const STREAM_WINDOW_BYTES: u32 = 1024 * 1024;
/// Bytes that the server may send ahead on one connection: a thousand stream windows, because streams without a reader
/// must not starve the others of their connection.
const CONNECTION_WINDOW_BYTES: u32 = 1024 * 1024 * 1024;

/// Maximum size of an HTTP/2 frame in bytes. The largest usual message fits; the default would cut it into 16.
const FRAME_BYTES_MAX: u32 = 256 * 1024 + 1024;

/// Longest time for a connection over TCP, and again for its TLS handshake.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// Interval between pings on a connection; a daemon that does not answer one in [`KEEPALIVE_TIMEOUT`] is gone.
const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(20);
const KEEPALIVE_TIMEOUT: Duration = Duration::from_secs(20);

/// Connects to a daemon now, so that a missing one is noticed before the first call.
/// The channel connects again by itself when its connection breaks.
pub(crate) async fn connect(options: &ConnectOptions) -> Result<Transport, Error> {
    let endpoint = options.endpoint.as_str();
    let uri = parse_endpoint(endpoint)?;
    let bad = |problem: String| Error::Endpoint {
        endpoint: endpoint.to_owned(),
        problem,
    };
    let credentials = Credentials::new(options.token.as_ref(), options.tenant.as_deref())?;
    let tls = tls_config(options, uri.starts_with("https:"))?;
    let mut to = TonicEndpoint::from_shared(uri)
        .and_then(|to| to.user_agent(concat!("skilld-client/", env!("CARGO_PKG_VERSION"))))
        .map_err(|error| bad(error.to_string()))?
        .connect_timeout(CONNECT_TIMEOUT)
        .tcp_nodelay(true)
        .initial_stream_window_size(STREAM_WINDOW_BYTES)
        .initial_connection_window_size(CONNECTION_WINDOW_BYTES)
        .max_frame_size(FRAME_BYTES_MAX)
        .http2_keep_alive_interval(KEEPALIVE_INTERVAL)
        .keep_alive_timeout(KEEPALIVE_TIMEOUT)
        .keep_alive_while_idle(true);
    if let Some(tls) = tls {
        to = to.tls_config(tls).map_err(|error| Error::Credential {
            credential: "the certificates".to_owned(),
            problem: root_cause(&error).unwrap_or_else(|| error.to_string()),
        })?;
    }
    let failed = |source: Box<dyn std::error::Error + Send + Sync>| {
        let cause = root_cause(&*source).unwrap_or_else(|| source.to_string());
        Error::Connect {
            endpoint: endpoint.to_owned(),
            hint: connect_hint(socket_path(endpoint), &cause, &*source),
            cause,
            source,
        }
    };
    let channel = match tokio::time::timeout(2 * CONNECT_TIMEOUT, to.connect()).await {
        Ok(connected) => connected.map_err(|error| failed(error.into()))?,
        Err(_) => return Err(failed(io::Error::from(io::ErrorKind::TimedOut).into())),
    };
    if endpoint.starts_with("https:")
        && let Some(refusal) = tls_refusal::find_refusal(options, &channel).await
    {
        return Err(failed(refusal.into()));
    }
    Ok(InterceptedService::new(channel, credentials))
}

/// Reads the certificates; `None` for an endpoint without TLS.
fn tls_config(options: &ConnectOptions, is_tls: bool) -> Result<Option<ClientTlsConfig>, Error> {
    let files = [&options.ca_file, &options.cert_file, &options.key_file];
    if !is_tls {
        return match files.into_iter().flatten().next() {
            None => Ok(None),
            Some(file) => Err(Error::Endpoint {
                endpoint: options.endpoint.clone(),
                problem: format!(
                    "it has no TLS, so {} has no use: write https://HOST:PORT, or leave the file out",
                    file.display()
                ),
            }),
        };
    }
    let mut tls = ClientTlsConfig::new().timeout(CONNECT_TIMEOUT);
    tls = match &options.ca_file {
        None => tls.with_native_roots(),
        Some(path) => {
            let pem = read_file(path)?;
            parse_authorities(path, &pem)?;
            tls.ca_certificate(Certificate::from_pem(pem))
        }
    };
    match (&options.cert_file, &options.key_file) {
        (None, None) => {}
        (Some(cert), Some(key)) => {
            tls = tls.identity(Identity::from_pem(read_file(cert)?, read_file(key)?));
        }
        (Some(_), None) | (None, Some(_)) => {
            return Err(Error::Credential {
                credential: "the client certificate".to_owned(),
                problem: "certificate and key belong together: give both files".to_owned(),
            });
        }
    }
    Ok(Some(tls))
}

/// Checks an endpoint and converts it to a URI for tonic.
fn parse_endpoint(endpoint: &str) -> Result<String, Error> {
    let bad = |problem: &str| Error::Endpoint {
        endpoint: endpoint.to_owned(),
        problem: problem.to_owned(),
    };
    if let Some(path) = socket_path(endpoint) {
        return match std::path::absolute(path) {
            Ok(path) => Ok(format!("unix:{}", path.display())),
            Err(_) => Err(bad("write unix:/path/to/skilld.sock")),
        };
    }
    if let Some(rest) = endpoint.strip_prefix("https://") {
        let authority = rest.split('/').next().unwrap_or(rest);
        return match authority.rsplit_once(':') {
            Some((host, port)) if !host.is_empty() && port.parse::<u16>().is_ok() => {
                Ok(endpoint.to_owned())
            }
            _ => Err(bad("write https://HOST:PORT")),
        };
    }
    let Some(rest) = endpoint.strip_prefix("http://") else {
        return Err(bad(
            "write unix:/path/to/skilld.sock, https://HOST:PORT or http://127.0.0.1:PORT",
        ));
    };
    let authority = rest.split('/').next().unwrap_or(rest);
    if is_loopback(authority) {
        Ok(endpoint.to_owned())
    } else {
        Err(bad(
            "plain http is for this machine only: 127.0.0.1, [::1] or localhost, with a port",
        ))
    }
}

/// Returns the path in `unix:/path`, `unix:relative/path`, `unix:///path` or `/path`.
fn socket_path(endpoint: &str) -> Option<&str> {
    endpoint
        .strip_prefix("unix://")
        .or_else(|| endpoint.strip_prefix("unix:"))
        .or_else(|| endpoint.starts_with('/').then_some(endpoint))
}

fn is_loopback(authority: &str) -> bool {
    let Some((host, port)) = authority.rsplit_once(':') else {
        return false;
    };
    let name = host.trim_start_matches('[').trim_end_matches(']');
    let loopback = name == "localhost"
        || name
            .parse::<IpAddr>()
            .is_ok_and(|address| address.is_loopback());
    loopback && port.parse::<u16>().is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_spelling_of_a_socket_is_understood() {
        for endpoint in ["unix:/run/s.sock", "unix:///run/s.sock", "/run/s.sock"] {
            assert_eq!(
                parse_endpoint(endpoint).expect("understood"),
                "unix:/run/s.sock"
            );
        }
        let here = std::path::absolute("run/s.sock").expect("a directory");
        let relative = parse_endpoint("unix:run/s.sock").expect("understood");
        assert_eq!(relative, format!("unix:{}", here.display()));
    }

    #[test]
    fn plain_http_is_for_loopback_only() {
        for endpoint in [
            "http://127.0.0.1:7",
            "http://[::1]:7",
            "http://localhost:7/",
        ] {
            parse_endpoint(endpoint).expect("loopback");
        }
        for (endpoint, word) in [
            ("http://10.0.0.1:7", "this machine"),
            ("http://localhost.example:7", "this machine"),
            ("http://127.0.0.1", "port"),
            ("https://127.0.0.1", "PORT"),
            ("https://:7", "PORT"),
            ("unix:", "unix:/"),
            ("localhost:7", "unix:/"),
            ("", "unix:/"),
        ] {
            let error = parse_endpoint(endpoint).expect_err(endpoint).to_string();
            assert!(error.contains(word), "{endpoint}: {error}");
        }
    }
}
