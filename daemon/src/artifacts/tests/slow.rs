//! Saves and deletions over a store whose answers come late or never.

use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use object_store::{
    CopyOptions, GetOptions, GetResult, ListResult, MultipartUpload, ObjectMeta, PutMode,
    PutMultipartOptions, PutOptions, PutPayload, PutResult,
};
use tokio::sync::Semaphore;

use super::*;

type Answer<T> = object_store::Result<T>;

/// In-memory objects. A gate holds requests up; they proceed when it opens, even if their caller has gone away.
#[derive(Debug)]
struct Slow {
    memory: Arc<InMemory>,
    /// Writes of bytes and deletions of records pass these.
    writes: Arc<Semaphore>,
    deletions: Arc<Semaphore>,
    /// Gate for removals of markers; `None` lets them pass.
    ends: Arc<Semaphore>,
    holds_ends: AtomicBool,
    arrived: AtomicUsize,
    /// The answer to a new record is lost, the request is repeated, and after that nothing can be read.
    loses_answers: AtomicBool,
    is_mute: AtomicBool,
    late: Tasks,
}

impl Slow {
    fn new(bucket: &Arc<InMemory>) -> Arc<Self> {
        Arc::new(Self {
            memory: Arc::clone(bucket),
            writes: Arc::new(Semaphore::new(0)),
            deletions: Arc::new(Semaphore::new(0)),
            ends: Arc::new(Semaphore::new(0)),
            holds_ends: AtomicBool::new(false),
            arrived: AtomicUsize::new(0),
            loses_answers: AtomicBool::new(false),
            is_mute: AtomicBool::new(false),
            late: Tasks::default(),
        })
    }

    fn open(self: &Arc<Self>, place: &Place) -> Artifacts {
        let config = defaults();
        let bucket = StoreKind::Bucket(Arc::clone(&self.memory) as _);
        let objects = Arc::clone(self) as _;
        let base = Path::from("a/prefix");
        let timeout = Duration::from_secs(300);
        let store = ArtifactBackend::over(objects, bucket, base, timeout, &place.tasks);
        Artifacts::over(store, &config, PERMIT_WAIT, None)
    }

    /// Waits until so many requests stand at a gate, or have passed one.
    async fn arrived(&self, count: usize) {
        while self.arrived.load(Ordering::Relaxed) < count {
            tokio::task::yield_now().await;
        }
    }
}

impl fmt::Display for Slow {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("slow")
    }
}

async fn pass(gate: &Semaphore) {
    gate.acquire().await.expect("never closed").forget();
}

#[tonic::async_trait]
impl ObjectStore for Slow {
    async fn put_opts(
        &self,
        location: &Path,
        payload: PutPayload,
        options: PutOptions,
    ) -> Answer<PutResult> {
        let is_new_record = matches!(options.mode, PutMode::Create);
        if !location.as_ref().contains("/data/") {
            let put = self.memory.put_opts(location, payload, options).await?;
            if is_new_record && self.loses_answers.load(Ordering::Relaxed) {
                self.is_mute.store(true, Ordering::Relaxed);
                return Err(object_store::Error::AlreadyExists {
                    path: location.to_string(),
                    source: "repeated".into(),
                });
            }
            return Ok(put);
        }
        let (memory, gate) = (Arc::clone(&self.memory), Arc::clone(&self.writes));
        let location = location.clone();
        self.arrived.fetch_add(1, Ordering::Relaxed);
        let landing = self.late.spawn(async move {
            pass(&gate).await;
            memory.put_opts(&location, payload, options).await
        });
        landing.await.expect("no panic")
    }

    async fn put_multipart_opts(
        &self,
        location: &Path,
        options: PutMultipartOptions,
    ) -> Answer<Box<dyn MultipartUpload>> {
        self.memory.put_multipart_opts(location, options).await
    }

    async fn get_opts(&self, location: &Path, options: GetOptions) -> Answer<GetResult> {
        if self.is_mute.load(Ordering::Relaxed) {
            return Err(object_store::Error::Generic {
                store: "slow",
                source: "says nothing".into(),
            });
        }
        self.memory.get_opts(location, options).await
    }

