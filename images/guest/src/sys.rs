//! System calls that no safe wrapper offers, in the only unsafe code of the repository. Each function makes one request
//! to the kernel and states what makes it sound. None takes decisions.
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

/// Exit status and resource usage of a child.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct ExitStatus {
    /// Exit code, or the signal's number when `signaled`.
    pub(crate) code: i32,
    pub(crate) signaled: bool,
    /// CPU time in user mode of the child and the children it waited for, in microseconds.
    pub(crate) user_us: u64,
    /// CPU time in the kernel of the child and the children it waited for, in microseconds.
    pub(crate) sys_us: u64,
    /// Largest resident set, in bytes.
    pub(crate) peak_bytes: u64,
}

/// Arguments of [`spawn_program`]. The supervisor allocates all of them before the fork.
#[derive(Debug)]
pub(crate) struct SpawnPlan {
    pub(crate) cwd: CString,
    /// Candidate paths of the program, tried in order as `execvp` does.
    pub(crate) programs: Vec<CString>,
    /// Argument pointers into memory that outlives the plan, ended by null.
    pub(crate) argv: Vec<*const c_char>,
    pub(crate) envp: Vec<*const c_char>,
    pub(crate) stdio: [RawFd; 3],
    /// Makes stdin, which is a terminal, the controlling terminal of the new session.
    pub(crate) terminal: bool,
    /// Resource limits: resource and value, which becomes the soft and the hard limit.
    pub(crate) limits: Vec<(c_int, u64)>,
    /// File of the CPU group that the program runs in. A thread that writes 0 to it moves there.
    pub(crate) command_group: Option<RawFd>,
    /// Nice value of the program and its children.
    pub(crate) nice: c_int,
}

/// CPU mask with more CPUs than any machine has. The kernel reduces it to those that the container may use.
const ALL_CPUS: [u64; 128] = [u64::MAX; 128];

/// Allows this process to run on all CPUs of the container again. Every command of the workspace can change the
/// affinity of any process of its uid.
pub(crate) fn use_all_cpus() {
    let size = size_of_val(&ALL_CPUS);
    // SAFETY: the kernel reads `size` bytes of a constant.
    unsafe { libc::syscall(libc::SYS_sched_setaffinity, 0, size, ALL_CPUS.as_ptr()) };
}

/// Step at which a spawn failed. Supervisor and guest exchange the numbers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u64)]
pub(crate) enum SpawnStage {
    Fork = 1,
    Cwd = 2,
    Limits = 3,
    Exec = 4,
    Terminal = 5,
}

/// Arguments of the child, and the failure that it reports.
struct ChildSetup<'a> {
    plan: &'a SpawnPlan,
    failure: Option<(SpawnStage, c_int)>,
}

/// Closes every descriptor above 2 except `keep`, regardless of its owner. Only for a process that has opened nothing
/// yet, or that uses nothing it inherited.
pub(crate) fn close_all_but(keep: Option<RawFd>) {
    match keep.and_then(|fd| libc::c_uint::try_from(fd).ok()) {
        Some(fd) if fd > 2 => {
            if fd > 3 {
                close_range(3, fd - 1);
            }
            close_range(fd + 1, DESCRIPTOR_MAX);
        }
        _ => close_range(3, DESCRIPTOR_MAX),
    }
}

/// Largest descriptor number. Linux accepts any unsigned bound in `close_range`. gVisor reads it as a signed number
/// and refuses larger ones, and closing thousands of descriptors one by one takes it 0.1 s.
const DESCRIPTOR_MAX: libc::c_uint = c_int::MAX.unsigned_abs();

fn close_range(first: libc::c_uint, last: libc::c_uint) {
    // SAFETY: plain numbers. Owners of closed descriptors would be left with others' numbers: there are none at the
    // start of the guest, and a forked process or a spawned child never comes back to those of its parent.
    let done = unsafe { libc::syscall(libc::SYS_close_range, first, last, 0) };
    if done != 0 {
        // Kernels before 5.9 have no close_range.
        for fd in first..=last.min(4096) {
            // SAFETY: as above.
            unsafe { libc::syscall(libc::SYS_close, fd) };
        }
    }
}

