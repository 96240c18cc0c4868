//! `--tty` and its options: the terminal that `skillctl exec` and `run` give a command.

use clap::Args;
use prost_types::Duration;
use skilld_client::Client;
use skilld_client::v1::ExecSpec;

use crate::terminal;
use crate::terminal::attach_input::{AttachInput, TerminalAttach};
use crate::terminal::detach_keys::DetachKeys;

/// Time limit of a terminal session that sets none: longer than any server allows, so the server's maximum applies.
const SESSION_TIMEOUT: Duration = Duration {
    seconds: 365 * 24 * 3600,
    nanos: 0,
};

/// Flags of a command's terminal.
#[derive(Clone, Debug, Args)]
pub(crate) struct TerminalArgs {
    /// Give it a terminal, like ours in size and kind; with -i our keys go there.
    #[arg(short = 't', long = "tty")]
    pub(crate) tty: bool,
    /// Kind of the terminal.
    #[arg(
        long,
        env = "TERM",
        default_value = "",
        hide_default_value = true,
        hide_env_values = true
    )]
    term: String,
    /// Keys that leave a terminal: `ctrl-` and a letter or one of @[\]^_, or a plain key, with commas in between;
    /// none for none.
    #[arg(long, value_name = "KEYS", default_value = "ctrl-p,ctrl-q", value_parser = DetachKeys::parse)]
    detach_keys: DetachKeys,
}

impl TerminalArgs {
    /// Gives a command its terminal if the user asks for one, and then the time of a session.
    pub(crate) fn set_terminal(&self, spec: &mut ExecSpec) {
        if self.tty {
            spec.terminal = Some(terminal::terminal_like_ours(&self.term));
            spec.timeout.get_or_insert(SESSION_TIMEOUT);
        }
    }

    /// Returns what this program sends to the exec of this full name.
    pub(crate) fn input(self, client: &Client, name: &str, spec: &ExecSpec) -> AttachInput {
        let Some(terminal) = &spec.terminal else {
            return match spec.open_stdin {
                true => AttachInput::Stream(client.stdin_at(name, 0)),
                false => AttachInput::None,
            };
        };
        let session = TerminalAttach {
            client: client.clone(),
            name: name.to_owned(),
            detach_keys: self.detach_keys,
            size: Some((terminal.rows, terminal.cols)),
        };
        match spec.open_stdin {
            true => AttachInput::Keyboard(session),
            false => AttachInput::Watch(session),
        }
    }
}
