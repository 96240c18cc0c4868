//! State directories that were used, copied, moved, emptied or damaged.

use std::fs;

use super::*;

fn id(state_dir: &Path) -> String {
    InstanceLock::acquire(state_dir).expect("usable").id.clone()
}

/// Returns the message with which a start is refused. The check of a start knows it, too.
fn refusal(state_dir: &Path) -> String {
    let error = InstanceLock::acquire(state_dir)
        .expect_err("it must be refused")
        .to_string();
    match InstanceLock::check(state_dir) {
        Ok(is_running) => {
            assert!(
                is_running && error.contains("another skilld runs on it"),
                "{error}"
            );
        }
        Err(checked) => assert_eq!(checked.to_string(), error),
    }
    error
}

/// Copies a directory like `cp -a`: everything but inodes.
fn copy(from: &Path, to: &Path) {
    fs::create_dir_all(to).expect("mkdir");
    for entry in fs::read_dir(from).expect("list") {
        let entry = entry.expect("entry");
        let target = to.join(entry.file_name());
        if entry.file_type().expect("type").is_dir() {
            copy(&entry.path(), &target);
        } else {
            fs::copy(entry.path(), target).expect("copy");
        }
    }
}

#[test]
fn the_id_stays_and_the_directory_is_private() {
    let dir = tempfile::tempdir().expect("temporary directory");
    let state_dir = dir.path().join("a/state");
    assert!(!InstanceLock::check(&state_dir).expect("usable"));
    assert!(!dir.path().join("a").exists(), "a check makes nothing");
    let first = id(&state_dir);
    assert!(!InstanceLock::check(&state_dir).expect("usable"));
    assert_eq!(first, id(&state_dir));
    assert_eq!(first.len(), ID_DIGITS);
    for path in [state_dir.clone(), state_dir.join("instance")] {
        let mode = fs::metadata(path).expect("metadata").permissions().mode();
        assert_eq!(mode & 0o077, 0);
    }
    let names = fs::read_dir(&state_dir).expect("list");
    assert_eq!(names.count(), 3, "no temporary file is left");
}

#[test]
fn reports_find_no_daemon_in_each_other_and_hinder_none() {
    let dir = tempfile::tempdir().expect("temporary directory");
    id(dir.path());
    let report = try_lock(dir.path(), dir.path(), FlockArg::LockSharedNonblock).expect("free");
    assert!(!InstanceLock::check(dir.path()).expect("usable"));
    thread::scope(|scope| {
        let start = scope.spawn(|| InstanceLock::acquire(dir.path()).map(|lock| lock.id));
        drop(report);
        start.join().expect("no panic").expect("it waits");
    });
}

#[test]
fn a_user_without_the_right_is_told_of_a_directory_of_its_own() {
    let (state_dir, denied) = (Path::new("/var/lib/skilld"), Errno::EACCES);
    let error = private_error(state_dir, &state_dir.join("slots"), denied.into()).to_string();
    for part in ["/var/lib/skilld/slots", "--state-dir", "XDG_STATE_HOME"] {
        assert!(error.contains(part), "{error}");
    }
    let full = private_error(state_dir, state_dir, Errno::ENOSPC.into()).to_string();
    assert_eq!(full, "failed to make /var/lib/skilld private");
}

#[test]
fn a_second_daemon_fails_with_a_remedy() {
    let dir = tempfile::tempdir().expect("temporary directory");
    let _first = InstanceLock::acquire(dir.path()).expect("first");
    let error = refusal(dir.path());
    assert!(error.contains("another skilld runs on it"), "{error}");
    assert!(error.contains("--state-dir"), "{error}");
    assert!(adopt_copy(dir.path()).is_err(), "it is in use");
}

#[test]
fn a_removed_instance_file_does_not_unlock_the_state_directory() {
    let dir = tempfile::tempdir().expect("temporary directory");
    let _daemon = InstanceLock::acquire(dir.path()).expect("first");
    fs::create_dir_all(dir.path().join("slots/3/run")).expect("mkdir");
    fs::remove_file(dir.path().join("instance")).expect("remove");

    let error = adopt_copy(dir.path()).expect_err("in use").to_string();
    assert!(error.contains("another skilld runs on it"), "{error}");
    assert!(dir.path().join("slots/3/run").exists(), "slots survive");
    assert!(refusal(dir.path()).contains("another skilld runs on it"));
    assert!(!dir.path().join("instance").exists(), "no id was made");
}

#[test]
fn an_unbound_directory_is_not_adopted_as_a_copy() {
    let dir = tempfile::tempdir().expect("temporary directory");
    fs::create_dir_all(dir.path().join("slots/3/run")).expect("mkdir");
    fs::write(dir.path().join("instance"), "0123456789ab\n").expect("write");

    let error = adopt_copy(dir.path()).expect_err("unbound").to_string();
    assert!(error.contains("once without --adopt-copy"), "{error}");
    assert!(dir.path().join("slots/3/run").exists(), "slots survive");
    let text = fs::read_to_string(dir.path().join("instance")).expect("read");
    assert_eq!(text, "0123456789ab\n", "nothing was written");

    assert_eq!(id(dir.path()), "0123456789ab", "the start binds it");
    let done = adopt_copy(dir.path()).expect("bound");
    assert!(done.contains("is no copy"), "{done}");
    assert!(dir.path().join("slots/3/run").exists(), "slots survive");
}

