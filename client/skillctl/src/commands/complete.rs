//! Shell completion: the script for a shell, and the names that only the daemon knows.

mod bash;

use std::env;
use std::ffi::OsStr;
use std::path::PathBuf;
use std::sync::OnceLock;
use std::time::Duration;

use clap::Args;
use clap_complete::Shell;
use clap_complete::engine::{CompletionCandidate, PathCompleter, ValueCompleter as _};
use clap_complete::env::{CompleteEnv, Elvish, Fish, Powershell, Shells, Zsh};
use skilld_client::v1::{
    ArtifactScope, ListArtifactsRequest, ListExecsRequest, ListSkillsRequest, ListWorkspacesRequest,
};
use skilld_client::{Client, Error, short_id};
use tokio::time::timeout;

use crate::commands::connection_args::ConnectionArgs;
use crate::output;
use crate::terminal::safe_text::plain_line;
use bash::BashCompleter;

/// Environment variable that a completion script sets when it calls this program.
const VARIABLE: &str = "SKILLCTL_COMPLETE";

/// Maximum time that a completion waits for the daemon before it offers nothing.
const ANSWER_WITHIN: Duration = Duration::from_secs(2);

/// Maximum number of names that a completion offers: one page of a list.
const NAMES_MAX: i32 = 200;

/// Completers of the supported shells, found by their names.
const SHELLS: Shells<'static> = Shells(&[&BashCompleter, &Elvish, &Fish, &Powershell, &Zsh]);

/// Words of the command line that is completed, if the script sent the line as one text.
static WORDS: OnceLock<Vec<String>> = OnceLock::new();

/// Print a completion script for a shell. It completes commands, flags, and the names of workspaces, execs and skills.
#[derive(Debug, Args)]
#[command(after_help = "Example:\n  source <(skillctl completion bash)")]
pub(crate) struct Completion {
    shell: Shell,
}

impl Completion {
    pub(crate) fn run(&self) -> anyhow::Result<u8> {
        let mut script = Vec::new();
        if let Some(shell) = SHELLS.completer(&self.shell.to_string()) {
            shell.write_registration(VARIABLE, "skillctl", "skillctl", "skillctl", &mut script)?;
        }
        output::print_bytes(&script)?;
        Ok(0)
    }
}

/// Answers a completion script by the command line that `factory` makes; returns `false` if this is a normal run.
pub(crate) fn answer_shell(factory: fn() -> clap::Command) -> clap::error::Result<bool> {
    let completing = CompleteEnv::with_factory(factory)
        .var(VARIABLE)
        .shells(SHELLS);
    completing.try_complete(env::args_os(), env::current_dir().ok().as_deref())
}

/// Offers workspaces by their ids, and `ID/EXEC` from the slash on.
pub(crate) fn offer_workspaces_and_execs(current: &OsStr) -> Vec<CompletionCandidate> {
    execs_or_workspaces(current, |ids| {
        let slashed: Vec<_> = ids.iter().map(|id| format!("{id}/")).collect();
        ids.into_iter().chain(slashed).collect()
    })
}

/// Offers the ids of workspaces as completions.
pub(crate) fn offer_workspaces(current: &OsStr) -> Vec<CompletionCandidate> {
    ask_daemon(current, async |client| list_workspaces(&client).await)
}

/// Offers `ID/EXEC`: workspaces up to the slash, then the workspace's execs.
pub(crate) fn offer_execs(current: &OsStr) -> Vec<CompletionCandidate> {
    execs_or_workspaces(current, |ids| {
        ids.into_iter().map(|id| format!("{id}/")).collect()
    })
}

/// Offers a workspace's execs from the slash on, and before it what `offers` makes of the workspaces' ids.
fn execs_or_workspaces(
    current: &OsStr,
    offers: impl FnOnce(Vec<String>) -> Vec<String>,
) -> Vec<CompletionCandidate> {
    let workspace = current
        .to_str()
        .and_then(|current| current.split_once('/'))
        .map(|(workspace, _)| workspace.to_owned());
    ask_daemon(current, async |client| {
        let Some(workspace) = workspace else {
            return Ok(offers(list_workspaces(&client).await?));
        };
        let request = ListExecsRequest {
            parent: workspace,
            page_size: NAMES_MAX,
            ..Default::default()
        };
        let execs = client.list_execs(request).await?.execs;
        Ok(execs.iter().map(|exec| short_id(&exec.name)).collect())
    })
}

