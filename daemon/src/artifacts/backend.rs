//! Object store of the artifacts: a directory, or a bucket of an S3-compatible server. Every request has a deadline. A
//! failure becomes an [`Error`] without details; the store's message goes to the log only.

use std::fmt;
use std::future::Future;
use std::io;
use std::path::{Path as FilePath, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures::stream::BoxStream;
use object_store::local::LocalFileSystem;
use object_store::multipart::MultipartStore;
use object_store::path::Path;
use object_store::{ObjectMeta, ObjectStore, ObjectStoreExt, PutMode, PutPayload};
use skilld_common::excerpts::cut_chars;
use skilld_proto::v1::ErrorReason;
use tokio::sync::watch;

use super::key;
use crate::access::{DAEMON_HOLDER, TenantPermits};
use crate::config::{ArtifactStorage, ArtifactsConfig};
use crate::error::{Chain, Error, HostFault, Result};
use crate::fetch::authority_advice;
use crate::shutdown::Tasks;

mod bucket;

/// Maximum size of a record in bytes; larger objects are never read as a whole.
pub(super) const SMALL_BYTES_MAX: u64 = 64 << 10;
/// Maximum number of requests to a directory at the same time; of one tenant, and of the daemon itself, at most half. A
/// request keeps its thread for as long as a file system hangs, even after its deadline.
const DISK_REQUESTS_MAX: usize = 32;

/// Maximum length of another server's answer in the error of a start, in characters.
const ANSWER_CHARS_MAX: usize = 300;
/// Operations of [`ArtifactBackend::probe`], whose errors are those of a start.
const PROBE: StoreOperation = invisible_operation("be opened");

const SEE_LOG: &str = "the server's log says why";
const DISK_FULL: &str = "its disk is full";
const DISK_READ_ONLY: &str = "its disk is read-only";
const TOO_MANY_REQUESTS: &str = "too many requests wait for it";
const UNKNOWN_AUTHORITY: &str =
    "the authority of its certificate is not known; its file belongs into skills.package_ca_file";

/// Object store of the artifacts, with the deadline of its requests and whether the last one was answered.
#[derive(Debug, Clone)]
pub(super) struct ArtifactBackend {
    pub(super) objects: Arc<dyn ObjectStore>,
    pub(super) kind: StoreKind,
    /// Prefix of all keys.
    pub(super) base: Path,
    pub(super) tasks: Tasks,
    timeout: Duration,
    disk_permits: TenantPermits,
    /// `true` if the store answered the last request.
    answers: watch::Sender<bool>,
}

/// Kind of storage behind the artifact store: a directory of the host or an S3 bucket.
#[derive(Clone)]
pub(super) enum StoreKind {
    /// Directory on the host; `own` if it is beneath the state directory, where no other daemon uses it.
    Directory { root: PathBuf, own: bool },
    /// Bucket of an S3-compatible server.
    Bucket(Arc<dyn MultipartStore>),
}

impl fmt::Debug for StoreKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Directory { root, own } => write!(f, "Directory({root:?}, own: {own})"),
            Self::Bucket(_) => f.write_str("Bucket"),
        }
    }
}

/// Outcome of creating an object that must not exist.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum CreateOutcome {
    New,
    /// The object exists, or another request is creating it.
    Taken,
}

/// Name of a request for errors, and whether a failed one may have had a visible effect.
#[derive(Debug, Clone, Copy)]
pub(super) struct StoreOperation {
    pub(super) name: &'static str,
    pub(super) changes: bool,
}

/// Creates an operation whose effect no client can see, even if it failed half-way.
pub(super) const fn invisible_operation(name: &'static str) -> StoreOperation {
    StoreOperation {
        name,
        changes: false,
    }
}

/// Creates an operation that may have taken effect although it failed.
pub(super) const fn visible_operation(name: &'static str) -> StoreOperation {
    StoreOperation {
        name,
        changes: true,
    }
}

// === impl ArtifactBackend ===

