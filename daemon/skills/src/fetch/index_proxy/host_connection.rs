//! Connections to the hosts of tunnels: direct ones to an address that was checked, or through the configured proxy.

use std::io;

use reqwest::{Method, StatusCode};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use url::Host;

use super::super::{FetchError, FetchErrorKind, UrlFetcher, WebUrl};
use crate::error::ErrorChain;

/// Bytes in both directions.
pub(super) trait ByteStream: AsyncRead + AsyncWrite + Send + Unpin {}

impl<S: AsyncRead + AsyncWrite + Send + Unpin> ByteStream for S {}

impl UrlFetcher {
    /// Connects to the host and the port of a URL, within the connect timeout.
    pub(super) async fn connect_to_host(
        &self,
        url: &WebUrl,
    ) -> Result<Box<dyn ByteStream>, FetchError> {
        let bounds = &self.inner.bounds;
        let limit = bounds.connect_timeout;
        let connect = async {
            match bounds.proxy {
                Some(_) => self.connect_through_proxy(url).await,
                None => self.connect_directly(url).await,
            }
        };
        let connected = tokio::time::timeout(limit, connect).await;
        connected.unwrap_or_else(|_| Err(url.fetch_error(FetchErrorKind::Timeout { limit })))
    }

    async fn connect_directly(&self, url: &WebUrl) -> Result<Box<dyn ByteStream>, FetchError> {
        let (host, port) = host_and_port(url);
        let found = tokio::net::lookup_host((host.as_str(), port))
            .await
            .map_err(|error| unreachable(url, &error))?;
        let allowed = self
            .inner
            .policy
            .allowed_addresses(&host, found)
            .map_err(|refused| url.fetch_error(FetchErrorKind::Address { refused }))?;
        // One address that does not answer must not use up the time of the others.
        let addresses = u32::try_from(allowed.len()).unwrap_or(u32::MAX).max(1);
        let limit = self.inner.bounds.connect_timeout / addresses;
        let mut failure = io::Error::other("its name has no address");
        for address in allowed {
            match tokio::time::timeout(limit, TcpStream::connect(address)).await {
                Ok(Ok(stream)) => {
                    // Only costs time if it fails.
                    let _ = stream.set_nodelay(true);
                    return Ok(Box::new(stream));
                }
                Ok(Err(error)) => failure = error,
                Err(late) => failure = late.into(),
            }
        }
        Err(unreachable(url, &failure))
    }

    async fn connect_through_proxy(&self, url: &WebUrl) -> Result<Box<dyn ByteStream>, FetchError> {
        let (_, port) = host_and_port(url);
        let host = url.url().host_str().unwrap_or_default();
        // A URL has no port where it is that of its scheme, so the proxy would get a CONNECT without a port.
        if port == 80 {
            let why = "fetch.proxy gives no tunnels to port 80; request an http:// URL instead";
            return Err(FetchError::refused(url.to_string(), why));
        }
        let client = self.client(url).await?;
        // With https the client would negotiate TLS itself within the tunnel.
        let request = client.request(Method::CONNECT, format!("http://{host}:{port}/"));
        let response = self.send_checked(request, url).await?;
        if response.status() != StatusCode::OK {
            let why = format!("fetch.proxy answered {}", response.status().as_u16());
            return Err(unreachable(url, &io::Error::other(why)));
        }
        let stream = response
            .upgrade()
            .await
            .map_err(|error| unreachable(url, &error.without_url()))?;
        Ok(Box::new(stream))
    }
}

/// Returns the host of a URL, an IPv6 address without brackets, and its port.
fn host_and_port(url: &WebUrl) -> (String, u16) {
    let host = match url.url().host() {
        Some(Host::Ipv6(address)) => address.to_string(),
        host => host.map(|host| host.to_string()).unwrap_or_default(),
    };
    (host, url.url().port_or_known_default().unwrap_or_default())
}

fn unreachable(url: &WebUrl, error: &(dyn std::error::Error + 'static)) -> FetchError {
    let why = ErrorChain(error).to_string();
    url.fetch_error(FetchErrorKind::Unreachable { why })
}