#[test]
fn a_damaged_or_emptied_id_is_not_replaced() {
    let dir = tempfile::tempdir().expect("temporary directory");
    let file = dir.path().join("instance");
    let known = id(dir.path());
    for (text, says) in [
        ("??\n", "hex digits"),
        ("", "is empty"),
        ("\n \n", "is empty"),
        ("0123456789ab\ndevice 1\n", "hex digits"),
    ] {
        fs::write(&file, text).expect("write");
        let error = refusal(dir.path());
        assert!(error.contains(says), "{text:?}: {error}");
        let remedies = error.contains("docker ps") && error.contains("--adopt-copy");
        assert!(remedies, "{text:?}: {error}");
        let after = fs::read_to_string(&file).expect("still there");
        assert_eq!(after, text, "nothing was written");
    }
    // The remedy that the message names.
    fs::write(&file, format!("{known}\n")).expect("write");
    assert_eq!(id(dir.path()), known);
}

#[test]
fn a_lost_id_is_not_replaced_while_slots_are_there() {
    let dir = tempfile::tempdir().expect("temporary directory");
    let known = id(dir.path());
    fs::remove_file(dir.path().join("instance")).expect("remove");
    assert_ne!(id(dir.path()), known, "without slots it is a new one");
    fs::create_dir(dir.path().join("slots/7")).expect("mkdir");
    fs::remove_file(dir.path().join("instance")).expect("remove");
    let error = refusal(dir.path());
    assert!(error.contains("missing"), "{error}");
    assert!(!dir.path().join("instance").exists(), "none was made");
    let done = adopt_copy(dir.path()).expect("adopted");
    assert!(done.contains("slots removed from it: 1"), "{done}");
    assert_ne!(id(dir.path()), known);
}

#[test]
fn a_copy_is_refused_until_it_is_adopted() {
    let dir = tempfile::tempdir().expect("temporary directory");
    let (state, other) = (dir.path().join("state"), dir.path().join("other"));
    let original = id(&state);
    fs::create_dir_all(state.join("slots/3/run")).expect("mkdir");
    fs::write(state.join("slots/3/record.json"), "{}").expect("write");
    fs::write(state.join("skills/kept"), "").expect("write");
    copy(&state, &other);

    let error = refusal(&other);
    assert!(error.contains("is a copy of"), "{error}");
    assert!(error.contains(&*state.to_string_lossy()), "{error}");
    let remedy = format!("skilld --state-dir {} --adopt-copy", other.display());
    assert!(error.contains(&remedy), "{error}");
    assert!(
        other.join("slots/3/record.json").exists(),
        "nothing was touched"
    );

    let done = adopt_copy(&other).expect("adopted");
    assert!(
        done.contains(&format!("io.skilld.instance={original}")),
        "{done}"
    );
    let adopted = id(&other);
    assert_ne!(adopted, original);
    assert_eq!(fs::read_dir(other.join("slots")).expect("slots").count(), 0);
    assert!(other.join("skills/kept").exists(), "only slots are emptied");

    assert_eq!(id(&state), original, "the original goes on");
    for (dir, id) in [(&state, &original), (&other, &adopted)] {
        let done = adopt_copy(dir).expect("no copy");
        assert!(done.contains("is no copy") && done.contains(id), "{done}");
    }
    assert!(state.join("slots/3").exists(), "its slots stay");
}

#[test]
fn a_moved_directory_keeps_its_id_and_its_copy_is_refused() {
    let dir = tempfile::tempdir().expect("temporary directory");
    let (state, moved) = (dir.path().join("state"), dir.path().join("moved"));
    let original = id(&state);
    fs::rename(&state, &moved).expect("moved");
    assert_eq!(id(&moved), original);
    copy(&moved, &state);
    let error = refusal(&state);
    assert!(error.contains(&*moved.to_string_lossy()), "{error}");
}

#[test]
fn an_instance_of_the_previous_version_is_taken_over_and_bound() {
    let dir = tempfile::tempdir().expect("temporary directory");
    let (state, other) = (dir.path().join("state"), dir.path().join("other"));
    fs::create_dir_all(state.join("slots/3")).expect("mkdir");
    fs::write(state.join("instance"), "0123456789ab\n").expect("write");
    assert_eq!(id(&state), "0123456789ab");
    let text = fs::read_to_string(state.join("instance")).expect("read");
    assert_eq!(text.lines().next(), Some("0123456789ab"));
    assert!(DirectoryIdentity::parse(&text).is_some(), "{text}");
    copy(&state, &other);
    assert!(refusal(&other).contains("is a copy of"));
}
