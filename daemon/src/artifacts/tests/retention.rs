//! Retention by age, number and size, with the time given to each sweep; and the count of the bytes that are held.

use std::collections::HashSet;

use super::*;
use crate::artifacts::counting::count_bytes;
use crate::artifacts::index_walk::{IndexWalk, PAGE_MAX, VISITED_MAX};
use crate::artifacts::record::FoundVersion;
use crate::artifacts::retention::{RemovalReason, SweepOutcome};

const DAY: Duration = Duration::from_secs(24 * 60 * 60);

fn scope_of(tenant: &str, session: &str) -> ArtifactScope {
    let scope = RequestedScope::parse("scope", "app", "user", session).expect("a scope");
    scope.of_tenant(&TenantName::parse(tenant).expect("a tenant"))
}

/// Bytes that count for a number of versions with short names and these contents together.
const fn held(versions: u64, contents: u64) -> u64 {
    contents + versions * 4 * 4096
}

/// Returns the bytes that the tenant of a scope holds.
fn bytes_of(artifacts: &Artifacts, scope: &ArtifactScope) -> u64 {
    artifacts.held_by(scope.tenant()).bytes
}

fn nothing() -> ReferencedVersions {
    ReferencedVersions::new(HashSet::new)
}

/// Counts what the store has, and sweeps it at a time after now.
async fn sweep(artifacts: &Artifacts, after: Duration) -> SweepOutcome {
    sweep_with(artifacts, after, &nothing()).await
}

async fn sweep_with(
    artifacts: &Artifacts,
    after: Duration,
    referenced: &ReferencedVersions,
) -> SweepOutcome {
    let state = &artifacts.0;
    let counted = count_bytes(&state.store, &state.ledger).await;
    counted.expect("counted");
    let swept = state.sweep(SystemTime::now() + after, referenced).await;
    swept.expect("swept")
}

/// Returns the versions of an artifact that exist, oldest first.
async fn versions(artifacts: &Artifacts, scope: &ArtifactScope, text: &str) -> Vec<u64> {
    match artifacts.versions(scope, &name(text), None, 1000).await {
        Ok(page) => page.artifacts.iter().map(|it| it.version).collect(),
        Err(Error::ArtifactNotFound { .. }) => Vec::new(),
        Err(error) => panic!("{error}"),
    }
}

/// Rewrites a record as if its version had been saved so long ago.
async fn age(artifacts: &Artifacts, saved: &Artifact, ago: Duration) {
    let store = &artifacts.0.store;
    let (scope, of) = (&saved.scope, &saved.name);
    let record = VersionRecord::read(store, scope, of, saved.version).await;
    let data = record.expect("read").expect("there").data;
    let older = Artifact {
        create_time: saved.create_time - ago,
        ..saved.clone()
    };
    let path = key::version_key(&key::name_key(&store.base, scope, of), saved.version);
    let text = VersionRecord::new(&older, &data).encode().expect("JSON");
    let written = store
        .write_object(visible_operation("age"), &path, text)
        .await;
    written.expect("written");
}

#[tokio::test]
async fn age_removes_versions_that_are_too_old() {
    for place in Place::each() {
        let artifacts = place
            .open_with(|config| config.retention_age = Some(30 * DAY))
            .await;
        let scope = scope_of("a", "1");
        for data in [b"0", b"1"] {
            save(&artifacts, &scope, "dir/a", data).await;
        }
        save(&artifacts, &scope, "user:b", b"bb").await;
        let early = sweep(&artifacts, 29 * DAY).await;
        let untouched = SweepOutcome {
            seen: 3,
            ..SweepOutcome::default()
        };
        assert_eq!(early, untouched);
        assert_eq!(versions(&artifacts, &scope, "dir/a").await, [0, 1]);
        // The newest version is no exception.
        let late = sweep(&artifacts, 30 * DAY).await;
        assert_eq!((late.expired, late.removed_bytes), (3, 4));
        assert_eq!(versions(&artifacts, &scope, "dir/a").await, [0; 0]);
        assert_eq!((place.count("data/"), place.count("pending/")), (0, 0));
        let none = HeldArtifacts::default();
        assert_eq!(artifacts.held_by(scope.tenant()), none);
    }
}

