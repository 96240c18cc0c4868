//! Scoring of Agent Zero, for users who compare or have tuned their skills to it.
//!
//! The query is lower-cased and split at white space. Each term adds 3 if it is a substring of the name, 2 of the
//! description, and 1 for each tag that contains it. Unlike Agent Zero, a query of stop words, single letters and
//! punctuation finds nothing: they are substrings of nearly every description. Text of scripts without blanks between
//! words is split as in the other search.

use super::term_splitter::{fold_text, has_unspaced, split_terms};
use super::{
    IndexedSkill, PREFIX_BYTES_MIN, SearchIndex, SearchMatch, SkillScore, TERMS_MAX, is_stop_word,
};
use crate::error::Result;

/// Points that a term adds, in the order of [`super::FIELDS`].
const POINTS: [f64; 3] = [3.0, 2.0, 1.0];

impl SearchIndex {
    /// Returns the best skills by that scoring, at most `limit`.
    ///
    /// # Errors
    /// `Invalid` for an empty query.
    pub(crate) fn search_compat(&self, query: &str, limit: usize) -> Result<Vec<SearchMatch>> {
        let query = fold_text(query);
        let terms: Vec<String> = query
            .split_whitespace()
            .flat_map(|term| match has_unspaced(term) {
                true => split_terms(term),
                false => vec![term.to_owned()],
            })
            .take(TERMS_MAX)
            .collect();
        if terms.is_empty() {
            return Err(super::nothing_to_look_for(""));
        }
        if terms.iter().all(|term| says_nothing(term)) {
            return Ok(Vec::new());
        }
        let score = |skill: &IndexedSkill| {
            let [name, description] = &skill.folded;
            let mut scored = SkillScore::default();
            for term in &terms {
                let tags = skill.tags.iter().filter(|tag| tag.contains(term)).count();
                let matches = [
                    u32::from(name.contains(term)),
                    u32::from(description.contains(term)),
                    u32::try_from(tags).unwrap_or(u32::MAX),
                ];
                for (field, (count, points)) in matches.into_iter().zip(POINTS).enumerate() {
                    if count > 0 {
                        scored.score += points * f64::from(count);
                        scored.fields |= 1 << field;
                    }
                }
            }
            scored
        };
        let scored: Vec<SkillScore> = self.skills.iter().map(score).collect();
        Ok(self.best_hits(&scored, limit))
    }
}

fn says_nothing(term: &str) -> bool {
    let word = term.trim_matches(|c: char| !c.is_alphanumeric());
    word.len() < PREFIX_BYTES_MIN || is_stop_word(word)
}
