//! What callers that may not run commands see of workspaces and execs: neither commands, nor values of environment
//! variables, nor names of files.

use skilld_proto::v1 as pb;

use crate::access::{Caller, Role};

/// Removes from a workspace what `caller` may not see.
pub(super) fn restrict_workspace(caller: &Caller, workspace: &mut pb::Workspace) {
    if caller.role() < Role::User {
        workspace.env.clear();
        workspace.inputs.clear();
    }
}

/// Removes from an exec what `caller` may not see.
pub(super) fn restrict_exec(caller: &Caller, exec: &mut pb::Exec) {
    if caller.role() >= Role::User {
        return;
    }
    exec.effective_spec = None;
    let result = exec.result.as_mut();
    if let Some(failure) = result.and_then(|result| result.spawn_failure.as_mut()) {
        failure.message.clear();
    }
    if let Some(collection) = &mut exec.collection {
        collection.summary = None;
        collection.error.clear();
    }
}
