//! A skill's documents, SKILL.md and skill-card.json, put together: what the skill is called, what it says about
//! itself, and everything that is wrong with it. Pure; where they lie is `root.rs`'s.

use std::sync::Arc;

use super::card::{self, Card};
use super::finding::{self, Findings, Profile};
use super::front_matter::{self, FrontMatter, Said};
use super::{Problem, Severity};

mod id;
mod prose;

/// Bytes of a SKILL.md, whatever the configuration allows.
pub const SKILL_MD_BYTES_MAX: usize = 1 << 20;
/// Characters of a description that are kept.
const DESCRIPTION_CHARS_MAX: usize = 4096;

/// What the documents of one folder say.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Document {
    /// As much as could be read; `name` is empty only if there is nothing that it could be.
    pub front_matter: FrontMatter,
    /// SKILL.md without its front matter.
    pub body: String,
    /// What is wrong.
    pub findings: Findings,
}

impl Document {
    /// What a profile says, errors first; their subject is empty.
    #[must_use]
    pub fn problems(&self, profile: Profile) -> Vec<Problem> {
        self.findings.problems(profile)
    }

    /// Why a profile rejects it: the first error.
    #[must_use]
    pub fn refusal(&self, profile: Profile) -> Option<Problem> {
        let mut problems = self.problems(profile).into_iter();
        problems.find(|problem| problem.severity == Severity::Error)
    }
}

/// Reads what a folder has of a SKILL.md and of a skill-card.json. `dir_name` is the folder's name, empty if that
/// has nothing to do with the skill. Never fails: a document that cannot be used has findings that are errors. It
/// takes time linear in what is read.
#[must_use]
pub fn read(skill_md: Option<&[u8]>, card: Option<&[u8]>, dir_name: &str) -> Document {
    let mut findings = Findings::default();
    let card = card.and_then(|bytes| card::read(bytes, &mut findings));
    let described = card
        .as_ref()
        .is_some_and(|card| !card.description.is_empty());
    let (said, body) = match skill_md {
        Some(bytes) if bytes.len() > SKILL_MD_BYTES_MAX => {
            let message = format!("SKILL.md has more than {SKILL_MD_BYTES_MAX} bytes");
            findings.add(finding::TOO_LARGE, 0, message);
            (Said::default(), String::new())
        }
        Some(bytes) => front_matter::read(bytes, !described, &mut findings),
        None => (Said::default(), String::new()),
    };
    let unreadable = findings.reject(Profile::Lenient);
    let id = id::choose(
        card.as_ref(),
        said.name.as_ref(),
        dir_name,
        !unreadable,
        &mut findings,
    );
    let description = if unreadable && said.description.is_none() {
        // One reason is enough.
        String::new()
    } else {
        description(card.as_ref(), &said, &body, &mut findings)
    };
    let mut front = said.front;
    front.name = id.id;
    front.display_name = id.display;
    front.description = description;
    if let Some(card) = card.as_ref().filter(|card| !card.version.is_empty()) {
        front.version.clone_from(&card.version);
    }
    if let Some(card) = &card
        && !unreadable
        && body.trim().is_empty()
    {
        let message = no_instructions(card, skill_md.is_some());
        findings.add(finding::CARD_NO_INSTRUCTIONS, 0, message);
    }
    front.card = card.map(Arc::new);
    Document {
        front_matter: front,
        body,
        findings,
    }
}

/// Why a card without a SKILL.md beside it, or with an empty one, is no skill.
fn no_instructions(card: &Card, has_skill_md: bool) -> String {
    match card.remote() {
        Some(base) if !has_skill_md => format!(
            "there is no SKILL.md beside the card, and {} is fetched only for a card that is a root itself",
            finding::shown(base)
        ),
        _ if has_skill_md => "SKILL.md has no text".to_owned(),
        _ => "there is no SKILL.md beside the card".to_owned(),
    }
}

/// The card's, the front matter's, what may stand for it there, the body's first paragraph.
fn description(card: Option<&Card>, said: &Said, body: &str, findings: &mut Findings) -> String {
    let guessed = |text: &front_matter::Text| (text.text.clone(), text.line);
    let card = card
        .map(|card| card.description.clone())
        .unwrap_or_default();
    let (text, line) = if !card.is_empty() {
        (card, 0)
    } else if let Some(text) = &said.description {
        guessed(text)
    } else {
        let (text, line) = said
            .instead
            .as_ref()
            .map_or_else(|| (prose::first_paragraph(body), 0), guessed);
        if !text.is_empty() {
            let message = "there is no description: other text of SKILL.md was used";
            findings.add(finding::DESCRIPTION_GUESSED, line, message);
        }
        (text, line)
    };
    let text = prose::clean(&text, "description", line, findings);
    if text.is_empty() {
        let message = "there is no description: the front matter needs `description: …`";
        findings.add(finding::NO_DESCRIPTION, line, message);
    }
    text.chars().take(DESCRIPTION_CHARS_MAX).collect()
}

#[cfg(test)]
mod tests;
