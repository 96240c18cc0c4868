//! `skillctl tool`: lists and calls the skill tools as a model would.

mod saved_artifacts;
mod session_file;

use std::io::Read as _;
use std::path::PathBuf;
use std::pin::pin;
use std::time::Duration;

use anyhow::Context as _;
use clap::builder::NonEmptyStringValueParser;
use clap::{Args, ValueEnum};
use clap_complete::engine::ArgValueCompleter;
use serde_json::{Map, Value, json};
use skilld_client::{Client, new_exec_id, short_id};
use skilld_tools::host_tools::HostTools;
use skilld_tools::state::SessionState;
use skilld_tools::{CancelOutcome, Family, Session, ToolOptions, Toolset};
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;

use crate::commands::command_group::command_group;
use crate::commands::complete;
use crate::output::{self, value_formats};
use crate::terminal::interrupt::{InterruptSignals, InterruptedError};
use crate::terminal::safe_text;
pub(crate) use saved_artifacts::{find_saved_artifacts, saved_artifacts_note};
pub(crate) use session_file::SessionFile;

/// Maximum size of arguments read from stdin, in bytes: a request of the API is smaller.
const ARGUMENTS_BYTES_MAX: u64 = 4 * 1024 * 1024;

/// Deadline of the end of a session.
pub(crate) const END_TIMEOUT: Duration = Duration::from_secs(30);

command_group! {
    /// Use the skill tools as a model would.
    #[command(
        after_help = "Example:\n  skillctl tool call skill_load '{\"skill\": \"csv-report\"}' --session-file chat.json"
    )]
    Tool {
        List(List),
        Call(Call),
        End(End),
    }
}

/// Options that select the tool family, its settings and the session.
#[derive(Debug, Args)]
pub(crate) struct ToolSelection {
    /// Tool family; that of the options if left out, else trpc.
    #[arg(long, value_enum)]
    family: Option<FamilyName>,
    /// A JSON file with the host application's decisions: profile, tools, skills, pool, load_mode,
    /// allowed_commands and so on (docs/tools.md has them all).
    #[arg(long, value_name = "FILE")]
    options: Option<PathBuf>,
    /// Let commands change the files of the skills: each session gets copies of its own. The same as the option
    /// writable_skills.
    #[arg(long)]
    writable_skills: bool,
    /// File of the session: its names and its state, as JSON. Created if it does not exist. Without it the call is a
    /// session of its own, whose workspace is deleted afterwards unless --workspace names it.
    #[arg(long, value_name = "FILE")]
    session_file: Option<PathBuf>,
    /// Work in this existing workspace, which is neither created nor deleted. A token for it is enough
    /// (`skillctl workspace token`).
    #[arg(
        long,
        value_name = "ID",
        value_parser = NonEmptyStringValueParser::new(),
        add = ArgValueCompleter::new(complete::offer_workspaces)
    )]
    workspace: Option<String>,
}

/// Family of tools as it is typed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum FamilyName {
    Trpc,
    Sherma,
    AgentZero,
}

impl From<FamilyName> for Family {
    fn from(name: FamilyName) -> Self {
        match name {
            FamilyName::Trpc => Self::Trpc,
            FamilyName::Sherma => Self::Sherma,
            FamilyName::AgentZero => Self::AgentZero,
        }
    }
}

/// List the tools that a model is offered.
#[derive(Debug, Args)]
#[command(after_help = "Example:
  skillctl tool list
  skillctl tool list --family sherma
  skillctl -o json tool list --session-file chat.json     # with descriptions and JSON Schemas")]
pub(crate) struct List {
    #[command(flatten)]
    selection: ToolSelection,
}

/// Call a tool and print its result, which is JSON.
#[derive(Debug, Args)]
#[command(after_help = "Example:
  skillctl tool call skill_load '{\"skill\": \"csv-report\"}' --session-file chat.json
  skillctl tool call skill_run '{\"skill\": \"csv-report\", \"command\": \"ls\"}' --session-file chat.json
  echo '{\"skill\": \"csv-report\", \"command\": \"ls\"}' | \\
      skillctl tool call skill_run - --session-file chat.json

