//! `skillctl wait`: waits until an exec has ended and exits with its exit code.

use clap::Args;
use clap_complete::engine::ArgValueCompleter;
use prost_types::Duration;
use skilld_client::v1::PollExecRequest;
use skilld_client::{Client, short_id};

use crate::{complete, exec_result, execs, output};

/// Maximum time that one poll waits, which is the API's maximum.
const POLL_WAIT: Duration = Duration {
    seconds: 60,
    nanos: 0,
};

/// Maximum output of one poll, in bytes. It is not printed.
const POLL_BYTES: i32 = 1024 * 1024;

/// Wait until an exec has ended, print how, and exit with its code.
#[derive(Debug, Args)]
#[command(after_help = "Example:\n  skillctl wait job-7/x-1")]
pub(crate) struct Wait {
    /// Exec to wait for.
    #[arg(value_name = "ID/EXEC", add = ArgValueCompleter::new(complete::offer_execs))]
    exec: String,
}

impl Wait {
    pub(crate) async fn run(self, client: &Client) -> anyhow::Result<u8> {
        let mut exec = client.get_exec(&self.exec).await?;
        if exec.result.is_none() {
            let mut poller = client.poller(PollExecRequest {
                name: exec.name.clone(),
                offsets: exec.total,
                wait: Some(POLL_WAIT),
                max_bytes: POLL_BYTES,
                ..Default::default()
            });
            while let Some(answer) = poller.next().await? {
                if answer.result.is_some() {
                    break;
                }
            }
            exec = client.get_exec(&self.exec).await?;
        }
        let text = format!("{} {}\n", short_id(&exec.name), execs::exec_state(&exec));
        output::print_message("Exec", &exec, &text)?;
        if let Some(warning) = exec.result.as_ref().and_then(exec_result::oom_warning) {
            output::print_note(&warning);
        }
        Ok(exec.result.as_ref().map_or(1, exec_result::exit_code))
    }
}
