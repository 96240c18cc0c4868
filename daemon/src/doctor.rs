//! `skilld doctor`: checks the host and the configuration as an operator would, and says what to do. It changes nothing on
//! the host, takes no lock, and works while a daemon runs on the same state directory.
//!
//! `*_facts.rs` gather facts, each with a deadline; `*_checks.rs` and `capacity.rs` are pure functions from facts and
//! configuration to lines. Two are not: `certificate_checks.rs` reads the files that it checks, and
//! `capacity::warn_of_promises` reads the host. A fact that can't be had is a line of its own, never an end of the
//! report.
//!
//! | file | contents |
//! |---|---|
//! | `report.rs` | lines, their states, text, JSON, exit code |
//! | `kernel_facts.rs`, `host_checks.rs` | user, kernel, cgroup, open files, clock |
//! | `account_facts.rs`, `uid_checks.rs` | uids that the host has given away |
//! | `capacity.rs` | memory, processes and disk space that pools promise; also a warning at the daemon's start |
//! | `docker_facts.rs`, `docker_checks.rs`, `pool_checks.rs` | Docker, and image and OCI runtime of each pool |
//! | `path_facts.rs`, `path_checks.rs` | state directory, roots, guest |
//! | `certificate_checks.rs` | certificates of listeners, files of `[auth]` |

use std::io;

use tokio::runtime::{Builder, Runtime};

use crate::config::{Config, ConfigFlags};
use crate::shutdown::Tasks;
use docker_facts::DockerFacts;
pub use report::{CheckLine, CheckState, DoctorReport};

mod account_facts;
pub mod capacity;
mod certificate_checks;
mod docker_checks;
mod docker_facts;
mod host_checks;
mod kernel_facts;
mod path_checks;
mod path_facts;
mod pool_checks;
mod report;
mod uid_checks;

/// Checks the configuration of these flags and the host. Takes under a minute however Docker and file systems behave.
///
/// # Errors
/// When the system refuses the threads that the checks need.
pub fn examine_host(flags: &ConfigFlags) -> io::Result<DoctorReport> {
    let (config, faults) = Config::load_for_report(flags);
    let mut lines = check_faults(&faults, config.is_some());
    // The host can be checked without a configuration, too.
    let config = config.or_else(|| Some(Config::from_toml("").ok()?.config));
    if let Some(config) = config {
        let runtime = checks_runtime()?;
        lines.extend(runtime.block_on(check_host(&config)));
        // Work on a file system that hangs is abandoned.
        runtime.shutdown_background();
    }
    Ok(DoctorReport::new(lines))
}

/// Checks what a valid configuration names: images and OCI runtimes of pools, and roots. For `skilld --check`.
///
/// # Errors
/// When the system refuses the threads that the checks need.
pub fn check_named_resources(config: &Config) -> io::Result<Vec<CheckLine>> {
    let runtime = checks_runtime()?;
    let (docker, roots) = runtime.block_on(async {
        let tasks = Tasks::default();
        tokio::join!(
            docker_facts::read_docker_facts(config),
            path_facts::read_root_facts(config, &tasks),
        )
    });
    runtime.shutdown_background();
    let mut lines = pool_checks::check_pools(config, &docker);
    lines.extend(path_checks::check_roots(&roots));
    Ok(lines)
}

fn checks_runtime() -> io::Result<Runtime> {
    Builder::new_current_thread().enable_all().build()
}

/// Returns the lines about the configuration itself.
fn check_faults(faults: &[String], is_usable: bool) -> Vec<CheckLine> {
    let (check, subject) = (report::CONFIG_CHECK, "configuration");
    if faults.is_empty() {
        return vec![CheckLine::ok(check, subject, "valid")];
    }
    let remedy = match is_usable {
        true => "correct it (docs/configuration.md has every key); skilld does not start before",
        false => "correct it; the other lines are about the built-in defaults",
    };
    let line = |fault: &String| CheckLine::failed(check, subject, fault, remedy);
    faults.iter().map(line).collect()
}

/// Gathers all facts and checks them, in the order of the report.
async fn check_host(config: &Config) -> Vec<CheckLine> {
    let tasks = Tasks::default();
    let kernel = kernel_facts::read_kernel_facts();
    let accounts = account_facts::read_account_facts();
    let (clock, docker, paths, roots) = tokio::join!(
        kernel_facts::read_clock_facts(),
        docker_facts::read_docker_facts(config),
        path_facts::read_path_facts(config, &tasks),
        path_facts::read_root_facts(config, &tasks),
    );
    let user_name = accounts.user_name(kernel.uid);
    let mut lines = vec![
        host_checks::check_user(&kernel, user_name),
        host_checks::check_kernel(&kernel),
        host_checks::check_cgroup(&kernel),
        host_checks::check_clock(&clock),
        host_checks::check_open_files(&kernel, config),
        uid_checks::check_uids(&config.engine, &accounts, kernel.uid),
        capacity::check_memory(config, kernel.memory_bytes),
        capacity::check_pids(config, kernel.pid_max, kernel.threads_max),
    ];
    lines.extend(capacity::check_disks(config, paths.disk_space_bytes));
    lines.extend(check_docker_and_pools(config, &docker));
    lines.push(path_checks::check_guest(config, &paths.guest));
    lines.extend(path_checks::check_state_dir(
        config, &paths, kernel.uid, user_name,
    ));
    lines.extend(path_checks::check_roots(&roots));
    lines.extend(path_checks::check_wheelhouse(
        config,
        paths.wheelhouse.as_deref(),
    ));
    lines.extend(certificate_checks::check_identities(config, &tasks).await);
    lines
}

fn check_docker_and_pools(config: &Config, docker: &DockerFacts) -> Vec<CheckLine> {
    let mut lines = docker_checks::check_docker(docker);
    lines.extend(pool_checks::check_pools(config, docker));
    lines
}
