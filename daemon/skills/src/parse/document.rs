//! Documents of a skill: combines SKILL.md and skill-card.json into name, front matter and findings. Pure.

use std::sync::Arc;

use crate::parse::finding::{self, Findings, ValidationProfile};
use crate::parse::front_matter::{self, FrontMatter, ParsedFrontMatter};
use crate::parse::problem::{Problem, Severity};
use crate::parse::skill_card::{self, SkillCard};

mod display_text;
mod skill_id;

/// Maximum size of a SKILL.md in bytes, whatever the configuration allows.
pub const SKILL_MD_BYTES_MAX: usize = 1 << 20;
/// Maximum number of characters of a description that are kept.
const DESCRIPTION_CHARS_MAX: usize = 4096;

/// Parsed documents of one folder.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Document {
    /// Front matter as far as it could be read; `name` is empty only if no text can serve as one.
    pub front_matter: FrontMatter,
    /// SKILL.md without its front matter.
    pub body: String,
    /// Findings of both documents.
    pub findings: Findings,
}

impl Document {
    /// Returns the problems that a profile reports, errors first, without a subject.
    pub fn problems(&self, profile: ValidationProfile) -> Vec<Problem> {
        self.findings.problems(profile)
    }

    /// Returns the first error that a profile reports.
    pub fn refusal(&self, profile: ValidationProfile) -> Option<Problem> {
        let mut problems = self.problems(profile).into_iter();
        problems.find(|problem| problem.severity == Severity::Error)
    }
}

/// Parses what a folder has of a SKILL.md and of a skill-card.json. `dir_name` is the folder's name, empty if that
/// has nothing to do with the skill. Never fails: a document that cannot be used has findings that are errors. It
/// takes time linear in what is read.
pub fn parse_documents(skill_md: Option<&[u8]>, card: Option<&[u8]>, dir_name: &str) -> Document {
    let mut findings = Findings::default();
    let card = card.and_then(|bytes| skill_card::parse_card(bytes, &mut findings));
    let described = card
        .as_ref()
        .is_some_and(|card| !card.description.is_empty());
    let (said, body) = match skill_md {
        Some(bytes) if bytes.len() > SKILL_MD_BYTES_MAX => {
            let message = format!("SKILL.md has more than {SKILL_MD_BYTES_MAX} bytes");
            findings.add(finding::TOO_LARGE, 0, message);
            (ParsedFrontMatter::default(), String::new())
        }
        Some(bytes) => front_matter::parse_skill_md(bytes, !described, &mut findings),
        None => (ParsedFrontMatter::default(), String::new()),
    };
    let unreadable = findings.reject(ValidationProfile::Lenient);
    let id = skill_id::choose_id(
        card.as_ref(),
        said.name.as_ref(),
        dir_name,
        !unreadable,
        &mut findings,
    );
    let description = if unreadable && said.description.is_none() {
        // An unreadable document is reason enough; a missing description would be a second one.
        String::new()
    } else {
        choose_description(card.as_ref(), &said, &body, &mut findings)
    };
    let mut front = said.front;
    front.name = id.id;
    front.display_name = id.display;
    front.description = description;
    if let Some(card) = card.as_ref().filter(|card| !card.version.is_empty()) {
        front.version.clone_from(&card.version);
    }
    if skill_md.is_none() {
        // No files were taken from the card's folder.
        findings.remove(finding::CARD_BASE_URI);
    }
    if let Some(card) = &card
        && !unreadable
        && body.trim().is_empty()
    {
        let message = describe_missing_text(card, skill_md.is_some());
        findings.add(finding::CARD_NO_INSTRUCTIONS, 0, message);
    }
    front.card = card.map(Arc::new);
    Document {
        front_matter: front,
        body,
        findings,
    }
}

/// Describes why a card without a SKILL.md beside it, or with an empty one, is no skill.
fn describe_missing_text(card: &SkillCard, has_skill_md: bool) -> String {
    let base = finding::quote_excerpt(&card.base_uri);
    match card.base_uri.as_str() {
        _ if has_skill_md => "SKILL.md has no text".to_owned(),
        "" | "." | "./" => "there is no SKILL.md beside the card".to_owned(),
        _ if card.remote().is_some() => {
            format!("there is no SKILL.md beside the card, and none was fetched from {base}")
        }
        _ => format!(
            "there is no SKILL.md beside the card, nor in its base_uri {base}, which must be a folder beneath the card"
        ),
    }
}

/// Chooses the description: the card's, the front matter's, other text of the front matter that can serve as one, or
/// the body's first paragraph.
fn choose_description(
    card: Option<&SkillCard>,
    said: &ParsedFrontMatter,
    body: &str,
    findings: &mut Findings,
) -> String {
    let guessed = |text: &front_matter::LocatedText| (text.text.clone(), text.line);
    let of_card = card
        .map(|card| card.description.clone())
        .unwrap_or_default();
    let (text, line) = if !of_card.is_empty() {
        (of_card, 0)
    } else if let Some(text) = &said.description {
        guessed(text)
    } else {
        let (text, line) = said
            .instead
            .as_ref()
            .map_or_else(|| (display_text::find_first_paragraph(body), 0), guessed);
        if !text.is_empty() {
            let message = "there is no description: other text of SKILL.md was used";
            findings.add(finding::DESCRIPTION_GUESSED, line, message);
        }
        (text, line)
    };
    let text = display_text::clean_text(&text, "description", line, findings);
    if text.is_empty() {
        let message = "there is no description: the front matter needs `description: …`";
        findings.add(finding::NO_DESCRIPTION, line, message);
    }
    text.chars().take(DESCRIPTION_CHARS_MAX).collect()
}

#[cfg(test)]
mod tests;
