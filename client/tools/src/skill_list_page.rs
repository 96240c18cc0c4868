//! Pages of lists of skills and of their files. A list that does not fit into one answer is shown in parts, with shortened
//! texts, and says how to see the rest. Pure; every family lists and searches through it.

use schemars::JsonSchema;
use serde::Serialize;
use skilld_common::excerpts::cut_chars;

use crate::result_budget::{json_bytes, take_fitting};

/// Maximum size of an answer that is a list, in bytes of JSON. It is what results show of a command's output by
/// default ([`crate::ToolOptions::output_bytes_max`]): about 4,000 tokens, some 400 names.
const ANSWER_BYTES_MAX: usize = 16 * 1024;
/// Maximum size of the entries of an answer in bytes. The rest is for the message, the numbers and the fields' names.
const ENTRIES_BYTES_MAX: usize = ANSWER_BYTES_MAX - 768;
/// Maximum number of characters of a text in a list that is shown in parts. Agent Zero cuts descriptions there.
pub(crate) const TEXT_CHARS_MAX: usize = 200;

/// List of skills as an answer has it.
#[derive(Debug, Serialize, JsonSchema)]
#[serde(untagged)]
pub(crate) enum SkillList<T> {
    /// All skills.
    All(Vec<T>),
    /// Some of them, where all do not fit or the call asks for later ones.
    Part {
        skills: Vec<T>,
        /// Number of skills in the whole list.
        total: usize,
        /// `offset` of the call that goes on; absent at the end.
        #[serde(skip_serializing_if = "Option::is_none")]
        next_offset: Option<usize>,
        /// Which skills these are, and how to see the others.
        message: String,
    },
}

/// List of paths as an answer has it.
#[derive(Debug, Serialize, JsonSchema)]
#[serde(untagged)]
pub(crate) enum PathList {
    /// All paths.
    All(Vec<String>),
    /// Some of them, where all do not fit or the call asks for later ones.
    Part {
        paths: Vec<String>,
        /// Number of paths in the whole list.
        total: usize,
        /// `offset` of the call that goes on; absent at the end.
        #[serde(skip_serializing_if = "Option::is_none")]
        next_offset: Option<usize>,
        /// Which paths these are, and how to see the others.
        message: String,
    },
}

impl PathList {
    /// Returns the paths that fit into one answer, from `offset` on.
    pub(crate) fn new(paths: &[String], offset: usize) -> Self {
        let page = name_page(paths, offset);
        if page.is_whole() {
            return Self::All(page.entries);
        }
        Self::Part {
            total: page.total,
            next_offset: page.next_offset(),
            message: page.describe("paths", same_call),
            paths: page.entries,
        }
    }
}

/// Returns the names that fit into one answer, from `offset` on.
pub(crate) fn name_page(names: &[String], offset: usize) -> SkillListPage<String> {
    SkillListPage::new(names, offset, |name: &String, _| name.clone(), json_bytes)
}

/// Says how to see the others of a list that every call of the same arguments has.
pub(crate) fn same_call(next: usize) -> String {
    format!("the others: the same call with offset {next}")
}

/// Amount of text in an entry of a list.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum EntryDetail {
    /// Texts as they are.
    Full,
    /// Each text cut by [`shorten`].
    Short,
}

impl EntryDetail {
    /// Returns a text at the length that the entry has room for.
    pub(crate) fn cut(self, text: String) -> String {
        match self {
            Self::Full => text,
            Self::Short => shorten(&text),
        }
    }
}

/// Entries of a list that fit into one answer.
#[derive(Debug)]
pub(crate) struct SkillListPage<T> {
    pub(crate) entries: Vec<T>,
    /// Position of the first entry in the list.
    pub(crate) offset: usize,
    /// Number of entries of the list.
    pub(crate) total: usize,
}

impl<T> SkillListPage<T> {
    /// Returns the whole list in full if it fits into one answer, else the entries from `offset` on that fit with short
    /// texts: at least one if the list has one there. `size` is the number of bytes of an entry.
    pub(crate) fn new<S>(
        skills: &[S],
        offset: usize,
        describe: impl Fn(&S, EntryDetail) -> T,
        size: impl Fn(&T) -> usize,
    ) -> Self {
        let total = skills.len();
        let mut entries = Vec::new();
        if offset == 0 {
            let all = skills
                .iter()
                .map(|skill| describe(skill, EntryDetail::Full));
            entries = take_fitting(all, ENTRIES_BYTES_MAX, &size).collect();
        }
        if entries.len() < total {
            let mut rest = skills
                .get(offset..)
                .unwrap_or_default()
                .iter()
                .map(|skill| describe(skill, EntryDetail::Short))
                .peekable();
            entries = match rest.next_if(|first| size(first) > ENTRIES_BYTES_MAX) {
                Some(huge) => vec![huge],
                None => take_fitting(rest, ENTRIES_BYTES_MAX, &size).collect(),
            };
        }
        Self {
            entries,
            offset,
            total,
        }
    }

