//! SKILL.md: front matter and body. Real YAML, bounded; where YAML fails, each key is read alone, so that
//! `description: Use when: x` costs a warning and not the skill.
//!
//! ```text
//! bytes ─ text.rs ─► text ─ fence.rs ─► YAML, body
//!                      YAML ─ yaml.rs ─► tree            keys → fields.rs, tools.rs
//!                        └─ fails: salvage.rs ─► the same, key by key
//! ```
//!
//! Pure. Nothing fails here: whatever is wrong is a finding, and its profile decides what that means. What a skill
//! is called in the end is `document.rs`'s.

use std::rc::Rc;
use std::sync::Arc;

use serde_json::{Map, Value};

use super::card::Card;
use super::finding::{self, Findings, shown};
use yaml::{Fault, Node};

mod fence;
mod fields;
mod salvage;
mod text;
mod tools;
mod yaml;

/// What a skill says about itself, in SKILL.md and in its card.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct FrontMatter {
    /// Its id, valid as one path segment.
    pub name: String,
    /// The name as it is written, where the id had to be another one; else empty.
    pub display_name: String,
    /// Never empty; runs of white space are one space.
    pub description: String,
    /// Top-level, else `metadata.version`. Empty if not given, as are the others.
    pub version: String,
    /// Who wrote it.
    pub author: String,
    /// SPDX or a file name.
    pub license: String,
    /// What it needs, in words.
    pub compatibility: String,
    /// As given.
    pub tags: Vec<String>,
    /// Words and phrases that should bring it to mind.
    pub triggers: Vec<String>,
    /// One entry per tool: `Bash(git add:*)`, `Read`. `None` is no restriction; nothing within is that no tool is
    /// allowed, as it is when they could not be read.
    pub allowed_tools: Option<Vec<String>>,
    /// From the `Tools:` section of the body.
    pub tools: Vec<String>,
    /// From `metadata.*.requires`.
    pub requires: Requires,
    /// skill-card.json.
    pub card: Option<Arc<Card>>,
    /// All of it, unknown keys included.
    pub fields: Map<String, Value>,
}

/// What a skill says that it needs.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Requires {
    /// Programs, all of them.
    pub bins: Vec<String>,
    /// Programs, one of them.
    pub any_bins: Vec<String>,
    /// Environment variables.
    pub env: Vec<String>,
}

/// A text and its line.
#[derive(Debug, Clone)]
pub(super) struct Text {
    pub(super) text: String,
    pub(super) line: usize,
}

/// What a front matter says. Name and description are as they are written and not yet in `front`.
#[derive(Debug, Clone, Default)]
pub(super) struct Said {
    pub(super) front: FrontMatter,
    pub(super) name: Option<Text>,
    pub(super) description: Option<Text>,
    /// What could stand for a description.
    pub(super) instead: Option<Text>,
}

/// Reads a SKILL.md: what it says, and its body, which is empty if the front matter could not be found. Without
/// `must_have` a front matter may be absent: a card says what it would.
pub(super) fn read(bytes: &[u8], must_have: bool, findings: &mut Findings) -> (Said, String) {
    let text = text::decode(bytes, findings);
    if !must_have && !text.trim_start().starts_with("---") {
        return (Said::default(), text);
    }
    let Some(parts) = fence::split(&text, findings) else {
        return (Said::default(), String::new());
    };
    let mut said = keys(parts.yaml, parts.first_line, findings);
    let head = text.len() - parts.body.len();
    let body_line = text.get(..head).unwrap_or_default().matches('\n').count() + 1;
    said.front.tools = tools::section(parts.body, body_line, findings);
    (said, parts.body.to_owned())
}

fn keys(yaml: &str, first_line: usize, findings: &mut Findings) -> Said {
    let offset = first_line - 1;
    let mut duplicates = Vec::new();
    let mut salvaged = None;
    let root = match yaml::read(yaml, &mut yaml::Weight::default(), &mut duplicates) {
        Ok(root) => root,
        Err(Fault::Budget(message)) => return too_complex(message, first_line, findings),
        Err(Fault::Syntax { line, message }) => {
            duplicates.clear();
            match salvage::salvage(yaml, offset, &mut duplicates, findings) {
                Ok(entries) => salvaged = Some(entries),
                Err(message) => return too_complex(message, first_line, findings),
            }
            if !findings.has(finding::YAML_REPAIRED) {
                let message =
                    format!("front matter is not YAML and was read key by key: {message}");
                findings.add(finding::YAML_REPAIRED, line + offset, message);
            }
            None
        }
    };
    let entries = match (&root, &salvaged) {
        (Some(root), _) => root.entries(),
        (None, Some(salvaged)) => Some(salvaged.as_slice()).filter(|keys| !keys.is_empty()),
        (None, None) => {
            let message = "the front matter is empty";
            findings.add(finding::EMPTY_FRONT_MATTER, first_line, message);
            return Said::default();
        }
    };
    let Some(entries) = entries else {
        let message = "the front matter is not a map of keys";
        findings.add(finding::NOT_A_MAP, first_line, message);
        return Said::default();
    };
    for duplicate in duplicates {
        let message = format!(
            "the key {} comes twice; the last was used",
            shown(&duplicate.key)
        );
        findings.add(finding::DUPLICATE_KEY, duplicate.line + offset, message);
    }
    if let Some(line) = cut_description(yaml, entries) {
        let message = "the description ends before ` #`, which begins a comment in YAML";
        findings.add(finding::CUT_DESCRIPTION, line + offset, message);
    }
    fields::interpret(entries, offset, findings)
}

/// Returns the line, from 1, on which a comment follows the text of the description.
fn cut_description(yaml: &str, entries: &[(String, Rc<Node>)]) -> Option<usize> {
    let (_, node) = entries.iter().find(|(key, _)| key == "description")?;
    if !matches!(node.kind, yaml::Kind::Scalar { plain: true, .. }) || node.is_null() {
        return None;
    }
    // A text without quotes goes on in lines that are indented, and ends at the first comment.
    let first = node.line.checked_sub(1)?;
    let lines = yaml.lines().enumerate().skip(first);
    let mut of_text = lines.take_while(|(index, line)| {
        *index == first || line.is_empty() || line.starts_with([' ', '\t'])
    });
    let (index, line) = of_text.find(|(_, line)| {
        let text = line.trim_start();
        text.starts_with('#') || text.contains(" #") || text.contains("\t#")
    })?;
    (!line.trim_start().starts_with('#')).then_some(index + 1)
}

fn too_complex(message: &str, line: usize, findings: &mut Findings) -> Said {
    findings.add(
        finding::TOO_COMPLEX,
        line,
        format!("front matter: {message}"),
    );
    Said::default()
}

#[cfg(test)]
mod tests;