Exit codes: 0 the tool answered, 1 it did not (its error is printed as JSON too) or its session cannot be kept, 2 usage,
130 interrupted: what the call started is ended.")]
pub(crate) struct Call {
    /// The tool's name.
    name: String,
    /// Arguments of the tool, a JSON object; - reads them from stdin.
    #[arg(default_value = "{}", value_name = "JSON")]
    arguments: String,
    /// The model's id for the call: a call repeated with it runs nothing twice. Without it each call is a new one.
    #[arg(long, value_name = "ID")]
    id: Option<String>,
    #[command(flatten)]
    selection: ToolSelection,
}

/// End a kept session: delete its workspace and the file.
#[derive(Debug, Args)]
#[command(after_help = "Example:\n  skillctl tool end --session-file chat.json")]
pub(crate) struct End {
    /// File of the session.
    #[arg(long, value_name = "FILE", required = true)]
    session_file: PathBuf,
}

impl ToolSelection {
    /// Builds the selected tools.
    pub(crate) fn toolset(&self, client: &Client) -> anyhow::Result<Toolset> {
        let mut options = match &self.options {
            Some(file) => read_options(file)?,
            None => serde_json::from_value(default_options())?,
        };
        if let Some(family) = self.family {
            options.family = family.into();
        }
        options.writable_skills |= self.writable_skills;
        if std::env::var_os("SKILLS_CACHE_DIR").is_some() {
            output::note!(
                "SKILLS_CACHE_DIR is ignored: the daemon keeps fetched skills in its state directory"
            );
        }
        Ok(Toolset::new(client.clone(), options, HostTools::new())?)
    }

    /// Opens the session of the file; a new one without a file.
    pub(crate) fn open_session(&self) -> anyhow::Result<SessionFile> {
        let workspace = self.workspace.as_deref().map(short_id).unwrap_or_default();
        SessionFile::open(self.session_file.as_deref(), &workspace)
    }
}

/// Returns the defaults of the CLI. The CLI builds no prompt, so `skill_load` returns the skill's text.
fn default_options() -> Value {
    json!({"inline_skills": true})
}

fn read_options(file: &std::path::Path) -> anyhow::Result<ToolOptions> {
    let text =
        std::fs::read_to_string(file).with_context(|| format!("cannot read {}", file.display()))?;
    let what = || format!("{} holds no options for tools", file.display());
    let mut options = default_options();
    let given: Map<String, Value> = serde_json::from_str(without_mark(&text)).with_context(what)?;
    if let Some(options) = options.as_object_mut() {
        options.extend(given);
    }
    serde_json::from_value(options).with_context(what)
}

/// Returns a text without the byte order mark with which editors on Windows begin it.
fn without_mark(text: &str) -> &str {
    text.strip_prefix('\u{feff}').unwrap_or(text)
}

impl List {
    async fn run(self, client: &Client) -> anyhow::Result<u8> {
        let kept = self.selection.open_session()?;
        let definitions = self
            .selection
            .toolset(client)?
            .definitions(&kept.session, kept.state())
            .await?;
        if output::is_json() {
            return print_json(&json!({ "tools": definitions })).map(|()| 0);
        }
        let rows = definitions.into_iter().map(|definition| {
            let first = definition.description.lines().next().unwrap_or_default();
            [definition.name, first.to_owned()]
        });
        let table = output::text_table(["NAME", "DESCRIPTION"], rows);
        output::print_bytes(table.as_bytes())?;
        Ok(0)
    }
}

impl Call {
    async fn run(self, client: &Client) -> anyhow::Result<u8> {
        let arguments = self.arguments()?;
        let tools = self.selection.toolset(client)?;
        let mut kept = self.selection.open_session()?;
        let call = skilld_tools::ToolCall {
            id: self.id.unwrap_or_else(new_exec_id),
            name: self.name,
            arguments,
        };
        let mut interrupt = InterruptSignals::new()?;
        let made = call_unless_interrupted(&tools, &kept, call, &mut interrupt).await?;
        let reported = report_outcome(&tools, &mut kept, made).await;
        let ended = end_session(&tools, &kept, &mut interrupt).await;
        let code = reported?;
        ended?;
        Ok(code)
    }

    fn arguments(&self) -> anyhow::Result<Value> {
        if self.arguments != "-" {
            return Ok(Value::String(self.arguments.clone()));
        }
        let mut text = String::new();
        std::io::stdin()
            .take(ARGUMENTS_BYTES_MAX + 1)
            .read_to_string(&mut text)
            .context("cannot read the arguments from stdin")?;
        if text.len() as u64 > ARGUMENTS_BYTES_MAX {
            let max = value_formats::format_bytes(ARGUMENTS_BYTES_MAX);
            anyhow::bail!("the arguments are longer than {max}");
        }
        Ok(Value::String(without_mark(&text).to_owned()))
    }
}

