//! Skills from directories into a slot's folder: what is staged, what is refused and why. No Docker.

use std::fs;
use std::io::{Read, Seek};
use std::os::unix::fs::{MetadataExt, symlink};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use skilld::config::Config;
use skilld::shutdown::Tasks;
use skilld::skills::Error;
use skilld::skills::{
    Severity, Skill, SkillRef, SkillRoot, SkillState, Skills, SkillsOptions, StagedSkill,
    ValidationProfile,
};
use skilld_proto::v1::{self as pb, ErrorReason};
use skilld_tests::task_dir::TaskDir;

mod clients;
mod node_packages;
mod plugin_files;
mod roots;
mod writable;
use crate::server::{TestServer, assert_empty, names, wait_until};
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
        Self::with(|_| {})
    }

    fn with(change: impl FnOnce(&mut SkillsOptions)) -> Self {
        let tasks = Tasks::default().for_skills();
        let dir = TaskDir::new(&tasks.tracker);
        let loaded = Config::from_toml("").expect("configuration");
        let mut config = SkillsOptions {
            roots: vec![SkillRoot::dir(&dir.path().join("root"))],
            files_max: 100,
            bytes_max: 1 << 20,
            skill_md_bytes_max: 64 << 10,
            skills_max: 50,
            ..loaded.config.skills.options
        };
        for sub in ["root", "state/slots/s1/skills", "state/slots/s2/skills"] {
            fs::create_dir_all(dir.path().join(sub)).expect("mkdir");
        }
        change(&mut config);
        let skills = Skills::open(&config, &dir.path().join("state"), tasks.clone()).expect("open");
        Self {
            dir,
            tasks,
            config,
            skills,
        }
    }

    fn path(&self, path: &str) -> PathBuf {
        self.dir.path().join(path)
    }

    fn slot(&self, slot: &str) -> PathBuf {
        self.path("state/slots").join(slot).join("skills")
    }

    /// Writes a file below the root, making its directories.
    fn write(&self, path: &str, text: impl AsRef<[u8]>) {
        write_file(&self.path("root").join(path), text, 0o644);
    }

    /// Puts a skill of that name into the root, with a version and a script.
    fn skill(&self, name: &str, version: &str) {
        let front =
            format!("---\nname: {name}\ndescription: d\nversion: {version}\n---\n# {name}\n");
        let (made, script) = (unused_path(&self.dir, name), format!("echo {version}\n"));
        write_file(&made.join("SKILL.md"), front, 0o644);
        write_file(&made.join("bin/run.sh"), script, 0o750);
        replace_directory(&made, &self.path("root").join(name));
    }

    async fn stage(&self, slot: &str, refs: &[&str]) -> Result<Vec<StagedSkill>, Error> {
        let wanted = refs
            .iter()
            .map(|text| SkillRef::parse("skills", text).expect("valid"));
        self.skills.rescan().await?;
        let leased = self.skills.lease_to_stage(wanted.collect()).await?;
        self.skills.stage(&self.slot(slot), leased).await
    }

    fn script(&self, slot: &str) -> String {
        fs::read_to_string(self.slot(slot).join("csv/bin/run.sh")).expect("staged")
    }

    async fn listed(&self, name: &str) -> Skill {
        self.skills.rescan().await.expect("scanned");
        let listing = self.skills.list().await.expect("list");
        let found = listing.skills.into_iter().find(|skill| skill.name == name);
        found.unwrap_or_else(|| panic!("{name} is not listed; {:?}", listing.problems))
    }

    /// The reason that a skill is rejected for, the same in the listing and when it is staged.
    async fn refusal(&self, name: &str) -> String {
        let listed = self.listed(name).await;
        assert_eq!(listed.state, SkillState::Rejected, "{listed:?}");
        let first = listed.problems.first().expect("a reason");
        assert_eq!(first.severity, Severity::Error);
        let error = self.stage("s1", &[name]).await.expect_err("rejected");
        let Error::SkillInvalid { problem, .. } = error else {
            panic!("not SkillInvalid: {error}");
        };
        assert_eq!(problem, format!("{}: {}", first.code, first.message));
        assert_empty(&self.slot("s1"));
        problem
    }
}

