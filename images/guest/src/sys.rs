//! The only unsafe code of the guest: system calls that no safe wrapper offers. Nothing here decides
//! anything; each function does one thing to the kernel and says what it needs to be sound.
#![expect(
    unsafe_code,
    reason = "the one module that may talk to the kernel without a safe wrapper"
)]

use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::ptr;

use bytes::BytesMut;
use nix::errno::Errno;
use nix::libc;
use nix::pty::Winsize;
use nix::sys::socket::ControlMessageOwned;
use nix::unistd::{ForkResult, Pid};
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

/// What a child left behind when it ended.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Exit {
    /// The exit code, or the signal when `signaled`.
    pub(crate) code: i32,
    pub(crate) signaled: bool,
    /// CPU time in user mode, of it and the children it waited for, in microseconds.
    pub(crate) user_us: u64,
    /// CPU time in the kernel, in microseconds.
    pub(crate) sys_us: u64,
    /// Largest resident set, in bytes.
    pub(crate) peak_bytes: u64,
}

/// How a program is started; see [`spawn`]. Everything is allocated before the fork.
#[derive(Debug)]
pub(crate) struct Plan {
    pub(crate) cwd: CString,
    /// Tried in order, as `execvp` would.
    pub(crate) programs: Vec<CString>,
    /// Pointers into memory that outlives the plan, ended by null.
    pub(crate) argv: Vec<*const c_char>,
    pub(crate) envp: Vec<*const c_char>,
    pub(crate) stdio: [RawFd; 3],
    /// Stdin is a terminal, which becomes the session's.
    pub(crate) terminal: bool,
    /// Resource and limit, soft and hard alike.
    pub(crate) limits: Vec<(c_int, u64)>,
    /// File of the CPU group that the program is to run in: a thread that writes 0 to it moves there.
    pub(crate) command_group: Option<RawFd>,
    /// Nice value of the program and of all that it starts.
    pub(crate) nice: c_int,
}

/// A mask of more CPUs than any machine has: the kernel takes those that the container may use.
const ALL_CPUS: [u64; 128] = [u64::MAX; 128];

/// Makes this process run on all CPUs of the container again. Every command of the workspace can set the affinity of
/// any process of its uid.
pub(crate) fn use_all_cpus() {
    let size = size_of_val(&ALL_CPUS);
    // SAFETY: the kernel reads `size` bytes of a constant.
    unsafe { libc::syscall(libc::SYS_sched_setaffinity, 0, size, ALL_CPUS.as_ptr()) };
}

/// Where a start failed. The numbers travel between supervisor and guest.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u64)]
pub(crate) enum Stage {
    Fork = 1,
    Cwd = 2,
    Limits = 3,
    Exec = 4,
    Terminal = 5,
}

struct Child<'a> {
    plan: &'a Plan,
    failure: Option<(Stage, c_int)>,
}

/// Closes every descriptor above 2 but `keep`, whoever owns it: only for a process that has not opened
/// anything yet, or that uses nothing of what it was forked with.
pub(crate) fn close_all_but(keep: Option<RawFd>) {
    let keep = keep.and_then(|fd| libc::c_uint::try_from(fd).ok());
    match keep {
        Some(fd) if fd > 2 => {
            if fd > 3 {
                close_range(3, fd - 1);
            }
            close_range(fd + 1, DESCRIPTOR_MAX);
        }
        _ => close_range(3, DESCRIPTOR_MAX),
    }
}

/// Largest descriptor number. Linux takes any unsigned bound in `close_range`; gVisor reads it as a signed number and
/// refuses larger ones, and closing thousands of descriptors one by one takes it 0.1 s.
const DESCRIPTOR_MAX: libc::c_uint = c_int::MAX.unsigned_abs();

fn close_range(first: libc::c_uint, last: libc::c_uint) {
    // SAFETY: plain numbers. Owners of closed descriptors would be left with others' numbers: there are none at the start
    // of the guest, and a forked process or a spawned child never comes back to those of its parent.
    let done = unsafe { libc::syscall(libc::SYS_close_range, first, last, 0) };
    if done != 0 {
        // Kernels before 5.9.
        for fd in first..=last.min(4096) {
            // SAFETY: as above.
            unsafe { libc::syscall(libc::SYS_close, fd) };
        }
    }
}

/// Forks. Sound because the guest has one thread: the child may do what the parent may.
pub(crate) fn fork() -> Result<ForkResult, Errno> {
    // SAFETY: the process has a single thread, so no lock can be held by a thread that is gone.
    unsafe { nix::unistd::fork() }
}

