//! The commands of the pages for operators: installing, watching, draining.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;

use anyhow::{Context, Result};
use skilld_tests::binaries;
use tokio::process::Command;

use crate::foreign::output;
use crate::foreign::recipes::{Place, blocks};

const INSTALLING: &str = "docs/installing.md";
const MONITORING: &str = "docs/monitoring.md";
const UPGRADING: &str = "docs/upgrading.md";

/// Installs in a container with nothing but the image's Debian and the built programs.
#[tokio::test]
async fn deploying_takes_what_was_built_and_no_compiler() -> Result<()> {
    let directory = tempfile::tempdir()?;
    let target = directory.path().join("target");
    let guest = target.join("x86_64-unknown-linux-gnu/guest");
    fs::create_dir_all(target.join("release"))?;
    fs::create_dir_all(&guest)?;
    let unit = directory.path().join("deploy/skilld.service");
    fs::create_dir_all(unit.with_file_name(""))?;
    fs::copy(binaries::repository().join("deploy/skilld.service"), unit)?;
    for name in ["skilld", "skillctl"] {
        fs::copy(binaries::binary(name)?, target.join("release").join(name))?;
    }
    fs::copy(binaries::guest()?, guest.join("skilld-guest"))?;
    fs::set_permissions(directory.path(), fs::Permissions::from_mode(0o755))?;
    let (_, install) = blocks(INSTALLING, "Install the programs")?
        .into_iter()
        .find(|(language, _)| language == "sh")
        .context("a block of commands")?;
    let (_, configuration) = blocks(INSTALLING, "Configure it")?
        .into_iter()
        .find(|(language, _)| language == "toml")
        .context("a configuration")?;
    let script = format!(
        "set -euo pipefail\n{install}cat > /etc/skilld/skilld.toml <<'END'\n{configuration}END\n\
         skilld --config /etc/skilld/skilld.toml --check\nskillctl version"
    );
    let mount = format!("{}:/build:ro", directory.path().display());
    let mut docker = Command::new("docker");
    docker
        .args(["run", "--rm", "--network", "none", "--user", "0:0"])
        .args(["--label", "io.skilld.test=deploy", "--entrypoint", "bash"])
        .args(["--volume", &mount, "--workdir", "/build"])
        .args(["skilld/base:latest", "-c", &script]);
    let printed = output(&mut docker).await?;
    for part in ["/srv/skills", "warm = 8", "skillctl "] {
        assert!(printed.contains(part), "no {part:?} in {printed}");
    }
    Ok(())
}

#[tokio::test]
async fn watch_and_drain_do_what_the_documents_say() -> Result<()> {
    let place = Place::new().await?;
    let watched = place.run_of(MONITORING, "Watch").await?;
    assert!(watched.contains("default"), "{watched}");
    let printed = place.run_of(UPGRADING, "Drain").await?;
    assert!(printed.starts_with("draining:"), "{printed}");
    assert!(
        printed.contains("drained; removed 1 workspaces"),
        "{printed}"
    );
    place.daemon.stop().await
}
