//! ServerService: version, features and limits of this server.

use skilld_proto::guest::GENERATION;
use skilld_proto::v1 as pb;
use skilld_proto::v1::server_service_server::ServerService;
use tokio::sync::watch;
use tonic::{Request, Response, Status};

use super::convert::exec::{
    ARG_BYTES_MAX, ARGV_MAX, ENV_BYTES_MAX, ENV_MAX, RETAIN_AFTER_EXIT_MAX, STDIN_BYTES_MAX,
};
use super::convert::file::{
    COLLECT_FILE_BYTES, COLLECT_FILES, COLLECT_TOTAL_BYTES, DATA_BYTES_MAX, GLOB_BYTES_MAX,
    GLOBS_MAX, SKILLS_MAX,
};
use super::convert::input::INPUTS_MAX;
use super::convert::{duration_message, int64, pool_name};
use super::{ServiceDependencies, SharedDependencies};
use crate::access::Caller;
use crate::artifacts::{NAME_BYTES_MAX, SCOPE_BYTES_MAX};
use crate::config::{Config, WorkspaceStorage};
use crate::engine::seccomp;
use crate::exec::RETAIN_AFTER_EXIT_DEFAULT;
use crate::guest::ARCHIVE_ENTRIES_MAX;
use crate::workspace::slot_provisioning::{HEARTBEAT, LEAK_GRACE, RETAINED_EXECS_MAX};

/// Maximum size of a message in either direction, in bytes. Pages of answers have up to 3 MiB and the entry that exceeds
/// it; file contents come in chunks of 1 MiB.
pub const MESSAGE_BYTES_MAX: usize = 4 << 20;
/// Maximum size of a request's metadata, in bytes. That of skilld's clients takes less than 1 KiB; tokens and tracing add
/// to that, and other servers take 8 to 32 KiB.
pub const HEADER_BYTES_MAX: u64 = 32 << 10;
/// Largest page of most lists.
const PAGE_SIZE: i64 = 1000;
/// Maximum length of a path in bytes, and its maximum number of components.
const PATH: (i64, i64) = (4096, 128);
/// Features of this version, sorted. A client checks for one before it uses the call or option.
const FEATURES: &[&str] = &[
    "artifacts.delete",
    "artifacts.list",
    "artifacts.load",
    "artifacts.save",
    "exec.attach",
    "exec.kill",
    "exec.run",
    "exec.script",
    "exec.signal",
    "exec.start",
    "files.collect",
    "files.list",
    "files.read",
    "files.stage",
    "files.stage_inputs",
    "health",
    "images.check",
    "pools.warm_up",
    "skills.list",
    "skills.preflight",
    "skills.publish",
    "skills.read",
    "skills.search",
    "skills.stage",
    "storage.tmpfs",
    "workspaces.adopt",
];

/// Implementation of ServerService.
#[derive(Debug, Clone)]
pub struct ServerInfoRpc {
    /// Dependencies that all services share.
    pub shared: SharedDependencies,
    /// `true` if the engine answered the most recent ping.
    pub available: watch::Receiver<bool>,
}

impl ServerInfoRpc {
    fn features(&self) -> Vec<String> {
        let mut features: Vec<String> =
            FEATURES.iter().map(|&feature| feature.to_owned()).collect();
        let config = &self.shared.config;
        let mut pools = config.pools.iter();
        let has_disk = pools.any(|pool| pool.storage == WorkspaceStorage::Disk);
        let configured = [
            (config.auth.is_some(), "auth"),
            (config.server.reflection, "reflection"),
            (!config.files.host_roots.is_empty(), "inputs.host"),
            (config.files.input_urls, "inputs.urls"),
            (has_disk, "storage.disk"),
        ];
        let on = configured.into_iter().filter(|(on, _)| *on);
        features.extend(on.map(|(_, feature)| feature.to_owned()));
        features.sort_unstable();
        features
    }
}

#[tonic::async_trait]
impl ServerService for ServerInfoRpc {
    async fn get_server_info(
        &self,
        request: Request<pb::GetServerInfoRequest>,
    ) -> Result<Response<pb::ServerInfo>, Status> {
        let caller = Caller::of(&request)?;
        let ServiceDependencies {
            config,
            info,
            instance,
            start_time,
            ..
        } = &*self.shared;
        let pools = config.pools.iter().map(|pool| pool.name.clone());
        let granted = pools.filter(|pool| caller.may_use_pool(pool));
        let granted = granted.map(|pool| pool_name(&pool));
        let default_pool = match caller.may_use_pool(&config.default_pool) {
            true => pool_name(&config.default_pool),
            false => String::new(),
        };
        Ok(Response::new(pb::ServerInfo {
            version: env!("CARGO_PKG_VERSION").to_owned(),
            instance: instance.clone(),
            start_time: Some((*start_time).into()),
            engine: Some(pb::EngineInfo {
                name: info.name.clone(),
                version: info.version.clone(),
                api_version: info.api_version.clone(),
                cgroup_version: info.cgroup_version,
                oci_runtimes: info.oci_runtimes.clone(),
                available: *self.available.borrow(),
            }),
            features: self.features(),
            limits: Some(server_limits(config)),
            pools: granted.collect(),
            default_pool,
            seccomp_digest: seccomp::digest().to_owned(),
            guest_generation: GENERATION,
            // Daemon and guest are released together, so their versions are the same.
            guest_version: env!("CARGO_PKG_VERSION").to_owned(),
        }))
    }
}

