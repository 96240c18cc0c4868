//! What a command gets: argv, environment, working directory, effective limits. Pure: a checked spec and a
//! workspace's view in, the guest's request out. The guest adds nothing to it.

use std::collections::BTreeMap;
use std::time::Duration;

use skilld_proto::guest::v1 as guest;
use skilld_proto::v1 as pb;

use crate::config::ExecConfig;
use crate::error::{Error, Result};
use crate::paths::{self, Scope};

pub mod arguments;
mod environment;
pub mod interpreter;
pub mod script;

use arguments::Arguments;
pub use environment::PATH;

/// Maximum length of one argument, and of a shell's text, in bytes, before and after placeholders are replaced: Linux's
/// MAX_ARG_STRLEN without the NUL.
pub const ARG_BYTES_MAX: usize = (128 << 10) - 1;
/// Maximum size of a command's arguments in bytes, after placeholders are replaced. The guest takes twice as much for
/// all of a request.
const COMMAND_BYTES_MAX: usize = 1 << 20;

/// Which rpc starts the exec; their defaults differ.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Start {
    /// Somebody reads from the start, so nothing need be lost.
    Run,
    /// Maybe nobody reads, so the program must not wait.
    Detached,
}

/// The workspace as far as commands are concerned.
#[derive(Debug, Clone, Copy)]
pub struct Surroundings<'a> {
    /// Environment of every exec.
    pub env: &'a BTreeMap<String, String>,
    /// Names of staged skills.
    pub skills: &'a BTreeMap<String, String>,
    /// What was found of `spec.script`, if there is one.
    pub script: Option<&'a script::Program>,
    /// Bounds.
    pub config: &'a ExecConfig,
}

/// Turns a checked spec into what the guest starts.
///
/// # Errors
/// `SkillNotFound` when the skill is not staged; `PathEscapes` and `Invalid` for the working directory; `Invalid` for a
/// command that is too long.
pub fn resolve(
    exec_id: String,
    digest: Vec<u8>,
    spec: pb::ExecSpec,
    start: Start,
    around: Surroundings<'_>,
) -> Result<guest::StartExecRequest> {
    let skill = staged(&spec.skill, around.skills)?.map(str::to_owned);
    let cwd = directory(&exec_id, skill.as_deref(), &spec, around.script)?;
    let mut spec = effective(spec, start, around.config);
    if let Some(skill) = &skill {
        replace_placeholders(&mut spec, skill)?;
    }
    let Arguments { argv, env } = command(skill.as_deref(), &spec, around.script)?;
    let env = environment::environment(&exec_id, skill.as_deref(), around.env, &env, &spec);
    if spec.script.is_some() {
        // What really runs.
        spec.argv.clone_from(&argv);
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

/// The skill of a spec, if it names one.
///
/// # Errors
/// `SkillNotStaged`.
pub fn staged<'a>(name: &'a str, skills: &BTreeMap<String, String>) -> Result<Option<&'a str>> {
    if name.is_empty() {
        return Ok(None);
    }
    if skills.contains_key(name) {
        return Ok(Some(name));
    }
    let nearest = skills.keys().take(3).cloned().collect();
    let name = name.to_owned();
    Err(Error::SkillNotStaged { name, nearest })
}

/// Replaces placeholders of the skill's folder in the command, as its documents write them. The path is made of
/// constants and a validated name. Arguments of a script are values of the caller and stay as they are.
///
/// # Errors
/// `Invalid` when the command is too long then.
fn replace_placeholders(spec: &mut pb::ExecSpec, skill: &str) -> Result<()> {
    let mut bytes = 0;
    for (index, argument) in spec.argv.iter_mut().enumerate() {
        *argument = paths::resolve_placeholders(argument, skill);
        check_replaced(argument.len(), ARG_BYTES_MAX, || {
            format!("spec.argv[{index}]")
        })?;
        bytes += argument.len();
        check_replaced(bytes, COMMAND_BYTES_MAX, || "spec.argv".to_owned())?;
    }
    spec.shell = paths::resolve_placeholders_for_shell(&spec.shell, skill);
    check_replaced(spec.shell.len(), ARG_BYTES_MAX, || "spec.shell".to_owned())
}

/// Refuses a field that has become longer than `most` bytes by the replacement of its placeholders.
fn check_replaced(bytes: usize, most: usize, field: impl FnOnce() -> String) -> Result<()> {
    if bytes <= most {
        return Ok(());
    }
    let problem = format!(
        "has {bytes} bytes with the skill's folder in place of its placeholders; at most {most}"
    );
    Err(Error::invalid(field(), problem))
}

