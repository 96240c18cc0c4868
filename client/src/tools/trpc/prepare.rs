//! What `skill_run` and `skill_exec` do before something runs: arguments, rules of the host, skill and inputs, and the
//! specification of the command.

use std::collections::BTreeMap;
use std::time::Duration;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use skilld_proto::v1::ExecSpec;

use crate::state::{SessionState, loading};
use crate::tools::trpc::collect::Outputs;
use crate::tools::trpc::editor::Editor;
use crate::tools::trpc::result::StagedFile;
use crate::tools::trpc::stage::Input;
use crate::tools::trpc::{loads, policy, skills, stage};
use crate::tools::{Inner, Session, ToolError};

/// Arguments of `skill_run` and `skill_exec`.
#[derive(Clone, Debug, Default, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub(super) struct Run {
    /// Name of the skill to run in.
    pub(super) skill: String,
    /// Shell command, run by bash in the skill's folder.
    pub(super) command: String,
    /// Where to start: beneath the skill's folder, or `$WORK_DIR/…`, `$OUTPUT_DIR/…`, `/out/…`. The skill's folder if
    /// it is left out.
    pub(super) cwd: String,
    /// Environment variables.
    pub(super) env: BTreeMap<String, String>,
    /// What the command reads.
    pub(super) stdin: String,
    /// Text that a program gets which opens an editor.
    pub(super) editor_text: String,
    /// Globs of files to return, for instance `$OUTPUT_DIR/**`. Takes the place of `outputs`.
    pub(super) output_files: Vec<String>,
    /// The same with limits.
    pub(super) outputs: Option<Outputs>,
    /// Files to put into the workspace first.
    pub(super) inputs: Vec<Input>,
    /// Seconds; 300 if it is left out.
    pub(super) timeout: i64,
    /// Keep the files of `output_files` as artifacts.
    pub(super) save_as_artifacts: bool,
    /// Return names, sizes and references of files without their text.
    pub(super) omit_inline_content: bool,
    /// Put before the names of artifacts.
    pub(super) artifact_prefix: String,
    /// Give it a terminal.
    pub(super) tty: bool,
    /// Close its stdin after `stdin`.
    pub(super) eof: bool,
    /// Milliseconds to wait for its first output; 1000 if it is left out.
    pub(super) yield_ms: i64,
    /// Lines to return at most; as many as fit if it is left out.
    pub(super) poll_lines: i64,
}

/// Ready to run.
#[derive(Debug)]
pub(super) struct Prepared {
    pub(super) workspace: String,
    pub(super) exec: String,
    pub(super) spec: ExecSpec,
    pub(super) staged: Vec<StagedFile>,
}

/// Checks, stages and specifies. Nothing runs if the host's rules are against it.
pub(super) async fn prepare(
    tools: &Inner,
    session: &Session,
    state: &SessionState,
    tool: &'static str,
    call: &str,
    run: &Run,
) -> Result<Prepared, ToolError> {
    let (skill, command) = (run.skill.trim(), run.command.trim());
    if skill.is_empty() || command.is_empty() {
        return Err(ToolError::arguments("skill and command are required"));
    }
    skills::shown(&tools.options, skill)?;
    if tools.options.require_loaded
        && !loading::is_loaded(state, loads::scope(session, &tools.options), skill)
    {
        return Err(ToolError::NotLoaded {
            tool,
            skill: skill.to_owned(),
        });
    }
    let exec = session.exec_id(tool, call);
    let editor = Editor {
        text: &run.editor_text,
        exec: &exec,
    };
    let mut env = run.env.clone();
    if !run.editor_text.is_empty() {
        editor.environment(&run.env)?;
    }
    let mut spec = specify(tools, tool, run, skill)?;
    let (workspace, staged, files) = stage::stage(tools, session, skill, &run.inputs).await?;
    if staged.name != skill {
        // By another name of it: the one that it is staged under counts.
        spec = specify(tools, tool, run, &staged.name)?;
    }
    if !run.editor_text.is_empty() {
        env.extend(editor.environment(&run.env)?);
        editor.stage(tools, &workspace).await?;
    }
    spec.env.extend(env);
    spec.timeout = timeout(tools, run.timeout);
    Ok(Prepared {
        workspace,
        exec,
        spec,
        staged: files,
    })
}

