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
use std::sync::Arc;
use std::time::Duration;

use data_encoding::HEXLOWER;
use reqwest::{Client, Response, StatusCode, header};
use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};
use tokio::fs::File;
use tokio::io::AsyncWriteExt as _;
use tokio::sync::{OnceCell, Semaphore};
use url::{Host, Url};

use crate::error::Chain;
use crate::shutdown::Tasks;

mod address;
mod error;
mod resolve;
#[cfg(test)]
pub(crate) mod tests;
mod web_url;

pub use error::FetchError;
use resolve::{Allow, Refused};
pub use web_url::WebUrl;
use web_url::show;

/// Redirects that are followed.
const REDIRECTS_MAX: usize = 5;
/// Fetches at once; others wait.
const FETCHES_MAX: usize = 8;
/// Longest header that is remembered, bytes.
const HEADER_BYTES_MAX: usize = 256;

/// Fetches. Clones share its connections and bounds.
#[derive(Debug, Clone)]
pub struct Fetcher {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    bounds: Bounds,
    allow: Allow,
    tasks: Tasks,
    places: Semaphore,
    /// Made when it is first needed: it reads the certificates of the system's authorities, which takes a while and
    /// some memory, and most daemons fetch nothing.
    client: OnceCell<Client>,
}

/// Bounds of everything that is fetched.
#[derive(Debug, Clone)]
pub struct Bounds {
    /// From the name to a connection that can be used.
    pub connect_timeout: Duration,
    /// In all, redirects and the last byte included.
    pub timeout: Duration,
    /// Through which all is fetched; the environment's proxies are not used.
    pub proxy: Option<Url>,
}

/// What to fetch.
#[derive(Debug, Clone)]
pub struct Get {
    /// From where.
    pub url: WebUrl,
    /// At most so many bytes.
    pub bytes_max: u64,
    /// Of what is there already: `Answer::Unchanged` if it is still what the server has.
    pub validators: Option<Validators>,
}

/// How a server names a state of what it has.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Validators {
    /// The URL that answered, without its query; a redirect may have led to it. Another server's names mean nothing.
    from: String,
    etag: Option<String>,
    last_modified: Option<String>,
}

/// What came of it.
#[derive(Debug)]
pub enum Answer {
    /// The server still has what the validators name.
    Unchanged,
    /// The file is written.
    Fetched(Box<Fetched>),
}

/// What was fetched.
#[derive(Debug, Clone)]
pub struct Fetched {
    /// Where it was found, after redirects.
    pub url: WebUrl,
    /// Its size.
    pub bytes: u64,
    /// 64 hex digits.
    pub sha256: String,
    /// As the server says; empty if it does not.
    pub content_type: String,
    /// For the next time.
    pub validators: Validators,
}

/// TLS needs to be told once per process whose cryptography it uses. Calling this again changes nothing.
pub fn install_crypto_provider() {
    // It fails if one is installed already, which is as good.
    drop(rustls::crypto::ring::default_provider().install_default());
}

// === impl Fetcher ===

impl Fetcher {
    /// Connects to nothing yet.
    #[must_use]
    pub fn new(bounds: &Bounds, allow_private_addresses: bool, tasks: Tasks) -> Self {
        let allow = if allow_private_addresses {
            Allow::Private
        } else {
            Allow::Public
        };
        Self {
            inner: Arc::new(Inner {
                bounds: bounds.clone(),
                allow,
                tasks,
                places: Semaphore::new(FETCHES_MAX),
                client: OnceCell::new(),
            }),
        }
    }

    /// Fetches into `file`, which is empty and written through. When this fails or is dropped a part may have been
    /// written: take a file without a name, or one in a directory that is removed.
    ///
    /// # Errors
    /// See [`FetchError`].
    pub async fn fetch(&self, get: &Get, file: &mut File) -> Result<Answer, FetchError> {
        let client = self.client().await?;
        let Ok(_place) = self.inner.places.acquire().await else {
            return Err(client_failed("the daemon is going down"));
        };
        let limit = self.inner.bounds.timeout;
        let fetched = tokio::time::timeout(limit, self.fetch_with(client, get, file)).await;
        fetched.unwrap_or_else(|_| {
            Err(FetchError::Timeout {
                url: get.url.to_string(),
                limit,
            })
        })
    }

