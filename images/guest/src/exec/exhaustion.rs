//! Detects which resource of the whole workspace ran out while an exec ran. The kernel counts such events in the
//! container's cgroup, which is visible beneath `/sys/fs/cgroup`. Without the counters, no reason is reported.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};

use skilld_proto::int64_from_count;
use skilld_proto::v1::{self, ExitReason};

use crate::sys::ExitStatus;

/// Upper bound of the counter files' size, in bytes.
const FILE_BYTES: usize = 1024;
/// Exit code of a shell whose command was ended by signal 9.
const KILLED_CODE: i32 = 128 + nix::libc::SIGKILL;
/// Files with the number of processes that the kernel killed for memory: cgroup v2, then v1.
const OOM: [&str; 2] = ["memory.events", "memory/memory.oom_control"];
/// Files with the number of forks that the pids limit refused: cgroup v2, then v1.
const PIDS: [&str; 2] = ["pids.events", "pids/pids.events"];

/// Detects OOM kills and hits of the pids limit, by the cgroup counters of the workspace.
#[derive(Debug)]
pub(crate) struct ExhaustionDetector {
    oom: Option<CgroupCounter>,
    pids: Option<CgroupCounter>,
    /// Number of execs that started.
    begun: AtomicU64,
}

/// Counter in a file of the cgroup.
#[derive(Debug)]
struct CgroupCounter {
    file: File,
    key: &'static str,
}

/// Values of both counters; `None` where the counter does not exist.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct CounterValues {
    oom: Option<u64>,
    pids: Option<u64>,
}

/// Counters at the start of an exec.
#[derive(Debug, Clone, Copy)]
pub(crate) struct StartSnapshot {
    counters: CounterValues,
    /// `true` if other execs ran at the start.
    crowded: bool,
    begun: u64,
}

impl CgroupCounter {
    /// Opens the first of two files that exists; `None` if neither has the key.
    fn open(cgroup: &Path, paths: [&str; 2], key: &'static str) -> Option<Self> {
        let mut files = paths
            .iter()
            .filter_map(|path| File::open(cgroup.join(path)).ok());
        let counter = files.next().map(|file| Self { file, key })?;
        counter.read().map(|_| counter)
    }

    /// Reads the counter; `None` if the file does not have it.
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

impl ExhaustionDetector {
    /// Opens the counters of the cgroup that is mounted at `cgroup`, as far as they exist.
    pub(crate) fn open(cgroup: &Path) -> Self {
        Self {
            oom: CgroupCounter::open(cgroup, OOM, "oom_kill"),
            pids: CgroupCounter::open(cgroup, PIDS, "max"),
            begun: AtomicU64::new(0),
        }
    }

    /// Takes a snapshot before an exec starts. `crowded` is `true` if other execs run.
    pub(crate) fn snapshot(&self, crowded: bool) -> StartSnapshot {
        StartSnapshot {
            counters: self.counters(),
            crowded,
            begun: self.begun.fetch_add(1, Ordering::Relaxed) + 1,
        }
    }

    /// Reads both counters.
    fn counters(&self) -> CounterValues {
        let read = |counter: &Option<CgroupCounter>| counter.as_ref().and_then(CgroupCounter::read);
        CounterValues {
            oom: read(&self.oom),
            pids: read(&self.pids),
        }
    }

    /// Returns the number of processes of the workspace that the kernel killed for memory since the snapshot; `None`
    /// without the counter. Processes of other execs count too.
    fn oom_kills(&self, before: StartSnapshot) -> Option<u64> {
        count_since(before.counters.oom, self.oom.as_ref())
    }

    /// Returns the number of forks in the workspace that the pids limit refused since the snapshot; `None` without the
    /// counter. Forks of other execs count too.
    fn refused_forks(&self, before: StartSnapshot) -> Option<u64> {
        count_since(before.counters.pids, self.pids.as_ref())
    }

    /// Adds both numbers to the result of an exec.
    pub(crate) fn add_counts(
        &self,
        result: v1::ExecResult,
        before: StartSnapshot,
    ) -> v1::ExecResult {
        v1::ExecResult {
            oom_kills: self.oom_kills(before).map(int64_from_count),
            refused_forks: self.refused_forks(before).map(int64_from_count),
            ..result
        }
    }

