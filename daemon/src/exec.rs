//! Resolves a validated exec spec into the request for the guest. The request has argv, environment, working directory
//! and effective limits, and the guest adds nothing to it. Pure.

use std::collections::BTreeMap;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use skilld_common::names::strip_skill_prefix;
use skilld_proto::guest::v1 as guest;
use skilld_proto::v1 as pb;

use crate::config::ExecConfig;
use crate::error::{Error, Result};
use crate::name_similarity::{nearest_names, similarity};
use crate::workspace_paths::{self, PathContext, SkillFolder};

mod environment;
mod image_environment;
mod program_restriction;
pub mod script;
pub mod script_arguments;

pub use environment::SkillEnvironment;
pub use image_environment::ImageEnvironment;
pub use program_restriction::narrow_programs;
use script_arguments::CommandArguments;

/// Maximum length of one argument or of a shell command text in bytes, before and after placeholders are replaced.
/// It is Linux's MAX_ARG_STRLEN without the NUL.
pub const ARG_BYTES_MAX: usize = (128 << 10) - 1;
/// Maximum size of all arguments of a command in bytes, after placeholders are replaced. The guest accepts requests of
/// twice this size.
const COMMAND_BYTES_MAX: usize = 1 << 20;

/// Time that an ended exec and its output are kept if the request sets none.
pub const RETAIN_AFTER_EXIT_DEFAULT: Duration = Duration::from_secs(30 * 60);

/// Rpc that starts an exec. It decides some defaults.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StartMode {
    /// RunExec: the client reads from the start, so by default the command waits for it and no output is lost.
    Run,
    /// StartExec: the client may never read, so by default the command does not wait and old output is dropped.
    Detached,
}

/// Workspace context for resolving an exec.
#[derive(Debug, Clone, Copy)]
pub struct ExecContext<'a> {
    /// Variables of the container's image.
    pub image_env: &'a ImageEnvironment,
    /// Share of the host's CPUs that the container can use, in thousandths of a core: at most all of them.
    pub cpu_millis: u64,
    /// Environment variables of every exec in the workspace.
    pub env: &'a BTreeMap<String, String>,
    /// Staged skills by their names.
    pub skills: &'a BTreeMap<String, StagedSkillRecord>,
    /// `true` if the container has the operator's wheels.
    pub has_wheelhouse: bool,
    /// `true` if the container has the operator's fonts.
    pub has_fonts: bool,
    /// Script that `spec.script` names, or `None` if the spec has no script.
    pub script: Option<&'a script::ScriptProgram>,
    /// Configured defaults and limits of execs.
    pub config: &'a ExecConfig,
}

/// Staged skill, as the record of its workspace has it.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct StagedSkillRecord {
    /// Digest, `sha256:` and 64 hex digits.
    pub digest: String,
    /// Environment of the skill; `None` if it needs none, or if that is missing.
    pub environment: Option<SkillEnvironment>,
    /// Path of its folder relative to its plugin's, if it is staged with the files that it shares there.
    pub path_in_plugin: Option<String>,
    /// Path of its writable copy, relative to the workspace; `None` if it is read-only.
    pub writable_path: Option<String>,
}

/// Builds the guest's request for a validated spec.
///
/// # Errors
///
/// `SkillNotStaged` if the workspace does not have the skill; `PathEscapes` or `Invalid` for the working directory;
/// `Invalid` if the command is too long.
pub fn resolve_exec(
    exec_id: String,
    digest: Vec<u8>,
    spec: pb::ExecSpec,
    start: StartMode,
    context: ExecContext<'_>,
) -> Result<guest::StartExecRequest> {
    let folder_name = strip_skill_prefix(&spec.skill);
    let skill = require_staged_skill(folder_name, context.skills)?;
    let folder = skill.map(|skill| SkillFolder {
        name: folder_name.to_owned(),
        path_in_plugin: skill.path_in_plugin.clone(),
    });
    let cwd = working_directory(&exec_id, folder.as_ref(), &spec, context.script)?;
    let mut spec = effective_spec(spec, start, context.config);
    if let Some(folder) = &folder {
        replace_placeholders(&mut spec, folder)?;
    }
    let CommandArguments { argv, env } = build_command(folder.as_ref(), &spec, context.script)?;
    let container = environment::ContainerSources {
        image: context.image_env,
        cpu_millis: context.cpu_millis,
        environment: skill.and_then(|skill| skill.environment.as_ref()),
        has_wheelhouse: context.has_wheelhouse,
        has_fonts: context.has_fonts,
        is_skill_writable: skill.is_some_and(|skill| skill.writable_path.is_some()),
    };
    let env = environment::build_environment(
        &exec_id,
        folder.as_ref(),
        container,
        context.env,
        &env,
        &spec,
    );
    if spec.script.is_some() {
        // Clients read in `effective_spec` what runs: the interpreter and the script's path, too.
        spec.argv.clone_from(&argv);
    }
    // The guest answers with this spec, and the environment is beside it.
    for name in &spec.secret_env {
        if let Some(value) = spec.env.get_mut(name) {
            "***".clone_into(value);
        }
    }
    Ok(guest::StartExecRequest {
        exec_id,
        request_digest: digest.into(),
        argv,
        cwd,
        env,
        spec: Some(spec),
        format: pb::OutputFormat::Bytes.into(),
    })
}

