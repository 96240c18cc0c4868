//! The tools that a skill names: its `Tools:` section, and the entries of `allowed-tools`.

use std::collections::HashSet;

use crate::parse::finding::{self, Findings, quote_excerpt};

/// Commas between the entries of a text, also those of Chinese and Japanese.
pub(super) const COMMAS: [char; 3] = [',', '，', '、'];
/// Colons after a word.
const COLONS: [char; 2] = [':', '：'];
/// Maximum number of names of one section, or of all entries of `allowed-tools`.
const TOOLS_MAX: usize = 256;
/// Maximum number of characters of a tool's name.
const NAME_CHARS_MAX: usize = 128;
/// Maximum number of lines of one comment between two tools: each is looked for the item after it.
const COMMENT_LINES_MAX: usize = 50;

/// Reads the `Tools:` sections of a body. A section ends at a heading, at a code fence, and where text follows a
/// blank line. `# text` between two items, without a blank line around it, is a comment and not a heading. What looks
/// like a tool after the end is a finding. `first_line` is the number of the body's first line.
pub(super) fn read_tools_section(
    body: &str,
    first_line: usize,
    findings: &mut Findings,
) -> Vec<String> {
    let mut tools: Vec<String> = Vec::new();
    let mut inside = false;
    let mut after_blank = false;
    let mut fence: Option<&str> = None;
    let lines: Vec<&str> = body.lines().map(str::trim).collect();
    for (index, &line) in lines.iter().enumerate() {
        let rest = lines.get(index + 1..).unwrap_or_default();
        if let Some(mark) = fence_mark(line) {
            if inside {
                let end = rest.iter().position(|line| line.starts_with(mark));
                let after = end.and_then(|end| rest.get(end + 1..));
                report_lost_tool(
                    line,
                    after.unwrap_or_default(),
                    first_line + index,
                    findings,
                );
            }
            inside = false;
            fence = match fence {
                Some(open) if open == mark => None,
                Some(open) => Some(open),
                None => Some(mark),
            };
        } else if fence.is_some() {
        } else if is_opening(line) {
            (inside, after_blank) = (true, false);
        } else if !inside {
        } else if line.is_empty() {
            after_blank = true;
        } else if let Some(item) = strip_item_mark(line) {
            after_blank = false;
            add_tool(item, first_line + index, &mut tools, findings);
        } else if is_heading(line) {
            if after_blank || !line.starts_with("# ") || !is_before_item(rest) {
                inside = false;
                report_lost_tool(line, rest, first_line + index, findings);
            }
        } else if !line.starts_with('#') && (after_blank || line.contains(COLONS)) {
            inside = false;
            report_lost_tool(line, rest, first_line + index, findings);
        }
    }
    tools
}

/// Adds the tool of an item, once.
fn add_tool(item: &str, line: usize, tools: &mut Vec<String>, findings: &mut Findings) {
    let name = without_comment(item);
    if is_tool_name(name) {
        if tools.iter().any(|tool| tool == name) {
        } else if tools.len() < TOOLS_MAX {
            tools.push(name.to_owned());
        } else if !findings.has(finding::TOOLS_ENDED) {
            let message =
                format!("`Tools:` has more than {TOOLS_MAX} tools: those after them are not read");
            findings.add(finding::TOOLS_ENDED, line, message);
        }
    } else if !name.is_empty() {
        let message = format!(
            "{} in `Tools:` is not the name of a tool",
            quote_excerpt(name)
        );
        findings.add(finding::TOOL_NAME, line, message);
    }
}

/// Reports the tool that follows the line at which a section ended, if one does.
fn report_lost_tool(end: &str, rest: &[&str], line: usize, findings: &mut Findings) {
    if let Some(tool) = lost_tool(end, rest) {
        let message = format!(
            "{} ends `Tools:`, and {} after it is not read",
            quote_excerpt(end),
            quote_excerpt(tool)
        );
        findings.add(finding::TOOLS_ENDED, line, message);
    }
}

/// Returns the mark of a line that opens or closes code.
fn fence_mark(line: &str) -> Option<&'static str> {
    ["```", "~~~"]
        .into_iter()
        .find(|mark| line.starts_with(mark))
}

/// Returns what follows the mark of a list's item: `- x`, `-x`, `* x`, `+ x`.
fn strip_item_mark(line: &str) -> Option<&str> {
    let dashed = line.strip_prefix('-').filter(|_| !is_rule(line));
    dashed
        .or_else(|| line.strip_prefix("* "))
        .or_else(|| line.strip_prefix("+ "))
}

/// Returns `true` for a line that begins with `Tools:`, also within bold marks.
fn is_opening(line: &str) -> bool {
    let line = line.trim_start_matches('*');
    let word = line.split(COLONS).next().unwrap_or_default();
    word.eq_ignore_ascii_case("tools") && word.len() < line.len()
}

