//! References to skills in requests: `[PLUGIN:]NAME`, `[PLUGIN:]NAME@SPECIFIER` or `[PLUGIN:]NAME@sha256:DIGEST`. A
//! name may be an id, or the name as it is written, which is turned into the id.
//!
//! A skill that was given with its plugin has a folder of its own in a workspace, `plugin--name`, because `:` separates
//! the folders of search paths. The folder's name is accepted in place of `plugin:name`.

use std::borrow::Cow;

use super::skill_name::{
    HASH_DIGITS, ID_BYTES_MAX, NAME_BYTES_MAX, id_of_name, is_name, short_hash,
};
use super::version::Specifier;
use crate::error::{Error, Result};

/// Maximum number of names in an alias; no root is read deeper.
const ALIAS_NAMES_MAX: usize = 8;
/// Text between the names of a plugin and of a skill in the name of a folder.
const SCOPE_SEPARATOR: &str = "--";

/// Parsed reference to a skill: `name`, `name@specifier` or `name@sha256:digest`.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct SkillRef {
    /// Id or alias of the skill. An alias is the ids of a skill and of one within it, with `/` between them, or those of
    /// a plugin and of a skill with `:` between them. Never a path.
    pub name: String,
    /// The name as the request has it.
    pub written: String,
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
        let (written, select) = text
            .split_once('@')
            .map_or((text, None), |(name, rest)| (name, Some(rest)));
        let Some(name) = resolve_name(written) else {
            let message = "must be NAME, NAME@VERSION or NAME@sha256:DIGEST, with PLUGIN: before it or not; a name has a \
                           letter or digit, at most 1,024 bytes, and neither control characters nor a part `..`";
            return Err(Error::invalid(field, message));
        };
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
            name: name.into_owned(),
            written: written.to_owned(),
            version: select,
        })
    }
}

impl std::fmt::Display for SkillRef {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match &self.version {
            VersionRef::Current => write!(f, "{}", self.written),
            VersionRef::Matching(version) => write!(f, "{}@{version}", self.written),
            VersionRef::Digest(digest) => write!(f, "{}@sha256:{digest}", self.written),
        }
    }
}

/// Returns the id or alias that a name in a request means, as far as that needs no list of skills. Returns `None` for
/// what can be no name.
fn resolve_name(written: &str) -> Option<Cow<'_, str>> {
    if is_alias(written) || split_scope(written).is_some() {
        return Some(Cow::Borrowed(written));
    }
    if !is_plain_text(written) {
        return None;
    }
    let name = match split_written_scope(written) {
        Some((plugin, skill)) => scoped_name(&plugin_id(plugin)?, &id_of_name(skill)?),
        // Of ASCII names only ids make an alias: any other text with a slash is a name.
        None if written.contains('/') && !written.is_ascii() => {
            let ids: Option<Vec<String>> = written.split('/').map(id_of_name).collect();
            ids?.join("/")
        }
        None => id_of_name(written)?,
    };
    Some(Cow::Owned(name))
}

/// Returns the folder in which a workspace has a skill that a request names, by its id or as it is written, with its
/// plugin or without; the text itself if it can be no name.
pub fn staged_folder(written: &str) -> Cow<'_, str> {
    let folder = match resolve_name(written) {
        Some(name) if split_scope(&name).is_some() => Some(folder_name(&name).into_owned()),
        Some(_) => id_of_name(written),
        None => None,
    };
    folder.map_or(Cow::Borrowed(written), Cow::Owned)
}

/// Returns the id of a skill that a request names by its id or as it is written; `None` for what can be no name, and for
/// an alias, which is that of a skill with another id.
pub fn requested_id(written: &str) -> Option<String> {
    let name = resolve_name(written)?;
    is_name(&name).then(|| name.into_owned())
}

/// Returns `true` if a text may be a name as it is written, and no path.
fn is_plain_text(written: &str) -> bool {
    let is_path_part = |part: &str| matches!(part.trim(), "" | "." | "..");
    written.len() <= NAME_BYTES_MAX
        && written.trim() == written
        && !written.contains(char::is_control)
        && !written.split(['/', ':']).any(is_path_part)
}

