//! Checks of the state directory, the roots and the guest. Pure functions of facts and configuration.

use std::path::Path;

use bytesize::ByteSize;

use super::path_facts::{
    FileSystemFacts, FileSystemKind, PathAccess, PathFacts, RootFacts, StateDirFacts,
};
use super::report::{CheckLine, split_remedy};
use crate::config::Config;

/// Free space below which the daemon can't work for long: one skill can be larger.
const FREE_BYTES_MIN: u64 = 256 << 20;
/// Free space that skills and artifacts should have where no builds need more.
const FREE_BYTES_WANTED: u64 = 1 << 30;
/// Free inodes below which the daemon can't work for long: one skill may have 5,000 files.
const FREE_INODES_MIN: u64 = 5_000;
/// Free inodes that skills and environments should have.
const FREE_INODES_WANTED: u64 = 100_000;
/// Permission bits that others than the owner must not have on the state directory.
const FOREIGN_MODE: u32 = 0o077;

/// Checks the state directory: its place, its permissions, its space.
pub(super) fn check_state_dir(
    config: &Config,
    paths: &PathFacts,
    uid: u32,
    user_name: Option<&str>,
) -> Vec<CheckLine> {
    let path = &config.state_dir;
    match &paths.state_dir {
        Ok(facts) => vec![
            check_file_system(path, &facts.file_system),
            check_directory_mode(path, facts, uid, user_name),
            check_space(config, facts),
        ],
        Err(why) => vec![CheckLine::failed(
            "state_dir",
            "state directory",
            format!("{} can't be looked at: {why}", path.display()),
            "set state_dir to a directory on a local file system that this user may write",
        )],
    }
}

fn check_file_system(path: &Path, file_system: &FileSystemFacts) -> CheckLine {
    let (check, subject) = ("state_dir.file_system", "state directory");
    let path = path.display();
    let elsewhere = "set state_dir to a directory on a local disk";
    if file_system.read_only {
        let finding = format!("{path} is on a file system that is mounted read-only");
        let remedy = "see `dmesg` for the reason, repair it, and mount it for writing";
        return CheckLine::failed(check, subject, finding, remedy);
    }
    match file_system.kind {
        FileSystemKind::Local => {
            CheckLine::ok(check, subject, format!("{path} is on a local file system"))
        }
        FileSystemKind::Network => {
            let finding = format!(
                "{path} is on a network file system, where locks and sockets can't be relied on"
            );
            CheckLine::failed(check, subject, finding, elsewhere)
        }
        FileSystemKind::Memory => {
            let finding = format!(
                "{path} is in memory (tmpfs): artifacts, published skills and environments are lost when the host restarts"
            );
            CheckLine::warning(check, subject, finding, elsewhere)
        }
        FileSystemKind::Overlay => {
            let finding = format!(
                "{path} is on the root file system of a container, which Docker does not see at that path"
            );
            let remedy = "mount a directory of the host into this container at the same path";
            CheckLine::warning(check, subject, finding, remedy)
        }
    }
}

fn check_directory_mode(
    path: &Path,
    facts: &StateDirFacts,
    uid: u32,
    user_name: Option<&str>,
) -> CheckLine {
    let (check, subject, shown) = ("state_dir.mode", "state directory", path.display());
    let user = user_name.unwrap_or("USER");
    let install = format!(
        "run `install -d -m 700 -o {user} {shown}` as root, or start skilld with --state-dir and a directory of this user"
    );
    if !facts.is_directory {
        let finding = format!("{} is not a directory", facts.nearest.display());
        return CheckLine::failed(check, subject, finding, "remove it, or set state_dir");
    }
    let Some((owner, mode)) = facts.found else {
        return match facts.is_writable {
            true => CheckLine::ok(
                check,
                subject,
                format!("{shown} does not exist yet; the daemon makes it"),
            ),
            false => CheckLine::failed(
                check,
                subject,
                format!(
                    "{shown} does not exist, and this user can't make it in {}",
                    facts.nearest.display()
                ),
                install,
            ),
        };
    };
    if uid != 0 && uid != owner {
        let finding = format!("{shown} belongs to uid {owner}, and this is uid {uid}");
        let remedy = format!("run `skilld doctor` as the daemon's user, or `chown {user} {shown}`");
        return CheckLine::failed(check, subject, finding, remedy);
    }
    if mode & FOREIGN_MODE != 0 {
        let finding = format!(
            "{shown} has mode {mode:04o}: other users can look into it until the daemon makes it 0700"
        );
        return CheckLine::warning(check, subject, finding, format!("run `chmod 700 {shown}`"));
    }
    CheckLine::ok(
        check,
        subject,
        format!("{shown} has mode {mode:04o} and belongs to uid {owner}"),
    )
}

