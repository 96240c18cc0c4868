//! Roots on servers: what becomes of what they answer, what is kept when they fail, and that nobody sees half of it.

use std::fs;
use std::io::Write as _;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use skilld_tests::task_dir::TaskDir;

use super::RemoteRoots;
use crate::catalogue::skill::{Skill, SkillState};
use crate::content_store::ContentStore;
use crate::fetch::tests::server::{Reply, Server};
use crate::parse::finding::ValidationProfile;
use crate::parse::problem::{Problem, Severity};
use crate::skills_options::{RemoteOptions, SkillRoot, SkillsOptions};
use crate::skills_service::Skills;
use crate::sources::skill_source::{SkillSource, SourceFolders};
use crate::task_spawner::TaskSpawner;

mod cards;
mod folders;
mod indexes;

/// A cache and a server that behaves as the test wants.
struct Fixture {
    dir: TaskDir,
    tasks: TaskSpawner,
    server: Server,
    config: SkillsOptions,
}

/// The remote roots of one daemon.
struct Daemon {
    remote: RemoteRoots,
    store: Arc<ContentStore>,
    roots: Vec<SkillRoot>,
}

impl Fixture {
    async fn new() -> Self {
        Self::with(|_| {}).await
    }

    /// A fixture with changed options.
    async fn with(change: impl FnOnce(&mut RemoteOptions)) -> Self {
        let mut config = SkillsOptions::for_tests();
        config.remote.allow_private_addresses = true;
        change(&mut config.remote);
        let tasks = TaskSpawner::default();
        let dir = TaskDir::new(&tasks.tracker);
        let server = Server::start().await;
        Self {
            dir,
            tasks,
            server,
            config,
        }
    }

    /// Parses roots: paths of the server, or whole URLs.
    fn roots(&self, paths: &[&str]) -> Vec<SkillRoot> {
        let roots = paths.iter().map(|path| {
            let url = if path.starts_with('/') {
                self.server.url(path)
            } else {
                (*path).to_owned()
            };
            SkillRoot::parse_url(&url).expect("a URL")
        });
        roots.collect()
    }

    /// Another daemon on the same cache.
    fn daemon(&self, paths: &[&str]) -> Daemon {
        let mut config = self.config.clone();
        config.roots = self.roots(paths);
        let base = self.dir.path().join("state/skills");
        let store = Arc::new(ContentStore::open(&base, &config).expect("a store"));
        let remote = RemoteRoots::open(&config, &base.join("remote"), &store, self.tasks.clone());
        Daemon {
            remote: remote.expect("opened"),
            store,
            roots: config.roots,
        }
    }

    /// The skills of a daemon with these roots.
    fn skills(&self, paths: &[&str]) -> Skills {
        let mut config = self.config.clone();
        config.roots = self.roots(paths);
        let state = self.dir.path().join("state");
        fs::create_dir_all(&state).expect("mkdir");
        Skills::open(&config, &state, self.tasks.clone()).expect("open")
    }

    /// Names of everything that attempts left in the state directory, sorted.
    fn leftovers(&self) -> Vec<String> {
        let mut names = Vec::new();
        for dir in ["tmp", "sha256", "remote"] {
            let entries = fs::read_dir(self.dir.path().join("state/skills").join(dir))
                .expect("a directory")
                .map(|entry| entry.expect("an entry"));
            names.extend(entries.map(|entry| entry.file_name().to_string_lossy().into_owned()));
        }
        names.sort();
        names
    }
}

impl Daemon {
    fn source(&self) -> SkillSource {
        self.nth_source(0)
    }

    /// The root that was given at this position.
    fn nth_source(&self, index: usize) -> SkillSource {
        let SkillRoot::Url { text, url, folder } = &self.roots[index] else {
            panic!("not a URL");
        };
        self.remote.source(text, url, folder)
    }

    async fn refreshed(&self) -> SkillSource {
        let pending = self.remote.refresh(None).await.expect("a refresh");
        assert_eq!(pending, []);
        self.source()
    }
}

fn tree(source: &SkillSource) -> PathBuf {
    match &source.folders {
        SourceFolders::Beneath(dir) => dir.clone(),
        SourceFolders::Missing | SourceFolders::Stored(_) => panic!("{:?}", source.problems),
    }
}

