//! The states of a slot and what may happen in each. Pure: no locks, clocks or I/O; one table, tested
//! state by event. The actor applies events and carries out the effects.
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
//! A slot that nobody claimed and that is lost just closes: the pool makes another one. A claimed one
//! becomes `Failed` and stays visible, so that its owner learns why. A slot whose container the engine cannot remove is
//! quarantined: it is no workspace any more, and keeps its number and uid until the container is gone.

/// Why a slot was lost.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub enum Cause {
    /// The container ended or was removed by somebody else.
    ContainerLost,
    /// The container is there, its guest does not answer.
    GuestLost,
    /// It never became ready.
    StartFailed,
    /// The kernel killed the container for its memory.
    OomKilled,
}

/// Where a slot is in its life.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum State {
    /// Its container is being made, or its guest has not answered yet.
    Booting,
    /// Warm: its guest answered, nobody has it.
    Ready,
    /// It is a workspace.
    Claimed,
    /// Its container is being removed.
    Closing,
    /// It was a workspace and is lost.
    Failed(Cause),
    /// The engine could not remove its container in time; the reconciler goes on trying.
    Quarantined,
    /// Nothing of it is left.
    Removed,
}

/// What can happen to a slot.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Event {
    /// The guest proved who it is.
    GuestAnswered,
    /// A request takes it.
    Claim,
    /// The claim could not be recorded, and nothing ran: it is as warm as before.
    ClaimFailed,
    /// Container or guest went away.
    Lost(Cause),
    /// Somebody asked for its end.
    Delete,
    /// Idle timeout or lifetime passed.
    Expire,
    /// The engine has removed the container.
    ContainerGone,
    /// The engine answers, and has not removed the container in time.
    GiveUp,
    /// A failed workspace was listed for long enough.
    RetentionOver,
}

/// What the actor has to do, in this order.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Effect {
    /// Write the record.
    Persist,
    /// Give the slot to the pool.
    Offer,
    /// Take it back from the pool's warm ones.
    Withdraw,
    /// Kill what runs and remove the container.
    RemoveContainer,
    /// Free the workspace's name, and forget whose slot it was.
    Release,
    /// Delete directory and record, let the uid rest.
    Forget,
}

/// The answer to an event.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Step {
    /// The state from now on.
    pub next: State,
    /// What to do.
    pub effects: &'static [Effect],
}

/// The event makes no sense in this state and changes nothing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Refused;

/// The whole table.
///
/// # Errors
/// [`Refused`] when the event may not happen in this state.
pub fn step(state: State, event: Event) -> Result<Step, Refused> {
    use Effect::{Forget, Offer, Persist, Release, RemoveContainer, Withdraw};
    use Event as E;
    use State as S;
    let go = |next, effects| Ok(Step { next, effects });
    match (state, event) {
        (S::Booting, E::GuestAnswered) => go(S::Ready, &[Persist, Offer]),
        (S::Booting, E::Lost(_) | E::Delete) => go(S::Closing, &[Persist, RemoveContainer]),

        // The claim writes the record itself: it alone can still be refused.
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
        | (_, E::ClaimFailed | E::GiveUp) => Err(Refused),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LOST: Event = Event::Lost(Cause::GuestLost);
    const EVENTS: [Event; 9] = [
        Event::GuestAnswered,
        Event::Claim,
        LOST,
        Event::Delete,
        Event::Expire,
        Event::ContainerGone,
        Event::RetentionOver,
        Event::ClaimFailed,
        Event::GiveUp,
    ];

    /// One row per state, one column per event in the order of `EVENTS`; `None` is refused.
    #[test]
    fn slot_state_machine_is_this_table() {
        use State::{Booting, Claimed, Closing, Failed, Quarantined, Ready, Removed};
        let old = Failed(Cause::OomKilled);
        let lost = Failed(Cause::GuestLost);
        let kept = Quarantined;
        #[rustfmt::skip]
        let table: [(State, [Option<State>; 9]); 7] = [
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
                let got = step(state, event).ok().map(|step| step.next);
                assert_eq!(got, expected, "{state:?} × {event:?}");
            }
        }
    }

    #[test]
    fn entering_closing_removes_the_container_once() {
        for state in [State::Booting, State::Ready, State::Claimed] {
            let first = step(state, Event::Delete).expect("deletable");
            assert!(first.effects.contains(&Effect::RemoveContainer));
            let again = step(first.next, Event::Delete).expect("deletable twice");
            assert_eq!(again.effects, &[]);
        }
    }

    #[test]
    fn only_a_claimed_slot_stays_visible_as_failed() {
        for state in [State::Booting, State::Ready] {
            assert_eq!(step(state, LOST).expect("can be lost").next, State::Closing);
        }
        let claimed = step(State::Claimed, LOST).expect("can be lost");
        assert_eq!(claimed.next, State::Failed(Cause::GuestLost));
    }

    #[test]
    fn a_warm_slot_is_withdrawn_before_anything_else() {
        for event in [LOST, Event::Delete] {
            let step = step(State::Ready, event).expect("can end");
            assert_eq!(step.effects.first(), Some(&Effect::Withdraw));
        }
    }
}
