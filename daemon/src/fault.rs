//! Points between two steps of a slot's or an artifact's life at which a test can make the daemon die as if it were
//! killed. They do nothing unless the feature `fault-points` is compiled in, which no shipped binary has.
//!
//! `FAULT_POINT=claim.recorded:2` ends the process with SIGKILL when it comes to that point for the second time; without
//! a number, for the first time. The suite `tests/crash` does it at each [`Point`].

/// Defines the points and the list of them together, so that none can be left out.
macro_rules! points {
    ($($(#[$doc:meta])+ $variant:ident = $name:literal,)+) => {
        /// A point, named after what has happened just before.
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        pub enum Point {
            $($(#[$doc])+ $variant,)+
        }

        impl Point {
            /// All of them, in the order in which they come in the life of a slot, and of an artifact.
            pub const ALL: &[Self] = &[$(Self::$variant,)+];

            /// As `FAULT_POINT` has it: what is done, and how far.
            #[must_use]
            pub const fn name(self) -> &'static str {
                match self {
                    $(Self::$variant => $name,)+
                }
            }
        }
    };
}

points! {
    /// A slot has a number and a uid, and nothing else.
    BootBegun = "boot.begun",
    /// Its directory is there, without a record.
    BootDirectory = "boot.directory",
    /// Its first record is there, the guest's binary is not.
    BootRecorded = "boot.recorded",
    /// All that the container binds is there.
    BootPrepared = "boot.prepared",
    /// The guest's socket is there.
    BootListening = "boot.listening",
    /// The engine has made the container; its id is written nowhere.
    BootCreated = "boot.created",
    /// The record has the container's id.
    BootCreationRecorded = "boot.creation_recorded",
    /// The container runs.
    BootStarted = "boot.started",
    /// No other instance has its uid.
    BootUidChecked = "boot.uid_checked",
    /// The guest has connected.
    BootConnected = "boot.connected",
    /// The program of `warm_up` has run.
    BootWarmedUp = "boot.warmed_up",
    /// The record says that it is ready; the pool does not have it.
    BootReadyRecorded = "boot.ready_recorded",
    /// The pool has it.
    BootOffered = "boot.offered",
    /// The id of a workspace to be is taken, in memory.
    ClaimEntered = "claim.entered",
    /// A slot was taken out of the pool.
    ClaimReserved = "claim.reserved",
    /// The slot's task has accepted the claim.
    ClaimAccepted = "claim.accepted",
    /// What commands can read says whose it is; the record does not.
    ClaimMetadata = "claim.metadata",
    /// The record says whose it is; the guest may not know.
    ClaimRecorded = "claim.recorded",
    /// The guest knows whose it is; the record does not say it.
    ClaimConfigured = "claim.configured",
    /// Record and guest know.
    ClaimDone = "claim.done",
    /// Others find the workspace; who asked for it has no answer.
    ClaimListed = "claim.listed",
    /// The lease has its new times.
    RenewBegun = "renew.begun",
    /// The record has them; who asked has no answer.
    RenewRecorded = "renew.recorded",
    /// Skills are whole on the host; the workspace has none of them.
    StagePrepared = "stage.prepared",
    /// A newer version is beside the one that it replaces.
    StageReplacing = "stage.replacing",
    /// The workspace has them; no digest says which they are.
    StagePublished = "stage.published",
    /// Their digests are noted; the record does not name them.
    StageNoted = "stage.noted",
    /// The record names them; what they replaced is there.
    StageRecorded = "stage.recorded",
    /// What is to be collected at an exec's end is on record; the exec has not started.
    CollectNoted = "collect.noted",
    /// An exec has ended, and that it is being collected is on record.
    CollectBegun = "collect.begun",
    /// One of its files is an artifact, and nothing says so.
    CollectSaved = "collect.saved",
    /// What was collected is on record.
    CollectDone = "collect.done",
    /// A workspace was lost, and its record says so; what is left of its container is there.
    LossRecorded = "loss.recorded",
    /// What was left of its container is gone; the record names it.
    LossRemoved = "loss.removed",
    /// Somebody asked for a slot's end.
    DeleteBegun = "delete.begun",
    /// The record says that it is closing.
    DeleteRecorded = "delete.recorded",
    /// The guest was told to kill what runs.
    DeleteTold = "delete.told",
    /// The container is gone; the record names it.
    DeleteRemoved = "delete.removed",
    /// The directory is gone.
    DeleteErased = "delete.erased",
    /// The id is free; the number and its uid are not.
    DeleteForgotten = "delete.forgotten",
    /// Nothing is left; who asked has no answer.
    DeleteDone = "delete.done",
    /// The archive of a skill is unpacked, and nothing of it in the store.
    PublishUnpacked = "publish.unpacked",
    /// Its content is in the store, and nothing refers to it.
    PublishStored = "publish.stored",
    /// Its record is written, and has another name.
    PublishWritten = "publish.written",
    /// Its record is there; who published it has no answer.
    PublishRecorded = "publish.recorded",
    /// All records of a skill are moved away, and not removed.
    UnpublishMoved = "unpublish.moved",
    /// It is not published any more; who asked for that has no answer.
    UnpublishDone = "unpublish.done",
    /// A digest is moved out of the store, and not removed.
    ClearMoved = "clear.moved",
    /// A marker says that an artifact is being saved; there is nothing of it.
    SaveMarked = "save.marked",
    /// The bytes of an artifact are there; no record points to them.
    SaveWritten = "save.written",
    /// The record of a version is there; its marker is too, and who asked has no answer.
    SavePublished = "save.published",
    /// A marker says that a version of an artifact is being removed; all of it is there.
    DiscardMarked = "discard.marked",
    /// The record of the version is gone; its bytes are not.
    DiscardUnpublished = "discard.unpublished",
}

/// The process dies here if it was told to.
#[cfg(not(feature = "fault-points"))]
#[inline]
pub const fn reach(_point: Point) {}

/// Whether the process dies when it next comes to one of these points.
#[cfg(not(feature = "fault-points"))]
#[inline]
#[must_use]
pub const fn is_near(_points: &[Point]) -> bool {
    false
}

#[cfg(feature = "fault-points")]
pub use armed::{is_near, reach};

/// Runs `work`, but never if the process is about to die beside it: nothing may get ahead of that.
pub async fn unless_near<T>(near: bool, work: impl Future<Output = T>) -> T {
    if near {
        std::future::pending::<()>().await;
    }
    work.await
}

#[cfg(feature = "fault-points")]
mod armed {
    use std::sync::LazyLock;
    use std::sync::atomic::{AtomicU64, Ordering};

    use nix::sys::signal::{Signal, raise};

    use super::Point;

    /// The point to die at, and how often to come to it first.
    static CHOSEN: LazyLock<Option<(String, AtomicU64)>> = LazyLock::new(|| {
        #[expect(
            clippy::disallowed_methods,
            reason = "no part of the configuration: a shipped binary does not know it"
        )]
        let chosen = std::env::var("FAULT_POINT").ok()?;
        let (name, times) = chosen.split_once(':').unwrap_or((&chosen, "1"));
        Some((name.to_owned(), AtomicU64::new(times.parse().ok()?)))
    });

    fn left(point: Point) -> Option<&'static AtomicU64> {
        CHOSEN
            .as_ref()
            .filter(|(name, _)| name == point.name())
            .map(|(_, left)| left)
    }

    /// The process dies here if it was told to.
    pub fn reach(point: Point) {
        if left(point).is_some_and(|left| left.fetch_sub(1, Ordering::SeqCst) == 1) {
            // It cannot fail, and nothing comes after it.
            let _dead = raise(Signal::SIGKILL);
        }
    }

    /// Whether the process dies when it next comes to one of these points.
    #[must_use]
    pub fn is_near(points: &[Point]) -> bool {
        let near =
            |point: &Point| left(*point).is_some_and(|left| left.load(Ordering::SeqCst) == 1);
        points.iter().any(near)
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    /// All lines of the crate's sources but this file's.
    fn sources(dir: &Path, into: &mut String) {
        for entry in std::fs::read_dir(dir).expect("source directory") {
            let path = entry.expect("entry").path();
            if path.is_dir() {
                sources(&path, into);
            } else if path.file_name() != Some("fault.rs".as_ref()) {
                into.push_str(&std::fs::read_to_string(&path).expect("source"));
            }
        }
    }

    #[test]
    fn every_point_is_reached_in_one_place() {
        let mut text = String::new();
        sources(
            &Path::new(env!("CARGO_MANIFEST_DIR")).join("src"),
            &mut text,
        );
        for point in Point::ALL {
            let reached = format!("fault::reach(Point::{point:?})");
            assert_eq!(text.matches(&reached).count(), 1, "{reached}");
        }
        let reached = text.matches("fault::reach(").count();
        assert_eq!(reached, Point::ALL.len(), "a point that is not in the list");
    }

    #[test]
    fn names_are_unique_and_say_what_is_done() {
        let mut names: Vec<&str> = Point::ALL.iter().map(|point| point.name()).collect();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), Point::ALL.len());
        let whole = [
            "boot.",
            "claim.",
            "renew.",
            "stage.",
            "collect.",
            "loss.",
            "delete.",
            "publish.",
            "unpublish.",
            "clear.",
            "save.",
            "discard.",
        ];
        for name in names {
            assert!(
                whole.iter().any(|prefix| name.starts_with(prefix)),
                "{name}"
            );
        }
    }
}
