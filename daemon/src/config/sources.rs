//! Sources of configuration values and their order: the embedded file, one file, the environment, flags.
//!
//! Merges the sources and deserializes the result. All faults of names, types and values are reported together, each
//! with the place where its value was given.

use std::path::{Path, PathBuf};

use figment::Figment;
use figment::providers::{Data, Format, Toml};
use figment::value::{Dict, Value};
use serde::de::DeserializeOwned;

use super::Config;
use super::derived_defaults::DerivedDefaults;
use super::environment::environment_keys;
use super::fault_list::FaultList;
use super::fault_text::fault_text;

/// The embedded reference file: every key, its default and its reason.
pub const DEFAULT_TOML: &str = include_str!("../../default.toml");

/// Pool whose built-in values other pools inherit.
const TEMPLATE_POOL: &str = "default";
/// Key of a pool that is inherited as the operator set it, from the pool of workspaces that name none: a pool must not
/// leave the sandbox that the operator chose because its section does not repeat it.
const OPERATOR_KEY: &str = "oci_runtime";

/// Maximum number of faults before deserialization gives up, so that it ends in any case.
const FAULTS_MAX: usize = 100;

/// Parses a TOML file of its own, with all its faults in one message, each with its key.
///
/// # Errors
/// The message.
pub(crate) fn parse_toml<T: DeserializeOwned>(text: &str) -> Result<T, String> {
    let parsed = Figment::from(Toml::string(text)).extract();
    parsed.map_err(|errors: figment::Error| {
        let faults = errors.into_iter().map(|error| match error.path.join(".") {
            key if key.is_empty() => fault_text(&error.kind),
            key => format!("{key}: {}", fault_text(&error.kind)),
        });
        faults.collect::<Vec<_>>().join("; ")
    })
}

/// Values given on the command line. They override all other sources.
#[derive(Debug, Clone, Default)]
pub struct ConfigFlags {
    /// Path of the configuration file (`--config`).
    pub config: Option<PathBuf>,
    /// Address of the socket (`--listen`).
    pub listen: Option<String>,
    /// State directory (`--state-dir`).
    pub state_dir: Option<PathBuf>,
    /// Log filter (`--log`).
    pub log: Option<String>,
}

/// Merged sources of configuration values.
pub(super) struct ConfigSources {
    merged: Figment,
    /// The embedded file alone, as values.
    defaults: Dict,
}

/// Result of deserializing the merged sources.
pub(super) struct ParsedConfig {
    /// Configuration with a default in place of each faulty value.
    pub(super) config: Config,
    /// Values as they were written, with derived defaults.
    pub(super) values: Dict,
}

// === impl ConfigSources ===

impl ConfigSources {
    /// Merges the embedded file and `text`, without environment and flags.
    pub(super) fn from_text(text: &str) -> Self {
        Self::new(Figment::from(Toml::string(DEFAULT_TOML)).merge(Toml::string(text)))
    }

    /// Merges all sources in the documented order.
    ///
    /// # Errors
    /// The fault of a configuration file that cannot be read again; figment would treat it as empty.
    pub(super) fn from_all(flags: &ConfigFlags) -> Result<Self, String> {
        let mut merged = Figment::from(Toml::string(DEFAULT_TOML));
        if let Some(path) = &flags.config {
            check_readable(path)?;
            merged = merged.merge(Data::<Toml>::file_exact(path));
        }
        merged = merged.merge(environment_keys());
        let state_dir = flags
            .state_dir
            .as_ref()
            .map(|path| path.display().to_string());
        for (key, value) in [
            ("listen", flags.listen.clone()),
            ("state_dir", state_dir),
            ("log", flags.log.clone()),
        ] {
            if let Some(value) = value {
                merged = merged.merge((key, value));
            }
        }
        Ok(Self::new(merged))
    }

    fn new(merged: Figment) -> Self {
        let defaults = Figment::from(Toml::string(DEFAULT_TOML))
            .extract()
            .unwrap_or_default();
        Self { merged, defaults }
    }

    /// Deserializes the merged values. A faulty value is reported and replaced by its default, so that the next fault
    /// is found too. Returns `None` if that does not lead to a configuration.
    pub(super) fn parse(
        &self,
        derived: &DerivedDefaults,
        faults: &mut FaultList<'_>,
    ) -> Option<ParsedConfig> {
        let mut written: Dict = match self.merged.extract() {
            Ok(values) => values,
            Err(error) => {
                add_faults(faults, error);
                return None;
            }
        };
        self.fill_pools(&mut written);
        loop {
            let mut values = written.clone();
            derived.fill(&mut values, self.is_given("skills.roots"));
            let error = match Value::from(values.clone()).deserialize::<Config>() {
                Ok(config) => return Some(ParsedConfig { config, values }),
                Err(error) => error,
            };
            let path = error.path.clone();
            add_faults(faults, error);
            if faults.len() >= FAULTS_MAX || !self.reset(&mut written, &path) {
                return None;
            }
        }
    }