#[tokio::test]
async fn the_records_own_time_decides_about_its_age() {
    for place in Place::each() {
        let artifacts = place
            .open_with(|config| config.retention_age = Some(30 * DAY))
            .await;
        let scope = scope_of("a", "1");
        let saved = save(&artifacts, &scope, "a", b"x").await;
        // The clock of the daemon that saved it was ahead, so the store's time is older.
        let ahead = Artifact {
            create_time: saved.create_time + 10 * DAY,
            ..saved
        };
        age(&artifacts, &ahead, Duration::ZERO).await;
        assert_eq!(sweep(&artifacts, 35 * DAY).await.expired, 0);
        assert_eq!(sweep(&artifacts, 41 * DAY).await.expired, 1);
    }
}

#[tokio::test]
async fn only_the_newest_versions_of_each_artifact_are_kept() {
    for place in Place::each() {
        let artifacts = place
            .open_with(|config| config.retention_versions = 2)
            .await;
        let (one, two) = (scope_of("a", "1"), scope_of("a", "2"));
        let long = "x".repeat(300);
        for n in 0..5_u8 {
            save(&artifacts, &one, "a", &[n]).await;
            save(&artifacts, &one, &long, &[n]).await;
        }
        for n in 0..2_u8 {
            save(&artifacts, &two, "a", &[n]).await;
        }
        let swept = sweep(&artifacts, Duration::ZERO).await;
        assert_eq!(
            (swept.expired, swept.removed_bytes, swept.failed),
            (6, 6, 0)
        );
        for (scope, text, left) in [
            (&one, "a", [3, 4]),
            (&one, &long, [3, 4]),
            (&two, "a", [0, 1]),
        ] {
            assert_eq!(versions(&artifacts, scope, text).await, left, "{text}");
        }
        let loaded = load(&artifacts, &one, "a", Some(3)).await;
        assert_eq!(loaded.expect("kept"), [3]);
        assert_eq!((place.count("data/"), place.count("pending/")), (6, 0));
        assert_eq!(sweep(&artifacts, Duration::ZERO).await.expired, 0);
    }
}

#[tokio::test]
async fn oldest_versions_go_first_until_their_tenant_fits() {
    for place in Place::each() {
        let artifacts = place
            .open_with(|config| config.retention_bytes = Some(held(2, 25)))
            .await;
        let (a, b) = (scope_of("a", "1"), scope_of("b", "1"));
        // 10 bytes each, in another order than their ages.
        for (text, days) in [("new", 1), ("oldest", 9), ("old", 8), ("newest", 0)] {
            let saved = save(&artifacts, &a, text, &[7; 10]).await;
            age(&artifacts, &saved, DAY * days).await;
        }
        let saved = save(&artifacts, &b, "oldest of all", &[7; 25]).await;
        age(&artifacts, &saved, 100 * DAY).await;
        let swept = sweep(&artifacts, Duration::ZERO).await;
        assert_eq!((swept.displaced, swept.removed_bytes), (2, 20));
        let listed = artifacts
            .list(&a, None, 10)
            .await
            .expect("listed")
            .artifacts;
        let left: Vec<&str> = listed.iter().map(|it| it.name.as_str()).collect();
        assert_eq!(left, ["new", "newest"]);
        assert_eq!(versions(&artifacts, &b, "oldest of all").await, [0]);
        assert_eq!(bytes_of(&artifacts, &a), held(2, 20));
        assert_eq!(bytes_of(&artifacts, &b), held(1, 25));
    }
}

