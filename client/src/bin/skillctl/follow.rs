//! An exec's events onto this program's stdout and stderr, byte for byte and as they come.

use std::pin::{Pin, pin};
use std::time::Instant;

use serde_json::{Map, Value};
use skilld_client::v1::exec_event::{Event, Output as Piece, output::Content};
use skilld_client::v1::{ExecEvent, ExecResult, OutputStream, Reason, StreamOffsets};
use skilld_client::{Client, Error, ExecStream};
use tokio::io::{AsyncWriteExt, Stderr, Stdout};
use tokio::sync::oneshot;

use crate::interrupt::{self, Interrupt, Interrupted};
use crate::output::{self, Output};
use crate::session::{Detach, Input};
use crate::transcript::Transcript;
use crate::{fail, json, result, values};

/// How following an exec ended.
#[derive(Debug)]
pub(crate) enum Ending {
    /// The exec did.
    Finished(Box<ExecResult>),
    /// Ctrl-C, and whatever that was to do to the exec is done.
    Interrupted,
    /// Nobody reads our output any more.
    PipeClosed,
    /// The keys that leave a terminal session were typed. All before these offsets was written.
    Detached(StreamOffsets),
}

/// What Ctrl-C and a reader that leaves mean for the exec.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum OnLeave {
    /// It is killed.
    Kill,
    /// It goes on.
    Detach,
}

/// How events are printed.
#[derive(Debug)]
enum Printing {
    /// Output as it is, to stdout and stderr.
    Text,
    /// Each event as a JSON object on a line.
    Events,
    /// Nothing until the end, then one JSON object.
    Transcript(Box<Transcript>),
}

/// Follows one exec.
#[derive(Debug)]
pub(crate) struct Follower<'a> {
    client: &'a Client,
    printing: Printing,
    on_leave: OnLeave,
    stdout: Stdout,
    stderr: Stderr,
    /// When the first byte of output came.
    pub(crate) first_output: Option<Instant>,
    /// Told when the exec is there.
    started: Option<oneshot::Sender<()>>,
    /// What was written.
    reached: StreamOffsets,
}

impl<'a> Follower<'a> {
    pub(crate) fn new(client: &'a Client, output: &Output, on_leave: OnLeave) -> Self {
        let printing = match (output.is_json(), output.is_event_stream()) {
            (_, true) => Printing::Events,
            (true, false) => Printing::Transcript(Box::default()),
            (false, false) => Printing::Text,
        };
        Self {
            client,
            printing,
            on_leave,
            stdout: tokio::io::stdout(),
            stderr: tokio::io::stderr(),
            first_output: None,
            started: None,
            reached: StreamOffsets::default(),
        }
    }

    /// Collects everything for one JSON object, also where events would be printed as they come.
    pub(crate) fn without_event_lines(mut self) -> Self {
        if matches!(self.printing, Printing::Events) {
            self.printing = Printing::Transcript(Box::default());
        }
        self
    }

    /// Takes what was collected for one JSON object; `None` if events were printed as they came.
    pub(crate) fn take_transcript(&mut self) -> Option<Transcript> {
        match &mut self.printing {
            Printing::Transcript(transcript) => Some(std::mem::take(transcript)),
            Printing::Text | Printing::Events => None,
        }
    }

    /// Prints what was collected for one JSON object, if anything was.
    pub(crate) fn print_transcript(&mut self, output: &Output, name: &str) -> anyhow::Result<()> {
        match self.take_transcript() {
            Some(transcript) => output.value(&transcript.into_json(name)?.into()),
            None => Ok(()),
        }
    }

    /// Prints the collected object once following has ended, and returns how it ended. After a failure the object is printed
    /// only if it holds output, which may be nowhere else. An error in printing hides no failure before it.
    pub(crate) fn print_transcript_after(
        &mut self,
        ended: anyhow::Result<Ending>,
        output: &Output,
        name: &str,
    ) -> anyhow::Result<Ending> {
        let object = self.transcript_after(&ended, name);
        let printed = object.and_then(|object| match object {
            Some(object) => output.value(&object.into()),
            None => Ok(()),
        });
        let ending = ended?;
        printed?;
        Ok(ending)
    }

