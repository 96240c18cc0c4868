//! `skillctl rm` and `forget`, and deleting several things with one command.

use clap::Args;
use clap_complete::engine::ArgValueCompleter;
use serde_json::json;
use skilld_client::{Client, Error, short_id};

use crate::commands::complete;
use crate::output::{self, error_report};

/// Delete workspaces by ID, execs by ID/EXEC.
///
/// A workspace goes with everything in it. An exec that runs is killed; its output is forgotten.
#[derive(Debug, Args)]
#[command(after_help = "Example:\n  skillctl rm job-7/x-1 job-7")]
pub(crate) struct Rm {
    #[arg(required = true, value_name = "ID|ID/EXEC", add = ArgValueCompleter::new(complete::offer_workspaces_and_execs))]
    names: Vec<String>,
    /// Succeed for those that do not exist.
    #[arg(long)]
    allow_missing: bool,
}

/// Forget execs and their output; one that runs is killed.
#[derive(Debug, Args)]
#[command(after_help = "Example:\n  skillctl forget job-7/x-1 job-7/x-2")]
pub(crate) struct ForgetExecs {
    /// Execs to remove.
    #[arg(value_name = "ID/EXEC", required = true, add = ArgValueCompleter::new(complete::offer_execs))]
    execs: Vec<String>,
}

impl Rm {
    pub(crate) async fn run(self, client: &Client) -> anyhow::Result<u8> {
        let missing = self.allow_missing;
        delete_each(&self.names, async |name| {
            match short_id(name).contains('/') {
                true => client.delete_exec(name).await.or_else(|error| {
                    let gone = missing && error.code() == Some(tonic::Code::NotFound);
                    if gone { Ok(()) } else { Err(error) }
                }),
                false if missing => client.delete_workspace_if_exists(name).await,
                false => client.delete_workspace(name).await,
            }
        })
        .await
    }
}

impl ForgetExecs {
    pub(crate) async fn run(self, client: &Client) -> anyhow::Result<u8> {
        delete_each(&self.execs, async |name| client.delete_exec(name).await).await
    }
}

/// Deletes the named things one by one, also after a failure, and prints what was deleted. Returns 1 if any failed.
pub(crate) async fn delete_each(
    names: &[String],
    delete: impl AsyncFn(&str) -> Result<(), Error>,
) -> anyhow::Result<u8> {
    let mut code = 0;
    let mut deleted = Vec::new();
    for name in names {
        match delete(name).await {
            Ok(()) => deleted.push(short_id(name)),
            Err(error) => code = error_report::report_error(&error.into(), 1),
        }
    }
    print_deleted(&deleted)?;
    Ok(code)
}

/// Prints the names of what was deleted: one per line, or `{"deleted": [...]}`.
pub(crate) fn print_deleted(deleted: &[String]) -> anyhow::Result<()> {
    if output::is_json() {
        return output::print_value(&json!({ "deleted": deleted }));
    }
    output::print_text(&output::text_lines(deleted.iter()))?;
    Ok(())
}

/// Checks that either a version or `--all` is given, so that all versions are not deleted by mistake.
pub(crate) fn check_all_flag(has_version: bool, all: bool, example: &str) -> anyhow::Result<()> {
    match (has_version, all) {
        (false, false) => {
            anyhow::bail!("name a version, as in {example}, or say --all to delete every one")
        }
        (true, true) => anyhow::bail!("--all deletes every version: leave out the @ or the --all"),
        (false, true) | (true, false) => Ok(()),
    }
}
