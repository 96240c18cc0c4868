//! The guest as a whole: what it was told, what it runs, and how an exec comes into being. The rpcs in
//! `service` are decoded there and carried out here.

use std::collections::HashSet;
use std::fs::File;
use std::io::{Seek, Write};
use std::os::fd::OwnedFd;
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use nix::errno::Errno;
use nix::fcntl::{FcntlArg, OFlag, fcntl};
use nix::libc;
use nix::sys::memfd::{MFdFlags, memfd_create};
use nix::unistd::{Pid, getpid, pipe2, write};
use skilld_proto::guest::v1 as wire;
use skilld_proto::v1;
use skilld_proto::v1::exec_result::Reason;
use skilld_proto::v1::stdin::Source;
use tokio::sync::watch;
use tonic::codegen::Bytes;

use crate::error::Error;
use crate::exec::pressure::Pressure;
use crate::exec::registry::Registry;
use crate::exec::run::{self, Start};
use crate::exec::stdin::Stdin;
use crate::exec::{Command, Exec, positive, size};
use crate::files::root::Root;
use crate::reaper::Reaper;
use crate::supervisor::wire::Launch;
use crate::supervisor::{Supervisors, walk};
use crate::{sys, tasks};

/// Of a workspace, as the daemon prepares it: made at the guest's start.
const DIRECTORIES: [&str; 5] = ["work", "work/inputs", "work/.venvs", "out", "runs"];
/// Where a container sees its own.
const CGROUP: &str = "/sys/fs/cgroup";
/// Stdin up to this size goes into a pipe, if that holds it without anyone writing on.
const STDIN_PIPE_BYTES: usize = 64 * 1024;
/// Bounds of what a request may say; the daemon keeps tighter ones.
const ARGS_MAX: usize = 4096;
const SPEC_BYTES_MAX: usize = 2 * 1024 * 1024;
/// Passes over everything that runs, at the end.
const SHUTDOWN_PASSES: u32 = 200;

/// What Configure said, checked.
#[derive(Debug, Clone)]
pub(crate) struct Settings {
    /// `workspaces/{workspace}`.
    pub(crate) workspace: String,
    pub(crate) execs_max: u32,
    pub(crate) leak_grace: Duration,
    pub(crate) kill_grace: Duration,
    pub(crate) heartbeat: Duration,
    pub(crate) disconnect_grace: Duration,
}

/// Pids that tasks share.
#[derive(Debug, Default)]
pub(crate) struct Pids(Mutex<HashSet<Pid>>);

