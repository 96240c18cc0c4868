//! SKILL.md: front matter and body. Real YAML, bounded; where YAML fails, each key is read alone, so that
//! `description: Use when: x` costs a warning and not the skill.
//!
//! Pure. What a skill is called and whether it may be used is decided here; where it lies is `root.rs`'s.

use std::sync::Arc;

use serde::Deserialize;
use serde_json::{Map, Value};

use super::Problem;
use super::card::Card;

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

/// A SKILL.md that could be read.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Document {
    /// Before the body.
    pub front_matter: FrontMatter,
    /// What follows the front matter.
    pub body: String,
    /// Warnings; their subject is empty.
    pub warnings: Vec<Problem>,
}

/// Reads a SKILL.md.
///
/// # Errors
/// The first reason why it cannot be used; its subject is empty.
pub fn parse(bytes: &[u8]) -> Result<Document, Problem> {
    let text = std::str::from_utf8(bytes).map_err(|error| {
        let line = bytes
            .iter()
            .take(error.valid_up_to())
            .filter(|byte| **byte == b'\n')
            .count();
        Problem::error("skill.not_utf8", "SKILL.md is not UTF-8; save it as UTF-8").at(line + 1)
    })?;
    if text.contains('\0') {
        return Err(Problem::error("skill.nul", "SKILL.md contains a NUL"));
    }
    let text = text
        .trim_start_matches('\u{feff}')
        .replace("\r\n", "\n")
        .replace('\r', "\n");
    let mut warnings = Vec::new();
    let (yaml, first_line, body) = split(&text, &mut warnings)?;
    let fields = match read_yaml(yaml) {
        Ok(fields) => fields,
        Err(error) if is_budget(&error) => {
            return Err(Problem::error(
                "skill.too_complex",
                format!("front matter: {error}"),
            ));
        }
        Err(error) => {
            let line = error
                .location()
                .map_or(0, |at| usize::try_from(at.line()).unwrap_or(0));
            let message =
                format!("front matter is not valid YAML and was read key by key: {error}");
            warnings.push(
                Problem::warning("skill.yaml_repaired", message)
                    .at(first_line + line.saturating_sub(1)),
            );
            salvage(yaml)
        }
    };
    let front_matter = interpret(fields, yaml, &mut warnings)?;
    Ok(Document {
        front_matter,
        body: body.to_owned(),
        warnings,
    })
}

/// Front matter, the number of its first line, and the body.
fn split<'a>(
    text: &'a str,
    warnings: &mut Vec<Problem>,
) -> Result<(&'a str, usize, &'a str), Problem> {
    let start = text.trim_start_matches(['\n', ' ', '\t']);
    let skipped = text.len() - start.len();
    let mut line = text
        .get(..skipped)
        .unwrap_or_default()
        .matches('\n')
        .count()
        + 1;
    let (fence, rest) = start.split_once('\n').unwrap_or((start, ""));
    if fence.trim_end() != "---" {
        let message = "SKILL.md has no front matter: its first line must be `---`";
        return Err(Problem::error("skill.no_front_matter", message).at(line));
    }
    if skipped > 0 {
        warnings.push(
            Problem::warning("skill.leading_space", "blank lines before the front matter").at(1),
        );
    }
    line += 1;
    let mut at = 0;
    for candidate in rest.split_inclusive('\n') {
        if matches!(candidate.trim_end(), "---" | "...") {
            let yaml = rest.get(..at).unwrap_or_default();
            let body = rest.get(at + candidate.len()..).unwrap_or_default();
            return Ok((yaml, line, body));
        }
        at += candidate.len();
    }
    let message = "the front matter is not closed: a line `---` is missing";
    Err(Problem::error("skill.no_front_matter", message).at(line))
}

fn options() -> serde_saphyr::Options {
    serde_saphyr::options! {
        budget: serde_saphyr::budget! {
            max_depth: 32,
            max_nodes: 20_000,
            max_events: 60_000,
            max_aliases: 1_000,
            max_documents: 1,
            max_total_scalar_bytes: 1 << 20,
            max_recorded_anchor_events: 20_000,
            max_recorded_anchor_bytes: 1 << 20,
        },
        alias_limits: serde_saphyr::alias_limits! {
            max_total_replayed_events: 20_000,
            max_replay_stack_depth: 16,
        },
        duplicate_keys: serde_saphyr::DuplicateKeyPolicy::LastWins,
        non_finite_float_policy: serde_saphyr::NonFiniteFloatPolicy::AsString,
        leading_zero_numbers_as_strings: true,
        underscored_numbers_as_strings: true,
        strict_booleans: true,
        ignore_binary_tag_for_string: true,
        with_snippet: false,
    }
}

