//! Builds one environment: a container of the skill's image in which uv and npm install packages, and the archive that it returns.
//!
//! The container has no network. If an index is configured, the daemon serves a proxy with an allow-list on a socket in
//! the slot's `run/`, and that is the only way out. Nothing of the container is trusted: its archive is bounded and
//! unpacked like one of a stranger.

use std::collections::BTreeMap;
use std::io::Seek;
use std::path::Path;
use std::sync::Arc;

use bytes::Bytes;
use futures::stream;
use skilld_proto::v1 as pb;
use skilld_proto::v1::exec_result::{Outcome, Reason};
use skilld_proto::v1::stage_files_header::Kind;
use tokio::sync::broadcast;
use tokio_util::sync::CancellationToken;

use super::{BuildEvent, EnvironmentBuilder, EnvironmentRequest};
use crate::config::PoolConfig;
use crate::config::environments::{EnvironmentOptions, PackageIndex};
use crate::error::{Error, Result};
use crate::fetch::{IndexProxy, IndexProxyOptions, IndexProxyReport};
use crate::guest::bind_container_socket;
use crate::skills::ArchiveBounds;
use crate::skills::environments::environment_record::EnvironmentRecord;
use crate::workspace::internal_pool::{CommandEnd, InternalCommand, InternalPool, InternalSlot};
use crate::workspace_paths;

/// Program that builds an environment in its container.
const SCRIPT: &str = include_str!("build_environment.py");
/// Folder of what the build reads, relative to the workspace.
const SOURCE: &str = "work/build";
/// File name of the proxy's socket in the slot's `run/`.
const PROXY_SOCKET: &str = "index.sock";
/// Exit status of the script if the need cannot be met, whatever is tried again.
const NEED_STATUS: i32 = 3;
/// Maximum number of connections of a build through its proxy. uv opens 50 at most.
const CONNECTIONS_MAX: usize = 64;
/// Maximum number of files and directories of an environment. The packages of the office image have 60,000.
const ENTRIES_MAX: u64 = 200_000;
/// Maximum number of names in a path of an environment.
const DEPTH_MAX: usize = 64;
/// Number of bytes of the end of a build's messages that a failure quotes from.
const STDERR_TAIL_BYTES: usize = 8 << 10;
/// Maximum size in bytes of what one message carries to a container.
const CHUNK_BYTES: usize = 1 << 20;

/// Failure of a build.
#[derive(Debug)]
pub(super) enum BuildFailure {
    /// The need cannot be met: another try fails as well. The text says why.
    Need(String),
    /// The host or the engine failed: another try may succeed.
    Passing(Error),
}

impl From<Error> for BuildFailure {
    fn from(error: Error) -> Self {
        Self::Passing(error)
    }
}

/// Builds an environment and installs it in the store.
pub(super) async fn run_build(
    builder: &EnvironmentBuilder,
    request: &EnvironmentRequest,
    events: &broadcast::Sender<BuildEvent>,
) -> Result<Arc<EnvironmentRecord>, BuildFailure> {
    let context = &builder.context;
    let options = &context.config.skills.environments;
    let image = request.image.clone();
    let name = uuid::Uuid::new_v4().simple().to_string();
    send_line(
        events,
        &format!("starting a container of {}", image.reference),
    );
    let template = build_pool(request.pool.config(), options);
    let pool = InternalPool::start(context, &name, image.clone(), &template).await;
    let slot = pool.take_slot().await?;
    stage_need(&slot, request).await?;

    let store = Arc::clone(&builder.store);
    let upload = context
        .tasks
        .blocking(move || store.create_upload().map_err(Error::from))
        .await?;
    let mut archive = tokio::fs::File::from_std(upload);
    let run_dir = context.slot_dir(slot.number()).join("run");
    let proxy = start_proxy(builder, &run_dir)?;
    let command = build_command(&name, options, proxy.is_some());
    let mut lines = LineSplitter::default();
    let on_stderr = |piece: &[u8]| lines.push(piece, |line| send_line(events, line));
    let ended = slot.run(command, &mut archive, on_stderr).await;
    let refused = match proxy {
        Some(proxy) => proxy.finish().await,
        None => Vec::new(),
    };
    check_end(&ended?, options, &refused)?;
    drop(slot);

    send_line(events, "unpacking the packages");
    let mut archive = archive.into_std().await;
    let bounds = ArchiveBounds {
        bytes: options.build_disk_bytes,
        file_bytes: options.build_disk_bytes,
        entries: ENTRIES_MAX,
        depth: DEPTH_MAX,
        ratio: 1,
    };
    let (store, need) = (Arc::clone(&builder.store), request.need.digest());
    let install = move || {
        archive.rewind().map_err(|source| Error::Io {
            operation: "read the archive of a build".to_owned(),
            source,
        })?;
        Ok(store.install(&mut archive, &name, &need, &image.id, &bounds)?)
    };
    Ok(context.tasks.blocking(install).await?)
}

/// Returns the configuration of a build's container: the pool's, with the limits of builds.
fn build_pool(pool: &PoolConfig, options: &EnvironmentOptions) -> PoolConfig {
    PoolConfig {
        max: 1,
        memory_bytes: options.build_memory_bytes,
        disk_bytes: options.build_disk_bytes,
        inodes: ENTRIES_MAX,
        warm_up: Vec::new(),
        ..pool.clone()
    }
}

