//! Configuration of the daemon: typed and checked. Each module takes its own small struct, not the whole.
//!
//! `default.toml`, which is embedded, lists every key with its default and its reason. Order of sources:
//! `default.toml` < one file < `SKILLD_SECTION__KEY` < flags. No other module reads the environment.
//! A new key is one line in `default.toml` and one field in its section's struct.
//!
//! | file | contents |
//! |---|---|
//! | `sources.rs` | merges the sources, deserializes them, reports where each faulty value was given |
//! | `fault_list.rs`, `fault_text.rs` | all faults, a line each; words for those that serde and the parser find |
//! | `derived_defaults.rs` | fills keys that are empty: sockets, guest binary, roots, cache |
//! | `listeners.rs`, `auth.rs`, `role.rs` | addresses to serve at; who may do what |
//! | `sections.rs`, `pools.rs`, `fetch.rs`, `skills.rs`, `artifacts.rs`, `audit.rs`, `traces.rs` | one struct per section |
//! | `values.rs` | serde functions for times, sizes, counts and paths |
//! | `skill_roots.rs` | roots of skills: directories and URLs |
//! | `ranges.rs` | the list of range checks and relations between keys |

use std::fmt;
use std::path::PathBuf;

use environments::EnvironmentOptions;
use serde::Deserialize;
use serde::de::Deserializer;
use skilld_skills::SkillsOptions;

mod artifacts;
mod audit;
mod auth;
mod derived_defaults;
mod environment;
pub mod environments;
mod fault_list;
mod fault_text;
mod fetch;
mod listeners;
mod pools;
mod ranges;
mod role;
mod sections;
mod skill_roots;
mod skills;
mod sources;
mod traces;
mod values;

pub use artifacts::{ArtifactStorage, ArtifactsConfig, S3Credentials};
pub use audit::{AuditConfig, AuditDelivery};
pub use auth::{AuthConfig, WebTokenConfig};
use derived_defaults::DerivedDefaults;
pub use environment::{ignored_variables, notify_socket};
use fault_list::FaultList;
pub use listeners::{Authenticator, ListenAddress, ListenerConfig, TlsConfig};
pub use pools::{PoolConfig, PullPolicy, WorkspaceStorage};
pub use ranges::{EXECS_MAX, POLL_WAIT_MAX};
pub use role::Role;
pub use sections::{EngineConfig, ExecConfig, FilesConfig, ServerConfig, WorkspaceConfig};
pub(crate) use sources::parse_toml;
pub use sources::{ConfigFlags, DEFAULT_TOML};
use sources::{ConfigSources, ParsedConfig};
pub use traces::TracesConfig;

/// Maximum length of a slot's name (its number), in bytes. The length of the state directory's path is checked against
/// it, because the guests' sockets lie below and a socket's path ends at 107 bytes.
pub const SLOT_NAME_BYTES_MAX: usize = 10;
/// Exit code for a wrong configuration or command line: `EX_USAGE` of sysexits.h.
pub const EXIT_CONFIG: u8 = 64;

/// Faults of a configuration: one line for each, with its key and the place of its value.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ConfigFaults(pub Vec<String>);

/// Checked configuration, typed and as text.
#[derive(Debug, Clone)]
pub struct LoadedConfig {
    /// Typed configuration.
    pub config: Config,
    /// TOML text with every key in force; it loads to the same configuration.
    pub effective: String,
}

