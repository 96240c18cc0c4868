//! Values that the host's hook gave to runs, which no later result of their session shows.

use std::collections::{BTreeSet, HashMap};
use std::fmt;

use parking_lot::Mutex;
use serde_json::Value;

use crate::session::Session;

/// Minimum length of a value that is masked, in bytes: a shorter one is part of ordinary text.
const MASKED_BYTES_MIN: usize = 8;
/// Text in place of a value.
const MASK: &str = "***";
/// Maximum number of sessions whose values are remembered.
const SESSIONS_MAX: usize = 65_536;
/// Maximum number of values that are remembered of one session.
const VALUES_MAX: usize = 1024;

/// Values that the host's hook gave to the runs of each session, by the id of the session's workspace.
#[derive(Default)]
pub(crate) struct RunSecrets(Mutex<HashMap<String, BTreeSet<String>>>);

impl fmt::Debug for RunSecrets {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("RunSecrets")
    }
}

impl RunSecrets {
    /// Remembers values that a run of a session gets.
    pub(crate) fn remember(&self, session: &Session, values: impl Iterator<Item = String>) {
        let mut sessions = self.0.lock();
        let id = session.workspace_id();
        if sessions.len() >= SESSIONS_MAX && !sessions.contains_key(&id) {
            sessions.clear();
        }
        let known = sessions.entry(id).or_default();
        known.extend(values.filter(|value| value.len() >= MASKED_BYTES_MIN));
        while known.len() > VALUES_MAX {
            known.pop_first();
        }
    }

    /// Forgets the values of a session that ends.
    pub(crate) fn forget(&self, session: &Session) {
        self.0.lock().remove(&session.workspace_id());
    }

    /// Masks the values of a session in an answer's texts.
    pub(crate) fn mask<'a>(&self, session: &Session, texts: impl Iterator<Item = &'a mut Value>) {
        let sessions = self.0.lock();
        let Some(values) = sessions.get(&session.workspace_id()) else {
            return;
        };
        // A value may be a part of another one.
        let mut values: Vec<&str> = values.iter().map(String::as_str).collect();
        values.sort_by_key(|value| std::cmp::Reverse(value.len()));
        texts.for_each(|text| mask_value(text, &values));
    }
}

/// Masks values in the texts of a JSON value. The recursion is as deep as the value.
fn mask_value(json: &mut Value, values: &[&str]) {
    match json {
        Value::String(text) => {
            for value in values.iter().filter(|value| !value.is_empty()) {
                if text.contains(value) {
                    *text = text.replace(value, MASK);
                }
            }
        }
        Value::Array(items) => items.iter_mut().for_each(|item| mask_value(item, values)),
        Value::Object(fields) => fields
            .values_mut()
            .for_each(|field| mask_value(field, values)),
        Value::Null | Value::Bool(_) | Value::Number(_) => {}
    }
}
