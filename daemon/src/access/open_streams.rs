//! Streams that are open, with the credentials that opened them: they end when these expire or are revoked.
//!
//! A stream sends its last status only if its client reads. The connection of one that does not is closed after
//! [`END_TIMEOUT`], so that it holds no quota any longer.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::held_counter::{HeldCounter, HeldUnit};
use super::tenant_name::TenantName;
use super::{CallCredentials, Caller};
use crate::config::Role;
use crate::error::Result;

/// Time in which a stream whose credentials are no longer valid has to end.
const END_TIMEOUT: Duration = Duration::from_secs(10);

/// Table of open streams. Clones share it.
#[derive(Debug, Clone)]
pub(super) struct OpenStreams {
    table: Arc<Mutex<StreamTable>>,
    counter: HeldCounter,
}

#[derive(Debug, Default)]
struct StreamTable {
    next_id: u64,
    open: HashMap<u64, OpenStream>,
}

#[derive(Debug, Clone)]
struct OpenStream {
    tenant: TenantName,
    credentials: CallCredentials,
    required: Role,
    revoked: CancellationToken,
    /// Time at which `revoked` was cancelled; `None` before that.
    revoked_at: Option<Instant>,
    /// Closes the connection; `None` for a call without one.
    connection: Option<CancellationToken>,
}

/// Entry of one stream. Dropping it removes the entry.
#[derive(Debug)]
pub struct StreamGuard {
    streams: OpenStreams,
    id: u64,
    _held: HeldUnit,
    /// Cancelled when the credentials are no longer valid.
    pub(crate) revoked: CancellationToken,
}

impl OpenStreams {
    /// Adds a stream, if its tenant may have one more.
    ///
    /// # Errors
    /// [`Error::TenantQuota`].
    pub(super) fn add(
        &self,
        caller: &Caller,
        credentials: CallCredentials,
        required: Role,
        connection: Option<CancellationToken>,
    ) -> Result<StreamGuard> {
        let tenant = caller.tenant();
        let held = self.counter.take(tenant, caller.limits().streams)?;
        let revoked = CancellationToken::new();
        let mut table = self.table.lock();
        table.next_id += 1;
        let id = table.next_id;
        let stream = OpenStream {
            tenant: tenant.clone(),
            credentials,
            required,
            revoked: revoked.clone(),
            revoked_at: None,
            connection,
        };
        table.open.insert(id, stream);
        drop(table);
        Ok(StreamGuard {
            streams: self.clone(),
            id,
            _held: held,
            revoked,
        })
    }

    /// Returns the number of a tenant's open streams.
    pub(super) fn count(&self, tenant: &TenantName) -> u64 {
        self.counter.count(tenant)
    }

    /// Ends the streams whose credentials are no longer valid, and closes the connections of those that did not end.
    /// Returns the number of the former.
    pub(super) fn end_invalid(
        &self,
        is_valid: impl Fn(&CallCredentials, Role, &TenantName) -> bool,
    ) -> usize {
        // Verifying signatures takes time, during which calls begin and end.
        let open = self.table.lock().open.clone();
        let (mut verdicts, mut ended) = (HashMap::new(), 0);
        for (id, stream) in open {
            if let Some(revoked_at) = stream.revoked_at {
                stream.close_if_overdue(revoked_at);
                continue;
            }
            // A connection may have hundreds of streams with the same token.
            let (credentials, required, tenant) =
                (&stream.credentials, stream.required, &stream.tenant);
            let key = (credentials.identity(), required, tenant.clone());
            let verdict = verdicts
                .entry(key)
                .or_insert_with(|| is_valid(credentials, required, tenant));
            if !*verdict {
                stream.revoked.cancel();
                if let Some(stream) = self.table.lock().open.get_mut(&id) {
                    stream.revoked_at = Some(Instant::now());
                }
                ended += 1;
            }
        }
        ended
    }
}

impl OpenStream {
    fn close_if_overdue(&self, revoked_at: Instant) {
        let Some(connection) = &self.connection else {
            return;
        };
        if revoked_at.elapsed() >= END_TIMEOUT && !connection.is_cancelled() {
            tracing::info!(
                tenant = self.tenant.as_str(),
                "closed a connection whose client does not read the end of a revoked stream"
            );
            connection.cancel();
        }
    }
}

impl Drop for StreamGuard {
    fn drop(&mut self) {
        self.streams.table.lock().open.remove(&self.id);
    }
}

impl Default for OpenStreams {
    fn default() -> Self {
        Self {
            table: Arc::default(),
            counter: HeldCounter::new("streams"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::principal::Principal;
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_revoked_stream_that_is_not_read_ends_with_its_connection() {
        let streams = OpenStreams::default();
        let principal = Arc::new(Principal::unauthenticated());
        let caller = Caller::new(principal, TenantName::default(), None);
        let open = || {
            let connection = CancellationToken::new();
            let credentials = CallCredentials::default();
            let stream = streams.add(&caller, credentials, Role::User, Some(connection.clone()));
            (stream.expect("unlimited"), connection)
        };
        let (stalled, closed) = open();
        let (read, kept) = open();
        assert_eq!(streams.end_invalid(|_, _, _| false), 2);
        assert!(stalled.revoked.is_cancelled() && read.revoked.is_cancelled());
        drop(read);
        let (valid, other) = open();
        tokio::time::advance(END_TIMEOUT / 2).await;
        assert_eq!(streams.end_invalid(|_, _, _| true), 0);
        assert!(!closed.is_cancelled(), "it has time to end");
        tokio::time::advance(END_TIMEOUT / 2).await;
        assert_eq!(streams.end_invalid(|_, _, _| true), 0);
        assert!(closed.is_cancelled());
        assert!(!kept.is_cancelled() && !other.is_cancelled());
        assert!(!valid.revoked.is_cancelled());
    }
}
