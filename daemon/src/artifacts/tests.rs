//! The whole store over a directory: versions, scopes, pages, what fails and what a crash leaves.

use std::collections::BTreeSet;
use std::path::Path as FilePath;

use futures::{FutureExt, stream};
use object_store::memory::InMemory;
use object_store::path::Path;
use object_store::{ObjectStore, ObjectStoreExt};
use tempfile::TempDir;

use super::record::Record;
use super::store::{Kind, changing, harmless};
use super::*;
use crate::config::{ArtifactsPlace, Config};

mod damaged;
mod slow;

/// Where a store is: a directory that others may use too, without fsync, which is not what these tests are about; or what
/// behaves as a bucket.
struct Place {
    dir: TempDir,
    bucket: Option<Arc<InMemory>>,
    tasks: Tasks,
}

impl Place {
    fn new() -> Self {
        Self {
            dir: tempfile::tempdir().expect("a directory"),
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
        config.place = ArtifactsPlace::Directory(self.dir.path().to_owned());
        config.bytes_max = 4 << 20;
        change(&mut config);
        let store = match &self.bucket {
            None => Store::open(&config, "unused".into(), false, &self.tasks)
                .await
                .expect("a store"),
            Some(bucket) => {
                let (objects, kind) = (
                    Arc::clone(bucket) as _,
                    Kind::Bucket(Arc::clone(bucket) as _),
                );
                Store::over(
                    objects,
                    kind,
                    Path::from("a/prefix"),
                    config.timeout,
                    &self.tasks,
                )
            }
        };
        store.probe().await.expect("usable");
        Artifacts::over(store, &config, Duration::from_secs(5))
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
                let marker = async { bucket.get(&path).await?.bytes().await };
                let marker = marker.now_or_never().expect("ready").expect("there");
                !marker.ends_with(b"\"parts\":null}")
            })
        };
        self.wait(divided).await;
    }

    /// Waits until there is no file whose path begins so.
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
        tokio::time::timeout(Duration::from_secs(30), looking)
            .await
            .expect("in time");
    }

    /// All that is there.
    fn files(&self) -> Vec<String> {
        let mut found = Vec::new();
        match &self.bucket {
            None => collect(self.dir.path(), self.dir.path(), &mut found),
            Some(bucket) => {
                let listed = bucket
                    .list(None)
                    .map_ok(|object| object.location.to_string());
                let listed: Vec<String> = listed
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
            let path = path.strip_prefix(root).expect("beneath");
            found.push(path.to_str().expect("our names").to_owned());
        }
    }
}

fn defaults() -> ArtifactsConfig {
    Config::from_toml("")
        .expect("the defaults")
        .config
        .artifacts
}

fn name(text: &str) -> Name {
    Name::parse("name", text).expect(text)
}

fn scope(app: &str, user: &str, session: &str) -> Scope {
    Scope::parse("scope", app, user, session).expect("a scope")
}

fn bytes(data: &[u8]) -> impl Stream<Item = Result<Bytes>> + Send + 'static {
    let chunks: Vec<_> = data
        .chunks(100_000)
        .map(|chunk| Ok(Bytes::copy_from_slice(chunk)))
        .collect();
    stream::iter(chunks)
}

async fn save(artifacts: &Artifacts, scope: &Scope, text: &str, data: &[u8]) -> Artifact {
    let saved = artifacts
        .save(scope, &name(text), Save::default(), bytes(data))
        .await;
    saved.expect("saved")
}

async fn load(
    artifacts: &Artifacts,
    scope: &Scope,
    text: &str,
    version: Option<u64>,
) -> Result<Vec<u8>> {
    let (artifact, chunks) = artifacts.load(scope, &name(text), version).await?;
    let chunks: Vec<Bytes> = chunks.try_collect().await?;
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
        assert!(listed.artifacts[0].name.is_users());
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
        let listed: Vec<&str> = listed.artifacts.iter().map(|a| a.name.as_str()).collect();
        assert_eq!(listed, expected);
        // Nothing of a name is in a path, and every part of a path has a length that every file system takes.
        for path in place.files() {
            let harmless = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '/';
            assert!(path.chars().all(harmless), "{path}");
            assert!(path.split('/').all(|part| part.len() <= 255), "{path}");
        }
    }
}

