//! The whole store over a directory: versions, scopes, pages, what fails and what a crash leaves.

use std::collections::BTreeSet;
use std::path::Path as FilePath;

use futures::stream;
use tempfile::TempDir;

use super::*;
use crate::config::{ArtifactsPlace, Config};

/// A store over a directory that others may use too; without fsync, which is not what these tests are about.
struct Place {
    dir: TempDir,
    tasks: Tasks,
}

impl Place {
    fn new() -> Self {
        Self {
            dir: tempfile::tempdir().expect("a directory"),
            tasks: Tasks::default(),
        }
    }

    async fn open(&self) -> Artifacts {
        let mut config = Config::from_toml("")
            .expect("the defaults")
            .config
            .artifacts;
        config.place = ArtifactsPlace::Directory(self.dir.path().to_owned());
        config.bytes_max = 4 << 20;
        let store = Store::open(&config, "unused".into(), false, &self.tasks).await;
        let store = store.expect("a store");
        store.probe().await.expect("usable");
        Artifacts::over(store, &config, Duration::from_secs(5))
    }

    /// Files beneath, without the probes' directory.
    fn files(&self) -> Vec<String> {
        let mut found = Vec::new();
        collect(self.dir.path(), self.dir.path(), &mut found);
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
    let place = Place::new();
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

#[tokio::test(flavor = "multi_thread")]
async fn saves_at_the_same_time_get_all_numbers_without_gaps() {
    let place = Place::new();
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
