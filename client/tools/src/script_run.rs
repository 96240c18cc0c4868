//! Runs a script of a skill, for every family alike: one call stages, runs and collects. The daemon chooses the
//! interpreter, turns arguments into words and watches the clocks; this module makes one result of its answers.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use schemars::JsonSchema;
use serde::Serialize;
use serde_json::{Map, Value};
use skilld_client::v1::{
    CollectSpec, DisconnectPolicy, ErrorReason, ExecScript, ExecSpec, RunExecRequest, RunOutputs,
    SaveAsArtifacts, ScriptArgStyle, ScriptCwd, Skill,
};

use crate::call_context::{CallContext, ToolsetContext};
use crate::command_limits;
use crate::host_environment::add_host_variables;
use crate::output_collection::{self, ArtifactOwner, CollectedOutputs};
use crate::package_warnings::describe_staging_problems;
use crate::proto_json;
use crate::result_budget::{json_bytes, take_fitting};
use crate::run_outcome::RunOutcome;
use crate::run_variables::add_run_variables;
use crate::skill_lookup::{self, pinned_reference, skill_id};
use crate::skill_staging::run_with_skills;
use crate::tool_error::{ToolError, ToolResult};

/// Names of the ways in which structured arguments become words; the first is the default.
pub(crate) const ARG_STYLES: [(&str, ScriptArgStyle); 4] = [
    ("positional", ScriptArgStyle::Positional),
    ("named", ScriptArgStyle::Named),
    ("named_repeated", ScriptArgStyle::NamedRepeated),
    ("env", ScriptArgStyle::Env),
];
/// Names of a script's working directories; the first is the default.
const DIRECTORIES: [(&str, ScriptCwd); 3] = [
    ("workspace", ScriptCwd::Workspace),
    ("skill_root", ScriptCwd::SkillRoot),
    ("script_dir", ScriptCwd::ScriptDir),
];
/// Globs of the files that scripts write.
const OUTPUT_GLOBS: [&str; 2] = ["out/**", "work/**"];
/// Maximum size of the list of files in a result, in bytes of JSON.
const FILES_BYTES_MAX: usize = 12 * 1024;

/// Arguments of a run as a model gives them, whatever the family calls them.
#[derive(Debug, Default)]
pub(crate) struct ScriptRunRequest {
    /// Path of the script relative to the skill's root.
    pub(crate) path: String,
    pub(crate) argv: Vec<String>,
    /// Map of names to values.
    pub(crate) args: Option<Value>,
    /// Name in [`ARG_STYLES`]; empty for the default.
    pub(crate) style: String,
    /// Name in `DIRECTORIES`; empty for the default.
    pub(crate) cwd: String,
    pub(crate) stdin: Option<String>,
    /// Time limit in seconds; `None` or 0 for that of the options.
    pub(crate) timeout: Option<f64>,
}

/// Outcome of a script: its end, its output and its files.
#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct ScriptResult {
    pub(crate) skill: String,
    pub(crate) script: String,
    #[serde(flatten)]
    pub(crate) outcome: RunOutcome,
    /// Files that the script wrote or changed in the workspace.
    pub(crate) files: Vec<WrittenFile>,
    /// Owner of the saved artifacts.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) artifact_scope: Option<ArtifactOwner>,
    /// `true` if a limit cut the list of files.
    pub(crate) limits_hit: bool,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(crate) warnings: Vec<String>,
}

/// File that a script wrote or changed.
#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct WrittenFile {
    /// Path relative to the workspace.
    pub(crate) path: String,
    pub(crate) size: i64,
    pub(crate) mime_type: String,
    /// SHA-256; absent for links and for files that are too large to read.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) sha256: Option<String>,
    /// `artifact://name@version`, if it was saved.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) artifact: Option<String>,
}