impl ArtifactBackend {
    /// Opens the configured store. `own` is the directory beneath the state directory. `fsync` is false only in tests.
    pub(super) async fn open(
        config: &ArtifactsConfig,
        own: PathBuf,
        fsync: bool,
        tasks: &Tasks,
    ) -> Result<Self> {
        let (objects, kind, base) = match &config.storage {
            ArtifactStorage::StateDir => open_directory_store(own, true, fsync, tasks).await?,
            ArtifactStorage::Directory(path) => {
                open_directory_store(path.clone(), false, fsync, tasks).await?
            }
            ArtifactStorage::Bucket { prefix, .. } => {
                let config = config.clone();
                let opened = tasks.blocking(move || bucket::open_bucket(&config));
                let bucket = Arc::new(opened.await?);
                let objects: Arc<dyn ObjectStore> = Arc::clone(&bucket) as _;
                (
                    objects,
                    StoreKind::Bucket(bucket),
                    Path::from(prefix.as_str()),
                )
            }
        };
        Ok(Self::over(objects, kind, base, config.timeout, tasks))
    }

    /// Creates a store over any implementation of [`ObjectStore`].
    pub(super) fn over(
        objects: Arc<dyn ObjectStore>,
        kind: StoreKind,
        base: Path,
        timeout: Duration,
        tasks: &Tasks,
    ) -> Self {
        Self {
            objects,
            kind,
            base,
            tasks: tasks.clone(),
            timeout,
            disk_permits: TenantPermits::new(DISK_REQUESTS_MAX, true),
            answers: watch::Sender::new(true),
        }
    }

    /// Returns a watch that is `true` if the store answered the last request.
    pub(super) fn answers(&self) -> watch::Receiver<bool> {
        self.answers.subscribe()
    }

    /// Runs one request within the deadline. Returns `None` if the object does not exist.
    pub(super) async fn request<T>(
        &self,
        operation: StoreOperation,
        request: impl Future<Output = object_store::Result<T>>,
    ) -> Result<Option<T>> {
        match tokio::time::timeout(self.timeout, request).await {
            Ok(Ok(value)) => {
                self.set_answering(true);
                Ok(Some(value))
            }
            Ok(Err(object_store::Error::NotFound { .. })) => {
                self.set_answering(true);
                Ok(None)
            }
            Ok(Err(error)) => Err(self.store_error(operation, &error)),
            Err(_) => Err(self.timeout_error(operation)),
        }
    }

    /// Runs one request for an object that must exist.
    pub(super) async fn request_existing<T>(
        &self,
        operation: StoreOperation,
        request: impl Future<Output = object_store::Result<T>>,
    ) -> Result<T> {
        let Some(value) = self.request(operation, request).await? else {
            tracing::warn!(
                operation = operation.name,
                "an object or bucket is not there"
            );
            return Err(storage_error(operation, "what should be there is not"));
        };
        Ok(value)
    }

