//! Search over the skills of one snapshot, best first. Pure; the snapshot keeps its index.
//!
//! ```text
//! query ─► terms: term_splitter.rs; without stop words
//! term × field: word 1, beginning of a word 1/2, inside of a word 1/5
//!               × weight of the field (name 3, description 2, tags 1) × rarity of the term (0 to 1)
//! whole query:  a query that is a name, or begins one, outweighs all terms together
//! ```
//!
//! Rarity makes a word of nearly every description worth next to nothing. Equal scores are ordered by name, so that the
//! same query has the same answer.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use crate::error::{Error, Result};

mod agent_zero_scoring;
mod term_splitter;

use super::skill::Skill;
use term_splitter::{fold_text, split_terms};

/// Maximum length of a query, in bytes.
pub const QUERY_BYTES_MAX: usize = 1024;
/// Maximum number of terms of a query; further ones do not count.
const TERMS_MAX: usize = 64;
/// Weights of the fields, in the order of [`FIELDS`].
const WEIGHTS: [f64; 3] = [3.0, 2.0, 1.0];
/// Weights of a match that is a whole word, the beginning of a word, or inside a word.
const QUALITIES: [f64; 3] = [1.0, 0.5, 0.2];
/// Bonus of a query that is a name, per term of the query, so that it outweighs what all its terms can find (6 each).
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

/// Skill that a search found.
#[derive(Debug, Clone, PartialEq)]
pub struct SearchMatch {
    /// The skill that the name means.
    pub skill: Skill,
    /// Relevance: more is better; comparable within one answer only.
    pub score: f64,
    /// Matched fields, in the order of [`FIELDS`].
    pub fields: Vec<&'static str>,
}

/// Search index over the usable skills of one snapshot.
#[derive(Debug, Default)]
pub(crate) struct SearchIndex {
    skills: Vec<IndexedSkill>,
    /// Every word of every field, with the skills that have it.
    words: BTreeMap<String, Vec<WordPosting>>,
    /// Number of skills that only a person may start.
    person_only: usize,
}

#[derive(Debug)]
struct IndexedSkill {
    skill: Arc<Skill>,
    /// Terms of the id and of the name as it is written, joined by spaces.
    spoken: [String; 2],
    /// Both names and the description as they are searched, for `compat`.
    folded: [String; 2],
    tags: Vec<String>,
}

#[derive(Debug, Clone, Copy)]
struct WordPosting {
    /// Index among the skills of the index.
    skill: usize,
    /// A bit for each of [`FIELDS`].
    fields: u8,
}

/// Score of one skill so far.
#[derive(Debug, Clone, Copy, Default)]
struct SkillScore {
    score: f64,
    fields: u8,
}

/// Position in the index, skill and score.
type ScoredSkill<'a> = (usize, (&'a IndexedSkill, &'a SkillScore));

impl SearchIndex {
    /// Indexes the skill that each name means: of several versions the first. `skills` must be sorted by name.
    pub(crate) fn new(skills: &[Arc<Skill>]) -> Self {
        debug_assert!(skills.is_sorted_by_key(|skill| &skill.name));
        let mut index = Self::default();
        for skill in skills {
            let last = index.skills.last();
            if skill.is_usable() && last.is_none_or(|last| last.skill.name != skill.name) {
                index.add_skill(skill);
            }
        }
        index
    }

    fn add_skill(&mut self, added: &Arc<Skill>) {
        let (name, front) = (&added.name, &added.front_matter);
        let title = &front.display_name;
        // Triggers, words that should bring the skill to mind, count as tags.
        let tags = front.tags.iter().chain(&front.triggers).map(|tag| (2, tag));
        let mut own: BTreeMap<String, u8> = BTreeMap::new();
        let texts = [(0, name), (0, title), (1, &front.description)];
        for (field, text) in texts.into_iter().chain(tags) {
            for term in split_terms(text) {
                *own.entry(term).or_default() |= 1 << field;
            }
        }
        let skill = self.skills.len();
        for (word, fields) in own {
            let postings = self.words.entry(word).or_default();
            postings.push(WordPosting { skill, fields });
        }
        self.person_only += usize::from(front.disable_model_invocation);
        self.skills.push(IndexedSkill {
            skill: Arc::clone(added),
            spoken: [name, title].map(|name| split_terms(name).join(" ")),
            // No term has a line break.
            folded: [&format!("{name}\n{title}"), &front.description].map(|text| fold_text(text)),
            tags: front.tags.iter().map(|tag| fold_text(tag)).collect(),
        });
    }

    /// Returns the best skills for a query, at most `limit`; for a model without those that only a person may start.
    ///
    /// # Errors
    /// `Invalid` for a query without a word to look for.
    pub(crate) fn find_matches(
        &self,
        query: &str,
        limit: usize,
        is_compat: bool,
        is_for_model: bool,
    ) -> Result<Vec<SearchMatch>> {
        let left_out = if is_for_model { self.person_only } else { 0 };
        let search_limit = limit.saturating_add(left_out);
        let mut found = match is_compat {
            true => self.search_compat(query, search_limit),
            false => self.search(query, search_limit),
        }?;
        if is_for_model {
            found.retain(|found| !found.skill.front_matter.disable_model_invocation);
            found.truncate(limit);
        }
        Ok(found)
    }

