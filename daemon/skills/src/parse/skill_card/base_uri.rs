//! `base_uri` of a card: where SKILL.md and the files of the card are, if not beside it. Pure.

use serde_json::Value;

use super::parse_fields;
use crate::skill_path::normalise_skill_path;

/// Key of a card.
const BASE_URI: &str = "base_uri";

/// Place of a card's files that is not the card's own folder.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum CardBase {
    /// Folder beneath the card's: its path, normalised.
    Beneath(String),
    /// URL of a folder.
    Remote(String),
}

/// Returns the URL that a `base_uri` is, if it is one that may be fetched.
pub(super) fn web_url(base_uri: &str) -> Option<&str> {
    let (scheme, _) = base_uri.split_once("://")?;
    let mut known = ["http", "https"].iter();
    let is_known = known.any(|known| scheme.eq_ignore_ascii_case(known));
    is_known.then_some(base_uri)
}

/// Returns the place of the files of a card, given by its bytes. `None` for its own folder, and for what can be no place
/// of them.
pub(crate) fn read_base(card: &[u8]) -> Option<CardBase> {
    let fields = parse_fields(card).ok()?;
    let base = fields.get(BASE_URI)?.as_str()?.trim();
    if let Some(url) = web_url(base) {
        return Some(CardBase::Remote(url.to_owned()));
    }
    let path = normalise_skill_path(BASE_URI, base).ok()?;
    (!path.is_empty()).then_some(CardBase::Beneath(path))
}

/// Returns a card as it is once it lies beside its files: with the `base_uri` `.`. A card that cannot be read stays as it
/// is.
pub(crate) fn with_own_base(card: &[u8]) -> Vec<u8> {
    let moved = parse_fields(card).ok().and_then(|mut fields| {
        fields.insert(BASE_URI.to_owned(), Value::String(".".to_owned()));
        serde_json::to_vec_pretty(&fields).ok()
    });
    moved.unwrap_or_else(|| card.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_base_is_a_folder_beneath_the_card_or_a_url() {
        let beneath = |path: &str| Some(CardBase::Beneath(path.to_owned()));
        for (base, expected) in [
            ("files", beneath("files")),
            ("./skills/weather/", beneath("skills/weather")),
            (
                "HTTPS://skills.example/a",
                Some(CardBase::Remote("HTTPS://skills.example/a".to_owned())),
            ),
            (".", None),
            ("", None),
            ("./", None),
            ("../files", None),
            ("files/../../x", None),
            ("/srv/files", None),
        ] {
            let card = serde_json::json!({"id": "a", "base_uri": base}).to_string();
            assert_eq!(read_base(card.as_bytes()), expected, "{base}");
            assert_eq!(read_base(&with_own_base(card.as_bytes())), None, "{base}");
        }
        assert_eq!(read_base(b"{"), None);
        assert_eq!(with_own_base(b"{"), b"{");
    }
}
