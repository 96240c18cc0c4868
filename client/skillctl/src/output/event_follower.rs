//! Prints an exec's events as they come: output byte for byte, JSON lines, or one transcript.

use std::pin::{Pin, pin};
use std::time::Instant;

use bytes::Bytes;
use serde_json::{Map, Value};
use skilld_client::int64_from_count;
use skilld_client::v1::OutputEvent as Piece;
use skilld_client::v1::exec_event::Event;
use skilld_client::v1::output_event::Content;
use skilld_client::v1::{
    ErrorReason, ExecEvent, ExecResult, OutputStream, PollExecResponse, StreamOffsets,
};
use skilld_client::{Client, Error, ExecStream, short_id};
use tokio::sync::oneshot;

use crate::output::output_writer::OutputWriter;
use crate::output::room_report::RoomReportSearch;
use crate::output::run_receiver::RunReceiver;
use crate::output::transcript::{Transcript, output_bytes};
use crate::output::{self, error_report, exec_result, proto_json, value_formats};
use crate::terminal::attach_input::{AttachInput, DetachNotice};
use crate::terminal::interrupt::{self, InterruptSignals, InterruptedError};

/// Outcome of following an exec.
#[derive(Debug)]
pub(crate) enum FollowOutcome {
    /// The exec has ended.
    Finished {
        result: Box<ExecResult>,
        /// `true` if its output reports a full file system.
        reports_no_room: bool,
    },
    /// Ctrl-C or a signal ended the following; the exec was killed or left, as [`OnLeave`] says.
    Interrupted,
    /// The reader of this program's output is gone.
    PipeClosed,
    /// The terminal that this program prints to is gone.
    TerminalGone,
    /// The user typed the detach keys. All output before these offsets was printed.
    Detached(StreamOffsets),
}

/// Effect of Ctrl-C, and of a reader that leaves, on the exec.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum OnLeave {
    /// The exec is killed.
    Kill,
    /// The exec is killed. Before its first event only its call is dropped: the caller deletes its workspace.
    KillOrDropCall,
    /// The exec is killed, but continues if this program's terminal is gone, as after SIGHUP.
    KillUnlessHungUp,
    /// The exec continues.
    Detach,
}

/// Form in which events are printed.
#[derive(Debug)]
enum EventFormat {
    /// Prints the output as it is to stdout and stderr.
    Text,
    /// Prints each event as a JSON object on a line.
    Events,
    /// Prints one JSON object at the end.
    Transcript(Box<Transcript>),
}

/// Follower of one exec: prints its events, and passes Ctrl-C on to it.
#[derive(Debug)]
pub(crate) struct EventFollower<'a> {
    client: &'a Client,
    printing: EventFormat,
    on_leave: OnLeave,
    writer: OutputWriter,
    /// Time of the first byte of output; `None` before it.
    pub(crate) first_output: Option<Instant>,
    /// Notified once when the first event shows that the exec has started.
    started: Option<oneshot::Sender<()>>,
    /// Offsets up to which output was handed to the writer.
    reached: StreamOffsets,
    /// Result of the exec; `None` while it runs.
    result: Option<ExecResult>,
    /// Search for reports of a full file system in the output.
    search: RoomReportSearch,
    /// Takes what a run sends beside the events of its exec.
    pub(crate) run: RunReceiver,
}

impl<'a> EventFollower<'a> {
    pub(crate) fn new(client: &'a Client, on_leave: OnLeave) -> Self {
        let printing = match (output::is_json(), output::is_event_stream()) {
            (_, true) => EventFormat::Events,
            (true, false) => EventFormat::Transcript(Box::default()),
            (false, false) => EventFormat::Text,
        };
        Self {
            client,
            printing,
            on_leave,
            writer: OutputWriter::start(),
            first_output: None,
            started: None,
            reached: StreamOffsets::default(),
            result: None,
            search: RoomReportSearch::default(),
            run: RunReceiver::default(),
        }
    }

    /// Makes the follower print one JSON object at the end where it would print one per event.
    pub(crate) fn without_event_lines(mut self) -> Self {
        if matches!(self.printing, EventFormat::Events) {
            self.printing = EventFormat::Transcript(Box::default());
        }
        self
    }

