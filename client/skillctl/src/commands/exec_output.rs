//! Commands `skillctl attach`, `logs`, `poll` and `wait`: the output of an exec, and how it ends.
//!
//! `attach` and `logs --follow` read a stream. The others poll: a stream would hold up a program that prints while it
//! is not read, and leaving the last stream kills an exec that was started with `on_disconnect` KILL.

use anyhow::bail;
use clap::Args;
use clap_complete::engine::ArgValueCompleter;
use prost_types::Duration;
use skilld_client::v1::ExitedEvent;
use skilld_client::v1::exec_event::Event;
use skilld_client::v1::{
    AttachExecRequest, Exec, ExecState, PollExecRequest, PollExecResponse, StragglerPolicy,
    StreamOffsets,
};
use skilld_client::{Client, short_id};

use crate::commands::{complete, exec, execs};
use crate::output::event_follower::{self, EventFollower, FollowOutcome, OnLeave};
use crate::output::room_report::RoomReportSearch;
use crate::output::{self, exec_result, value_formats};
use crate::terminal::attach_input::{AttachInput, TerminalAttach};
use crate::terminal::detach_keys::DetachKeys;

/// Maximum output of one poll, in bytes, which is the API's maximum.
const POLL_BYTES: i32 = 1024 * 1024;

/// Maximum time that one poll waits, which is the API's maximum.
const POLL_WAIT: Duration = Duration {
    seconds: 60,
    nanos: 0,
};

/// Number of looks at an exec after its end, and the time between them. Half a second later it is closed.
const CLOSE_LOOKS: u32 = 40;
const CLOSE_PAUSE: std::time::Duration = std::time::Duration::from_millis(50);

/// Follow an exec from its first byte, or from where you left it; exits with its code.
///
/// Ctrl-C leaves it running. With -i and an exec that has a terminal all keys go there, Ctrl-C too; the detach keys
/// leave it running then.
#[derive(Debug, Args)]
#[command(after_help = "Example:
  skillctl attach job-7/x-1 --offset 4096
  skillctl attach job-7/shell -i")]
pub(crate) struct Attach {
    /// Exec to attach to.
    #[arg(value_name = "ID/EXEC", add = ArgValueCompleter::new(complete::offer_execs))]
    exec: String,
    /// First byte of stdout to print, and of stderr after a comma. Left out it is 0, and with -i and a terminal the
    /// end.
    #[arg(long, value_name = "STDOUT[,STDERR]", value_parser = value_formats::parse_offsets)]
    offset: Option<StreamOffsets>,
    /// Send our stdin, to an exec started with -i: keys to its terminal, else bytes as they come and end of file when
    /// ours ends.
    #[arg(short = 'i', long)]
    stdin: bool,
    /// Keys that leave a terminal: `ctrl-` and a letter or one of @[\]^_, or a plain key, with commas in between;
    /// none for none.
    #[arg(long, value_name = "KEYS", default_value = "ctrl-p,ctrl-q", value_parser = DetachKeys::parse)]
    detach_keys: DetachKeys,
}

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

/// Wait until an exec has ended, print how, and exit with its code. A failure of skillctl itself is 125.
#[derive(Debug, Args)]
#[command(after_help = "Example:\n  skillctl wait job-7/x-1")]
pub(crate) struct Wait {
    /// Exec to wait for.
    #[arg(value_name = "ID/EXEC", add = ArgValueCompleter::new(complete::offer_execs))]
    exec: String,
}

impl Attach {
    pub(crate) async fn run(self, client: &Client) -> anyhow::Result<u8> {
        let mut from = self.offset.unwrap_or_default();
        let mut input = AttachInput::None;
        if self.stdin {
            let exec = client.get_exec(&self.exec).await?;
            // What has ended takes nothing more, and has only its output to show.
            if exec.state() == ExecState::Running {
                input = self.input(client, &exec)?;
                if matches!(input, AttachInput::Keyboard(_)) && self.offset.is_none() {
                    from = exec.total.unwrap_or_default();
                }
            }
        }
        let ending = follow(client, &self.exec, from, input).await?;
        if matches!(ending, FollowOutcome::Interrupted) {
            let name = short_id(&self.exec);
            output::note!("{name} goes on; `skillctl kill {name}` ends it");
        }
        Ok(event_follower::exit_code(&ending))
    }

