//! Documents that lead to other documents: both shapes of the well-known index, and skill cards.

use serde_json::json;

use super::super::fetch_plan::{self, PlannedFiles};
use super::{Fixture, codes, document, files, names, sha256, tree, zip};
use crate::fetch::WebUrl;
use crate::fetch::tests::server::Reply;
use crate::parse::problem::Severity;
use crate::parse::skill_card;
use crate::sources::skill_source::SourceFolders;

pub(super) const SCHEMA: &str = "https://schemas.agentskills.io/discovery/0.2.0/schema.json";
const PINNED: &str = "/.well-known/agent-skills/index.json";
const LISTED: &str = "/.well-known/skills/index.json";

fn pinned(skills: &serde_json::Value) -> Reply {
    Reply::ok(json!({ "$schema": SCHEMA, "skills": skills }).to_string())
}

fn listed(skills: &serde_json::Value) -> Reply {
    Reply::ok(json!({ "skills": skills }).to_string())
}

fn digest(bytes: &[u8]) -> String {
    format!("sha256:{}", sha256(bytes))
}

#[tokio::test]
async fn an_index_with_digests_gives_the_skills_that_have_them() {
    let fixture = Fixture::new().await;
    let (md, archive) = (
        document("md"),
        zip(&[("SKILL.md", "text"), ("run.sh*", "")]),
    );
    let right = digest(&archive);
    let entry = |name: &str, kind: &str, url: &str, digest: &str| json!({ "name": name, "description": "d", "type": kind, "url": url, "digest": digest });
    let index = json!([
        entry("md", "skill-md", "md/SKILL.md", &digest(md.as_bytes())),
        entry("zipped", "archive", "/files/zipped.zip", &right),
        entry("wrong", "archive", "/files/zipped.zip", &digest(b"other")),
        entry("../up", "archive", "/files/zipped.zip", &right),
        entry("zipped", "archive", "/files/zipped.zip", &right),
        entry("new", "container", "/files/zipped.zip", &right),
        entry(
            "upper",
            "archive",
            "/files/zipped.zip",
            &right.to_uppercase()
        ),
        entry("away", "archive", "file:///etc/passwd", &right),
        json!({ "name": "bare", "type": "archive", "url": "/files/zipped.zip" }),
        json!("text"),
    ]);
    fixture.server.put(PINNED, pinned(&index));
    fixture
        .server
        .put("/.well-known/agent-skills/md/SKILL.md", Reply::ok(md));
    fixture.server.put("/files/zipped.zip", Reply::ok(archive));
    let source = fixture.daemon(&["/"]).refreshed().await;
    assert_eq!(
        names(&source),
        ["md/SKILL.md", "zipped/SKILL.md", "zipped/run.sh*"]
    );
    let said: Vec<&str> = source.problems.iter().map(|one| &*one.message).collect();
    for (says, why) in [
        ("wrong", "and not"),
        ("../up", "not of the form"),
        ("zipped", "an earlier skill has this name"),
        ("new", "neither skill-md nor archive"),
        ("upper", "64 lower-case hex digits"),
        ("away", "only http:// and https://"),
        ("bare", "missing field `digest`"),
        ("number 10", ""),
    ] {
        let found = said
            .iter()
            .any(|said| said.contains(says) && said.contains(why));
        assert!(found, "{says}: {said:#?}");
    }
    assert_eq!(said.len(), 8);
    let skipped = (Severity::Warning, "root.skill_skipped");
    assert!(codes(&source).iter().all(|code| *code == skipped));
}

