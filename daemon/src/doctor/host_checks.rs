//! Checks of kernel, user, limits and clock. Pure functions of facts and configuration.

use std::time::SystemTime;

use super::kernel_facts::{ClockFacts, KernelFacts};
use super::report::CheckLine;
use crate::config::Config;

/// Oldest kernel that has what guest and daemon use: openat2 and pidfd.
const KERNEL_MIN: (u32, u32) = (5, 6);
/// Controllers without which a container's limits are not enforced.
const CONTROLLERS: [&str; 3] = ["cpu", "memory", "pids"];
/// Number of descriptors that one connection of a client takes: its own, and one while a call waits.
const FILES_PER_CONNECTION: u64 = 2;
/// Number of descriptors that one guest takes.
const FILES_PER_GUEST: u64 = 4;
/// Number of descriptors for logs, skills, artifacts and Docker.
const FILES_OF_DAEMON: u64 = 512;
/// Value of an unlimited resource (RLIM_INFINITY).
const UNLIMITED: u64 = u64::MAX;

/// Checks the user of this process, which should be that of the daemon.
pub(super) fn check_user(kernel: &KernelFacts, user_name: Option<&str>) -> CheckLine {
    let (check, subject) = ("user", "user");
    if kernel.uid == 0 {
        return CheckLine::ok(check, subject, "root");
    }
    let name = match user_name {
        Some(name) => format!("{name} (uid {})", kernel.uid),
        None => format!("uid {}", kernel.uid),
    };
    let sockets = match &kernel.cgroup {
        Some((1, _)) => ", and socket buffers of containers are not limited (cgroup v1)",
        _ => "",
    };
    CheckLine::warning(
        check,
        subject,
        format!(
            "{name}, not root: commands get no CPU group of their own, so busy processes delay their guest{sockets}"
        ),
        "run skilld as root, or accept this; and run `skilld doctor` as the daemon's user, whose permissions it reports",
    )
}

/// Checks the kernel's version.
pub(super) fn check_kernel(kernel: &KernelFacts) -> CheckLine {
    let (check, subject) = ("kernel", "kernel");
    let (major, minor) = KERNEL_MIN;
    let remedy = format!("install Linux {major}.{minor} or later");
    let release = &kernel.release;
    match parse_release(release) {
        Some(version) if version >= KERNEL_MIN => {
            CheckLine::ok(check, subject, format!("Linux {release}"))
        }
        Some(_) => {
            let finding = format!("Linux {release} has no openat2 and pidfd");
            CheckLine::failed(check, subject, finding, remedy)
        }
        None => {
            let finding = format!("{release:?} is no release of Linux that skilld knows");
            CheckLine::warning(check, subject, finding, remedy)
        }
    }
}

/// Checks that the kernel has the control groups that enforce limits.
pub(super) fn check_cgroup(kernel: &KernelFacts) -> CheckLine {
    let (check, subject) = ("cgroup", "cgroup");
    let Some((version, controllers)) = &kernel.cgroup else {
        let finding = "the control groups of the kernel can't be read";
        return CheckLine::warning(check, subject, finding, "mount /proc and /sys/fs/cgroup");
    };
    let is_missing = |name: &&str| !controllers.iter().any(|there| there == name);
    let missing: Vec<&str> = CONTROLLERS.into_iter().filter(is_missing).collect();
    if missing.is_empty() {
        let note = if *version == 1 {
            "; v2 is preferred"
        } else {
            ""
        };
        let finding = format!("v{version} with {}{note}", CONTROLLERS.join(", "));
        return CheckLine::ok(check, subject, finding);
    }
    let missing = missing.join(", ");
    let remedy = match version {
        1 => "boot with the kernel parameters `cgroup_enable=memory swapaccount=1`, or with cgroup v2".to_owned(),
        _ => format!("delegate the controllers {missing} (systemd: `Delegate=`), or use a kernel that has them"),
    };
    let finding = format!("v{version} without {missing}: limits of containers are not enforced");
    CheckLine::failed(check, subject, finding, remedy)
}

