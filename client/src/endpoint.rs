//! Endpoints `unix:/path` and `http://loopback:port`, and the channel to the daemon.

use std::net::IpAddr;
use std::time::Duration;

use tonic::transport::{Channel, Endpoint as TonicEndpoint};

use crate::Error;
use crate::error::{connect_hint, root_cause};

/// Endpoint of a daemon with the default configuration.
pub const DEFAULT_ENDPOINT: &str = "unix:/run/skilld/skilld.sock";

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

const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// Interval between pings on a connection; a daemon that does not answer one in [`KEEPALIVE_TIMEOUT`] is gone.
const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(20);
const KEEPALIVE_TIMEOUT: Duration = Duration::from_secs(20);

/// Connects to a daemon now, so that a missing one is noticed before the first call.
/// The channel connects again by itself when its connection breaks.
pub(crate) async fn connect(endpoint: &str) -> Result<Channel, Error> {
    let uri = parse_endpoint(endpoint)?;
    let bad = |problem: String| Error::Endpoint {
        endpoint: endpoint.to_owned(),
        problem,
    };
    let channel = TonicEndpoint::from_shared(uri)
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
    channel.connect().await.map_err(|source| Error::Connect {
        endpoint: endpoint.to_owned(),
        cause: root_cause(&source).unwrap_or_else(|| source.to_string()),
        hint: connect_hint(endpoint, &source),
        source,
    })
}

/// Checks an endpoint and converts it to a URI for tonic.
fn parse_endpoint(endpoint: &str) -> Result<String, Error> {
    let bad = |problem: &str| Error::Endpoint {
        endpoint: endpoint.to_owned(),
        problem: problem.to_owned(),
    };
    if let Some(path) = socket_path(endpoint) {
        return if path.starts_with('/') {
            Ok(format!("unix:{path}"))
        } else {
            Err(bad(
                "the path of a socket is absolute: unix:/path/to/skilld.sock",
            ))
        };
    }
    if endpoint.starts_with("https://") {
        return Err(bad(
            "TLS is not in this version: use unix:/path, or an ssh tunnel to it",
        ));
    }
    let Some(rest) = endpoint.strip_prefix("http://") else {
        return Err(bad(
            "write unix:/path/to/skilld.sock or http://127.0.0.1:PORT",
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

/// Returns the path in `unix:/path`, `unix:///path` or `/path`.
pub(crate) fn socket_path(endpoint: &str) -> Option<&str> {
    endpoint
        .strip_prefix("unix://")
        .or_else(|| endpoint.strip_prefix("unix:"))
        .or_else(|| endpoint.starts_with('/').then_some(endpoint))
}

fn is_loopback(authority: &str) -> bool {
    let Some((host, port)) = authority.rsplit_once(':') else {
        return false;
    };
    let host = host.trim_start_matches('[').trim_end_matches(']');
    let loopback = host == "localhost"
        || host
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
            ("https://127.0.0.1:7", "TLS"),
            ("unix:skilld.sock", "absolute"),
            ("localhost:7", "unix:/"),
            ("", "unix:/"),
        ] {
            let error = parse_endpoint(endpoint).expect_err(endpoint).to_string();
            assert!(error.contains(word), "{endpoint}: {error}");
        }
    }
}