/// Offers local files, and `ID:` of workspaces.
pub(crate) fn offer_copy_sides(current: &OsStr) -> Vec<CompletionCandidate> {
    let mut offered = PathCompleter::any().stdio().complete(current);
    offered.extend(ask_daemon(current, async |client| {
        let ids = list_workspaces(&client).await?.into_iter();
        Ok(ids.map(|id| format!("{id}:")).collect())
    }));
    offered
}

/// Offers the names of skills as completions.
pub(crate) fn offer_skills(current: &OsStr) -> Vec<CompletionCandidate> {
    ask_daemon(current, async |client| {
        let request = ListSkillsRequest {
            page_size: NAMES_MAX,
            ..Default::default()
        };
        let skills = client.list_skills(request).await?.skills;
        let mut names: Vec<_> = skills.iter().map(|skill| short_id(&skill.name)).collect();
        names.dedup();
        Ok(names)
    })
}

/// Offers the names of artifacts in the scope that the line gives.
pub(crate) fn offer_artifacts(current: &OsStr) -> Vec<CompletionCandidate> {
    ask_daemon(current, async |client| {
        let words = line_words();
        let value = |flag| flag_value(&words, flag).unwrap_or_default();
        let request = ListArtifactsRequest {
            scope: Some(ArtifactScope {
                app: value("--app"),
                user: value("--user"),
                session: value("--session"),
            }),
            page_size: NAMES_MAX,
            ..Default::default()
        };
        let artifacts = client.list_artifacts(request).await?.artifacts;
        let name = |name: &str| name.strip_prefix("artifacts/").unwrap_or(name).to_owned();
        Ok(artifacts.iter().map(|found| name(&found.name)).collect())
    })
}

async fn list_workspaces(client: &Client) -> Result<Vec<String>, Error> {
    let request = ListWorkspacesRequest {
        page_size: NAMES_MAX,
        ..Default::default()
    };
    let workspaces = client.list_workspaces(request).await?.workspaces;
    Ok(workspaces
        .iter()
        .map(|workspace| short_id(&workspace.name))
        .collect())
}

/// Asks the daemon for names and returns those that begin with `current`; none if it does not answer.
fn ask_daemon(
    current: &OsStr,
    list: impl AsyncFnOnce(Client) -> Result<Vec<String>, Error>,
) -> Vec<CompletionCandidate> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build();
    let asking = async {
        let client = line_connection().connect().await.ok()?;
        list(client).await.ok()
    };
    let Ok(Ok(Some(names))) =
        runtime.map(|runtime| runtime.block_on(async { timeout(ANSWER_WITHIN, asking).await }))
    else {
        return Vec::new();
    };
    let current = current.to_string_lossy();
    names
        .into_iter()
        // A shell shows names as they are, so one that could deceive a terminal is not offered.
        .filter(|name| name.starts_with(&*current) && plain_line(name) == *name)
        .map(CompletionCandidate::new)
        .collect()
}

/// Returns the connection flags of the line being completed.
fn line_connection() -> ConnectionArgs {
    let words = line_words();
    // A line that is being completed is not parsed by clap.
    let text = |flag: &str| flag_value(&words, flag);
    let file = |flag: &str| text(flag).map(PathBuf::from);
    ConnectionArgs {
        endpoint: text("--endpoint"),
        context: text("--context"),
        ca_file: file("--ca-file"),
        cert_file: file("--cert-file"),
        key_file: file("--key-file"),
        token_file: file("--token-file"),
        tenant: text("--tenant"),
    }
}

/// Stores the words of the command line that is completed, without their quotes.
fn set_line_words(words: Vec<String>) {
    // Set once per process, which completes one line.
    drop(WORDS.set(words));
}

/// Returns the words of the line that is completed; what is not UTF-8 in them is replaced.
fn line_words() -> Vec<String> {
    if let Some(words) = WORDS.get() {
        return words.clone();
    }
    let words = env::args_os();
    words
        .map(|word| word.to_string_lossy().into_owned())
        .collect()
}

/// Returns the value of a flag as it is typed: `--flag VALUE` or `--flag=VALUE`.
fn flag_value(words: &[String], flag: &str) -> Option<String> {
    let next = words.windows(2).find_map(|pair| match pair {
        [word, value] if word == flag => Some(value.clone()),
        _ => None,
    });
    let joined = || {
        words
            .iter()
            .filter_map(|word| word.strip_prefix(flag))
            .find_map(|rest| rest.strip_prefix('='))
            .map(str::to_owned)
    };
    next.or_else(joined)
}
