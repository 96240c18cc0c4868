//! Builds the environment of a command. Pure. The order is: base variables, variables of the skill, of the workspace,
//! of a script's arguments, of the terminal, of the exec. Later ones replace earlier ones. docs/exec.md lists them.
//! Where the spec lists programs, neither a default nor a variable of the workspace leads programs to a directory that
//! commands can write to.

use std::collections::BTreeMap;

use skilld_proto::v1 as pb;

use super::program_restriction;
use crate::workspace_paths;

/// Default PATH of commands: Debian's search path for programs.
pub const DEFAULT_PATH: &str = "/usr/local/bin:/usr/bin:/bin:/usr/local/sbin:/usr/sbin:/sbin";

/// Returns the environment of a command as `NAME=value`, sorted by name.
pub(super) fn build_environment(
    exec_id: &str,
    skill: Option<&str>,
    workspace: &BTreeMap<String, String>,
    arguments: &[(String, String)],
    spec: &pb::ExecSpec,
) -> Vec<String> {
    let run_dir = format!("{}/{exec_id}", workspace_paths::RUNS_DIR);
    let mut env: BTreeMap<&str, String> = BTreeMap::from([
        ("HOME", workspace_paths::WORK_DIR.to_owned()),
        ("INPUTS_DIR", workspace_paths::INPUTS_DIR.to_owned()),
        ("LANG", "C.UTF-8".to_owned()),
        ("OUTPUT_DIR", workspace_paths::OUTPUT_DIR.to_owned()),
        ("PATH", DEFAULT_PATH.to_owned()),
        ("RUN_DIR", run_dir),
        // Without SHELL, every start of bash looks up its user in files. The value is that of passwd.
        ("SHELL", "/bin/bash".to_owned()),
        ("SKILLS_DIR", workspace_paths::SKILLS_DIR.to_owned()),
        ("TMPDIR", "/tmp".to_owned()),
        ("USER", "skill".to_owned()),
        ("WORKSPACE", workspace_paths::WORKSPACE_DIR.to_owned()),
        ("WORKSPACE_DIR", workspace_paths::WORKSPACE_DIR.to_owned()),
        ("WORK_DIR", workspace_paths::WORK_DIR.to_owned()),
    ]);
    let is_restricted = spec.programs.is_some();
    if let Some(name) = skill {
        let dir = format!("{}/{name}", workspace_paths::SKILLS_DIR);
        if !is_restricted {
            env.insert("VIRTUAL_ENV", format!("{dir}/.venv"));
        }
        // The skill's folder is read-only, so Python could not write byte code there.
        env.insert("PYTHONDONTWRITEBYTECODE", "1".to_owned());
        env.insert("SKILL_NAME", name.to_owned());
        for variable in [
            "CLAUDE_PLUGIN_ROOT",
            "CLAUDE_SKILL_DIR",
            "SKILL_DIR",
            "SKILL_ROOT",
        ] {
            env.insert(variable, dir.clone());
        }
    }
    for (name, value) in workspace {
        env.insert(name, value.clone());
    }
    if is_restricted {
        program_restriction::restrict_environment(&mut env);
    }
    for (name, value) in arguments {
        env.insert(name, value.clone());
    }
    if let Some(terminal) = &spec.terminal {
        env.insert("TERM", terminal.term.clone());
    }
    for (name, value) in &spec.env {
        env.insert(name, value.clone());
    }
    if let Some(name) = skill {
        let dir = format!("{}/{name}", workspace_paths::SKILLS_DIR);
        add_skill_search_paths(&mut env, &dir, is_restricted);
    }
    env.into_iter()
        .map(|(name, value)| format!("{name}={value}"))
        .collect()
}

/// Adds a skill's folders to PATH and PYTHONPATH, also if the client sets these variables: the programs of its virtual
/// environment come first, its own programs and modules last. Commands can write to the virtual environment, so a
/// restricted command does not search it.
fn add_skill_search_paths(env: &mut BTreeMap<&str, String>, skill_dir: &str, is_restricted: bool) {
    let virtual_env = match is_restricted {
        true => String::new(),
        false => format!("{skill_dir}/.venv/bin"),
    };
    let path = env.entry("PATH").or_default();
    let given = std::mem::take(path);
    *path = join_search_paths(&[virtual_env, given, format!("{skill_dir}/bin")]);
    let modules = env.entry("PYTHONPATH").or_default();
    let given = std::mem::take(modules);
    *modules = join_search_paths(&[given, skill_dir.to_owned()]);
}

/// Joins search paths with colons. Skips empty ones, which would mean the current directory.
fn join_search_paths(parts: &[String]) -> String {
    let parts = parts.iter().map(String::as_str);
    let parts: Vec<&str> = parts.filter(|part| !part.is_empty()).collect();
    parts.join(":")
}