/// Files beneath the root, sorted, with their contents; those that can be executed end with `*`.
fn files(source: &SkillSource) -> Vec<(String, String)> {
    fn walk(top: &Path, dir: &Path, found: &mut Vec<(String, String)>) {
        for entry in fs::read_dir(dir).expect("a directory") {
            let path = entry.expect("an entry").path();
            if path.is_dir() {
                walk(top, &path, found);
                continue;
            }
            let mode = fs::metadata(&path).expect("a file").permissions().mode();
            let name = path.strip_prefix(top).expect("beneath").display();
            let star = if mode & 0o111 == 0 { "" } else { "*" };
            let content = fs::read_to_string(&path).expect("a text");
            found.push((format!("{name}{star}"), content));
        }
    }
    let (top, mut found) = (tree(source), Vec::new());
    walk(&top, &top, &mut found);
    found.sort();
    found
}

fn names(source: &SkillSource) -> Vec<String> {
    files(source).into_iter().map(|(name, _)| name).collect()
}

/// Severity and code of each problem; each says which root it is about.
fn codes(source: &SkillSource) -> Vec<(Severity, &'static str)> {
    let code = |problem: &Problem| {
        assert_eq!(problem.subject, source.root);
        (problem.severity, problem.code)
    };
    source.problems.iter().map(code).collect()
}

fn document(name: &str) -> String {
    format!("---\nname: {name}\ndescription: a test\n---\nbody\n")
}

/// A tar of files, those that end with `*` executable.
fn tar(files: &[(&str, &str)]) -> Vec<u8> {
    let mut builder = tar::Builder::new(Vec::new());
    for (name, content) in files {
        let mut header = tar::Header::new_ustar();
        header.set_size(content.len() as u64);
        header.set_mode(if name.ends_with('*') { 0o755 } else { 0o644 });
        let path = name.trim_end_matches('*');
        // Not checked, unlike set_path.
        header.as_old_mut().name[..path.len()].copy_from_slice(path.as_bytes());
        header.set_cksum();
        builder.append(&header, content.as_bytes()).expect("tar");
    }
    builder.into_inner().expect("tar")
}

fn gzip(bytes: &[u8]) -> Vec<u8> {
    let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    encoder.write_all(bytes).expect("gzip");
    encoder.finish().expect("gzip")
}

fn zip(files: &[(&str, &str)]) -> Vec<u8> {
    let mut writer = zip::ZipWriter::new(std::io::Cursor::new(Vec::new()));
    for (name, content) in files {
        let mode = if name.ends_with('*') { 0o755 } else { 0o644 };
        let options = zip::write::SimpleFileOptions::default().unix_permissions(mode);
        let path = name.trim_end_matches('*');
        writer.start_file(path, options).expect("zip");
        writer.write_all(content.as_bytes()).expect("zip");
    }
    writer.finish().expect("zip").into_inner()
}

fn sha256(bytes: &[u8]) -> String {
    use sha2::Digest as _;
    let digest = sha2::Sha256::digest(bytes);
    digest.iter().map(|byte| format!("{byte:02x}")).collect()
}

#[tokio::test]
async fn an_archive_is_known_by_its_bytes_whatever_its_url_says() {
    let fixture = Fixture::new().await;
    let (a, b) = (document("a"), document("b"));
    let several = [("a/SKILL.md", &*a), ("a/run.sh*", "x"), ("b/SKILL.md", &*b)];
    let expected = ["a/SKILL.md", "a/run.sh*", "b/SKILL.md"];
    for (path, bytes) in [
        ("/x.zip", zip(&several)),
        ("/x.tar", tar(&several)),
        ("/x.tar.gz", gzip(&tar(&several))),
        ("/x.tgz", gzip(&tar(&several))),
        ("/zip.tar.gz", zip(&several)),
        ("/plain-tar", tar(&several)),
        ("/download", gzip(&tar(&several))),
    ] {
        fixture.server.put(path, Reply::ok(bytes));
        let source = fixture.daemon(&[path]).refreshed().await;
        assert_eq!(names(&source), expected, "{path}");
        assert_eq!(codes(&source), [], "{path}");
        assert_eq!(source.origin, Some(fixture.server.url(path)));
    }
}

