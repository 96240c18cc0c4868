//! `skillctl rm` and `forget`, and deleting several things with one command.

use clap::Args;
use clap_complete::engine::ArgValueCompleter;
use serde_json::json;
use skilld_client::{Error, short_id};

use crate::context::Context;
use crate::{complete, fail, output};

/// Delete workspaces by ID, execs by ID/EXEC.
///
/// A workspace goes with everything in it. An exec that runs is killed; its output is forgotten.
#[derive(Debug, Args)]
#[command(after_help = "Example:\n  skillctl rm job-7/x-1 job-7")]
pub(crate) struct Rm {
    #[arg(required = true, value_name = "ID|ID/EXEC", add = ArgValueCompleter::new(complete::workspaces_and_execs))]
    names: Vec<String>,
    /// Succeed for those that do not exist.
    #[arg(long)]
    allow_missing: bool,
}

/// Forget execs and their output; one that runs is killed.
#[derive(Debug, Args)]
#[command(after_help = "Example:\n  skillctl forget job-7/x-1 job-7/x-2")]
pub(crate) struct Forget {
    /// The execs.
    #[arg(value_name = "ID/EXEC", required = true, add = ArgValueCompleter::new(complete::execs))]
    execs: Vec<String>,
}

impl Rm {
    pub(crate) async fn run(self, context: &Context) -> anyhow::Result<u8> {
        let client = &context.client;
        let missing = self.allow_missing;
        delete_each(context, &self.names, async |name| {
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

impl Forget {
    pub(crate) async fn run(self, context: &Context) -> anyhow::Result<u8> {
        let client = &context.client;
        delete_each(context, &self.execs, async |name| {
            client.delete_exec(name).await
        })
        .await
    }
}

/// Deletes all of them, also after a failure, and prints what was deleted. Returns 1 if any failed.
pub(crate) async fn delete_each(
    context: &Context,
    names: &[String],
    delete: impl AsyncFn(&str) -> Result<(), Error>,
) -> anyhow::Result<u8> {
    let mut code = 0;
    let mut deleted = Vec::new();
    for name in names {
        match delete(name).await {
            Ok(()) => deleted.push(short_id(name)),
            Err(error) => code = fail::report(&error.into()),
        }
    }
    print_deleted(context, &deleted)?;
    Ok(code)
}

/// Prints the names of what was deleted: one per line, or `{"deleted": [...]}`.
pub(crate) fn print_deleted(context: &Context, deleted: &[String]) -> anyhow::Result<()> {
    if context.output.is_json() {
        return context.output.value(&json!({ "deleted": deleted }));
    }
    context.output.text(&output::lines(deleted))?;
    Ok(())
}
