//! What is fetched by URL: bounds and the proxy.

use url::Url;

use super::check::Check;
use super::raw::RawFetch;
use crate::fetch::Bounds;

pub(super) fn fetch(check: &mut Check<'_>, raw: &RawFetch) -> Bounds {
    let config = Bounds {
        connect_timeout: check.time("fetch.connect_timeout", &raw.connect_timeout),
        timeout: check.time("fetch.timeout", &raw.timeout),
        proxy: (!raw.proxy.is_empty())
            .then(|| proxy(check, &raw.proxy))
            .flatten(),
    };
    check.order(
        ("fetch.connect_timeout", config.connect_timeout),
        ("fetch.timeout", config.timeout),
    );
    config
}

fn proxy(check: &mut Check<'_>, text: &str) -> Option<Url> {
    let plain = |url: &Url| {
        let credentials = !url.username().is_empty() || url.password().is_some();
        matches!(url.scheme(), "http" | "https") && url.has_host() && !credentials
    };
    let proxy = Url::parse(text).ok().filter(plain);
    if proxy.is_none() {
        // What was given may hold a password.
        let message = "must be http://HOST:PORT or https://HOST:PORT, without credentials";
        check.fault("fetch.proxy", message);
    }
    proxy
}
