//! Front matter that is not YAML, read key by key: each unindented `key:` with what belongs to it alone. What is no
//! YAML even then becomes text. A bad key costs no other one.

use std::rc::Rc;

use super::super::finding::{self, Findings, shown};
use super::yaml::{self, Duplicate, Fault, Node, Weight};

/// Characters of a key.
const KEY_CHARS_MAX: usize = 64;

/// A key with its lines.
struct Block<'a> {
    key: &'a str,
    /// From 1 within the front matter.
    line: usize,
    lines: Vec<&'a str>,
}

/// Reads front matter key by key, in order. `offset` is added to line numbers in findings.
pub(super) fn salvage(
    yaml: &str,
    offset: usize,
    duplicates: &mut Vec<Duplicate>,
    findings: &mut Findings,
) -> Result<Vec<(String, Rc<Node>)>, &'static str> {
    let mut salvaged: Vec<(String, Rc<Node>)> = Vec::new();
    let mut spent = Weight::default();
    let mut places = std::collections::HashMap::new();
    for block in blocks(yaml, offset, findings) {
        let read = match alone(&block, &block.lines, &mut spent, duplicates) {
            // Some files have rests of a merge between their lines.
            Err(Fault::Syntax { .. }) if block.lines.iter().any(|line| is_junk(line)) => {
                let lines = block.lines.iter().copied();
                let clean: Vec<&str> = lines.filter(|line| !is_junk(line)).collect();
                alone(&block, &clean, &mut spent, duplicates)
            }
            read => read,
        };
        let node = match read {
            Ok(node) => node,
            Err(Fault::Budget(message)) => return Err(message),
            Err(Fault::Syntax { message, .. }) => {
                let text = format!(
                    "{} is not YAML and was read as text: {message}",
                    shown(block.key)
                );
                findings.add(finding::YAML_REPAIRED, block.line + offset, text);
                Rc::new(Node::text(as_text(&block.lines), block.line))
            }
        };
        let key = block.key.to_owned();
        if let Some((_, value)) = places.get(&key).and_then(|place| salvaged.get_mut(*place)) {
            *value = node;
            let line = block.line;
            duplicates.push(Duplicate { key, line });
        } else {
            places.insert(key.clone(), salvaged.len());
            salvaged.push((key, node));
        }
    }
    Ok(salvaged)
}

fn blocks<'a>(yaml: &'a str, offset: usize, findings: &mut Findings) -> Vec<Block<'a>> {
    let mut blocks: Vec<Block<'_>> = Vec::new();
    for (index, line) in yaml.lines().enumerate() {
        let number = index + 1;
        match (key_of(line), blocks.last_mut()) {
            (Some(key), _) => blocks.push(Block {
                key,
                line: number,
                lines: vec![line],
            }),
            (None, Some(block)) => block.lines.push(line),
            (None, None) if line.trim().is_empty() || line.starts_with('#') => {}
            (None, None) => {
                let message = format!("{} belongs to no key and was left out", shown(line));
                findings.add(finding::YAML_REPAIRED, number + offset, message);
            }
        }
    }
    blocks
}

/// The value of a block that is YAML by itself.
fn alone(
    block: &Block<'_>,
    lines: &[&str],
    spent: &mut Weight,
    duplicates: &mut Vec<Duplicate>,
) -> Result<Rc<Node>, Fault> {
    let text = lines.join("\n") + "\n";
    let mut within = Vec::new();
    let root = yaml::read(&text, spent, &mut within).map_err(|fault| match fault {
        Fault::Syntax { line, message } => Fault::Syntax {
            line: line + block.line - 1,
            message,
        },
        Fault::Budget(message) => Fault::Budget(message),
    })?;
    let unexpected = || Fault::Syntax {
        line: block.line,
        message: "it is not one key with its value".to_owned(),
    };
    let root = root.ok_or_else(unexpected)?;
    let [(_, node)] = root.entries().ok_or_else(unexpected)? else {
        return Err(unexpected());
    };
    duplicates.extend(within.into_iter().map(|duplicate| Duplicate {
        line: duplicate.line + block.line - 1,
        ..duplicate
    }));
    let mut node = Node::clone(node);
    node.line += block.line - 1;
    Ok(Rc::new(node))
}

/// The key of a line `key: …` that is not indented.
pub(super) fn key_of(line: &str) -> Option<&str> {
    let (key, rest) = line.split_once(':')?;
    let ends = rest.is_empty() || rest.starts_with([' ', '\t']);
    let quoted = ['"', '\''].iter().find_map(|quote| {
        let key = key.trim_end().strip_prefix(*quote)?.strip_suffix(*quote)?;
        (!key.contains(*quote)).then_some(key)
    });
    let key = quoted.unwrap_or_else(|| key.trim_end());
    let begins = |c: char| c.is_alphanumeric() || c == '_' || c == '$';
    let plain = |c: char| !c.is_control() && !matches!(c, '#' | '"' | '\'' | '`' | '{' | '[');
    let good = key.starts_with(begins) && key.chars().all(plain);
    (ends && good && key.chars().count() <= KEY_CHARS_MAX).then_some(key)
}

/// A line that is neither indented nor text, a list item or a comment: `<<<<<<< HEAD`, `+x`.
fn is_junk(line: &str) -> bool {
    line.starts_with(['<', '=', '>', '+', '}', ']', '*', '|', '`']) || line.starts_with("--")
}

/// The value of a block as text: its lines joined, without a block indicator or quotes around it.
fn as_text(lines: &[&str]) -> String {
    let joined = lines.join("\n");
    let value = joined.split_once(':').map_or("", |(_, value)| value).trim();
    // Other white space stays, so that it is reported as hidden.
    let words = without_indicator(value).split([' ', '\t', '\n']);
    let words = words.filter(|word| !word.is_empty());
    let text = words.collect::<Vec<_>>().join(" ");
    for quote in ['"', '\''] {
        let inner = text
            .strip_prefix(quote)
            .and_then(|text| text.strip_suffix(quote));
        if let Some(inner) = inner.filter(|inner| !inner.contains(quote)) {
            return inner.to_owned();
        }
    }
    text
}

/// `> text`, `|- text`, `>2 text` → `text`.
fn without_indicator(value: &str) -> &str {
    let Some(rest) = value.strip_prefix(['|', '>']) else {
        return value;
    };
    let rest = rest.trim_start_matches(|c: char| matches!(c, '+' | '-') || c.is_ascii_digit());
    if rest.is_empty() || rest.starts_with(char::is_whitespace) {
        rest
    } else {
        value
    }
}
