//! The id of a skill: one path segment, whatever the name is.

use super::display_text;
use crate::parse::finding::{self, Findings, quote_excerpt};
use crate::parse::front_matter::LocatedText;
use crate::parse::skill_card::SkillCard;
use crate::parse::skill_name::{ID_BYTES_MAX, id_of_name, normalise_name};

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
    let own = card
        .map(|card| card.id.as_str())
        .filter(|id| !id.is_empty());
    let title = card
        .map(|card| card.name.as_str())
        .filter(|name| !name.is_empty());
    let stated = match (own, name, title) {
        (Some(id), _, _) => Some((id, 0)),
        (None, Some(name), _) => Some((name.text.as_str(), name.line)),
        (None, None, title) => title.map(|title| (title, 0)),
    };
    let Some((text, line)) = stated else {
        let dir = display_text::clean_text(dir, "folder's name", 0, findings);
        return SkillId::new(id_of_folder(&dir, is_expected, findings), &dir);
    };
    let text = display_text::clean_text(text, "name", line, findings);
    let Some(id) = id_of_name(&text).or_else(|| id_of_name(dir)) else {
        let name = quote_excerpt(&text);
        let message = format!(
            "the name {name} cannot be used, and neither can the folder's: it needs a letter or digit, and at most 1,024 bytes"
        );
        findings.add(finding::BAD_NAME, line, message);
        return SkillId::new(String::new(), &text);
    };
    if !is_of_specification(&text) && (own.is_none() || id != text) {
        let name = quote_excerpt(&text);
        if id == text {
            let message =
                format!("the name {name} is not of lower-case letters, digits and single hyphens");
            findings.add(finding::NAME_NOT_SPEC, line, message);
        } else {
            let message = format!(
                "the name {name} is no id, which has at most 64 ASCII letters, digits and ._-: the skill's id is {id}"
            );
            findings.add(finding::NAME_CHANGED, line, message);
        }
    }
    let is_of_folder = id == dir || normalise_name(dir) == normalise_name(&text);
    if own.is_none() && !dir.is_empty() && !is_of_folder {
        let (name, folder) = (quote_excerpt(&text), quote_excerpt(dir));
        let message = format!("the skill is named {name}, its folder {folder}");
        findings.add(finding::FOLDER_NAME, line, message);
    }
    let clean_title = title.map(|title| display_text::clean_text(title, "name", 0, findings));
    SkillId::new(id, &clean_title.unwrap_or(text))
}

/// Returns the id that a folder's name gives; empty if it gives none.
fn id_of_folder(dir: &str, is_expected: bool, findings: &mut Findings) -> String {
    let id = id_of_name(dir).unwrap_or_default();
    if is_expected && !id.is_empty() {
        let message = format!(
            "there is no name: the folder's, {}, was used",
            quote_excerpt(dir)
        );
        findings.add(finding::NO_NAME, 0, message);
    } else if is_expected {
        let message = "there is no name, and the folder's can be none: it needs a letter or digit";
        findings.add(finding::BAD_NAME, 0, message);
    }
    id
}

/// Returns `true` for a name of lower-case letters, digits, and single hyphens between them, of at most 64 characters, as
/// the specification's validator accepts it: letters of every script.
fn is_of_specification(name: &str) -> bool {
    let plain = |c: char| c == '-' || c.is_alphanumeric() && !c.is_uppercase();
    let hyphens = name.starts_with('-') || name.ends_with('-') || name.contains("--");
    name.chars().all(plain)
        && !hyphens
        && name.chars().count() <= ID_BYTES_MAX
        && normalise_name(name) == name
}
