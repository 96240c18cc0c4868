//! Measures and logs execs as far as the daemon sees them without asking a guest. The daemon relays start and end of an
//! exec of RunExec, and only the start of one of StartExec. A repeated request, which attaches to its exec, is neither
//! measured nor logged. `running_execs` learns the end that the stream has shown.

use std::sync::Arc;
use std::time::SystemTime;

use skilld_proto::Outcome;
use skilld_proto::v1 as pb;
use skilld_proto::v1::exec_event::Event;
use tokio::time::Instant;

use crate::metrics::Metrics;
use crate::telemetry::trace_span::ChildSpan;
use crate::workspace::running_execs::{ConfirmedStart, ExecEnd, ExecEndSender};

/// Reason of an exec that goes on without its call.
const DETACHED: &str = "detached";
/// Reason of an exec whose call ended before it.
const NOT_SEEN: &str = "not_seen";

/// Observer of one exec. When it is dropped after the start, the exec is counted.
#[derive(Debug)]
pub(super) struct ExecObserver {
    metrics: Arc<Metrics>,
    pool: String,
    /// Name of the workspace.
    workspace: String,
    exec_id: String,
    start: Instant,
    /// Time from which on an exec is that of this request.
    request_time: SystemTime,
    /// Another request started the exec.
    is_repeated: bool,
    /// Span from the request to the start, until the start.
    start_span: Option<ChildSpan>,
    /// `true` after the start was recorded.
    has_started: bool,
    /// Reason of the end, once it is known.
    reason: String,
    /// Receives the end; `None` if nothing waits for it.
    end_sender: Option<ExecEndSender>,
    start_time: Option<SystemTime>,
    result: Option<pb::ExecResult>,
}

impl ExecObserver {
    /// Starts to observe an exec that was requested at `start`. `workspace` is its workspace's name.
    pub(super) fn new(
        metrics: &Arc<Metrics>,
        pool: &str,
        (workspace, exec_id): (String, String),
        start: Instant,
    ) -> Self {
        Self {
            metrics: Arc::clone(metrics),
            pool: pool.to_owned(),
            workspace,
            exec_id,
            start,
            request_time: SystemTime::now(),
            is_repeated: false,
            start_span: Some(ChildSpan::start("start exec", start.elapsed())),
            has_started: false,
            reason: NOT_SEEN.to_owned(),
            end_sender: None,
            start_time: None,
            result: None,
        }
    }

    /// Records that the guest has confirmed the start; `None` if the exec does not count. The end is sent when the stream
    /// has reported it.
    pub(super) fn set_confirmed(&mut self, confirmed: Option<ConfirmedStart>) {
        self.is_repeated = confirmed.as_ref().is_none_or(|start| !start.is_first);
        self.end_sender = confirmed.and_then(|start| start.end_sender);
    }

    /// Records an exec that was started detached.
    pub(super) fn finish_detached(mut self, exec: &pb::Exec) {
        self.record_start(exec.start_time);
        DETACHED.clone_into(&mut self.reason);
    }