fn server_limits(config: &Config) -> pb::ServerLimits {
    let Config {
        server,
        workspaces,
        execs,
        ..
    } = config;
    pb::ServerLimits {
        message_bytes: int64(MESSAGE_BYTES_MAX),
        header_bytes: int64(HEADER_BYTES_MAX),
        concurrent_streams: server.streams_max.into(),
        connections: int64(server.connections_max),
        connections_per_user: int64(server.connections_per_user_max()),
        workspaces: int64(workspaces.workspaces_max),
        execs_per_workspace: execs.execs_max.into(),
        page_size: PAGE_SIZE,
        exec_timeout_default: duration_message(execs.timeout_default),
        exec_timeout_max: duration_message(execs.timeout_max),
        exec_retain_bytes_default: int64(execs.retain_bytes_default()),
        exec_retain_bytes_max: int64(execs.retain_bytes_max()),
        exec_retain_after_exit_default: duration_message(RETAIN_AFTER_EXIT_DEFAULT),
        exec_retain_after_exit_max: duration_message(RETAIN_AFTER_EXIT_MAX),
        argv_bytes: int64(ARG_BYTES_MAX),
        argv_count: int64(ARGV_MAX),
        env_bytes: int64(ENV_BYTES_MAX),
        env_count: int64(ENV_MAX),
        stdin_inline_bytes: int64(STDIN_BYTES_MAX),
        idle_timeout_default: duration_message(workspaces.idle_timeout_default),
        idle_timeout_max: duration_message(workspaces.idle_timeout_max),
        lifetime_default: duration_message(workspaces.lifetime_default),
        lifetime_max: duration_message(workspaces.lifetime_max),
        path_bytes: PATH.0,
        path_depth: PATH.1,
        relay_bytes: int64(server.relay_bytes_max),
        upload_timeout: duration_message(server.upload_timeout),
        unary_timeout: duration_message(server.unary_timeout),
        failed_retention: duration_message(workspaces.failed_retention),
        execs_retained: RETAINED_EXECS_MAX.into(),
        exec_retain_bytes_total: int64(execs.retain_bytes_total),
        exec_kill_grace: duration_message(execs.kill_grace),
        exec_leak_grace: duration_message(LEAK_GRACE),
        exec_disconnect_grace: duration_message(execs.disconnect_grace),
        heartbeat_interval: duration_message(HEARTBEAT),
        ..file_limits(config)
    }
}

/// Returns the limits of staging, collecting, skills and artifacts; the other fields stay unset.
fn file_limits(config: &Config) -> pb::ServerLimits {
    let Config {
        files,
        fetch,
        skills,
        artifacts,
        ..
    } = config;
    pb::ServerLimits {
        stage_archive_entries: int64(ARCHIVE_ENTRIES_MAX),
        stage_bytes: int64(files.stage_bytes_max),
        collect_files_default: int64(COLLECT_FILES.default),
        collect_files_max: int64(COLLECT_FILES.max),
        collect_file_bytes_default: int64(COLLECT_FILE_BYTES.default),
        collect_file_bytes_max: int64(COLLECT_FILE_BYTES.max),
        collect_total_bytes_default: int64(COLLECT_TOTAL_BYTES.default),
        collect_total_bytes_max: int64(COLLECT_TOTAL_BYTES.max),
        skill_files: int64(skills.options.files_max),
        skill_bytes: int64(skills.options.bytes_max),
        artifact_bytes: int64(artifacts.bytes_max),
        artifact_name_bytes: int64(NAME_BYTES_MAX),
        artifact_scope_bytes: int64(SCOPE_BYTES_MAX),
        skill_md_bytes: int64(skills.options.skill_md_bytes_max),
        skills: int64(skills.options.skills_max),
        publish_bytes: int64(skills.options.bytes_max),
        concurrent_publishes: int64(skills.publishes_max),
        unused_skill_retention: duration_message(skills.options.keep_unused),
        concurrent_saves: int64(artifacts.saves_max),
        stage_inputs: int64(INPUTS_MAX),
        stage_input_data_bytes: int64(DATA_BYTES_MAX),
        stage_skills: int64(SKILLS_MAX),
        collect_globs: int64(GLOBS_MAX),
        glob_bytes: int64(GLOB_BYTES_MAX),
        fetch_timeout: duration_message(fetch.timeout),
        ..pb::ServerLimits::default()
    }
}
