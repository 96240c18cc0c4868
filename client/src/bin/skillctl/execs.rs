//! `skillctl ps`, `attach`, `signal`, `kill`: execs that are there already.

use clap::{Args, ValueEnum};
use skilld_client::short_id;
use skilld_client::v1::signal_exec_request::Target;
use skilld_client::v1::{
    AttachExecRequest, Exec as Message, ExecState, ListExecsRequest, ListExecsResponse,
    SignalExecRequest, StreamOffsets,
};

use crate::context::Context;
use crate::follow::{self, Ending, Follower, OnLeave};
use crate::interrupt::Interrupt;
use crate::output::Table;
use crate::{output, result, signals, values};

/// List a workspace's execs, running and ended.
#[derive(Debug, Args)]
#[command(after_help = "Example:\n  skillctl ps job-7")]
pub(crate) struct Ps {
    /// The workspace.
    id: String,
}

/// Follow an exec from its first byte, or from where you left it; exits with its code.
///
/// Ctrl-C leaves it running.
#[derive(Debug, Args)]
#[command(after_help = "Example:\n  skillctl attach job-7/x-1 --from 4096")]
pub(crate) struct Attach {
    /// The exec.
    #[arg(value_name = "ID/EXEC")]
    exec: String,
    /// First byte of stdout to print, and of stderr after a comma.
    #[arg(long, value_name = "STDOUT[,STDERR]", default_value = "0", value_parser = offsets)]
    from: StreamOffsets,
}

/// Send a signal to an exec.
#[derive(Debug, Args)]
#[command(after_help = "Example:\n  skillctl signal job-7/x-1 HUP --to tree")]
pub(crate) struct Signal {
    /// The exec.
    #[arg(value_name = "ID/EXEC")]
    exec: String,
    /// Name or number: TERM, SIGTERM, 15.
    #[arg(value_parser = signals::parse)]
    signal: i32,
    /// Who gets it.
    #[arg(long, value_enum, default_value_t = To::Leader)]
    to: To,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum To {
    /// The program that was started.
    Leader,
    /// Its process group.
    Group,
    /// Everything that it started.
    Tree,
}

/// End an exec with everything that it started: TERM, then KILL.
#[derive(Debug, Args)]
#[command(after_help = "Example:\n  skillctl kill job-7/x-1")]
pub(crate) struct Kill {
    /// The exec.
    #[arg(value_name = "ID/EXEC")]
    exec: String,
}

impl Ps {
    pub(crate) async fn run(self, context: &Context) -> anyhow::Result<u8> {
        let mut all = ListExecsResponse::default();
        let mut request = ListExecsRequest {
            workspace: self.id,
            page_size: 1000,
            ..Default::default()
        };
        loop {
            let page = context.client.list_execs(request.clone()).await?;
            all.execs.extend(page.execs);
            if page.next_page_token.is_empty() {
                break;
            }
            request.page_token = page.next_page_token;
        }
        context.output.message("ListExecsResponse", &all, |all| {
            let mut table = Table::new(["EXEC", "STATE", "STARTED", "TIME", "OUTPUT", "COMMAND"]);
            for exec in &all.execs {
                table.row(row(exec));
            }
            table.text()
        })?;
        Ok(0)
    }
}

fn row(exec: &Message) -> [String; 6] {
    let total = exec.total.unwrap_or_default();
    let wall = exec
        .result
        .as_ref()
        .and_then(|result| result.wall_time.as_ref());
    [
        short_id(&exec.name),
        state(exec),
        values::relative(exec.start_time.as_ref()),
        values::span(wall),
        values::bytes(total.stdout + total.stderr),
        command(exec),
    ]
}

/// `running`, `exit 0`, `killed: timeout`.
fn state(exec: &Message) -> String {
    match &exec.result {
        Some(ended) if result::reason(ended).is_none() => {
            format!("exit {}", result::exit_code(ended))
        }
        Some(ended) => values::word(ended.reason().as_str_name(), "REASON_"),
        None => values::word(exec.state().as_str_name(), "EXEC_STATE_"),
    }
}

/// On one line, and not all of a long script.
fn command(exec: &Message) -> String {
    const CHARS_MAX: usize = 60;
    let Some(spec) = &exec.effective_spec else {
        return String::new();
    };
    let text = if spec.shell.is_empty() {
        spec.argv.join(" ")
    } else {
        spec.shell.clone()
    };
    let line: String = text
        .chars()
        .map(|c| if c.is_control() { ' ' } else { c })
        .collect();
    match line.char_indices().nth(CHARS_MAX) {
        Some((end, _)) => format!("{}…", line.get(..end).unwrap_or_default()),
        None => line,
    }
}

impl Attach {
    pub(crate) async fn run(self, context: &Context) -> anyhow::Result<u8> {
        let request = AttachExecRequest {
            name: self.exec,
            offsets: Some(self.from),
            ..Default::default()
        };
        let mut interrupt = Interrupt::new()?;
        let mut follower =
            Follower::new(&context.client, context.output.is_json(), OnLeave::Detach);
        let events = context.client.attach_resuming(request);
        let name = short_id(events.name());
        let ending = follower.follow(events, &mut interrupt).await?;
        if matches!(ending, Ending::Interrupted) {
            output::note(&format!("{name} goes on; `skillctl kill {name}` ends it"));
        }
        Ok(follow::exit_code(&ending))
    }
}

impl Signal {
    pub(crate) async fn run(self, context: &Context) -> anyhow::Result<u8> {
        let target = match self.to {
            To::Leader => Target::Leader,
            To::Group => Target::Group,
            To::Tree => Target::Tree,
        };
        let request = SignalExecRequest {
            name: self.exec,
            signal: self.signal,
            target: target.into(),
        };
        let exec = context.client.signal_exec(request).await?;
        context.output.message("Exec", &exec, |_| String::new())?;
        Ok(0)
    }
}

impl Kill {
    pub(crate) async fn run(self, context: &Context) -> anyhow::Result<u8> {
        let exec = context.client.kill_exec(&self.exec).await?;
        context
            .output
            .message("Exec", &exec, |exec| match exec.state() {
                ExecState::Running => format!("{} still runs\n", short_id(&exec.name)),
                ExecState::Unspecified | ExecState::Exited | ExecState::Closed => {
                    format!("{} {}\n", short_id(&exec.name), state(exec))
                }
            })?;
        Ok(0)
    }
}

fn offsets(text: &str) -> Result<StreamOffsets, String> {
    let (stdout, stderr) = text.split_once(',').unwrap_or((text, "0"));
    let number = |text: &str| {
        text.parse()
            .map_err(|_| "write for instance 4096 or 4096,0".to_owned())
    };
    Ok(StreamOffsets {
        stdout: number(stdout)?,
        stderr: number(stderr)?,
    })
}