#[tokio::test]
async fn a_staged_skill_has_its_files_and_the_four_links() {
    let fixture = Fixture::new();
    fixture.skill("csv", "1.10");
    let staged = fixture.stage("s1", &["csv"]).await.expect("staged");
    assert_eq!(
        (staged[0].name.as_str(), staged[0].version.as_str()),
        ("csv", "1.10")
    );
    assert_eq!((staged[0].files, staged[0].unchanged), (2, false));
    let skill = fixture.slot("s1").join("csv");
    assert_eq!(
        names(&skill),
        [".venv", "SKILL.md", "bin", "inputs", "out", "work"]
    );
    for (link, target) in [
        ("out", "../../out"),
        ("work", "../../work"),
        ("inputs", "../../work/inputs"),
        (".venv", "../../work/.venvs/csv"),
    ] {
        assert_eq!(
            fs::read_link(skill.join(link)).expect("link"),
            Path::new(target)
        );
    }
    let mode = |path: &str| fs::metadata(skill.join(path)).expect("there").mode() & 0o7777;
    assert_eq!([mode("."), mode("bin")], [0o755, 0o755]);
    assert_eq!([mode("SKILL.md"), mode("bin/run.sh")], [0o644, 0o755]);
    assert_eq!(fixture.script("s1"), "echo 1.10\n");
}

#[tokio::test]
async fn no_inode_is_shared_between_root_store_and_slots() {
    let fixture = Fixture::new();
    fixture.skill("csv", "1");
    let staged = fixture.stage("s1", &["csv"]).await.expect("staged");
    fixture.stage("s2", &["csv"]).await.expect("staged");
    let stored = fixture.path("state/skills/sha256").join(&staged[0].digest);
    let inode = |dir: PathBuf| fs::metadata(dir.join("SKILL.md")).expect("there").ino();
    let mut inodes = [
        inode(fixture.path("root/csv")),
        inode(stored),
        inode(fixture.slot("s1").join("csv")),
        inode(fixture.slot("s2").join("csv")),
    ];
    inodes.sort_unstable();
    assert!(
        inodes.windows(2).all(|pair| pair[0] != pair[1]),
        "{inodes:?}"
    );
}

#[tokio::test]
async fn staging_again_is_unchanged_and_a_change_on_disk_is_seen() {
    let fixture = Fixture::new();
    fixture.skill("csv", "1");
    let first = fixture.stage("s1", &["csv"]).await.expect("staged");
    let inode = || {
        fs::metadata(fixture.slot("s1").join("csv"))
            .expect("there")
            .ino()
    };
    let before = inode();
    let again = fixture.stage("s1", &["csv"]).await.expect("staged");
    assert!(again[0].unchanged && again[0].digest == first[0].digest);
    assert_eq!(inode(), before);

    fixture.skill("csv", "2");
    let newer = fixture.stage("s1", &["csv"]).await.expect("staged");
    assert!(!newer[0].unchanged && newer[0].digest != first[0].digest);
    assert_eq!(
        (newer[0].version.as_str(), fixture.script("s1").as_str()),
        ("2", "echo 2\n")
    );
    // What a command that began with it may still use is beside it, under no skill's name.
    let there = names(&fixture.slot("s1"));
    let (aside, skills): (Vec<_>, Vec<_>) = there.iter().partition(|name| name.starts_with('.'));
    assert_eq!(skills, ["csv"]);
    assert!(
        aside.len() == 1 && aside[0].starts_with(".replaced-"),
        "{aside:?}"
    );
    assert_eq!(names(&fixture.path("state/slots/s1")), ["skills", "staged"]);

    // The older one is still in the store, by its digest, also for a daemon that has just been started.
    let skills = Skills::open(
        &fixture.config,
        &fixture.path("state"),
        fixture.tasks.clone(),
    )
    .expect("open");
    let older =
        SkillRef::parse("skills", &format!("csv@sha256:{}", first[0].digest)).expect("valid");
    let leased = skills.lease_to_stage(vec![older]).await.expect("stored");
    let back = skills
        .stage(&fixture.slot("s1"), leased)
        .await
        .expect("staged");
    assert_eq!(
        (&back[0].digest, fixture.script("s1").as_str()),
        (&first[0].digest, "echo 1\n")
    );
    let missing = fixture
        .stage("s1", &[&format!("csv@sha256:{}", "0".repeat(64))])
        .await;
    assert!(
        matches!(missing, Err(Error::SkillNotFound { .. })),
        "{missing:?}"
    );
}