#[tokio::test]
async fn version_number_is_never_reused_after_a_sweep() {
    for place in Place::each() {
        let artifacts = place
            .open_with(|config| {
                config.retention_age = Some(DAY);
                config.retention_versions = 1;
            })
            .await;
        let scope = scope_of("a", "1");
        for n in 0..3_u8 {
            save(&artifacts, &scope, "a", &[n]).await;
        }
        // Older versions go, then a client deletes the newest one.
        sweep(&artifacts, Duration::ZERO).await;
        assert_eq!(versions(&artifacts, &scope, "a").await, [2]);
        let deleted = artifacts.delete(&scope, &name("a"), None).await;
        deleted.expect("deleted");
        assert_eq!(save(&artifacts, &scope, "a", b"x").await.version, 2);
        // All versions go, twice.
        sweep(&artifacts, DAY).await;
        assert_eq!(versions(&artifacts, &scope, "a").await, [0; 0]);
        assert!(
            artifacts
                .list(&scope, None, 10)
                .await
                .expect("listed")
                .artifacts
                .is_empty(),
            "the number that is left is no artifact"
        );
        assert_eq!(save(&artifacts, &scope, "a", b"y").await.version, 3);
        sweep(&artifacts, DAY).await;
        let again = place.open().await;
        assert_eq!(save(&again, &scope, "a", b"z").await.version, 4);
        // One high-water mark at most stays of an artifact, and it is empty.
        let is_high_water = |path: &&String| {
            let last = path.rsplit('/').next().expect("a name");
            path.starts_with("index/") && key::read_high_water(last).is_some()
        };
        assert_eq!(place.files().iter().filter(is_high_water).count(), 1);
        let absent = load(&again, &scope, "a", Some(3)).await.expect_err("gone");
        assert!(matches!(absent, Error::ArtifactNotFound { .. }), "{absent}");
    }
}

#[tokio::test]
async fn sweeps_of_two_tenants_do_not_affect_one_another() {
    for place in Place::each() {
        let artifacts = place
            .open_with(|config| {
                config.retention_age = Some(30 * DAY);
                config.retention_bytes = Some(held(1, 100));
            })
            .await;
        let (a, b) = (scope_of("a", "1"), scope_of("b", "1"));
        for scope in [&a, &b] {
            save(&artifacts, scope, "same", b"same bytes").await;
        }
        let expired = save(&artifacts, &a, "same", &[1; 200]).await;
        let swept = sweep(&artifacts, Duration::ZERO).await;
        assert_eq!((swept.expired, swept.displaced), (0, 2), "{swept:?}");
        assert_eq!(versions(&artifacts, &expired.scope, "same").await, [0; 0]);
        let loaded = load(&artifacts, &b, "same", Some(0)).await;
        assert_eq!(loaded.expect("of the other tenant"), b"same bytes");
        assert_eq!(
            [&a, &b].map(|scope| bytes_of(&artifacts, scope)),
            [0, held(1, 10)]
        );
        // Numbers are of one tenant, too.
        assert_eq!(save(&artifacts, &a, "same", b"x").await.version, 2);
        assert_eq!(save(&artifacts, &b, "same", b"x").await.version, 1);
    }
}

#[tokio::test]
async fn referenced_version_stays_until_nothing_refers_to_it() {
    for place in Place::each() {
        let artifacts = place
            .open_with(|config| {
                config.retention_versions = 1;
                config.retention_bytes = Some(1);
            })
            .await;
        let scope = scope_of("a", "1");
        for n in 0..4_u8 {
            save(&artifacts, &scope, "a", &[n; 10]).await;
        }
        let id = ArtifactVersionId {
            scope: scope.clone(),
            name: name("a"),
            version: 1,
        };
        let other_tenant = ArtifactVersionId {
            scope: scope_of("b", "1"),
            version: 2,
            ..id.clone()
        };
        let staged = ReferencedVersions::new(move || [id.clone(), other_tenant.clone()].into());
        let swept = sweep_with(&artifacts, Duration::ZERO, &staged).await;
        assert_eq!(
            (swept.expired, swept.displaced, swept.referenced),
            (2, 1, 1)
        );
        assert_eq!(versions(&artifacts, &scope, "a").await, [1]);
        assert_eq!(
            load(&artifacts, &scope, "a", Some(1)).await.expect("whole"),
            [1; 10]
        );
        let swept = sweep(&artifacts, Duration::ZERO).await;
        assert_eq!((swept.expired, swept.displaced), (0, 1));
    }
}

