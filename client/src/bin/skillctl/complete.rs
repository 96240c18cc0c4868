//! Shell completion: the script for a shell, and the names that only the daemon knows.

use std::env;
use std::ffi::OsStr;
use std::time::Duration;

use clap::{Args, CommandFactory};
use clap_complete::Shell;
use clap_complete::engine::{CompletionCandidate, PathCompleter, ValueCompleter as _};
use clap_complete::env::{CompleteEnv, Shells};
use skilld_client::v1::{
    ListArtifactsRequest, ListExecsRequest, ListSkillsRequest, ListWorkspacesRequest,
};
use skilld_client::{Client, DEFAULT_ENDPOINT, Error, short_id};
use tokio::time::timeout;

use crate::cli::Cli;
use crate::output::Output;

/// Set by the completion script when it calls this program.
const VARIABLE: &str = "SKILLCTL_COMPLETE";

/// How long a completion waits for the daemon before it offers nothing.
const ANSWER_WITHIN: Duration = Duration::from_secs(2);

/// Names offered at most: one page of a list.
const NAMES_MAX: i32 = 200;

/// Print a completion script for a shell. It completes commands, flags, and the names of workspaces, execs and skills.
#[derive(Debug, Args)]
#[command(after_help = "Example:\n  source <(skillctl completion bash)")]
pub(crate) struct Completion {
    shell: Shell,
}

impl Completion {
    pub(crate) fn run(&self, output: &Output) -> anyhow::Result<u8> {
        let shells = Shells::builtins();
        let mut script = Vec::new();
        if let Some(shell) = shells.completer(&self.shell.to_string()) {
            shell.write_registration(VARIABLE, "skillctl", "skillctl", "skillctl", &mut script)?;
        }
        output.bytes(&script)?;
        Ok(0)
    }
}

/// Answers a completion script; returns `false` if this is a normal run.
pub(crate) fn run() -> clap::error::Result<bool> {
    let completing = CompleteEnv::with_factory(Cli::command).var(VARIABLE);
    completing.try_complete(env::args_os(), env::current_dir().ok().as_deref())
}

/// Offers the ids of workspaces.
pub(crate) fn workspaces(current: &OsStr) -> Vec<CompletionCandidate> {
    ask(current, async |client| list_workspaces(&client).await)
}

/// Offers `ID/EXEC`: workspaces up to the slash, then the workspace's execs.
pub(crate) fn execs(current: &OsStr) -> Vec<CompletionCandidate> {
    let workspace = current
        .to_str()
        .and_then(|current| current.split_once('/'))
        .map(|(workspace, _)| workspace.to_owned());
    ask(current, async |client| {
        let Some(workspace) = workspace else {
            let ids = list_workspaces(&client).await?.into_iter();
            return Ok(ids.map(|id| format!("{id}/")).collect());
        };
        let request = ListExecsRequest {
            workspace,
            page_size: NAMES_MAX,
            ..Default::default()
        };
        let execs = client.list_execs(request).await?.execs;
        Ok(execs.iter().map(|exec| short_id(&exec.name)).collect())
    })
}

/// Offers local files, and `ID:` of workspaces.
pub(crate) fn copy_sides(current: &OsStr) -> Vec<CompletionCandidate> {
    let mut offered = PathCompleter::any().stdio().complete(current);
    offered.extend(ask(current, async |client| {
        let ids = list_workspaces(&client).await?.into_iter();
        Ok(ids.map(|id| format!("{id}:")).collect())
    }));
    offered
}

/// Offers the names of skills.
pub(crate) fn skills(current: &OsStr) -> Vec<CompletionCandidate> {
    ask(current, async |client| {
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

/// Offers the names of artifacts of the empty scope.
pub(crate) fn artifacts(current: &OsStr) -> Vec<CompletionCandidate> {
    ask(current, async |client| {
        let request = ListArtifactsRequest {
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

/// Returns the names that begin with `current`; none if the daemon does not answer.
fn ask(
    current: &OsStr,
    list: impl AsyncFnOnce(Client) -> Result<Vec<String>, Error>,
) -> Vec<CompletionCandidate> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build();
    let asking = async {
        let client = Client::connect(&endpoint()).await?;
        list(client).await
    };
    let Ok(Ok(Ok(names))) =
        runtime.map(|runtime| runtime.block_on(async { timeout(ANSWER_WITHIN, asking).await }))
    else {
        return Vec::new();
    };
    let current = current.to_string_lossy();
    names
        .into_iter()
        .filter(|name| name.starts_with(&*current))
        .map(CompletionCandidate::new)
        .collect()
}

/// Returns the daemon's endpoint: as typed on the line that is completed, else of the environment.
#[expect(
    clippy::disallowed_methods,
    reason = "clap reads the variable elsewhere, but a line that is being completed is not parsed"
)]
fn endpoint() -> String {
    let words: Vec<String> = env::args().collect();
    let next = words.windows(2).find_map(|pair| match pair {
        [flag, endpoint] if flag == "--endpoint" => Some(endpoint.clone()),
        _ => None,
    });
    let joined = words
        .iter()
        .find_map(|word| word.strip_prefix("--endpoint=").map(ToOwned::to_owned));
    next.or(joined)
        .or_else(|| env::var("SKILLD_ENDPOINT").ok())
        .unwrap_or_else(|| DEFAULT_ENDPOINT.to_owned())
}
