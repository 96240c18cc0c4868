//! `skillctl logs`: the output of an exec so far.

use clap::Args;
use clap_complete::engine::ArgValueCompleter;
use prost_types::Duration;
use skilld_client::Client;
use skilld_client::v1::exec_event::{Event, Exited};
use skilld_client::v1::{AttachExecRequest, PollExecRequest, StreamOffsets};

use crate::attach_input::AttachInput;
use crate::event_follower::{self, EventFollower, FollowOutcome, OnLeave};
use crate::{complete, poll, value_formats};

/// Maximum output of one poll, in bytes.
const POLL_BYTES: i32 = 1024 * 1024;

/// Print what an exec has printed so far, as far as it is retained.
#[derive(Debug, Args)]
#[command(after_help = "Example:
  skillctl logs job-7/x-1
  skillctl logs job-7/x-1 --follow")]
pub(crate) struct Logs {
    /// Exec whose output is printed.
    #[arg(value_name = "ID/EXEC", add = ArgValueCompleter::new(complete::offer_execs))]
    exec: String,
    /// Go on until the exec has ended. The exit code is 0 however it ended.
    #[arg(short, long)]
    follow: bool,
    /// First byte of stdout to print, and of stderr after a comma.
    #[arg(long, value_name = "STDOUT[,STDERR]", default_value = "0", value_parser = value_formats::parse_offsets)]
    offset: StreamOffsets,
}

impl Logs {
    pub(crate) async fn run(self, client: &Client) -> anyhow::Result<u8> {
        let mut follower = EventFollower::new(client, OnLeave::Detach);
        if self.follow {
            let events = client.attach_resuming(AttachExecRequest {
                name: self.exec,
                offsets: Some(self.offset),
                ..Default::default()
            });
            let name = events.name().to_owned();
            let mut interrupt = AttachInput::None.interrupt()?;
            let ended = follower.follow(events, &mut interrupt).await;
            let printed = follower.print_transcript(&name, ended.is_err());
            let ending = ended?;
            printed?;
            return Ok(match &ending {
                FollowOutcome::Finished { .. } => 0,
                FollowOutcome::Interrupted
                | FollowOutcome::PipeClosed
                | FollowOutcome::TerminalGone
                | FollowOutcome::Detached(_) => event_follower::exit_code(&ending),
            });
        }
        let mut follower = follower.without_event_lines();
        let exec = client.get_exec(&self.exec).await?;
        let total = exec.total.unwrap_or_default();
        let mut poller = client.poller(PollExecRequest {
            name: exec.name.clone(),
            offsets: Some(self.offset),
            wait: Some(Duration::default()),
            max_bytes: POLL_BYTES,
            ..Default::default()
        });
        // A program that never stops printing must not keep this one.
        while poller.offsets().stdout < total.stdout || poller.offsets().stderr < total.stderr {
            let Some(answer) = poller.next().await? else {
                break;
            };
            let nothing = answer.output.is_empty() && answer.gaps.is_empty();
            for event in poll::answer_events(answer) {
                follower.write_event(&event).await?;
            }
            if nothing {
                break;
            }
        }
        let result = exec.result;
        follower
            .write_event(&Event::Exited(Exited { result }))
            .await?;
        follower.print_transcript(&exec.name, false)?;
        Ok(0)
    }
}
