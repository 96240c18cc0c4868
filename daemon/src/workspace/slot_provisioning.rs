//! Directory of a slot on the host, and the specification of its container. Blocking file work only; no state.
//!
//! ```text
//! slots/<number>/        0755, beneath slots/ (0700)
//!   record.json          see record.rs
//!   run/                 → /run/skilld, read-only: skilld-guest, guest.sock while the daemon awaits the guest, modules
//!                        for Python in python/
//!   mnt/                 → /mnt, read-only: links under the names that skills of other systems use
//!   skills/              → /workspace/skills, read-only: staged skills, .metadata.json
//!     .metadata.json     → /workspace/metadata.json too, read-only
//!   staged/ .stage-*     digests of staged skills, and skills that are being staged; see content_store/staged_skill.rs
//!   passwd group hosts   → /etc/passwd, /etc/group, /etc/hosts
//!   resolv.conf          → /etc/resolv.conf, with Podman only
//!   workspace.ext4       → /workspace, if the pool has storage = "disk"; see slot_disk.rs
//! ```

use std::collections::{BTreeMap, HashMap};
use std::fs;
use std::io;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::time::Duration;

use skilld_proto::guest::{GENERATION, v1 as pb};

use crate::config::{Config, PoolConfig};
use crate::engine::{self, ContainerLimits, ContainerSpec, ImageInfo, SharedDirectory};
use crate::error::{Error, Result, tolerate};
use crate::exec::ImageEnvironment;
use crate::fault;
use crate::guest;
use crate::skills::environments::environment_store;
use crate::workspace::record::{self, SlotRecord, WorkspaceClaim};
use crate::workspace::shared_slot_context::SharedSlotContext;
use crate::workspace_paths;

/// Path of the metadata file in the slot's directory; `/workspace/metadata.json` in the container.
pub const METADATA: &str = "skills/.metadata.json";

/// Maximum number of ended execs that a workspace keeps with result and output. The oldest are removed first.
pub const RETAINED_EXECS_MAX: u32 = 256;
/// Time that processes which a command left behind may go on after its end. Then they are killed, unless the command
/// asks to keep them.
pub const LEAK_GRACE: Duration = Duration::from_millis(500);
/// Interval between heartbeats on a silent output stream, so that proxies keep it open.
pub const HEARTBEAT: Duration = Duration::from_secs(15);

/// Python module that replaces `venv`, and its path in the slot's directory.
const VENV_MODULE: &str = include_str!("slot_provisioning/venv_module.py");
const VENV_MODULE_PATH: &str = "run/python/venv/__init__.py";

/// Links beneath `/mnt` and where they lead: the names that skills of other systems use.
const MNT_LINKS: [(&str, &str); 3] = [
    ("mnt/skills", workspace_paths::SKILLS_DIR),
    ("mnt/user-data/uploads", workspace_paths::INPUTS_DIR),
    ("mnt/user-data/outputs", workspace_paths::OUTPUT_DIR),
];

/// Maximum number of terminals of one container: one for each of 32 commands, and some for tmux and script.
const TERMINALS_MAX: usize = 48;

/// Creates the record of a new slot.
pub fn new_record(
    config: &Config,
    pool: &PoolConfig,
    limits: ContainerLimits,
    image: &ImageInfo,
    number: u32,
    uid: u32,
) -> SlotRecord {
    // Two random UUIDs: 244 bits from the system's generator.
    let nonce = [uuid::Uuid::new_v4(), uuid::Uuid::new_v4()];
    SlotRecord {
        version: record::VERSION,
        number,
        uid,
        pool: pool.name.clone(),
        image: pool.image.clone(),
        image_id: image.id.clone(),
        image_env: ImageEnvironment::new(&image.env),
        limits,
        storage: pool.storage,
        oci_runtime: pool.oci_runtime.clone(),
        shared_dirs: Some(shared_mounts(config, pool)),
        nonce: nonce.iter().map(|part| part.simple().to_string()).collect(),
        container_id: None,
        phase: record::SlotPhase::Booting,
        claim: None,
        quarantine_tenant: None,
    }
}

/// Returns the name of a slot's container, unique on the host while the slot lives.
pub fn container_name(context: &SharedSlotContext, number: u32) -> String {
    format!("skilld-{}-{number}", context.instance)
}

