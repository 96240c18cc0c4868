//! State of the whole guest: its configuration, its execs, and the start of an exec. `service` decodes RPCs and calls
//! this module.

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
use nix::unistd::{getpid, pipe2, write};
use skilld_common::names::{is_resource_id, strip_skill_prefix};
use skilld_proto::guest::v1 as wire;
use skilld_proto::v1::{self, ExitReason};
use tonic::codegen::Bytes;

use crate::error::Error;
use crate::exec::host::{ExecHost, GuestSettings};
use crate::exec::run::{self, SpawnRequest};
use crate::exec::stdin::ExecStdin;
use crate::exec::{Exec, ExecControl, positive_duration, terminal_size, warm_up};
use crate::files::root::WorkspaceRoot;
use crate::supervisor::protocol::LaunchSpec;
use crate::supervisor::{SupervisorPool, descendants};
use crate::{sys, task_spawn};

/// Directories that the guest creates in the workspace when it starts.
const DIRECTORIES: [&str; 5] = ["work", "work/inputs", "work/.venvs", "out", "runs"];
/// Maximum size of stdin data that is put into a pipe, in bytes. More goes into a memory file.
const STDIN_PIPE_BYTES: usize = 64 * 1024;
/// Maximum number of arguments, and of variables, of a start request. The daemon enforces tighter limits.
const ARGS_MAX: usize = 4096;
/// Maximum size of the texts of a start request together, in bytes. The daemon enforces tighter limits.
const SPEC_BYTES_MAX: usize = 2 * 1024 * 1024;
/// Maximum number of passes that kill all processes at shutdown. With their pauses they take 0.4 s of the second that
/// the daemon waits.
const SHUTDOWN_PASSES: u32 = 200;

/// State of the guest process, shared by all connections and tasks.
#[derive(Debug)]
pub(crate) struct Guest {
    pub(crate) nonce: Bytes,
    pub(crate) root: Arc<WorkspaceRoot>,
    pub(crate) host: Arc<ExecHost>,
    null: OwnedFd,
    state: Mutex<GuestState>,
}

/// Mutable state of the guest.
#[derive(Debug, Default)]
struct GuestState {
    settings: Option<GuestSettings>,
    refusing: bool,
}

impl Guest {
    /// Opens the workspace and creates its directories. The caller makes the supervisor pool beforehand, because the
    /// pool opens a file that is closed to an undumpable process.
    pub(crate) fn new(
        workspace: &Path,
        nonce: Bytes,
        supervisors: SupervisorPool,
    ) -> Result<Arc<Self>, Error> {
        let root = Arc::new(WorkspaceRoot::open(workspace)?);
        for directory in DIRECTORIES {
            root.make_directories(directory.as_bytes())?;
        }
        root.link_metadata()?;
        let null = File::options()
            .read(true)
            .open("/dev/null")
            .map_err(|_| Error::file("/dev/null", Errno::last()))?;
        Ok(Arc::new(Self {
            nonce,
            host: Arc::new(ExecHost::new(&root, supervisors)),
            root,
            null: null.into(),
            state: Mutex::default(),
        }))
    }

    fn state(&self) -> MutexGuard<'_, GuestState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Applies a Configure request. Repeating it with the same values changes nothing.
    pub(crate) fn configure(&self, request: &wire::ConfigureRequest) -> Result<(), Error> {
        if !request.workspace.starts_with("workspaces/") || request.workspace.len() > 128 {
            return Err(Error::invalid(
                "workspace",
                "must be workspaces/{workspace}",
            ));
        }
        let retained_max = usize::try_from(request.retained_execs_max).unwrap_or(usize::MAX);
        self.host
            .execs
            .set_limits(retained_max, request.retain_bytes_total);
        self.state().settings = Some(GuestSettings {
            workspace: request.workspace.clone(),
            execs_max: request.execs_max,
            leak_grace: positive_duration(request.leak_grace).unwrap_or(Duration::from_millis(500)),
            kill_grace: positive_duration(request.kill_grace).unwrap_or(Duration::from_secs(2)),
            heartbeat: positive_duration(request.heartbeat).unwrap_or(Duration::from_secs(15)),
            disconnect_grace: positive_duration(request.disconnect_grace)
                .unwrap_or(Duration::from_secs(5)),
        });
        Ok(())
    }

    /// Returns the settings; `NotReady` before Configure and after Shutdown.
    pub(crate) fn settings(&self) -> Result<GuestSettings, Error> {
        let state = self.state();
        let settings = state.settings.clone().filter(|_| !state.refusing);
        settings.ok_or(Error::NotReady)
    }