/// Complete configuration of the daemon.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Config {
    /// Absolute path of the state directory (mode 0700). ARCHITECTURE.md lists its contents.
    #[serde(deserialize_with = "values::path")]
    pub state_dir: PathBuf,
    /// Absolute path of the Unix socket that clients connect to.
    #[serde(rename = "listen", deserialize_with = "socket_path")]
    pub socket: PathBuf,
    /// Addresses to serve at, in the order of the file. Without one that serves the API, the socket of `listen` follows.
    #[serde(default)]
    pub listeners: Vec<ListenerConfig>,
    /// Section `[auth]`; `None` if every caller has all roles.
    #[serde(default)]
    pub auth: Option<AuthConfig>,
    /// Section `[server]`.
    pub server: ServerConfig,
    /// Section `[engine]`.
    pub engine: EngineConfig,
    /// Pools that are switched on, sorted by name; at least one.
    #[serde(deserialize_with = "pools::pool_list")]
    pub pools: Vec<PoolConfig>,
    /// Name of the pool for requests that name none.
    pub default_pool: String,
    /// Section `[workspaces]`.
    pub workspaces: WorkspaceConfig,
    /// Section `[execs]`.
    pub execs: ExecConfig,
    /// Section `[files]`.
    pub files: FilesConfig,
    /// Section `[fetch]`.
    #[serde(with = "fetch::FetchSection")]
    pub fetch: crate::fetch::FetchOptions,
    /// Section `[skills]`.
    #[serde(deserialize_with = "skills::skills_config")]
    pub skills: SkillsConfig,
    /// Section `[artifacts]`.
    pub artifacts: ArtifactsConfig,
    /// Section `[audit]`.
    pub audit: AuditConfig,
    /// Section `[traces]`.
    pub traces: TracesConfig,
    /// Log filter in the syntax of tracing-subscriber's EnvFilter.
    pub log: String,
    /// `true` if log lines are JSON objects instead of text.
    #[serde(rename = "log_format", deserialize_with = "log_format_is_json")]
    pub log_json: bool,
}

/// Section `[skills]`: options of the crate skilld-skills, and limits of publishing.
#[derive(Debug, Clone)]
pub struct SkillsConfig {
    /// Options of sources, store and catalogue.
    pub options: SkillsOptions,
    /// Maximum number of archives that are received and unpacked at the same time.
    pub publishes_max: usize,
    /// Options of skills' environments.
    pub environments: EnvironmentOptions,
}

// === impl Config ===

impl Config {
    /// Loads the configuration from all sources and checks that the guest binary exists, and that the directories of
    /// wheels and fonts and the file of authorities are readable.
    ///
    /// # Errors
    /// All faults together.
    pub fn load(flags: &ConfigFlags) -> Result<LoadedConfig, ConfigFaults> {
        let sources = ConfigSources::from_all(flags).map_err(|fault| ConfigFaults(vec![fault]))?;
        let loaded = check_sources(&sources, &DerivedDefaults::from_environment())?;
        let faults = check_files(&loaded.config, &sources);
        if faults.is_empty() {
            return Ok(loaded);
        }
        Err(ConfigFaults(faults))
    }

    /// Returns `true` if messages of a start are to be JSON, as far as that can be known: also for a configuration with
    /// faults. From a file that can't be read or parsed nothing is known, so then the environment alone decides; without
    /// `flags`, for a wrong command line, it does as well.
    #[must_use]
    pub fn wants_json_log(flags: Option<&ConfigFlags>) -> bool {
        let sources = flags.and_then(|flags| ConfigSources::from_all(flags).ok());
        let format = sources.and_then(|sources| sources.log_format());
        format.or_else(environment::log_format).as_deref() == Some("json")
    }

    /// Returns the listener that `listen` describes.
    fn default_listener(&self) -> ListenerConfig {
        let peer = self.auth.as_ref().map(|_| Authenticator::Peer);
        ListenerConfig {
            address: ListenAddress::Unix {
                path: self.socket.clone(),
                mode: listeners::SOCKET_MODE,
                group: None,
            },
            authenticators: peer.into_iter().collect(),
        }
    }

    /// Loads the configuration for a report about the host, which must work with a faulty one too. Returns the
    /// configuration, with defaults in place of values that could not be parsed, and the faults for which
    /// [`Self::load`] refuses it. The configuration is `None` if a source can't be read at all.
    pub fn load_for_report(flags: &ConfigFlags) -> (Option<Self>, Vec<String>) {
        let sources = match ConfigSources::from_all(flags) {
            Ok(sources) => sources,
            Err(fault) => return (None, vec![fault]),
        };
        let (parsed, mut faults) = parse_and_check(&sources, &DerivedDefaults::from_environment());
        let config = parsed.map(|parsed| parsed.config);
        if let Some(config) = &config {
            faults.extend(check_files(config, &sources));
        }
        (config, faults)
    }

    /// Loads the defaults with `text` (TOML) over them, for tests and tools. Reads neither environment nor flags, and
    /// does not look for the guest binary.
    ///
    /// # Errors
    /// All faults together.
    pub fn from_toml(text: &str) -> Result<LoadedConfig, ConfigFaults> {
        check_sources(&ConfigSources::from_text(text), &DerivedDefaults::default())
    }
}

