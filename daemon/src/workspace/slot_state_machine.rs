//! States of a slot and the events that each allows. Pure: one table without locks, clocks or I/O, tested state by
//! event. The actor applies events and carries out the effects.
//!
//! ```text
//!            GuestAnswered       Claim            Delete | Expire
//!  Booting ───────────────► Ready ─────► Claimed ───────────────► Closing ──ContainerGone──► Removed
//!     │                       │             │                     ▲  ▲
//!     │ Lost | Delete         │ Lost |      │ Lost                │  │ Delete | RetentionOver
//!     └───────────────────────┴─Delete──────│─────────────────────┘  │
//!                                           └──────► Failed{cause} ──┘
//!
//!  Claimed ──ClaimFailed──► Ready      Closing ──GiveUp──► Quarantined ──ContainerGone──► Removed
//! ```
//!
//! An unclaimed slot that is lost just closes, and the pool boots another one. A claimed one becomes `Failed` and stays
//! listed, so that the client learns the cause. A slot whose container the engine cannot remove is quarantined: it is
//! no longer a workspace, and keeps its number and uid until the container is gone.

/// Cause of the loss of a slot.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub enum LossCause {
    /// The container ended, or another program removed it.
    ContainerLost,
    /// The container runs, but its guest does not answer.
    GuestLost,
    /// The slot never became ready.
    StartFailed,
    /// The kernel killed the container for its memory.
    OomKilled,
}

/// State of a slot.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SlotState {
    /// The container is being created, or its guest has not answered yet.
    Booting,
    /// Warm: the guest answered, and no request has claimed the slot.
    Ready,
    /// The slot is a workspace.
    Claimed,
    /// The container is being removed.
    Closing,
    /// The workspace is lost.
    Failed(LossCause),
    /// The engine did not remove the container in time; the reconciler goes on trying.
    Quarantined,
    /// The slot is gone, with container, directory and record.
    Removed,
}

/// Event in the life of a slot.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SlotEvent {
    /// The guest proved its identity.
    GuestAnswered,
    /// A request claims the slot.
    Claim,
    /// The claim could not be recorded, and no command ran: the slot is warm again.
    ClaimFailed,
    /// The container or the guest was lost.
    Lost(LossCause),
    /// A client, the pool or the daemon deletes the slot.
    Delete,
    /// Idle timeout or lifetime is over.
    Expire,
    /// The engine has removed the container.
    ContainerGone,
    /// The engine answers, but did not remove the container in time.
    GiveUp,
    /// The retention of a failed workspace is over.
    RetentionOver,
}

/// Effect that the actor carries out after an event.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SlotEffect {
    /// Writes the record.
    Persist,
    /// Offers the slot to its pool.
    Offer,
    /// Withdraws the slot from its pool.
    Withdraw,
    /// Kills running execs and removes the container.
    RemoveContainer,
    /// Frees the name of the workspace and drops its claim.
    Release,
    /// Deletes directory and record, and lets number and uid rest.
    Forget,
}

/// Transition that an event causes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SlotTransition {
    /// State after the event.
    pub next: SlotState,
    /// Effects in the order in which they are carried out.
    pub effects: &'static [SlotEffect],
}

/// Error for an event that is not allowed in a state; it changes nothing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct EventRefused;

