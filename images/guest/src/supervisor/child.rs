//! The forked supervisor process: waits for an exec, spawns its leader, reaps everything, kills what it
//! is told to. It runs none of the guest's code but this, on plain blocking system calls.

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

use super::walk;
use super::wire::{HEAD_WORDS, INLINE_MAX, Order, Report, Request, Start, Target};
use crate::sys::{self, Plan, Stage};

/// Milliseconds between passes over a tree that is being killed.
const KILL_PASS: u16 = 3;
/// Nice value of commands: the lowest weight, so that the guest and the supervisors, which stay at the default, get the
/// CPU before them where commands have no CPU group of their own.
const COMMAND_NICE: libc::c_int = 19;
const DEFAULT_PATH: &str = "/usr/local/bin:/usr/bin:/bin";

struct Supervised<'a> {
    socket: &'a OwnedFd,
    /// An exec was spawned and something of it is left.
    busy: bool,
    /// Until it is reaped.
    leader: Option<Pid>,
    /// When the last exec was spawned.
    started: Instant,
    killing: bool,
}

/// The life of a supervisor; ends when the guest closes its side.
pub(crate) fn run(socket: &OwnedFd) -> ! {
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
    let mut state = Supervised {
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

impl Supervised<'_> {
    /// Waits for one thing and does it. False when the guest is gone.
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
            while let Ok(Some(_)) = signals.read_signal() {}
        }
        self.reap();
        if socket && !self.receive(buffer) {
            return false;
        }
        if self.killing {
            walk::kill_tree(getpid(), &HashSet::new());
        }
        true
    }

    fn tell(&self, report: Report) {
        let fd = self.socket.as_raw_fd();
        let _guest_gone = send(fd, &report.encode(), MsgFlags::MSG_NOSIGNAL);
    }

    /// Reaps whatever has ended. The leader's end is reported before it is reaped: should this process be
    /// killed in between, the guest inherits it and reads its status itself.
    fn reap(&mut self) {
        loop {
            match sys::peek_exit() {
                Ok(Some((pid, exit))) => {
                    if self.leader == Some(pid) {
                        let wall = self.started.elapsed();
                        self.leader = None;
                        self.tell(Report::Exited { exit, wall });
                    }
                    sys::reap(pid);
                }
                Ok(None) => return,
                Err(Errno::EINTR) => {}
                Err(_no_children) => {
                    if self.busy {
                        self.busy = false;
                        self.killing = false;
                        self.tell(Report::Empty);
                    }
                    return;
                }
            }
        }
    }

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
                sys::adopt(message.cmsgs().ok().into_iter().flatten()),
            ),
        };
        let (head, inline) = buffer
            .get(..length)
            .and_then(|message| message.split_at_checked(HEAD_WORDS * 8))
            .unwrap_or((buffer.get(..length).unwrap_or_default(), &[]));
        sys::use_all_cpus();
        match Request::decode(head) {
            Some(Request::Start(start)) => self.start(&start, inline, fds),
            Some(Request::Order(order)) if self.busy => self.obey(order),
            // Too late: what it was about is gone.
            Some(Request::Order(_)) => {}
            None => return false,
        }
        true
    }

    fn start(&mut self, start: &Start, inline: &[u8], mut fds: Vec<OwnedFd>) {
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
        let report = match launch(start, body, &fds, group.as_ref()) {
            Ok(pid) => {
                self.busy = true;
                self.killing = false;
                self.leader = Some(pid);
                Report::Started { pid: pid.as_raw() }
            }
            Err((stage, errno)) => Report::Failed { stage, errno },
        };
        drop(fds);
        self.tell(report);
    }

    fn obey(&mut self, order: Order) {
        match order {
            Order::Kill => self.killing = true,
            Order::Signal { target, signal } => {
                // While the leader is not reaped its pid, and so its group's, cannot be another's.
                match (target, self.leader) {
                    (Target::Leader, Some(leader)) => sys::send_signal(leader, signal),
                    (Target::Group, Some(leader)) => sys::send_signal_to_group(leader, signal),
                    (Target::Tree, _) => walk::signal_tree(getpid(), &HashSet::new(), signal),
                    (_, None) => {}
                }
            }
        }
    }

    /// The guest is gone or gave this process up: nothing of the exec may stay.
    fn end(&mut self) -> ! {
        while self.busy {
            walk::kill_tree(getpid(), &HashSet::new());
            let _woken = poll(&mut [], PollTimeout::from(KILL_PASS));
            self.reap();
        }
        sys::exit_now(0)
    }
}

fn launch(
    start: &Start,
    body: &[u8],
    fds: &[OwnedFd],
    command_group: Option<&OwnedFd>,
) -> Result<Pid, (Stage, i32)> {
    let malformed = (Stage::Fork, libc::EINVAL);
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
    let program = text(program);
    let plan = Plan {
        cwd: text(cwd),
        programs: match program.is_empty() {
            true => programs(name, envp),
            false => vec![program],
        },
        argv: pointers(argv),
        envp: pointers(envp),
        stdio: [stdin.as_raw_fd(), stdout.as_raw_fd(), stderr.as_raw_fd()],
        terminal: start.terminal,
        limits: start.limits.clone(),
        command_group: command_group.map(AsRawFd::as_raw_fd),
        nice: COMMAND_NICE,
    };
    sys::spawn(&plan)
}

/// Of strings that end with their NUL, for execve.
fn pointers(strings: &[&[u8]]) -> Vec<*const c_char> {
    let pointers = strings.iter().map(|text| text.as_ptr().cast());
    pointers.chain(std::iter::once(std::ptr::null())).collect()
}

fn text(string: &[u8]) -> CString {
    let bytes = string.strip_suffix(&[0]).unwrap_or(string);
    CString::new(bytes).unwrap_or_default()
}

/// Where the program may be: as it is if it has a slash, else in each directory of PATH.
fn programs(name: &[u8], env: &[&[u8]]) -> Vec<CString> {
    let name = text(name);
    if name.is_empty() || name.as_bytes().contains(&b'/') {
        return vec![name];
    }
    let path = env
        .iter()
        .rev()
        .find_map(|entry| entry.strip_prefix(b"PATH="));
    let path = path.map_or(DEFAULT_PATH.as_bytes(), |path| {
        path.strip_suffix(&[0]).unwrap_or(path)
    });
    path.split(|byte| *byte == b':')
        .filter(|directory| !directory.is_empty())
        .filter_map(|directory| CString::new([directory, b"/", name.as_bytes()].concat()).ok())
        .collect()
}