    async fn client(&self) -> Result<&Client, FetchError> {
        let made = self.inner.client.get_or_try_init(|| async {
            let (bounds, allow) = (self.inner.bounds.clone(), self.inner.allow);
            let made = self
                .inner
                .tasks
                .blocking(move || Ok(client(&bounds, allow)));
            made.await
                .map_err(|error| client_failed(&Chain(&error).to_string()))?
        });
        made.await
    }

    async fn fetch_with(
        &self,
        client: &Client,
        get: &Get,
        file: &mut File,
    ) -> Result<Answer, FetchError> {
        let response = self.follow(client, get).await?;
        if response.status() == StatusCode::NOT_MODIFIED {
            return Ok(Answer::Unchanged);
        }
        if response.status() != StatusCode::OK {
            return Err(FetchError::Status {
                url: get.url.to_string(),
                status: response.status().as_u16(),
            });
        }
        let url = WebUrl::try_from(response.url().clone())?;
        let text = |name| {
            let value = response.headers().get(name)?.to_str().ok()?;
            (value.len() <= HEADER_BYTES_MAX).then(|| value.to_owned())
        };
        let mut fetched = Fetched {
            validators: Validators {
                from: place(url.url()),
                etag: text(header::ETAG),
                last_modified: text(header::LAST_MODIFIED),
            },
            content_type: text(header::CONTENT_TYPE).unwrap_or_default(),
            url,
            bytes: 0,
            sha256: String::new(),
        };
        (fetched.bytes, fetched.sha256) = store(get, response, file).await?;
        match get.url.sha256() {
            Some(expected) if expected != fetched.sha256 => Err(FetchError::Checksum {
                url: get.url.to_string(),
                expected: expected.to_owned(),
                found: fetched.sha256,
            }),
            _ => Ok(Answer::Fetched(Box::new(fetched))),
        }
    }

    /// The first answer that is no redirect.
    async fn follow(&self, client: &Client, get: &Get) -> Result<Response, FetchError> {
        let mut url = get.url.clone();
        for _ in 0..=REDIRECTS_MAX {
            let response = self.hop(client, &url, get.validators.as_ref()).await?;
            let redirects = matches!(response.status().as_u16(), 301 | 302 | 303 | 307 | 308);
            let Some(target) = response
                .headers()
                .get(header::LOCATION)
                .filter(|_| redirects)
            else {
                return Ok(response);
            };
            // In headers that are not ASCII nothing can be relied on.
            let target = target.to_str().map_err(|_| FetchError::Url {
                url: url.to_string(),
                why: "it redirects to something that is not a URL".to_owned(),
            })?;
            // The fragment of a redirect is the browser's business, not a pin.
            let target = target.split('#').next().unwrap_or_default();
            url = url.join(target)?;
        }
        Err(FetchError::Redirects {
            url: get.url.to_string(),
            limit: REDIRECTS_MAX,
        })
    }

    /// One request and the head of its answer.
    async fn hop(
        &self,
        client: &Client,
        url: &WebUrl,
        validators: Option<&Validators>,
    ) -> Result<Response, FetchError> {
        let allow = self.inner.allow;
        let refused = |refused| address_refused(url.url(), refused);
        // Addresses that are written in the URL are not resolved, so nobody else looks at them.
        let literal = match url.url().host() {
            Some(Host::Ipv4(address)) => Some(IpAddr::V4(address)),
            Some(Host::Ipv6(address)) => Some(IpAddr::V6(address)),
            Some(Host::Domain(_)) | None => None,
        };
        if let Some(address) = literal {
            allow
                .check(&address.to_string(), address)
                .map_err(refused)?;
        }
        let mut request = client
            .get(url.url().clone())
            .header(header::ACCEPT_ENCODING, "identity");
        let validators = validators.filter(|known| known.from == place(url.url()));
        for (name, value) in [
            (
                header::IF_NONE_MATCH,
                validators.and_then(|known| known.etag.as_ref()),
            ),
            (
                header::IF_MODIFIED_SINCE,
                validators.and_then(|known| known.last_modified.as_ref()),
            ),
        ] {
            if let Some(value) = value {
                request = request.header(name, value);
            }
        }
        let failed = |error| self.failed(url, error);
        let response = request.send().await.map_err(failed)?;
        if self.inner.bounds.proxy.is_none()
            && let Some(peer) = response.remote_addr()
        {
            let host = url.url().host_str().unwrap_or_default();
            allow.check(host, peer.ip()).map_err(refused)?;
        }
        if response.status() == StatusCode::NOT_MODIFIED && validators.is_none() {
            return Err(FetchError::Status {
                url: url.to_string(),
                status: StatusCode::NOT_MODIFIED.as_u16(),
            });
        }
        Ok(response)
    }

