//! `skillctl tool`: what a model is offered, and what a call of it answers, from a shell.

mod kept;
mod saved;

use std::io::Read as _;
use std::path::PathBuf;
use std::pin::pin;
use std::time::Duration;

use anyhow::Context as _;
use clap::{Args, Subcommand, ValueEnum};
use serde_json::{Map, Value, json};
use skilld_client::new_exec_id;
use skilld_client::state::SessionState;
use skilld_client::tools::host::HostTools;
use skilld_client::tools::{Ended, Family, Options, Session, Toolset};
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;

use crate::context::Context;
use crate::interrupt::{Interrupt, Interrupted};
use crate::output::{self, Table};
pub(crate) use kept::Kept;
pub(crate) use saved::{saved_artifacts, where_saved};

/// Bytes of arguments read from stdin at most: a request of the API has fewer.
const ARGUMENTS_BYTES_MAX: u64 = 4 * 1024 * 1024;

/// The end of a session is waited for no longer than this.
pub(crate) const END_WITHIN: Duration = Duration::from_secs(30);

/// Use the skill tools as a model would.
#[derive(Debug, Subcommand)]
#[command(
    after_help = "Example:\n  skillctl tool call skill_load '{\"skill\": \"csv-report\"}' --session-file chat.json"
)]
pub(crate) enum Tool {
    List(List),
    Call(Call),
    End(End),
}

/// Which tools, for whom.
#[derive(Debug, Args)]
pub(crate) struct Choice {
    /// Whose tools; without it those that the options name, else trpc's.
    #[arg(long, value_enum)]
    family: Option<FamilyName>,
    /// A JSON file with the host application's decisions: profile, tools, skills, pool, load_mode,
    /// allowed_commands and so on (docs/tools.md has them all).
    #[arg(long, value_name = "FILE")]
    options: Option<PathBuf>,
    /// Where the session is kept: its names and its state, as JSON. Made if it is not there. Without it the call is a
    /// session of its own, whose workspace is deleted afterwards.
    #[arg(long, value_name = "FILE")]
    session_file: Option<PathBuf>,
}

/// The families, as they are typed.
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
    choice: Choice,
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
    /// Its arguments, a JSON object; - reads them from stdin.
    #[arg(default_value = "{}", value_name = "JSON")]
    arguments: String,
    /// The model's id for the call: a call repeated with it runs nothing twice. Without it each call is a new one.
    #[arg(long, value_name = "ID")]
    id: Option<String>,
    #[command(flatten)]
    choice: Choice,
}

/// End a kept session: delete its workspace and the file.
#[derive(Debug, Args)]
#[command(after_help = "Example:\n  skillctl tool end --session-file chat.json")]
pub(crate) struct End {
    /// Where the session is kept.
    #[arg(long, value_name = "FILE", required = true)]
    session_file: PathBuf,
}

impl Choice {
    /// The tools that were chosen.
    pub(crate) fn toolset(&self, context: &Context) -> anyhow::Result<Toolset> {
        let mut options = match &self.options {
            Some(file) => read_options(file)?,
            None => serde_json::from_value(defaults())?,
        };
        if let Some(family) = self.family {
            options.family = family.into();
        }
        Ok(Toolset::new(
            context.client.clone(),
            options,
            HostTools::new(),
        )?)
    }

    /// The session, which is a new one if none is kept.
    pub(crate) fn kept(&self) -> anyhow::Result<Kept> {
        Kept::open(self.session_file.as_deref())
    }
}

/// What is otherwise here than in a program that makes its model's prompts: there is no prompt that could bring a skill's
/// text.
fn defaults() -> Value {
    json!({"inline_skills": true})
}

fn read_options(file: &std::path::Path) -> anyhow::Result<Options> {
    let text =
        std::fs::read_to_string(file).with_context(|| format!("cannot read {}", file.display()))?;
    let what = || format!("{} holds no options for tools", file.display());
    let mut options = defaults();
    let given: Map<String, Value> = serde_json::from_str(&text).with_context(what)?;
    if let Some(options) = options.as_object_mut() {
        options.extend(given);
    }
    serde_json::from_value(options).with_context(what)
}

impl Tool {
    pub(crate) async fn run(self, context: &Context) -> anyhow::Result<u8> {
        match self {
            Self::List(command) => command.run(context).await,
            Self::Call(command) => command.run(context).await,
            Self::End(command) => command.run(context).await,
        }
    }
}

impl List {
    async fn run(self, context: &Context) -> anyhow::Result<u8> {
        let kept = self.choice.kept()?;
        let definitions = self
            .choice
            .toolset(context)?
            .definitions(kept.session(), kept.state())
            .await?;
        if context.output.is_json() {
            return print_json(context, &json!({ "tools": definitions })).map(|()| 0);
        }
        let mut table = Table::new(["NAME", "DESCRIPTION"]);
        for definition in definitions {
            let first = definition.description.lines().next().unwrap_or_default();
            table.row([definition.name, first.to_owned()]);
        }
        context.output.bytes(table.text().as_bytes())?;
        Ok(0)
    }
}

