//! Folders of skills become archives, the same ones each time, without what a skill can't have, which is named.

use std::collections::BTreeMap;
use std::fs;
use std::io::Read;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, SystemTime};

use rustix::fs::{CWD, FileType, Mode, mknodat};
use sha2::{Digest, Sha256};
use skilld_client::v1::publish_skill_request::Payload;
use skilld_client::v1::{ErrorReason, PublishSkillRequest};
use skilld_client::{Error, PackLimits, SkillArchive, TransferProgress};
use tempfile::TempDir;
use tonic::Code;

use skilld_testing::{Fake, noise, refusal};

const DOCUMENT: &str = "---\nname: csv\ndescription: d\n---\n";

/// A skill with what should be packed and what should not.
pub(crate) fn skill() -> TempDir {
    let dir = tempfile::tempdir().expect("a directory");
    write(dir.path(), "SKILL.md", DOCUMENT);
    write(dir.path(), "scripts/run.sh", "echo 1\n");
    let script = dir.path().join("scripts/run.sh");
    fs::set_permissions(script, PermissionsExt::from_mode(0o711)).expect("chmod");
    write(dir.path(), "dist/built.js", "1");
    dir
}

pub(crate) fn write(dir: &Path, path: &str, data: impl AsRef<[u8]>) {
    let path = dir.join(path);
    fs::create_dir_all(path.parent().expect("a parent")).expect("makes");
    fs::write(path, data).expect("writes");
}

fn pack(dir: &Path) -> Result<SkillArchive, Error> {
    SkillArchive::pack(dir, PackLimits::default())
}

fn refusal_of(dir: &Path) -> String {
    match pack(dir) {
        Err(error @ Error::Pack { .. }) => error.to_string(),
        other => panic!("{other:?}"),
    }
}

/// Returns the name, the digest and the bytes of each archive that came, and forgets the calls.
pub(crate) fn published(fake: &Fake) -> Vec<(String, String, Vec<u8>)> {
    let calls = fake.calls.streams::<PublishSkillRequest>("PublishSkill");
    fake.calls.take();
    let archives = calls.into_iter().map(|messages| {
        let (mut name, mut sha256, mut bytes) = (String::new(), String::new(), Vec::new());
        for message in messages {
            match message.payload {
                Some(Payload::Header(header)) => {
                    name = header.name;
                    sha256 = header.sha256;
                }
                Some(Payload::Data(data)) => bytes.extend_from_slice(&data),
                None => panic!("a message without payload"),
            }
        }
        (name, sha256, bytes)
    });
    archives.collect()
}

/// Entries of the archive that the server gets.
async fn sent(archive: &SkillArchive) -> Vec<u8> {
    let fake = Fake::start();
    let client = fake.client().await;
    let skill = client
        .publish_skill("csv", archive, TransferProgress::none())
        .await;
    assert_eq!(skill.expect("published").name, "skills/csv");
    let (name, sha256, bytes) = published(&fake).remove(0);
    assert_eq!(name, "skills/csv");
    let hash: String = Sha256::digest(&bytes)
        .iter()
        .map(|byte| format!("{byte:02x}"))
        .collect();
    assert_eq!(
        (sha256.as_str(), archive.sha256()),
        (hash.as_str(), hash.as_str())
    );
    assert_eq!(archive.bytes(), bytes.len() as u64);
    bytes
}

/// Path → contents and mode of all entries, in order.
fn entries(bytes: &[u8]) -> Vec<(String, String, u32)> {
    let mut archive = tar::Archive::new(flate2::read::GzDecoder::new(bytes));
    let entries = archive.entries().expect("a tar").map(|entry| {
        let mut entry = entry.expect("an entry");
        let header = entry.header();
        assert_eq!(header.entry_type(), tar::EntryType::Regular);
        let same = (header.mtime(), header.uid(), header.gid());
        assert_eq!(
            same.0.expect("a time") + same.1.expect("a uid") + same.2.expect("a gid"),
            0
        );
        let mode = header.mode().expect("a mode");
        let path = entry.path().expect("a path").display().to_string();
        let mut text = String::new();
        entry.read_to_string(&mut text).expect("text");
        (path, text, mode)
    });
    entries.collect()
}