#[tokio::test]
async fn pages_follow_one_another_in_the_order_of_names() {
    for place in Place::each() {
        let artifacts = place.open().await;
        let scope = scope("app", "user", "session");
        let filler = "x".repeat(300);
        let mut names: Vec<String> = (0..2_500_u32)
            .map(|n| match n % 5 {
                0 => format!("dir/{n:04}"),
                1 => format!("user:{n:04}"),
                2 => format!("{filler}{n:04}"),
                _ => format!("{n:04}.txt"),
            })
            .collect();
        // Records alone: their bytes are not looked at, and of these there are many.
        let saved = save(&artifacts, &scope, "zzz", b"").await;
        artifacts
            .delete(&scope, &saved.name, None)
            .await
            .expect("deleted");
        let store = &artifacts.0.store;
        for text in &names {
            let of = name(text);
            let artifact = Artifact {
                scope: scope.of(&of),
                name: of,
                ..saved.clone()
            };
            let path = key::version(&key::name(&store.base, &scope, &artifact.name), 0);
            let record = Record::new(&artifact, "0").encode().expect("JSON");
            store
                .write(changing("write"), &path, record)
                .await
                .expect("written");
        }
        names.sort_unstable();
        for size in [999, 2_500] {
            let (mut found, mut after, mut pages) = (Vec::new(), None, 0);
            loop {
                let page = artifacts
                    .list(&scope, after.as_ref(), size)
                    .await
                    .expect("listed");
                assert!(page.artifacts.len() <= size);
                found.extend(
                    page.artifacts
                        .iter()
                        .map(|artifact| artifact.name.as_str().to_owned()),
                );
                pages += 1;
                let Some(next) = page.next else { break };
                after = Some(next);
            }
            assert!(found == names, "pages of {size}");
            assert_eq!(pages, names.len().div_ceil(size));
        }
        // From a name that is not there.
        let after = name("user:2");
        let page = artifacts
            .list(&scope, Some(&after), 1)
            .await
            .expect("listed");
        assert_eq!(page.artifacts[0].name.as_str(), "user:2001");
    }
}

#[tokio::test]
async fn versions_are_listed_oldest_first_in_pages() {
    for place in Place::each() {
        let artifacts = place.open().await;
        let (scope, of) = (scope("", "", ""), name("a"));
        for n in 0..25_u8 {
            save(&artifacts, &scope, "a", &[n]).await;
        }
        artifacts
            .delete(&scope, &of, Some(3))
            .await
            .expect("deleted");
        let (mut found, mut after) = (Vec::new(), None);
        loop {
            let page = artifacts
                .versions(&scope, &of, after, 10)
                .await
                .expect("listed");
            found.extend(page.artifacts.iter().map(|artifact| artifact.version));
            let Some(next) = page.next else { break };
            after = Some(next);
        }
        let expected: Vec<u64> = (0..25).filter(|version| *version != 3).collect();
        assert_eq!(found, expected);
        let none = artifacts
            .versions(&scope, &name("b"), None, 10)
            .await
            .expect_err("none");
        assert!(matches!(none, Error::ArtifactNotFound { .. }), "{none}");
    }
}

