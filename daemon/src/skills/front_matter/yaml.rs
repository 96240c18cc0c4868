//! YAML → a tree that keeps the text of scalars and the lines of keys. Bounded in depth, nodes and bytes, aliases
//! counted as often as they are used, so that nothing grows beyond what was sent by more than a constant.

use std::collections::HashMap;
use std::rc::Rc;

use granit_parser::{ErrorKind, Event, Parser, ScalarStyle, Span};
use serde_json::{Map, Value};

/// Collections within one another.
pub(super) const DEPTH_MAX: usize = 32;
const NODES_MAX: usize = 20_000;
const BYTES_MAX: usize = 1 << 20;

/// A value and the line on which it begins, from 1.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Node {
    pub(super) kind: Kind,
    pub(super) line: usize,
    /// Nodes and bytes in it, itself included.
    weight: Weight,
    /// Collections within one another in it.
    depth: usize,
}

#[derive(Debug, Clone, PartialEq)]
pub(super) enum Kind {
    /// Its text; `plain` if it was not quoted, so that it may be a number.
    Scalar { text: String, plain: bool },
    /// In order.
    List(Vec<Rc<Node>>),
    /// In order of the first of each key.
    Map(Vec<(String, Rc<Node>)>),
}

/// Nodes and bytes. What all pieces of one document have cost so far is one of these too.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub(super) struct Weight {
    nodes: usize,
    bytes: usize,
}

/// Why there is no tree.
#[derive(Debug)]
pub(super) enum Fault {
    /// It is not YAML, or YAML that nothing can be made of; reading it in pieces may help.
    Syntax { line: usize, message: String },
    /// It is too much; reading it in pieces must not be tried.
    Budget(&'static str),
}

/// A key that came twice.
#[derive(Debug)]
pub(super) struct Duplicate {
    pub(super) key: String,
    pub(super) line: usize,
}

/// Reads one document, or a piece of it. `None` if it is empty.
pub(super) fn read(
    yaml: &str,
    spent: &mut Weight,
    duplicates: &mut Vec<Duplicate>,
) -> Result<Option<Rc<Node>>, Fault> {
    let mut builder = Builder {
        open: Vec::new(),
        anchors: HashMap::new(),
        spent,
        root: None,
        duplicates,
    };
    for event in Parser::new_from_str(yaml) {
        let (event, span) = event.map_err(|error| {
            if matches!(error.kind(), ErrorKind::RecursionLimitExceeded) {
                return Fault::Budget("it is nested too deeply");
            }
            Fault::Syntax {
                line: error.marker().line(),
                message: error.info(),
            }
        })?;
        builder.event(event, span)?;
    }
    Ok(builder.root)
}

/// The tree so far. Collections that are open stand in a stack of our own, not on the program's.
struct Builder<'a> {
    open: Vec<Open>,
    anchors: HashMap<usize, Rc<Node>>,
    spent: &'a mut Weight,
    root: Option<Rc<Node>>,
    duplicates: &'a mut Vec<Duplicate>,
}

struct Open {
    items: Items,
    line: usize,
    anchor: usize,
}

enum Items {
    List(Vec<Rc<Node>>),
    Map {
        entries: Vec<(String, Rc<Node>)>,
        places: HashMap<String, usize>,
        /// A key that waits for its value.
        key: Option<(String, usize)>,
    },
}

