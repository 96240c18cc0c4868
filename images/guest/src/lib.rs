//! skilld-guest: PID 1 of every container. It protects itself, connects out to the daemon's socket, and
//! serves the daemon on that connection; when it breaks, everything goes on and it connects again.
//!
//! Modules in reading order: `connection` (the socket), `service` (the rpcs), `guest` (what they act on),
//! `exec` (one command: its task, its readers), `supervisor` (who runs it), `reaper` (who hears of its
//! end), `output` (its bytes), `files` and `collect` (the workspace), `inventory` (the image), `sys` (the only unsafe code). `fuzz` is for tests.
//!
//! It is a library only for those tests: the program is [`main`] and nothing else.

mod collect;
mod connection;
mod error;
mod exec;
mod files;
#[cfg(any(test, feature = "fuzz"))]
pub mod fuzz;
mod guest;
mod inventory;
mod output;
mod reaper;
mod service;
mod supervisor;
mod sys;
mod tasks;

use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;

use nix::sys::prctl;
use nix::sys::resource::{Resource, setrlimit};
use nix::sys::signal::{SigSet, Signal};
use nix::sys::stat::{Mode, umask};
use nix::unistd::{Pid, getpid, setsid};
use tonic::codegen::Bytes;

use guest::Guest;
use supervisor::Supervisors;

const NONCE: &str = "SKILLD_NONCE";

struct Flags {
    socket: PathBuf,
    workspace: PathBuf,
}

/// The program, from its flags to its end.
#[must_use]
pub fn main() -> ExitCode {
    let nonce = take_nonce();
    // Before anything is opened that is to stay open.
    sys::close_all_but(None);
    // While the guest can still open what is its own in /proc.
    let supervisors = Supervisors::new();
    protect();
    let outcome = flags().and_then(|flags| run(&flags, nonce, supervisors));
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

fn flags() -> Result<Flags, String> {
    let mut flags = Flags {
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

/// The daemon's nonce, in bytes; it does not stay where others could read it.
fn take_nonce() -> Bytes {
    let hex = std::env::var_os(NONCE).unwrap_or_default();
    let hex = hex.into_encoded_bytes();
    let (pairs, _) = hex.as_chunks::<2>();
    let bytes = pairs.iter().filter_map(|pair| {
        let text = str::from_utf8(pair).ok()?;
        u8::from_str_radix(text, 16).ok()
    });
    let nonce = bytes.collect();
    sys::scrub_environment(NONCE);
    nonce
}

/// Before the first command: commands have the guest's uid, and must find nothing to hold on to. Each of
/// these can only fail where it is not needed.
fn protect() {
    let _ = prctl::set_dumpable(false);
    let _ = setsid();
    umask(Mode::from_bits_truncate(0o077));
    let _ = setrlimit(Resource::RLIMIT_CORE, 0, 0);
    let _ = prctl::set_child_subreaper(true);
    let mut blocked = SigSet::all();
    if getpid() != Pid::from_raw(1) {
        // A test ends its guest with TERM; PID 1 ignores it, having no handler.
        blocked.remove(Signal::SIGTERM);
    }
    let _ = blocked.thread_set_mask();
}

fn run(flags: &Flags, nonce: Bytes, supervisors: Supervisors) -> Result<(), String> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_io()
        .enable_time()
        .build()
        .map_err(|error| error.to_string())?;
    runtime.block_on(async {
        let guest = Guest::new(&flags.workspace, nonce, supervisors);
        let guest = guest.map_err(|error| error.to_string())?;
        guest.supervisors.fill();
        let (reaper, supervisors) = (Arc::clone(&guest.reaper), Arc::clone(&guest.supervisors));
        let forgetful = Arc::clone(&guest);
        tasks::spawn(async move { forgetful.execs.forget_in_time().await });
        tokio::select! {
            failed = reaper.run(supervisors) => failed.map_err(|error| error.to_string()),
            never = connection::serve_for_ever(&flags.socket, &guest) => match never {},
        }
    })
}
