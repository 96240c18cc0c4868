//! Supervisors: small processes, forked ahead of need, each of which runs one exec at a time. A
//! supervisor is a subreaper, so everything that its exec starts stays below it, can be found there and
//! be killed; and it outlives the leader for as long as anything of the exec lives.
//!
//! ```text
//! guest ──Start + stdin, stdout, stderr──► supervisor ──spawn──► leader ──► …
//!       ◄──Started | Failed───────────────
//!       ──Signal, Kill──►                   walks its own tree
//!       ◄──Exited (leader), Empty (tree)──  then it is idle again
//! ```
//!
//! This file is the guest's side; `child` is the forked process, `wire` what they say, `walk` how a tree
//! is found. A tenant may kill or stop a supervisor: the guest sees the socket close, and takes over.

pub(crate) mod child;
pub(crate) mod walk;
pub(crate) mod wire;

use std::collections::HashSet;
use std::fs::File;
use std::io::{IoSlice, Read, Seek, Write};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use nix::errno::Errno;
use nix::fcntl::{FcntlArg, OFlag, fcntl};
use nix::sys::memfd::{MFdFlags, memfd_create};
use nix::sys::signal::{Signal, kill};
use nix::sys::socket::{
    AddressFamily, ControlMessage, MsgFlags, SockFlag, SockType, recv, sendmsg, socketpair,
};
use nix::unistd::{ForkResult, Pid};
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

use crate::sys;
use wire::{Launch, Order, Report};

/// Supervisors that are forked ahead of need.
const IDLE_MIN: usize = 2;
/// Supervisors that are kept after a burst.
const IDLE_MAX: usize = 16;
/// For commands; the guest keeps what the container was given.
const OOM_SCORE: &str = "900";

/// One supervisor, busy or idle. Dropping it closes its socket, at which it kills its tree and ends.
#[derive(Debug)]
pub(crate) struct Supervisor {
    pid: Pid,
    socket: AsyncFd<OwnedFd>,
}

impl Supervisor {
    fn fork() -> Result<Self, Errno> {
        let (ours, theirs) = socketpair(
            AddressFamily::Unix,
            SockType::SeqPacket,
            None,
            SockFlag::SOCK_CLOEXEC,
        )?;
        fcntl(&ours, FcntlArg::F_SETFL(OFlag::O_NONBLOCK))?;
        match sys::fork()? {
            ForkResult::Child => child::run(&theirs),
            ForkResult::Parent { child } => {
                let socket = sys::watch(ours, Interest::READABLE).map_err(|_| Errno::EMFILE)?;
                Ok(Self { pid: child, socket })
            }
        }
    }

