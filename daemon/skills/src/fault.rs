//! Fault points: places between two steps of a lifecycle where a crash test can kill the daemon. The lifecycles are
//! those of slots and artifacts. Only debug builds have them: with `debug_assertions` off, as in a release, they are
//! empty.
//!
//! `FAULT_POINT=claim.recorded:2` ends the process with SIGKILL when it reaches that point for the second time; without
//! a number, for the first time. The suite `tests/e2e/crash` kills the daemon at each [`Point`].

/// Defines the enum of fault points together with the list of all of them, so that the list is complete.
macro_rules! fault_points {
    ($($(#[$doc:meta])+ $variant:ident = $name:literal,)+) => {
        /// Fault point, named after the step that was completed just before it.
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        pub enum Point {
            $($(#[$doc])+ $variant,)+
        }

        impl Point {
            /// All fault points, in the order in which a slot or an artifact reaches them.
            pub const ALL: &[Self] = &[$(Self::$variant,)+];

            /// Returns the name in `FAULT_POINT`: the operation and the completed step.
            #[must_use]
            pub const fn name(self) -> &'static str {
                match self {
                    $(Self::$variant => $name,)+
                }
            }
        }
    };
}

fault_points! {
    /// Fault point: the slot has a number and a uid, but no directory.
    BootBegun = "boot.begun",
    /// Fault point: the slot's directory exists, without a record.
    BootDirectory = "boot.directory",
    /// Fault point: the first record is written; the guest's binary is not copied.
    BootRecorded = "boot.recorded",
    /// Fault point: all sources of the container's bind mounts exist.
    BootPrepared = "boot.prepared",
    /// Fault point: the file of a workspace on disk is complete; no loop device has it.
    DiskMade = "disk.made",
    /// Fault point: a loop device has the file of the workspace; the kernel would not free it by itself.
    DiskAttached = "disk.attached",
    /// Fault point: the guest's socket exists.
    BootListening = "boot.listening",
    /// Fault point: the engine has created the container; no record holds its id.
    BootCreated = "boot.created",
    /// Fault point: the record holds the container's id.
    BootCreationRecorded = "boot.creation_recorded",
    /// Fault point: the container is running.
    BootStarted = "boot.started",
    /// Fault point: the daemon has checked that no other instance uses the uid.
    BootUidChecked = "boot.uid_checked",
    /// Fault point: the guest has connected.
    BootConnected = "boot.connected",
    /// Fault point: the `warm_up` command has run.
    BootWarmedUp = "boot.warmed_up",
    /// Fault point: the record says that the slot is ready; the pool does not know the slot.
    BootReadyRecorded = "boot.ready_recorded",
    /// Fault point: the pool knows the slot.
    BootOffered = "boot.offered",
    /// Fault point: the registry has reserved the id of the new workspace, in memory.
    ClaimEntered = "claim.entered",
    /// Fault point: the pool has handed out a slot.
    ClaimReserved = "claim.reserved",
    /// Fault point: the slot's task has accepted the claim.
    ClaimAccepted = "claim.accepted",
    /// Fault point: the metadata file names the workspace; the record does not.
    ClaimMetadata = "claim.metadata",
    /// Fault point: the record names the workspace; the guest may not be configured.
    ClaimRecorded = "claim.recorded",
    /// Fault point: the guest is configured for the workspace; the record does not name it.
    ClaimConfigured = "claim.configured",
    /// Fault point: both the record and the guest have the workspace's name.
    ClaimDone = "claim.done",
    /// Fault point: the registry lists the workspace; the client has no response.
    ClaimListed = "claim.listed",
    /// Fault point: the lease has its new expiry in memory.
    RenewBegun = "renew.begun",
    /// Fault point: the record has the new expiry; the client has no response.
    RenewRecorded = "renew.recorded",
    /// Fault point: the skills are complete on the host; none is visible in the workspace.
    StagePrepared = "stage.prepared",
    /// Fault point: a newer version is on disk beside the version that it replaces.
    StageReplacing = "stage.replacing",
    /// Fault point: the skills are visible in the workspace; their digests are not stored.
    StagePublished = "stage.published",
    /// Fault point: the digests are stored beside the skills; the record does not name the skills.
    StageNoted = "stage.noted",
    /// Fault point: the record names the skills; replaced versions still exist.
    StageRecorded = "stage.recorded",
    /// Fault point: a collected file is saved as an artifact; the client has no response.
    CollectSaved = "collect.saved",
    /// Fault point: the record says that the workspace was lost; its container may still exist.
    LossRecorded = "loss.recorded",
    /// Fault point: the container of the lost workspace is removed; the record still names it.
    LossRemoved = "loss.removed",
    /// Fault point: the slot's task has received the request to delete the workspace.
    DeleteBegun = "delete.begun",
    /// Fault point: the record says that the slot is closing.
    DeleteRecorded = "delete.recorded",
    /// Fault point: the guest has been asked to kill all processes.
    DeleteTold = "delete.told",
    /// Fault point: the container is removed; the record still names it.
    DeleteRemoved = "delete.removed",
    /// Fault point: the slot's directory is removed.
    DeleteErased = "delete.erased",
    /// Fault point: the workspace id is free; the slot's number and uid are not.
    DeleteForgotten = "delete.forgotten",
    /// Fault point: everything is removed; the client has no response.
    DeleteDone = "delete.done",
    /// Fault point: the archive of an environment's build is unpacked; the environment has no folder.
    EnvironmentUnpacked = "environment.unpacked",
    /// Fault point: the environment has its folder; no record refers to it.
    EnvironmentInstalled = "environment.installed",
    /// Fault point: the archive of a skill is unpacked; its content is not in the store.
    PublishUnpacked = "publish.unpacked",
    /// Fault point: the skill's content is in the store; no record refers to it.
    PublishStored = "publish.stored",
    /// Fault point: the record is written under a temporary name.
    PublishWritten = "publish.written",
    /// Fault point: the record has its final name; the client has no response.
    PublishRecorded = "publish.recorded",
    /// Fault point: all records of a skill are moved away; they are not removed.
    UnpublishMoved = "unpublish.moved",
    /// Fault point: the skill is no longer published; the client has no response.
    UnpublishDone = "unpublish.done",
    /// Fault point: a digest is moved out of the store; its content is not removed.
    ClearMoved = "clear.moved",
    /// Fault point: a marker says that an artifact is being saved; no bytes of it are stored.
    SaveMarked = "save.marked",
    /// Fault point: the bytes of an artifact are stored; no record refers to them.
    SaveWritten = "save.written",
    /// Fault point: the record of a version is stored and its marker still exists; the client has no response.
    SavePublished = "save.published",
    /// Fault point: a marker says that a version of an artifact is being removed; its record and bytes still exist.
    DiscardMarked = "discard.marked",
    /// Fault point: the record of the version is removed; its bytes still exist.
    DiscardUnpublished = "discard.unpublished",
}

/// Kills the process if this fault point is selected.
#[cfg(not(debug_assertions))]
#[inline]
pub const fn reach(_point: Point) {}

/// Returns `true` if the process is to be killed when it next reaches one of these points.
#[cfg(not(debug_assertions))]
#[inline]
#[must_use]
pub const fn will_kill_at(_points: &[Point]) -> bool {
    false
}

#[cfg(debug_assertions)]
pub use armed::{reach, will_kill_at};

/// Runs `work`, or waits for ever if `hold` is `true`, so that a concurrent fault point kills the process first.
pub async fn hold_if<T>(hold: bool, work: impl Future<Output = T>) -> T {
    if hold {
        std::future::pending::<()>().await;
    }
    work.await
}

#[cfg(debug_assertions)]
mod armed {
    use std::sync::LazyLock;
    use std::sync::atomic::{AtomicU64, Ordering};

    use nix::sys::signal::{Signal, raise};

    use super::Point;

    /// Name of the selected fault point, and the number of visits until it kills the process.
    static CHOSEN_POINT: LazyLock<Option<(String, AtomicU64)>> = LazyLock::new(|| {
        #[expect(
            clippy::disallowed_methods,
            reason = "no part of the configuration: a shipped binary does not know it"
        )]
        let chosen = std::env::var("FAULT_POINT").ok()?;
        let (name, times) = chosen.split_once(':').unwrap_or((&chosen, "1"));
        Some((name.to_owned(), AtomicU64::new(times.parse().ok()?)))
    });

    /// Returns the number of visits until this point kills the process; `None` if it is not selected.
    fn remaining_visits(point: Point) -> Option<&'static AtomicU64> {
        CHOSEN_POINT
            .as_ref()
            .filter(|(name, _)| name == point.name())
            .map(|(_, left)| left)
    }

    /// Kills the process if this fault point is selected.
    pub fn reach(point: Point) {
        if remaining_visits(point).is_some_and(|left| left.fetch_sub(1, Ordering::SeqCst) == 1) {
            // SIGKILL ends the process here, so there is no result to check.
            let _dead = raise(Signal::SIGKILL);
        }
    }

    /// Returns `true` if the process is to be killed when it next reaches one of these points.
    #[must_use]
    pub fn will_kill_at(points: &[Point]) -> bool {
        let is_next = |point: &Point| {
            remaining_visits(*point).is_some_and(|left| left.load(Ordering::SeqCst) == 1)
        };
        points.iter().any(is_next)
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    /// Appends the text of all source files of the crate except this one.
    fn read_sources(dir: &Path, into: &mut String) {
        for entry in std::fs::read_dir(dir).expect("source directory") {
            let path = entry.expect("entry").path();
            if path.is_dir() {
                read_sources(&path, into);
            } else if path.file_name() != Some("fault.rs".as_ref()) {
                into.push_str(&std::fs::read_to_string(&path).expect("source"));
            }
        }
    }

    #[test]
    fn every_fault_point_is_reached_in_exactly_one_place() {
        let mut text = String::new();
        let own = Path::new(env!("CARGO_MANIFEST_DIR"));
        read_sources(&own.join("src"), &mut text);
        read_sources(&own.join("../src"), &mut text);
        for point in Point::ALL {
            let reached = format!("fault::reach(Point::{point:?})");
            assert_eq!(text.matches(&reached).count(), 1, "{reached}");
        }
        let reached = text.matches("fault::reach(").count();
        assert_eq!(
            reached,
            Point::ALL.len(),
            "a fault point that is not in the list"
        );
    }

    #[test]
    fn names_are_unique_and_begin_with_a_known_operation() {
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
            "disk.",
            "environment.",
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
