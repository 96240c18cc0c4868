//! Records that are none, and a directory that hangs: what they may not do to everything else.

use std::sync::atomic::{AtomicUsize, Ordering};

use super::*;
use crate::access::DAEMON_HOLDER;

const LONG: usize = 70_000;

#[tokio::test]
async fn a_record_that_could_not_be_read_again_is_not_published() {
    for place in Place::each() {
        let (artifacts, scope) = (place.open().await, scope("", "", ""));
        let mime_type = Some(format!("a/{}", "x".repeat(LONG)));
        let save = SaveOptions {
            mime_type,
            ..SaveOptions::default()
        };
        let saved = artifacts
            .save(&scope, &name("a"), save, bytes(b"x"))
            .await
            .map(|saved| saved.version);
        assert!(matches!(saved, Err(Error::Internal(_))), "{saved:?}");
        assert_eq!(place.files(), [""; 0]);
    }
}

#[tokio::test]
async fn a_damaged_record_hides_no_others_and_can_be_deleted() {
    for place in Place::each() {
        let (artifacts, scope) = (place.open().await, scope("", "", ""));
        for (text, data) in [("a", b"0"), ("a", b"1"), ("b", b"0")] {
            save(&artifacts, &scope, text, data).await;
        }
        let store = &artifacts.0.store;
        let path = key::version_key(&key::name_key(&store.base, &scope, &name("a")), 1);
        for damaged in ["", "{", &"x".repeat(LONG)] {
            let text = damaged.as_bytes().to_vec();
            let written = store
                .write_object(visible_operation("damage it"), &path, text)
                .await;
            written.expect("damaged");
            let listed = artifacts.list(&scope, None, 10).await.expect("listed");
            let names: Vec<&str> = listed.artifacts.iter().map(|it| it.name.as_str()).collect();
            assert_eq!(names, ["b"]);
            let versions = artifacts
                .versions(&scope, &name("a"), None, 10)
                .await
                .expect("listed")
                .artifacts;
            assert_eq!(
                versions.iter().map(|it| it.version).collect::<Vec<_>>(),
                [0]
            );
            let newest = artifacts.get(&scope, &name("a"), None).await;
            let told = matches!(newest, Err(Error::ArtifactDamaged { version: 1, .. }));
            assert!(told, "{newest:?}");
        }
        let deleted = artifacts.delete(&scope, &name("a"), Some(1)).await;
        deleted.expect("deleted");
        let loaded = load(&artifacts, &scope, "a", None).await;
        assert_eq!(loaded.expect("the one before"), b"0");
    }
}

/// Requests that hang until this is dropped.
#[derive(Default)]
struct HangingRequests {
    holding: Vec<std::sync::mpsc::Sender<()>>,
    started: Arc<AtomicUsize>,
}

impl HangingRequests {
    /// Makes one request for a tenant, or for the daemon.
    fn hang<'a>(
        &mut self,
        store: &'a ArtifactBackend,
        tenant: &'a str,
        root: &'a FilePath,
    ) -> impl Future<Output = Result<()>> + use<'a> {
        let (hold, held) = std::sync::mpsc::channel::<()>();
        self.holding.push(hold);
        let started = Arc::clone(&self.started);
        store.run_on_disk(invisible_operation("hang"), tenant, root, move || {
            started.fetch_add(1, Ordering::Relaxed);
            // Until its sender is dropped.
            let _ended = held.recv();
            Ok(())
        })
    }

    /// Waits until as many have begun as one tenant may have. The threads of requests may begin late.
    async fn wait_for_all(&self, place: &Place) {
        let count = || self.started.load(Ordering::Relaxed);
        place.wait(|_| count() >= 16).await;
        assert_eq!(count(), 16);
    }
}

/// Opens a directory whose requests have this time.
async fn open_directory(place: &Place, timeout: Duration) -> Artifacts {
    let mut config = defaults();
    config.storage = ArtifactStorage::Directory(place.dir.path().to_owned());
    config.timeout = timeout;
    let store = ArtifactBackend::open(&config, "unused".into(), false, &place.tasks).await;
    Artifacts::over(store.expect("a store"), &config, PERMIT_WAIT, None)
}

#[tokio::test]
async fn requests_to_a_directory_that_hangs_end_in_time_and_are_few() {
    let place = Place::new();
    let artifacts = open_directory(&place, Duration::from_millis(50)).await;
    let mut hanging = HangingRequests::default();
    let (store, root) = (&artifacts.0.store, place.dir.path());
    let asked: Vec<_> = (0..40)
        .map(|_| hanging.hang(store, DAEMON_HOLDER, root))
        .collect();
    for answer in futures::future::join_all(asked).await {
        assert!(matches!(answer, Err(Error::Storage { .. })), "{answer:?}");
    }
    artifacts.ping().await;
    assert!(!*artifacts.answers().borrow());
    hanging.wait_for_all(&place).await;
    drop(hanging);
    place.tasks.finished().await;
    let answering = async {
        // A ping that takes too long is one of a slow machine.
        while !*artifacts.answers().borrow() {
            artifacts.ping().await;
        }
    };
    let answers = tokio::time::timeout(WAIT_MAX, answering).await;
    answers.expect("it answers again");
}

#[tokio::test]
async fn hanging_requests_of_one_tenant_delay_no_other_tenant() {
    let place = Place::new();
    let artifacts = open_directory(&place, WAIT_MAX).await;
    let mut hanging = HangingRequests::default();
    let (store, root) = (&artifacts.0.store, place.dir.path());
    let asked: Vec<_> = (0..40).map(|_| hanging.hang(store, "a", root)).collect();
    let mut asked = std::pin::pin!(futures::future::join_all(asked));
    assert!(asked.as_mut().now_or_never().is_none());
    hanging.wait_for_all(&place).await;
    let listed = artifacts.list(&scope("", "", ""), None, 10).await;
    assert!(listed.expect("listed").artifacts.is_empty());
    artifacts.ping().await;
    assert!(*artifacts.answers().borrow());
    drop(hanging);
    for answer in asked.await {
        answer.expect("answered");
    }
}

#[tokio::test]
async fn a_turn_of_one_name_keeps_no_other_name_waiting() {
    let place = Place::new();
    let artifacts = place.open().await;
    let mut turns = Vec::new();
    for number in 0..65 {
        let records = Path::from(format!("index/{number}"));
        let turn = artifacts.0.acquire_turn(&records).now_or_never();
        turns.push(turn.expect("a free turn").expect("no stop"));
        // The runtime makes a task wait that never does by itself, so that the next turn would seem taken.
        tokio::task::yield_now().await;
    }
    let first = Path::from("index/0");
    let second_turn = artifacts.0.acquire_turn(&first).now_or_never();
    assert!(second_turn.is_none(), "two turns of one name");
    // Locks that are not used are removed.
    drop(turns);
    let last = artifacts.0.acquire_turn(&Path::from("index/last")).await;
    drop(last.expect("no stop"));
    assert_eq!(artifacts.0.publishing.lock().len(), 1);
}