    /// Takes the collected transcript as a JSON object; `None` if events are printed as they come. After a failure only
    /// a transcript with output is returned, because its output may be nowhere else.
    pub(crate) fn take_transcript(
        &mut self,
        name: &str,
        has_failed: bool,
    ) -> anyhow::Result<Option<Map<String, Value>>> {
        let EventFormat::Transcript(transcript) = &mut self.printing else {
            return Ok(None);
        };
        let transcript = std::mem::take(transcript);
        if has_failed && !transcript.has_output() {
            return Ok(None);
        }
        transcript.into_json(name).map(Some)
    }

    /// Prints the collected transcript as one JSON object, if there is one to take.
    pub(crate) fn print_transcript(&mut self, name: &str, has_failed: bool) -> anyhow::Result<()> {
        match self.take_transcript(name, has_failed)? {
            Some(object) => output::print_value(&object.into()),
            None => Ok(()),
        }
    }

    /// Prints an exec's events while `input` is sent to it, and then the transcript if there is one. Tells the user how
    /// to return to an exec that was left.
    pub(crate) async fn converse_and_print(
        &mut self,
        events: ExecStream,
        input: AttachInput,
        interrupt: &mut InterruptSignals,
    ) -> anyhow::Result<FollowOutcome> {
        let name = events.name().to_owned();
        let ended = self.converse(events, input, interrupt).await;
        let printed = match ended {
            Ok(FollowOutcome::PipeClosed | FollowOutcome::TerminalGone) => Ok(()),
            Ok(_) | Err(_) => self.print_transcript(&name, ended.is_err()),
        };
        // The first error is the cause.
        let ending = ended?;
        printed?;
        if let FollowOutcome::Detached(at) = ending {
            note_detached(&short_id(&name), at);
        }
        Ok(ending)
    }

    /// Prints an exec's events while `input` is sent to it, until the exec ends or the user leaves it. After a failure
    /// all output that was received is printed, and why the exec ended if it did.
    pub(crate) async fn converse(
        &mut self,
        events: ExecStream,
        input: AttachInput,
        interrupt: &mut InterruptSignals,
    ) -> anyhow::Result<FollowOutcome> {
        let (started, start) = oneshot::channel();
        self.started = Some(started);
        self.reached = events.offsets();
        let ended = {
            // Neither waits for the other: output without a reader does not hold up input.
            let following = pin!(self.follow(events, interrupt));
            let talking = pin!(input.go(start));
            tokio::select! {
                biased;
                ended = following => ended.map(Some),
                left = talking => left.map(|DetachNotice| None),
            }
        };
        // Received output comes before the next message. A user who sends two signals does not wait for its reader.
        let flushed = match interrupt.count() {
            0 | 1 => interrupt.race(self.writer.flush()).await,
            _ => Err(InterruptedError),
        };
        if let (Err(_), Some(result)) = (&ended, &self.result) {
            note_end(result, self.search.is_found);
        }
        if let Some(outcome) = ended? {
            return Ok(outcome);
        }
        flushed.unwrap_or(Ok(()))?;
        Ok(FollowOutcome::Detached(self.reached))
    }

    /// Prints an exec's events until it ends, the user leaves it, or the stream is lost. After the first signal it
    /// prints the rest of the killed exec's output; a second one ends that.
    async fn follow(
        &mut self,
        mut events: ExecStream,
        interrupt: &mut InterruptSignals,
    ) -> anyhow::Result<FollowOutcome> {
        let name = events.name().to_owned();
        let mut kill: Option<Pin<Box<_>>> = None;
        let mut interrupted = false;
        loop {
            tokio::select! {
                // A signal comes first: output that never pauses would hide it.
                biased;
                () = interrupt.wait() => {
                    if interrupted || self.leaves_at_once() {
                        return Ok(FollowOutcome::Interrupted);
                    }
                    interrupted = true;
                    events.cancel_start();
                    kill = Some(Box::pin(kill_exec(self.client, &name)));
                }
                killed = poll_optional(&mut kill) => {
                    // From here the stream brings what is left of the output, and the end.
                    kill = None;
                    killed?;
                }
                error = self.writer.failed() => {
                    drop(events);
                    let ending = outcome_of_failure(error.into())?;
                    return self.leave_after(ending, interrupt, &name).await;
                }
                // An interrupted run writes no files.
                event = events.next() => match event?.filter(|event| !interrupted || !is_after_end(event)) {
                    Some(event) => {
                        if interrupted && matches!(event.event, Some(Event::Started(_))) {
                            // It may have started after the server looked for it.
                            kill = Some(Box::pin(kill_exec(self.client, &name)));
                        }
                        if let Some(ending) = self.hand_over(&event, interrupt).await? {
                            // A stream without a reader could block the program, and so its end.
                            drop(events);
                            return self.leave_after(ending, interrupt, &name).await;
                        }
                    }
                    None => break,
                }
            }
        }
        if let (true, Some(kill)) = (interrupted, kill) {
            finish_kill(interrupt, kill).await?;
        }
        let written = interrupt.race(self.writer.flush()).await;
        Ok(
            match outcome_of_write(written.map(|written| Ok(written?)))? {
                _ if interrupted => FollowOutcome::Interrupted,
                Some(outcome) => outcome,
                None => FollowOutcome::Finished {
                    result: Box::new(self.result.take().unwrap_or_default()),
                    reports_no_room: self.search.is_found,
                },
            },
        )
    }

