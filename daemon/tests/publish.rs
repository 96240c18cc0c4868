//! Skills that are published: archives into the store, out of it, and what is left when that is interrupted or done by
//! many at once. No Docker.

use std::collections::{BTreeMap, HashSet};
use std::fs;
use std::io::{Cursor, Read as _, Write as _};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use data_encoding::HEXLOWER;
use futures::stream;
use proptest::prelude::*;
use sha2::{Digest as _, Sha256};
use skilld::config::{Config, SkillRoot, SkillsConfig};
use skilld::error::Error;
use skilld::shutdown::Tasks;
use skilld::skills::{Skill, SkillRef, SkillState, Skills, Staged, Which};
use skilld_proto::v1::publish_skill_request::Payload;
use skilld_proto::v1::{self as pb, Reason};
use tonic::{Code, Status};
use tonic_types::StatusExt;

#[path = "support/server.rs"]
#[expect(dead_code, reason = "shared with tests that use more of it")]
mod server;
use server::TestServer;

/// A root, a state directory and slots, all temporary.
struct Fixture {
    dir: tempfile::TempDir,
    config: SkillsConfig,
    skills: Skills,
}

impl Fixture {
    fn new() -> Self {
        Self::keeping(Duration::from_secs(3600))
    }

    fn keeping(keep_unused: Duration) -> Self {
        let dir = tempfile::tempdir().expect("temp dir");
        let root = dir.path().join("root");
        let config = SkillsConfig {
            roots: vec![SkillRoot::Dir {
                text: root.display().to_string(),
                path: root,
            }],
            keep_unused,
            ..Config::from_toml("").expect("configuration").config.skills
        };
        for sub in ["root", "state/slots/s1/skills", "state/slots/s2/skills"] {
            fs::create_dir_all(dir.path().join(sub)).expect("mkdir");
        }
        let skills = open(&config, dir.path());
        Self {
            dir,
            config,
            skills,
        }
    }

    /// As a daemon does that is started again.
    fn reopen(&mut self) {
        self.skills = open(&self.config, self.dir.path());
    }

    fn path(&self, path: &str) -> PathBuf {
        self.dir.path().join(path)
    }

    /// Puts a skill into the root.
    fn root(&self, name: &str, version: &str) {
        for (path, text, mode) in files(name, version) {
            let path = self.path("root").join(name).join(path);
            fs::create_dir_all(path.parent().expect("parent")).expect("mkdir");
            fs::write(&path, text).expect("write");
            fs::set_permissions(&path, fs::Permissions::from_mode(mode)).expect("chmod");
        }
    }

    async fn publish(&self, name: &str, archive: &[u8]) -> Result<Skill, Error> {
        let mut file = self.skills.upload().await?;
        file.write_all(archive).expect("written");
        self.skills.publish(name.to_owned(), file, None).await
    }

    async fn stage(&self, slot: &str, skill: &str) -> Result<Staged, Error> {
        let target = self.path("state/slots").join(slot).join("skills");
        let skill = SkillRef::parse("skills", skill).expect("valid");
        let staged = self.skills.stage(&target, vec![skill]).await?;
        Ok(staged.into_iter().next().expect("one"))
    }

    fn script(&self, slot: &str, name: &str) -> String {
        let path = format!("state/slots/{slot}/skills/{name}/bin/run.sh");
        fs::read_to_string(self.path(&path)).expect("staged")
    }

    async fn listed(&self, name: &str) -> Vec<Skill> {
        let listing = self.skills.list().await.expect("listed");
        let skills = listing.skills.into_iter();
        skills.filter(|skill| skill.name == name).collect()
    }

    async fn collect(&self, staged: &[&str]) -> usize {
        let staged: HashSet<String> = staged.iter().map(|digest| (*digest).to_owned()).collect();
        self.skills
            .collect(staged)
            .await
            .expect("collected")
            .removed
    }

    fn stored(&self) -> Vec<String> {
        names(&self.path("state/skills/sha256"))
    }

    /// All that is listed can be staged by its digest.
    async fn assert_whole(&self) {
        let listing = self.skills.list().await.expect("listed");
        for skill in &listing.skills {
            assert_ne!(skill.state, SkillState::Rejected, "{skill:?}");
            let digest = &skill.content.as_ref().expect("content").digest;
            let pinned = format!("{}@sha256:{digest}", skill.name);
            self.stage("s2", &pinned).await.expect("whole");
        }
    }

    /// Nothing is left of what failed.
    fn assert_untouched(&self, what: &str) {
        for dir in ["tmp", "sha256", "published", "used"] {
            let left = names(&self.path("state/skills").join(dir));
            assert_eq!(left, Vec::<String>::new(), "{what} left something in {dir}");
        }
    }
}

fn open(config: &SkillsConfig, dir: &Path) -> Skills {
    Skills::open(config, &dir.join("state"), Tasks::default()).expect("open")
}

fn names(dir: &Path) -> Vec<String> {
    let entries = fs::read_dir(dir).expect("read dir");
    let mut names: Vec<String> = entries
        .map(|entry| {
            entry
                .expect("entry")
                .file_name()
                .into_string()
                .expect("UTF-8")
        })
        .collect();
    names.sort();
    names
}

/// A skill with a script that says which version it is.
fn files(name: &str, version: &str) -> [(&'static str, String, u32); 2] {
    let front = format!("---\nname: {name}\ndescription: d\nversion: {version}\n---\n# {name}\n");
    [
        ("SKILL.md", front, 0o644),
        ("bin/run.sh", format!("echo {version}\n"), 0o755),
    ]
}

fn tar_of<'a>(files: impl IntoIterator<Item = (&'a str, &'a [u8], u32)>) -> Vec<u8> {
    let mut builder = tar::Builder::new(Vec::new());
    for (path, data, mode) in files {
        let mut header = tar::Header::new_gnu();
        header.set_mode(mode);
        header.set_size(data.len() as u64);
        builder.append_data(&mut header, path, data).expect("tar");
    }
    builder.into_inner().expect("tar")
}

