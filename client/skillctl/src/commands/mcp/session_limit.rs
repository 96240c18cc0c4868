//! Limit on the number of sessions over HTTP. A client that dies does not say so: at the maximum, the least recently
//! used session without an open stream is evicted. Its client has to connect anew.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use futures::future::ready;
use futures::{Stream, StreamExt as _};
use parking_lot::Mutex;
use rmcp::model::{ClientJsonRpcMessage, ProtocolVersion, ServerJsonRpcMessage, ServerResult};
use rmcp::transport::streamable_http_server::session::local::{
    LocalSessionManager, LocalSessionManagerError,
};
use rmcp::transport::streamable_http_server::session::{
    ServerSseMessage, SessionId, SessionManager,
};
use tokio::time::{Instant, sleep_until};
use tokio_util::sync::CancellationToken;

/// Maximum number of sessions at once.
pub(super) const SESSIONS_MAX: usize = 256;
/// Minimum time since the last use of a session before it is evicted: its client may be about to listen.
const EVICTION_AGE_MIN: Duration = Duration::from_secs(2);

/// Session manager with a maximum number of sessions.
#[derive(Debug)]
pub(super) struct LimitedSessions {
    sessions: LocalSessionManager,
    uses: SessionTable,
    /// Lock that lets one client in at a time, so that two cannot take one place.
    entrance: tokio::sync::Mutex<()>,
}

/// Table of the open sessions by id, with the last use of each.
#[derive(Clone, Debug, Default)]
struct SessionTable(Arc<Mutex<HashMap<SessionId, SessionActivity>>>);

#[derive(Debug)]
struct SessionActivity {
    last: Instant,
    /// Streams on which the client waits for a result or a notification.
    streams: usize,
    /// `true` if the version of the session knows events without a message.
    knows_empty_events: bool,
    /// Token that the end of the session cancels.
    ended: CancellationToken,
}

/// Outcome of a search for room for one more session.
#[derive(Debug)]
enum AdmissionOutcome {
    Free,
    /// This session was evicted and must be closed.
    Of(SessionId),
    /// No session can be evicted before this time.
    Soon(Instant),
}

/// Guard that counts a stream as open until it is dropped.
#[derive(Debug)]
struct OpenStreamGuard {
    uses: SessionTable,
    id: SessionId,
    /// Token that the end of the session cancels.
    ended: CancellationToken,
}

/// Reason why a client gets no session, or loses it.
#[derive(Debug, thiserror::Error)]
pub(super) enum SessionLimitError {
    #[error(
        "{SESSIONS_MAX} clients have a session, and all of them wait or listen: end one, or start another server"
    )]
    Full,
    #[error(transparent)]
    Session(#[from] LocalSessionManagerError),
}

impl LimitedSessions {
    pub(super) fn new(sessions: LocalSessionManager) -> Self {
        Self {
            sessions,
            uses: SessionTable::default(),
            entrance: tokio::sync::Mutex::default(),
        }
    }

    /// Waits for room for one more session, and closes the session that is evicted for it.
    async fn make_room(&self) -> Result<(), SessionLimitError> {
        loop {
            match self.uses.room()? {
                AdmissionOutcome::Free => return Ok(()),
                AdmissionOutcome::Of(oldest) => self.sessions.close_session(&oldest).await?,
                AdmissionOutcome::Soon(at) => sleep_until(at).await,
            }
        }
    }
}

impl SessionTable {
    /// Returns the room for another session; evicts the least recently used session without an open stream if there is
    /// none.
    fn room(&self) -> Result<AdmissionOutcome, SessionLimitError> {
        let mut uses = self.0.lock();
        if uses.len() < SESSIONS_MAX {
            return Ok(AdmissionOutcome::Free);
        }
        let deserted = uses.iter().filter(|(_, used)| used.streams == 0);
        let oldest = deserted.min_by_key(|(_, used)| used.last);
        let (id, used) = oldest.ok_or(SessionLimitError::Full)?;
        if used.last.elapsed() < EVICTION_AGE_MIN {
            return Ok(AdmissionOutcome::Soon(used.last + EVICTION_AGE_MIN));
        }
        let id = SessionId::clone(id);
        uses.remove(&id);
        Ok(AdmissionOutcome::Of(id))
    }

    /// Records a use; returns `false` for an unknown session.
    fn change(&self, id: &SessionId, change: impl FnOnce(&mut SessionActivity)) -> bool {
        let mut uses = self.0.lock();
        let used = uses.get_mut(id);
        let known = used.is_some();
        if let Some(used) = used {
            used.last = Instant::now();
            change(used);
        }
        known
    }

