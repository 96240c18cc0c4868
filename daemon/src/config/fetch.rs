//! Section `[fetch]`: timeout and proxy of everything that the daemon fetches by URL.

use std::path::PathBuf;
use std::time::Duration;

use serde::Deserialize;
use serde::de::Deserializer;
use url::Url;

use super::values;
use crate::fetch::FetchOptions;

/// Keys of section `[fetch]`.
#[derive(Debug, Deserialize)]
#[serde(remote = "FetchOptions", deny_unknown_fields)]
pub(super) struct FetchSection {
    #[serde(skip, default = "connect_timeout")]
    connect_timeout: Duration,
    #[serde(deserialize_with = "values::time")]
    timeout: Duration,
    #[serde(deserialize_with = "proxy_url")]
    proxy: Option<Url>,
    /// From `skills.package_ca_file`.
    #[serde(skip)]
    ca_file: Option<PathBuf>,
}

fn connect_timeout() -> Duration {
    FetchOptions::CONNECT_TIMEOUT
}

fn proxy_url<'de, D: Deserializer<'de>>(source: D) -> Result<Option<Url>, D::Error> {
    values::parsed(source, |text| {
        if text.is_empty() {
            return Ok(None);
        }
        let is_plain = |url: &Url| {
            let has_credentials = !url.username().is_empty() || url.password().is_some();
            matches!(url.scheme(), "http" | "https") && url.has_host() && !has_credentials
        };
        // The message leaves the value out because it may hold a password.
        let message = "must be http://HOST:PORT or https://HOST:PORT, without credentials";
        let url = Url::parse(text).ok().filter(is_plain);
        url.map(Some).ok_or_else(|| message.to_owned())
    })
}