fn skill(name: &str, version: &str) -> Vec<u8> {
    let files = files(name, version);
    tar_of(
        files
            .iter()
            .map(|(path, text, mode)| (*path, text.as_bytes(), *mode)),
    )
}

fn zip_of(files: &[(&str, &[u8], u32)]) -> Vec<u8> {
    let mut writer = zip::ZipWriter::new(Cursor::new(Vec::new()));
    for (path, data, mode) in files {
        let options = zip::write::SimpleFileOptions::default().unix_permissions(*mode);
        writer.start_file(*path, options).expect("zip");
        writer.write_all(data).expect("zip");
    }
    writer.finish().expect("zip").into_inner()
}

#[tokio::test]
async fn a_published_skill_is_listed_staged_and_survives_a_restart() {
    let mut fixture = Fixture::new();
    let published = fixture
        .publish("csv", &skill("csv", "1.0"))
        .await
        .expect("published");
    assert_eq!(published.name, "csv");
    assert_eq!(
        (published.root.as_str(), published.source.as_str()),
        ("", "")
    );
    assert_eq!(
        published.state,
        SkillState::Loaded,
        "{:?}",
        published.problems
    );
    let content = published.content.expect("content");
    assert_eq!(content.files, 2);
    // Nothing but the skill and its record is left.
    assert_eq!(
        names(&fixture.path("state/skills/tmp")),
        Vec::<String>::new()
    );
    assert_eq!(fixture.stored(), [content.digest.as_str()]);
    for _ in 0..2 {
        let listed = fixture.listed("csv").await;
        assert_eq!(listed.len(), 1);
        assert_eq!(
            listed[0].content.as_ref().map(|content| &content.digest),
            Some(&content.digest)
        );
        fixture.reopen();
    }
    for name in ["csv", "csv@1.0", &format!("csv@sha256:{}", content.digest)] {
        let staged = fixture.stage("s1", name).await.expect(name);
        assert_eq!(staged.digest, content.digest);
        assert_eq!(fixture.script("s1", "csv"), "echo 1.0\n");
    }
    // The same in another form is the same.
    let files = files("csv", "1.0");
    let zipped: Vec<_> = files
        .iter()
        .map(|(path, text, mode)| (format!("wrapper/{path}"), text.as_bytes(), *mode))
        .collect();
    let zipped: Vec<_> = zipped
        .iter()
        .map(|(path, data, mode)| (path.as_str(), *data, *mode))
        .collect();
    let before = fs::metadata(fixture.path("state/skills/published/csv"))
        .expect("there")
        .modified()
        .expect("time");
    let again = fixture
        .publish("csv", &zip_of(&zipped))
        .await
        .expect("the same");
    assert_eq!(again.content.expect("content").digest, content.digest);
    assert_eq!(
        again.update_time,
        fixture.listed("csv").await[0].update_time
    );
    let after = fs::metadata(fixture.path("state/skills/published/csv"))
        .expect("there")
        .modified()
        .expect("time");
    assert_eq!(before, after, "nothing was written");
}

#[tokio::test]
async fn a_version_has_one_content_and_versions_live_side_by_side() {
    let fixture = Fixture::new();
    fixture
        .publish("csv", &skill("csv", "1.0"))
        .await
        .expect("published");
    let other = tar_of([(
        "SKILL.md",
        b"---\nname: csv\ndescription: other\nversion: 1.0\n---\n".as_slice(),
        0o644,
    )]);
    let error = fixture.publish("csv", &other).await.expect_err("taken");
    assert_eq!(error.kind(), (Code::AlreadyExists, Reason::IdTaken));
    assert!(error.to_string().contains("version 1.0"), "{error}");
    fixture
        .publish("csv", &skill("csv", "2.0"))
        .await
        .expect("published");
    assert_eq!(fixture.listed("csv").await.len(), 2);
    for listed in fixture.listed("csv").await {
        let version = listed.front_matter.version.clone();
        let digest = listed.content.expect("content").digest;
        fixture
            .stage("s1", &format!("csv@sha256:{digest}"))
            .await
            .expect("staged");
        assert_eq!(fixture.script("s1", "csv"), format!("echo {version}\n"));
    }
    // Without a version there can be one.
    let plain = |text: &str| {
        let front = format!("---\nname: plain\ndescription: {text}\n---\n");
        tar_of([("SKILL.md", front.as_bytes(), 0o644)])
    };
    fixture
        .publish("plain", &plain("a"))
        .await
        .expect("published");
    let error = fixture
        .publish("plain", &plain("b"))
        .await
        .expect_err("taken");
    assert_eq!(error.kind().1, Reason::IdTaken);
}