    fn listen(&self, id: &SessionId) -> OpenStreamGuard {
        let mut ended = CancellationToken::new();
        let is_open = self.change(id, |used| {
            used.streams += 1;
            ended = used.ended.clone();
        });
        if !is_open {
            ended.cancel();
        }
        OpenStreamGuard {
            uses: self.clone(),
            id: SessionId::clone(id),
            ended,
        }
    }
}

impl OpenStreamGuard {
    fn knows_empty_events(&self) -> bool {
        let uses = self.uses.0.lock();
        uses.get(&self.id)
            .is_some_and(|used| used.knows_empty_events)
    }
}

impl Drop for OpenStreamGuard {
    fn drop(&mut self) {
        self.uses.change(&self.id, |used| used.streams -= 1);
    }
}

/// Returns `true` if a version of the protocol knows events without a message, which name a place to go on from.
fn knows_empty_events(version: &str) -> bool {
    // Versions are dates.
    version >= ProtocolVersion::V_2025_11_25.as_str()
}

/// Returns the version that the answer to the first request of a session names.
fn negotiated_version(answer: &ServerJsonRpcMessage) -> Option<&str> {
    let ServerJsonRpcMessage::Response(response) = answer else {
        return None;
    };
    let ServerResult::InitializeResult(result) = &response.result else {
        return None;
    };
    Some(result.protocol_version.as_str())
}

/// Returns the stream without events that its session does not know, with a guard that lives as long as it does.
fn with_guard(
    guard: OpenStreamGuard,
    stream: impl Stream<Item = ServerSseMessage>,
) -> impl Stream<Item = ServerSseMessage> {
    let knows_empty = guard.knows_empty_events();
    stream.filter(move |event| {
        let _until_dropped = &guard;
        ready(knows_empty || event.message.is_some())
    })
}

// There is no `event_store`, which would be for requests without a session. Their version of the protocol, 2026-07-28,
// resumes no stream: a client cancels a call, or a subscription, by closing its stream.
impl SessionManager for LimitedSessions {
    type Error = SessionLimitError;
    type Transport = <LocalSessionManager as SessionManager>::Transport;

    async fn create_session(&self) -> Result<(SessionId, Self::Transport), Self::Error> {
        let _entrance = self.entrance.lock().await;
        self.make_room().await?;
        let (id, transport) = self.sessions.create_session().await?;
        let used = SessionActivity {
            last: Instant::now(),
            streams: 0,
            knows_empty_events: false,
            ended: CancellationToken::new(),
        };
        self.uses.0.lock().insert(SessionId::clone(&id), used);
        Ok((id, transport))
    }

    async fn initialize_session(
        &self,
        id: &SessionId,
        message: ClientJsonRpcMessage,
    ) -> Result<ServerJsonRpcMessage, Self::Error> {
        let _guard = self.uses.listen(id);
        let answer = self.sessions.initialize_session(id, message).await?;
        let knows = negotiated_version(&answer).is_some_and(knows_empty_events);
        self.uses.change(id, |used| used.knows_empty_events = knows);
        Ok(answer)
    }

    async fn has_session(&self, id: &SessionId) -> Result<bool, Self::Error> {
        // The library asks before each use.
        Ok(self.uses.change(id, |_| {}) && self.sessions.has_session(id).await?)
    }

    async fn close_session(&self, id: &SessionId) -> Result<(), Self::Error> {
        if let Some(used) = self.uses.0.lock().remove(id) {
            used.ended.cancel();
        }
        Ok(self.sessions.close_session(id).await?)
    }

    async fn create_stream(
        &self,
        id: &SessionId,
        message: ClientJsonRpcMessage,
    ) -> Result<impl Stream<Item = ServerSseMessage> + Send + Sync + 'static, Self::Error> {
        let guard = self.uses.listen(id);
        let stream = self.sessions.create_stream(id, message).await?;
        Ok(with_guard(guard, stream))
    }

    async fn accept_message(
        &self,
        id: &SessionId,
        message: ClientJsonRpcMessage,
    ) -> Result<(), Self::Error> {
        Ok(self.sessions.accept_message(id, message).await?)
    }

    async fn create_standalone_stream(
        &self,
        id: &SessionId,
    ) -> Result<impl Stream<Item = ServerSseMessage> + Send + Sync + 'static, Self::Error> {
        let guard = self.uses.listen(id);
        let stream = self.sessions.create_standalone_stream(id).await?;
        Ok(with_guard(guard, stream))
    }

    async fn resume(
        &self,
        id: &SessionId,
        last_event_id: String,
    ) -> Result<impl Stream<Item = ServerSseMessage> + Send + Sync + 'static, Self::Error> {
        let guard = self.uses.listen(id);
        let stream = self.sessions.resume(id, last_event_id).await?;
        // The library's replay waits for the next event, also when the session has ended.
        let ended = guard.ended.clone().cancelled_owned();
        Ok(with_guard(guard, stream.take_until(ended)))
    }
}