    /// Returns the resource that ran out during a failed exec, if any. The counters cover the whole workspace: if
    /// other execs ran, the killed process may have been theirs. Then only an exec that was itself killed, or reports
    /// it as shells do, counts as out of memory. `is_disk_full` is `true` if a disk had no room.
    pub(crate) fn reason(
        &self,
        exit: ExitStatus,
        before: StartSnapshot,
        is_disk_full: bool,
    ) -> Option<ExitReason> {
        let killed = exit.signaled && exit.code == nix::libc::SIGKILL;
        let failed = !exit.signaled && exit.code != 0;
        if !killed && !failed {
            return None;
        }
        let alone = !before.crowded && before.begun == self.begun.load(Ordering::Relaxed);
        let theirs = killed || exit.code == KILLED_CODE;
        let (before, now) = (before.counters, self.counters());
        let grew =
            |before: Option<u64>, now: Option<u64>| before.zip(now).is_some_and(|(b, n)| n > b);
        if (alone || theirs) && grew(before.oom, now.oom) {
            Some(ExitReason::OomKilled)
        } else if failed && grew(before.pids, now.pids) {
            Some(ExitReason::PidsLimit)
        } else if failed && is_disk_full {
            Some(ExitReason::DiskFull)
        } else {
            None
        }
    }
}

/// Returns how much a counter has grown; 0 without it.
fn count_since(before: Option<u64>, counter: Option<&CgroupCounter>) -> Option<u64> {
    let now = counter.and_then(CgroupCounter::read);
    let counted = before.zip(now);
    counted.map(|(before, now)| now.saturating_sub(before))
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    const FAILED: ExitStatus = ExitStatus {
        code: 1,
        signaled: false,
        user_us: 0,
        sys_us: 0,
        peak_bytes: 0,
    };
    const KILLED: ExitStatus = ExitStatus {
        code: 9,
        signaled: true,
        ..FAILED
    };

    /// Layout of a cgroup's counter files for tests.
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
    fn exhausted_resources_are_reported_with_both_cgroup_layouts() {
        for layout in [V1, V2] {
            let cgroup = tempfile::tempdir().expect("a directory");
            write(cgroup.path(), &layout, 4, 10);
            let detector = ExhaustionDetector::open(cgroup.path());
            let before = detector.snapshot(false);
            assert_eq!(
                (before.counters.oom, before.counters.pids),
                (Some(4), Some(10)),
                "{}",
                layout.oom
            );
            let reason = |exit| detector.reason(exit, before, false);
            assert_eq!((reason(FAILED), reason(KILLED)), (None, None));
            // A full disk kills nothing either.
            let on_full_disk = |exit| detector.reason(exit, before, true);
            let full = Some(ExitReason::DiskFull);
            assert_eq!((on_full_disk(FAILED), on_full_disk(KILLED)), (full, None));

            write(cgroup.path(), &layout, 4, 11);
            // The pids limit kills nothing, so a killed process was not ended by it.
            assert_eq!(
                (reason(FAILED), reason(KILLED)),
                (Some(ExitReason::PidsLimit), None)
            );

            write(cgroup.path(), &layout, 5, 11);
            let oom = Some(ExitReason::OomKilled);
            assert_eq!((reason(FAILED), reason(KILLED)), (oom, oom));
            // A success, and a signal of the program's own.
            let success = ExitStatus { code: 0, ..FAILED };
            let segv = ExitStatus { code: 11, ..KILLED };
            assert_eq!((reason(success), reason(segv)), (None, None));
            let by_shell = ExitStatus {
                code: 137,
                ..FAILED
            };
            assert_eq!(reason(by_shell), oom);

            // First beside an exec that began earlier, then beside one that began later.
            for crowded in [true, false] {
                let before = detector.snapshot(crowded);
                if !crowded {
                    detector.snapshot(true);
                }
                let reason = |exit| detector.reason(exit, before, false);
                let grown = if crowded { 6 } else { 7 };
                write(cgroup.path(), &layout, grown, 11);
                assert_eq!((reason(by_shell), reason(KILLED)), (oom, oom));
                assert_eq!(reason(FAILED), None, "another's process was killed");
            }
        }
    }

    #[test]
    fn both_cgroup_layouts_count_kills_and_refused_forks() {
        for layout in [V1, V2] {
            let cgroup = tempfile::tempdir().expect("a directory");
            write(cgroup.path(), &layout, 4, 10);
            let detector = ExhaustionDetector::open(cgroup.path());
            let count = |before| {
                let kills = detector.oom_kills(before).expect("counted");
                (kills, detector.refused_forks(before).expect("counted"))
            };
            let before = detector.snapshot(false);
            assert_eq!(count(before), (0, 0), "{}", layout.oom);
            write(cgroup.path(), &layout, 6, 13);
            assert_eq!(count(before), (2, 3), "{}", layout.oom);
            // An exec that starts now, beside the first one.
            let later = detector.snapshot(true);
            write(cgroup.path(), &layout, 7, 14);
            assert_eq!((count(before), count(later)), ((3, 4), (1, 1)));
            // A counter that was reset claims nothing.
            write(cgroup.path(), &layout, 0, 0);
            assert_eq!(count(before), (0, 0), "{}", layout.oom);
        }
    }

    #[test]
    fn missing_counters_claim_nothing() {
        let cgroup = tempfile::tempdir().expect("a directory");
        let check = || {
            let detector = ExhaustionDetector::open(cgroup.path());
            let before = detector.snapshot(false);
            assert_eq!((before.counters.oom, before.counters.pids), (None, None));
            assert_eq!(detector.reason(FAILED, before, false), None);
            assert_eq!(detector.reason(KILLED, before, false), None);
            let counts = (detector.oom_kills(before), detector.refused_forks(before));
            assert_eq!(counts, (None, None));
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
}