#[tokio::test]
async fn published_versions_are_deleted_and_those_of_roots_are_not() {
    let mut fixture = Fixture::new();
    fixture.root("local", "1.0");
    let mut digests = Vec::new();
    for version in ["1.0", "1.1", "2.0"] {
        let skill = fixture
            .publish("csv", &skill("csv", version))
            .await
            .expect("published");
        digests.push(skill.content.expect("content").digest);
    }
    fixture.stage("s1", "csv@1.0").await.expect("staged");
    let delete = async |fixture: &Fixture, name: &str, which: Which| {
        fixture.skills.delete(name.to_owned(), which).await
    };
    delete(&fixture, "csv", Which::Version("1.0".to_owned()))
        .await
        .expect("deleted");
    assert_eq!(fixture.listed("csv").await.len(), 2);
    // Who has it staged keeps it, and it stays in the store for now.
    assert_eq!(fixture.script("s1", "csv"), "echo 1.0\n");
    assert_eq!(fixture.stored().len(), 3);
    let error = delete(&fixture, "csv", Which::Version("1.0".to_owned()))
        .await
        .expect_err("gone");
    assert_eq!(error.kind().1, Reason::SkillNotFound);
    assert!(error.to_string().contains("csv@2.0"), "{error}");
    delete(&fixture, "csv", Which::Digest(digests[1].clone()))
        .await
        .expect("deleted");
    fixture
        .publish("csv", &skill("csv", "1.0"))
        .await
        .expect("it may come back");
    delete(&fixture, "csv", Which::All).await.expect("deleted");
    assert_eq!(
        names(&fixture.path("state/skills/published")),
        Vec::<String>::new()
    );
    assert!(fixture.listed("csv").await.is_empty());
    fixture.reopen();
    assert!(fixture.listed("csv").await.is_empty());
    for which in [Which::All, Which::Version("1.0".to_owned())] {
        let error = delete(&fixture, "local", which)
            .await
            .expect_err("of a root");
        assert_eq!(error.kind(), (Code::FailedPrecondition, Reason::ReadOnly));
    }
    for (name, which) in [
        ("local", Which::Version("9".to_owned())),
        ("nothing", Which::All),
    ] {
        let error = delete(&fixture, name, which).await.expect_err("unknown");
        assert_eq!(error.kind(), (Code::NotFound, Reason::SkillNotFound));
    }
}

#[tokio::test]
async fn what_is_not_one_skill_of_that_name_is_refused_and_leaves_nothing() {
    let fixture = Fixture::new();
    let front: &[u8] = b"---\nname: csv\ndescription: d\n---\n";
    let plain = |path: &'static str| (path, b"x".as_slice(), 0o644);
    for (what, archive, reason, text) in [
        (
            "another name",
            skill("other", "1"),
            Reason::InvalidRequest,
            "is named other",
        ),
        (
            "no document",
            tar_of([plain("a/x"), plain("README.md")]),
            Reason::ArchiveInvalid,
            "no SKILL.md at its top",
        ),
        (
            "two skills",
            tar_of([("a/SKILL.md", front, 0o644), ("b/SKILL.md", front, 0o644)]),
            Reason::ArchiveInvalid,
            "there is a/SKILL.md; there is b/SKILL.md",
        ),
        (
            "deeper than one folder",
            tar_of([("repo/skills/csv/SKILL.md", front, 0o644)]),
            Reason::ArchiveInvalid,
            "there is skills/csv/SKILL.md",
        ),
        (
            "no front matter",
            tar_of([plain("SKILL.md")]),
            Reason::SkillInvalid,
            "skill.",
        ),
        (
            "no archive",
            b"\x7fELF\0".to_vec(),
            Reason::ArchiveInvalid,
            "neither tar",
        ),
        (
            "too many files",
            {
                let names: Vec<String> = (0..5001).map(|at| format!("f/{at}")).collect();
                let files = names
                    .iter()
                    .map(|name| (name.as_str(), b"".as_slice(), 0o644));
                tar_of(files.chain([("SKILL.md", front, 0o644)]))
            },
            Reason::SkillInvalid,
            "skill.too_many_files",
        ),
    ] {
        let error = fixture.publish("csv", &archive).await.expect_err(what);
        assert_eq!(error.kind().1, reason, "{what}: {error}");
        assert!(error.to_string().contains(text), "{what}: {error}");
        assert!(
            !error.to_string().contains("state"),
            "{what}: a path of the host: {error}"
        );
        fixture.assert_untouched(what);
    }
}

#[tokio::test]
async fn nested_skills_and_case_are_no_obstacle() {
    let fixture = Fixture::new();
    let front: &[u8] = b"---\nname: csv\ndescription: d\n---\n";
    let archive = tar_of([
        ("csv/SKILL.md", front, 0o644),
        (
            "csv/sub/SKILL.md",
            b"---\nname: sub\ndescription: d\n---\n".as_slice(),
            0o644,
        ),
    ]);
    let skill = fixture.publish("csv", &archive).await.expect("published");
    assert_ne!(skill.state, SkillState::Rejected);
}

#[tokio::test]
async fn what_nothing_uses_leaves_the_store_and_what_is_used_stays() {
    let mut fixture = Fixture::keeping(Duration::from_nanos(1));
    fixture.root("local", "1.0");
    let local = fixture.stage("s1", "local").await.expect("staged").digest;
    let mut digests = Vec::new();
    for version in ["1.0", "2.0"] {
        let skill = fixture
            .publish("csv", &skill("csv", version))
            .await
            .expect("published");
        digests.push(skill.content.expect("content").digest);
    }
    // All of them are referred to: by the root, by their records.
    assert_eq!(fixture.collect(&[]).await, 0);
    // Another version in the root: now only the workspace refers to the first one.
    fixture.root("local", "1.1");
    assert_eq!(fixture.collect(&[&local]).await, 0);
    assert_eq!(fixture.collect(&[]).await, 1);
    assert!(!fixture.stored().contains(&local));
    fixture
        .skills
        .delete("csv".to_owned(), Which::Version("1.0".to_owned()))
        .await
        .expect("deleted");
    assert_eq!(fixture.collect(&[]).await, 1);
    assert_eq!(fixture.stored(), [digests[1].as_str()]);
    assert_eq!(
        names(&fixture.path("state/skills/used")),
        [digests[1].as_str()]
    );
    // What is gone can be had again where it still is.
    let pinned = format!("csv@sha256:{}", digests[0]);
    let error = fixture.stage("s2", &pinned).await.expect_err("gone");
    assert_eq!(error.kind().1, Reason::SkillNotFound);
    fixture
        .publish("csv", &skill("csv", "1.0"))
        .await
        .expect("published");
    fixture.stage("s2", &pinned).await.expect("staged");
    // What is used within the time stays, whoever asks, and across a restart.
    fixture.config.keep_unused = Duration::from_secs(3600);
    fixture.reopen();
    fixture
        .skills
        .delete("csv".to_owned(), Which::All)
        .await
        .expect("deleted");
    assert_eq!(fixture.collect(&[]).await, 0);
    fixture
        .stage("s1", &pinned)
        .await
        .expect("staged from the store");
    assert_eq!(fixture.script("s1", "csv"), "echo 1.0\n");
    fixture.config.keep_unused = Duration::from_nanos(1);
    fixture.reopen();
    assert_eq!(fixture.collect(&[]).await, 2);
    assert_eq!(fixture.stored(), Vec::<String>::new());
    assert_eq!(
        names(&fixture.path("state/skills/used")),
        Vec::<String>::new()
    );
}

