//! Splits a SKILL.md into front matter and body.

use super::key_salvage::key_of;
use crate::parse::finding::{self, Findings};

/// The two parts of a SKILL.md.
pub(super) struct SkillMdParts<'a> {
    /// Text between the fences.
    pub(super) yaml: &'a str,
    /// Number of its first line.
    pub(super) first_line: usize,
    /// Text after the closing fence.
    pub(super) body: &'a str,
}

/// Finds the fences. `None`, with a finding, if there are none.
pub(super) fn split_front_matter<'a>(
    text: &'a str,
    findings: &mut Findings,
) -> Option<SkillMdParts<'a>> {
    let (start, fence_line, in_code) = skip_to_front_matter(text, findings);
    let (fence, rest) = start.split_once('\n').unwrap_or((start, ""));
    if fence.trim_end() != "---" {
        let message = "SKILL.md has no front matter: its first line must be `---`";
        findings.add(finding::NO_FRONT_MATTER, fence_line, message);
        return None;
    }
    let first_line = fence_line + 1;
    let Some((yaml, body)) = split_at_closing_fence(rest) else {
        return split_unclosed(rest, first_line, findings);
    };
    let body = match body.split_once('\n').unwrap_or((body, "")) {
        (line, after) if in_code && line.trim().starts_with("```") => after,
        _ => body,
    };
    Some(SkillMdParts {
        yaml,
        first_line,
        body,
    })
}

/// Skips text that may precede the front matter. Returns the rest, the line at which it begins, and `true` if the
/// skipped text was the start of a code block.
fn skip_to_front_matter<'a>(text: &'a str, findings: &mut Findings) -> (&'a str, usize, bool) {
    let mut rest = text;
    let mut line = 1;
    let mut in_code = false;
    loop {
        let before = rest;
        let shorter = rest.trim_start();
        if shorter.len() < rest.len() {
            if !findings.has(finding::LEADING_SPACE) && !shorter.is_empty() && line == 1 {
                let message = "there is white space before the front matter";
                findings.add(finding::LEADING_SPACE, line, message);
            }
            rest = shorter;
        } else if let Some(comment) = rest.strip_prefix("<!--") {
            let Some((_, after)) = comment.split_once("-->") else {
                return (rest, line, in_code);
            };
            findings.add(
                finding::LEADING_COMMENT,
                line,
                "a comment stands before the front matter",
            );
            rest = after;
        } else if rest.starts_with("```") && !in_code {
            // The code fence is skipped only if the front matter is inside it.
            let after = rest.split_once('\n').map_or("", |(_, after)| after);
            if after.trim_start().split('\n').next().map(str::trim_end) != Some("---") {
                return (rest, line, in_code);
            }
            findings.add(
                finding::CODE_FENCE,
                line,
                "the front matter stands in a code fence",
            );
            in_code = true;
            rest = after;
        } else {
            return (rest, line, in_code);
        }
        // Counts only the skipped text, because this runs up to once per character.
        let passed = before.get(..before.len() - rest.len()).unwrap_or_default();
        line += passed.matches('\n').count();
    }
}

/// Splits at the first line `---` or `...` that is not indented: the text before it and the text after it.
fn split_at_closing_fence(rest: &str) -> Option<(&str, &str)> {
    let mut at = 0;
    for line in rest.split_inclusive('\n') {
        let after = at + line.len();
        if matches!(line.trim_end(), "---" | "...") {
            return rest.get(..at).zip(rest.get(after..));
        }
        at = after;
    }
    None
}

/// Splits front matter that is not closed: it ends at a heading, or at a blank line that text follows, once it has a
/// key.
fn split_unclosed<'a>(
    rest: &'a str,
    first_line: usize,
    findings: &mut Findings,
) -> Option<SkillMdParts<'a>> {
    let mut at = 0;
    let mut has_key = false;
    // Offset and line at which a run of blank lines began.
    let mut blank: Option<(usize, usize)> = None;
    let mut end = None;
    for (index, line) in rest.split_inclusive('\n').enumerate() {
        let key = key_of(line.trim_end()).is_some();
        if line.trim().is_empty() {
            if has_key {
                blank = blank.or(Some((at, index)));
            }
        } else if has_key && line.starts_with('#') {
            end = blank.or(Some((at, index)));
            break;
        } else if let Some(blank) = blank
            && !key
            && !line.starts_with([' ', '\t', '-'])
        {
            end = Some(blank);
            break;
        } else {
            has_key |= key;
            blank = None;
        }
        at += line.len();
    }
    let Some((end, line)) = end.or(blank) else {
        let message = "the front matter is not closed: a line `---` is missing";
        findings.add(finding::NOT_CLOSED, first_line, message);
        return None;
    };
    let message = "the front matter is not closed: it was taken to end here";
    findings.add(finding::CLOSED_BY_BODY, first_line + line, message);
    Some(SkillMdParts {
        yaml: rest.get(..end).unwrap_or_default(),
        first_line,
        body: rest.get(end..).unwrap_or_default().trim_start_matches('\n'),
    })
}
