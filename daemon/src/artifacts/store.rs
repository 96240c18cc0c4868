//! The object store beneath: a directory, or a bucket of an S3-compatible server. Every request has a deadline, and what
//! goes wrong becomes an error of ours here; what the store said goes to the log and to nobody else.

use std::fmt;
use std::future::Future;
use std::io;
use std::path::{Path as FilePath, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures::stream::BoxStream;
use object_store::aws::{AmazonS3, AmazonS3Builder, AmazonS3ConfigKey, S3ConditionalPut};
use object_store::local::LocalFileSystem;
use object_store::multipart::MultipartStore;
use object_store::path::Path;
use object_store::{
    ClientOptions, ObjectMeta, ObjectStore, ObjectStoreExt, PutMode, PutPayload, RetryConfig,
};
use tokio::sync::{Semaphore, watch};

use super::key;
use crate::config::{ArtifactsConfig, ArtifactsPlace, Credentials};
use crate::error::{Chain, Error, HostFault, Result};
use crate::shutdown::Tasks;

/// Largest object that is read as a whole: a record.
pub(super) const SMALL_BYTES_MAX: u64 = 64 << 10;
/// Requests are repeated this often, and within `artifacts.timeout`.
const RETRIES_MAX: usize = 3;
/// Requests at once to a directory that we read ourselves. One whose file system hangs keeps a thread as long as it hangs,
/// whoever still waits for it.
const ON_DISK_MAX: usize = 16;

const SEE_LOG: &str = "the server's log says why";

/// Where artifacts are.
#[derive(Debug, Clone)]
pub(super) struct Store {
    pub(super) objects: Arc<dyn ObjectStore>,
    pub(super) kind: Kind,
    /// Before all keys.
    pub(super) base: Path,
    pub(super) tasks: Tasks,
    timeout: Duration,
    on_disk: Arc<Semaphore>,
    /// Whether the last request was answered.
    answers: watch::Sender<bool>,
}

/// What it is.
#[derive(Clone)]
pub(super) enum Kind {
    /// A directory; nobody else uses it if it is our own.
    Directory { root: PathBuf, own: bool },
    /// A bucket, or what behaves like one.
    Bucket(Arc<dyn MultipartStore>),
}

impl fmt::Debug for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Directory { root, own } => write!(f, "Directory({root:?}, own: {own})"),
            Self::Bucket(_) => f.write_str("Bucket"),
        }
    }
}

/// What became of an object that must not have been there before.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Created {
    New,
    /// Somebody has it, or is making it at this moment.
    Taken,
}

/// What is done to the store, and whether a failure leaves it as it was.
#[derive(Debug, Clone, Copy)]
pub(super) struct Operation {
    pub(super) name: &'static str,
    pub(super) changes: bool,
}

/// Something that nobody can see, even if it was done when it failed.
pub(super) const fn harmless(name: &'static str) -> Operation {
    Operation {
        name,
        changes: false,
    }
}

/// Something that may have been done when it failed.
pub(super) const fn changing(name: &'static str) -> Operation {
    Operation {
        name,
        changes: true,
    }
}

// === impl Store ===

impl Store {
    /// Opens it. `fsync` is for a directory: false only in tests.
    pub(super) async fn open(
        config: &ArtifactsConfig,
        own: PathBuf,
        fsync: bool,
        tasks: &Tasks,
    ) -> Result<Self> {
        let (objects, kind, base) = match &config.place {
            ArtifactsPlace::StateDir => directory(own, true, fsync, tasks).await?,
            ArtifactsPlace::Directory(path) => directory(path.clone(), false, fsync, tasks).await?,
            ArtifactsPlace::S3 { prefix, .. } => {
                let bucket = Arc::new(bucket(config)?);
                let objects: Arc<dyn ObjectStore> = Arc::clone(&bucket) as _;
                (objects, Kind::Bucket(bucket), Path::from(prefix.as_str()))
            }
        };
        Ok(Self::over(objects, kind, base, config.timeout, tasks))
    }