/// Returns the specification of a slot's container. `device` is that of a workspace on disk.
pub fn container_spec(
    context: &SharedSlotContext,
    pool: &PoolConfig,
    record: &SlotRecord,
    device: Option<&Path>,
) -> ContainerSpec {
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
        workspace_device: device.map(Path::to_owned),
        shared_dirs: shared_directories(&context.config, record),
        tmp_bytes: pool.tmp_bytes,
        shm_bytes: pool.shm_bytes,
        terminals: terminals_per_container(context),
        oci_runtime: record.oci_runtime.clone(),
        env: vec![format!("SKILLD_NONCE={}", record.nonce)],
    }
}

/// Returns the mounts of the directories that all new containers of a pool share, environments of skills and the
/// operator's wheels and fonts: path in the container → path on the host. Directories of the operator that cannot be
/// read are left out, because Docker would create no container with them. Blocks.
pub fn shared_mounts(config: &Config, pool: &PoolConfig) -> BTreeMap<String, PathBuf> {
    let options = &config.skills.environments;
    let environments = options
        .is_enabled()
        .then(|| environment_store::mounted_dir(&environments_base(config)));
    let own = |dir: Option<&Path>| dir.map(Path::to_owned);
    [
        (workspace_paths::ENVIRONMENTS_DIR, environments),
        (
            workspace_paths::WHEELHOUSE_DIR,
            own(options.usable_wheelhouse()),
        ),
        (workspace_paths::FONTS_DIR, own(pool.usable_fonts())),
    ]
    .into_iter()
    .filter_map(|(target, source)| Some((target.to_owned(), source?)))
    .collect()
}

/// Returns the directories that a slot's container shares with others, as its record has them.
fn shared_directories(config: &Config, record: &SlotRecord) -> Vec<SharedDirectory> {
    let mounts = record.shared_dirs.iter().flatten();
    mounts
        .map(|(target, source)| SharedDirectory {
            source: source.clone(),
            empty: environment_store::empty_dir(&environments_base(config)),
            target: target.clone(),
        })
        .collect()
}

fn environments_base(config: &Config) -> PathBuf {
    config.state_dir.join("environments")
}

/// Returns the number of terminals of one container: an equal share of the kernel's maximum without its reserve. So all
/// containers together leave the host its reserve, as long as each gets at least one.
fn terminals_per_container(context: &SharedSlotContext) -> usize {
    let setting = |name: &str, default| {
        let text = fs::read_to_string(format!("/proc/sys/kernel/pty/{name}"));
        text.ok()
            .and_then(|text| text.trim().parse().ok())
            .unwrap_or(default)
    };
    let containers = context.config.pools.iter().map(|pool| pool.max);
    share_terminals(
        setting("max", 4096),
        setting("reserve", 1024),
        containers.sum(),
    )
}

fn share_terminals(max: usize, reserve: usize, containers: usize) -> usize {
    (max.saturating_sub(reserve) / containers.max(1)).clamp(1, TERMINALS_MAX)
}

