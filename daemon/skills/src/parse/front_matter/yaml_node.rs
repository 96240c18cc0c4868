//! Reads YAML into a tree that keeps the text of scalars and the lines of keys. Bounded in depth, nodes and bytes,
//! aliases counted as often as they are used, so that nothing grows beyond what was sent by more than a constant.

use std::collections::HashMap;
use std::rc::Rc;

use granit_parser::{ErrorKind, Event, Parser, ScalarStyle, StrInput};
use serde_json::{Map, Value};

/// Maximum number of collections within one another.
pub(super) const DEPTH_MAX: usize = 32;
/// Maximum number of values of one document.
const NODES_MAX: usize = 20_000;
/// Maximum number of bytes of all texts of one document.
const BYTES_MAX: usize = 1 << 20;

/// Entries of a map, in order of the first of each key.
pub(super) type MapEntries = Vec<(String, Rc<Node>)>;

/// Value and the line on which it begins.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Node {
    pub(super) value: NodeValue,
    pub(super) line: usize,
}

/// Content of a node.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum NodeValue {
    /// Scalar text; `plain` if it was not quoted, so that it may be a number.
    Scalar {
        text: String,
        plain: bool,
    },
    /// In order.
    List(Vec<Rc<Node>>),
    Map(MapEntries),
}

/// Number of nodes and bytes, of one node or of everything read from the document so far.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub(super) struct ParseCost {
    nodes: usize,
    bytes: usize,
}

/// Reason why YAML could not be read.
#[derive(Debug)]
pub(super) enum YamlError {
    /// Invalid YAML, or a value of no use; the repair pass may help.
    Syntax { line: usize, message: String },
    /// Too large or too complex; the repair pass must not be tried.
    Budget(&'static str),
}

/// Key that a map has twice.
#[derive(Debug)]
pub(super) struct DuplicateKey {
    pub(super) key: String,
    pub(super) line: usize,
}

/// Reads one document, or a piece of it that begins on `first_line`; returns `None` if it is empty. Adds what it cost
/// to
/// `spent`.
pub(super) fn read_yaml(
    yaml: &str,
    first_line: usize,
    spent: &mut ParseCost,
    duplicates: &mut Vec<DuplicateKey>,
) -> Result<Option<Rc<Node>>, YamlError> {
    let mut reader = NodeReader {
        parser: Parser::new_from_str(yaml),
        lines_before: first_line - 1,
        anchors: HashMap::new(),
        spent,
        duplicates,
    };
    let mut root = None;
    while let Some((event, line)) = reader.next_event()? {
        if !matches!(event, Event::DocumentStart(..)) {
            root = Some(reader.read_node(event, line, 0)?);
        } else if root.is_some() {
            return Err(YamlError::syntax(line, "there is more than one document"));
        }
    }
    Ok(root)
}

/// Reads nodes from the events of a parser. Recursion is bounded by [`DEPTH_MAX`].
struct NodeReader<'a> {
    parser: Parser<'a, StrInput<'a>>,
    /// Number of lines before the text.
    lines_before: usize,
    anchors: HashMap<usize, Rc<Node>>,
    spent: &'a mut ParseCost,
    duplicates: &'a mut Vec<DuplicateKey>,
}

impl<'a> NodeReader<'a> {
    /// Returns the next event that concerns a value, and its line.
    fn next_event(&mut self) -> Result<Option<(Event<'a>, usize)>, YamlError> {
        let lines_before = self.lines_before;
        for event in self.parser.by_ref() {
            let (event, span) = event.map_err(|error| {
                if matches!(error.kind(), ErrorKind::RecursionLimitExceeded) {
                    return YamlError::Budget("it is nested too deeply");
                }
                YamlError::syntax(error.marker().line() + lines_before, error.info())
            })?;
            // The others are comments, ends of documents, and events of later versions of the parser.
            if matches!(
                event,
                Event::DocumentStart(..)
                    | Event::Scalar(..)
                    | Event::SequenceStart(..)
                    | Event::SequenceEnd
                    | Event::MappingStart(..)
                    | Event::MappingEnd
                    | Event::Alias(_)
                    | Event::UnresolvedAlias(_)
            ) {
                return Ok(Some((event, span.start.line() + lines_before)));
            }
        }
        Ok(None)
    }