fn paths(bytes: &[u8]) -> Vec<String> {
    entries(bytes)
        .into_iter()
        .map(|(path, _, _)| path)
        .collect()
}

#[tokio::test]
async fn an_archive_is_published_by_many_at_once() {
    let dir = skill();
    write(dir.path(), "data.bin", noise(2 << 20));
    let archive = pack(dir.path()).expect("packs");
    let all: Vec<_> = futures::future::join_all((0..3).map(|_| sent(&archive))).await;
    assert!(all.iter().all(|bytes| *bytes == all[0]));
}

#[tokio::test]
async fn the_same_folder_makes_the_same_bytes() {
    let (one, two) = (skill(), tempfile::tempdir().expect("a directory"));
    // The same files, made in another order, at another time, with other modes and links.
    write(two.path(), "dist/built.js", "1");
    write(two.path(), "other.sh", "echo 1\n");
    fs::set_permissions(
        two.path().join("other.sh"),
        PermissionsExt::from_mode(0o775),
    )
    .expect("chmod");
    write(two.path(), "SKILL.md", DOCUMENT);
    fs::create_dir(two.path().join("scripts")).expect("makes");
    symlink("../other.sh", two.path().join("scripts/run.sh")).expect("links");
    write(two.path(), ".skillignore", "/other.sh\n");
    fs::create_dir(two.path().join("empty")).expect("makes");
    let old = SystemTime::UNIX_EPOCH + Duration::from_secs(1_000_000_000);
    let file = fs::File::options()
        .append(true)
        .open(two.path().join("SKILL.md"));
    file.expect("opens").set_modified(old).expect("touches");
    let first = sent(&pack(one.path()).expect("packs")).await;
    for dir in [one.path(), two.path()] {
        assert!(sent(&pack(dir).expect("packs")).await == first);
    }
    let expected = [
        ("SKILL.md", DOCUMENT, 0o644),
        ("dist/built.js", "1", 0o644),
        ("scripts/run.sh", "echo 1\n", 0o755),
    ]
    .map(|(path, text, mode)| (path.to_owned(), text.to_owned(), mode));
    assert_eq!(entries(&first), expected);
}

#[tokio::test]
async fn files_that_do_not_belong_to_a_skill_are_left_out() {
    let dir = skill();
    for path in [
        ".git/config",
        "sub/.git/config",
        "scripts/__pycache__/a.pyc",
        "node_modules/a/index.js",
        ".venv/bin/python",
        ".DS_Store",
        "SKILL.md~",
        "scripts/.run.sh.swp",
        "data/huge.csv",
        "data/keep.csv",
        ".idea/x",
    ] {
        write(dir.path(), path, "x");
    }
    // Nobody looks into what is left out.
    symlink("/etc", dir.path().join(".venv/etc")).expect("links");
    write(dir.path(), ".skillignore", "*.csv\n!keep.csv\n# dist\n");
    let packed = sent(&pack(dir.path()).expect("packs")).await;
    assert_eq!(
        paths(&packed),
        [
            "SKILL.md",
            "data/keep.csv",
            "dist/built.js",
            "scripts/run.sh"
        ]
    );
    write(dir.path(), ".skillignore", "!node_modules/\ndist/\n*.csv");
    let packed = sent(&pack(dir.path()).expect("packs")).await;
    assert_eq!(
        paths(&packed),
        ["SKILL.md", "node_modules/a/index.js", "scripts/run.sh"]
    );
    write(dir.path(), ".skillignore", "SKILL.md");
    assert!(refusal_of(dir.path()).contains("there is no SKILL.md in it"));
}

#[tokio::test]
async fn links_within_become_what_they_lead_to_and_others_are_named() {
    let dir = skill();
    write(dir.path(), "shared/lib/a.py", "a");
    symlink("../shared/lib", dir.path().join("scripts/lib")).expect("links");
    symlink("lib/../lib/a.py", dir.path().join("scripts/again")).expect("links");
    symlink("SKILL.md", dir.path().join("README.md")).expect("links");
    let absolute = dir.path().join("SKILL.md");
    symlink(absolute, dir.path().join("absolute.md")).expect("links");
    let packed: BTreeMap<String, (String, u32)> =
        entries(&sent(&pack(dir.path()).expect("packs")).await)
            .into_iter()
            .map(|(path, text, mode)| (path, (text, mode)))
            .collect();
    assert_eq!(packed["scripts/lib/a.py"].0, "a");
    assert_eq!(packed["README.md"].0, DOCUMENT);
    assert_eq!(packed["absolute.md"].0, DOCUMENT);
    // As the kernel reads it: `..` is what lies around the link's target.
    assert_eq!(packed["scripts/again"].0, "a");
}