    /// Returns the best skills for a query, at most `limit`.
    ///
    /// # Errors
    /// `Invalid` for a query without a word to look for.
    pub(crate) fn search(&self, query: &str, limit: usize) -> Result<Vec<SearchMatch>> {
        let mut all = split_terms(query);
        all.truncate(TERMS_MAX);
        let wanted: BTreeSet<&String> = all.iter().filter(|term| !is_stop_word(term)).collect();
        if wanted.is_empty() {
            return Err(nothing_to_look_for(query));
        }
        let mut scored = vec![SkillScore::default(); self.skills.len()];
        for term in wanted {
            self.score_term(term, &mut scored);
        }
        let (spoken, terms) = (all.join(" "), all.len());
        for (skill, scored) in self.skills.iter().zip(&mut scored) {
            let begins = |name: &&String| name.starts_with(&spoken);
            let name = skill.spoken.iter().filter(begins).map(String::len).min();
            if let Some(length) = name.filter(|_| spoken.len() >= PREFIX_BYTES_MIN) {
                let is_exact = length == spoken.len();
                let bonus = if is_exact { EXACT } else { PREFIX };
                scored.score += bonus * f64::from(u32::try_from(terms).unwrap_or(u32::MAX));
                scored.fields |= 1;
            }
        }
        Ok(self.best_hits(&scored, limit))
    }

    /// Adds what one term is worth to each skill.
    fn score_term(&self, term: &str, scored: &mut [SkillScore]) {
        // Quality of the best match, by skill and field.
        let mut found = vec![[0.0_f64; 3]; scored.len()];
        for (word, postings) in &self.words {
            let Some(quality) = match_quality(term, word) else {
                continue;
            };
            for posting in postings {
                let best = found.get_mut(posting.skill).into_iter().flatten();
                for (field, best) in best.enumerate() {
                    if posting.fields & (1 << field) != 0 {
                        *best = best.max(quality);
                    }
                }
            }
        }
        let skills = found.iter().filter(|best| **best != [0.0; 3]).count();
        let rarity = term_rarity(skills, self.skills.len());
        for (scored, best) in scored.iter_mut().zip(found) {
            for (field, (quality, weight)) in best.into_iter().zip(WEIGHTS).enumerate() {
                if quality > 0.0 {
                    scored.score += quality * weight * rarity;
                    scored.fields |= 1 << field;
                }
            }
        }
    }

    /// Returns the skills with a score, best first, equal ones by name, at most `limit`.
    fn best_hits(&self, scored: &[SkillScore], limit: usize) -> Vec<SearchMatch> {
        let scored = self.skills.iter().zip(scored).enumerate();
        let mut found: Vec<ScoredSkill<'_>> = scored
            .filter(|(_, (_, scored))| scored.score > 0.0)
            .collect();
        // The index is sorted by name, so the position orders equal scores by name.
        let best_first = |(a, (_, of_a)): &ScoredSkill<'_>, (b, (_, of_b)): &ScoredSkill<'_>| {
            of_b.score.total_cmp(&of_a.score).then(a.cmp(b))
        };
        if limit < found.len() {
            found.select_nth_unstable_by(limit, best_first);
            found.truncate(limit);
        }
        found.sort_unstable_by(best_first);
        let hit = |(_, (skill, scored)): ScoredSkill<'_>| {
            let fields = FIELDS
                .into_iter()
                .enumerate()
                .filter(|(field, _)| scored.fields & (1 << field) != 0);
            SearchMatch {
                skill: Skill::clone(&skill.skill),
                score: scored.score,
                fields: fields.map(|(_, name)| name).collect(),
            }
        };
        found.into_iter().map(hit).collect()
    }
}

/// Returns what the match of a term with a word is worth; `None` if they do not match.
fn match_quality(term: &str, word: &str) -> Option<f64> {
    let [whole, beginning, inside] = QUALITIES;
    if word.len() <= term.len() {
        return (word == term).then_some(whole);
    }
    if term.len() >= PREFIX_BYTES_MIN && word.starts_with(term) {
        return Some(beginning);
    }
    (term.len() >= INSIDE_BYTES_MIN && word.contains(term)).then_some(inside)
}

/// Returns how much it says, from 0 to 1, that a skill has a term which `found` of `all` skills have: BM25's formula,
/// over its maximum.
#[expect(clippy::cast_precision_loss, reason = "counts of skills")]
fn term_rarity(found: usize, all: usize) -> f64 {
    let (found, all) = (found as f64, all as f64);
    let weight = |found: f64| (1.0 + (all - found + 0.5) / (found + 0.5)).ln();
    // A term of one skill alone has rarity 1, however few skills there are.
    weight(found) / weight(1.0)
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
