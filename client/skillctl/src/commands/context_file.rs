//! Contexts of the user, named endpoints and credentials, and the file that holds them.

use std::collections::BTreeMap;
use std::path::PathBuf;

use anyhow::{Context as _, anyhow, bail};
use serde::{Deserialize, Serialize};
use skilld_common::atomic_write::AtomicWrite;

use crate::commands::partial_file::parent_directory;

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
    pub(crate) contexts: SavedContexts,
}

/// Content of the file.
#[derive(Debug, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct SavedContexts {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) current: Option<String>,
    #[serde(default)]
    pub(crate) contexts: BTreeMap<String, Context>,
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
    pub(crate) fn find(&self, name: &str) -> anyhow::Result<&Context> {
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

    /// Replaces the file.
    pub(crate) fn save(&self) -> anyhow::Result<()> {
        if self.path.as_os_str().is_empty() {
            bail!("HOME is not set: name the file of contexts in SKILLD_CONTEXTS");
        }
        let directory = parent_directory(&self.path);
        std::fs::create_dir_all(directory)
            .with_context(|| format!("cannot make {}", directory.display()))?;
        let text = toml::to_string(&self.contexts)?;
        AtomicWrite::new(directory, text.as_bytes(), 0o600)?.install(&self.path)?;
        Ok(())
    }
}

/// Returns the path of the file; `None` without a home directory.
fn contexts_path() -> Option<PathBuf> {
    let variable = |name| std::env::var_os(name).filter(|value| !value.is_empty());
    if let Some(path) = variable("SKILLD_CONTEXTS") {
        return Some(path.into());
    }
    let configuration = variable("XDG_CONFIG_HOME")
        .map(PathBuf::from)
        .or_else(|| Some(PathBuf::from(variable("HOME")?).join(".config")))?;
    Some(configuration.join("skilld/contexts.toml"))
}