    /// Returns `true` if the first signal ends the following without a kill.
    fn leaves_at_once(&self) -> bool {
        match self.on_leave {
            OnLeave::Detach => true,
            OnLeave::KillOrDropCall => self.started.is_some(),
            OnLeave::Kill | OnLeave::KillUnlessHungUp => false,
        }
    }

    /// Kills the exec, if it is to be killed, after an outcome with which this program stops following it.
    async fn leave_after(
        &self,
        outcome: FollowOutcome,
        interrupt: &mut InterruptSignals,
        name: &str,
    ) -> anyhow::Result<FollowOutcome> {
        let kills = match self.on_leave {
            OnLeave::Kill | OnLeave::KillOrDropCall => true,
            OnLeave::KillUnlessHungUp => !matches!(outcome, FollowOutcome::TerminalGone),
            OnLeave::Detach => false,
        };
        if kills {
            finish_kill(interrupt, kill_exec(self.client, name)).await?;
        }
        Ok(outcome)
    }

    /// Records and prints an event; returns the outcome if the reader of the output is gone or a signal came.
    async fn hand_over(
        &mut self,
        event: &ExecEvent,
        interrupt: &mut InterruptSignals,
    ) -> anyhow::Result<Option<FollowOutcome>> {
        if let Some(started) = self.started.take() {
            // Without input there is no receiver.
            let _ = started.send(());
        }
        if let Some(event) = &event.event {
            exec_result::take_ending(&mut self.result, event);
            if let Event::Output(piece) = event {
                self.search.add(piece);
            }
        }
        outcome_of_write(interrupt.race(self.write(event)).await)
    }

    async fn write(&mut self, event: &ExecEvent) -> anyhow::Result<()> {
        if let Some(event) = &event.event
            && self.run.take(event).await?
        {
            return Ok(());
        }
        if let Some(Event::Output(_)) = &event.event {
            self.first_output.get_or_insert_with(Instant::now);
        }
        if matches!(self.printing, EventFormat::Events) {
            let line = output::json_line(&proto_json::from_message(event)?);
            let line = Bytes::from(line.into_bytes());
            self.writer.write(OutputStream::Stdout, line).await?;
        } else if let Some(event) = &event.event {
            self.write_event(event).await?;
        }
        Ok(())
    }

    /// Prints the gaps and the output that a poll brought.
    pub(crate) async fn write_answer(&mut self, answer: PollExecResponse) -> anyhow::Result<()> {
        let gaps = answer.gaps.into_iter().map(Event::Gap);
        for event in gaps.chain(answer.outputs.into_iter().map(Event::Output)) {
            self.write_event(&event).await?;
        }
        Ok(self.writer.flush().await?)
    }

    /// Prints an event as text, or adds it to the transcript.
    pub(crate) async fn write_event(&mut self, event: &Event) -> anyhow::Result<()> {
        if let EventFormat::Transcript(transcript) = &mut self.printing {
            transcript.add(event);
            return Ok(());
        }
        match event {
            Event::Output(piece) => self.write_piece(piece).await?,
            Event::Gap(gap) => {
                let stream =
                    value_formats::enum_words(gap.stream().as_str_name(), "OUTPUT_STREAM_");
                let lost = gap.lost_bytes();
                self.writer.flush().await?;
                output::note!("{lost} bytes of {stream} are lost: they were not read in time");
                *self.reached_on(gap.stream()) = gap.end_offset;
            }
            Event::Started(_)
            | Event::Heartbeat(_)
            | Event::Exited(_)
            | Event::Closed(_)
            | Event::Workspace(_)
            | Event::Staged(_)
            | Event::File(_)
            | Event::FileData(_)
            | Event::FileEnd(_)
            | Event::Summary(_) => {}
        }
        Ok(())
    }

