//! Interprets the keys of front matter: aliases, coercion of lists and texts, `metadata`.

use std::rc::Rc;

use super::yaml_node::{self, Node};
use super::{FrontMatter, LocatedText, ParsedFrontMatter, Requires, tool_names};
use crate::parse::finding::{self, FindingCode, Findings, quote_excerpt};
use crate::parse::version::{self, Version};

/// Keys that the specification has.
const KNOWN: [&str; 6] = [
    "name",
    "description",
    "license",
    "compatibility",
    "metadata",
    "allowed-tools",
];
const ALLOWED_TOOLS: [&str; 3] = ["allowed-tools", "allowed_tools", "tools"];
const PERSON_ONLY: [&str; 3] = [
    "disable-model-invocation",
    "disable_model_invocation",
    "disableModelInvocation",
];
/// Maximum number of entries of one list of requirements.
const REQUIRES_MAX: usize = 256;
/// Maximum number of entries of another list.
const ITEMS_MAX: usize = 1000;

/// Interprets the keys of a front matter.
pub(super) fn interpret_keys(
    entries: &[(String, Rc<Node>)],
    findings: &mut Findings,
) -> ParsedFrontMatter {
    let mut reader = FieldReader {
        entries,
        metadata: None,
        findings,
    };
    reader.metadata = reader.metadata();
    reader.unknown_keys();
    let description = reader.text(&["description"], false);
    reader.check_length(
        description.as_ref(),
        1024,
        finding::LONG_DESCRIPTION,
        "the description has more than 1,024 characters",
    );
    let mut front = FrontMatter {
        version: reader.version(),
        author: reader.plain(&["author"]),
        license: reader.plain(&["license"]),
        compatibility: reader.compatibility(),
        tags: reader.list(&["tags", "tag"], true),
        triggers: reader.list(
            &["triggers", "trigger_patterns", "trigger", "activation"],
            false,
        ),
        allowed_tools: reader.allowed_tools(),
        requires: reader.requires(),
        disable_model_invocation: reader.disable_model_invocation(),
        fields: yaml_node::to_json(entries),
        ..FrontMatter::default()
    };
    if reader.metadata.is_none()
        && let Some(metadata) = front.fields.get_mut("metadata")
    {
        *metadata = serde_json::Value::Object(serde_json::Map::new());
    }
    ParsedFrontMatter {
        name: reader.text(&["name", "skill"], false),
        description,
        instead: reader.text(&["when_to_use", "summary"], false),
        front,
    }
}

/// Reads the values of keys, and adds findings about them.
struct FieldReader<'a> {
    entries: &'a [(String, Rc<Node>)],
    /// `metadata`, if it is a map.
    metadata: Option<&'a Node>,
    findings: &'a mut Findings,
}