    /// Takes the collected object once following has ended; after a failure only if it holds output.
    pub(crate) fn transcript_after(
        &mut self,
        ended: &anyhow::Result<Ending>,
        name: &str,
    ) -> anyhow::Result<Option<Map<String, Value>>> {
        let transcript = self.take_transcript();
        let kept = transcript.filter(|kept| ended.is_ok() || kept.has_output());
        kept.map(|kept| kept.into_json(name)).transpose()
    }

    /// Sets how the exec ended, where no event says so.
    pub(crate) fn set_result(&mut self, result: Option<ExecResult>) {
        if let Printing::Transcript(transcript) = &mut self.printing {
            transcript.set_result(result);
        }
    }

    /// Follows the exec while `input` goes the other way.
    pub(crate) async fn converse(
        &mut self,
        events: ExecStream,
        input: Input,
        interrupt: &mut Interrupt,
    ) -> anyhow::Result<Ending> {
        let (started, start) = oneshot::channel();
        self.started = Some(started);
        self.reached = events.offsets();
        {
            // Neither waits for the other: output that nobody takes does not hold up input.
            let following = pin!(self.follow(events, interrupt));
            let talking = pin!(input.go(start));
            tokio::select! {
                biased;
                ending = following => return ending,
                left = talking => {
                    let Detach = left?;
                }
            }
        }
        // What was taken comes before what is said next.
        if let Ok(flushed) = interrupt.race(self.stdout.flush()).await {
            flushed?;
        }
        Ok(Ending::Detached(self.reached))
    }

    /// Writes everything until the exec has ended, is left, or cannot be followed any more. After the first
    /// Ctrl-C it goes on reading what the killed exec still says; a second one ends that.
    pub(crate) async fn follow(
        &mut self,
        mut events: ExecStream,
        interrupt: &mut Interrupt,
    ) -> anyhow::Result<Ending> {
        let name = events.name().to_owned();
        let mut result = None;
        let mut kill: Option<Pin<Box<_>>> = None;
        let mut interrupted = false;
        loop {
            tokio::select! {
                biased;
                () = interrupt.wait() => {
                    if interrupted || self.on_leave == OnLeave::Detach {
                        return Ok(Ending::Interrupted);
                    }
                    interrupted = true;
                    events.give_up_start();
                    kill = Some(Box::pin(kill_exec(self.client, &name)));
                }
                killed = poll_some(&mut kill) => {
                    // From here the stream brings what is left of the output, and the end.
                    kill = None;
                    killed?;
                }
                event = events.next() => match event? {
                    Some(event) => {
                        if interrupted && matches!(event.event, Some(Event::Started(_))) {
                            // It may have started after the server looked for it.
                            kill = Some(Box::pin(kill_exec(self.client, &name)));
                        }
                        if let Some(started) = self.started.take() {
                            // Nobody waits for it if there is nothing to send.
                            let _ = started.send(());
                        }
                        if let Some(ending) = self.hand_over(&event, interrupt).await? {
                            // A stream that nobody reads could hold up the program, and so its end.
                            drop(events);
                            if self.on_leave == OnLeave::Kill {
                                finish(interrupt, kill_exec(self.client, &name)).await?;
                            }
                            return Ok(ending);
                        }
                        if let Some(Event::Exited(exited)) = event.event {
                            result = exited.result;
                        }
                    }
                    None if interrupted => {
                        if let Some(kill) = kill {
                            finish(interrupt, kill).await?;
                        }
                        return Ok(Ending::Interrupted);
                    }
                    None => return Ok(Ending::Finished(Box::new(result.unwrap_or_default()))),
                }
            }
        }
    }

    /// Writes an event; how it ended if that could not be done.
    async fn hand_over(
        &mut self,
        event: &ExecEvent,
        interrupt: &mut Interrupt,
    ) -> anyhow::Result<Option<Ending>> {
        match interrupt.race(self.write(event)).await {
            Ok(Ok(())) => Ok(None),
            Ok(Err(error)) if !fail::is_broken_pipe(&error) => Err(error),
            Ok(Err(_)) => Ok(Some(Ending::PipeClosed)),
            Err(Interrupted) => Ok(Some(Ending::Interrupted)),
        }
    }

