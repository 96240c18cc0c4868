//! Clients that are notified when other tools are offered. All connections share one session, so a call over one of
//! them can change what is offered on the others.

use std::sync::Weak;
use std::time::Duration;

use futures::future::join_all;
use rmcp::service::SubscriptionSink;
use rmcp::{Peer, RoleServer};
use skilld_tools::{ToolDefinition, ToolError};
use tokio::sync::Mutex;
use tokio::time::timeout;

/// Maximum time for sending a notification to one client, which may not read.
const NOTIFY_TIMEOUT: Duration = Duration::from_secs(2);

/// Clients that are notified of other tools, and the tools that were listed last.
#[derive(Debug, Default)]
pub(super) struct ToolChangeListeners {
    /// Tools of the last listing; `None` before the first.
    listed: Mutex<Option<Vec<ToolDefinition>>>,
    clients: Mutex<Vec<ToolChangeListener>>,
}

/// Client that is notified of other tools, by the version of its protocol.
#[derive(Clone, Debug)]
pub(super) enum ToolChangeListener {
    Peer(Peer<RoleServer>),
    /// Subscription, with a reference that ends with its connection.
    Subscription(SubscriptionSink, Weak<()>),
}

impl ToolChangeListener {
    fn is_connected(&self) -> bool {
        match self {
            Self::Peer(peer) => !peer.is_transport_closed(),
            Self::Subscription(_, open) => open.strong_count() > 0,
        }
    }

    async fn notify(&self) -> bool {
        match self {
            Self::Peer(peer) => peer.notify_tool_list_changed().await.is_ok(),
            Self::Subscription(sink, _) => sink.notify_tool_list_changed().await.is_ok(),
        }
    }
}

impl ToolChangeListeners {
    pub(super) async fn add(&self, listener: ToolChangeListener) {
        let mut clients = self.clients.lock().await;
        // Nothing else reports that a client has gone.
        clients.retain(ToolChangeListener::is_connected);
        clients.push(listener);
    }

    /// Returns the tools that are offered now, for a client that lists them.
    pub(super) async fn list(
        &self,
        now: impl Future<Output = Result<Vec<ToolDefinition>, ToolError>>,
    ) -> Result<Vec<ToolDefinition>, ToolError> {
        // Held across both steps, so that no change between them is missed.
        let mut listed = self.listed.lock().await;
        let now = now.await?;
        *listed = Some(now.clone());
        Ok(now)
    }

    /// Notifies all clients if other tools are offered now. Lists the tools only if a client can have an outdated list;
    /// if that fails, the clients are notified and list them themselves.
    pub(super) async fn notify_changes(
        &self,
        now: impl Future<Output = Result<Vec<ToolDefinition>, ToolError>>,
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
        let notifying = clients
            .iter()
            .map(|client| timeout(NOTIFY_TIMEOUT, client.notify()));
        // Slow clients stay, disconnected ones do not.
        let mut connected = join_all(notifying)
            .await
            .into_iter()
            .map(|sent| sent.unwrap_or(true));
        clients.retain(|_| connected.next().unwrap_or(true));
    }
}
