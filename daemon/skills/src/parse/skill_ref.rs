//! References to skills in requests: `name`, `name@specifier`, `name@sha256:digest`, and each of them with a plugin
//! before the name: `plugin:name`.
//!
//! A skill that was given with its plugin has a folder of its own in a workspace, `plugin--name`, because `:` separates
//! the folders of search paths. The folder's name is accepted in place of `plugin:name`.

use std::borrow::Cow;

use data_encoding::HEXLOWER;
use sha2::{Digest as _, Sha256};

use super::version::Specifier;
use crate::error::{Error, Result};

/// Maximum length of a name, in bytes.
const NAME_BYTES_MAX: usize = 64;
/// Maximum number of names in an alias; no root is read deeper.
const ALIAS_NAMES_MAX: usize = 8;
/// Text between the names of a plugin and of a skill in the name of a folder.
const SCOPE_SEPARATOR: &str = "--";
/// Number of hex digits of a hash in the name of a folder.
const HASH_DIGITS: usize = 8;

/// Parsed reference to a skill: `name`, `name@specifier` or `name@sha256:digest`.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct SkillRef {
    /// Name or alias of the skill. An alias is the names of a skill and of one within it, with `/` between them, or
    /// those of a plugin and of a skill with `:` between them. Never a path.
    pub name: String,
    /// Version of that name.
    pub version: VersionRef,
}

/// Part of a reference that selects a version.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum VersionRef {
    /// Default version of the name.
    Current,
    /// Highest version that fits.
    Matching(Specifier),
    /// Content with this digest, 64 hex digits, as long as the store has it.
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
        if !is_alias(name) && split_scope(name).is_none() {
            let message = "must be NAME, NAME@VERSION or NAME@sha256:DIGEST, the name of the form \
                           [A-Za-z0-9][A-Za-z0-9._-]{0,63}, or of two and more of these with / between them, or \
                           PLUGIN:NAME";
            return Err(Error::invalid(field, message));
        }
        let select = match select {
            None => VersionRef::Current,
            Some("") => return Err(Error::invalid(field, "the version after @ is missing")),
            Some(select) => match select.strip_prefix("sha256:") {
                Some(digest) if is_digest(digest) => VersionRef::Digest(digest.to_owned()),
                Some(_) => {
                    return Err(Error::invalid(
                        field,
                        "a digest has 64 lower-case hex digits",
                    ));
                }
                None => match Specifier::parse(select) {
                    Ok(specifier) if specifier.is_any() => VersionRef::Current,
                    Ok(specifier) => VersionRef::Matching(specifier),
                    Err(error) => return Err(Error::invalid(field, error.to_string())),
                },
            },
        };
        Ok(Self {
            name: name.to_owned(),
            version: select,
        })
    }
}

impl std::fmt::Display for SkillRef {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match &self.version {
            VersionRef::Current => write!(f, "{}", self.name),
            VersionRef::Matching(version) => write!(f, "{}@{version}", self.name),
            VersionRef::Digest(digest) => write!(f, "{}@sha256:{digest}", self.name),
        }
    }
}

/// Returns `true` if a name is one path segment `[A-Za-z0-9][A-Za-z0-9._-]{0,63}`.
#[must_use]
pub fn is_name(name: &str) -> bool {
    let plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '-');
    name.starts_with(|c: char| c.is_ascii_alphanumeric())
        && name.len() <= NAME_BYTES_MAX
        && name.chars().all(plain)
}

/// Returns `true` if a plugin can have a name: that of a skill, without two hyphens in a row, which end it in the name
/// of a folder.
pub(crate) fn is_plugin_name(name: &str) -> bool {
    is_name(name) && !name.contains(SCOPE_SEPARATOR)
}

/// Returns the name of a skill with its plugin.
pub(crate) fn scoped_name(plugin: &str, skill: &str) -> String {
    format!("{plugin}:{skill}")
}

