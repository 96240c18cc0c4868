//! Events of streams over HTTP, kept in memory for a while. A client whose connection broke gets the rest, also the
//! answer of a call that ended in the meantime.

use std::collections::{HashMap, VecDeque};
use std::time::Duration;

use rmcp::model::ServerJsonRpcMessage;
use rmcp::transport::streamable_http_server::session::{
    EventId, EventStore, EventStoreError, EventStream, ServerSseMessage,
};
use tokio::sync::watch;
use tokio::time::Instant;

use crate::commands::mcp::resources::json_bytes;

/// Time for which an event is kept: a client connects again within seconds.
const KEPT_FOR: Duration = Duration::from_secs(60);

/// Maximum number of streams that are known; the one that was silent for longest is forgotten first.
const STREAMS_MAX: usize = 4096;

/// Maximum size of all kept events; the oldest is forgotten first.
const BYTES_MAX: usize = 64 << 20;

/// Store of the events of all streams.
#[derive(Debug)]
pub(super) struct KeptEvents {
    /// Wakes the readers that wait for the next event.
    table: watch::Sender<EventTable>,
}

#[derive(Debug, Default)]
struct EventTable {
    /// Streams by id.
    streams: HashMap<String, KeptStream>,
    /// Stream, size and time of each kept event, in the order in which they came.
    order: VecDeque<(String, usize, Instant)>,
    bytes: usize,
    /// Number of the last event of all streams.
    last: u64,
}

#[derive(Debug)]
struct KeptStream {
    /// The kept events with their numbers.
    events: VecDeque<(u64, ServerSseMessage)>,
    /// Time of the last event.
    last: Instant,
    /// `true` once the answer is stored: nothing follows it.
    has_ended: bool,
}

/// Reason why a stream is not continued.
#[derive(Debug, thiserror::Error)]
#[error("the stream of event {0} is not known, or no longer")]
struct UnknownEvent(String);

impl EventTable {
    /// Removes events that are too old or exceed the limits.
    fn evict(&mut self) {
        while let Some((id, size, at)) = self.order.front()
            && (at.elapsed() > KEPT_FOR || self.bytes > BYTES_MAX)
        {
            self.bytes -= size;
            if let Some(stream) = self.streams.get_mut(id) {
                stream.events.pop_front();
                if stream.has_ended && stream.events.is_empty() {
                    self.streams.remove(id);
                }
            }
            self.order.pop_front();
        }
        if self.streams.len() > STREAMS_MAX {
            let silent = self.streams.iter().min_by_key(|(_, stream)| stream.last);
            if let Some(id) = silent.map(|(id, _)| id.clone()) {
                self.streams.remove(&id);
            }
        }
    }

    fn store(&mut self, id: &str, mut event: ServerSseMessage) -> EventId {
        self.last += 1;
        let event_id = format!("{id}/{}", self.last);
        event.event_id = Some(event_id.clone());
        let message = event.message.as_deref();
        let is_answer = matches!(
            message,
            Some(ServerJsonRpcMessage::Response(_) | ServerJsonRpcMessage::Error(_))
        );
        let size = message.map_or(0, json_bytes);
        let now = Instant::now();
        let stream = self
            .streams
            .entry(id.to_owned())
            .or_insert_with(|| KeptStream {
                events: VecDeque::new(),
                last: now,
                has_ended: false,
            });
        stream.has_ended |= is_answer;
        stream.last = now;
        stream.events.push_back((self.last, event));
        self.order.push_back((id.to_owned(), size, now));
        self.bytes += size;
        self.evict();
        event_id
    }

    /// Returns the first kept event after this number; `None` if the stream ended before.
    fn next(&self, id: &str, after: u64) -> Option<Option<(u64, ServerSseMessage)>> {
        let stream = self.streams.get(id)?;
        let mut later = stream.events.iter().filter(|(number, _)| *number > after);
        match later.next() {
            None if stream.has_ended => None,
            event => Some(event.cloned()),
        }
    }
}

impl KeptEvents {
    pub(super) fn new() -> Self {
        Self {
            table: watch::Sender::new(EventTable::default()),
        }
    }
}

#[async_trait::async_trait]
impl EventStore for KeptEvents {
    async fn store_event(
        &self,
        stream_id: &str,
        event: &ServerSseMessage,
    ) -> Result<EventId, EventStoreError> {
        let mut id = EventId::new();
        self.table
            .send_modify(|table| id = table.store(stream_id, event.clone()));
        Ok(id)
    }

    async fn replay_events_after(&self, last: &str) -> Result<EventStream, EventStoreError> {
        let unknown = || UnknownEvent(last.to_owned());
        let (id, number) = last.rsplit_once('/').ok_or_else(unknown)?;
        let number: u64 = number.parse().map_err(|_| unknown())?;
        if !self.table.borrow().streams.contains_key(id) {
            return Err(unknown().into());
        }
        let begin = (id.to_owned(), number, self.table.subscribe());
        let events = futures::stream::unfold(begin, |(id, after, mut table)| async move {
            loop {
                let next = table.borrow_and_update().next(&id, after)?;
                if let Some((number, event)) = next {
                    return Some((event, (id, number, table)));
                }
                table.changed().await.ok()?;
            }
        });
        Ok(Box::pin(events))
    }
}

#[cfg(test)]
mod tests {
    use rmcp::ErrorData;
    use tokio::time::advance;

    use super::*;

    /// Returns an answer of a little more than so many bytes.
    fn answer(bytes: usize) -> ServerSseMessage {
        let error = ErrorData::internal_error("x".repeat(bytes), None);
        ServerSseMessage::from_message(ServerJsonRpcMessage::error(error, None))
    }

    fn is_kept(table: &EventTable, id: &str) -> bool {
        matches!(table.next(id, 0), Some(Some(_)))
    }

    #[tokio::test(start_paused = true)]
    async fn an_event_is_kept_for_a_minute() {
        let mut table = EventTable::default();
        table.store("old", answer(1));
        advance(KEPT_FOR).await;
        table.store("new", answer(1));
        assert!(is_kept(&table, "old"));
        advance(Duration::from_secs(1)).await;
        table.store("new", answer(1));
        assert!(!is_kept(&table, "old") && is_kept(&table, "new"));
    }

    #[tokio::test(start_paused = true)]
    async fn the_oldest_events_are_forgotten_above_the_size_limit() {
        let mut table = EventTable::default();
        table.store("old", answer(BYTES_MAX / 2));
        assert!(is_kept(&table, "old"));
        table.store("new", answer(BYTES_MAX / 2));
        assert!(!is_kept(&table, "old") && is_kept(&table, "new"));
        assert!(table.bytes <= BYTES_MAX);
    }

    #[tokio::test(start_paused = true)]
    async fn the_longest_silent_stream_is_forgotten_above_the_limit() {
        let mut table = EventTable::default();
        for id in ["silent", "busy"] {
            table.store(id, answer(1));
            advance(Duration::from_secs(1)).await;
        }
        for number in 0..STREAMS_MAX - 1 {
            table.store(&number.to_string(), answer(1));
        }
        assert!(!is_kept(&table, "silent") && is_kept(&table, "busy"));
        assert_eq!(table.streams.len(), STREAMS_MAX);
    }
}
