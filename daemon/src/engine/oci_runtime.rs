//! Classifies OCI runtimes by name, to decide which properties of a container the daemon can rely on.
//!
//! An engine reports only the names under which the operator registered its runtimes.

/// Name prefixes of runtimes that start the guest directly as a process of the host.
const NATIVE: [&str; 3] = ["runc", "crun", "io.containerd.runc"];
/// Name parts of runtimes that give each container its own kernel.
const SANDBOXES: [&str; 4] = ["runsc", "gvisor", "kata", "firecracker"];

/// Kind of an OCI runtime, classified by its name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RuntimeKind {
    /// Runtime that starts the guest as a process of the host: runc, crun.
    Native,
    /// Runtime that gives each container its own kernel, with its own processes, terminals and sockets: gVisor, Kata.
    Sandbox,
    /// Runtime with an unknown name. The daemon assumes that it shares the host's kernel, but does not rely on its pids.
    Unknown,
}

impl RuntimeKind {
    /// Classifies a runtime by its name in the engine.
    pub fn from_name(name: &str) -> Self {
        if SANDBOXES.iter().any(|part| name.contains(part)) {
            Self::Sandbox
        } else if NATIVE.iter().any(|start| name.starts_with(start)) {
            Self::Native
        } else {
            Self::Unknown
        }
    }

    /// Returns `true` if the host's kernel runs the container's processes, terminals and sockets.
    pub fn shares_host_kernel(self) -> bool {
        match self {
            Self::Native | Self::Unknown => true,
            Self::Sandbox => false,
        }
    }

    /// Returns `true` if the pid that the engine reports is the guest's pid. Other runtimes put their own process between,
    /// so the pid and uid of a guest's connection prove nothing.
    pub fn reports_guest_pid(self) -> bool {
        match self {
            Self::Native => true,
            Self::Sandbox | Self::Unknown => false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn runtime_names_are_classified() {
        for (name, kind) in [
            ("runc", RuntimeKind::Native),
            ("crun", RuntimeKind::Native),
            ("io.containerd.runc.v2", RuntimeKind::Native),
            ("runsc", RuntimeKind::Sandbox),
            ("runsc-kvm", RuntimeKind::Sandbox),
            ("io.containerd.kata.v2", RuntimeKind::Sandbox),
            // Sandbox name parts take precedence over native prefixes.
            ("runc-in-kata", RuntimeKind::Sandbox),
            ("youki", RuntimeKind::Unknown),
            ("", RuntimeKind::Unknown),
        ] {
            assert_eq!(RuntimeKind::from_name(name), kind, "{name}");
        }
    }
}