#[tokio::test]
async fn versions_with_the_same_bytes_are_independent() {
    for place in Place::each() {
        let artifacts = place
            .open_with(|config| config.retention_versions = 1)
            .await;
        let scope = scope_of("a", "1");
        let mut sha256 = HashSet::new();
        for text in ["a", "a", "b"] {
            sha256.insert(save(&artifacts, &scope, text, b"same").await.sha256);
        }
        assert_eq!(sha256.len(), 1);
        sweep(&artifacts, Duration::ZERO).await;
        for (text, version) in [("a", 1), ("b", 0)] {
            let loaded = load(&artifacts, &scope, text, Some(version)).await;
            assert_eq!(loaded.expect("kept"), b"same");
        }
    }
}

#[tokio::test]
async fn running_load_survives_a_sweep() {
    for place in Place::each() {
        let artifacts = place
            .open_with(|config| config.retention_age = Some(DAY))
            .await;
        let scope = scope_of("a", "1");
        save(&artifacts, &scope, "a", &vec![7; 3 << 20]).await;
        let loading = artifacts.load(&scope, &name("a"), None).await;
        let (_, mut chunks) = loading.expect("there");
        let first = chunks.try_next().await.expect("read").expect("bytes");
        assert_eq!(sweep(&artifacts, DAY).await.expired, 1);
        let rest: Vec<Bytes> = chunks.try_collect().await.expect("read to the end");
        assert_eq!(first.len() + rest.concat().len(), 3 << 20);
    }
}

#[tokio::test]
async fn sweep_pages_over_all_records() {
    for place in Place::each() {
        let artifacts = place
            .open_with(|config| {
                config.retention_age = Some(30 * DAY);
                config.retention_versions = 1;
            })
            .await;
        let scope = scope_of("a", "1");
        let saved = save(&artifacts, &scope, "many", b"x").await;
        // Records alone, and more than two pages of them, of which one artifact has most.
        let store = &artifacts.0.store;
        let total = 2 * PAGE_MAX as u64 + 100;
        for version in 1..total {
            let text = format!("n{:04}", version % 7);
            let of = if version % 10 == 0 {
                name(&text)
            } else {
                name("many")
            };
            let artifact = Artifact {
                name: of,
                version,
                ..saved.clone()
            };
            let path = key::name_key(&store.base, &scope, &artifact.name);
            let path = key::version_key(&path, version);
            let id = format!("{version:032x}");
            let record = VersionRecord::new(&artifact, &id).encode().expect("JSON");
            let written = store.write_object(visible_operation("write"), &path, record);
            written.await.expect("written");
        }
        let counted = count_bytes(&artifacts.0.store, &artifacts.0.ledger).await;
        assert_eq!(counted.expect("counted"), held(total, total));
        let swept = sweep(&artifacts, Duration::ZERO).await;
        // The newest of eight artifacts stay.
        assert_eq!((swept.seen, swept.expired), (total, total - 8));
        let left = HeldArtifacts {
            bytes: held(8, 8),
            versions: 8,
        };
        assert_eq!(artifacts.held_by(scope.tenant()), left);
        assert_eq!(versions(&artifacts, &scope, "many").await, [total - 1]);
    }
}

