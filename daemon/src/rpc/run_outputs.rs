//! End of a RunExec that stages or collects: follows the exec, then sends the files that it left, and a summary.

use std::sync::Arc;

use futures::stream::BoxStream;
use futures::{Stream, StreamExt, TryStreamExt, stream};
use skilld_proto::v1::collect_outputs_response::Payload;
use skilld_proto::v1::exec_event::Event;
use skilld_proto::v1::{self as pb, ExitReason};
use tokio::sync::oneshot;

use super::SharedDependencies;
use super::convert::run::{OutputPlan, ReachedPosition};
use crate::collect;
use crate::error::{Error, Result};
use crate::workspace::{WorkspaceGrant, WorkspaceKey};

/// Events of an exec or after it.
pub(super) type RunEvents = BoxStream<'static, Result<pb::ExecEvent>>;

/// Collection after the end of an exec.
pub(super) struct RunOutputs {
    shared: SharedDependencies,
    workspace: WorkspaceKey,
    plan: Option<OutputPlan>,
    filter: FileFilter,
}

/// State of an exec, as far as its events have shown it.
#[derive(Debug, Default)]
struct SeenExec {
    start_time: Option<prost_types::Timestamp>,
    result: pb::ExecResult,
    is_closed: bool,
}

/// Filter of collected files: leaves out those that an earlier stream has sent, and bytes that the client does not want.
#[derive(Debug, Default)]
struct FileFilter {
    /// Number of files to leave out.
    files_left: u64,
    /// Number of bytes to leave out of the file after them.
    bytes_left: u64,
    omit_data: bool,
    /// The current file is neither a link nor a directory, so its bytes and its end follow.
    has_end: bool,
    /// Warnings about the run, for the summary.
    warnings: Vec<pb::Problem>,
}

/// Makes an event that is not the exec's own.
pub(super) fn event_message(event: Event) -> pb::ExecEvent {
    pb::ExecEvent {
        seq: 0,
        event: Some(event),
    }
}

impl RunOutputs {
    pub(super) fn new(
        shared: &SharedDependencies,
        workspace: WorkspaceKey,
        plan: Option<OutputPlan>,
        position: Option<ReachedPosition>,
    ) -> Self {
        let position = position.unwrap_or_default();
        Self {
            shared: Arc::clone(shared),
            workspace,
            filter: FileFilter {
                files_left: position.file_count,
                bytes_left: position.file_bytes,
                omit_data: plan.as_ref().is_some_and(|plan| plan.omit_data),
                ..FileFilter::default()
            },
            plan,
        }
    }

    /// Returns the events of an exec, its files and the summary. The grant keeps the workspace in use until then.
    pub(super) fn follow(
        self,
        events: RunEvents,
        grant: WorkspaceGrant,
    ) -> impl Stream<Item = Result<pb::ExecEvent>> + Send + 'static {
        let (ended, end) = oneshot::channel();
        let follow = (events, SeenExec::default(), ended);
        let followed = stream::unfold(follow, |(mut events, mut seen, ended)| async move {
            let Some(event) = events.next().await else {
                // Without a receiver the client has gone away.
                let _gone = ended.send(seen);
                return None;
            };
            if let Ok(event) = &event {
                seen.observe(event);
            }
            Some((event, (events, seen, ended)))
        });
        let rest = async move {
            match end.await {
                Ok(seen) if seen.is_closed => self.finish(seen, grant).await,
                _ => Err(Error::guest_lost(
                    grant.name(),
                    "its events ended before their last one",
                )),
            }
        };
        followed.chain(stream::once(rest).try_flatten())
    }

    /// Collects the files of an exec that has ended. Returns them and the summary as events.
    async fn finish(mut self, seen: SeenExec, grant: WorkspaceGrant) -> Result<RunEvents> {
        let warnings = seen.result.warnings();
        let has_run = seen.result.reason() != ExitReason::SpawnFailed;
        let Some(plan) = self.plan.take().filter(|_| has_run) else {
            let outputs = None;
            let summary = Event::Summary(pb::SummaryEvent { outputs, warnings });
            return Ok(stream::iter([Ok(event_message(summary))]).boxed());
        };
        let payloads = self.collect(plan, &seen, &grant).await?;
        let mut filter = FileFilter {
            warnings,
            ..self.filter
        };
        let events = payloads.map(move |message| {
            // The grant lives as long as the stream.
            let _owned = &grant;
            let payload = message?.payload;
            Ok(payload.and_then(|payload| filter.apply(payload)))
        });
        let events = events.try_filter_map(|event| std::future::ready(Ok(event)));
        Ok(events.map_ok(event_message).boxed())
    }

    /// Starts the collection, which saves artifacts if the plan says so.
    async fn collect(
        &self,
        plan: OutputPlan,
        seen: &SeenExec,
        grant: &WorkspaceGrant,
    ) -> Result<BoxStream<'static, Result<pb::CollectOutputsResponse>>> {
        let spec = plan.request.spec.clone().unwrap_or_default();
        let collected = grant
            .call(grant.guest.clone().collect(plan.request))
            .await?;
        let stream = collected.into_inner();
        let Some(save_as) = plan.save_as else {
            let name = grant.name();
            let messages = stream.map_err(move |status| Error::from_guest(&name, &status));
            return Ok(messages.boxed());
        };
        let (result, skip_empty) = (Some(&seen.result), spec.skip_empty_after_failure);
        let save_as = save_as.after_exec(seen.start_time, result, skip_empty);
        let (artifacts, tasks) = (&self.shared.artifacts, &self.shared.tasks);
        let saved = collect::save_collected_files(
            stream,
            &spec,
            save_as,
            artifacts,
            tasks,
            &self.workspace,
        );
        Ok(saved.boxed())
    }
}

