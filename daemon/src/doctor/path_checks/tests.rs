//! Tests of the checks of paths: facts about directories and files, and the lines that follow from them.

use std::path::PathBuf;

use super::super::report::CheckState;
use super::*;

const GIB: u64 = 1 << 30;

fn config(text: &str) -> Config {
    Config::from_toml(text).expect("valid").config
}

fn facts() -> StateDirFacts {
    StateDirFacts {
        found: Some((0, 0o700)),
        nearest: PathBuf::from("/var/lib/skilld"),
        is_directory: true,
        is_writable: true,
        file_system: FileSystemFacts {
            kind: FileSystemKind::Local,
            read_only: false,
            free_bytes: 100 * GIB,
            free_inodes: Some(1_000_000),
        },
    }
}

/// Returns the line of one check of the state directory for a user.
fn find(facts: StateDirFacts, check: &str, uid: u32) -> CheckLine {
    let paths = PathFacts {
        state_dir: Ok(facts),
        disk_space_bytes: None,
        guest: PathAccess::Usable,
        wheelhouse: None,
    };
    let lines = check_state_dir(&config(""), &paths, uid, Some("agent"));
    let line = lines.into_iter().find(|line| line.check == check);
    line.expect("a line of this check")
}

#[test]
fn the_state_directory_must_be_on_a_writable_local_file_system() {
    for (kind, read_only, state) in [
        (FileSystemKind::Local, false, CheckState::Ok),
        (FileSystemKind::Local, true, CheckState::Failed),
        (FileSystemKind::Network, false, CheckState::Failed),
        (FileSystemKind::Memory, false, CheckState::Warning),
        (FileSystemKind::Overlay, false, CheckState::Warning),
    ] {
        let mut facts = facts();
        (facts.file_system.kind, facts.file_system.read_only) = (kind, read_only);
        let line = find(facts, "state_dir.file_system", 0);
        assert_eq!(line.state, state, "{line:?}");
    }
}

#[test]
fn the_state_directory_must_belong_to_the_daemon_alone() {
    for (found, is_directory, is_writable, uid, state) in [
        (Some((0, 0o700)), true, true, 0, CheckState::Ok),
        // Root may look at the directory of another user's daemon.
        (Some((997, 0o700)), true, true, 0, CheckState::Ok),
        (Some((997, 0o700)), true, true, 997, CheckState::Ok),
        (Some((0, 0o700)), true, false, 997, CheckState::Failed),
        (Some((0, 0o755)), true, true, 0, CheckState::Warning),
        (Some((0, 0o7707)), true, true, 0, CheckState::Warning),
        (None, true, true, 997, CheckState::Ok),
        (None, true, false, 997, CheckState::Failed),
        (Some((0, 0o644)), false, true, 0, CheckState::Failed),
        (None, false, false, 0, CheckState::Failed),
    ] {
        let facts = StateDirFacts {
            found,
            is_directory,
            is_writable,
            ..facts()
        };
        let line = find(facts, "state_dir.mode", uid);
        assert_eq!(line.state, state, "{line:?}");
    }
}

#[test]
fn the_state_disk_needs_bytes_and_inodes() {
    let mib = 1 << 20;
    for (free_bytes, free_inodes, state) in [
        (2 * GIB, Some(100_000), CheckState::Ok),
        (u64::MAX, None, CheckState::Ok),
        (2 * GIB - 1, None, CheckState::Warning),
        (256 * mib, Some(100_000), CheckState::Warning),
        (256 * mib - 1, Some(100_000), CheckState::Failed),
        (2 * GIB, Some(99_999), CheckState::Warning),
        (2 * GIB, Some(4_999), CheckState::Failed),
        (0, Some(0), CheckState::Failed),
    ] {
        let mut facts = facts();
        facts.file_system.free_bytes = free_bytes;
        facts.file_system.free_inodes = free_inodes;
        let line = find(facts, "state_dir.space", 0);
        assert_eq!(line.state, state, "{line:?}");
    }
}

