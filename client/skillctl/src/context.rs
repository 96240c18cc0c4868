//! `skillctl context`: named endpoints and credentials, in a file of the user.

use std::collections::BTreeMap;
use std::io::Write as _;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, anyhow, bail};
use clap::{Args, Subcommand};
use serde::{Deserialize, Serialize};
use serde_json::json;
use tempfile::NamedTempFile;

use crate::connection_args::ConnectionArgs;
use crate::output;
use crate::partial_file::parent_directory;

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

/// Endpoint and credentials under a name.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Context {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) endpoint: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) ca_file: Option<PathBuf>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) cert_file: Option<PathBuf>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) key_file: Option<PathBuf>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) token_file: Option<PathBuf>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) tenant: Option<String>,
}

/// All contexts of the user, and their file.
#[derive(Debug, Default)]
pub(crate) struct ContextFile {
    path: PathBuf,
    contexts: SavedContexts,
}

/// Content of the file.
#[derive(Debug, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct SavedContexts {
    #[serde(skip_serializing_if = "Option::is_none")]
    current: Option<String>,
    #[serde(default)]
    contexts: BTreeMap<String, Context>,
}

/// Context with its name, as an item of a list.
#[derive(Debug, Serialize)]
struct NamedContext<'a> {
    name: &'a str,
    #[serde(flatten)]
    context: &'a Context,
}

impl ContextFile {
    /// Reads the file; a missing one has no contexts.
    pub(crate) fn load() -> anyhow::Result<Self> {
        let Some(path) = contexts_path() else {
            return Ok(Self::default());
        };
        let text = match std::fs::read_to_string(&path) {
            Ok(text) => text,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => String::new(),
            Err(error) => {
                return Err(error).with_context(|| format!("cannot read {}", path.display()));
            }
        };
        let contexts = toml::from_str(&text).map_err(|error| {
            let (path, problem) = (path.display(), error.message());
            anyhow!("{path} is damaged: {problem}: mend or delete it")
        })?;
        Ok(Self { path, contexts })
    }

    /// Finds a context by name.
    fn find(&self, name: &str) -> anyhow::Result<&Context> {
        let found = self.contexts.contexts.get(name);
        found.with_context(|| {
            format!("there is no context {name:?}; `skillctl context list` shows those that exist")
        })
    }

    /// Finds a context by name, and refuses one without an endpoint: its credentials would go to any daemon.
    pub(crate) fn find_usable(&self, name: &str) -> anyhow::Result<Context> {
        let context = self.find(name)?;
        if context.endpoint.is_none() {
            bail!(
                "the context {name:?} has no endpoint: make it again with `skillctl context set {name} --endpoint ENDPOINT`"
            );
        }
        Ok(context.clone())
    }

    /// Returns the context in use; `None` if the user chose none.
    pub(crate) fn current(&self) -> anyhow::Result<Option<Context>> {
        let current = self.contexts.current.as_deref();
        current.map(|name| self.find_usable(name)).transpose()
    }

    fn save(&self) -> anyhow::Result<()> {
        if self.path.as_os_str().is_empty() {
            bail!("HOME is not set: name the file of contexts in SKILLD_CONTEXTS");
        }
        let directory = parent_directory(&self.path);
        std::fs::create_dir_all(directory)
            .with_context(|| format!("cannot make {}", directory.display()))?;
        let text = toml::to_string(&self.contexts)?;
        let mut file = NamedTempFile::new_in(directory)?;
        let permissions = std::fs::Permissions::from_mode(0o600);
        file.as_file().set_permissions(permissions)?;
        file.write_all(text.as_bytes())?;
        file.persist(&self.path)?;
        Ok(())
    }
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
    let contexts = saved.contexts.iter();
    let contexts: Vec<_> = contexts
        .map(|(name, context)| NamedContext { name, context })
        .collect();
    if output::is_json() {
        return output::print_value(&json!({
            "current": saved.current,
            "contexts": contexts,
        }));
    }
    let shown = |path: &Option<PathBuf>| {
        let path = path.as_deref().map(Path::display);
        path.map(|path| path.to_string()).unwrap_or_default()
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

/// Returns the path of the file; `None` without a home directory.
fn contexts_path() -> Option<PathBuf> {
    let variable = |name| std::env::var_os(name).filter(|value| !value.is_empty());
    if let Some(path) = variable("SKILLD_CONTEXTS") {
        return Some(path.into());
    }
    let configuration = variable("XDG_CONFIG_HOME").map(PathBuf::from);
    let configuration =
        configuration.or_else(|| Some(PathBuf::from(variable("HOME")?).join(".config")))?;
    Some(configuration.join("skilld/contexts.toml"))
}
