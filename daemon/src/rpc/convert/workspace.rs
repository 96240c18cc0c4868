//! Workspace requests → checked values; views → messages.

use std::collections::BTreeMap;
use std::time::{Duration, SystemTime};

use prost::Message;
use skilld_proto::v1 as pb;

use super::{
    Faults, digest, duration, env, id, int64, page_size, page_token, remaining, timestamp,
    wire_duration,
};
use crate::config::WorkspaceConfig;
use crate::engine::Limits;
use crate::error::Result;
use crate::paths;
use crate::workspace::create::Create;
use crate::workspace::lease::from_unix_ms;
use crate::workspace::record;
use crate::workspace::state::{Cause, State};
use crate::workspace::{View, WorkspaceId};

const LABELS_MAX: usize = 32;
const LABEL_BYTES_MAX: usize = 128;
const ENV_MAX: usize = 128;
const ENV_BYTES_MAX: usize = 64 << 10;
/// Maximum length of `request_id` in bytes.
const REQUEST_ID_BYTES_MAX: usize = 128;
/// Shortest idle timeout and lifetime.
const SHORTEST: Duration = Duration::from_secs(1);
const PAGE_DEFAULT: usize = 100;
const PAGE_MAX: usize = 1000;

/// The smallest sizes that a container works with, as the API's comments promise.
const FLOOR: Limits = Limits {
    memory_bytes: 32 << 20,
    cpu_millis: 100,
    pids: 64,
    disk_bytes: 1 << 20,
    inodes: 256,
};

/// Checks a `CreateWorkspaceRequest`.
///
/// # Errors
/// `Invalid` with every fault.
pub fn create(request: pb::CreateWorkspaceRequest, config: &WorkspaceConfig) -> Result<Create> {
    use pb::create_workspace_request::Expiry;
    let mut faults = Faults::default();
    let retry_key = retry_key(&mut faults, &request);
    if request.name.is_empty() && request.allow_existing {
        faults.add("allow_existing", "needs a name");
    }
    let id = if request.name.is_empty() {
        uuid::Uuid::now_v7().to_string()
    } else {
        let checked = super::workspace_name("name", &request.name);
        faults.take("name", checked.map(|id| id.as_str().to_owned()))
    };
    let pool = match request.pool.as_str() {
        "" => None,
        name => Some(faults.take("pool", super::id("pool", name))),
    };
    labels(&mut faults, &request.labels);
    env(&mut faults, "env", &request.env, ENV_MAX, ENV_BYTES_MAX);
    let idle = duration("idle_timeout", request.idle_timeout);
    let idle = bounded(&mut faults, "idle_timeout", idle, config.idle_timeout_max);
    let (field, lifetime) = match request.expiry {
        None => ("max_lifetime", Ok(None)),
        Some(Expiry::MaxLifetime(given)) => ("max_lifetime", duration("max_lifetime", Some(given))),
        Some(Expiry::ExpireTime(given)) => ("expire_time", remaining("expire_time", Some(given))),
    };
    let lifetime = bounded(&mut faults, field, lifetime, config.lifetime_max);
    let limits = limits(&mut faults, request.limits.as_ref());
    faults.finish()?;
    Ok(Create {
        id: WorkspaceId::new(id),
        named: !request.name.is_empty(),
        request: retry_key,
        pool,
        labels: request.labels,
        env: request.env,
        idle_timeout: idle.unwrap_or(config.idle_timeout_default),
        lifetime: lifetime.unwrap_or(config.lifetime_default),
        limits,
        allow_existing: request.allow_existing,
    })
}

/// What tells a retry from another request for the same name: a digest of all fields, or something that no other
/// request has where the client sends no `request_id`.
fn retry_key(faults: &mut Faults, request: &pb::CreateWorkspaceRequest) -> String {
    let id = request.request_id.as_str();
    if id.is_empty() {
        return uuid::Uuid::now_v7().simple().to_string();
    }
    let is_printable = id.bytes().all(|byte| (b' '..=b'~').contains(&byte));
    if id.len() > REQUEST_ID_BYTES_MAX || !is_printable {
        let rule = format!("must be at most {REQUEST_ID_BYTES_MAX} bytes of printable ASCII");
        faults.add("request_id", rule);
    }
    digest(&request.encode_to_vec())
}