    /// Reads the exec's start and end from an event of its stream.
    pub(super) fn observe_event(&mut self, event: &pb::ExecEvent) {
        match &event.event {
            Some(Event::Started(started)) => {
                self.record_start(started.start_time);
            }
            Some(Event::Exited(exited)) => {
                let result = exited.result.clone().unwrap_or_default();
                self.record_end(&result);
                self.result = Some(result);
            }
            Some(Event::Closed(_)) => {
                if let (Some(sender), Some(result)) = (self.end_sender.take(), self.result.take()) {
                    let start_time = self.start_time;
                    sender.send(ExecEnd { start_time, result });
                }
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

    fn record_start(&mut self, start_time: Option<prost_types::Timestamp>) {
        self.start_time = start_time.and_then(|time| time.try_into().ok());
        if let Some(span) = self.start_span.take() {
            span.finish();
        }
        let is_earlier = |start: SystemTime| start < self.request_time;
        self.is_repeated |= self.start_time.is_some_and(is_earlier);
        if self.is_repeated {
            return;
        }
        let (workspace, exec_id) = (&self.workspace, &self.exec_id);
        tracing::info!(workspace, exec_id, "exec started");
        self.has_started = true;
        self.metrics.observe_exec_start(self.start.elapsed());
    }

    fn record_end(&mut self, result: &pb::ExecResult) {
        if self.is_repeated {
            return;
        }
        let reason = result.reason().short_name();
        self.reason = reason.to_lowercase();
        let (workspace, exec_id, reason) = (&self.workspace, &self.exec_id, &self.reason);
        let elapsed_ms = u64::try_from(self.start.elapsed().as_millis()).unwrap_or(u64::MAX);
        let outcome = result.outcome();
        if result.success {
            tracing::info!(workspace, exec_id, reason, elapsed_ms, "exec ended");
            return;
        }
        let (exit_code, signal) = match outcome {
            Some(Outcome::ExitCode(code)) => (Some(code), None),
            Some(Outcome::Signal(signal)) => (None, Some(signal)),
            None => (None, None),
        };
        tracing::info!(
            workspace,
            exec_id,
            reason,
            elapsed_ms,
            exit_code,
            signal,
            peak_memory_bytes = result.peak_memory_bytes,
            "exec ended"
        );
    }
}

impl Drop for ExecObserver {
    fn drop(&mut self) {
        if self.has_started {
            self.metrics.count_exec(&self.pool, &self.reason);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use skilld_proto::v1::ExitReason;

    use super::*;
    use crate::metrics::tests::page_of;

    /// Returns the samples of execs after a stream with these events was dropped.
    fn samples_after(events: Vec<Event>) -> Vec<String> {
        let metrics = Arc::<Metrics>::default();
        let mut observer = ExecObserver::new(
            &metrics,
            "default",
            ("workspaces/w".to_owned(), "x".to_owned()),
            Instant::now(),
        );
        for event in events {
            let event = Some(event);
            observer.observe_event(&pb::ExecEvent { seq: 1, event });
        }
        drop(observer);
        let page = page_of(&metrics);
        let lines = page.lines();
        let is_wanted = |line: &&str| {
            line.starts_with("skilld_execs_total{") || line.contains("start_seconds_count")
        };
        lines.filter(is_wanted).map(str::to_owned).collect()
    }

    fn started() -> Event {
        Event::Started(pb::StartedEvent::default())
    }

    #[test]
    fn repeated_request_counts_no_exec() {
        let earlier = SystemTime::now() - Duration::from_secs(1);
        let repeated = Event::Started(pb::StartedEvent {
            start_time: Some(earlier.into()),
            ..pb::StartedEvent::default()
        });
        let exited = Event::Exited(pb::ExitedEvent::default());
        assert_eq!(
            samples_after(vec![repeated, exited]),
            ["skilld_exec_start_seconds_count 0"]
        );
    }

    #[test]
    fn an_exec_is_counted_once_by_the_reason_of_its_end() {
        let result = pb::ExecResult {
            reason: ExitReason::OomKilled.into(),
            ..pb::ExecResult::default()
        };
        let exited = Event::Exited(pb::ExitedEvent {
            result: Some(result),
        });
        let closed = Event::Closed(pb::ClosedEvent::default());
        let samples = samples_after(vec![started(), exited, closed]);
        assert_eq!(
            samples,
            [
                "skilld_execs_total{pool=\"default\",reason=\"oom_killed\"} 1",
                "skilld_exec_start_seconds_count 1"
            ]
        );
    }

    #[test]
    fn an_exec_whose_client_leaves_first_has_no_known_end() {
        let samples = samples_after(vec![started()]);
        assert_eq!(
            samples.first().map(String::as_str),
            Some("skilld_execs_total{pool=\"default\",reason=\"not_seen\"} 1")
        );
    }

    #[test]
    fn a_request_that_starts_nothing_is_no_exec() {
        assert_eq!(
            samples_after(Vec::new()),
            ["skilld_exec_start_seconds_count 0"]
        );
    }
}