#[tokio::test]
async fn a_single_skill_gets_the_folder_that_it_calls_itself() {
    let fixture = Fixture::new().await;
    let own = document("own");
    let text = |text: &str| Reply::ok(text.to_owned());
    for (path, reply, folder) in [
        ("/SKILL.md", text(&own), "own"),
        ("/raw/skill.md", text("no front matter"), "raw"),
        ("/Skill.md", text("no front matter"), "skill"),
        ("/guide", text(&own), "own"),
        ("/x.zip", Reply::ok(zip(&[("SKILL.md", &own)])), "own"),
        ("/y.zip", Reply::ok(zip(&[("SKILL.md", "text")])), "y"),
        ("/z.zip", Reply::ok(zip(&[("w/SKILL.md", "text")])), "w"),
        (
            "/v.zip",
            Reply::ok(zip(&[("v-main/SKILL.md", &own)])),
            "own",
        ),
    ] {
        fixture.server.put(path, reply);
        let source = fixture.daemon(&[path]).refreshed().await;
        assert_eq!(names(&source), [format!("{folder}/SKILL.md")], "{path}");
    }
}

#[tokio::test]
async fn archives_that_git_made_are_taken() {
    let fixture = Fixture::new().await;
    let document = document("a");
    let mut builder = tar::Builder::new(Vec::new());
    let comment = b"52 comment=0123456789012345678901234567890123456789\n";
    let mut header = tar::Header::new_ustar();
    header.set_entry_type(tar::EntryType::XGlobalHeader);
    header.set_size(comment.len() as u64);
    header.set_path("pax_global_header").expect("a name");
    header.set_cksum();
    builder.append(&header, &comment[..]).expect("tar");
    for (name, content) in [("skills-1.0/", ""), ("skills-1.0/a/SKILL.md", &*document)] {
        let mut header = tar::Header::new_ustar();
        header.set_size(content.len() as u64);
        header.set_mode(0o644);
        if name.ends_with('/') {
            header.set_entry_type(tar::EntryType::Directory);
        }
        let entry = builder.append_data(&mut header, name, content.as_bytes());
        entry.expect("tar");
    }
    let bytes = gzip(&builder.into_inner().expect("tar"));
    fixture.server.put("/v1.0.tar.gz", Reply::ok(bytes));
    let source = fixture.daemon(&["/v1.0.tar.gz"]).refreshed().await;
    assert_eq!(names(&source), ["a/SKILL.md"]);
}

/// A root that gives nothing but a problem, and leaves nothing.
async fn refused(fixture: &Fixture, path: &str, reply: Reply, code: &'static str) {
    let at = path.split('#').next().expect("a path");
    fixture.server.put(at, reply);
    let source = fixture.daemon(&[path]).refreshed().await;
    assert_eq!(source.folders, SourceFolders::Missing, "{path}");
    let said = &source.problems;
    assert_eq!(
        codes(&source),
        [(Severity::Error, code)],
        "{path}: {said:?}"
    );
    assert_eq!(fixture.leftovers(), Vec::<String>::new(), "{path}");
}

#[tokio::test]
async fn a_refused_archive_is_a_problem_and_leaves_nothing() {
    let fixture = Fixture::with(|options| {
        options.archive.bytes = 2048;
        options.archive.file_bytes = 1024;
        options.archive.entries = 5;
        options.archive.depth = 3;
    })
    .await;
    let (fat, big) = ("x".repeat(1025), "x".repeat(1000));
    let paths: Vec<String> = (0..6).map(|number| format!("a/{number}")).collect();
    let many: Vec<(&str, &str)> = paths.iter().map(|name| (&**name, "")).collect();
    let bomb = [("a/1", &*big), ("a/2", &big), ("a/3", &big)];
    let mut cut = zip(&[("a/SKILL.md", "text")]);
    cut.truncate(60);
    for (path, bytes, code) in [
        (
            "/login.zip",
            b"<!DOCTYPE html><p>Log in".to_vec(),
            "archive.invalid",
        ),
        ("/notes.txt", b"just a text".to_vec(), "archive.invalid"),
        ("/binary", vec![0, 1, 2, 3], "archive.invalid"),
        ("/empty.zip", vec![], "archive.invalid"),
        (
            "/other.json",
            b"{\"a\": 1}".to_vec(),
            "root.document_invalid",
        ),
        ("/cut.zip", cut, "archive.invalid"),
        ("/slip.tar", tar(&[("../x", "")]), "archive.invalid"),
        ("/slip.zip", zip(&[("a/../../x", "")]), "archive.invalid"),
        ("/abs.tar", tar(&[("/etc/x", "")]), "archive.invalid"),
        (
            "/fat.zip",
            zip(&[("a/SKILL.md", &fat)]),
            "archive.too_large",
        ),
        ("/bomb.zip", zip(&bomb), "archive.too_large"),
        ("/many.zip", zip(&many), "archive.too_large"),
        ("/deep.zip", zip(&[("a/b/c/d", "")]), "archive.invalid"),
    ] {
        refused(&fixture, path, Reply::ok(bytes), code).await;
    }
}