    async fn write(&mut self, event: &ExecEvent) -> anyhow::Result<()> {
        if let Some(Event::Output(_)) = &event.event {
            self.first_output.get_or_insert_with(Instant::now);
        }
        match &mut self.printing {
            Printing::Events => {
                let line = format!("{}\n", json::from_message("ExecEvent", event)?);
                self.stdout.write_all(line.as_bytes()).await?;
                self.stdout.flush().await?;
            }
            Printing::Transcript(transcript) => {
                if let Some(event) = &event.event {
                    transcript.add(event);
                }
            }
            Printing::Text => {
                if let Some(event) = &event.event {
                    self.write_event(event).await?;
                }
            }
        }
        Ok(())
    }

    /// Prints or collects one event that did not come from an event stream.
    pub(crate) async fn write_event(&mut self, event: &Event) -> anyhow::Result<()> {
        if let Printing::Transcript(transcript) = &mut self.printing {
            transcript.add(event);
            return Ok(());
        }
        match event {
            Event::Output(piece) => self.write_piece(piece).await?,
            Event::Gap(gap) => {
                let stream = values::word(gap.stream().as_str_name(), "OUTPUT_STREAM_");
                let lost = gap.to.saturating_sub(gap.from);
                output::note(&format!(
                    "{lost} bytes of {stream} are lost: they were not read in time"
                ));
                *self.reached_on(gap.stream()) = gap.to;
            }
            Event::Started(_) | Event::Heartbeat(_) | Event::Exited(_) | Event::Closed(_) => {}
        }
        Ok(())
    }

    async fn write_piece(&mut self, piece: &Piece) -> std::io::Result<()> {
        let bytes: &[u8] = match &piece.content {
            Some(Content::Data(data)) => data,
            Some(Content::Text(text)) => text.as_bytes(),
            None => &[],
        };
        if piece.stream() == OutputStream::Stderr {
            self.stderr.write_all(bytes).await?;
        } else {
            self.stdout.write_all(bytes).await?;
        }
        // It is taken, and will be written even if nobody waits for that here.
        *self.reached_on(piece.stream()) = piece.offset + bytes.len() as u64;
        if piece.stream() == OutputStream::Stderr {
            self.stderr.flush().await
        } else {
            self.stdout.flush().await
        }
    }

    fn reached_on(&mut self, stream: OutputStream) -> &mut u64 {
        match stream {
            OutputStream::Stderr => &mut self.reached.stderr,
            OutputStream::Stdout | OutputStream::Unspecified => &mut self.reached.stdout,
        }
    }
}

/// Says how it ended where that is not plain; the code to exit with.
pub(crate) fn exit_code(ending: &Ending) -> u8 {
    match ending {
        Ending::Finished(ended) => {
            if let Some(reason) = result::reason(ended) {
                output::note(&reason);
            }
            result::exit_code(ended)
        }
        Ending::Interrupted => interrupt::EXIT_CODE,
        Ending::PipeClosed => fail::PIPE_CLOSED,
        Ending::Detached(_) => 0,
    }
}

/// Says how to come back to an exec that was left in the middle of a line, with everything that it says meanwhile.
pub(crate) fn note_detached(name: &str, at: StreamOffsets) {
    drop(std::io::Write::write_all(
        &mut std::io::stderr().lock(),
        b"\n",
    ));
    output::note(&format!(
        "{name} goes on; `skillctl attach -i {name} --offset {}` returns to it",
        at.stdout
    ));
}

/// Kills an exec; one that was never started is as good as killed.
async fn kill_exec(client: &Client, name: &str) -> Result<(), Error> {
    match client.kill_exec(name).await {
        Ok(_) => Ok(()),
        Err(error) if error.reason() == Some(Reason::ExecNotFound) => Ok(()),
        Err(error) => Err(error),
    }
}

/// Waits for the end of a kill, unless Ctrl-C says not to.
async fn finish(
    interrupt: &mut Interrupt,
    kill: impl Future<Output = Result<(), Error>>,
) -> Result<(), Error> {
    match interrupt.race(kill).await {
        Ok(killed) => killed,
        Err(Interrupted) => Ok(()),
    }
}

/// Waits for a future if there is one, else for ever.
pub(crate) async fn poll_some<F: Future>(future: &mut Option<Pin<Box<F>>>) -> F::Output {
    match future {
        Some(future) => future.await,
        None => std::future::pending().await,
    }
}
