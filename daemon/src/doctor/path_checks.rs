//! Checks of directories that the configuration names. They look at the file system of the state directory, and at the
//! roots of skills and inputs. Reads only.

use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use bytesize::ByteSize;
use futures::future::join_all;
use nix::sys::statfs::{
    AFS_SUPER_MAGIC, CODA_SUPER_MAGIC, FsType, NFS_SUPER_MAGIC, OVERLAYFS_SUPER_MAGIC,
    SMB_SUPER_MAGIC, TMPFS_MAGIC, statfs,
};
use nix::sys::statvfs::{FsFlags, Statvfs, statvfs};
use skilld_skills::SkillRoot;

use super::report::CheckLine;
use super::{PATH_TIMEOUT, run_within};
use crate::config::Config;
use crate::engine::workspace_disk;
use crate::host_paths::nearest_existing;
use crate::shutdown::Tasks;

/// Unit of the allocated size of a file, in bytes.
const DISK_BLOCK_BYTES: u64 = 512;
/// Free space below which the daemon can't work for long: one skill can be larger.
const FREE_BYTES_MIN: u64 = 256 << 20;
/// Free space that skills and artifacts should have where no builds need more.
const FREE_BYTES_WANTED: u64 = 1 << 30;
/// Free inodes below which the daemon can't work for long: one skill may have 5,000 files.
const FREE_INODES_MIN: u64 = 5_000;
/// Free inodes that skills and environments should have.
const FREE_INODES_WANTED: u64 = 100_000;

/// Numbers of network file systems. Those that nix does not name are 9P, SMB2, CIFS, Ceph, Lustre and GPFS.
const NETWORK_TYPES: [FsType; 10] = [
    AFS_SUPER_MAGIC,
    CODA_SUPER_MAGIC,
    NFS_SUPER_MAGIC,
    SMB_SUPER_MAGIC,
    FsType(0x0102_1997),
    FsType(0xFE53_4D42),
    FsType(0xFF53_4D42),
    FsType(0x00C3_6400),
    FsType(0x0BD0_0BD0),
    FsType(0x4750_4653),
];

/// Checks the file system of the state directory: its kind, and its space. If it can't be looked at, the check of the
/// state directory itself says why.
pub(super) async fn check_state_disk(config: &Config, tasks: &Tasks) -> Vec<CheckLine> {
    let path = config.state_dir.clone();
    let looked = run_within(
        PATH_TIMEOUT,
        tasks,
        move || -> io::Result<(FsType, Statvfs)> {
            let nearest = nearest_existing(&path)?;
            Ok((statfs(nearest)?.filesystem_type(), statvfs(nearest)?))
        },
    );
    let Some(Ok((kind, space))) = looked.await else {
        return Vec::new();
    };
    let inodes = (space.files() > 0).then(|| space.files_available());
    let is_read_only = space.flags().contains(FsFlags::ST_RDONLY);
    vec![
        check_file_system(&config.state_dir, kind, is_read_only),
        check_space(config, free_bytes(&space), inodes),
    ]
}

/// Returns the number of bytes that are free on the file system of the state directory, or taken by disks of workspaces
/// in it; `None` if they can't be read. Blocks.
pub(super) fn read_disk_space(state_dir: &Path) -> Option<u64> {
    let space = statvfs(nearest_existing(state_dir).ok()?).ok()?;
    let slots = fs::read_dir(state_dir.join("slots")).into_iter().flatten();
    let disks = slots.flatten().filter_map(|slot| {
        let disk = fs::metadata(slot.path().join(workspace_disk::FILE_NAME));
        Some(disk.ok()?.blocks().saturating_mul(DISK_BLOCK_BYTES))
    });
    Some(disks.fold(free_bytes(&space), u64::saturating_add))
}

fn free_bytes(space: &Statvfs) -> u64 {
    space
        .blocks_available()
        .saturating_mul(space.fragment_size())
}

fn check_file_system(path: &Path, kind: FsType, is_read_only: bool) -> CheckLine {
    let (check, subject) = ("state_dir.file_system", "state directory");
    let shown = path.display();
    let elsewhere = "set state_dir to a directory on a local disk";
    if is_read_only {
        let finding = format!("{shown} is on a file system that is mounted read-only");
        let remedy = "see `dmesg` for the reason, repair it, and mount it for writing";
        CheckLine::failed(check, subject, finding, remedy)
    } else if NETWORK_TYPES.contains(&kind) {
        let finding = format!(
            "{shown} is on a network file system, where locks and sockets can't be relied on"
        );
        CheckLine::failed(check, subject, finding, elsewhere)
    } else if kind == TMPFS_MAGIC {
        let finding = format!(
            "{shown} is in memory (tmpfs): artifacts, published skills and environments are lost when the host restarts"
        );
        CheckLine::warning(check, subject, finding, elsewhere)
    } else if kind == OVERLAYFS_SUPER_MAGIC {
        let finding = format!(
            "{shown} is on the root file system of a container, which Docker does not see at that path"
        );
        let remedy = "mount a directory of the host into this container at the same path";
        CheckLine::warning(check, subject, finding, remedy)
    } else {
        CheckLine::ok(check, subject, format!("{shown} is on a local file system"))
    }
}

