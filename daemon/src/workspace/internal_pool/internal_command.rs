//! Command in a slot of an internal pool: its request to the guest, its output and its end. The daemon does not
//! trust the guest, so it bounds output and time itself as well.

use std::collections::BTreeMap;
use std::time::Duration;

use bytes::Bytes;
use skilld_proto::guest::v1 as guest;
use skilld_proto::v1 as pb;
use skilld_proto::v1::exec_event::Event;
use tokio::io::{AsyncWrite, AsyncWriteExt};
use tonic::Streaming;

use super::InternalSlot;
use crate::error::{Error, Result};
use crate::exec::{self, ExecContext, StartMode};

/// Time that a guest has, after a command's timeout, to kill the command and to report its end.
const END_TIMEOUT: Duration = Duration::from_secs(20);

/// Command to run in an internal slot. It gets the environment of a workspace's commands.
#[derive(Debug, Clone)]
pub struct InternalCommand {
    /// Program and arguments. A program without a slash is looked up in PATH.
    pub argv: Vec<String>,
    /// Environment variables, which replace those that every command gets.
    pub env: BTreeMap<String, String>,
    /// Absolute path of the working directory in the container; empty means /workspace.
    pub cwd: String,
    /// Bytes for stdin, at most 1 MiB; `None` means /dev/null.
    pub stdin: Option<Bytes>,
    /// Time after which the command and its processes are killed, at most `execs.timeout_max`.
    pub timeout: Duration,
    /// Maximum number of bytes of stdout and stderr together. Beyond it the command is killed.
    pub output_bytes_max: u64,
    /// Maximum number of bytes of the end of stderr that [`CommandEnd::stderr_tail`] has.
    pub stderr_tail_bytes: usize,
}

/// End of a command.
#[derive(Debug, Clone)]
pub struct CommandEnd {
    /// Result that the guest reported.
    pub result: pb::ExecResult,
    /// Last bytes of stderr.
    pub stderr_tail: Vec<u8>,
}

impl CommandEnd {
    /// Returns `true` if the command exited by itself with code 0.
    pub fn is_success(&self) -> bool {
        self.result.success
    }
}

impl InternalSlot {
    /// Runs a command, writes its stdout to `stdout` as it comes, and calls `on_stderr` for each piece of its stderr. A
    /// writer that blocks blocks the command. Dropping the future kills the command.
    ///
    /// # Errors
    /// [`Error::GuestLost`] when the container ends or the guest does not report an end in time;
    /// [`Error::LimitExceeded`] when it sends more output than permitted; [`Error::Io`] of the writer. What the command
    /// itself did is in the result.
    pub async fn run(
        &self,
        command: InternalCommand,
        stdout: &mut (impl AsyncWrite + Unpin + Send),
        mut on_stderr: impl FnMut(&[u8]) + Send,
    ) -> Result<CommandEnd> {
        let deadline = command.timeout.saturating_add(END_TIMEOUT);
        let (output_bytes_max, stderr_tail_bytes) =
            (command.output_bytes_max, command.stderr_tail_bytes);
        let request = self.start_request(command)?;
        let follow = async {
            let events = self
                .guest
                .clone()
                .run_exec(request)
                .await
                .map_err(|status| Error::from_guest(&self.name(), &status))?;
            let mut output = CommandOutput {
                left: output_bytes_max,
                output_bytes_max,
                stderr_tail: Vec::new(),
                stderr_tail_bytes,
            };
            let result = self
                .follow(events.into_inner(), &mut output, stdout, &mut on_stderr)
                .await?;
            let stderr_tail = output.stderr_tail;
            Ok(CommandEnd {
                result,
                stderr_tail,
            })
        };
        let end = tokio::time::timeout(deadline, follow).await;
        end.unwrap_or_else(|_| Err(self.protocol_error("no end of the command in time")))
    }

