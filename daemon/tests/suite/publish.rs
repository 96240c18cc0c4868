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
use skilld::config::Config;
use skilld::error::Error;
use skilld::shutdown::Tasks;
use skilld::skills::{
    Skill, SkillRef, SkillRoot, SkillState, Skills, SkillsOptions, StagedSkill, VersionSelector,
};
use skilld_proto::v1::publish_skill_request::Payload;
use skilld_proto::v1::{self as pb, ErrorReason};
use skilld_tests::task_dir::TaskDir;
use tonic::{Code, Status};
use tonic_types::StatusExt;

mod added_packages;
mod cards;
mod environments;
mod rpcs;
mod store;
use crate::server::{TestServer, assert_empty, names, wait_until, within};
use crate::written_files::{replace_directory, unused_path, write_file};

/// A root, a state directory and slots, all temporary.
struct Fixture {
    dir: TaskDir,
    tasks: skilld_skills::TaskSpawner,
    config: SkillsOptions,
    skills: Skills,
}

impl Fixture {
    fn new() -> Self {
        Self::keeping(Duration::from_secs(3600))
    }

    fn keeping(keep_unused: Duration) -> Self {
        let tasks = Tasks::default().for_skills();
        let dir = TaskDir::new(&tasks.tracker);
        let root = dir.path().join("root");
        let config = SkillsOptions {
            roots: vec![SkillRoot::Dir {
                text: root.display().to_string(),
                path: root,
            }],
            keep_unused,
            ..Config::from_toml("")
                .expect("configuration")
                .config
                .skills
                .options
        };
        for sub in ["root", "state/slots/s1/skills", "state/slots/s2/skills"] {
            fs::create_dir_all(dir.path().join(sub)).expect("mkdir");
        }
        let skills = open(&config, dir.path(), &tasks);
        Self {
            dir,
            tasks,
            config,
            skills,
        }
    }

    /// Opens the skills again, as a restarted daemon does.
    fn reopen(&mut self) {
        self.skills = open(&self.config, self.dir.path(), &self.tasks);
    }

    fn path(&self, path: &str) -> PathBuf {
        self.dir.path().join(path)
    }

    /// Puts a skill into the root.
    fn root(&self, name: &str, version: &str) {
        let made = unused_path(&self.dir, name);
        for (path, text, mode) in files(name, version) {
            write_file(&made.join(path), text, mode);
        }
        replace_directory(&made, &self.path("root").join(name));
    }

    /// Takes a skill out of the root in one step.
    fn remove_root(&self, name: &str) {
        let place = self.path("root").join(name);
        fs::rename(place, unused_path(&self.dir, name)).expect("removed");
    }

    async fn publish(&self, name: &str, archive: &[u8]) -> Result<Skill, Error> {
        let mut file = self.skills.create_upload().await?;
        file.write_all(archive).expect("written");
        Ok(self
            .skills
            .publish(name.to_owned(), file, None, None)
            .await?)
    }

    /// Publishes a version of a skill of these files, which must succeed.
    async fn publish_skill(&self, name: &str, version: &str) -> Skill {
        let published = self.publish(name, &skill(name, version)).await;
        published.expect("published")
    }

    async fn stage(&self, slot: &str, skill: &str) -> Result<StagedSkill, Error> {
        let target = self.path("state/slots").join(slot).join("skills");
        let skill = SkillRef::parse("skills", skill).expect("valid");
        self.skills.rescan().await?;
        let leased = self.skills.lease_to_stage(vec![skill]).await?;
        let staged = self.skills.stage(&target, leased).await?;
        Ok(staged.into_iter().next().expect("one"))
    }

    fn script(&self, slot: &str, name: &str) -> String {
        let path = format!("state/slots/{slot}/skills/{name}/bin/run.sh");
        fs::read_to_string(self.path(&path)).expect("staged")
    }

    async fn listed(&self, name: &str) -> Vec<Skill> {
        self.skills.rescan().await.expect("scanned");
        let listing = self.skills.list().await.expect("listed");
        let skills = listing.skills.into_iter();
        skills.filter(|skill| skill.name == name).collect()
    }

