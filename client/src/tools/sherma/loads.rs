//! What a session has loaded, in its state: under `__sherma__`, the key of the system that the tools come from, with
//! the two entries that it has there and what it lacks: the version that was chosen, the digest, and from where each
//! tool is. Pure.

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};

use crate::state::{Delta, SessionState};
use crate::tools::mcp::{Place, Server};
use crate::tools::{Definition, Session};

/// The key of a session of one agent; that of a named agent has the name behind a slash.
const KEY: &str = "__sherma__";

/// Loaded skills, in the order in which they were loaded.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Loads(Vec<Load>);

/// One loaded skill.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub(super) struct Load {
    #[serde(skip)]
    pub(super) id: String,
    /// The version that was chosen, never a range.
    pub(super) version: String,
    pub(super) digest: String,
    /// Names of its tools, of the host and of servers.
    pub(super) tools: Vec<String>,
    /// Those of servers.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(super) remote: Vec<Remote>,
    /// Larger is later. The order of a map's keys does not survive every store.
    pub(super) order: u64,
}

/// A tool of an MCP server. Kept whole, so that what is offered needs no server to be asked, and stays the same.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct Remote {
    pub(super) server: Server,
    pub(super) definition: Definition,
}

impl Loads {
    /// Reads a state; also one that the other system wrote.
    pub(super) fn read(state: &SessionState, session: &Session) -> Self {
        let skills = state
            .get(&key(session))
            .and_then(|value| value.get("loaded_skills"))
            .and_then(Value::as_object);
        let mut loads: Vec<Load> = skills
            .into_iter()
            .flatten()
            .map(|(id, load)| Load {
                id: id.clone(),
                ..serde_json::from_value(load.clone()).unwrap_or_default()
            })
            .collect();
        loads.sort_by_key(|load| load.order);
        Self(loads)
    }

    /// The change that makes a state say this.
    pub(super) fn delta(&self, session: &Session) -> Delta {
        let mut delta = Delta::new();
        if self.0.is_empty() {
            delta.remove(key(session));
            return delta;
        }
        let skills = self.0.iter().map(|load| {
            let value = serde_json::to_value(load).unwrap_or_default();
            (load.id.clone(), value)
        });
        let skills: Map<String, Value> = skills.collect();
        delta.set(
            key(session),
            json!({"loaded_skills": skills, "loaded_tools_from_skills": self.tools()}),
        );
        delta
    }

    pub(super) fn get(&self, id: &str) -> Option<&Load> {
        self.0.iter().find(|load| load.id == id)
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &Load> {
        self.0.iter()
    }

    /// With one more, the last one loaded; another version of it goes.
    pub(super) fn with(&self, mut load: Load) -> Self {
        load.order = self.0.last().map_or(0, |last| last.order) + 1;
        let mut loads = self.without(&load.id);
        loads.0.push(load);
        loads
    }

    pub(super) fn without(&self, id: &str) -> Self {
        let kept = self.0.iter().filter(|load| load.id != id);
        Self(kept.cloned().collect())
    }

    /// All tools' names, each once, in the order in which they came.
    pub(super) fn tools(&self) -> Vec<String> {
        let mut tools: Vec<String> = Vec::new();
        for tool in self.0.iter().flat_map(|load| &load.tools) {
            if !tools.contains(tool) {
                tools.push(tool.clone());
            }
        }
        tools
    }

    /// Tools that are here and not there.
    pub(super) fn tools_not_in(&self, other: &Self) -> Vec<String> {
        let (mut tools, others) = (self.tools(), other.tools());
        tools.retain(|tool| !others.contains(tool));
        tools
    }

    /// Servers that are needed here and not there.
    pub(super) fn places_not_in(&self, other: &Self) -> Vec<Place> {
        let others: Vec<&Place> = other.places().collect();
        let gone = self.places().filter(|place| !others.contains(place));
        gone.cloned().collect()
    }

    fn places(&self) -> impl Iterator<Item = &Place> {
        let remote = self.0.iter().flat_map(|load| &load.remote);
        remote.map(|remote| &remote.server.at)
    }

    /// The tool of a server that has this name.
    pub(super) fn remote(&self, tool: &str) -> Option<&Remote> {
        let mut remote = self.0.iter().flat_map(|load| &load.remote);
        remote.find(|remote| remote.definition.name == tool)
    }

    /// Who brings a tool.
    pub(super) fn owner(&self, tool: &str) -> Option<&str> {
        let mut loads = self.0.iter();
        let load = loads.find(|load| load.tools.iter().any(|name| name == tool));
        load.map(|load| load.id.as_str())
    }
}

fn key(session: &Session) -> String {
    match session.agent.as_str() {
        "" => KEY.to_owned(),
        agent => format!("{KEY}/{agent}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn load(id: &str, tools: &[&str]) -> Load {
        Load {
            id: id.into(),
            version: "1.0.0".into(),
            tools: tools.iter().map(|tool| (*tool).to_owned()).collect(),
            ..Load::default()
        }
    }

    #[test]
    fn a_tool_stays_as_long_as_one_skill_brings_it() {
        let both = Loads::default()
            .with(load("a", &["x", "y"]))
            .with(load("b", &["y", "z"]));
        assert_eq!(both.tools(), ["x", "y", "z"]);
        let left = both.without("a");
        assert_eq!(both.tools_not_in(&left), ["x"]);
        assert_eq!(left.tools(), ["y", "z"]);
        assert_eq!(left.owner("y"), Some("b"));
    }

    #[test]
    fn the_state_has_the_other_systems_view_and_keeps_the_order_of_loads() {
        let session = Session::default();
        let loads = Loads::default()
            .with(load("b", &["x"]))
            .with(load("a", &["x", "y"]));
        let delta = loads.delta(&session);
        let state = SessionState::new().with(&delta);
        let view = state.get("__sherma__").expect("a view");
        assert_eq!(view["loaded_tools_from_skills"], json!(["x", "y"]));
        assert_eq!(view["loaded_skills"]["a"]["version"], "1.0.0");
        assert_eq!(view["loaded_skills"]["a"]["tools"], json!(["x", "y"]));
        // A store that sorts keys.
        let sorted: std::collections::BTreeMap<String, Value> =
            serde_json::from_value(view["loaded_skills"].clone()).expect("a map");
        let state: SessionState =
            serde_json::from_value(json!({"__sherma__": {"loaded_skills": sorted}}))
                .expect("a map");
        assert_eq!(Loads::read(&state, &session).delta(&session), delta);
        assert!(
            loads
                .without("a")
                .without("b")
                .delta(&session)
                .iter()
                .all(|(_, value)| value.is_null())
        );
    }

    #[test]
    fn agents_of_one_session_load_apart_and_foreign_entries_are_read() {
        let named = Session {
            agent: "writer".into(),
            ..Session::default()
        };
        let state = SessionState::new().with(&Loads::default().with(load("a", &[])).delta(&named));
        assert!(Loads::read(&state, &named).get("a").is_some());
        assert!(Loads::read(&state, &Session::default()).get("a").is_none());
        let foreign = json!({"__sherma__": {
            "loaded_tools_from_skills": ["t"],
            "loaded_skills": {"old": {"version": "==1.0.0", "tools": ["t"]}, "odd": 7},
        }});
        let state: SessionState = serde_json::from_value(foreign).expect("a map");
        let loads = Loads::read(&state, &Session::default());
        assert_eq!(
            loads.get("old").map(|load| load.version.as_str()),
            Some("==1.0.0")
        );
        assert!(loads.get("odd").is_some());
    }
}
