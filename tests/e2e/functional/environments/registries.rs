//! Builds from the public registries, as an operator has them: over TLS, where the network may have an authority of its
//! own that SSL_CERT_FILE names. Skipped where no registry answers.
//!
//! Docker: uv and npm of real images check the certificates, which no fake tool does.

use std::io::Write as _;
use tokio::net::TcpStream;
use tokio::process::Command;
use tokio::time::timeout;

use super::node_packages::{build_npm_image, manifests};
use super::*;

/// Time within which a registry must accept a connection.
const ANSWER_TIME: Duration = Duration::from_secs(10);

/// Returns `true` if something answers at each of the hosts, at port 443 if none is given; says so otherwise.
async fn are_reachable(hosts: &[&str]) -> bool {
    for host in hosts {
        let address = if host.contains(':') {
            (*host).to_owned()
        } else {
            format!("{host}:443")
        };
        let connected = timeout(ANSWER_TIME, TcpStream::connect(address)).await;
        if !matches!(connected, Ok(Ok(_))) {
            // Not by eprintln, whose text libtest keeps to itself.
            drop(writeln!(
                std::io::stderr(),
                "skipped: {host} does not answer"
            ));
            return false;
        }
    }
    true
}

/// Builds the environment of a skill, which must hold a package.
async fn prepare_package(client: &Client, skill: &str, package: &str) -> Result<()> {
    let (lines, prepared) = prepare(client, skill).await?;
    ensure!(
        prepared.problems.is_empty(),
        "{:?}\n{lines:#?}",
        prepared.problems
    );
    let built = prepared.environment.context("an environment")?;
    let names: Vec<&str> = built.packages.iter().map(|one| one.name.as_str()).collect();
    ensure!(names.contains(&package), "{names:?}");
    Ok(())
}

#[tokio::test]
async fn a_python_environment_is_built_from_its_public_registry() -> Result<()> {
    if !are_reachable(&["pypi.org", "files.pythonhosted.org"]).await {
        return Ok(());
    }
    let fixture = Fixture {
        dir: tempfile::tempdir()?,
    };
    fixture.skill("real", &[("requirements.txt", "toolz\n")])?;
    let options = fixture
        .options_without_wheels()
        .set("skills.package_index", "https://pypi.org/simple")
        .set("skills.package_hosts", "[\"files.pythonhosted.org\"]")
        .set("skills.allow_private_addresses", "true");
    let daemon = Daemon::start_with(options).await?;
    let client = &daemon.client;
    prepare_package(client, "real", "toolz").await?;
    let name = workspace(client).await?.name;
    stage(client, &name, "real").await?;
    let python = "python3 -c 'import toolz; print(toolz.__name__)'";
    assert_eq!(output(client, &name, "real", python).await?, "toolz\n");
    daemon.stop().await
}

/// Returns the registry of this host's npm, or that of everybody if the host has no npm.
async fn npm_registry() -> Result<String> {
    let printed = Command::new("npm")
        .args(["config", "get", "registry"])
        .output()
        .await;
    match printed {
        Ok(output) => Ok(String::from_utf8(output.stdout)?.trim().to_owned()),
        Err(_) => Ok("https://registry.npmjs.org/".to_owned()),
    }
}

#[tokio::test]
async fn a_node_environment_is_built_from_its_public_registry() -> Result<()> {
    let registry = npm_registry().await?;
    let host = registry.split('/').nth(2).context("a URL")?;
    if !are_reachable(&[host]).await {
        return Ok(());
    }
    let fixture = Fixture {
        dir: tempfile::tempdir()?,
    };
    let (package, lock) = manifests("ms", "2.1.3");
    let files = [
        ("scripts/package.json", &*package),
        ("scripts/package-lock.json", &*lock),
    ];
    fixture.skill("real", &files)?;
    let image = build_npm_image().await?;
    let options = fixture
        .options_without_wheels()
        .set("pools.default.image", image.name())
        .set("skills.node_package_index", &registry)
        .set("skills.allow_private_addresses", "true");
    let daemon = Daemon::start_with(options).await?;
    let client = &daemon.client;
    prepare_package(client, "real", "ms").await?;
    let name = workspace(client).await?.name;
    stage(client, &name, "real").await?;
    let node = "node -p 'require(\"ms\")(\"1s\")'";
    assert_eq!(output(client, &name, "real", node).await?, "1000\n");
    daemon.stop().await
}
