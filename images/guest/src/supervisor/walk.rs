//! Finds and ends process trees by `/proc`. A snapshot of it is never atomic, so ending a tree is a loop:
//! stop what is seen until nothing new appears (what is stopped cannot fork), then kill it all.

use std::collections::{HashMap, HashSet};
use std::fs;

use nix::libc::c_int;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use crate::sys;

/// Of `/proc/PID/stat`'s flags (include/linux/sched.h).
const PF_EXITING: u32 = 0x4;
/// Rounds of stopping before the first kill; a fork bomb has run into the pids limit by then.
const STOP_ROUNDS_MAX: usize = 32;

/// What is read of one process.
struct Stat {
    parent: Pid,
    /// It has ended or is about to.
    ends: bool,
}

/// Every process below `root`, without those in `skip` and what is below them.
pub(crate) fn descendants(root: Pid, skip: &HashSet<Pid>) -> Vec<Pid> {
    let mut children: HashMap<Pid, Vec<Pid>> = HashMap::new();
    for (pid, parent) in processes() {
        children.entry(parent).or_default().push(pid);
    }
    let mut found = Vec::new();
    let mut open = vec![root];
    while let Some(parent) = open.pop() {
        for child in children.remove(&parent).unwrap_or_default() {
            if !skip.contains(&child) {
                found.push(child);
                open.push(child);
            }
        }
    }
    found
}

/// Sends a signal to everything below `root`.
pub(crate) fn signal_tree(root: Pid, skip: &HashSet<Pid>, signal: c_int) {
    for pid in descendants(root, skip) {
        sys::send_signal(pid, signal);
    }
}

/// One pass of ending everything below `root`; to be repeated until there are no children.
pub(crate) fn kill_tree(root: Pid, skip: &HashSet<Pid>) {
    kill_tree_if(root, skip, || true);
}

/// The same, of what was found before `sure` said that all of it is meant: at a no it looks no further.
pub(crate) fn kill_tree_if(root: Pid, skip: &HashSet<Pid>, sure: impl Fn() -> bool) {
    let mut stopped = HashSet::new();
    for _ in 0..STOP_ROUNDS_MAX {
        let mut any_new = false;
        let found = descendants(root, skip);
        if !sure() {
            break;
        }
        for pid in found {
            if stopped.insert(pid) {
                any_new = true;
                let _gone = kill(pid, Signal::SIGSTOP);
            }
        }
        if !any_new {
            break;
        }
    }
    for pid in stopped {
        let _gone = kill(pid, Signal::SIGKILL);
    }
}

/// All processes that can be seen, with their parents.
fn processes() -> Vec<(Pid, Pid)> {
    let Ok(entries) = fs::read_dir("/proc") else {
        return Vec::new();
    };
    entries
        .filter_map(|entry| {
            let pid: i32 = entry.ok()?.file_name().to_str()?.parse().ok()?;
            let pid = Pid::from_raw(pid);
            Some((pid, stat(pid)?.parent))
        })
        .collect()
}

/// It does not end yet: what is below it was not handed on before this looked.
pub(crate) fn is_running(pid: Pid) -> bool {
    stat(pid).is_some_and(|stat| !stat.ends)
}

fn stat(pid: Pid) -> Option<Stat> {
    Stat::of(&fs::read(format!("/proc/{pid}/stat")).ok()?)
}

impl Stat {
    /// The second field of `/proc/PID/stat` is the program's name in parentheses, which may itself have spaces and
    /// parentheses in it; the state, the parent and, four fields on, the flags follow.
    fn of(stat: &[u8]) -> Option<Self> {
        let end = stat.iter().rposition(|byte| *byte == b')')?;
        let rest = str::from_utf8(stat.get(end + 1..)?).ok()?;
        let mut fields = rest.split_ascii_whitespace();
        let state = fields.next()?;
        let parent = fields.next()?.parse().ok()?;
        // The kernel sets the flag before it hands children on, and the state after it; not every kernel tells flags.
        let flags: u32 = fields
            .nth(4)
            .and_then(|flags| flags.parse().ok())
            .unwrap_or(0);
        Some(Self {
            parent: Pid::from_raw(parent),
            ends: matches!(state, "Z" | "X") || flags & PF_EXITING != 0,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_hostile_program_name_does_not_hide_the_parent() {
        let check = |stat: &str, expected: Option<(i32, bool)>| {
            let found = Stat::of(stat.as_bytes()).map(|found| (found.parent.as_raw(), found.ends));
            assert_eq!(found, expected, "{stat}");
        };
        check("12 (sh) S 7 12 12 0", Some((7, false)));
        check("12 (a) S 1 (b)) R 9 12", Some((9, false)));
        check("12 (sh) Z 7 12 12 0 -1 0 0", Some((7, true)));
        check("12 (sh) R 7 12 12 0 -1 4194304 0", Some((7, false)));
        check("12 (sh) R 7 12 12 0 -1 4194308 0", Some((7, true)));
        check("12 (sh", None);
        check("", None);
    }
}
