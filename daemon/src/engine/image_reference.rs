//! References of container images: `[REGISTRY/]NAME[:TAG][@sha256:DIGEST]`. Pure.
//!
//! A reference becomes part of a path of the engine's API, so its grammar is checked before any use.

use std::fmt;

/// Maximum length of a reference in bytes.
const BYTES_MAX: usize = 512;
/// Maximum length of a tag in bytes.
const TAG_BYTES_MAX: usize = 128;
/// Prefix of a digest.
const DIGEST_PREFIX: &str = "sha256:";
/// Registry of a reference that names none.
pub const DEFAULT_REGISTRY: &str = "docker.io";

/// Parsed image reference.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ImageReference {
    /// Name with its registry as written, for instance `ghcr.io/example/tools`.
    pub name: String,
    /// Tag; `None` if the reference has none.
    pub tag: Option<String>,
    /// Digest, `sha256:` and 64 hex digits, that pins the image; `None` if the reference has none.
    pub digest: Option<String>,
}

impl ImageReference {
    /// Parses a reference.
    ///
    /// # Errors
    /// A message that continues "REFERENCE …".
    pub fn parse(text: &str) -> Result<Self, String> {
        if text.is_empty() {
            return Err("must name an image".to_owned());
        }
        if text.len() > BYTES_MAX {
            return Err(format!("has more than {BYTES_MAX} bytes"));
        }
        let (named, digest) = match text.split_once('@') {
            Some((named, digest)) => (named, Some(digest)),
            None => (text, None),
        };
        if digest.is_some_and(|digest| !is_digest(digest)) {
            return Err("has a digest that is not sha256: and 64 hex digits".to_owned());
        }
        // A colon before the last slash belongs to the registry's port.
        let last = named.rfind('/').map_or(0, |slash| slash + 1);
        let (name, tag) = match named.get(last..).and_then(|part| part.find(':')) {
            Some(colon) => {
                let (name, tag) = named.split_at(last + colon);
                (name, tag.strip_prefix(':'))
            }
            None => (named, None),
        };
        if tag.is_some_and(|tag| !is_tag(tag)) {
            return Err("has a tag that is not 1 to 128 of A-Z, a-z, 0-9, . _ -".to_owned());
        }
        if !is_name(name) {
            return Err(
                "is not an image reference: write it like registry.example.org/name:tag or name@sha256:…"
                    .to_owned(),
            );
        }
        Ok(Self {
            name: name.to_owned(),
            tag: tag.map(str::to_owned),
            digest: digest.map(str::to_owned),
        })
    }

    /// Returns the host of the registry, with its port if the reference has one.
    pub fn registry(&self) -> &str {
        match self.name.split_once('/') {
            Some((host, _)) if is_registry(host) => host,
            _ => DEFAULT_REGISTRY,
        }
    }
}

impl fmt::Display for ImageReference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.name)?;
        if let Some(tag) = &self.tag {
            write!(f, ":{tag}")?;
        }
        if let Some(digest) = &self.digest {
            write!(f, "@{digest}")?;
        }
        Ok(())
    }
}

/// Returns `true` if the first component of a name is a registry and not a part of the name.
fn is_registry(component: &str) -> bool {
    component.contains(['.', ':']) || component == "localhost"
}

fn is_name(name: &str) -> bool {
    let (registry, path) = match name.split_once('/') {
        Some((first, path)) if is_registry(first) => (Some(first), path),
        _ => (None, name),
    };
    registry.is_none_or(is_host) && path.split('/').all(is_component)
}

fn is_host(text: &str) -> bool {
    let (host, port) = match text.split_once(':') {
        Some((host, port)) => (host, Some(port)),
        None => (text, None),
    };
    let is_label = |label: &str| {
        let inner = |byte: &u8| byte.is_ascii_alphanumeric() || *byte == b'-';
        !label.is_empty() && label.as_bytes().iter().all(inner)
    };
    let is_port = |port: &str| port.parse::<u16>().is_ok();
    host.split('.').all(is_label) && port.is_none_or(is_port)
}

fn is_component(text: &str) -> bool {
    let inner =
        |byte: &u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || b"._-".contains(byte);
    let outer = |byte: Option<&u8>| byte.is_some_and(u8::is_ascii_alphanumeric);
    let bytes = text.as_bytes();
    outer(bytes.first()) && outer(bytes.last()) && bytes.iter().all(inner)
}

fn is_tag(text: &str) -> bool {
    let inner = |byte: &u8| byte.is_ascii_alphanumeric() || b"._-".contains(byte);
    let is_first = |byte: &u8| byte.is_ascii_alphanumeric() || *byte == b'_';
    let bytes = text.as_bytes();
    bytes.len() <= TAG_BYTES_MAX && bytes.first().is_some_and(is_first) && bytes.iter().all(inner)
}

fn is_digest(text: &str) -> bool {
    let hex = |byte: &u8| byte.is_ascii_digit() || (b'a'..=b'f').contains(byte);
    text.strip_prefix(DIGEST_PREFIX)
        .is_some_and(|digits| digits.len() == 64 && digits.as_bytes().iter().all(hex))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reference_is_name_tag_and_digest_of_a_registry() {
        let digest = format!("sha256:{}", "0a".repeat(32));
        let pinned = format!("skilld/base@{digest}");
        let both = format!("localhost:5000/a/b:1.2@{digest}");
        let digest = Some(digest.as_str());
        for (text, name, tag, digest, registry) in [
            ("debian", "debian", None, None, "docker.io"),
            (
                "skilld/base:latest",
                "skilld/base",
                Some("latest"),
                None,
                "docker.io",
            ),
            (pinned.as_str(), "skilld/base", None, digest, "docker.io"),
            (
                both.as_str(),
                "localhost:5000/a/b",
                Some("1.2"),
                digest,
                "localhost:5000",
            ),
            ("ghcr.io/a/b_c", "ghcr.io/a/b_c", None, None, "ghcr.io"),
            (
                "r.example:443/x:y",
                "r.example:443/x",
                Some("y"),
                None,
                "r.example:443",
            ),
        ] {
            let parsed = ImageReference::parse(text).expect(text);
            let parts = (
                parsed.name.as_str(),
                parsed.tag.as_deref(),
                parsed.digest.as_deref(),
            );
            assert_eq!(parts, (name, tag, digest), "{text}");
            assert_eq!(parsed.registry(), registry, "{text}");
            assert_eq!(parsed.to_string(), text);
        }
    }

    #[test]
    fn text_that_could_leave_the_path_of_an_api_call_is_refused() {
        let long = "a".repeat(BYTES_MAX + 1);
        for text in [
            "",
            " ",
            "a b",
            "../x",
            "a/../b",
            "a//b",
            "/a",
            "a/",
            "a?b=c",
            "a#b",
            "a%2fb",
            "A",
            "-a",
            "a:",
            "a:b:c",
            "a@",
            "a@sha256:00",
            "a@md5:00",
            "a:/b",
            "é",
            "a\nb",
            ".",
            "a/.",
            "x:99999/a",
            &long,
        ] {
            assert!(ImageReference::parse(text).is_err(), "{text:?}");
        }
    }
}
