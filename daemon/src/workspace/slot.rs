//! A slot's directory on the host, and what its container is made of. Blocking file work only; no state.
//!
//! ```text
//! slots/<number>/        0755, beneath slots/ (0700)
//!   record.json          see record.rs
//!   run/                 → /run/skilld, read-only: skilld-guest, and guest.sock while a guest is awaited
//!   skills/              → /workspace/skills, read-only: staged skills, .metadata.json
//!     .metadata.json     → /workspace/metadata.json too, read-only
//!   staged/ .stage-*     which digest is staged, and skills on their way in; see skills/stage.rs
//!   passwd group         → /etc/passwd, /etc/group
//! ```

use std::collections::HashMap;
use std::fs::{self, File};
use std::io;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Once};

use skilld_proto::guest::{GENERATION, v1 as pb};
use tokio::sync::{Notify, Semaphore};

use crate::config::{Config, PoolConfig};
use crate::engine::runtime::RuntimeKind;
use crate::engine::{self, ContainerSpec, Engine, EngineInfo, Limits, cgroup};
use crate::error::{Chain, Error, Result};
use crate::fault::{self, Point};
use crate::guest;
use crate::pool::Inventories;
use crate::shutdown::Tasks;
use crate::workspace::directory::{Directory, Numbers};
use crate::workspace::reconcile::Removals;
use crate::workspace::record::{self, Claim, Record};

/// What commands can read of the record, in the slot's directory; `/workspace/metadata.json` in the container.
pub const METADATA: &str = "skills/.metadata.json";

/// What every slot's task shares.
#[derive(Debug)]
pub struct Context {
    /// As loaded.
    pub config: Arc<Config>,
    /// What makes containers.
    pub engine: Arc<dyn Engine>,
    /// What the engine said it is.
    pub info: EngineInfo,
    /// Owner of all tasks.
    pub tasks: Tasks,
    /// Id of this instance.
    pub instance: String,
    /// Slot numbers.
    pub numbers: std::sync::Mutex<Numbers>,
    /// Workspaces by id.
    pub directory: Arc<Directory>,
    /// Containers that boot at once.
    pub boots: Semaphore,
    /// What images have.
    pub inventories: Inventories,
    /// Wakes the reconciler before its interval is over.
    pub reconcile: Notify,
    /// Containers without a slot that are being removed.
    pub removals: Removals,
}

impl Context {
    /// Directory of all slots.
    #[must_use]
    pub fn slots_dir(&self) -> PathBuf {
        self.config.state_dir.join("slots")
    }

    /// Directory of one slot.
    #[must_use]
    pub fn slot_dir(&self, number: u32) -> PathBuf {
        self.slots_dir().join(number.to_string())
    }

    /// Runs `f` on the slot numbers.
    pub fn with_numbers<T>(&self, f: impl FnOnce(&mut Numbers) -> T) -> T {
        f(&mut self
            .numbers
            .lock()
            .unwrap_or_else(std::sync::PoisonError::into_inner))
    }

    /// Returns what a guest is checked against, and the CPU group that it is given. `pid` is the container's first process.
    pub async fn expected(&self, record: &Record, pid: i32) -> guest::Expected {
        let kind = RuntimeKind::of(record.oci_runtime.as_deref().unwrap_or("runc"));
        let shows_pid = kind.shows_guest_process();
        let is_fake = self.info.name == "fake";
        let has_group = pid != 0 && kind.shares_host_kernel() && !is_fake;
        let container = record.container_id.clone().filter(|_| has_group);
        guest::Expected {
            uid: (!self.info.userns_remap && shows_pid && !is_fake).then_some(record.uid),
            pid: (shows_pid && pid != 0).then_some(pid),
            nonce: from_hex(&record.nonce),
            command_group: match container {
                Some(container) => self.command_group(container, pid).await,
                None => None,
            },
        }
    }

    /// Makes the CPU group of a container's commands, if this daemon may.
    async fn command_group(&self, container: String, pid: i32) -> Option<Arc<File>> {
        let make = move || {
            cgroup::make_command_group(&container, pid).map_err(|source| Error::Io {
                operation: format!("make the CPU group of container {container}"),
                source,
            })
        };
        match self.tasks.blocking(make).await {
            Ok(group) => Some(Arc::new(group)),
            Err(error) => {
                WARN_OF_COMMAND_GROUPS.call_once(|| {
                    tracing::warn!(
                        error = %Chain(&error),
                        "commands have no CPU group of their own, so that many busy ones delay their guest: run skilld as \
                         root, in the host's cgroup namespace"
                    );
                });
                None
            }
        }
    }
}