/// Looks up the transition of a state and an event.
///
/// # Errors
/// [`EventRefused`] when the state does not allow the event.
pub fn next_step(state: SlotState, event: SlotEvent) -> Result<SlotTransition, EventRefused> {
    use SlotEffect::{Forget, Offer, Persist, Release, RemoveContainer, Withdraw};
    use SlotEvent as E;
    use SlotState as S;
    let go = |next, effects| Ok(SlotTransition { next, effects });
    match (state, event) {
        (S::Booting, E::GuestAnswered) => go(S::Ready, &[Persist, Offer]),
        (S::Booting, E::Lost(_) | E::Delete) => go(S::Closing, &[Persist, RemoveContainer]),

        // No `Persist`: the claim writes the record itself, because it can still be refused.
        (S::Ready, E::Claim) => go(S::Claimed, &[]),
        (S::Ready, E::Lost(_) | E::Delete) => go(S::Closing, &[Withdraw, Persist, RemoveContainer]),

        (S::Claimed, E::ClaimFailed) => go(S::Ready, &[]),
        (S::Claimed, E::Delete | E::Expire) => go(S::Closing, &[Persist, RemoveContainer]),
        (S::Claimed, E::Lost(cause)) => go(S::Failed(cause), &[Persist, RemoveContainer]),

        (S::Closing, E::ContainerGone) => go(S::Removed, &[Forget]),
        (S::Closing, E::GiveUp) => go(S::Quarantined, &[Release, Persist]),
        (S::Closing, E::Delete | E::Expire | E::Lost(_)) => go(S::Closing, &[]),

        (S::Quarantined, E::ContainerGone) => go(S::Removed, &[Forget]),
        (S::Quarantined, E::Delete | E::Lost(_)) => go(S::Quarantined, &[]),

        (S::Failed(cause), E::ContainerGone | E::Lost(_)) => go(S::Failed(cause), &[]),
        (S::Failed(_), E::Delete | E::RetentionOver) => go(S::Closing, &[Persist, RemoveContainer]),

        (S::Removed, E::Delete | E::ContainerGone | E::Lost(_)) => go(S::Removed, &[]),

        (S::Booting, E::Claim | E::Expire | E::ContainerGone | E::RetentionOver)
        | (S::Ready, E::GuestAnswered | E::Expire | E::ContainerGone | E::RetentionOver)
        | (S::Claimed, E::GuestAnswered | E::Claim | E::ContainerGone | E::RetentionOver)
        | (S::Closing, E::GuestAnswered | E::Claim | E::RetentionOver)
        | (S::Failed(_), E::GuestAnswered | E::Claim | E::Expire)
        | (
            S::Quarantined | S::Removed,
            E::GuestAnswered | E::Claim | E::Expire | E::RetentionOver,
        )
        | (_, E::ClaimFailed | E::GiveUp) => Err(EventRefused),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LOST: SlotEvent = SlotEvent::Lost(LossCause::GuestLost);
    const EVENTS: [SlotEvent; 9] = [
        SlotEvent::GuestAnswered,
        SlotEvent::Claim,
        LOST,
        SlotEvent::Delete,
        SlotEvent::Expire,
        SlotEvent::ContainerGone,
        SlotEvent::RetentionOver,
        SlotEvent::ClaimFailed,
        SlotEvent::GiveUp,
    ];

    /// The table has a row per state and a column per event in the order of `EVENTS`; `None` is refused.
    #[test]
    fn slot_state_machine_is_this_table() {
        use SlotState::{Booting, Claimed, Closing, Failed, Quarantined, Ready, Removed};
        let old = Failed(LossCause::OomKilled);
        let lost = Failed(LossCause::GuestLost);
        let kept = Quarantined;
        #[rustfmt::skip]
        let table: [(SlotState, [Option<SlotState>; 9]); 7] = [
            //          answered      claim          lost           delete         expire         gone           retention      claim failed giving up
            (Booting, [Some(Ready), None,          Some(Closing), Some(Closing), None,          None,          None,          None,        None]),
            (Ready,   [None,        Some(Claimed), Some(Closing), Some(Closing), None,          None,          None,          None,        None]),
            (Claimed, [None,        None,          Some(lost),    Some(Closing), Some(Closing), None,          None,          Some(Ready), None]),
            (Closing, [None,        None,          Some(Closing), Some(Closing), Some(Closing), Some(Removed), None,          None,        Some(kept)]),
            (old,     [None,        None,          Some(old),     Some(Closing), None,          Some(old),     Some(Closing), None,        None]),
            (kept,    [None,        None,          Some(kept),    Some(kept),    None,          Some(Removed), None,          None,        None]),
            (Removed, [None,        None,          Some(Removed), Some(Removed), None,          Some(Removed), None,          None,        None]),
        ];
        for (state, row) in table {
            for (event, expected) in EVENTS.into_iter().zip(row) {
                let got = next_step(state, event).ok().map(|step| step.next);
                assert_eq!(got, expected, "{state:?} × {event:?}");
            }
        }
    }

    #[test]
    fn entering_closing_removes_the_container_once() {
        for state in [SlotState::Booting, SlotState::Ready, SlotState::Claimed] {
            let first = next_step(state, SlotEvent::Delete).expect("deletable");
            assert!(first.effects.contains(&SlotEffect::RemoveContainer));
            let again = next_step(first.next, SlotEvent::Delete).expect("deletable twice");
            assert_eq!(again.effects, &[]);
        }
    }

    #[test]
    fn only_a_claimed_slot_stays_visible_as_failed() {
        for state in [SlotState::Booting, SlotState::Ready] {
            assert_eq!(
                next_step(state, LOST).expect("can be lost").next,
                SlotState::Closing
            );
        }
        let claimed = next_step(SlotState::Claimed, LOST).expect("can be lost");
        assert_eq!(claimed.next, SlotState::Failed(LossCause::GuestLost));
    }

    #[test]
    fn a_warm_slot_is_withdrawn_before_anything_else() {
        for event in [LOST, SlotEvent::Delete] {
            let step = next_step(SlotState::Ready, event).expect("can end");
            assert_eq!(step.effects.first(), Some(&SlotEffect::Withdraw));
        }
    }
}
