//! Search: which skills have to do with some words, best first. Pure; `skills.rs` keeps the index as long as the
//! catalogue is the same.
//!
//! ```text
//! query ─► terms: Unicode words, lower case, also split at - _ / ; stop words away
//! term × field: word 1, beginning of a word 1/2, inside of a word 1/5
//!               × weight of the field (name 3, description 2, tags 1) × how rare the term is (0 to 1)
//! whole query:  the name itself, or its beginning, is worth more than all terms together
//! ```
//!
//! How rare a term is decides what `data` in every description is worth: next to nothing. Equal scores are in order of
//! names, so the same question has the same answer.

use std::collections::BTreeMap;

use crate::error::{Error, Result};

mod compat;

/// Longest query, bytes.
pub const QUERY_BYTES_MAX: usize = 1024;
/// Terms of a query that count.
const TERMS_MAX: usize = 32;
/// What a match in a field is worth, by the field's place in [`FIELDS`].
const WEIGHTS: [f64; 3] = [3.0, 2.0, 1.0];
/// What a match is worth that is a whole word, the beginning of one, or inside of one.
const QUALITIES: [f64; 3] = [1.0, 0.5, 0.2];
/// A query that is a name, or begins one: per term, so that it outweighs what all its terms can find (6 each).
const EXACT: f64 = 40.0;
const PREFIX: f64 = 10.0;
/// A shorter term is no beginning, and no inside, of a word: it would be one of nearly every word. Other scripts than
/// Latin say more with a character.
const PREFIX_BYTES_MIN: usize = 2;
const INSIDE_BYTES_MIN: usize = 3;
/// Words that say nothing about a skill: English ones, and those that most descriptions of skills have. Sorted.
const STOP_WORDS: [&str; 72] = [
    "a", "about", "across", "an", "and", "any", "are", "as", "ask", "asks", "at", "be", "by",
    "can", "do", "for", "from", "has", "have", "help", "helps", "how", "i", "if", "in", "into",
    "is", "it", "its", "me", "my", "need", "needs", "of", "on", "or", "other", "our", "please",
    "should", "skill", "skills", "some", "such", "task", "tasks", "that", "the", "their", "them",
    "then", "there", "these", "this", "to", "us", "use", "used", "useful", "user", "users", "uses",
    "using", "via", "want", "wants", "was", "we", "when", "which", "with", "you",
];

/// Fields that are searched, as answers name them.
pub const FIELDS: [&str; 3] = ["name", "description", "tags"];

/// What is searched of one skill.
#[derive(Debug, Clone, Copy)]
pub struct Searched<'a> {
    /// Its name.
    pub name: &'a str,
    /// Its description.
    pub description: &'a str,
    /// Its tags.
    pub tags: &'a [String],
    /// Words that should bring it to mind count as tags.
    pub triggers: &'a [String],
}

/// A skill that was found.
#[derive(Debug, Clone, PartialEq)]
pub struct Hit {
    /// Its place among what the index was built of.
    pub position: usize,
    /// More is better; comparable within one answer only.
    pub score: f64,
    /// Places in [`FIELDS`] that matched, ascending.
    pub fields: Vec<usize>,
}

/// Skills, prepared for search.
#[derive(Debug, Default)]
pub struct Index {
    skills: Vec<Indexed>,
    /// Every word of every field, sorted, each between line feeds: one search in it finds all words with a term in them.
    words: String,
    /// Where each word begins in `words`.
    starts: Vec<usize>,
    /// Which skills have it, by the word's place in `starts`.
    postings: Vec<Vec<Posting>>,
}

#[derive(Debug)]
struct Indexed {
    name: String,
    /// Its name as terms with a space between.
    spoken: String,
    /// In lower case, for `compat`.
    lower: [String; 2],
    tags: Vec<String>,
}

#[derive(Debug, Clone, Copy)]
struct Posting {
    skill: usize,
    /// A bit per place in [`FIELDS`].
    fields: u8,
}

/// What one skill has scored so far.
#[derive(Debug, Clone, Copy, Default)]
struct Scored {
    score: f64,
    fields: u8,
}

