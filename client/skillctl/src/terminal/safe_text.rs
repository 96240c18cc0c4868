//! Text that can neither control nor deceive a terminal: one rule for tables, notes, errors and JSON.

use skilld_tools::prompt::is_hidden;

/// Returns text from skills, servers or programs as one line. Characters that a terminal obeys or that a reader does
/// not see become U+FFFD.
pub(crate) fn plain_line(text: &str) -> String {
    replace_unsafe(text, |_| false)
}

/// Like [`plain_line`], but keeps line ends and tabs.
pub(crate) fn plain_text(text: &str) -> String {
    replace_unsafe(text, |c| matches!(c, '\n' | '\t'))
}

/// Escapes in JSON the unsafe characters that JSON may have as they are. They occur in strings only; the value stays
/// the same.
pub(crate) fn escape_json(json: &str) -> String {
    let mut escaped = String::with_capacity(json.len());
    for c in json.chars() {
        // Line ends are between the values of indented JSON.
        if is_unsafe(c) && c != '\n' {
            for unit in c.encode_utf16(&mut [0; 2]).iter() {
                escaped += &format!("\\u{unit:04x}");
            }
        } else {
            escaped.push(c);
        }
    }
    escaped
}

fn replace_unsafe(text: &str, keep: fn(char) -> bool) -> String {
    let shown = |c: char| match is_unsafe(c) && !keep(c) {
        true => char::REPLACEMENT_CHARACTER,
        false => c,
    };
    text.chars().map(shown).collect()
}

/// Returns `true` for control characters, for hidden ones, and for line ends that only some programs know.
fn is_unsafe(c: char) -> bool {
    is_hidden(c) || matches!(c, '\u{2028}' | '\u{2029}')
}

#[cfg(test)]
mod tests {
    use super::*;

    const UNSAFE: &str = "a\u{1b}\u{7f}\u{9b}\u{200b}\u{202e}\u{2028}\u{2066}\u{feff}\u{e0041}z";

    #[test]
    fn no_text_controls_or_deceives_a_terminal() {
        let replaced = format!("a{}z", "\u{fffd}".repeat(9));
        assert_eq!(plain_line(UNSAFE), replaced);
        assert_eq!(plain_line("a\n\tz"), "a\u{fffd}\u{fffd}z");
        assert_eq!(
            plain_text(&format!("{UNSAFE}\n\tß数😀")),
            format!("{replaced}\n\tß数😀")
        );
    }

    #[test]
    fn escaped_json_is_the_same_value() {
        let value = serde_json::json!({"text": UNSAFE, "ü": ["😀"]});
        for json in [value.to_string(), format!("{value:#}")] {
            let escaped = escape_json(&json);
            assert!(
                !escaped.chars().any(|c| is_unsafe(c) && c != '\n'),
                "{escaped}"
            );
            let read: serde_json::Value = serde_json::from_str(&escaped).expect("JSON");
            assert_eq!(read, value);
        }
        assert!(escape_json(&value.to_string()).contains("\\u009b\\u200b\\u202e"));
    }
}
