//! skill-card.json: what a skill says about itself beside or instead of SKILL.md's front matter. What it says of MCP
//! servers and local tools is data for the caller: nothing here connects, imports or fetches. Pure.

use serde_json::{Map, Value};
use skilld_common::excerpts::join_first;
use skilld_common::text_decoding::decode_text;

use crate::parse::finding::{self, FindingCode, Findings, quote_excerpt};
use crate::parse::problem::Problem;
use crate::parse::version::{self, Version};
use crate::skill_path::{compose_path, normalise_skill_path};

mod base_uri;

pub(crate) use base_uri::{CardBase, read_base, with_own_base};

/// Name of the file.
pub const FILE_NAME: &str = "skill-card.json";
/// Maximum size of a card, in bytes.
pub const BYTES_MAX: usize = 1 << 20;
/// Maximum number of collections within one another.
const DEPTH_MAX: usize = 32;
/// Maximum number of values in a card, as in front matter: each takes far more memory than the two bytes that it may
/// be.
const VALUES_MAX: usize = 20_000;
/// Maximum number of entries of `files`.
const FILES_MAX: usize = 10_000;
/// Extensions that are understood: that a skill has local tools is passed on with the card.
const EXTENSIONS: [&str; 1] = ["urn:skill:tools:local"];
/// Maximum number of missing files that a problem names.
const MISSING_SHOWN_MAX: usize = 5;

/// Parsed card. Texts are empty if they are not given.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct SkillCard {
    /// Id of the skill; overrides the front matter's name.
    pub id: String,
    /// Version; overrides the front matter's. Empty for `*` too, and for one that cannot be named.
    pub version: String,
    /// Name for people.
    pub name: String,
    /// Description; overrides the front matter's.
    pub description: String,
    /// Location of its files: beside the card, or a URL.
    pub base_uri: String,
    /// Paths relative to `base_uri`, without `.` and `..`. If there are any, nothing else belongs to the skill.
    pub files: Option<Vec<String>>,
    /// All of it, unknown keys included.
    pub fields: Map<String, Value>,
}

impl SkillCard {
    /// Returns the URL beneath which SKILL.md and `files` are; `None` if they lie beside the card.
    pub fn remote(&self) -> Option<&str> {
        base_uri::web_url(&self.base_uri)
    }

    /// Returns `true` if a file belongs to the skill.
    pub fn allows(&self, path: &str) -> bool {
        // They are sorted, and composed.
        let composed = compose_path(path);
        let listed = |files: &Vec<String>| files.binary_search(&composed).is_ok();
        matches!(path, "SKILL.md" | FILE_NAME) || self.files.as_ref().is_none_or(listed)
    }

    /// Returns the warning for listed files that are not there, if there are such.
    pub fn missing(&self, has: impl Fn(&str) -> bool) -> Option<Problem> {
        let files = self.files.iter().flatten();
        let missing: Vec<&String> = files.filter(|file| !has(file)).collect();
        let quoted = missing.iter().map(|file| quote_excerpt(file));
        let named = join_first(quoted, MISSING_SHOWN_MAX);
        let message = format!("{FILE_NAME} lists files that are not there: {named}");
        (!missing.is_empty()).then(|| Problem::warning(finding::CARD_FILE_MISSING.name, message))
    }
}

/// Parses a card; returns `None`, with a finding, if nothing can be made of it.
pub(crate) fn parse_card(bytes: &[u8], findings: &mut Findings) -> Option<SkillCard> {
    let fields = match parse_fields(bytes) {
        Ok(fields) => fields,
        Err((code, message)) => {
            findings.add(code, 0, format!("{FILE_NAME}{message}"));
            return None;
        }
    };
    let mut text = |key: &str| read_text(&fields, key, findings);
    let card = SkillCard {
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
    let files = read_files(&fields, findings);
    check_fields(&card, &fields, findings);
    let version = Some(card.version).filter(|version| version::is_nameable(version));
    Some(SkillCard {
        version: version.unwrap_or_default(),
        files,
        fields,
        ..card
    })
}

/// Parses the bytes of a card. The message of an error follows the name of the file.
fn parse_fields(bytes: &[u8]) -> Result<Map<String, Value>, (&'static FindingCode, String)> {
    let too_large = |message| Err((finding::CARD_TOO_LARGE, message));
    if bytes.len() > BYTES_MAX {
        return too_large(format!(" has more than {BYTES_MAX} bytes"));
    }
    let text = decode_text(bytes, true).text;
    let value: Value = serde_json::from_str(&text)
        .map_err(|error| (finding::CARD_INVALID, format!(": {error}")))?;
    let (depth, count) = measure_value(&value);
    match value {
        Value::Object(_) if depth > DEPTH_MAX => {
            too_large(format!(" is nested more than {DEPTH_MAX} levels"))
        }
        Value::Object(_) if count > VALUES_MAX => {
            too_large(format!(" has more than {VALUES_MAX} values"))
        }
        Value::Object(fields) => Ok(fields),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) | Value::Array(_) => {
            Err((finding::CARD_INVALID, " is not a JSON object".to_owned()))
        }
    }
}

