//! How a request names a skill.

use super::Specifier;
use crate::error::{Error, Result};

/// Bytes of a name.
const NAME_BYTES_MAX: usize = 64;
/// Names in an alias; no root is read deeper.
const ALIAS_NAMES_MAX: usize = 8;

/// How a request names a skill: `name`, `name@specifier` or `name@sha256:digest`.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct SkillRef {
    /// A name, or an alias: the names of a skill and of one within it, with `/` between them. Never a path.
    pub name: String,
    /// Which one of that name.
    pub select: Select,
}

/// Which version of a skill.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Select {
    /// The one that a name stands for.
    Current,
    /// The highest version that fits.
    Version(Specifier),
    /// The one with this digest, 64 hex digits; older ones are still in the store.
    Digest(String),
}

impl SkillRef {
    /// Reads a reference. `field` is named in the error.
    ///
    /// # Errors
    /// `Invalid`.
    pub fn parse(field: &str, text: &str) -> Result<Self> {
        let (name, select) = text
            .split_once('@')
            .map_or((text, None), |(name, rest)| (name, Some(rest)));
        if !is_alias(name) {
            let message = "must be NAME, NAME@VERSION or NAME@sha256:DIGEST, the name of the form \
                           [A-Za-z0-9][A-Za-z0-9._-]{0,63}, or of two and more of these with / between them";
            return Err(Error::invalid(field, message));
        }
        let select = match select {
            None => Select::Current,
            Some("") => return Err(Error::invalid(field, "the version after @ is missing")),
            Some(select) => match select.strip_prefix("sha256:") {
                Some(digest) if is_digest(digest) => Select::Digest(digest.to_owned()),
                Some(_) => {
                    return Err(Error::invalid(
                        field,
                        "a digest has 64 lower-case hex digits",
                    ));
                }
                None => match Specifier::parse(select) {
                    Ok(specifier) if specifier.is_any() => Select::Current,
                    Ok(specifier) => Select::Version(specifier),
                    Err(error) => return Err(Error::invalid(field, error.to_string())),
                },
            },
        };
        Ok(Self {
            name: name.to_owned(),
            select,
        })
    }
}

impl std::fmt::Display for SkillRef {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match &self.select {
            Select::Current => write!(f, "{}", self.name),
            Select::Version(version) => write!(f, "{}@{version}", self.name),
            Select::Digest(digest) => write!(f, "{}@sha256:{digest}", self.name),
        }
    }
}

/// Whether a name is one path segment `[A-Za-z0-9][A-Za-z0-9._-]{0,63}`.
#[must_use]
pub fn is_name(name: &str) -> bool {
    let plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '-');
    name.starts_with(|c: char| c.is_ascii_alphanumeric())
        && name.len() <= NAME_BYTES_MAX
        && name.chars().all(plain)
}

/// Whether it is a name, or names with `/` between them.
fn is_alias(alias: &str) -> bool {
    alias.split('/').count() <= ALIAS_NAMES_MAX && alias.split('/').all(is_name)
}

/// Whether a text is 64 lower-case hex digits.
#[must_use]
pub fn is_digest(text: &str) -> bool {
    text.len() == 64
        && text
            .bytes()
            .all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn references_are_read() {
        let digest = "0".repeat(64);
        let long = "n".repeat(64);
        let version = |name, text| {
            let specifier = Specifier::parse(text).expect("a specifier");
            Some((name, Select::Version(specifier)))
        };
        for (text, expected) in [
            ("csv-report", Some(("csv-report", Select::Current))),
            ("a@1.2.3+x", version("a", "1.2.3+x")),
            ("a@>=1.0, <2", version("a", ">=1.0, <2")),
            ("a@^1.2", version("a", "^1.2")),
            ("a@*", Some(("a", Select::Current))),
            ("a@latest", Some(("a", Select::Current))),
            ("a@^", None),
            ("a@ ", Some(("a", Select::Current))),
            ("a/b", Some(("a/b", Select::Current))),
            ("a/b@~=1.0", version("a/b", "~=1.0")),
            ("a/../b", None),
            ("a//b", None),
            ("/a", None),
            ("a/", None),
            ("a/a/a/a/a/a/a/a/a", None),
            (
                &format!("a@sha256:{digest}"),
                Some(("a", Select::Digest(digest.clone()))),
            ),
            (&long, Some((long.as_str(), Select::Current))),
            (&format!("{long}n"), None),
            ("", None),
            (".", None),
            ("..", None),
            ("a\0", None),
            ("-a", None),
            ("a+b", None),
            ("a@", None),
            ("a@1/2", None),
            ("a@sha256:abc", None),
            (&format!("a@sha256:{}", "G".repeat(64)), None),
        ] {
            let read = SkillRef::parse("skills[0]", text).ok();
            let expected = expected.map(|(name, select)| SkillRef {
                name: name.to_owned(),
                select,
            });
            assert_eq!(read, expected, "{text:?}");
        }
    }
}
