//! Supervisors: small processes, forked ahead of need, each of which runs one exec at a time. A supervisor is a
//! subreaper: everything that its exec starts stays below it, where it can be found and killed. It outlives the leader
//! for as long as a process of the exec lives.
//!
//! ```text
//! guest ──Start + stdin, stdout, stderr──► supervisor ──spawn──► leader ──► …
//!       ◄──Started | Failed───────────────
//!       ──Signal, Kill──►                   walks its own tree
//!       ◄──Exited (leader), Empty (tree)──  then it is idle again
//! ```
//!
//! This file is the guest's side, `forked_supervisor` the forked process, `protocol` the messages between them, and
//! `descendants` the search for the processes of a tree. A command may kill or stop a supervisor: the guest sees the
//! socket close and takes over.

pub(crate) mod descendants;
pub(crate) mod forked_supervisor;
pub(crate) mod protocol;

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
use protocol::{LaunchSpec, SupervisorOrder, SupervisorReport};

/// Number of supervisors forked ahead of need.
const IDLE_MIN: usize = 2;
/// Maximum number of idle supervisors kept after a burst.
const IDLE_MAX: usize = 16;
/// OOM score of commands, so that the kernel kills one of them before the guest, which keeps the container's score.
const OOM_SCORE: &str = "900";

/// Supervisor process, busy or idle. Dropping it closes its socket, upon which it kills its tree and exits.
#[derive(Debug)]
pub(crate) struct Supervisor {
    pid: Pid,
    socket: AsyncFd<OwnedFd>,
}

impl Supervisor {
    /// Forks a supervisor process.
    fn fork() -> Result<Self, Errno> {
        let (ours, theirs) = socketpair(
            AddressFamily::Unix,
            SockType::SeqPacket,
            None,
            SockFlag::SOCK_CLOEXEC,
        )?;
        fcntl(&ours, FcntlArg::F_SETFL(OFlag::O_NONBLOCK))?;
        match sys::fork()? {
            ForkResult::Child => forked_supervisor::run_supervisor(&theirs),
            ForkResult::Parent { child } => {
                let socket =
                    sys::register_fd(ours, Interest::READABLE).map_err(|_| Errno::EMFILE)?;
                Ok(Self { pid: child, socket })
            }
        }
    }

    /// Returns the pid of the supervisor process, below which the processes of its exec are.
    pub(crate) fn pid(&self) -> Pid {
        self.pid
    }