    /// Runs blocking work on the files of a directory store, within the deadline, for a tenant or [`DAEMON_HOLDER`]. A
    /// missing root directory is an error and not an empty store: its file system may have been unmounted.
    pub(super) async fn run_on_disk<T: Send + 'static>(
        &self,
        operation: StoreOperation,
        tenant: &str,
        root: &FilePath,
        work: impl FnOnce() -> io::Result<T> + Send + 'static,
    ) -> Result<T> {
        let permit = tokio::select! {
            biased;
            permit = self.disk_permits.acquire(tenant) => permit,
            // The requests that have the permits find out whether the store answers.
            () = tokio::time::sleep(self.timeout) => {
                return Err(storage_error(operation, TOO_MANY_REQUESTS));
            }
            () = self.tasks.stop.cancelled() => return Err(Error::Draining),
        };
        let root = root.to_owned();
        let work = move || {
            let _permit = permit;
            Ok(std::fs::read_dir(&root).and_then(|_| work()))
        };
        let done = tokio::time::timeout(self.timeout, self.tasks.blocking(work))
            .await
            .map_err(|_| self.timeout_error(operation))??;
        let value = done.map_err(|error| self.disk_error(operation, &error))?;
        self.set_answering(true);
        Ok(value)
    }

    /// Logs an I/O error of the store and converts it.
    pub(super) fn disk_error(&self, operation: StoreOperation, error: &io::Error) -> Error {
        self.set_answering(false);
        tracing::warn!(operation = operation.name, %error, "artifact store failed");
        let shortage = HostFault::of(error).map(|fault| self.shortage_error(operation, fault));
        shortage.unwrap_or_else(|| storage_error(operation, SEE_LOG))
    }

    /// Error for a shortage of the host. Only a store beneath the state directory reports the state disk.
    fn shortage_error(&self, operation: StoreOperation, fault: HostFault) -> Error {
        let own = matches!(self.kind, StoreKind::Directory { own: true, .. });
        match fault {
            HostFault::DiskFull if !own => storage_error(operation, DISK_FULL),
            HostFault::DiskReadOnly if !own => storage_error(operation, DISK_READ_ONLY),
            HostFault::DiskFull | HostFault::DiskReadOnly | HostFault::TooManyFiles => {
                fault.error(operation.name)
            }
        }
    }

    /// Logs a failed request and converts its error.
    pub(super) fn store_error(
        &self,
        operation: StoreOperation,
        error: &object_store::Error,
    ) -> Error {
        self.set_answering(false);
        tracing::warn!(operation = operation.name, error = %Chain(error), "artifact store failed");
        if let Some(fault) = HostFault::of(error) {
            return self.shortage_error(operation, fault);
        }
        let refused = matches!(
            error,
            object_store::Error::PermissionDenied { .. }
                | object_store::Error::Unauthenticated { .. }
        );
        let why = if refused {
            "it refuses the server's credentials"
        } else if !authority_advice(&Chain(error).to_string()).is_empty() {
            UNKNOWN_AUTHORITY
        } else if operation.name == PROBE.name {
            // The readers of `skilld --check` have no log.
            let why = cut_chars(&Chain(error).to_string(), ANSWER_CHARS_MAX);
            return start_error(format!("{why}; see [artifacts] in the configuration"));
        } else {
            SEE_LOG
        };
        storage_error(operation, why)
    }

    /// Logs a request that exceeded its deadline and returns its error.
    pub(super) fn timeout_error(&self, operation: StoreOperation) -> Error {
        self.set_answering(false);
        tracing::warn!(operation = operation.name, "artifact store timed out");
        storage_error(operation, "it did not answer in time (artifacts.timeout)")
    }

    fn set_answering(&self, answers: bool) {
        let is_changed = self
            .answers
            .send_if_modified(|known| std::mem::replace(known, answers) != answers);
        if is_changed && answers {
            tracing::info!("the artifact store answers again");
        }
    }

    /// Reads a small object. Returns `None` if it does not exist, and `Some(None)` if it exceeds [`SMALL_BYTES_MAX`].
    pub(super) async fn read_object(
        &self,
        operation: StoreOperation,
        path: &Path,
    ) -> Result<Option<Option<Bytes>>> {
        let read = async {
            let object = self.objects.get(path).await?;
            if object.meta.size > SMALL_BYTES_MAX {
                return Ok(None);
            }
            object.bytes().await.map(Some)
        };
        self.request(operation, read).await
    }

    /// Writes a small object, replacing an existing one.
    pub(super) async fn write_object(
        &self,
        operation: StoreOperation,
        path: &Path,
        text: Vec<u8>,
    ) -> Result<()> {
        let put = self.objects.put(path, PutPayload::from(text));
        self.request_existing(operation, put).await.map(|_| ())
    }

    /// Writes a small object atomically, unless it exists.
    pub(super) async fn create_object(
        &self,
        operation: StoreOperation,
        path: &Path,
        text: Vec<u8>,
    ) -> Result<CreateOutcome> {
        let put = async {
            let payload = PutPayload::from(text);
            match self
                .objects
                .put_opts(path, payload, PutMode::Create.into())
                .await
            {
                Ok(_) => Ok(CreateOutcome::New),
                Err(object_store::Error::AlreadyExists { .. }) => Ok(CreateOutcome::Taken),
                Err(error) => Err(error),
            }
        };
        self.request_existing(operation, put).await
    }

    /// Removes an object. Succeeds if it does not exist.
    pub(super) async fn remove_object(&self, operation: StoreOperation, path: &Path) -> Result<()> {
        self.request(operation, self.objects.delete(path))
            .await
            .map(|_| ())
    }

    /// Lists the objects beneath a key and after another one, in the order of keys for a bucket.
    pub(super) fn list_objects(
        &self,
        beneath: &Path,
        after: Option<&Path>,
    ) -> BoxStream<'static, object_store::Result<ObjectMeta>> {
        match after {
            Some(after) => self.objects.list_with_offset(Some(beneath), after),
            None => self.objects.list(Some(beneath)),
        }
    }

    /// Sends a cheap request to find out whether the store answers.
    pub(super) async fn ping(&self) {
        let operation = invisible_operation("answer");
        // The requests update `answers` themselves.
        match &self.kind {
            StoreKind::Directory { root, .. } => {
                drop(
                    self.run_on_disk(operation, DAEMON_HOLDER, root, || Ok(()))
                        .await,
                );
            }
            StoreKind::Bucket(_) => {
                let absent = key::join_key(&key::join_key(&self.base, "probe"), "ping");
                drop(self.request(operation, self.objects.head(&absent)).await);
            }
        }
    }

    /// Checks at start that the store is writable and refuses to create an existing object. A full or read-only disk is no
    /// failure: what exists can be read, and on a full one deleted to make room.
    pub(super) async fn probe(&self) -> Result<()> {
        let id = uuid::Uuid::now_v7().simple().to_string();
        let path = key::join_key(&key::join_key(&self.base, "probe"), &id);
        let create = || self.create_object(PROBE, &path, b"{}".to_vec());
        let first = match create().await {
            Err(error) if is_disk_full(&error) || is_disk_read_only(&error) => {
                tracing::warn!(error = %Chain(&error), "nothing can be saved in the artifact store now");
                return Ok(());
            }
            first => first.map_err(unusable_store_error)?,
        };
        let second = create().await;
        self.remove_object(PROBE, &path)
            .await
            .map_err(unusable_store_error)?;
        if (first, second.map_err(unusable_store_error)?)
            == (CreateOutcome::New, CreateOutcome::Taken)
        {
            return Ok(());
        }
        let why = "it ignores If-None-Match on PUT, so saves at the same time would overwrite one another; use a server \
                   that honours it (Amazon S3, MinIO, Ceph, R2), or a directory (artifacts.url)";
        Err(start_error(why.to_owned()))
    }
}

