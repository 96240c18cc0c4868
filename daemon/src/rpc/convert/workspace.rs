//! Conversion of workspace requests and workspaces.

use std::collections::BTreeMap;
use std::time::{Duration, SystemTime};

use prost::Message;
use skilld_common::unix_time::from_unix_ms;
use skilld_proto::v1 as pb;

use super::skill::skill_name;
use super::violation_collector::shown;
use super::{
    ViolationCollector, duration_message, int64, parse_id, pool_name, requested_pool, sha256_hex,
    timestamp_message,
};
use crate::access::Caller;
use crate::config::WorkspaceConfig;
use crate::engine::ContainerLimits;
use crate::error::Result;
use crate::workspace::creation::WorkspaceRequest;
use crate::workspace::record;
use crate::workspace::slot_state_machine::{LossCause, SlotState};
use crate::workspace::{SlotSnapshot, WorkspaceId};
use crate::workspace_paths;

/// Maximum number of labels.
const LABELS_MAX: usize = 32;
/// Maximum length of a label's key and of its value, in bytes.
const LABEL_BYTES_MAX: usize = 128;
/// Maximum number of environment variables of a workspace.
const ENV_MAX: usize = 128;
/// Maximum size of the environment of a workspace, in bytes.
const ENV_BYTES_MAX: usize = 64 << 10;
/// Shortest idle timeout and lifetime.
const TIMEOUT_MIN: Duration = Duration::from_secs(1);
const PAGE_SIZE_DEFAULT: usize = 100;
const PAGE_SIZE_MAX: usize = 1000;

/// Smallest limits that a container works with, as the API documents them.
const LIMITS_MIN: ContainerLimits = ContainerLimits {
    memory_bytes: 32 << 20,
    cpu_millis: 100,
    pids: 64,
    disk_bytes: 1 << 20,
    inodes: 256,
};

/// Checks a `CreateWorkspaceRequest`.
///
/// # Errors
/// `Invalid` with every violation.
pub fn check_create_workspace(
    caller: &Caller,
    request: pb::CreateWorkspaceRequest,
    config: &WorkspaceConfig,
) -> Result<WorkspaceRequest> {
    use pb::create_workspace_request::Expiry;
    let mut violations = ViolationCollector::default();
    let retry_key = retry_key(&mut violations, &request);
    if request.workspace_id.is_empty() && request.allow_existing {
        violations.add("allow_existing", "needs workspace_id");
    }
    let id = if request.workspace_id.is_empty() {
        Some(WorkspaceId::new(uuid::Uuid::now_v7().to_string()))
    } else {
        violations
            .id("workspace_id", &request.workspace_id)
            .map(WorkspaceId::new)
    };
    let pool = violations.take(requested_pool(&request.pool)).flatten();
    check_labels(&mut violations, "labels", &request.labels);
    violations.environment("env", &request.env, ENV_MAX, ENV_BYTES_MAX);
    violations.take(caller.run_policy().check_env("env", &request.env));
    let idle = check_idle_timeout(&mut violations, request.idle_timeout, config);
    let lifetime_max = tenant_lifetime_max(caller, config);
    let lifetime = match request.expiry {
        None => None,
        Some(Expiry::MaxLifetime(given)) => {
            violations.duration_within("max_lifetime", Some(given), TIMEOUT_MIN, lifetime_max)
        }
        Some(Expiry::ExpireTime(given)) => {
            let lifetime = violations.time_until("expire_time", Some(given));
            lifetime.inspect(|lifetime| {
                if !(TIMEOUT_MIN..=lifetime_max).contains(lifetime) {
                    let [min, max] = [TIMEOUT_MIN, lifetime_max].map(humantime::format_duration);
                    violations.add(
                        "expire_time",
                        format_args!("must be {min} to {max} from now"),
                    );
                }
            })
        }
    };
    let limits = check_limits(&mut violations, request.limits.as_ref());
    Ok(WorkspaceRequest {
        tenant: caller.tenant().clone(),
        creator: caller.principal().id.clone(),
        quotas: caller.limits().clone(),
        id: violations.finish_with(id)?,
        named: !request.workspace_id.is_empty(),
        request: retry_key,
        pool,
        labels: request.labels,
        env: request.env,
        idle_timeout: idle.unwrap_or(config.idle_timeout_default),
        lifetime: lifetime
            .unwrap_or(config.lifetime_default)
            .min(lifetime_max),
        limits,
        allow_existing: request.allow_existing,
    })
}

/// Returns the longest lifetime that a caller's workspaces may have.
pub fn tenant_lifetime_max(caller: &Caller, config: &WorkspaceConfig) -> Duration {
    let own = caller.limits().workspace_lifetime_max;
    own.map_or(config.lifetime_max, |own| own.min(config.lifetime_max))
}