#[tokio::test]
async fn a_reader_keeps_what_it_has_open_when_a_skill_is_replaced() {
    let fixture = Fixture::new();
    fixture.skill("csv", "1");
    fixture.stage("s1", &["csv"]).await.expect("staged");
    let mut open = fs::File::open(fixture.slot("s1").join("csv/bin/run.sh")).expect("open");
    fixture.skill("csv", "2");
    fixture.stage("s1", &["csv"]).await.expect("staged");
    let mut text = String::new();
    open.rewind().expect("rewind");
    open.read_to_string(&mut text).expect("read");
    assert_eq!(
        (text.as_str(), fixture.script("s1").as_str()),
        ("echo 1\n", "echo 2\n")
    );
}

#[test]
fn a_name_never_vanishes_while_it_is_replaced() {
    let runtime = tokio::runtime::Runtime::new().expect("runtime");
    let _entered = runtime.enter();
    let fixture = Fixture::new();
    fixture.skill("csv", "0");
    runtime
        .block_on(fixture.stage("s1", &["csv"]))
        .expect("staged");
    let path = fixture.slot("s1").join("csv/SKILL.md");
    let done = AtomicBool::new(false);
    let reads = std::thread::scope(|scope| {
        let reader = scope.spawn(|| {
            let mut results = Vec::new();
            // At least once: the thread may begin after the last staging.
            loop {
                results.push(fs::read(&path).is_ok());
                if done.load(Ordering::Relaxed) {
                    return results;
                }
            }
        });
        for version in 1..20 {
            fixture.skill("csv", &version.to_string());
            let staged = runtime.block_on(fixture.stage("s1", &["csv"]));
            assert_eq!(staged.map_or(0, |staged| staged.len()), 1);
        }
        done.store(true, Ordering::Relaxed);
        reader.join().expect("reader")
    });
    assert!(!reads.is_empty() && reads.iter().all(|there| *there));
}

#[tokio::test(flavor = "multi_thread")]
async fn many_can_stage_the_same_skill_at_once() {
    let fixture = Fixture::new();
    let mut digests = Vec::new();
    for version in ["1", "2"] {
        fixture.skill("csv", version);
        let staged = fixture.stage("s1", &["csv"]).await.expect("staged");
        digests.push(staged[0].digest.clone());
    }
    // Each slot gets two calls, one for each version.
    let stagings = (0..16).map(|call| {
        let target = fixture.path(&format!("state/slots/t{}/skills", call % 8));
        fs::create_dir_all(&target).expect("mkdir");
        let skills = fixture.skills.clone();
        let digest = digests[call / 8].clone();
        async move {
            let csv = SkillRef::parse("skills", &format!("csv@sha256:{digest}")).expect("valid");
            let leased = skills.lease_to_stage(vec![csv]).await.expect("listed");
            let staged = skills.stage(&target, leased).await.expect("staged");
            assert!(target.join("csv/SKILL.md").exists());
            assert_eq!(staged[0].digest, digest);
        }
    });
    futures::future::join_all(stagings).await;
    for slot in 0..8 {
        let slot = fixture.path(&format!("state/slots/t{slot}"));
        assert_eq!(names(&slot), ["skills", "staged"]);
        // The slot has the version whose digest is noted beside it.
        let noted = fs::read_to_string(slot.join("staged/csv")).expect("noted");
        let version = 1 + digests
            .iter()
            .position(|digest| *digest == noted)
            .expect("one");
        let skill = slot.join("skills/csv");
        let script = fs::read_to_string(skill.join("bin/run.sh")).expect("a script");
        assert_eq!(script, format!("echo {version}\n"));
        let document = fs::read_to_string(skill.join("SKILL.md")).expect("a document");
        assert!(
            document.contains(&format!("\nversion: {version}\n")),
            "{document}"
        );
    }
    digests.sort();
    assert_eq!(names(&fixture.path("state/skills/sha256")), digests);
    assert_empty(&fixture.path("state/skills/tmp"));
}