/// Compares the limit of open files with what the configuration permits clients and containers to take.
pub(super) fn check_open_files(kernel: &KernelFacts, config: &Config) -> CheckLine {
    let (check, subject) = ("open_files", "open files");
    let number = |value: usize| u64::try_from(value).unwrap_or(u64::MAX);
    let slots = config
        .pools
        .iter()
        .fold(0, |sum: u64, pool| sum.saturating_add(number(pool.max)));
    let connections = number(config.server.connections_max);
    let needed = connections
        .saturating_mul(FILES_PER_CONNECTION)
        .saturating_add(slots.saturating_mul(FILES_PER_GUEST))
        .saturating_add(FILES_OF_DAEMON);
    let why = format!("{connections} connections and {slots} containers can take {needed}");
    match kernel.open_files_max {
        None => CheckLine::warning(
            check,
            subject,
            format!("the limit of this process can't be read; {why}"),
            format!(
                "set LimitNOFILE={needed} in the service, or run `ulimit -Hn {needed}` before skilld"
            ),
        ),
        Some(hard) if hard < needed => CheckLine::warning(
            check,
            subject,
            format!("this process may open {hard}, and {why}"),
            format!(
                "set LimitNOFILE={needed} in the service, or run `ulimit -Hn {needed}` before skilld"
            ),
        ),
        Some(UNLIMITED) => CheckLine::ok(check, subject, format!("unlimited; {why}")),
        Some(hard) => {
            let finding = format!("this process may open {hard}; {why}");
            CheckLine::ok(check, subject, finding)
        }
    }
}

/// Checks that the clock is not before the time at which this program was written, and that a time service keeps it.
pub(super) fn check_clock(clock: &ClockFacts) -> CheckLine {
    let (check, subject) = ("clock", "clock");
    let shown = |time: SystemTime| match time.duration_since(SystemTime::UNIX_EPOCH) {
        Ok(_) => humantime::format_rfc3339_seconds(time).to_string(),
        Err(_) => "a time before 1970".to_owned(),
    };
    let now = shown(clock.now);
    if let Some(program) = clock.program_time.filter(|program| clock.now < *program) {
        let finding = format!(
            "it shows {now}, and this program was written at {}: leases and certificates expire at wrong times",
            shown(program)
        );
        let remedy = "set the clock, for instance with `timedatectl set-ntp true`";
        return CheckLine::failed(check, subject, finding, remedy);
    }
    match clock.is_synchronised {
        Some(true) => CheckLine::ok(check, subject, format!("{now}, synchronised")),
        Some(false) => CheckLine::warning(
            check,
            subject,
            format!("{now}; the kernel reports that no time service keeps it right"),
            "run `timedatectl set-ntp true`, or install chrony",
        ),
        None => CheckLine::warning(
            check,
            subject,
            format!(
                "{now}; whether a time service keeps it right is not known: systemd's timedatectl does not answer"
            ),
            "see that a time service runs (`chronyc tracking`)",
        ),
    }
}