    fn failed(&self, url: &WebUrl, error: reqwest::Error) -> FetchError {
        // Its text would show the query.
        let error = error.without_url();
        let mut source: Option<&(dyn std::error::Error + 'static)> = Some(&error);
        while let Some(cause) = source {
            if let Some(refused) = cause.downcast_ref::<Refused>() {
                let refused = Refused {
                    host: refused.host.clone(),
                    ..*refused
                };
                return address_refused(url.url(), refused);
            }
            source = cause.source();
        }
        if error.is_timeout() {
            return FetchError::Timeout {
                url: url.to_string(),
                limit: self.inner.bounds.connect_timeout,
            };
        }
        FetchError::Unreachable {
            url: url.to_string(),
            why: Chain(&error).to_string(),
        }
    }
}

/// Writes a body to a file; its size and digest.
async fn store(
    get: &Get,
    mut response: Response,
    file: &mut File,
) -> Result<(u64, String), FetchError> {
    let too_large = || FetchError::TooLarge {
        url: get.url.to_string(),
        limit: get.bytes_max,
    };
    let failed = |source| FetchError::File {
        url: get.url.to_string(),
        source,
    };
    if response
        .content_length()
        .is_some_and(|length| length > get.bytes_max)
    {
        return Err(too_large());
    }
    let (mut bytes, mut digest) = (0_u64, Sha256::new());
    loop {
        let chunk = response
            .chunk()
            .await
            .map_err(|error| FetchError::Unreachable {
                url: get.url.to_string(),
                why: format!(
                    "its answer broke off after {bytes} bytes: {}",
                    Chain(&error.without_url())
                ),
            })?;
        let Some(chunk) = chunk else { break };
        bytes = bytes.saturating_add(chunk.len() as u64);
        if bytes > get.bytes_max {
            return Err(too_large());
        }
        digest.update(&chunk);
        file.write_all(&chunk).await.map_err(failed)?;
    }
    file.flush().await.map_err(failed)?;
    Ok((bytes, HEXLOWER.encode(&digest.finalize())))
}

/// Everything that reqwest would decide by itself is decided here.
fn client(bounds: &Bounds, allow: Allow) -> Result<Client, FetchError> {
    install_crypto_provider();
    let failed = |error: reqwest::Error| client_failed(&Chain(&error).to_string());
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
        .dns_resolver(if bounds.proxy.is_some() {
            Allow::Proxy
        } else {
            allow
        });
    if let Some(proxy) = &bounds.proxy {
        builder = builder.proxy(reqwest::Proxy::all(proxy.clone()).map_err(failed)?);
    }
    builder.build().map_err(failed)
}

fn client_failed(why: &str) -> FetchError {
    FetchError::Client {
        why: why.to_owned(),
    }
}

fn address_refused(url: &Url, refused: Refused) -> FetchError {
    FetchError::Address {
        url: show(url),
        host: refused.host,
        address: refused.address,
        what: refused.what,
        allowable: refused.allowable,
    }
}

/// Who answered, for validators: signed URLs differ in their queries only.
fn place(url: &Url) -> String {
    let mut place = url.clone();
    place.set_query(None);
    place.set_fragment(None);
    place.into()
}