#[tokio::test]
async fn a_digest_is_staged_whatever_became_of_its_root() {
    let fixture = Fixture::new();
    fixture.root("csv", "1.0");
    let staged = fixture.stage("s1", "csv").await.expect("staged");
    let pinned = format!("csv@sha256:{}", staged.digest);
    // Its copy in the root is broken, in the front matter and in its files.
    fs::write(fixture.path("root/csv/SKILL.md"), "no front matter").expect("write");
    nix::unistd::mkfifo(
        &fixture.path("root/csv/fifo"),
        nix::sys::stat::Mode::S_IRUSR,
    )
    .expect("fifo");
    assert!(fixture.stage("s2", "csv").await.is_err());
    assert_eq!(
        fixture.stage("s2", &pinned).await.expect("staged").digest,
        staged.digest
    );
    assert_eq!(fixture.script("s2", "csv"), "echo 1.0\n");
    // Gone altogether.
    fs::remove_dir_all(fixture.path("root/csv")).expect("removed");
    let again = fixture.stage("s2", &pinned).await.expect("staged");
    assert!(again.unchanged && again.version == "1.0", "{again:?}");
    // Under another name it is not there.
    let other = format!("other@sha256:{}", staged.digest);
    assert!(fixture.stage("s2", &other).await.is_err());
}

#[tokio::test]
async fn what_a_power_cut_takes_of_the_store_is_copied_again() {
    let mut fixture = Fixture::new();
    fixture.root("local", "1.0");
    let staged = fixture.stage("s1", "local").await.expect("staged");
    let stored = fixture.path("state/skills/sha256").join(&staged.digest);
    let script = stored.join("bin/run.sh");
    let lose: [fn(&Path); 3] = [
        |script| fs::write(script, "").expect("emptied"),
        |script| fs::remove_file(script).expect("removed"),
        |script| {
            let stored = script.ancestors().nth(2).expect("the skill");
            fs::remove_dir_all(stored).expect("removed");
            fs::create_dir(stored).expect("an empty folder");
        },
    ];
    for lose in lose {
        if script.exists() {
            fs::set_permissions(&script, fs::Permissions::from_mode(0o755)).expect("chmod");
        }
        lose(&script);
        fixture.reopen();
        let _gone = fs::remove_dir_all(fixture.path("state/slots/s2/skills/local"));
        let again = fixture.stage("s2", "local").await.expect("staged");
        assert_eq!(again.digest, staged.digest);
        assert_eq!(fixture.script("s2", "local"), "echo 1.0\n");
    }
}

#[tokio::test]
async fn altered_files_of_the_store_are_never_staged() {
    let fixture = Fixture::new();
    fixture.root("local", "1.0");
    fixture
        .publish("csv", &skill("csv", "1.0"))
        .await
        .expect("published");
    let digests: BTreeMap<&str, String> = [
        (
            "local",
            fixture.stage("s1", "local").await.expect("staged").digest,
        ),
        (
            "csv",
            fixture.stage("s1", "csv").await.expect("staged").digest,
        ),
    ]
    .into();
    let alter = |name: &str| {
        let path = fixture
            .path("state/skills/sha256")
            .join(&digests[name])
            .join("bin/run.sh");
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).expect("chmod");
        fs::write(&path, "echo evil\n").expect("write");
    };
    alter("local");
    alter("csv");
    // What a root has is copied again.
    let staged = fixture.stage("s2", "local").await.expect("staged");
    assert_eq!(staged.digest, digests["local"]);
    assert_eq!(fixture.script("s2", "local"), "echo 1.0\n");
    // What is nowhere else says so, until it is published again.
    let error = fixture.stage("s2", "csv").await.expect_err("damaged");
    assert_eq!(error.kind().1, Reason::SkillInvalid);
    let listed = fixture.listed("csv").await;
    assert_eq!(listed[0].state, SkillState::Rejected);
    assert_eq!(listed[0].problems[0].code, "skill.damaged");
    fixture
        .publish("csv", &skill("csv", "1.0"))
        .await
        .expect("published");
    fixture.stage("s2", "csv").await.expect("staged");
    assert_eq!(fixture.script("s2", "csv"), "echo 1.0\n");
    // By digest it is the same.
    alter("csv");
    let pinned = format!("csv@sha256:{}", digests["csv"]);
    assert!(fixture.stage("s1", &pinned).await.is_err());
}

#[tokio::test]
async fn lower_limits_take_nothing_that_is_published() {
    let mut fixture = Fixture::new();
    fixture
        .publish("csv", &skill("csv", "1.0"))
        .await
        .expect("published");
    let limits = (fixture.config.files_max, fixture.config.bytes_max);
    (fixture.config.files_max, fixture.config.bytes_max) = (1, 1);
    fixture.reopen();
    let error = fixture.publish("other", &skill("other", "1.0")).await;
    error.expect_err("new skills are held to the limits");
    let listed = fixture.listed("csv").await;
    assert_eq!(listed[0].state, SkillState::Loaded, "{listed:?}");
    fixture.stage("s1", "csv").await.expect("staged");
    let pinned = format!("csv@sha256:{}", fixture.stored()[0]);
    fixture.stage("s2", &pinned).await.expect("staged");
    (fixture.config.files_max, fixture.config.bytes_max) = limits;
    fixture.reopen();
    let _gone = fs::remove_dir_all(fixture.path("state/slots/s2/skills/csv"));
    fixture.stage("s2", "csv").await.expect("it is still there");
    assert_eq!(fixture.script("s2", "csv"), "echo 1.0\n");
}