    /// Reads the node that begins with an event, within `depth` collections.
    fn read_node(
        &mut self,
        event: Event<'a>,
        line: usize,
        depth: usize,
    ) -> Result<Rc<Node>, YamlError> {
        let (value, anchor) = match event {
            Event::Scalar(text, style, anchor, _tag) => {
                self.spend(1, text.len())?;
                let plain = style == ScalarStyle::Plain;
                let value = NodeValue::Scalar {
                    text: text.into_owned(),
                    plain,
                };
                (value, anchor)
            }
            Event::SequenceStart(_, anchor, _) => {
                (NodeValue::List(self.read_list(depth + 1)?), anchor)
            }
            Event::MappingStart(_, anchor, _) => {
                (NodeValue::Map(self.read_map(depth + 1)?), anchor)
            }
            Event::Alias(anchor) => {
                let node = self.anchors.get(&anchor).map(Rc::clone).ok_or_else(|| {
                    YamlError::syntax(line, "an alias stands within what it stands for")
                })?;
                let (weight, height) = node.measure();
                check_depth(depth + height)?;
                self.spend(weight.nodes, weight.bytes)?;
                return Ok(node);
            }
            Event::UnresolvedAlias(name) => {
                let shown: String = name.chars().take(40).collect();
                return Err(YamlError::syntax(line, format!("no anchor &{shown}")));
            }
            Event::StreamStart
            | Event::StreamEnd
            | Event::DocumentStart(..)
            | Event::DocumentEnd
            | Event::Anchor(..)
            | Event::SequenceEnd
            | Event::MappingEnd
            | _ => return Err(YamlError::syntax(line, "a value is missing")),
        };
        let node = Rc::new(Node { value, line });
        if anchor != 0 {
            self.anchors.insert(anchor, Rc::clone(&node));
        }
        Ok(node)
    }

    fn read_list(&mut self, depth: usize) -> Result<Vec<Rc<Node>>, YamlError> {
        check_depth(depth)?;
        self.spend(1, 0)?;
        let mut items = Vec::new();
        while let Some((event, line)) = self.next_event()? {
            if matches!(event, Event::SequenceEnd) {
                break;
            }
            items.push(self.read_node(event, line, depth)?);
        }
        Ok(items)
    }

    /// Reads the entries of a map. The last of equal keys wins and takes the place of the first.
    fn read_map(&mut self, depth: usize) -> Result<MapEntries, YamlError> {
        check_depth(depth)?;
        self.spend(1, 0)?;
        let mut entries = MapEntries::new();
        let mut places: HashMap<String, usize> = HashMap::new();
        while let Some((event, line)) = self.next_event()? {
            if matches!(event, Event::MappingEnd) {
                break;
            }
            let key = self.read_node(event, line, depth)?;
            let NodeValue::Scalar { text: key, .. } = &key.value else {
                return Err(YamlError::syntax(line, "a key is not text"));
            };
            let Some((event, value_line)) = self.next_event()? else {
                break;
            };
            let value = self.read_node(event, value_line, depth)?;
            let known = places.get(key).and_then(|place| entries.get_mut(*place));
            if let Some((_, known)) = known {
                *known = value;
                self.duplicates.push(DuplicateKey {
                    key: key.clone(),
                    line,
                });
            } else {
                places.insert(key.clone(), entries.len());
                entries.push((key.clone(), value));
            }
        }
        Ok(entries)
    }

    fn spend(&mut self, nodes: usize, bytes: usize) -> Result<(), YamlError> {
        self.spent.nodes += nodes;
        self.spent.bytes += bytes;
        if self.spent.nodes > NODES_MAX {
            return Err(YamlError::Budget("it has too many values"));
        }
        if self.spent.bytes > BYTES_MAX {
            return Err(YamlError::Budget("it is too long"));
        }
        Ok(())
    }
}