    async fn collect(&self, staged: &[&str]) -> usize {
        let digests: HashSet<String> = staged.iter().map(|digest| (*digest).to_owned()).collect();
        self.skills
            .collect(digests)
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

    /// Asserts that a failed operation left nothing.
    fn assert_untouched(&self, what: &str) {
        for dir in ["tmp", "sha256", "published", "used"] {
            let left = names(&self.path("state/skills").join(dir));
            assert_eq!(left, Vec::<String>::new(), "{what} left something in {dir}");
        }
    }
}

fn open(config: &SkillsOptions, dir: &Path, tasks: &skilld_skills::TaskSpawner) -> Skills {
    Skills::open(config, &dir.join("state"), tasks.clone()).expect("open")
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
    let published = fixture.publish_skill("csv", "1.0").await;
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
    assert_empty(&fixture.path("state/skills/tmp"));
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
    let wrapped: Vec<_> = files
        .iter()
        .map(|(path, text, mode)| (format!("wrapper/{path}"), text.as_bytes(), *mode))
        .collect();
    let zipped: Vec<_> = wrapped
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
    fixture.publish_skill("csv", "1.0").await;
    let other = tar_of([(
        "SKILL.md",
        b"---\nname: csv\ndescription: other\nversion: 1.0\n---\n".as_slice(),
        0o644,
    )]);
    let error = fixture.publish("csv", &other).await.expect_err("taken");
    assert_eq!(error.kind(), (Code::AlreadyExists, ErrorReason::IdTaken));
    assert!(error.to_string().contains("version 1.0"), "{error}");
    fixture.publish_skill("csv", "2.0").await;
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
    assert_eq!(error.kind().1, ErrorReason::IdTaken);
}

#[tokio::test]
async fn published_versions_are_deleted_and_those_of_roots_are_not() {
    let mut fixture = Fixture::new();
    fixture.root("local", "1.0");
    let mut digests = Vec::new();
    for version in ["1.0", "1.1", "2.0"] {
        let skill = fixture.publish_skill("csv", version).await;
        digests.push(skill.content.expect("content").digest);
    }
    fixture.stage("s1", "csv@1.0").await.expect("staged");
    let delete = async |fixture: &Fixture, name: &str, which: VersionSelector| {
        fixture
            .skills
            .delete(name.to_owned(), which)
            .await
            .map_err(Error::from)
    };
    delete(&fixture, "csv", VersionSelector::Version("1.0".to_owned()))
        .await
        .expect("deleted");
    assert_eq!(fixture.listed("csv").await.len(), 2);
    // Who has it staged keeps it, and it stays in the store for now, beside the skill of the root.
    assert_eq!(fixture.script("s1", "csv"), "echo 1.0\n");
    assert_eq!(fixture.stored().len(), 4);
    let error = delete(&fixture, "csv", VersionSelector::Version("1.0".to_owned()))
        .await
        .expect_err("gone");
    assert_eq!(error.kind().1, ErrorReason::SkillNotFound);
    assert!(error.to_string().contains("csv@2.0"), "{error}");
    delete(&fixture, "csv", VersionSelector::Digest(digests[1].clone()))
        .await
        .expect("deleted");
    fixture.publish_skill("csv", "1.0").await;
    delete(&fixture, "csv", VersionSelector::All)
        .await
        .expect("deleted");
    assert_empty(&fixture.path("state/skills/published"));
    assert!(fixture.listed("csv").await.is_empty());
    fixture.reopen();
    assert!(fixture.listed("csv").await.is_empty());
    for which in [
        VersionSelector::All,
        VersionSelector::Version("1.0".to_owned()),
    ] {
        let error = delete(&fixture, "local", which)
            .await
            .expect_err("of a root");
        assert_eq!(
            error.kind(),
            (Code::FailedPrecondition, ErrorReason::ReadOnly)
        );
    }
    for (name, which) in [
        ("local", VersionSelector::Version("9".to_owned())),
        ("nothing", VersionSelector::All),
    ] {
        let error = delete(&fixture, name, which).await.expect_err("unknown");
        assert_eq!(error.kind(), (Code::NotFound, ErrorReason::SkillNotFound));
    }
}

#[tokio::test]
async fn an_archive_without_exactly_that_skill_leaves_nothing() {
    let fixture = Fixture::new();
    let front: &[u8] = b"---\nname: csv\ndescription: d\n---\n";
    let plain = |path: &'static str| (path, b"x".as_slice(), 0o644);
    for (what, archive, reason, text) in [
        (
            "another name",
            skill("other", "1"),
            ErrorReason::InvalidRequest,
            "is named other",
        ),
        (
            "no document",
            tar_of([plain("a/x"), plain("README.md")]),
            ErrorReason::ArchiveInvalid,
            "no SKILL.md at its top",
        ),
        (
            "two skills",
            tar_of([("a/SKILL.md", front, 0o644), ("b/SKILL.md", front, 0o644)]),
            ErrorReason::ArchiveInvalid,
            "there is a/SKILL.md; there is b/SKILL.md",
        ),
        (
            "deeper than one folder",
            tar_of([("repo/skills/csv/SKILL.md", front, 0o644)]),
            ErrorReason::ArchiveInvalid,
            "there is skills/csv/SKILL.md",
        ),
        (
            "no front matter",
            tar_of([plain("SKILL.md")]),
            ErrorReason::SkillInvalid,
            "skill.",
        ),
        (
            "no archive",
            b"\x7fELF\0".to_vec(),
            ErrorReason::ArchiveInvalid,
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
            ErrorReason::SkillInvalid,
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
async fn the_archive_names_a_skill_published_without_a_name() {
    let fixture = Fixture::new();
    let named = |name: &str| format!("---\nname: {name}\ndescription: d\n---\n");
    let bare = "---\ndescription: d\n---\n";
    for (path, text, expected) in [
        ("SKILL.md", named("hello"), "hello"),
        ("hello-1.1/SKILL.md", named("hello-too"), "hello-too"),
        ("from-folder/SKILL.md", bare.to_owned(), "from-folder"),
        ("SKILL.md", named("数据报表"), "skill-ef1c3801"),
    ] {
        let archive = tar_of([(path, text.as_bytes(), 0o644)]);
        let published = fixture.publish("", &archive).await.expect(path);
        assert_eq!(published.name, expected);
        assert_eq!(fixture.listed(expected).await.len(), 1);
    }
    let archive = tar_of([("SKILL.md", bare.as_bytes(), 0o644)]);
    let error = fixture.publish("", &archive).await.expect_err("no name");
    let Error::Invalid(faults) = &error else {
        panic!("{error}");
    };
    assert_eq!(faults[0].field, "name");
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
async fn everything_that_rejects_a_skill_is_said_with_its_line() {
    let fixture = Fixture::new();
    let archive = tar_of([("SKILL.md", b"---\nname: csv\n---\n".as_slice(), 0o644)]);
    let error = fixture
        .publish("csv", &archive)
        .await
        .expect_err("no description");
    assert_eq!(error.kind().1, ErrorReason::SkillInvalid);
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

    /// A folder is the same skill in every archive format: digest, bytes and modes.
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
        let _entered = runtime.enter();
        runtime.block_on(same_either_way(&kept, zipped, wrapped));
    }
}

async fn same_either_way(files: &[(String, Vec<u8>, bool)], zipped: bool, wrapped: bool) {
    let fixture = Fixture::new();
    let mode = |executable: bool| if executable { 0o755 } else { 0o644 };
    for (path, data, executable) in files {
        let place = fixture.path("root/any").join(path);
        write_file(&place, data, mode(*executable));
    }
    let of_root = fixture
        .listed("any")
        .await
        .remove(0)
        .content
        .expect("content");
    fs::remove_dir_all(fixture.path("root/any")).expect("removed");
    let prefix = if wrapped { "folder/" } else { "" };
    let prefixed: Vec<(String, &[u8], u32)> = files
        .iter()
        .map(|(path, data, executable)| {
            (
                format!("{prefix}{path}"),
                data.as_slice(),
                mode(*executable),
            )
        })
        .collect();
    let named: Vec<(&str, &[u8], u32)> = prefixed
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
        assert_eq!(bits & 0o777, if *executable { 0o755 } else { 0o644 });
    }
}
