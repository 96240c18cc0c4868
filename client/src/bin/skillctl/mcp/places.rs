//! Who has a session over HTTP, of whom there are so many at most. A client that dies does not say so: where all places are
//! taken, the session goes that nobody listens on and that was used the longest time ago. Its client has to begin anew, and a
//! call that it left under way is given up; what calls changed is the server's.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use futures::{Stream, StreamExt as _};
use rmcp::model::{ClientJsonRpcMessage, ServerJsonRpcMessage};
use rmcp::transport::streamable_http_server::session::local::{
    LocalSessionManager, LocalSessionManagerError,
};
use rmcp::transport::streamable_http_server::session::{
    ServerSseMessage, SessionId, SessionManager,
};
use tokio::time::{Instant, sleep_until};

/// Sessions at once.
pub(super) const SESSIONS_MAX: usize = 256;
/// A client that was heard of in this time may be about to listen: who comes waits so long for its place.
const SPARED_FOR: Duration = Duration::from_secs(2);

/// Sessions, so many at most.
#[derive(Debug)]
pub(super) struct Places {
    sessions: LocalSessionManager,
    uses: Uses,
    /// One after the other, lest two take one place.
    entrance: tokio::sync::Mutex<()>,
}

/// By whom the places are taken.
#[derive(Clone, Debug, Default)]
struct Uses(Arc<Mutex<HashMap<SessionId, Use>>>);

#[derive(Debug)]
struct Use {
    last: Instant,
    /// On which its client waits for a result or for news.
    streams: usize,
}

/// For one more.
#[derive(Debug)]
enum Room {
    Free,
    /// In the place of this one, which is not known any more.
    Of(SessionId),
    /// Then, perhaps.
    Soon(Instant),
}

/// A stream, as long as its client is there.
#[derive(Debug)]
struct Listening {
    uses: Uses,
    id: SessionId,
}

/// Why there is no session.
#[derive(Debug, thiserror::Error)]
pub(super) enum PlacesError {
    #[error(
        "{SESSIONS_MAX} clients have a session, and all of them wait or listen: end one, or start another server"
    )]
    Full,
    #[error(transparent)]
    Session(#[from] LocalSessionManagerError),
}

impl Places {
    pub(super) fn new(sessions: LocalSessionManager) -> Self {
        Self {
            sessions,
            uses: Uses::default(),
            entrance: tokio::sync::Mutex::default(),
        }
    }

    /// Makes room if there is none.
    async fn make_room(&self) -> Result<(), PlacesError> {
        loop {
            match self.uses.room()? {
                Room::Free => return Ok(()),
                Room::Of(oldest) => self.sessions.close_session(&oldest).await?,
                Room::Soon(at) => sleep_until(at).await,
            }
        }
    }
}

impl Uses {
    fn lock(&self) -> MutexGuard<'_, HashMap<SessionId, Use>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether there is room for another; if not, it is taken from the oldest one.
    fn room(&self) -> Result<Room, PlacesError> {
        let mut uses = self.lock();
        if uses.len() < SESSIONS_MAX {
            return Ok(Room::Free);
        }
        let deserted = uses.iter().filter(|(_, used)| used.streams == 0);
        let oldest = deserted.min_by_key(|(_, used)| used.last);
        let (id, used) = oldest.ok_or(PlacesError::Full)?;
        if used.last.elapsed() < SPARED_FOR {
            return Ok(Room::Soon(used.last + SPARED_FOR));
        }
        let id = SessionId::clone(id);
        uses.remove(&id);
        Ok(Room::Of(id))
    }

    /// Notes a use; false if nobody has that session.
    fn change(&self, id: &SessionId, change: impl FnOnce(&mut Use)) -> bool {
        let mut uses = self.lock();
        let used = uses.get_mut(id);
        let known = used.is_some();
        if let Some(used) = used {
            used.last = Instant::now();
            change(used);
        }
        known
    }

    fn listen(&self, id: &SessionId) -> Listening {
        self.change(id, |used| used.streams += 1);
        Listening {
            uses: self.clone(),
            id: SessionId::clone(id),
        }
    }
}

impl Drop for Listening {
    fn drop(&mut self) {
        self.uses.change(&self.id, |used| used.streams -= 1);
    }
}

/// The same stream, which is noted until it is dropped.
fn noted<S: Stream>(listening: Listening, stream: S) -> impl Stream<Item = S::Item> {
    stream.map(move |item| {
        let _until_dropped = &listening;
        item
    })
}

impl SessionManager for Places {
    type Error = PlacesError;
    type Transport = <LocalSessionManager as SessionManager>::Transport;

    async fn create_session(&self) -> Result<(SessionId, Self::Transport), Self::Error> {
        let _entrance = self.entrance.lock().await;
        self.make_room().await?;
        let (id, transport) = self.sessions.create_session().await?;
        let used = Use {
            last: Instant::now(),
            streams: 0,
        };
        self.uses.lock().insert(SessionId::clone(&id), used);
        Ok((id, transport))
    }

    async fn initialize_session(
        &self,
        id: &SessionId,
        message: ClientJsonRpcMessage,
    ) -> Result<ServerJsonRpcMessage, Self::Error> {
        let _listening = self.uses.listen(id);
        Ok(self.sessions.initialize_session(id, message).await?)
    }

    async fn has_session(&self, id: &SessionId) -> Result<bool, Self::Error> {
        // Asked before each use.
        Ok(self.uses.change(id, |_| {}) && self.sessions.has_session(id).await?)
    }

    async fn close_session(&self, id: &SessionId) -> Result<(), Self::Error> {
        self.uses.lock().remove(id);
        Ok(self.sessions.close_session(id).await?)
    }

    async fn create_stream(
        &self,
        id: &SessionId,
        message: ClientJsonRpcMessage,
    ) -> Result<impl Stream<Item = ServerSseMessage> + Send + Sync + 'static, Self::Error> {
        let listening = self.uses.listen(id);
        let stream = self.sessions.create_stream(id, message).await?;
        Ok(noted(listening, stream))
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
        let listening = self.uses.listen(id);
        let stream = self.sessions.create_standalone_stream(id).await?;
        Ok(noted(listening, stream))
    }

    async fn resume(
        &self,
        id: &SessionId,
        last_event_id: String,
    ) -> Result<impl Stream<Item = ServerSseMessage> + Send + Sync + 'static, Self::Error> {
        let listening = self.uses.listen(id);
        let stream = self.sessions.resume(id, last_event_id).await?;
        Ok(noted(listening, stream))
    }
}
