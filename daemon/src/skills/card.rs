//! skill-card.json: what a skill says about itself beside or instead of SKILL.md's front matter. What it says of MCP
//! servers and local tools is data for the caller: nothing here connects or imports. Pure.

use serde_json::{Map, Value};

/// A card.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Card {
    /// Empty if not given, as are the next three.
    pub id: String,
    /// Empty for `*` too.
    pub version: String,
    /// For people.
    pub name: String,
    /// For people and models.
    pub description: String,
    /// Where its files are, relative to the card: a folder, or a URL. Data: whoever fetches checks it.
    pub base_uri: String,
    /// Paths relative to `base_uri`; an allow-list, if there is one.
    pub files: Option<Vec<String>>,
    /// All of it, unknown keys included.
    pub fields: Map<String, Value>,
}

impl Card {
    /// The URL beneath which its files are; `None` if they lie beside it.
    #[must_use]
    pub fn remote(&self) -> Option<&str> {
        let scheme = self.base_uri.split_once("://").map(|(scheme, _)| scheme)?;
        let http = ["http", "https"]
            .iter()
            .any(|known| scheme.eq_ignore_ascii_case(known));
        http.then_some(self.base_uri.as_str())
    }
}
