//! URLs that may be fetched: http or https, a host, no credentials, and optionally the digest of what is there.

use std::fmt;
use std::str::FromStr;

use skilld_common::excerpts::cut_chars;
use url::{Host, Url};

use super::{FetchError, FetchErrorKind};

/// Maximum length of a URL in bytes, as it was written and as it is sent.
const URL_BYTES_MAX: usize = 2048;
/// Maximum number of characters of a URL that a message shows.
const SHOWN_CHARS_MAX: usize = 200;

/// Checked URL without its fragment. Displayed without its query, which may hold secrets.
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct WebUrl {
    url: Url,
    sha256: Option<String>,
}

impl WebUrl {
    /// Returns the URL with its query.
    pub fn url(&self) -> &Url {
        &self.url
    }

    /// Returns the expected SHA-256 of the content, 64 lower-case hex digits, from the fragment `#sha256=HEX`.
    pub fn sha256(&self) -> Option<&str> {
        self.sha256.as_deref()
    }

    /// Returns the URL with another expected SHA-256; `None` expects none.
    #[must_use]
    pub fn pinned(self, sha256: Option<String>) -> Self {
        Self { sha256, ..self }
    }

    /// Resolves a reference in a document that was fetched from this URL, for instance `../x.zip`.
    ///
    /// # Errors
    /// `Url` for what may not be fetched, `Downgrade` for http in what came by https.
    pub fn join(&self, reference: &str) -> Result<Self, FetchError> {
        let joined = self.url.join(reference).map_err(|error| {
            FetchError::refused(shorten(&hide_secrets(reference)), error.to_string())
        })?;
        let joined = Self::try_from(joined)?;
        if self.url.scheme() == "https" && joined.url.scheme() == "http" {
            let to = joined.to_string();
            return Err(self.fetch_error(FetchErrorKind::Downgrade { to }));
        }
        Ok(joined)
    }

    /// Makes the error of a fetch of this URL.
    pub(crate) fn fetch_error(&self, kind: FetchErrorKind) -> FetchError {
        let url = self.to_string();
        FetchError { url, kind }
    }
}

impl FromStr for WebUrl {
    type Err = FetchError;

    fn from_str(text: &str) -> Result<Self, FetchError> {
        let text = text.trim();
        let refused = |why: String| FetchError::refused(shorten(&hide_secrets(text)), why);
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
        let refused = |url: &Url, why: &str| Err(FetchError::refused(shown_url(url), why));
        // Checked for every URL, also those of redirects and joins.
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
        f.write_str(&shown_url(&self.url))
    }
}

/// Prints the URL as [`fmt::Display`] does: a logged configuration must not contain credentials.
impl fmt::Debug for WebUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "WebUrl({self})")
    }
}

/// Returns a URL without query, fragment and credentials, which may be secret.
fn shown_url(url: &Url) -> String {
    let mut shown = url.clone();
    // These fail for URLs that cannot have them, which then hold no secret there.
    let _ = shown.set_username("");
    let _ = shown.set_password(None);
    shown.set_fragment(None);
    let has_query = url.query().is_some();
    shown.set_query(has_query.then_some("…"));
    shorten(&String::from(shown).replace("%E2%80%A6", "…"))
}

/// Returns an unparsable URL without query, fragment and credentials.
pub(super) fn hide_secrets(text: &str) -> String {
    let end = text.find(['?', '#']).unwrap_or(text.len());
    let text = text.get(..end).unwrap_or_default();
    let shown = match (text.split_once("://"), text.rsplit_once('@')) {
        (Some((scheme, _)), Some((_, host))) => format!("{scheme}://{host}"),
        _ => text.to_owned(),
    };
    shown.replace(char::is_control, " ")
}

fn too_long() -> String {
    format!("it is longer than {URL_BYTES_MAX} bytes")
}

pub(super) fn shorten(text: &str) -> String {
    cut_chars(text, SHOWN_CHARS_MAX)
}
