//! skill-card.json: what a skill says about itself beside or instead of SKILL.md's front matter. What it says of MCP
//! servers and local tools is data for the caller: nothing here connects, imports or fetches. Pure.

use serde_json::{Map, Value};

use super::Problem;
use super::finding::{self, Findings, shown};
use super::version::{self, Version};

/// The file.
pub const FILE_NAME: &str = "skill-card.json";
/// Bytes of a card.
pub const BYTES_MAX: usize = 1 << 20;
/// Collections within one another.
const DEPTH_MAX: usize = 32;
/// Values in a card, as in front matter: each takes far more memory than the two bytes that it may be.
const VALUES_MAX: usize = 20_000;
/// Entries of `files`.
const FILES_MAX: usize = 10_000;
const PATH_BYTES_MAX: usize = 512;
/// Extensions that are understood: that a skill has local tools is passed on with the card.
const EXTENSIONS: [&str; 1] = ["urn:skill:tools:local"];
/// Files that are missing and named.
const MISSING_SHOWN_MAX: usize = 5;

/// A card that could be read. Texts are empty if they are not given.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Card {
    /// Overrides the front matter's name.
    pub id: String,
    /// Overrides the front matter's; empty for `*` too, and for one that cannot be named.
    pub version: String,
    /// For people.
    pub name: String,
    /// Overrides the front matter's.
    pub description: String,
    /// Where its files are: beside the card, or a URL.
    pub base_uri: String,
    /// Paths relative to `base_uri`, without `.` and `..`. If there are any, nothing else belongs to the skill.
    pub files: Option<Vec<String>>,
    /// All of it, unknown keys included.
    pub fields: Map<String, Value>,
}

impl Card {
    /// The URL beneath which SKILL.md and `files` are; `None` if they lie beside the card.
    #[must_use]
    pub fn remote(&self) -> Option<&str> {
        let (scheme, _) = self.base_uri.split_once("://")?;
        let known = ["http", "https"];
        let known = known.iter().any(|known| scheme.eq_ignore_ascii_case(known));
        known.then_some(self.base_uri.as_str())
    }

    /// Whether a file belongs to the skill.
    #[must_use]
    pub fn allows(&self, path: &str) -> bool {
        // They are sorted.
        let listed = |files: &Vec<String>| {
            files
                .binary_search_by(|file| file.as_str().cmp(path))
                .is_ok()
        };
        matches!(path, "SKILL.md" | FILE_NAME) || self.files.as_ref().is_none_or(listed)
    }

    /// The warning for listed files that are not there.
    pub fn missing(&self, has: impl Fn(&str) -> bool) -> Option<Problem> {
        let files = self.files.iter().flatten();
        let missing: Vec<&String> = files.filter(|file| !has(file)).collect();
        let named: Vec<String> = missing
            .iter()
            .take(MISSING_SHOWN_MAX)
            .map(|file| shown(file))
            .collect();
        let more = if missing.len() > named.len() {
            format!(" and {} more", missing.len() - named.len())
        } else {
            String::new()
        };
        let message = format!(
            "{FILE_NAME} lists files that are not there: {}{more}",
            named.join(", ")
        );
        (!missing.is_empty()).then(|| Problem::warning(finding::CARD_FILE_MISSING.name, message))
    }
}

/// Reads a card; `None` if nothing can be made of it.
pub(super) fn read(bytes: &[u8], findings: &mut Findings) -> Option<Card> {
    if bytes.len() > BYTES_MAX {
        findings.add(
            finding::CARD_TOO_LARGE,
            0,
            format!("{FILE_NAME} has more than {BYTES_MAX} bytes"),
        );
        return None;
    }
    let bytes = bytes.strip_prefix(b"\xef\xbb\xbf").unwrap_or(bytes);
    let fields = match serde_json::from_slice(bytes) {
        Ok(Value::Object(fields)) => fields,
        Ok(_) => {
            findings.add(
                finding::CARD_INVALID,
                0,
                format!("{FILE_NAME} is not a JSON object"),
            );
            return None;
        }
        Err(error) => {
            findings.add(finding::CARD_INVALID, 0, format!("{FILE_NAME}: {error}"));
            return None;
        }
    };
    if fields.values().any(|value| is_deeper(value, DEPTH_MAX - 1)) {
        let message = format!("{FILE_NAME} is nested more than {DEPTH_MAX} levels");
        findings.add(finding::CARD_TOO_LARGE, 0, message);
        return None;
    }
    if fields.values().map(count).sum::<usize>() > VALUES_MAX {
        let message = format!("{FILE_NAME} has more than {VALUES_MAX} values");
        findings.add(finding::CARD_TOO_LARGE, 0, message);
        return None;
    }
    let mut text = |key: &str| text(&fields, key, findings);
    let card = Card {
        id: text("id"),
        version: Some(text("version"))
            .filter(|version| version != "*")
            .unwrap_or_default(),
        name: text("name"),
        description: text("description"),
        base_uri: text("base_uri"),
        files: None,
        fields: Map::new(),
    };
    let files = files(&fields, findings);
    check(&card, &fields, findings);
    let version = Some(card.version).filter(|version| version::is_nameable(version));
    Some(Card {
        version: version.unwrap_or_default(),
        files,
        fields,
        ..card
    })
}

