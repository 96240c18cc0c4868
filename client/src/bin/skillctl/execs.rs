//! `skillctl ps`, `signal`, `kill`: execs that exist already.

use std::time::{Duration, SystemTime};

use clap::{Args, ValueEnum};
use clap_complete::engine::ArgValueCompleter;
use skilld_client::short_id;
use skilld_client::v1::signal_exec_request::Target;
use skilld_client::v1::{
    Exec as Message, ExecState, ListExecsRequest, ListExecsResponse, SignalExecRequest,
    stdin::Source,
};

use crate::context::Context;
use crate::output::Table;
use crate::{complete, result, signals, values};

/// List a workspace's execs, running and ended.
#[derive(Debug, Args)]
#[command(after_help = "Example:\n  skillctl ps job-7")]
pub(crate) struct Ps {
    /// The workspace.
    #[arg(add = ArgValueCompleter::new(complete::workspaces))]
    id: String,
}

/// Send a signal to an exec.
#[derive(Debug, Args)]
#[command(after_help = "Example:\n  skillctl signal job-7/x-1 HUP --target tree")]
pub(crate) struct Signal {
    /// The exec.
    #[arg(value_name = "ID/EXEC", add = ArgValueCompleter::new(complete::execs))]
    exec: String,
    /// Name or number: TERM, SIGTERM, 15.
    #[arg(value_parser = signals::parse)]
    signal: i32,
    /// Who gets it.
    #[arg(long, value_enum, default_value_t = Receiver::Leader)]
    target: Receiver,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum Receiver {
    /// The program that was started.
    Leader,
    /// Its process group.
    Group,
    /// Everything that it started.
    Tree,
}

/// End an exec with everything that it started: TERM, then KILL.
#[derive(Debug, Args)]
#[command(after_help = "Example:
  skillctl kill job-7/x-1
  skillctl kill job-7/x-1 --grace 30s")]
pub(crate) struct Kill {
    /// The exec.
    #[arg(value_name = "ID/EXEC", add = ArgValueCompleter::new(complete::execs))]
    exec: String,
    /// Between TERM and KILL, at most 60s; 0 for KILL at once. The server's default is 2 s.
    #[arg(long, value_name = "DURATION", value_parser = values::duration)]
    grace: Option<prost_types::Duration>,
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
        let ids = |all: &ListExecsResponse| {
            let ids = all.execs.iter().map(|exec| short_id(&exec.name));
            ids.collect()
        };
        context.output.list("ListExecsResponse", &all, ids, |all| {
            let mut table = Table::new([
                "EXEC", "STATE", "STARTED", "TIME", "INPUT", "OUTPUT", "COMMAND",
            ]);
            for exec in &all.execs {
                table.row(row(exec));
            }
            table.text()
        })?;
        Ok(0)
    }
}

fn row(exec: &Message) -> [String; 7] {
    let total = exec.total.unwrap_or_default();
    [
        short_id(&exec.name),
        state(exec),
        values::relative(exec.start_time.as_ref()),
        values::span(time(exec).as_ref()),
        input(exec).to_owned(),
        values::bytes(total.stdout + total.stderr),
        command(exec),
    ]
}

/// How long it took, or has been running for.
fn time(exec: &Message) -> Option<prost_types::Duration> {
    match &exec.result {
        Some(result) => result.wall_time,
        None => {
            let start = SystemTime::try_from(exec.start_time?).ok()?;
            let ran = SystemTime::now().duration_since(start).ok()?;
            Duration::from_secs(ran.as_secs()).try_into().ok()
        }
    }
}

/// Where its stdin comes from.
fn input(exec: &Message) -> &'static str {
    let spec = exec.effective_spec.as_ref();
    let source = spec.and_then(|spec| spec.stdin.as_ref()?.source.as_ref());
    match (spec.and_then(|spec| spec.terminal.as_ref()), source) {
        (Some(_), _) => "terminal",
        (None, Some(Source::Open(true))) => "open",
        (None, Some(Source::Data(_))) => "given",
        (None, Some(Source::Open(false)) | None) => "none",
    }
}

/// `running`, `exit 0`, `killed: timeout`.
pub(crate) fn state(exec: &Message) -> String {
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

impl Signal {
    pub(crate) async fn run(self, context: &Context) -> anyhow::Result<u8> {
        let target = match self.target {
            Receiver::Leader => Target::Leader,
            Receiver::Group => Target::Group,
            Receiver::Tree => Target::Tree,
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
        let exec = match self.grace {
            None => context.client.kill_exec(&self.exec).await?,
            Some(grace) => {
                let grace = Duration::try_from(grace)?;
                context.client.kill_exec_after(&self.exec, grace).await?
            }
        };
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