    fn start_request(&self, command: InternalCommand) -> Result<guest::StartExecRequest> {
        let exec_id = uuid::Uuid::now_v7().to_string();
        let spec = pb::ExecSpec {
            argv: command.argv,
            env: command.env,
            stdin_data: command.stdin.unwrap_or_default(),
            timeout: prost_types::Duration::try_from(command.timeout).ok(),
            limits: Some(pb::ExecLimits {
                output_bytes: i64::try_from(command.output_bytes_max).unwrap_or(i64::MAX),
                ..pb::ExecLimits::default()
            }),
            on_disconnect: pb::DisconnectPolicy::Kill.into(),
            ..pb::ExecSpec::default()
        };
        let (no_env, no_skills) = (BTreeMap::new(), BTreeMap::new());
        let slot = self.slot.snapshot();
        let cpu_limit = slot.record.limits.cpu_millis;
        let context = ExecContext {
            image_env: &slot.record.image_env,
            cpu_millis: self.context.info.usable_cpu_millis(cpu_limit),
            env: &no_env,
            skills: &no_skills,
            has_wheelhouse: false,
            has_fonts: false,
            script: None,
            config: &self.context.config.execs,
        };
        let digest = exec_id.clone().into_bytes();
        let mut request = exec::resolve_exec(exec_id, digest, spec, StartMode::Run, context)?;
        if !command.cwd.is_empty() {
            request.cwd = command.cwd;
        }
        Ok(request)
    }

    /// Reads the events of a command to its end.
    async fn follow(
        &self,
        mut events: Streaming<pb::ExecEvent>,
        output: &mut CommandOutput,
        stdout: &mut (impl AsyncWrite + Unpin + Send),
        on_stderr: &mut (impl FnMut(&[u8]) + Send),
    ) -> Result<pb::ExecResult> {
        let mut result = None;
        loop {
            let message = events
                .message()
                .await
                .map_err(|status| Error::from_guest(&self.name(), &status))?;
            match message.and_then(|event| event.event) {
                Some(Event::Output(piece)) => {
                    output.take_piece(piece, stdout, on_stderr).await?;
                }
                Some(Event::Exited(exited)) => result = exited.result,
                Some(Event::Closed(_)) => break,
                Some(
                    Event::Started(_)
                    | Event::Heartbeat(_)
                    | Event::Workspace(_)
                    | Event::Staged(_)
                    | Event::File(_)
                    | Event::FileData(_)
                    | Event::FileEnd(_)
                    | Event::Summary(_),
                ) => {}
                Some(Event::Gap(_)) => return Err(self.protocol_error("output was lost")),
                None => return Err(self.protocol_error("the events of a command broke off")),
            }
        }
        stdout.flush().await.map_err(write_error)?;
        result.ok_or_else(|| self.protocol_error("a command ended without a result"))
    }

    fn protocol_error(&self, why: &str) -> Error {
        Error::guest_lost(self.name(), why)
    }
}

/// Bounds of a command's output, and the end of its stderr.
struct CommandOutput {
    /// Number of bytes that may still come.
    left: u64,
    output_bytes_max: u64,
    stderr_tail: Vec<u8>,
    stderr_tail_bytes: usize,
}

impl CommandOutput {
    async fn take_piece(
        &mut self,
        piece: pb::OutputEvent,
        stdout: &mut (impl AsyncWrite + Unpin),
        on_stderr: &mut impl FnMut(&[u8]),
    ) -> Result<()> {
        let stream = piece.stream();
        let Some(pb::output_event::Content::Data(data)) = piece.content else {
            return Ok(());
        };
        let left = self.left.checked_sub(data.len() as u64);
        let what = "the output of a command of the daemon";
        self.left = left.ok_or_else(|| Error::limit_exceeded(what, self.output_bytes_max))?;
        if stream == pb::OutputStream::Stdout {
            return stdout.write_all(&data).await.map_err(write_error);
        }
        on_stderr(&data);
        self.stderr_tail.extend_from_slice(&data);
        let surplus = self
            .stderr_tail
            .len()
            .saturating_sub(self.stderr_tail_bytes);
        self.stderr_tail.drain(..surplus);
        Ok(())
    }
}

fn write_error(source: std::io::Error) -> Error {
    Error::io("write the output of a command of the daemon", source)
}
