//! Evaluates the profile's rules as the kernel does: entries of one system call are alternatives, all conditions of an
//! entry must hold, and arguments have 64 bits.

use super::*;
use serde::Deserialize;

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Profile {
    default_action: String,
    arch_map: Vec<Arch>,
    syscalls: Vec<Entry>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Arch {
    architecture: String,
    sub_architectures: Vec<String>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct Entry {
    names: Vec<String>,
    action: String,
    #[serde(default)]
    errno_ret: u32,
    #[serde(default)]
    args: Vec<Condition>,
    #[serde(default, rename = "comment")]
    _comment: String,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct Condition {
    index: usize,
    value: u64,
    value_two: u64,
    op: String,
}

impl Condition {
    fn holds(&self, args: [u64; 6]) -> bool {
        let arg = args[self.index];
        match self.op.as_str() {
            "SCMP_CMP_EQ" => arg == self.value,
            "SCMP_CMP_MASKED_EQ" => arg & self.value == self.value_two,
            other => panic!(
                "{other} is not used: NE cannot be combined and ignores how the kernel truncates"
            ),
        }
    }
}

fn load() -> Profile {
    serde_json::from_str(profile()).expect("the profile is JSON")
}

impl Profile {
    fn allows(&self, name: &str, args: &[u64]) -> bool {
        let mut all = [0; 6];
        all[..args.len()].copy_from_slice(args);
        self.syscalls.iter().any(|entry| {
            entry.action == "SCMP_ACT_ALLOW"
                && entry.names.iter().any(|candidate| candidate == name)
                && entry.args.iter().all(|condition| condition.holds(all))
        })
    }
}

impl Profile {
    /// Returns the error number of a denied call, or `None` for EPERM. At most one rule may apply.
    fn errno(&self, name: &str, args: &[u64]) -> Option<u32> {
        let mut all = [0; 6];
        all[..args.len()].copy_from_slice(args);
        let applies = |entry: &&Entry| {
            entry.names.iter().any(|candidate| candidate == name)
                && entry.args.iter().all(|condition| condition.holds(all))
        };
        let entries: Vec<_> = self.syscalls.iter().filter(applies).collect();
        assert!(entries.len() <= 1, "{name} {args:?} has several rules");
        let entry = entries.first()?;
        assert_eq!(entry.action, "SCMP_ACT_ERRNO", "{name} {args:?} is allowed");
        Some(entry.errno_ret)
    }
}

/// Offset that does not change an argument for a kernel that reads only 32 bits of it.
const UPPER: u64 = 1 << 32;

#[test]
fn unlisted_calls_fail_and_only_two_architectures_are_allowed() {
    let profile = load();
    // Without errnoRet, all versions of Docker and runc return EPERM.
    assert_eq!(profile.default_action, "SCMP_ACT_ERRNO");
    let names: Vec<_> = profile
        .arch_map
        .iter()
        .map(|arch| arch.architecture.as_str())
        .collect();
    assert_eq!(names, ["SCMP_ARCH_X86_64", "SCMP_ARCH_AARCH64"]);
    assert!(
        profile
            .arch_map
            .iter()
            .all(|arch| arch.sub_architectures.is_empty())
    );
}

#[test]
fn dangerous_calls_are_not_listed() {
    let profile = load();
    for name in "ptrace process_vm_readv process_vm_writev kcmp pidfd_getfd name_to_handle_at open_by_handle_at \
                 memfd_secret vmsplice modify_ldt userfaultfd io_uring_setup io_uring_enter io_uring_register \
                 fanotify_init fanotify_mark quotactl quotactl_fd add_key keyctl request_key setns unshare mount \
                 umount umount2 mount_setattr move_mount open_tree fsopen fsconfig fsmount fspick pivot_root chroot \
                 bpf perf_event_open syslog acct reboot swapon swapoff init_module finit_module delete_module \
                 kexec_load kexec_file_load iopl ioperm mbind set_mempolicy migrate_pages move_pages process_madvise \
                 clock_settime settimeofday sethostname setdomainname vhangup lookup_dcookie socketcall"
        .split_whitespace()
    {
        let entries: Vec<_> = profile.syscalls.iter().filter(|entry| entry.names.iter().any(|n| n == name)).collect();
        assert!(entries.is_empty(), "{name}");
    }
}

#[test]
fn each_call_is_listed_once_unless_its_arguments_are_checked() {
    let profile = load();
    let mut free = std::collections::BTreeSet::new();
    for entry in profile
        .syscalls
        .iter()
        .filter(|entry| entry.args.is_empty())
    {
        for name in &entry.names {
            assert!(free.insert(name.clone()), "{name} stands twice");
        }
    }
    for entry in profile
        .syscalls
        .iter()
        .filter(|entry| !entry.args.is_empty())
    {
        // runc treats two conditions on one argument of an entry as alternatives; crun requires both.
        let mut indices: Vec<_> = entry.args.iter().map(|condition| condition.index).collect();
        indices.dedup();
        assert_eq!(indices.len(), entry.args.len(), "{:?}", entry.names);
        for name in &entry.names {
            assert!(
                !free.contains(name),
                "{name} is also allowed without conditions"
            );
        }
    }
}

#[test]
fn sockets_are_local_tcp_or_udp() {
    let profile = load();
    let (stream, datagram) = (1, 2);
    let (cloexec, nonblock) = (0o2_000_000, 0o4000);
    for family in 0..64 {
        for kind in 0..16 {
            for protocol in [0, 1, 6, 17, 33, 132, 136, 255, 262] {
                let inet = matches!(
                    (family, kind, protocol),
                    (2 | 10, 1, 0 | 6) | (2 | 10, 2, 0 | 17)
                );
                let allowed = profile.allows("socket", &[family, kind, protocol]);
                assert_eq!(allowed, family == 1 || inet, "{family} {kind} {protocol}");
            }
        }
    }
    for kind in [stream | cloexec, datagram | nonblock | cloexec] {
        assert!(profile.allows("socket", &[2, kind, 0]), "{kind:o}");
        assert!(!profile.allows("socket", &[2 | UPPER, kind, 0]));
        assert!(!profile.allows("socket", &[2, kind, 262 | UPPER]));
    }
    let (alg, vsock) = (38, 40);
    for family in [alg | UPPER, vsock | UPPER, 16 | UPPER] {
        assert!(!profile.allows("socket", &[family, 5, 0]), "{family}");
    }
    assert!(profile.allows("socketpair", &[1, 1, 0]));
    assert!(!profile.allows("socketpair", &[30, 1, 0]));
}

#[test]
fn calls_that_flush_host_disks_succeed_without_effect() {
    let profile = load();
    for name in ["sync", "syncfs", "fsync", "fdatasync"] {
        assert_eq!(profile.errno(name, &[0]), Some(0), "{name}");
    }
    let (asynchronous, invalidate, synchronous) = (1, 2, 4);
    for flags in [0, asynchronous, asynchronous | invalidate] {
        assert!(profile.allows("msync", &[0, 4096, flags]), "{flags}");
    }
    for flags in [synchronous, synchronous | invalidate, synchronous | UPPER] {
        assert!(!profile.allows("msync", &[0, 4096, flags]), "{flags}");
        assert_eq!(
            profile.errno("msync", &[0, 4096, flags]),
            Some(0),
            "{flags}"
        );
    }
}

#[test]
fn optional_calls_fail_with_enosys() {
    let profile = load();
    let (enosys, eprotonosupport, eafnosupport) = (38, 93, 97);
    for name in [
        "io_setup",
        "io_submit",
        "io_getevents",
        "io_pgetevents",
        "io_cancel",
        "io_destroy",
    ] {
        assert_eq!(profile.errno(name, &[1, 0]), Some(enosys), "{name}");
    }
    let (netlink, mptcp, udp_lite) = (16, 262, 136);
    for protocol in [0, 4, 9, 15] {
        assert_eq!(
            profile.errno("socket", &[netlink, 3, protocol]),
            Some(eafnosupport)
        );
    }
    for family in [2, 10] {
        assert_eq!(
            profile.errno("socket", &[family, 1, mptcp]),
            Some(eprotonosupport)
        );
        assert_eq!(
            profile.errno("socket", &[family, 2, udp_lite]),
            Some(eprotonosupport)
        );
    }
    // Packet sockets, AF_ALG and AF_VSOCK fail with EPERM like all other calls.
    for family in [17, 38, 40] {
        assert_eq!(profile.errno("socket", &[family, 3, 0]), None);
    }
}

#[test]
fn new_namespaces_are_denied_and_clone3_fails_with_enosys() {
    let profile = load();
    let (thread, process) = (0x003d_0f00, 17);
    assert!(profile.allows("clone", &[thread]) && profile.allows("clone", &[process]));
    for flag in [
        0x0002_0000,
        0x0200_0000,
        0x0400_0000,
        0x0800_0000,
        0x1000_0000,
        0x2000_0000,
        0x4000_0000,
    ] {
        assert!(!profile.allows("clone", &[process | flag]), "{flag:x}");
        assert!(
            !profile.allows("clone", &[process | flag | UPPER]),
            "{flag:x}"
        );
    }
    let clone3: Vec<_> = profile
        .syscalls
        .iter()
        .filter(|entry| entry.names.iter().any(|n| n == "clone3"))
        .collect();
    assert_eq!(clone3.len(), 1);
    assert_eq!(
        (clone3[0].action.as_str(), clone3[0].errno_ret),
        ("SCMP_ACT_ERRNO", 38)
    );
}

#[test]
fn prlimit_is_allowed_only_for_the_calling_process() {
    let profile = load();
    assert!(profile.allows("prlimit64", &[0, 7]));
    for pid in [1, 2, 77, UPPER, UPPER | 1] {
        assert!(!profile.allows("prlimit64", &[pid, 7]), "{pid:x}");
    }
}

#[test]
fn commands_change_only_their_own_priority_and_thread_affinity() {
    let profile = load();
    type Args = fn(u64) -> Vec<u64>;
    let own: [(&str, Args); 4] = [
        ("sched_setparam", |pid| vec![pid]),
        ("sched_setscheduler", |pid| vec![pid]),
        ("setpriority", |pid| vec![0, pid]),
        ("ioprio_set", |pid| vec![1, pid]),
    ];
    let uppers = [0, UPPER, u64::MAX << 32, 1 << 63];
    for (name, args) in own {
        assert!(profile.allows(name, &args(0)), "{name}");
        for pid in (1..70_000).chain([0x1f_ffff, 0x20_0000, 0x3f_ffff]) {
            for upper in uppers {
                assert!(!profile.allows(name, &args(pid | upper)), "{name} {pid}");
            }
        }
    }
    for pid in (2..70_000).chain([0, 0x1f_ffff, 0x20_0000, 0x3f_ffff]) {
        assert!(profile.allows("sched_setaffinity", &[pid]), "{pid}");
    }
    for upper in uppers {
        let allowed = profile.allows("sched_setaffinity", &[1 | upper]);
        assert!(!allowed, "{upper:x}: pid 1");
    }
    assert!(!profile.allows("sched_setattr", &[0]));
    // With a group or user as the target they would affect the guest.
    for which in [1, 2] {
        assert!(!profile.allows("setpriority", &[which, 0]));
    }
    for which in [0, 2, 3] {
        assert!(!profile.allows("ioprio_set", &[which, 0]));
    }
}

#[test]
fn no_command_types_into_a_terminal() {
    let profile = load();
    let (sti, linux) = (0x5412, 0x541c);
    for command in [sti, linux] {
        for upper in [0, UPPER, u64::MAX << 32] {
            assert!(
                !profile.allows("ioctl", &[0, command | upper]),
                "{command:x}"
            );
        }
    }
    // Creating a terminal requires these two calls.
    let (unlock, number) = (0x4004_5431, 0x8004_5430);
    let others = [0x4004_5412, 0x8004_541c, 0xffff_ffff, 0x5412 << 16];
    for command in (0..0x1_0000).chain(others).chain([unlock, number]) {
        let expected = command != sti && command != linux;
        assert_eq!(
            profile.allows("ioctl", &[0, command]),
            expected,
            "{command:x}"
        );
    }
}

#[test]
fn calls_of_ordinary_programs_are_allowed() {
    let profile = load();
    for name in "read write openat2 execve vfork futex memfd_create splice landlock_create_ruleset landlock_add_rule \
                 landlock_restrict_self rseq membarrier futex_waitv pkey_alloc close_range seccomp fchmodat2 \
                 pidfd_open pidfd_send_signal epoll_pwait2 getrandom statx mknodat setsid prctl"
        .split_whitespace()
    {
        assert!(profile.allows(name, &[]), "{name}");
    }
    for persona in [0, 8, 0x2_0000, 0x2_0008, 0xffff_ffff] {
        assert!(profile.allows("personality", &[persona]));
    }
    // ADDR_NO_RANDOMIZE and READ_IMPLIES_EXEC.
    for persona in [0x4_0000, 0x40_0000] {
        assert!(!profile.allows("personality", &[persona]));
    }
}

#[test]
fn digest_is_computed_over_the_profile_bytes() {
    assert!(digest().starts_with("sha256:"));
    assert_eq!(digest().len(), 7 + 64);
    let again: String = Sha256::digest(profile())
        .iter()
        .map(|byte| format!("{byte:02x}"))
        .collect();
    assert!(digest().ends_with(&again));
}