    /// Hands over an exec, to be run in the CPU group of commands if there is one. The report that follows says whether it
    /// was spawned.
    pub(crate) fn start(
        &self,
        launch: &Launch,
        stdio: [BorrowedFd<'_>; 3],
        command_group: Option<&OwnedFd>,
    ) -> Result<(), Errno> {
        let (head, body) = launch.encode(command_group.is_some());
        let mut fds: Vec<i32> = stdio.iter().map(AsRawFd::as_raw_fd).collect();
        fds.extend(command_group.map(AsRawFd::as_raw_fd));
        if body.len() <= wire::INLINE_MAX {
            return self.send(&[IoSlice::new(&head), IoSlice::new(&body)], &fds);
        }
        let mut file = File::from(memfd_create(c"spec", MFdFlags::MFD_CLOEXEC)?);
        file.write_all(&body)
            .and_then(|()| file.rewind())
            .map_err(|_| Errno::ENOSPC)?;
        fds.push(file.as_raw_fd());
        self.send(&[IoSlice::new(&head)], &fds)
    }

    /// Asks for something to be done to the tree. A supervisor that is gone is noticed by [`report`].
    ///
    /// [`report`]: Self::report
    pub(crate) fn order(&self, order: Order) {
        // A tenant can stop a supervisor; it has to run to obey.
        self.wake();
        let message = order.encode();
        let _gone = self.send(&[IoSlice::new(&message)], &[]);
    }

    /// Continues a supervisor that a tenant has stopped.
    pub(crate) fn wake(&self) {
        let _gone = kill(self.pid, Signal::SIGCONT);
    }

    /// Ends a supervisor that does not answer; its tree becomes the guest's.
    pub(crate) fn end(&self) {
        let _gone = kill(self.pid, Signal::SIGKILL);
    }

    /// The next report; `None` when the supervisor is gone. Safe to cancel.
    pub(crate) async fn report(&self) -> Option<Report> {
        loop {
            let mut ready = self.socket.readable().await.ok()?;
            let mut message = [0; wire::REPORT_BYTES];
            let read = ready.try_io(|socket| {
                let fd = socket.get_ref().as_raw_fd();
                Ok(recv(fd, &mut message, MsgFlags::empty())?)
            });
            match read {
                Err(_would_block) => {}
                Ok(Ok(length)) => return Report::decode(message.get(..length)?),
                Ok(Err(_)) => return None,
            }
        }
    }

    fn send(&self, parts: &[IoSlice<'_>], fds: &[i32]) -> Result<(), Errno> {
        let rights = [ControlMessage::ScmRights(fds)];
        let control = if fds.is_empty() { &[][..] } else { &rights[..] };
        let fd = self.socket.get_ref().as_raw_fd();
        sendmsg::<()>(fd, parts, control, MsgFlags::MSG_NOSIGNAL, None).map(drop)
    }
}

/// The supervisors that wait, and the pids of all.
#[derive(Debug)]
pub(crate) struct Supervisors {
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    idle: Vec<Supervisor>,
    pids: HashSet<Pid>,
    /// Those that were handed an exec, and have not been heard to have started it.
    starting: HashSet<Pid>,
    /// Opened before the guest became undumpable, after which it could not be.
    oom_score: Option<OomScore>,
    /// File of the CPU group that commands run in; `None` where the daemon made none.
    command_group: Option<Arc<OwnedFd>>,
}

#[derive(Debug)]
struct OomScore {
    file: File,
    own: String,
}

impl OomScore {
    fn open() -> Option<Self> {
        let mut file = File::options()
            .read(true)
            .write(true)
            .open("/proc/self/oom_score_adj")
            .ok()?;
        let mut own = String::new();
        file.read_to_string(&mut own).ok()?;
        let score: i32 = own.trim().parse().ok()?;
        (score < 900).then_some(Self { file, own })
    }

    fn set(&mut self, raised: bool) {
        let score = if raised { OOM_SCORE } else { self.own.trim() };
        // Without it commands are as likely a victim as the guest: worse, but no reason not to run.
        let _best_effort = self
            .file
            .rewind()
            .and_then(|()| self.file.write_all(score.as_bytes()));
    }
}

impl Supervisors {
    /// To be called before the guest makes itself undumpable.
    pub(crate) fn new() -> Self {
        Self {
            state: Mutex::new(State {
                idle: Vec::new(),
                pids: HashSet::new(),
                starting: HashSet::new(),
                oom_score: OomScore::open(),
                command_group: None,
            }),
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the CPU group that commands run in, if they have one of their own.
    pub(crate) fn command_group(&self) -> Option<Arc<OwnedFd>> {
        self.state().command_group.clone()
    }

    /// Replaces the CPU group that commands are started in from now on.
    pub(crate) fn set_command_group(&self, group: OwnedFd) {
        self.state().command_group = Some(Arc::new(group));
    }

    /// One that waited, or a new one.
    pub(crate) fn take(&self) -> Result<Supervisor, Errno> {
        let waiting = self.state().idle.pop();
        match waiting {
            Some(supervisor) => {
                supervisor.wake();
                Ok(supervisor)
            }
            None => self.fresh(),
        }
    }

    /// Takes back one whose tree is empty.
    pub(crate) fn give_back(&self, supervisor: Supervisor) {
        let mut state = self.state();
        if state.idle.len() < IDLE_MAX {
            state.idle.push(supervisor);
        }
    }

    /// Notes that what this one starts is not known, until it is: its leader, if there is one, is among those that are spared.
    pub(crate) fn starting(&self, supervisor: &Supervisor) -> Starting<'_> {
        let pid = supervisor.pid;
        self.state().starting.insert(pid);
        Starting {
            supervisors: self,
            pid,
        }
    }

    /// Every leader that the guest has not heard of is below a supervisor still. One whose supervisor ended first is the
    /// guest's child like any orphan, until the report that names it is read.
    pub(crate) fn every_leader_is_known(&self) -> bool {
        let state = self.state();
        // A pid that is not among them any more was reaped, and may be anybody's.
        let lives = |pid: &Pid| state.pids.contains(pid) && walk::is_running(*pid);
        state.starting.iter().all(lives)
    }

    /// Forks until enough are waiting.
    pub(crate) fn fill(&self) {
        while self.state().idle.len() < IDLE_MIN {
            match self.fresh() {
                Ok(supervisor) => self.give_back(supervisor),
                // No process to be had now; the next exec tries again and reports it.
                Err(_) => return,
            }
        }
    }

    /// Says that the kernel reported the end of a child; true if it was a supervisor.
    pub(crate) fn ended(&self, pid: Pid) -> bool {
        let mut state = self.state();
        state.idle.retain(|supervisor| supervisor.pid != pid);
        state.pids.remove(&pid)
    }

    /// Forgets one that is gone, or as good as gone: what is still below it is the guest's from here on. The kernel
    /// closes its socket before it hands its children on.
    pub(crate) fn abandon(&self, supervisor: &Supervisor) {
        self.state().pids.remove(&supervisor.pid);
    }

    /// Continues a supervisor that a tenant has stopped; others may stay stopped.
    pub(crate) fn wake(&self, pid: Pid) {
        if self.state().pids.contains(&pid) {
            let _gone = kill(pid, Signal::SIGCONT);
        }
    }

    /// All that live.
    pub(crate) fn pids(&self) -> HashSet<Pid> {
        self.state().pids.clone()
    }

    /// A new one.
    pub(crate) fn fresh(&self) -> Result<Supervisor, Errno> {
        let mut state = self.state();
        if let Some(score) = &mut state.oom_score {
            score.set(true);
        }
        let forked = Supervisor::fork();
        if let Some(score) = &mut state.oom_score {
            score.set(false);
        }
        if let Ok(supervisor) = &forked {
            state.pids.insert(supervisor.pid);
        }
        forked
    }
}

/// The time between the order to start an exec and the answer.
#[derive(Debug)]
pub(crate) struct Starting<'a> {
    supervisors: &'a Supervisors,
    pid: Pid,
}

impl Drop for Starting<'_> {
    fn drop(&mut self) {
        self.supervisors.state().starting.remove(&self.pid);
    }
}

/// A pipe for one of an exec's streams: the guest's end, which does not block, and the program's.
pub(crate) fn output_pipe() -> Result<(OwnedFd, OwnedFd), Errno> {
    let (reader, writer) = nix::unistd::pipe2(OFlag::O_CLOEXEC)?;
    fcntl(reader.as_fd(), FcntlArg::F_SETFL(OFlag::O_NONBLOCK))?;
    Ok((reader, writer))
}
