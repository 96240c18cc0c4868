//! OCI runtimes by their names: what the daemon can rely on in the containers that they make.
//!
//! An engine names its runtimes as its operator registered them, and says no more about them.

/// Beginnings of the names of runtimes whose containers' first process is the guest.
const NATIVE: [&str; 3] = ["runc", "crun", "io.containerd.runc"];
/// Parts of the names of runtimes that give each container a kernel of its own.
const SANDBOXES: [&str; 4] = ["runsc", "gvisor", "kata", "firecracker"];

/// Kind of an OCI runtime, classified by its name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RuntimeKind {
    /// Starts the guest as a process of the host: runc, crun.
    Native,
    /// Gives each container a kernel of its own, with its own processes, terminals and sockets: gVisor, Kata.
    Sandbox,
    /// Has an unknown name. Its containers are taken to share the host's kernel, but its pids are not relied on.
    Unknown,
}

impl RuntimeKind {
    /// Returns the kind of the runtime with this name.
    #[must_use]
    pub fn of(name: &str) -> Self {
        if SANDBOXES.iter().any(|part| name.contains(part)) {
            Self::Sandbox
        } else if NATIVE.iter().any(|start| name.starts_with(start)) {
            Self::Native
        } else {
            Self::Unknown
        }
    }

    /// Returns `true` if the container's processes, terminals and sockets are the host kernel's.
    #[must_use]
    pub fn shares_host_kernel(self) -> bool {
        match self {
            Self::Native | Self::Unknown => true,
            Self::Sandbox => false,
        }
    }

    /// Returns `true` if the container's first process, as the engine names it, is the guest. Other runtimes put a process
    /// of their own between, and the pid and uid of a guest's connection prove nothing.
    #[must_use]
    pub fn shows_guest_process(self) -> bool {
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
    fn each_runtime_is_of_one_kind() {
        for (name, kind) in [
            ("runc", RuntimeKind::Native),
            ("crun", RuntimeKind::Native),
            ("io.containerd.runc.v2", RuntimeKind::Native),
            ("runsc", RuntimeKind::Sandbox),
            ("runsc-kvm", RuntimeKind::Sandbox),
            ("io.containerd.kata.v2", RuntimeKind::Sandbox),
            // A name that begins as a native one does: the sandbox decides.
            ("runc-in-kata", RuntimeKind::Sandbox),
            ("youki", RuntimeKind::Unknown),
            ("", RuntimeKind::Unknown),
        ] {
            assert_eq!(RuntimeKind::of(name), kind, "{name}");
        }
    }
}
