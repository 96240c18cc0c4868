//! What is fetched by URL: bounds and the proxy, and the roots of skills that are on servers.

use url::Url;

use super::RemoteConfig;
use super::check::{Check, absolute};
use super::raw::{RawFetch, RawSkills};
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

pub(super) fn remote(check: &mut Check<'_>, raw: &RawSkills, fetch: &Bounds) -> RemoteConfig {
    let config = RemoteConfig {
        cache_dir: absolute(check, "skills.cache_dir", &raw.cache_dir),
        refresh_interval: check.time("skills.refresh_interval", &raw.refresh_interval),
        refresh_timeout: check.time("skills.refresh_timeout", &raw.refresh_timeout),
        allow_private_addresses: raw.allow_private_addresses,
        download_bytes_max: check.bytes("skills.download_bytes_max", &raw.download_bytes_max),
        archive_bytes_max: check.bytes("skills.archive_bytes_max", &raw.archive_bytes_max),
        archive_file_bytes_max: check
            .bytes("skills.archive_file_bytes_max", &raw.archive_file_bytes_max),
        archive_entries_max: check.count("skills.archive_entries_max", raw.archive_entries_max, 1),
        archive_depth_max: check.count("skills.archive_depth_max", raw.archive_depth_max, 1),
        archive_ratio_max: check.count("skills.archive_ratio_max", raw.archive_ratio_max, 1),
        fetch: fetch.clone(),
    };
    check.order(
        ("fetch.timeout", fetch.timeout),
        ("skills.refresh_timeout", config.refresh_timeout),
    );
    config
}