    async fn write_piece(&mut self, piece: &Piece) -> std::io::Result<()> {
        let bytes = match &piece.content {
            Some(Content::Data(data)) => data.clone(),
            Some(Content::Text(_)) | None => Bytes::copy_from_slice(output_bytes(piece)),
        };
        let end = piece
            .offset
            .saturating_add(int64_from_count(bytes.len() as u64));
        self.writer.write(piece.stream(), bytes).await?;
        // The writer has the piece, and `converse` flushes the writer before it returns these offsets.
        *self.reached_on(piece.stream()) = end;
        Ok(())
    }

    fn reached_on(&mut self, stream: OutputStream) -> &mut i64 {
        match stream {
            OutputStream::Stderr => &mut self.reached.stderr_bytes,
            OutputStream::Stdout | OutputStream::Unspecified => &mut self.reached.stdout_bytes,
        }
    }
}

/// Returns the outcome of following an exec if a write says that it is over.
fn outcome_of_write(
    written: Result<anyhow::Result<()>, InterruptedError>,
) -> anyhow::Result<Option<FollowOutcome>> {
    match written {
        Ok(Ok(())) => Ok(None),
        Ok(Err(error)) => outcome_of_failure(error).map(Some),
        Err(InterruptedError) => Ok(Some(FollowOutcome::Interrupted)),
    }
}

/// Returns the outcome if an error says that the reader of the output is gone.
fn outcome_of_failure(error: anyhow::Error) -> anyhow::Result<FollowOutcome> {
    if error_report::is_terminal_gone(&error) {
        Ok(FollowOutcome::TerminalGone)
    } else if error_report::is_broken_pipe(&error) {
        Ok(FollowOutcome::PipeClosed)
    } else {
        Err(error)
    }
}

/// Returns the exit code for an outcome, and notes on stderr why an exec ended that did not end by itself, and what its
/// exit code hides.
pub(crate) fn exit_code(ending: &FollowOutcome) -> u8 {
    match ending {
        FollowOutcome::Finished {
            result,
            reports_no_room,
        } => {
            note_end(result, *reports_no_room);
            exec_result::exit_code(result)
        }
        FollowOutcome::Interrupted => interrupt::EXIT_CODE,
        FollowOutcome::PipeClosed | FollowOutcome::TerminalGone => error_report::PIPE_CLOSED,
        FollowOutcome::Detached(_) => 0,
    }
}

/// Notes on stderr why an exec ended that did not end by itself, and what its exit code hides.
fn note_end(result: &ExecResult, reports_no_room: bool) {
    exec_result::end_reason(result)
        .into_iter()
        .chain(exec_result::warnings(result, reports_no_room))
        .for_each(|note| output::print_note(&note));
}

/// Notes on stderr, on a new line, the command that attaches to the detached exec again.
pub(crate) fn note_detached(name: &str, at: StreamOffsets) {
    drop(std::io::Write::write_all(
        &mut std::io::stderr().lock(),
        b"\n",
    ));
    output::note!(
        "{name} goes on; `skillctl attach -i {name} --offset {}` returns to it",
        at.stdout_bytes
    );
}

/// Returns `true` for an event that follows the end of an exec.
fn is_after_end(event: &ExecEvent) -> bool {
    matches!(
        event.event,
        Some(Event::File(_) | Event::FileData(_) | Event::FileEnd(_) | Event::Summary(_))
    )
}

/// Kills an exec; succeeds also if it was never started, or if its workspace was not claimed or is closing.
async fn kill_exec(client: &Client, name: &str) -> Result<(), Error> {
    let is_missing = |error: &Error| {
        matches!(
            error.reason(),
            Some(
                ErrorReason::ExecNotFound
                    | ErrorReason::WorkspaceNotFound
                    | ErrorReason::WorkspaceNotReady
            )
        )
    };
    match client.kill_exec(name).await {
        Err(error) if !is_missing(&error) => Err(error),
        Ok(_) | Err(_) => Ok(()),
    }
}

/// Waits until a kill is done or Ctrl-C is pressed.
async fn finish_kill(
    interrupt: &mut InterruptSignals,
    kill: impl Future<Output = Result<(), Error>>,
) -> Result<(), Error> {
    match interrupt.race(kill).await {
        Ok(killed) => killed,
        Err(InterruptedError) => Ok(()),
    }
}

/// Waits for a future if there is one, else for ever.
pub(crate) async fn poll_optional<F: Future>(future: &mut Option<Pin<Box<F>>>) -> F::Output {
    match future {
        Some(future) => future.await,
        None => std::future::pending().await,
    }
}
