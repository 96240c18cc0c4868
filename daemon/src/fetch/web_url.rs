//! URLs that may be fetched: http or https, a host, no credentials, and optionally the digest of what is there.

use std::fmt;
use std::str::FromStr;

use url::{Host, Url};

use super::FetchError;

/// Longest URL, bytes, as it was written and as it is sent.
const URL_BYTES_MAX: usize = 2048;
/// Characters of a URL that are shown.
const SHOWN_CHARS_MAX: usize = 200;

/// A URL that was checked, without its fragment. Shown without its query, which may hold secrets.
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct WebUrl {
    url: Url,
    sha256: Option<String>,
}

impl WebUrl {
    /// The URL, its query included.
    #[must_use]
    pub fn url(&self) -> &Url {
        &self.url
    }

    /// What it must hold: 64 lower-case hex digits, from the fragment `#sha256=HEX`.
    #[must_use]
    pub fn sha256(&self) -> Option<&str> {
        self.sha256.as_deref()
    }

    /// The same URL with a digest that is known from elsewhere.
    #[must_use]
    pub fn pinned(self, sha256: Option<String>) -> Self {
        Self { sha256, ..self }
    }

    /// A URL that was found in a document that was fetched from this one, for instance `../x.zip`.
    ///
    /// # Errors
    /// `Url` for what may not be fetched, `Downgrade` for http in what came by https.
    pub fn join(&self, reference: &str) -> Result<Self, FetchError> {
        let joined = self.url.join(reference).map_err(|error| FetchError::Url {
            url: shorten(without_secrets(reference)),
            why: error.to_string(),
        })?;
        let joined = Self::try_from(joined)?;
        if self.url.scheme() == "https" && joined.url.scheme() == "http" {
            return Err(FetchError::Downgrade {
                url: self.to_string(),
                to: joined.to_string(),
            });
        }
        Ok(joined)
    }
}

impl FromStr for WebUrl {
    type Err = FetchError;

    fn from_str(text: &str) -> Result<Self, FetchError> {
        let text = text.trim();
        let refused = |why: String| FetchError::Url {
            url: shorten(without_secrets(text)),
            why,
        };
        if text.len() > URL_BYTES_MAX {
            return Err(refused(too_long()));
        }
        let url = Url::parse(text).map_err(|error| refused(error.to_string()))?;
        Self::try_from(url)
    }
}

impl TryFrom<Url> for WebUrl {
    type Error = FetchError;

    fn try_from(mut url: Url) -> Result<Self, FetchError> {
        let refused = |url: &Url, why: &str| {
            Err(FetchError::Url {
                url: show(url),
                why: why.to_owned(),
            })
        };
        // However it came about: by a redirect, or by what was joined or escaped.
        if url.as_str().len() > URL_BYTES_MAX {
            return refused(&url, &too_long());
        }
        if !matches!(url.scheme(), "http" | "https") {
            return refused(&url, "only http:// and https:// are fetched");
        }
        if !url.username().is_empty() || url.password().is_some() {
            return refused(
                &url,
                "it holds a user name or a password; only what needs no credentials can be fetched",
            );
        }
        if url
            .host()
            .is_none_or(|host| matches!(host, Host::Domain("")))
        {
            return refused(&url, "it has no host");
        }
        let sha256 = match url.fragment() {
            None | Some("") => None,
            Some(fragment) => match fragment.strip_prefix("sha256=") {
                Some(digest)
                    if digest.len() == 64 && digest.bytes().all(|b| b.is_ascii_hexdigit()) =>
                {
                    Some(digest.to_ascii_lowercase())
                }
                _ => return refused(&url, "a fragment must be #sha256= and 64 hex digits"),
            },
        };
        url.set_fragment(None);
        Ok(Self { url, sha256 })
    }
}

impl fmt::Display for WebUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&show(&self.url))
    }
}

/// As it is shown: whoever prints a configuration for a log must not print what opens a bucket.
impl fmt::Debug for WebUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "WebUrl({self})")
    }
}

/// A URL without what may be secret.
pub(super) fn show(url: &Url) -> String {
    let mut shown = url.clone();
    // These fail for URLs that cannot have them, which then hold no secret there.
    let _ = shown.set_username("");
    let _ = shown.set_password(None);
    shown.set_fragment(None);
    let has_query = url.query().is_some();
    shown.set_query(has_query.then_some("…"));
    let shown = String::from(shown).replace("%E2%80%A6", "…");
    shorten(shown)
}

/// The same for a text that could not be read as a URL.
fn without_secrets(text: &str) -> String {
    let end = text.find(['?', '#']).unwrap_or(text.len());
    let shown = text.get(..end).unwrap_or_default();
    let credentials = shown.find("://").and_then(|start| {
        let authority = shown.get(start + 3..)?;
        let length = authority.find('/').unwrap_or(authority.len());
        let at = authority.get(..length)?.rfind('@')?;
        Some((start + 3, start + 3 + at + 1))
    });
    let mut shown = shown.to_owned();
    if let Some((start, end)) = credentials
        && shown.is_char_boundary(start)
        && shown.is_char_boundary(end)
    {
        shown.replace_range(start..end, "");
    }
    shown.replace(char::is_control, " ")
}

fn too_long() -> String {
    format!("it is longer than {URL_BYTES_MAX} bytes")
}

fn shorten(text: String) -> String {
    match text.char_indices().nth(SHOWN_CHARS_MAX) {
        Some((end, _)) => format!("{}…", text.get(..end).unwrap_or_default()),
        None => text,
    }
}