fn read_yaml(yaml: &str) -> Result<Map<String, Value>, serde_saphyr::Error> {
    serde_saphyr::from_str_with_options::<Option<Map<String, Value>>>(yaml, options())
        .map(Option::unwrap_or_default)
}

/// Whether a document was given up for its size, so that reading it in pieces must not be tried.
fn is_budget(error: &serde_saphyr::Error) -> bool {
    use serde_saphyr::Error as E;
    let error = error.without_snippet();
    if let E::AliasError { error, .. } = error {
        return is_budget(error);
    }
    matches!(
        error,
        E::Budget { .. }
            | E::AliasReplayCounterOverflow { .. }
            | E::AliasReplayLimitExceeded { .. }
            | E::AliasExpansionLimitExceeded { .. }
            | E::AliasReplayStackDepthExceeded { .. }
    )
}

/// Reads each unindented `key:` with what belongs to it alone; what is no YAML even then becomes text.
fn salvage(yaml: &str) -> Map<String, Value> {
    let mut blocks: Vec<(String, String)> = Vec::new();
    for line in yaml.lines() {
        match (key_of(line), blocks.last_mut()) {
            (Some(key), _) => blocks.push((key.to_owned(), format!("{line}\n"))),
            (None, Some((_, block))) => {
                block.push_str(line);
                block.push('\n');
            }
            (None, None) => {}
        }
    }
    let mut fields = Map::new();
    for (key, block) in blocks {
        let alone = read_yaml(&block).ok().and_then(|mut map| map.remove(&key));
        let value = alone.unwrap_or_else(|| Value::String(as_text(&block)));
        fields.insert(key, value);
    }
    fields
}

/// The key of a line `key: …` that is not indented.
fn key_of(line: &str) -> Option<&str> {
    let (key, rest) = line.split_once(':')?;
    let plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
    let ends = rest.is_empty() || rest.starts_with([' ', '\t']);
    (ends && !key.is_empty() && key.chars().all(plain)).then_some(key)
}