/// What runs, where, and with the environment that belongs to it.
fn specify(
    tools: &Inner,
    tool: &'static str,
    run: &Run,
    skill: &str,
) -> Result<ExecSpec, ToolError> {
    let cwd = cwd(&run.cwd);
    if !policy::is_active(&tools.options) {
        return Ok(ExecSpec {
            shell: run.command.clone(),
            skill: skill.to_owned(),
            cwd,
            ..ExecSpec::default()
        });
    }
    let root = format!("/workspace/skills/{skill}");
    let base = cwd.is_empty().then_some(root.as_str());
    let argv = policy::argv(tool, &tools.options, &run.command, &run.env, base)?;
    // Not with spec.skill, which puts .venv/bin before PATH: commands can write there.
    let variables = [
        ("PATH", policy::path(&tools.options)),
        ("SKILL_NAME", skill.to_owned()),
        ("SKILL_DIR", root.clone()),
        ("SKILL_ROOT", root.clone()),
        ("CLAUDE_SKILL_DIR", root.clone()),
        ("PYTHONPATH", root.clone()),
        ("PYTHONDONTWRITEBYTECODE", "1".to_owned()),
    ];
    let variables = variables.map(|(name, value)| (name.to_owned(), value));
    Ok(ExecSpec {
        argv,
        cwd: beneath(&root, &cwd, skill),
        env: variables.into_iter().collect(),
        ..ExecSpec::default()
    })
}

/// A working directory as the daemon takes it: `/work` is the workspace's.
pub(super) fn cwd(given: &str) -> String {
    let cwd = given.trim().replace('\\', "/");
    let first = cwd.trim_start_matches('/').split('/').next();
    let is_area = matches!(first, Some("skills" | "work" | "out" | "runs" | ""));
    match cwd.starts_with('/') && is_area {
        true => format!("/workspace{cwd}"),
        false => cwd,
    }
}

/// The same where the daemon is not told of the skill.
fn beneath(root: &str, cwd: &str, skill: &str) -> String {
    let named = cwd
        .replace("${SKILL_NAME}", skill)
        .replace("$SKILL_NAME", skill)
        .replace("${SKILL_DIR}", root)
        .replace("$SKILL_DIR", root);
    match named.starts_with(['/', '$']) {
        true => named,
        false => format!("{root}/{named}"),
    }
}

/// The time that a call gives, else that of the host.
pub(super) fn timeout(tools: &Inner, seconds: i64) -> Option<prost_types::Duration> {
    let given = u64::try_from(seconds).ok().filter(|seconds| *seconds > 0);
    let timeout = given.map(Duration::from_secs).or(tools.options.timeout);
    timeout.and_then(|timeout| timeout.try_into().ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_working_directory_may_be_written_as_the_references_do() {
        for (given, wanted) in [
            ("", ""),
            (" scripts ", "scripts"),
            ("/out/a", "/workspace/out/a"),
            ("/", "/workspace/"),
            ("/workspace/out", "/workspace/out"),
            ("/etc", "/etc"),
            ("$WORK_DIR\\a", "$WORK_DIR/a"),
        ] {
            assert_eq!(cwd(given), wanted, "{given:?}");
        }
        let root = "/workspace/skills/demo";
        for (given, wanted) in [
            ("", "/workspace/skills/demo/"),
            ("scripts", "/workspace/skills/demo/scripts"),
            ("$SKILLS_DIR/$SKILL_NAME/x", "$SKILLS_DIR/demo/x"),
            ("${SKILL_DIR}/x", "/workspace/skills/demo/x"),
            ("/workspace/work", "/workspace/work"),
        ] {
            assert_eq!(beneath(root, given, "demo"), wanted, "{given:?}");
        }
    }
}
