//! What is served: boots what the services work with, and makes the routes. A service of the API that is not
//! added here is answered with UNIMPLEMENTED by the call layer.

use std::sync::{Arc, Mutex};
use std::time::SystemTime;

use skilld_proto::v1::FILE_DESCRIPTOR_SET;
use skilld_proto::v1::admin_service_server::AdminServiceServer;
use skilld_proto::v1::artifact_service_server::ArtifactServiceServer;
use skilld_proto::v1::exec_service_server::ExecServiceServer;
use skilld_proto::v1::file_service_server::FileServiceServer;
use skilld_proto::v1::server_service_server::ServerServiceServer;
use skilld_proto::v1::skill_service_server::SkillServiceServer;
use skilld_proto::v1::workspace_service_server::WorkspaceServiceServer;
use tokio::sync::{Notify, Semaphore, watch};
use tonic::service::Routes;
use tonic_health::pb::health_server::HealthServer;
use tonic_health::server::{HealthReporter, HealthService};

use crate::artifacts::Artifacts;
use crate::collect::exit::OnExit;
use crate::config::Config;
use crate::engine::{Engine, EngineInfo};
use crate::error::{Error, Result};
use crate::fetch::Fetcher;
use crate::inputs::Inputs;
use crate::rpc::admin::Admin;
use crate::rpc::artifact::ArtifactsRpc;
use crate::rpc::budget::Budget;
use crate::rpc::exec::Execs;
use crate::rpc::file::Files;
use crate::rpc::server::Server;
use crate::rpc::skill::SkillsRpc;
use crate::rpc::workspace::Workspaces;
use crate::rpc::{Services, Shared};
use crate::shutdown::Tasks;
use crate::skills::Skills;
use crate::workspace::directory::Numbers;
use crate::workspace::registry::Registry;
use crate::workspace::slot::Context;

/// Starts skills and pools; takes over or removes what earlier runs left.
pub(super) async fn boot(
    config: &Arc<Config>,
    engine: Arc<dyn Engine>,
    info: EngineInfo,
    tasks: &Tasks,
    instance: &str,
) -> Result<Services> {
    let skills = Skills::open(&config.skills, &config.state_dir, tasks.clone())?;
    skills.warm();
    let patience = config.server.upload_timeout;
    let artifacts = Artifacts::open(&config.artifacts, &config.state_dir, patience, tasks).await?;
    let private = config.files.input_private_addresses;
    let fetcher = Fetcher::new(&config.fetch, private, tasks.clone());
    let inputs = Inputs::new(config, artifacts.clone(), fetcher, tasks.clone());
    let numbers = Numbers::new(
        config.engine.uid_base,
        config.engine.uid_count,
        config.engine.uid_quarantine,
        first_number(),
    );
    let context = Context {
        config: Arc::clone(config),
        engine: Arc::clone(&engine),
        info: info.clone(),
        tasks: tasks.clone(),
        instance: instance.to_owned(),
        numbers: Mutex::new(numbers),
        directory: Arc::default(),
        boots: Semaphore::new(config.engine.boots_max),
        inventories: Default::default(),
        reconcile: Default::default(),
        removals: Default::default(),
    };
    let registry = Registry::boot(Arc::new(context)).await?;
    let timeout = config.files.collect_on_exit_timeout;
    let on_exit = OnExit::new(artifacts.clone(), tasks.clone(), timeout);
    for workspace in registry.list_after(None) {
        on_exit.resume(workspace);
    }
    Ok(Services {
        config: Arc::clone(config),
        engine,
        info,
        tasks: tasks.clone(),
        instance: instance.to_owned(),
        registry,
        relays: Budget::new(config.server.relay_bytes_max),
        skills,
        artifacts,
        on_exit,
        inputs,
        publishes: Arc::new(Semaphore::new(config.skills.publishes_max)),
        sweep: Notify::new(),
        start_time: SystemTime::now(),
    })
}

/// Every service with the configured limits, health, and reflection of both versions if it is switched on.
pub(super) fn routes(
    shared: Shared,
    available: watch::Receiver<bool>,
    reporter: HealthReporter,
) -> Result<Routes> {
    let bytes = shared.config.server.message_bytes_max;
    let reflection = shared.config.server.reflection;
    let server = Server {
        shared: Arc::clone(&shared),
        available,
    };
    let (workspaces, execs) = (Workspaces(Arc::clone(&shared)), Execs(Arc::clone(&shared)));
    // Each has both limits: what tonic sends is unlimited by default.
    let workspaces = WorkspaceServiceServer::new(workspaces)
        .max_decoding_message_size(bytes)
        .max_encoding_message_size(bytes);
    let execs = ExecServiceServer::new(execs)
        .max_decoding_message_size(bytes)
        .max_encoding_message_size(bytes);
    let files = FileServiceServer::new(Files(Arc::clone(&shared)))
        .max_decoding_message_size(bytes)
        .max_encoding_message_size(bytes);
    let skills = SkillServiceServer::new(SkillsRpc(Arc::clone(&shared)))
        .max_decoding_message_size(bytes)
        .max_encoding_message_size(bytes);
    let artifacts = ArtifactServiceServer::new(ArtifactsRpc(Arc::clone(&shared)))
        .max_decoding_message_size(bytes)
        .max_encoding_message_size(bytes);
    let server = ServerServiceServer::new(server)
        .max_decoding_message_size(bytes)
        .max_encoding_message_size(bytes);
    let admin = AdminServiceServer::new(Admin(shared))
        .max_decoding_message_size(bytes)
        .max_encoding_message_size(bytes);
    let health = HealthServer::new(HealthService::from_health_reporter(reporter));
    let routes = Routes::new(workspaces)
        .add_service(execs)
        .add_service(files)
        .add_service(skills)
        .add_service(artifacts)
        .add_service(server)
        .add_service(admin)
        .add_service(health);
    if reflection {
        with_reflection(routes)
    } else {
        Ok(routes)
    }
}

fn with_reflection(routes: Routes) -> Result<Routes> {
    let builder = || {
        tonic_reflection::server::Builder::configure()
            .register_encoded_file_descriptor_set(FILE_DESCRIPTOR_SET)
            .register_encoded_file_descriptor_set(tonic_health::pb::FILE_DESCRIPTOR_SET)
    };
    let failed = |error| Error::Internal(format!("reflection: {error}"));
    let v1 = builder().build_v1().map_err(failed)?;
    let v1alpha = builder().build_v1alpha().map_err(failed)?;
    Ok(routes.add_service(v1).add_service(v1alpha))
}

/// Where slot numbers begin. What rests is not remembered over a restart, so a start begins where earlier ones have
/// not been: numbers advance with the clock, by eight a second, which is more than Docker starts containers.
fn first_number() -> u32 {
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
    let steps = now.unwrap_or_default().as_secs().wrapping_mul(8);
    u32::try_from(steps % (1 << 31)).unwrap_or_default()
}
