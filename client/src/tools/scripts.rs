//! Running a script of a skill, for every family alike: stage, run, collect. Three calls of the daemon, which chooses
//! the interpreter, turns arguments into words and watches the clocks; here its answers become one result.

mod args;
mod choice;
mod produced;

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use schemars::JsonSchema;
use serde::Serialize;
use serde_json::{Map, Value};
use skilld_proto::v1::exec_result::{Outcome, Reason as Cause};
use skilld_proto::v1::stdin::Source;
use skilld_proto::v1::{ExecSpec, OnDisconnect, Reason, RunExecRequest, Script, Stdin};

pub(crate) use args::args;
pub(crate) use choice::{Cwd, Style};
pub(crate) use produced::Produced;

use crate::tools::collected::SavedScope;
use crate::tools::environment::add_host_variables;
use crate::tools::follow::{self, Ended};
use crate::tools::shown::Streams;
use crate::tools::{Inner, Session, ToolError, lookup, wire};

/// A script to run.
#[derive(Clone, Debug, Default)]
pub(crate) struct Run {
    /// The skill's name.
    pub(crate) skill: String,
    /// The name with what says which version of it.
    pub(crate) reference: String,
    /// Relative to the skill's root.
    pub(crate) path: String,
    pub(crate) argv: Vec<String>,
    pub(crate) args: Map<String, Value>,
    pub(crate) style: Style,
    pub(crate) cwd: Cwd,
    pub(crate) stdin: Option<String>,
    /// In seconds; none for that of the options.
    pub(crate) timeout: Option<f64>,
    /// The tool that was called.
    pub(crate) tool: &'static str,
    /// The model's id for the call: repeated with it, nothing runs twice.
    pub(crate) call_id: String,
}

/// Outcome of a script: its end, its output and its files.
#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct Ran {
    pub(crate) skill: String,
    pub(crate) script: String,
    /// How it ended: exited, signaled, timeout, no_output_timeout, oom_killed, output_limit, spawn_failed and others.
    pub(crate) outcome: String,
    /// None if it did not exit by itself.
    pub(crate) exit_code: Option<i32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) signal: Option<i32>,
    pub(crate) timed_out: bool,
    pub(crate) stdout: String,
    pub(crate) stderr: String,
    /// Bytes that it wrote.
    pub(crate) stdout_bytes: u64,
    pub(crate) stderr_bytes: u64,
    /// The text above is not all of it: its middle is left out.
    pub(crate) stdout_truncated: bool,
    pub(crate) stderr_truncated: bool,
    pub(crate) duration_ms: u64,
    /// Files that it wrote or changed in the workspace.
    pub(crate) files: Vec<Produced>,
    /// Whose artifacts the saved ones are.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) artifact_scope: Option<SavedScope>,
    /// A limit cut the list of files.
    pub(crate) limits_hit: bool,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(crate) warnings: Vec<String>,
}

impl Ran {
    /// It ended by itself with 0.
    pub(crate) fn succeeded(&self) -> bool {
        self.exit_code == Some(0) && self.outcome == "exited"
    }
}

/// Runs a script in the session's workspace. What can be done again in a new workspace is the staging only: from the
/// start on nobody knows whether the script did something before its workspace went.
pub(crate) async fn run(tools: &Inner, session: &Session, run: Run) -> Result<Ran, ToolError> {
    permitted(tools, &run)?;
    let (spec, warnings) = spec(tools, &run)?;
    let timeout = spec.timeout;
    let events = tools.client.run_resuming(RunExecRequest {
        workspace: stage(tools, session, &run.reference).await?,
        exec_id: session.exec_id(run.tool, &run.call_id),
        spec: Some(spec),
        ..RunExecRequest::default()
    });
    let exec = events.name().to_owned();
    let ended = follow::follow(events, tools.options.output_bytes_max, &run.call_id).await;
    let ended = ended.map_err(|error| refused(tools, error, &run))?;
    let clamped = ended.clamped(timeout);
    let mut ran = ran(&run, ended);
    let is_new = tools.workspaces.warning(session).map(str::to_owned);
    ran.warnings.extend(is_new.into_iter().chain(clamped));
    ran.warnings.extend(warnings);
    if ran.outcome != "spawn_failed"
        && let Err(error) = produced::collect(tools, session, &exec, &mut ran).await
    {
        // What it did and said must not be lost for that.
        let warning = format!("its files could not be collected: {error}");
        ran.warnings.push(warning);
    }
    Ok(ran)
}

/// The workspace, which has the skill then.
async fn stage(tools: &Inner, session: &Session, reference: &str) -> Result<String, ToolError> {
    let staged = tools
        .workspaces
        .within(&tools.client, session, |workspace| async move {
            let staged = tools.client.stage_skills(&workspace, &[reference]).await;
            staged.map_err(|error| lookup::unknown_skill(&tools.options, error, reference))?;
            Ok(workspace)
        });
    staged.await
}