impl Pids {
    pub(crate) fn lock(&self) -> MutexGuard<'_, HashSet<Pid>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// PID 1.
#[derive(Debug)]
pub(crate) struct Guest {
    pub(crate) nonce: Bytes,
    pub(crate) root: Arc<Root>,
    pub(crate) execs: Registry,
    pub(crate) supervisors: Arc<Supervisors>,
    pub(crate) reaper: Arc<Reaper>,
    pub(crate) pressure: Pressure,
    /// Those that run: whoever sweeps up what has no supervisor spares them.
    pub(crate) leaders: Pids,
    /// A daemon is, and serves: it has said what this is.
    pub(crate) connected: watch::Sender<bool>,
    null: OwnedFd,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    settings: Option<Settings>,
    refusing: bool,
}

impl Guest {
    /// Opens the workspace and makes its directories. Supervisors are made by the caller, since they need
    /// what is closed to an undumpable process.
    pub(crate) fn new(
        workspace: &Path,
        nonce: Bytes,
        supervisors: Supervisors,
    ) -> Result<Arc<Self>, Error> {
        let root = Arc::new(Root::open(workspace)?);
        for directory in DIRECTORIES {
            root.make_directories(directory.as_bytes())?;
        }
        root.link_metadata()?;
        let null = File::options().read(true).open("/dev/null");
        let null = null.map_err(|_| Error::file("/dev/null", Errno::last()))?;
        Ok(Arc::new(Self {
            nonce,
            execs: Registry::new(Arc::clone(&root)),
            root,
            supervisors: Arc::new(supervisors),
            reaper: Reaper::new(),
            pressure: Pressure::open(Path::new(CGROUP)),
            leaders: Pids::default(),
            connected: watch::Sender::new(false),
            null: null.into(),
            state: Mutex::default(),
        }))
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes names and limits; the same ones again change nothing.
    pub(crate) fn configure(&self, request: &wire::ConfigureRequest) -> Result<(), Error> {
        if !request.workspace.starts_with("workspaces/") || request.workspace.len() > 128 {
            return Err(invalid("workspace", "must be workspaces/{workspace}"));
        }
        let retained_max = usize::try_from(request.retained_execs_max).unwrap_or(usize::MAX);
        self.execs
            .set_limits(retained_max, request.retain_bytes_total);
        self.state().settings = Some(Settings {
            workspace: request.workspace.clone(),
            execs_max: request.execs_max,
            leak_grace: positive(request.leak_grace).unwrap_or(Duration::from_millis(500)),
            kill_grace: positive(request.kill_grace).unwrap_or(Duration::from_secs(2)),
            heartbeat: positive(request.heartbeat).unwrap_or(Duration::from_secs(15)),
            disconnect_grace: positive(request.disconnect_grace).unwrap_or(Duration::from_secs(5)),
        });
        Ok(())
    }

    /// What Configure said; nothing is run before it came, or after Shutdown.
    pub(crate) fn settings(&self) -> Result<Settings, Error> {
        let state = self.state();
        let settings = state.settings.clone().filter(|_| !state.refusing);
        settings.ok_or(Error::NotReady)
    }

    /// The workspace that this container is; empty before Configure.
    pub(crate) fn workspace(&self) -> String {
        let state = self.state();
        state
            .settings
            .as_ref()
            .map(|settings| settings.workspace.clone())
            .unwrap_or_default()
    }

    pub(crate) fn exec(&self, id: &str) -> Result<Arc<Exec>, Error> {
        let exec = self.execs.get(id);
        exec.ok_or_else(|| Error::ExecNotFound {
            id: id.chars().take(64).collect(),
        })
    }

    /// The exec of a request: started by it, or there already because of the same request.
    pub(crate) fn start(
        self: &Arc<Self>,
        request: wire::StartExecRequest,
    ) -> Result<(Arc<Exec>, Settings), Error> {
        let settings = self.settings()?;
        if let Some(exec) = self.started_by(&request)? {
            return Ok((exec, settings));
        }
        if self.execs.running() >= usize::try_from(settings.execs_max).unwrap_or(usize::MAX) {
            return Err(Error::TooManyExecs {
                max: settings.execs_max,
            });
        }
        let id = request.exec_id;
        let mut spec = request.spec.unwrap_or_default();
        let launch = launch(request.argv, request.env, request.cwd, spec.limits.as_ref())?;
        self.root.refuse_way_out(&launch.cwd)?;
        let (start, writer) = self.prepare(launch, &mut spec)?;
        self.make_directories(&id, &spec.skill);
        let name = format!("{}/execs/{id}", settings.workspace);
        let (exec, commands) = Exec::new(
            name,
            id,
            request.request_digest,
            spec,
            writer,
            &self.execs.budget,
        );
        self.execs.insert(Arc::clone(&exec));
        let (guest, shared) = (Arc::clone(self), Arc::clone(&exec));
        tasks::spawn(run::run(guest, shared, settings.clone(), start, commands));
        Ok((exec, settings))
    }

    /// The exec that a request has started already; refuses an id that is another's, or was.
    fn started_by(&self, request: &wire::StartExecRequest) -> Result<Option<Arc<Exec>>, Error> {
        let id = request.exec_id.clone();
        if !is_exec_id(&id) {
            return Err(invalid(
                "exec_id",
                "must match [a-z0-9]([a-z0-9._-]{0,61}[a-z0-9])?",
            ));
        }
        if let Some(exec) = self.execs.get(&id) {
            if exec.digest == request.request_digest {
                return Ok(Some(exec));
            }
            return Err(Error::IdTaken { id });
        }
        if self.execs.is_forgotten(&id) {
            return Err(Error::IdForgotten { id });
        }
        Ok(None)
    }

    /// What a start needs, and where others write to its stdin. The effective spec says where stdin comes from, but
    /// not what it is: that is taken out of it.
    fn prepare(
        &self,
        mut launch: Launch,
        spec: &mut v1::ExecSpec,
    ) -> Result<(Start, Option<Stdin>), Error> {
        let terminal = spec.terminal.as_ref();
        let terminal = terminal.map(|terminal| size(terminal.rows, terminal.cols));
        let given = match spec.stdin.as_mut().and_then(|stdin| stdin.source.as_mut()) {
            Some(Source::Data(data)) => Some(Source::Data(std::mem::take(data))),
            Some(Source::Open(open)) => Some(Source::Open(*open)),
            None => None,
        };
        if terminal.is_some() && matches!(given, Some(Source::Data(_))) {
            return Err(invalid(
                "spec.stdin.data",
                "cannot be given with a terminal",
            ));
        }
        let (stdin, writer) = self.stdin(given, terminal.is_some())?;
        launch.terminal = terminal.is_some();
        let start = Start {
            launch,
            stdin,
            terminal,
        };
        Ok((start, writer))
    }

    /// Makes what is an exec's own, and its skill's, whose link .venv leads there. A command may have put something
    /// else in their place: its own loss. Without them others still run, in a full workspace those that make room.
    fn make_directories(&self, id: &str, skill: &str) {
        drop(self.root.make_run_directory(id));
        if !skill.is_empty() {
            let venv = format!("work/.venvs/{skill}");
            drop(self.root.make_directories(venv.as_bytes()));
        }
    }

    /// What the program reads from, and what others write to if they may.
    fn stdin(
        &self,
        source: Option<Source>,
        terminal: bool,
    ) -> Result<(OwnedFd, Option<Stdin>), Error> {
        let failed = |errno| Error::file("stdin", errno);
        let null = || self.null.try_clone().map_err(|_| failed(Errno::EMFILE));
        match source {
            None | Some(Source::Open(false)) => Ok((null()?, None)),
            Some(Source::Open(true)) if terminal => Ok((null()?, Some(Stdin::terminal()))),
            Some(Source::Data(data)) => Ok((given_stdin(&data)?, None)),
            Some(Source::Open(true)) => {
                let (reader, writer) = pipe2(OFlag::O_CLOEXEC).map_err(failed)?;
                let writer = Stdin::pipe(writer).map_err(|_| failed(Errno::EMFILE))?;
                Ok((reader, Some(writer)))
            }
        }
    }

    /// Ends what is left of an exec, stragglers that were to be kept included, and forgets it.
    pub(crate) async fn delete(&self, id: &str) -> Result<(), Error> {
        let exec = self.exec(id)?;
        let (grace, reason) = (None, Reason::KilledByClient);
        if exec.command(Command::Kill { grace, reason }).await {
            exec.until(|state| state.gone).await;
        }
        self.execs.delete(&exec);
        Ok(())
    }

    /// Kills everything that is not the guest, and refuses what comes after. `reason` is what the execs that run end
    /// with.
    pub(crate) async fn shutdown(&self, reason: Reason) {
        self.state().refusing = true;
        for exec in self.execs.list() {
            exec.try_kill(reason);
        }
        for _ in 0..SHUTDOWN_PASSES {
            // Reaping is the reaper's, and noting the reason the execs' own: their turn comes when this waits.
            tokio::time::sleep(Duration::from_millis(2)).await;
            if !sys::kill_everything() {
                walk::kill_tree(getpid(), &HashSet::new());
            }
            if walk::descendants(getpid(), &HashSet::new()).is_empty() {
                return;
            }
        }
    }
}

/// These bytes, then end of file.
fn given_stdin(data: &[u8]) -> Result<OwnedFd, Error> {
    let failed = |errno| Error::file("stdin", errno);
    if let Some(reader) = filled_pipe(data) {
        return Ok(reader);
    }
    let mut file = File::from(memfd_create(c"stdin", MFdFlags::MFD_CLOEXEC).map_err(failed)?);
    let written = file.write_all(data).and_then(|()| file.rewind());
    written
        .map(|()| file.into())
        .map_err(|_| failed(Errno::ENOSPC))
}

/// A pipe that holds them, if one does: a user that has many of them gets small ones, and nobody may wait for room
/// in this one.
fn filled_pipe(data: &[u8]) -> Option<OwnedFd> {
    if data.len() > STDIN_PIPE_BYTES {
        return None;
    }
    let (reader, writer) = pipe2(OFlag::O_CLOEXEC).ok()?;
    fcntl(&writer, FcntlArg::F_SETFL(OFlag::O_NONBLOCK)).ok()?;
    let written = write(&writer, data).ok()?;
    (written == data.len()).then_some(reader)
}

fn invalid(field: &'static str, problem: &'static str) -> Error {
    Error::Invalid { field, problem }
}

pub(crate) fn launch(
    argv: Vec<String>,
    env: Vec<String>,
    cwd: String,
    limits: Option<&v1::ExecLimits>,
) -> Result<Launch, Error> {
    if argv.is_empty() || argv.len() > ARGS_MAX || env.len() > ARGS_MAX {
        return Err(invalid("argv", "must have 1 to 4,096 entries"));
    }
    let all = || argv.iter().chain(&env).chain(std::iter::once(&cwd));
    if all().map(String::len).sum::<usize>() > SPEC_BYTES_MAX {
        return Err(invalid("argv", "is too long"));
    }
    if all().any(|text| text.contains('\0')) {
        return Err(invalid("argv", "has a NUL in it"));
    }
    if !cwd.starts_with('/') {
        return Err(invalid("cwd", "must be absolute"));
    }
    let limits = limits.copied().unwrap_or_default();
    let resources = [
        (libc::RLIMIT_CPU, limits.cpu_seconds),
        (libc::RLIMIT_FSIZE, limits.file_bytes),
        (libc::RLIMIT_NOFILE, limits.open_files),
        (libc::RLIMIT_NPROC, limits.processes),
        (libc::RLIMIT_AS, limits.address_space_bytes),
    ];
    let set = resources.into_iter().filter(|(_, value)| *value > 0);
    let limits = set.filter_map(|(resource, value)| {
        Some((i32::try_from(resource).ok()?, u64::try_from(value).ok()?))
    });
    let limits = limits.collect();
    Ok(Launch {
        cwd,
        argv,
        env,
        limits,
        ..Launch::default()
    })
}

/// `[a-z0-9]([a-z0-9._-]{0,61}[a-z0-9])?`; the id becomes the name of a directory.
fn is_exec_id(id: &str) -> bool {
    let edge = |byte: Option<&u8>| {
        byte.is_some_and(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit())
    };
    let inner = |byte: &u8| edge(Some(byte)) || b"._-".contains(byte);
    let bytes = id.as_bytes();
    bytes.len() <= 63 && edge(bytes.first()) && edge(bytes.last()) && bytes.iter().all(inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn exec_ids_cannot_leave_their_directory() {
        for good in ["a", "0", "a.b-c_d", &"x".repeat(63)] {
            assert!(is_exec_id(good), "{good}");
        }
        for bad in [
            "",
            ".",
            "..",
            "a/b",
            "-a",
            "a.",
            "A",
            "a\0",
            &"x".repeat(64),
        ] {
            assert!(!is_exec_id(bad), "{bad}");
        }
    }

    #[test]
    fn a_launch_without_a_program_or_with_a_nul_is_refused() {
        let check = |argv: &[&str], cwd: &str| {
            let argv = argv.iter().map(|arg| (*arg).to_owned()).collect();
            launch(argv, Vec::new(), cwd.to_owned(), None).is_ok()
        };
        assert!(check(&["a"], "/"));
        assert!(!check(&[], "/"));
        assert!(!check(&["a\0b"], "/"));
        assert!(!check(&["a"], "relative"));
    }
}
