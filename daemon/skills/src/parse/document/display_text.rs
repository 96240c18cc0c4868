//! Text for people and models: one line, without characters that hide or turn it around.

use crate::parse::finding::{self, Findings};
use crate::parse::skill_name::is_hidden;

/// Maximum number of characters of a paragraph that serves as a description: the longest that the specification of
/// skills permits.
const PARAGRAPH_CHARS_MAX: usize = 1024;

/// Returns a text as one line with single spaces, without hidden characters.
pub(super) fn clean_text(text: &str, what: &str, line: usize, findings: &mut Findings) -> String {
    if text.contains(is_hidden) {
        let message = format!(
            "the {what} has control, zero-width or bidirectional characters; they were removed"
        );
        findings.add(finding::HIDDEN_CHARACTERS, line, message);
    }
    let is_visible = |c: &char| c.is_whitespace() || !is_hidden(*c);
    let visible: String = text.chars().filter(is_visible).collect();
    visible.split_whitespace().collect::<Vec<_>>().join(" ")
}

/// Returns the first text of a body that is not a heading, code, a comment, a list, a table or a rule.
pub(super) fn find_first_paragraph(body: &str) -> String {
    let mut paragraph: Vec<&str> = Vec::new();
    let (mut in_code, mut in_comment) = (false, false);
    for line in body.lines().map(str::trim) {
        if line.starts_with("```") || line.starts_with("~~~") {
            in_code = !in_code;
        }
        in_comment |= line.starts_with("<!--");
        let listed = ["- ", "* ", "+ "].iter().any(|mark| line.starts_with(mark));
        let text = !in_code
            && !in_comment
            && !listed
            && !line.starts_with(['#', '|', '`', '<', '>', '!'])
            && line.contains(char::is_alphanumeric);
        in_comment &= !line.contains("-->");
        match (text, paragraph.is_empty()) {
            (true, _) => paragraph.push(line),
            (false, true) => {}
            (false, false) => break,
        }
    }
    paragraph
        .join(" ")
        .chars()
        .take(PARAGRAPH_CHARS_MAX)
        .collect()
}
