//! Records that are none, and a directory that hangs: what they may not do to everything else.

use super::*;

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
            let versions = artifacts.versions(&scope, &name("a"), None, 10).await;
            let versions = versions.expect("listed").artifacts;
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

#[tokio::test]
async fn requests_to_a_directory_that_hangs_end_in_time_and_are_few() {
    let place = Place::new();
    let mut config = defaults();
    config.storage = ArtifactStorage::Directory(place.dir.path().to_owned());
    config.timeout = Duration::from_millis(50);
    let store = ArtifactBackend::open(&config, "unused".into(), false, &place.tasks).await;
    let artifacts = Artifacts::over(store.expect("a store"), &config, PERMIT_WAIT, None);
    let store = &artifacts.0.store;
    let started = Arc::new(std::sync::atomic::AtomicUsize::new(0));
    let (mut holding, mut asked) = (Vec::new(), Vec::new());
    for _ in 0..40 {
        let (hold, held) = std::sync::mpsc::channel::<()>();
        holding.push(hold);
        let started = Arc::clone(&started);
        asked.push(
            store.run_on_disk(invisible_operation("hang"), place.dir.path(), move || {
                started.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
                // Until its sender is dropped.
                let _ended = held.recv();
                Ok(())
            }),
        );
    }
    for answer in futures::future::join_all(asked).await {
        assert!(matches!(answer, Err(Error::Storage { .. })), "{answer:?}");
    }
    artifacts.ping().await;
    assert!(!*artifacts.answers().borrow());
    // The threads of the first requests may begin late.
    let count = || started.load(std::sync::atomic::Ordering::Relaxed);
    place.wait(|_| count() >= 16).await;
    assert_eq!(count(), 16);
    drop(holding);
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
