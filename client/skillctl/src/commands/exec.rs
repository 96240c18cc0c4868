//! `skillctl exec`: one command in a workspace.

use anyhow::bail;
use clap::Args;
use clap_complete::engine::ArgValueCompleter;
use prost_types::Duration;
use skilld_client::v1::{ExecSpec, ExecState, RunExecRequest, StartExecRequest, StragglerPolicy};
use skilld_client::{Client, short_id};

use crate::commands::command_args::CommandArgs;
use crate::commands::complete;
use crate::commands::terminal_args::TerminalArgs;
use crate::output::event_follower::{self, EventFollower, OnLeave};
use crate::output::{self, exec_result, value_formats};
use crate::terminal;
use crate::terminal::attach_input::AttachInput;

/// Working directory of commands without a skill and without --cwd; other paths of the command line begin there too.
pub(crate) const WORKSPACE_ROOT: &str = ".";

/// Run a command in a workspace. Passes through its stdin, stdout, stderr and exit code.
///
/// It starts in /workspace, or with --skill in the skill's root: `> out/report.txt` writes a result in both. Several
/// words are a program and its arguments, passed as they are. One word with spaces or other characters that a shell
/// understands is run by bash. Flags of this program come before the command; -- is needed only before a command that
/// begins with a dash. Ctrl-C and SIGTERM kill the command with everything that it started. The end of the terminal or
/// session leaves it running: `skillctl ps` finds it. With -it the command runs in this terminal: all keys go to it,
/// Ctrl-C too, the detach keys leave it running, and the end of the terminal kills it.
///
/// If skillctl itself fails, the exit code is 125; 126 and 127 are a program that cannot be run or does not exist.
#[derive(Debug, Args)]
#[command(after_help = "Example:
  skillctl exec job-7 ls -l work
  skillctl exec job-7 'ls work | wc -l > out/count.txt'
  skillctl exec job-7 --skill csv-report --timeout 2m python3 scripts/csv_report.py inputs/in.csv
  skillctl exec job-7 --skill csv-report --script scripts/csv_report.py \\
      --arg-style named --arg group-by=region --arg top=3 -- inputs/in.csv
  skillctl exec job-7 -i sort < names.txt
  skillctl exec job-7 -it bash
  skillctl exec job-7 -di --id python python3 -i
  skillctl exec job-7 --keep-processes 'python3 -m http.server 8000 &'")]
pub(crate) struct Exec {
    /// Workspace to run in.
    #[arg(add = ArgValueCompleter::new(complete::offer_workspaces))]
    id: String,
    /// Run in the root of this staged skill, with its environment.
    #[arg(
        long,
        value_name = "NAME",
        default_value = "",
        hide_default_value = true,
        add = ArgValueCompleter::new(complete::offer_skills)
    )]
    skill: String,
    /// Start in this directory: relative to the skill's root, else to /workspace.
    #[arg(
        long,
        value_name = "DIR",
        default_value = "",
        hide_default_value = true
    )]
    cwd: String,
    /// Environment; may be repeated.
    #[arg(short, long, value_name = "KEY=VALUE", value_parser = value_formats::parse_pair)]
    env: Vec<(String, String)>,
    /// Kill it after this long. The server's default is 5 minutes, and its maximum with -t.
    #[arg(long, value_name = "DURATION", value_parser = value_formats::parse_duration)]
    timeout: Option<Duration>,
    /// Give it our stdin, as it comes. With -d its stdin is kept open instead, for `skillctl stdin` and `attach -i`.
    #[arg(short = 'i', long)]
    stdin: bool,
    #[command(flatten)]
    terminal: TerminalArgs,
    /// Start it, print its id and leave; `skillctl attach` follows it later.
    #[arg(short, long)]
    detach: bool,
    /// Id of the exec. The same id with the same command does not start it again, it attaches; input that it has
    /// got before is not sent again.
    #[arg(
        long = "id",
        value_name = "EXEC",
        default_value = "",
        hide_default_value = true
    )]
    exec_id: String,
    /// Let processes that the command leaves running, such as servers, run on until the workspace ends. Without this
    /// they are ended half a second after the command, and a remark names them.
    #[arg(long)]
    keep_processes: bool,
    #[command(flatten)]
    command: CommandArgs,
}

impl Exec {
    pub(crate) async fn run(self, client: &Client) -> anyhow::Result<u8> {
        let spec = self.spec();
        if self.detach {
            let request = StartExecRequest {
                parent: self.id,
                exec_id: self.exec_id,
                spec: Some(spec),
            };
            return start_exec(client, request).await;
        }
        if self.terminal.tty {
            let instead = "leave out -t, or start it with -d and write to it with `skillctl stdin`";
            need_terminal(instead)?;
        }
        let events = client.run_resuming(RunExecRequest {
            parent: self.id,
            exec_id: self.exec_id,
            spec: Some(spec.clone()),
            ..Default::default()
        });
        let input = self.terminal.input(client, events.name(), &spec);
        let mut interrupt = input.interrupt()?;
        let on_leave = match &input {
            AttachInput::Keyboard(_) => OnLeave::Kill,
            AttachInput::None | AttachInput::Stream(_) | AttachInput::Watch(_) => {
                OnLeave::KillUnlessHungUp
            }
        };
        let mut follower = EventFollower::new(client, on_leave);
        let ended = follower.converse_and_print(events, input, &mut interrupt);
        Ok(event_follower::exit_code(&ended.await?))
    }

    fn spec(&self) -> ExecSpec {
        let is_at_root = self.skill.is_empty() && self.cwd.is_empty();
        let cwd = if is_at_root {
            WORKSPACE_ROOT
        } else {
            &self.cwd
        };
        let mut spec = ExecSpec {
            skill: self.skill.clone(),
            cwd: cwd.to_owned(),
            stragglers: match self.keep_processes {
                true => StragglerPolicy::Keep.into(),
                false => StragglerPolicy::Unspecified.into(),
            },
            ..self
                .command
                .clone()
                .spec(&self.env, self.timeout, self.stdin)
        };
        self.terminal.set_terminal(&mut spec);
        spec
    }
}

async fn start_exec(client: &Client, request: StartExecRequest) -> anyhow::Result<u8> {
    let exec = client.start_exec(request).await?;
    output::print_message(&exec, &format!("{}\n", short_id(&exec.name)))?;
    match &exec.result {
        // Started or not is what the code says here; how a program ends is asked later.
        Some(ended) if exec.pid == 0 && exec.state() != ExecState::Running => {
            output::print_note(&exec_result::end_reason(ended).unwrap_or_default());
            Ok(exec_result::exit_code(ended))
        }
        Some(_) | None => Ok(0),
    }
}

/// Checks that stdin and stdout are a terminal, which an interactive command needs.
pub(crate) fn need_terminal(instead: &str) -> anyhow::Result<()> {
    if !terminal::stdin_is_terminal() {
        bail!("a terminal session needs a terminal, and our stdin is none: {instead}");
    }
    if output::is_json() {
        bail!(
            "a terminal session has no JSON form: leave out -o json, or read the output with `skillctl poll`"
        );
    }
    Ok(())
}
