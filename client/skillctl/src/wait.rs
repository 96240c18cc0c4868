//! `skillctl wait`: waits until an exec has ended and exits with its exit code.

use clap::Args;
use clap_complete::engine::ArgValueCompleter;
use prost_types::Duration;
use skilld_client::v1::{ExecState, PollExecRequest, Stragglers};
use skilld_client::{Client, short_id};

use crate::{complete, exec_result, execs, output};

/// Maximum time that one poll waits, which is the API's maximum.
const POLL_WAIT: Duration = Duration {
    seconds: 60,
    nanos: 0,
};

/// Maximum output of one poll, in bytes. It is not printed.
const POLL_BYTES: i32 = 1024 * 1024;

/// Number of looks at an exec after its end, and the time between them. Half a second later it is closed.
const CLOSE_LOOKS: u32 = 40;
const CLOSE_PAUSE: std::time::Duration = std::time::Duration::from_millis(50);

/// Wait until an exec has ended, print how, and exit with its code. A failure of skillctl itself is 125.
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
        // Only a closed exec knows which processes were ended with it. Its code is known without that.
        let spec = exec.effective_spec.as_ref();
        let ends_none = spec.is_some_and(|spec| spec.stragglers() == Stragglers::Keep);
        for _ in 0..CLOSE_LOOKS {
            if ends_none || exec.state() == ExecState::Closed {
                break;
            }
            tokio::time::sleep(CLOSE_PAUSE).await;
            let Ok(latest) = client.get_exec(&self.exec).await else {
                break;
            };
            exec = latest;
        }
        let text = format!("{} {}\n", short_id(&exec.name), execs::exec_state(&exec));
        output::print_message("Exec", &exec, &text)?;
        let ended = exec.result.unwrap_or_default();
        let warnings = exec_result::warnings(&ended, false);
        warnings.iter().for_each(|note| output::print_note(note));
        Ok(exec_result::exit_code(&ended))
    }
}
