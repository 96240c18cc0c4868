//! Defaults that are derived where the configuration leaves a key empty. Such keys are the socket, Docker's socket, the
//! guest binary, the roots of skills and the file of authorities.

use std::path::{Path, PathBuf};

use figment::value::{Dict, Value};

use super::environments::read_authorities;
use super::skill_roots::split_roots;

const DEFAULT_STATE_DIR: &str = "/var/lib/skilld";
const DEFAULT_SOCKET: &str = "/run/skilld/skilld.sock";
const DEFAULT_DOCKER_HOST: &str = "unix:///var/run/docker.sock";
const INSTALLED_GUEST: &str = "/usr/lib/skilld/skilld-guest";

/// Environment variables of other programs that provide defaults. `None` means unset or blank.
#[derive(Debug, Default)]
pub(super) struct DerivedDefaults {
    /// DOCKER_HOST, for `engine.docker_host`.
    docker_host: Option<String>,
    /// DOCKER_CONFIG, or `.docker` in HOME, for `engine.docker_config`.
    docker_config: Option<String>,
    /// SKILLS_ROOT, for `skills.roots`.
    skills_root: Option<String>,
    /// SSL_CERT_FILE, for `skills.package_ca_file`; also `None` if the file is not usable.
    ca_file: Option<String>,
}

// === impl DerivedDefaults ===

impl DerivedDefaults {
    /// Reads the variables of the process.
    pub(super) fn from_environment() -> Self {
        Self {
            docker_host: read_variable("DOCKER_HOST"),
            docker_config: read_variable("DOCKER_CONFIG").or_else(|| {
                let home = read_variable("HOME")?;
                Some(format!("{}/.docker", home.trim_end_matches('/')))
            }),
            skills_root: read_variable("SKILLS_ROOT"),
            ca_file: authorities_file().and_then(Result::ok),
        }
    }

    /// Fills the keys of `values` that are empty. `has_roots` is `true` if a source sets `skills.roots`.
    pub(super) fn fill(&self, values: &mut Dict, has_roots: bool) {
        let state_dir = values
            .get("state_dir")
            .and_then(Value::as_str)
            .unwrap_or(DEFAULT_STATE_DIR);
        let socket = match state_dir {
            DEFAULT_STATE_DIR => DEFAULT_SOCKET.to_owned(),
            _ => format!("{}/skilld.sock", state_dir.trim_end_matches('/')),
        };
        let docker_host = self.docker_host.as_deref().unwrap_or(DEFAULT_DOCKER_HOST);

        fill_empty(Some(values), "listen", || format!("unix:{socket}"));
        fill_empty(section(values, "engine"), "docker_host", || {
            docker_host.to_owned()
        });
        fill_empty(section(values, "engine"), "docker_config", || {
            self.docker_config.clone().unwrap_or_default()
        });
        fill_empty(section(values, "engine"), "guest_path", || {
            find_guest().display().to_string()
        });
        fill_empty(section(values, "skills"), "package_ca_file", || {
            self.ca_file.clone().unwrap_or_default()
        });
        if let Some(roots) = &self.skills_root
            && !has_roots
            && let Some(skills) = section(values, "skills")
        {
            skills.insert("roots".to_owned(), Value::from(split_roots(roots)));
        }
    }
}

/// Returns the file of certificate authorities that SSL_CERT_FILE names, or what is wrong with it; `None` if the variable
/// is unset or blank. Blocks.
pub(super) fn authorities_file() -> Option<Result<String, String>> {
    let path = read_variable("SSL_CERT_FILE")?;
    Some(read_authorities(Path::new(&path)).map(|_| path))
}

fn section<'a>(values: &'a mut Dict, name: &str) -> Option<&'a mut Dict> {
    if let Some(Value::Dict(_, section)) = values.get_mut(name) {
        Some(section)
    } else {
        None
    }
}

fn fill_empty(table: Option<&mut Dict>, key: &str, default: impl FnOnce() -> String) {
    if let Some(table) = table
        && table.get(key).and_then(Value::as_str) == Some("")
    {
        table.insert(key.to_owned(), Value::from(default()));
    }
}

#[expect(
    clippy::disallowed_methods,
    reason = "the configuration is where the environment is read"
)]
fn read_variable(name: &str) -> Option<String> {
    let text = std::env::var(name).ok();
    text.filter(|text| !text.trim().is_empty())
}

/// Returns the path of the guest binary: beside the daemon's own, installed, or where cargo puts it for a development
/// build. Returns the installed path if none of them exists.
fn find_guest() -> PathBuf {
    let installed = PathBuf::from(INSTALLED_GUEST);
    let Ok(own) = std::env::current_exe() else {
        return installed;
    };
    let beside = own.parent().map(|dir| dir.join("skilld-guest"));
    let triple = format!("{}-unknown-linux-gnu", std::env::consts::ARCH);
    // target/<profile>/skilld, and target/<profile>/deps/<test>.
    let built = own
        .ancestors()
        .skip(2)
        .take(2)
        .map(|dir| dir.join(&triple).join("guest/skilld-guest"));
    let mut candidates = beside.into_iter().chain([installed.clone()]).chain(built);
    candidates.find(|path| path.is_file()).unwrap_or(installed)
}
