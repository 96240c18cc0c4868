//! `skillctl ps`, `signal`, `kill`: execs that exist already.

use std::time::{Duration, SystemTime};

use clap::{Args, ValueEnum};
use clap_complete::engine::ArgValueCompleter;
use skilld_client::v1::signal_exec_request::Target;
use skilld_client::v1::{Exec as Message, ExecState, ListExecsRequest, SignalExecRequest};
use skilld_client::{Client, short_id};
use skilld_common::excerpts::cut_chars;

use crate::commands::complete;
use crate::output::{self, exec_result, signal_names, value_formats};

/// List a workspace's execs, running and ended.
#[derive(Debug, Args)]
#[command(after_help = "Example:\n  skillctl ps job-7")]
pub(crate) struct Ps {
    /// Workspace whose execs are listed.
    #[arg(add = ArgValueCompleter::new(complete::offer_workspaces))]
    id: String,
}

/// Send a signal to an exec.
#[derive(Debug, Args)]
#[command(after_help = "Example:\n  skillctl signal job-7/x-1 HUP --target tree")]
pub(crate) struct Signal {
    /// Exec that gets the signal.
    #[arg(value_name = "ID/EXEC", add = ArgValueCompleter::new(complete::offer_execs))]
    exec: String,
    /// Name or number: TERM, SIGTERM, 15.
    #[arg(value_parser = signal_names::parse_signal)]
    signal: i32,
    /// Processes that get the signal.
    #[arg(long, value_enum, default_value_t = SignalTarget::Leader)]
    target: SignalTarget,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum SignalTarget {
    /// The program that was started.
    Leader,
    /// Process group of the command.
    Group,
    /// All processes that the exec started.
    Tree,
}

/// End an exec with everything that it started: TERM, then KILL.
#[derive(Debug, Args)]
#[command(after_help = "Example:
  skillctl kill job-7/x-1
  skillctl kill job-7/x-1 --grace 30s")]
pub(crate) struct Kill {
    /// Exec to kill.
    #[arg(value_name = "ID/EXEC", add = ArgValueCompleter::new(complete::offer_execs))]
    exec: String,
    /// Between TERM and KILL, at most 60s; 0 for KILL at once. The server's default is 2 s.
    #[arg(long, value_name = "DURATION", value_parser = value_formats::parse_duration)]
    grace: Option<prost_types::Duration>,
}

impl Ps {
    pub(crate) async fn run(self, client: &Client) -> anyhow::Result<u8> {
        let request = ListExecsRequest {
            parent: self.id,
            ..Default::default()
        };
        let all = client.read_all_pages(request).await?;
        let header = [
            "EXEC", "STATE", "STARTED", "TIME", "INPUT", "OUTPUT", "COMMAND",
        ];
        let id = |exec: &Message| short_id(&exec.name);
        output::print_list(&all, &all.execs, id, header, exec_row)
    }
}

fn exec_row(exec: &Message) -> [String; 7] {
    let total = exec.total.unwrap_or_default();
    [
        short_id(&exec.name),
        exec_state(exec),
        value_formats::format_relative_time(exec.start_time.as_ref()),
        value_formats::format_duration(run_time(exec).as_ref()),
        stdin_source(exec).to_owned(),
        value_formats::format_bytes(total.counts().iter().sum()),
        command_line(exec),
    ]
}

/// Returns the run time of an exec; of a running one, so far.
fn run_time(exec: &Message) -> Option<prost_types::Duration> {
    match &exec.result {
        Some(result) => result.wall_duration,
        None => {
            let start = SystemTime::try_from(exec.start_time?).ok()?;
            let ran = SystemTime::now().duration_since(start).ok()?;
            Duration::from_secs(ran.as_secs()).try_into().ok()
        }
    }
}

/// Returns the source of an exec's stdin, in a word. Nothing can be written to an exec that has ended.
fn stdin_source(exec: &Message) -> &'static str {
    let spec = exec.effective_spec.as_ref();
    let has_terminal = spec.is_some_and(|spec| spec.terminal.is_some());
    let is_open = spec.is_some_and(|spec| spec.open_stdin);
    match exec.result.is_some() {
        true if has_terminal || is_open => "closed",
        false if has_terminal => "terminal",
        false if is_open => "open",
        true | false => "none",
    }
}

/// Returns the state of an exec in a few words: `running`, `exit 0`, `timeout`.
pub(crate) fn exec_state(exec: &Message) -> String {
    match &exec.result {
        Some(ended) if exec_result::end_reason(ended).is_none() => {
            format!("exit {}", exec_result::exit_code(ended))
        }
        Some(ended) => value_formats::enum_words(ended.reason().short_name(), ""),
        None => value_formats::enum_words(exec.state().as_str_name(), "EXEC_STATE_"),
    }
}

/// Returns the command of an exec on one line, cut to 60 characters.
fn command_line(exec: &Message) -> String {
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
    cut_chars(&line, CHARS_MAX)
}

impl Signal {
    pub(crate) async fn run(self, client: &Client) -> anyhow::Result<u8> {
        let target = match self.target {
            SignalTarget::Leader => Target::Leader,
            SignalTarget::Group => Target::Group,
            SignalTarget::Tree => Target::Tree,
        };
        let request = SignalExecRequest {
            name: self.exec,
            signal: self.signal,
            target: target.into(),
            ..SignalExecRequest::default()
        };
        let exec = client.signal_exec(request).await?;
        output::print_message(&exec, "")
    }
}

impl Kill {
    pub(crate) async fn run(self, client: &Client) -> anyhow::Result<u8> {
        let exec = match self.grace {
            None => client.kill_exec(&self.exec).await?,
            Some(grace) => {
                let grace = Duration::try_from(grace)?;
                client.kill_exec_after(&self.exec, grace).await?
            }
        };
        let state = match exec.state() {
            ExecState::Running => "still runs".to_owned(),
            ExecState::Unspecified | ExecState::Exited | ExecState::Closed => exec_state(&exec),
        };
        let text = format!("{} {state}\n", short_id(&exec.name));
        output::print_message(&exec, &text)
    }
}
