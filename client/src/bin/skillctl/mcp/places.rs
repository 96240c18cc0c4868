//! Who has a session over HTTP, of whom there are so many at most. A client that dies does not say so: where all places are
//! taken, the session goes that nobody listens on and that was used the longest time ago. It costs its client nothing but a
//! new beginning: what calls changed is the server's.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use futures::{Stream, StreamExt as _};
use rmcp::model::{ClientJsonRpcMessage, ServerJsonRpcMessage};
use rmcp::transport::streamable_http_server::session::local::{
    LocalSessionManager, LocalSessionManagerError,
};
use rmcp::transport::streamable_http_server::session::{
    ServerSseMessage, SessionId, SessionManager,
};
use tokio::time::Instant;

/// Sessions at once.
pub(super) const SESSIONS_MAX: usize = 256;

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
        "{SESSIONS_MAX} clients have a session, and all of them are listening: end one, or start another server"
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
        while let Some(oldest) = self.uses.in_excess()? {
            self.close_session(&oldest).await?;
        }
        Ok(())
    }
}

impl Uses {
    fn lock(&self) -> MutexGuard<'_, HashMap<SessionId, Use>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The one to be ended before there is room for another.
    fn in_excess(&self) -> Result<Option<SessionId>, PlacesError> {
        let uses = self.lock();
        if uses.len() < SESSIONS_MAX {
            return Ok(None);
        }
        let deserted = uses.iter().filter(|(_, used)| used.streams == 0);
        let oldest = deserted.min_by_key(|(_, used)| used.last);
        let (id, _) = oldest.ok_or(PlacesError::Full)?;
        Ok(Some(id.clone()))
    }

    fn change(&self, id: &SessionId, change: impl FnOnce(&mut Use)) {
        if let Some(used) = self.lock().get_mut(id) {
            used.last = Instant::now();
            change(used);
        }
    }

    fn listen(&self, id: &SessionId) -> Listening {
        self.change(id, |used| used.streams += 1);
        Listening {
            uses: self.clone(),
            id: id.clone(),
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
        self.uses.lock().insert(id.clone(), used);
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
        Ok(self.sessions.has_session(id).await?)
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
        self.uses.change(id, |_| {});
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
