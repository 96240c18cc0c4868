//! Builds one environment in a container of the skill's image. In it uv and npm install packages, and the daemon
//! unpacks the archive that it returns.
//!
//! The container has no network. If an index is configured, the daemon serves a proxy with an allow-list on a socket in
//! the slot's `run/`, and that is the only way out. The daemon trusts nothing of the container: it bounds the archive and
//! unpacks it like an archive that a client uploads.

use std::collections::{BTreeMap, BTreeSet};
use std::io::Seek;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use bytes::Bytes;
use futures::stream;
use skilld_proto::v1::{self as pb, StageFormat};
use tokio::sync::broadcast;
use tokio_util::sync::{CancellationToken, DropGuard};

use super::build_failure::{BuildFailure, check_end};
use super::environment_cleanup::environments_in_use;
use super::line_splitter::LineSplitter;
use super::{BuildEvent, EnvironmentBuilder, EnvironmentRequest};
use crate::config::environments::{EnvironmentOptions, PackageIndex};
use crate::config::{PoolConfig, WorkspaceStorage};
use crate::error::{Error, Result};
use crate::fetch::{IndexProxy, IndexProxyOptions};
use crate::guest::bind_container_socket;
use crate::skills::environments::environment_record::{EnvironmentKey, EnvironmentRecord};
use crate::skills::{ArchiveBounds, EnvironmentNeed};
use crate::workspace::internal_pool::{InternalCommand, InternalPool, InternalSlot};
use crate::workspace_paths;

/// Program that builds an environment in its container.
const BUILD_SCRIPT: &str = concat!(
    include_str!("redirect_wheels.py"),
    include_str!("inferred_packages.py"),
    include_str!("build_node_packages.py"),
    include_str!("build_environment.py")
);
/// Folder of what the build reads, relative to the workspace.
const SOURCE_DIR: &str = "work/build";
/// File name of the proxy's socket in the slot's `run/`.
const PROXY_SOCKET: &str = "index.sock";
/// Maximum number of connections of a build through its proxy. uv opens 50 at most.
const CONNECTIONS_MAX: usize = 64;
/// Maximum number of files and directories of an environment. The packages of the office image have 60,000.
const ENTRIES_MAX: u64 = 200_000;
/// Maximum number of names in a path of an environment.
const DEPTH_MAX: usize = 64;
/// Size in bytes by which the output of a build may exceed what the files of its archive count: room for the zeros at
/// the end of the tar (up to 10 KiB), and for its messages, so that a failure is reported as itself.
const OUTPUT_OVERHEAD_BYTES: u64 = 1 << 20;
/// Number of bytes of the end of a build's messages that a failure quotes from.
const STDERR_TAIL_BYTES: usize = 8 << 10;
/// Maximum size in bytes of what one message carries to a container.
const CHUNK_BYTES: usize = 1 << 20;

/// Builds an environment and installs it in the store. Its report has the note as a warning, unless that is empty.
pub(super) async fn run_build(
    builder: &EnvironmentBuilder,
    key: &EnvironmentKey,
    (request, note): (&EnvironmentRequest, &str),
    events: &broadcast::Sender<BuildEvent>,
) -> Result<Arc<EnvironmentRecord>, BuildFailure> {
    let context = &builder.context;
    let options = &context.config.skills.environments;
    let config = Arc::clone(&context.config);
    let read = move || Ok(read_operator_files(&config.skills.environments));
    let authorities = context.tasks.blocking(read).await??;
    let image = request.image.clone();
    let name = uuid::Uuid::new_v4().simple().to_string();
    send_line(
        events,
        &format!("starting a container of {}", image.reference),
    );
    let template = build_pool(&request.pool.config, options);
    let pool = InternalPool::start(context, &name, image, &template).await;
    let slot = pool.take_slot().await?;
    stage_need(&slot, request, &authorities).await?;

    let store = Arc::clone(&builder.store);
    let upload = context
        .tasks
        .blocking(move || store.create_upload().map_err(Error::from))
        .await?;
    let mut output = tokio::fs::File::from_std(upload);
    let run_dir = context.slot_dir(slot.number()).join("run");
    let proxy = start_proxy(builder, &run_dir)?;
    let bytes_quota = builder.bytes_quota(&request.tenant);
    let command = build_command(
        (&name, &request.need, note),
        options,
        proxy.is_some(),
        bytes_quota,
    );
    let mut lines = LineSplitter::new(|line| send_line(events, line));
    let ended = slot
        .run(command, &mut output, |piece| lines.push(piece))
        .await;
    lines.finish();
    let refusals = match proxy {
        Some(proxy) => proxy.finish().await,
        None => BTreeSet::new(),
    };
    check_end(&ended?, options, &refusals)?;
    // Unpacking needs no container, so its memory is free from here on.
    drop(slot);

    send_line(events, "unpacking the packages");
    let mut archive = output.into_std().await;
    let bounds = ArchiveBounds {
        bytes: options.build_disk_bytes,
        file_bytes: options.build_disk_bytes,
        entries: ENTRIES_MAX,
        depth: DEPTH_MAX,
        ratio: 1,
    };
    let (store, key, context) = (Arc::clone(&builder.store), key.clone(), Arc::clone(context));
    let install = move || {
        archive
            .rewind()
            .map_err(|source| Error::io("read the archive of a build", source))?;
        let in_use = || environments_in_use(&context);
        let names = (name.as_str(), &key);
        Ok(store.install(&mut archive, names, &bounds, bytes_quota, &in_use)?)
    };
    Ok(builder.context.tasks.blocking(install).await?)
}

