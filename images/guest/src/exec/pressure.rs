//! What the workspace as a whole ran out of while an exec ran: the kernel counts it in the container's cgroup,
//! which the container sees read-only beneath `/sys/fs/cgroup`. Where it does not, nothing is claimed.

use std::fs::File;
use std::os::fd::BorrowedFd;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};

use nix::sys::statvfs::fstatvfs;
use skilld_proto::v1::exec_result::Reason;

use crate::sys::Exit;

/// Longer than any of these files.
const FILE_BYTES: usize = 1024;
/// A shell's exit code when signal 9 ended what it ran.
const KILLED_CODE: i32 = 128 + nix::libc::SIGKILL;
/// Where the kernel counts processes that it killed for memory: cgroup v2, then v1.
const OOM: [&str; 2] = ["memory.events", "memory/memory.oom_control"];
/// Where it counts forks that it refused.
const PIDS: [&str; 2] = ["pids.events", "pids/pids.events"];

/// The workspace's counters, opened once: nobody can put another file in their place later.
#[derive(Debug)]
pub(crate) struct Pressure {
    oom: Option<Counter>,
    pids: Option<Counter>,
    /// Execs that began.
    begun: AtomicU64,
}

#[derive(Debug)]
struct Counter {
    file: File,
    key: &'static str,
}

/// Where the counters stood.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Marks {
    oom: Option<u64>,
    pids: Option<u64>,
}

/// How it was before an exec started.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Before {
    marks: Marks,
    /// It was not the only one.
    crowded: bool,
    begun: u64,
}

impl Counter {
    fn open(cgroup: &Path, paths: [&str; 2], key: &'static str) -> Option<Self> {
        let mut files = paths
            .iter()
            .filter_map(|path| File::open(cgroup.join(path)).ok());
        let counter = files.next().map(|file| Self { file, key })?;
        counter.read().map(|_| counter)
    }

    fn read(&self) -> Option<u64> {
        let mut bytes = [0; FILE_BYTES];
        let length = self.file.read_at(&mut bytes, 0).ok()?;
        let text = str::from_utf8(bytes.get(..length)?).ok()?;
        text.lines().find_map(|line| {
            let (key, value) = line.split_once(' ')?;
            (key == self.key).then(|| value.trim().parse().ok())?
        })
    }
}

impl Pressure {
    /// Opens the counters of the cgroup that is mounted there, as far as they exist.
    pub(crate) fn open(cgroup: &Path) -> Self {
        Self {
            oom: Counter::open(cgroup, OOM, "oom_kill"),
            pids: Counter::open(cgroup, PIDS, "max"),
            begun: AtomicU64::new(0),
        }
    }

    /// How it is before an exec starts, beside others or not.
    pub(crate) fn begin(&self, crowded: bool) -> Before {
        Before {
            marks: self.marks(),
            crowded,
            begun: self.begun.fetch_add(1, Ordering::Relaxed) + 1,
        }
    }

    fn marks(&self) -> Marks {
        let read = |counter: &Option<Counter>| counter.as_ref().and_then(Counter::read);
        Marks {
            oom: read(&self.oom),
            pids: read(&self.pids),
        }
    }

    /// Why an exec failed that nobody ended, if the workspace ran out of something since `before`. The counters are the
    /// workspace's: while others ran, a process that was killed for memory may have been theirs, and only an exec that
    /// itself ended by that kill, or says so as shells do, is said to have been ended by it.
    pub(crate) fn reason(
        &self,
        exit: Exit,
        before: Before,
        workspace: BorrowedFd<'_>,
    ) -> Option<Reason> {
        let killed = exit.signaled && exit.code == nix::libc::SIGKILL;
        let failed = !exit.signaled && exit.code != 0;
        if !killed && !failed {
            return None;
        }
        let alone = !before.crowded && before.begun == self.begun.load(Ordering::Relaxed);
        let theirs = killed || exit.code == KILLED_CODE;
        let (before, now) = (before.marks, self.marks());
        let grew =
            |before: Option<u64>, now: Option<u64>| before.zip(now).is_some_and(|(b, n)| n > b);
        if (alone || theirs) && grew(before.oom, now.oom) {
            Some(Reason::OomKilled)
        } else if failed && grew(before.pids, now.pids) {
            Some(Reason::PidsLimit)
        } else if failed && is_full(workspace) {
            Some(Reason::DiskFull)
        } else {
            None
        }
    }
}