impl<'a> FieldReader<'a> {
    fn get(&self, key: &str) -> Option<&'a Node> {
        let found = self.entries.iter().find(|(name, _)| name == key);
        found.map(|(_, node)| &**node)
    }

    /// Returns the first of these keys that has a value, else the same within `metadata`.
    fn first(&self, keys: &[&'static str], in_metadata: bool) -> Option<(&'static str, &'a Node)> {
        let metadata = self.metadata.filter(|_| in_metadata);
        let top = keys.iter().map(|key| (*key, self.get(key)));
        let inner = keys
            .iter()
            .map(|key| (*key, metadata.and_then(|metadata| metadata.get(key))));
        top.chain(inner)
            .find_map(|(key, node)| Some((key, node.filter(|node| !node.is_null())?)))
    }

    fn wrong_type(&mut self, key: &str, node: &Node, expected: &str) {
        let message = format!("`{key}` is not {expected} and was ignored");
        self.findings.add(finding::WRONG_TYPE, node.line, message);
    }

    fn metadata(&mut self) -> Option<&'a Node> {
        let node = self.get("metadata")?;
        if node.entries().is_none() {
            self.wrong_type("metadata", node, "a map");
            return None;
        }
        Some(node)
    }

    fn unknown_keys(&mut self) {
        let is_unknown = |(key, _): &&(String, _)| !KNOWN.contains(&key.as_str());
        let unknown: Vec<_> = self.entries.iter().filter(is_unknown).collect();
        let Some((_, first)) = unknown.first() else {
            return;
        };
        let names: Vec<&str> = unknown.iter().map(|(key, _)| key.as_str()).collect();
        let names = quote_excerpt(&names.join(", "));
        let message = format!("keys that the specification does not have: {names}");
        self.findings.add(finding::UNKNOWN_KEY, first.line, message);
    }

    /// Returns the text of the first of these keys that has a value.
    fn text(&mut self, keys: &[&'static str], in_metadata: bool) -> Option<LocatedText> {
        let (key, node) = self.first(keys, in_metadata)?;
        let Some(scalar) = node.scalar() else {
            self.wrong_type(key, node, "one text");
            return None;
        };
        let text = scalar.trim().to_owned();
        (!text.is_empty()).then_some(LocatedText {
            text,
            line: node.line,
        })
    }

    fn plain(&mut self, keys: &[&'static str]) -> String {
        self.text(keys, true)
            .map(|text| text.text)
            .unwrap_or_default()
    }

    /// Reports a text that is longer than the specification allows.
    fn check_length(
        &mut self,
        text: Option<&LocatedText>,
        chars_max: usize,
        code: &'static FindingCode,
        message: &str,
    ) {
        if let Some(text) = text.filter(|text| text.text.chars().count() > chars_max) {
            self.findings.add(code, text.line, message);
        }
    }

    fn compatibility(&mut self) -> String {
        let text = self.text(&["compatibility"], true);
        let message = "`compatibility` has more than 500 characters";
        self.check_length(text.as_ref(), 500, finding::LONG_COMPATIBILITY, message);
        text.map(|text| text.text).unwrap_or_default()
    }

    fn version(&mut self) -> String {
        let found = self.text(&["version"], true);
        let Some(LocatedText { text, line }) = found.filter(|found| found.text != "*") else {
            return String::new();
        };
        if Version::parse(&text).is_none() {
            let message = version::describe_unreadable(&text);
            self.findings
                .add(finding::VERSION_UNREADABLE, line, message);
        }
        let nameable = Some(text).filter(|text| version::is_nameable(text));
        nameable.unwrap_or_default()
    }

    /// Returns a list, or the parts of one text between its commas.
    fn list(&mut self, keys: &[&'static str], in_metadata: bool) -> Vec<String> {
        let Some((key, node)) = self.first(keys, in_metadata) else {
            return Vec::new();
        };
        let mut items = self.items(key, node);
        items.truncate(ITEMS_MAX);
        items
    }

    fn items(&mut self, key: &str, node: &Node) -> Vec<String> {
        let texts: Vec<&str> = match &node.value {
            yaml_node::NodeValue::Scalar { text, .. } => text.split(tool_names::COMMAS).collect(),
            yaml_node::NodeValue::List(items) => {
                if let Some(item) = items
                    .iter()
                    .find(|item| item.scalar().is_none() && !item.is_null())
                {
                    self.wrong_type(&format!("{key}[]"), item, "one text");
                }
                items.iter().filter_map(|item| item.scalar()).collect()
            }
            yaml_node::NodeValue::Map(_) => {
                self.wrong_type(key, node, "a list");
                Vec::new()
            }
        };
        texts
            .into_iter()
            .map(str::trim)
            .filter(|text| !text.is_empty())
            .map(str::to_owned)
            .collect()
    }

    /// Returns the permitted tools; `None` only if there is no such key.
    fn allowed_tools(&mut self) -> Option<Vec<String>> {
        let (key, node) = ALLOWED_TOOLS
            .iter()
            .find_map(|key| Some((*key, self.get(key)?)))?;
        let texts: Option<Vec<&str>> = match &node.value {
            _ if node.is_null() => None,
            yaml_node::NodeValue::Scalar { text, .. } => Some(vec![text]),
            yaml_node::NodeValue::List(items) => items.iter().map(|item| item.scalar()).collect(),
            yaml_node::NodeValue::Map(_) => None,
        };
        let read = texts.and_then(tool_names::parse_allowed_tools);
        if read.is_none() {
            let message = format!("`{key}` could not be read: no tool is allowed");
            self.findings
                .add(finding::ALLOWED_TOOLS, node.line, message);
        }
        Some(read.unwrap_or_default())
    }

    /// Returns `true` if only a person may start the skill. A value that is no truth value counts as true, because the
    /// author wanted a restriction.
    fn disable_model_invocation(&mut self) -> bool {
        let Some((key, node)) = self.first(&PERSON_ONLY, true) else {
            return false;
        };
        let text = node.scalar().unwrap_or_default().trim();
        let is_one_of = |words: &[&str]| words.iter().any(|word| text.eq_ignore_ascii_case(word));
        if is_one_of(&["false", "no", "off", "0"]) {
            return false;
        }
        if !is_one_of(&["true", "yes", "on", "1"]) {
            let message = format!("`{key}` is neither true nor false and counts as true");
            self.findings.add(finding::WRONG_TYPE, node.line, message);
        }
        true
    }

    /// Reads `requires`, `metadata.requires` and `metadata.*.requires`.
    fn requires(&mut self) -> Requires {
        let inner = self.metadata.and_then(Node::entries).unwrap_or_default();
        let named = inner.iter().filter(|(key, _)| key != "requires");
        let nested = named.filter_map(|(_, node)| node.get("requires"));
        let metadata = self.metadata.and_then(|metadata| metadata.get("requires"));
        let sources: Vec<&Node> = self
            .get("requires")
            .into_iter()
            .chain(metadata)
            .chain(nested)
            .collect();
        let mut of = |keys: &[&str]| {
            let mut list: Vec<String> = Vec::new();
            for source in &sources {
                for key in keys {
                    let Some(node) = source.get(key).filter(|node| !node.is_null()) else {
                        continue;
                    };
                    for item in self.items(&format!("requires.{key}"), node) {
                        if list.len() < REQUIRES_MAX && !list.contains(&item) {
                            list.push(item);
                        }
                    }
                }
            }
            list
        };
        Requires {
            bins: of(&["bins"]),
            any_bins: of(&["anyBins", "any_bins"]),
            env: of(&["env"]),
        }
    }
}
