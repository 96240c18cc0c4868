//! Excerpts of long texts and lists for messages. Each shows that something is left out.

use std::borrow::Borrow;

/// Returns the first characters of a text, with an ellipsis after them if the text has more.
pub fn cut_chars(text: &str, chars_max: usize) -> String {
    match text.char_indices().nth(chars_max) {
        Some((end, _)) => format!("{}…", text.get(..end).unwrap_or_default()),
        None => text.to_owned(),
    }
}

/// Joins the first names with commas, and adds the number of the others: `a, b and 3 more`.
pub fn join_first<Name: Borrow<str>>(
    mut names: impl ExactSizeIterator<Item = Name>,
    names_max: usize,
) -> String {
    let shown: Vec<Name> = names.by_ref().take(names_max).collect();
    let list = shown.join(", ");
    match names.len() {
        0 => list,
        others => format!("{list} and {others} more"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_text_is_cut_between_characters_and_only_if_it_is_too_long() {
        for (text, cut) in [("", ""), ("äöü", "äöü"), ("äöüß", "äöü…")] {
            assert_eq!(cut_chars(text, 3), cut);
        }
    }

    #[test]
    fn a_list_names_the_first_and_counts_the_others() {
        let names = ["a", "b", "c"];
        for (names_max, list) in [(2, "a, b and 1 more"), (3, "a, b, c")] {
            assert_eq!(join_first(names.into_iter(), names_max), list);
        }
        let none: [String; 0] = [];
        assert_eq!(join_first(none.into_iter(), 3), "");
    }
}