    /// Over objects of any kind.
    pub(super) fn over(
        objects: Arc<dyn ObjectStore>,
        kind: Kind,
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
            on_disk: Arc::new(Semaphore::new(ON_DISK_MAX)),
            answers: watch::Sender::new(true),
        }
    }

    /// Whether the last request was answered.
    pub(super) fn answers(&self) -> watch::Receiver<bool> {
        self.answers.subscribe()
    }

    /// Runs one request within the deadline. `None` means that the object is not there.
    pub(super) async fn ask<T>(
        &self,
        operation: Operation,
        request: impl Future<Output = object_store::Result<T>>,
    ) -> Result<Option<T>> {
        match tokio::time::timeout(self.timeout, request).await {
            Ok(Ok(value)) => {
                self.note(true);
                Ok(Some(value))
            }
            Ok(Err(object_store::Error::NotFound { .. })) => {
                self.note(true);
                Ok(None)
            }
            Ok(Err(error)) => Err(self.failed(operation, &error)),
            Err(_) => Err(self.late(operation)),
        }
    }

    /// The same for what must be there.
    pub(super) async fn must<T>(
        &self,
        operation: Operation,
        request: impl Future<Output = object_store::Result<T>>,
    ) -> Result<T> {
        let Some(value) = self.ask(operation, request).await? else {
            tracing::warn!(
                operation = operation.name,
                "an object or bucket is not there"
            );
            return Err(storage(operation, "what should be there is not"));
        };
        Ok(value)
    }

    /// Does something with the files of a directory, within the deadline. That the directory itself is not there, because
    /// somebody unmounted it, is a failure and not an empty store.
    pub(super) async fn on_disk<T: Send + 'static>(
        &self,
        operation: Operation,
        root: &FilePath,
        work: impl FnOnce() -> io::Result<T> + Send + 'static,
    ) -> Result<T> {
        let root = root.to_owned();
        let work = move || Ok(std::fs::read_dir(&root).and_then(|_| work()));
        let done = self.tasks.blocking_in(&self.on_disk, work);
        let done = tokio::time::timeout(self.timeout, done).await;
        let done = done.map_err(|_| self.late(operation))??;
        let value = done.map_err(|error| self.broken(operation, &error))?;
        self.note(true);
        Ok(value)
    }

    /// A file that fails, logged.
    pub(super) fn broken(&self, operation: Operation, error: &io::Error) -> Error {
        self.note(false);
        tracing::warn!(operation = operation.name, %error, "artifact store failed");
        let shortage = HostFault::of(error).map(|fault| self.short(operation, fault));
        shortage.unwrap_or_else(|| storage(operation, SEE_LOG))
    }

    /// A shortage: of the state directory, if artifacts are there, or of the disk that they were given.
    fn short(&self, operation: Operation, fault: HostFault) -> Error {
        let own = matches!(self.kind, Kind::Directory { own: true, .. });
        match fault {
            HostFault::DiskFull if !own => storage(operation, "its disk is full"),
            HostFault::DiskReadOnly if !own => storage(operation, "its disk is read-only"),
            HostFault::DiskFull | HostFault::DiskReadOnly | HostFault::TooManyFiles => {
                fault.error(operation.name)
            }
        }
    }

    /// A failure of the store, logged.
    pub(super) fn failed(&self, operation: Operation, error: &object_store::Error) -> Error {
        self.note(false);
        tracing::warn!(operation = operation.name, error = %Chain(error), "artifact store failed");
        if let Some(fault) = HostFault::of(error) {
            return self.short(operation, fault);
        }
        let refused = matches!(
            error,
            object_store::Error::PermissionDenied { .. }
                | object_store::Error::Unauthenticated { .. }
        );
        let why = if refused {
            "it refuses the server's credentials"
        } else {
            SEE_LOG
        };
        storage(operation, why)
    }

    /// A request that took too long.
    pub(super) fn late(&self, operation: Operation) -> Error {
        self.note(false);
        tracing::warn!(operation = operation.name, "artifact store timed out");
        storage(operation, "it did not answer in time (artifacts.timeout)")
    }

    fn note(&self, answers: bool) {
        let told = self.answers.send_if_modified(|known| {
            let news = *known != answers;
            *known = answers;
            news
        });
        if told && answers {
            tracing::info!("the artifact store answers again");
        }
    }

    /// A small object; `None` if it is not there, and `Some(None)` if it is larger than any that is written here.
    pub(super) async fn read(
        &self,
        operation: Operation,
        path: &Path,
    ) -> Result<Option<Option<Bytes>>> {
        let read = async {
            let object = self.objects.get(path).await?;
            if object.meta.size > SMALL_BYTES_MAX {
                return Ok(None);
            }
            object.bytes().await.map(Some)
        };
        self.ask(operation, read).await
    }

    /// Writes a small object, whatever was there.
    pub(super) async fn write(
        &self,
        operation: Operation,
        path: &Path,
        text: Vec<u8>,
    ) -> Result<()> {
        let put = self.objects.put(path, PutPayload::from(text));
        self.must(operation, put).await.map(|_| ())
    }

    /// Writes a small object if there is none. Nobody ever sees a part of it.
    pub(super) async fn create(
        &self,
        operation: Operation,
        path: &Path,
        text: Vec<u8>,
    ) -> Result<Created> {
        let put = async {
            let payload = PutPayload::from(text);
            match self
                .objects
                .put_opts(path, payload, PutMode::Create.into())
                .await
            {
                Ok(_) => Ok(Created::New),
                Err(object_store::Error::AlreadyExists { .. }) => Ok(Created::Taken),
                Err(error) => Err(error),
            }
        };
        self.must(operation, put).await
    }

    /// Removes an object; that it is not there is fine.
    pub(super) async fn remove(&self, operation: Operation, path: &Path) -> Result<()> {
        self.ask(operation, self.objects.delete(path))
            .await
            .map(|_| ())
    }

    /// What lies beneath a key, and after another one, in a bucket's order.
    pub(super) fn list(
        &self,
        beneath: &Path,
        after: Option<&Path>,
    ) -> BoxStream<'static, object_store::Result<ObjectMeta>> {
        match after {
            Some(after) => self.objects.list_with_offset(Some(beneath), after),
            None => self.objects.list(Some(beneath)),
        }
    }

    /// Asks for anything at all, to know whether the store answers.
    pub(super) async fn ping(&self) {
        let operation = harmless("answer");
        // What is wrong is noted on the way.
        match &self.kind {
            Kind::Directory { root, .. } => drop(self.on_disk(operation, root, || Ok(())).await),
            Kind::Bucket(_) => {
                let absent = key::join(&key::join(&self.base, "probe"), "ping");
                drop(self.ask(operation, self.objects.head(&absent)).await);
            }
        }
    }

    /// Checks at the start that the store can be written to, and that it lets nobody write what is there already.
    pub(super) async fn probe(&self) -> Result<()> {
        let id = uuid::Uuid::now_v7().simple().to_string();
        let path = key::join(&key::join(&self.base, "probe"), &id);
        let operation = harmless("be opened");
        let create = || self.create(operation, &path, b"{}".to_vec());
        let first = create().await.map_err(|error| unusable(&error))?;
        let second = create().await;
        self.remove(operation, &path)
            .await
            .map_err(|error| unusable(&error))?;
        if (first, second.map_err(|error| unusable(&error))?) == (Created::New, Created::Taken) {
            return Ok(());
        }
        Err(Error::Start {
            what: "the artifact store",
            why: "it ignores If-None-Match on PUT, so saves at the same time would overwrite one another; use a server that \
                  honours it (Amazon S3, MinIO, Ceph, R2), or a directory (artifacts.url)"
                .into(),
        })
    }
}

