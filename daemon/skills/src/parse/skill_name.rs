//! Names of skills and plugins as people write them, in one form, and the ids that they get. Pure.
//!
//! An id is one path segment of ASCII letters, digits and `._-`. A name in any script gets one that depends on the name
//! only, so a client may use the name wherever it may use the id.

use data_encoding::HEXLOWER;
use sha2::{Digest as _, Sha256};
use skilld_common::text_decoding::is_invisible;
use unicode_normalization::UnicodeNormalization as _;

/// Maximum length of an id, in bytes: that of a name in the specification of skills.
pub(crate) const ID_BYTES_MAX: usize = 64;
/// Maximum length of a name as it is written, in bytes.
pub(super) const NAME_BYTES_MAX: usize = 1024;
/// Number of hex digits of a hash in an id.
pub(super) const HASH_DIGITS: usize = 8;
/// Beginning of an id whose name has no ASCII letter or digit.
const STEM: &str = "skill";

/// Returns `true` if a name is an id: one path segment `[A-Za-z0-9][A-Za-z0-9._-]{0,63}`.
pub fn is_name(name: &str) -> bool {
    let plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '-');
    name.starts_with(|c: char| c.is_ascii_alphanumeric())
        && name.len() <= ID_BYTES_MAX
        && name.chars().all(plain)
}

/// Returns a name in the one form in which names are compared: composed, with ordinary letters in place of full-width
/// ones (NFKC), without hidden characters, and with one blank between words.
pub fn normalise_name(written: &str) -> String {
    let visible = |c: &char| c.is_whitespace() || !is_hidden(*c);
    // Before the form is made: characters are composed over the place of a hidden one.
    let form: String = written.chars().filter(visible).nfkc().collect();
    form.split_whitespace().collect::<Vec<_>>().join(" ")
}

/// Returns the id of a name: the name itself if it is one; else its ASCII letters and digits, with a part of its hash
/// where other names have the same ones. Returns `None` if it has no letter, digit or symbol, or more than 1,024 bytes.
pub fn id_of_name(written: &str) -> Option<String> {
    if is_name(written) {
        return Some(written.to_owned());
    }
    if written.len() > NAME_BYTES_MAX {
        return None;
    }
    let name = normalise_name(written);
    if is_name(&name) {
        return Some(name);
    }
    let mut stem = slugify(&name);
    // C++ and C# are not C.
    let is_kept = |c: char| c.is_ascii() && !matches!(c, '+' | '#');
    if name.chars().all(is_kept) && stem.len() <= ID_BYTES_MAX {
        return (!stem.is_empty()).then_some(stem);
    }
    stem.truncate(ID_BYTES_MAX - HASH_DIGITS - 1);
    let stem = match stem.trim_end_matches('-') {
        "" => STEM,
        stem => stem,
    };
    Some(format!("{stem}-{}", short_hash(&name)))
}

/// Returns the first hex digits of a text's SHA-256.
pub(super) fn short_hash(text: &str) -> String {
    let mut hash = HEXLOWER.encode(&Sha256::digest(text));
    hash.truncate(HASH_DIGITS);
    hash
}

/// Returns `true` for characters that show nothing, or change the order in which others are shown. Prompts of the client
/// crate leave out the same ones, so what a model does not get is always reported.
pub(crate) fn is_hidden(c: char) -> bool {
    c.is_control() && !matches!(c, '\t' | '\n' | '\r')
        || matches!(c, '\u{2028}' | '\u{2029}')
        || is_invisible(c)
}

/// Turns `My Skill` into `my-skill`.
fn slugify(text: &str) -> String {
    let mut slug = String::new();
    for c in text.chars() {
        if c.is_ascii_alphanumeric() {
            slug.push(c.to_ascii_lowercase());
        } else if !slug.is_empty() && !slug.ends_with('-') {
            slug.push('-');
        }
    }
    slug.truncate(slug.trim_end_matches('-').len());
    slug
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn each_name_has_an_id_of_its_own() {
        let long = ["a", "b"].map(|end| "n".repeat(64) + end);
        let names = [
            "数据报表",
            "数据报告",
            "my-技能-v2",
            "my-报表-v2",
            "redacteur-français",
            "redacteur-franais",
            "отчёт",
            "報告",
            "แปลงไฟล์",
            "보고서",
            "🚀 deploy",
            "🎉 deploy",
            "deploy",
            "C++",
            "C#",
            "C",
            &long[0],
            &long[1],
        ];
        let ids: HashSet<String> = names.iter().filter_map(|name| id_of_name(name)).collect();
        assert_eq!(ids.len(), names.len(), "{ids:?}");
        assert!(ids.iter().all(|id| is_name(id)), "{ids:?}");
    }

    #[test]
    fn one_name_has_one_id_however_it_is_typed() {
        for (written, other) in [
            ("redacteur-français", "redacteur-franc\u{327}ais"),
            ("ｐｄｆ－ｔｏｏｌｓ", "pdf-tools"),
            ("报表（汇总）", "报表(汇总)"),
            ("数据　报表", " 数据  报表\n"),
            ("ﾃﾞｰﾀ", "データ"),
            ("数据\u{200b}报表", "数据报表"),
            ("redacteur-franc\u{200b}\u{327}ais", "redacteur-français"),
        ] {
            assert_eq!(id_of_name(written), id_of_name(other), "{written}");
            assert!(id_of_name(written).is_some(), "{written}");
        }
        for (written, id) in [
            ("csv-report", "csv-report"),
            ("My Skill", "my-skill"),
            ("../x", "x"),
            ("Csv_1.0", "Csv_1.0"),
        ] {
            assert_eq!(id_of_name(written).as_deref(), Some(id), "{written}");
        }
    }

    #[test]
    fn an_unusable_name_has_no_id() {
        let long = "表".repeat(400);
        for written in ["", " ", ".", "..", "---", "/", "\u{200b}", "\0", &long] {
            assert_eq!(id_of_name(written), None, "{written:?}");
        }
    }
}