impl Builder<'_> {
    fn event(&mut self, event: Event<'_>, span: Span) -> Result<(), Fault> {
        let line = span.start.line();
        match event {
            Event::Scalar(text, style, anchor, _tag) => {
                let weight = Weight {
                    nodes: 1,
                    bytes: text.len(),
                };
                let kind = Kind::Scalar {
                    text: text.into_owned(),
                    plain: style == ScalarStyle::Plain,
                };
                self.add(
                    Node {
                        kind,
                        line,
                        weight,
                        depth: 0,
                    },
                    anchor,
                )
            }
            Event::SequenceStart(_, anchor, _) => self.begin(Items::List(Vec::new()), line, anchor),
            Event::MappingStart(_, anchor, _) => {
                let items = Items::Map {
                    entries: Vec::new(),
                    places: HashMap::new(),
                    key: None,
                };
                self.begin(items, line, anchor)
            }
            Event::SequenceEnd | Event::MappingEnd => self.end(),
            Event::Alias(anchor) => {
                let Some(node) = self.anchors.get(&anchor).map(Rc::clone) else {
                    let message = "an alias stands within what it stands for".to_owned();
                    return Err(Fault::Syntax { line, message });
                };
                if self.open.len() + node.depth > DEPTH_MAX {
                    return Err(Fault::Budget("it is nested too deeply"));
                }
                self.spend(node.weight)?;
                self.place(node, line)
            }
            Event::UnresolvedAlias(name) => Err(Fault::Syntax {
                line,
                message: format!("no anchor &{}", name.chars().take(40).collect::<String>()),
            }),
            Event::DocumentStart(..) if self.root.is_some() => Err(Fault::Syntax {
                line,
                message: "there is more than one document".to_owned(),
            }),
            // `_` is what later versions of the parser may tell.
            Event::StreamStart
            | Event::StreamEnd
            | Event::DocumentStart(..)
            | Event::DocumentEnd
            | Event::Anchor(..)
            | _ => Ok(()),
        }
    }

    fn spend(&mut self, weight: Weight) -> Result<(), Fault> {
        self.spent.nodes += weight.nodes;
        self.spent.bytes += weight.bytes;
        if self.spent.nodes > NODES_MAX {
            return Err(Fault::Budget("it has too many values"));
        }
        if self.spent.bytes > BYTES_MAX {
            return Err(Fault::Budget("it is too long"));
        }
        Ok(())
    }

    fn begin(&mut self, items: Items, line: usize, anchor: usize) -> Result<(), Fault> {
        if self.open.len() >= DEPTH_MAX {
            return Err(Fault::Budget("it is nested too deeply"));
        }
        self.open.push(Open {
            items,
            line,
            anchor,
        });
        Ok(())
    }

    fn end(&mut self) -> Result<(), Fault> {
        let Some(open) = self.open.pop() else {
            return Ok(());
        };
        let kind = match open.items {
            Items::List(items) => Kind::List(items),
            Items::Map { entries, .. } => Kind::Map(entries),
        };
        let mut node = Node {
            kind,
            line: open.line,
            weight: Weight { nodes: 1, bytes: 0 },
            depth: 1,
        };
        for (key, child) in node.kind.children() {
            // A key is copied with its map, wherever an alias puts that.
            node.weight.nodes += child.weight.nodes + usize::from(key.is_some());
            node.weight.bytes += child.weight.bytes + key.map_or(0, String::len);
            node.depth = node.depth.max(child.depth + 1);
        }
        // What is in it was paid for already.
        self.spend(Weight { nodes: 1, bytes: 0 })?;
        self.remember(node, open.anchor, open.line)
    }

    fn add(&mut self, node: Node, anchor: usize) -> Result<(), Fault> {
        self.spend(node.weight)?;
        let line = node.line;
        self.remember(node, anchor, line)
    }

    fn remember(&mut self, node: Node, anchor: usize, line: usize) -> Result<(), Fault> {
        let node = Rc::new(node);
        if anchor != 0 {
            self.anchors.insert(anchor, Rc::clone(&node));
        }
        self.place(node, line)
    }

    /// Puts a whole node where it belongs.
    fn place(&mut self, node: Rc<Node>, line: usize) -> Result<(), Fault> {
        match self.open.last_mut().map(|open| &mut open.items) {
            None => self.root = Some(node),
            Some(Items::List(items)) => items.push(node),
            Some(Items::Map {
                entries,
                places,
                key,
            }) => match (key.take(), &node.kind) {
                (None, Kind::Scalar { text, .. }) => *key = Some((text.clone(), line)),
                (None, _) => {
                    let message = "a key is not text".to_owned();
                    return Err(Fault::Syntax { line, message });
                }
                (Some((key, line)), _) => {
                    let known = places.get(&key).and_then(|place| entries.get_mut(*place));
                    if let Some((_, value)) = known {
                        *value = node;
                        self.duplicates.push(Duplicate { key, line });
                    } else {
                        places.insert(key.clone(), entries.len());
                        entries.push((key, node));
                    }
                }
            },
        }
        Ok(())
    }
}

impl Kind {
    /// What is in it, with the keys of a map.
    fn children(&self) -> Box<dyn Iterator<Item = (Option<&String>, &Rc<Node>)> + '_> {
        match self {
            Self::Scalar { .. } => Box::new(std::iter::empty()),
            Self::List(items) => Box::new(items.iter().map(|item| (None, item))),
            Self::Map(entries) => Box::new(entries.iter().map(|(key, value)| (Some(key), value))),
        }
    }
}

impl Node {
    /// A text that was not read as YAML.
    pub(super) fn text(text: String, line: usize) -> Self {
        let weight = Weight {
            nodes: 1,
            bytes: text.len(),
        };
        let kind = Kind::Scalar { text, plain: false };
        Self {
            kind,
            line,
            weight,
            depth: 0,
        }
    }

    /// The entries of a map.
    pub(super) fn entries(&self) -> Option<&[(String, Rc<Self>)]> {
        match &self.kind {
            Kind::Map(entries) => Some(entries),
            Kind::Scalar { .. } | Kind::List(_) => None,
        }
    }

    /// The value of a key of a map.
    pub(super) fn get(&self, key: &str) -> Option<&Self> {
        let mut entries = self.entries()?.iter();
        entries
            .find(|(name, _)| name == key)
            .map(|(_, value)| &**value)
    }

    /// Nothing, `~` or `null`.
    pub(super) fn is_null(&self) -> bool {
        matches!(&self.kind, Kind::Scalar { text, plain: true } if is_null(text))
    }

    /// The text of a scalar that is not null.
    pub(super) fn scalar(&self) -> Option<&str> {
        match &self.kind {
            Kind::Scalar { text, .. } if !self.is_null() => Some(text),
            Kind::Scalar { .. } | Kind::List(_) | Kind::Map(_) => None,
        }
    }

    /// For the wire. A number stays one only if that loses nothing of its text: 1.10 does not.
    pub(super) fn to_json(&self) -> Value {
        match &self.kind {
            Kind::Scalar { text, plain: false } => Value::String(text.clone()),
            Kind::Scalar { text, plain: true } => plain(text),
            Kind::List(items) => Value::Array(items.iter().map(|item| item.to_json()).collect()),
            Kind::Map(entries) => Value::Object(to_json(entries)),
        }
    }
}

/// A map for the wire.
pub(super) fn to_json(entries: &[(String, Rc<Node>)]) -> Map<String, Value> {
    entries
        .iter()
        .map(|(key, value)| (key.clone(), value.to_json()))
        .collect()
}

fn is_null(text: &str) -> bool {
    matches!(text, "" | "~" | "null" | "Null" | "NULL")
}

fn plain(text: &str) -> Value {
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