#[tokio::test]
async fn a_record_that_cannot_be_read_is_a_problem_and_not_a_failure() {
    let mut fixture = Fixture::new();
    fixture
        .publish("csv", &skill("csv", "1.0"))
        .await
        .expect("published");
    let records = fixture.path("state/skills/published");
    let digest = fixture.stored()[0].clone();
    fs::create_dir(records.join("other")).expect("mkdir");
    fs::copy(
        records.join(format!("csv/{digest}.json")),
        records.join(format!("other/{digest}.json")),
    )
    .expect("copied");
    fs::write(records.join("other/half.json"), "{").expect("write");
    fixture.reopen();
    let listing = fixture.skills.list().await.expect("listed");
    let codes: Vec<&str> = listing
        .problems
        .iter()
        .map(|problem| problem.code)
        .collect();
    assert_eq!(codes, ["published.unreadable"; 2]);
    assert_eq!(listing.skills.len(), 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn sixteen_may_publish_at_once() {
    let fixture = Fixture::new();
    let same = skill("same", "1.0");
    let publishes = (0..16).map(|at| {
        let (fixture, same) = (&fixture, &same);
        async move {
            let name = format!("skill-{at}");
            let own = fixture
                .publish(&name, &skill(&name, "1.0"))
                .await
                .expect("published");
            // All publish this one; and each its own content of a version that only one can have.
            let same = fixture.publish("same", same).await.expect("published");
            let front = format!("---\nname: one\ndescription: by {at}\nversion: 1.0\n---\n");
            let one = fixture
                .publish("one", &tar_of([("SKILL.md", front.as_bytes(), 0o644)]))
                .await;
            (
                own.state,
                same.content.expect("content").digest,
                one.is_ok(),
            )
        }
    });
    let done = futures::future::join_all(publishes).await;
    assert!(
        done.iter()
            .all(|(state, digest, _)| *state == SkillState::Loaded && *digest == done[0].1)
    );
    assert_eq!(done.iter().filter(|(_, _, won)| *won).count(), 1);
    let listing = fixture.skills.list().await.expect("listed");
    assert_eq!(listing.skills.len(), 18);
    assert!(
        listing
            .skills
            .iter()
            .all(|skill| skill.state == SkillState::Loaded)
    );
    assert_eq!(
        names(&fixture.path("state/skills/tmp")),
        Vec::<String>::new()
    );
}

/// A thousand steps of four, on the same two skills, with a store that keeps nothing a moment longer than it must.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn publish_delete_stage_and_collect_at_once_never_corrupt_anything() {
    const ROUNDS: usize = 250;
    let fixture = Fixture::keeping(Duration::from_nanos(1));
    fixture.root("local", "1.0");
    let publish = async {
        for round in 0..ROUNDS {
            let version = format!("{}.0", round % 2);
            // Also if it is deleted before the answer is made.
            let skill = fixture
                .publish("csv", &skill("csv", &version))
                .await
                .expect("published");
            assert_eq!(skill.state, SkillState::Loaded, "{skill:?}");
            assert_eq!(skill.front_matter.version, version);
            assert_eq!(skill.content.map(|content| content.files), Some(2));
        }
    };
    let delete = async {
        for round in 0..ROUNDS {
            let which = match round % 3 {
                0 => Which::All,
                one => Which::Version(format!("{}.0", one - 1)),
            };
            if let Err(error) = fixture.skills.delete("csv".to_owned(), which).await {
                assert_eq!(error.kind().1, Reason::SkillNotFound, "{error}");
            }
        }
    };
    let stage = async {
        let mut staged = 0;
        for round in 0..ROUNDS {
            if round % 5 == 0 {
                fixture.root("local", &format!("{round}.0"));
            }
            let name = if round % 2 == 0 { "local" } else { "csv" };
            match fixture.stage("s1", name).await {
                Ok(skill) => {
                    staged += 1;
                    assert_eq!(
                        fixture.script("s1", name),
                        format!("echo {}\n", skill.version)
                    );
                }
                Err(error) => {
                    let absent =
                        matches!(error.kind().1, Reason::SkillNotFound | Reason::SkillInvalid);
                    assert!(absent && name == "csv", "{name}: {error}");
                }
            }
        }
        staged
    };
    let collect = async {
        for _ in 0..ROUNDS {
            fixture.collect(&[]).await;
        }
    };
    let ((), (), staged, ()) = tokio::join!(publish, delete, stage, collect);
    assert!(staged >= ROUNDS / 2, "only {staged} were staged");
    // Whatever is published now is whole.
    fixture
        .publish("csv", &skill("csv", "9.0"))
        .await
        .expect("published");
    fixture.collect(&[]).await;
    fixture.assert_whole().await;
    assert_eq!(
        names(&fixture.path("state/skills/tmp")),
        Vec::<String>::new()
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_file_that_is_read_is_there_until_it_is_open() {
    const ROUNDS: usize = 200;
    let fixture = Fixture::keeping(Duration::from_nanos(1));
    let read = async {
        let mut opened = 0;
        for _ in 0..ROUNDS {
            let published = fixture.publish("csv", &skill("csv", "1.0")).await;
            let digest = published
                .expect("published")
                .content
                .expect("content")
                .digest;
            let deleted = fixture.skills.delete("csv".to_owned(), Which::All);
            deleted.await.expect("deleted");
            let wanted = SkillRef::parse("skills", &format!("csv@sha256:{digest}"));
            let file =
                fixture
                    .skills
                    .open_file(wanted.expect("valid"), "bin/run.sh".to_owned(), false);
            match file.await {
                Ok((file, mut opened_file)) => {
                    opened += 1;
                    let mut text = String::new();
                    opened_file.read_to_string(&mut text).expect("read");
                    assert_eq!((text.as_str(), file.size), ("echo 1.0\n", 9));
                }
                // Collected before it was asked for; anything else would be our fault.
                Err(error) => assert_eq!(error.kind().1, Reason::SkillNotFound, "{error}"),
            }
        }
        opened
    };
    let collect = async {
        for _ in 0..ROUNDS * 4 {
            fixture.collect(&[]).await;
        }
    };
    let (opened, ()) = tokio::join!(read, collect);
    println!("{opened} of {ROUNDS} were there");
}

#[tokio::test]
async fn one_content_under_two_names_has_each_its_own() {
    let mut fixture = Fixture::new();
    // It says no name, so it has the one that it is published under.
    let nameless = tar_of([("SKILL.md", b"---\ndescription: d\n---\n".as_slice(), 0o644)]);
    let mut digests = HashSet::new();
    for name in ["one", "two"] {
        let published = fixture.publish(name, &nameless).await.expect("published");
        assert_eq!(published.name, name);
        digests.insert(published.content.expect("content").digest);
    }
    assert_eq!(digests.len(), 1, "one document");
    for _ in 0..2 {
        for name in ["one", "two"] {
            let listed = fixture.listed(name).await;
            let names: Vec<_> = listed
                .iter()
                .map(|skill| skill.front_matter.name.as_str())
                .collect();
            assert_eq!(names, [name]);
            let staged = fixture.stage("s1", name).await.expect("staged");
            assert_eq!(staged.name, name);
        }
        fixture.reopen();
    }
    let deleted = fixture.skills.delete("one".to_owned(), Which::All);
    deleted.await.expect("deleted");
    assert!(fixture.listed("one").await.is_empty());
    assert_eq!(fixture.listed("two").await.len(), 1);
}

#[tokio::test]
async fn what_was_lost_is_there_again_when_it_is_published_again() {
    let mut fixture = Fixture::new();
    let archive = skill("csv", "1.0");
    fixture.publish("csv", &archive).await.expect("published");
    let digest = fixture.stored().remove(0);
    fs::remove_dir_all(fixture.path("state/skills/sha256").join(digest)).expect("removed");
    fixture.reopen();
    let listed = fixture.listed("csv").await;
    assert_eq!(listed.len(), 1, "under its own name");
    assert_eq!(listed[0].state, SkillState::Rejected);
    let published = fixture.publish("csv", &archive).await.expect("published");
    assert_eq!(
        published.state,
        SkillState::Loaded,
        "{:?}",
        published.problems
    );
    assert_eq!(fixture.listed("csv").await[0].state, SkillState::Loaded);
    fixture.stage("s1", "csv").await.expect("staged");
}

#[tokio::test]
async fn everything_that_rejects_a_skill_is_said_with_its_line() {
    let fixture = Fixture::new();
    let archive = tar_of([("SKILL.md", b"---\nname: csv\n---\n".as_slice(), 0o644)]);
    let error = fixture
        .publish("csv", &archive)
        .await
        .expect_err("no description");
    assert_eq!(error.kind().1, Reason::SkillInvalid);
    assert!(
        error.to_string().contains("skill.no_description"),
        "{error}"
    );
    let text = "---\nname: csv\ndescription: d\nextra: a\0b\n---\n";
    let archive = tar_of([("SKILL.md", text.as_bytes(), 0o644)]);
    let error = fixture.publish("csv", &archive).await.expect_err("a NUL");
    assert!(
        error.to_string().contains("skill.nul (line 4): "),
        "{error}"
    );
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, ..ProptestConfig::default() })]

    /// Whatever way a folder comes, it is the same skill: digest, bytes and modes.
    #[test]
    fn an_archive_of_a_folder_is_that_folder(
        files in proptest::collection::btree_map(
            "[a-z]{1,3}(/[a-zA-Z0-9 ._-]{0,6}[a-z]){0,3}",
            (proptest::collection::vec(any::<u8>(), 0..300), any::<bool>()),
            0..8,
        ),
        zipped in any::<bool>(),
        wrapped in any::<bool>(),
    ) {
        // A path that is beneath another one's file, or differs in case only, is no folder's.
        let mut seen: BTreeMap<String, ()> = BTreeMap::new();
        let mut kept = vec![(
            "SKILL.md".to_owned(),
            b"---\nname: any\ndescription: d\n---\n".to_vec(),
            false,
        )];
        for (path, (data, executable)) in files {
            let low = path.to_lowercase();
            let litter = path.split('/').any(|name| name.starts_with("._"));
            let beneath = seen.keys().any(|one| {
                low.starts_with(&format!("{one}/")) || one.starts_with(&format!("{low}/"))
            });
            let parents_differ = kept.iter().any(|(other, _, _)| {
                let (a, b) = (other.split('/'), path.split('/'));
                a.zip(b).any(|(a, b)| a != b && a.eq_ignore_ascii_case(b))
            });
            if !litter && !beneath && !parents_differ && !seen.contains_key(&low) && low != "skill.md" {
                seen.insert(low, ());
                kept.push((path, data, executable));
            }
        }
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("runtime");
        runtime.block_on(same_either_way(&kept, zipped, wrapped));
    }
}

