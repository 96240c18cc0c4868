//! Forked supervisor process: waits for an exec, spawns its leader, reaps all of its processes and kills them on
//! order. It uses blocking system calls and no other code of the guest.

use std::collections::HashSet;
use std::ffi::{CString, c_char};
use std::fs::File;
use std::io::{IoSliceMut, Read};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::time::Instant;

use nix::errno::Errno;
use nix::libc;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::prctl;
use nix::sys::signal::{SigSet, Signal};
use nix::sys::signalfd::{SfdFlags, SignalFd};
use nix::sys::socket::{MsgFlags, recvmsg, send};
use nix::unistd::{Pid, getpid};

use super::descendants;
use super::protocol::{
    HEAD_WORDS, INLINE_MAX, LaunchHeader, SignalTarget, SupervisorOrder, SupervisorReport,
    SupervisorRequest,
};
use crate::sys::{self, SpawnPlan, SpawnStage};

/// Pause between passes over a tree that is being killed, in milliseconds.
const KILL_PASS: u16 = 3;
/// Nice value of commands, the lowest weight. Guest and supervisors stay at the default and so get the CPU first,
/// where commands have no CPU group of their own.
const COMMAND_NICE: libc::c_int = 19;
const DEFAULT_PATH: &str = "/usr/local/bin:/usr/bin:/bin";

/// State of the supervisor process.
struct ForkedSupervisor<'a> {
    socket: &'a OwnedFd,
    /// `true` while a process of the exec is left.
    busy: bool,
    /// Pid of the leader until it is reaped.
    leader: Option<Pid>,
    /// Time of the most recent spawn.
    started: Instant,
    killing: bool,
}

/// Runs a supervisor until the guest closes its side.
pub(crate) fn run_supervisor(socket: &OwnedFd) -> ! {
    sys::close_all_but(Some(socket.as_raw_fd()));
    sys::default_signals();
    let _already_leader = nix::unistd::setsid();
    let _old_kernel = prctl::set_child_subreaper(true);
    let mut children = SigSet::empty();
    children.add(Signal::SIGCHLD);
    let Ok(signals) =
        SignalFd::with_flags(&children, SfdFlags::SFD_NONBLOCK | SfdFlags::SFD_CLOEXEC)
    else {
        sys::exit_now(1);
    };
    let mut state = ForkedSupervisor {
        socket,
        busy: false,
        leader: None,
        started: Instant::now(),
        killing: false,
    };
    let mut buffer = vec![0; HEAD_WORDS * 8 + INLINE_MAX];
    while state.turn(&signals, &mut buffer) {}
    state.end()
}

impl ForkedSupervisor<'_> {
    /// Waits for one event and handles it. Returns `false` when the guest is gone.
    fn turn(&mut self, signals: &SignalFd, buffer: &mut [u8]) -> bool {
        let mut fds = [
            PollFd::new(self.socket.as_fd(), PollFlags::POLLIN),
            PollFd::new(signals.as_fd(), PollFlags::POLLIN),
        ];
        let timeout = if self.killing {
            PollTimeout::from(KILL_PASS)
        } else {
            PollTimeout::NONE
        };
        let _interrupted = poll(&mut fds, timeout);
        let [socket, signal] = fds.map(|fd| fd.any().unwrap_or(false));
        if signal {
            // SIGCHLD is pending at most once, so one read clears it. It comes before the reap: the signal of a child
            // that ends in between must stay.
            let _cleared = signals.read_signal();
        }
        self.reap();
        if socket && !self.receive(buffer) {
            return false;
        }
        if self.killing {
            descendants::kill_tree(getpid(), &HashSet::new());
        }
        true
    }

    /// Sends a report to the guest.
    fn send_report(&self, report: SupervisorReport) {
        let fd = self.socket.as_raw_fd();
        let _guest_gone = send(fd, &report.encode(), MsgFlags::MSG_NOSIGNAL);
    }

    /// Reaps all children that have ended. Reports the leader's exit before reaping it: if this process is killed in
    /// between, the guest inherits the leader and reads its status.
    fn reap(&mut self) {
        loop {
            match sys::peek_exit() {
                Ok(Some((pid, exit))) => {
                    if self.leader == Some(pid) {
                        let wall = self.started.elapsed();
                        self.leader = None;
                        self.send_report(SupervisorReport::Exited { exit, wall });
                    }
                    sys::reap_child(pid);
                }
                Ok(None) => return,
                Err(Errno::EINTR) => {}
                Err(_no_children) => {
                    if self.busy {
                        self.busy = false;
                        self.killing = false;
                        self.send_report(SupervisorReport::Empty);
                    }
                    return;
                }
            }
        }
    }

    /// Receives one message and handles it. Returns `false` when the guest is gone.
    fn receive(&mut self, buffer: &mut [u8]) -> bool {
        let mut control = nix::cmsg_space!([i32; 5]);
        let mut parts = [IoSliceMut::new(buffer)];
        let flags = MsgFlags::MSG_CMSG_CLOEXEC;
        let fd = self.socket.as_raw_fd();
        let (length, fds) = match recvmsg::<()>(fd, &mut parts, Some(&mut control), flags) {
            Err(Errno::EINTR) => return true,
            Err(_) => return false,
            Ok(message) if message.bytes == 0 => return false,
            Ok(message) => (
                message.bytes,
                sys::adopt_fds(message.cmsgs().ok().into_iter().flatten()),
            ),
        };
        let (head, inline) = buffer
            .get(..length)
            .and_then(|message| message.split_at_checked(HEAD_WORDS * 8))
            .unwrap_or((buffer.get(..length).unwrap_or_default(), &[]));
        let request = SupervisorRequest::decode(head);
        if let Some(SupervisorRequest::Start(start)) = &request {
            self.start(start, inline, fds);
        }
        // Another command may have pinned this process. The program sets its own affinity, so a start does not wait.
        sys::use_all_cpus();
        match request {
            Some(SupervisorRequest::Start(_)) => {}
            Some(SupervisorRequest::Order(order)) if self.busy => self.carry_out_order(order),
            // The order came after the end of its exec.
            Some(SupervisorRequest::Order(_)) => {}
            None => return false,
        }
        true
    }

    /// Starts an exec and reports the outcome.
    fn start(&mut self, start: &LaunchHeader, inline: &[u8], mut fds: Vec<OwnedFd>) {
        let mut rest = fds.split_off(fds.len().min(3)).into_iter();
        let group = start.has_command_group.then(|| rest.next()).flatten();
        let mut spilled = Vec::new();
        let body = match rest.next().map(File::from) {
            Some(mut file) => {
                let _short = file.read_to_end(&mut spilled);
                &spilled
            }
            None => inline,
        };
        self.started = Instant::now();
        let report = match launch_program(start, body, &fds, group.as_ref()) {
            Ok(pid) => {
                self.busy = true;
                self.killing = false;
                self.leader = Some(pid);
                SupervisorReport::Started { pid: pid.as_raw() }
            }
            Err((stage, errno)) => SupervisorReport::Failed { stage, errno },
        };
        drop(fds);
        self.send_report(report);
    }

    /// Carries out an order for the tree.
    fn carry_out_order(&mut self, order: SupervisorOrder) {
        match order {
            SupervisorOrder::Kill => self.killing = true,
            SupervisorOrder::Signal { target, signal } => {
                // Until the leader is reaped, no other process can get its pid or its group.
                match (target, self.leader) {
                    (SignalTarget::Leader, Some(leader)) => sys::send_signal(leader, signal),
                    (SignalTarget::Group, Some(leader)) => {
                        sys::send_signal_to_group(leader, signal);
                    }
                    (SignalTarget::Tree, _) => {
                        descendants::signal_tree(getpid(), &HashSet::new(), signal);
                    }
                    (_, None) => {}
                }
            }
        }
    }

    /// Kills the tree and exits, because the guest is gone or has abandoned this process.
    fn end(&mut self) -> ! {
        while self.busy {
            descendants::kill_tree(getpid(), &HashSet::new());
            let _woken = poll(&mut [], PollTimeout::from(KILL_PASS));
            self.reap();
        }
        sys::exit_now(0)
    }
}

