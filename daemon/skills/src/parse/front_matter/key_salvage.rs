//! Front matter that is not YAML, read key by key: each unindented `key:` with what belongs to it alone. What is no
//! YAML even then becomes text. A bad key costs no other one.

use std::borrow::Cow;
use std::collections::HashMap;
use std::rc::Rc;

use super::yaml_node::{self, DuplicateKey, MapEntries, Node, NodeValue, ParseCost, YamlError};
use crate::parse::finding::{self, Findings, quote_excerpt};

/// Maximum number of characters of a key.
const KEY_CHARS_MAX: usize = 64;
/// Colon of Chinese and Japanese keyboards.
const WIDE_COLON: char = '：';

/// Lines of one key.
struct KeyBlock<'a> {
    key: &'a str,
    /// Number of its first line.
    line: usize,
    lines: Vec<&'a str>,
}

/// Returns front matter with `key: ` for each unindented `key：`. Only keys of ASCII letters in lower case, digits, `-`
/// and `_` count, because text may begin with any other word. The front matter begins on `first_line`.
pub(super) fn replace_wide_colons<'a>(
    yaml: &'a str,
    first_line: usize,
    findings: &mut Findings,
) -> Cow<'a, str> {
    if !yaml.contains(WIDE_COLON) {
        return Cow::Borrowed(yaml);
    }
    let plain = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || matches!(c, '-' | '_');
    let is_key = |key: &str| (1..=KEY_CHARS_MAX).contains(&key.len()) && key.chars().all(plain);
    let mut replaced = String::with_capacity(yaml.len());
    for (line, text) in (first_line..).zip(yaml.split_inclusive('\n')) {
        let split = text
            .split_once(WIDE_COLON)
            .map(|(key, value)| (key.trim_end(), value));
        let Some((key, value)) = split.filter(|(key, _)| is_key(key)) else {
            replaced.push_str(text);
            continue;
        };
        let message = format!("a full-width colon follows {key}: write `:` and a blank");
        findings.add(finding::YAML_REPAIRED, line, message);
        replaced.push_str(key);
        replaced.push_str(": ");
        replaced.push_str(value);
    }
    Cow::Owned(replaced)
}

/// Salvages front matter that is not valid YAML: reads each top-level key by itself, in order. The front matter begins
/// on `first_line`.
///
/// # Errors
/// The reason why it is too complex.
pub(super) fn salvage_keys(
    yaml: &str,
    first_line: usize,
    duplicates: &mut Vec<DuplicateKey>,
    findings: &mut Findings,
) -> Result<MapEntries, &'static str> {
    let mut salvaged = MapEntries::new();
    let mut spent = ParseCost::default();
    let mut places = HashMap::new();
    for block in split_blocks(yaml, first_line, findings) {
        let read = match read_block(&block, &block.lines, &mut spent, duplicates) {
            // Some files have conflict markers of a merge between their lines.
            Err(YamlError::Syntax { .. }) if block.lines.iter().any(|line| is_junk(line)) => {
                let lines = block.lines.iter().copied();
                let clean: Vec<&str> = lines.filter(|line| !is_junk(line)).collect();
                read_block(&block, &clean, &mut spent, duplicates)
            }
            read => read,
        };
        let (key, line) = (block.key.to_owned(), block.line);
        let node = match read {
            Ok(node) => node,
            Err(YamlError::Budget(message)) => return Err(message),
            Err(YamlError::Syntax { message, .. }) => {
                let key = quote_excerpt(block.key);
                let text = format!("{key} is not YAML and was read as text: {message}");
                findings.add(finding::YAML_REPAIRED, line, text);
                let (text, plain) = (join_as_text(&block.lines), false);
                let value = NodeValue::Scalar { text, plain };
                Rc::new(Node { value, line })
            }
        };
        if let Some((_, value)) = places.get(&key).and_then(|place| salvaged.get_mut(*place)) {
            *value = node;
            duplicates.push(DuplicateKey { key, line });
        } else {
            places.insert(key.clone(), salvaged.len());
            salvaged.push((key, node));
        }
    }
    Ok(salvaged)
}