#[test]
fn the_warning_of_a_small_state_disk_names_what_is_missing_and_why() {
    let build = "skilld wants 2.0 GiB, for a build of packages (skills.build_disk)";
    let inodes = "skilld wants 100,000 inodes for skills and environments";
    let both = format!("{build}; {inodes}");
    let no_build = "skills.environment_builds = \"never\"";
    for (text, free_bytes, free_inodes, reason) in [
        ("", GIB, 100_000, build),
        ("", 2 * GIB, 99_999, inodes),
        ("", GIB, 99_999, both.as_str()),
        (no_build, GIB - 1, 100_000, "skilld wants 1.0 GiB"),
        (
            "skills.build_disk = \"512MiB\"",
            GIB - 1,
            100_000,
            "skilld wants 1.0 GiB",
        ),
    ] {
        let mut facts = facts();
        facts.file_system.free_bytes = free_bytes;
        facts.file_system.free_inodes = Some(free_inodes);
        let line = check_space(&config(text), &facts);
        assert_eq!(line.state, CheckState::Warning, "{line:?}");
        assert!(
            line.finding.ends_with(&format!("are free: {reason}")),
            "{line:?}"
        );
    }
}

#[test]
fn a_state_directory_that_cannot_be_looked_at_is_one_failed_line() {
    let paths = PathFacts {
        state_dir: Err("its file system did not answer".to_owned()),
        disk_space_bytes: None,
        guest: PathAccess::Usable,
        wheelhouse: None,
    };
    let lines = check_state_dir(&config(""), &paths, 0, None);
    assert_eq!(lines.len(), 1);
    assert_eq!(lines[0].state, CheckState::Failed);
}

#[test]
fn every_root_that_cannot_be_read_fails_with_its_key() {
    let root = |access| RootFacts {
        key: "skills.roots",
        text: "/srv/skills".to_owned(),
        access,
    };
    for (access, state, part) in [
        (None, CheckState::Ok, "fetched by the daemon"),
        (Some(PathAccess::Usable), CheckState::Ok, "is readable"),
        (
            Some(PathAccess::Missing),
            CheckState::Failed,
            "does not exist",
        ),
        (
            Some(PathAccess::WrongKind),
            CheckState::Failed,
            "is not a directory",
        ),
        (
            Some(PathAccess::Denied),
            CheckState::Failed,
            "can't be read by this user",
        ),
        (
            Some(PathAccess::Hung),
            CheckState::Failed,
            "does not answer",
        ),
        (
            Some(PathAccess::Failed("EIO".to_owned())),
            CheckState::Failed,
            "EIO",
        ),
    ] {
        let lines = check_roots(&[root(access)]);
        assert_eq!(lines.len(), 1);
        assert_eq!(lines[0].state, state, "{lines:?}");
        assert_eq!(lines[0].subject, "skills.roots");
        assert!(lines[0].finding.contains(part), "{lines:?}");
        assert!(lines[0].finding.contains("/srv/skills"), "{lines:?}");
    }
    let none = check_roots(&[]);
    assert_eq!(none[0].state, CheckState::Ok);
    assert!(none[0].finding.contains("only published skills"));
}

#[test]
fn a_guest_that_cannot_be_run_fails_with_its_remedy() {
    let config = config("[engine]\nguest_path = \"/opt/guest\"");
    for (access, state, remedy) in [
        (PathAccess::Usable, CheckState::Ok, ""),
        (PathAccess::Missing, CheckState::Failed, "make guest"),
        (PathAccess::WrongKind, CheckState::Failed, "make guest"),
        (PathAccess::NotAProgram, CheckState::Failed, "make guest"),
        (
            PathAccess::Denied,
            CheckState::Failed,
            "chmod 755 /opt/guest",
        ),
        (PathAccess::Hung, CheckState::Failed, "hangs"),
        (
            PathAccess::Failed("EIO".to_owned()),
            CheckState::Failed,
            "engine.guest_path",
        ),
    ] {
        let line = check_guest(&config, &access);
        assert_eq!(line.state, state, "{line:?}");
        assert!(
            line.remedy.unwrap_or_default().contains(remedy),
            "{access:?}"
        );
    }
}

#[test]
fn an_unusable_directory_of_wheels_fails_only_if_it_is_configured() {
    assert_eq!(check_wheelhouse(&config(""), None), None);
    let config = config("[skills]\nwheelhouse = \"/srv/wheels\"");
    let line = check_wheelhouse(&config, None).expect("a line");
    assert_eq!(line.state, CheckState::Ok);
    let fault = "/srv/wheels is not a directory: name one, or set skills.wheelhouse to \"\"";
    let line = check_wheelhouse(&config, Some(fault)).expect("a line");
    assert_eq!(line.state, CheckState::Failed);
    assert_eq!(line.finding, "/srv/wheels is not a directory");
    assert!(line.remedy.is_some_and(|text| text.starts_with("name one")));
}