/// Decodes a launch and spawns its program.
fn launch_program(
    start: &LaunchHeader,
    body: &[u8],
    fds: &[OwnedFd],
    command_group: Option<&OwnedFd>,
) -> Result<Pid, (SpawnStage, i32)> {
    let malformed = (SpawnStage::Fork, libc::EINVAL);
    let [stdin, stdout, stderr] = fds else {
        return Err(malformed);
    };
    if body.len() != start.body_bytes || !body.ends_with(&[0]) {
        return Err(malformed);
    }
    let strings: Vec<&[u8]> = body.split_inclusive(|byte| *byte == 0).collect();
    let [cwd, program, strings @ ..] = strings.as_slice() else {
        return Err(malformed);
    };
    let (argv, envp) = strings.split_at_checked(start.args).ok_or(malformed)?;
    if envp.len() != start.envs {
        return Err(malformed);
    }
    let name = argv.first().ok_or(malformed)?;
    let program = c_string(program);
    let plan = SpawnPlan {
        cwd: c_string(cwd),
        programs: match program.is_empty() {
            true => program_candidates(name, envp),
            false => vec![program],
        },
        argv: pointer_array(argv),
        envp: pointer_array(envp),
        stdio: [stdin.as_raw_fd(), stdout.as_raw_fd(), stderr.as_raw_fd()],
        terminal: start.terminal,
        limits: start.limits.clone(),
        command_group: command_group.map(AsRawFd::as_raw_fd),
        nice: COMMAND_NICE,
    };
    sys::spawn_program(&plan)
}

/// Returns pointers to NUL-terminated strings, ended by null, for execve.
fn pointer_array(strings: &[&[u8]]) -> Vec<*const c_char> {
    let pointers = strings.iter().map(|text| text.as_ptr().cast());
    pointers.chain(std::iter::once(std::ptr::null())).collect()
}

/// Converts a string that ends with its NUL.
fn c_string(string: &[u8]) -> CString {
    let bytes = string.strip_suffix(&[0]).unwrap_or(string);
    CString::new(bytes).unwrap_or_default()
}

/// Returns the paths to try for a program: the name itself if it has a slash, else one per directory of PATH.
fn program_candidates(name: &[u8], env: &[&[u8]]) -> Vec<CString> {
    let name = c_string(name);
    if name.is_empty() || name.as_bytes().contains(&b'/') {
        return vec![name];
    }
    let path = env
        .iter()
        .rev()
        .find_map(|entry| entry.strip_prefix(b"PATH="))
        .map_or(DEFAULT_PATH.as_bytes(), |path| {
            path.strip_suffix(&[0]).unwrap_or(path)
        });
    path.split(|byte| *byte == b':')
        .filter(|directory| !directory.is_empty())
        .filter_map(|directory| CString::new([directory, b"/", name.as_bytes()].concat()).ok())
        .collect()
}