    fn delete_stream(
        &self,
        locations: BoxStream<'static, Answer<Path>>,
    ) -> BoxStream<'static, Answer<Path>> {
        let (memory, records) = (Arc::clone(&self.memory), Arc::clone(&self.deletions));
        let ends = Arc::clone(&self.ends);
        let holds_ends = self.holds_ends.load(Ordering::Relaxed);
        let deleted = locations.and_then(move |location| {
            let memory = Arc::clone(&memory);
            let (records, ends) = (Arc::clone(&records), Arc::clone(&ends));
            async move {
                if location.as_ref().contains("/index/") {
                    pass(&records).await;
                } else if holds_ends && location.as_ref().contains("/pending/") {
                    pass(&ends).await;
                }
                memory.delete(&location).await.map(|()| location)
            }
        });
        deleted.boxed()
    }

    fn list(&self, prefix: Option<&Path>) -> BoxStream<'static, Answer<ObjectMeta>> {
        self.memory.list(prefix)
    }

    async fn list_with_delimiter(&self, prefix: Option<&Path>) -> Answer<ListResult> {
        self.memory.list_with_delimiter(prefix).await
    }

    async fn copy_opts(&self, from: &Path, to: &Path, options: CopyOptions) -> Answer<()> {
        self.memory.copy_opts(from, to, options).await
    }
}

fn bucket() -> (Place, Arc<Slow>) {
    let [_, place] = Place::each();
    let slow = Slow::new(place.bucket.as_ref().expect("a bucket"));
    (place, slow)
}

#[tokio::test]
async fn a_save_cancelled_during_its_last_write_leaves_nothing() {
    let (place, slow) = bucket();
    let (artifacts, scope, of) = (slow.open(&place), scope("", "", ""), name("a"));
    let saving = artifacts.save(&scope, &of, SaveOptions::default(), bytes(b"x"));
    tokio::select! {
        ended = saving => panic!("{ended:?}"),
        () = slow.arrived(1) => {}
    }
    // The client is gone; the write comes to its end.
    tokio::task::yield_now().await;
    slow.writes.add_permits(1);
    slow.late.finished().await;
    place.tasks.finished().await;
    assert_eq!(place.files(), [""; 0]);
}

#[tokio::test(start_paused = true)]
async fn bytes_that_appear_after_a_failed_save_are_removed() {
    let (place, slow) = bucket();
    let (artifacts, scope) = (slow.open(&place), scope("", "", ""));
    let failed = artifacts
        .save(&scope, &name("a"), SaveOptions::default(), bytes(b"x"))
        .await;
    assert!(matches!(failed, Err(Error::Storage { .. })), "{failed:?}");
    slow.writes.add_permits(1);
    slow.late.finished().await;
    assert_eq!((place.count("data/"), place.count("pending/")), (1, 1));
    let store = &artifacts.0.store;
    garbage::sweep_markers(store, Duration::ZERO)
        .await
        .expect("swept");
    assert_eq!(place.files(), [""; 0]);
}

#[tokio::test]
async fn bytes_of_a_version_that_may_be_published_stay() {
    let (place, slow) = bucket();
    let (artifacts, scope) = (slow.open(&place), scope("", "", ""));
    slow.writes.add_permits(1);
    slow.loses_answers.store(true, Ordering::Relaxed);
    let saved = artifacts
        .save(&scope, &name("a"), SaveOptions::default(), bytes(b"x"))
        .await;
    assert!(
        matches!(saved, Err(Error::StorageUnsure { .. })),
        "{saved:?}"
    );
    slow.is_mute.store(false, Ordering::Relaxed);
    let loaded = load(&artifacts, &scope, "a", Some(0)).await;
    assert_eq!(loaded.expect("it was published"), b"x");
}

/// Saves more versions than one batch of a deletion removes.
async fn save_many(artifacts: &Artifacts, slow: &Slow, scope: &ArtifactScope) -> usize {
    let versions = CONCURRENT_MAX + 4;
    slow.writes.add_permits(versions);
    for _ in 0..versions {
        save(artifacts, scope, "a", b"x").await;
    }
    versions
}

fn count(files: &[String], beneath: &str) -> usize {
    files
        .iter()
        .filter(|path| path.starts_with(beneath))
        .count()
}

#[tokio::test]
async fn a_version_is_deleted_when_its_save_has_taken_its_marker_away() {
    let (place, slow) = bucket();
    let (artifacts, scope, of) = (slow.open(&place), scope("", "", ""), name("a"));
    slow.writes.add_permits(1);
    slow.deletions.add_permits(1);
    slow.holds_ends.store(true, Ordering::Relaxed);
    let mut saving = std::pin::pin!(save(&artifacts, &scope, "a", b"x"));
    tokio::select! {
        saved = &mut saving => panic!("{saved:?}"),
        () = place.wait(|files| count(files, "index/") == 1) => {}
    }
    let mut deleting = std::pin::pin!(artifacts.delete(&scope, &of, Some(0)));
    for _ in 0..1000 {
        tokio::select! {
            biased;
            ended = &mut deleting => panic!("{ended:?}"),
            () = tokio::task::yield_now() => {}
        }
    }
    assert_eq!(place.count("index/"), 1, "it did not wait");
    slow.ends.add_permits(2);
    saving.await;
    deleting.await.expect("deleted");
    assert_eq!(place.files(), [""; 0]);
}