/// Overwrites an environment variable's value where the kernel put it, so that it is neither in
/// `/proc/PID/environ` nor in the memory of any forked process.
pub(crate) fn scrub_environment(name: &str) {
    unsafe extern "C" {
        static environ: *const *mut c_char;
    }
    // SAFETY: read once at the start of a single-threaded process; nobody changes the environment.
    let mut entry = unsafe { environ };
    while !entry.is_null() {
        // SAFETY: the array ends with a null pointer, at which the loop stops.
        let text = unsafe { *entry };
        if text.is_null() {
            return;
        }
        // SAFETY: entries are NUL-terminated strings.
        let bytes = unsafe { CStr::from_ptr(text) }.to_bytes();
        if bytes.starts_with(name.as_bytes()) && bytes.get(name.len()) == Some(&b'=') {
            let length = bytes.len();
            // SAFETY: the string's own bytes, on the writable initial stack; its NUL stays.
            unsafe { ptr::write_bytes(text, b'x', length) };
        }
        // SAFETY: the terminating null has not been reached.
        entry = unsafe { entry.add(1) };
    }
}

/// Gives every signal its default disposition. For processes that will start programs: what is ignored
/// stays ignored across execve. By system call, because libc refuses for the two signals it uses itself.
pub(crate) fn default_signals() {
    // The kernel's struct sigaction: handler (0 is SIG_DFL), flags, restorer, mask.
    let default = [0u64; 4];
    for signal in 1..=64 {
        // SAFETY: the kernel reads 32 bytes that outlive the call; it refuses for KILL and STOP.
        unsafe {
            libc::syscall(
                libc::SYS_rt_sigaction,
                signal,
                default.as_ptr(),
                ptr::null_mut::<u64>(),
                8,
            )
        };
    }
}

/// Starts a program the way vfork does: the child runs on a stack of its own in this process's memory,
/// while this process waits until it has called execve or given up. Descriptors, working directory,
/// signals and limits are the child's own.
pub(crate) fn spawn(plan: &Plan) -> Result<Pid, (Stage, c_int)> {
    let mut stack = vec![0u128; 4096];
    let mut child = Child {
        plan,
        failure: None,
    };
    let range = stack.as_mut_ptr_range();
    let argument = ptr::from_mut(&mut child).cast::<c_void>();
    let flags = libc::CLONE_VM | libc::CLONE_VFORK | libc::SIGCHLD;
    // SAFETY: the stack is 64 KiB, aligned to 16, grows down from its end and lives until the child is
    // gone from this memory (CLONE_VFORK); `child` likewise. The child only makes system calls.
    let pid = unsafe { libc::clone(run_child, range.end.cast::<c_void>(), flags, argument) };
    if pid < 0 {
        return Err((Stage::Fork, Errno::last_raw()));
    }
    // The child wrote it through a pointer that the compiler cannot follow.
    // SAFETY: a live local, aligned and initialised.
    match unsafe { ptr::read_volatile(&raw const child.failure) } {
        None => Ok(Pid::from_raw(pid)),
        Some(failure) => {
            // SAFETY: reaps the child that just failed; no status is wanted.
            unsafe { libc::waitpid(pid, ptr::null_mut(), 0) };
            Err(failure)
        }
    }
}

extern "C" fn run_child(argument: *mut c_void) -> c_int {
    // SAFETY: `spawn` passes a pointer to its own Child and does not touch it before the child is gone.
    let child = unsafe { &mut *argument.cast::<Child<'_>>() };
    child.failure = Some(prepare_and_exec(child.plan));
    // SAFETY: leaves without running destructors of memory that belongs to the parent.
    unsafe { libc::_exit(127) }
}

/// Returns only on failure.
fn prepare_and_exec(plan: &Plan) -> (Stage, c_int) {
    // SAFETY: no memory involved; fails harmlessly.
    unsafe { libc::setsid() };
    for (resource, limit) in &plan.limits {
        let value = libc::rlimit {
            rlim_cur: *limit,
            rlim_max: *limit,
        };
        let resource = libc::__rlimit_resource_t::try_from(*resource).unwrap_or(u32::MAX);
        // SAFETY: the struct outlives the call.
        if unsafe { libc::setrlimit(resource, &raw const value) } != 0 {
            return (Stage::Limits, Errno::last_raw());
        }
    }
    for (target, fd) in (0..).zip(plan.stdio) {
        // SAFETY: numbers only. The supervisor's descriptors are all above 2, so none is overwritten.
        if unsafe { libc::dup2(fd, target) } < 0 {
            return (Stage::Fork, Errno::last_raw());
        }
    }
    if let Some(group) = plan.command_group {
        join_group(group);
    }
    close_all_but(None);
    // SAFETY: numbers only; the session is new, so it has no terminal yet.
    if plan.terminal && unsafe { libc::ioctl(0, libc::TIOCSCTTY, 0) } != 0 {
        return (Stage::Terminal, Errno::last_raw());
    }
    // SAFETY: a NUL-terminated path that lives in the plan.
    if unsafe { libc::chdir(plan.cwd.as_ptr()) } != 0 {
        return (Stage::Cwd, Errno::last_raw());
    }
    // As late as possible: a command that goes on pinning others may have reached the supervisor or this process.
    use_all_cpus();
    worsen_priority(plan.nice);
    // SAFETY: numbers only.
    unsafe { libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) };
    unblock_signals();
    exec(plan)
}

