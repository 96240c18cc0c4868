//! Environments that many workspaces use: there is one copy, which all of them read.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use anyhow::{Context, Result, ensure};
use skilld_tests::Daemon;
use skilld_tests::exec::{run, shell, workspace};
use skilld_tests::large_package::LargePackage;

use crate::load::{alone, options};

const WORKSPACES: usize = 8;
/// Name of the large file of the package.
const FILE: &str = "data.bin";
/// Command that prints the bytes in use of the workspace's own file system, and size and checksum of the large file.
const LOOK: &str = "df --block-size=1 --output=used /workspace | tail -n 1
    cd \"$VIRTUAL_ENV\"/lib/python3*/site-packages/skilld_compat_large && stat -c %s data.bin && sha256sum data.bin";

/// Returns the number of files with the name of the large file beneath a directory.
fn count_copies(directory: &Path) -> Result<usize> {
    let mut count = 0;
    for entry in fs::read_dir(directory)? {
        let entry = entry?;
        if entry.file_type()?.is_dir() {
            count += count_copies(&entry.path())?;
        } else {
            count += usize::from(entry.file_name() == FILE);
        }
    }
    Ok(count)
}

/// `make release-check` also measures what the workspaces take of the disk and of the page cache.
#[tokio::test(flavor = "multi_thread")]
async fn workspaces_with_the_same_environment_share_one_copy() -> Result<()> {
    let _alone = alone().await;
    let package = LargePackage::new(16).await?;
    package.add_skill("large", true)?;
    let options = package.serve(options()?).set("pools.default.warm", "0");
    let daemon = Daemon::start_with(options).await?;
    let client = &daemon.client;
    let mut contents = BTreeSet::new();
    for _ in 0..WORKSPACES {
        let name = workspace(client).await?.name;
        let staged = client.stage_skills(&name, &["large"]).await?;
        let has_environment = staged.iter().all(|skill| skill.environment.is_some());
        ensure!(has_environment, "{staged:?}");
        let mut spec = shell(LOOK);
        "large".clone_into(&mut spec.skill);
        let outcome = run(client, &name, spec).await?;
        ensure!(outcome.exit_code() == Some(0), "{}", outcome.error_text());
        let text = outcome.text();
        let (used, content) = text.split_once('\n').context("two lines")?;
        let used: u64 = used.trim().parse().with_context(|| text.clone())?;
        assert!(used < package.file_bytes(), "it has a copy: {text}");
        contents.insert(content.to_owned());
    }
    assert_eq!(contents.len(), 1, "{contents:?}");
    let size = format!("{}\n", package.file_bytes());
    assert!(
        contents.iter().all(|content| content.starts_with(&size)),
        "{contents:?}"
    );
    let environments = daemon.state_dir().join("environments/mounted");
    assert_eq!(count_copies(&environments)?, 1);
    daemon.stop().await
}