/// Splits `plugin:name` with names as they are written. A colon beside a blank belongs to a name: `PDF: merge`.
fn split_written_scope(written: &str) -> Option<(&str, &str)> {
    let (plugin, skill) = written.split_once(':')?;
    let is_name = |name: &str| !name.contains([':', '/']) && name.trim() == name;
    (is_name(plugin) && is_name(skill)).then_some((plugin, skill))
}

/// Returns the id of a plugin's name, which has no two hyphens in a row: they end it in the name of a folder.
pub(crate) fn plugin_id(written: &str) -> Option<String> {
    id_of_name(written).filter(|id| is_plugin_name(id))
}

/// Returns `true` if a plugin can have a name: that of a skill, without two hyphens in a row, which end it in the name
/// of a folder.
fn is_plugin_name(name: &str) -> bool {
    is_name(name) && !name.contains(SCOPE_SEPARATOR)
}

/// Returns the name of a skill with its plugin.
pub(crate) fn scoped_name(plugin: &str, skill: &str) -> String {
    format!("{plugin}:{skill}")
}

/// Returns the name of the folder in which a workspace has a skill of this name in a request. It differs from the name
/// only for `plugin:name`: the folder is `plugin--name`, and if that is too long, the beginning of it and of its
/// SHA-256.
pub(crate) fn folder_name(name: &str) -> Cow<'_, str> {
    let Some((plugin, skill)) = split_scope(name) else {
        return Cow::Borrowed(name);
    };
    let mut folder = format!("{plugin}{SCOPE_SEPARATOR}{skill}");
    if folder.len() > ID_BYTES_MAX {
        folder.truncate(ID_BYTES_MAX - HASH_DIGITS - 1);
        folder = format!("{folder}-{}", short_hash(name));
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
            ("a:b", Some(("a:b", VersionRef::Current))),
            ("a:b--c", Some(("a:b--c", VersionRef::Current))),
            ("a:b@^1.2", version("a:b", "^1.2")),
            (
                &format!("a:b@sha256:{digest}"),
                Some(("a:b", VersionRef::Digest(digest.clone()))),
            ),
            ("a--b:c", None),
            (":b", None),
            ("a:", None),
            ("a:..", None),
            (
                &format!("a@sha256:{digest}"),
                Some(("a", VersionRef::Digest(digest.clone()))),
            ),
            (&long, Some((long.as_str(), VersionRef::Current))),
            (&"n".repeat(1025), None),
            ("", None),
            (".", None),
            ("..", None),
            ("a\0", None),
            (" a", None),
            ("a ", None),
            ("a\n", None),
            ("-", None),
            ("a@", None),
            ("a@1/2", None),
            ("a@sha256:abc", None),
            (&format!("a@sha256:{}", "G".repeat(64)), None),
        ] {
            let read = SkillRef::parse("skills[0]", text).ok();
            let written = text.split('@').next().unwrap_or_default();
            let expected = expected.map(|(name, select)| SkillRef {
                name: name.to_owned(),
                written: written.to_owned(),
                version: select,
            });
            assert_eq!(read, expected, "{text:?}");
        }
    }

    #[test]
    fn a_written_name_means_the_same_as_its_id() {
        let id = |name: &str| id_of_name(name).expect("a name");
        let (report, plugin) = (id("数据报表"), id("数据插件"));
        let scoped = format!("{plugin}:{report}");
        for (written, name, folder) in [
            ("数据报表", report.clone(), report.clone()),
            ("My Skill", "my-skill".to_owned(), "my-skill".to_owned()),
            ("PDF: merge", "pdf-merge".to_owned(), "pdf-merge".to_owned()),
            ("a:b:c", "a-b-c".to_owned(), "a-b-c".to_owned()),
            (
                "数据插件:数据报表",
                scoped.clone(),
                format!("{plugin}--{report}"),
            ),
            ("报表：汇总", id("报表：汇总"), id("报表:汇总")),
            (
                "工具/数据报表",
                format!("{}/{report}", id("工具")),
                id("工具/数据报表"),
            ),
        ] {
            let parsed = SkillRef::parse("name", &format!("{written}@^1.2")).expect(written);
            assert_eq!(parsed.name, name, "{written}");
            assert_eq!(parsed.to_string(), format!("{written}@^1.2"));
            assert_eq!(staged_folder(written), folder, "{written}");
        }
        for refused in ["", "..", "acme:../deploy", "a/../b", "a\0", "a\nb"] {
            assert_eq!(staged_folder(refused), refused);
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