impl ScriptRunRequest {
    /// Checks the arguments and returns what runs, without its skill and its environment.
    pub(crate) fn to_spec(&self, tools: &ToolsetContext) -> ToolResult<ExecSpec> {
        for (index, word) in self.argv.iter().enumerate() {
            command_limits::check_argument(&format!("argv[{index}]"), word)?;
        }
        command_limits::check_stdin("stdin", self.stdin.as_deref().unwrap_or_default())?;
        let args = parse_args(self.args.as_ref())?.into_iter();
        let mut script = ExecScript {
            path: self.path.trim().to_owned(),
            argv: self.argv.clone(),
            args: args
                .map(|(key, value)| proto_json::to_script_arg(key, value))
                .collect(),
            ..ExecScript::default()
        };
        script.set_arg_style(choose("arg_style", &self.style, &ARG_STYLES)?);
        script.set_cwd(choose("cwd", &self.cwd, &DIRECTORIES)?);
        let timeout = match self.timeout.filter(|seconds| *seconds != 0.0) {
            None => tools.options.timeout,
            Some(seconds) => Some(Duration::try_from_secs_f64(seconds).map_err(|_| {
                ToolError::arguments(format!("timeout {seconds} is no number of seconds"))
            })?),
        };
        let mut spec = ExecSpec {
            script: Some(script),
            stdin_data: self.stdin.clone().unwrap_or_default().into(),
            timeout: timeout.and_then(|timeout| timeout.try_into().ok()),
            ..ExecSpec::default()
        };
        // A client that cancels a call wants the script to end.
        spec.set_on_disconnect(DisconnectPolicy::Kill);
        Ok(spec)
    }
}

/// Returns structured arguments in the order in which they are given.
fn parse_args(given: Option<&Value>) -> ToolResult<Map<String, Value>> {
    match given {
        None | Some(Value::Null) => Ok(Map::new()),
        Some(Value::Object(args)) => Ok(args.clone()),
        Some(Value::Bool(_) | Value::Number(_) | Value::String(_) | Value::Array(_)) => {
            Err(ToolError::arguments(
                "script_args must be a map of names to values, or JSON text of one; words belong into argv",
            ))
        }
    }
}

/// Returns the value of a name, in any case; the first value for a blank one. The error for an unknown name lists the
/// known ones.
fn choose<T: Copy>(field: &str, name: &str, names: &[(&str, T)]) -> ToolResult<T> {
    let wanted = name.trim().to_lowercase();
    let found = names
        .iter()
        .find(|(name, _)| *name == wanted || wanted.is_empty());
    found.map(|(_, value)| *value).ok_or_else(|| {
        let known: Vec<&str> = names.iter().map(|(name, _)| *name).collect();
        let list = known.join(", ");
        ToolError::arguments(format!("unknown {field} {name:?}: it is one of {list}"))
    })
}

/// Runs a script of a skill in the session's workspace by one call.
pub(crate) async fn run_script(
    call: CallContext<'_>,
    skill: &Skill,
    mut spec: ExecSpec,
) -> ToolResult<ScriptResult> {
    let tools = call.tools;
    let (id, reference) = (skill_id(skill), pinned_reference(skill));
    let script = spec.script.clone().unwrap_or_default();
    check_permission(call, skill, &normal_path(&script.path)).await?;
    spec.skill.clone_from(&id);
    let mut warnings;
    (spec.env, warnings) = build_environment(tools, &script);
    warnings.extend(add_run_variables(call, &mut spec).await?);
    let request = RunExecRequest {
        exec_id: call.exec_id(),
        spec: Some(spec),
        outputs: Some(run_outputs(call)),
        ..RunExecRequest::default()
    };
    let finished = run_with_skills(call, Some(&reference), request, 0).await;
    let (mut finished, staging_warnings) =
        finished.map_err(|error| translate_error(tools, error, &reference, &script.path))?;
    let package_warning = finished.staged.skills.first();
    let package_warning = package_warning.and_then(describe_staging_problems);
    let outputs = finished.outputs.take();
    let mut outcome = RunOutcome::new(&tools.options, finished);
    let replacement = tools.workspaces.take_replacement_warning(call.session);
    let warnings = replacement
        .into_iter()
        .chain(warnings)
        .chain(staging_warnings);
    outcome.add_preparation_warnings(warnings, package_warning);
    let mut result = ScriptResult {
        skill: id,
        script: script.path,
        warnings: std::mem::take(&mut outcome.warnings),
        outcome,
        files: Vec::new(),
        artifact_scope: None,
        limits_hit: false,
    };
    match outputs {
        Some(Ok(collected)) => add_files(call, collected, &mut result),
        Some(Err(error)) => result
            .warnings
            .push(output_collection::failure_warning(&error)),
        None => {}
    }
    Ok(result)
}