/// Forks the process. This is sound because the guest has one thread: the child may do what the parent may.
pub(crate) fn fork() -> Result<ForkResult, Errno> {
    // SAFETY: the process has a single thread, so no lock can be held by a thread that is gone.
    unsafe { nix::unistd::fork() }
}

/// Overwrites an environment variable's value in the process's initial memory, so that neither `/proc/PID/environ` nor
/// the memory of a forked process shows it.
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

/// Resets every signal to its default disposition, for processes that start programs: ignored signals stay ignored
/// across execve. Uses the system call, because libc refuses the two signals that it uses itself.
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

/// Size of the stack of [`run_child`] in words of 16 bytes: 64 KiB.
const STACK_WORDS: usize = 4096;

/// Starts a program as vfork does. The child runs on a stack of its own in this process's memory, and this process
/// waits until the child has called execve or failed. Descriptors, working directory, signals and limits are the
/// child's own.
pub(crate) fn spawn_program(plan: &SpawnPlan) -> Result<Pid, (SpawnStage, c_int)> {
    // Not zeroed: that would cost more than the clone.
    let mut stack = Vec::<u128>::with_capacity(STACK_WORDS);
    let mut child = ChildSetup {
        plan,
        failure: None,
    };
    let stack_end = stack.spare_capacity_mut().as_mut_ptr_range().end;
    let argument = ptr::from_mut(&mut child).cast::<c_void>();
    let flags = libc::CLONE_VM | libc::CLONE_VFORK | libc::SIGCHLD;
    // SAFETY: the stack is 64 KiB, aligned to 16, grows down from its end and lives until the child is
    // gone from this memory (CLONE_VFORK); `child` likewise. The child only makes system calls.
    let pid = unsafe { libc::clone(run_child, stack_end.cast::<c_void>(), flags, argument) };
    if pid < 0 {
        return Err((SpawnStage::Fork, Errno::last_raw()));
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
    // SAFETY: `spawn_program` passes a pointer to its own ChildSetup and does not touch it before the child is gone.
    let child = unsafe { &mut *argument.cast::<ChildSetup<'_>>() };
    child.failure = Some(prepare_and_exec(child.plan));
    // SAFETY: leaves without running destructors of memory that belongs to the parent.
    unsafe { libc::_exit(127) }
}

/// Prepares the child and calls execve. Returns only on failure.
fn prepare_and_exec(plan: &SpawnPlan) -> (SpawnStage, c_int) {
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
            return (SpawnStage::Limits, Errno::last_raw());
        }
    }
    for (target, fd) in (0..).zip(plan.stdio) {
        // SAFETY: numbers only. The supervisor's descriptors are all above 2, so none is overwritten.
        if unsafe { libc::dup2(fd, target) } < 0 {
            return (SpawnStage::Fork, Errno::last_raw());
        }
    }
    // Before `close_all_but`, which closes the group's file too.
    if let Some(group) = plan.command_group {
        join_group(group);
    }
    close_all_but(None);
    // SAFETY: numbers only; the session is new, so it has no terminal yet.
    if plan.terminal && unsafe { libc::ioctl(0, libc::TIOCSCTTY, 0) } != 0 {
        return (SpawnStage::Terminal, Errno::last_raw());
    }
    // SAFETY: a NUL-terminated path that lives in the plan.
    if unsafe { libc::chdir(plan.cwd.as_ptr()) } != 0 {
        return (SpawnStage::Cwd, Errno::last_raw());
    }
    // The affinity is set as late as possible: another command may have pinned the supervisor or this process.
    use_all_cpus();
    worsen_priority(plan.nice);
    // SAFETY: numbers only.
    unsafe { libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) };
    unblock_signals();
    exec_program(plan)
}

/// Moves this process into a CPU group. Where the kernel refuses, the program still runs, at its nice value alone.
fn join_group(group: RawFd) {
    // SAFETY: the kernel reads one byte of a constant.
    unsafe { libc::write(group, c"0".as_ptr().cast(), 1) };
}

/// Raises the nice value for good. Any process may raise its own, and a limit of 0 lets none lower it again.
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