    /// Hands over an exec, to run in `command_group` if there is one. The next report says whether it was spawned.
    pub(crate) fn start(
        &self,
        launch: &LaunchSpec,
        stdio: [BorrowedFd<'_>; 3],
        command_group: Option<&OwnedFd>,
    ) -> Result<(), Errno> {
        let (head, body) = launch.encode(command_group.is_some());
        let mut fds: Vec<i32> = stdio.iter().map(AsRawFd::as_raw_fd).collect();
        fds.extend(command_group.map(AsRawFd::as_raw_fd));
        if body.len() <= protocol::INLINE_MAX {
            return self.send(&[IoSlice::new(&head), IoSlice::new(&body)], &fds);
        }
        let mut file = File::from(memfd_create(c"spec", MFdFlags::MFD_CLOEXEC)?);
        file.write_all(&body)
            .and_then(|()| file.rewind())
            .map_err(|_| Errno::ENOSPC)?;
        fds.push(file.as_raw_fd());
        self.send(&[IoSlice::new(&head)], &fds)
    }

    /// Sends an order for the tree. A supervisor that is gone shows in [`Self::report`].
    pub(crate) fn order(&self, order: SupervisorOrder) {
        // A command can stop a supervisor, which must run to obey.
        self.wake();
        let message = order.encode();
        let _gone = self.send(&[IoSlice::new(&message)], &[]);
    }

    /// Continues a supervisor that a command has stopped.
    pub(crate) fn wake(&self) {
        let _gone = kill(self.pid, Signal::SIGCONT);
    }

    /// Kills a supervisor that does not answer. Its tree becomes the guest's.
    pub(crate) fn kill(&self) {
        let _gone = kill(self.pid, Signal::SIGKILL);
    }

    /// Returns the next report; `None` when the supervisor is gone. Safe to cancel.
    pub(crate) async fn report(&self) -> Option<SupervisorReport> {
        match self.receive().await {
            // An order that it did not read says nothing about the reports before its end.
            Err(Errno::ECONNRESET) => self.receive().await.ok(),
            received => received.ok(),
        }
    }

    /// Returns the report on a spawn, the first one after [`Self::start`]. Safe to cancel. Nothing may be sent between
    /// the launch and this report: otherwise an unread order would be taken for an unread launch.
    ///
    /// # Errors
    /// ECONNRESET when the supervisor ended before it read the launch, so that nothing was started; EPIPE when it ended
    /// later.
    pub(crate) async fn spawn_report(&self) -> Result<SupervisorReport, Errno> {
        self.receive().await
    }

    /// Receives a report. Linux fails once with ECONNRESET if the other end closed with a message unread.
    async fn receive(&self) -> Result<SupervisorReport, Errno> {
        loop {
            let mut ready = self.socket.readable().await.map_err(|_| Errno::EPIPE)?;
            let mut message = [0; protocol::REPORT_BYTES];
            let read = ready.try_io(|socket| {
                let fd = socket.get_ref().as_raw_fd();
                let mut receive = || recv(fd, &mut message, MsgFlags::empty());
                match receive()? {
                    // A read at the very moment of the close may see the end before what precedes it: a report, or
                    // ECONNRESET.
                    0 => Ok(receive()?),
                    length => Ok(length),
                }
            });
            match read {
                Err(_would_block) => {}
                Ok(Ok(length)) => {
                    let report = message.get(..length).and_then(SupervisorReport::decode);
                    return report.ok_or(Errno::EPIPE);
                }
                Ok(Err(error)) => {
                    return Err(Errno::from_raw(error.raw_os_error().unwrap_or(0)));
                }
            }
        }
    }

    /// Sends a message with descriptors.
    fn send(&self, parts: &[IoSlice<'_>], fds: &[i32]) -> Result<(), Errno> {
        let rights = [ControlMessage::ScmRights(fds)];
        let control = if fds.is_empty() { &[][..] } else { &rights[..] };
        let fd = self.socket.get_ref().as_raw_fd();
        sendmsg::<()>(fd, parts, control, MsgFlags::MSG_NOSIGNAL, None).map(drop)
    }
}

/// Pool of idle supervisors, with the pids of all.
#[derive(Debug)]
pub(crate) struct SupervisorPool {
    state: Mutex<PoolState>,
}

/// Mutable state of the pool.
#[derive(Debug)]
struct PoolState {
    idle: Vec<Supervisor>,
    pids: HashSet<Pid>,
    /// Supervisors that were handed an exec and have not reported its start.
    starting: HashSet<Pid>,
    /// Opened before the guest becomes undumpable, since it cannot be opened afterwards.
    oom_score: Option<OomScoreFile>,
    /// File of the CPU group that commands run in; `None` where the daemon created none.
    command_group: Option<Arc<OwnedFd>>,
}

/// File of the guest's own OOM score, which children inherit.
#[derive(Debug)]
struct OomScoreFile {
    file: File,
    own: String,
}

impl OomScoreFile {
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

    /// Raises the score for a fork, or restores it.
    fn set(&mut self, raised: bool) {
        // A process without capabilities may lower its score again, though not below the one that it was given.
        let score = if raised { OOM_SCORE } else { self.own.trim() };
        // Without a higher score the kernel is as likely to kill the guest as a command, but commands can run.
        let _best_effort = self
            .file
            .rewind()
            .and_then(|()| self.file.write_all(score.as_bytes()));
    }
}

impl SupervisorPool {
    /// Creates an empty pool. The caller creates it before the guest becomes undumpable.
    pub(crate) fn new() -> Self {
        Self {
            state: Mutex::new(PoolState {
                idle: Vec::new(),
                pids: HashSet::new(),
                starting: HashSet::new(),
                oom_score: OomScoreFile::open(),
                command_group: None,
            }),
        }
    }

    fn state(&self) -> MutexGuard<'_, PoolState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the CPU group that commands run in, if there is one.
    pub(crate) fn command_group(&self) -> Option<Arc<OwnedFd>> {
        self.state().command_group.clone()
    }

    /// Replaces the CPU group for commands that start from now on.
    pub(crate) fn set_command_group(&self, group: OwnedFd) {
        self.state().command_group = Some(Arc::new(group));
    }

    /// Returns an idle supervisor, or forks a new one.
    pub(crate) fn take(&self) -> Result<Supervisor, Errno> {
        // A command can stop an idle supervisor. The reaper sees that and continues it, so it is not woken here.
        let waiting = self.state().idle.pop();
        waiting.map_or_else(|| self.fork_supervisor(), Ok)
    }

    /// Takes back a supervisor whose tree is empty.
    pub(crate) fn give_back(&self, supervisor: Supervisor) {
        let mut state = self.state();
        if state.idle.len() < IDLE_MAX {
            state.idle.push(supervisor);
        }
    }

    /// Records that a supervisor is starting a leader whose pid is not known yet, until the guard is dropped. The
    /// leader is by then in `ExecHost::leaders`.
    pub(crate) fn mark_starting(&self, supervisor: &Supervisor) -> ExecStartGuard<'_> {
        let pid = supervisor.pid;
        self.state().starting.insert(pid);
        ExecStartGuard {
            supervisors: self,
            pid,
        }
    }

    /// Returns `true` if every leader whose pid is not known yet is still below a supervisor. If its supervisor died
    /// first, the leader looks like any orphan until its report is read.
    pub(crate) fn every_leader_is_known(&self) -> bool {
        let state = self.state();
        // A pid missing from the set was reaped; the kernel may have reused it.
        let lives = |pid: &Pid| state.pids.contains(pid) && descendants::is_running(*pid);
        state.starting.iter().all(lives)
    }

    /// Forks supervisors until enough are idle.
    pub(crate) fn fill(&self) {
        while self.state().idle.len() < IDLE_MIN {
            match self.fork_supervisor() {
                Ok(supervisor) => self.give_back(supervisor),
                // The pids limit is reached. The next exec tries again and reports it.
                Err(_) => return,
            }
        }
    }

    /// Records the exit of a child. Returns `true` if it was a supervisor.
    pub(crate) fn ended(&self, pid: Pid) -> bool {
        let mut state = self.state();
        state.idle.retain(|supervisor| supervisor.pid != pid);
        state.pids.remove(&pid)
    }

    /// Removes a supervisor that is gone or about to be, so that its tree counts as the guest's. The kernel closes its
    /// socket before it hands over its children.
    pub(crate) fn abandon(&self, supervisor: &Supervisor) {
        self.state().pids.remove(&supervisor.pid);
    }

    /// Continues a supervisor that a command has stopped. Other processes may stay stopped.
    pub(crate) fn wake(&self, pid: Pid) {
        if self.state().pids.contains(&pid) {
            let _gone = kill(pid, Signal::SIGCONT);
        }
    }

    /// Returns the pids of all supervisors.
    pub(crate) fn pids(&self) -> HashSet<Pid> {
        self.state().pids.clone()
    }

    /// Forks a supervisor.
    pub(crate) fn fork_supervisor(&self) -> Result<Supervisor, Errno> {
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

/// Marks a supervisor as starting an exec, from the order to its report.
#[derive(Debug)]
pub(crate) struct ExecStartGuard<'a> {
    supervisors: &'a SupervisorPool,
    pid: Pid,
}

impl Drop for ExecStartGuard<'_> {
    fn drop(&mut self) {
        self.supervisors.state().starting.remove(&self.pid);
    }
}

/// Creates a pipe for an output stream: the guest's end, which does not block, and the program's.
pub(crate) fn output_pipe() -> Result<(OwnedFd, OwnedFd), Errno> {
    let (reader, writer) = nix::unistd::pipe2(OFlag::O_CLOEXEC)?;
    fcntl(reader.as_fd(), FcntlArg::F_SETFL(OFlag::O_NONBLOCK))?;
    Ok((reader, writer))
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, Ordering};