#[tokio::test]
async fn many_versions_of_one_name_do_not_hide_the_next_one() {
    for place in Place::each() {
        let artifacts = place.open().await;
        let (scope, store) = (scope("", "", ""), &artifacts.0.store);
        save(&artifacts, &scope, "a", b"a").await;
        save(&artifacts, &scope, "z", b"z").await;
        let saved = save(&artifacts, &scope, "m", b"m").await;
        for version in 1..2_200 {
            let artifact = Artifact {
                version,
                ..saved.clone()
            };
            let path = key::version(&key::name(&store.base, &scope, &saved.name), version);
            let record = Record::new(&artifact, "0").encode().expect("JSON");
            store
                .write(changing("write"), &path, record)
                .await
                .expect("written");
        }
        let listed = artifacts.list(&scope, None, 10).await.expect("listed");
        let names: Vec<_> = listed
            .artifacts
            .iter()
            .map(|a| (a.name.as_str(), a.version))
            .collect();
        assert_eq!(names, [("a", 0), ("m", 2_199), ("z", 0)]);
        let after = Some(2_100);
        let page = artifacts
            .versions(&scope, &saved.name, after, 1_000)
            .await
            .expect("listed");
        let found: Vec<u64> = page
            .artifacts
            .iter()
            .map(|artifact| artifact.version)
            .collect();
        assert_eq!((found, page.next), ((2_101..2_200).collect(), None));
    }
}

#[tokio::test]
async fn a_number_is_not_given_again_while_a_later_one_is_there() {
    for place in Place::each() {
        let artifacts = place.open().await;
        let (scope, of) = (scope("", "", ""), name("a"));
        for n in 0..3_u8 {
            save(&artifacts, &scope, "a", &[n]).await;
        }
        artifacts
            .delete(&scope, &of, Some(1))
            .await
            .expect("deleted");
        let again = artifacts
            .delete(&scope, &of, Some(1))
            .await
            .expect_err("gone");
        assert!(
            matches!(
                again,
                Error::ArtifactNotFound {
                    version: Some(1),
                    ..
                }
            ),
            "{again}"
        );
        assert!(load(&artifacts, &scope, "a", Some(1)).await.is_err());
        assert_eq!(save(&artifacts, &scope, "a", b"x").await.version, 3);
        assert_eq!(
            load(&artifacts, &scope, "a", Some(0)).await.expect("there"),
            [0]
        );
        artifacts.delete(&scope, &of, None).await.expect("deleted");
        let none = artifacts.delete(&scope, &of, None).await.expect_err("none");
        assert!(
            matches!(none, Error::ArtifactNotFound { version: None, .. }),
            "{none}"
        );
        assert!(
            artifacts
                .list(&scope, None, 10)
                .await
                .expect("listed")
                .artifacts
                .is_empty()
        );
        assert_eq!(place.files(), [""; 0], "nothing of it stays");
        assert_eq!(save(&artifacts, &scope, "a", b"x").await.version, 0);
    }
}

