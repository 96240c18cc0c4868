//! Builds the environment of a command. Pure. The order is: defaults, variables of the image, base variables, variables
//! of the skill, of the workspace, of a script's arguments, of the terminal, of the exec. Later ones replace earlier
//! ones. docs/exec.md lists them. Where the spec lists programs, neither a default nor a variable of the workspace leads
//! programs to a directory that commands can write to, and of the image's variables only PATH counts.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use skilld_proto::v1 as pb;

use super::{ImageEnvironment, program_restriction};
use crate::workspace_paths::{self, SkillFolder};

/// Folder of modules that replace those of Python's standard library: PYTHONPATH comes first in the search.
const PYTHON_MODULES_DIR: &str = "/run/skilld/python";

/// Variables in which runtimes and libraries look for the number of threads to start. Without them they count the cores
/// of the host. `nproc` also reads the one of OpenMP.
const THREAD_COUNTS: [&str; 6] = [
    "GOMAXPROCS",
    "OMP_NUM_THREADS",
    "OPENBLAS_NUM_THREADS",
    "POLARS_MAX_THREADS",
    "PYTHON_CPU_COUNT",
    "RAYON_NUM_THREADS",
];

/// Settings of pip and uv in every command: there is no network, and packages come from wheels in the container.
const PACKAGE_TOOLS: [(&str, &str); 4] = [
    ("PIP_DISABLE_PIP_VERSION_CHECK", "1"),
    ("PIP_NO_INDEX", "1"),
    ("UV_OFFLINE", "1"),
    ("UV_PYTHON_DOWNLOADS", "never"),
];

/// Directories of shared data that programs search without XDG_DATA_DIRS.
const DATA_DIRS_DEFAULT: &str = "/usr/local/share:/usr/share";

/// Environment of a staged skill: packages that are mounted read-only into the container.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SkillEnvironment {
    /// Name of its folder beneath [`workspace_paths::ENVIRONMENTS_DIR`].
    pub name: String,
    /// `true` if it has a virtual environment of Python.
    pub has_python: bool,
    /// Number of the skill's folders that have Node.js packages. Records of earlier releases have none.
    #[serde(default)]
    pub node_projects: u32,
}

impl SkillEnvironment {
    /// Returns the absolute path of its folder in the container.
    pub fn path(&self) -> String {
        format!("{}/{}", workspace_paths::ENVIRONMENTS_DIR, self.name)
    }

    /// Returns the absolute path of its Node.js packages in the container, which has a folder for each of the skill's
    /// folders; `None` if it has none.
    pub fn node_packages_path(&self) -> Option<String> {
        (self.node_projects > 0).then(|| format!("{}/node", self.path()))
    }

    /// Returns the absolute paths of the folders in which Node.js finds the packages, those of the skill's root first.
    fn node_modules_paths(&self) -> Vec<String> {
        let path = self.path();
        let folders = 0..self.node_projects;
        folders
            .map(|number| format!("{path}/node/{number}/node_modules"))
            .collect()
    }
}

/// Contents of a command's container that its environment depends on.
#[derive(Debug, Clone, Copy)]
pub(super) struct ContainerSources<'a> {
    /// Variables of the image.
    pub(super) image: &'a ImageEnvironment,
    /// Share of the host's CPUs that the container gets, in thousandths of a core.
    pub(super) cpu_millis: u64,
    /// Environment of the command's skill.
    pub(super) environment: Option<&'a SkillEnvironment>,
    /// `true` if the container has the operator's wheels.
    pub(super) has_wheelhouse: bool,
    /// `true` if the container has the operator's fonts.
    pub(super) has_fonts: bool,
    /// `true` if commands can write to the folder of the command's skill.
    pub(super) is_skill_writable: bool,
}