fn labels(faults: &mut Faults, labels: &BTreeMap<String, String>) {
    if labels.len() > LABELS_MAX {
        faults.add(
            "labels",
            format!("{} labels; at most {LABELS_MAX}", labels.len()),
        );
    }
    for (key, value) in labels {
        if key.is_empty() || key.len() > LABEL_BYTES_MAX || value.len() > LABEL_BYTES_MAX {
            let shown: String = key.chars().take(80).collect();
            let rule =
                format!("key and value have at most {LABEL_BYTES_MAX} bytes, the key at least one");
            faults.add(format!("labels[{shown:?}]"), rule);
        }
    }
}

fn bounded(
    faults: &mut Faults,
    field: &str,
    given: Result<Option<Duration>>,
    max: Duration,
) -> Option<Duration> {
    let given = faults.take(field, given)?;
    if given < SHORTEST || given > max {
        faults.add(
            field,
            format!(
                "must be between 1 s and {}",
                humantime::format_duration(max)
            ),
        );
    }
    Some(given)
}

fn limits(faults: &mut Faults, given: Option<&pb::WorkspaceLimits>) -> Limits {
    let given = given.copied().unwrap_or_default();
    let mut pick = |field: &str, value: i64, floor: u64| match u64::try_from(value) {
        Ok(value) if value == 0 || value >= floor => value,
        _ => {
            faults.add(
                format!("limits.{field}"),
                format!("must be 0 or at least {floor}"),
            );
            0
        }
    };
    Limits {
        memory_bytes: pick("memory_bytes", given.memory_bytes, FLOOR.memory_bytes),
        cpu_millis: pick("cpu_millis", given.cpu_millis, FLOOR.cpu_millis),
        pids: pick("pids", given.pids, FLOOR.pids),
        disk_bytes: pick("disk_bytes", given.disk_bytes, FLOOR.disk_bytes),
        inodes: pick("inodes", given.inodes, FLOOR.inodes),
    }
}

/// A checked `RenewWorkspaceRequest`.
#[derive(Debug)]
pub struct Renew {
    /// Which one.
    pub id: WorkspaceId,
    /// New idle timeout.
    pub idle: Option<Duration>,
    /// Time until the new end.
    pub remaining: Option<Duration>,
}

/// Checks a `RenewWorkspaceRequest`.
///
/// # Errors
/// `Invalid` with every fault.
pub fn renew(request: &pb::RenewWorkspaceRequest, config: &WorkspaceConfig) -> Result<Renew> {
    let mut faults = Faults::default();
    let id = super::workspace_name("name", &request.name);
    let id = faults.take("name", id.map(Some));
    let idle = duration("idle_timeout", request.idle_timeout);
    let idle = bounded(&mut faults, "idle_timeout", idle, config.idle_timeout_max);
    let remaining = faults.take("expire_time", remaining("expire_time", request.expire_time));
    faults.finish()?;
    let id = id.ok_or_else(|| crate::error::Error::invalid("name", "is missing"))?;
    Ok(Renew {
        id,
        idle,
        remaining,
    })
}

/// Checks a `ListWorkspacesRequest`: the page's size and the id it comes after.
///
/// # Errors
/// `Invalid`.
pub fn list(request: &pb::ListWorkspacesRequest) -> Result<(usize, Option<WorkspaceId>)> {
    let mut faults = Faults::default();
    let size = faults.take(
        "page_size",
        page_size(request.page_size, PAGE_DEFAULT, PAGE_MAX),
    );
    let after = match faults.take("page_token", page_token(&request.page_token)) {
        "" => None,
        token => Some(WorkspaceId::new(
            faults.take("page_token", id("page_token", token)),
        )),
    };
    faults.finish()?;
    Ok((size, after))
}