/// Returns a path without empty components and dots.
fn normal_path(path: &str) -> String {
    let names: Vec<&str> = path
        .split('/')
        .filter(|name| !matches!(*name, "" | "."))
        .collect();
    names.join("/")
}

/// Checks a script of a skill against the host's lists of commands. The programs that the script starts in its turn, its
/// interpreter included, are not checked.
async fn check_permission(call: CallContext<'_>, skill: &Skill, path: &str) -> ToolResult<()> {
    let problem = if is_denied(call, skill, path).await? {
        "is denied by denied_commands"
    } else if !is_allowed(&call.tools.options.allowed_commands, skill, path) {
        "is not in allowed_commands"
    } else {
        return Ok(());
    };
    Err(ToolError::CommandRefused {
        tool: call.tool,
        problem: format!("{}/{path} {problem}", skill_id(skill)),
    })
}

/// Returns `true` if the list of allowed commands is empty or has a script, as `SKILL/PATH` with the skill's id or an
/// alias. Other names give no permission: a card may have any title.
fn is_allowed(allowed: &[String], skill: &Skill, path: &str) -> bool {
    let id = skill_id(skill);
    let mut names = std::iter::once(&id).chain(&skill.aliases);
    allowed.is_empty() || names.any(|name| allowed.contains(&format!("{name}/{path}")))
}

/// Returns `true` if the list of denied commands has a script, as `SKILL/PATH`. SKILL is any name of the skill, or of
/// one that has the same id in another plugin, in another skill or in another version.
async fn is_denied(call: CallContext<'_>, skill: &Skill, path: &str) -> ToolResult<bool> {
    let ids = bare_ids(skill);
    for entry in &call.tools.options.denied_commands {
        let name = entry.strip_suffix(path);
        let Some(name) = name.and_then(|name| name.strip_suffix('/')) else {
            continue;
        };
        // The daemon finds only one of several skills with one title, and no alias of a version that was replaced.
        if name == skill.display_name || ids.contains(bare_id(name)) {
            return Ok(true);
        }
        match call.tools.client.get_skill(name).await {
            Ok(named) if !ids.is_disjoint(&bare_ids(&named)) => return Ok(true),
            Ok(_) => {}
            Err(error) => match error.reason() {
                Some(ErrorReason::SkillNotFound | ErrorReason::InvalidRequest) => {}
                // A restriction must not be without effect.
                Some(_) | None => return Err(error.into()),
            },
        }
    }
    Ok(false)
}

/// Returns the id of a skill, with and without its plugin's, and the ids at the ends of its aliases.
fn bare_ids(skill: &Skill) -> BTreeSet<String> {
    let id = skill_id(skill);
    let without_plugin = id.split_once("--").map(|(_, id)| id.to_owned());
    let aliases = skill.aliases.iter().map(|alias| bare_id(alias).to_owned());
    aliases.chain(without_plugin).chain([id]).collect()
}

/// Returns a name without the plugin and the skills around it.
fn bare_id(name: &str) -> &str {
    name.rsplit([':', '/']).next().unwrap_or_default()
}