/// Scripts are programs too: where the host lists what may run, `skill/path` must be in the list. What a script starts
/// in its turn, its interpreter included, is not looked at.
fn permitted(tools: &Inner, run: &Run) -> Result<(), ToolError> {
    let names = run.path.trim().split('/');
    let names = names.filter(|name| !matches!(*name, "" | "."));
    let path = names.collect::<Vec<_>>().join("/");
    let name = format!("{}/{path}", run.skill);
    let (allowed, denied) = (
        &tools.options.allowed_commands,
        &tools.options.denied_commands,
    );
    let problem = if denied.contains(&name) {
        "is denied by denied_commands"
    } else if !allowed.is_empty() && !allowed.contains(&name) {
        "is not in allowed_commands"
    } else {
        return Ok(());
    };
    Err(ToolError::CommandRefused {
        tool: run.tool,
        problem: format!("{name} {problem}"),
    })
}

/// Returns what runs, and warnings about its environment.
fn spec(tools: &Inner, run: &Run) -> Result<(ExecSpec, Vec<String>), ToolError> {
    let timeout = match run.timeout {
        None => tools.options.timeout,
        Some(seconds) => Some(Duration::try_from_secs_f64(seconds).map_err(|_| {
            ToolError::arguments(format!("timeout {seconds} is no number of seconds"))
        })?),
    };
    let args = run.args.iter();
    let mut script = Script {
        path: run.path.trim().to_owned(),
        argv: run.argv.clone(),
        args: args
            .map(|(key, value)| wire::argument(key.clone(), value.clone()))
            .collect(),
        ..Script::default()
    };
    script.set_arg_style(run.style.into());
    script.set_cwd(run.cwd.into());
    let stdin = run.stdin.as_ref().map(|text| Stdin {
        source: Some(Source::Data(text.clone().into_bytes().into())),
    });
    let (env, warnings) = environment(tools, run);
    let mut spec = ExecSpec {
        skill: run.skill.clone(),
        script: Some(script),
        stdin,
        timeout: timeout.and_then(|timeout| timeout.try_into().ok()),
        env,
        ..ExecSpec::default()
    };
    // Who gives a call up wants what it started to end.
    spec.set_on_disconnect(OnDisconnect::Kill);
    Ok((spec, warnings))
}

/// The host's variables, without those that an argument of the script becomes; and warnings about those left out.
fn environment(tools: &Inner, run: &Run) -> (BTreeMap<String, String>, Vec<String>) {
    let names = run.args.keys();
    let names = names.map(|key| format!("SKILL_ARG_{}", key.to_uppercase().replace('-', "_")));
    let of_arguments: BTreeSet<String> = names.collect();
    let host = tools.options.env.iter();
    let host = host.filter(|(name, _)| !of_arguments.contains(*name));
    let mut variables = BTreeMap::new();
    let warnings = add_host_variables(host, &mut variables);
    (variables, warnings)
}

fn ran(run: &Run, ended: Ended) -> Ran {
    let Streams { stdout, stderr } = ended.output;
    let result = ended.result;
    let mut warnings = Vec::new();
    let (exit_code, signal) = match result.outcome {
        Some(Outcome::ExitCode(code)) => (Some(code), None),
        Some(Outcome::Signal(signal)) => (None, Some(signal)),
        None => (None, None),
    };
    if let Some(failure) = &result.spawn_failure {
        warnings.push(format!("it could not be started: {}", failure.message));
    }
    let outcome = result.reason().as_str_name().trim_start_matches("REASON_");
    let wall = result
        .wall_time
        .and_then(|time| Duration::try_from(time).ok());
    Ran {
        skill: run.skill.clone(),
        script: run.path.trim().to_owned(),
        outcome: outcome.to_lowercase(),
        exit_code,
        signal,
        timed_out: matches!(result.reason(), Cause::Timeout | Cause::NoOutputTimeout),
        stdout_bytes: stdout.total(),
        stderr_bytes: stderr.total(),
        stdout_truncated: stdout.is_cut(),
        stderr_truncated: stderr.is_cut(),
        stdout: stdout.text("stdout", &mut warnings),
        stderr: stderr.text("stderr", &mut warnings),
        duration_ms: wall.map_or(0, |wall| {
            u64::try_from(wall.as_millis()).unwrap_or(u64::MAX)
        }),
        files: Vec::new(),
        artifact_scope: None,
        limits_hit: false,
        warnings,
    }
}

/// Converts an error about the script or its arguments into the tool's error.
fn refused(tools: &Inner, error: ToolError, run: &Run) -> ToolError {
    let ToolError::Daemon(error) = error else {
        return error;
    };
    let failure = error.failure();
    let violations = failure
        .map(|failure| failure.violations.as_slice())
        .unwrap_or_default();
    let of_type = violations.iter().find(|violation| {
        violation.field.ends_with("script.path")
            && violation.description.contains("nothing here runs")
    });
    if let Some(violation) = of_type {
        return ToolError::UnsupportedScript {
            path: run.path.clone(),
            problem: violation.description.clone(),
        };
    }
    if error.reason() == Some(Reason::InvalidRequest) && !violations.is_empty() {
        let said = violations.iter().map(|violation| {
            let field = violation.field.trim_start_matches("spec.");
            format!("{field} {}", violation.description)
        });
        return ToolError::arguments(said.collect::<Vec<_>>().join("; "));
    }
    lookup::unknown_file(&tools.options, error, &run.reference, &run.path)
}