/// Creates the directory of a slot with all files that its container mounts, and its first record. Blocks.
///
/// # Errors
/// When the host's disk fails or is full, or the guest's binary is missing.
pub fn create_slot_dir(dir: &Path, record: &SlotRecord, guest_path: &Path) -> Result<()> {
    let failed = |source| Error::io(format!("prepare slot directory {}", dir.display()), source);
    let make = || -> io::Result<()> {
        // A crash may have left the directory of an earlier slot with this number.
        if dir.exists() {
            fs::remove_dir_all(dir)?;
        }
        for path in [
            "",
            "run",
            "run/python",
            "run/python/venv",
            "skills",
            "mnt",
            "mnt/user-data",
        ] {
            let path = dir.join(path);
            fs::create_dir_all(&path)?;
            fs::set_permissions(&path, fs::Permissions::from_mode(0o755))?;
        }
        write_readable(&dir.join(VENV_MODULE_PATH), VENV_MODULE.as_bytes())?;
        for (link, target) in MNT_LINKS {
            symlink(target, dir.join(link))?;
        }
        let uid = record.uid;
        let passwd = format!(
            "root:x:0:0:root:/root:/usr/sbin/nologin\nskill:x:{uid}:{uid}:skill:/workspace/work:/bin/bash\n\
             nobody:x:65534:65534:nobody:/nonexistent:/usr/sbin/nologin\n"
        );
        write_readable(&dir.join("passwd"), passwd.as_bytes())?;
        // The container mounts the file, so it has to exist before the container.
        write_readable(&dir.join(METADATA), b"{}\n")?;
        let group = format!("root:x:0:\nskill:x:{uid}:\nnogroup:x:65534:\n");
        write_readable(&dir.join("group"), group.as_bytes())?;
        write_readable(&dir.join("hosts"), hosts_file().as_bytes())
    };
    make().map_err(failed)?;
    fault::reach("boot.directory");
    record.write(dir)?;
    fault::reach("boot.recorded");
    // Each slot has a copy: a lock on a shared inode would cross tenants.
    let binary = dir.join("run").join(guest::BINARY);
    let copy = || -> io::Result<()> {
        fs::copy(guest_path, &binary)?;
        fs::set_permissions(&binary, fs::Permissions::from_mode(0o555))
    };
    copy().map_err(|source| {
        let (from, to) = (guest_path.display(), binary.display());
        Error::io(format!("copy the guest {from} to {to}"), source)
    })
}

/// Returns the contents of a container's /etc/hosts. Programs look up the name of their own host.
fn hosts_file() -> String {
    let name = engine::HOST_NAME;
    format!("127.0.0.1\tlocalhost\n127.0.0.1\t{name}\n::1\tlocalhost ip6-localhost ip6-loopback\n")
}

/// Creates the message that configures a guest when its slot becomes a workspace.
pub fn configure_request(context: &SharedSlotContext, workspace: &str) -> pb::ConfigureRequest {
    let execs = &context.config.execs;
    pb::ConfigureRequest {
        workspace: format!("workspaces/{workspace}"),
        execs_max: execs.execs_max,
        leak_grace: prost_types::Duration::try_from(LEAK_GRACE).ok(),
        disconnect_grace: prost_types::Duration::try_from(execs.disconnect_grace).ok(),
        kill_grace: prost_types::Duration::try_from(execs.kill_grace).ok(),
        heartbeat: prost_types::Duration::try_from(HEARTBEAT).ok(),
        retain_bytes_total: execs.retain_bytes_total,
        retained_execs_max: RETAINED_EXECS_MAX,
    }
}

/// Returns the metadata file of a workspace: the parts of its record that commands may read.
pub fn metadata_json(record: &SlotRecord, claim: &WorkspaceClaim) -> String {
    // By the hash a command could guess the query of a URL, which may be a secret.
    let public = |input: &record::InputRecord| record::InputRecord {
        url_sha256: String::new(),
        ..input.clone()
    };
    let inputs: Vec<_> = claim.inputs.iter().map(public).collect();
    let skills = claim.skills.iter();
    let digests: BTreeMap<_, _> = skills.map(|(name, skill)| (name, &skill.digest)).collect();
    let value = serde_json::json!({
        "workspace": format!("workspaces/{}", claim.workspace),
        "pool": record.pool,
        "image": record.image,
        "create_time_ms": claim.create_time_ms,
        "labels": claim.labels,
        "skills": digests,
        "inputs": inputs,
        "limits": record.limits,
    });
    format!("{value:#}\n")
}

/// Deletes the directory of a slot, or a file with its name. Succeeds if it does not exist. Blocks.
///
/// # Errors
/// When an entry cannot be deleted.
pub fn erase_slot_dir(dir: &Path) -> Result<()> {
    let erased = match fs::remove_dir_all(dir) {
        Err(error) if error.kind() == io::ErrorKind::NotADirectory => fs::remove_file(dir),
        // A call was still staging skills. Since the workspace is gone, no other call starts to.
        Err(error) if error.kind() == io::ErrorKind::DirectoryNotEmpty => fs::remove_dir_all(dir),
        other => other,
    };
    tolerate(io::ErrorKind::NotFound, erased)
        .map_err(|source| Error::io(format!("delete slot directory {}", dir.display()), source))
}

