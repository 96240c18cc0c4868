//! The daemon's only way to fetch something by URL: one bounded GET into a file.
//!
//! ```text
//! WebUrl      http or https, a host, no credentials; `#sha256=HEX` pins what is there
//!   → address each name is resolved by us, and only addresses that may be reached are connected to
//!   → hop     at most five redirects, each checked like the first URL; never from https to http
//!   → body    counted and hashed while it is written; a coded one is not decoded
//! ```
//!
//! Every fetch has a deadline and a number of bytes. Proxies and their like in the environment are not looked at: what
//! the daemon connects to is decided by its configuration. With `fetch.proxy` it is the proxy that resolves names.

use std::net::IpAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use data_encoding::HEXLOWER;
use reqwest::{Client, RequestBuilder, Response, StatusCode, header};
use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};
use tokio::fs::File;
use tokio::io::AsyncWriteExt as _;
use tokio::sync::{OnceCell, Semaphore};
use url::{Host, Url};

use crate::error::{Error, ErrorChain};
use crate::task_spawner::TaskSpawner;

mod address_class;
mod address_policy;
mod fetch_error;
mod index_proxy;
#[cfg(test)]
pub(crate) mod tests;
mod web_url;

pub use address_policy::AddressError;
use address_policy::AddressPolicy;
pub use fetch_error::{FetchError, FetchErrorKind, authority_advice};
pub use index_proxy::{BYTES_LIMIT_ADVICE, IndexHost, IndexProxy, IndexProxyOptions};
pub use web_url::WebUrl;

/// Maximum number of redirects of one fetch.
const REDIRECTS_MAX: usize = 5;
/// Maximum number of simultaneous fetches; others wait.
const FETCHES_MAX: usize = 8;
/// Maximum length of a header that is remembered, in bytes.
const HEADER_BYTES_MAX: usize = 256;

/// HTTP client for bounded downloads. Clones share connections and limits.
#[derive(Debug, Clone)]
pub struct UrlFetcher {
    inner: Arc<FetcherInner>,
}

/// State that all clones of a fetcher share.
#[derive(Debug)]
struct FetcherInner {
    bounds: FetchOptions,
    policy: AddressPolicy,
    tasks: TaskSpawner,
    permits: Semaphore,
    /// HTTP client, built at the first fetch: it reads the certificates of the system's authorities, which takes a
    /// while and some memory, and most daemons fetch nothing.
    client: OnceCell<Client>,
}

/// Bounds of everything that is fetched.
#[derive(Debug, Clone)]
pub struct FetchOptions {
    /// Maximum time from resolving the name to a usable connection.
    pub connect_timeout: Duration,
    /// Maximum duration of one fetch, redirects and the last byte included.
    pub timeout: Duration,
    /// Proxy for all requests; `None` connects directly. Proxies of the environment are not used.
    pub proxy: Option<Url>,
    /// File of certificate authorities (PEM) that are trusted beside those of the system.
    pub ca_file: Option<PathBuf>,
}

impl FetchOptions {
    /// Maximum time from resolving the name to a usable connection: a server that needs longer is down, and the fetch
    /// can be tried again.
    pub const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);
}

/// Request for one download.
#[derive(Debug, Clone)]
pub struct FetchRequest {
    /// URL to fetch.
    pub url: WebUrl,
    /// Maximum size in bytes.
    pub bytes_max: u64,
    /// Validators of the previous download; `None` fetches unconditionally.
    pub validators: Option<CacheValidators>,
}

/// ETag and modification time by which a server recognises a previous download.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct CacheValidators {
    /// URL that answered, without its query. Validators mean nothing to any other URL.
    from: String,
    etag: Option<String>,
    last_modified: Option<String>,
}

/// Completed download.
#[derive(Debug, Clone)]
pub struct FetchedFile {
    /// Final URL, after redirects.
    pub url: WebUrl,
    /// Size in bytes.
    pub bytes: u64,
    /// SHA-256 of the received bytes, 64 hex digits.
    pub sha256: String,
    /// Content type as the server reports it; empty if it does not.
    pub content_type: String,
    /// Validators for the next fetch.
    pub validators: CacheValidators,
}

/// Selects the cryptography of TLS, which a process does once. Calling this again changes nothing.
pub fn install_crypto_provider() {
    // Fails if a provider is installed already, which serves as well.
    drop(rustls::crypto::ring::default_provider().install_default());
}

// === impl UrlFetcher ===

impl UrlFetcher {
    /// Makes a fetcher, which connects to nothing yet.
    pub fn new(bounds: &FetchOptions, allow_private_addresses: bool, tasks: TaskSpawner) -> Self {
        let policy = if allow_private_addresses {
            AddressPolicy::Private
        } else {
            AddressPolicy::Public
        };
        Self {
            inner: Arc::new(FetcherInner {
                bounds: bounds.clone(),
                policy,
                tasks,
                permits: Semaphore::new(FETCHES_MAX),
                client: OnceCell::new(),
            }),
        }
    }

