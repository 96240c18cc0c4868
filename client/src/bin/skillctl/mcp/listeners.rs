//! Who is told when other tools are offered. All connections are of one session, so a call over one of them can change
//! what the others were told.

use std::sync::Weak;
use std::time::Duration;

use futures::future::join_all;
use rmcp::service::SubscriptionSink;
use rmcp::{Peer, RoleServer};
use skilld_client::tools::{Definition, ToolError};
use tokio::sync::Mutex;
use tokio::time::timeout;

/// A client that does not read is not waited for any longer.
const TELL_WITHIN: Duration = Duration::from_secs(2);

/// The clients that listen, and what was listed last.
#[derive(Debug, Default)]
pub(super) struct Listeners {
    /// None before anybody asked.
    listed: Mutex<Option<Vec<Definition>>>,
    clients: Mutex<Vec<Listener>>,
}

/// A client, by the means of its version of the protocol.
#[derive(Clone, Debug)]
pub(super) enum Listener {
    Peer(Peer<RoleServer>),
    /// With what is gone when it ends.
    Subscription(SubscriptionSink, Weak<()>),
}

impl Listener {
    fn is_there(&self) -> bool {
        match self {
            Self::Peer(peer) => !peer.is_transport_closed(),
            Self::Subscription(_, open) => open.strong_count() > 0,
        }
    }

    async fn is_told(&self) -> bool {
        match self {
            Self::Peer(peer) => peer.notify_tool_list_changed().await.is_ok(),
            Self::Subscription(sink, _) => sink.notify_tool_list_changed().await.is_ok(),
        }
    }
}

impl Listeners {
    pub(super) async fn add(&self, listener: Listener) {
        let mut clients = self.clients.lock().await;
        // Nobody else says that a client has gone.
        clients.retain(Listener::is_there);
        clients.push(listener);
    }

    /// What is offered now, for a client that asks.
    pub(super) async fn list(
        &self,
        now: impl Future<Output = Result<Vec<Definition>, ToolError>>,
    ) -> Result<Vec<Definition>, ToolError> {
        // Held, so that no change comes between the two and is told nobody.
        let mut listed = self.listed.lock().await;
        let now = now.await?;
        *listed = Some(now.clone());
        Ok(now)
    }

    /// Tells everybody if something else is offered now. To know that all skills are listed: only if somebody can have an
    /// outdated list. Where that fails they are told, and see for themselves.
    pub(super) async fn changed(
        &self,
        now: impl Future<Output = Result<Vec<Definition>, ToolError>>,
    ) {
        let mut listed = self.listed.lock().await;
        let Some(before) = listed.as_ref() else {
            return;
        };
        let now = now.await.ok();
        if now.as_ref() == Some(before) {
            return;
        }
        *listed = now;
        drop(listed);
        let mut clients = self.clients.lock().await;
        let telling = clients
            .iter()
            .map(|client| timeout(TELL_WITHIN, client.is_told()));
        // Those that are slow stay, those that are gone do not.
        let there = join_all(telling).await;
        let mut there = there.into_iter().map(|told| told.unwrap_or(true));
        clients.retain(|_| there.next().unwrap_or(true));
    }
}