#[tokio::test]
async fn an_unusable_entry_costs_neither_its_root_nor_its_skill() {
    let fixture = Fixture::new().await;
    let document = document("a");
    let archive = tar(&[("w/a/SKILL.md", &*document), ("/etc/x", "")]);
    fixture.server.put("/x.tar", Reply::ok(archive));
    let fetched = fixture.daemon(&["/x.tar"]).refreshed().await;
    let after_a_restart = fixture.daemon(&["/x.tar"]).source();
    for source in [fetched, after_a_restart] {
        assert_eq!(names(&source), ["a/SKILL.md"]);
        assert_eq!(codes(&source), [(Severity::Warning, "root.left_out")]);
        let message = &source.problems[0].message;
        assert!(
            message.ends_with(": /etc/x has an absolute name"),
            "{message}"
        );
    }
}

#[tokio::test]
async fn a_failed_fetch_is_a_specific_problem_and_leaves_nothing() {
    let fixture = Fixture::with(|options| options.archive.bytes = 8192).await;
    let pinned = format!("/pinned#sha256={}", sha256(b"other"));
    let metadata = "http://169.254.169.254/latest/";
    for (path, reply, code) in [
        ("/long", Reply::ok(vec![b'x'; 9000]), "root.too_large"),
        ("/endless", Reply::Endless, "root.too_large"),
        (
            "/short",
            Reply::Short(zip(&[("a", "")])),
            "root.unreachable",
        ),
        ("/missing", Reply::status(404), "root.unreachable"),
        ("/error", Reply::status(500), "root.unreachable"),
        (&*pinned, Reply::ok("text"), "root.checksum_mismatch"),
        ("/loop", Reply::redirect("/loop"), "root.unreachable"),
        ("/away", Reply::redirect("ftp://x/y"), "root.url_invalid"),
        ("/metadata", Reply::redirect(metadata), "root.refused"),
    ] {
        refused(&fixture, path, reply, code).await;
    }
}

#[tokio::test]
async fn private_addresses_are_refused_unless_configured() {
    let mut fixture = Fixture::new().await;
    fixture.config.remote.allow_private_addresses = false;
    let port = fixture.server.port();
    for host in ["127.0.0.1", "localhost", "[::ffff:127.0.0.1]"] {
        let url = format!("http://{host}:{port}/x.zip");
        let source = fixture.daemon(&[&url]).refreshed().await;
        assert_eq!(
            codes(&source),
            [(Severity::Error, "root.refused")],
            "{host}"
        );
    }
    assert!(fixture.server.seen().is_empty());
}

#[tokio::test]
async fn an_unchanged_archive_is_kept_and_a_changed_one_replaces_it() {
    let fixture = Fixture::new().await;
    let (one, two) = (document("one"), document("two"));
    let first = zip(&[("one/SKILL.md", &one), ("one/old.txt", "old")]);
    fixture
        .server
        .put("/x.zip", Reply::Tagged("\"1\"".into(), first));
    let daemon = fixture.daemon(&["/x.zip"]);
    let before = daemon.refreshed().await;
    assert_eq!(names(&before), ["one/SKILL.md", "one/old.txt"]);
    let same = daemon.refreshed().await;
    assert_eq!(tree(&same), tree(&before));
    assert!(
        fixture.server.seen()[1]
            .headers
            .contains_key("if-none-match")
    );
    // Without a tag the bytes are compared.
    let first = zip(&[("one/SKILL.md", &one), ("one/old.txt", "old")]);
    fixture.server.put("/x.zip", Reply::ok(first));
    assert_eq!(tree(&daemon.refreshed().await), tree(&before));
    fixture
        .server
        .put("/x.zip", Reply::ok(zip(&[("two/SKILL.md", &two)])));
    let after = daemon.refreshed().await;
    assert_eq!(names(&after), ["two/SKILL.md"]);
    // Whoever reads the old one reads it to its end.
    assert_eq!(names(&before), ["one/SKILL.md", "one/old.txt"]);
}