    /// Returns what this program's stdin sends to a running exec: keys, bytes or nothing.
    fn input(&self, client: &Client, exec: &Exec) -> anyhow::Result<AttachInput> {
        let name = short_id(&exec.name);
        let spec = exec.effective_spec.as_ref();
        if !spec.is_some_and(|spec| spec.open_stdin) {
            bail!("{name} was started without -i and takes no input: leave out -i to follow it");
        }
        if spec.and_then(|spec| spec.terminal.as_ref()).is_none() {
            return Ok(AttachInput::Stream(client.stdin_end(&exec.name)));
        }
        exec::need_terminal(&format!("`skillctl stdin {name}` sends bytes to it"))?;
        Ok(AttachInput::Keyboard(TerminalAttach {
            client: client.clone(),
            name: exec.name.clone(),
            detach_keys: self.detach_keys.clone(),
            size: None,
        }))
    }
}

impl Logs {
    pub(crate) async fn run(self, client: &Client) -> anyhow::Result<u8> {
        if self.follow {
            let ending = follow(client, &self.exec, self.offset, AttachInput::None).await?;
            let has_ended = matches!(ending, FollowOutcome::Finished { .. });
            return Ok(match has_ended {
                true => 0,
                false => event_follower::exit_code(&ending),
            });
        }
        let mut follower = EventFollower::new(client, OnLeave::Detach).without_event_lines();
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
        while poller.offsets().stdout_bytes < total.stdout_bytes
            || poller.offsets().stderr_bytes < total.stderr_bytes
        {
            let Some(answer) = poller.next().await? else {
                break;
            };
            let nothing = answer.outputs.is_empty() && answer.gaps.is_empty();
            follower.write_answer(answer).await?;
            if nothing {
                break;
            }
        }
        let result = exec.result;
        let exited = Event::Exited(ExitedEvent { result });
        follower.write_event(&exited).await?;
        follower.print_transcript(&exec.name, false)?;
        Ok(0)
    }
}

impl Poll {
    pub(crate) async fn run(self, client: &Client) -> anyhow::Result<u8> {
        let request = PollExecRequest {
            name: self.exec,
            offsets: Some(self.offset),
            wait: self.wait,
            settle_duration: self.settle,
            max_bytes: self.max_bytes.map_or(Ok(0), i32::try_from)?,
            ..Default::default()
        };
        let answer = client.poll_exec(request).await?;
        if output::is_json() {
            return output::print_message(&answer, "");
        }
        let next = answer.next_offsets.unwrap_or_default();
        let state = polled_state(&answer);
        let mut search = RoomReportSearch::default();
        answer.outputs.iter().for_each(|piece| search.add(piece));
        let warnings = answer
            .result
            .as_ref()
            .map(|result| exec_result::warnings(result, search.is_found))
            .unwrap_or_default();
        let mut follower = EventFollower::new(client, OnLeave::Detach);
        follower.write_answer(answer).await?;
        output::note!(
            "{state}; go on with --offset {},{}",
            next.stdout_bytes,
            next.stderr_bytes
        );
        warnings.iter().for_each(|note| output::print_note(note));
        Ok(0)
    }
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
            while let Some(answer) = poller.next().await?
                && answer.result.is_none()
            {}
            exec = client.get_exec(&self.exec).await?;
        }
        // Only a closed exec knows which processes were ended with it. Its code is known without that.
        let spec = exec.effective_spec.as_ref();
        let ends_none = spec.is_some_and(|spec| spec.stragglers() == StragglerPolicy::Keep);
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
        output::print_message(&exec, &text)?;
        let ended = exec.result.unwrap_or_default();
        let warnings = exec_result::warnings(&ended, false);
        warnings.iter().for_each(|note| output::print_note(note));
        Ok(exec_result::exit_code(&ended))
    }
}

/// Prints the events of an exec from `offsets` on while `input` is sent to it. The exec continues when it is left.
async fn follow(
    client: &Client,
    exec: &str,
    offsets: StreamOffsets,
    input: AttachInput,
) -> anyhow::Result<FollowOutcome> {
    let events = client.attach_resuming(AttachExecRequest {
        name: exec.to_owned(),
        offsets: Some(offsets),
        ..Default::default()
    });
    let mut interrupt = input.interrupt()?;
    let mut follower = EventFollower::new(client, OnLeave::Detach);
    follower
        .converse_and_print(events, input, &mut interrupt)
        .await
}

/// Describes the state of the polled exec for people.
fn polled_state(answer: &PollExecResponse) -> String {
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
