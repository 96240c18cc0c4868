//! Spawns an exec: checks its program, opens its streams, hands it to a supervisor and reads the outcome.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::time::Duration;

use nix::errno::Errno;
use nix::fcntl::{OFlag, open};
use nix::pty::{Winsize, posix_openpt, ptsname_r, unlockpt};
use nix::sys::stat::Mode;
use nix::unistd::Pid;
use skilld_proto::v1::{self, spawn_failure};

use super::exec_end::lost_result;
use super::output_source::OutputSource;
use super::program_check;
use crate::exec::host::ExecHost;
use crate::supervisor::protocol::{LaunchSpec, SupervisorReport};
use crate::supervisor::{Supervisor, output_pipe};
use crate::sys::{self, SpawnStage};

/// Time limit for a supervisor's report on a spawn.
const SPAWN_PATIENCE: Duration = Duration::from_secs(10);

/// Maximum number of new supervisors that get a launch, one after the other, while commands kill them.
const RELAUNCHES_MAX: usize = 4;

/// Resolved arguments of a spawn.
#[derive(Debug)]
pub(crate) struct SpawnRequest {
    pub(crate) launch: LaunchSpec,
    pub(crate) stdin: OwnedFd,
    /// Size of the terminal that becomes stdin and both outputs; `None` for pipes.
    pub(crate) terminal: Option<Winsize>,
}

/// Running exec with the guest's ends of its streams.
pub(super) struct SpawnedExec {
    pub(super) supervisor: Supervisor,
    pub(super) pid: i32,
    pub(super) sources: [Option<OutputSource>; 2],
    /// Copy of the guest's end of the terminal, for writes and resizes.
    pub(super) terminal: Option<OwnedFd>,
}

/// Failure of a launch.
enum LaunchError {
    /// A command killed the supervisor before it read the launch, so nothing was started.
    Unread,
    /// The supervisor did not report, so the program may have started.
    Lost,
    /// Step and errno that failed.
    Failed(SpawnStage, i32),
}

/// Guest's ends and program's ends of an exec's streams.
struct ExecStreams {
    sources: [Option<OutputSource>; 2],
    terminal: Option<OwnedFd>,
    stdio: [OwnedFd; 3],
}

/// Spawns an exec, if `programs` permits its program. Returns the exec's result if it does not start.
pub(super) async fn spawn_exec(
    host: &ExecHost,
    mut request: SpawnRequest,
    programs: Option<&v1::ExecPrograms>,
) -> Result<SpawnedExec, v1::ExecResult> {
    let mut launch = std::mem::take(&mut request.launch);
    if let Some(programs) = programs {
        let permitted = program_check::check_program(programs, &launch);
        launch.program = permitted.map_err(v1::ExecResult::spawn_failed)?;
    }
    let spawned = match open_streams(request) {
        Ok(streams) => spawn_with_streams(host, &launch, streams).await,
        Err((stage, errno)) => Err(LaunchError::Failed(stage, errno)),
    };
    spawned.map_err(|failure| {
        let (stage, errno) = match failure {
            LaunchError::Failed(stage, errno) => (stage, errno),
            LaunchError::Unread => (SpawnStage::Fork, Errno::EPIPE as i32),
            LaunchError::Lost => return lost_result(),
        };
        let about = match stage {
            SpawnStage::Cwd => program_check::describe_directory(&launch.cwd),
            SpawnStage::Exec => program_check::describe_program(&launch, errno),
            SpawnStage::Terminal => "a terminal".to_owned(),
            SpawnStage::Fork | SpawnStage::Limits => "starting".to_owned(),
        };
        spawn_failed_result(stage, errno, &about)
    })
}

/// Returns the result of an exec that could not be spawned.
fn spawn_failed_result(stage: SpawnStage, errno: i32, about: &str) -> v1::ExecResult {
    let api_stage = match stage {
        SpawnStage::Fork => spawn_failure::Step::Fork,
        SpawnStage::Cwd => spawn_failure::Step::Cwd,
        SpawnStage::Limits => spawn_failure::Step::Limits,
        SpawnStage::Exec => spawn_failure::Step::Exec,
        SpawnStage::Terminal => spawn_failure::Step::Terminal,
    };
    let known = Errno::from_raw(errno);
    v1::ExecResult::spawn_failed(v1::SpawnFailure {
        step: api_stage.into(),
        error_number: errno,
        message: format!("{known:?} ({}): {about}", known.desc()),
    })
}

/// Opens pipes, or a terminal if the request has its size.
fn open_streams(request: SpawnRequest) -> Result<ExecStreams, (SpawnStage, i32)> {
    match request.terminal {
        Some(size) => open_terminal(size).map_err(|errno| (SpawnStage::Terminal, errno as i32)),
        None => open_pipes(request.stdin).map_err(|errno| (SpawnStage::Fork, errno as i32)),
    }
}

