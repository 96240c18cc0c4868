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
use nix::libc;
use nix::sys::memfd::{MFdFlags, memfd_create};
use nix::unistd::{Pid, getpid};
use skilld_proto::guest::v1 as wire;
use skilld_proto::v1;
use skilld_proto::v1::stdin::Source;
use tonic::codegen::Bytes;

use crate::error::Error;
use crate::exec::registry::Registry;
use crate::exec::run::{self, Start};
use crate::exec::{Exec, positive};
use crate::files::root::Root;
use crate::reaper::Reaper;
use crate::supervisor::wire::Launch;
use crate::supervisor::{Supervisors, walk};
use crate::{sys, tasks};

/// Of a workspace, as the daemon prepares it: made at the guest's start.
const DIRECTORIES: [&str; 5] = ["work", "work/inputs", "work/.venvs", "out", "runs"];
/// Stdin up to this size goes into a pipe, which holds it without anyone writing on.
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
    pub(crate) root: Root,
    pub(crate) execs: Registry,
    pub(crate) supervisors: Arc<Supervisors>,
    pub(crate) reaper: Arc<Reaper>,
    /// Leaders that run without their supervisor.
    pub(crate) orphaned: Pids,
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
        let root = Root::open(workspace)?;
        for directory in DIRECTORIES {
            root.make_directories(directory.as_bytes())?;
        }
        root.link_metadata()?;
        let null = File::options().read(true).open("/dev/null");
        let null = null.map_err(|_| Error::file("/dev/null", Errno::last()))?;
        Ok(Arc::new(Self {
            nonce,
            root,
            execs: Registry::new(),
            supervisors: Arc::new(supervisors),
            reaper: Reaper::new(),
            orphaned: Pids::default(),
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
        let id = request.exec_id.clone();
        if !is_exec_id(&id) {
            return Err(invalid(
                "exec_id",
                "must match [a-z0-9]([a-z0-9._-]{0,61}[a-z0-9])?",
            ));
        }
        if let Some(exec) = self.execs.get(&id) {
            if exec.digest == request.request_digest {
                return Ok((exec, settings));
            }
            return Err(Error::IdTaken { id });
        }
        if self.execs.running() >= usize::try_from(settings.execs_max).unwrap_or(usize::MAX) {
            return Err(Error::TooManyExecs {
                max: settings.execs_max,
            });
        }
        let mut spec = request.spec.unwrap_or_default();
        refuse_what_is_missing(&spec)?;
        let given = spec.stdin.as_mut().and_then(|stdin| stdin.source.take());
        let stdin = self.stdin(given)?;
        let launch = launch(request.argv, request.env, request.cwd, spec.limits.as_ref())?;
        match self.root.make_run_directory(&id) {
            // Without a directory of its own, it can still make room: nothing else in a workspace can.
            Err(Error::DiskFull { .. }) => {}
            made => made?,
        }
        if !spec.skill.is_empty() {
            // The skill's link .venv leads there. The tenant may have put something else in its place: its own loss.
            let venv = format!("work/.venvs/{}", spec.skill);
            drop(self.root.make_directories(venv.as_bytes()));
        }
        self.root.refuse_way_out(&launch.cwd)?;
        let name = format!("{}/execs/{id}", settings.workspace);
        let (exec, commands) =
            Exec::new(name, id, request.request_digest, spec, &self.execs.budget);
        self.execs.insert(Arc::clone(&exec));
        let start = Start { launch, stdin };
        let (guest, shared) = (Arc::clone(self), Arc::clone(&exec));
        tasks::spawn(run::run(guest, shared, settings.clone(), start, commands));
        Ok((exec, settings))
    }

    fn stdin(&self, source: Option<Source>) -> Result<OwnedFd, Error> {
        let failed = |errno| Error::file("stdin", errno);
        let Some(Source::Data(data)) = source else {
            return self.null.try_clone().map_err(|_| failed(Errno::EMFILE));
        };
        if data.len() <= STDIN_PIPE_BYTES {
            let (reader, writer) =
                nix::unistd::pipe2(nix::fcntl::OFlag::O_CLOEXEC).map_err(failed)?;
            let written = File::from(writer).write_all(&data);
            return written.map(|()| reader).map_err(|_| failed(Errno::EIO));
        }
        let mut file = File::from(memfd_create(c"stdin", MFdFlags::MFD_CLOEXEC).map_err(failed)?);
        let written = file.write_all(&data).and_then(|()| file.rewind());
        written
            .map(|()| file.into())
            .map_err(|_| failed(Errno::ENOSPC))
    }

    /// Kills everything that is not the guest, and refuses what comes after.
    pub(crate) async fn shutdown(&self) {
        self.state().refusing = true;
        for _ in 0..SHUTDOWN_PASSES {
            if !sys::kill_everything() {
                walk::kill_tree(getpid(), &HashSet::new());
            }
            // Reaping is the reaper's; its turn comes when this waits.
            tokio::time::sleep(Duration::from_millis(2)).await;
            if walk::descendants(getpid(), &HashSet::new()).is_empty() {
                return;
            }
        }
    }
}

fn invalid(field: &'static str, problem: &'static str) -> Error {
    Error::Invalid { field, problem }
}

/// What is in the API and not in this version is refused, never ignored.
fn refuse_what_is_missing(spec: &v1::ExecSpec) -> Result<(), Error> {
    let open = spec.stdin.as_ref().and_then(|stdin| stdin.source.as_ref());
    let what = if spec.terminal.is_some() {
        "terminal"
    } else if matches!(open, Some(Source::Open(true))) {
        "stdin.open"
    } else if spec.collect.is_some() {
        "collect"
    } else {
        return Ok(());
    };
    Err(Error::NotImplemented { what })
}

fn launch(
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