/// Moves this process into a CPU group. Where the kernel refuses, the program still runs, at its nice value alone.
fn join_group(group: RawFd) {
    // SAFETY: the kernel reads one byte of a constant.
    unsafe { libc::write(group, c"0".as_ptr().cast(), 1) };
}

/// Takes a worse nice value for good: every process may do that to itself, and the limit of 0 lets none undo it.
fn worsen_priority(nice: c_int) {
    let never = libc::rlimit {
        rlim_cur: 0,
        rlim_max: 0,
    };
    // SAFETY: the struct outlives the call.
    unsafe { libc::setrlimit(libc::RLIMIT_NICE, &raw const never) };
    // SAFETY: numbers only.
    unsafe { libc::setpriority(libc::PRIO_PROCESS, 0, nice) };
}

fn unblock_signals() {
    // SAFETY: all bits zero is a valid sigset_t, the empty one.
    let empty: libc::sigset_t = unsafe { std::mem::zeroed() };
    // SAFETY: the set outlives the call; no old set is wanted.
    unsafe { libc::sigprocmask(libc::SIG_SETMASK, &raw const empty, ptr::null_mut()) };
}

fn exec(plan: &Plan) -> (Stage, c_int) {
    let mut denied = false;
    for program in &plan.programs {
        // SAFETY: path, argv and envp are NUL-terminated strings in arrays ended by null.
        unsafe { libc::execve(program.as_ptr(), plan.argv.as_ptr(), plan.envp.as_ptr()) };
        match Errno::last_raw() {
            libc::ENOENT | libc::ENOTDIR => {}
            libc::EACCES => denied = true,
            errno => return (Stage::Exec, errno),
        }
    }
    let errno = if denied { libc::EACCES } else { libc::ENOENT };
    (Stage::Exec, errno)
}

/// A child that has ended, without reaping it: its status can still be read. `None` when none has;
/// `ECHILD` when there are no children at all.
pub(crate) fn peek_exit() -> Result<Option<(Pid, Exit)>, Errno> {
    // SAFETY: all bits zero is a valid siginfo_t; the kernel leaves it so when nothing has ended.
    let mut info: libc::siginfo_t = unsafe { std::mem::zeroed() };
    // SAFETY: all bits zero is a valid rusage.
    let mut usage: libc::rusage = unsafe { std::mem::zeroed() };
    let options = libc::WEXITED | libc::WNOHANG | libc::WNOWAIT;
    // SAFETY: both structs outlive the call. The raw call is used because libc's hides the rusage.
    let done = unsafe {
        libc::syscall(
            libc::SYS_waitid,
            libc::P_ALL,
            0,
            &raw mut info,
            options,
            &raw mut usage,
        )
    };
    if done != 0 {
        return Err(Errno::last());
    }
    // SAFETY: waitid filled the SIGCHLD part, or left zeros.
    let pid = unsafe { info.si_pid() };
    if pid == 0 {
        return Ok(None);
    }
    // SAFETY: as above.
    let code = unsafe { info.si_status() };
    let exit = Exit {
        code,
        signaled: info.si_code != libc::CLD_EXITED,
        user_us: microseconds(usage.ru_utime),
        sys_us: microseconds(usage.ru_stime),
        peak_bytes: u64::try_from(usage.ru_maxrss).unwrap_or(0) * 1024,
    };
    Ok(Some((Pid::from_raw(pid), exit)))
}

fn microseconds(time: libc::timeval) -> u64 {
    let seconds = u64::try_from(time.tv_sec).unwrap_or(0);
    seconds * 1_000_000 + u64::try_from(time.tv_usec).unwrap_or(0)
}

/// A child that was stopped since this was asked last.
pub(crate) fn next_stopped() -> Option<Pid> {
    // SAFETY: all bits zero is a valid siginfo_t; the kernel leaves it so when nothing was stopped.
    let mut info: libc::siginfo_t = unsafe { std::mem::zeroed() };
    let options = libc::WSTOPPED | libc::WNOHANG;
    // SAFETY: the struct outlives the call.
    let done = unsafe { libc::waitid(libc::P_ALL, 0, &raw mut info, options) };
    // SAFETY: waitid filled the SIGCHLD part, or left zeros.
    let pid = unsafe { info.si_pid() };
    (done == 0 && pid != 0).then(|| Pid::from_raw(pid))
}