/// Returns the name of the folder in which a workspace has a skill of this name in a request. It differs from the name
/// only for `plugin:name`: the folder is `plugin--name`, and if that is too long, the beginning of it and of its
/// SHA-256.
#[must_use]
pub fn folder_name(name: &str) -> Cow<'_, str> {
    let Some((plugin, skill)) = split_scope(name) else {
        return Cow::Borrowed(name);
    };
    let mut folder = format!("{plugin}{SCOPE_SEPARATOR}{skill}");
    if folder.len() > NAME_BYTES_MAX {
        let mut hash = HEXLOWER.encode(&Sha256::digest(name));
        hash.truncate(HASH_DIGITS);
        folder.truncate(NAME_BYTES_MAX - HASH_DIGITS - 1);
        folder = format!("{folder}-{hash}");
    }
    Cow::Owned(folder)
}

/// Splits `plugin:name`; returns `None` for everything else.
fn split_scope(name: &str) -> Option<(&str, &str)> {
    let (plugin, skill) = name.split_once(':')?;
    (is_plugin_name(plugin) && is_name(skill)).then_some((plugin, skill))
}

/// Returns `true` for a name, or names with `/` between them.
fn is_alias(alias: &str) -> bool {
    alias.split('/').count() <= ALIAS_NAMES_MAX && alias.split('/').all(is_name)
}

/// Returns `true` if a text is 64 lower-case hex digits.
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
            Some((name, VersionRef::Matching(specifier)))
        };
        for (text, expected) in [
            ("csv-report", Some(("csv-report", VersionRef::Current))),
            ("a@1.2.3+x", version("a", "1.2.3+x")),
            ("a@>=1.0, <2", version("a", ">=1.0, <2")),
            ("a@^1.2", version("a", "^1.2")),
            ("a@*", Some(("a", VersionRef::Current))),
            ("a@latest", Some(("a", VersionRef::Current))),
            ("a@^", None),
            ("a@ ", Some(("a", VersionRef::Current))),
            ("a/b", Some(("a/b", VersionRef::Current))),
            ("a/b@~=1.0", version("a/b", "~=1.0")),
            ("a/../b", None),
            ("a//b", None),
            ("/a", None),
            ("a/", None),
            ("a/a/a/a/a/a/a/a/a", None),
            ("a:b", Some(("a:b", VersionRef::Current))),
            ("a:b--c", Some(("a:b--c", VersionRef::Current))),
            ("a:b@^1.2", version("a:b", "^1.2")),
            (
                &format!("a:b@sha256:{digest}"),
                Some(("a:b", VersionRef::Digest(digest.clone()))),
            ),
            ("a:b:c", None),
            ("a--b:c", None),
            ("a:b/c", None),
            ("a/b:c", None),
            (":b", None),
            ("a:", None),
            ("a:..", None),
            (
                &format!("a@sha256:{digest}"),
                Some(("a", VersionRef::Digest(digest.clone()))),
            ),
            (&long, Some((long.as_str(), VersionRef::Current))),
            (&format!("{long}n"), None),
            ("", None),
            (".", None),
            ("..", None),
            ("a\0", None),
            (" a", None),
            ("a ", None),
            ("a\n", None),
            ("**a**", None),
            ("`a`", None),
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
                version: select,
            });
            assert_eq!(read, expected, "{text:?}");
        }
    }

    #[test]
    fn a_skill_of_a_plugin_has_a_folder_that_is_a_name_of_its_own() {
        for (name, folder) in [
            ("deploy", "deploy"),
            ("a/b", "a/b"),
            ("acme:deploy", "acme--deploy"),
            ("acme:--", "acme:--"),
            ("../x:y", "../x:y"),
        ] {
            assert_eq!(folder_name(name), folder);
        }
        let long = |letter| format!("{}:{}{letter}", "p".repeat(64), "s".repeat(63));
        let (one, other) = (long("a"), long("b"));
        let (one, other) = (folder_name(&one), folder_name(&other));
        assert!(
            is_name(&one) && is_name(&other) && one != other,
            "{one} {other}"
        );
    }
}