    /// Returns `true` if the page is the whole list, and no later part was asked for.
    pub(crate) fn is_whole(&self) -> bool {
        self.offset == 0 && self.entries.len() == self.total
    }

    /// Returns the offset of the next page; `None` on the last one.
    pub(crate) fn next_offset(&self) -> Option<usize> {
        let next = self.offset.saturating_add(self.entries.len());
        (next < self.total).then_some(next)
    }

    /// Describes which part of the list of `things` the page is. `rest` says how to see the others from an offset.
    pub(crate) fn describe(&self, things: &str, rest: impl Fn(usize) -> String) -> String {
        let Self { offset, total, .. } = self;
        let end = offset.saturating_add(self.entries.len());
        match self.next_offset() {
            _ if self.entries.is_empty() => {
                format!("the list has {total} {things}, none of them from offset {offset} on")
            }
            Some(next) => format!(
                "{things} {} to {end} of {total}; {}",
                offset + 1,
                rest(next)
            ),
            None => format!("{things} {} to {end} of {total}", offset + 1),
        }
    }

    /// Returns the list as an answer has it.
    pub(crate) fn into_list(self, rest: impl Fn(usize) -> String) -> SkillList<T> {
        if self.is_whole() {
            return SkillList::All(self.entries);
        }
        SkillList::Part {
            total: self.total,
            next_offset: self.next_offset(),
            message: self.describe("skills", rest),
            skills: self.entries,
        }
    }
}

/// Cuts a text to [`TEXT_CHARS_MAX`] characters and an ellipsis.
pub(crate) fn shorten(text: &str) -> String {
    cut_chars(text, TEXT_CHARS_MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn page(texts: &[String], offset: usize) -> SkillListPage<String> {
        let describe = |text: &String, detail: EntryDetail| detail.cut(text.clone());
        SkillListPage::new(texts, offset, describe, json_bytes)
    }

    #[test]
    fn a_list_that_fits_is_whole_and_keeps_its_texts() {
        let texts = vec!["x".repeat(1000); 15];
        let page = page(&texts, 0);
        assert!(page.is_whole());
        assert_eq!(page.entries, texts);
    }

    #[test]
    fn a_long_list_is_paged_with_each_entry_once_in_short_form() {
        // Each character of the texts has four bytes, or six in JSON.
        let texts: Vec<String> = (0..500)
            .map(|number| {
                format!(
                    "{number} {}",
                    ["\u{1f600}", "\u{1}"][number % 2].repeat(300)
                )
            })
            .collect();
        let (mut seen, mut offset) = (Vec::new(), 0);
        loop {
            let page = page(&texts, offset);
            let next = page.next_offset();
            let list = page.into_list(|next| format!("go on with {next}"));
            let answer = serde_json::to_string(&list).expect("JSON");
            assert!(answer.len() <= ANSWER_BYTES_MAX, "{} bytes", answer.len());
            let SkillList::Part { skills, .. } = list else {
                panic!("not all of them fit");
            };
            seen.extend(skills);
            match next {
                Some(next) => offset = next,
                None => break,
            }
        }
        let short: Vec<String> = texts.iter().map(|text| shorten(text)).collect();
        assert!(seen == short, "each entry once, in its place");
        assert!(
            short
                .iter()
                .all(|text| text.chars().count() == TEXT_CHARS_MAX + 1)
        );
    }

    #[test]
    fn a_page_says_which_part_it_is_and_how_to_go_on() {
        let texts = vec!["x".repeat(1000); 100];
        let rest = |next: usize| format!("go on with {next}");
        let first = page(&texts, 0);
        let (shown, next) = (first.entries.len(), first.next_offset());
        assert_eq!(next, Some(shown));
        let wanted = format!("skills 1 to {shown} of 100; go on with {shown}");
        assert_eq!(first.describe("skills", rest), wanted);
        let last = page(&texts, 98).describe("skills", rest);
        assert_eq!(last, "skills 99 to 100 of 100");
        for offset in [100, usize::MAX] {
            let none = page(&texts, offset);
            assert!(none.entries.is_empty() && none.next_offset().is_none());
            assert!(!none.is_whole());
            let wanted = format!("the list has 100 skills, none of them from offset {offset} on");
            assert_eq!(none.describe("skills", rest), wanted);
        }
        // An entry that is larger than the room is shown all the same.
        let huge = SkillListPage::new(&[()], 0, |(), _| (), |()| usize::MAX);
        assert_eq!(huge.entries.len(), 1);
    }
}
