//! Environments that many workspaces use: their files are on disk and in memory once.

use anyhow::Result;
use skilld_tests::Daemon;
use skilld_tests::exec::workspace;
use skilld_tests::large_package::LargePackage;

use crate::{MIB, alone, options};

const WORKSPACES: u64 = 8;

#[tokio::test(flavor = "multi_thread")]
async fn workspaces_with_the_same_environment_share_its_files() -> Result<()> {
    let _alone = alone().await;
    let package = LargePackage::new(16).await?;
    package.add_skill("large", true)?;
    let options = package.serve(options()?).set("pools.default.warm", "0");
    let daemon = Daemon::start_with(options).await?;
    let mut names = Vec::new();
    for _ in 0..WORKSPACES {
        names.push(workspace(&daemon.client).await?.name);
    }
    let [one, all] = package.use_in_each(&daemon, &names, "large").await?;
    println!("one workspace took {one:?}, {WORKSPACES} took {all:?}");
    // Each further workspace has a copy of the skill's two small files, and a record.
    let further = (WORKSPACES - 1) * MIB / 4;
    for (one, all) in [
        (one.disk_bytes, all.disk_bytes),
        (one.cache_bytes, all.cache_bytes),
    ] {
        let file = package.file_bytes();
        assert!(one >= file, "{one} bytes are less than the file");
        assert!(one <= file + 4 * MIB, "{one} bytes for one workspace");
        assert!(all <= one + further, "{all} bytes, and {one} for one");
    }
    daemon.stop().await
}