/// Returns the record of a staged skill, or `None` if `name` is empty.
///
/// # Errors
///
/// `SkillNotStaged` if the skill is not among `skills`; it lists up to three that are, best match first.
pub fn require_staged_skill<'a>(
    name: &str,
    skills: &'a BTreeMap<String, StagedSkillRecord>,
) -> Result<Option<&'a StagedSkillRecord>> {
    if name.is_empty() {
        return Ok(None);
    }
    if let Some(skill) = skills.get(name) {
        return Ok(Some(skill));
    }
    let similarity_to_name = |staged: &str| match name.strip_suffix(staged) {
        // A skill within a skill, `parent/child`, is staged as `child`.
        Some(parent) if parent.ends_with('-') => 1.0,
        _ => similarity(name, staged),
    };
    let scored = skills
        .keys()
        .map(|staged| (similarity_to_name(staged), staged.clone()));
    Err(Error::SkillNotStaged {
        name: name.to_owned(),
        nearest: nearest_names(scored),
    })
}

/// Replaces the placeholders for a skill's folder that skill documents use in commands. The resulting path consists of
/// constants and a validated name. Arguments of a script are values of the caller and stay unchanged.
///
/// # Errors
///
/// `Invalid` if the command is too long after the replacement.
fn replace_placeholders(spec: &mut pb::ExecSpec, folder: &SkillFolder) -> Result<()> {
    let mut bytes = 0;
    for (index, argument) in spec.argv.iter_mut().enumerate() {
        *argument = workspace_paths::resolve_placeholders(argument, folder);
        check_replaced_length(argument.len(), ARG_BYTES_MAX, || {
            format!("spec.argv[{index}]")
        })?;
        bytes += argument.len();
        check_replaced_length(bytes, COMMAND_BYTES_MAX, || "spec.argv".to_owned())?;
    }
    spec.shell = workspace_paths::resolve_placeholders_for_shell(&spec.shell, folder);
    check_replaced_length(spec.shell.len(), ARG_BYTES_MAX, || "spec.shell".to_owned())
}

/// Rejects a field that is longer than `bytes_max` after its placeholders were replaced.
fn check_replaced_length(
    bytes: usize,
    bytes_max: usize,
    field: impl FnOnce() -> String,
) -> Result<()> {
    if bytes <= bytes_max {
        return Ok(());
    }
    let problem =
        format!("has {bytes} bytes after its placeholders were replaced; at most {bytes_max}");
    Err(Error::invalid(field(), problem))
}

/// Returns the working directory: that of the spec, else that of the script, else the skill's root, else the
/// workspace.
fn working_directory(
    exec_id: &str,
    folder: Option<&SkillFolder>,
    spec: &pb::ExecSpec,
    program: Option<&script::ScriptProgram>,
) -> Result<String> {
    let base = folder.map(|folder| format!("skills/{}", folder.relative_path()));
    let scope = PathContext {
        base: base.as_deref().unwrap_or_default(),
        exec: Some(exec_id),
        skill: folder.map(|folder| folder.name.as_str()),
    };
    if !spec.cwd.is_empty() {
        let cwd = replace_skill_variables(&spec.cwd, folder);
        return Ok(workspace_paths::absolute_path(
            &workspace_paths::resolve_path("spec.cwd", &cwd, scope)?,
        ));
    }
    let Some(root) = folder.map(SkillFolder::path) else {
        return Ok(workspace_paths::WORKSPACE_DIR.to_owned());
    };
    let (Some(script), Some(program)) = (&spec.script, program) else {
        return Ok(root);
    };
    Ok(match script.cwd() {
        pb::ScriptCwd::Unspecified | pb::ScriptCwd::Workspace => {
            workspace_paths::WORK_DIR.to_owned()
        }
        pb::ScriptCwd::SkillRoot => root,
        pb::ScriptCwd::ScriptDir => match program.path.rsplit_once('/') {
            Some((folder, _)) => format!("{root}/{folder}"),
            None => root,
        },
    })
}