/// Hands the launch to a supervisor and waits for its report. While commands kill supervisors before they read the
/// launch, new ones get it.
async fn spawn_with_streams(
    host: &ExecHost,
    launch: &LaunchSpec,
    streams: ExecStreams,
) -> Result<SpawnedExec, LaunchError> {
    let fork_failed = |errno| LaunchError::Failed(SpawnStage::Fork, errno as i32);
    let mut supervisor = host.supervisors.take().map_err(fork_failed)?;
    let mut spawned = launch_leader(host, &supervisor, launch, &streams.stdio).await;
    for _ in 0..RELAUNCHES_MAX {
        if !matches!(spawned, Err(LaunchError::Unread)) {
            break;
        }
        supervisor = host.supervisors.fork_supervisor().map_err(fork_failed)?;
        spawned = launch_leader(host, &supervisor, launch, &streams.stdio).await;
    }
    match spawned {
        Ok(pid) => Ok(SpawnedExec {
            supervisor,
            pid,
            sources: streams.sources,
            terminal: streams.terminal,
        }),
        Err(failure) => {
            match failure {
                LaunchError::Failed(..) => host.supervisors.give_back(supervisor),
                LaunchError::Unread => {}
                LaunchError::Lost => {
                    supervisor.kill();
                    host.supervisors.abandon(&supervisor);
                }
            }
            Err(failure)
        }
    }
}

/// Hands a launch to a supervisor and returns the pid of the started leader.
async fn launch_leader(
    host: &ExecHost,
    supervisor: &Supervisor,
    launch: &LaunchSpec,
    stdio: &[OwnedFd; 3],
) -> Result<i32, LaunchError> {
    let group = host.supervisors.command_group();
    let stdio = stdio.each_ref().map(AsFd::as_fd);
    let _starting = host.supervisors.mark_starting(supervisor);
    match supervisor.start(launch, stdio, group.as_deref()) {
        Ok(()) => {}
        // The kernel refuses a message with either of these once the supervisor is dead.
        Err(Errno::EPIPE | Errno::ECONNRESET) => return Err(LaunchError::Unread),
        Err(errno) => return Err(LaunchError::Failed(SpawnStage::Fork, errno as i32)),
    }
    let report = tokio::time::timeout(SPAWN_PATIENCE, supervisor.spawn_report()).await;
    match report {
        Ok(Err(Errno::ECONNRESET)) => Err(LaunchError::Unread),
        Ok(Err(_)) | Err(_) => Err(LaunchError::Lost),
        Ok(Ok(report)) => {
            let spawned = spawn_outcome(report).ok_or(LaunchError::Lost)?;
            let pid = spawned.map_err(|(stage, errno)| LaunchError::Failed(stage, errno))?;
            // Sweeps must spare the leader from here on: its supervisor may be dead long before the guest notices.
            host.leaders.lock().insert(Pid::from_raw(pid));
            Ok(pid)
        }
    }
}

/// Returns the outcome of a spawn attempt, or `None` for a report that comes later in an exec's life.
fn spawn_outcome(report: SupervisorReport) -> Option<Result<i32, (SpawnStage, i32)>> {
    match report {
        SupervisorReport::Started { pid } => Some(Ok(pid)),
        SupervisorReport::Failed { stage, errno } => Some(Err((stage, errno))),
        SupervisorReport::Exited { .. } | SupervisorReport::Empty => None,
    }
}

/// Opens pipes for both outputs.
fn open_pipes(stdin: OwnedFd) -> Result<ExecStreams, Errno> {
    let (out, out_writer) = output_pipe()?;
    let (err, err_writer) = output_pipe()?;
    let source = |fd| {
        OutputSource::pipe(fd)
            .map(Some)
            .map_err(|error| errno_of(&error))
    };
    Ok(ExecStreams {
        sources: [source(out)?, source(err)?],
        terminal: None,
        stdio: [stdin, out_writer, err_writer],
    })
}

/// Opens a terminal. O_NOCTTY keeps it from becoming the guest's own, although the guest leads a session.
fn open_terminal(size: Winsize) -> Result<ExecStreams, Errno> {
    let flags = OFlag::O_RDWR | OFlag::O_NOCTTY | OFlag::O_CLOEXEC;
    let master = posix_openpt(flags | OFlag::O_NONBLOCK)?;
    unlockpt(&master)?;
    let slave = open(ptsname_r(&master)?.as_str(), flags, Mode::empty())?;
    let master = OwnedFd::from(master);
    sys::set_terminal_size(master.as_fd(), size)?;
    let copy = |fd: &OwnedFd| fd.try_clone().map_err(|error| errno_of(&error));
    let stdio = [copy(&slave)?, copy(&slave)?, copy(&slave)?];
    let ours = copy(&master)?;
    let source = OutputSource::terminal(master, slave).map_err(|error| errno_of(&error))?;
    Ok(ExecStreams {
        sources: [Some(source), None],
        terminal: Some(ours),
        stdio,
    })
}

fn errno_of(error: &io::Error) -> Errno {
    Errno::from_raw(error.raw_os_error().unwrap_or(0))
}