fn check_space(config: &Config, free_bytes: u64, free_inodes: Option<u64>) -> CheckLine {
    let (check, subject) = ("state_dir.space", "state directory");
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
        let finding = format!(
            "only {finding}: skilld wants {}{purpose}, and {},000 inodes for skills and environments",
            ByteSize::b(wanted),
            FREE_INODES_WANTED / 1000
        );
        return CheckLine::warning(check, subject, finding, remedy);
    }
    CheckLine::ok(check, subject, finding)
}

/// Checks the directories from which skills and inputs are read.
pub(super) async fn check_roots(config: &Config, tasks: &Tasks) -> Vec<CheckLine> {
    let roots = &config.skills.options.roots;
    let skills = roots.iter().map(|root| match root {
        SkillRoot::Dir { text, path } => ("skills.roots", text.clone(), Some(path.clone())),
        SkillRoot::Url { text, .. } => ("skills.roots", text.clone(), None),
    });
    let inputs = config.files.host_roots.iter().map(|path| {
        let text = path.display().to_string();
        ("files.host_roots", text, Some(path.clone()))
    });
    let checks = skills
        .chain(inputs)
        .map(|(key, text, path)| check_root(tasks, key, text, path));
    let mut lines = join_all(checks).await;
    if roots.is_empty() {
        let finding = "none: only published skills are served";
        lines.push(CheckLine::ok("root", "skills.roots", finding));
    }
    lines
}

/// Checks that a directory can be listed. `path` is `None` for a URL.
async fn check_root(
    tasks: &Tasks,
    key: &'static str,
    text: String,
    path: Option<PathBuf>,
) -> CheckLine {
    let Some(path) = path else {
        let finding = format!("{text} is fetched by the daemon, not here");
        return CheckLine::ok("root", key, finding);
    };
    let listed = run_within(PATH_TIMEOUT, tasks, move || {
        fs::read_dir(&path).and_then(|mut entries| entries.next().transpose())
    });
    let (fault, remedy) = match listed.await {
        Some(Ok(_)) => return CheckLine::ok("root", key, format!("{text} is readable")),
        Some(Err(error)) => (
            format!("{text} can't be read: {error}"),
            format!("create it, run `chmod -R a+rX {text}`, or correct {key}"),
        ),
        None => (
            format!("{text} does not answer within {PATH_TIMEOUT:?}"),
            "see whether its network mount hangs".to_owned(),
        ),
    };
    CheckLine::failed("root", key, fault, remedy)
}

#[cfg(test)]
mod tests {
    use super::super::report::CheckState;
    use super::*;

    const GIB: u64 = 1 << 30;

    fn config(text: &str) -> Config {
        Config::from_toml(text).expect("valid").config
    }

    #[test]
    fn the_state_directory_must_be_on_a_writable_local_file_system() {
        for (number, is_read_only, state) in [
            (0xEF53, false, CheckState::Ok),
            (0x9123_683E, false, CheckState::Ok),
            (0, false, CheckState::Ok),
            (0xEF53, true, CheckState::Failed),
            (0x6969, false, CheckState::Failed),
            (0x0102_1997, false, CheckState::Failed),
            (0xFF53_4D42, false, CheckState::Failed),
            (0x0102_1994, false, CheckState::Warning),
            (0x794c_7630, false, CheckState::Warning),
        ] {
            let path = Path::new("/var/lib/skilld");
            let line = check_file_system(path, FsType(number), is_read_only);
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
            let line = check_space(&config(""), free_bytes, free_inodes);
            assert_eq!(line.state, state, "{line:?}");
        }
    }

    #[test]
    fn a_small_state_disk_warning_names_the_wanted_space_and_why() {
        let build =
            "skilld wants 2.0 GiB, for a build of packages (skills.build_disk), and 100,000 inodes";
        let no_build = "skilld wants 1.0 GiB, and 100,000 inodes";
        for (text, reason) in [
            ("", build),
            ("skills.environment_builds = \"never\"", no_build),
            ("skills.build_disk = \"512MiB\"", no_build),
        ] {
            let line = check_space(&config(text), GIB - 1, Some(100_000));
            assert_eq!(line.state, CheckState::Warning, "{line:?}");
            assert!(line.finding.contains(reason), "{line:?}");
        }
    }
}