#[tokio::test]
async fn either_all_skills_are_staged_or_none() {
    let fixture = Fixture::new();
    fixture.skill("csv", "1");
    let error = fixture
        .stage("s1", &["csv", "nope"])
        .await
        .expect_err("unknown");
    assert!(matches!(error, Error::SkillNotFound { .. }), "{error}");
    assert_empty(&fixture.slot("s1"));
}

#[tokio::test]
async fn an_unknown_skill_is_answered_with_the_nearest_names() {
    let fixture = Fixture::new();
    for name in ["csv-report", "csv-merge", "csv-split", "text-stats"] {
        fixture.skill(name, "1.2");
    }
    for (asked, first) in [
        ("csv-reprot", Some("csv-report")),
        ("report", Some("csv-report")),
        ("CSV-Split", Some("csv-split")),
        ("csv-report@9", Some("csv-report@1.2")),
        ("zzz", None),
    ] {
        let error = fixture.stage("s1", &[asked]).await.expect_err("unknown");
        let Error::SkillNotFound { name, nearest } = error else {
            panic!("not SkillNotFound: {error}");
        };
        assert_eq!(name, asked);
        assert_eq!(
            nearest.first().map(String::as_str),
            first,
            "{asked}: {nearest:?}"
        );
        assert!(nearest.len() <= 3);
    }
    fixture
        .stage("s1", &["csv-report@1.2"])
        .await
        .expect("that version");
}

const HOSTILE: [(&str, &str); 8] = [
    ("many-files", "skill.too_many_files"),
    ("many-bytes", "skill.too_large"),
    ("nul", "skill.nul"),
    ("no-description", "skill.no_description"),
    ("bad-card", "card.path_escapes"),
    ("no-front", "skill.no_front_matter"),
    ("long-document", "skill.too_large"),
    ("fifo-document", "skill.special_file"),
];

