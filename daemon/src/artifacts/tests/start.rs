//! Opening a store: leftovers of interrupted saves, and stores that cannot be opened.

use super::*;

fn any_size(_: u64) -> Result<()> {
    Ok(())
}

/// Leaves what a crash leaves at each step of a save and of a deletion.
async fn interrupt(place: &Place, artifacts: &Artifacts, scope: &ArtifactScope) {
    let store = &artifacts.0.store;
    // Killed while bytes come: some parts are there, under a name that the library gave.
    let half = name("half");
    let mut halves = ArtifactUpload::begin(store, scope, &half)
        .await
        .expect("begun");
    let data = stream::iter([Ok(Bytes::from(vec![1; 2_500_000]))]).chain(stream::pending());
    tokio::select! {
        _ = halves.receive(&half, data, any_size) => panic!("it has no end"),
        () = place.half_written() => {}
    }
    std::mem::forget(halves);
    // Killed between bytes and record.
    let mut whole = ArtifactUpload::begin(store, scope, &name("whole"))
        .await
        .expect("begun");
    whole
        .receive(&name("whole"), bytes(b"whole"), any_size)
        .await
        .expect("written");
    whole.finish().await.expect("safe");
    // Killed between record and the end: this one counts.
    let mut published = ArtifactUpload::begin(store, scope, &name("done"))
        .await
        .expect("begun");
    let written = published
        .receive(&name("done"), bytes(b"done"), any_size)
        .await
        .expect("written");
    published.finish().await.expect("safe");
    let room = artifacts
        .0
        .ledger
        .reserve(scope.tenant(), written.size, ArtifactQuotas::default())
        .expect("no quota");
    artifacts
        .0
        .publish(
            scope,
            &name("done"),
            SaveOptions::default(),
            (&written, SaveRoom::Reserved(room)),
            &mut published,
        )
        .await
        .expect("published");
    ArtifactUpload::of_published(store, scope, &name("done"), &published.id)
        .await
        .expect("marked, as before the end");
    // Killed while deleting: the record is gone.
    save(artifacts, scope, "deleted", b"deleted").await;
    let record = VersionRecord::read(store, scope, &name("deleted"), 0)
        .await
        .expect("read")
        .expect("there");
    let path = key::version_key(&key::name_key(&store.base, scope, &name("deleted")), 0);
    ArtifactUpload::of_published(store, scope, &name("deleted"), &record.data)
        .await
        .expect("marked");
    store
        .remove_object(visible_operation("delete"), &path)
        .await
        .expect("removed");
}

#[tokio::test]
async fn only_leftovers_of_interrupted_saves_are_removed() {
    for place in Place::each() {
        let artifacts = place.open().await;
        let store = &artifacts.0.store;
        let scope = scope("app", "user", "session");
        let kept = save(&artifacts, &scope, "kept", b"kept").await;
        let before = place.files();
        interrupt(&place, &artifacts, &scope).await;
        // Nothing of all that can be seen.
        let listed = artifacts.list(&scope, None, 10).await.expect("listed");
        let names: Vec<&str> = listed.artifacts.iter().map(|a| a.name.as_str()).collect();
        assert_eq!(names, ["done", "kept"]);
        assert_eq!(place.count("pending/"), 4);

        // Others may be at work: nothing that is young is touched.
        garbage::sweep_markers(store, garbage::MARKER_AGE_MAX)
            .await
            .expect("swept");
        assert_eq!(place.count("pending/"), 4);
        // At the start of a store of our own, all of it is.
        garbage::sweep_markers(store, Duration::ZERO)
            .await
            .expect("swept");
        assert_eq!(place.count("pending/"), 0);
        assert_eq!(place.files().len(), before.len() + 2, "{:?}", place.files());
        assert_eq!(
            load(&artifacts, &scope, "done", Some(0))
                .await
                .expect("there"),
            b"done"
        );
        assert_eq!(
            load(&artifacts, &scope, "kept", None).await.expect("there"),
            b"kept"
        );
        assert_eq!(
            artifacts
                .get(&scope, &name("kept"), None)
                .await
                .expect("there"),
            kept
        );
    }
}

#[tokio::test]
async fn start_cleans_an_exclusive_store() {
    let place = Place::new();
    let config = defaults();
    let state_dir = place.dir.path();
    let scope = scope("", "", "");
    let first = Artifacts::open(&config, state_dir, PERMIT_WAIT, (None, &place.tasks))
        .await
        .expect("opened");
    save(&first, &scope, "a", b"a").await;
    let mut half = ArtifactUpload::begin(&first.0.store, &scope, &name("a"))
        .await
        .expect("begun");
    half.receive(&name("a"), bytes(b"b"), any_size)
        .await
        .expect("written");
    half.finish().await.expect("safe");
    // Killed while a marker and a record were written.
    let first_record = place
        .files()
        .into_iter()
        .find(|path| path.contains("index/"))
        .expect("a record");
    for half in [
        "artifacts/pending/0123#1".to_owned(),
        format!("{first_record}#1"),
    ] {
        std::fs::write(state_dir.join(half), "{").expect("written");
    }
    assert_eq!(
        (
            place.count("artifacts/data/"),
            place.count("artifacts/pending/"),
            place.files().len()
        ),
        (2, 2, 6)
    );
    let again = Artifacts::open(&config, state_dir, PERMIT_WAIT, (None, &place.tasks))
        .await
        .expect("opened");
    place.gone("artifacts/pending/").await;
    assert_eq!(
        (
            place.count("artifacts/data/"),
            place.count("artifacts/pending/")
        ),
        (1, 0)
    );
    assert_eq!(load(&again, &scope, "a", None).await.expect("there"), b"a");
    assert_eq!(place.files().len(), 2, "{:?}", place.files());
    place.tasks.stop.cancel();
    place.tasks.finished().await;
}

#[tokio::test]
async fn a_store_that_cannot_be_opened_is_a_clear_start_error() {
    let place = Place::new();
    let file = place.dir.path().join("file");
    std::fs::write(&file, "").expect("written");
    let mut config = defaults();
    config.storage = ArtifactStorage::Directory(file.join("beneath"));
    let opened =
        Artifacts::open(&config, place.dir.path(), PERMIT_WAIT, (None, &place.tasks)).await;
    let error = opened.expect_err("refused").to_string();
    assert!(
        error.starts_with("the artifact store cannot be used: ") && error.contains("beneath"),
        "{error}"
    );
}