/// Tries each candidate path. Returns only on failure.
fn exec_program(plan: &SpawnPlan) -> (SpawnStage, c_int) {
    let mut denied = false;
    for program in &plan.programs {
        // SAFETY: path, argv and envp are NUL-terminated strings in arrays ended by null.
        unsafe { libc::execve(program.as_ptr(), plan.argv.as_ptr(), plan.envp.as_ptr()) };
        match Errno::last_raw() {
            libc::ENOENT | libc::ENOTDIR => {}
            libc::EACCES => denied = true,
            errno => return (SpawnStage::Exec, errno),
        }
    }
    let errno = if denied { libc::EACCES } else { libc::ENOENT };
    (SpawnStage::Exec, errno)
}

/// Returns a child that has ended, without reaping it. `None` if no child has ended; `ECHILD` if there are no
/// children.
pub(crate) fn peek_exit() -> Result<Option<(Pid, ExitStatus)>, Errno> {
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
    let exit = ExitStatus {
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

/// Returns a child that was stopped since the last call.
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

/// Reaps a child that [`peek_exit`] returned.
pub(crate) fn reap_child(pid: Pid) {
    // SAFETY: no status is wanted, so no memory is written.
    unsafe { libc::waitpid(pid.as_raw(), ptr::null_mut(), libc::WNOHANG) };
}

/// Kills every process except the caller, which must be PID 1. Returns `false` without a kill in any other process,
/// where the signal would reach the whole machine.
pub(crate) fn kill_everything() -> bool {
    if nix::unistd::getpid() != Pid::from_raw(1) {
        return false;
    }
    // SAFETY: no memory involved; the pid namespace bounds whom it reaches.
    unsafe { libc::kill(-1, libc::SIGKILL) };
    true
}

/// Sends any signal, real-time signals included, to exactly one process. Ignores pids below 1, which address groups.
pub(crate) fn send_signal(pid: Pid, signal: c_int) {
    if pid.as_raw() > 0 {
        // SAFETY: numbers only; the kernel refuses what is no signal.
        unsafe { libc::kill(pid.as_raw(), signal) };
    }
}

/// Sends any signal to the group of `leader`. Ignores PID 1, whose negative addresses all processes.
pub(crate) fn send_signal_to_group(leader: Pid, signal: c_int) {
    if leader.as_raw() > 1 {
        // SAFETY: as above.
        unsafe { libc::kill(-leader.as_raw(), signal) };
    }
}

/// Returns the number of bytes that a pipe holds.
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

/// Sets the size of a terminal through either end. The kernel signals a change to the foreground group.
pub(crate) fn set_terminal_size(fd: BorrowedFd<'_>, size: Winsize) -> Result<(), Errno> {
    // SAFETY: TIOCSWINSZ reads the struct, which outlives the call.
    let done = unsafe { libc::ioctl(fd.as_raw_fd(), libc::TIOCSWINSZ, &raw const size) };
    Errno::result(done).map(drop)
}

/// Reads at most `most` bytes and appends them to `buffer`, regardless of what the runtime knows about readiness.
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
pub(crate) fn adopt_fds(messages: impl Iterator<Item = ControlMessageOwned>) -> Vec<OwnedFd> {
    let mut fds = Vec::new();
    for message in messages {
        if let ControlMessageOwned::ScmRights(raw) = message {
            // SAFETY: SCM_RIGHTS just installed them in this process; nobody else knows them.
            fds.extend(raw.iter().map(|fd| unsafe { OwnedFd::from_raw_fd(*fd) }));
        }
    }
    fds
}

/// Registers a descriptor with the runtime, for types that own their descriptor and keep it.
pub(crate) fn register_fd<T: AsRawFd + Into<OwnedFd>>(
    owner: T,
    interest: Interest,
) -> io::Result<AsyncFd<T>> {
    // SAFETY: `T` owns its descriptor (it can be turned into an OwnedFd), the AsyncFd owns `T`, and only
    // shared references to it are ever taken: the descriptor stays open and the same until it is dropped.
    let watched = unsafe { AsyncFd::register_with_interest(owner, interest) };
    watched.map_err(|error| error.into_parts().1)
}

/// Ends a forked process without running destructors of its parent.
pub(crate) fn exit_now(code: c_int) -> ! {
    // SAFETY: never returns; no destructor is owed.
    unsafe { libc::_exit(code) }
}