impl SeenExec {
    fn observe(&mut self, event: &pb::ExecEvent) {
        match &event.event {
            Some(Event::Started(started)) => self.start_time = started.start_time,
            Some(Event::Exited(exited)) => {
                self.result = exited.result.clone().unwrap_or_default();
            }
            Some(Event::Closed(closed)) => {
                self.result
                    .ended_processes
                    .clone_from(&closed.ended_processes);
                self.is_closed = true;
            }
            Some(
                Event::Output(_)
                | Event::Gap(_)
                | Event::Heartbeat(_)
                | Event::Workspace(_)
                | Event::Staged(_)
                | Event::File(_)
                | Event::FileData(_)
                | Event::FileEnd(_)
                | Event::Summary(_),
            )
            | None => {}
        }
    }
}

impl FileFilter {
    /// Returns the event for a message of a collection; `None` to leave it out.
    fn apply(&mut self, payload: Payload) -> Option<Event> {
        match payload {
            Payload::File(file) => {
                self.has_end = file.has_end();
                let is_sent = self.files_left > 0;
                if is_sent && !self.has_end {
                    self.files_left -= 1;
                }
                (!is_sent).then_some(Event::File(file))
            }
            Payload::Data(data) if self.files_left == 0 && !self.omit_data => {
                let sent = usize::try_from(self.bytes_left).unwrap_or(usize::MAX);
                let rest = data.slice(sent.min(data.len())..);
                self.bytes_left -= (data.len() - rest.len()) as u64;
                (!rest.is_empty()).then_some(Event::FileData(rest))
            }
            Payload::Data(_) => None,
            Payload::FileEnd(_) if !self.has_end => None,
            Payload::FileEnd(_) if self.files_left > 0 => {
                self.files_left -= 1;
                None
            }
            Payload::FileEnd(end) => {
                self.bytes_left = 0;
                Some(Event::FileEnd(end))
            }
            Payload::Summary(outputs) => Some(Event::Summary(pb::SummaryEvent {
                outputs: Some(outputs),
                warnings: std::mem::take(&mut self.warnings),
            })),
        }
    }
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;

    use super::*;

    /// Returns the messages of a collection: a file, a link, and another file in two pieces.
    fn messages() -> Vec<Payload> {
        let file = |path: &str, link: &str| {
            Payload::File(pb::CollectedFile {
                path: path.to_owned(),
                link_target: link.to_owned(),
                ..pb::CollectedFile::default()
            })
        };
        let data = |text: &'static str| Payload::Data(Bytes::from_static(text.as_bytes()));
        let end = || Payload::FileEnd(pb::FileEnd::default());
        let summary = Payload::Summary(pb::CollectSummary::default());
        vec![
            file("a", ""),
            data("one"),
            end(),
            file("b", "a"),
            file("c", ""),
            data("four"),
            data("five"),
            end(),
            summary,
        ]
    }

    /// Returns the events as words.
    fn events(mut filter: FileFilter) -> String {
        let events = messages()
            .into_iter()
            .filter_map(|message| filter.apply(message));
        let words = events.map(|event| {
            if let Event::File(file) = event {
                file.path
            } else if let Event::FileData(data) = event {
                String::from_utf8_lossy(&data).into_owned()
            } else if let Event::FileEnd(_) = event {
                ".".to_owned()
            } else {
                "summary".to_owned()
            }
        });
        words.collect::<Vec<_>>().join(" ")
    }

    #[test]
    fn a_repeated_collection_continues_in_the_middle_of_a_file() {
        for (files_left, bytes_left, expected) in [
            (0, 0, "a one . b c four five . summary"),
            (0, 2, "a e . b c four five . summary"),
            (1, 0, "b c four five . summary"),
            (2, 0, "c four five . summary"),
            (2, 4, "c five . summary"),
            (2, 6, "c ve . summary"),
            (2, 8, "c . summary"),
            (3, 0, "summary"),
        ] {
            let filter = FileFilter {
                files_left,
                bytes_left,
                ..FileFilter::default()
            };
            assert_eq!(events(filter), expected, "{files_left} {bytes_left}");
        }
    }

    #[test]
    fn files_without_their_bytes_keep_their_ends() {
        let filter = FileFilter {
            omit_data: true,
            ..FileFilter::default()
        };
        assert_eq!(events(filter), "a . b c . summary");
    }
}