#[tokio::test]
async fn only_changed_index_skills_are_fetched_and_failed_ones_kept() {
    let fixture = Fixture::new().await;
    let (one, two) = (zip(&[("SKILL.md", "1")]), zip(&[("SKILL.md", "2")]));
    let index = |a: &[u8], b: &[u8]| {
        pinned(&json!([
            { "name": "a", "type": "archive", "url": "/a", "digest": digest(a) },
            { "name": "b", "type": "archive", "url": "/b", "digest": digest(b) },
        ]))
    };
    fixture.server.put(PINNED, index(&one, &one));
    fixture.server.put("/a", Reply::ok(one.clone()));
    fixture.server.put("/b", Reply::ok(one.clone()));
    let daemon = fixture.daemon(&["/"]);
    let first = daemon.refreshed().await;
    assert_eq!(tree(&daemon.refreshed().await), tree(&first));
    assert_eq!(
        (fixture.server.hits("/a"), fixture.server.hits("/b")),
        (1, 1)
    );
    // b changed, and its server fails for a while.
    fixture.server.put(PINNED, index(&one, &two));
    fixture.server.put("/b", Reply::status(503));
    let failed = daemon.refreshed().await;
    let content = |text: &str| {
        let file = |name: &str, text: &str| (format!("{name}/SKILL.md"), text.to_owned());
        vec![file("a", "1"), file("b", text)]
    };
    assert_eq!(files(&failed), content("1"));
    assert!(
        failed.problems[0]
            .message
            .ends_with("what was there is kept")
    );
    fixture.server.put("/b", Reply::ok(two.clone()));
    let mended = daemon.refreshed().await;
    assert_eq!(files(&mended), content("2"));
    assert_eq!(codes(&mended), []);
    assert_eq!(
        (fixture.server.hits("/a"), fixture.server.hits("/b")),
        (1, 3)
    );
}

#[tokio::test]
async fn entries_left_out_of_a_kept_archive_are_still_named() {
    let fixture = Fixture::new().await;
    let archive = zip(&[("SKILL.md", "1"), ("/etc/x", "")]);
    let digest = digest(&archive);
    fixture.server.put("/a", Reply::ok(archive));
    let daemon = fixture.daemon(&["/"]);
    for description in ["first", "second"] {
        let index = json!([
            { "name": "a", "type": "archive", "url": "/a", "digest": digest, "description": description },
        ]);
        fixture.server.put(PINNED, pinned(&index));
        let source = daemon.refreshed().await;
        assert_eq!(names(&source), ["a/SKILL.md"]);
        assert_eq!(codes(&source), [(Severity::Warning, "root.left_out")]);
        let message = &source.problems[0].message;
        assert!(message.starts_with("a: left out"), "{message}");
    }
    assert_eq!(fixture.server.hits("/a"), 1);
}

#[tokio::test]
async fn an_index_with_lists_of_files_is_fetched_file_by_file() {
    let fixture = Fixture::new().await;
    let index = json!([
        { "name": "a", "description": "d", "files": ["SKILL.md", "ref/n o?te#s.md"] },
        { "name": "up", "description": "d", "files": ["SKILL.md", "../../../etc/passwd"] },
        { "name": "abs", "description": "d", "files": ["SKILL.md", "/etc/passwd"] },
        { "name": "back", "description": "d", "files": ["SKILL.md", "..\\x"] },
        { "name": "twice", "description": "d", "files": ["SKILL.md", "skill.MD"] },
        { "name": "empty", "description": "d", "files": [] },
        { "name": "gone", "description": "d", "files": ["SKILL.md"] },
    ]);
    fixture.server.put(LISTED, listed(&index));
    let base = "/.well-known/skills/a";
    let tagged = |text: &str| Reply::Tagged(format!("\"{text}\""), text.as_bytes().to_vec());
    let escaped = format!("{base}/ref/n%20o%3Fte%23s.md");
    fixture.server.put(&format!("{base}/SKILL.md"), tagged("1"));
    fixture.server.put(&escaped, tagged("notes"));
    let daemon = fixture.daemon(&["/"]);
    let first = daemon.refreshed().await;
    assert_eq!(names(&first), ["a/SKILL.md", "a/ref/n o?te#s.md"]);
    assert_eq!(codes(&first).len(), 6, "{:?}", first.problems);
    // All is asked for again, as there are no digests, and nothing is sent.
    let same = daemon.refreshed().await;
    assert_eq!(tree(&same), tree(&first));
    fixture.server.put(&format!("{base}/SKILL.md"), tagged("2"));
    let changed = daemon.refreshed().await;
    assert_eq!(files(&changed)[0].1, "2");
    assert_eq!(files(&changed)[1].1, "notes");
    assert_eq!(
        files(&first)[0].1,
        "1",
        "the generation before is as it was"
    );
    // Nothing but what the index allows was asked for.
    let paths = [
        PINNED,
        LISTED,
        &escaped,
        "/.well-known/skills/gone/SKILL.md",
    ];
    let skill_md = format!("{base}/SKILL.md");
    for seen in fixture.server.seen() {
        let known = paths.contains(&&*seen.target) || seen.target == skill_md;
        assert!(known, "{}", seen.target);
    }
}

