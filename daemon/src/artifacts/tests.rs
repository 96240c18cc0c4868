//! The whole store over a directory: versions, scopes, pages, what fails and what a crash leaves.

use std::collections::BTreeSet;
use std::path::Path as FilePath;

use futures::{FutureExt, stream};
use object_store::memory::InMemory;
use object_store::path::Path;
use object_store::{ObjectStore, ObjectStoreExt};
use tempfile::TempDir;

use super::backend::{StoreKind, invisible_operation, visible_operation};
use super::byte_ledger::SaveRoom;
use super::record::VersionRecord;
use super::save::CANCELLED;
use super::upload::ArtifactUpload;
use super::*;
use crate::access::TenantName;
use crate::config::{ArtifactStorage, Config};

mod damage;
mod full_disk;
mod listings;
mod retention;
mod slow;
mod start;

/// Maximum time that a test waits for one change of the store's files.
const WAIT_MAX: Duration = Duration::from_secs(120);
/// Time for which a save may wait for its permit. The daemon ends a save that makes no progress for twice as long.
const PERMIT_WAIT: Duration = Duration::from_secs(60);

/// Kind of the store under test: a shared directory without fsync, or objects in memory that behave as a bucket.
struct Place {
    dir: TempDir,
    bucket: Option<Arc<InMemory>>,
    tasks: Tasks,
}

impl Place {
    fn new() -> Self {
        Self {
            dir: tempfile::Builder::new()
                .prefix("artifacts-")
                .tempdir()
                .expect("a directory"),
            bucket: None,
            tasks: Tasks::default(),
        }
    }

    fn each() -> [Self; 2] {
        let bucket = Self {
            bucket: Some(Arc::default()),
            ..Self::new()
        };
        [Self::new(), bucket]
    }

    async fn open(&self) -> Artifacts {
        self.open_with(|_| {}).await
    }

    async fn open_with(&self, change: impl FnOnce(&mut ArtifactsConfig)) -> Artifacts {
        let mut config = defaults();
        config.storage = ArtifactStorage::Directory(self.dir.path().to_owned());
        config.bytes_max = 4 << 20;
        change(&mut config);
        let store = match &self.bucket {
            None => ArtifactBackend::open(&config, "unused".into(), false, &self.tasks)
                .await
                .expect("a store"),
            Some(bucket) => {
                let (objects, kind) = (
                    Arc::clone(bucket) as _,
                    StoreKind::Bucket(Arc::clone(bucket) as _),
                );
                ArtifactBackend::over(
                    objects,
                    kind,
                    Path::from("a/prefix"),
                    config.timeout,
                    &self.tasks,
                )
            }
        };
        store.probe().await.expect("usable");
        Artifacts::over(store, &config, PERMIT_WAIT, None)
    }

    /// Waits until some parts of a save are there.
    async fn half_written(&self) {
        let Some(bucket) = &self.bucket else {
            return self
                .wait(|files| files.iter().any(|path| path.contains('#')))
                .await;
        };
        let divided = |files: &[String]| {
            let mut pending = files.iter().filter(|path| path.starts_with("pending/"));
            pending.any(|path| {
                let path = Path::from(format!("a/prefix/{path}"));
                let reading = async { bucket.get(&path).await?.bytes().await };
                let marker = reading.now_or_never().expect("ready").expect("there");
                !marker.ends_with(b"\"parts\":null}")
            })
        };
        self.wait(divided).await;
    }

    /// Waits until no file has a path with this prefix.
    async fn gone(&self, beneath: &str) {
        self.wait(|files| !files.iter().any(|path| path.starts_with(beneath)))
            .await;
    }

    async fn wait(&self, good: impl Fn(&[String]) -> bool) {
        let looking = async {
            while !good(&self.files()) {
                // Nothing tells of a change of these files.
                tokio::time::sleep(Duration::from_millis(2)).await;
            }
        };
        tokio::time::timeout(WAIT_MAX, looking)
            .await
            .expect("in time");
    }

