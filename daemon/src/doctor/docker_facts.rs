//! Facts about Docker: whether its socket can be used, its report, and the images of the pools. Every wait is bounded, and
//! nothing is created or pulled.

use std::collections::BTreeMap;
use std::io::ErrorKind;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::Path;
use std::time::Duration;

use futures::future::join_all;
use tokio::net::UnixStream;

use crate::config::{Config, WorkspaceStorage};
use crate::engine::docker::{DockerEngine, DockerReport};
use crate::engine::workspace_disk::find_host_fault;
use crate::engine::{Engine, ImageInfo};
use crate::error::{Chain, Error};

/// Longest wait for one answer of Docker, also if `engine.timeout` is longer.
const CALL_TIMEOUT: Duration = Duration::from_secs(10);

/// Outcome of connecting to Docker's socket.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum SocketAccess {
    /// A process accepted the connection.
    Connected,
    /// The path does not exist.
    Missing,
    /// The path is another kind of file.
    NotASocket,
    /// No process listens.
    Refused,
    /// This user has no permission.
    Denied,
    /// Other failure, with its reason.
    Failed(String),
}

/// State of one image.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum ImageState {
    /// Docker has the image, and containers can be made from it.
    Usable {
        /// Size in bytes.
        size_bytes: u64,
    },
    /// Docker does not have the image.
    Missing,
    /// Containers can't be made from the image; the reason says what to do.
    Unusable(String),
    /// Docker did not answer the question.
    Unknown(String),
}

/// Facts about Docker.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct DockerFacts {
    /// Path of the socket.
    pub(super) socket: String,
    /// Permission bits of the socket; `None` if they can't be read.
    pub(super) mode: Option<u32>,
    /// Outcome of connecting.
    pub(super) access: SocketAccess,
    /// Docker's report, or the reason why there is none.
    pub(super) report: Result<DockerReport, String>,
    /// State of each image that a pool names; empty without a report.
    pub(super) images: BTreeMap<String, ImageState>,
    /// Paths of registered OCI runtimes that do not exist on this host.
    pub(super) missing_runtimes: Vec<String>,
    /// Reason for which this host can't have workspaces on disk, with its remedy; `None` if it can, or if no pool wants
    /// them.
    pub(super) disk_fault: Option<String>,
}

/// Asks Docker, with a deadline for each answer.
pub(super) async fn read_docker_facts(config: &Config) -> DockerFacts {
    let docker_host = &config.engine.docker_host;
    let socket = docker_host.strip_prefix("unix://").unwrap_or(docker_host);
    let timeout = config.engine.timeout.min(CALL_TIMEOUT);
    let mut facts = DockerFacts {
        socket: socket.to_owned(),
        mode: None,
        access: SocketAccess::Connected,
        report: Err("not asked".to_owned()),
        images: BTreeMap::new(),
        missing_runtimes: Vec::new(),
        disk_fault: None,
    };
    let found = tokio::time::timeout(timeout, tokio::fs::metadata(socket)).await;
    if let Ok(Ok(found)) = found {
        facts.mode = Some(found.mode() & 0o7777);
        if !found.file_type().is_socket() {
            facts.access = SocketAccess::NotASocket;
            return facts;
        }
    }
    facts.access = connect(Path::new(socket), timeout).await;
    if facts.access != SocketAccess::Connected {
        return facts;
    }
    let asked = async {
        let engine = DockerEngine::without_checks(docker_host, timeout)?;
        let report = engine.report().await?;
        Ok::<_, Error>((engine, report))
    };
    match asked.await {
        Ok((engine, report)) => {
            let paths = report.runtime_paths.values();
            for path in paths.filter(|path| path.starts_with('/')) {
                let exists = tokio::time::timeout(timeout, tokio::fs::try_exists(path)).await;
                if matches!(exists, Ok(Ok(false))) {
                    facts.missing_runtimes.push(path.clone());
                }
            }
            let mut pools = config.pools.iter();
            if pools.any(|pool| pool.storage == WorkspaceStorage::Disk) {
                facts.disk_fault = find_host_fault(&report.info);
            }
            facts.report = Ok(report);
            facts.images = find_images(&engine, config).await;
        }
        Err(error) => facts.report = Err(Chain(&error).to_string()),
    }
    facts
}

async fn connect(socket: &Path, timeout: Duration) -> SocketAccess {
    let connected = tokio::time::timeout(timeout, UnixStream::connect(socket)).await;
    let error = match connected {
        Ok(Ok(_)) => return SocketAccess::Connected,
        Ok(Err(error)) => error,
        Err(_) => return SocketAccess::Failed(format!("no connection within {timeout:?}")),
    };
    if error.kind() == ErrorKind::NotFound {
        SocketAccess::Missing
    } else if error.kind() == ErrorKind::ConnectionRefused {
        SocketAccess::Refused
    } else if error.kind() == ErrorKind::PermissionDenied {
        SocketAccess::Denied
    } else {
        SocketAccess::Failed(error.to_string())
    }
}

async fn find_images(engine: &DockerEngine, config: &Config) -> BTreeMap<String, ImageState> {
    let mut names: Vec<&String> = config.pools.iter().map(|pool| &pool.image).collect();
    names.sort_unstable();
    names.dedup();
    let found = names.into_iter().map(async |name| {
        let state = image_state(engine.check_image(name).await);
        (name.clone(), state)
    });
    join_all(found).await.into_iter().collect()
}

fn image_state(checked: Result<ImageInfo, Error>) -> ImageState {
    match checked {
        Ok(image) => ImageState::Usable {
            size_bytes: image.size_bytes,
        },
        Err(Error::ImageMissing { .. }) => ImageState::Missing,
        Err(Error::Image { why, .. }) => ImageState::Unusable(why),
        Err(error) => ImageState::Unknown(Chain(&error).to_string()),
    }
}