#[tokio::test]
async fn an_index_of_ten_thousand_skills_is_bounded() {
    let fixture = Fixture::new().await;
    let skill = |number: usize| json!({ "name": format!("s{number}"), "files": [] });
    let skills: Vec<_> = (0..10_000).map(skill).collect();
    fixture.server.put(LISTED, listed(&json!(skills)));
    let source = fixture.daemon(&[LISTED]).refreshed().await;
    assert_eq!(source.problems.len(), 1001);
    assert!(source.problems[0].message.contains("has 10000 skills"));
    assert_eq!(fixture.server.seen().len(), 1);

    let from: WebUrl = "https://x.example/index.json".parse().expect("a URL");
    let skill = |number: usize| json!({ "name": format!("s{number}"), "files": ["SKILL.md"] });
    let skills: Vec<_> = (0..10_000).map(skill).collect();
    let index = json!({ "skills": skills }).to_string();
    let plan = |files_max| fetch_plan::plan_fetches(&index, &from, files_max).expect("a plan");
    assert_eq!(plan(10_000).skills.len(), fetch_plan::SKILLS_MAX);
    // The limit is for all of them together.
    let bounded = plan(10);
    assert_eq!(bounded.skills.len(), 10);
    assert_eq!(bounded.skipped.len(), fetch_plan::SKILLS_MAX - 10 + 1);
    let files: Vec<String> = (0..11).map(|number| format!("f{number}")).collect();
    let card = json!({ "id": "a", "base_uri": ".", "files": files }).to_string();
    let error = fetch_plan::plan_fetches(&card, &from, 10).expect_err("too many");
    assert!(error.contains("more than the 10 that are left"), "{error}");
}

#[tokio::test]
async fn the_limits_hold_for_all_skills_of_an_index_together() {
    let fixture = Fixture::with(|options| {
        options.archive.entries = 5;
        options.archive.bytes = 2048;
    })
    .await;
    let skill = |name: &str| json!({ "name": name, "files": ["SKILL.md", "1", "2"] });
    fixture
        .server
        .put(LISTED, listed(&json!([skill("a"), skill("b")])));
    for name in ["a", "b"] {
        for file in ["SKILL.md", "1", "2"] {
            let path = format!("/.well-known/skills/{name}/{file}");
            fixture.server.put(&path, Reply::ok("text"));
        }
    }
    let source = fixture.daemon(&[LISTED]).refreshed().await;
    assert_eq!(names(&source), ["a/1", "a/2", "a/SKILL.md"]);
    let message = &source.problems[0].message;
    assert!(
        message.contains("more than the 2 that are left"),
        "{message}"
    );
}