fn check_space(config: &Config, facts: &StateDirFacts) -> CheckLine {
    let (check, subject) = ("state_dir.space", "state directory");
    let FileSystemFacts {
        free_bytes,
        free_inodes,
        ..
    } = facts.file_system;
    let environments = &config.skills.environments;
    let is_build = environments.is_enabled() && environments.build_disk_bytes > FREE_BYTES_WANTED;
    let (wanted, purpose) = match is_build {
        true => (
            environments.build_disk_bytes,
            ", for a build of packages (skills.build_disk)",
        ),
        false => (FREE_BYTES_WANTED, ""),
    };
    let inodes = match free_inodes {
        Some(inodes) => format!("{inodes} inodes"),
        None => "inodes without limit".to_owned(),
    };
    let finding = format!("{} and {inodes} are free", ByteSize::b(free_bytes));
    let free_inodes = free_inodes.unwrap_or(u64::MAX);
    let remedy = "free some, delete artifacts (`skillctl artifact delete`), or move state_dir to a larger disk";
    if free_bytes < FREE_BYTES_MIN || free_inodes < FREE_INODES_MIN {
        let finding = format!("only {finding}: claims, saves and new skills fail soon");
        return CheckLine::failed(check, subject, finding, remedy);
    }
    if free_bytes < wanted || free_inodes < FREE_INODES_WANTED {
        let bytes = format!("skilld wants {}{purpose}", ByteSize::b(wanted));
        let inodes = format!(
            "skilld wants {},000 inodes for skills and environments",
            FREE_INODES_WANTED / 1000
        );
        let reason = match (free_bytes < wanted, free_inodes < FREE_INODES_WANTED) {
            (true, true) => format!("{bytes}; {inodes}"),
            (true, false) => bytes,
            (false, _) => inodes,
        };
        let finding = format!("only {finding}: {reason}");
        return CheckLine::warning(check, subject, finding, remedy);
    }
    CheckLine::ok(check, subject, finding)
}

/// Checks the directories from which skills and inputs are read.
pub(super) fn check_roots(roots: &[RootFacts]) -> Vec<CheckLine> {
    let mut lines: Vec<CheckLine> = roots.iter().map(check_root).collect();
    if !roots.iter().any(|root| root.key == "skills.roots") {
        let finding = "none: only published skills are served";
        lines.push(CheckLine::ok("root", "skills.roots", finding));
    }
    lines
}

fn check_root(root: &RootFacts) -> CheckLine {
    let RootFacts { key, text, access } = root;
    let check = "root";
    let (why, remedy) = match access {
        None => {
            let finding = format!("{text} is fetched by the daemon, not here");
            return CheckLine::ok(check, *key, finding);
        }
        Some(PathAccess::Usable) => {
            return CheckLine::ok(check, *key, format!("{text} is readable"));
        }
        Some(PathAccess::Missing) => (
            "does not exist".to_owned(),
            format!("create it, or correct {key}"),
        ),
        Some(PathAccess::WrongKind | PathAccess::NotAProgram) => {
            ("is not a directory".to_owned(), format!("correct {key}"))
        }
        Some(PathAccess::Denied) => (
            "can't be read by this user".to_owned(),
            format!("run `chmod -R a+rX {text}`, or run skilld as a user who may read it"),
        ),
        Some(PathAccess::Hung) => (
            "does not answer".to_owned(),
            "see whether its network mount hangs".to_owned(),
        ),
        Some(PathAccess::Failed(why)) => {
            (format!("can't be read: {why}"), format!("correct {key}"))
        }
    };
    CheckLine::failed(check, *key, format!("{text} {why}"), remedy)
}

/// Checks the guest binary, which is copied into every container.
pub(super) fn check_guest(config: &Config, access: &PathAccess) -> CheckLine {
    let (check, subject) = ("guest", "guest");
    let path = config.engine.guest_path.display();
    let rebuild = "build it with `make guest`, or set engine.guest_path";
    let (why, remedy) = match access {
        PathAccess::Usable => return CheckLine::ok(check, subject, path.to_string()),
        PathAccess::Missing => ("does not exist".to_owned(), rebuild.to_owned()),
        PathAccess::WrongKind => ("is not a file".to_owned(), rebuild.to_owned()),
        PathAccess::NotAProgram => ("is no program of Linux".to_owned(), rebuild.to_owned()),
        PathAccess::Denied => (
            "can't be read and run".to_owned(),
            format!("run `chmod 755 {path}`"),
        ),
        PathAccess::Hung => (
            "does not answer".to_owned(),
            "see whether its file system hangs".to_owned(),
        ),
        PathAccess::Failed(why) => (format!("can't be read: {why}"), rebuild.to_owned()),
    };
    CheckLine::failed(check, subject, format!("{path} {why}"), remedy)
}

/// Checks the directory of wheels, if there is one.
pub(super) fn check_wheelhouse(config: &Config, fault: Option<&str>) -> Option<CheckLine> {
    let (check, subject) = ("wheelhouse", "skills.wheelhouse");
    let dir = config.skills.environments.wheelhouse.as_deref()?.display();
    Some(match fault {
        None => CheckLine::ok(check, subject, format!("{dir} is readable")),
        Some(fault) => {
            let (finding, remedy) = split_remedy(fault, "correct skills.wheelhouse");
            CheckLine::failed(check, subject, finding, remedy)
        }
    })
}

#[cfg(test)]
mod tests;