    /// Fetches into `file`, which must be empty. Returns `None` if the validators are still valid. After a failure, or
    /// when the future is dropped, a part may have been written: use a temporary file.
    ///
    /// # Errors
    /// See [`FetchError`].
    pub async fn fetch(
        &self,
        request: &FetchRequest,
        file: &mut File,
    ) -> Result<Option<FetchedFile>, FetchError> {
        let url = &request.url;
        let client = self.client(url).await?;
        let Ok(_permit) = self.inner.permits.acquire().await else {
            return Err(url.fetch_error(client_error(&"the daemon is stopping")));
        };
        let limit = self.inner.bounds.timeout;
        let fetched = tokio::time::timeout(limit, self.fetch_with(client, request, file)).await;
        fetched.unwrap_or_else(|_| Err(url.fetch_error(FetchErrorKind::Timeout { limit })))
    }

    /// Returns the HTTP client, which is needed for `url`.
    async fn client(&self, url: &WebUrl) -> Result<&Client, FetchError> {
        let FetcherInner { tasks, client, .. } = &*self.inner;
        let build = || async {
            let (bounds, policy) = (self.inner.bounds.clone(), self.inner.policy);
            let built = tasks.blocking(move || Ok::<_, Error>(build_client(&bounds, policy)));
            built
                .await
                .map_err(|error| client_error(&ErrorChain(&error)))?
        };
        let built = client.get_or_try_init(build).await;
        built.map_err(|kind| url.fetch_error(kind))
    }

    async fn fetch_with(
        &self,
        client: &Client,
        request: &FetchRequest,
        file: &mut File,
    ) -> Result<Option<FetchedFile>, FetchError> {
        let response = self.follow_redirects(client, request).await?;
        if response.status() == StatusCode::NOT_MODIFIED {
            return Ok(None);
        }
        if response.status() != StatusCode::OK {
            return Err(status_error(&request.url, response.status()));
        }
        let url = WebUrl::try_from(response.url().clone())?;
        let header_text = |name| {
            let value = response.headers().get(name)?.to_str().ok()?;
            (value.len() <= HEADER_BYTES_MAX).then(|| value.to_owned())
        };
        let mut fetched = FetchedFile {
            validators: CacheValidators {
                from: resource_key(url.url()),
                etag: header_text(header::ETAG),
                last_modified: header_text(header::LAST_MODIFIED),
            },
            content_type: header_text(header::CONTENT_TYPE).unwrap_or_default(),
            url,
            bytes: 0,
            sha256: String::new(),
        };
        (fetched.bytes, fetched.sha256) = write_body(request, response, file).await?;
        match request.url.sha256() {
            Some(expected) if expected != fetched.sha256 => {
                Err(request.url.fetch_error(FetchErrorKind::Checksum {
                    expected: expected.to_owned(),
                    found: fetched.sha256,
                }))
            }
            _ => Ok(Some(fetched)),
        }
    }

    /// Returns the first response that is no redirect. reqwest's own redirects would send validators to any server.
    async fn follow_redirects(
        &self,
        client: &Client,
        request: &FetchRequest,
    ) -> Result<Response, FetchError> {
        let mut url = request.url.clone();
        for _ in 0..=REDIRECTS_MAX {
            let validators = request.validators.as_ref();
            let response = self.send_request(client, &url, validators).await?;
            let is_redirect = matches!(response.status().as_u16(), 301 | 302 | 303 | 307 | 308);
            let location = response.headers().get(header::LOCATION);
            let Some(location) = location.filter(|_| is_redirect) else {
                return Ok(response);
            };
            // Headers that are not ASCII are ignored.
            let Ok(target) = location.to_str() else {
                let why = "it redirects to something that is not a URL";
                return Err(FetchError::refused(url.to_string(), why));
            };
            // The fragment of a redirect's target is no pin.
            url = url.join(target.split('#').next().unwrap_or_default())?;
        }
        let limit = REDIRECTS_MAX;
        Err(request.url.fetch_error(FetchErrorKind::Redirects { limit }))
    }

    /// Sends one request and receives the head of its response. Validators are sent only to the URL that they are of.
    async fn send_request(
        &self,
        client: &Client,
        url: &WebUrl,
        validators: Option<&CacheValidators>,
    ) -> Result<Response, FetchError> {
        let mut request = client.get(url.url().clone());
        // The client decodes nothing: a coded body would be stored, and hashed, as it comes.
        request = request.header(header::ACCEPT_ENCODING, "identity");
        let validators = validators.filter(|known| known.from == resource_key(url.url()));
        if let Some(etag) = validators.and_then(|known| known.etag.as_ref()) {
            request = request.header(header::IF_NONE_MATCH, etag);
        }
        if let Some(time) = validators.and_then(|known| known.last_modified.as_ref()) {
            request = request.header(header::IF_MODIFIED_SINCE, time);
        }
        let response = self.send_checked(request, url).await?;
        if response.status() == StatusCode::NOT_MODIFIED && validators.is_none() {
            return Err(status_error(url, response.status()));
        }
        Ok(response)
    }