#[tokio::test]
async fn folders_count_and_so_does_what_is_kept() {
    let fixture = Fixture::with(|options| {
        options.archive.entries = 6;
        options.archive.bytes = 2048;
    })
    .await;
    let folders = zip(&[("SKILL.md", "1"), ("a/b/c", ""), ("a/d/e", "")]);
    let (small, large) = (zip(&[("SKILL.md", "1")]), "l".repeat(1500));
    let large = zip(&[("SKILL.md", &large)]);
    let entry = |name: &str, archive: &[u8]| json!({ "name": name, "type": "archive", "url": format!("/{name}"), "digest": digest(archive) });
    fixture.server.put("/a", Reply::ok(folders.clone()));
    fixture.server.put("/b", Reply::ok(small.clone()));
    let daemon = fixture.daemon(&["/"]);
    // Three files in three folders leave no room for one more file.
    let index = json!([entry("a", &folders), entry("b", &small)]);
    fixture.server.put(PINNED, pinned(&index));
    let first = daemon.refreshed().await;
    assert_eq!(names(&first), ["a/SKILL.md", "a/a/b/c", "a/a/d/e"]);
    // Nor is there room beside it when it stays as it is, for bytes or for entries.
    fixture.server.put("/c", Reply::ok(large.clone()));
    let index = json!([entry("a", &folders), entry("c", &large)]);
    fixture.server.put(PINNED, pinned(&index));
    assert_eq!(names(&daemon.refreshed().await).len(), 3);
    // What comes first is taken; what is there already, and does not fit any more, is not.
    let index = json!([entry("c", &large), entry("a", &folders)]);
    fixture.server.put(PINNED, pinned(&index));
    assert_eq!(names(&daemon.refreshed().await), ["c/SKILL.md"]);
    let again = json!([entry("d", &large), entry("c", &large)]);
    fixture.server.put("/d", Reply::ok(large));
    fixture.server.put(PINNED, pinned(&again));
    let source = daemon.refreshed().await;
    assert_eq!(
        names(&source),
        ["d/SKILL.md"],
        "two of 1,500 bytes are more than 2 KiB"
    );
    assert!(!source.problems[0].message.contains("is kept"));
}

#[tokio::test]
async fn folders_of_files_that_come_one_by_one_count_as_well() {
    let fixture = Fixture::with(|options| options.archive.entries = 5).await;
    let skill = json!({ "name": "a", "files": ["SKILL.md", "x/y/z/1"] });
    fixture.server.put(LISTED, listed(&json!([skill])));
    for path in ["SKILL.md", "x/y/z/1"] {
        let path = format!("/.well-known/skills/a/{path}");
        fixture.server.put(&path, Reply::ok("text"));
    }
    let daemon = fixture.daemon(&[LISTED]);
    assert_eq!(
        names(&daemon.refreshed().await),
        ["a/SKILL.md", "a/x/y/z/1"]
    );
    let skill = json!({ "name": "b", "files": ["SKILL.md", "x/y/z/1", "w/2"] });
    let path = "/.well-known/skills/b/SKILL.md";
    fixture.server.put(path, Reply::ok("text"));
    fixture.server.put(LISTED, listed(&json!([skill])));
    let source = daemon.refreshed().await;
    let message = &source.problems[0].message;
    assert!(
        message.contains("more than 5 files and folders"),
        "{message}"
    );
}

#[tokio::test]
async fn a_document_that_makes_a_folder_of_a_file_is_refused_as_such() {
    let from: WebUrl = "https://x.example/index.json".parse().expect("a URL");
    let read =
        |document: serde_json::Value| fetch_plan::plan_fetches(&document.to_string(), &from, 10);
    for files in [
        ["SKILL.md", "a", "a/b"],
        ["SKILL.md", "a/b", "a"],
        ["SKILL.md", "A/b/c", "a//B"],
        ["SKILL.md", "SKILL.md/x", "b"],
    ] {
        let index = json!({ "skills": [{ "name": "s", "files": files }] });
        let plan = read(index).expect("a plan");
        assert!(plan.skills.is_empty(), "{files:?}");
        let why = &plan.skipped[0];
        assert!(why.contains("makes a folder of a file"), "{why}");
    }
    let card = json!({ "id": "s", "base_uri": ".", "files": ["skill-card.json/x"] });
    let why = read(card).expect_err("the card is a file");
    assert!(why.contains("makes a folder of a file"), "{why}");
    let index = json!({ "skills": [{ "name": "s", "files": ["SKILL.md", "a/b", "a/c", "ab"] }] });
    assert_eq!(read(index).expect("a plan").skills.len(), 1);
}