#[tokio::test]
async fn a_pinned_archive_is_asked_for_once() {
    let fixture = Fixture::new().await;
    let bytes = zip(&[("a/SKILL.md", "text")]);
    let url = format!("/x.zip#sha256={}", sha256(&bytes));
    fixture.server.put("/x.zip", Reply::ok(bytes));
    let daemon = fixture.daemon(&[&url]);
    for _ in 0..3 {
        assert_eq!(names(&daemon.refreshed().await), ["a/SKILL.md"]);
    }
    assert_eq!(fixture.server.hits("/x.zip"), 1);
    // Another pin is another root: what the first one allowed is not used for it.
    let other = format!("/x.zip#sha256={}", sha256(b"other"));
    let source = fixture.daemon(&[&other]).refreshed().await;
    assert_eq!(source.folders, SourceFolders::Missing);
}

#[tokio::test]
async fn a_start_does_not_wait_and_a_server_that_comes_later_is_found() {
    let fixture = Fixture::new().await;
    fixture.server.set_down(true);
    let daemon = fixture.daemon(&["/x.zip"]);
    assert_eq!(
        codes(&daemon.source()),
        [(Severity::Warning, "root.pending")]
    );
    let source = daemon.refreshed().await;
    assert_eq!(source.folders, SourceFolders::Missing);
    assert_eq!(codes(&source), [(Severity::Error, "root.unreachable")]);
    fixture.server.set_down(false);
    fixture
        .server
        .put("/x.zip", Reply::ok(zip(&[("a/SKILL.md", "text")])));
    let source = daemon.refreshed().await;
    assert_eq!(names(&source), ["a/SKILL.md"]);
    assert_eq!(codes(&source), []);
}