    /// Returns the workspace's resource name, empty before Configure.
    pub(crate) fn workspace(&self) -> String {
        let state = self.state();
        state
            .settings
            .as_ref()
            .map(|settings| settings.workspace.clone())
            .unwrap_or_default()
    }

    /// Runs a program before the container becomes a workspace.
    pub(crate) async fn warm_up(&self, request: wire::WarmUpRequest) -> Result<(), Error> {
        if !self.workspace().is_empty() {
            return Err(Error::NotReady);
        }
        warm_up::run_warm_up(&self.host.supervisors, request).await
    }

    /// Starts an exec, or returns the one that an earlier attempt of the same request started.
    pub(crate) fn start_exec(
        &self,
        request: wire::StartExecRequest,
    ) -> Result<(Arc<Exec>, GuestSettings), Error> {
        let settings = self.settings()?;
        if let Some(exec) = self.find_started_exec(&request)? {
            return Ok((exec, settings));
        }
        if self.host.execs.running() >= usize::try_from(settings.execs_max).unwrap_or(usize::MAX) {
            return Err(Error::TooManyExecs {
                max: settings.execs_max,
            });
        }
        let id = request.exec_id;
        let mut spec = request.spec.unwrap_or_default();
        let launch = build_launch(request.argv, request.env, request.cwd, spec.limits.as_ref())?;
        self.root.check_beneath(&launch.cwd)?;
        let (spawn_request, writer) = self.prepare_spawn(launch, &mut spec)?;
        self.make_exec_directories(&id, strip_skill_prefix(&spec.skill));
        let name = format!("{}/execs/{id}", settings.workspace);
        let (exec, controls) = Exec::new(
            name,
            id,
            request.request_digest,
            spec,
            writer,
            &self.host.execs.budget,
        );
        self.host.execs.insert(Arc::clone(&exec));
        let (host, shared) = (Arc::clone(&self.host), Arc::clone(&exec));
        task_spawn::spawn(run::run_exec(
            host,
            shared,
            settings.clone(),
            spawn_request,
            controls,
        ));
        Ok((exec, settings))
    }

    /// Returns the exec that an earlier attempt of this request started. Fails if the id belongs or belonged to
    /// another request.
    fn find_started_exec(
        &self,
        request: &wire::StartExecRequest,
    ) -> Result<Option<Arc<Exec>>, Error> {
        let id = request.exec_id.clone();
        // The id becomes the name of a directory.
        if !is_resource_id(&id) {
            return Err(Error::invalid(
                "exec_id",
                "must match [a-z0-9]([a-z0-9._-]{0,61}[a-z0-9])?",
            ));
        }
        if let Some(exec) = self.host.execs.get(&id) {
            if exec.digest == request.request_digest {
                return Ok(Some(exec));
            }
            return Err(Error::IdTaken { id });
        }
        if self.host.execs.is_forgotten(&id) {
            return Err(Error::IdForgotten { id });
        }
        Ok(None)
    }

    /// Opens stdin and assembles what the spawn needs. Moves the stdin data out of `spec`, because the effective spec
    /// leaves them out.
    fn prepare_spawn(
        &self,
        mut launch: LaunchSpec,
        spec: &mut v1::ExecSpec,
    ) -> Result<(SpawnRequest, Option<ExecStdin>), Error> {
        let terminal = spec
            .terminal
            .as_ref()
            .map(|terminal| terminal_size(terminal.rows, terminal.cols));
        let data = std::mem::take(&mut spec.stdin_data);
        if !data.is_empty() && (spec.open_stdin || terminal.is_some()) {
            return Err(Error::invalid(
                "spec.stdin_data",
                "cannot be given with open_stdin or a terminal",
            ));
        }
        let (stdin, writer) = match spec.open_stdin {
            true => self.open_stdin(terminal.is_some())?,
            false if data.is_empty() => (self.null_stdin()?, None),
            false => (stdin_from_bytes(&data)?, None),
        };
        launch.terminal = terminal.is_some();
        let request = SpawnRequest {
            launch,
            stdin,
            terminal,
        };
        Ok((request, writer))
    }

    /// Creates the exec's own directory and the one that its skill's `.venv` link points to. Errors are ignored: a
    /// command may have replaced the parent, and in a full workspace a command must still run to free space.
    fn make_exec_directories(&self, id: &str, skill: &str) {
        drop(self.root.make_run_directory(id));
        if !skill.is_empty() {
            let venv = format!("work/.venvs/{skill}");
            drop(self.root.make_directories(venv.as_bytes()));
        }
    }