/// Writes what the build reads into its container.
async fn stage_need(slot: &InternalSlot, request: &EnvironmentRequest) -> Result<()> {
    let need = &request.need;
    let requirements = need.requirements.join("\n");
    for (name, content) in [
        ("requirements.txt", requirements.as_bytes()),
        ("package.json", &need.package_json),
        ("package-lock.json", &need.package_lock),
    ] {
        if content.is_empty() {
            continue;
        }
        let header = pb::StageFilesHeader {
            path: format!("{SOURCE}/{name}"),
            kind: Kind::File.into(),
            ..pb::StageFilesHeader::default()
        };
        let chunks = content.chunks(CHUNK_BYTES).map(Bytes::copy_from_slice);
        let chunks: Vec<Bytes> = chunks.collect();
        slot.stage_files(header, stream::iter(chunks)).await?;
    }
    Ok(())
}

/// Returns the command that builds an environment.
fn build_command(name: &str, options: &EnvironmentOptions, has_proxy: bool) -> InternalCommand {
    let text = |index: &Option<PackageIndex>| {
        let url = index.as_ref().map(|index| index.url.as_str());
        url.unwrap_or_default().to_owned()
    };
    let wheelhouse = options.usable_wheelhouse();
    let settings = serde_json::json!({
        "name": name,
        "source": format!("{}/{SOURCE}", workspace_paths::WORKSPACE_DIR),
        "index_url": text(&options.package_index),
        "node_index_url": text(&options.node_package_index),
        "proxy_socket": has_proxy.then(|| format!("/run/skilld/{PROXY_SOCKET}")),
        "wheelhouse": wheelhouse.map(|_| workspace_paths::WHEELHOUSE_DIR),
        "source_builds": options.source_builds,
    });
    InternalCommand {
        argv: ["python3", "-I", "-c", SCRIPT, &settings.to_string()]
            .map(str::to_owned)
            .to_vec(),
        env: BTreeMap::new(),
        cwd: String::new(),
        stdin: None,
        timeout: options.build_timeout,
        output_bytes_max: options.build_disk_bytes,
        stderr_tail_bytes: STDERR_TAIL_BYTES,
    }
}

/// Proxy of one build, and the task that serves it.
struct RunningProxy {
    stop: CancellationToken,
    report: tokio::task::JoinHandle<IndexProxyReport>,
}

impl RunningProxy {
    /// Ends the proxy and returns the hosts that the build asked for and may not reach.
    async fn finish(self) -> Vec<String> {
        self.stop.cancel();
        let report = self.report.await;
        report.map_or_else(
            |_| Vec::new(),
            |report| report.refused_hosts.into_iter().collect(),
        )
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
    let stop = CancellationToken::new();
    let report = builder
        .context
        .tasks
        .spawn(proxy.serve(listener, stop.clone()));
    Ok(Some(RunningProxy { stop, report }))
}

/// Checks how the build's command ended.
fn check_end(
    end: &CommandEnd,
    options: &EnvironmentOptions,
    refused_hosts: &[String],
) -> Result<(), BuildFailure> {
    if end.is_success() {
        return Ok(());
    }
    let tail = String::from_utf8_lossy(&end.stderr_tail);
    let last = tail.lines().rev().find(|line| !line.trim().is_empty());
    let last = last.unwrap_or("it wrote no message").trim();
    let mut why = match (end.result.reason(), &end.result.outcome) {
        (Reason::Timeout, _) => format!(
            "the build took longer than {:?} (skills.build_timeout)",
            options.build_timeout
        ),
        (_, Some(Outcome::ExitCode(NEED_STATUS))) => last.to_owned(),
        (_, Some(Outcome::ExitCode(127))) => "the image has no python3".to_owned(),
        _ if end.result.oom_kills > 0 => {
            "the build ran out of memory (skills.build_memory)".to_owned()
        }
        _ => format!("the build failed: {last}"),
    };
    if !refused_hosts.is_empty() {
        let hosts = refused_hosts.join(", ");
        why += &format!("; it asked for hosts that skills.package_hosts does not list: {hosts}");
    }
    Err(BuildFailure::Need(why))
}

fn send_line(events: &broadcast::Sender<BuildEvent>, line: &str) {
    if events.send(BuildEvent::Line(line.to_owned())).is_err() {
        tracing::trace!(line, "no caller follows the build");
    }
}

/// Splits the messages of a build into lines.
#[derive(Default)]
struct LineSplitter {
    /// Beginning of a line whose end has not come yet.
    rest: Vec<u8>,
}

impl LineSplitter {
    /// Maximum length of a line in bytes; a longer one is sent in parts.
    const LINE_BYTES_MAX: usize = 4096;

    fn push(&mut self, piece: &[u8], mut send: impl FnMut(&str)) {
        for part in piece.split_inclusive(|byte| *byte == b'\n') {
            self.rest.extend_from_slice(part);
            if part.ends_with(b"\n") || self.rest.len() > Self::LINE_BYTES_MAX {
                let line = String::from_utf8_lossy(&self.rest);
                send(line.trim_end());
                self.rest.clear();
            }
        }
    }
}
