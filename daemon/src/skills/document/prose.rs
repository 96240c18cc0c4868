//! Text for people and models: one line, without characters that hide or turn it around.

use super::super::finding::{self, Findings};

/// Characters of a paragraph that stands for a description.
const PARAGRAPH_CHARS_MAX: usize = 1024;

/// One line, its white space single, without hidden characters.
pub(super) fn clean(text: &str, what: &str, line: usize, findings: &mut Findings) -> String {
    let words: Vec<&str> = text.split_whitespace().collect();
    let joined = words.join(" ");
    if !joined.contains(is_hidden) {
        return joined;
    }
    let message = format!(
        "the {what} has control, zero-width or bidirectional characters; they were removed"
    );
    findings.add(finding::HIDDEN_CHARACTERS, line, message);
    let visible: String = joined.chars().filter(|c| !is_hidden(*c)).collect();
    let words: Vec<&str> = visible.split_whitespace().collect();
    words.join(" ")
}

/// Shows nothing itself, or changes the order in which others are shown.
fn is_hidden(c: char) -> bool {
    c.is_control()
        || matches!(c,
            '\u{ad}' | '\u{61c}' | '\u{180e}' | '\u{200b}'..='\u{200f}' | '\u{202a}'..='\u{202e}'
            | '\u{2060}'..='\u{206f}' | '\u{feff}' | '\u{fff9}'..='\u{fffb}' | '\u{e0000}'..='\u{e007f}')
}

/// The first text of a body that is not a heading, code, a comment, a list, a table or a rule.
pub(super) fn first_paragraph(body: &str) -> String {
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