/// Most terminals of one container: each of 32 commands can have one, and some are left for tmux and script.
const TERMINALS_MAX: usize = 48;

/// Whether the groups can be made depends on the daemon, not on the container: one line says it for all.
static WARN_OF_COMMAND_GROUPS: Once = Once::new();

/// The record of a slot that is about to be made.
#[must_use]
pub fn new_record(
    pool: &PoolConfig,
    limits: Limits,
    image_id: &str,
    number: u32,
    uid: u32,
) -> Record {
    // Two random UUIDs: 244 bits from the system's generator.
    let nonce = [uuid::Uuid::new_v4(), uuid::Uuid::new_v4()];
    Record {
        version: record::VERSION,
        number,
        uid,
        pool: pool.name.clone(),
        image: pool.image.clone(),
        image_id: image_id.to_owned(),
        limits,
        oci_runtime: pool.oci_runtime.clone(),
        nonce: nonce.iter().map(|part| part.simple().to_string()).collect(),
        container_id: None,
        phase: record::Phase::Booting,
        claim: None,
    }
}

/// Name of a slot's container. Unique on the host while the slot lives.
#[must_use]
pub fn container_name(context: &Context, number: u32) -> String {
    format!("skilld-{}-{number}", context.instance)
}

/// The container of a slot.
#[must_use]
pub fn container(context: &Context, pool: &PoolConfig, record: &Record) -> ContainerSpec {
    let slot = record.number.to_string();
    let labels = [
        (engine::LABEL_INSTANCE, context.instance.clone()),
        (engine::LABEL_SLOT, slot.clone()),
        (engine::LABEL_POOL, record.pool.clone()),
        (engine::LABEL_GENERATION, GENERATION.to_string()),
        (engine::LABEL_UID, record.uid.to_string()),
    ];
    ContainerSpec {
        name: container_name(context, record.number),
        labels: labels
            .into_iter()
            .map(|(key, value)| (key.to_owned(), value))
            .collect::<HashMap<_, _>>(),
        image_id: record.image_id.clone(),
        slot_dir: context.slot_dir(record.number),
        uid: record.uid,
        limits: record.limits,
        tmp_bytes: pool.tmp_bytes,
        shm_bytes: pool.shm_bytes,
        terminals: terminals(context),
        oci_runtime: record.oci_runtime.clone(),
        env: vec![format!("SKILLD_NONCE={}", record.nonce)],
    }
}

/// Terminals of one container: an equal part of what the kernel has for all, less what it reserves for the host, so that
/// all containers of this daemon leave the host its part, as long as each gets at least one.
fn terminals(context: &Context) -> usize {
    let setting = |name: &str, default| {
        let text = fs::read_to_string(format!("/proc/sys/kernel/pty/{name}"));
        text.ok()
            .and_then(|text| text.trim().parse().ok())
            .unwrap_or(default)
    };
    let containers = context.config.pools.iter().map(|pool| pool.max);
    terminals_of_one(
        setting("max", 4096),
        setting("reserve", 1024),
        containers.sum(),
    )
}

fn terminals_of_one(max: usize, reserve: usize, containers: usize) -> usize {
    (max.saturating_sub(reserve) / containers.max(1)).clamp(1, TERMINALS_MAX)
}

