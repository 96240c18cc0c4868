//! Restriction of an exec whose spec lists programs. It refuses programs that would lead around a list of denied ones,
//! and makes an environment in which no command can leave what another one runs or loads. Pure. The guest compares the
//! files.

use std::collections::BTreeMap;

use skilld_proto::v1 as pb;

use crate::access::RunPolicy;
use crate::error::{Error, Result};

/// Home directory that does not exist and that no command can create. Programs load files from their home, and
/// commands can write to the default one.
const HOME: &str = "/nonexistent";

/// Programs that run another program which their arguments name. Each leads around a list of denied programs.
const LAUNCHERS: [&str; 60] = [
    "ash",
    "awk",
    "bash",
    "busybox",
    "chroot",
    "choom",
    "chrt",
    "coreutils",
    "dash",
    "doas",
    "env",
    "find",
    "flock",
    "gawk",
    "gdb",
    "i386",
    "ionice",
    "ksh",
    "ld.so",
    "ldd",
    "linux32",
    "linux64",
    "make",
    "mawk",
    "nawk",
    "nice",
    "nohup",
    "nsenter",
    "original-awk",
    "parallel",
    "perl",
    "pkexec",
    "prlimit",
    "rbash",
    "run-parts",
    "runcon",
    "runuser",
    "script",
    "setarch",
    "setpriv",
    "setsid",
    "setuidgid",
    "sg",
    "sh",
    "start-stop-daemon",
    "stdbuf",
    "strace",
    "su",
    "sudo",
    "taskset",
    "tcsh",
    "time",
    "timeout",
    "toybox",
    "uclampset",
    "unshare",
    "watch",
    "x86_64",
    "xargs",
    "zsh",
];

/// Dynamic loaders, which have no name in PATH and run the program that is their argument.
const LOADERS: [&str; 4] = [
    "/lib64/ld-linux-x86-64.so.2",
    "/lib/ld-linux-aarch64.so.1",
    "/lib/ld-musl-x86_64.so.1",
    "/lib/ld-musl-aarch64.so.1",
];

/// Narrows the programs of a spec to those of the policy of its tenant.
///
/// # Errors
/// `Invalid` if the lists of allowed programs have none in common.
pub fn narrow_programs(spec: &mut pb::ExecSpec, policy: &RunPolicy) -> Result<()> {
    let mut own = pb::ExecPrograms {
        allowed: policy.allowed_programs().to_vec(),
        denied: policy.denied_programs().to_vec(),
    };
    if own.allowed.is_empty() && own.denied.is_empty() {
        return Ok(());
    }
    // Whatever the request allows, nothing may start what the tenant denies.
    deny_launchers(&mut own);
    let programs = spec.programs.get_or_insert_default();
    own.denied.retain(|entry| !programs.denied.contains(entry));
    programs.denied.append(&mut own.denied);
    if programs.allowed.is_empty() || own.allowed.is_empty() {
        programs.allowed.append(&mut own.allowed);
        return Ok(());
    }
    programs.allowed.retain(|entry| own.allowed.contains(entry));
    if programs.allowed.is_empty() {
        let problem = format!(
            "has no program that the tenant may start, written as its list has it: {}",
            own.allowed.join(", ")
        );
        return Err(Error::invalid("spec.programs.allowed", problem));
    }
    Ok(())
}

/// Denies launchers and loaders where programs are denied and none are listed as allowed.
pub(super) fn deny_launchers(programs: &mut pb::ExecPrograms) {
    if programs.denied.is_empty() || !programs.allowed.is_empty() {
        return;
    }
    for name in LAUNCHERS.iter().chain(&LOADERS) {
        if programs.denied.iter().all(|denied| denied != name) {
            programs.denied.push((*name).to_owned());
        }
    }
}

/// Replaces variables that lead programs to directories which commands can write to, those of the workspace included.
/// `path` is the PATH of the image.
pub(super) fn restrict_environment(env: &mut BTreeMap<&str, String>, path: String) {
    env.remove("PYTHONPATH");
    env.insert("PATH", path);
    for (name, value) in [
        ("HOME", HOME),
        ("PYTHONDONTWRITEBYTECODE", "1"),
        ("PYTHONNOUSERSITE", "1"),
    ] {
        env.insert(name, value.to_owned());
    }
}

