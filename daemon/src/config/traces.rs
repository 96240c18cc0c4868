//! Section `[traces]`: the collector that receives spans, and the share of calls that have one.

use std::net::IpAddr;
use std::path::PathBuf;
use std::time::Duration;

use serde::Deserialize;
use serde::de::{Deserializer, Error as _};
use url::{Host, Url};

use super::values;

/// Section `[traces]`: export of spans.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TracesConfig {
    /// URL of the collector; `None` exports nothing.
    #[serde(deserialize_with = "collector_url")]
    pub endpoint: Option<Url>,
    /// Absolute path of a PEM file with the authorities that sign the collector's certificate; `None` means the
    /// system's.
    #[serde(deserialize_with = "values::optional_path")]
    pub ca_file: Option<PathBuf>,
    /// Absolute path of a file with headers of every export; `None` sends none.
    #[serde(deserialize_with = "values::optional_path")]
    pub headers_file: Option<PathBuf>,
    /// Share of the calls without a trace of their client that are traced, from 0 to 1.
    #[serde(deserialize_with = "share")]
    pub sample_ratio: f64,
    /// Deadline of one export. No call waits for an export.
    #[serde(skip, default = "values::seconds::<10>")]
    pub timeout: Duration,
    /// Maximum number of spans that wait for their export. Each costs about 1 KiB of memory.
    #[serde(skip, default = "values::number::<4096>")]
    pub queue_max: usize,
}

impl TracesConfig {
    /// Returns `true` if the connection to the collector is encrypted, or does not leave the host.
    pub(super) fn is_private(&self) -> bool {
        self.endpoint.as_ref().is_none_or(|endpoint| {
            let is_loopback = match endpoint.host() {
                Some(Host::Ipv4(address)) => IpAddr::from(address).is_loopback(),
                Some(Host::Ipv6(address)) => IpAddr::from(address).is_loopback(),
                Some(Host::Domain(name)) => name == "localhost",
                None => false,
            };
            is_loopback || self.uses_tls()
        })
    }

    /// Returns `true` if the collector is reached by TLS.
    #[must_use]
    pub fn uses_tls(&self) -> bool {
        let mut endpoint = self.endpoint.iter();
        endpoint.any(|endpoint| endpoint.scheme() == "https")
    }
}

fn collector_url<'de, D: Deserializer<'de>>(source: D) -> Result<Option<Url>, D::Error> {
    let Some(text) = values::optional_text(source)? else {
        return Ok(None);
    };
    // The text may have a password, so the message does not repeat it.
    let fault = "must be http://HOST:PORT or https://HOST:PORT of a collector's OTLP receiver for gRPC, without path, \
                 query or user";
    let is_plain = |url: &Url| {
        matches!(url.scheme(), "http" | "https")
            && url.has_host()
            && url.username().is_empty()
            && url.password().is_none()
            && url.path() == "/"
            && url.query().is_none()
            && url.fragment().is_none()
    };
    let url = Url::parse(&text).ok().filter(is_plain);
    url.map(Some).ok_or_else(|| D::Error::custom(fault))
}

fn share<'de, D: Deserializer<'de>>(source: D) -> Result<f64, D::Error> {
    let share = f64::deserialize(source)?;
    if (0.0..=1.0).contains(&share) {
        return Ok(share);
    }
    let message = format!("must be between 0 and 1, is {share}");
    Err(D::Error::custom(message))
}

#[cfg(test)]
mod tests {
    use crate::config::Config;

    fn endpoint_fault(endpoint: &str) -> Option<String> {
        let loaded = Config::from_toml(&format!("traces.endpoint = {endpoint:?}"));
        let mut faults = loaded.err()?.0;
        assert_eq!(faults.len(), 1, "{faults:?}");
        faults.pop()
    }

    #[test]
    fn an_invalid_endpoint_is_a_fault_that_hides_its_text() {
        for endpoint in [
            "127.0.0.1:4317",
            "ftp://127.0.0.1:4317",
            "unix:/run/otel.sock",
            "http://",
            "http://127.0.0.1:99999",
            "http://user:canary@collector:4317",
            "http://collector:4317/v1/traces",
            "http://collector:4317/?token=canary",
            "soon",
        ] {
            let fault = endpoint_fault(endpoint).expect(endpoint);
            assert!(
                fault.starts_with("traces.endpoint: must be http://"),
                "{fault}"
            );
            assert!(!fault.contains("canary"), "{fault}");
        }
        for endpoint in ["", "http://127.0.0.1:4317", "https://[::1]:4317/"] {
            assert_eq!(endpoint_fault(endpoint), None, "{endpoint}");
        }
    }

    #[test]
    fn settings_are_checked_with_their_relations() {
        for (text, fault) in [
            (
                "traces.sample_ratio = 1.5",
                "traces.sample_ratio: must be between 0 and 1, is 1.5",
            ),
            (
                "traces = { endpoint = \"http://collector:4317\", headers_file = \"/etc/skilld/h\" }",
                "traces.headers_file: would be sent unencrypted",
            ),
            (
                "traces = { endpoint = \"http://127.0.0.1:4317\", ca_file = \"/etc/skilld/ca\" }",
                "traces.ca_file: needs an https:// endpoint",
            ),
        ] {
            let faults = Config::from_toml(text).expect_err(text).0;
            assert!(
                faults.len() == 1 && faults[0].starts_with(fault),
                "{faults:?}"
            );
        }
        for text in [
            "traces = { endpoint = \"http://localhost:4317\", headers_file = \"/etc/skilld/h\" }",
            "traces = { endpoint = \"http://[::1]:4317\", headers_file = \"/etc/skilld/h\" }",
            "traces = { endpoint = \"https://collector\", headers_file = \"/h\", ca_file = \"/c\" }",
        ] {
            Config::from_toml(text).expect(text);
        }
    }
}
