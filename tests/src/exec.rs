//! One exec from start to end, gathered: for tests that look at the whole.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use skilld_client::{Client, Messages};
use skilld_proto::v1::exec_event::Event;
use skilld_proto::v1::exec_event::output::Content;
use skilld_proto::v1::exec_result::Reason;
use skilld_proto::v1::{
    AttachExecRequest, CreateWorkspaceRequest, ExecEvent, ExecResult, ExecSpec, OutputStream,
    RunExecRequest, StreamOffsets, Workspace, WorkspaceLimits,
};

/// Everything that one exec said.
#[derive(Debug, Clone, Default)]
pub struct Outcome {
    /// `workspaces/{workspace}/execs/{exec}`.
    pub name: String,
    /// What was in force.
    pub spec: ExecSpec,
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

    /// Why it ended.
    #[must_use]
    pub fn reason(&self) -> Reason {
        self.result.reason()
    }

    /// Its wall time as the guest measured it.
    #[must_use]
    pub fn wall_time(&self) -> Duration {
        let given = self.result.wall_time;
        given
            .and_then(|given| Duration::try_from(given).ok())
            .unwrap_or_default()
    }

    /// The signal that ended it, if one did.
    #[must_use]
    pub fn signal(&self) -> Option<i32> {
        use skilld_proto::v1::exec_result::Outcome::Signal;
        match self.result.outcome {
            Some(Signal(signal)) => Some(signal),
            _ => None,
        }
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

/// A workspace of other sizes than the default pool's: its name.
///
/// # Errors
/// As the daemon answers.
pub async fn sized(client: &Client, limits: WorkspaceLimits) -> Result<String> {
    let request = CreateWorkspaceRequest {
        limits: Some(limits),
        ..CreateWorkspaceRequest::default()
    };
    Ok(client.create_workspace(request).await?.name)
}

/// Shell text that waits until its supervisor has told the guest of it, and sleeps. One that kills its supervisor before
/// that is lost.
pub const WATCHED: &str = "until { read -r pid name state rest < /proc/$PPID/stat && [ $state = S ]; } \
                           || [ ! -e /proc/$PPID ]; do :; done";

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
    let events = client.run_exec(request).await?;
    gather(events, StreamOffsets::default(), started).await
}

/// Reads an exec from given offsets to its end, with the same checks. The outcome has the bytes from there on.
///
/// # Errors
/// As the daemon answers, or when the stream breaks the API's rules.
pub async fn attach(client: &Client, name: &str, offsets: StreamOffsets) -> Result<Outcome> {
    let request = AttachExecRequest {
        name: name.to_owned(),
        offsets: Some(offsets),
        ..AttachExecRequest::default()
    };
    let started = Instant::now();
    let events = client.attach_exec(request).await?;
    gather(events, offsets, started).await
}

/// Reads events to the end of their stream, checking their order and that no byte is missing or comes twice.
///
/// # Errors
/// As the daemon answers, or when the stream breaks the API's rules.
pub async fn gather(
    mut events: Messages<ExecEvent>,
    from: StreamOffsets,
    started: Instant,
) -> Result<Outcome> {
    let mut outcome = Outcome::default();
    let (mut exited, mut closed, mut seq) = (false, false, 0);
    while let Some(event) = events.next().await? {
        ensure!(!closed, "an event after Closed: {event:?}");
        ensure!(event.seq >= seq, "seq goes back from {seq}: {event:?}");
        seq = event.seq;
        match event.event.context("an empty event")? {
            Event::Heartbeat(_) => {}
            Event::Started(start) => {
                ensure!(outcome.name.is_empty(), "a second Started");
                outcome.name = start.name;
                outcome.spec = start.effective_spec.unwrap_or_default();
            }
            Event::Output(output) => {
                outcome.first_output.get_or_insert(started.elapsed());
                let Some(Content::Data(data)) = output.content else {
                    continue;
                };
                let (buffer, from) = match OutputStream::try_from(output.stream)? {
                    OutputStream::Stderr => (&mut outcome.stderr, from.stderr),
                    OutputStream::Stdout | OutputStream::Unspecified => {
                        (&mut outcome.stdout, from.stdout)
                    }
                };
                let next = from + u64::try_from(buffer.len())?;
                ensure!(output.offset == next, "{} follows {next}", output.offset);
                ensure!(data.len() <= 64 << 10, "{} bytes at once", data.len());
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
