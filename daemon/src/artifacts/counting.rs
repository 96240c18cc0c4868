//! Counts the bytes that each tenant's artifacts take, from their records: at start, and whenever the ledger may be wrong.

use std::sync::Arc;
use std::time::{Duration, Instant};

use futures::StreamExt;

use super::CONCURRENT_MAX;
use super::backend::{ArtifactBackend, StoreKind};
use super::byte_ledger::ByteLedger;
use super::index_walk::IndexWalk;
use super::record::FoundVersion;
use crate::error::{Chain, Error, Result};

/// Pause after a count that failed.
const RETRY_INTERVAL: Duration = Duration::from_secs(10);
/// Interval between two counts of a store that other daemons may change. A count reads every record.
const SHARED_INTERVAL: Duration = Duration::from_secs(6 * 60 * 60);

/// Starts the task that counts until the daemon stops.
pub(super) fn start_counting(store: Arc<ArtifactBackend>, ledger: ByteLedger) {
    let (tasks, stop) = (store.tasks.clone(), store.tasks.stop.clone());
    let is_own = matches!(store.kind, StoreKind::Directory { own: true, .. });
    let run = async move {
        loop {
            let begin = Instant::now();
            match count_bytes(&store, &ledger).await {
                Ok(bytes) => tracing::debug!(bytes, took = ?begin.elapsed(), "counted artifacts"),
                Err(error) => {
                    tracing::warn!(error = %Chain(&error), "artifacts could not be counted");
                    tokio::time::sleep(RETRY_INTERVAL).await;
                    continue;
                }
            }
            tokio::select! {
                () = ledger.recount_requested() => {}
                () = tokio::time::sleep(SHARED_INTERVAL), if !is_own => {}
            }
        }
    };
    tasks.spawn(stop.run_until_cancelled_owned(run));
}

/// Counts all records once. Returns the sum in bytes.
///
/// # Errors
/// `Storage`; the amounts are then as before.
pub(super) async fn count_bytes(store: &ArtifactBackend, ledger: &ByteLedger) -> Result<u64> {
    ledger.begin_count();
    let mut walk = IndexWalk::begin(store).await?;
    loop {
        let Some(page) = walk.next_page().await? else {
            return Ok(ledger.finish_count());
        };
        let Some(last) = page.last().map(|entry| entry.key.clone()) else {
            continue;
        };
        let mut read = futures::stream::iter(page)
            .map(|entry| async move { (FoundVersion::read(store, &entry.key).await, entry.key) })
            .buffer_unordered(CONCURRENT_MAX);
        let mut records = Vec::new();
        while let Some((found, key)) = read.next().await {
            match found {
                Ok(Some(found)) => {
                    let tenant = found.id.scope.tenant().clone();
                    records.push((key, tenant, found.held_bytes()));
                }
                Ok(None) => {}
                // Nothing says whose bytes these are.
                Err(error @ Error::ArtifactDamaged { .. }) => {
                    tracing::warn!(%error, "left out of the bytes of its tenant");
                }
                Err(error) => return Err(error),
            }
        }
        ledger.add_counted(records, &last);
    }
}