/// Values in a value, itself included; counted no further than a bit beyond [`VALUES_MAX`].
fn count(value: &Value) -> usize {
    let count_all = |values: &mut dyn Iterator<Item = &Value>| {
        let mut sum = 1;
        for value in values {
            sum += count(value);
            if sum > VALUES_MAX {
                break;
            }
        }
        sum
    };
    match value {
        Value::Array(items) => count_all(&mut items.iter()),
        Value::Object(fields) => count_all(&mut fields.values()),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => 1,
    }
}

/// At most 128 levels: JSON is not read any deeper.
fn is_deeper(value: &Value, levels: usize) -> bool {
    match value {
        Value::Array(items) => levels == 0 || items.iter().any(|item| is_deeper(item, levels - 1)),
        Value::Object(fields) => {
            levels == 0 || fields.values().any(|field| is_deeper(field, levels - 1))
        }
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => false,
    }
}

fn text(fields: &Map<String, Value>, key: &str, findings: &mut Findings) -> String {
    match fields.get(key) {
        None | Some(Value::Null) => String::new(),
        Some(Value::String(text)) => text.trim().to_owned(),
        Some(_) => {
            findings.add(
                finding::CARD_WRONG_TYPE,
                0,
                format!("`{key}` of {FILE_NAME} is not text"),
            );
            String::new()
        }
    }
}

/// An empty list is what cards have that say nothing of files.
fn files(fields: &Map<String, Value>, findings: &mut Findings) -> Option<Vec<String>> {
    let listed = match fields.get("files") {
        None | Some(Value::Null) => return None,
        Some(Value::Array(listed)) if listed.is_empty() => return None,
        Some(Value::Array(listed)) if listed.len() <= FILES_MAX => {
            listed.iter().map(Value::as_str).collect()
        }
        Some(_) => None,
    };
    let listed: Option<Vec<&str>> = listed;
    let Some(listed) = listed else {
        let message = format!("`files` of {FILE_NAME} is not a list of at most {FILES_MAX} paths");
        findings.add(finding::CARD_FILES, 0, message);
        return Some(Vec::new());
    };
    let mut files = Vec::with_capacity(listed.len());
    for path in listed {
        match relative(path) {
            Some(path) => files.push(path),
            None => {
                let message = format!(
                    "`files` of {FILE_NAME} has {}, which is no path within the skill",
                    shown(path)
                );
                findings.add(finding::CARD_PATH_ESCAPES, 0, message);
            }
        }
    }
    files.sort_unstable();
    files.dedup();
    Some(files)
}

/// `./a//b` → `a/b`; nothing that leads out, and nothing but names.
fn relative(path: &str) -> Option<String> {
    let plain = |c: char| !c.is_control() && c != '\\';
    if path.starts_with('/') || path.len() > PATH_BYTES_MAX || !path.chars().all(plain) {
        return None;
    }
    let names = path.split('/').filter(|name| !matches!(*name, "" | "."));
    let names: Vec<&str> = names.collect();
    (!names.is_empty() && !names.contains(&"..")).then(|| names.join("/"))
}

fn check(card: &Card, fields: &Map<String, Value>, findings: &mut Findings) {
    if !card.version.is_empty() && Version::parse(&card.version).is_none() {
        let message = format!(
            "the version {} is not one that can be compared",
            shown(&card.version)
        );
        findings.add(finding::VERSION_UNREADABLE, 0, message);
    }
    if !matches!(card.base_uri.as_str(), "" | "." | "./") {
        let message = format!(
            "`base_uri` {} is not the card's folder, from which the files were taken",
            shown(&card.base_uri)
        );
        findings.add(finding::CARD_BASE_URI, 0, message);
    }
    for key in ["mcps", "local_tools"] {
        if fields
            .get(key)
            .is_some_and(|value| !value.is_object() && !value.is_null())
        {
            findings.add(
                finding::CARD_WRONG_TYPE,
                0,
                format!("`{key}` of {FILE_NAME} is not a map"),
            );
        }
    }
    let extensions = match fields.get("extensions") {
        None | Some(Value::Null) => return,
        Some(Value::Array(extensions)) => extensions,
        Some(_) => {
            findings.add(
                finding::CARD_WRONG_TYPE,
                0,
                format!("`extensions` of {FILE_NAME} is not a list"),
            );
            return;
        }
    };
    for extension in extensions {
        let uri = extension
            .get("uri")
            .and_then(Value::as_str)
            .unwrap_or_default();
        let optional = matches!(
            extension.get("required"),
            None | Some(Value::Null | Value::Bool(false))
        );
        if !optional && !EXTENSIONS.contains(&uri) {
            let message = format!(
                "the skill needs the extension {}, which is not known here",
                shown(uri)
            );
            findings.add(finding::CARD_EXTENSION_REQUIRED, 0, message);
        }
    }
}

#[cfg(test)]
mod tests;
