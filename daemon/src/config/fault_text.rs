//! Texts of the faults that serde and the TOML parser find: names that are no keys, wrong types, damaged files.

use figment::error::Kind;
use skilld_skills::name_similarity::similarity;

/// Smallest similarity of a key that is suggested for a name that is none.
const SIMILARITY_MIN: f64 = 0.6;

/// Returns the text of a fault, in one line.
pub(super) fn fault_text(kind: &Kind) -> String {
    if let Kind::UnknownField(name, keys) = kind {
        return match nearest_key(name, keys) {
            Some(key) => format!("is not a key; did you mean {key}?"),
            None => format!("is not a key; there are: {}", keys.join(", ")),
        };
    }
    if let Kind::UnknownVariant(name, words) = kind {
        let quoted: Vec<String> = words.iter().map(|word| format!("{word:?}")).collect();
        return format!(
            "{name:?} is none of its values; use {}",
            quoted.join(" or ")
        );
    }
    if let Kind::MissingField(key) = kind {
        return format!("the key {key} is missing");
    }
    if let Kind::InvalidType(found, expected) = kind {
        let shown = found.to_string().replace('`', "");
        let is_table = expected.starts_with("struct ");
        let expected = if is_table {
            "a table"
        } else {
            expected.as_str()
        };
        return format!("invalid type: found {shown}, expected {expected}");
    }
    to_one_line(&kind.to_string())
}

fn nearest_key<'a>(name: &str, keys: &[&'a str]) -> Option<&'a str> {
    let scores = keys.iter().map(|key| (similarity(name, key), *key));
    let best = scores.max_by(|(a, _), (b, _)| a.total_cmp(b));
    best.filter(|(score, _)| *score >= SIMILARITY_MIN)
        .map(|(_, key)| key)
}

/// Joins the lines of a message, without the excerpt of the file that the TOML parser draws in it.
fn to_one_line(text: &str) -> String {
    let is_excerpt = |line: &str| {
        let number = line.trim_start().trim_start_matches(char::is_numeric);
        number.trim_start().starts_with('|')
    };
    let mut lines = text.lines().filter(|line| !is_excerpt(line));
    let head = lines.next().unwrap_or_default().to_owned();
    let rest = lines.collect::<Vec<_>>().join("; ");
    if rest.is_empty() {
        return head;
    }
    format!("{head}: {rest}")
}
