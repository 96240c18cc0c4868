//! Plugins: folders that hold skills under a name of their own, by which skills of one name are told apart.
//!
//! A folder is a plugin if it has a `.claude-plugin/plugin.json` with a name, or if it is `plugins/<name>` and has its
//! skills in `skills/`. A marketplace (`.claude-plugin/marketplace.json`) lists plugins and is none itself.

use std::io::{self, ErrorKind, Read};
use std::path::{Path, PathBuf};

use serde::Deserialize;
use skilld_common::text_decoding::decode_text;

use crate::content_store::link_policy::LinkPolicy;
use crate::parse::finding::quote_excerpt;
use crate::parse::problem::Problem;
use crate::parse::skill_ref::plugin_id;

/// Name of the folder that has a plugin's manifest.
pub(crate) const MANIFEST_DIR: &str = ".claude-plugin";
const MANIFEST: &str = "plugin.json";
/// Maximum size of a manifest, in bytes.
const MANIFEST_BYTES_MAX: u64 = 128 << 10;
/// Name of the folder of a marketplace that holds plugins.
const PLUGINS_DIR: &str = "plugins";
/// Name of the folder of a plugin that holds its skills.
const SKILLS_DIR: &str = "skills";
/// Maximum number of characters of a parser's message, which may quote the manifest.
const ERROR_CHARS_MAX: usize = 200;

/// Plugin, and the folder that is its root.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PluginRoot {
    /// Id of its name, with which skills of the plugin can be given.
    pub name: String,
    /// Directory of the plugin, without links.
    pub(crate) dir: PathBuf,
}

/// Contents of a `plugin.json` that matter here.
#[derive(Deserialize)]
struct PluginManifest {
    name: String,
}

impl PluginRoot {
    /// Reads the manifest of a directory, given by its real path. Returns `None` if it has none.
    ///
    /// # Errors
    /// The warning about a manifest that cannot be used.
    pub(crate) fn read(policy: &LinkPolicy, dir: &Path) -> Result<Option<Self>, Problem> {
        let path = dir.join(MANIFEST_DIR).join(MANIFEST);
        let text = match read_manifest(policy, &path) {
            Ok(text) => text,
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(invalid_manifest(&format!("cannot be read: {error}"))),
        };
        let manifest: PluginManifest = serde_json::from_str(&text).map_err(|error| {
            let why: String = error.to_string().chars().take(ERROR_CHARS_MAX).collect();
            invalid_manifest(&format!("is not an object with a name: {why}"))
        })?;
        let Some(name) = plugin_id(&manifest.name) else {
            let name = quote_excerpt(&manifest.name);
            return Err(invalid_manifest(&format!(
                "has the name {name}; a plugin's name has a letter or digit, at most 1,024 bytes, and no two hyphens in \
                 a row"
            )));
        };
        Ok(Some(Self {
            name,
            dir: dir.to_owned(),
        }))
    }

    /// Returns the plugin whose folder of skills this is by its place in a marketplace: `plugins/<name>/skills`. `path`
    /// is the path as it was found, `dir` the one without links.
    pub(crate) fn of_layout(path: &Path, dir: &Path) -> Option<Self> {
        let plugin = path.parent()?;
        let is_layout = path.ends_with(SKILLS_DIR) && plugin.parent()?.ends_with(PLUGINS_DIR);
        let name = plugin_id(plugin.file_name()?.to_str()?)?;
        is_layout.then(|| Self {
            name,
            dir: dir.parent().unwrap_or(dir).to_owned(),
        })
    }
}

fn read_manifest(policy: &LinkPolicy, path: &Path) -> io::Result<String> {
    let mut bytes = Vec::new();
    let mut bounded = policy.open_file(path)?.take(MANIFEST_BYTES_MAX + 1);
    bounded.read_to_end(&mut bytes)?;
    if bytes.len() as u64 > MANIFEST_BYTES_MAX {
        let message = format!("it has more than {MANIFEST_BYTES_MAX} bytes");
        return Err(io::Error::other(message));
    }
    Ok(decode_text(&bytes, true).text.into_owned())
}

fn invalid_manifest(why: &str) -> Problem {
    let message = format!(
        "{MANIFEST_DIR}/{MANIFEST} {why}; correct it, so that the plugin's skills can be given with its name"
    );
    Problem::warning("root.plugin_invalid", message)
}
