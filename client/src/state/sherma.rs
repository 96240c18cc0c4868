//! What sherma's tools remember: which skills are loaded in which version, and which tools they brought. One key holds
//! all of it, with the two maps that sherma's own graphs read. A tool belongs to every loaded skill that brought it and
//! goes with the last of them. State changes by results only: a load that failed has none to give.

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};

use super::keys::escape_agent;
use super::{Delta, SessionState};

/// sherma's own key.
const KEY: &str = "__sherma__";

/// A skill that was loaded.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct LoadedSkill {
    /// The version that was found for what was asked for.
    #[serde(rename = "resolved_version")]
    pub version: String,
    /// Of its content.
    pub digest: String,
    /// Tools that it brought, under the names that they are called by.
    pub tools: Vec<String>,
    /// When, as the caller writes times; later ones must sort after earlier ones.
    pub loaded_at: String,
    /// Which part of the conversation holds its text, for who compacts it.
    #[serde(skip_serializing_if = "Value::is_null")]
    pub source_range: Value,
}

/// The loaded skills of one agent, the one loaded last at the end.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Loaded(Vec<(String, LoadedSkill)>);

/// What a load did.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LoadOutcome {
    /// It is loaded now.
    Loaded,
    /// It was, with the same content.
    AlreadyLoaded,
    /// Another version was; these tools came with it and went.
    Replaced {
        /// Tools that nobody brings any more.
        unbound: Vec<String>,
    },
}

/// What an unload did.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum UnloadOutcome {
    /// It was not loaded; nothing changed.
    NotLoaded,
    /// It is not loaded any more.
    Unloaded {
        /// Tools that nobody brings any more.
        unbound: Vec<String>,
        /// Tools of it that other loaded skills bring too.
        kept: Vec<String>,
    },
}

impl Loaded {
    /// What the state says, in our form or in sherma's.
    #[must_use]
    pub fn read(state: &SessionState, agent: &str) -> Self {
        state
            .get(&key(agent))
            .map(Self::from_value)
            .unwrap_or_default()
    }

    fn from_value(value: &Value) -> Self {
        if let Some(loaded) = value.get("loaded").filter(|value| value.is_object()) {
            let read = |(id, skill): (&String, &Value)| {
                Some((id.clone(), serde_json::from_value(skill.clone()).ok()?))
            };
            return Self(
                loaded
                    .as_object()
                    .into_iter()
                    .flatten()
                    .filter_map(read)
                    .collect(),
            );
        }
        let theirs = value.get("loaded_skills").and_then(Value::as_object);
        let read = |(id, skill): (&String, &Value)| {
            let version = skill
                .get("version")
                .and_then(Value::as_str)
                .unwrap_or_default();
            let tools = skill.get("tools").and_then(Value::as_array);
            let tools = tools.into_iter().flatten().filter_map(Value::as_str);
            let skill = LoadedSkill {
                version: version.trim_start_matches("==").to_owned(),
                tools: tools.map(ToOwned::to_owned).collect(),
                ..LoadedSkill::default()
            };
            (id.clone(), skill)
        };
        Self(theirs.into_iter().flatten().map(read).collect())
    }

    fn to_value(&self) -> Value {
        let of_each = |view: fn(&LoadedSkill) -> Value| -> Map<String, Value> {
            let skills = self.0.iter();
            skills
                .map(|(id, skill)| (id.clone(), view(skill)))
                .collect()
        };
        let theirs = of_each(|skill| json!({"version": skill.version, "tools": skill.tools}));
        json!({
            "loaded": of_each(|skill| json!(skill)),
            "loaded_skills": theirs,
            "loaded_tools_from_skills": self.tools(),
        })
    }

    /// The skills and what is known of them, in the order of their loads.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &LoadedSkill)> {
        self.0.iter().map(|(id, skill)| (id.as_str(), skill))
    }

    /// One of them.
    #[must_use]
    pub fn get(&self, id: &str) -> Option<&LoadedSkill> {
        self.iter()
            .find_map(|(own, skill)| (own == id).then_some(skill))
    }

    fn take(&mut self, id: &str) -> Option<LoadedSkill> {
        let at = self.0.iter().position(|(own, _)| own == id)?;
        Some(self.0.remove(at).1)
    }

    /// All tools, each once, in the order in which they were brought.
    #[must_use]
    pub fn tools(&self) -> Vec<&str> {
        let mut tools: Vec<&str> = Vec::new();
        for tool in self.0.iter().flat_map(|(_, skill)| &skill.tools) {
            if !tools.contains(&tool.as_str()) {
                tools.push(tool);
            }
        }
        tools
    }

    /// The skills that bring a tool.
    pub fn owners<'a>(&'a self, tool: &'a str) -> impl Iterator<Item = &'a str> {
        let brings = move |skill: &LoadedSkill| skill.tools.iter().any(|own| own == tool);
        self.iter()
            .filter(move |(_, skill)| brings(skill))
            .map(|(id, _)| id)
    }

    /// Splits what a skill brought into what nobody else brings and what others do; it is no longer in here.
    fn unowned(&self, skill: LoadedSkill) -> (Vec<String>, Vec<String>) {
        let owned = |tool: &String| self.owners(tool).next().is_some();
        let (kept, unbound) = skill.tools.into_iter().partition(owned);
        (unbound, kept)
    }
}

