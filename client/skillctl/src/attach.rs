//! Command `skillctl attach`: follows a running exec from any offset.

use anyhow::bail;
use clap::Args;
use clap_complete::engine::ArgValueCompleter;
use skilld_client::v1::{AttachExecRequest, Exec, ExecState, StreamOffsets, stdin::Source};
use skilld_client::{Client, short_id};

use crate::attach_input::{AttachInput, TerminalAttach};
use crate::detach_keys::DetachKeys;
use crate::event_follower::{self, EventFollower, FollowOutcome, OnLeave};
use crate::{attach_input, complete, output, value_formats};

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
        let events = client.attach_resuming(AttachExecRequest {
            name: self.exec,
            offsets: Some(from),
            ..Default::default()
        });
        let mut interrupt = input.interrupt()?;
        let mut follower = EventFollower::new(client, OnLeave::Detach);
        let name = short_id(events.name());
        let ended = follower.converse_and_print(events, input, &mut interrupt);
        let ending = ended.await?;
        if matches!(ending, FollowOutcome::Interrupted) {
            output::note!("{name} goes on; `skillctl kill {name}` ends it");
        }
        Ok(event_follower::exit_code(&ending))
    }

    /// Returns what this program's stdin sends to a running exec: keys, bytes or nothing.
    fn input(&self, client: &Client, exec: &Exec) -> anyhow::Result<AttachInput> {
        let name = short_id(&exec.name);
        let spec = exec.effective_spec.as_ref();
        let source = spec.and_then(|spec| spec.stdin.as_ref()?.source.as_ref());
        if !matches!(source, Some(Source::Open(true))) {
            bail!("{name} was started without -i and takes no input: leave out -i to follow it");
        }
        if spec.and_then(|spec| spec.terminal.as_ref()).is_none() {
            return Ok(AttachInput::Stream(client.stdin_end(&exec.name)));
        }
        attach_input::need_terminal(&format!("`skillctl stdin {name}` sends bytes to it"))?;
        Ok(AttachInput::Keyboard(TerminalAttach {
            client: client.clone(),
            name: exec.name.clone(),
            detach_keys: self.detach_keys.clone(),
            size: None,
        }))
    }
}