    use super::*;

    /// Returns a supervisor whose other end is in the test's hand.
    fn pair() -> (Supervisor, OwnedFd) {
        let (flags, kind) = (SockFlag::SOCK_CLOEXEC, SockType::SeqPacket);
        let (ours, theirs) = socketpair(AddressFamily::Unix, kind, None, flags).expect("a pair");
        fcntl(&ours, FcntlArg::F_SETFL(OFlag::O_NONBLOCK)).expect("set");
        let socket = sys::register_fd(ours, Interest::READABLE).expect("registered");
        let pid = Pid::from_raw(i32::MAX);
        (Supervisor { pid, socket }, theirs)
    }

    fn launch(supervisor: &Supervisor) {
        let null = File::open("/dev/null").expect("opened");
        let stdio = [null.as_fd(), null.as_fd(), null.as_fd()];
        let started = supervisor.start(&LaunchSpec::default(), stdio, None);
        started.expect("sent");
    }

    fn read_launch(end: &OwnedFd) {
        recv(end.as_raw_fd(), &mut [0; 4096], MsgFlags::empty()).expect("read");
    }

    fn send_report(end: &OwnedFd, report: SupervisorReport) {
        let message = report.encode();
        let parts = [IoSlice::new(&message)];
        let sent = sendmsg::<()>(end.as_raw_fd(), &parts, &[], MsgFlags::empty(), None);
        sent.expect("sent");
    }