fn storage_error(operation: StoreOperation, why: &'static str) -> Error {
    let StoreOperation { name, changes } = operation;
    if changes {
        Error::StorageUnsure {
            operation: name,
            why,
        }
    } else {
        Error::Storage {
            operation: name,
            why,
        }
    }
}

/// Returns `true` if the disk of a store of files had no space left for an operation.
pub(super) fn is_disk_full(error: &Error) -> bool {
    has_disk_fault(error, (DISK_FULL, ErrorReason::StateDiskFull))
}

/// Returns `true` if the disk of a store of files was read-only.
fn is_disk_read_only(error: &Error) -> bool {
    has_disk_fault(error, (DISK_READ_ONLY, ErrorReason::StateDiskReadOnly))
}

fn has_disk_fault(error: &Error, (fault, reason): (&str, ErrorReason)) -> bool {
    if let Error::Storage { why, .. } | Error::StorageUnsure { why, .. } = error {
        return *why == fault;
    }
    error.kind().1 == reason
}

fn unusable_store_error(error: Error) -> Error {
    if matches!(error, Error::Start { .. }) {
        return error;
    }
    start_error(format!("{error}; see [artifacts] in the configuration"))
}

async fn open_directory_store(
    root: PathBuf,
    own: bool,
    fsync: bool,
    tasks: &Tasks,
) -> Result<(Arc<dyn ObjectStore>, StoreKind, Path)> {
    let made = root.clone();
    let objects = tasks
        .blocking(move || {
            make_private(&made)?;
            LocalFileSystem::new_with_prefix(&made)
                .map_err(|error| start_error(format!("{}: {}", made.display(), Chain(&error))))
        })
        .await?
        .with_fsync(fsync)
        .with_automatic_cleanup(true);
    Ok((
        Arc::new(objects),
        StoreKind::Directory { root, own },
        Path::default(),
    ))
}

/// Creates a directory that only the daemon's user can enter, unless it exists.
fn make_private(path: &FilePath) -> Result<()> {
    use std::os::unix::fs::DirBuilderExt;
    let made = std::fs::DirBuilder::new()
        .recursive(true)
        .mode(0o700)
        .create(path);
    made.map_err(|error| start_error(format!("{}: {error}", path.display())))
}

pub(super) fn start_error(why: String) -> Error {
    Error::start("the artifact store", why)
}