/// Returns the faults of files that a start needs: the guest binary, wheels, fonts and authorities.
fn check_files(config: &Config, sources: &ConfigSources) -> Vec<String> {
    let guest = &config.engine.guest_path;
    let no_guest = format!(
        "there is no guest binary at {}; build it with `make guest`, or set the path",
        guest.display()
    );
    let environments = &config.skills.environments;
    let faults = [
        ("engine.guest_path", (!guest.is_file()).then_some(no_guest)),
        ("skills.wheelhouse", environments.wheelhouse_fault()),
        (
            "skills.package_ca_file",
            environments.read_authorities().err(),
        ),
    ];
    let fonts = config.pools.iter().map(|pool| {
        let key = format!("pools.{}.fonts", pool.name);
        (key, pool.fonts_fault())
    });
    let faults = faults.map(|(key, fault)| (key.to_owned(), fault));
    let line = |(key, fault): (String, Option<String>)| {
        Some(format!("{key}: {}{}", fault?, sources.place(&key)))
    };
    faults.into_iter().chain(fonts).filter_map(line).collect()
}

fn check_sources(
    sources: &ConfigSources,
    derived: &DerivedDefaults,
) -> Result<LoadedConfig, ConfigFaults> {
    let (parsed, faults) = parse_and_check(sources, derived);
    let Some(parsed) = parsed.filter(|_| faults.is_empty()) else {
        return Err(ConfigFaults(faults));
    };
    let effective =
        toml::to_string(&parsed.values).map_err(|error| ConfigFaults(vec![error.to_string()]))?;
    Ok(LoadedConfig {
        config: parsed.config,
        effective,
    })
}

/// Returns the configuration, with defaults in place of values that could not be parsed, and the faults of all sources.
fn parse_and_check(
    sources: &ConfigSources,
    derived: &DerivedDefaults,
) -> (Option<ParsedConfig>, Vec<String>) {
    let place = |key: &str| sources.place(key);
    let mut faults = FaultList::new(&place);
    let mut parsed = sources.parse(derived, &mut faults);
    if let Some(ParsedConfig { config, .. }) = &mut parsed {
        if sources.is_given("skills.package_ca_file") {
            // The file of SSL_CERT_FILE is read by the libraries of TLS themselves.
            let ca_file = &config.skills.environments.ca_file;
            config.fetch.ca_file.clone_from(ca_file);
            config.artifacts.ca_file.clone_from(ca_file);
        }
        let remote = &mut config.skills.options.remote;
        remote.fetch = config.fetch.clone();
        // The URL in a published card comes from a client, as that of an input does.
        remote.published_urls = config.files.input_urls;
        remote.published_private_addresses = config.files.input_private_addresses;
        let mut listeners = config.listeners.iter();
        if !listeners.any(|listener| listener.address.serves_api()) {
            config.listeners.push(config.default_listener());
        } else if sources.is_given("listen") {
            faults.add(
                "listen",
                "cannot be set together with [[listeners]] of kind \"unix\" or \"tcp\": add a listener of kind \"unix\" for this socket",
            );
        }
        ranges::check_ranges(&mut faults, config);
    }
    (parsed, faults.into_lines())
}

fn socket_path<'de, D: Deserializer<'de>>(source: D) -> Result<PathBuf, D::Error> {
    values::parsed(source, |text| {
        match text.split_once(':') {
        Some(("unix", path)) if !path.is_empty() => values::absolute_path(path),
        Some(("https" | "http", _)) => Err(
            "takes only unix:PATH: for TCP add a [[listeners]] table of kind \"tcp\" (docs/access.md)"
                .to_owned(),
        ),
        _ => Err(format!("{text:?} is not of the form unix:PATH")),
    }
    })
}

fn log_format_is_json<'de, D: Deserializer<'de>>(source: D) -> Result<bool, D::Error> {
    values::parsed(source, |text| match text {
        "text" => Ok(false),
        "json" => Ok(true),
        other => Err(format!("{other:?} is neither \"text\" nor \"json\"")),
    })
}

// === impl ConfigFaults ===

impl fmt::Display for ConfigFaults {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0.join("\n"))
    }
}

impl std::error::Error for ConfigFaults {}
