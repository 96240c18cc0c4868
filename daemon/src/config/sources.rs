//! Where values come from and in which order: the embedded file, one file, the environment, flags.
//!
//! Ends in a [`RawConfig`] and the place of every value, or in all faults of names and types at once.

use std::path::{Path, PathBuf};

use figment::Figment;
use figment::providers::{Data, Env, Format, Toml};
use figment::value::{Dict, Value};

use super::raw::RawConfig;

/// The reference: every key, its default and its reason.
pub const DEFAULT_TOML: &str = include_str!("../../default.toml");

/// The pool whose built-in values other pools inherit.
const TEMPLATE_POOL: &str = "default";

/// Faults of names and types at most; one that cannot be set right would be found for ever.
const FAULTS_MAX: usize = 100;

/// Values given on the command line; they come before everything else.
#[derive(Debug, Clone, Default)]
pub struct Flags {
    /// `--config`.
    pub config: Option<PathBuf>,
    /// `--listen`.
    pub listen: Option<String>,
    /// `--state-dir`.
    pub state_dir: Option<PathBuf>,
    /// `--log`.
    pub log: Option<String>,
}

/// All sources, merged.
pub(super) struct Sources {
    figment: Figment,
    template: Dict,
}

impl Sources {
    /// The embedded file and `text`; neither environment nor flags.
    pub(super) fn text(text: &str) -> Self {
        Self::new(Figment::from(Toml::string(DEFAULT_TOML)).merge(Toml::string(text)))
    }

    /// Everything, in the documented order. An unreadable file is an error here: figment would take it for empty.
    pub(super) fn all(flags: &Flags) -> Result<Self, String> {
        let mut figment = Figment::from(Toml::string(DEFAULT_TOML));
        if let Some(path) = &flags.config {
            readable(path)?;
            figment = figment.merge(Data::<Toml>::file_exact(path));
        }
        // `config` would otherwise be an unknown key; the others are read by skillctl and the guest.
        let environment = Env::prefixed("SKILLD_")
            .split("__")
            .ignore(&["config", "endpoint", "nonce"]);
        figment = figment.merge(environment);
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
                figment = figment.merge((key, value));
            }
        }
        Ok(Self::new(figment))
    }

    fn new(figment: Figment) -> Self {
        let template = Figment::from(Toml::string(DEFAULT_TOML))
            .extract::<Dict>()
            .unwrap_or_default();
        Self { figment, template }
    }

    /// Names and types checked. A value that is wrong is reported and replaced by its default, so that the
    /// next one is found too.
    pub(super) fn raw(&self) -> Result<(RawConfig, Vec<String>), Vec<String>> {
        let mut root: Dict = self
            .figment
            .extract()
            .map_err(|error| messages(error, ""))?;
        self.inherit(&mut root);
        let mut faults = Vec::new();
        loop {
            let value = Value::from(root.clone());
            let error = match value.deserialize::<RawConfig>() {
                Ok(raw) => return Ok((raw, faults)),
                Err(error) => error,
            };
            let path = error.path.clone();
            let place = self.place(&path.join("."));
            faults.extend(messages(error, &place));
            if faults.len() >= FAULTS_MAX || !self.reset(&mut root, &path) {
                return Err(faults);
            }
        }
    }

    /// Whether somebody gave a value for this key.
    pub(super) fn is_given(&self, key: &str) -> bool {
        let default = |metadata: &figment::Metadata| metadata.name.contains("TOML source string");
        self.figment
            .find_metadata(key)
            .is_some_and(|metadata| !default(metadata))
    }

    /// Where the value of a key was given: a file, the environment, a flag; empty if nowhere.
    pub(super) fn place(&self, key: &str) -> String {
        let Some(metadata) = self.figment.find_metadata(key) else {
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

    /// Fills what pools leave out from the built-in default pool.
    fn inherit(&self, root: &mut Dict) {
        let template = self.template.get("pools").and_then(Value::as_dict);
        let Some(template) = template.and_then(|pools| pools.get(TEMPLATE_POOL)?.as_dict()) else {
            return;
        };
        let Some(Value::Dict(_, pools)) = root.get_mut("pools") else {
            return;
        };
        for pool in pools.values_mut() {
            if let Value::Dict(_, pool) = pool {
                for (key, value) in template {
                    pool.entry(key.clone()).or_insert_with(|| value.clone());
                }
            }
        }
    }

    /// Puts the default in the place of a faulty value, or removes the key if there is none. False if nothing
    /// changed.
    fn reset(&self, root: &mut Dict, path: &[String]) -> bool {
        // An element of a list is set right by taking the whole list away.
        for length in (1..=path.len()).rev() {
            let Some((key, parents)) = path.get(..length).and_then(<[String]>::split_last) else {
                continue;
            };
            let default = self.default_of(parents, key);
            let Some(table) = descend(root, parents) else {
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

    fn default_of(&self, parents: &[String], key: &str) -> Option<Value> {
        let mut table = &self.template;
        for (depth, name) in parents.iter().enumerate() {
            let in_pools = depth == 1 && parents.first().is_some_and(|first| first == "pools");
            let name = if in_pools { TEMPLATE_POOL } else { name };
            table = table.get(name)?.as_dict()?;
        }
        table.get(key).cloned()
    }
}

fn descend<'a>(root: &'a mut Dict, parents: &[String]) -> Option<&'a mut Dict> {
    let mut table = root;
    for name in parents {
        let Value::Dict(_, next) = table.get_mut(name)? else {
            return None;
        };
        table = next;
    }
    Some(table)
}

fn messages(error: figment::Error, place: &str) -> Vec<String> {
    error
        .into_iter()
        .map(|one| match one.path.join(".") {
            key if key.is_empty() => format!("{}{place}", one.kind),
            key => format!("{key}: {}{place}", one.kind),
        })
        .collect()
}

fn readable(path: &Path) -> Result<(), String> {
    std::fs::read_to_string(path)
        .map(drop)
        .map_err(|error| format!("--config {}: cannot be read: {error}", path.display()))
}