async fn same_either_way(files: &[(String, Vec<u8>, bool)], zipped: bool, wrapped: bool) {
    let fixture = Fixture::new();
    let mode = |executable: bool| if executable { 0o755 } else { 0o644 };
    for (path, data, executable) in files {
        let place = fixture.path("root/any").join(path);
        fs::create_dir_all(place.parent().expect("parent")).expect("mkdir");
        fs::write(&place, data).expect("write");
        fs::set_permissions(&place, fs::Permissions::from_mode(mode(*executable))).expect("chmod");
    }
    let of_root = fixture
        .listed("any")
        .await
        .remove(0)
        .content
        .expect("content");
    fs::remove_dir_all(fixture.path("root/any")).expect("removed");
    let prefix = if wrapped { "folder/" } else { "" };
    let named: Vec<(String, &[u8], u32)> = files
        .iter()
        .map(|(path, data, executable)| {
            (
                format!("{prefix}{path}"),
                data.as_slice(),
                mode(*executable),
            )
        })
        .collect();
    let named: Vec<(&str, &[u8], u32)> = named
        .iter()
        .map(|(path, data, mode)| (path.as_str(), *data, *mode))
        .collect();
    let archive = if zipped {
        zip_of(&named)
    } else {
        tar_of(named)
    };
    let published = fixture.publish("any", &archive).await.expect("published");
    assert_eq!(published.content.expect("content"), of_root);
    fixture.stage("s1", "any").await.expect("staged");
    for (path, data, executable) in files {
        let place = fixture.path("state/slots/s1/skills/any").join(path);
        assert_eq!(&fs::read(&place).expect("staged"), data);
        let bits = fs::metadata(&place).expect("staged").permissions().mode();
        assert_eq!(bits & 0o777, if *executable { 0o555 } else { 0o444 });
    }
}