fn write_readable(path: &Path, bytes: &[u8]) -> io::Result<()> {
    fs::write(path, bytes)?;
    fs::set_permissions(path, fs::Permissions::from_mode(0o644))
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::engine::Engine;
    use crate::engine::fake::FakeEngine;
    use crate::shutdown::Tasks;

    #[tokio::test]
    async fn each_exec_setting_has_its_own_field_in_the_request() {
        let text = "[execs]\ncount_max = 11\nretain_bytes_total = \"65MiB\"\n\
                    disconnect_grace = \"14s\"\nkill_grace = \"13s\"\n";
        let config = Arc::new(Config::from_toml(text).expect("valid").config);
        let engine = Arc::new(FakeEngine::new());
        let info = engine.describe().await.expect("described");
        let tasks = Tasks::default();
        let context = SharedSlotContext::new(&config, engine, info, &tasks, "instance", 0);
        let seconds = |seconds| Some(prost_types::Duration { seconds, nanos: 0 });
        let expected = pb::ConfigureRequest {
            workspace: "workspaces/w".to_owned(),
            execs_max: 11,
            retained_execs_max: 256,
            retain_bytes_total: 65 << 20,
            leak_grace: Some(prost_types::Duration {
                seconds: 0,
                nanos: 500_000_000,
            }),
            disconnect_grace: seconds(14),
            kill_grace: seconds(13),
            heartbeat: seconds(15),
        };
        assert_eq!(configure_request(&context, "w"), expected);
    }

    #[test]
    fn wheels_and_fonts_that_cannot_be_read_are_not_mounted() {
        let dir = tempfile::tempdir().expect("temp dir");
        let [wheels, fonts] = ["wheels", "fonts"].map(|name| dir.path().join(name));
        let both = [&wheels, &fonts];
        for shared in both {
            fs::create_dir(shared).expect("mkdir");
        }
        let text = format!("skills.wheelhouse = {wheels:?}\npools.office.fonts = {fonts:?}\n");
        let config = Config::from_toml(&text).expect("valid").config;
        let set_mode = |mode| {
            let mode = || fs::Permissions::from_mode(mode);
            for shared in both {
                fs::set_permissions(shared, mode()).expect("chmod");
            }
        };
        let targets = |pool: &PoolConfig| -> Vec<String> {
            let mounts = shared_mounts(&config, pool).into_iter();
            let mut targets: Vec<_> = mounts
                .filter(|(_, dir)| [&wheels, &fonts].contains(&dir))
                .map(|(target, dir)| {
                    format!("{} at {target}", dir.file_name().expect("a name").display())
                })
                .collect();
            targets.sort();
            targets
        };
        let mounted = || -> Vec<Vec<String>> { config.pools.iter().map(targets).collect() };
        let faults = || {
            let fonts = config.pools.iter().map(PoolConfig::fonts_fault);
            let wheels = config.skills.environments.wheelhouse_fault();
            fonts.chain([wheels]).flatten().collect::<Vec<_>>()
        };
        set_mode(0o755);
        // The default pool has wheels only.
        let of_wheels = format!("wheels at {}", workspace_paths::WHEELHOUSE_DIR);
        let of_fonts = format!("fonts at {}", workspace_paths::FONTS_DIR);
        let expected = vec![vec![of_wheels.clone()], vec![of_fonts, of_wheels]];
        assert_eq!((mounted(), faults()), (expected, Vec::new()));
        let all_say = |part: &str| {
            let faults = faults();
            assert_eq!(
                (mounted(), faults.len()),
                (vec![Vec::new(); 2], 2),
                "{faults:?}"
            );
            assert!(
                faults.iter().all(|fault| fault.contains(part)),
                "{faults:?}"
            );
        };
        set_mode(0o700);
        all_say("chmod -R a+rX");
        for shared in both {
            fs::remove_dir(shared).expect("removed");
        }
        all_say("No such file");
        for shared in both {
            fs::write(shared, "").expect("written");
        }
        all_say("is not a directory");
    }

    #[test]
    fn terminals_of_all_containers_leave_the_host_its_part() {
        assert_eq!(share_terminals(4096, 1024, 64), 48);
        assert_eq!(share_terminals(4096, 1024, 128), 24);
        assert_eq!(share_terminals(4096, 1024, 5), TERMINALS_MAX);
        assert_eq!(share_terminals(100, 1024, 64), 1);
    }
}
