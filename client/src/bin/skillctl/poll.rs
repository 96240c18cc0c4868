//! `skillctl poll`: what an exec has said since, and where to go on.

use std::io::{self, Write};

use clap::Args;
use clap_complete::engine::ArgValueCompleter;
use prost_types::Duration;
use skilld_client::v1::exec_event::{Event, output::Content};
use skilld_client::v1::{
    ExecState, OutputStream, PollExecRequest, PollExecResponse, StreamOffsets,
};

use crate::context::Context;
use crate::output::note;
use crate::{complete, result, values};

/// Print what an exec has said since, and on stderr where to go on and how it is.
///
/// Answers when output has come and been quiet for a moment, when the exec has ended, or when the wait is over. The
/// exit code is 0 however the exec ended.
#[derive(Debug, Args)]
#[command(after_help = "Example:
  skillctl poll job-7/x-1 --wait 30s
  skillctl poll job-7/x-1 --wait 30s --offset 4096,0 -o json")]
pub(crate) struct Poll {
    /// The exec.
    #[arg(value_name = "ID/EXEC", add = ArgValueCompleter::new(complete::execs))]
    exec: String,
    /// For how long to wait for something, at most 60s. Left out it answers at once.
    #[arg(long, value_name = "DURATION", value_parser = values::duration)]
    wait: Option<Duration>,
    /// First byte of stdout to print, and of stderr after a comma.
    #[arg(long, value_name = "STDOUT[,STDERR]", default_value = "0", value_parser = values::offsets)]
    offset: StreamOffsets,
    /// Wait until output has been quiet for this long, at most 10s. The server's default is 75 ms.
    #[arg(long, value_name = "DURATION", value_parser = values::duration)]
    settle: Option<Duration>,
    /// Print at most this much, up to 1MiB. The server's default is 64 KiB.
    #[arg(long, value_name = "SIZE", value_parser = values::size)]
    max_bytes: Option<i64>,
}

impl Poll {
    pub(crate) async fn run(self, context: &Context) -> anyhow::Result<u8> {
        let request = PollExecRequest {
            name: self.exec,
            offsets: Some(self.offset),
            wait: self.wait,
            settle_time: self.settle,
            max_bytes: self.max_bytes.map_or(Ok(0), i32::try_from)?,
            ..Default::default()
        };
        let answer = context.client.poll_exec(request).await?;
        if context.output.is_json() {
            context
                .output
                .message("PollExecResponse", &answer, |_| String::new())?;
        } else {
            print(&answer)?;
        }
        Ok(0)
    }
}

/// Returns the answer's gaps and output as events, in the order in which they are printed.
pub(crate) fn events(answer: PollExecResponse) -> impl Iterator<Item = Event> {
    let gaps = answer.gaps.into_iter().map(Event::Gap);
    gaps.chain(answer.output.into_iter().map(Event::Output))
}

fn print(answer: &PollExecResponse) -> io::Result<()> {
    for gap in &answer.gaps {
        let stream = values::word(gap.stream().as_str_name(), "OUTPUT_STREAM_");
        note(&format!(
            "{} bytes of {stream} are lost",
            gap.to.saturating_sub(gap.from)
        ));
    }
    for piece in &answer.output {
        let bytes: &[u8] = match &piece.content {
            Some(Content::Data(data)) => data,
            Some(Content::Text(text)) => text.as_bytes(),
            None => &[],
        };
        if piece.stream() == OutputStream::Stderr {
            io::stderr().lock().write_all(bytes)?;
        } else {
            let mut stdout = io::stdout().lock();
            stdout.write_all(bytes)?;
            stdout.flush()?;
        }
    }
    let next = answer.next_offsets.unwrap_or_default();
    note(&format!(
        "{}; go on with --offset {},{}",
        state(answer),
        next.stdout,
        next.stderr
    ));
    Ok(())
}

/// How the exec is, in words.
fn state(answer: &PollExecResponse) -> String {
    let Some(ended) = &answer.result else {
        return "it runs".to_owned();
    };
    let how = result::reason(ended).unwrap_or_else(|| format!("exit {}", result::exit_code(ended)));
    match answer.state() {
        ExecState::Closed => how,
        ExecState::Unspecified | ExecState::Running | ExecState::Exited => {
            format!("{how}, more output may come")
        }
    }
}