fn check_depth(depth: usize) -> Result<(), YamlError> {
    if depth > DEPTH_MAX {
        return Err(YamlError::Budget("it is nested too deeply"));
    }
    Ok(())
}

impl YamlError {
    pub(super) fn syntax(line: usize, message: impl Into<String>) -> Self {
        Self::Syntax {
            line,
            message: message.into(),
        }
    }
}

impl Node {
    /// Returns the nodes and bytes of a value, keys included, and the number of collections within one another. Aliases
    /// count as often as they are used, as they did when the value was read.
    fn measure(&self) -> (ParseCost, usize) {
        let mut weight = ParseCost { nodes: 1, bytes: 0 };
        let mut height = 0;
        let mut add = |key: Option<&String>, value: &Self| {
            let (inner, inner_height) = value.measure();
            weight.nodes += inner.nodes + usize::from(key.is_some());
            weight.bytes += inner.bytes + key.map_or(0, String::len);
            height = inner_height.max(height);
        };
        match &self.value {
            NodeValue::Scalar { text, .. } => {
                let bytes = text.len();
                return (ParseCost { nodes: 1, bytes }, 0);
            }
            NodeValue::List(items) => items.iter().for_each(|item| add(None, item)),
            NodeValue::Map(entries) => entries
                .iter()
                .for_each(|(key, value)| add(Some(key), value)),
        }
        (weight, height + 1)
    }

    /// Returns the entries of a map.
    pub(super) fn entries(&self) -> Option<&[(String, Rc<Self>)]> {
        match &self.value {
            NodeValue::Map(entries) => Some(entries),
            NodeValue::Scalar { .. } | NodeValue::List(_) => None,
        }
    }

    /// Returns the value of a key of a map.
    pub(super) fn get(&self, key: &str) -> Option<&Self> {
        let mut entries = self.entries()?.iter();
        entries
            .find(|(name, _)| name == key)
            .map(|(_, value)| &**value)
    }

    /// Returns `true` for an empty value, `~` and `null`.
    pub(super) fn is_null(&self) -> bool {
        matches!(&self.value, NodeValue::Scalar { text, plain: true } if is_null(text))
    }

    /// Returns the text of a scalar that is not null.
    pub(super) fn scalar(&self) -> Option<&str> {
        match &self.value {
            NodeValue::Scalar { text, .. } if !self.is_null() => Some(text),
            NodeValue::Scalar { .. } | NodeValue::List(_) | NodeValue::Map(_) => None,
        }
    }

    /// Converts the node to JSON. A number stays one only if that loses nothing of its text: 1.10 does not.
    pub(super) fn to_json(&self) -> Value {
        match &self.value {
            NodeValue::Scalar { text, plain: false } => Value::String(text.clone()),
            NodeValue::Scalar { text, plain: true } => plain_to_json(text),
            NodeValue::List(items) => {
                Value::Array(items.iter().map(|item| item.to_json()).collect())
            }
            NodeValue::Map(entries) => Value::Object(to_json(entries)),
        }
    }
}

/// Converts the entries of a map to JSON.
pub(super) fn to_json(entries: &[(String, Rc<Node>)]) -> Map<String, Value> {
    entries
        .iter()
        .map(|(key, value)| (key.clone(), value.to_json()))
        .collect()
}

fn is_null(text: &str) -> bool {
    matches!(text, "" | "~" | "null" | "Null" | "NULL")
}

/// Converts text that was not quoted.
fn plain_to_json(text: &str) -> Value {
    match text {
        "true" | "True" | "TRUE" => return Value::Bool(true),
        "false" | "False" | "FALSE" => return Value::Bool(false),
        _ if is_null(text) => return Value::Null,
        _ => {}
    }
    // A number of the wire is a double, which holds integers up to 2^53.
    let exact =
        |number: f64| number.is_finite() && number.abs() < 9e15 && number.to_string() == text;
    let Some(number) = text.parse().ok().filter(|number| exact(*number)) else {
        return Value::String(text.to_owned());
    };
    text.parse::<i64>()
        .map_or_else(|_| Value::from(number), Value::from)
}