/// Returns the number of collections within one another, at most 128 as serde_json reads no deeper, and of values in
/// them.
fn measure_value(value: &Value) -> (usize, usize) {
    let measure_all = |values: &mut dyn Iterator<Item = &Value>| {
        values.map(measure_value).fold((1, 0), |sum, value| {
            (sum.0.max(value.0 + 1), sum.1 + value.1 + 1)
        })
    };
    match value {
        Value::Array(items) => measure_all(&mut items.iter()),
        Value::Object(fields) => measure_all(&mut fields.values()),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => (0, 0),
    }
}

fn add_wrong_type(key: &str, expected: &str, findings: &mut Findings) {
    let message = format!("`{key}` of {FILE_NAME} is not {expected}");
    findings.add(finding::CARD_WRONG_TYPE, 0, message);
}

fn read_text(fields: &Map<String, Value>, key: &str, findings: &mut Findings) -> String {
    match fields.get(key) {
        None | Some(Value::Null) => String::new(),
        Some(Value::String(text)) => text.trim().to_owned(),
        Some(_) => {
            add_wrong_type(key, "text", findings);
            String::new()
        }
    }
}

/// Reads the paths of a card, sorted. `None` if it has none: an empty list is what cards have that say nothing of
/// files.
fn read_files(fields: &Map<String, Value>, findings: &mut Findings) -> Option<Vec<String>> {
    let listed: Option<Vec<&str>> = match fields.get("files") {
        None | Some(Value::Null) => return None,
        Some(Value::Array(listed)) if listed.is_empty() => return None,
        Some(Value::Array(listed)) if listed.len() <= FILES_MAX => {
            listed.iter().map(Value::as_str).collect()
        }
        Some(_) => None,
    };
    let Some(listed) = listed else {
        let message = format!("`files` of {FILE_NAME} is not a list of at most {FILES_MAX} paths");
        findings.add(finding::CARD_FILES, 0, message);
        return Some(Vec::new());
    };
    let mut files = Vec::with_capacity(listed.len());
    for path in listed {
        let normalised = normalise_skill_path("files", path).ok();
        let Some(relative) = normalised.filter(|path| !path.is_empty()) else {
            let path = quote_excerpt(path);
            let message =
                format!("`files` of {FILE_NAME} has {path}, which is no path within the skill");
            findings.add(finding::CARD_PATH_ESCAPES, 0, message);
            continue;
        };
        files.push(compose_path(&relative));
    }
    files.sort_unstable();
    files.dedup();
    Some(files)
}

/// Checks what must be understood although the daemon only passes it on.
fn check_fields(card: &SkillCard, fields: &Map<String, Value>, findings: &mut Findings) {
    if !card.version.is_empty() && Version::parse(&card.version).is_none() {
        findings.add(
            finding::VERSION_UNREADABLE,
            0,
            version::describe_unreadable(&card.version),
        );
    }
    if !matches!(card.base_uri.as_str(), "" | "." | "./") {
        let base = quote_excerpt(&card.base_uri);
        let message =
            format!("`base_uri` {base} is not the card's folder, from which the files were taken");
        findings.add(finding::CARD_BASE_URI, 0, message);
    }
    for key in ["mcps", "local_tools"] {
        if !matches!(fields.get(key), None | Some(Value::Null | Value::Object(_))) {
            add_wrong_type(key, "a map", findings);
        }
    }
    let extensions = match fields.get("extensions") {
        None | Some(Value::Null) => return,
        Some(Value::Array(extensions)) => extensions,
        Some(_) => return add_wrong_type("extensions", "a list", findings),
    };
    for extension in extensions {
        let uri = extension
            .get("uri")
            .and_then(Value::as_str)
            .unwrap_or_default();
        let required = extension.get("required");
        let is_optional = matches!(required, None | Some(Value::Null | Value::Bool(false)));
        if !is_optional && !EXTENSIONS.contains(&uri) {
            let uri = quote_excerpt(uri);
            let message = format!("the skill needs the extension {uri}, which is not known here");
            findings.add(finding::CARD_EXTENSION_REQUIRED, 0, message);
        }
    }
}

#[cfg(test)]
mod tests;
