//! `skillctl exec`: one command in a workspace.

use std::io::{self, IsTerminal};

use anyhow::bail;
use bytes::Bytes;
use clap::Args;
use prost_types::Duration;
use skilld_client::short_id;
use skilld_client::v1::{
    ExecSpec, ExecState, RunExecRequest, StartExecRequest, Stdin, stdin::Source,
};
use tokio::io::AsyncReadExt;

use crate::context::Context;
use crate::follow::{self, Follower, OnLeave};
use crate::interrupt::Interrupt;
use crate::values::{self, Command};
use crate::{output, result};

/// More has to be staged as a file.
const STDIN_BYTES_MAX: u64 = 1024 * 1024;

/// Run a command in a workspace; its output is ours, and so is its exit code.
///
/// Several words are a program and its arguments, passed as they are. One word with spaces or other characters
/// that a shell understands is run by bash. Ctrl-C kills the command with everything that it started.
#[derive(Debug, Args)]
#[command(after_help = "Example:
  skillctl exec job-7 --skill csv-report --timeout 2m -- python3 scripts/csv_report.py in.csv
  skillctl exec job-7 -- 'ls work | wc -l'
  skillctl exec job-7 -i -- sort < names.txt")]
pub(crate) struct Exec {
    /// The workspace.
    id: String,
    /// Run in the root of this staged skill, with its environment.
    #[arg(
        long,
        value_name = "NAME",
        default_value = "",
        hide_default_value = true
    )]
    skill: String,
    /// Working directory, relative to the skill's root, else to the workspace.
    #[arg(
        long,
        value_name = "DIR",
        default_value = "",
        hide_default_value = true
    )]
    cwd: String,
    /// Environment; may be repeated.
    #[arg(long, value_name = "KEY=VALUE", value_parser = values::pair)]
    env: Vec<(String, String)>,
    /// Kill it after this long. The server's default is 5 minutes.
    #[arg(long, value_name = "DURATION", value_parser = values::duration)]
    timeout: Option<Duration>,
    /// Give it our stdin, which is read to its end first: a pipe or a file of at most 1 MiB.
    #[arg(short = 'i')]
    stdin: bool,
    /// Start it, print its id and leave; `skillctl attach` follows it later.
    #[arg(short, long)]
    detach: bool,
    /// Id of the exec. The same id with the same command does not start it again, it attaches.
    #[arg(
        long = "id",
        value_name = "EXEC",
        default_value = "",
        hide_default_value = true
    )]
    exec_id: String,
    #[arg(last = true, required = true, value_name = "COMMAND")]
    command: Vec<String>,
}

impl Exec {
    pub(crate) async fn run(self, context: &Context) -> anyhow::Result<u8> {
        let mut spec = spec(self.command, &self.env, self.timeout);
        spec.skill = self.skill;
        spec.cwd = self.cwd;
        if self.stdin {
            spec.stdin = Some(Stdin {
                source: Some(Source::Data(read_stdin().await?)),
            });
        }
        if self.detach {
            let request = StartExecRequest {
                workspace: self.id,
                exec_id: self.exec_id,
                spec: Some(spec),
            };
            return start(context, request).await;
        }
        let request = RunExecRequest {
            workspace: self.id,
            exec_id: self.exec_id,
            spec: Some(spec),
            ..Default::default()
        };
        let mut interrupt = Interrupt::new()?;
        let mut follower = Follower::new(&context.client, context.output.is_json(), OnLeave::Kill);
        let events = context.client.run_resuming(request);
        let ending = follower.follow(events, &mut interrupt).await?;
        Ok(follow::exit_code(&ending))
    }
}

/// A spec with what `exec` and `run` have in common.
pub(crate) fn spec(
    command: Vec<String>,
    env: &[(String, String)],
    timeout: Option<Duration>,
) -> ExecSpec {
    let mut spec = ExecSpec {
        env: values::map(env),
        timeout,
        ..Default::default()
    };
    match values::command(command) {
        Command::Shell(text) => spec.shell = text,
        Command::Argv(words) => spec.argv = words,
    }
    spec
}

async fn start(context: &Context, request: StartExecRequest) -> anyhow::Result<u8> {
    let exec = context.client.start_exec(request).await?;
    context
        .output
        .message("Exec", &exec, |exec| format!("{}\n", short_id(&exec.name)))?;
    match &exec.result {
        // Started or not is what the code says here; how a program ends is asked later.
        Some(ended) if exec.pid == 0 && exec.state() != ExecState::Running => {
            output::note(&result::reason(ended).unwrap_or_default());
            Ok(result::exit_code(ended))
        }
        Some(_) | None => Ok(0),
    }
}

async fn read_stdin() -> anyhow::Result<Bytes> {
    if io::stdin().is_terminal() {
        bail!(
            "-i reads a pipe or a file so far, and stdin is a terminal: write `skillctl exec -i … < FILE`"
        );
    }
    let mut data = Vec::new();
    let mut stdin = tokio::io::stdin().take(STDIN_BYTES_MAX + 1);
    stdin.read_to_end(&mut data).await?;
    if data.len() as u64 > STDIN_BYTES_MAX {
        bail!(
            "stdin is larger than 1 MiB: send it with `skillctl stage ID -=work/in` and let the command read that"
        );
    }
    Ok(data.into())
}
