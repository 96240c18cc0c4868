//! Removes from workspaces and execs what the role of their caller may not see. Only the role admin sees what the host
//! calls a workspace. A role below user sees no commands, no values of environment variables and no names of files.

use skilld_proto::v1 as pb;

use crate::access::Role;

/// Removes from a workspace what a caller with this role may not see.
pub(super) fn restrict_workspace(role: Role, workspace: &mut pb::Workspace) {
    if role < Role::Admin {
        workspace.slot.clear();
        workspace.container_id.clear();
    }
    if role < Role::User {
        workspace.env.clear();
        workspace.inputs.clear();
    }
}

/// Removes from an exec what a caller with this role may not see.
pub(super) fn restrict_exec(role: Role, exec: &mut pb::Exec) {
    if role >= Role::User {
        return;
    }
    exec.effective_spec = None;
    if let Some(result) = &mut exec.result {
        if let Some(failure) = &mut result.spawn_failure {
            failure.message.clear();
        }
        if let Some(ended) = &mut result.ended_processes {
            ended.command_lines.clear();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_observer_sees_no_names_of_files_of_an_exec() {
        let text = || "canary".to_owned();
        let exec = pb::Exec {
            effective_spec: Some(pb::ExecSpec {
                argv: vec![text()],
                ..Default::default()
            }),
            result: Some(pb::ExecResult {
                spawn_failure: Some(pb::SpawnFailure {
                    error_number: 2,
                    message: text(),
                    ..Default::default()
                }),
                ended_processes: Some(pb::EndedProcesses {
                    count: 1,
                    command_lines: vec![text()],
                }),
                ..Default::default()
            }),
            ..Default::default()
        };
        let mut seen = exec.clone();
        restrict_exec(Role::User, &mut seen);
        assert_eq!(seen, exec);
        restrict_exec(Role::Observer, &mut seen);
        assert!(!format!("{seen:?}").contains("canary"), "{seen:?}");
        let result = seen.result.expect("still there");
        assert_eq!(result.spawn_failure.expect("still there").error_number, 2);
        assert_eq!(result.ended_processes.expect("still there").count, 1);
    }
}