impl Index {
    /// Prepares skills for search, in their order.
    #[must_use]
    pub fn build<'a>(skills: impl Iterator<Item = Searched<'a>>) -> Self {
        let mut index = Self::default();
        let mut words: BTreeMap<String, Vec<Posting>> = BTreeMap::new();
        for (place, skill) in skills.enumerate() {
            let tags = || skill.tags.iter().chain(skill.triggers);
            let mut own: BTreeMap<String, u8> = BTreeMap::new();
            let texts = [skill.name, skill.description].into_iter().enumerate();
            for (field, text) in texts.chain(tags().map(|tag| (2, tag.as_str()))) {
                for term in terms(text) {
                    *own.entry(term).or_default() |= 1 << field;
                }
            }
            for (word, fields) in own {
                let skill = place;
                words
                    .entry(word)
                    .or_default()
                    .push(Posting { skill, fields });
            }
            index.skills.push(Indexed {
                name: skill.name.to_owned(),
                spoken: terms(skill.name).collect::<Vec<_>>().join(" "),
                lower: [skill.name.to_lowercase(), skill.description.to_lowercase()],
                tags: skill.tags.iter().map(|tag| tag.to_lowercase()).collect(),
            });
        }
        index.words.push('\n');
        for (word, postings) in words {
            index.starts.push(index.words.len());
            index.words.push_str(&word);
            index.words.push('\n');
            index.postings.push(postings);
        }
        index
    }

    /// The best skills for a query, at most `limit`.
    ///
    /// # Errors
    /// `Invalid` for a query without a word to look for.
    pub fn search(&self, query: &str, limit: usize) -> Result<Vec<Hit>> {
        let all: Vec<String> = terms(query).take(TERMS_MAX).collect();
        let mut wanted: Vec<&String> = all.iter().filter(|term| !is_stop_word(term)).collect();
        wanted.sort_unstable();
        wanted.dedup();
        if wanted.is_empty() {
            return Err(nothing_to_look_for(query));
        }
        let mut scored = vec![Scored::default(); self.skills.len()];
        for term in wanted {
            self.add(term, &mut scored);
        }
        let (spoken, terms) = (all.join(" "), all.len());
        for (skill, scored) in self.skills.iter().zip(&mut scored) {
            if skill.spoken.starts_with(&spoken) && spoken.len() >= PREFIX_BYTES_MIN {
                let exact = skill.spoken.len() == spoken.len();
                let bonus = if exact { EXACT } else { PREFIX };
                scored.score += bonus * f64::from(u32::try_from(terms).unwrap_or(u32::MAX));
                scored.fields |= 1;
            }
        }
        Ok(self.best(&scored, limit))
    }

    /// Adds what one term is worth to each skill.
    fn add(&self, term: &str, scored: &mut [Scored]) {
        // What the best match is worth, by skill and field.
        let mut found = vec![[0.0_f64; 3]; scored.len()];
        let mut at = 0;
        let mut last = None;
        while let Some(offset) = self.words.get(at..).and_then(|rest| rest.find(term)) {
            let begin = at + offset;
            at = begin + term.len();
            let word = self.starts.partition_point(|start| *start <= begin);
            let Some(word) = word.checked_sub(1).filter(|word| last != Some(*word)) else {
                continue;
            };
            // The first place in a word is the best one.
            last = Some(word);
            let begins = self.starts.get(word) == Some(&begin);
            let ends = self.words.as_bytes().get(at) == Some(&b'\n');
            let quality = match (begins, ends) {
                (true, true) => 0,
                (true, false) if term.len() >= PREFIX_BYTES_MIN => 1,
                _ if term.len() >= INSIDE_BYTES_MIN => 2,
                _ => continue,
            };
            let quality = QUALITIES.get(quality).copied().unwrap_or_default();
            for posting in self.postings.get(word).into_iter().flatten() {
                let best = found.get_mut(posting.skill).into_iter().flatten();
                for (field, best) in best.enumerate() {
                    if posting.fields & (1 << field) != 0 {
                        *best = best.max(quality);
                    }
                }
            }
        }
        let skills = found.iter().filter(|best| **best != [0.0; 3]).count();
        let rarity = rarity(skills, self.skills.len());
        for (scored, best) in scored.iter_mut().zip(found) {
            for (field, (quality, weight)) in best.into_iter().zip(WEIGHTS).enumerate() {
                if quality > 0.0 {
                    scored.score += quality * weight * rarity;
                    scored.fields |= 1 << field;
                }
            }
        }
    }

    fn best(&self, scored: &[Scored], limit: usize) -> Vec<Hit> {
        let mut places: Vec<usize> = (0..scored.len())
            .filter(|place| scored.get(*place).is_some_and(|scored| scored.score > 0.0))
            .collect();
        let score = |place: &usize| scored.get(*place).copied().unwrap_or_default();
        let name = |place: &usize| self.skills.get(*place).map(|skill| &skill.name);
        places.sort_by(|a, b| {
            let by_score = score(b).score.total_cmp(&score(a).score);
            by_score.then_with(|| name(a).cmp(&name(b))).then(a.cmp(b))
        });
        places.truncate(limit);
        let hit = |position| {
            let Scored { score, fields } = score(&position);
            let fields = (0..FIELDS.len()).filter(|field| fields & (1 << field) != 0);
            Hit {
                position,
                score,
                fields: fields.collect(),
            }
        };
        places.into_iter().map(hit).collect()
    }
}

/// 0 to 1: how much it says that a skill has a term which `found` of `all` have (BM25's formula, over its maximum).
#[expect(clippy::cast_precision_loss, reason = "counts of skills")]
fn rarity(found: usize, all: usize) -> f64 {
    let (found, all) = (found as f64, all as f64);
    let weight = |found: f64| (1.0 + (all - found + 0.5) / (found + 0.5)).ln();
    // What one skill alone has is worth the whole, however few skills there are.
    weight(found) / weight(1.0)
}

/// Words in lower case, split also at what is neither letter nor digit.
fn terms(text: &str) -> impl Iterator<Item = String> + '_ {
    let parts = text.split(|c: char| !c.is_alphanumeric());
    parts.filter(|part| !part.is_empty()).map(str::to_lowercase)
}

fn is_stop_word(term: &str) -> bool {
    STOP_WORDS.binary_search(&term).is_ok()
}

fn nothing_to_look_for(query: &str) -> Error {
    let message = if query.trim().is_empty() {
        "is empty: give words that a skill's name, description or tags may have"
    } else {
        "has only words that nearly every skill has: say what the skill should deal with"
    };
    Error::invalid("query", message)
}

#[cfg(test)]
mod tests;