/// Where it starts: what the spec says, else what a script says, else the skill's root, else work/.
fn directory(
    exec_id: &str,
    skill: Option<&str>,
    spec: &pb::ExecSpec,
    program: Option<&script::Program>,
) -> Result<String> {
    let base = skill
        .map(|name| format!("skills/{name}"))
        .unwrap_or_default();
    let scope = Scope {
        base: &base,
        exec: Some(exec_id),
        skill,
    };
    if !spec.cwd.is_empty() {
        let cwd = with_skill_name(&spec.cwd, skill);
        return Ok(paths::absolute(&paths::resolve("spec.cwd", &cwd, scope)?));
    }
    let Some(name) = skill else {
        return Ok(paths::WORK_DIR.to_owned());
    };
    let root = format!("{}/{name}", paths::SKILLS_DIR);
    let (Some(script), Some(program)) = (&spec.script, program) else {
        return Ok(root);
    };
    Ok(match script.cwd() {
        pb::ScriptCwd::Unspecified | pb::ScriptCwd::Workspace => paths::WORK_DIR.to_owned(),
        pb::ScriptCwd::SkillRoot => root,
        pb::ScriptCwd::ScriptDir => match program.path.rsplit_once('/') {
            Some((folder, _)) => format!("{root}/{folder}"),
            None => root,
        },
    })
}

/// `$SKILLS_DIR/$SKILL_NAME` is how agents were taught to name a skill's root.
fn with_skill_name(cwd: &str, skill: Option<&str>) -> String {
    let Some(name) = skill else {
        return cwd.to_owned();
    };
    let parts = cwd.split('/').enumerate().map(|(index, part)| match part {
        "$SKILL_NAME" | "${SKILL_NAME}" if index > 0 => name,
        part => part,
    });
    parts.collect::<Vec<_>>().join("/")
}

/// What runs: the arguments as they are, the shell's text, or a script with its interpreter; and what of it is in
/// the environment.
fn command(
    skill: Option<&str>,
    spec: &pb::ExecSpec,
    program: Option<&script::Program>,
) -> Result<Arguments> {
    let (Some(script), Some(program), Some(skill)) = (&spec.script, program, skill) else {
        let argv = match spec.shell.as_str() {
            "" => spec.argv.clone(),
            text => vec!["bash".to_owned(), "-c".to_owned(), text.to_owned()],
        };
        let env = Vec::new();
        return Ok(Arguments { argv, env });
    };
    let Arguments { argv, env } = arguments::arguments(script)?;
    let path = format!("{}/{skill}/{}", paths::SKILLS_DIR, program.path);
    let interpreter = program.interpreter.iter().map(|word| (*word).to_owned());
    Ok(Arguments {
        argv: interpreter.chain([path]).chain(argv).collect(),
        env,
    })
}

/// Fills in defaults and cuts down to maxima; the client sees the result in Started.
fn effective(mut spec: pb::ExecSpec, start: Start, config: &ExecConfig) -> pb::ExecSpec {
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
    let asked = spec.retain.unwrap_or_default();
    let default = i64::try_from(config.retain_bytes_default).unwrap_or(i64::MAX);
    let or_default = |bytes: i64| if bytes == 0 { default } else { bytes };
    spec.retain = Some(pb::Retain {
        stdout_bytes: or_default(asked.stdout_bytes),
        stderr_bytes: or_default(asked.stderr_bytes),
        after_exit: wire(given(asked.after_exit).unwrap_or(config.retain_after_exit_default)),
    });
    if let Some(terminal) = &mut spec.terminal {
        terminal.rows = or(terminal.rows, 24);
        terminal.cols = or(terminal.cols, 80);
        if terminal.term.is_empty() {
            terminal.term = "xterm-256color".to_owned();
        }
    }
    if spec.on_full() == pb::OnFull::Unspecified {
        let default = match start {
            Start::Run => pb::OnFull::Block,
            Start::Detached => pb::OnFull::DropOldest,
        };
        spec.set_on_full(default);
    }
    if spec.on_disconnect() == pb::OnDisconnect::Unspecified {
        spec.set_on_disconnect(pb::OnDisconnect::Keep);
    }
    if spec.stragglers() == pb::Stragglers::Unspecified {
        spec.set_stragglers(pb::Stragglers::Kill);
    }
    spec
}

#[cfg(test)]
mod tests;
