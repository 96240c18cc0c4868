//! The id of a skill: one path segment, whatever the name is.

use super::display_text;
use crate::finding::{self, Findings, quote_excerpt};
use crate::front_matter::LocatedText;
use crate::is_name;
use crate::skill_card::SkillCard;

/// Maximum number of characters of an id.
const CHARS_MAX: usize = 64;
/// Maximum number of characters of a name that is kept for people.
const DISPLAY_CHARS_MAX: usize = 256;

/// Id and display name of a skill.
#[derive(Debug, Default)]
pub(super) struct SkillId {
    /// Empty if no text can serve as an id.
    pub(super) id: String,
    /// The name as it is written, if that is another one.
    pub(super) display: String,
}

impl SkillId {
    fn new(id: String, written: &str) -> Self {
        let display = written.chars().take(DISPLAY_CHARS_MAX);
        Self {
            display: display.filter(|_| id != written).collect(),
            id,
        }
    }
}

/// Chooses the id of a skill: the card's id, the front matter's name, the card's name, or the folder's, the first that
/// there is. Without `is_expected` a missing name is no finding, because a document could not be read at all.
pub(super) fn choose_id(
    card: Option<&SkillCard>,
    name: Option<&LocatedText>,
    dir: &str,
    is_expected: bool,
    findings: &mut Findings,
) -> SkillId {
    let own = card.map(|card| card.id.as_str());
    let own = own.filter(|id| !id.is_empty());
    let title = card.map(|card| card.name.as_str());
    let title = title.filter(|name| !name.is_empty());
    let stated = match (own, name, title) {
        (Some(id), _, _) => Some((id, 0)),
        (None, Some(name), _) => Some((name.text.as_str(), name.line)),
        (None, None, title) => title.map(|title| (title, 0)),
    };
    let Some((text, line)) = stated else {
        return SkillId::new(id_of_folder(dir, is_expected, findings), dir);
    };
    let text = display_text::clean_text(text, "name", line, findings);
    let id = if is_name(&text) {
        if own.is_none() && !is_of_specification(&text) {
            let name = quote_excerpt(&text);
            let message =
                format!("the name {name} is not of lower-case letters, digits and single hyphens");
            findings.add(finding::NAME_NOT_SPEC, line, message);
        }
        text.clone()
    } else {
        derive_id(&text, line, dir, findings)
    };
    if own.is_none() && !dir.is_empty() && !id.is_empty() && id != dir {
        let message = format!("the skill is named {id}, its folder {}", quote_excerpt(dir));
        findings.add(finding::FOLDER_NAME, line, message);
    }
    let title = title.map(|title| display_text::clean_text(title, "name", 0, findings));
    SkillId::new(id, &title.unwrap_or(text))
}

/// Returns the id that a folder's name gives; empty if it gives none.
fn id_of_folder(dir: &str, is_expected: bool, findings: &mut Findings) -> String {
    let id = if is_name(dir) {
        dir.to_owned()
    } else {
        slugify(dir)
    };
    let is_usable = is_name(&id);
    if is_expected && is_usable {
        let message = format!("there is no name: the folder's, {id}, was used");
        findings.add(finding::NO_NAME, 0, message);
    } else if is_expected {
        let message = "there is no name, and the folder's can be none";
        findings.add(finding::BAD_NAME, 0, message);
    }
    Some(id).filter(|_| is_usable).unwrap_or_default()
}

/// Derives an id from a name that cannot be one: its letters and digits. Where these would not be the name any more,
/// the folder's name, if that can be one. Returns an empty text if nothing can be.
fn derive_id(text: &str, line: usize, dir: &str, findings: &mut Findings) -> String {
    let (letters, folder) = (slugify(text), slugify(dir));
    let is_lossy =
        letters.len() > CHARS_MAX || text.chars().any(|c| c.is_alphanumeric() && !c.is_ascii());
    let cut = letters.get(..CHARS_MAX).unwrap_or(&letters);
    let all_letters = if is_lossy { "" } else { letters.as_str() };
    let candidates = [all_letters, dir, &folder, cut.trim_matches('-')];
    let name = quote_excerpt(text);
    let Some(id) = candidates.into_iter().find(|id| is_name(id)) else {
        let message = format!("neither the name {name} nor the folder's can be one");
        findings.add(finding::BAD_NAME, line, message);
        return String::new();
    };
    let message = format!("the name {name} cannot be an id: the skill is called {id}");
    findings.add(finding::NAME_CHANGED, line, message);
    id.to_owned()
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

/// Returns `true` for a name of lower-case letters, digits, and single hyphens between them, as the specification asks.
fn is_of_specification(name: &str) -> bool {
    let plain = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-';
    let hyphens = name.starts_with('-') || name.ends_with('-') || name.contains("--");
    name.chars().all(plain) && !hyphens
}
