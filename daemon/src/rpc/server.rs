//! ServerService: what this server is and what it allows.

use std::time::Duration;

use skilld_proto::guest::GENERATION;
use skilld_proto::v1 as pb;
use skilld_proto::v1::server_service_server::ServerService;
use tokio::sync::watch;
use tonic::{Request, Response, Status};

use super::convert::exec::{ARG_BYTES_MAX, ARGV_MAX, ENV_BYTES_MAX, ENV_MAX, STDIN_BYTES_MAX};
use super::convert::file::{DATA_BYTES_MAX, GLOB_BYTES_MAX, GLOBS_MAX, SKILLS_MAX};
use super::convert::input::INPUTS_MAX;
use super::{Services, Shared};
use crate::artifacts::{NAME_BYTES_MAX, SCOPE_BYTES_MAX};
use crate::config::Config;
use crate::engine::seccomp;

/// Most entries of one page of any list.
const PAGE_SIZE: i64 = 1000;
/// Bytes of a path, and components of it.
const PATH: (i64, i64) = (4096, 128);
/// What this version can do, sorted. Every entry is something that a client may have to know before it asks.
const FEATURES: &[&str] = &[
    "artifacts.delete",
    "artifacts.list",
    "artifacts.load",
    "artifacts.save",
    "exec.attach",
    "exec.collect",
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

/// The service.
#[derive(Debug, Clone)]
pub struct Server {
    /// What all services work with.
    pub shared: Shared,
    /// Whether the engine answered the last time it was asked.
    pub available: watch::Receiver<bool>,
}

impl Server {
    fn features(&self) -> Vec<String> {
        let mut features: Vec<String> =
            FEATURES.iter().map(|&feature| feature.to_owned()).collect();
        let config = &self.shared.config;
        let configured = [
            (config.server.reflection, "reflection"),
            (!config.files.host_roots.is_empty(), "inputs.host"),
            (config.files.input_urls, "inputs.urls"),
        ];
        let on = configured.into_iter().filter(|(on, _)| *on);
        features.extend(on.map(|(_, feature)| feature.to_owned()));
        features.sort_unstable();
        features
    }
}

#[tonic::async_trait]
impl ServerService for Server {
    async fn get_server_info(
        &self,
        _request: Request<pb::GetServerInfoRequest>,
    ) -> Result<Response<pb::ServerInfo>, Status> {
        let Services {
            config,
            info,
            instance,
            start_time,
            ..
        } = &*self.shared;
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
            limits: Some(limits(config)),
            pools: config.pools.iter().map(|pool| pool.name.clone()).collect(),
            default_pool: config.default_pool.clone(),
            seccomp_digest: seccomp::digest().to_owned(),
            guest_generation: GENERATION,
            // Daemon and guest are built and released together.
            guest_version: env!("CARGO_PKG_VERSION").to_owned(),
        }))
    }
}

fn limits(config: &Config) -> pb::ServerLimits {
    let Config {
        server,
        workspaces,
        execs,
        ..
    } = config;
    pb::ServerLimits {
        message_bytes: count(server.message_bytes_max),
        header_bytes: server.header_bytes_max.into(),
        concurrent_streams: server.streams_max.into(),
        connections: count(server.connections_max),
        connections_per_user: count(server.connections_per_user_max),
        workspaces: count(workspaces.workspaces_max),
        execs_per_workspace: execs.execs_max.into(),
        page_size: PAGE_SIZE,
        exec_timeout_default: time(execs.timeout_default),
        exec_timeout_max: time(execs.timeout_max),
        exec_retain_bytes_default: count(execs.retain_bytes_default),
        exec_retain_bytes_max: count(execs.retain_bytes_max),
        exec_retain_after_exit_default: time(execs.retain_after_exit_default),
        exec_retain_after_exit_max: time(execs.retain_after_exit_max),
        argv_bytes: count(ARG_BYTES_MAX),
        argv_count: count(ARGV_MAX),
        env_bytes: count(ENV_BYTES_MAX),
        env_count: count(ENV_MAX),
        stdin_inline_bytes: count(STDIN_BYTES_MAX),
        idle_timeout_default: time(workspaces.idle_timeout_default),
        idle_timeout_max: time(workspaces.idle_timeout_max),
        lifetime_default: time(workspaces.lifetime_default),
        lifetime_max: time(workspaces.lifetime_max),
        path_bytes: PATH.0,
        path_depth: PATH.1,
        relay_bytes: count(server.relay_bytes_max),
        upload_timeout: time(server.upload_timeout),
        unary_timeout: time(server.unary_timeout),
        failed_retention: time(workspaces.failed_retention),
        execs_retained: execs.retained_max.into(),
        exec_retain_bytes_total: count(execs.retain_bytes_total),
        exec_kill_grace: time(execs.kill_grace),
        exec_leak_grace: time(execs.leak_grace),
        exec_disconnect_grace: time(execs.disconnect_grace),
        heartbeat: time(execs.heartbeat),
        ..limits_of_files(config)
    }
}

/// Of what is staged, collected and kept; the others are not set.
fn limits_of_files(config: &Config) -> pb::ServerLimits {
    let Config {
        files,
        fetch,
        skills,
        artifacts,
        ..
    } = config;
    pb::ServerLimits {
        stage_archive_entries: count(files.archive_entries_max),
        stage_bytes: count(files.stage_bytes_max),
        collect_files_default: count(files.collect_files_default),
        collect_files_max: count(files.collect_files_max),
        collect_file_bytes_default: count(files.collect_file_bytes_default),
        collect_file_bytes_max: count(files.collect_file_bytes_max),
        collect_total_bytes_default: count(files.collect_total_bytes_default),
        collect_total_bytes_max: count(files.collect_total_bytes_max),
        skill_files: count(skills.files_max),
        skill_bytes: count(skills.bytes_max),
        artifact_bytes: count(artifacts.bytes_max),
        artifact_name_bytes: count(NAME_BYTES_MAX),
        artifact_scope_bytes: count(SCOPE_BYTES_MAX),
        skill_md_bytes: count(skills.skill_md_bytes_max),
        skills: count(skills.skills_max),
        publish_bytes: count(skills.publish_bytes_max),
        concurrent_publishes: count(skills.publishes_max),
        skill_keep_unused: time(skills.keep_unused),
        concurrent_saves: count(artifacts.saves_max),
        collect_on_exit_timeout: time(files.collect_on_exit_timeout),
        stage_inputs: count(INPUTS_MAX),
        stage_input_data_bytes: count(DATA_BYTES_MAX),
        stage_skills: count(SKILLS_MAX),
        collect_globs: count(GLOBS_MAX),
        glob_bytes: count(GLOB_BYTES_MAX),
        fetch_timeout: time(fetch.timeout),
        ..pb::ServerLimits::default()
    }
}

fn count(value: impl TryInto<i64>) -> i64 {
    value.try_into().unwrap_or(i64::MAX)
}

/// Configured times are at most a year.
fn time(value: Duration) -> Option<prost_types::Duration> {
    prost_types::Duration::try_from(value).ok()
}