#[tokio::test]
async fn hostile_folders_are_rejected_with_their_reason() {
    let fixture = Fixture::with(|config| {
        config.files_max = 20;
        config.bytes_max = 10_000;
        config.skill_md_bytes_max = 2_000;
    });
    for (name, _) in HOSTILE {
        fixture.skill(name, "1");
    }
    let root = fixture.path("root");
    for file in 0..30 {
        fixture.write(&format!("many-files/f{file}"), "");
    }
    fixture.write("many-bytes/big", vec![0; 10_001]);
    fixture.write("nul/SKILL.md", "---\nname: nul\ndescription: \0\n---\n");
    fixture.write(
        "no-description/SKILL.md",
        "---\nname: no-description\n---\n",
    );
    fixture.write("bad-card/skill-card.json", r#"{"files": ["../x"]}"#);
    fixture.write("no-front/SKILL.md", "# Hello\n");
    fixture.write("long-document/SKILL.md", vec![b'x'; 2_001]);
    let document = root.join("fifo-document/SKILL.md");
    fs::remove_file(&document).expect("remove");
    nix::unistd::mkfifo(&document, nix::sys::stat::Mode::S_IRWXU).expect("mkfifo");
    for (name, reason) in HOSTILE {
        let refusal = fixture.refusal(name).await;
        assert!(refusal.starts_with(reason), "{name}: {refusal}");
    }
    assert_empty(&fixture.path("state/skills/sha256"));
    assert_empty(&fixture.path("state/skills/tmp"));
}

#[tokio::test]
async fn one_entry_that_no_skill_can_have_is_left_out_and_named() {
    let fixture = Fixture::new();
    fixture.skill("venv", "1");
    let bin = fixture.path("root/venv/bin");
    symlink("/usr/bin/python3", bin.join("python3")).expect("symlink");
    symlink("python3", bin.join("python")).expect("symlink");
    symlink("../../../secret", bin.join("up")).expect("symlink");
    nix::unistd::mkfifo(&bin.join("pipe"), nix::sys::stat::Mode::S_IRWXU).expect("mkfifo");
    let _socket = std::os::unix::net::UnixListener::bind(bin.join("socket")).expect("bind");
    fixture.stage("s1", &["venv"]).await.expect("staged");
    // A link in the skill stays a link, although nothing is where it leads now.
    assert_eq!(
        names(&fixture.slot("s1").join("venv/bin")),
        ["python", "run.sh"]
    );
    let skill = fixture.listed("venv").await;
    assert_eq!(skill.state, SkillState::LoadedWithWarnings);
    let [problem] = skill.problems.as_slice() else {
        panic!("{:?}", skill.problems);
    };
    assert_eq!(problem.code, "skill.left_out");
    for left_out in [
        "bin/python3 is a link out of the skill, to /usr/bin/python3",
        "bin/up is a link out of the skill, to ../../../secret",
        "bin/pipe is a FIFO, socket or device",
        "bin/socket is a FIFO, socket or device",
    ] {
        assert!(problem.message.contains(left_out), "{}", problem.message);
    }
}

#[tokio::test]
async fn links_inside_a_skill_are_kept_as_links() {
    let fixture = Fixture::new();
    fixture.skill("csv", "1");
    symlink("../SKILL.md", fixture.path("root/csv/bin/README.md")).expect("symlink");
    fixture.stage("s1", &["csv"]).await.expect("staged");
    let link = fixture.slot("s1").join("csv/bin/README.md");
    assert_eq!(
        fs::read_link(&link).expect("link"),
        Path::new("../SKILL.md")
    );
    assert!(fs::read_to_string(link).expect("read").contains("# csv"));
}

#[tokio::test]
async fn a_skill_keeps_its_own_out_with_a_warning() {
    let fixture = Fixture::new();
    fixture.skill("csv", "1");
    fixture.write("csv/out/mine", "x");
    let listed = fixture.listed("csv").await;
    assert_eq!(listed.state, SkillState::LoadedWithWarnings);
    assert_eq!(listed.problems[0].code, "skill.own_link");
    fixture.stage("s1", &["csv"]).await.expect("staged");
    assert_eq!(names(&fixture.slot("s1").join("csv/out")), ["mine"]);
    assert!(fixture.slot("s1").join("csv/work").is_symlink());
}

#[tokio::test]
async fn leftovers_of_a_killed_daemon_are_removed() {
    let fixture = Fixture::new();
    fixture.skill("csv", "1");
    fs::create_dir_all(fixture.path("state/slots/s1/.stage-x/csv")).expect("mkdir");
    fs::create_dir_all(fixture.path("state/skills/tmp/x/content")).expect("mkdir");
    fixture.stage("s1", &["csv"]).await.expect("staged");
    assert_eq!(names(&fixture.path("state/slots/s1")), ["skills", "staged"]);
    Skills::open(
        &fixture.config,
        &fixture.path("state"),
        fixture.tasks.clone(),
    )
    .expect("open");
    assert_empty(&fixture.path("state/skills/tmp"));
}
