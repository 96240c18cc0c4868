//! Bad input: each has a clear status with its reason, leaves nothing half-written, and the same workspace works on.

mod archives;
mod names;
mod space;

use anyhow::{Result, ensure};
use skilld_client::Client;
use skilld_tests::exec::{run, shell};

/// The daemon is well, and the workspace takes another command.
async fn still_well(client: &Client, workspace: &str) -> Result<()> {
    ensure!(client.is_serving("").await?, "the daemon is not healthy");
    let outcome = run(client, workspace, shell("echo well")).await?;
    ensure!(outcome.text() == "well\n", "{outcome:?}");
    Ok(())
}

/// Everything in the writable area and where else something might have got to, one path a line.
async fn contents(client: &Client, workspace: &str) -> Result<String> {
    let list = "find $WORK_DIR $OUTPUT_DIR /tmp -mindepth 1 | sort; ls -A /workspace";
    let outcome = run(client, workspace, shell(list)).await?;
    ensure!(outcome.exit_code() == Some(0), "{outcome:?}");
    Ok(outcome.text())
}
