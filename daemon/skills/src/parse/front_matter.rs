//! Reads the front matter and the body of SKILL.md. Real YAML, bounded; where YAML fails, a repair pass reads each key
//! alone, so that `description: Use when: x` costs a warning and not the skill.
//!
//! ```text
//! bytes ─ text_decoding.rs ─► text ─ fences.rs ─► YAML, body
//!                      YAML ─ yaml_node.rs ─► tree            keys → field_reader.rs, tool_names.rs
//!                        └─ fails: key_salvage.rs ─► the same, key by key
//! ```
//!
//! Pure. Nothing fails here: every fault is a finding, and the profile decides its severity. `document.rs` chooses the
//! skill's name.

use std::rc::Rc;
use std::sync::Arc;

use serde_json::{Map, Value};

use crate::parse::finding::{self, FindingCode, Findings, quote_excerpt};
use crate::parse::skill_card::SkillCard;
use yaml_node::{DuplicateKey, MapEntries, Node, ParseCost, YamlError};

mod fences;
mod field_reader;
mod key_salvage;
mod text_decoding;
mod tool_names;
mod yaml_node;

/// Metadata of a skill from SKILL.md and its card.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct FrontMatter {
    /// Id of the skill, valid as one path segment.
    pub name: String,
    /// The name as it is written, where the id had to be another one; else empty.
    pub display_name: String,
    /// Never empty; runs of white space are one space.
    pub description: String,
    /// Top-level, else `metadata.version`. Empty if not given, as are the others.
    pub version: String,
    /// Author of the skill.
    pub author: String,
    /// SPDX or a file name.
    pub license: String,
    /// Requirements in words.
    pub compatibility: String,
    /// Tags as given.
    pub tags: Vec<String>,
    /// Words and phrases that should bring it to mind.
    pub triggers: Vec<String>,
    /// Permitted tools, an entry each: `Bash(git add:*)`, `Read`. `None` means no restriction. An empty list permits no
    /// tool, also if the field could not be read.
    pub allowed_tools: Option<Vec<String>>,
    /// Tools of the `Tools:` section of the body.
    pub tools: Vec<String>,
    /// Requirements of `metadata.*.requires`.
    pub requires: Requires,
    /// `true` if only a person may start the skill, not a model.
    pub disable_model_invocation: bool,
    /// skill-card.json.
    pub card: Option<Arc<SkillCard>>,
    /// All of it, unknown keys included.
    pub fields: Map<String, Value>,
}

/// Requirements that a skill states.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Requires {
    /// Programs, all of them.
    pub bins: Vec<String>,
    /// Programs, one of them.
    pub any_bins: Vec<String>,
    /// Environment variables.
    pub env: Vec<String>,
}

/// Text and the line on which it stands.
#[derive(Debug, Clone)]
pub(crate) struct LocatedText {
    pub(crate) text: String,
    pub(crate) line: usize,
}

/// Parsed front matter. Name and description are as written and not yet in `front`.
#[derive(Debug, Clone, Default)]
pub(crate) struct ParsedFrontMatter {
    pub(crate) front: FrontMatter,
    pub(crate) name: Option<LocatedText>,
    pub(crate) description: Option<LocatedText>,
    /// Text that can serve as a description.
    pub(crate) instead: Option<LocatedText>,
}

/// Parses a SKILL.md into its front matter and its body, which is empty if the front matter could not be found. Without
/// `must_have` a front matter may be absent: a card says what it would.
pub(crate) fn parse_skill_md(
    bytes: &[u8],
    must_have: bool,
    findings: &mut Findings,
) -> (ParsedFrontMatter, String) {
    let text = text_decoding::decode_text(bytes, findings);
    if !must_have && !text.trim_start().starts_with("---") {
        return (ParsedFrontMatter::default(), text);
    }
    let Some(parts) = fences::split_front_matter(&text, findings) else {
        return (ParsedFrontMatter::default(), String::new());
    };
    let mut parsed = read_keys(parts.yaml, parts.first_line, findings);
    let head = text.len() - parts.body.len();
    let body_line = text.get(..head).unwrap_or_default().matches('\n').count() + 1;
    parsed.front.tools = tool_names::read_tools_section(parts.body, body_line, findings);
    (parsed, parts.body.to_owned())
}