/// Returns the key that distinguishes a retry from another request for the same name: a digest of all fields, or a
/// unique value if the client sends no `request_id`.
fn retry_key(violations: &mut ViolationCollector, request: &pb::CreateWorkspaceRequest) -> String {
    let id = request.request_id.as_str();
    if id.is_empty() {
        return uuid::Uuid::now_v7().simple().to_string();
    }
    violations.request_id("request_id", id);
    sha256_hex(&request.encode_to_vec())
}

fn check_labels(
    violations: &mut ViolationCollector,
    field: &str,
    labels: &BTreeMap<String, String>,
) {
    if labels.len() > LABELS_MAX {
        let message = format_args!("{} labels; at most {LABELS_MAX}", labels.len());
        violations.add(field, message);
    }
    for (key, value) in labels {
        if key.is_empty() || key.len() > LABEL_BYTES_MAX || value.len() > LABEL_BYTES_MAX {
            let rule = format_args!(
                "key and value have at most {LABEL_BYTES_MAX} bytes, the key at least one"
            );
            violations.add(format!("{field}[{:?}]", shown(key)), rule);
        }
    }
}

fn check_idle_timeout(
    violations: &mut ViolationCollector,
    given: Option<prost_types::Duration>,
    config: &WorkspaceConfig,
) -> Option<Duration> {
    let max = config.idle_timeout_max;
    violations.duration_within("idle_timeout", given, TIMEOUT_MIN, max)
}

/// Checks requested limits; 0 leaves a limit to the pool.
fn check_limits(
    violations: &mut ViolationCollector,
    given: Option<&pb::WorkspaceLimits>,
) -> ContainerLimits {
    let given = given.copied().unwrap_or_default();
    let mut check = |field: &str, value: i64, min: u64| match u64::try_from(value) {
        Ok(value) if value == 0 || value >= min => value,
        _ => {
            let rule = format_args!("must be 0 or at least {min}");
            violations.add(format!("limits.{field}"), rule);
            0
        }
    };
    ContainerLimits {
        memory_bytes: check("memory_bytes", given.memory_bytes, LIMITS_MIN.memory_bytes),
        cpu_millis: check("cpu_millis", given.cpu_millis, LIMITS_MIN.cpu_millis),
        pids: check("pids", given.pids, LIMITS_MIN.pids),
        disk_bytes: check("disk_bytes", given.disk_bytes, LIMITS_MIN.disk_bytes),
        inodes: check("inodes", given.inodes, LIMITS_MIN.inodes),
    }
}

/// Checked `RenewWorkspaceRequest`.
#[derive(Debug)]
pub struct RenewRequest {
    /// Workspace to renew.
    pub id: WorkspaceId,
    /// New idle timeout; `None` keeps it.
    pub idle: Option<Duration>,
    /// Time until the new end of the lifetime; `None` keeps it.
    pub remaining: Option<Duration>,
}

/// Checks a `RenewWorkspaceRequest`.
///
/// # Errors
/// `Invalid` with every violation.
pub fn check_renew_workspace(
    request: &pb::RenewWorkspaceRequest,
    config: &WorkspaceConfig,
) -> Result<RenewRequest> {
    let mut violations = ViolationCollector::default();
    let id = violations.workspace_name("name", &request.name);
    let idle = check_idle_timeout(&mut violations, request.idle_timeout, config);
    let remaining = violations.time_until("expire_time", request.expire_time);
    Ok(RenewRequest {
        id: violations.finish_with(id)?,
        idle,
        remaining,
    })
}

/// Checks an `UpdateWorkspaceRequest`. Returns the workspace and its new labels, or `None` to leave them.
///
/// # Errors
/// `Invalid` with every violation.
pub fn check_update_workspace(
    request: pb::UpdateWorkspaceRequest,
) -> Result<(WorkspaceId, Option<BTreeMap<String, String>>)> {
    let mut violations = ViolationCollector::default();
    let workspace = request.workspace.unwrap_or_default();
    let id = violations.workspace_name("workspace.name", &workspace.name);
    let paths = request.update_mask.unwrap_or_default().paths;
    let is_unknown = |path: &&String| !["labels", "*"].contains(&path.as_str());
    if let Some(path) = paths.iter().find(is_unknown) {
        let message = format_args!("{:?} cannot be changed; `labels` can", shown(path));
        violations.add("update_mask", message);
    }
    check_labels(&mut violations, "workspace.labels", &workspace.labels);
    let is_named = !paths.is_empty() || !workspace.labels.is_empty();
    let labels = is_named.then_some(workspace.labels);
    Ok((violations.finish_with(id)?, labels))
}