#[tokio::test]
async fn bytes_are_exact_after_saves_deletions_and_another_start() {
    for place in Place::each() {
        let artifacts = place.open().await;
        let (a, b) = (scope_of("a", "1"), scope_of("b", "1"));
        let count = async |artifacts: &Artifacts| {
            let counted = count_bytes(&artifacts.0.store, &artifacts.0.ledger).await;
            counted.expect("counted");
            [&a, &b].map(|scope| bytes_of(artifacts, scope))
        };
        assert_eq!(count(&artifacts).await, [0, 0]);
        for n in 1..=10_usize {
            save(&artifacts, &a, "x", &vec![1; n]).await;
            save(&artifacts, &b, "user:x", &vec![1; 100 * n]).await;
        }
        let used = || [&a, &b].map(|scope| bytes_of(&artifacts, scope));
        assert_eq!(used(), [held(10, 55), held(10, 5500)]);
        artifacts
            .delete(&a, &name("x"), Some(9))
            .await
            .expect("deleted");
        artifacts
            .delete(&b, &name("user:x"), None)
            .await
            .expect("deleted");
        assert_eq!(used(), [held(9, 45), 0]);
        // A failed save holds nothing.
        let broken = stream::iter([Ok(Bytes::from_static(b"xyz")), Err(CANCELLED)]);
        let failed = artifacts
            .save(&a, &name("x"), SaveOptions::default(), broken)
            .await;
        failed.expect_err("broken off");
        assert_eq!(used(), [held(9, 45), 0]);
        let again = place.open().await;
        assert_eq!(count(&again).await, [held(9, 45), 0]);
        assert_eq!(count(&artifacts).await, [held(9, 45), 0]);
    }
}

#[tokio::test]
async fn damaged_record_is_neither_counted_nor_swept() {
    for place in Place::each() {
        let artifacts = place
            .open_with(|config| config.retention_versions = 1)
            .await;
        let scope = scope_of("a", "1");
        for n in 0..3_u8 {
            save(&artifacts, &scope, "a", &[n]).await;
        }
        damage(&artifacts, &scope, "a", 1).await;
        let swept = sweep(&artifacts, Duration::ZERO).await;
        assert_eq!((swept.seen, swept.expired, swept.failed), (3, 1, 1));
        assert_eq!(bytes_of(&artifacts, &scope), held(1, 1));
        assert_eq!(place.count("data/"), 2, "its bytes stay");
    }
}

/// Overwrites the record of a version with something else.
async fn damage(artifacts: &Artifacts, scope: &ArtifactScope, text: &str, version: u64) {
    let store = &artifacts.0.store;
    let path = key::version_key(&key::name_key(&store.base, scope, &name(text)), version);
    let written = store.write_object(visible_operation("damage"), &path, b"{".to_vec());
    written.await.expect("damaged");
}

#[tokio::test]
async fn damaged_newer_record_displaces_no_version_that_can_be_loaded() {
    for place in Place::each() {
        let artifacts = place
            .open_with(|config| config.retention_versions = 2)
            .await;
        let scope = scope_of("a", "1");
        for n in 0..5_u8 {
            save(&artifacts, &scope, "a", &[n]).await;
        }
        damage(&artifacts, &scope, "a", 4).await;
        damage(&artifacts, &scope, "a", 2).await;
        let swept = sweep(&artifacts, Duration::ZERO).await;
        assert_eq!(swept.expired, 1, "{swept:?}");
        for (version, data) in [(1, [1]), (3, [3])] {
            let loaded = load(&artifacts, &scope, "a", Some(version)).await;
            assert_eq!(loaded.expect("kept"), data);
        }
        load(&artifacts, &scope, "a", Some(0))
            .await
            .expect_err("removed");
    }
}