/// Reads the keys of front matter that begins on `first_line`.
fn read_keys(yaml: &str, first_line: usize, findings: &mut Findings) -> ParsedFrontMatter {
    let repaired = key_salvage::replace_wide_colons(yaml, first_line, findings);
    let yaml: &str = &repaired;
    let mut duplicates = Vec::new();
    let entries = match read_entries(yaml, first_line, &mut duplicates, findings) {
        Ok(entries) => entries,
        Err((code, message)) => {
            findings.add(code, first_line, message);
            return ParsedFrontMatter::default();
        }
    };
    for DuplicateKey { key, line } in duplicates {
        let message = format!(
            "the key {} comes twice; the last was used",
            quote_excerpt(&key)
        );
        findings.add(finding::DUPLICATE_KEY, line, message);
    }
    if let Some(line) = find_cut_description(yaml, first_line, &entries) {
        let message = "the description ends before ` #`, which begins a comment in YAML";
        findings.add(finding::CUT_DESCRIPTION, line, message);
    }
    field_reader::interpret_keys(&entries, findings)
}

/// Reads front matter as one map, else key by key. The error is the finding for which there are no keys.
fn read_entries(
    yaml: &str,
    first_line: usize,
    duplicates: &mut Vec<DuplicateKey>,
    findings: &mut Findings,
) -> Result<MapEntries, (&'static FindingCode, String)> {
    let empty = || {
        (
            finding::EMPTY_FRONT_MATTER,
            "the front matter is empty".to_owned(),
        )
    };
    let not_a_map = || {
        let message = "the front matter is not a map of keys";
        (finding::NOT_A_MAP, message.to_owned())
    };
    let too_complex = |message| (finding::TOO_COMPLEX, format!("front matter: {message}"));
    let (line, message) =
        match yaml_node::read_yaml(yaml, first_line, &mut ParseCost::default(), duplicates) {
            Ok(root) => {
                let root = root.ok_or_else(empty)?;
                return root.entries().map(<[_]>::to_vec).ok_or_else(not_a_map);
            }
            Err(YamlError::Budget(message)) => return Err(too_complex(message)),
            Err(YamlError::Syntax { line, message }) => (line, message),
        };
    duplicates.clear();
    let salvaged =
        key_salvage::salvage_keys(yaml, first_line, duplicates, findings).map_err(too_complex)?;
    if !findings.has(finding::YAML_REPAIRED) {
        let message = format!("front matter is not YAML and was read key by key: {message}");
        findings.add(finding::YAML_REPAIRED, line, message);
    }
    if salvaged.is_empty() {
        return Err(not_a_map());
    }
    Ok(salvaged)
}

/// Returns the line on which a comment follows the text of the description.
fn find_cut_description(
    yaml: &str,
    first_line: usize,
    entries: &[(String, Rc<Node>)],
) -> Option<usize> {
    let (_, node) = entries.iter().find(|(key, _)| key == "description")?;
    if !matches!(node.value, yaml_node::NodeValue::Scalar { plain: true, .. }) || node.is_null() {
        return None;
    }
    // Plain text continues in indented lines and ends at the first comment.
    let lines = (first_line..)
        .zip(yaml.lines())
        .skip_while(|(number, _)| *number < node.line);
    let mut of_text = lines.take_while(|(number, line)| {
        *number == node.line || line.is_empty() || line.starts_with([' ', '\t'])
    });
    let (number, line) = of_text.find(|(_, line)| {
        let text = line.trim_start();
        text.starts_with('#') || text.contains(" #") || text.contains("\t#")
    })?;
    (!line.trim_start().starts_with('#')).then_some(number)
}

#[cfg(test)]
mod tests;
