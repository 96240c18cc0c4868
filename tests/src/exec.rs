//! Execs from start to end, with all of their events collected into one value.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use skilld_client::{Client, MessageStream};
use skilld_proto::v1::exec_event::Event;
use skilld_proto::v1::output_event::Content;
use skilld_proto::v1::{
    AttachExecRequest, CreateWorkspaceRequest, Exec, ExecEvent, ExecResult, ExecSpec, ExitReason,
    OutputFullPolicy, OutputStream, RunExecRequest, StartExecRequest, StreamOffsets, Workspace,
    WorkspaceLimits,
};

/// Events of one exec, collected.
#[derive(Debug, Clone, Default)]
pub struct Outcome {
    /// Name of the exec: `workspaces/{workspace}/execs/{exec}`.
    pub name: String,
    /// Effective spec of the Started event.
    pub spec: ExecSpec,
    /// All of stdout.
    pub stdout: Vec<u8>,
    /// All of stderr.
    pub stderr: Vec<u8>,
    /// Result of the Exited event, and what the Closed event adds to it.
    pub result: ExecResult,
    /// Final offsets of the Closed event.
    pub total: StreamOffsets,
    /// Time from the call to the first byte of output; `None` without output.
    pub first_output: Option<Duration>,
    /// Time from the call to Exited.
    pub exited: Duration,
    /// Time from the call to the end of the stream.
    pub closed: Duration,
}

impl Outcome {
    /// Returns stdout as text.
    #[must_use]
    pub fn text(&self) -> String {
        String::from_utf8_lossy(&self.stdout).into_owned()
    }

    /// Returns stderr as text.
    #[must_use]
    pub fn error_text(&self) -> String {
        String::from_utf8_lossy(&self.stderr).into_owned()
    }

    /// Returns the reason of the end.
    #[must_use]
    pub fn reason(&self) -> ExitReason {
        self.result.reason()
    }

    /// Returns the wall time that the guest measured.
    #[must_use]
    pub fn wall_time(&self) -> Duration {
        let given = self.result.wall_duration;
        given
            .and_then(|given| Duration::try_from(given).ok())
            .unwrap_or_default()
    }

    /// Returns the number of the signal that ended the command, if one did.
    #[must_use]
    pub fn signal(&self) -> Option<i32> {
        use skilld_proto::Outcome::Signal;
        match self.result.outcome() {
            Some(Signal(signal)) => Some(signal),
            _ => None,
        }
    }

    /// Returns the exit code, unless a signal ended the command.
    #[must_use]
    pub fn exit_code(&self) -> Option<i32> {
        use skilld_proto::Outcome::ExitCode;
        match self.result.outcome() {
            Some(ExitCode(code)) => Some(code),
            _ => None,
        }
    }
}

/// Creates a workspace of the default pool.
///
/// # Errors
/// As the daemon answers.
pub async fn workspace(client: &Client) -> Result<Workspace> {
    Ok(client
        .create_workspace(CreateWorkspaceRequest::default())
        .await?)
}

/// Creates a workspace with other limits than the default pool's, and returns its name.
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

/// Shell text that waits until its supervisor has reported it to the guest. A command that kills its supervisor earlier
/// is lost.
pub const WATCHED: &str = "until { read -r pid name state rest < /proc/$PPID/stat && [ $state = S ]; } \
                           || [ ! -e /proc/$PPID ]; do :; done";

/// Returns a spec that runs a shell text.
#[must_use]
pub fn shell(text: &str) -> ExecSpec {
    ExecSpec {
        shell: text.to_owned(),
        ..ExecSpec::default()
    }
}

/// Returns a spec that runs a program with arguments.
#[must_use]
pub fn argv<const N: usize>(args: [&str; N]) -> ExecSpec {
    ExecSpec {
        argv: args.map(str::to_owned).to_vec(),
        ..ExecSpec::default()
    }
}

/// Returns the bytes of stdout of an event; empty if it is another event.
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

/// Starts an exec; with an empty id, the daemon chooses one.
///
/// # Errors
/// As the daemon answers.
pub async fn start(client: &Client, workspace: &str, id: &str, spec: ExecSpec) -> Result<Exec> {
    let request = StartExecRequest {
        parent: workspace.to_owned(),
        exec_id: id.to_owned(),
        spec: Some(spec),
    };
    Ok(client.start_exec(request).await?)
}

/// Runs a spec, collects its events and checks their order.
///
/// # Errors
/// As the daemon answers, or when the stream breaks the API's rules.
pub async fn run(client: &Client, workspace: &str, spec: ExecSpec) -> Result<Outcome> {
    let request = RunExecRequest {
        parent: workspace.to_owned(),
        spec: Some(spec),
        ..RunExecRequest::default()
    };
    let started = Instant::now();
    let events = client.run_exec(request).await?;
    gather(events, StreamOffsets::default(), started).await
}

/// Runs shell text and returns what it printed to stdout, however it ended.
///
/// # Errors
/// As [`run`].
pub async fn shell_stdout(client: &Client, workspace: &str, text: &str) -> Result<String> {
    Ok(run(client, workspace, shell(text)).await?.text())
}

/// Attaches to an exec at given offsets and reads to its end, with the same checks. The outcome has the bytes from the
/// offsets on.
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

/// Reads all output of an exec as [`attach`] does, and retries while stalled readers hold all buffer permits.
///
/// # Errors
/// As [`attach`], but for refusals that say when to retry.
pub async fn attach_in_turn(client: &Client, name: &str) -> Result<Outcome> {
    loop {
        let error = match attach(client, name, StreamOffsets::default()).await {
            Ok(outcome) => return Ok(outcome),
            Err(error) => error,
        };
        let failure = error
            .downcast_ref::<skilld_client::Error>()
            .and_then(skilld_client::Error::failure);
        let Some(wait) = failure.and_then(|failure| failure.retry_after) else {
            return Err(error);
        };
        tokio::time::sleep(wait).await;
    }
}

/// Opens the stream of an exec's events, from the beginning of its output.
///
/// # Errors
/// When the daemon refuses the call.
pub async fn open_events(client: &Client, name: &str) -> Result<MessageStream<ExecEvent>> {
    let request = AttachExecRequest {
        name: name.to_owned(),
        ..AttachExecRequest::default()
    };
    Ok(client.attach_exec(request).await?)
}

/// Returns a spec that writes so many zeros.
#[must_use]
pub fn zeros(bytes: u64, on_full: OutputFullPolicy) -> ExecSpec {
    let mut spec = argv(["head", "-c", &bytes.to_string(), "/dev/zero"]);
    spec.set_on_full(on_full);
    spec
}

/// Reads events to the end of their stream, and checks their order and that no byte is missing or comes twice.
///
/// # Errors
/// As the daemon answers, or when the stream breaks the API's rules.
pub async fn gather(
    mut events: MessageStream<ExecEvent>,
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
            Event::Heartbeat(_)
            | Event::Workspace(_)
            | Event::Staged(_)
            | Event::File(_)
            | Event::FileData(_)
            | Event::FileEnd(_)
            | Event::Summary(_) => {}
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
                    OutputStream::Stderr => (&mut outcome.stderr, from.stderr_bytes),
                    OutputStream::Stdout | OutputStream::Unspecified => {
                        (&mut outcome.stdout, from.stdout_bytes)
                    }
                };
                let next = from + i64::try_from(buffer.len())?;
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
                outcome.result.ended_processes = end.ended_processes;
            }
        }
    }
    outcome.closed = started.elapsed();
    ensure!(closed, "the stream ended without Closed");
    Ok(outcome)
}
