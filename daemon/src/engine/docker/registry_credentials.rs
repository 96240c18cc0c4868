//! Credentials for registries, from the `config.json` of Docker's client. It may have `auths`, `credHelpers` and
//! `credsStore`.
//!
//! Neither a log line nor an error contains a credential, nor anything that a helper printed or that the file contains.

use std::collections::HashMap;
use std::fmt;
use std::io::{ErrorKind, Read};
use std::path::Path;
use std::process::Stdio;
use std::time::Duration;

use bollard::auth::DockerCredentials;
use data_encoding::BASE64;
use serde::Deserialize;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::process::Command;

use crate::engine::image_reference::DEFAULT_REGISTRY;
use crate::error::{Error, Result};
use crate::shutdown::Tasks;

/// Name of the file in the client's configuration directory.
const FILE: &str = "config.json";
/// Maximum size of the file, in bytes.
const FILE_BYTES_MAX: u64 = 1 << 20;
/// Key of Docker Hub in the file, and its address for helpers.
const HUB_ADDRESS: &str = "https://index.docker.io/v1/";
/// Longest run of a credential helper. Some of them ask a cloud's API.
const HELPER_TIMEOUT: Duration = Duration::from_secs(30);
/// Maximum size of a helper's answer, in bytes.
const HELPER_BYTES_MAX: u64 = 64 << 10;
/// Maximum length of a helper's name, in bytes.
const HELPER_NAME_BYTES_MAX: usize = 64;
/// User name of a helper's answer whose secret is an identity token.
const TOKEN_USER: &str = "<token>";

/// Parts of the client's configuration file that concern credentials.
#[derive(Default, Deserialize)]
#[serde(default)]
struct ClientConfig {
    auths: HashMap<String, StoredAuth>,
    #[serde(rename = "credHelpers")]
    helpers: HashMap<String, String>,
    #[serde(rename = "credsStore")]
    store: String,
}

/// Stored credentials of one registry.
#[derive(Default, Deserialize)]
#[serde(default)]
struct StoredAuth {
    /// Base64 of `USER:PASSWORD`.
    auth: String,
    username: String,
    password: String,
    identitytoken: String,
    registrytoken: String,
}

/// Answer of a credential helper.
#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct HelperAnswer {
    username: String,
    secret: String,
}

/// Reason why credentials cannot be read. It names files and programs, and contains nothing of their contents.
#[derive(Debug, PartialEq, Eq)]
struct CredentialFault(String);

impl fmt::Display for CredentialFault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// Finds the credentials for a registry in the directory of Docker's client configuration. Returns `None` if there are
/// none: then the registry is asked without.
///
/// # Errors
/// `Error::Engine` if the file cannot be read or a helper fails.
pub(super) async fn find_credentials(
    tasks: &Tasks,
    config_dir: &Path,
    registry: &str,
) -> Result<Option<DockerCredentials>> {
    let failed = |fault: CredentialFault| {
        let message = format!("{fault}; this concerns {registry}");
        Error::engine("find the credentials of a registry", message)
    };
    let path = config_dir.join(FILE);
    let read = move || Ok(read_config(&path));
    let config = tasks.blocking(read).await?.map_err(failed)?;
    let address = registry_address(registry);
    if let Some(helper) = config.find_helper(registry) {
        let answer = ask_helper(helper, &address).await.map_err(failed)?;
        if answer.is_some() {
            return Ok(answer);
        }
    }
    config.find_auth(registry).map_err(failed)
}

/// Returns the address under which helpers know a registry.
fn registry_address(registry: &str) -> String {
    if registry == DEFAULT_REGISTRY {
        HUB_ADDRESS.to_owned()
    } else {
        registry.to_owned()
    }
}

/// Returns the host of a key of the file, which may be a host or a URL.
fn host_of_key(key: &str) -> &str {
    let rest = key.split_once("://").map_or(key, |(_, rest)| rest);
    let host = rest.split('/').next().unwrap_or_default();
    match host {
        "index.docker.io" | "registry-1.docker.io" => DEFAULT_REGISTRY,
        host => host,
    }
}

/// Reads the configuration file; an absent one is an empty one. Blocks.
fn read_config(path: &Path) -> Result<ClientConfig, CredentialFault> {
    let fault = |why: &str| CredentialFault(format!("{} {why}", path.display()));
    let file = match std::fs::File::open(path) {
        Ok(file) => file,
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(ClientConfig::default()),
        Err(error) => return Err(fault(&format!("cannot be opened: {error}"))),
    };
    let mut bytes = Vec::new();
    file.take(FILE_BYTES_MAX + 1)
        .read_to_end(&mut bytes)
        .map_err(|error| fault(&format!("cannot be read: {error}")))?;
    if bytes.len() as u64 > FILE_BYTES_MAX {
        return Err(fault(&format!("has more than {FILE_BYTES_MAX} bytes")));
    }
    // The parser's own message may quote a value.
    serde_json::from_slice(&bytes).map_err(|error| {
        let (line, column) = (error.line(), error.column());
        fault(&format!(
            "is not a client configuration: see line {line}, column {column}"
        ))
    })
}

impl ClientConfig {
    /// Returns the name of the helper for a registry, or of the helper for all of them.
    fn find_helper(&self, registry: &str) -> Option<&str> {
        let own = self
            .helpers
            .iter()
            .find(|(key, _)| host_of_key(key) == registry);
        let name = own.map_or(&self.store, |(_, name)| name);
        Some(name.as_str()).filter(|name| !name.is_empty())
    }