impl Call {
    async fn run(self, context: &Context) -> anyhow::Result<u8> {
        let arguments = self.arguments()?;
        let tools = self.choice.toolset(context)?;
        let mut kept = self.choice.kept()?;
        let call = skilld_client::tools::Call {
            id: self.id.unwrap_or_else(new_exec_id),
            name: self.name,
            arguments,
        };
        let mut interrupt = Interrupt::new()?;
        let made = call_unless_interrupted(&tools, &kept, call, &mut interrupt).await?;
        let told = report(context, &tools, &mut kept, made).await;
        let ended = end(&tools, &kept, &mut interrupt).await;
        let code = told?;
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
            anyhow::bail!("the arguments are longer than {ARGUMENTS_BYTES_MAX} bytes");
        }
        Ok(Value::String(text))
    }
}

/// Nobody is left to want what an interrupted call started. Interrupted once more, it is not waited for.
async fn call_unless_interrupted(
    tools: &Toolset,
    kept: &Kept,
    call: skilld_client::tools::Call,
    interrupt: &mut Interrupt,
) -> Result<Ended, Interrupted> {
    let given_up = CancellationToken::new();
    let (session, state) = (kept.session(), kept.state());
    let calling = tools.call_or_give_up(session, state, call, given_up.cancelled());
    let mut calling = pin!(calling);
    tokio::select! {
        biased;
        made = &mut calling => return Ok(made),
        () = interrupt.wait() => given_up.cancel(),
    }
    interrupt.race(calling).await
}

/// Prints what a call gave and keeps what it changed; the code to exit with. That something cannot be kept is no reason not
/// to say what was done.
async fn report(
    context: &Context,
    tools: &Toolset,
    kept: &mut Kept,
    made: Ended,
) -> anyhow::Result<u8> {
    match made {
        Ended::Called(Ok(answer)) => {
            let base = kept.state().clone();
            let printed = print_json(context, &answer.result);
            if !kept.is_kept()
                && let Some(note) = where_saved(kept.session(), &answer.result)
            {
                output::note(&note);
            }
            kept.change(tools, &base, &answer.delta).await?;
            printed.map(|()| 0)
        }
        Ended::Called(Err(error)) => print_json(context, &error.to_json()).map(|()| 1),
        Ended::GivenUp(ended) => {
            if let Err(error) = ended {
                output::note(&format!("what the call started may go on: {error}"));
            }
            Err(Interrupted.into())
        }
    }
}

/// Ends a session that is not kept; of one that is only the connections that its skills have. A signal gives that up, and
/// so does a daemon that takes too long: the workspace's idle timeout does the rest.
pub(crate) async fn end(
    tools: &Toolset,
    kept: &Kept,
    interrupt: &mut Interrupt,
) -> anyhow::Result<()> {
    let session = kept.session();
    let ending = async {
        if kept.is_kept() {
            tools.disconnect(session).await;
            return Ok(());
        }
        tools.end(session).await
    };
    match interrupt.race(timeout(END_WITHIN, ending)).await {
        Ok(Ok(ended)) => Ok(ended?),
        Ok(Err(_)) => anyhow::bail!(
            "the session with workspace {} has not ended within {} s",
            session.workspace_id(),
            END_WITHIN.as_secs()
        ),
        Err(Interrupted) => {
            output::note(&format!(
                "did not wait for the end of the session with workspace {}",
                session.workspace_id()
            ));
            Err(Interrupted.into())
        }
    }
}

impl End {
    async fn run(self, context: &Context) -> anyhow::Result<u8> {
        let kept = Kept::existing(&self.session_file)?;
        let tools = Toolset::new(context.client.clone(), Options::default(), HostTools::new())?;
        tools.end(kept.session()).await?;
        let session = kept.session().session.clone();
        kept.forget()?;
        if context.output.is_json() {
            context.output.value(&json!({ "ended": session }))?;
        }
        output::note("the session's workspace and its file are gone");
        Ok(0)
    }
}

/// One line of JSON, or for people the same on many, with nothing in it that moves a terminal.
fn print_json(context: &Context, value: &Value) -> anyhow::Result<()> {
    let mut text = if context.output.is_json() {
        serde_json::to_string(value)?
    } else {
        escape_controls(&serde_json::to_string_pretty(value)?)
    };
    text.push('\n');
    context.output.bytes(text.as_bytes())?;
    Ok(())
}

/// JSON has the controls up to U+001F escaped; those beyond it can stand in strings only, too.
fn escape_controls(json: &str) -> String {
    let mut escaped = String::with_capacity(json.len());
    for char in json.chars() {
        match char {
            '\u{7f}'..='\u{9f}' => escaped += &format!("\\u{:04x}", u32::from(char)),
            char => escaped.push(char),
        }
    }
    escaped
}

/// A session for one call or one connection.
pub(crate) fn new_session() -> (Session, SessionState) {
    let session = Session {
        app: "skillctl".into(),
        session: new_exec_id(),
        ..Session::default()
    };
    (session, SessionState::new())
}