/// Checks the operator's files that a build reads, and returns the certificate authorities. Blocks.
fn read_operator_files(options: &EnvironmentOptions) -> Result<Vec<u8>, BuildFailure> {
    // Without the operator's wheels, a package of theirs would come from the index, where anybody may have registered
    // its name.
    if let Some(fault) = options.wheelhouse_fault() {
        let reason = format!("skills.wheelhouse: {fault}");
        return Err(BuildFailure::Transient(reason));
    }
    options
        .read_authorities()
        .map_err(|fault| BuildFailure::Transient(format!("skills.package_ca_file: {fault}")))
}

/// Returns the configuration of a build's container: the pool's, with the limits of builds.
fn build_pool(pool: &PoolConfig, options: &EnvironmentOptions) -> PoolConfig {
    PoolConfig {
        max: 1,
        memory_bytes: options.build_memory_bytes(),
        storage: WorkspaceStorage::Tmpfs,
        disk_bytes: options.build_disk_bytes,
        inodes: ENTRIES_MAX,
        warm_up: Vec::new(),
        fonts: None,
        ..pool.clone()
    }
}

/// Returns a file that the build reads unless it is empty.
fn present(path: PathBuf, content: &[u8]) -> Option<(PathBuf, &[u8])> {
    (!content.is_empty()).then_some((path, content))
}

/// Writes what the build reads into its container.
async fn stage_need(
    slot: &InternalSlot,
    request: &EnvironmentRequest,
    authorities: &[u8],
) -> Result<()> {
    let need = &request.need;
    let requirements = need.requirements.join("\n");
    let mut files = Vec::new();
    for (number, project) in need.node_projects.iter().enumerate() {
        let root = Path::new("node").join(number.to_string());
        let folder = root.join(&project.folder);
        let local = project.local_files.iter();
        files.extend(local.map(|(path, content)| (root.join(path), content.as_slice())));
        // After the files of the skill's own packages, which may have the same names.
        files.push((folder.join("package.json"), &project.package_json));
        files.extend(present(folder.join("package-lock.json"), &project.lock));
    }
    files.extend(present("requirements.txt".into(), requirements.as_bytes()));
    files.extend(present("authorities.pem".into(), authorities));
    for (path, content) in files {
        let header = pb::StageFilesHeader {
            path: format!("{SOURCE_DIR}/{}", path.display()),
            format: StageFormat::File.into(),
            ..pb::StageFilesHeader::default()
        };
        let chunks: Vec<Bytes> = content
            .chunks(CHUNK_BYTES)
            .map(Bytes::copy_from_slice)
            .collect();
        slot.stage_files(header, stream::iter(chunks)).await?;
    }
    Ok(())
}