/// After a load that succeeded.
#[must_use]
pub fn load(
    state: &SessionState,
    agent: &str,
    id: &str,
    skill: LoadedSkill,
) -> (LoadOutcome, Delta) {
    let mut loaded = Loaded::read(state, agent);
    let before = loaded.take(id);
    let same = |before: &LoadedSkill| {
        before.version == skill.version
            && before.digest == skill.digest
            && before.tools == skill.tools
    };
    let outcome = match before {
        None => None,
        Some(before) if same(&before) => Some(LoadOutcome::AlreadyLoaded),
        Some(before) => Some(LoadOutcome::Replaced {
            unbound: {
                let (unbound, _) = loaded.unowned(before);
                unbound
                    .into_iter()
                    .filter(|tool| !skill.tools.contains(tool))
                    .collect()
            },
        }),
    };
    loaded.0.push((id.to_owned(), skill));
    let mut delta = Delta::new();
    delta.set(key(agent), loaded.to_value());
    (outcome.unwrap_or(LoadOutcome::Loaded), delta)
}

/// After an unload.
#[must_use]
pub fn unload(state: &SessionState, agent: &str, id: &str) -> (UnloadOutcome, Delta) {
    let mut loaded = Loaded::read(state, agent);
    let mut delta = Delta::new();
    let Some(skill) = loaded.take(id) else {
        return (UnloadOutcome::NotLoaded, delta);
    };
    let (unbound, kept) = loaded.unowned(skill);
    if loaded.0.is_empty() {
        delta.remove(key(agent));
    } else {
        delta.set(key(agent), loaded.to_value());
    }
    (UnloadOutcome::Unloaded { unbound, kept }, delta)
}

/// Keeps the `max` skills that were loaded last; 0 keeps all. Gives the ids that went.
#[must_use]
pub fn evict(state: &SessionState, agent: &str, max: usize) -> (Vec<String>, Delta) {
    let loaded = Loaded::read(state, agent);
    let too_many = if max == 0 {
        0
    } else {
        loaded.0.len().saturating_sub(max)
    };
    let ids: Vec<String> = loaded
        .0
        .iter()
        .take(too_many)
        .map(|(id, _)| id.clone())
        .collect();
    let mut delta = Delta::new();
    for id in &ids {
        let (_, next) = unload(&state.with(&delta), agent, id);
        delta.then(next);
    }
    (ids, delta)
}

/// The key of an agent: sherma's own where there is only one.
fn key(agent: &str) -> String {
    match agent.trim() {
        "" => KEY.to_owned(),
        agent => format!("{KEY}:{}", escape_agent(agent)),
    }
}

pub(super) fn is_key(key: &str) -> bool {
    key.strip_prefix(KEY)
        .is_some_and(|rest| rest.is_empty() || rest.starts_with(':'))
}

/// Branches skill by skill: what a branch loaded counts more than that another unloaded it, and the later load more
/// than the earlier.
pub(super) fn merge(base: Option<&Value>, values: &[&Value]) -> Value {
    let base = base.map(Loaded::from_value).unwrap_or_default();
    let branches: Vec<Loaded> = values
        .iter()
        .map(|value| Loaded::from_value(value))
        .collect();
    let mut merged = Loaded::default();
    let untouched = |id: &str, skill: &LoadedSkill| base.get(id) == Some(skill);
    for (id, skill) in &base.0 {
        if branches.iter().all(|branch| branch.get(id) == Some(skill)) {
            merged.0.push((id.clone(), skill.clone()));
        }
    }
    let mut since: Vec<(&str, &LoadedSkill)> = branches
        .iter()
        .flat_map(Loaded::iter)
        .filter(|(id, skill)| !untouched(id, skill))
        .collect();
    let age = |skill: &LoadedSkill| serde_json::to_string(skill).unwrap_or_default();
    since.sort_by_key(|(id, skill)| (skill.loaded_at.clone(), (*id).to_owned(), age(skill)));
    for (id, skill) in since {
        merged.take(id);
        merged.0.push((id.to_owned(), skill.clone()));
    }
    merged.to_value()
}

#[cfg(test)]
mod tests;