#[tokio::test]
async fn a_load_that_has_begun_ends_well_although_the_artifact_is_deleted() {
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
                .save(&scope, &name("a"), Save::default(), stream::iter(chunks))
                .await;
            assert!(matches!(failed, Err(Error::Invalid(_))), "{failed:?}");
            assert_eq!(place.files(), [""; 0]);
        }
        // Too large: the limit of these stores is 4 MiB, and what is at it is taken.
        let endless = stream::iter(std::iter::repeat_with(part));
        let failed = artifacts
            .save(&scope, &name("a"), Save::default(), endless)
            .await;
        assert!(
            matches!(failed, Err(Error::LimitExceeded { limit, .. }) if limit == 4 << 20),
            "{failed:?}"
        );
        // Not what was announced.
        let wrong = Save {
            sha256: Some("0".repeat(64)),
            ..Save::default()
        };
        let failed = artifacts
            .save(&scope, &name("a"), wrong, bytes(b"abc"))
            .await;
        let Err(Error::ChecksumMismatch { actual, .. }) = failed else {
            panic!("{failed:?}")
        };
        assert!(actual.starts_with("ba7816bf"), "{actual}");
        assert_eq!(place.files(), [""; 0]);
        let right = Save {
            sha256: Some(actual.to_uppercase()),
            ..Save::default()
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
async fn a_save_that_nobody_waits_for_is_undone() {
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
        let saving = artifacts.save(&scope, &of, Save::default(), begin.chain(never));
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
        let first = artifacts.save(&scope, &of, Save::default(), receiver);
        let second = artifacts.save(&scope, &of, Save::default(), bytes(b"x"));
        let mut first = std::pin::pin!(first);
        tokio::select! {
            biased;
            ended = &mut first => panic!("{ended:?}"),
            refused = second => assert!(matches!(refused, Err(Error::QuotaExceeded { limit: 1, .. })), "{refused:?}"),
        }
        // A third one waits until the first has gone.
        sender.close_channel();
        let third = artifacts.save(&scope, &of, Save::default(), bytes(b"x"));
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
async fn the_type_is_told_by_content_and_the_name_breaks_ties() {
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
        let given = Save {
            mime_type: Some("x/y; a=b".into()),
            ..Save::default()
        };
        let saved = artifacts
            .save(&scope, &name("a.txt"), given, bytes(b"z"))
            .await
            .expect("saved");
        assert_eq!(saved.mime_type, "x/y; a=b");
    }
}

/// Leaves what a crash leaves at each step of a save and of a deletion.
async fn interrupt(place: &Place, artifacts: &Artifacts, scope: &Scope) {
    let store = &artifacts.0.store;
    // Killed while bytes come: some parts are there, under a name that the library gave.
    let half = name("half");
    let mut halves = Upload::begin(store, scope, &half).await.expect("begun");
    let data = stream::iter([Ok(Bytes::from(vec![1; 2_500_000]))]).chain(stream::pending());
    tokio::select! {
        _ = halves.write(&half, data, u64::MAX) => panic!("it has no end"),
        () = place.half_written() => {}
    }
    std::mem::forget(halves);
    // Killed between bytes and record.
    let mut whole = Upload::begin(store, scope, &name("whole"))
        .await
        .expect("begun");
    whole
        .write(&name("whole"), bytes(b"whole"), u64::MAX)
        .await
        .expect("written");
    whole.finish().await.expect("safe");
    // Killed between record and the end: this one counts.
    let mut published = Upload::begin(store, scope, &name("done"))
        .await
        .expect("begun");
    let written = published
        .write(&name("done"), bytes(b"done"), u64::MAX)
        .await
        .expect("written");
    published.finish().await.expect("safe");
    artifacts
        .0
        .publish(scope, &name("done"), None, &written, &mut published)
        .await
        .expect("published");
    Upload::of(store, scope, &name("done"), published.id())
        .await
        .expect("marked, as before the end");
    // Killed while deleting: the record is gone.
    save(artifacts, scope, "deleted", b"deleted").await;
    let record = Record::read(store, scope, &name("deleted"), 0)
        .await
        .expect("read")
        .expect("there");
    let path = key::version(&key::name(&store.base, scope, &name("deleted")), 0);
    Upload::of(store, scope, &name("deleted"), &record.data)
        .await
        .expect("marked");
    store
        .remove(changing("delete"), &path)
        .await
        .expect("removed");
}

#[tokio::test]
async fn what_interrupted_saves_left_is_removed_and_nothing_else() {
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
        garbage::sweep(store, garbage::AGE).await.expect("swept");
        assert_eq!(place.count("pending/"), 4);
        // At the start of a store of our own, all of it is.
        garbage::sweep(store, Duration::ZERO).await.expect("swept");
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
async fn a_start_cleans_a_store_of_its_own() {
    let place = Place::new();
    let config = defaults();
    let state_dir = place.dir.path();
    let patience = Duration::from_secs(5);
    let scope = scope("", "", "");
    let first = Artifacts::open(&config, state_dir, patience, &place.tasks)
        .await
        .expect("opened");
    save(&first, &scope, "a", b"a").await;
    let mut half = Upload::begin(&first.0.store, &scope, &name("a"))
        .await
        .expect("begun");
    half.write(&name("a"), bytes(b"b"), u64::MAX)
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
    let again = Artifacts::open(&config, state_dir, patience, &place.tasks)
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
    config.place = ArtifactsPlace::Directory(file.join("beneath"));
    let opened = Artifacts::open(
        &config,
        place.dir.path(),
        Duration::from_secs(5),
        &place.tasks,
    )
    .await;
    let error = opened.expect_err("refused").to_string();
    assert!(
        error.starts_with("the artifact store cannot be used: ") && error.contains("beneath"),
        "{error}"
    );
}