/// Returns major and minor version of a kernel's release.
fn parse_release(release: &str) -> Option<(u32, u32)> {
    let (major, rest) = release.split_once('.')?;
    let end = rest.find(|char: char| !char.is_ascii_digit());
    let minor = rest.get(..end.unwrap_or(rest.len()))?;
    Some((major.parse().ok()?, minor.parse().ok()?))
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::super::report::CheckState;
    use super::*;

    fn kernel() -> KernelFacts {
        let controllers = ["cpu", "memory", "pids"].map(str::to_owned).to_vec();
        KernelFacts {
            release: "6.1.0-18-amd64".to_owned(),
            cgroup: Some((2, controllers)),
            open_files_max: Some(65_536),
            ..KernelFacts::default()
        }
    }

    #[test]
    fn kernels_before_openat2_fail_and_strange_releases_are_warnings() {
        for (release, state) in [
            ("6.18.44-fc-v509", CheckState::Ok),
            ("5.6", CheckState::Ok),
            ("5.6rc1", CheckState::Ok),
            ("5.5.19", CheckState::Failed),
            ("4.19.0-26-amd64", CheckState::Failed),
            ("", CheckState::Warning),
            ("5", CheckState::Warning),
            ("5.x", CheckState::Warning),
            ("99999999999.1", CheckState::Warning),
            ("\u{1b}[2J", CheckState::Warning),
        ] {
            let release = release.to_owned();
            let line = check_kernel(&KernelFacts {
                release,
                ..kernel()
            });
            assert_eq!(line.state, state, "{line:?}");
        }
    }

    #[test]
    fn a_missing_controller_fails_with_the_remedy_of_its_version() {
        for (version, controllers, state, part) in [
            (2, "cpuset cpu io memory pids", CheckState::Ok, "v2 with"),
            (1, "cpu memory pids", CheckState::Ok, "v2 is preferred"),
            (1, "cpu pids", CheckState::Failed, "cgroup_enable=memory"),
            (
                2,
                "memory",
                CheckState::Failed,
                "delegate the controllers cpu, pids",
            ),
            (2, "", CheckState::Failed, "cpu, memory, pids"),
        ] {
            let controllers = controllers.split_whitespace().map(str::to_owned).collect();
            let line = check_cgroup(&KernelFacts {
                cgroup: Some((version, controllers)),
                ..kernel()
            });
            assert_eq!(line.state, state, "{line:?}");
            assert!(format!("{line:?}").contains(part), "{line:?}");
        }
        let line = check_cgroup(&KernelFacts {
            cgroup: None,
            ..kernel()
        });
        assert_eq!(line.state, CheckState::Warning);
    }

    #[test]
    fn a_user_other_than_root_is_told_what_is_lost() {
        assert_eq!(check_user(&kernel(), Some("root")).state, CheckState::Ok);
        let facts = KernelFacts {
            uid: 1000,
            cgroup: Some((1, Vec::new())),
            ..kernel()
        };
        let line = check_user(&facts, None);
        assert_eq!(line.state, CheckState::Warning);
        assert!(line.finding.contains("uid 1000, not root") && line.finding.contains("cgroup v1"));
        let facts = KernelFacts {
            uid: u32::MAX,
            ..kernel()
        };
        let line = check_user(&facts, Some("a"));
        assert!(!line.finding.contains("cgroup v1"), "{line:?}");
    }

    #[test]
    fn open_files_are_compared_with_connections_and_containers() {
        // 2 × 1000 + 4 × 80 + 512.
        let config = Config::from_toml("").expect("defaults").config;
        let state = |open_files_max| {
            let facts = KernelFacts {
                open_files_max,
                ..kernel()
            };
            check_open_files(&facts, &config).state
        };
        assert_eq!(state(Some(2832)), CheckState::Ok);
        assert_eq!(state(Some(2831)), CheckState::Warning);
        assert_eq!(state(Some(u64::MAX)), CheckState::Ok);
        assert_eq!(state(Some(0)), CheckState::Warning);
        assert_eq!(state(None), CheckState::Warning);
        let mut huge = config.clone();
        huge.server.connections_max = usize::MAX;
        let line = check_open_files(&kernel(), &huge);
        assert_eq!(line.state, CheckState::Warning, "{line:?}");
    }

    #[test]
    fn a_clock_before_the_program_fails_and_one_without_a_time_service_is_a_warning() {
        let now = SystemTime::UNIX_EPOCH + Duration::from_secs(1_800_000_000);
        let second = Duration::from_secs(1);
        for (program_time, is_synchronised, state) in [
            (Some(now), Some(true), CheckState::Ok),
            (None, Some(true), CheckState::Ok),
            (Some(now - second), Some(false), CheckState::Warning),
            (Some(now), None, CheckState::Warning),
            (Some(now + second), Some(true), CheckState::Failed),
            (Some(now + second), None, CheckState::Failed),
        ] {
            let line = check_clock(&ClockFacts {
                now,
                program_time,
                is_synchronised,
            });
            assert_eq!(line.state, state, "{line:?}");
        }
        let line = check_clock(&ClockFacts {
            now: SystemTime::UNIX_EPOCH - second,
            program_time: Some(now),
            is_synchronised: Some(true),
        });
        assert!(line.finding.contains("a time before 1970"), "{line:?}");
    }
}
