//! Starts the dependencies of the services and builds the routes. The call layer answers UNIMPLEMENTED for a service
//! that is not added here.

use std::sync::Arc;
use std::time::SystemTime;

use skilld_proto::v1::access_service_server::AccessServiceServer;
use skilld_proto::v1::admin_service_server::AdminServiceServer;
use skilld_proto::v1::artifact_service_server::ArtifactServiceServer;
use skilld_proto::v1::exec_service_server::ExecServiceServer;
use skilld_proto::v1::file_service_server::FileServiceServer;
use skilld_proto::v1::server_service_server::ServerServiceServer;
use skilld_proto::v1::skill_service_server::SkillServiceServer;
use skilld_proto::v1::tenant_service_server::TenantServiceServer;
use skilld_proto::v1::workspace_service_server::WorkspaceServiceServer;
use tokio::sync::{Notify, watch};
use tonic::codec::CompressionEncoding;
use tonic::service::Routes;
use tonic_health::server::HealthReporter;

use super::health;
use super::reflection::Reflection;
use crate::access::{AccessControl, TenantPermits};
use crate::artifacts::{Artifacts, ReferencedVersions};
use crate::audit::AuditLog;
use crate::config::Config;
use crate::engine::{Engine, EngineInfo};
use crate::environments::Environments;
use crate::error::{Error, Result};
use crate::fetch::UrlFetcher;
use crate::inputs::{InputStager, staged_artifacts};
use crate::metrics::Metrics;
use crate::rpc::access::AccessRpc;
use crate::rpc::admin::AdminRpc;
use crate::rpc::artifact::ArtifactRpc;
use crate::rpc::exec::ExecRpc;
use crate::rpc::file::FileRpc;
use crate::rpc::server_info::{MESSAGE_BYTES_MAX, ServerInfoRpc};
use crate::rpc::skill::SkillRpc;
use crate::rpc::tenant::TenantRpc;
use crate::rpc::workspace::WorkspaceRpc;
use crate::rpc::{ServiceDependencies, SharedDependencies, SkillsByTenant};
use crate::shutdown::Tasks;
use crate::skills::Skills;
use crate::skills::environments::environment_store::EnvironmentStore;
use crate::usage::UsageLedger;
use crate::workspace::registry::WorkspaceRegistry;
use crate::workspace::run_table::RunTable;
use crate::workspace::shared_slot_context::SharedSlotContext;
use crate::workspace::{slot_disk, slot_table};

/// Sets the limits of a service's messages, and accepts compressed requests, whose limit is that of the unpacked message.
/// Both limits are set because tonic does not limit the messages that it sends by default.
macro_rules! with_limits {
    ($service:expr) => {
        $service
            .max_decoding_message_size(MESSAGE_BYTES_MAX)
            .max_encoding_message_size(MESSAGE_BYTES_MAX)
            .accept_compressed(CompressionEncoding::Gzip)
    };
}

/// Loads what tenants have used on earlier days.
pub(super) async fn open_usage(config: &Config, tasks: &Tasks) -> Result<UsageLedger> {
    let state_dir = config.state_dir.clone();
    let open = move || Ok(UsageLedger::open(&state_dir));
    tasks.blocking(open).await
}

/// Checks that the host can hold the workspaces of pools that store them on disk.
async fn require_host_support(
    config: &Arc<Config>,
    info: &EngineInfo,
    tasks: &Tasks,
) -> Result<()> {
    let (config, info) = (Arc::clone(config), info.clone());
    let check = move || slot_disk::require_host_support(&config, &info);
    tasks.blocking(check).await
}

