//! Checks of the kernel, its control groups and the user of this process.

use std::fs;

use nix::unistd::Uid;

use super::report::CheckLine;

/// Oldest kernel that has what guest and daemon use: openat2 and pidfd.
const KERNEL_MIN: (u32, u32) = (5, 6);
/// Controllers without which a container's limits are not enforced.
const CONTROLLERS: [&str; 3] = ["cpu", "memory", "pids"];
/// File whose presence means cgroup v2; it lists the controllers.
const CGROUP2_CONTROLLERS: &str = "/sys/fs/cgroup/cgroup.controllers";

/// Version of the control groups, 1 or 2, and the enabled controllers.
type CgroupFacts = (u32, Vec<String>);

/// Checks user, kernel and control groups. Blocks for a moment.
pub(super) fn check_kernel_and_user() -> Vec<CheckLine> {
    let release = fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    let cgroup = read_cgroup();
    vec![
        check_user(Uid::effective().as_raw(), cgroup.as_ref()),
        check_release(release.trim()),
        check_cgroup(cgroup.as_ref()),
    ]
}

/// Checks the user of this process, which should be that of the daemon.
fn check_user(uid: u32, cgroup: Option<&CgroupFacts>) -> CheckLine {
    let (check, subject) = ("user", "user");
    if uid == 0 {
        return CheckLine::ok(check, subject, "root");
    }
    let sockets = match cgroup {
        Some((1, _)) => ", and socket buffers of containers are not limited (cgroup v1)",
        _ => "",
    };
    CheckLine::warning(
        check,
        subject,
        format!(
            "uid {uid}, not root: commands get no CPU group of their own, so busy processes delay their guest{sockets}"
        ),
        "run skilld as root, or accept this; and run `skilld doctor` as the daemon's user, whose permissions it reports",
    )
}

/// Checks the kernel's version.
fn check_release(release: &str) -> CheckLine {
    let (check, subject) = ("kernel", "kernel");
    let (major, minor) = KERNEL_MIN;
    let remedy = format!("install Linux {major}.{minor} or later");
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
fn check_cgroup(cgroup: Option<&CgroupFacts>) -> CheckLine {
    let (check, subject) = ("cgroup", "cgroup");
    let Some((version, controllers)) = cgroup else {
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
    let listed = missing.join(", ");
    let remedy = match version {
        1 => "boot with the kernel parameters `cgroup_enable=memory swapaccount=1`, or with cgroup v2".to_owned(),
        _ => format!("delegate the controllers {listed} (systemd: `Delegate=`), or use a kernel that has them"),
    };
    let finding = format!("v{version} without {listed}: limits of containers are not enforced");
    CheckLine::failed(check, subject, finding, remedy)
}

fn read_cgroup() -> Option<CgroupFacts> {
    if let Ok(text) = fs::read_to_string(CGROUP2_CONTROLLERS) {
        let controllers = text.split_whitespace().map(str::to_owned);
        return Some((2, controllers.collect()));
    }
    let text = fs::read_to_string("/proc/cgroups").ok()?;
    Some((1, parse_v1_controllers(&text)))
}

/// Returns the enabled controllers in `/proc/cgroups`: lines of name, hierarchy, number of groups and 0 or 1.
fn parse_v1_controllers(text: &str) -> Vec<String> {
    let lines = text.lines().filter(|line| !line.starts_with('#'));
    let enabled = lines.filter_map(|line| {
        let mut words = line.split_whitespace();
        let name = words.next()?;
        (words.nth(2)? == "1").then(|| name.to_owned())
    });
    enabled.collect()
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
    use super::super::report::CheckState;
    use super::*;

    #[test]
    fn kernels_before_openat2_fail_and_unknown_releases_warn() {
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
            let line = check_release(release);
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
            let names = controllers.split_whitespace().map(str::to_owned).collect();
            let line = check_cgroup(Some(&(version, names)));
            assert_eq!(line.state, state, "{line:?}");
            assert!(format!("{line:?}").contains(part), "{line:?}");
        }
        assert_eq!(check_cgroup(None).state, CheckState::Warning);
    }

    #[test]
    fn a_user_other_than_root_is_told_what_is_lost() {
        assert_eq!(check_user(0, None).state, CheckState::Ok);
        let line = check_user(1000, Some(&(1, Vec::new())));
        assert_eq!(line.state, CheckState::Warning);
        assert!(line.finding.contains("uid 1000, not root") && line.finding.contains("cgroup v1"));
        let line = check_user(u32::MAX, Some(&(2, Vec::new())));
        assert!(!line.finding.contains("cgroup v1"), "{line:?}");
    }

    #[test]
    fn disabled_controllers_of_cgroup_v1_are_left_out() {
        let text = "#subsys_name\thierarchy\tnum_cgroups\tenabled\ncpu\t2\t9\t1\nmemory\t0\t1\t0\npids\t3\t1\t1\nodd\n\n";
        assert_eq!(parse_v1_controllers(text), ["cpu", "pids"]);
    }
}
