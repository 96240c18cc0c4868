//! skilld-guest: PID 1 of every container.
//!
//! The guest protects itself, connects to the daemon's socket and serves the daemon on that connection. When the
//! connection breaks, all execs go on and the guest connects again.
//!
//! Modules in reading order: `connection` (the socket), `service` (decodes RPCs), `guest` (carries them out), `exec`
//! (runs one command and streams its events), `supervisor` (processes that spawn and kill commands), `reaper` (collects
//! exit statuses), `output_window` (retained output), `files` and `file_collection` (workspace files),
//! `image_inventory` (programs and packages of the image), `sys` (the only unsafe code). `fuzz` is for tests.
//!
//! The crate is a library only for those tests: the program is [`main`] and nothing else.

mod connection;
mod error;
mod exec;
mod file_collection;
mod files;
// The fuzz targets are a module of this crate, because the functions that they call are private.
#[cfg(any(test, feature = "fuzz"))]
#[path = "../fuzz/targets.rs"]
pub mod fuzz;
mod guest;
mod image_inventory;
mod output_window;
mod reaper;
mod service;
mod supervisor;
mod sys;
mod task_spawn;

use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;

use data_encoding::HEXLOWER;
use nix::sys::prctl;
use nix::sys::resource::{Resource, setrlimit};
use nix::sys::signal::{SigSet, Signal};
use nix::sys::stat::{Mode, umask};
use nix::unistd::{Pid, getpid, setsid};
use tokio::sync::oneshot;
use tonic::codegen::Bytes;

use guest::Guest;
use supervisor::SupervisorPool;

/// Environment variable with the daemon's nonce.
const NONCE: &str = "SKILLD_NONCE";

/// Command-line flags.
struct GuestFlags {
    socket: PathBuf,
    workspace: PathBuf,
}

/// Runs the program: reads its flags, protects the process and serves daemons until the container ends.
pub fn main() -> ExitCode {
    let nonce = take_nonce();
    // Inherited descriptors are closed first, before the guest opens any of its own.
    sys::close_all_but(None);
    // The pool opens a file in /proc that an undumpable process may not open.
    let supervisors = SupervisorPool::new();
    protect_process();
    let outcome = parse_flags().and_then(|flags| run_guest(&flags, nonce, supervisors));
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(problem) => {
            #[expect(
                clippy::print_stderr,
                reason = "the only channel before there is a daemon"
            )]
            {
                eprintln!("skilld-guest: {problem}");
            }
            ExitCode::FAILURE
        }
    }
}

/// Parses the command line.
fn parse_flags() -> Result<GuestFlags, String> {
    let mut flags = GuestFlags {
        socket: PathBuf::from("/run/skilld/guest.sock"),
        workspace: PathBuf::from("/workspace"),
    };
    let mut args = std::env::args_os().skip(1);
    while let Some(flag) = args.next() {
        let value = args.next().map(PathBuf::from);
        match (flag.to_str(), value) {
            (Some("--socket"), Some(path)) => flags.socket = path,
            (Some("--workspace"), Some(path)) => flags.workspace = path,
            _ => return Err("usage: skilld-guest [--socket PATH] [--workspace DIR]".to_owned()),
        }
    }
    Ok(flags)
}

/// Removes the daemon's nonce from the environment and returns its bytes, so that no command can read it there.
fn take_nonce() -> Bytes {
    let hex = std::env::var_os(NONCE).unwrap_or_default();
    let nonce = HEXLOWER.decode(hex.as_encoded_bytes());
    sys::scrub_environment(NONCE);
    nonce.unwrap_or_default().into()
}

/// Protects this process from commands, which run with the same uid. Each call can fail only where it is not needed.
fn protect_process() {
    let _ = prctl::set_dumpable(false);
    let _ = setsid();
    // Commands inherit it, and the directories that the guest makes for clients get the usual mode.
    umask(Mode::from_bits_truncate(0o022));
    let _ = setrlimit(Resource::RLIMIT_CORE, 0, 0);
    let _ = prctl::set_child_subreaper(true);
    // SIGCHLD must be blocked to be read from a descriptor. Supervisors inherit the mask, so that of the signals that
    // commands send only SIGKILL and SIGSTOP reach them.
    let mut blocked = SigSet::all();
    if getpid() != Pid::from_raw(1) {
        // Tests end their guest with SIGTERM. PID 1 ignores it, since it has no handler.
        blocked.remove(Signal::SIGTERM);
    }
    let _ = blocked.thread_set_mask();
}

/// Serves daemons until the reaper fails.
fn run_guest(flags: &GuestFlags, nonce: Bytes, supervisors: SupervisorPool) -> Result<(), String> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_io()
        .enable_time()
        .build()
        .map_err(|error| error.to_string())?;
    runtime.block_on(async {
        let guest =
            Guest::new(&flags.workspace, nonce, supervisors).map_err(|error| error.to_string())?;
        let host = Arc::clone(&guest.host);
        host.supervisors.fill();
        let (reaper, supervisors) = (Arc::clone(&host.reaper), Arc::clone(&host.supervisors));
        task_spawn::spawn(async move { host.execs.forget_expired_execs().await });
        let socket = flags.socket.clone();
        // A wake-up of a task costs nothing on this one thread. A wake-up of the future that the runtime blocks on
        // costs a write to the runtime's eventfd and another turn of its loop, so that future only waits.
        task_spawn::spawn(async move {
            let never = connection::serve_forever(&socket, &guest).await;
            match never {}
        });
        let (ended, end) = oneshot::channel();
        task_spawn::spawn(async move {
            let _receiver_waits = ended.send(reaper.run(supervisors).await);
        });
        match end.await {
            Ok(outcome) => outcome.map_err(|error| error.to_string()),
            Err(_) => Err("the reaper ended".to_owned()),
        }
    })
}