fn storage(operation: Operation, why: &'static str) -> Error {
    let Operation { name, changes } = operation;
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

fn unusable(error: &Error) -> Error {
    Error::Start {
        what: "the artifact store",
        why: format!("{error}; see [artifacts] in the configuration"),
    }
}

async fn directory(
    root: PathBuf,
    own: bool,
    fsync: bool,
    tasks: &Tasks,
) -> Result<(Arc<dyn ObjectStore>, Kind, Path)> {
    let made = root.clone();
    let objects = tasks.blocking(move || {
        make_private(&made)?;
        LocalFileSystem::new_with_prefix(&made).map_err(|error| Error::Start {
            what: "the artifact store",
            why: format!("{}: {}", made.display(), Chain(&error)),
        })
    });
    let objects = objects
        .await?
        .with_fsync(fsync)
        .with_automatic_cleanup(true);
    Ok((
        Arc::new(objects),
        Kind::Directory { root, own },
        Path::default(),
    ))
}

/// Makes a directory that only the daemon's user can enter, unless it is there.
fn make_private(path: &FilePath) -> Result<()> {
    use std::os::unix::fs::DirBuilderExt;
    let made = std::fs::DirBuilder::new()
        .recursive(true)
        .mode(0o700)
        .create(path);
    made.map_err(|error| Error::Start {
        what: "the artifact store",
        why: format!("{}: {error}", path.display()),
    })
}

fn bucket(config: &ArtifactsConfig) -> Result<AmazonS3> {
    let ArtifactsPlace::S3 {
        bucket,
        endpoint,
        region,
        allow_http,
        credentials: Credentials(credentials),
        ..
    } = &config.place
    else {
        return Err(Error::Internal("not a bucket".into()));
    };
    // Another part of the daemon may have done it already.
    let _ = rustls::crypto::ring::default_provider().install_default();
    // A body may take longer than any one request: what counts is that it goes on.
    let client = ClientOptions::new()
        .with_timeout_disabled()
        .with_connect_timeout(config.timeout)
        .with_read_timeout(config.timeout)
        .with_allow_http(*allow_http);
    let retry = RetryConfig {
        max_retries: RETRIES_MAX,
        retry_timeout: config.timeout,
        ..RetryConfig::default()
    };
    let mut builder = AmazonS3Builder::from_env()
        .with_bucket_name(bucket)
        .with_client_options(client)
        .with_retry(retry)
        .with_conditional_put(S3ConditionalPut::ETagMatch)
        .with_allow_http(*allow_http);
    if let Some(endpoint) = endpoint {
        builder = builder.with_endpoint(endpoint);
    }
    if let Some(region) = region {
        builder = builder.with_region(region);
    }
    for (name, value) in credentials {
        if let Ok(key) = name.to_ascii_lowercase().parse::<AmazonS3ConfigKey>() {
            builder = builder.with_config(key, value);
        }
    }
    builder.build().map_err(|error| Error::Start {
        what: "the artifact store",
        why: Chain(&error).to_string(),
    })
}