#[cfg(test)]
mod tests {
    use super::super::environment::{ContainerSources, build_environment};
    use super::super::image_environment::{DEFAULT_PATH, ImageEnvironment};
    use super::*;
    use crate::workspace_paths::SkillFolder;

    fn programs(allowed: &[&str], denied: &[&str]) -> pb::ExecPrograms {
        let list = |entries: &[&str]| entries.iter().map(|entry| (*entry).to_owned()).collect();
        pb::ExecPrograms {
            allowed: list(allowed),
            denied: list(denied),
        }
    }

    #[test]
    fn a_list_of_denied_programs_also_denies_those_that_run_others() {
        let mut denied = programs(&[], &["curl", "awk"]);
        deny_launchers(&mut denied);
        assert_eq!(denied.denied[0], "curl");
        for launcher in [
            "bash",
            "rbash",
            "gawk",
            "env",
            "busybox",
            "/lib64/ld-linux-x86-64.so.2",
        ] {
            assert!(denied.denied.iter().any(|entry| entry == launcher));
        }
        let twice = denied.denied.iter().filter(|entry| *entry == "awk");
        assert_eq!(twice.count(), 1);
        for unchanged in [
            programs(&["bash"], &["curl"]),
            programs(&["ls"], &[]),
            programs(&[], &[]),
        ] {
            let mut restricted = unchanged.clone();
            deny_launchers(&mut restricted);
            assert_eq!(restricted, unchanged);
        }
    }

    #[test]
    fn nothing_in_the_environment_leads_to_where_commands_write() {
        let environment = |skill, env: &[(&str, &str)]| -> BTreeMap<String, String> {
            let spec = pb::ExecSpec {
                programs: Some(programs(&["ls"], &[])),
                env: env
                    .iter()
                    .map(|(name, value)| ((*name).to_owned(), (*value).to_owned()))
                    .collect(),
                ..pb::ExecSpec::default()
            };
            let of_workspace = [
                ("HOME", "/workspace/work"),
                ("PATH", "/workspace/work/bin"),
                ("PYTHONPATH", "/workspace/work"),
            ]
            .map(|(name, value)| (name.to_owned(), value.to_owned()));
            let image = ["PATH=/opt/tools/bin:/tmp", "BASH_ENV=/workspace/work/x"];
            let container = ContainerSources {
                image: &ImageEnvironment::new(&image.map(str::to_owned)),
                cpu_millis: 1000,
                environment: None,
                has_wheelhouse: false,
                has_fonts: false,
                is_skill_writable: false,
            };
            let pairs = build_environment("e", skill, container, &of_workspace.into(), &[], &spec);
            pairs
                .iter()
                .filter_map(|pair| pair.split_once('='))
                .map(|(name, value)| (name.to_owned(), value.to_owned()))
                .collect()
        };
        let path = format!("/opt/tools/bin:{DEFAULT_PATH}");
        let demo = SkillFolder {
            name: "demo".to_owned(),
            path_in_plugin: None,
        };
        let of_skill = environment(Some(&demo), &[]);
        for (name, value) in [
            ("HOME", "/nonexistent"),
            ("PATH", &format!("{path}:/workspace/skills/demo/bin")),
            ("PYTHONNOUSERSITE", "1"),
            ("PYTHONDONTWRITEBYTECODE", "1"),
            ("PYTHONPATH", "/workspace/skills/demo"),
            ("SKILL_DIR", "/workspace/skills/demo"),
            ("SKILL_NAME", "demo"),
        ] {
            assert_eq!(of_skill[name], value, "{name}");
        }
        assert!(!of_skill.contains_key("VIRTUAL_ENV"));
        assert!(!of_skill.contains_key("BASH_ENV"));
        let of_none = environment(None, &[]);
        assert_eq!(
            (&*of_none["HOME"], &*of_none["PATH"]),
            ("/nonexistent", path.as_str())
        );
        // The client decides what replaces a default.
        let given = environment(Some(&demo), &[("PATH", "/opt/bin"), ("HOME", "/opt/home")]);
        assert_eq!(
            (&*given["PATH"], &*given["HOME"]),
            ("/opt/bin:/workspace/skills/demo/bin", "/opt/home")
        );
    }
}
