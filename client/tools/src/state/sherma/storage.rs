//! Storage of sherma's loads in a session's state. There is a key for each skill, so that changes of two skills never
//! meet, and one key, the view, with the two entries that sherma's own graphs read. The view is made of the other keys,
//! and read only for skills that sherma itself loaded.

use std::cmp::Reverse;

use serde_json::{Map, Value, json};

use super::{LoadedSkill, LoadedSkills};
use crate::state::state_keys::escape_agent;
use crate::state::{SessionState, StateDelta};

/// Key of the view of sherma's graphs.
const KEY: &str = "__sherma__";
/// Field that entries of this crate have and entries of sherma do not.
const OURS: &str = "digest";

impl LoadedSkills {
    /// Reads the loaded skills from a state, also those that sherma wrote.
    #[must_use]
    pub fn read(state: &SessionState, agent: &str) -> Self {
        let view = view_key(agent);
        Self::with_own_keys(skills_of_view(state.get(&view)), state, &view)
    }

    /// Merges skills with keys of their own and those that only the view has.
    fn with_own_keys(
        mut theirs: Vec<(String, LoadedSkill)>,
        state: &SessionState,
        view: &str,
    ) -> Self {
        let prefix = skill_key(view, "");
        let mut loaded = Self::default();
        for (key, value) in state.iter() {
            if let Some(id) = key.strip_prefix(&prefix).filter(|id| !id.is_empty()) {
                loaded.0.push((id.to_owned(), read_skill(value)));
            }
        }
        loaded.0.sort_by(|(id, _), (other, _)| id.cmp(other));
        theirs.retain(|(id, _)| loaded.get(id).is_none());
        loaded.0.extend(theirs);
        // Stable: what sherma loaded keeps the order that it has there.
        loaded.0.sort_by(|(_, one), (_, other)| {
            (one.order, &one.loaded_at).cmp(&(other.order, &other.loaded_at))
        });
        loaded
    }

    /// Returns the change from a state with the loads `before` to this one: the keys of the skills that differ, and the
    /// view.
    #[must_use]
    pub fn delta(&self, before: &Self, agent: &str) -> StateDelta {
        let view = view_key(agent);
        let mut delta = StateDelta::new();
        if self == before {
            return delta;
        }
        for (id, skill) in before.iter() {
            if self.get(id).is_none() && skill.order > 0 {
                delta.remove(skill_key(&view, id));
            }
        }
        for (id, skill) in self.iter() {
            if skill.order > 0 && before.get(id) != Some(skill) {
                delta.set(skill_key(&view, id), json!(skill));
            }
        }
        delta.set(view, self.view());
        delta
    }

    /// Returns the view that sherma's graphs read; null if nothing is loaded.
    #[must_use]
    pub fn view(&self) -> Value {
        if self.0.is_empty() {
            return Value::Null;
        }
        let skills = self.iter().map(|(id, skill)| {
            let mut entry = json!({"version": skill.version, "tools": skill.tools});
            if let Some(entry) = entry.as_object_mut().filter(|_| skill.order > 0) {
                entry.insert(OURS.into(), json!(skill.digest));
            }
            (id.to_owned(), entry)
        });
        json!({
            "loaded_skills": skills.collect::<Map<String, Value>>(),
            "loaded_tools_from_skills": self.tools(),
        })
    }
}

fn read_skill(value: &Value) -> LoadedSkill {
    let mut skill: LoadedSkill = serde_json::from_value(value.clone()).unwrap_or_default();
    skill.order = skill.order.max(1);
    skill
}

/// Reads the skills that sherma itself loaded. Entries of this crate have keys of their own and may be out of date
/// here.
fn skills_of_view(view: Option<&Value>) -> Vec<(String, LoadedSkill)> {
    let skills = view
        .and_then(|view| view.get("loaded_skills"))
        .and_then(Value::as_object)
        .into_iter()
        .flatten();
    let read = |(id, skill): (&String, &Value)| {
        let version = skill
            .get("version")
            .and_then(Value::as_str)
            .unwrap_or_default();
        let tools = skill
            .get("tools")
            .and_then(Value::as_array)
            .into_iter()
            .flatten()
            .filter_map(Value::as_str);
        let skill = LoadedSkill {
            version: version.trim_start_matches("==").to_owned(),
            tools: tools.map(ToOwned::to_owned).collect(),
            ..LoadedSkill::default()
        };
        (id.clone(), skill)
    };
    let theirs = skills.filter(|(_, skill)| skill.get(OURS).is_none());
    theirs.map(read).collect()
}

/// Returns the key of the view; sherma's own key where there is only one agent.
fn view_key(agent: &str) -> String {
    match agent.trim() {
        "" => KEY.to_owned(),
        agent => format!("{KEY}:{}", escape_agent(agent)),
    }
}

/// Returns the key of a skill. An agent's name in keys has no slash, so the key is unambiguous.
fn skill_key(view: &str, id: &str) -> String {
    format!("{view}/{id}")
}

fn after_key(key: &str) -> Option<&str> {
    let rest = key.strip_prefix(KEY)?;
    (rest.is_empty() || rest.starts_with([':', '/'])).then_some(rest)
}

pub(in crate::state) fn is_view(key: &str) -> bool {
    after_key(key).is_some_and(|rest| !rest.contains('/'))
}

pub(in crate::state) fn is_skill(key: &str) -> bool {
    after_key(key).is_some_and(|rest| rest.contains('/'))
}

/// Returns the last load of a skill that several branches loaded.
pub(in crate::state) fn latest(values: &[&Value]) -> Value {
    let latest = values.iter().min_by_key(|value| {
        let skill = read_skill(value);
        Reverse((skill.order, skill.loaded_at, value.to_string()))
    });
    latest.map_or(Value::Null, |value| (*value).clone())
}

/// Returns the view of a state that branches were merged into. A skill that sherma loaded stays if all branches kept it
/// or one added it.
pub(in crate::state) fn merge_view(
    key: &str,
    base: Option<&Value>,
    values: &[&Value],
    merged: &SessionState,
) -> Value {
    let base = skills_of_view(base);
    let branches: Vec<Vec<(String, LoadedSkill)>> = values
        .iter()
        .map(|value| skills_of_view(Some(value)))
        .collect();
    let is_known = |skill: &(String, LoadedSkill)| base.iter().any(|(id, _)| *id == skill.0);
    let kept = base.iter().filter(|skill| {
        let keeps = |branch: &Vec<(String, LoadedSkill)>| branch.contains(skill);
        branches.iter().all(keeps)
    });
    let mut added: Vec<&(String, LoadedSkill)> = branches
        .iter()
        .flatten()
        .filter(|skill| !is_known(skill))
        .collect();
    added.sort_by_key(|(id, skill)| (id, &skill.version, &skill.tools));
    added.dedup_by_key(|(id, _)| id);
    let theirs = kept.chain(added).cloned().collect();
    LoadedSkills::with_own_keys(theirs, merged, key).view()
}