/// Starts skills, artifacts and pools. Slots of earlier runs are adopted or removed.
pub(super) async fn boot_services(
    config: &Arc<Config>,
    engine: Arc<dyn Engine>,
    info: EngineInfo,
    tasks: &Tasks,
    instance: &str,
    (access, audit, usage, metrics): (
        Arc<AccessControl>,
        Option<AuditLog>,
        UsageLedger,
        &Arc<Metrics>,
    ),
) -> Result<ServiceDependencies> {
    require_host_support(config, &info, tasks).await?;
    let skills = Skills::open(
        &config.skills.options,
        &config.state_dir,
        tasks.for_skills(),
    )?;
    skills.start_fetching();
    let patience = config.server.upload_timeout;
    let (files, quotas) = (&config.artifacts, Some(Arc::clone(&access)));
    let artifacts = Artifacts::open(files, &config.state_dir, patience, (quotas, tasks))
        .await?
        .with_usage(usage.clone());
    let private = config.files.input_private_addresses;
    let fetcher = UrlFetcher::new(&config.fetch, private, tasks.for_skills());
    let packages = UrlFetcher::new(
        &config.fetch,
        config.skills.options.remote.allow_private_addresses,
        tasks.for_skills(),
    );
    let inputs = InputStager::new(config, artifacts.clone(), fetcher, tasks.clone());
    let context = Arc::new(
        SharedSlotContext::new(
            config,
            Arc::clone(&engine),
            info.clone(),
            tasks,
            instance,
            slot_table::first_slot_number(),
        )
        .with_metrics(Arc::clone(metrics))
        .with_tenant_counters(access.execs.clone(), usage),
    );
    // Containers mount the directories of this store.
    let base = config.state_dir.join("environments");
    let bytes_max = config.skills.environments.disk_bytes;
    let open = move || EnvironmentStore::open(&base, bytes_max).map_err(Error::from);
    let store = Arc::new(tasks.blocking(open).await?);
    let registry = WorkspaceRegistry::boot(Arc::clone(&context)).await?;
    artifacts.start_retention(referenced_versions(&registry));
    tasks.spawn(Arc::clone(&context).save_usage_periodically());
    let environments = Environments::new(store, context, packages, Arc::clone(&access));
    let is_shared = config.auth.is_some();
    Ok(ServiceDependencies {
        config: Arc::clone(config),
        access,
        audit,
        engine,
        info,
        tasks: tasks.clone(),
        instance: instance.to_owned(),
        registry,
        skills: SkillsByTenant::new(skills),
        environments,
        artifacts,
        inputs,
        publishes: TenantPermits::new(config.skills.publishes_max, is_shared),
        runs: RunTable::default(),
        sweep: Notify::new(),
        start_time: SystemTime::now(),
    })
}

/// Returns the artifact versions that workspaces have as inputs.
fn referenced_versions(registry: &WorkspaceRegistry) -> ReferencedVersions {
    let registry = registry.clone();
    ReferencedVersions::new(move || staged_artifacts(&registry.list_all()))
}

/// Builds the routes: every service with the limits of messages, health, and, if switched on, both versions of
/// reflection.
pub(super) fn build_routes(
    shared: SharedDependencies,
    available: watch::Receiver<bool>,
    reporter: HealthReporter,
) -> Result<Routes> {
    let reflection = shared.config.server.reflection;
    let server = ServerInfoRpc {
        shared: Arc::clone(&shared),
        available,
    };
    let workspaces = WorkspaceServiceServer::new(WorkspaceRpc(Arc::clone(&shared)));
    let execs = ExecServiceServer::new(ExecRpc(Arc::clone(&shared)));
    let files = FileServiceServer::new(FileRpc(Arc::clone(&shared)));
    let skills = SkillServiceServer::new(SkillRpc(Arc::clone(&shared)));
    let artifacts = ArtifactServiceServer::new(ArtifactRpc(Arc::clone(&shared)));
    let access = AccessServiceServer::new(AccessRpc(Arc::clone(&shared)));
    let tenants = TenantServiceServer::new(TenantRpc(Arc::clone(&shared)));
    let admin = AdminServiceServer::new(AdminRpc(shared));
    let routes = Routes::new(with_limits!(workspaces))
        .add_service(with_limits!(execs))
        .add_service(with_limits!(files))
        .add_service(with_limits!(skills))
        .add_service(with_limits!(artifacts))
        .add_service(with_limits!(ServerServiceServer::new(server)))
        .add_service(with_limits!(access))
        .add_service(with_limits!(tenants))
        .add_service(with_limits!(admin))
        .add_service(with_limits!(health::health_service(reporter)));
    if !reflection {
        return Ok(routes);
    }
    let reflection = Reflection::new()?;
    Ok(routes
        .add_service(with_limits!(reflection.v1()))
        .add_service(with_limits!(reflection.v1alpha())))
}
