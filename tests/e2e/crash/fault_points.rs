//! Fault points of the daemon: places between two steps of a lifecycle at which the tests kill it.

use std::fs;
use std::path::Path;

use anyhow::{Context, Result};

/// Names of all fault points, in the order in which a slot, a skill or an artifact reaches them. Each consists of the
/// operation and the step that was completed just before it; its comment says what exists at that time.
const FAULT_POINTS: &[&str] = &[
    // The slot has a number and a uid, but no directory.
    "boot.begun",
    // The slot's directory exists, without a record.
    "boot.directory",
    // The first record is written; the guest's binary is not copied.
    "boot.recorded",
    // All sources of the container's bind mounts exist.
    "boot.prepared",
    // The file of a workspace on disk is complete; no loop device has it.
    "disk.made",
    // A loop device has the file of the workspace; the kernel would not free it by itself.
    "disk.attached",
    // The guest's socket exists.
    "boot.listening",
    // The engine has created the container; no record holds its id.
    "boot.created",
    // The record holds the container's id.
    "boot.creation_recorded",
    // The container is running.
    "boot.started",
    // The daemon has checked that no other instance uses the uid.
    "boot.uid_checked",
    // The guest has connected.
    "boot.connected",
    // The `warm_up` command has run.
    "boot.warmed_up",
    // The record says that the slot is ready; the pool does not know the slot.
    "boot.ready_recorded",
    // The pool knows the slot.
    "boot.offered",
    // The registry has reserved the id of the new workspace, in memory.
    "claim.entered",
    // The pool has handed out a slot.
    "claim.reserved",
    // The slot's task has accepted the claim.
    "claim.accepted",
    // The metadata file names the workspace; the record does not.
    "claim.metadata",
    // The record names the workspace; the guest may not be configured.
    "claim.recorded",
    // The guest is configured for the workspace; the record does not name it.
    "claim.configured",
    // Both the record and the guest have the workspace's name.
    "claim.done",
    // The registry lists the workspace; the client has no response.
    "claim.listed",
    // The lease has its new expiry in memory.
    "renew.begun",
    // The record has the new expiry; the client has no response.
    "renew.recorded",
    // The skills are complete on the host; none is visible in the workspace.
    "stage.prepared",
    // A newer version is on disk beside the version that it replaces.
    "stage.replacing",
    // The skills are visible in the workspace; their digests are not stored.
    "stage.published",
    // The digests are stored beside the skills; the record does not name the skills.
    "stage.noted",
    // The record names the skills; replaced versions still exist.
    "stage.recorded",
    // A collected file is saved as an artifact; the client has no response.
    "collect.saved",
    // The record says that the workspace was lost; its container may still exist.
    "loss.recorded",
    // The container of the lost workspace is removed; the record still names it.
    "loss.removed",
    // The slot's task has received the request to delete the workspace.
    "delete.begun",
    // The record says that the slot is closing.
    "delete.recorded",
    // The guest has been asked to kill all processes.
    "delete.told",
    // The container is removed; the record still names it.
    "delete.removed",
    // The slot's directory is removed.
    "delete.erased",
    // The workspace id is free; the slot's number and uid are not.
    "delete.forgotten",
    // Everything is removed; the client has no response.
    "delete.done",
    // The archive of an environment's build is unpacked; the environment has no folder.
    "environment.unpacked",
    // The environment has its folder; no record refers to it.
    "environment.installed",
    // The archive of a skill is unpacked; its content is not in the store.
    "publish.unpacked",
    // The skill's content is in the store; no record refers to it.
    "publish.stored",
    // The record is written under a temporary name.
    "publish.written",
    // The record has its final name; the client has no response.
    "publish.recorded",
    // All records of a skill are moved away; they are not removed.
    "unpublish.moved",
    // The skill is no longer published; the client has no response.
    "unpublish.done",
    // A digest is moved out of the store; its content is not removed.
    "clear.moved",
    // A marker says that an artifact is being saved; no bytes of it are stored.
    "save.marked",
    // The bytes of an artifact are stored; no record refers to them.
    "save.written",
    // The record of a version is stored and its marker still exists; the client has no response.
    "save.published",
    // A marker says that a version of an artifact is being removed; its record and bytes still exist.
    "discard.marked",
    // The record of the version is removed; its bytes still exist.
    "discard.unpublished",
];

/// Returns the fault points of one operation, given as `NAME.`.
pub(crate) fn points(operation: &str) -> impl Iterator<Item = &'static str> {
    let of_operation = move |point: &&str| point.starts_with(operation);
    FAULT_POINTS.iter().copied().filter(of_operation)
}

/// Appends the text of all source files of a directory.
fn read_sources(dir: &Path, into: &mut String) -> Result<()> {
    for entry in fs::read_dir(dir)? {
        let path = entry?.path();
        if path.is_dir() {
            read_sources(&path, into)?;
        } else {
            into.push_str(&fs::read_to_string(&path)?);
        }
    }
    Ok(())
}

/// Returns the source files of the daemon as one text.
fn daemon_sources() -> Result<String> {
    let daemon = Path::new(env!("CARGO_MANIFEST_DIR")).join("../daemon");
    let mut text = String::new();
    read_sources(&daemon.join("src"), &mut text)?;
    read_sources(&daemon.join("skills/src"), &mut text)?;
    Ok(text)
}

#[test]
fn every_fault_point_is_reached_in_exactly_one_place() -> Result<()> {
    let text = daemon_sources()?;
    let mut reached: Vec<&str> = text
        .split("fault::reach(\"")
        .skip(1)
        .filter_map(|call| call.split('"').next())
        .collect();
    reached.sort_unstable();
    let mut listed = FAULT_POINTS.to_vec();
    listed.sort_unstable();
    assert_eq!(reached, listed);
    for call in text.split("will_kill_at(&[").skip(1) {
        let (names, _) = call.split_once("])").context("end of the call")?;
        for name in names.split(", ") {
            assert!(listed.contains(&name.trim_matches('"')), "{name}");
        }
    }
    Ok(())
}

#[test]
fn every_fault_point_is_crashed_at() {
    let operations = [
        "boot.",
        "disk.",
        "claim.",
        "renew.",
        "stage.",
        "collect.",
        "loss.",
        "delete.",
        "environment.",
        "publish.",
        "unpublish.",
        "clear.",
        "save.",
        "discard.",
    ];
    let tested = operations.iter().map(|operation| points(operation).count());
    assert_eq!(tested.sum::<usize>(), FAULT_POINTS.len());
}
