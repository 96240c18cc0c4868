//! The id of a skill: one path segment, whatever the name is.

use super::super::card::Card;
use super::super::finding::{self, Findings, shown};
use super::super::front_matter::Text;
use super::super::is_name;
use super::prose;

const CHARS_MAX: usize = 64;
/// Characters of a name that are kept for people.
const DISPLAY_CHARS_MAX: usize = 256;

/// What a skill is called.
#[derive(Debug, Default)]
pub(super) struct Id {
    /// Empty if there is nothing that it could be.
    pub(super) id: String,
    /// The name as it is written, if that is another one.
    pub(super) display: String,
}

/// The card's id, the front matter's name, the card's name, the folder's: the first that there is. What is not
/// found because a document could not be read at all is not `expected`.
pub(super) fn choose(
    card: Option<&Card>,
    name: Option<&Text>,
    dir: &str,
    expected: bool,
    findings: &mut Findings,
) -> Id {
    let own = card
        .map(|card| card.id.as_str())
        .filter(|id| !id.is_empty());
    let title = card
        .map(|card| card.name.as_str())
        .filter(|name| !name.is_empty());
    let line = name.map_or(0, |name| name.line);
    let (text, line) = match (own, name, title) {
        (Some(id), _, _) => (id, 0),
        (None, Some(name), _) => (name.text.as_str(), line),
        (None, None, Some(title)) => (title, 0),
        (None, None, None) => {
            return of_folder(dir, expected, findings);
        }
    };
    let text = prose::clean(text, "name", line, findings);
    let mut id = if is_name(&text) {
        if own.is_none() && !is_of_specification(&text) {
            let message = format!(
                "the name {} is not of lower-case letters, digits and single hyphens",
                shown(&text)
            );
            findings.add(finding::NAME_NOT_SPEC, line, message);
        }
        Id {
            id: text,
            display: String::new(),
        }
    } else {
        derived(&text, line, dir, findings)
    };
    if own.is_none() && !dir.is_empty() && !id.id.is_empty() && id.id != dir {
        let message = format!("the skill is named {}, its folder {}", id.id, shown(dir));
        findings.add(finding::FOLDER_NAME, line, message);
    }
    if let Some(title) = title {
        let title = prose::clean(title, "name", 0, findings);
        id.display = if title == id.id {
            String::new()
        } else {
            cut(&title)
        };
    }
    id
}

fn of_folder(dir: &str, expected: bool, findings: &mut Findings) -> Id {
    let id = if is_name(dir) {
        dir.to_owned()
    } else {
        slug(dir)
    };
    if expected {
        if is_name(&id) {
            let message = format!("there is no name: the folder's, {id}, was used");
            findings.add(finding::NO_NAME, 0, message);
        } else {
            let message = "there is no name, and the folder's can be none";
            findings.add(finding::BAD_NAME, 0, message);
        }
    }
    Id {
        display: if id == dir { String::new() } else { cut(dir) },
        id: if is_name(&id) { id } else { String::new() },
    }
}

/// An id for a name that cannot be one: its letters and digits. Where these would not be the name any more, the
/// folder's name, if it is one.
fn derived(text: &str, line: usize, dir: &str, findings: &mut Findings) -> Id {
    let letters = slug(text);
    let lossy =
        letters.len() > CHARS_MAX || text.chars().any(|c| c.is_alphanumeric() && !c.is_ascii());
    let cut_off = || {
        letters
            .get(..CHARS_MAX)
            .unwrap_or(&letters)
            .trim_matches('-')
            .to_owned()
    };
    let folder = slug(dir);
    let id = if !lossy && is_name(&letters) {
        letters
    } else if is_name(dir) {
        dir.to_owned()
    } else if is_name(&folder) {
        folder
    } else {
        cut_off()
    };
    let display = cut(text);
    if !is_name(&id) {
        let message = format!(
            "neither the name {} nor the folder's can be one",
            shown(text)
        );
        findings.add(finding::BAD_NAME, line, message);
        return Id {
            id: String::new(),
            display,
        };
    }
    let message = format!(
        "the name {} cannot be an id: the skill is called {id}",
        shown(text)
    );
    findings.add(finding::NAME_CHANGED, line, message);
    Id { id, display }
}

/// `My Skill` → `my-skill`.
fn slug(text: &str) -> String {
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

fn cut(text: &str) -> String {
    text.chars().take(DISPLAY_CHARS_MAX).collect()
}

/// Lower-case letters, digits, single hyphens between them.
fn is_of_specification(name: &str) -> bool {
    let plain = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-';
    let hyphens = name.starts_with('-') || name.ends_with('-') || name.contains("--");
    name.chars().all(plain) && !hyphens
}