/// A skill that `make` adds to is packed without that, and the archive says why.
fn check_left_out(make: impl FnOnce(&Path), expected: &[&str]) {
    let dir = skill();
    make(dir.path());
    let archive = pack(dir.path()).expect("packs");
    let skipped: Vec<_> = archive
        .skipped()
        .iter()
        .map(|file| format!("{}: {}", file.path, file.skip_reason))
        .collect();
    assert_eq!(skipped, expected);
    let mut bytes = Vec::new();
    bytes_of(&archive, &mut bytes);
    assert_eq!(
        paths(&bytes),
        ["SKILL.md", "dist/built.js", "scripts/run.sh"]
    );
}

#[test]
fn links_that_lead_out_or_nowhere_are_left_out_and_named() {
    let canary = tempfile::tempdir().expect("a directory");
    write(canary.path(), "secret", "secret");
    let secret = canary.path().join("secret");
    let outside = Path::new("..").join(canary.path().file_name().expect("a name"));
    let linked = |target: &Path, link: &'static str| {
        let target = target.to_owned();
        move |dir: &Path| symlink(target, dir.join(link)).expect("links")
    };
    let absolute = format!(
        "scripts/link: is a link to {}, out of the skill",
        secret.display()
    );
    check_left_out(linked(&secret, "scripts/link"), &[&absolute]);
    let out = format!(
        "link: is a link to {}/secret, out of the skill",
        outside.display()
    );
    check_left_out(linked(&outside.join("secret"), "link"), &[&out]);
    for (target, link, expected) in [
        ("..", "up", "up: is a link to .., out of the skill"),
        (
            "nothing",
            "link",
            "link: is a link to nothing, where nothing is",
        ),
        ("link", "link", "link: is a link to link, in a circle"),
        (
            "..",
            "scripts/round",
            "scripts/round: is a link to a folder around it",
        ),
    ] {
        check_left_out(linked(Path::new(target), link), &[expected]);
    }
}

#[test]
fn special_files_and_names_that_no_skill_has_are_left_out() {
    let pipe = |dir: &Path| {
        let made = mknodat(CWD, dir.join("pipe"), FileType::Fifo, Mode::RWXU, 0);
        made.expect("makes");
    };
    let all = |dir: &Path| {
        pipe(dir);
        symlink("../pipe", dir.join("scripts/a")).expect("links");
        std::os::unix::net::UnixListener::bind(dir.join("socket")).expect("binds");
        let name = std::ffi::OsStr::from_bytes(b"\xff\n");
        fs::write(dir.join(name), "x").expect("writes");
    };
    let named =
        r#""\xFF\n": has a name that is not UTF-8, or a backslash or control character in it"#;
    let expected = [
        named,
        "pipe: is a FIFO",
        "scripts/a: is a FIFO",
        "socket: is a socket",
    ];
    check_left_out(all, &expected);
    let ignored = |dir: &Path| {
        pipe(dir);
        write(dir, ".skillignore", "/pipe");
    };
    check_left_out(ignored, &[]);
}

#[test]
fn a_folder_that_cannot_be_read_is_named_with_what_to_do() {
    let dir = skill();
    write(dir.path(), "private/file", "x");
    let private = dir.path().join("private");
    fs::set_permissions(&private, PermissionsExt::from_mode(0o000)).expect("chmod");
    if fs::read_dir(&private).is_ok() {
        println!("the refusal is left out because the superuser reads every folder");
    } else {
        let refused = refusal_of(dir.path());
        assert!(refused.contains("private cannot be read"), "{refused}");
        assert!(refused.contains("name it in .skillignore"), "{refused}");
    }
    write(dir.path(), ".skillignore", "\u{feff}/private\n");
    let archive = pack(dir.path()).expect("packs");
    fs::set_permissions(&private, PermissionsExt::from_mode(0o755)).expect("chmod");
    let mut bytes = Vec::new();
    bytes_of(&archive, &mut bytes);
    assert!(!paths(&bytes).iter().any(|path| path.starts_with("private")));
}

