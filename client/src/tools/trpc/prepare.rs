//! Preparation of `skill_run` and `skill_exec`: arguments, rules of the host, skill and inputs, and the
//! specification of the command.

use std::collections::BTreeMap;
use std::time::Duration;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use skilld_proto::v1::ExecSpec;

use crate::state::SessionState;
use crate::tools::environment::add_host_variables;
use crate::tools::trpc::collect::Outputs;
use crate::tools::trpc::editor::Editor;
use crate::tools::trpc::result::StagedFile;
use crate::tools::trpc::stage::Input;
use crate::tools::trpc::{loads, policy, stage};
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
    /// Text for the standard input of the command.
    pub(super) stdin: String,
    /// Text that a program reads back when it opens $EDITOR.
    pub(super) editor_text: String,
    /// Globs of files to return, for instance `$OUTPUT_DIR/**`. Takes the place of `outputs`.
    pub(super) output_files: Vec<String>,
    /// Files to return, as output_files, with limits on their number and size. Ignored if output_files is given.
    pub(super) outputs: Option<Outputs>,
    /// Files to put into the workspace first.
    pub(super) inputs: Vec<Input>,
    /// Seconds; 300 if it is left out, of a session as long as the host permits.
    pub(super) timeout: i64,
    /// Save the returned files as artifacts, which outlive the workspace.
    pub(super) save_as_artifacts: bool,
    /// Return names, sizes and references of files without their text.
    pub(super) omit_inline_content: bool,
    /// Prefix for the names of artifacts.
    pub(super) artifact_prefix: String,
    /// Run the command in a terminal.
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
    /// About the host's variables that the command does not get.
    pub(super) warnings: Vec<String>,
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
    let skill = loads::to_run(tools, session, state, tool, skill).await?;
    let skill = skill.as_str();
    let exec = session.exec_id(tool, call);
    let editor = Editor {
        text: &run.editor_text,
        exec: &exec,
    };
    let mut env = run.env.clone();
    if !run.editor_text.is_empty() {
        env.extend(editor.environment(&run.env)?);
    }
    let (mut spec, mut warnings) = specify(tools, tool, run, skill, &env)?;
    let (workspace, staged, files) = stage::stage(tools, session, skill, &run.inputs).await?;
    if staged.name != skill {
        // By another name of it: the one that it is staged under counts.
        (spec, warnings) = specify(tools, tool, run, &staged.name, &env)?;
    }
    if !run.editor_text.is_empty() {
        editor.stage(tools, &workspace).await?;
    }
    spec.timeout = timeout(tools, run.timeout);
    Ok(Prepared {
        workspace,
        exec,
        spec,
        staged: files,
        warnings,
    })
}

/// Returns what runs, where, and with the environment that belongs to it; and warnings about that environment.
fn specify(
    tools: &Inner,
    tool: &'static str,
    run: &Run,
    skill: &str,
    env: &BTreeMap<String, String>,
) -> Result<(ExecSpec, Vec<String>), ToolError> {
    let cwd = cwd(&run.cwd);
    let mut spec = ExecSpec {
        env: env.clone(),
        ..ExecSpec::default()
    };
    if policy::is_active(&tools.options) {
        // Not with spec.skill, which puts .venv/bin before PATH: commands can write there.
        policy::restrict(tool, &tools.options, &run.command, &mut spec, Some(skill))?;
        spec.cwd = beneath(skill, &cwd);
    } else {
        spec.shell.clone_from(&run.command);
        skill.clone_into(&mut spec.skill);
        spec.cwd = cwd;
    }
    let warnings = add_host_variables(&tools.options.env, &mut spec.env);
    Ok((spec, warnings))
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

/// Converts a working directory for a command that runs without the daemon knowing its skill.
fn beneath(skill: &str, cwd: &str) -> String {
    let root = format!("/workspace/skills/{skill}");
    let cwd = expanded(&expanded(cwd, "SKILL_NAME", skill), "SKILL_DIR", &root);
    match cwd.starts_with(['/', '$']) {
        true => cwd,
        false => format!("{root}/{cwd}"),
    }
}

/// Replaces a variable by its value. A name that goes on with a letter, a digit or `_` is another variable.
fn expanded(text: &str, name: &str, value: &str) -> String {
    let text = text.replace(&format!("${{{name}}}"), value);
    let variable = format!("${name}");
    let mut parts = text.split(&variable);
    let mut expanded = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        let goes_on = part.starts_with(|next: char| next.is_ascii_alphanumeric() || next == '_');
        expanded += if goes_on { &variable } else { value };
        expanded += part;
    }
    expanded
}

/// Returns the timeout of the call, else that of the host.
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
        for (given, wanted) in [
            ("", "/workspace/skills/demo/"),
            ("scripts", "/workspace/skills/demo/scripts"),
            ("$SKILLS_DIR/$SKILL_NAME/x", "$SKILLS_DIR/demo/x"),
            ("${SKILL_DIR}/x", "/workspace/skills/demo/x"),
            ("$SKILL_DIR/$SKILL_NAME", "/workspace/skills/demo/demo"),
            ("$SKILL_DIRECTORY/x", "$SKILL_DIRECTORY/x"),
            ("/workspace/$SKILL_NAMES", "/workspace/$SKILL_NAMES"),
            ("/workspace/work", "/workspace/work"),
        ] {
            assert_eq!(beneath("demo", given), wanted, "{given:?}");
        }
    }
}