#[tokio::test]
async fn an_index_of_an_unknown_kind_is_not_guessed_at() {
    let fixture = Fixture::new().await;
    let index = json!({ "$schema": "https://x.example/9.json", "skills": [] });
    fixture.server.put(PINNED, Reply::ok(index.to_string()));
    let source = fixture.daemon(&["/"]).refreshed().await;
    assert_eq!(source.folders, SourceFolders::Missing);
    assert_eq!(codes(&source), [(Severity::Error, "root.document_invalid")]);
    assert_eq!(fixture.server.hits(LISTED), 0);
}

#[tokio::test]
async fn a_card_brings_its_files_from_its_base() {
    let fixture = Fixture::new().await;
    for path in ["/base/SKILL.md", "/base/references/x.md", "/cards/SKILL.md"] {
        fixture.server.put(path, Reply::ok(path));
    }
    let elsewhere = fixture.server.url("/base");
    for (base, files, expected) in [
        (
            &*elsewhere,
            json!(["./references//x.md"]),
            vec!["/base/SKILL.md", "/base/references/x.md"],
        ),
        ("../base/", json!(["SKILL.md"]), vec!["/base/SKILL.md"]),
        (
            ".",
            json!(["skill-card.json", "SKILL.md"]),
            vec!["/cards/SKILL.md"],
        ),
        ("", json!([]), vec!["/cards/SKILL.md"]),
    ] {
        let card = json!({ "id": "carded", "name": "n", "description": "d", "base_uri": base,
            "files": files, "version": "1.0" });
        fixture
            .server
            .put("/cards/skill-card.json", Reply::ok(card.to_string()));
        let source = fixture
            .daemon(&["/cards/skill-card.json"])
            .refreshed()
            .await;
        let found = super::files(&source);
        let texts: Vec<&str> = found.iter().map(|(_, text)| &**text).collect();
        assert_eq!(texts[..expected.len()], expected, "{base}");
        let stored = skill_card::with_own_base(card.to_string().as_bytes());
        let stored = String::from_utf8(stored).expect("JSON");
        assert_eq!(texts.last(), Some(&&*stored), "{base}");
        assert!(found.iter().all(|(name, _)| name.starts_with("carded/")));
    }
}

#[tokio::test]
async fn a_card_whose_paths_leave_its_base_is_refused() {
    let fixture = Fixture::new().await;
    for (field, value, says) in [
        (
            "files",
            json!(["references/../../../etc/passwd"]),
            "does not stay in its folder",
        ),
        (
            "files",
            json!(["/etc/passwd"]),
            "does not stay in its folder",
        ),
        (
            "base_uri",
            json!("file:///etc"),
            "only http:// and https://",
        ),
        (
            "base_uri",
            json!("http://user:pw@x/"),
            "a user name or a password",
        ),
        ("id", json!("../x"), "not of the form"),
    ] {
        let mut card = json!({ "id": "a", "base_uri": ".", "files": [] });
        card[field] = value;
        fixture
            .server
            .put("/skill-card.json", Reply::ok(card.to_string()));
        let source = fixture.daemon(&["/skill-card.json"]).refreshed().await;
        assert_eq!(source.folders, SourceFolders::Missing, "{field}");
        let message = &source.problems[0].message;
        assert!(message.contains(says), "{message}");
        assert!(!message.contains("pw"), "{message}");
    }
    assert_eq!(fixture.server.seen().len(), 5);
}

#[test]
fn file_names_of_an_index_are_escaped_in_their_urls() {
    let from: WebUrl = "https://x.example/a/index.json?token=1"
        .parse()
        .expect("a URL");
    let text = json!({ "skills": [{ "name": "s", "files": ["SKILL.md", "a b/%2e%2e/c"] }] });
    let plan = fetch_plan::plan_fetches(&text.to_string(), &from, 10).expect("a plan");
    let PlannedFiles::Listed(files) = &plan.skills[0].files else {
        panic!("{plan:?}");
    };
    let url = files[1].1.url().as_str();
    assert_eq!(url, "https://x.example/a/s/a%20b/%252e%252e/c");
}