#[tokio::test]
async fn a_silent_server_delays_neither_the_start_nor_other_roots() {
    let fixture = Fixture::new().await;
    fixture.server.put("/silent", Reply::Silent);
    fixture
        .server
        .put("/x.zip", Reply::ok(zip(&[("a/SKILL.md", "text")])));
    let daemon = fixture.daemon(&["/silent", "/x.zip"]);
    daemon.remote.start();
    fixture.server.received(2).await;
    let deadline = Instant::now() + Duration::from_secs(60);
    while daemon.nth_source(1).folders == SourceFolders::Missing {
        assert!(Instant::now() < deadline, "the other root is held up");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    assert_eq!(
        codes(&daemon.source()),
        [(Severity::Warning, "root.pending")]
    );
    daemon.remote.context.tasks.stop.cancel();
    daemon.remote.context.tasks.tracker.close();
    daemon.remote.context.tasks.tracker.wait().await;
}

#[tokio::test]
async fn a_failed_refresh_keeps_the_old_tree_even_across_a_restart() {
    let fixture = Fixture::new().await;
    fixture
        .server
        .put("/x.zip", Reply::ok(zip(&[("a/SKILL.md", "text")])));
    let daemon = fixture.daemon(&["/x.zip"]);
    let before = daemon.refreshed().await;
    for reply in [
        Reply::status(503),
        Reply::Short(b"PK".to_vec()),
        Reply::ok("<html>maintenance"),
        Reply::ok(tar(&[("../x", "")])),
    ] {
        fixture.server.put("/x.zip", reply);
        let source = daemon.refreshed().await;
        assert_eq!(source.folders, before.folders);
        let [problem] = &*source.problems else {
            panic!("{:?}", source.problems);
        };
        assert_eq!(problem.severity, Severity::Warning);
        assert!(problem.message.ends_with("is kept"), "{}", problem.message);
    }
    fixture.server.set_down(true);
    let restarted = fixture.daemon(&["/x.zip"]).source();
    assert_eq!(restarted.folders, before.folders);
    assert_eq!(codes(&restarted), []);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn two_daemons_that_fetch_one_url_at_once_have_it_whole() {
    let fixture = Fixture::new().await;
    let paths: Vec<String> = (0..20).map(|number| format!("a/{number}.txt")).collect();
    let mut contents: Vec<(&str, &str)> = paths.iter().map(|name| (&**name, "text")).collect();
    contents.push(("a/SKILL.md", "text"));
    let bytes = gzip(&tar(&contents));
    for round in 0..50 {
        let path = format!("/{round}.tar.gz");
        fixture.server.put(&path, Reply::ok(bytes.clone()));
        let (one, two) = (fixture.daemon(&[&path]), fixture.daemon(&[&path]));
        let (first, second) = tokio::join!(one.refreshed(), two.refreshed());
        assert_eq!(first.folders, second.folders, "{:?}", first.problems);
        assert_eq!(names(&first).len(), 21);
        assert_eq!((first.problems, second.problems), (vec![], vec![]));
        assert!(fixture.server.hits(&path) <= 2);
    }
}

#[tokio::test]
async fn a_damaged_tree_or_record_is_never_taken_for_complete() {
    let fixture = Fixture::new().await;
    let bytes = zip(&[("a/SKILL.md", "text"), (".ready", "ok")]);
    fixture.server.put("/x.zip", Reply::ok(bytes));
    let daemon = fixture.daemon(&["/x.zip"]);
    let source = daemon.refreshed().await;
    let expected = [(".ready", "ok"), ("a/SKILL.md", "text")]
        .map(|(name, text)| (name.to_owned(), text.to_owned()));
    assert_eq!(files(&source), expected);

    // A power cut took the content of a file.
    let file = tree(&source).join("a/SKILL.md");
    fs::set_permissions(&file, fs::Permissions::from_mode(0o644)).expect("chmod");
    fs::write(&file, "").expect("write");
    let daemon = fixture.daemon(&["/x.zip"]);
    assert_eq!(daemon.source().folders, SourceFolders::Missing);
    assert_eq!(files(&daemon.refreshed().await), expected);

    // A power cut took a part of the record.
    let records = fs::read_dir(fixture.dir.path().join("state/skills/remote"));
    for record in records.expect("a directory") {
        let path = record.expect("an entry").path();
        fs::write(path, "{\"sha256\": \"\"").expect("write");
    }
    let daemon = fixture.daemon(&["/x.zip"]);
    assert_eq!(daemon.source().folders, SourceFolders::Missing);
    assert_eq!(files(&daemon.refreshed().await), expected);
}

#[tokio::test]
async fn only_the_current_tree_is_kept_in_the_store() {
    let fixture = Fixture::new().await;
    fixture
        .server
        .put("/x.zip", Reply::ok(zip(&[("one/SKILL.md", "1")])));
    let daemon = fixture.daemon(&["/x.zip"]);
    let is_kept = |source: &SkillSource| {
        let tree = tree(source);
        let digest = tree.file_name().expect("a digest").to_string_lossy();
        assert!(daemon.store.dir(&digest).is_dir());
        daemon.remote.references(&digest)
    };
    let before = daemon.refreshed().await;
    assert!(is_kept(&before));
    fixture
        .server
        .put("/x.zip", Reply::ok(zip(&[("two/SKILL.md", "2")])));
    let after = daemon.refreshed().await;
    assert!(is_kept(&after) && !is_kept(&before));
}

#[tokio::test]
async fn queries_are_sent_and_never_shown() {
    let fixture = Fixture::new().await;
    let source = fixture.daemon(&["/x.zip?token=secret"]).refreshed().await;
    assert_eq!(fixture.server.seen()[0].target, "/x.zip?token=secret");
    assert!(!format!("{source:?}").contains("secret"), "{source:?}");
}

#[tokio::test]
async fn a_refresh_that_may_not_wait_says_what_goes_on() {
    let fixture = Fixture::new().await;
    // Connections are taken and never answered.
    let silent = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
    let url = format!("http://{}/x.zip", silent.local_addr().expect("bound"));
    let daemon = fixture.daemon(&[&url]);
    let pending = daemon
        .remote
        .refresh(Some(tokio::time::Instant::now()))
        .await
        .expect("answered");
    let said: Vec<_> = pending
        .iter()
        .map(|problem| (problem.code, problem.subject.as_str()))
        .collect();
    assert_eq!(said, [("root.pending", url.as_str())]);
    // It went on, and a refresh that may wait sees it end.
    drop(silent);
    let problems = daemon.refreshed().await.problems;
    assert_eq!(problems[0].code, "root.unreachable", "{problems:?}");
}

#[tokio::test]
async fn no_skill_of_a_root_is_missed_between_two_pages() {
    let fixture = Fixture::new().await;
    let same = document("same");
    let archive = |text: &str| {
        let skill = |name: &'static str| (name, same.as_str());
        let skills = ["x/SKILL.md", "y/SKILL.md", "z/SKILL.md"].map(skill);
        tar(&[skills.as_slice(), &[("z/text", text)]].concat())
    };
    let skills = fixture.skills(&["/x"]);
    let (mut after, mut seen) = (None, Vec::new());
    loop {
        // Fetched anew in between, it lies elsewhere.
        let text = seen.len().to_string();
        fixture.server.put("/x", Reply::ok(archive(&text)));
        skills.refresh(None).await.expect("refreshed");
        let page = skills
            .list_page(after, 1, ValidationProfile::Lenient)
            .await
            .expect("a page");
        seen.extend(page.skills.iter().map(|skill| skill.within.clone()));
        if !page.has_more {
            break;
        }
        after = page.skills.last().map(Skill::cursor);
    }
    assert_eq!(seen, ["x", "y", "z"]);
}

#[tokio::test]
async fn a_url_without_a_skill_is_a_problem_of_its_root() {
    let fixture = Fixture::new().await;
    let put = |path: &str, reply| fixture.server.put(path, reply);
    put("/x.zip", Reply::ok(zip(&[("docs/README.md", "text")])));
    put(
        "/.well-known/agent-skills/index.json",
        Reply::ok(format!(
            "{{\"$schema\": \"{}\", \"skills\": []}}",
            indexes::SCHEMA
        )),
    );
    let entry = serde_json::json!({ "skills": [{"name": "a", "files": ["README.md"]}] });
    put("/i/index.json", Reply::ok(entry.to_string()));
    let skills = fixture.skills(&["/x.zip", "/", "/i/index.json"]);
    let listing = skills.refresh(None).await.expect("refreshed");
    let problems = listing.problems.iter();
    let told: Vec<_> = problems
        .map(|problem| (problem.severity, problem.code, problem.subject.clone()))
        .collect();
    let told_of = |path, code| (Severity::Warning, code, fixture.server.url(path));
    assert_eq!(
        told,
        [
            told_of("/x.zip", "root.no_skills"),
            told_of("/", "root.no_skills"),
            told_of("/i/index.json", "root.skill_skipped"),
            // It has the same content as the root before it.
            told_of("/i/index.json", "root.duplicate"),
        ]
    );
}

#[tokio::test]
async fn names_that_differ_in_case_reject_only_their_own_skill() {
    let fixture = Fixture::new().await;
    let (good, bad, inner) = (document("good"), document("bad"), document("inner"));
    let files = [
        ("r/README.md", "text"),
        ("r/readme.md", "text"),
        ("r/good/SKILL.md", &*good),
        ("r/bad/SKILL.md", &bad),
        ("r/bad/docs/a.md", "text"),
        ("r/bad/Docs/b.md", "text"),
        ("r/bad/inner/SKILL.md", &inner),
    ];
    fixture.server.put("/x.tar", Reply::ok(tar(&files)));
    let single = [("SKILL.md", &*bad), ("a.md", "text"), ("A.md", "text")];
    fixture.server.put("/y.zip", Reply::ok(zip(&single)));
    let skills = fixture.skills(&["/x.tar", "/y.zip"]);
    let listing = skills.refresh(None).await.expect("refreshed");
    let listed: Vec<_> = listing
        .skills
        .iter()
        .map(|skill| {
            let codes = skill.problems.iter().map(|problem| problem.code);
            (&*skill.name, skill.state, codes.collect::<Vec<_>>())
        })
        .collect();
    let clash = vec!["skill.case_clash"];
    assert_eq!(
        listed,
        [
            ("bad", SkillState::Rejected, clash.clone()),
            ("bad", SkillState::Rejected, clash),
            ("good", SkillState::Loaded, vec![]),
            ("inner", SkillState::Loaded, vec![]),
        ]
    );
    let said = &listing.skills[0].problems[0].message;
    assert!(
        said.starts_with("docs differs only in case from Docs"),
        "{said}"
    );
    assert_eq!(listing.problems, []);
}