#[tokio::test]
async fn sweep_spares_a_new_version_with_the_number_of_a_deleted_one() {
    for place in Place::each() {
        let artifacts = place.open().await;
        let scope = scope_of("a", "1");
        let old = save(&artifacts, &scope, "a", b"old").await;
        let store = &artifacts.0.store;
        let path = key::version_key(&key::name_key(&store.base, &scope, &old.name), 0);
        let found = FoundVersion::read(store, &path).await.expect("read");
        let deleted = artifacts.delete(&scope, &old.name, None).await;
        deleted.expect("deleted");
        assert_eq!(save(&artifacts, &scope, "a", b"new").await.version, 0);
        let (victims, referenced) = ([found.expect("there")], nothing());
        let discarded = artifacts
            .0
            .discard(&victims, RemovalReason::Age, &referenced)
            .await;
        assert_eq!(discarded.expect("done").count, 0);
        let loaded = load(&artifacts, &scope, "a", Some(0)).await;
        assert_eq!(loaded.expect("it is another version"), b"new");
    }
}

#[tokio::test]
async fn sweep_keeps_the_last_version_if_the_newest_is_deleted() {
    for place in Place::each() {
        let artifacts = place.open().await;
        let scope = scope_of("a", "1");
        let store = &artifacts.0.store;
        let mut victims = Vec::new();
        for bytes in [b"0", b"1", b"2"] {
            let saved = save(&artifacts, &scope, "a", bytes).await;
            let records = key::name_key(&store.base, &scope, &saved.name);
            let path = key::version_key(&records, saved.version);
            victims.extend(FoundVersion::read(store, &path).await.expect("read"));
        }
        let newest = victims.pop().expect("three").id;
        let deleted = artifacts.delete(&scope, &newest.name, Some(newest.version));
        deleted.await.expect("deleted");
        let (reason, referenced) = (RemovalReason::Versions(1), nothing());
        let discarded = artifacts.0.discard(&victims, reason, &referenced).await;
        assert_eq!(discarded.expect("done").count, 1);
        assert_eq!(versions(&artifacts, &scope, "a").await, [1]);
    }
}

#[tokio::test]
async fn daemons_that_share_a_store_remove_the_excess_once() {
    for place in Place::each() {
        let limit = |config: &mut ArtifactsConfig| config.retention_bytes = Some(held(2, 25));
        let (one, two) = (place.open_with(limit).await, place.open_with(limit).await);
        let scope = scope_of("a", "1");
        for n in 0..4_u8 {
            save(&one, &scope, "a", &[n; 10]).await;
        }
        let state = &two.0;
        let counted = count_bytes(&state.store, &state.ledger).await;
        assert_eq!(counted.expect("counted"), held(4, 40));
        assert_eq!(sweep(&one, Duration::ZERO).await.displaced, 2);
        // The other daemon has not counted anew.
        let swept = state.sweep(SystemTime::now(), &nothing()).await;
        assert_eq!(swept.expect("swept").displaced, 0);
        assert_eq!(versions(&two, &scope, "a").await, [2, 3]);
    }
}

#[tokio::test]
async fn a_walk_over_high_water_marks_has_bounded_pages_and_an_end() {
    for place in Place::each() {
        let artifacts = place.open().await;
        let (scope, store) = (scope_of("a", "1"), &artifacts.0.store);
        for n in 0..VISITED_MAX {
            let records = key::name_key(&store.base, &scope, &name(&format!("n{n}")));
            let path = key::high_water_key(&records, 7);
            let written = store.write_object(visible_operation("write"), &path, Vec::new());
            written.await.expect("written");
        }
        save(&artifacts, &scope, "z", b"last").await;
        let mut walk = IndexWalk::begin(store).await.expect("begun");
        let (mut pages, mut records) = (0, 0);
        while let Some(page) = walk.next_page().await.expect("a page") {
            pages += 1;
            records += page.len();
        }
        assert_eq!(records, 1);
        assert!(pages > 1, "{pages}");
        let counted = count_bytes(store, &artifacts.0.ledger).await;
        assert_eq!(counted.expect("counted"), held(1, 4));
    }
}