/// Returns the names of the Node.js packages that were inferred for a folder of a skill: those that only the whole need
/// has, as optional ones of the root.
fn inferred_node_packages(need: &EnvironmentNeed, folder: &str) -> BTreeSet<String> {
    let optional = |need: &EnvironmentNeed| -> BTreeSet<String> {
        let root = need.node_projects.first();
        let package = root
            .and_then(|root| serde_json::from_slice::<serde_json::Value>(&root.package_json).ok());
        let names = package.as_ref().and_then(|package| {
            let table = package.get("optionalDependencies")?.as_object()?;
            Some(table.keys().cloned().collect())
        });
        names.unwrap_or_default()
    };
    match &need.certain {
        Some(certain) if folder.is_empty() => &optional(need) - &optional(certain),
        Some(_) | None => BTreeSet::new(),
    }
}

/// Returns the command that builds an environment, whose archive fits into what its tenant may hold.
fn build_command(
    (name, need, note): (&str, &EnvironmentNeed, &str),
    options: &EnvironmentOptions,
    has_proxy: bool,
    bytes_quota: Option<u64>,
) -> InternalCommand {
    let quota = bytes_quota.unwrap_or(u64::MAX);
    let output_max = quota.saturating_add(OUTPUT_OVERHEAD_BYTES);
    let text = |index: &Option<PackageIndex>| {
        let url = index.as_ref().map(|index| index.url.as_str());
        url.unwrap_or_default().to_owned()
    };
    let wheelhouse = options.wheelhouse.as_ref();
    let projects = need.node_projects.iter();
    let projects: Vec<_> = projects
        .map(|project| {
            serde_json::json!({
                "folder": project.folder,
                "has_added": project.has_added,
                "inferred": inferred_node_packages(need, &project.folder),
            })
        })
        .collect();
    let inferred: BTreeMap<&str, &str> = need
        .inferred
        .iter()
        .map(|package| (package.requirement.as_str(), package.module.as_str()))
        .collect();
    let settings = serde_json::json!({
        "name": name,
        "source": format!("{}/{SOURCE_DIR}", workspace_paths::WORKSPACE_DIR),
        "node_projects": projects,
        "inferred": inferred,
        "note": note,
        "index_url": text(&options.package_index),
        "node_index_url": text(&options.node_package_index),
        "proxy_socket": has_proxy.then(|| format!("/run/skilld/{PROXY_SOCKET}")),
        "wheelhouse": wheelhouse.map(|_| workspace_paths::WHEELHOUSE_DIR),
        "source_builds": options.source_builds,
    });
    InternalCommand {
        argv: ["python3", "-I", "-c", BUILD_SCRIPT, &settings.to_string()]
            .map(str::to_owned)
            .to_vec(),
        env: BTreeMap::new(),
        cwd: String::new(),
        stdin: None,
        timeout: options.build_timeout,
        output_bytes_max: options.build_disk_bytes.min(output_max),
        stderr_tail_bytes: STDERR_TAIL_BYTES,
    }
}

/// Proxy of one build and the task that serves it. Dropping it ends the proxy.
struct RunningProxy {
    stop: DropGuard,
    serving: tokio::task::JoinHandle<BTreeSet<String>>,
}

impl RunningProxy {
    /// Ends the proxy and returns the reasons for which it refused requests.
    async fn finish(self) -> BTreeSet<String> {
        drop(self.stop);
        self.serving.await.unwrap_or_default()
    }
}

/// Serves the proxy of a build in the `run/` of its slot; `None` if no index is configured.
fn start_proxy(builder: &EnvironmentBuilder, run_dir: &Path) -> Result<Option<RunningProxy>> {
    let options = &builder.context.config.skills.environments;
    let hosts = options.allowed_hosts();
    if hosts.is_empty() {
        return Ok(None);
    }
    let listener = bind_container_socket(run_dir, PROXY_SOCKET)?;
    let proxy = IndexProxy::new(
        IndexProxyOptions {
            hosts,
            connections_max: CONNECTIONS_MAX,
            // Packages are downloaded packed, so this is ample.
            bytes_max: options.build_disk_bytes,
        },
        builder.fetcher.clone(),
    );
    // The daemon's stop ends the proxy as well.
    let stop: CancellationToken = builder.context.tasks.stop.child_token();
    let serving = proxy.serve(listener, stop.clone());
    Ok(Some(RunningProxy {
        stop: stop.drop_guard(),
        serving: builder.context.tasks.spawn(serving),
    }))
}

pub(super) fn send_line(events: &broadcast::Sender<BuildEvent>, line: &str) {
    if events.send(BuildEvent::Line(line.to_owned())).is_err() {
        tracing::trace!(line, "no caller follows the build");
    }
}