#[test]
fn a_document_that_is_left_out_is_named_where_it_is_missing() {
    let dir = skill();
    fs::remove_file(dir.path().join("SKILL.md")).expect("removes");
    symlink("/etc/hostname", dir.path().join("SKILL.md")).expect("links");
    let refused = refusal_of(dir.path());
    let expected =
        "there is no SKILL.md in it; SKILL.md is a link to /etc/hostname, out of the skill";
    assert!(refused.ends_with(expected), "{refused}");
}

#[test]
fn a_skill_keeps_within_the_limits_or_is_refused_unread() {
    let dir = skill();
    let huge = fs::File::create(dir.path().join("huge")).expect("creates");
    huge.set_len(1 << 40).expect("grows");
    let refused = refusal_of(dir.path());
    assert!(refused.contains("1024 MiB in all, with huge"), "{refused}");
    fs::remove_file(dir.path().join("huge")).expect("removes");
    let limits = PackLimits {
        files: 2,
        ..PackLimits::default()
    };
    let refused = SkillArchive::pack(dir.path(), limits)
        .expect_err("too many")
        .to_string();
    assert!(refused.contains("more than 2 files"), "{refused}");
    let mut deep = dir.path().to_owned();
    deep.extend(std::iter::repeat_n("d", 40));
    fs::create_dir_all(&deep).expect("makes");
    assert!(refusal_of(dir.path()).contains("deeper than 32 folders"));
}

#[test]
fn links_that_multiply_are_bounded() {
    let dir = skill();
    write(dir.path(), "d0/f", "x");
    for level in 1..30 {
        for link in ["a", "b"] {
            let folder = dir.path().join(format!("d{level}"));
            fs::create_dir_all(&folder).expect("makes");
            symlink(format!("../d{}", level - 1), folder.join(link)).expect("links");
        }
    }
    assert!(refusal_of(dir.path()).contains("it has more than"));
}

#[test]
fn refusing_a_folder_without_a_skill_names_nested_skills() {
    let dir = tempfile::tempdir().expect("a directory");
    write(dir.path(), "README.md", "x");
    assert!(refusal_of(dir.path()).ends_with("there is no SKILL.md in it"));
    write(dir.path(), "skills/csv/SKILL.md", DOCUMENT);
    let refused = refusal_of(dir.path());
    assert!(
        refused.contains("there is skills/csv/SKILL.md: publish each"),
        "{refused}"
    );
    for document in ["skill.md", "skill-card.json"] {
        let dir = tempfile::tempdir().expect("a directory");
        write(dir.path(), document, "{}");
        pack(dir.path()).expect("packs");
    }
    let dir = skill();
    write(dir.path(), "Dist/built.js", "1");
    assert!(refusal_of(dir.path()).contains("in case only"));
    let missing = pack(&dir.path().join("missing")).expect_err("missing");
    assert!(matches!(missing, Error::Io { .. }), "{missing}");
}

#[test]
fn an_archive_knows_the_name_of_its_folder_or_file() {
    let dir = tempfile::tempdir().expect("a directory");
    let folder = dir.path().join("folder");
    write(&folder, "SKILL.md", DOCUMENT);
    symlink("folder", dir.path().join("link")).expect("links");
    for path in [folder.clone(), folder.join("."), dir.path().join("link")] {
        assert_eq!(pack(&path).expect("packs").file_name(), "folder");
    }
    write(dir.path(), "csv-1.1.tar.gz", "x");
    let archive = SkillArchive::open(&dir.path().join("csv-1.1.tar.gz")).expect("opens");
    assert_eq!(archive.file_name(), "csv-1.1");
}

