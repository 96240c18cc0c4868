//! Clients of other languages: `tests/clients/generate.sh` generates and compiles them, and the samples of `docs/samples`
//! run over a Unix socket and over TLS.
//!
//! What was generated stays beneath `target/clients/` until the protos, the samples or the script change. Where these, and
//! the server of connections, are those of origin/main, the tests use what is there and generate nothing, unless
//! `make clients` runs them.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, anyhow, ensure};
use data_encoding::HEXLOWER;
use nix::fcntl::{Flock, FlockArg};
use sha2::{Digest, Sha256};
use skilld_tests::{SharedDaemon, binaries};
use tokio::process::Command;

use crate::foreign::{LIMIT, note, output};

/// Files and directories that decide what is generated.
const INPUTS: [&str; 5] = [
    "proto/skilld/v1",
    "proto/skilld.binpb",
    "docs/samples",
    "docs/service-config.json",
    "tests/clients",
];
/// Files and directories whose changes need every client to run: connections, credentials, errors of a call.
const SERVER: [&str; 3] = [
    "daemon/src/access",
    "daemon/src/server",
    "tests/e2e/foreign/languages.rs",
];

/// Standard output of every sample.
const EXPECTED: &str = include_str!("../../clients/expected.txt");

/// Returns `true` if `make clients` runs the tests, so that none may be skipped.
pub(crate) fn is_required() -> bool {
    std::env::var_os("SKILLD_CLIENTS").is_some_and(|value| value == "all")
}

/// Adds the contents of a file, or of all files beneath a directory, by their paths.
fn read_files(path: &Path, files: &mut BTreeMap<PathBuf, Vec<u8>>) -> Result<()> {
    if !path.is_dir() {
        files.insert(path.to_owned(), fs::read(path)?);
        return Ok(());
    }
    for entry in fs::read_dir(path)? {
        read_files(&entry?.path(), files)?;
    }
    Ok(())
}

/// Returns a digest of the paths and contents of all inputs, and of the directory that the generated scripts name.
fn digest_inputs(out: &Path) -> Result<String> {
    let mut files = BTreeMap::new();
    for input in INPUTS {
        let path = binaries::repository().join(input);
        read_files(&path, &mut files).with_context(|| format!("cannot read {input}"))?;
    }
    let mut digest = Sha256::new();
    digest.update(out.as_os_str().as_encoded_bytes());
    for (path, content) in files {
        digest.update(path.as_os_str().as_encoded_bytes());
        digest.update(Sha256::digest(&content));
    }
    Ok(HEXLOWER.encode(&digest.finalize()))
}

/// Returns `true` if an input, or what serves the clients, differs from origin/main.
async fn are_clients_affected() -> Result<bool> {
    let script = binaries::repository().join("tests/changed.sh");
    let status = Command::new(script).args(INPUTS).args(SERVER).status();
    Ok(status.await?.success())
}

/// Returns the directory with the code of a language, which is generated and compiled if it is not up to date; `None` if
/// it is not needed.
async fn generate(language: &str) -> Result<Option<PathBuf>> {
    let out = binaries::target_dir()?.join("clients");
    fs::create_dir_all(&out)?;
    // Another run of the tests may be generating it.
    let lock = File::create(out.join(format!("{language}.lock")))?;
    let lock = Flock::lock(lock, FlockArg::LockExclusive).map_err(|(_, errno)| anyhow!(errno))?;
    let directory = out.join(language);
    let stamp = directory.join("inputs");
    let inputs = digest_inputs(&out)?;
    if fs::read_to_string(&stamp).is_ok_and(|made| made == inputs) {
        return Ok(Some(directory));
    }
    if !is_required() && !are_clients_affected().await? {
        note("skipped: protos, samples and server are those of origin/main; make clients runs it");
        return Ok(None);
    }
    let script = binaries::repository().join("tests/clients/generate.sh");
    // Ends compilers too, before the tests give up.
    let mut generation = Command::new("timeout");
    generation.arg((LIMIT.as_secs() - 60).to_string());
    let report = output(generation.arg(script).arg(&out).arg(language)).await?;
    note(report.trim_end());
    fs::write(&stamp, inputs)?;
    drop(lock);
    Ok(Some(directory))
}

/// Runs a client with these variables, and checks what it wrote.
async fn check_run(client: &Path, variables: &[(&str, &str)]) -> Result<()> {
    let mut command = Command::from(binaries::without_settings(client.to_owned()));
    command.envs(variables.iter().copied()).kill_on_drop(true);
    let ended = tokio::time::timeout(LIMIT, command.output()).await;
    let ended = ended.with_context(|| format!("{command:?} did not end"))??;
    let errors = String::from_utf8_lossy(&ended.stderr);
    let text = String::from_utf8_lossy(&ended.stdout);
    ensure!(
        ended.status.success() && text == EXPECTED,
        "{command:?} ended with {}:\n{text}{errors}",
        ended.status
    );
    ensure!(
        errors.contains("a warning\n"),
        "{command:?} did not pass on stderr: {errors}"
    );
    Ok(())
}

/// Generates the code of a language, and runs its sample over a Unix socket and over TLS with a token.
async fn check_client(language: &str) -> Result<()> {
    let Some(directory) = generate(language).await? else {
        return Ok(());
    };
    let client = directory.join("client");
    let shared = SharedDaemon::start().await?;
    let socket = shared.daemon.state_dir().join("skilld.sock");
    check_run(
        &client,
        &[("SKILLD_TARGET", &format!("unix://{}", socket.display()))],
    )
    .await?;
    let token = shared.create_token(language, "user").await?;
    let ca = shared.ca_file().display().to_string();
    check_run(
        &client,
        &[
            ("SKILLD_TARGET", &shared.target),
            ("SKILLD_CA", &ca),
            ("SKILLD_TOKEN", &token),
        ],
    )
    .await?;
    shared.daemon.stop().await
}

#[tokio::test]
async fn go_client_runs_over_socket_and_tls() -> Result<()> {
    check_client("go").await
}

#[tokio::test]
async fn java_client_runs_over_socket_and_tls() -> Result<()> {
    check_client("java").await
}

#[tokio::test]
async fn cpp_client_runs_over_socket_and_tls() -> Result<()> {
    check_client("cpp").await
}

#[tokio::test]
async fn node_client_runs_over_socket_and_tls() -> Result<()> {
    check_client("node").await
}

#[tokio::test]
async fn python_client_runs_over_socket_and_tls() -> Result<()> {
    check_client("python").await
}

#[tokio::test]
async fn ruby_client_runs_over_socket_and_tls() -> Result<()> {
    check_client("ruby").await
}

#[tokio::test]
async fn php_code_is_valid() -> Result<()> {
    generate("php").await.map(drop)
}

#[tokio::test]
async fn csharp_messages_are_generated() -> Result<()> {
    generate("csharp").await.map(drop)
}
