//! Secret values that the host's hook gave to runs, which later results of their session mask. Only this process
//! remembers them.

use std::collections::{HashMap, VecDeque};
use std::fmt;

use parking_lot::Mutex;

use crate::secret_mask::SecretMask;
use crate::session::Session;

/// Minimum length of a value that is masked, in bytes: a shorter one is part of ordinary text.
const MASKED_BYTES_MIN: usize = 8;
/// Maximum number of workspaces whose values are remembered.
const WORKSPACES_MAX: usize = 65_536;
/// Maximum number of values that are remembered of one workspace.
const VALUES_MAX: usize = 1024;

/// Secret values that the host's hook gave to runs. All sessions of a workspace can read the files in it, so its values
/// are those of all of them.
#[derive(Default)]
pub(crate) struct RunSecrets(Mutex<SecretTable>);

/// Values of each workspace, by its id.
#[derive(Default)]
struct SecretTable {
    workspaces: HashMap<String, WorkspaceSecrets>,
    /// Number of runs so far, which orders them.
    runs: u64,
}

/// Values of one workspace.
#[derive(Default)]
struct WorkspaceSecrets {
    /// The least recently given first.
    values: VecDeque<String>,
    /// Number of the last run that got a value.
    run: u64,
}

impl fmt::Debug for RunSecrets {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("RunSecrets")
    }
}

impl RunSecrets {
    /// Remembers values that a run of a session gets. A value with several lines is also remembered with the line ends
    /// of a terminal or of a text file; line ends at its end do not count.
    pub(crate) fn remember(&self, session: &Session, values: impl IntoIterator<Item = String>) {
        let values = values.into_iter().flat_map(|value| {
            let lines = value.trim_end().replace("\r\n", "\n");
            let terminal_lines = lines.replace('\n', "\r\n");
            let other = (terminal_lines != lines).then_some(terminal_lines);
            std::iter::once(lines).chain(other)
        });
        let masked = values.filter(|value| value.len() >= MASKED_BYTES_MIN);
        self.0.lock().remember(session.workspace_id(), masked);
    }

    /// Forgets the values of a session's own workspace, which ends with it.
    pub(crate) fn forget(&self, session: &Session) {
        if session.workspace.is_empty() {
            self.0.lock().workspaces.remove(&session.workspace_id());
        }
    }

    /// Returns the mask of the values of a session.
    pub(crate) fn mask(&self, session: &Session) -> SecretMask {
        let table = self.0.lock();
        let secrets = table.workspaces.get(&session.workspace_id());
        let values = secrets.into_iter().flat_map(|secrets| &secrets.values);
        SecretMask::new(values.cloned())
    }
}

impl SecretTable {
    fn remember(&mut self, workspace: String, values: impl Iterator<Item = String>) {
        let mut values = values.peekable();
        if values.peek().is_none() {
            return;
        }
        if self.workspaces.len() >= WORKSPACES_MAX && !self.workspaces.contains_key(&workspace) {
            let runs = self.workspaces.iter().map(|(id, known)| (known.run, id));
            let oldest = runs.min().map(|(_, id)| id.clone());
            oldest.and_then(|id| self.workspaces.remove(&id));
        }
        self.runs += 1;
        let known = self.workspaces.entry(workspace).or_default();
        known.run = self.runs;
        for value in values {
            known.values.retain(|other| *other != value);
            known.values.push_back(value);
        }
        let surplus = known.values.len().saturating_sub(VALUES_MAX);
        known.values.drain(..surplus);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn session(id: usize) -> Session {
        Session {
            session: id.to_string(),
            ..Session::default()
        }
    }

    fn masked(secrets: &RunSecrets, session: &Session, text: &str) -> String {
        let mut text = text.to_owned();
        secrets.mask(session).mask_text(&mut text);
        text
    }

    #[test]
    fn the_least_recent_values_and_workspaces_are_forgotten() {
        let secrets = RunSecrets::default();
        // In the order of the alphabet the first are the newest.
        let value = |number: usize| format!("value-{:05}", 99_999 - number);
        for number in 0..=VALUES_MAX {
            secrets.remember(&session(0), [value(number)]);
        }
        let newest = value(VALUES_MAX);
        assert_eq!(masked(&secrets, &session(0), &newest), "***");
        assert_eq!(masked(&secrets, &session(0), &value(1)), "***");
        assert_eq!(masked(&secrets, &session(0), &value(0)), value(0));
        for id in 1..WORKSPACES_MAX {
            secrets.remember(&session(id), [value(id)]);
        }
        secrets.remember(&session(0), [value(0)]);
        secrets.remember(&session(WORKSPACES_MAX), [value(0)]);
        for (id, is_known) in [(0, true), (1, false), (2, true), (WORKSPACES_MAX, true)] {
            let text = match id {
                0 | WORKSPACES_MAX => value(0),
                _ => value(id),
            };
            let shown = masked(&secrets, &session(id), &text);
            assert_eq!(shown == "***", is_known, "{id}");
        }
    }

    #[test]
    fn values_of_several_lines_are_masked_with_any_line_ends() {
        let secrets = RunSecrets::default();
        secrets.remember(&session(0), ["-----BEGIN\nkey\n-----END\n".to_owned()]);
        secrets.remember(&session(0), ["first line\r\nsecond line".to_owned()]);
        let printed = "-----BEGIN\r\nkey\r\n-----END\r\nfirst line\nsecond line\n";
        assert_eq!(masked(&secrets, &session(0), printed), "***\r\n***\n");
    }

    #[test]
    fn values_stay_with_a_workspace_that_outlives_its_session() {
        let secrets = RunSecrets::default();
        let [one, other] = [1, 2].map(|id| Session {
            workspace: "given".to_owned(),
            ..session(id)
        });
        secrets.remember(&one, ["a secret".to_owned()]);
        secrets.forget(&one);
        assert_eq!(masked(&secrets, &other, "a secret"), "***");
        secrets.remember(&session(1), ["a secret".to_owned()]);
        secrets.forget(&session(1));
        assert_eq!(masked(&secrets, &session(1), "a secret"), "a secret");
    }
}
