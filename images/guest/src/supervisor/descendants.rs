//! Finds and kills process trees through `/proc`. No snapshot of `/proc` is atomic, so a kill is a loop: stop all
//! processes found until no new one appears, since a stopped process cannot fork, then kill them.

use std::collections::{HashMap, HashSet};
use std::fs;

use nix::libc::c_int;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use crate::sys;

/// Flag in `/proc/PID/stat` of a process that exits (include/linux/sched.h).
const PF_EXITING: u32 = 0x4;
/// Maximum number of rounds of stops before the first kill. By then a fork bomb has reached the pids limit.
const STOP_ROUNDS_MAX: usize = 32;

/// Fields of `/proc/PID/stat`.
struct ProcessStat {
    parent: Pid,
    /// `true` if the process has ended or is about to.
    ends: bool,
}

/// Returns every process below `root`, except those in `skip` and the processes below them.
pub(crate) fn find_descendants(root: Pid, skip: &HashSet<Pid>) -> Vec<Pid> {
    let mut children: HashMap<Pid, Vec<Pid>> = HashMap::new();
    for (pid, parent) in list_processes() {
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

/// Sends a signal to every process below `root`.
pub(crate) fn signal_tree(root: Pid, skip: &HashSet<Pid>, signal: c_int) {
    for pid in find_descendants(root, skip) {
        sys::send_signal(pid, signal);
    }
}

/// Makes one pass of killing all processes below `root`. Callers repeat it until there are no children.
pub(crate) fn kill_tree(root: Pid, skip: &HashSet<Pid>) {
    kill_tree_if(root, skip, || true);
}

/// Makes one pass like [`kill_tree`], but kills only processes found before a `sure` that returned `true`. Stops
/// looking at the first `false`.
pub(crate) fn kill_tree_if(root: Pid, skip: &HashSet<Pid>, sure: impl Fn() -> bool) {
    let mut stopped = HashSet::new();
    for _ in 0..STOP_ROUNDS_MAX {
        let mut any_new = false;
        let found = find_descendants(root, skip);
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

/// Returns all visible processes with their parents.
fn list_processes() -> Vec<(Pid, Pid)> {
    let Ok(entries) = fs::read_dir("/proc") else {
        return Vec::new();
    };
    entries
        .filter_map(|entry| {
            let pid: i32 = entry.ok()?.file_name().to_str()?.parse().ok()?;
            let pid = Pid::from_raw(pid);
            Some((pid, read_process_stat(pid)?.parent))
        })
        .collect()
}

/// Returns `true` if the process is not about to end, so that its children are still its own.
pub(crate) fn is_running(pid: Pid) -> bool {
    read_process_stat(pid).is_some_and(|stat| !stat.ends)
}

fn read_process_stat(pid: Pid) -> Option<ProcessStat> {
    ProcessStat::of(&fs::read(format!("/proc/{pid}/stat")).ok()?)
}

impl ProcessStat {
    /// Parses `/proc/PID/stat`. Its second field is the program's name in parentheses, which may itself contain spaces
    /// and parentheses. State, parent and, four fields on, flags follow.
    fn of(stat: &[u8]) -> Option<Self> {
        let end = stat.iter().rposition(|byte| *byte == b')')?;
        let rest = str::from_utf8(stat.get(end + 1..)?).ok()?;
        let mut fields = rest.split_ascii_whitespace();
        let state = fields.next()?;
        let parent = fields.next()?.parse().ok()?;
        // The kernel sets the flag before it hands children on, and the state after it. Some kernels report no flags.
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
            let found =
                ProcessStat::of(stat.as_bytes()).map(|found| (found.parent.as_raw(), found.ends));
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
