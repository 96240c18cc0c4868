//! Which skills a session has loaded: a list with a bound, the latest last, as in the system that the tool comes from.
//! One that is loaded again moves to the end; what falls out is reported. Pure.

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use crate::state::{Delta, SessionState};
use crate::tools::Session;

/// The key of a session of one agent; that of a named agent has the name behind a slash.
const KEY: &str = "__agent_zero__";
/// Where the options say nothing: that system's bound.
const LOADED_MAX: usize = 5;

/// One loaded skill.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub(super) struct Load {
    pub(super) name: String,
    pub(super) version: String,
    pub(super) digest: String,
}

/// The change that a load makes, and the names of what falls out. A bound of 0 is the usual one.
pub(super) fn load(
    state: &SessionState,
    session: &Session,
    load: Load,
    max: usize,
) -> (Delta, Vec<String>) {
    let max = if max == 0 { LOADED_MAX } else { max };
    let mut loads = read(state, session);
    loads.retain(|other| other.name != load.name);
    loads.push(load);
    let over = loads.len().saturating_sub(max);
    let evicted = loads.drain(..over).map(|load| load.name).collect();
    let mut delta = Delta::new();
    delta.set(key(session), json!({ "loaded_skills": loads }));
    (delta, evicted)
}

fn read(state: &SessionState, session: &Session) -> Vec<Load> {
    let value = state.get(&key(session));
    let loads = value
        .and_then(|value| value.get("loaded_skills"))
        .and_then(Value::as_array);
    let loads = loads.into_iter().flatten().map(|load| match load.as_str() {
        Some(name) => Load {
            name: name.to_owned(),
            ..Load::default()
        },
        None => serde_json::from_value(load.clone()).unwrap_or_default(),
    });
    loads.filter(|load| !load.name.is_empty()).collect()
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

    #[test]
    fn the_latest_is_last_and_what_falls_out_is_said() {
        let session = Session::default();
        let mut state = SessionState::new();
        let mut evicted = Vec::new();
        for name in ["a", "b", "c", "a", "d"] {
            let named = Load {
                name: name.into(),
                ..Load::default()
            };
            let (delta, out) = load(&state, &session, named, 3);
            state.apply(&delta);
            evicted.extend(out);
        }
        let names: Vec<String> = read(&state, &session)
            .into_iter()
            .map(|load| load.name)
            .collect();
        assert_eq!(names, ["c", "a", "d"]);
        assert_eq!(evicted, ["b"]);
    }
}
