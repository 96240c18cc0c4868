//! One exec from start to end, gathered: for tests that look at the whole.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use skilld_client::Client;
use skilld_proto::v1::exec_event::Event;
use skilld_proto::v1::exec_event::output::Content;
use skilld_proto::v1::{
    CreateWorkspaceRequest, ExecEvent, ExecResult, ExecSpec, OutputStream, RunExecRequest,
    StreamOffsets, Workspace,
};

/// Everything that one exec said.
#[derive(Debug, Clone, Default)]
pub struct Outcome {
    /// All of stdout.
    pub stdout: Vec<u8>,
    /// All of stderr.
    pub stderr: Vec<u8>,
    /// How it ended.
    pub result: ExecResult,
    /// What Closed said.
    pub total: StreamOffsets,
    /// From the call to the first byte of output.
    pub first_output: Option<Duration>,
    /// From the call to Exited.
    pub exited: Duration,
    /// From the call to the end of the stream.
    pub closed: Duration,
}

impl Outcome {
    /// stdout as text.
    #[must_use]
    pub fn text(&self) -> String {
        String::from_utf8_lossy(&self.stdout).into_owned()
    }

    /// stderr as text.
    #[must_use]
    pub fn error_text(&self) -> String {
        String::from_utf8_lossy(&self.stderr).into_owned()
    }

    /// Its exit code, if it has one.
    #[must_use]
    pub fn exit_code(&self) -> Option<i32> {
        use skilld_proto::v1::exec_result::Outcome::ExitCode;
        match self.result.outcome {
            Some(ExitCode(code)) => Some(code),
            _ => None,
        }
    }
}

/// A workspace of the default pool.
///
/// # Errors
/// As the daemon answers.
pub async fn workspace(client: &Client) -> Result<Workspace> {
    Ok(client
        .create_workspace(CreateWorkspaceRequest::default())
        .await?)
}

/// Shell text as a spec.
#[must_use]
pub fn shell(text: &str) -> ExecSpec {
    ExecSpec {
        shell: text.to_owned(),
        ..ExecSpec::default()
    }
}

/// Arguments as a spec.
#[must_use]
pub fn argv<const N: usize>(args: [&str; N]) -> ExecSpec {
    ExecSpec {
        argv: args.map(str::to_owned).to_vec(),
        ..ExecSpec::default()
    }
}

/// Bytes of stdout that one event brings; none if it brings something else.
#[must_use]
pub fn stdout(event: &ExecEvent) -> &[u8] {
    match &event.event {
        Some(Event::Output(output)) if output.stream() == OutputStream::Stdout => {
            match &output.content {
                Some(Content::Data(data)) => data,
                Some(Content::Text(text)) => text.as_bytes(),
                None => &[],
            }
        }
        _ => &[],
    }
}

/// Runs a spec and gathers everything, checking the order of events on the way.
///
/// # Errors
/// As the daemon answers, or when the stream breaks the API's rules.
pub async fn run(client: &Client, workspace: &str, spec: ExecSpec) -> Result<Outcome> {
    let request = RunExecRequest {
        workspace: workspace.to_owned(),
        spec: Some(spec),
        ..RunExecRequest::default()
    };
    let started = Instant::now();
    let mut events = client.run_exec(request).await?;
    let mut outcome = Outcome::default();
    let (mut exited, mut closed, mut seq) = (false, false, 0);
    while let Some(event) = events.next().await? {
        ensure!(!closed, "an event after Closed: {event:?}");
        ensure!(event.seq >= seq, "seq goes back from {seq}: {event:?}");
        seq = event.seq;
        match event.event.context("an empty event")? {
            Event::Started(_) | Event::Heartbeat(_) => {}
            Event::Output(output) => {
                outcome.first_output.get_or_insert(started.elapsed());
                let Some(Content::Data(data)) = output.content else {
                    continue;
                };
                let buffer = match OutputStream::try_from(output.stream)? {
                    OutputStream::Stderr => &mut outcome.stderr,
                    OutputStream::Stdout | OutputStream::Unspecified => &mut outcome.stdout,
                };
                ensure!(
                    output.offset == u64::try_from(buffer.len())?,
                    "output at {} follows {}",
                    output.offset,
                    buffer.len()
                );
                buffer.extend_from_slice(&data);
            }
            Event::Gap(gap) => anyhow::bail!("a gap: {gap:?}"),
            Event::Exited(end) => {
                ensure!(!exited, "a second Exited");
                exited = true;
                outcome.exited = started.elapsed();
                outcome.result = end.result.context("Exited without a result")?;
            }
            Event::Closed(end) => {
                ensure!(exited, "Closed before Exited");
                closed = true;
                outcome.total = end.total.unwrap_or_default();
            }
        }
    }
    outcome.closed = started.elapsed();
    ensure!(closed, "the stream ended without Closed");
    Ok(outcome)
}