/// No byte, or no file, can be added.
fn is_full(directory: BorrowedFd<'_>) -> bool {
    let Ok(space) = fstatvfs(directory) else {
        return false;
    };
    let no_files = space.files() > 0 && space.files_available() == 0;
    space.blocks() > 0 && (space.blocks_available() == 0 || no_files)
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::fd::AsFd;

    use super::*;

    const FAILED: Exit = Exit {
        code: 1,
        signaled: false,
        user_us: 0,
        sys_us: 0,
        peak_bytes: 0,
    };
    const KILLED: Exit = Exit {
        code: 9,
        signaled: true,
        ..FAILED
    };

    /// A cgroup with these files, and what is to be written to make its counters grow.
    struct Layout {
        oom: &'static str,
        oom_text: fn(u64) -> String,
        pids: &'static str,
    }

    const V1: Layout = Layout {
        oom: "memory/memory.oom_control",
        oom_text: |count| format!("oom_kill_disable 7\nunder_oom 3\noom_kill {count}\n"),
        pids: "pids/pids.events",
    };
    const V2: Layout = Layout {
        oom: "memory.events",
        oom_text: |count| {
            format!("low 1\nhigh 2\nmax 88\noom 9\noom_kill {count}\noom_group_kill 5\n")
        },
        pids: "pids.events",
    };

    fn write(cgroup: &Path, layout: &Layout, oom: u64, pids: u64) {
        for (path, text) in [
            (layout.oom, (layout.oom_text)(oom)),
            (layout.pids, format!("max {pids}\n")),
        ] {
            let path = cgroup.join(path);
            fs::create_dir_all(path.parent().expect("a parent")).expect("made");
            fs::write(path, text).expect("written");
        }
    }

    #[test]
    fn what_the_workspace_ran_out_of_is_told_with_both_layouts() {
        for layout in [V1, V2] {
            let cgroup = tempfile::tempdir().expect("a directory");
            let roomy = File::open(cgroup.path()).expect("opened");
            write(cgroup.path(), &layout, 4, 10);
            let pressure = Pressure::open(cgroup.path());
            let before = pressure.begin(false);
            assert_eq!(
                (before.marks.oom, before.marks.pids),
                (Some(4), Some(10)),
                "{}",
                layout.oom
            );
            let reason = |exit| pressure.reason(exit, before, roomy.as_fd());
            assert_eq!((reason(FAILED), reason(KILLED)), (None, None));

            write(cgroup.path(), &layout, 4, 11);
            // Nobody's limit kills: who was killed was killed by somebody.
            assert_eq!(
                (reason(FAILED), reason(KILLED)),
                (Some(Reason::PidsLimit), None)
            );

            write(cgroup.path(), &layout, 5, 11);
            let oom = Some(Reason::OomKilled);
            assert_eq!((reason(FAILED), reason(KILLED)), (oom, oom));
            // It ended well, or by a signal that is its own.
            let success = Exit { code: 0, ..FAILED };
            let segv = Exit { code: 11, ..KILLED };
            assert_eq!((reason(success), reason(segv)), (None, None));
            let by_shell = Exit {
                code: 137,
                ..FAILED
            };
            assert_eq!(reason(by_shell), oom);

            // Beside one that began before it, and then beside one that began after it.
            for crowded in [true, false] {
                let before = pressure.begin(crowded);
                if !crowded {
                    pressure.begin(true);
                }
                let reason = |exit| pressure.reason(exit, before, roomy.as_fd());
                let grown = if crowded { 6 } else { 7 };
                write(cgroup.path(), &layout, grown, 11);
                assert_eq!((reason(by_shell), reason(KILLED)), (oom, oom));
                assert_eq!(reason(FAILED), None, "another's process was killed");
            }
        }
    }

    #[test]
    fn without_counters_nothing_is_claimed() {
        let cgroup = tempfile::tempdir().expect("a directory");
        let roomy = File::open(cgroup.path()).expect("opened");
        let check = || {
            let pressure = Pressure::open(cgroup.path());
            let before = pressure.begin(false);
            assert_eq!((before.marks.oom, before.marks.pids), (None, None));
            assert_eq!(pressure.reason(FAILED, before, roomy.as_fd()), None);
            assert_eq!(pressure.reason(KILLED, before, roomy.as_fd()), None);
        };
        check();
        for text in [
            "",
            "oom_kill",
            "oom_kill -1\nmax x\n",
            "oom_kill_disable 1\n",
            "\u{ff}",
        ] {
            fs::write(cgroup.path().join("memory.events"), text).expect("written");
            fs::write(cgroup.path().join("pids.events"), text).expect("written");
            check();
        }
    }

    #[test]
    fn a_directory_with_space_is_not_full() {
        let directory = tempfile::tempdir().expect("a directory");
        assert!(!is_full(
            File::open(directory.path()).expect("opened").as_fd()
        ));
        // No file system of its own, without blocks or files to count.
        assert!(!is_full(File::open("/proc").expect("opened").as_fd()));
    }
}
