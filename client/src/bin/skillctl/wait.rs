//! `skillctl wait`: the end of an exec.

use clap::Args;
use clap_complete::engine::ArgValueCompleter;
use prost_types::Duration;
use skilld_client::short_id;
use skilld_client::v1::PollExecRequest;

use crate::context::Context;
use crate::{complete, execs, result};

/// How long one call waits: the longest that the API allows.
const POLL_WAIT: Duration = Duration {
    seconds: 60,
    nanos: 0,
};

/// Output that one call returns at most, in bytes. It is not printed.
const POLL_BYTES: i32 = 1024 * 1024;

/// Wait until an exec has ended, print how, and exit with its code.
#[derive(Debug, Args)]
#[command(after_help = "Example:\n  skillctl wait job-7/x-1")]
pub(crate) struct Wait {
    /// The exec.
    #[arg(value_name = "ID/EXEC", add = ArgValueCompleter::new(complete::execs))]
    exec: String,
}

impl Wait {
    pub(crate) async fn run(self, context: &Context) -> anyhow::Result<u8> {
        let client = &context.client;
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
        context.output.message("Exec", &exec, |exec| {
            format!("{} {}\n", short_id(&exec.name), execs::state(exec))
        })?;
        Ok(exec.result.as_ref().map_or(1, result::exit_code))
    }
}
