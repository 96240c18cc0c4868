//! Relays a stream of the guest or of the artifact store to the client. Messages pass unchanged; errors are translated.
//!
//! This module buffers nothing: HTTP/2's windows do, and `server/response_budget.rs` limits their sum.
//! `server/response_body.rs` ends every stream when the daemon stops.

use std::pin::Pin;

use futures::{Stream, StreamExt, TryStreamExt};
use tonic::Status;

use crate::error::Error;
use crate::workspace::WorkspaceGrant;

/// Relayed stream, boxed as tonic's service traits require.
pub type RelayedStream<T> = Pin<Box<dyn Stream<Item = Result<T, Status>> + Send>>;

/// Relays a guest's stream to its end. Errors name the workspace, which counts as in use until then.
pub fn relay_guest_stream<T, S>(guest: S, grant: WorkspaceGrant) -> RelayedStream<T>
where
    T: 'static,
    S: Stream<Item = Result<T, Status>> + Send + 'static,
{
    let workspace = grant.name();
    let messages = guest.map_err(move |status| Error::from_guest(&workspace, &status));
    relay_stream(messages, grant)
}

/// Relays a stream, and drops `held` with it, such as the grant of a workspace.
pub fn relay_stream<T, S, H>(source: S, held: H) -> RelayedStream<T>
where
    T: 'static,
    S: Stream<Item = Result<T, Error>> + Send + 'static,
    H: Send + 'static,
{
    Box::pin(source.map(move |message| {
        // The closure owns the value, so that it lives as long as the stream.
        let _owned = &held;
        message.map_err(Status::from)
    }))
}
