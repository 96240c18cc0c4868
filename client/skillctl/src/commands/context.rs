//! `skillctl context`: named endpoints and credentials, in a file of the user.

use std::path::PathBuf;

use anyhow::bail;
use clap::{Args, Subcommand};
use serde::Serialize;
use serde_json::json;

use crate::commands::connection_args::ConnectionArgs;
use crate::commands::context_file::{Context, ContextFile, SavedContexts};
use crate::output;

/// Names of endpoints and credentials, like kubectl's contexts.
#[derive(Debug, Subcommand)]
#[command(after_help = "\
Contexts are kept in $XDG_CONFIG_HOME/skilld/contexts.toml (~/.config if the variable is unset), or in the file that \
SKILLD_CONTEXTS names. They have the names of files with secrets, never secrets.

Example:
  skillctl context set prod --endpoint https://skilld.example.org:7443 --token-file ~/.skilld-token
  skillctl context use prod")]
pub(crate) enum ContextCommand {
    /// Make or replace a context with the flags of the connection. Variables are not kept.
    #[command(
        after_help = "Example:\n  skillctl context set prod --endpoint https://skilld.example.org:7443 --token-file ~/.skilld-token"
    )]
    Set(ContextName),
    /// Use a context in every command that names no endpoint.
    #[command(after_help = "Example:\n  skillctl context use prod")]
    Use(ContextName),
    /// List the contexts; the one in use has a star.
    #[command(visible_alias = "ls", after_help = "Example:\n  skillctl context list")]
    List,
    /// Delete a context.
    #[command(
        visible_alias = "rm",
        after_help = "Example:\n  skillctl context delete prod"
    )]
    Delete(ContextName),
}

/// Name of a context.
#[derive(Debug, Args)]
pub(crate) struct ContextName {
    name: String,
}

/// Context with its name, as an item of a list.
#[derive(Debug, Serialize)]
struct NamedContext<'a> {
    name: &'a str,
    #[serde(flatten)]
    context: &'a Context,
}

impl ContextCommand {
    /// Runs the command; it needs no daemon.
    pub(crate) fn run(self, connection: &ConnectionArgs) -> anyhow::Result<u8> {
        let mut file = ContextFile::load()?;
        match self {
            Self::Set(ContextName { name }) => {
                let context = context_of(connection)?;
                if context.endpoint.is_none() {
                    bail!(
                        "a context needs --endpoint; variables such as SKILLD_ENDPOINT are not kept in it"
                    );
                }
                file.contexts.contexts.insert(name.clone(), context);
                file.save()?;
                output::print_outcome(&json!({"set": name}), &format!("set context {name}"))?;
            }
            Self::Use(ContextName { name }) => {
                file.find_usable(&name)?;
                file.contexts.current = Some(name.clone());
                file.save()?;
                output::print_outcome(&json!({"current": name}), &format!("using context {name}"))?;
            }
            Self::Delete(ContextName { name }) => {
                file.find(&name)?;
                file.contexts.contexts.remove(&name);
                if file.contexts.current.as_deref() == Some(name.as_str()) {
                    file.contexts.current = None;
                }
                file.save()?;
                let deleted = json!({"deleted": [&name]});
                output::print_outcome(&deleted, &format!("deleted context {name}"))?;
            }
            Self::List => print_contexts(&file.contexts)?,
        }
        Ok(0)
    }
}

/// Makes a context of the flags, with absolute paths.
fn context_of(connection: &ConnectionArgs) -> anyhow::Result<Context> {
    let absolute = |path: &Option<PathBuf>| path.as_ref().map(std::path::absolute).transpose();
    let mut endpoint = connection.endpoint.clone();
    if let Some(text) = &mut endpoint
        && let Some(path) = text.strip_prefix("unix:")
        && !path.starts_with('/')
    {
        *text = format!("unix:{}", std::path::absolute(path)?.display());
    }
    Ok(Context {
        endpoint,
        ca_file: absolute(&connection.ca_file)?,
        cert_file: absolute(&connection.cert_file)?,
        key_file: absolute(&connection.key_file)?,
        token_file: absolute(&connection.token_file)?,
        tenant: connection.tenant.clone(),
    })
}

fn print_contexts(saved: &SavedContexts) -> anyhow::Result<()> {
    let contexts: Vec<_> = saved
        .contexts
        .iter()
        .map(|(name, context)| NamedContext { name, context })
        .collect();
    if output::is_json() {
        return output::print_value(&json!({
            "current": saved.current,
            "contexts": contexts,
        }));
    }
    let shown = |path: &Option<PathBuf>| {
        path.as_deref()
            .map(|path| path.display().to_string())
            .unwrap_or_default()
    };
    let id = |item: &NamedContext<'_>| item.name.to_owned();
    let row = |&NamedContext { name, context }: &NamedContext<'_>| {
        let is_current = saved.current.as_deref() == Some(name);
        [
            format!("{}{name}", if is_current { "*" } else { "" }),
            context.endpoint.clone().unwrap_or_default(),
            context.tenant.clone().unwrap_or_default(),
            shown(&context.token_file),
            shown(&context.cert_file),
        ]
    };
    let header = ["NAME", "ENDPOINT", "TENANT", "TOKEN FILE", "CERTIFICATE"];
    output::print_text(&output::list_text(&contexts, id, header, row))?;
    Ok(())
}
