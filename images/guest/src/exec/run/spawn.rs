//! The start of an exec: whether it may be, its streams, its supervisor, and what that says of the start.

use std::fs::metadata;
use std::io::{self, ErrorKind::NotFound};
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;
use std::time::Duration;

use nix::errno::Errno;
use nix::fcntl::{OFlag, open};
use nix::pty::{Winsize, posix_openpt, ptsname_r, unlockpt};
use nix::sys::stat::Mode;
use nix::unistd::Pid;
use skilld_proto::v1;

use super::program;
use super::stream::Source;
use crate::exec;
use crate::guest::Guest;
use crate::supervisor::wire::Launch;
use crate::supervisor::{Supervisor, output_pipe};
use crate::sys::{self, Stage};

/// For a supervisor to say how a start went.
const SPAWN_PATIENCE: Duration = Duration::from_secs(10);

/// What is needed to start an exec, resolved.
#[derive(Debug)]
pub(crate) struct Start {
    pub(crate) launch: Launch,
    pub(crate) stdin: OwnedFd,
    /// Unset for pipes; else stdin and both outputs are a terminal of this size.
    pub(crate) terminal: Option<Winsize>,
}

/// An exec that runs.
pub(super) struct Spawned {
    pub(super) supervisor: Supervisor,
    pub(super) pid: i32,
    pub(super) sources: [Option<Source>; 2],
    /// The guest's end of its terminal, to be written to and resized.
    pub(super) terminal: Option<OwnedFd>,
}

/// Where a start failed; `None` if the supervisor was killed before it could say anything.
type Failure = Option<(Stage, i32)>;

/// The guest's ends and the program's.
struct Streams {
    sources: [Option<Source>; 2],
    terminal: Option<OwnedFd>,
    stdio: [OwnedFd; 3],
}

/// Starts it, if its program is one of `programs`; else the result that it has.
pub(super) async fn spawn(
    guest: &Guest,
    mut start: Start,
    programs: Option<&v1::Programs>,
) -> Result<Spawned, v1::ExecResult> {
    let mut launch = std::mem::take(&mut start.launch);
    if let Some(programs) = programs {
        let permitted = program::permitted(programs, &launch);
        launch.program = permitted.map_err(|failure| v1::ExecResult {
            reason: v1::exec_result::Reason::SpawnFailed.into(),
            spawn_failure: Some(failure),
            ..Default::default()
        })?;
    }
    let spawned = match streams(start) {
        Ok(streams) => with_streams(guest, &launch, streams).await,
        Err(failure) => Err(Some(failure)),
    };
    spawned.map_err(|failure| {
        let Some((stage, errno)) = failure else {
            return exec::lost();
        };
        let about = match stage {
            Stage::Cwd => describe_directory(&launch.cwd),
            Stage::Exec => launch.argv.first().cloned().unwrap_or_default(),
            Stage::Terminal => "a terminal".to_owned(),
            Stage::Fork | Stage::Limits => "starting".to_owned(),
        };
        exec::not_spawned(stage, errno, &about)
    })
}

/// Names a working directory that could not be entered, and the first directory on the way to it that is missing.
pub(super) fn describe_directory(cwd: &str) -> String {
    let missing = |path: &&Path| metadata(path).is_err_and(|error| error.kind() == NotFound);
    let ways: Vec<&Path> = Path::new(cwd).ancestors().collect();
    match ways.into_iter().rev().find(missing) {
        Some(first) if first != Path::new(cwd) => {
            format!("working directory {cwd}: {} is missing", first.display())
        }
        _ => format!("working directory {cwd}"),
    }
}

fn streams(start: Start) -> Result<Streams, (Stage, i32)> {
    match start.terminal {
        Some(size) => terminal(size).map_err(|errno| (Stage::Terminal, errno as i32)),
        None => pipes(start.stdin).map_err(|errno| (Stage::Fork, errno as i32)),
    }
}

async fn with_streams(
    guest: &Guest,
    launch: &Launch,
    streams: Streams,
) -> Result<Spawned, Failure> {
    let supervisor = hand_over(guest, launch, &streams.stdio);
    let supervisor = supervisor.map_err(|errno| Some((Stage::Fork, errno as i32)))?;
    // The program's ends are the program's alone from here on.
    drop(streams.stdio);
    let starting = guest.supervisors.starting(&supervisor);
    let report = tokio::time::timeout(SPAWN_PATIENCE, supervisor.report()).await;
    let spawned = report.ok().flatten().and_then(exec::spawned);
    if let Some(Ok(pid)) = spawned {
        // Others are to spare it from here on: its supervisor may be dead long before the guest hears of it.
        guest.leaders.lock().insert(Pid::from_raw(pid));
    }
    drop(starting);
    match spawned {
        Some(Ok(pid)) => Ok(Spawned {
            supervisor,
            pid,
            sources: streams.sources,
            terminal: streams.terminal,
        }),
        Some(Err(failure)) => {
            guest.supervisors.give_back(supervisor);
            Err(Some(failure))
        }
        None => {
            supervisor.end();
            guest.supervisors.abandon(&supervisor);
            Err(None)
        }
    }
}

fn hand_over(guest: &Guest, launch: &Launch, stdio: &[OwnedFd; 3]) -> Result<Supervisor, Errno> {
    let stdio = stdio.each_ref().map(AsFd::as_fd);
    let group = guest.supervisors.command_group();
    let group = group.as_deref();
    let supervisor = guest.supervisors.take()?;
    match supervisor.start(launch, stdio, group) {
        Ok(()) => Ok(supervisor),
        // A tenant killed the one that waited; nothing was started.
        Err(Errno::EPIPE | Errno::ECONNRESET) => {
            let supervisor = guest.supervisors.fresh()?;
            supervisor.start(launch, stdio, group)?;
            Ok(supervisor)
        }
        Err(errno) => Err(errno),
    }
}

fn pipes(stdin: OwnedFd) -> Result<Streams, Errno> {
    let (out, out_writer) = output_pipe()?;
    let (err, err_writer) = output_pipe()?;
    let source = |fd| Source::pipe(fd).map(Some).map_err(|error| errno(&error));
    Ok(Streams {
        sources: [source(out)?, source(err)?],
        terminal: None,
        stdio: [stdin, out_writer, err_writer],
    })
}

/// Neither end becomes the guest's own terminal, though it leads a session.
fn terminal(size: Winsize) -> Result<Streams, Errno> {
    let flags = OFlag::O_RDWR | OFlag::O_NOCTTY | OFlag::O_CLOEXEC;
    let master = posix_openpt(flags | OFlag::O_NONBLOCK)?;
    unlockpt(&master)?;
    let slave = open(ptsname_r(&master)?.as_str(), flags, Mode::empty())?;
    let master = OwnedFd::from(master);
    sys::set_terminal_size(master.as_fd(), size)?;
    let copy = |fd: &OwnedFd| fd.try_clone().map_err(|error| errno(&error));
    let stdio = [copy(&slave)?, copy(&slave)?, copy(&slave)?];
    let ours = copy(&master)?;
    let source = Source::terminal(master, slave).map_err(|error| errno(&error))?;
    Ok(Streams {
        sources: [Some(source), None],
        terminal: Some(ours),
        stdio,
    })
}

fn errno(error: &io::Error) -> Errno {
    Errno::from_raw(error.raw_os_error().unwrap_or(0))
}