    #[tokio::test]
    async fn only_an_unread_launch_may_go_to_another_supervisor() {
        let (supervisor, end) = pair();
        launch(&supervisor);
        drop(end);
        assert_eq!(supervisor.spawn_report().await, Err(Errno::ECONNRESET));

        let (supervisor, end) = pair();
        launch(&supervisor);
        read_launch(&end);
        drop(end);
        assert_eq!(supervisor.spawn_report().await, Err(Errno::EPIPE));
    }

    /// Spawns a thread that sends a report, if there is one, and closes the socket, once the test permits it. Returns the
    /// permission and the thread when the thread runs.
    #[expect(
        clippy::disallowed_methods,
        reason = "the thread stands for a supervisor's process; the test joins it"
    )]
    fn spawn_closer(
        end: OwnedFd,
        report: Option<SupervisorReport>,
    ) -> (Arc<AtomicBool>, std::thread::JoinHandle<()>) {
        let runs = Arc::new(AtomicBool::new(false));
        let may_close = Arc::new(AtomicBool::new(false));
        let (started, permitted) = (Arc::clone(&runs), Arc::clone(&may_close));
        let thread = std::thread::spawn(move || {
            started.store(true, Ordering::Release);
            while !permitted.load(Ordering::Acquire) {
                std::thread::yield_now();
            }
            if let Some(report) = report {
                send_report(&end, report);
            }
            drop(end);
        });
        while !runs.load(Ordering::Acquire) {
            std::thread::yield_now();
        }
        (may_close, thread)
    }

    #[tokio::test]
    async fn an_ending_supervisor_loses_no_report_and_no_unread_launch() {
        let report = SupervisorReport::Started { pid: 7 };
        for round in 0..20_000 {
            let (supervisor, end) = pair();
            // The guest counts the socket as readable from here on.
            send_report(&end, SupervisorReport::Empty);
            assert_eq!(supervisor.report().await, Some(SupervisorReport::Empty));
            launch(&supervisor);
            let is_read = round % 2 == 0;
            if is_read {
                read_launch(&end);
            }
            let (may_close, thread) = spawn_closer(end, is_read.then_some(report));
            may_close.store(true, Ordering::Release);
            for _ in 0..round % 100 {
                std::hint::spin_loop();
            }
            let seen = supervisor.spawn_report().await;
            let expected = is_read.then_some(report).ok_or(Errno::ECONNRESET);
            assert_eq!(seen, expected, "round {round}");
            thread.join().expect("closed");
        }
    }

    #[tokio::test]
    async fn a_report_is_not_lost_because_an_order_was_not_read() {
        let (supervisor, end) = pair();
        send_report(&end, SupervisorReport::Empty);
        supervisor
            .send(&[IoSlice::new(&SupervisorOrder::Kill.encode())], &[])
            .expect("sent");
        drop(end);
        assert_eq!(supervisor.report().await, Some(SupervisorReport::Empty));
        assert_eq!(supervisor.report().await, None);
    }
}