/// The value of a block as text: its lines joined, without a block indicator or quotes around it.
fn as_text(block: &str) -> String {
    let value = block.split_once(':').map_or("", |(_, value)| value);
    let value = value.trim_start().trim_start_matches(['|', '>']);
    let text = value.split_whitespace().collect::<Vec<_>>().join(" ");
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

/// Exact text of scalars that YAML takes for numbers: `version: 1.10` is not 1.1.
#[derive(Default, Deserialize)]
#[serde(default)]
struct Exact {
    name: Option<String>,
    version: Option<String>,
    metadata: Option<ExactMetadata>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct ExactMetadata {
    version: Option<String>,
}

fn interpret(
    fields: Map<String, Value>,
    yaml: &str,
    warnings: &mut Vec<Problem>,
) -> Result<FrontMatter, Problem> {
    let exact: Exact = serde_saphyr::from_str_with_options(yaml, options()).unwrap_or_default();
    let metadata = fields.get("metadata").and_then(Value::as_object);
    let text = |key: &str| {
        let inner = metadata.and_then(|metadata| metadata.get(key));
        scalar(fields.get(key))
            .or_else(|| scalar(inner))
            .unwrap_or_default()
    };
    let name = exact
        .name
        .or_else(|| scalar(fields.get("name")))
        .unwrap_or_default();
    let name = name.trim().to_owned();
    if name.is_empty() {
        let message = "SKILL.md has no name: its front matter needs `name: …`";
        return Err(Problem::error("skill.no_name", message));
    }
    if !super::is_name(&name) {
        let shown: String = name.chars().take(80).collect();
        let message =
            format!("the name {shown:?} is not of the form [A-Za-z0-9][A-Za-z0-9._-]{{0,63}}");
        return Err(Problem::error("skill.bad_name", message));
    }
    let description = scalar(fields.get("description")).unwrap_or_default();
    let description = description.split_whitespace().collect::<Vec<_>>().join(" ");
    if description.is_empty() {
        let message = "SKILL.md has no description: its front matter needs `description: …`";
        return Err(Problem::error("skill.no_description", message));
    }
    if description.chars().count() > 1024 {
        warnings.push(Problem::warning(
            "skill.long_description",
            "the description has more than 1,024 characters",
        ));
    }
    let exact_version = exact
        .version
        .or(exact.metadata.and_then(|metadata| metadata.version));
    let tags = fields.get("tags").or_else(|| metadata?.get("tags"));
    let tools = fields
        .get("allowed-tools")
        .or_else(|| fields.get("allowed_tools"));
    Ok(FrontMatter {
        name,
        description,
        version: exact_version
            .unwrap_or_else(|| text("version"))
            .trim()
            .to_owned(),
        author: text("author"),
        license: text("license"),
        compatibility: text("compatibility"),
        tags: list(tags, |text| text.split(',').map(str::to_owned).collect()),
        allowed_tools: tools.map(|tools| list(Some(tools), split_tools)),
        fields,
        ..FrontMatter::default()
    })
}

fn scalar(value: Option<&Value>) -> Option<String> {
    match value? {
        Value::String(text) => Some(text.trim().to_owned()),
        Value::Number(number) => Some(number.to_string()),
        Value::Bool(truth) => Some(truth.to_string()),
        Value::Null | Value::Array(_) | Value::Object(_) => None,
    }
}

/// A list, or a string that is split into one.
fn list(value: Option<&Value>, split: impl Fn(&str) -> Vec<String>) -> Vec<String> {
    let items: Vec<String> = match value {
        Some(Value::Array(items)) => items.iter().filter_map(|item| scalar(Some(item))).collect(),
        other => scalar(other).map(|text| split(&text)).unwrap_or_default(),
    };
    let items = items.into_iter().map(|item| item.trim().to_owned());
    items.filter(|item| !item.is_empty()).collect()
}

/// Splits at commas and spaces that are not in parentheses.
fn split_tools(text: &str) -> Vec<String> {
    let mut depth = 0_usize;
    let mut tools = vec![String::new()];
    for c in text.chars() {
        match c {
            '(' => depth += 1,
            ')' => depth = depth.saturating_sub(1),
            _ => {}
        }
        if depth == 0 && (c == ',' || c.is_whitespace()) {
            tools.push(String::new());
        } else if let Some(tool) = tools.last_mut() {
            tool.push(c);
        }
    }
    tools
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// `name|description|version`, or the code of the problem; then the codes of warnings.
    fn shown(text: &str) -> String {
        match parse(text.as_bytes()) {
            Ok(document) => {
                let front = document.front_matter;
                let codes: String = document
                    .warnings
                    .iter()
                    .map(|w| format!(" +{}", w.code))
                    .collect();
                format!(
                    "{}|{}|{}{codes}",
                    front.name, front.description, front.version
                )
            }
            Err(problem) => format!("!{}", problem.code),
        }
    }

    #[test]
    fn front_matter_is_read() {
        let front = |yaml: &str| format!("---\n{yaml}\n---\nbody\n");
        for (text, expected) in [
            (front("name: a\ndescription: b"), "a|b|"),
            (
                "\u{feff}---\r\nname: a\r\ndescription: b\r\n---\r\nbody".to_owned(),
                "a|b|",
            ),
            ("---  \nname: a\ndescription: b\n...\n".to_owned(), "a|b|"),
            (
                "\n\n---\nname: a\ndescription: b\n---".to_owned(),
                "a|b| +skill.leading_space",
            ),
            (front("name: a\ndescription: >\n  b\n  c\n"), "a|b c|"),
            (
                front("name: a\ndescription: |\n  b\n  ---\n  c"),
                "a|b --- c|",
            ),
            (front("name: a\ndescription: b --- c"), "a|b --- c|"),
            (
                front("name: a\ndescription: \"x: y\"\nversion: 1.10"),
                "a|x: y|1.10",
            ),
            (
                front("name: a\ndescription: b\nmetadata:\n  version: 2.0"),
                "a|b|2.0",
            ),
            (front("name: a\ndescription: b\nmetadata:"), "a|b|"),
            (front("name: yes\ndescription: b"), "yes|b|"),
            (front("name: 007\ndescription: b"), "007|b|"),
            (front("name: a\nname: c\ndescription: b"), "c|b|"),
            (
                front("name: a\ndescription: Use when: x"),
                "a|Use when: x| +skill.yaml_repaired",
            ),
            (
                front("name: a\ndescription: > Use when x"),
                "a|Use when x| +skill.yaml_repaired",
            ),
            (
                front("name: a\ndescription: \"a\" b"),
                "a|\"a\" b| +skill.yaml_repaired",
            ),
            (
                front("name: a\ndescription: b\nargument-hint: [a] [b]"),
                "a|b| +skill.yaml_repaired",
            ),
            (front("description: b"), "!skill.no_name"),
            (front("name:\ndescription: b"), "!skill.no_name"),
            (front("name: [a]\ndescription: b"), "!skill.no_name"),
            (front("name: ../x\ndescription: b"), "!skill.bad_name"),
            (front("name: a b\ndescription: b"), "!skill.bad_name"),
            (
                front(&format!("name: {}\ndescription: b", "n".repeat(65))),
                "!skill.bad_name",
            ),
            (front("name: a"), "!skill.no_description"),
            (front("name: a\ndescription: ' '"), "!skill.no_description"),
            (front(""), "!skill.no_name"),
            ("# Title\n".to_owned(), "!skill.no_front_matter"),
            ("".to_owned(), "!skill.no_front_matter"),
            (
                "---\nname: a\ndescription: b\n".to_owned(),
                "!skill.no_front_matter",
            ),
            ("---\nname: a\0\n---\n".to_owned(), "!skill.nul"),
        ] {
            assert_eq!(shown(&text), expected, "{text:?}");
        }
    }

    #[test]
    fn lists_and_unknown_keys_are_kept() {
        let text = "---\nname: a\ndescription: b\ntags: [x, y z]\nallowed-tools: Bash(git add:*), Read\n\
                    license: MIT\nmetadata: {author: me, openclaw: {os: [linux]}}\n---\nBody\n";
        let document = parse(text.as_bytes()).expect("valid");
        let front = &document.front_matter;
        assert_eq!(front.tags, ["x", "y z"]);
        assert_eq!(
            front.allowed_tools.as_deref().expect("given"),
            ["Bash(git add:*)", "Read"]
        );
        assert_eq!(
            (front.license.as_str(), front.author.as_str()),
            ("MIT", "me")
        );
        assert_eq!(front.fields["metadata"]["openclaw"]["os"][0], "linux");
        assert_eq!(document.body, "Body\n");
    }

    #[test]
    fn a_file_that_is_not_utf8_is_refused_with_its_line() {
        let problem = parse(b"---\nname: a\ndescription: \xff\n---\n").expect_err("not UTF-8");
        assert_eq!((problem.code, problem.line), ("skill.not_utf8", 3));
    }

    #[test]
    fn an_alias_bomb_is_refused_in_bounded_time() {
        let mut yaml = "name: a\ndescription: b\na0: &a0 [x, x, x, x, x, x, x, x, x]\n".to_owned();
        for level in 1..12 {
            let previous = format!("*a{}, ", level - 1).repeat(9);
            yaml.push_str(&format!(
                "a{level}: &a{level} [{}]\n",
                previous.trim_end_matches(", ")
            ));
        }
        let started = std::time::Instant::now();
        assert_eq!(shown(&format!("---\n{yaml}---\n")), "!skill.too_complex");
        assert!(started.elapsed() < std::time::Duration::from_secs(2));
    }

    #[test]
    fn deep_nesting_is_refused() {
        let yaml = format!(
            "name: a\ndescription: b\nx: {}{}",
            "[".repeat(1000),
            "]".repeat(1000)
        );
        let shown = shown(&format!("---\n{yaml}\n---\n"));
        assert!(
            shown == "!skill.too_complex" || shown.contains("+skill.yaml_repaired"),
            "{shown}"
        );
    }

    proptest! {
        #[test]
        fn parsing_never_panics(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            let _ = parse(&bytes);
        }

        #[test]
        fn parsing_yaml_like_text_never_panics(yaml in "[a-c:&*|>'\"\\[\\]{}!#%@` \\n\\t.?,-]{0,120}") {
            let _ = parse(format!("---\nname: a\ndescription: b\n{yaml}\n---\n").as_bytes());
        }
    }
}