/// Reaps one child that [`peek_exit`] reported.
pub(crate) fn reap(pid: Pid) {
    // SAFETY: no status is wanted, so no memory is written.
    unsafe { libc::waitpid(pid.as_raw(), ptr::null_mut(), libc::WNOHANG) };
}

/// Kills every process but PID 1, which must be the caller. Anywhere else it would reach the whole
/// machine, so there it does nothing and says so.
pub(crate) fn kill_everything() -> bool {
    if nix::unistd::getpid() != Pid::from_raw(1) {
        return false;
    }
    // SAFETY: no memory involved; the pid namespace bounds whom it reaches.
    unsafe { libc::kill(-1, libc::SIGKILL) };
    true
}

/// Sends any signal, the real-time ones included, to one process. Only ever to one: a pid below 1 means others.
pub(crate) fn send_signal(pid: Pid, signal: c_int) {
    if pid.as_raw() > 0 {
        // SAFETY: numbers only; the kernel refuses what is no signal.
        unsafe { libc::kill(pid.as_raw(), signal) };
    }
}

/// The same, to the group that a process leads. Never to that of PID 1, whose negative means everybody.
pub(crate) fn send_signal_to_group(leader: Pid, signal: c_int) {
    if leader.as_raw() > 1 {
        // SAFETY: as above.
        unsafe { libc::kill(-leader.as_raw(), signal) };
    }
}

/// Bytes that a pipe holds.
pub(crate) fn bytes_in_pipe(fd: BorrowedFd<'_>) -> u64 {
    let mut count: c_int = 0;
    // SAFETY: FIONREAD writes one int, which outlives the call.
    let done = unsafe { libc::ioctl(fd.as_raw_fd(), libc::FIONREAD, &raw mut count) };
    if done == 0 {
        u64::try_from(count).unwrap_or(0)
    } else {
        0
    }
}

/// Sets the size of a terminal, by either end; its foreground group hears of a change.
pub(crate) fn set_terminal_size(fd: BorrowedFd<'_>, size: Winsize) -> Result<(), Errno> {
    // SAFETY: TIOCSWINSZ reads the struct, which outlives the call.
    let done = unsafe { libc::ioctl(fd.as_raw_fd(), libc::TIOCSWINSZ, &raw const size) };
    Errno::result(done).map(drop)
}

/// Reads at most `most` bytes behind what a buffer holds, whether or not the runtime knows of them yet.
pub(crate) fn read_behind(
    fd: BorrowedFd<'_>,
    buffer: &mut BytesMut,
    most: usize,
) -> io::Result<usize> {
    buffer.reserve(most);
    let space = buffer.spare_capacity_mut();
    let most = most.min(space.len());
    // SAFETY: the kernel writes at most `most` bytes, which the spare capacity has room for.
    let count = unsafe { libc::read(fd.as_raw_fd(), space.as_mut_ptr().cast::<c_void>(), most) };
    let count = usize::try_from(count).map_err(|_| io::Error::last_os_error())?;
    let length = buffer.len() + count;
    // SAFETY: the kernel has initialised that many bytes behind the old length.
    unsafe { buffer.set_len(length) };
    Ok(count)
}

/// Takes ownership of the descriptors that came with a message.
pub(crate) fn adopt(messages: impl Iterator<Item = ControlMessageOwned>) -> Vec<OwnedFd> {
    let mut fds = Vec::new();
    for message in messages {
        if let ControlMessageOwned::ScmRights(raw) = message {
            // SAFETY: SCM_RIGHTS just installed them in this process; nobody else knows them.
            fds.extend(raw.iter().map(|fd| unsafe { OwnedFd::from_raw_fd(*fd) }));
        }
    }
    fds
}

/// Waits for a descriptor to become readable or writable, with the runtime. For types that own theirs, and keep it.
pub(crate) fn watch<T: AsRawFd + Into<OwnedFd>>(
    owner: T,
    interest: Interest,
) -> io::Result<AsyncFd<T>> {
    // SAFETY: `T` owns its descriptor (it can be turned into an OwnedFd), the AsyncFd owns `T`, and only
    // shared references to it are ever taken: the descriptor stays open and the same until it is dropped.
    let watched = unsafe { AsyncFd::register_with_interest(owner, interest) };
    watched.map_err(|error| error.into_parts().1)
}

/// Ends a forked process without running anything of its parent's.
pub(crate) fn exit_now(code: c_int) -> ! {
    // SAFETY: never returns; no destructor is owed.
    unsafe { libc::_exit(code) }
}