    /// Lists all files beneath a directory.
    fn files(&self) -> Vec<String> {
        let mut found = Vec::new();
        match &self.bucket {
            None => collect(self.dir.path(), self.dir.path(), &mut found),
            Some(bucket) => {
                let listed: Vec<String> = bucket
                    .list(None)
                    .map_ok(|object| object.location.to_string())
                    .try_collect()
                    .now_or_never()
                    .expect("ready")
                    .expect("listed");
                found.extend(
                    listed
                        .iter()
                        .map(|key| key.strip_prefix("a/prefix/").expect("beneath").to_owned()),
                );
            }
        }
        found.sort();
        found
    }

    fn count(&self, beneath: &str) -> usize {
        self.files()
            .iter()
            .filter(|path| path.starts_with(beneath))
            .count()
    }
}

fn collect(root: &FilePath, dir: &FilePath, found: &mut Vec<String>) {
    for entry in std::fs::read_dir(dir).expect("readable") {
        let path = entry.expect("an entry").path();
        if path.is_dir() {
            collect(root, &path, found);
        } else {
            let relative = path.strip_prefix(root).expect("beneath");
            found.push(relative.to_str().expect("our names").to_owned());
        }
    }
}

fn defaults() -> ArtifactsConfig {
    Config::from_toml("")
        .expect("the defaults")
        .config
        .artifacts
}

fn name(text: &str) -> ArtifactName {
    ArtifactName::parse("name", text).expect(text)
}

fn scope(app: &str, user: &str, session: &str) -> ArtifactScope {
    let scope = RequestedScope::parse("scope", app, user, session).expect("a scope");
    scope.of_tenant(&TenantName::default())
}

fn bytes(data: &[u8]) -> impl Stream<Item = Result<Bytes>> + Send + 'static {
    let chunks: Vec<_> = data
        .chunks(100_000)
        .map(|chunk| Ok(Bytes::copy_from_slice(chunk)))
        .collect();
    stream::iter(chunks)
}

async fn save(artifacts: &Artifacts, scope: &ArtifactScope, text: &str, data: &[u8]) -> Artifact {
    let saved = artifacts
        .save(scope, &name(text), SaveOptions::default(), bytes(data))
        .await;
    saved.expect("saved")
}

async fn load(
    artifacts: &Artifacts,
    scope: &ArtifactScope,
    text: &str,
    version: Option<u64>,
) -> Result<Vec<u8>> {
    let (artifact, stream) = artifacts.load(scope, &name(text), version).await?;
    let chunks: Vec<Bytes> = stream.try_collect().await?;
    assert!(chunks.iter().all(|chunk| chunk.len() <= CHUNK_BYTES_MAX));
    let data = chunks.concat();
    assert_eq!(artifact.size, data.len() as u64);
    Ok(data)
}