// === through the rpcs ===

fn header(kind: pb::publish_skill_header::Kind, sha256: &str) -> Payload {
    Payload::Header(pb::PublishSkillHeader {
        kind: kind.into(),
        sha256: sha256.to_owned(),
    })
}

fn messages(name: &str, sha256: &str, archive: &[u8]) -> Vec<pb::PublishSkillRequest> {
    let message = |payload| pb::PublishSkillRequest {
        name: String::new(),
        payload: Some(payload),
    };
    let mut first = message(header(pb::publish_skill_header::Kind::Unspecified, sha256));
    first.name = format!("skills/{name}");
    let data = archive
        .chunks(700)
        .map(|piece| message(Payload::Data(piece.to_vec().into())));
    std::iter::once(first).chain(data).collect()
}

fn reason(status: &Status) -> String {
    let details = status.get_error_details();
    details
        .error_info()
        .map(|info| info.reason.clone())
        .unwrap_or_default()
}

#[tokio::test]
async fn publish_and_delete_through_the_api() {
    let server = TestServer::start("", &[("local", "name: local\ndescription: d")]).await;
    let mut skills = server.client.skills();
    let archive = skill("csv", "1.0");
    let sha256 = HEXLOWER.encode(&Sha256::digest(&archive)).to_uppercase();
    let published = skills
        .publish_skill(stream::iter(messages("csv", &sha256, &archive)))
        .await
        .expect("published")
        .into_inner();
    assert_eq!(published.name, "skills/csv");
    assert_eq!(published.state(), pb::SkillState::Loaded);
    assert_eq!((published.files, published.version.as_str()), (2, "1.0"));
    let got = server.client.get_skill("csv@1.0").await.expect("there");
    assert_eq!(
        (got.digest.as_str(), got.body.as_str()),
        (published.digest.as_str(), "# csv\n")
    );
    let workspace = server.workspace().await;
    let staged = server
        .client
        .stage_skills(&workspace, &["csv"])
        .await
        .expect("staged");
    assert_eq!(staged[0].digest, published.digest);
    let refreshed = skills
        .refresh_skills(pb::RefreshSkillsRequest {})
        .await
        .expect("refreshed")
        .into_inner();
    assert_eq!(
        (refreshed.loaded, refreshed.rejected, refreshed.shadowed),
        (2, 0, 0)
    );

    let delete = async |name: &str| {
        let request = pb::DeleteSkillRequest {
            name: name.to_owned(),
        };
        server.client.skills().delete_skill(request).await
    };
    let status = delete("skills/local").await.expect_err("of a root");
    assert_eq!(
        (status.code(), reason(&status).as_str()),
        (Code::FailedPrecondition, "READ_ONLY")
    );
    delete(&format!("skills/csv@{}", published.digest))
        .await
        .expect("deleted");
    let status = delete("skills/csv").await.expect_err("gone");
    assert_eq!(
        (status.code(), reason(&status).as_str()),
        (Code::NotFound, "SKILL_NOT_FOUND")
    );
    assert_eq!(
        server
            .client
            .stage_skills(&workspace, &[format!("csv@{}", published.digest)])
            .await
            .expect("still stored")[0]
            .digest,
        published.digest
    );
    assert!(server.stop().await);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_archive_keeps_its_place_until_it_is_unpacked_whoever_waits_for_it() {
    let server = TestServer::start("skills.publishes_max = 1", &[]).await;
    let tmp = server.state_dir().join("skills/tmp");
    let large = {
        let data: Vec<String> = (0..2_000).map(|n| format!("data/{n}")).collect();
        let own = files("large", "1.0");
        let own = own
            .iter()
            .map(|(path, text, mode)| (*path, text.as_bytes(), *mode));
        tar_of(
            own.chain(
                data.iter()
                    .map(|path| (path.as_str(), path.as_bytes(), 0o644)),
            ),
        )
    };
    let mut skills = server.client.skills();
    let unpacking = async {
        let begun = || {
            names(&tmp)
                .iter()
                .any(|name| tmp.join(name).join("skill").is_dir())
        };
        while !begun() {
            tokio::task::yield_now().await;
        }
    };
    tokio::select! {
        () = unpacking => {}
        done = skills.publish_skill(stream::iter(messages("large", "", &large))) => {
            panic!("it was seen too late: {done:?}");
        }
    }
    // Its client has gone, and it has not ended.
    let small = messages("small", "", &skill("small", "1.0"));
    let mut skills = server.client.skills();
    skills
        .publish_skill(stream::iter(small))
        .await
        .expect("published");
    assert_eq!(
        names(&tmp),
        Vec::<String>::new(),
        "two were unpacked at once"
    );
    server
        .client
        .get_skill("large")
        .await
        .expect("published as well");
    assert!(server.stop().await);
}

#[tokio::test]
#[expect(clippy::too_many_lines, reason = "a table")]
async fn uploads_that_lie_end_early_or_fall_silent_leave_nothing() {
    let server = TestServer::start(
        "server.upload_timeout = \"300ms\"\nskills.publish_bytes_max = \"64KiB\"",
        &[],
    )
    .await;
    let mut skills = server.client.skills();
    let archive = skill("csv", "1.0");
    let link = {
        let mut builder = tar::Builder::new(Vec::new());
        let mut header = tar::Header::new_gnu();
        header.set_entry_type(tar::EntryType::Symlink);
        header.set_size(0);
        builder
            .append_link(&mut header, "link", "/etc/passwd")
            .expect("tar");
        builder.into_inner().expect("tar")
    };
    let climbing = zip_of(&[("../../../tmp/skilld-escaped", b"x", 0o644)]);
    let bomb = {
        let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
        encoder.write_all(&vec![0; 6 << 20]).expect("gzip");
        encoder.finish().expect("gzip")
    };
    let mut twice = messages("csv", "", &archive);
    twice[1] = pb::PublishSkillRequest {
        name: String::new(),
        payload: Some(header(pb::publish_skill_header::Kind::Tar, "")),
    };
    let mut wrong_kind = messages("csv", "", &archive);
    wrong_kind[0].payload = Some(header(pb::publish_skill_header::Kind::Zip, ""));
    for (what, messages, code, expected) in [
        (
            "another checksum",
            messages("csv", &"0".repeat(64), &archive),
            Code::InvalidArgument,
            "CHECKSUM_MISMATCH",
        ),
        (
            "cut off",
            messages("csv", "", &archive[..archive.len() - 1100]),
            Code::InvalidArgument,
            "ARCHIVE_INVALID",
        ),
        (
            "no bytes",
            messages("csv", "", b""),
            Code::InvalidArgument,
            "ARCHIVE_INVALID",
        ),
        (
            "a link out",
            messages("csv", "", &link),
            Code::InvalidArgument,
            "ARCHIVE_INVALID",
        ),
        (
            "a climbing name",
            messages("csv", "", &climbing),
            Code::InvalidArgument,
            "ARCHIVE_INVALID",
        ),
        (
            "a bomb",
            messages("csv", "", &bomb),
            Code::ResourceExhausted,
            "LIMIT_EXCEEDED",
        ),
        (
            "too large",
            messages("csv", "", &vec![b'x'; 70 << 10]),
            Code::ResourceExhausted,
            "LIMIT_EXCEEDED",
        ),
        (
            "another name",
            messages("other", "", &archive),
            Code::InvalidArgument,
            "INVALID_REQUEST",
        ),
        (
            "a name that is a path",
            messages("../csv", "", &archive),
            Code::InvalidArgument,
            "INVALID_REQUEST",
        ),
        (
            "two headers",
            twice,
            Code::InvalidArgument,
            "INVALID_REQUEST",
        ),
        (
            "another kind",
            wrong_kind,
            Code::InvalidArgument,
            "ARCHIVE_INVALID",
        ),
        (
            "no header",
            messages("csv", "", &archive).split_off(1),
            Code::InvalidArgument,
            "INVALID_REQUEST",
        ),
        (
            "nothing",
            Vec::new(),
            Code::InvalidArgument,
            "INVALID_REQUEST",
        ),
    ] {
        let status = skills
            .publish_skill(stream::iter(messages))
            .await
            .expect_err(what);
        assert_eq!(
            (status.code(), reason(&status).as_str()),
            (code, expected),
            "{what}: {status}"
        );
    }
    let silent = futures::StreamExt::chain(
        stream::iter(messages("csv", "", &archive)),
        stream::pending(),
    );
    let status = skills.publish_skill(silent).await.expect_err("silent");
    assert_eq!(
        (status.code(), reason(&status).as_str()),
        (Code::DeadlineExceeded, "DEADLINE")
    );
    assert!(!Path::new("/tmp/skilld-escaped").exists());
    let server = server
        .restart(|state| {
            for dir in ["tmp", "sha256", "published"] {
                assert_eq!(
                    names(&state.join("skills").join(dir)),
                    Vec::<String>::new(),
                    "{dir}"
                );
            }
        })
        .await;
    assert!(server.stop().await);
}

#[tokio::test]
async fn an_unused_digest_leaves_the_store_of_a_running_server() {
    let server = TestServer::start("skills.keep_unused = \"1ms\"", &[]).await;
    let mut skills = server.client.skills();
    let mut publish = async |version: &str| {
        let messages = messages("csv", "", &skill("csv", version));
        skills
            .publish_skill(stream::iter(messages))
            .await
            .expect("published")
            .into_inner()
            .digest
    };
    let (first, second) = (publish("1.0").await, publish("2.0").await);
    let workspace = server.workspace().await;
    server
        .client
        .stage_skills(&workspace, &[format!("csv@{second}")])
        .await
        .expect("staged");
    let request = pb::DeleteSkillRequest {
        name: "skills/csv".to_owned(),
    };
    server
        .client
        .skills()
        .delete_skill(request)
        .await
        .expect("deleted");
    // The sweep comes right after the delete and once more when the time is over.
    let store = server.state_dir().join("skills/sha256");
    let digest = |text: &str| text.trim_start_matches("sha256:").to_owned();
    let gone = async {
        while store.join(digest(&first)).exists() {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(60), gone)
        .await
        .expect("collected");
    // The workspace's record holds the other one.
    assert_eq!(names(&store), [digest(&second)]);
    let again = format!("csv@{second}");
    server
        .client
        .stage_skills(&workspace, &[again])
        .await
        .expect("staged");
    assert!(server.stop().await);
}