    /// Returns the stored credentials of a registry.
    fn find_auth(&self, registry: &str) -> Result<Option<DockerCredentials>, CredentialFault> {
        // A key that is the host itself is preferred to a URL of the same host.
        let exact = self.auths.get_key_value(registry);
        let stored = exact.or_else(|| {
            self.auths
                .iter()
                .find(|(key, _)| host_of_key(key) == registry)
        });
        let Some((_, stored)) = stored else {
            return Ok(None);
        };
        let (mut username, mut password) = (stored.username.clone(), stored.password.clone());
        if !stored.auth.is_empty() {
            (username, password) = decode_auth(&stored.auth).ok_or_else(|| {
                let why = format!(
                    "{FILE} of Docker's client has an `auth` that is not base64 of USER:PASSWORD"
                );
                CredentialFault(why)
            })?;
        }
        let given = |text: &str| Some(text.to_owned()).filter(|text| !text.is_empty());
        let found = DockerCredentials {
            username: given(&username),
            password: given(&password),
            identitytoken: given(&stored.identitytoken),
            registrytoken: given(&stored.registrytoken),
            serveraddress: Some(registry_address(registry)),
            ..DockerCredentials::default()
        };
        // An entry without credentials says that a helper has them.
        let has_any = found.username.is_some()
            || found.identitytoken.is_some()
            || found.registrytoken.is_some();
        Ok(has_any.then_some(found))
    }
}

fn decode_auth(auth: &str) -> Option<(String, String)> {
    let text = String::from_utf8(BASE64.decode(auth.trim().as_bytes()).ok()?).ok()?;
    let (user, password) = text.split_once(':')?;
    // Docker's client pads some passwords with NUL bytes.
    Some((user.to_owned(), password.trim_matches('\0').to_owned()))
}

fn is_helper_name(name: &str) -> bool {
    let inner = |byte: &u8| byte.is_ascii_alphanumeric() || b"._-".contains(byte);
    name.len() <= HELPER_NAME_BYTES_MAX
        && name
            .as_bytes()
            .first()
            .is_some_and(u8::is_ascii_alphanumeric)
        && name.as_bytes().iter().all(inner)
}

/// Runs `docker-credential-NAME get` with the registry's address on stdin. Returns `None` if the helper has no
/// credentials for it.
async fn ask_helper(
    name: &str,
    address: &str,
) -> Result<Option<DockerCredentials>, CredentialFault> {
    if !is_helper_name(name) {
        let why = format!(
            "{FILE} of Docker's client names the credential helper {name:?}, which is not a program's name"
        );
        return Err(CredentialFault(why));
    }
    let program = format!("docker-credential-{name}");
    let fault = |why: String| CredentialFault(format!("the credential helper {program} {why}"));
    let asked = tokio::time::timeout(HELPER_TIMEOUT, run_helper(&program, address)).await;
    let (success, output) = asked
        .map_err(|_| fault(format!("did not answer within {HELPER_TIMEOUT:?}")))?
        .map_err(|error| fault(format!("cannot be run: {error}")))?;
    if output.len() as u64 > HELPER_BYTES_MAX {
        return Err(fault(format!(
            "answered with more than {HELPER_BYTES_MAX} bytes"
        )));
    }
    if !success {
        // The protocol's own text for a registry without credentials.
        let has_none = String::from_utf8_lossy(&output).contains("credentials not found");
        return match has_none {
            true => Ok(None),
            false => Err(fault("failed: run it by hand to see why".to_owned())),
        };
    }
    let answer = parse_helper_answer(&output, address)
        .ok_or_else(|| fault("did not answer with a user name and a secret".to_owned()))?;
    Ok(Some(answer))
}

fn parse_helper_answer(output: &[u8], address: &str) -> Option<DockerCredentials> {
    let answer: HelperAnswer = serde_json::from_slice(output).ok()?;
    let is_token = answer.username == TOKEN_USER;
    let secret = Some(answer.secret);
    Some(DockerCredentials {
        username: (!is_token).then_some(answer.username),
        password: secret.clone().filter(|_| !is_token),
        identitytoken: secret.filter(|_| is_token),
        serveraddress: Some(address.to_owned()),
        ..DockerCredentials::default()
    })
}

/// Runs a helper and returns whether it succeeded, with up to one byte more of its stdout than permitted.
async fn run_helper(program: &str, address: &str) -> std::io::Result<(bool, Vec<u8>)> {
    let mut child = Command::new(program)
        .arg("get")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .kill_on_drop(true)
        .spawn()?;
    let mut output = Vec::new();
    if let Some(mut stdin) = child.stdin.take() {
        // A helper that does not read its input decides by itself.
        let written = stdin.write_all(address.as_bytes()).await;
        tracing::trace!(
            program,
            written = written.is_ok(),
            "asked a credential helper"
        );
    }
    if let Some(stdout) = child.stdout.take() {
        stdout
            .take(HELPER_BYTES_MAX + 1)
            .read_to_end(&mut output)
            .await?;
    }
    if output.len() as u64 > HELPER_BYTES_MAX {
        // It may block on its next write; dropping it kills it.
        return Ok((false, output));
    }
    Ok((child.wait().await?.success(), output))
}

#[cfg(test)]
mod tests;