    /// Opens the program's end of a stdin that clients may write to, and the writer's end.
    fn open_stdin(&self, terminal: bool) -> Result<(OwnedFd, Option<ExecStdin>), Error> {
        if terminal {
            return Ok((self.null_stdin()?, Some(ExecStdin::terminal())));
        }
        let failed = |errno| Error::file("stdin", errno);
        let (reader, writer) = pipe2(OFlag::O_CLOEXEC).map_err(failed)?;
        let writer = ExecStdin::pipe(writer).map_err(|_| failed(Errno::EMFILE))?;
        Ok((reader, Some(writer)))
    }

    /// Opens /dev/null for the program.
    fn null_stdin(&self) -> Result<OwnedFd, Error> {
        let copy = self.null.try_clone();
        copy.map_err(|_| Error::file("stdin", Errno::EMFILE))
    }

    /// Kills all processes of an exec, kept stragglers included, and forgets the exec.
    pub(crate) async fn delete_exec(&self, id: &str) -> Result<(), Error> {
        let exec = self.host.find_exec(id)?;
        let (grace, reason) = (None, ExitReason::KilledByClient);
        if exec.send_control(ExecControl::Kill { grace, reason }).await {
            exec.wait_until(|state| state.gone).await;
        }
        self.host.execs.delete(&exec);
        Ok(())
    }

    /// Kills all other processes and refuses new execs. Execs that still run end with `reason`.
    pub(crate) async fn shutdown(&self, reason: ExitReason) {
        self.state().refusing = true;
        for (_, exec) in self.host.execs.list_after(0) {
            exec.try_kill(reason);
        }
        for _ in 0..SHUTDOWN_PASSES {
            // The reaper and the tasks of the execs run while this task sleeps.
            tokio::time::sleep(Duration::from_millis(2)).await;
            if !sys::kill_everything() {
                descendants::kill_tree(getpid(), &HashSet::new());
            }
            if descendants::find_descendants(getpid(), &HashSet::new()).is_empty() {
                return;
            }
        }
    }
}

/// Returns a descriptor that yields `data` and then end of file.
fn stdin_from_bytes(data: &[u8]) -> Result<OwnedFd, Error> {
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

/// Returns a pipe that holds all of `data`. `None` if the pipe is too small: the kernel gives small pipes to users
/// that have many, and a write must not wait here.
fn filled_pipe(data: &[u8]) -> Option<OwnedFd> {
    if data.len() > STDIN_PIPE_BYTES {
        return None;
    }
    let (reader, writer) = pipe2(OFlag::O_CLOEXEC).ok()?;
    fcntl(&writer, FcntlArg::F_SETFL(OFlag::O_NONBLOCK)).ok()?;
    let written = write(&writer, data).ok()?;
    (written == data.len()).then_some(reader)
}

/// Converts the parts of a start request to a launch. Refuses what a daemon that validates its requests never sends.
pub(crate) fn build_launch(
    argv: Vec<String>,
    env: Vec<String>,
    cwd: String,
    limits: Option<&v1::ExecLimits>,
) -> Result<LaunchSpec, Error> {
    if argv.is_empty() || argv.len() > ARGS_MAX || env.len() > ARGS_MAX {
        return Err(Error::invalid("argv", "must have 1 to 4,096 entries"));
    }
    let all = || argv.iter().chain(&env).chain(std::iter::once(&cwd));
    if all().map(String::len).sum::<usize>() > SPEC_BYTES_MAX {
        return Err(Error::invalid("argv", "is too long"));
    }
    if all().any(|text| text.contains('\0')) {
        return Err(Error::invalid("argv", "has a NUL in it"));
    }
    if !cwd.starts_with('/') {
        return Err(Error::invalid("cwd", "must be absolute"));
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
    Ok(LaunchSpec {
        cwd,
        argv,
        env,
        limits: limits.collect(),
        ..LaunchSpec::default()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_launch_without_a_program_or_with_a_nul_is_refused() {
        let check = |argv: &[&str], cwd: &str| {
            let argv = argv.iter().map(|arg| (*arg).to_owned()).collect();
            build_launch(argv, Vec::new(), cwd.to_owned(), None).is_ok()
        };
        assert!(check(&["a"], "/"));
        assert!(!check(&[], "/"));
        assert!(!check(&["a\0b"], "/"));
        assert!(!check(&["a"], "relative"));
    }
}
