//! Makes text of skills, which third parties write, safe for a prompt. Names and descriptions lose characters that
//! deceive a reader, and no text can end the tag that names its skill.

use skilld_common::text_decoding::is_invisible;

/// Returns one line without control, zero-width and bidirectional characters, with runs of blanks as one; and `true` if
/// a character was removed that a reader would not have seen.
#[must_use]
pub fn clean(text: &str) -> (String, bool) {
    let mut line = String::with_capacity(text.len());
    let mut removed = false;
    for char in text.chars() {
        if char.is_whitespace() {
            if !line.ends_with(' ') {
                line.push(' ');
            }
        } else if is_hidden(char) {
            removed = true;
        } else {
            line.push(char);
        }
    }
    (line.trim().to_owned(), removed)
}

/// Returns `true` for characters that a reader does not see and that can change how others are read.
#[must_use]
pub fn is_hidden(char: char) -> bool {
    char.is_control() || is_invisible(char)
}

/// Escapes a text so that no skill tag begins or ends in it.
pub(crate) fn without_tags(text: &str) -> String {
    let mut safe = String::with_capacity(text.len());
    let mut rest = text;
    while let Some((before, after)) = rest.split_once('<') {
        safe.push_str(before);
        safe.push_str(if is_tag(after) { "&lt;" } else { "<" });
        rest = after;
    }
    safe.push_str(rest);
    safe
}

/// Returns `true` if the text after a `<` begins or ends a skill tag.
fn is_tag(after: &str) -> bool {
    // What is not seen does not hide a tag either.
    let skip = |char: char| char.is_whitespace() || char == '/' || is_hidden(char);
    let name = after
        .trim_start_matches(skip)
        .chars()
        .filter(|char| !is_hidden(*char));
    name.take(5)
        .collect::<String>()
        .eq_ignore_ascii_case("skill")
}

/// Cleans a name, a path or a field that is shown outside of a tag: one line without tags.
pub(crate) fn one_line(text: &str) -> String {
    without_tags(&clean(text).0)
}

/// Escapes a text for a value between quotes in a tag.
pub(crate) fn attribute(text: &str) -> String {
    let (line, _) = clean(text);
    line.replace('&', "&amp;")
        .replace('"', "&quot;")
        .replace('<', "&lt;")
        .replace('>', "&gt;")
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_name_is_one_line_and_no_tag() {
        assert_eq!(one_line("a\n<skill>\u{202e}"), "a &lt;skill>");
    }

    #[test]
    fn invisible_characters_are_removed_and_flagged() {
        assert_eq!(
            clean("plain – ünïcode 😀"),
            ("plain – ünïcode 😀".into(), false)
        );
        assert_eq!(clean(" two\n lines\t"), ("two lines".into(), false));
        assert_eq!(
            clean("a\u{202e}b\u{200b}c\u{7}d\u{e0041}"),
            ("abcd".into(), true)
        );
    }

    proptest! {
        #[test]
        fn no_text_closes_the_tag(text in "(<|/|skill|SKILL| |\u{200b}|x|>|&lt;){0,12}") {
            let safe = without_tags(&text);
            let shown: String = safe.chars().filter(|char| !is_hidden(*char)).collect();
            let seen: String = shown.to_lowercase().split_whitespace().collect();
            prop_assert!(!seen.contains("</skill") && !seen.contains("<skill") , "{safe}");
            prop_assert_eq!(safe.replace("&lt;", "<"), text.replace("&lt;", "<"));
        }
    }
}
