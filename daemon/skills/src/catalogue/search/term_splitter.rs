//! Splits text into the terms of a search: words, and pairs of characters in scripts that have no blanks between words.
//! Pure.
//!
//! Pairs find a phrase wherever a text has parts of it, and need no dictionary of each language.

use unicode_normalization::UnicodeNormalization as _;
use unicode_normalization::char::is_combining_mark;

/// Kind of a character, as far as that splits text.
#[derive(Clone, Copy, PartialEq, Eq)]
enum CharKind {
    /// Neither letter nor digit.
    Separator,
    /// Part of a word.
    Word,
    /// Part of a run of words without blanks.
    Unspaced,
}

/// Returns a text in lower case and in one Unicode form (NFKC), as it is searched.
pub(super) fn fold_text(text: &str) -> String {
    text.nfkc().collect::<String>().to_lowercase()
}

/// Splits a text into terms in lower case.
pub(super) fn split_terms(text: &str) -> Vec<String> {
    let mut terms = Vec::new();
    let (mut run, mut kind) = (Vec::new(), CharKind::Separator);
    for c in fold_text(text).chars() {
        let next = kind_of(c);
        if next != kind {
            add_run(&run, kind, &mut terms);
            run.clear();
            kind = next;
        }
        run.push(c);
    }
    add_run(&run, kind, &mut terms);
    terms
}

/// Returns `true` if a text has characters of a script without blanks between words.
pub(super) fn has_unspaced(text: &str) -> bool {
    text.chars().any(|c| kind_of(c) == CharKind::Unspaced)
}

/// Adds the terms of a run of characters of one kind.
fn add_run(run: &[char], kind: CharKind, terms: &mut Vec<String>) {
    match kind {
        CharKind::Unspaced if run.len() > 1 => {
            terms.extend(run.windows(2).map(|pair| pair.iter().collect::<String>()));
        }
        CharKind::Unspaced | CharKind::Word => terms.push(run.iter().collect()),
        CharKind::Separator => {}
    }
}

fn kind_of(c: char) -> CharKind {
    if !c.is_alphanumeric() && !is_combining_mark(c) {
        return CharKind::Separator;
    }
    match c {
        // Thai and Lao; Myanmar; Khmer; kana; Han.
        '\u{e00}'..='\u{eff}'
        | '\u{1000}'..='\u{109f}'
        | '\u{1780}'..='\u{17ff}'
        | '\u{3005}'..='\u{3007}'
        | '\u{3040}'..='\u{30ff}'
        | '\u{31f0}'..='\u{31ff}'
        | '\u{3400}'..='\u{4dbf}'
        | '\u{4e00}'..='\u{9fff}'
        | '\u{f900}'..='\u{faff}'
        | '\u{20000}'..='\u{3ffff}' => CharKind::Unspaced,
        _ => CharKind::Word,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_without_blanks_is_split_into_pairs() {
        for (text, terms) in [
            ("Csv_Report 2", "csv report 2"),
            ("合并表格", "合并 并表 表格"),
            ("表", "表"),
            ("PDF文件2024年", "pdf 文件 2024 年"),
            ("会議の録音。", "会議 議の の録 録音"),
            ("ไฟล์", "ไฟ ฟล ล์"),
            ("ＰＤＦ，表格", "pdf 表格"),
            ("보고서를 요약", "보고서를 요약"),
            ("u\u{308}ber हिन्दी", "über हिन्दी"),
            ("！？…", ""),
        ] {
            assert_eq!(split_terms(text).join(" "), terms, "{text}");
        }
    }
}
