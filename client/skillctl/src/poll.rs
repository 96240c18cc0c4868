//! `skillctl poll`: prints an exec's output from given offsets, and the offsets at which to continue.

use clap::Args;
use clap_complete::engine::ArgValueCompleter;
use prost_types::Duration;
use skilld_client::Client;
use skilld_client::v1::exec_event::Event;
use skilld_client::v1::{ExecState, PollExecRequest, PollExecResponse, StreamOffsets};

use crate::event_follower::{EventFollower, OnLeave};
use crate::room_report::RoomReportSearch;
use crate::{complete, exec_result, output, value_formats};

/// Print what an exec has said since, and on stderr where to go on and how it is.
///
/// Answers when output has come and been quiet for a moment, when the exec has ended, or when the wait is over. The
/// exit code is 0 however the exec ended.
#[derive(Debug, Args)]
#[command(after_help = "Example:
  skillctl poll job-7/x-1 --wait 30s
  skillctl poll job-7/x-1 --wait 30s --offset 4096,0 -o json")]
pub(crate) struct Poll {
    /// Exec to poll.
    #[arg(value_name = "ID/EXEC", add = ArgValueCompleter::new(complete::offer_execs))]
    exec: String,
    /// Time to wait for output, at most 60s. Answers at once if left out.
    #[arg(long, value_name = "DURATION", value_parser = value_formats::parse_duration)]
    wait: Option<Duration>,
    /// First byte of stdout to print, and of stderr after a comma.
    #[arg(long, value_name = "STDOUT[,STDERR]", default_value = "0", value_parser = value_formats::parse_offsets)]
    offset: StreamOffsets,
    /// Wait until output has been quiet for this long, at most 10s. The server's default is 75 ms.
    #[arg(long, value_name = "DURATION", value_parser = value_formats::parse_duration)]
    settle: Option<Duration>,
    /// Print at most this much, up to 1MiB. The server's default is 64 KiB.
    #[arg(long, value_name = "SIZE", value_parser = value_formats::parse_size)]
    max_bytes: Option<i64>,
}

impl Poll {
    pub(crate) async fn run(self, client: &Client) -> anyhow::Result<u8> {
        let request = PollExecRequest {
            name: self.exec,
            offsets: Some(self.offset),
            wait: self.wait,
            settle_time: self.settle,
            max_bytes: self.max_bytes.map_or(Ok(0), i32::try_from)?,
            ..Default::default()
        };
        let answer = client.poll_exec(request).await?;
        if output::is_json() {
            return output::print_message("PollExecResponse", &answer, "");
        }
        let next = answer.next_offsets.unwrap_or_default();
        let state = exec_state(&answer);
        let warnings = match &answer.result {
            Some(ended) => {
                let mut search = RoomReportSearch::default();
                answer.output.iter().for_each(|piece| search.add(piece));
                exec_result::warnings(ended, search.is_found)
            }
            None => Vec::new(),
        };
        let mut follower = EventFollower::new(client, OnLeave::Detach);
        for event in answer_events(answer) {
            follower.write_event(&event).await?;
        }
        output::note!(
            "{state}; go on with --offset {},{}",
            next.stdout,
            next.stderr
        );
        warnings.iter().for_each(|note| output::print_note(note));
        Ok(0)
    }
}

/// Returns the answer's gaps and output as events, in the order in which they are printed.
pub(crate) fn answer_events(answer: PollExecResponse) -> impl Iterator<Item = Event> {
    let gaps = answer.gaps.into_iter().map(Event::Gap);
    gaps.chain(answer.output.into_iter().map(Event::Output))
}

/// Describes the state of the polled exec for people.
fn exec_state(answer: &PollExecResponse) -> String {
    let Some(ended) = &answer.result else {
        return "it runs".to_owned();
    };
    let how = exec_result::end_reason(ended)
        .unwrap_or_else(|| format!("exit {}", exec_result::exit_code(ended)));
    match answer.state() {
        ExecState::Closed => how,
        ExecState::Unspecified | ExecState::Running | ExecState::Exited => {
            format!("{how}, more output may come")
        }
    }
}