#[tokio::test]
async fn a_deletion_of_many_versions_lets_a_save_have_its_turn() {
    let (place, slow) = bucket();
    let (artifacts, scope, of) = (slow.open(&place), scope("", "", ""), name("a"));
    let versions = save_many(&artifacts, &slow, &scope).await;
    let mut deleting = std::pin::pin!(artifacts.delete(&scope, &of, None));
    tokio::select! {
        ended = &mut deleting => panic!("{ended:?}"),
        () = place.wait(|files| count(files, "pending/") == CONCURRENT_MAX) => {}
    }
    let mut saving = std::pin::pin!(save(&artifacts, &scope, "a", b"new"));
    slow.writes.add_permits(1);
    tokio::select! {
        saved = &mut saving => panic!("{saved:?}"),
        () = place.wait(|files| count(files, "data/") == versions + 1) => {}
    }
    // Some versions are gone and the others cannot go yet.
    slow.deletions.add_permits(CONCURRENT_MAX);
    let saved = tokio::time::timeout(WAIT_MAX, saving).await;
    assert_eq!(saved.expect("its turn came").version, versions as u64);
    slow.deletions.add_permits(4);
    deleting.await.expect("deleted");
    let listed = artifacts
        .versions(&scope, &of, None, 100)
        .await
        .expect("listed")
        .artifacts;
    assert_eq!(listed.len(), 1, "{listed:?}");
}

#[tokio::test]
async fn a_deletion_of_many_versions_ends_at_the_stop() {
    let (place, slow) = bucket();
    let (artifacts, scope, of) = (slow.open(&place), scope("", "", ""), name("a"));
    save_many(&artifacts, &slow, &scope).await;
    let mut deleting = std::pin::pin!(artifacts.delete(&scope, &of, None));
    tokio::select! {
        ended = &mut deleting => panic!("{ended:?}"),
        () = place.wait(|files| count(files, "pending/") == CONCURRENT_MAX) => {}
    }
    place.tasks.stop.cancel();
    slow.deletions.add_permits(100);
    let ended = deleting.await;
    assert!(matches!(ended, Err(Error::Draining)), "{ended:?}");
    assert_eq!(place.count("index/"), 4);
}

#[tokio::test(start_paused = true)]
async fn slow_save_gives_up_its_permit() {
    for place in Place::each() {
        let artifacts = place.open_with(|config| config.saves_max = 1).await;
        let (scope, of) = (scope("", "", ""), name("a"));
        let drip = stream::unfold((), |()| async {
            tokio::time::sleep(Duration::from_secs(50)).await;
            Some((Ok(Bytes::from_static(b"x")), ()))
        });
        let saving = artifacts.save(&scope, &of, SaveOptions::default(), drip);
        let slow = tokio::time::timeout(Duration::from_secs(600), saving)
            .await
            .expect("it ends");
        assert!(matches!(slow, Err(Error::Deadline { .. })), "{slow:?}");
        assert_eq!(place.files(), [""; 0]);
        // One that is slow and comes on is taken.
        let steady = stream::iter(0..8).then(|_| async {
            tokio::time::sleep(Duration::from_secs(50)).await;
            Ok(Bytes::from(vec![1; 300_000]))
        });
        let saved = artifacts
            .save(&scope, &of, SaveOptions::default(), steady)
            .await;
        assert_eq!(saved.expect("saved").size, 2_400_000);
    }
}

#[tokio::test]
async fn a_save_of_many_small_pieces_keeps_none_of_their_buffers() {
    struct Buffer {
        _held: Arc<()>,
    }
    impl AsRef<[u8]> for Buffer {
        fn as_ref(&self) -> &[u8] {
            b"x"
        }
    }
    let place = Place::new();
    let artifacts = place.open().await;
    let (scope, of, buffers) = (scope("", "", ""), name("a"), Arc::new(()));
    let (held, most) = (Arc::clone(&buffers), Arc::new(AtomicUsize::new(0)));
    let seen = Arc::clone(&most);
    let pieces = stream::iter(0..1000).map(move |_| {
        seen.fetch_max(Arc::strong_count(&held), Ordering::Relaxed);
        Ok(Bytes::from_owner(Buffer {
            _held: Arc::clone(&held),
        }))
    });
    let saved = artifacts
        .save(&scope, &of, SaveOptions::default(), pieces)
        .await;
    assert_eq!(saved.expect("saved").size, 1000);
    let most_held = most.load(Ordering::Relaxed);
    assert!(most_held < 10, "{most_held} buffers are held at once");
}
