//! Bad input: each has a clear status with its reason and leaves nothing half-written, and the workspace goes on.

mod archives;
mod names;
mod space;

use anyhow::{Result, ensure};
use skilld_client::Client;
use skilld_tests::exec::{run, shell};

/// Checks that the daemon serves and the workspace runs another command.
async fn still_well(client: &Client, workspace: &str) -> Result<()> {
    ensure!(client.is_serving("").await?, "the daemon is not healthy");
    let outcome = run(client, workspace, shell("echo well")).await?;
    ensure!(outcome.text() == "well\n", "{outcome:?}");
    Ok(())
}

/// Returns every path in the writable area and where a misplaced file might be, one path per line.
async fn contents(client: &Client, workspace: &str) -> Result<String> {
    let list = "find $WORK_DIR $OUTPUT_DIR /tmp -mindepth 1 | sort; ls -A /workspace";
    let outcome = run(client, workspace, shell(list)).await?;
    ensure!(outcome.exit_code() == Some(0), "{outcome:?}");
    Ok(outcome.text())
}
