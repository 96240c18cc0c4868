//! `skilld doctor`: checks the host and the configuration as an operator would, and says what to do. It changes nothing on
//! the host, and works while a daemon runs on the same state directory.
//!
//! The preconditions of a start come from the server, which knows them; here are the facts that no start looks at. A
//! fact that can't be had is a line of its own or left out, never an end of the report.
//!
//! | file | contents |
//! |---|---|
//! | `report.rs` | lines, their states, text, JSON, exit code |
//! | `kernel_checks.rs` | user, kernel, control groups |
//! | `capacity.rs` | memory, processes, disk and open files that pools and clients may take; also warnings at the start |
//! | `uid_check.rs` | accounts and reservations in the range of the containers' uids |
//! | `docker_checks.rs` | Docker: limits, storage driver, seccomp, access control |
//! | `path_checks.rs` | file system of the state directory, roots of skills and inputs |
//! | `certificate_checks.rs` | validity of the certificates of listeners |

use std::io;
use std::time::Duration;

use tokio::runtime::Builder;

use crate::config::{Config, ConfigFlags};
use crate::shutdown::Tasks;
pub(crate) use report::RUNNING_CHECK;
pub use report::{CheckLine, CheckState, DoctorReport};

pub mod capacity;
mod certificate_checks;
mod docker_checks;
mod kernel_checks;
mod path_checks;
mod report;
mod uid_check;

/// Longest wait for one path: a network mount can hang.
const PATH_TIMEOUT: Duration = Duration::from_secs(5);

/// Checks the configuration of these flags and the host. `check_start` checks the preconditions of a start.
///
/// # Errors
/// When the system refuses the threads that the checks need.
pub fn examine_host(
    flags: &ConfigFlags,
    check_start: impl AsyncFnOnce(&Config) -> Vec<CheckLine>,
) -> io::Result<DoctorReport> {
    let (config, faults) = Config::load_for_report(flags);
    let mut lines = check_faults(&faults, config.is_some());
    // The host can be checked without a configuration, too.
    if let Some(config) = config.or_else(|| Some(Config::from_toml("").ok()?.config)) {
        lines.extend(run_checks(check_host(&config, check_start))?);
    }
    Ok(DoctorReport::new(lines))
}

/// Checks what a valid configuration needs of the host: the preconditions of a start, and roots. For `skilld --check`.
///
/// # Errors
/// When the system refuses the threads that the checks need.
pub fn check_config(
    config: &Config,
    check_start: impl AsyncFnOnce(&Config) -> Vec<CheckLine>,
) -> io::Result<Vec<CheckLine>> {
    run_checks(async {
        let tasks = Tasks::default();
        let (mut lines, roots) = tokio::join!(
            check_start(config),
            path_checks::check_roots(config, &tasks)
        );
        lines.extend(roots);
        lines
    })
}

/// Runs checks on a runtime of their own. Work on a file system that hangs is abandoned.
fn run_checks(checks: impl Future<Output = Vec<CheckLine>>) -> io::Result<Vec<CheckLine>> {
    let runtime = Builder::new_current_thread().enable_all().build()?;
    let lines = runtime.block_on(checks);
    runtime.shutdown_background();
    Ok(lines)
}

/// Returns the lines about the configuration itself.
fn check_faults(faults: &[String], is_usable: bool) -> Vec<CheckLine> {
    let (check, subject) = (report::CONFIG_CHECK, "configuration");
    if faults.is_empty() {
        return vec![CheckLine::ok(check, subject, "valid")];
    }
    let remedy = match is_usable {
        true => {
            "correct it (docs/configuration.md has every key); until then skilld does not start"
        }
        false => "correct it; the other lines are about the built-in defaults",
    };
    let line = |fault: &String| CheckLine::failed(check, subject, fault, remedy);
    faults.iter().map(line).collect()
}

/// Checks everything, in the order of the report.
async fn check_host(
    config: &Config,
    check_start: impl AsyncFnOnce(&Config) -> Vec<CheckLine>,
) -> Vec<CheckLine> {
    let (tasks, owned) = (Tasks::default(), config.clone());
    let read_capacity = move || {
        let mut lines = capacity::check_capacity(&owned);
        lines.push(uid_check::check_uids(&owned.engine));
        lines
    };
    let (capacity, docker, start, disk, roots, certificates) = tokio::join!(
        run_within(PATH_TIMEOUT, &tasks, read_capacity),
        docker_checks::check_docker(config),
        check_start(config),
        path_checks::check_state_disk(config, &tasks),
        path_checks::check_roots(config, &tasks),
        certificate_checks::check_certificates(config, &tasks),
    );
    let mut lines = kernel_checks::check_kernel_and_user();
    lines.extend(capacity.unwrap_or_default());
    for more in [docker, start, disk, roots, certificates] {
        lines.extend(more);
    }
    lines
}

/// Runs blocking work; `None` if it does not end in time. Its thread is then abandoned.
async fn run_within<T: Send + 'static>(
    timeout: Duration,
    tasks: &Tasks,
    work: impl FnOnce() -> T + Send + 'static,
) -> Option<T> {
    let work = tasks.blocking(move || Ok(work()));
    tokio::time::timeout(timeout, work).await.ok()?.ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_file_system_that_hangs_ends_at_the_deadline() {
        let tasks = Tasks::default();
        let (release, held) = std::sync::mpsc::channel::<()>();
        let work = move || held.recv().is_ok();
        let outcome = run_within(Duration::from_millis(10), &tasks, work).await;
        assert_eq!(outcome, None);
        release.send(()).expect("the work still waits");
    }
}