#[test]
fn an_ignore_list_is_read_in_the_folder_and_within_its_limit() {
    let elsewhere = tempfile::tempdir().expect("a directory");
    write(elsewhere.path(), "list", "[b-a] secret");
    let dir = skill();
    let list = dir.path().join(".skillignore");
    symlink(elsewhere.path().join("list"), &list).expect("links");
    let refused = pack(dir.path()).expect_err("refused").to_string();
    assert!(refused.contains("leads out of the folder"), "{refused}");
    assert!(!refused.contains("secret"), "{refused}");
    fs::remove_file(&list).expect("removes");
    mknodat(CWD, &list, FileType::Fifo, Mode::RUSR, 0).expect("a FIFO");
    assert!(refusal_of(dir.path()).contains(".skillignore is no file"));
    fs::remove_file(&list).expect("removes");
    write(dir.path(), ".skillignore", "x\n".repeat(32 << 10) + "\n");
    assert!(refusal_of(dir.path()).contains("has more than 64 KiB"));
}

/// Tells another thread to stop, also if its own panics.
struct StopOnDrop<'a>(&'a AtomicBool);

impl Drop for StopOnDrop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Packing a folder that changes meanwhile fails, or yields files of the folder only.
#[test]
fn a_folder_that_changes_meanwhile_is_never_left() {
    let canary = tempfile::tempdir().expect("a directory");
    write(canary.path(), "file", "secret");
    let dir = skill();
    write(dir.path(), "sub/file", "x");
    write(dir.path(), ".skillignore", "/aside");
    let [sub, aside] = ["sub", "aside"].map(|name| dir.path().join(name));
    let stopped = AtomicBool::new(false);
    let texts = |archive: &SkillArchive| {
        let mut bytes = Vec::new();
        bytes_of(archive, &mut bytes);
        let found = entries(&bytes)
            .into_iter()
            .filter(|(path, ..)| path == "sub/file");
        found.map(|(_, text, _)| text).collect::<Vec<_>>()
    };
    std::thread::scope(|scope| {
        let _stop = StopOnDrop(&stopped);
        scope.spawn(|| {
            while !stopped.load(Ordering::Relaxed) {
                fs::rename(&sub, &aside).expect("moves");
                symlink(canary.path(), &sub).expect("links");
                fs::remove_file(&sub).expect("removes");
                fs::rename(&aside, &sub).expect("moves");
            }
        });
        for _ in 0..300 {
            match pack(dir.path()) {
                Ok(archive) => assert!(texts(&archive).iter().all(|text| text == "x")),
                Err(Error::Pack { .. } | Error::Io { .. }) => {}
                Err(error) => panic!("{error}"),
            }
        }
    });
    let archive = pack(dir.path()).expect("at rest");
    assert_eq!(texts(&archive), ["x"]);
}

fn bytes_of(archive: &SkillArchive, bytes: &mut Vec<u8>) {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build();
    *bytes = runtime.expect("a runtime").block_on(sent(archive));
}

#[tokio::test]
async fn a_publish_is_repeated_only_when_nothing_was_started() {
    let fake = Fake::start();
    let client = fake.client().await;
    let dir = skill();
    write(dir.path(), "big", noise(3 << 20));
    let archive = pack(dir.path()).expect("packs");
    let told = Arc::new(AtomicU64::new(0));
    let progress = TransferProgress::new({
        let told = Arc::clone(&told);
        let bytes = archive.bytes();
        move |done, total| {
            assert_eq!(total, Some(bytes));
            told.store(done, Ordering::Relaxed);
        }
    });
    let refusals = (0..2).map(|_| refusal(Code::Unavailable, "DRAINING", &[]));
    fake.calls.refuse("PublishSkill", refusals);
    client
        .publish_skill("csv", &archive, progress)
        .await
        .expect("published");
    assert_eq!(told.load(Ordering::Relaxed), archive.bytes());
    let archives = published(&fake);
    assert_eq!(archives.len(), 3);
    assert!(
        archives.iter().all(|it| *it == archives[0]),
        "all of it each time"
    );
    let no = refusal(Code::PermissionDenied, "PERMISSION_DENIED", &[]);
    fake.calls.refuse("PublishSkill", [no]);
    let error = client
        .publish_skill("csv", &archive, TransferProgress::none())
        .await;
    assert_eq!(
        error.expect_err("refused").reason(),
        Some(ErrorReason::PermissionDenied)
    );
    assert_eq!(fake.calls.count("PublishSkill"), 1);
}
