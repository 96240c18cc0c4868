//! Session of a user with an agent, and the ids derived from it.

use data_encoding::HEXLOWER;
use sha2::{Digest, Sha256};
use skilld_client::v1::ArtifactScope;

use skilld_client::new_exec_id;

/// Names that identify a conversation: application, user, session and agent. App, user and session together own a
/// workspace and artifacts; the agent's name scopes the loaded skills, since agents of one session share the workspace
/// and not their skills.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Session {
    /// Name of the application.
    pub app: String,
    /// Name of its user.
    pub user: String,
    /// Name of the conversation.
    pub session: String,
    /// The agent; empty where there is only one.
    pub agent: String,
    /// Id of an existing workspace in which the session works, and which it neither creates nor deletes; empty for one
    /// of its own. A token for that workspace is enough then. Its files and commands outlive the session.
    pub workspace: String,
}

impl Session {
    /// Returns the id of the session's workspace. One of its own is the same for the same app, user and session, on
    /// every machine, and never that of another session, whatever characters the names have.
    #[must_use]
    pub fn workspace_id(&self) -> String {
        if !self.workspace.is_empty() {
            return self.workspace.clone();
        }
        let digest = digest(&[&self.app, &self.user, &self.session]);
        format!("session-{digest}")
    }

    /// Returns an id of the session that all its agents share, and no other session, not even one in the same
    /// workspace.
    pub(crate) fn shared_id(&self) -> String {
        digest(&[&self.workspace, &self.app, &self.user, &self.session])
    }

    /// Returns the id of the exec that a call starts: the same for the same call of the same tool, so that a call that
    /// is repeated runs nothing twice, and one that is cancelled can be killed. A new one where the call has no id.
    #[must_use]
    pub fn exec_id(&self, tool: &str, call: &str) -> String {
        if call.is_empty() {
            return new_exec_id();
        }
        // Agents of one session share its workspace, and sessions may share a given one.
        let digest = match self.workspace.is_empty() {
            true => digest(&[&self.agent, tool, call]),
            false => digest(&[&self.shared_id(), &self.agent, tool, call]),
        };
        format!("call-{digest}")
    }

    /// Returns the scope of the session's artifacts.
    #[must_use]
    pub fn scope(&self) -> ArtifactScope {
        ArtifactScope {
            app: self.app.clone(),
            user: self.user.clone(),
            session: self.session.clone(),
        }
    }
}

/// Returns the first 160 bits of a SHA-256 over the parts, in hex.
fn digest(parts: &[&str]) -> String {
    let mut hash = Sha256::new();
    for part in parts {
        // With its length before it, no part runs into the next.
        hash.update((part.len() as u64).to_be_bytes());
        hash.update(part.as_bytes());
    }
    let mut digest = HEXLOWER.encode(&hash.finalize());
    digest.truncate(40);
    digest
}

#[cfg(test)]
mod tests {
    use super::*;

    fn session(app: &str, user: &str, session: &str) -> Session {
        Session {
            app: app.into(),
            user: user.into(),
            session: session.into(),
            ..Session::default()
        }
    }

    #[test]
    fn equal_session_ids_of_two_users_are_two_workspaces() {
        let one = session("app", "ann", "1").workspace_id();
        assert_eq!(one, session("app", "ann", "1").workspace_id());
        assert_ne!(one, session("app", "bob", "1").workspace_id());
        assert_ne!(
            session("a", "bc", "d").workspace_id(),
            session("ab", "c", "d").workspace_id()
        );
        assert_eq!(one.len(), "session-".len() + 40);
    }

    #[test]
    fn a_call_has_one_exec_whoever_makes_it_again() {
        let one = session("a", "b", "c");
        let id = one.exec_id("skill_run", "call_1");
        assert_eq!(id, one.exec_id("skill_run", "call_1"));
        assert_ne!(id, one.exec_id("skill_exec", "call_1"));
        let other = Session {
            agent: "other".into(),
            ..session("a", "b", "c")
        };
        assert_ne!(id, other.exec_id("skill_run", "call_1"));
        assert_ne!(one.exec_id("skill_run", ""), one.exec_id("skill_run", ""));
    }

    #[test]
    fn sessions_in_one_given_workspace_share_no_ids() {
        let given = |name: &str| Session {
            workspace: "given".into(),
            ..session("app", "ann", name)
        };
        let (one, other) = (given("1"), given("2"));
        assert_eq!(one.workspace_id(), other.workspace_id());
        assert_eq!(
            one.exec_id("skill_run", "c"),
            given("1").exec_id("skill_run", "c")
        );
        assert_ne!(
            one.exec_id("skill_run", "c"),
            other.exec_id("skill_run", "c")
        );
        assert_ne!(one.shared_id(), other.shared_id());
        assert_ne!(one.shared_id(), session("app", "ann", "1").shared_id());
    }
}