/// Returns `true` for `# Title`, but not for `#comment`, nor for `# - tool`, which is an item that was commented out.
fn is_heading(line: &str) -> bool {
    let text = line.trim_start_matches('#');
    text.len() < line.len()
        && text.starts_with(char::is_whitespace)
        && !text.trim_start().starts_with('-')
}

/// Returns `true` if an item follows directly, or after other lines that begin with `#`.
fn is_before_item(rest: &[&str]) -> bool {
    let next = rest
        .iter()
        .take(COMMENT_LINES_MAX)
        .find(|line| !line.starts_with('#'));
    next.is_some_and(|line| strip_item_mark(line).is_some())
}

/// Returns the tool that the next line with text lists, if its name cannot be a word of prose; of a list right after a
/// line that is no heading of a section any word in lower case.
fn lost_tool<'a>(end: &str, rest: &[&'a str]) -> Option<&'a str> {
    let next = *rest.iter().find(|line| !line.is_empty())?;
    let name = without_comment(strip_item_mark(next)?);
    let is_unmistakable = name.contains(['_', '-', '.', ':', '/']);
    let is_direct = rest.first() == Some(&next) && !end.starts_with("##");
    let is_lower = || name.chars().all(|c| c.is_ascii_lowercase());
    (is_tool_name(name) && (is_unmistakable || (is_direct && is_lower()))).then_some(name)
}

/// Returns `true` for a line `---`.
fn is_rule(line: &str) -> bool {
    line.len() >= 3 && line.chars().all(|c| c == '-')
}

/// Returns the `name` of `name # why`, without the marks that Markdown puts around names.
fn without_comment(item: &str) -> &str {
    let item = item.trim();
    if item.starts_with('#') {
        return "";
    }
    let name = item
        .find(" #")
        .or_else(|| item.find("\t#"))
        .and_then(|at| item.get(..at))
        .unwrap_or(item);
    name.trim().trim_matches('`').trim_matches('*').trim()
}

/// Returns `true` for one word such as `get_weather`, `server.tool`, `mcp__a__b`, `ns:tool`, `a/b-c`.
fn is_tool_name(name: &str) -> bool {
    let inner = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '-' | '.' | ':' | '/');
    name.starts_with(|c: char| c.is_ascii_alphabetic() || c == '_')
        && name.ends_with(|c: char| c.is_ascii_alphanumeric() || c == '_')
        && name.chars().all(inner)
        && name.len() <= NAME_CHARS_MAX
}

/// Parses the tools of several texts, each once, in order. Returns `None` if one of them cannot be read, or if there
/// are too many.
pub(super) fn parse_allowed_tools(texts: Vec<&str>) -> Option<Vec<String>> {
    let mut tools = Vec::new();
    let mut known = HashSet::new();
    for text in texts {
        for tool in split_allowed_tools(text)? {
            if known.insert(tool.clone()) {
                tools.push(tool);
            }
        }
        if tools.len() > TOOLS_MAX {
            return None;
        }
    }
    Some(tools)
}

/// Splits `Bash(git add:*), Read` at commas and spaces that are not in parentheses. `None` if that leaves anything
/// that cannot be the name of a tool with, maybe, a pattern in parentheses.
fn split_allowed_tools(text: &str) -> Option<Vec<String>> {
    let mut depth = 0_usize;
    let mut parts = vec![String::new()];
    for c in text.chars() {
        match c {
            '(' => depth += 1,
            ')' => depth = depth.checked_sub(1)?,
            _ => {}
        }
        if depth == 0 && (COMMAS.contains(&c) || c.is_whitespace()) {
            parts.push(String::new());
        } else {
            parts.last_mut()?.push(c);
        }
    }
    let tools: Vec<String> = parts
        .iter()
        .map(|part| strip_quotes(part).to_owned())
        .filter(|tool| !tool.is_empty())
        .collect();
    (depth == 0 && tools.len() <= TOOLS_MAX && tools.iter().all(|tool| is_valid_tool_pattern(tool)))
        .then_some(tools)
}

fn strip_quotes(tool: &str) -> &str {
    ['"', '\'', '`']
        .iter()
        .find_map(|quote| tool.strip_prefix(*quote)?.strip_suffix(*quote))
        .unwrap_or(tool)
}

/// Returns `true` for the name of a tool with an optional pattern: `Read`, `*`, `mcp__x__*`, `Bash(git add:*)`.
fn is_valid_tool_pattern(tool: &str) -> bool {
    let (name, pattern) = tool.find('(').map_or((tool, ""), |at| tool.split_at(at));
    let inner =
        |c: char| c.is_alphanumeric() || matches!(c, '_' | '-' | '.' | ':' | '/' | '*' | '@' | '?');
    let begins = |c: char| c.is_alphanumeric() || matches!(c, '_' | '*' | '@');
    name.starts_with(begins)
        && name.chars().all(inner)
        && (pattern.is_empty() || pattern.ends_with(')'))
}
