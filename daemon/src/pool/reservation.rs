//! Reservation of a slot between its pool and the request that uses it.

use futures::future::BoxFuture;
use tokio::sync::oneshot;

use crate::metrics::ClaimSource;

/// Right of one request to use a slot. When dropped without [`SlotReservation::keep`], the slot returns to its pool.
#[derive(Debug)]
pub struct SlotReservation {
    /// Number of the reserved slot.
    pub(crate) number: u32,
    /// Origin of the slot.
    pub(crate) source: ClaimSource,
    keep: oneshot::Sender<()>,
}

/// End of a reservation, as the pool's task sees it.
#[derive(Debug)]
pub(super) struct ReservationEnd {
    pub(super) number: u32,
    /// The request uses the slot or removes it; the pool must not hand it out again.
    pub(super) is_kept: bool,
}

impl SlotReservation {
    /// Reserves a slot. The future completes when the reservation is kept or dropped.
    pub(super) fn new(
        number: u32,
        source: ClaimSource,
    ) -> (Self, BoxFuture<'static, ReservationEnd>) {
        let (keep, kept) = oneshot::channel();
        let end = async move {
            let is_kept = kept.await.is_ok();
            ReservationEnd { number, is_kept }
        };
        let reservation = Self {
            number,
            source,
            keep,
        };
        (reservation, Box::pin(end))
    }

    /// Takes the slot for good: it does not return to the pool.
    pub fn keep(self) {
        if self.keep.send(()).is_err() {
            tracing::trace!(slot = self.number, "pool has stopped");
        }
    }
}