/// Makes a call and cancels it on an interrupt. A second interrupt ends the program without waiting.
async fn call_unless_interrupted(
    tools: &Toolset,
    kept: &SessionFile,
    call: skilld_tools::ToolCall,
    interrupt: &mut InterruptSignals,
) -> Result<CancelOutcome, InterruptedError> {
    let cancelled = CancellationToken::new();
    let (session, state) = (&kept.session, kept.state());
    let calling = tools.call_cancellable(session, state, call, cancelled.cancelled());
    let mut calling = pin!(calling);
    tokio::select! {
        // An answer that has arrived counts more than the signal: what it changed is stored.
        biased;
        made = &mut calling => return Ok(made),
        () = interrupt.wait() => cancelled.cancel(),
    }
    interrupt.race(calling).await
}

/// Prints the outcome of a call and stores its changes; returns the exit code. The outcome is printed also if the
/// changes cannot be stored.
async fn report_outcome(
    tools: &Toolset,
    kept: &mut SessionFile,
    made: CancelOutcome,
) -> anyhow::Result<u8> {
    match made {
        CancelOutcome::Finished(Ok(answer)) => {
            let base = kept.state().clone();
            let printed = print_json(&answer.result);
            if !kept.is_kept()
                && let Some(note) = saved_artifacts_note(&kept.session, &answer.result)
            {
                output::print_note(&note);
            }
            kept.merge_delta(tools, &base, &answer.delta).await?;
            printed.map(|()| 0)
        }
        CancelOutcome::Finished(Err(error)) => print_json(&error.to_json()).map(|()| 1),
        CancelOutcome::Cancelled(ended) => {
            if let Err(error) = ended {
                output::note!("what the call started may go on: {error}");
            }
            Err(InterruptedError.into())
        }
    }
}

/// Ends a session that has no file; for one that has, closes only the connections of its skills. A signal stops the
/// wait, and so does a daemon that takes too long: the workspace's idle timeout does the rest.
pub(crate) async fn end_session(
    tools: &Toolset,
    kept: &SessionFile,
    interrupt: &mut InterruptSignals,
) -> anyhow::Result<()> {
    let session = &kept.session;
    let ending = async {
        if kept.is_kept() {
            tools.disconnect(session).await;
            return Ok(());
        }
        tools.end(session).await
    };
    match interrupt.race(timeout(END_TIMEOUT, ending)).await {
        Ok(Ok(ended)) => Ok(ended?),
        Ok(Err(_)) => anyhow::bail!(
            "the session with workspace {} has not ended within {} s",
            session.workspace_id(),
            END_TIMEOUT.as_secs()
        ),
        Err(InterruptedError) => {
            output::note!(
                "did not wait for the end of the session with workspace {}",
                session.workspace_id()
            );
            Err(InterruptedError.into())
        }
    }
}

impl End {
    async fn run(self, client: &Client) -> anyhow::Result<u8> {
        let kept = SessionFile::open_existing(&self.session_file)?;
        let tools = Toolset::new(client.clone(), ToolOptions::default(), HostTools::new())?;
        tools.end(&kept.session).await?;
        let Session {
            session, workspace, ..
        } = kept.session.clone();
        kept.forget()?;
        if output::is_json() {
            output::print_value(&json!({ "ended": session }))?;
        }
        match workspace.as_str() {
            "" => output::note!("the session's workspace and its file are gone"),
            other => output::note!("the session's file is gone; workspace {other} stays"),
        }
        Ok(0)
    }
}

/// Prints one line of JSON, or indented JSON for people.
fn print_json(value: &Value) -> anyhow::Result<()> {
    if output::is_json() {
        return output::print_value(value);
    }
    let text = safe_text::escape_json(&format!("{value:#}\n"));
    output::print_bytes(text.as_bytes())?;
    Ok(())
}

/// Returns a new session for one call or one connection.
pub(crate) fn new_session() -> (Session, SessionState) {
    let session = Session {
        app: "skillctl".into(),
        session: new_exec_id(),
        ..Session::default()
    };
    (session, SessionState::new())
}