/// Replaces `$SKILL_DIR`, to which relative paths refer anyway, and `$SKILL_NAME` after the first component. Agents write
/// `$SKILLS_DIR/$SKILL_NAME` for a skill's root.
fn replace_skill_variables(cwd: &str, folder: Option<&SkillFolder>) -> String {
    let Some(folder) = folder else {
        return cwd.to_owned();
    };
    let parts = cwd.split('/').enumerate().map(|(index, part)| match part {
        "$SKILL_DIR" | "${SKILL_DIR}" if index == 0 => ".",
        "$SKILL_NAME" | "${SKILL_NAME}" if index > 0 => folder.name.as_str(),
        part => part,
    });
    parts.collect::<Vec<_>>().join("/")
}

/// Builds the command: the spec's argv, a shell with the spec's text, or a script with its interpreter. Includes the
/// script's variables.
fn build_command(
    folder: Option<&SkillFolder>,
    spec: &pb::ExecSpec,
    program: Option<&script::ScriptProgram>,
) -> Result<CommandArguments> {
    let (Some(script), Some(program), Some(folder)) = (&spec.script, program, folder) else {
        let argv = match spec.shell.as_str() {
            "" => spec.argv.clone(),
            text => vec!["bash".to_owned(), "-c".to_owned(), text.to_owned()],
        };
        let env = Vec::new();
        return Ok(CommandArguments { argv, env });
    };
    let CommandArguments { argv, env } = script_arguments::build_script_arguments(script)?;
    let path = format!("{}/{}", folder.path(), program.path);
    let interpreter = program.interpreter.iter().map(|word| (*word).to_owned());
    Ok(CommandArguments {
        argv: interpreter.chain([path]).chain(argv).collect(),
        env,
    })
}

/// Applies defaults, maximums and the rules of restricted execs to a spec. The client sees the result in `Started`.
fn effective_spec(mut spec: pb::ExecSpec, start: StartMode, config: &ExecConfig) -> pb::ExecSpec {
    let given = |duration: Option<prost_types::Duration>| {
        duration.and_then(|given| Duration::try_from(given).ok())
    };
    let wire = |duration: Duration| prost_types::Duration::try_from(duration).ok();
    let timeout = given(spec.timeout)
        .unwrap_or(config.timeout_default)
        .min(config.timeout_max);
    spec.timeout = wire(timeout);
    spec.no_output_timeout =
        given(spec.no_output_timeout).and_then(|silence| wire(silence.min(config.timeout_max)));
    let or = |given: u32, default| if given == 0 { default } else { given };
    let asked = spec.retention.unwrap_or_default();
    let default = i64::try_from(config.retain_bytes_default()).unwrap_or(i64::MAX);
    let or_default = |bytes: i64| if bytes == 0 { default } else { bytes };
    spec.retention = Some(pb::ExecRetention {
        stdout_bytes: or_default(asked.stdout_bytes),
        stderr_bytes: or_default(asked.stderr_bytes),
        after_exit: wire(given(asked.after_exit).unwrap_or(RETAIN_AFTER_EXIT_DEFAULT)),
    });
    if let Some(terminal) = &mut spec.terminal {
        terminal.rows = or(terminal.rows, 24);
        terminal.cols = or(terminal.cols, 80);
        if terminal.term.is_empty() {
            terminal.term = "xterm-256color".to_owned();
        }
    }
    if let Some(programs) = &mut spec.programs {
        program_restriction::deny_launchers(programs);
    }
    if spec.on_full() == pb::OutputFullPolicy::Unspecified {
        let default = match start {
            StartMode::Run => pb::OutputFullPolicy::Block,
            StartMode::Detached => pb::OutputFullPolicy::DropOldest,
        };
        spec.set_on_full(default);
    }
    if spec.on_disconnect() == pb::DisconnectPolicy::Unspecified {
        spec.set_on_disconnect(pb::DisconnectPolicy::Keep);
    }
    if spec.stragglers() == pb::StragglerPolicy::Unspecified {
        spec.set_stragglers(pb::StragglerPolicy::Kill);
    }
    spec
}

#[cfg(test)]
mod tests;