/// Checks a `ListWorkspacesRequest`. Returns the page's size and the id after which it begins.
///
/// # Errors
/// `Invalid` with every violation.
pub fn check_list_workspaces(
    request: &pb::ListWorkspacesRequest,
) -> Result<(usize, Option<WorkspaceId>)> {
    let mut violations = ViolationCollector::default();
    let size = violations.page_size(request.page_size, PAGE_SIZE_DEFAULT, PAGE_SIZE_MAX);
    let token = violations.page_token(&request.page_token);
    let after = match token {
        "" => None,
        token => violations.take(parse_id("page_token", token)),
    };
    violations.finish()?;
    Ok((size, after.map(WorkspaceId::new)))
}

/// Makes the message of one workspace, with fields that not every caller may see.
pub fn workspace_message(view: &SlotSnapshot) -> pb::Workspace {
    let record = &view.record;
    let lease = view.lease.as_ref();
    let state = match view.state {
        SlotState::Booting | SlotState::Ready | SlotState::Claimed => pb::WorkspaceState::Ready,
        SlotState::Closing | SlotState::Quarantined | SlotState::Removed => {
            pb::WorkspaceState::Closing
        }
        SlotState::Failed(_) => pb::WorkspaceState::Failed,
    };
    let failure = view.failure.as_ref().map(|failure| pb::WorkspaceFailure {
        cause: cause_message(failure.cause).into(),
        message: failure.message.clone(),
        fail_time: timestamp_message(failure.time),
    });
    let mut message = pb::Workspace {
        pool: pool_name(&record.pool),
        state: state.into(),
        expire_time: lease.and_then(|lease| timestamp_message(lease.expire_time())),
        idle_timeout: lease.and_then(|lease| duration_message(lease.idle_timeout())),
        limits: Some(limits_message(record.limits)),
        image: record.image.clone(),
        guest_version: view.guest_version.clone(),
        slot: record.number.to_string(),
        container_id: record.container_id.clone().unwrap_or_default(),
        paths: Some(paths_message()),
        failure,
        ..pb::Workspace::default()
    };
    if let Some(claim) = &record.claim {
        let (create, end) = (
            from_unix_ms(claim.create_time_ms),
            from_unix_ms(claim.end_time_ms),
        );
        message.name = format!("workspaces/{}", claim.workspace);
        message.tenant = claim.tenant.to_string();
        message.creator = claim.creator.clone();
        message.labels = claim.labels.clone();
        message.create_time = timestamp_message(create);
        message.max_lifetime = duration_message(end.duration_since(create).unwrap_or_default());
        message.env = claim.env.clone();
        message.skills = claim
            .skills
            .iter()
            .map(|(name, skill)| pb::WorkspaceSkill {
                name: skill_name(name),
                digest: skill.digest.clone(),
                writable: skill.writable_path.is_some(),
            })
            .collect();
        message.inputs = claim.inputs.iter().map(input_message).collect();
        message.inputs.sort_by(|a, b| a.path.cmp(&b.path));
    }
    message
}

fn input_message(input: &record::InputRecord) -> pb::WorkspaceInput {
    pb::WorkspaceInput {
        path: input.path.clone(),
        source: input.from.clone(),
        version: input.version.map(int64),
        sha256: input.sha256.clone(),
        stage_time: timestamp_message(from_unix_ms(input.time_ms)),
    }
}

/// Makes the message of a container's resource limits.
pub fn limits_message(limits: ContainerLimits) -> pb::WorkspaceLimits {
    pb::WorkspaceLimits {
        memory_bytes: int64(limits.memory_bytes),
        cpu_millis: int64(limits.cpu_millis),
        pids: int64(limits.pids),
        disk_bytes: int64(limits.disk_bytes),
        inodes: int64(limits.inodes),
    }
}

fn paths_message() -> pb::WorkspacePaths {
    pb::WorkspacePaths {
        workspace_dir: workspace_paths::WORKSPACE_DIR.into(),
        skills_dir: workspace_paths::SKILLS_DIR.into(),
        work_dir: workspace_paths::WORK_DIR.into(),
        inputs_dir: workspace_paths::INPUTS_DIR.into(),
        output_dir: workspace_paths::OUTPUT_DIR.into(),
        runs_dir: workspace_paths::RUNS_DIR.into(),
    }
}

fn cause_message(cause: LossCause) -> pb::workspace_failure::Cause {
    match cause {
        LossCause::ContainerLost => pb::workspace_failure::Cause::ContainerLost,
        LossCause::GuestLost => pb::workspace_failure::Cause::GuestLost,
        LossCause::StartFailed => pb::workspace_failure::Cause::StartFailed,
        LossCause::OomKilled => pb::workspace_failure::Cause::OomKilled,
    }
}

/// Returns the time since a workspace was created.
pub fn workspace_age(view: &SlotSnapshot) -> Duration {
    let created = view
        .record
        .claim
        .as_ref()
        .map_or(SystemTime::UNIX_EPOCH, |claim| {
            from_unix_ms(claim.create_time_ms)
        });
    created.elapsed().unwrap_or_default()
}