/// Returns the environment of a command as `NAME=value`, sorted by name.
pub(super) fn build_environment(
    exec_id: &str,
    skill: Option<&SkillFolder>,
    container: ContainerSources<'_>,
    workspace: &BTreeMap<String, String>,
    arguments: &[(String, String)],
    spec: &pb::ExecSpec,
) -> Vec<String> {
    let run_dir = format!("{}/{exec_id}", workspace_paths::RUNS_DIR);
    let is_restricted = spec.programs.is_some();
    let mut env: BTreeMap<&str, String> = defaults(container.cpu_millis).collect();
    if !is_restricted {
        if skill.is_none() {
            env.insert("PYTHONPATH", PYTHON_MODULES_DIR.to_owned());
        }
        let variables = container.image.variables();
        env.extend(variables.map(|(name, value)| (name, value.to_owned())));
    }
    env.extend([
        ("CLAUDE_PROJECT_DIR", workspace_paths::WORK_DIR.to_owned()),
        ("HOME", workspace_paths::WORK_DIR.to_owned()),
        ("INPUTS_DIR", workspace_paths::INPUTS_DIR.to_owned()),
        ("LANG", "C.UTF-8".to_owned()),
        ("OUTPUT_DIR", workspace_paths::OUTPUT_DIR.to_owned()),
        ("PATH", container.image.path()),
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
    env.extend(PACKAGE_TOOLS.map(|(name, value)| (name, value.to_owned())));
    add_wheels(&mut env, container);
    if container.has_fonts {
        add_fonts(&mut env);
    }
    if let Some(folder) = skill {
        if !is_restricted {
            env.insert("VIRTUAL_ENV", format!("{}/.venv", folder.path()));
        }
        add_skill(&mut env, folder, container.environment);
    }
    for (name, value) in workspace {
        env.insert(name, value.clone());
    }
    if is_restricted {
        program_restriction::restrict_environment(&mut env, container.image.path());
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
    if let Some(folder) = skill {
        let dir = folder.path();
        add_skill_search_paths(&mut env, &dir, container, is_restricted);
    }
    env.into_iter()
        .map(|(name, value)| format!("{name}={value}"))
        .collect()
}

/// Returns variables that an image, a workspace and an exec can replace. Python would keep the output of a program that
/// prints little until its end, so a reader would see none of it before, and after a timeout nothing at all.
fn defaults(cpu_millis: u64) -> impl Iterator<Item = (&'static str, String)> {
    let threads = cpu_millis.div_ceil(1000).max(1);
    THREAD_COUNTS
        .into_iter()
        .map(move |name| (name, threads.to_string()))
        .chain([("PYTHONUNBUFFERED", "1".to_owned())])
}

/// Adds the directories in which pip and uv look for wheels. Those of a skill's environment replace those of the image:
/// uv would choose the newest of both.
fn add_wheels(env: &mut BTreeMap<&str, String>, container: ContainerSources<'_>) {
    let environment = container.environment.filter(|packages| packages.has_python);
    let wheels = match environment {
        Some(environment) => Some(format!("{}/wheels", environment.path())),
        None => container.image.wheels().map(str::to_owned),
    };
    let wheelhouse = container
        .has_wheelhouse
        .then(|| workspace_paths::WHEELHOUSE_DIR.to_owned());
    let folders: Vec<String> = wheels.into_iter().chain(wheelhouse).collect();
    if !folders.is_empty() {
        env.insert("PIP_FIND_LINKS", folders.join(" "));
        env.insert("UV_FIND_LINKS", folders.join(","));
    }
}

/// Adds the operator's fonts to the directories of shared data, after those of the image. fontconfig and Pillow look for
/// fonts in each.
fn add_fonts(env: &mut BTreeMap<&str, String>) {
    let dirs = env.entry("XDG_DATA_DIRS").or_default();
    if dirs.is_empty() {
        DATA_DIRS_DEFAULT.clone_into(dirs);
    }
    *dirs = format!("{dirs}:{}", workspace_paths::DATA_DIR);
}

/// Adds the variables of a skill, and those of its packages.
fn add_skill(
    env: &mut BTreeMap<&str, String>,
    folder: &SkillFolder,
    environment: Option<&SkillEnvironment>,
) {
    if let Some(environment) = environment {
        add_packages(env, environment);
    }
    // Most skill folders are read-only, and byte code in a writable one would count as a change of the skill.
    env.insert("PYTHONDONTWRITEBYTECODE", "1".to_owned());
    env.insert("SKILL_NAME", folder.name.clone());
    env.insert("CLAUDE_PLUGIN_ROOT", folder.plugin_path());
    for variable in ["CLAUDE_SKILL_DIR", "SKILL_DIR", "SKILL_ROOT"] {
        env.insert(variable, folder.path());
    }
}

/// Adds variables through which Python and Node.js find the packages of a skill's environment.
fn add_packages(env: &mut BTreeMap<&str, String>, environment: &SkillEnvironment) {
    let dir = environment.path();
    if environment.has_python {
        env.insert("VIRTUAL_ENV", format!("{dir}/venv"));
    }
    if environment.node_projects > 0 {
        env.insert("NODE_PATH", environment.node_modules_paths().join(":"));
    }
}

/// Adds a skill's folders to PATH and PYTHONPATH, also if the client sets these variables: the programs of a virtual
/// environment that a command made come first, then those of the skill's Python packages. Programs of Node.js packages
/// follow those of the image, so that none replaces `node` or `sh`, and the skill's own programs and modules are the
/// last. Commands can write to the first, and to the last if the skill is writable; a restricted command does not search
/// what commands can write to.
fn add_skill_search_paths(
    env: &mut BTreeMap<&str, String>,
    skill_dir: &str,
    container: ContainerSources<'_>,
    is_restricted: bool,
) {
    let virtual_env = match is_restricted {
        true => String::new(),
        false => format!("{skill_dir}/.venv/bin"),
    };
    let path = env.entry("PATH").or_default();
    let given = std::mem::take(path);
    let environment = container.environment;
    let python_programs = environment
        .filter(|environment| environment.has_python)
        .map(|environment| format!("{}/venv/bin", environment.path()));
    let node_folders = environment.map(SkillEnvironment::node_modules_paths);
    let node_programs: Vec<String> = node_folders
        .into_iter()
        .flatten()
        .map(|folder| format!("{folder}/.bin"))
        .collect();
    let (programs, own_modules) = match is_restricted && container.is_skill_writable {
        true => (String::new(), String::new()),
        false => (format!("{skill_dir}/bin"), skill_dir.to_owned()),
    };
    *path = join_search_paths(&[
        virtual_env,
        python_programs.unwrap_or_default(),
        given,
        node_programs.join(":"),
        programs,
    ]);
    let modules = env.entry("PYTHONPATH").or_default();
    let given = std::mem::take(modules);
    // Restricted commands make no virtual environments.
    let replaced = match is_restricted {
        true => String::new(),
        false => PYTHON_MODULES_DIR.to_owned(),
    };
    *modules = join_search_paths(&[given, own_modules, replaced]);
}

/// Joins search paths with colons. Skips empty ones, which would mean the current directory.
fn join_search_paths(parts: &[String]) -> String {
    let non_empty: Vec<&str> = parts
        .iter()
        .map(String::as_str)
        .filter(|part| !part.is_empty())
        .collect();
    non_empty.join(":")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn node_packages_of_all_folders_follow_the_image_programs() {
        let environment = SkillEnvironment {
            name: "e1".to_owned(),
            has_python: true,
            node_projects: 2,
        };
        let container = ContainerSources {
            image: &ImageEnvironment::new(&["PATH=/usr/bin:/bin".to_owned()]),
            cpu_millis: 1000,
            environment: Some(&environment),
            has_wheelhouse: false,
            has_fonts: false,
            is_skill_writable: false,
        };
        let folder = SkillFolder {
            name: "s".to_owned(),
            path_in_plugin: None,
        };
        let (none, spec) = (BTreeMap::new(), pb::ExecSpec::default());
        let env = build_environment("e", Some(&folder), container, &none, &[], &spec);
        for pair in [
            "NODE_PATH=/opt/skilld/environments/e1/node/0/node_modules:\
             /opt/skilld/environments/e1/node/1/node_modules",
            "PATH=/workspace/skills/s/.venv/bin:/opt/skilld/environments/e1/venv/bin:\
             /usr/local/bin:/usr/bin:/bin:/usr/local/sbin:/usr/sbin:/sbin:\
             /opt/skilld/environments/e1/node/0/node_modules/.bin:\
             /opt/skilld/environments/e1/node/1/node_modules/.bin:/workspace/skills/s/bin",
        ] {
            assert!(env.contains(&pair.to_owned()), "{pair}: {env:#?}");
        }
    }

    #[test]
    fn image_workspace_and_exec_replace_default_variables() {
        let image = [
            "OMP_NUM_THREADS=5",
            "IMAGE_WHEELS=/opt/wheels",
            "PYTHONPATH=/opt/lib",
        ];
        let workspace = BTreeMap::from([("RAYON_NUM_THREADS".to_owned(), "6".to_owned())]);
        let spec = pb::ExecSpec {
            env: [("PYTHONUNBUFFERED".to_owned(), String::new())].into(),
            ..pb::ExecSpec::default()
        };
        let container = ContainerSources {
            image: &ImageEnvironment::new(&image.map(str::to_owned)),
            cpu_millis: 100,
            environment: None,
            has_wheelhouse: true,
            has_fonts: true,
            is_skill_writable: false,
        };
        let env = build_environment("e", None, container, &workspace, &[], &spec);
        for pair in [
            "OMP_NUM_THREADS=5",
            "RAYON_NUM_THREADS=6",
            "OPENBLAS_NUM_THREADS=1",
            "PYTHONUNBUFFERED=",
            "PYTHONPATH=/opt/lib",
            "PIP_FIND_LINKS=/opt/wheels /opt/skilld/wheelhouse",
            "UV_FIND_LINKS=/opt/wheels,/opt/skilld/wheelhouse",
            "XDG_DATA_DIRS=/usr/local/share:/usr/share:/opt/skilld",
        ] {
            assert!(env.contains(&pair.to_owned()), "{pair}: {env:?}");
        }
    }
}