#[tokio::test]
async fn versions_count_from_zero_and_keep_their_bytes() {
    for place in Place::each() {
        let (artifacts, scope) = (place.open().await, scope("app", "user", "session"));
        // Binary, empty, and of several parts.
        let large: Vec<u8> = (0..3_500_000_u32).map(|n| n.to_le_bytes()[1]).collect();
        let all: [&[u8]; 3] = [b"\0\xff\n\x80", b"", &large];
        for (version, data) in all.iter().enumerate() {
            let saved = save(&artifacts, &scope, "dir/a.bin", data).await;
            assert_eq!(saved.version, version as u64);
            assert_eq!(saved.size, data.len() as u64);
        }
        for (version, data) in all.iter().enumerate() {
            let loaded = load(&artifacts, &scope, "dir/a.bin", Some(version as u64)).await;
            assert!(loaded.expect("there") == **data, "version {version}");
        }
        assert!(
            load(&artifacts, &scope, "dir/a.bin", None)
                .await
                .expect("there")
                == large
        );
        let absent = load(&artifacts, &scope, "dir/a.bin", Some(3))
            .await
            .expect_err("no such version");
        assert!(
            matches!(
                absent,
                Error::ArtifactNotFound {
                    version: Some(3),
                    ..
                }
            ),
            "{absent}"
        );
        // Nothing is left of the saves but bytes and records.
        assert_eq!(
            (
                place.count("index/"),
                place.count("data/"),
                place.files().len()
            ),
            (3, 3, 6)
        );
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn saves_at_the_same_time_get_all_numbers_without_gaps() {
    for place in Place::each() {
        // Two daemons on one store, 64 saves each.
        let stores = [place.open().await, place.open().await];
        let scope = scope("", "", "");
        let saves = (0..128).map(|n: u32| {
            let artifacts = stores[n as usize % 2].clone();
            let scope = scope.clone();
            async move {
                let saved = save(&artifacts, &scope, "same", &n.to_le_bytes()).await;
                (saved.version, n)
            }
        });
        let saved = futures::future::join_all(saves).await;
        let numbers: BTreeSet<u64> = saved.iter().map(|(version, _)| *version).collect();
        assert_eq!(numbers, (0..128).collect());
        for (version, n) in saved {
            let data = load(&stores[0], &scope, "same", Some(version))
                .await
                .expect("there");
            assert_eq!(data, n.to_le_bytes(), "version {version}");
        }
    }
}

#[tokio::test]
async fn names_and_scopes_are_apart_and_a_user_s_names_are_shared() {
    for place in Place::each() {
        let artifacts = place.open().await;
        let (one, two) = (scope("app", "ada", "1"), scope("app", "ada", "2"));
        let (bob, other) = (scope("app", "bob", "1"), scope("other", "ada", "1"));
        save(&artifacts, &one, "a", b"one").await;
        save(&artifacts, &two, "a", b"two").await;
        save(&artifacts, &one, "user:a", b"all of ada's").await;
        for (scope, expected) in [
            (&one, Some("one")),
            (&two, Some("two")),
            (&bob, None),
            (&other, None),
        ] {
            let loaded = load(&artifacts, scope, "a", None).await.ok();
            assert_eq!(loaded.as_deref(), expected.map(str::as_bytes));
            let users = load(&artifacts, scope, "user:a", None).await.is_ok();
            assert_eq!(users, scope.user() == "ada" && scope.app() == "app");
        }
        // Another session goes on counting where this one is.
        let saved = save(&artifacts, &two, "user:a", b"newer").await;
        assert_eq!((saved.version, saved.scope.session()), (1, ""));
        assert_eq!(
            load(&artifacts, &one, "user:a", None).await.expect("there"),
            b"newer"
        );
        // Each session's list has both.
        let listed = artifacts.list(&one, None, 10).await.expect("listed");
        let names: Vec<_> = listed
            .artifacts
            .iter()
            .map(|a| (a.name.as_str(), a.version))
            .collect();
        assert_eq!(names, [("a", 0), ("user:a", 1)]);
        // A session without a name is one too, and has no share in others.
        let nameless = scope("app", "ada", "");
        let listed = artifacts.list(&nameless, None, 10).await.expect("listed");
        assert_eq!(listed.artifacts.len(), 1);
        assert!(listed.artifacts[0].name.is_shared_by_sessions());
    }
}

#[tokio::test]
async fn hostile_names_stay_in_the_store_and_apart() {
    for place in Place::each() {
        let artifacts = place.open().await;
        let scope = scope("../../..", "/etc", "a/../b");
        let long = "\u{1f980}".repeat(NAME_BYTES_MAX / 4);
        let names = [
            "a",
            "A",
            "a.b",
            "a/b",
            "a-b",
            "a#1",
            "%2e%2e/%2e%2e",
            "..a",
            "C:\\x",
            "user:a",
            "users:a",
            "index/x",
            "a@1",
            "a%2fb",
            "NUL",
            "\u{e9}",
            "e\u{301}",
            " ",
            "-rf",
            "$(id)",
            "*",
            "~",
            &long,
        ];
        for (n, text) in (0_u8..).zip(names) {
            let saved = save(&artifacts, &scope, text, &[n]).await;
            assert_eq!(saved.version, 0, "{text:?} has met another one");
        }
        for (n, text) in (0_u8..).zip(names) {
            let data = load(&artifacts, &scope, text, None).await.expect(text);
            assert_eq!(data, [n], "{text:?}");
        }
        let listed = artifacts.list(&scope, None, 100).await.expect("listed");
        let mut expected = names;
        expected.sort_unstable();
        let listed_names: Vec<&str> = listed.artifacts.iter().map(|a| a.name.as_str()).collect();
        assert_eq!(listed_names, expected);
        // Nothing of a name is in a path, and every part of a path has a length that every file system takes.
        for path in place.files() {
            let is_harmless = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '/';
            assert!(path.chars().all(is_harmless), "{path}");
            assert!(path.split('/').all(|part| part.len() <= 255), "{path}");
        }
    }
}

#[tokio::test]
async fn running_load_survives_a_deletion() {
    for place in Place::each() {
        let artifacts = place.open().await;
        let (scope, of) = (scope("", "", ""), name("a"));
        let data = vec![7; 3 << 20];
        save(&artifacts, &scope, "a", &data).await;
        let (_, mut chunks) = artifacts.load(&scope, &of, None).await.expect("there");
        let first = chunks.try_next().await.expect("read").expect("bytes");
        artifacts.delete(&scope, &of, None).await.expect("deleted");
        let rest: Vec<Bytes> = chunks.try_collect().await.expect("read to the end");
        assert_eq!(first.len() + rest.concat().len(), data.len());
    }
}

#[tokio::test]
async fn a_save_that_fails_leaves_no_version_and_no_bytes() {
    for place in Place::each() {
        let artifacts = place.open().await;
        let scope = scope("", "", "");
        let part = || Ok(Bytes::from(vec![1; 1_500_000]));
        let broken = || Err(Error::invalid("data", "the stream broke off"));
        // Before the first byte, within the first part, and after some.
        for chunks in [
            vec![broken()],
            vec![Ok(Bytes::from_static(b"x")), broken()],
            vec![part(), part(), broken()],
        ] {
            let failed = artifacts
                .save(
                    &scope,
                    &name("a"),
                    SaveOptions::default(),
                    stream::iter(chunks),
                )
                .await;
            assert!(matches!(failed, Err(Error::Invalid(_))), "{failed:?}");
            assert_eq!(place.files(), [""; 0]);
        }
        // Too large: the limit of these stores is 4 MiB, and what is at it is taken.
        let endless = stream::iter(std::iter::repeat_with(part));
        let failed = artifacts
            .save(&scope, &name("a"), SaveOptions::default(), endless)
            .await;
        assert!(
            matches!(failed, Err(Error::LimitExceeded { limit, .. }) if limit == 4 << 20),
            "{failed:?}"
        );
        // Not what was announced.
        let wrong = SaveOptions {
            sha256: Some("0".repeat(64)),
            ..SaveOptions::default()
        };
        let failed = artifacts
            .save(&scope, &name("a"), wrong, bytes(b"abc"))
            .await;
        let Err(Error::ChecksumMismatch { actual, .. }) = failed else {
            panic!("{failed:?}")
        };
        assert!(actual.starts_with("ba7816bf"), "{actual}");
        assert_eq!(place.files(), [""; 0]);
        let right = SaveOptions {
            sha256: Some(actual.to_uppercase()),
            ..SaveOptions::default()
        };
        let saved = artifacts
            .save(&scope, &name("a"), right, bytes(b"abc"))
            .await
            .expect("saved");
        assert_eq!((saved.version, saved.sha256), (0, actual));
        let largest = save(&artifacts, &scope, "a", &vec![2; 4 << 20]).await;
        assert_eq!(largest.version, 1);
    }
}

#[tokio::test]
async fn abandoned_save_is_undone() {
    for place in Place::each() {
        let artifacts = place.open().await;
        let (taken, when_taken) = tokio::sync::oneshot::channel::<()>();
        let mut taken = Some(taken);
        let begin = stream::iter([Ok(Bytes::from(vec![1; 3 << 20]))]);
        let never = stream::poll_fn(move |_| {
            // All that came before is on its way into the store.
            drop(taken.take());
            std::task::Poll::<Option<Result<Bytes>>>::Pending
        });
        let (scope, of) = (scope("", "", ""), name("a"));
        let saving = artifacts.save(&scope, &of, SaveOptions::default(), begin.chain(never));
        tokio::select! {
            ended = saving => panic!("{ended:?}"),
            _ = when_taken => {}
        }
        assert_eq!(place.count("pending/"), 1);
        // The task that saved cleans up, and is the last one.
        place.tasks.finished().await;
        assert_eq!(place.files(), [""; 0]);
    }
}

#[tokio::test(start_paused = true)]
async fn one_save_too_many_waits_and_is_then_refused() {
    for place in Place::each() {
        let artifacts = place.open_with(|config| config.saves_max = 1).await;
        let (scope, of) = (scope("", "", ""), name("a"));
        let (mut sender, receiver) = futures::channel::mpsc::channel::<Result<Bytes>>(1);
        let first = artifacts.save(&scope, &of, SaveOptions::default(), receiver);
        let second = artifacts.save(&scope, &of, SaveOptions::default(), bytes(b"x"));
        let mut first = std::pin::pin!(first);
        tokio::select! {
            biased;
            ended = &mut first => panic!("{ended:?}"),
            refused = second => assert!(matches!(refused, Err(Error::QuotaExceeded { limit: 1, .. })), "{refused:?}"),
        }
        // A third one waits until the first has gone.
        sender.close_channel();
        let third = artifacts.save(&scope, &of, SaveOptions::default(), bytes(b"x"));
        let (first, third) = tokio::join!(first, third);
        assert_eq!(
            (first.expect("saved").version, third.expect("saved").version),
            (0, 1)
        );
    }
}

#[tokio::test]
async fn bytes_that_changed_in_the_store_are_not_passed_on_as_whole() {
    let place = Place::new();
    let artifacts = place.open().await;
    let scope = scope("", "", "");
    let data = vec![1; 300_000];
    save(&artifacts, &scope, "a", &data).await;
    let file = place
        .files()
        .into_iter()
        .find(|path| path.starts_with("data/"))
        .expect("bytes");
    let file = place.dir.path().join(file);
    let mut changed = data.clone();
    changed[299_999] = 2;
    for damaged in [
        changed,
        data[..299_999].to_vec(),
        [data.as_slice(), b"x"].concat(),
    ] {
        std::fs::write(&file, damaged).expect("written");
        let (_, chunks) = artifacts
            .load(&scope, &name("a"), None)
            .await
            .expect("there");
        let read: Result<Vec<Bytes>> = chunks.try_collect().await;
        assert!(
            matches!(&read, Err(Error::Internal(why)) if why.contains("damaged")),
            "{read:?}"
        );
    }
    std::fs::remove_file(&file).expect("removed");
    let gone = artifacts
        .load(&scope, &name("a"), None)
        .await
        .err()
        .expect("gone");
    assert!(matches!(gone, Error::ArtifactNotFound { .. }), "{gone}");
}

#[tokio::test]
async fn mime_type_follows_content_then_name() {
    for place in Place::each() {
        let artifacts = place.open().await;
        let scope = scope("", "", "");
        let cases: [(&str, &[u8], &str); 5] = [
            ("a.txt", b"\x89PNG\r\n\x1a\n....", "image/png"),
            ("a.csv", b"x,y\n1,2\n", "text/csv"),
            ("user:b.json", b"{}", "application/json"),
            ("noname", b"hello", "text/plain"),
            ("a.json", b"\0\x01", "application/octet-stream"),
        ];
        for (text, data, expected) in cases {
            let saved = save(&artifacts, &scope, text, data).await;
            assert_eq!(saved.mime_type, expected, "{text}");
            let found = artifacts
                .get(&scope, &name(text), None)
                .await
                .expect("there");
            assert_eq!(found, saved);
        }
        let given = SaveOptions {
            mime_type: Some("x/y; a=b".into()),
            ..SaveOptions::default()
        };
        let saved = artifacts
            .save(&scope, &name("a.txt"), given, bytes(b"z"))
            .await
            .expect("saved");
        assert_eq!(saved.mime_type, "x/y; a=b");
    }
}