/// Makes the directory of a slot with everything that its container binds, and its first record. Blocks.
///
/// # Errors
/// When the host's disk fails or is full, or the guest's binary is missing.
pub fn prepare(dir: &Path, record: &Record, guest_path: &Path) -> Result<()> {
    let failed = |source| Error::Io {
        operation: format!("prepare slot directory {}", dir.display()),
        source,
    };
    let make = || -> io::Result<()> {
        // What a crash left of an earlier slot of this number.
        if dir.exists() {
            fs::remove_dir_all(dir)?;
        }
        for path in [dir.to_path_buf(), dir.join("run"), dir.join("skills")] {
            fs::create_dir_all(&path)?;
            fs::set_permissions(&path, fs::Permissions::from_mode(0o755))?;
        }
        let uid = record.uid;
        let passwd = format!(
            "root:x:0:0:root:/root:/usr/sbin/nologin\nskill:x:{uid}:{uid}:skill:/workspace/work:/bin/bash\n\
             nobody:x:65534:65534:nobody:/nonexistent:/usr/sbin/nologin\n"
        );
        write_readable(&dir.join("passwd"), passwd.as_bytes())?;
        // It is bound into the container, so it has to be there before.
        write_readable(&dir.join(METADATA), b"{}\n")?;
        let group = format!("root:x:0:\nskill:x:{uid}:\nnogroup:x:65534:\n");
        write_readable(&dir.join("group"), group.as_bytes())
    };
    make().map_err(failed)?;
    fault::reach(Point::BootDirectory);
    record.write(dir)?;
    fault::reach(Point::BootRecorded);
    // A copy for each slot: a lock on a shared inode would cross tenants.
    let binary = dir.join("run").join(guest::BINARY);
    let copy = || -> io::Result<()> {
        fs::copy(guest_path, &binary)?;
        fs::set_permissions(&binary, fs::Permissions::from_mode(0o555))
    };
    copy().map_err(|source| Error::Io {
        operation: format!(
            "copy the guest {} to {}",
            guest_path.display(),
            binary.display()
        ),
        source,
    })
}

/// What a guest is told when its container becomes a workspace.
#[must_use]
pub fn configure_request(context: &Context, workspace: &str) -> pb::ConfigureRequest {
    let execs = &context.config.execs;
    pb::ConfigureRequest {
        workspace: format!("workspaces/{workspace}"),
        execs_max: execs.execs_max,
        leak_grace: prost_types::Duration::try_from(execs.leak_grace).ok(),
        disconnect_grace: prost_types::Duration::try_from(execs.disconnect_grace).ok(),
        kill_grace: prost_types::Duration::try_from(execs.kill_grace).ok(),
        heartbeat: prost_types::Duration::try_from(execs.heartbeat).ok(),
        retain_bytes_total: execs.retain_bytes_total,
        retained_execs_max: execs.retained_max,
    }
}

/// What commands can read of the record: nothing that is secret.
#[must_use]
pub fn metadata(record: &Record, claim: &Claim) -> String {
    // A hash would let a command try out what the query of a URL is.
    let public = |input: &record::Input| record::Input {
        url_sha256: String::new(),
        ..input.clone()
    };
    let inputs: Vec<_> = claim.inputs.iter().map(public).collect();
    let value = serde_json::json!({
        "workspace": format!("workspaces/{}", claim.workspace),
        "pool": record.pool,
        "image": record.image,
        "create_time_ms": claim.create_time_ms,
        "labels": claim.labels,
        "skills": claim.skills,
        "inputs": inputs,
        "limits": record.limits,
    });
    format!("{value:#}\n")
}

/// Deletes the directory of a slot, or whatever else has its name. Blocks. OK if there is none.
///
/// # Errors
/// When something in it cannot be deleted.
pub fn erase(dir: &Path) -> Result<()> {
    let erased = match fs::remove_dir_all(dir) {
        Err(error) if error.kind() == io::ErrorKind::NotADirectory => fs::remove_file(dir),
        // Somebody was still writing skills into it: nothing new comes once its workspace is gone.
        Err(error) if error.kind() == io::ErrorKind::DirectoryNotEmpty => fs::remove_dir_all(dir),
        other => other,
    };
    match erased {
        Err(source) if source.kind() != io::ErrorKind::NotFound => Err(Error::Io {
            operation: format!("delete slot directory {}", dir.display()),
            source,
        }),
        _ => Ok(()),
    }
}

fn write_readable(path: &Path, bytes: &[u8]) -> io::Result<()> {
    fs::write(path, bytes)?;
    fs::set_permissions(path, fs::Permissions::from_mode(0o644))
}

/// Bytes of an even number of hex digits; nothing if there are others.
fn from_hex(text: &str) -> Vec<u8> {
    (0..text.len() / 2)
        .map_while(|index| text.get(2 * index..2 * index + 2))
        .map_while(|pair| u8::from_str_radix(pair, 16).ok())
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn terminals_of_all_containers_leave_the_host_its_part() {
        assert_eq!(terminals_of_one(4096, 1024, 64), 48);
        assert_eq!(terminals_of_one(4096, 1024, 128), 24);
        assert_eq!(terminals_of_one(4096, 1024, 5), TERMINALS_MAX);
        assert_eq!(terminals_of_one(100, 1024, 64), 1);
    }
}