/// A workspace for the wire.
#[must_use]
pub fn workspace(view: &View) -> pb::Workspace {
    let record = &view.record;
    let lease = view.lease.as_ref();
    let state = match view.state {
        State::Booting | State::Ready | State::Claimed => pb::WorkspaceState::Ready,
        State::Closing | State::Quarantined | State::Removed => pb::WorkspaceState::Closing,
        State::Failed(_) => pb::WorkspaceState::Failed,
    };
    let failure = view.failure.as_ref().map(|failure| pb::WorkspaceFailure {
        cause: cause(failure.cause).into(),
        message: failure.message.clone(),
        time: timestamp(failure.time),
    });
    let mut message = pb::Workspace {
        pool: record.pool.clone(),
        state: state.into(),
        expire_time: lease.and_then(|lease| timestamp(lease.expire_time())),
        idle_timeout: lease.and_then(|lease| wire_duration(lease.idle_timeout())),
        limits: Some(wire_limits(record.limits)),
        image: record.image.clone(),
        guest_version: view.guest_version.clone(),
        paths: Some(wire_paths()),
        failure,
        ..pb::Workspace::default()
    };
    if let Some(claim) = &record.claim {
        let (create, end) = (
            from_unix_ms(claim.create_time_ms),
            from_unix_ms(claim.end_time_ms),
        );
        message.name = format!("workspaces/{}", claim.workspace);
        message.labels = claim.labels.clone();
        message.create_time = timestamp(create);
        message.max_lifetime = wire_duration(end.duration_since(create).unwrap_or_default());
        message.env = claim.env.clone();
        let skills = claim
            .skills
            .iter()
            .map(|(name, digest)| (name.clone(), digest.clone()));
        message.skills = skills
            .map(|(name, digest)| pb::WorkspaceSkill { name, digest })
            .collect();
        message.inputs = claim.inputs.iter().map(input).collect();
        message.inputs.sort_by(|a, b| a.path.cmp(&b.path));
    }
    message
}

fn input(input: &record::Input) -> pb::WorkspaceInput {
    pb::WorkspaceInput {
        path: input.path.clone(),
        from: input.from.clone(),
        version: input.version.map_or(0, int64),
        sha256: input.sha256.clone(),
        stage_time: timestamp(from_unix_ms(input.time_ms)),
    }
}

/// Sizes for the wire.
#[must_use]
pub fn wire_limits(limits: Limits) -> pb::WorkspaceLimits {
    pb::WorkspaceLimits {
        memory_bytes: int64(limits.memory_bytes),
        cpu_millis: int64(limits.cpu_millis),
        pids: int64(limits.pids),
        disk_bytes: int64(limits.disk_bytes),
        inodes: int64(limits.inodes),
    }
}

fn wire_paths() -> pb::WorkspacePaths {
    pb::WorkspacePaths {
        workspace_dir: paths::WORKSPACE_DIR.into(),
        skills_dir: paths::SKILLS_DIR.into(),
        work_dir: paths::WORK_DIR.into(),
        inputs_dir: paths::INPUTS_DIR.into(),
        output_dir: paths::OUTPUT_DIR.into(),
        runs_dir: paths::RUNS_DIR.into(),
    }
}

fn cause(cause: Cause) -> pb::workspace_failure::Cause {
    match cause {
        Cause::ContainerLost => pb::workspace_failure::Cause::ContainerLost,
        Cause::GuestLost => pb::workspace_failure::Cause::GuestLost,
        Cause::StartFailed => pb::workspace_failure::Cause::StartFailed,
        Cause::OomKilled => pb::workspace_failure::Cause::OomKilled,
    }
}

/// Age of a workspace.
#[must_use]
pub fn age(view: &View) -> Duration {
    let created = view
        .record
        .claim
        .as_ref()
        .map_or(SystemTime::UNIX_EPOCH, |claim| {
            from_unix_ms(claim.create_time_ms)
        });
    created.elapsed().unwrap_or_default()
}