/// Returns the host's variables without those that an argument of the script becomes, and warnings about those left
/// out.
fn build_environment(
    tools: &ToolsetContext,
    script: &ExecScript,
) -> (BTreeMap<String, String>, Vec<String>) {
    let of_arguments: BTreeSet<String> = script
        .args
        .iter()
        .map(|arg| format!("SKILL_ARG_{}", arg.key.to_uppercase().replace('-', "_")))
        .collect();
    let host = tools
        .options
        .env
        .iter()
        .filter(|(name, _)| !of_arguments.contains(*name));
    let mut variables = BTreeMap::new();
    let warnings = add_host_variables(host, &mut variables);
    (variables, warnings)
}

/// Returns what is collected after a script: the files that it changed. They are saved if the options say so.
fn run_outputs(call: CallContext<'_>) -> RunOutputs {
    let is_saved = call.tools.options.force_save_artifacts;
    let spec = CollectSpec {
        globs: OUTPUT_GLOBS.map(str::to_owned).to_vec(),
        save_as_artifacts: is_saved.then(|| SaveAsArtifacts {
            prefix: String::new(),
            scope: Some(call.session.scope()),
            request_id: String::new(),
        }),
        skip_empty_after_failure: true,
        ..CollectSpec::default()
    };
    RunOutputs {
        spec: Some(spec),
        changed_only: true,
        // The result lists the files.
        omit_data: true,
    }
}

/// Adds the files that a script changed to its result.
fn add_files(call: CallContext<'_>, (files, summary): CollectedOutputs, result: &mut ScriptResult) {
    let received = files.len();
    let written_files = files.into_iter().map(|collected| {
        let (file, end) = (collected.file, collected.end.unwrap_or_default());
        WrittenFile {
            path: file.path,
            size: file.size_bytes,
            mime_type: file.mime_type,
            sha256: Some(end.sha256).filter(|sha256| !end.truncated && !sha256.is_empty()),
            artifact: Some(end.artifact).filter(|artifact| !artifact.is_empty()),
        }
    });
    let fitting = take_fitting(written_files, FILES_BYTES_MAX, json_bytes);
    result.files.extend(fitting);
    let shown = result.files.len();
    result.limits_hit = summary.limits_hit || shown < received;
    let matched = usize::try_from(summary.matched_count).unwrap_or_default();
    let written = matched.max(received);
    let unlisted = (result.limits_hit && shown < written).then(|| {
        format!("{shown} of the {written} files that it wrote are listed; hidden files and caches are the last")
    });
    let unsaved = output_collection::unsaved_warning(&summary);
    let unread = output_collection::unread_warning(&summary);
    let outside = output_collection::outside_warning(&summary);
    let warnings = unlisted.into_iter().chain(unsaved).chain(unread);
    result.warnings.extend(warnings.chain(outside));
    if !summary.artifacts.is_empty() {
        result.artifact_scope = Some(call.session.into());
    }
}

/// Converts an error about the script or its arguments into the tool's error.
fn translate_error(
    tools: &ToolsetContext,
    error: ToolError,
    reference: &str,
    path: &str,
) -> ToolError {
    let ToolError::Daemon(error) = error else {
        return error;
    };
    let failure = error.failure();
    let violations = failure.map_or(&[][..], |failure| &failure.violations);
    let of_type = violations.iter().find(|violation| {
        violation.field.ends_with("script.path")
            && violation.description.contains("nothing here runs")
    });
    if let Some(violation) = of_type {
        return ToolError::UnsupportedScript {
            path: path.to_owned(),
            problem: violation.description.clone(),
        };
    }
    if error.reason() == Some(ErrorReason::InvalidRequest) && !violations.is_empty() {
        let problems = violations.iter().map(|violation| {
            let field = violation.field.trim_start_matches("spec.");
            format!("{field} {}", violation.description)
        });
        return ToolError::arguments(problems.collect::<Vec<_>>().join("; "));
    }
    skill_lookup::translate_file_error(&tools.options, error, reference, path)
}

impl ScriptResult {
    /// Returns `true` if the script exited with 0.
    pub(crate) fn has_succeeded(&self) -> bool {
        self.outcome.exit_code == Some(0) && self.outcome.reason == "exited"
    }
}