    /// Sends a request to an address that may be connected to, and receives the head of its response.
    async fn send_checked(
        &self,
        request: RequestBuilder,
        url: &WebUrl,
    ) -> Result<Response, FetchError> {
        let FetcherInner { policy, bounds, .. } = &*self.inner;
        let check_address = |address: IpAddr| {
            let host = url.url().host_str().unwrap_or_default();
            let checked = policy.check_address(host, address);
            checked.map_err(|refused| url.fetch_error(FetchErrorKind::Address { refused }))
        };
        // An address in the URL is not resolved, so the resolver does not check it.
        match url.url().host() {
            Some(Host::Ipv4(address)) => check_address(address.into())?,
            Some(Host::Ipv6(address)) => check_address(address.into())?,
            Some(Host::Domain(_)) | None => {}
        }
        let response = request
            .send()
            .await
            .map_err(|error| self.request_error(url, error))?;
        // The connection itself says where it leads. With a proxy that is the address of the proxy, which may be
        // private.
        if bounds.proxy.is_none()
            && let Some(peer) = response.remote_addr()
        {
            check_address(peer.ip())?;
        }
        Ok(response)
    }

    fn request_error(&self, url: &WebUrl, error: reqwest::Error) -> FetchError {
        // The library's text would show the query.
        let error = error.without_url();
        let mut source: Option<&(dyn std::error::Error + 'static)> = Some(&error);
        while let Some(cause) = source {
            if let Some(refused) = cause.downcast_ref::<AddressError>() {
                let refused = refused.clone();
                return url.fetch_error(FetchErrorKind::Address { refused });
            }
            source = cause.source();
        }
        if error.is_timeout() {
            let limit = self.inner.bounds.connect_timeout;
            return url.fetch_error(FetchErrorKind::Timeout { limit });
        }
        let why = ErrorChain(&error).to_string();
        url.fetch_error(FetchErrorKind::Unreachable { why })
    }
}

/// Writes a body to a file. Returns its size and digest.
async fn write_body(
    request: &FetchRequest,
    mut response: Response,
    file: &mut File,
) -> Result<(u64, String), FetchError> {
    let url = &request.url;
    let limit = request.bytes_max;
    let too_large = || url.fetch_error(FetchErrorKind::TooLarge { limit });
    let failed = |source| url.fetch_error(FetchErrorKind::File { source });
    if response
        .content_length()
        .is_some_and(|length| length > limit)
    {
        return Err(too_large());
    }
    let (mut bytes, mut digest) = (0_u64, Sha256::new());
    let broken = |bytes: u64, error: reqwest::Error| {
        let error = error.without_url();
        let why = ErrorChain(&error);
        let why = format!("its answer broke off after {bytes} bytes: {why}");
        url.fetch_error(FetchErrorKind::Unreachable { why })
    };
    while let Some(chunk) = response
        .chunk()
        .await
        .map_err(|error| broken(bytes, error))?
    {
        bytes = bytes.saturating_add(chunk.len() as u64);
        if bytes > limit {
            return Err(too_large());
        }
        digest.update(&chunk);
        file.write_all(&chunk).await.map_err(failed)?;
    }
    file.flush().await.map_err(failed)?;
    Ok((bytes, HEXLOWER.encode(&digest.finalize())))
}

/// Builds the HTTP client. It follows no redirect, uses no proxy of the environment and repeats no request by itself.
fn build_client(bounds: &FetchOptions, policy: AddressPolicy) -> Result<Client, FetchErrorKind> {
    let failed = |error: reqwest::Error| client_error(&ErrorChain(&error));
    install_crypto_provider();
    let resolver = match bounds.proxy {
        Some(_) => AddressPolicy::Proxy,
        None => policy,
    };
    let mut builder = Client::builder()
        .user_agent(concat!("skilld/", env!("CARGO_PKG_VERSION")))
        .redirect(reqwest::redirect::Policy::none())
        .referer(false)
        .no_proxy()
        .http1_only()
        .connect_timeout(bounds.connect_timeout)
        .pool_max_idle_per_host(1)
        .pool_idle_timeout(bounds.connect_timeout)
        .retry(reqwest::retry::never())
        .dns_resolver(resolver);
    if let Some(proxy) = &bounds.proxy {
        builder = builder.proxy(reqwest::Proxy::all(proxy.clone()).map_err(failed)?);
    }
    if let Some(path) = &bounds.ca_file {
        let pem = std::fs::read(path).map_err(|error| {
            client_error(&format!("{} cannot be read: {error}", path.display()))
        })?;
        let authorities = reqwest::Certificate::from_pem_bundle(&pem).map_err(failed)?;
        builder = builder.tls_certs_merge(authorities);
    }
    builder.build().map_err(failed)
}

fn client_error(why: &dyn ToString) -> FetchErrorKind {
    FetchErrorKind::Client {
        why: why.to_string(),
    }
}

fn status_error(url: &WebUrl, status: StatusCode) -> FetchError {
    let status = status.as_u16();
    url.fetch_error(FetchErrorKind::Status { status })
}

/// Returns the key under which a resource has its validators: its URL without the query, in which signed URLs differ.
fn resource_key(url: &Url) -> String {
    let mut key = url.clone();
    key.set_query(None);
    key.set_fragment(None);
    key.into()
}
