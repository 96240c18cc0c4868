//! Arguments of sherma's tools, with sherma's names.

use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::{Map, Value};

/// Alternative names that models give to fields.
pub(super) const ALIASES: [(&str, &str); 11] = [
    ("skill", "skill_id"),
    ("skill_name", "skill_id"),
    ("id", "skill_id"),
    ("name", "skill_id"),
    ("path", "resource_path"),
    ("path", "asset_path"),
    ("path", "script_path"),
    ("resource", "resource_path"),
    ("asset", "asset_path"),
    ("script", "script_path"),
    ("args", "script_args"),
];

fn any_version() -> String {
    "*".into()
}

#[derive(Debug, Deserialize, JsonSchema)]
pub(super) struct ListArguments {
    /// Words: list only the skills that match them, best first.
    #[serde(default)]
    pub(super) query: String,
    /// Where to go on: `next_offset` of the call before.
    #[serde(default)]
    pub(super) offset: usize,
}

#[derive(Debug, Deserialize, JsonSchema)]
pub(super) struct SkillArguments {
    /// The skill's id, as list_skills shows it.
    pub(super) skill_id: String,
    /// A version or a range: 1.2.0, ^1.2, >=1,<3, ~=1.4, latest. * is the loaded or the current one.
    #[serde(default = "any_version")]
    pub(super) version: String,
}

#[derive(Debug, Deserialize, JsonSchema)]
pub(super) struct PathsArguments {
    /// The skill's id, as list_skills shows it.
    pub(super) skill_id: String,
    /// A version or a range: 1.2.0, ^1.2, >=1,<3, ~=1.4, latest. * is the loaded or the current one.
    #[serde(default = "any_version")]
    pub(super) version: String,
    /// Where to go on: `next_offset` of the call before.
    #[serde(default)]
    pub(super) offset: usize,
}

#[derive(Debug, Deserialize, JsonSchema)]
pub(super) struct LoadArguments {
    /// The skill's id, as list_skills shows it.
    pub(super) skill_id: String,
    /// A version or a range: 1.2.0, ^1.2, >=1,<3, ~=1.4, latest. * is the current one.
    #[serde(default = "any_version")]
    pub(super) version: String,
    /// Return the instructions again, and connect anew, where the skill is loaded already.
    #[serde(default)]
    pub(super) reload: bool,
}

#[derive(Debug, Deserialize, JsonSchema)]
pub(super) struct ResourceArguments {
    /// The skill's id, as list_skills shows it.
    pub(super) skill_id: String,
    /// Path as list_skill_resources shows it.
    pub(super) resource_path: String,
    /// A version or a range. * is the loaded or the current one.
    #[serde(default = "any_version")]
    pub(super) version: String,
    /// The first byte, for a document that comes in parts.
    #[serde(default)]
    pub(super) offset: u64,
}

#[derive(Debug, Deserialize, JsonSchema)]
pub(super) struct AssetArguments {
    /// The skill's id, as list_skills shows it.
    pub(super) skill_id: String,
    /// Path as list_skill_assets shows it.
    pub(super) asset_path: String,
    /// A version or a range. * is the loaded or the current one.
    #[serde(default = "any_version")]
    pub(super) version: String,
    /// The first byte, for an asset that comes in parts.
    #[serde(default)]
    pub(super) offset: u64,
}

#[derive(Debug, Deserialize, JsonSchema)]
pub(super) struct RunArguments {
    /// The skill's id, as list_skills shows it.
    pub(super) skill_id: String,
    /// Path as list_skill_scripts shows it.
    pub(super) script_path: String,
    /// A version or a range. * is the loaded or the current one.
    #[serde(default = "any_version")]
    pub(super) version: String,
    /// Arguments as words, before those of script_args.
    #[serde(default)]
    pub(super) argv: Vec<String>,
    /// Arguments as data: names to values, in this order.
    #[serde(default)]
    #[schemars(with = "Map<String, Value>")]
    pub(super) script_args: Option<Value>,
    /// Conversion of script_args to words: positional (default), named (--key value; a list after one flag),
    /// named_repeated (the flag again for each item), env (none; they are in SKILL_ARG_* in any case).
    #[serde(default)]
    pub(super) arg_style: String,
    /// Text that the script reads from its standard input.
    #[serde(default)]
    pub(super) stdin: Option<String>,
    /// In seconds.
    #[serde(default)]
    pub(super) timeout: Option<f64>,
}

#[derive(Debug, Deserialize, JsonSchema)]
pub(super) struct SearchArguments {
    /// Words.
    pub(super) query: String,
    /// At most this many, up to 100; 25 unless given.
    #[serde(default)]
    pub(super) limit: Option<u32>,
    /// Where to go on: `next_offset` of the call before.
    #[serde(default)]
    pub(super) offset: usize,
}