fn split_blocks<'a>(
    yaml: &'a str,
    first_line: usize,
    findings: &mut Findings,
) -> Vec<KeyBlock<'a>> {
    let mut blocks: Vec<KeyBlock<'_>> = Vec::new();
    for (line, text) in (first_line..).zip(yaml.lines()) {
        match (key_of(text), blocks.last_mut()) {
            (Some(key), _) => blocks.push(KeyBlock {
                key,
                line,
                lines: vec![text],
            }),
            (None, Some(block)) => block.lines.push(text),
            (None, None) if text.trim().is_empty() || text.starts_with('#') => {}
            (None, None) => {
                let message = format!("{} belongs to no key and was left out", quote_excerpt(text));
                findings.add(finding::YAML_REPAIRED, line, message);
            }
        }
    }
    blocks
}

/// Reads the value of a block that is YAML by itself.
fn read_block(
    block: &KeyBlock<'_>,
    lines: &[&str],
    spent: &mut ParseCost,
    duplicates: &mut Vec<DuplicateKey>,
) -> Result<Rc<Node>, YamlError> {
    let text = lines.join("\n") + "\n";
    let mut inner = Vec::new();
    let root = yaml_node::read_yaml(&text, block.line, spent, &mut inner)?;
    match root.as_ref().and_then(|root| root.entries()) {
        Some([(_, node)]) => {
            duplicates.append(&mut inner);
            Ok(Rc::clone(node))
        }
        _ => Err(YamlError::syntax(
            block.line,
            "it is not one key with its value",
        )),
    }
}

/// Returns the key of a line `key: …` that is not indented.
pub(super) fn key_of(line: &str) -> Option<&str> {
    let (key, rest) = line.split_once(':')?;
    let ends = rest.is_empty() || rest.starts_with([' ', '\t']);
    let quoted = ['"', '\''].iter().find_map(|quote| {
        let inner = key.trim_end().strip_prefix(*quote)?.strip_suffix(*quote)?;
        (!inner.contains(*quote)).then_some(inner)
    });
    let key = quoted.unwrap_or_else(|| key.trim_end());
    let begins = |c: char| c.is_alphanumeric() || c == '_' || c == '$';
    let plain = |c: char| !c.is_control() && !matches!(c, '#' | '"' | '\'' | '`' | '{' | '[');
    let good = key.starts_with(begins) && key.chars().all(plain);
    (ends && good && key.chars().count() <= KEY_CHARS_MAX).then_some(key)
}

/// Returns `true` for a line that is neither indented nor text, a list item or a comment: `<<<<<<< HEAD`, `+x`.
fn is_junk(line: &str) -> bool {
    line.starts_with(['<', '=', '>', '+', '}', ']', '*', '|', '`']) || line.starts_with("--")
}

/// Returns the value of a block as text: its lines joined, without a block indicator or quotes around it.
fn join_as_text(lines: &[&str]) -> String {
    let joined = lines.join("\n");
    let value = joined.split_once(':').map_or("", |(_, value)| value).trim();
    // Other white space is kept, so that it is reported as hidden characters.
    let words = without_indicator(value)
        .split([' ', '\t', '\n'])
        .filter(|word| !word.is_empty());
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

/// Returns the `text` of `> text`, `|- text` and `>2 text`.
fn without_indicator(value: &str) -> &str {
    let Some(unmarked) = value.strip_prefix(['|', '>']) else {
        return value;
    };
    let rest = unmarked.trim_start_matches(|c: char| matches!(c, '+' | '-') || c.is_ascii_digit());
    if rest.is_empty() || rest.starts_with(char::is_whitespace) {
        rest
    } else {
        value
    }
}
