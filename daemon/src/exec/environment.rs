//! The environment of a command. Pure: the documented minimum, what a skill adds, then the workspace's, a
//! script's arguments, the terminal's, and the exec's own; later ones win. docs/exec.md lists it.

use std::collections::BTreeMap;

use skilld_proto::v1 as pb;

use crate::paths;

/// Where programs are looked for, as Debian has it.
pub const PATH: &str = "/usr/local/bin:/usr/bin:/bin:/usr/local/sbin:/usr/sbin:/sbin";

/// `NAME=value`, sorted by name.
pub(super) fn environment(
    exec_id: &str,
    skill: Option<&str>,
    workspace: &BTreeMap<String, String>,
    arguments: &[(String, String)],
    spec: &pb::ExecSpec,
) -> Vec<String> {
    let run_dir = format!("{}/{exec_id}", paths::RUNS_DIR);
    let mut env: BTreeMap<&str, String> = BTreeMap::from([
        ("HOME", paths::WORK_DIR.to_owned()),
        ("INPUTS_DIR", paths::INPUTS_DIR.to_owned()),
        ("LANG", "C.UTF-8".to_owned()),
        ("OUTPUT_DIR", paths::OUTPUT_DIR.to_owned()),
        ("PATH", PATH.to_owned()),
        ("RUN_DIR", run_dir),
        // As the passwd has it. A bash that is not told looks its user up in files, each time that it starts.
        ("SHELL", "/bin/bash".to_owned()),
        ("SKILLS_DIR", paths::SKILLS_DIR.to_owned()),
        ("TMPDIR", "/tmp".to_owned()),
        ("USER", "skill".to_owned()),
        ("WORKSPACE", paths::WORKSPACE_DIR.to_owned()),
        ("WORKSPACE_DIR", paths::WORKSPACE_DIR.to_owned()),
        ("WORK_DIR", paths::WORK_DIR.to_owned()),
    ]);
    if let Some(name) = skill {
        let dir = format!("{}/{name}", paths::SKILLS_DIR);
        env.insert("VIRTUAL_ENV", format!("{dir}/.venv"));
        // Beside the scripts nothing can be written.
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
        search_paths(&mut env, &format!("{}/{name}", paths::SKILLS_DIR));
    }
    env.into_iter()
        .map(|(name, value)| format!("{name}={value}"))
        .collect()
}

/// A skill's programs and modules are found whatever PATH and PYTHONPATH were given: its virtual environment before
/// anything else, its own after everything else.
fn search_paths(env: &mut BTreeMap<&str, String>, skill_dir: &str) {
    let path = env.entry("PATH").or_default();
    let given = std::mem::take(path);
    let parts = [
        format!("{skill_dir}/.venv/bin"),
        given,
        format!("{skill_dir}/bin"),
    ];
    *path = join(&parts);
    let modules = env.entry("PYTHONPATH").or_default();
    let given = std::mem::take(modules);
    *modules = join(&[given, skill_dir.to_owned()]);
}

/// An empty part would mean the current directory.
fn join(parts: &[String]) -> String {
    let parts = parts.iter().map(String::as_str);
    let parts: Vec<&str> = parts.filter(|part| !part.is_empty()).collect();
    parts.join(":")
}