    /// Returns the value of `log_format`; `None` if a source can't be parsed.
    pub(super) fn log_format(&self) -> Option<String> {
        self.merged.find_value("log_format").ok()?.into_string()
    }

    /// Returns `true` if a source other than the embedded file sets this key.
    pub(super) fn is_given(&self, key: &str) -> bool {
        self.merged
            .find_metadata(key)
            .is_some_and(|metadata| !metadata.name.contains("TOML source string"))
    }

    /// Returns where the value of a key was given, in parentheses: a file, the environment, a flag. Empty for a default.
    pub(super) fn place(&self, key: &str) -> String {
        let Some(metadata) = self.merged.find_metadata(key) else {
            return String::new();
        };
        match &metadata.source {
            Some(figment::Source::File(path)) => format!(" (in {})", path.display()),
            Some(figment::Source::Code(_)) => " (on the command line)".to_owned(),
            _ if metadata.name.contains("environment") => {
                let name = key.to_uppercase().replace('.', "__");
                format!(" (in the environment, SKILLD_{name})")
            }
            _ => String::new(),
        }
    }

    /// Fills the keys that pools leave out: [`OPERATOR_KEY`] from the configured default pool, the others from the
    /// embedded file's.
    fn fill_pools(&self, root: &mut Dict) {
        let Some(mut template) = self
            .defaults
            .get("pools")
            .and_then(Value::as_dict)
            .and_then(|pools| pools.get(TEMPLATE_POOL)?.as_dict())
            .cloned()
        else {
            return;
        };
        let default_pool = root
            .get("default_pool")
            .and_then(Value::as_str)
            .unwrap_or(TEMPLATE_POOL)
            .to_owned();
        let Some(Value::Dict(_, pools)) = root.get_mut("pools") else {
            return;
        };
        let chosen = |pool: &str| pools.get(pool)?.as_dict()?.get(OPERATOR_KEY).cloned();
        if let Some(chosen) = chosen(&default_pool).or_else(|| chosen(TEMPLATE_POOL)) {
            template.insert(OPERATOR_KEY.to_owned(), chosen);
        }
        for pool in pools.values_mut() {
            if let Value::Dict(_, pool) = pool {
                for (key, value) in &template {
                    pool.entry(key.clone()).or_insert_with(|| value.clone());
                }
            }
        }
    }

    /// Replaces a faulty value by its default, or removes the key if it has none. Returns `false` if nothing changed.
    fn reset(&self, root: &mut Dict, path: &[String]) -> bool {
        // A faulty element of a list has no default; the loop then goes up and resets the whole list.
        for length in (1..=path.len()).rev() {
            let Some((key, parents)) = path.get(..length).and_then(<[String]>::split_last) else {
                continue;
            };
            let default = self.default_value(parents, key);
            let Some(table) = find_table(root, parents) else {
                continue;
            };
            let changed = match default {
                Some(value) => table.insert(key.clone(), value.clone()) != Some(value),
                None => table.remove(key).is_some(),
            };
            if changed {
                return true;
            }
        }
        false
    }

    fn default_value(&self, parents: &[String], key: &str) -> Option<Value> {
        let mut table = &self.defaults;
        for (depth, name) in parents.iter().enumerate() {
            let is_pool = depth == 1 && parents.first().is_some_and(|first| first == "pools");
            let name = if is_pool { TEMPLATE_POOL } else { name };
            table = table.get(name)?.as_dict()?;
        }
        table.get(key).cloned()
    }
}

fn find_table<'a>(root: &'a mut Dict, parents: &[String]) -> Option<&'a mut Dict> {
    let mut table = root;
    for name in parents {
        let Value::Dict(_, next) = table.get_mut(name)? else {
            return None;
        };
        table = next;
    }
    Some(table)
}

fn add_faults(faults: &mut FaultList<'_>, error: figment::Error) {
    for fault in error {
        let mut text = fault_text(&fault.kind);
        let source = fault.metadata.and_then(|metadata| metadata.source);
        if fault.path.is_empty()
            && let Some(figment::Source::File(path)) = source
        {
            text = format!("{text} (in {})", path.display());
        }
        faults.add(&fault.path.join("."), text);
    }
}

/// Checks that a configuration file can be read, and more than once.
fn check_readable(path: &Path) -> Result<(), String> {
    let path_text = path.display();
    let unreadable = |error| format!("--config {path_text}: cannot be read: {error}");
    let metadata = std::fs::metadata(path).map_err(unreadable)?;
    // A pipe is empty when it is read again, and the daemon would start with the defaults, without `[auth]`.
    if !metadata.is_file() {
        return Err(format!(
            "--config {path_text}: is not a regular file: it is read more than once"
        ));
    }
    std::fs::read_to_string(path).map(drop).map_err(unreadable)
}
