//! Check of an image as a pool would use it. The check reads the description of the image, lists the programs and
//! packages in it, and runs a few commands in one container of it. Nothing of the container is left.
//!
//! A fault of the image is a finding and not an error. The commands run the image's own programs, so their output is
//! bounded and never trusted.

use std::collections::{BTreeMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use skilld_proto::Outcome;
use skilld_proto::v1::ExitReason;
use tokio::time::Instant;

use crate::config::PoolConfig;
use crate::engine::ImageInfo;
use crate::engine::image_reference::ImageReference;
use crate::error::{Error, Result};
use crate::workspace::internal_pool::{CommandEnd, InternalCommand, InternalPool, InternalSlot};
use crate::workspace::shared_slot_context::{IMAGE_CHECKS_MAX, SharedSlotContext};
use crate::workspace::software_inventory_cache::ask_inventory;

mod image_findings;

pub use image_findings::ImageFinding;

/// Time limit of one command of a check. The first start of Python from a cold disk takes seconds.
const PROBE_TIMEOUT: Duration = Duration::from_secs(60);
/// Maximum number of bytes of output of one command of a check.
const PROBE_OUTPUT_BYTES_MAX: u64 = 4096;
/// Maximum number of bytes of the end of stderr in a finding.
const PROBE_STDERR_BYTES: usize = 200;

/// Result of the check of an image.
#[derive(Debug, Clone, Default)]
pub struct ImageReport {
    /// Findings, errors before warnings.
    pub findings: Vec<ImageFinding>,
    /// Image as the engine describes it; `None` if it does not have it.
    pub image: Option<ImageInfo>,
    /// Results of the commands; `None` if no container was started.
    pub probes: Option<ImageProbes>,
}

/// Results of the commands that a check ran in a container.
#[derive(Debug, Clone)]
pub struct ImageProbes {
    /// Time from the request for a container to its guest's answer.
    pub boot_time: Duration,
    /// Programs in the search path.
    pub programs: HashSet<String>,
    /// Number of Python packages.
    pub python_packages: usize,
    /// Number of global Node.js packages.
    pub node_packages: usize,
    /// Fault of a command with `sh`; `None` if it worked.
    pub sh_fault: Option<String>,
    /// Fault of a command with `bash`; `None` if it worked.
    pub bash_fault: Option<String>,
    /// Version of Python, or the fault of `python3`.
    pub python: Result<String, String>,
    /// Fault of a write to the working directory and /tmp; `None` if it worked.
    pub write_fault: Option<String>,
    /// Character set of the locale that commands have; empty if the image has no program `locale`.
    pub charmap: String,
    /// Some of the programs with the setuid or setgid bit, by path, or the fault of the search for them.
    pub setuid_programs: Result<Vec<String>, String>,
}

impl Default for ImageProbes {
    fn default() -> Self {
        Self {
            boot_time: Duration::ZERO,
            programs: HashSet::new(),
            python_packages: 0,
            node_packages: 0,
            sh_fault: None,
            bash_fault: None,
            python: Err("it was not run".to_owned()),
            write_fault: None,
            charmap: String::new(),
            setuid_programs: Ok(Vec::new()),
        }
    }
}

/// Checks an image with the limits and the OCI runtime of a pool.
///
/// # Errors
/// [`Error::EngineUnavailable`], [`Error::Draining`], [`Error::GuestLost`] when the container ends during the check,
/// and [`Error::QuotaExceeded`] when too many checks run.
pub async fn check_image(
    context: &Arc<SharedSlotContext>,
    template: &PoolConfig,
    reference: &ImageReference,
) -> Result<ImageReport> {
    let turn = context.image_checks.try_acquire();
    let subject = "the number of image checks at once";
    let _turn = turn.map_err(|_| Error::quota_exceeded(subject, IMAGE_CHECKS_MAX as u64))?;
    let Some(image) = context.engine.find_image(reference).await? else {
        let image = reference.to_string();
        let finding =
            ImageFinding::error("image.missing", Error::ImageMissing { image }.to_string());
        return Ok(ImageReport {
            findings: vec![finding],
            ..ImageReport::default()
        });
    };
    let mut report = ImageReport {
        findings: image_findings::description_findings(&image, reference),
        image: Some(image.clone()),
        probes: None,
    };
    if report.findings.iter().all(|finding| !finding.is_error) {
        let template = PoolConfig {
            max: 1,
            ..template.clone()
        };
        match probe_image(context, image, &template).await {
            Ok(probes) => {
                report
                    .findings
                    .extend(image_findings::probe_findings(&probes));
                report.probes = Some(probes);
            }
            Err(error @ Error::Image { .. }) => {
                let finding = ImageFinding::error("image.not_started", error.to_string());
                report.findings.push(finding);
            }
            Err(error) => return Err(error),
        }
    }
    report.findings.sort_by_key(|finding| !finding.is_error);
    Ok(report)
}

/// Starts a container and runs the commands of a check in it.
async fn probe_image(
    context: &Arc<SharedSlotContext>,
    image: ImageInfo,
    template: &PoolConfig,
) -> Result<ImageProbes> {
    let pool = InternalPool::start(context, "image-check", image, template).await;
    let started = Instant::now();
    let slot = pool.take_slot().await?;
    let mut probes = ImageProbes {
        boot_time: started.elapsed(),
        ..ImageProbes::default()
    };
    read_inventory(&slot, &mut probes).await?;
    probes.sh_fault = run_probe(&slot, &["sh", "-c", "printf ok"]).await?.err();
    probes.bash_fault = run_probe(&slot, &["bash", "-c", "printf ok"]).await?.err();
    let version = "import sys; print(sys.version.split()[0])";
    let python = run_probe(&slot, &["python3", "-c", version]).await?;
    probes.python = python.map(|text| printable_line(&text));
    let write = "cd \"$WORK_DIR\" && echo ok > .probe && echo ok > /tmp/.probe.$$ && rm .probe /tmp/.probe.$$";
    probes.write_fault = run_probe(&slot, &["sh", "-c", write]).await?.err();
    let locale = "command -v locale >/dev/null || exit 0; locale charmap";
    let charmap = run_probe(&slot, &["sh", "-c", locale]).await?;
    probes.charmap = printable_line(&charmap.unwrap_or_default());
    let setuid = "command -v find >/dev/null && command -v head >/dev/null || { echo 'find or head is missing' >&2; exit 1; }
                  find / -xdev -type f -perm /6000 2>/dev/null | head -n 5; exit 0";
    let setuid = run_probe(&slot, &["sh", "-c", setuid]).await?;
    probes.setuid_programs = setuid.map(|paths| paths.lines().map(printable_line).collect());
    Ok(probes)
}

/// Asks the guest for the programs and packages of the image.
async fn read_inventory(slot: &InternalSlot, probes: &mut ImageProbes) -> Result<()> {
    let found = ask_inventory(slot.guest.clone(), slot.number(), slot.search_path()).await?;
    probes.programs = found.programs.into_iter().collect();
    probes.python_packages = found.python_packages.len();
    probes.node_packages = found.node_packages.len();
    Ok(())
}

/// Runs one command of a check. The inner result is its stdout, or its fault for people.
async fn run_probe(slot: &InternalSlot, argv: &[&str]) -> Result<Result<String, String>> {
    let command = InternalCommand {
        argv: argv.iter().map(|&word| word.to_owned()).collect(),
        env: BTreeMap::new(),
        // Every image has it, so that a fault of the working directory is found by one command only.
        cwd: "/".to_owned(),
        stdin: None,
        timeout: PROBE_TIMEOUT,
        output_bytes_max: PROBE_OUTPUT_BYTES_MAX,
        stderr_tail_bytes: PROBE_STDERR_BYTES,
    };
    let mut stdout = Vec::new();
    let end = slot.run(command, &mut stdout, |_| {}).await?;
    if end.is_success() {
        return Ok(Ok(String::from_utf8_lossy(&stdout).into_owned()));
    }
    Ok(Err(describe_end(&end)))
}

/// Describes the end of a command that failed.
fn describe_end(end: &CommandEnd) -> String {
    let result = &end.result;
    if let Some(failure) = &result.spawn_failure {
        return format!("it cannot be run ({})", printable_line(&failure.message));
    }
    let stderr = String::from_utf8_lossy(&end.stderr_tail);
    let last = stderr
        .lines()
        .last()
        .map(printable_line)
        .unwrap_or_default();
    let outcome = match (result.reason(), result.outcome()) {
        (ExitReason::Timeout, _) => format!("it took longer than {PROBE_TIMEOUT:?}"),
        (_, Some(Outcome::ExitCode(code))) => format!("exit code {code}"),
        (_, Some(Outcome::Signal(signal))) => format!("signal {signal}"),
        (_, None) => "it has no result".to_owned(),
    };
    if last.is_empty() {
        outcome
    } else {
        format!("{outcome}: {last}")
    }
}

/// Returns the first line of a program's output without control characters, at most 200 characters.
fn printable_line(text: &str) -> String {
    let line = text.lines().next().unwrap_or_default();
    line.chars()
        .filter(|c| !c.is_control())
        .take(PROBE_STDERR_BYTES)
        .collect()
}
