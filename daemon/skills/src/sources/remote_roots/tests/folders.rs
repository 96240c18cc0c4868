//! Roots that are a folder of an archive.

use super::{Fixture, codes, document, files, names, sha256, tar, zip};
use crate::fetch::tests::server::Reply;
use crate::parse::problem::Severity;
use crate::skills_options::SkillRoot;
use crate::sources::skill_source::SourceFolders;

/// Archive of a repository with one folder around everything, as code hosts make it.
fn repository() -> Vec<u8> {
    let (a, b, c) = (document("a"), document("b"), document("c"));
    tar(&[
        ("repo-main/README.md", "text"),
        ("repo-main/skills/a/SKILL.md", &a),
        ("repo-main/skills/deep/b/SKILL.md", &b),
        ("repo-main/other/c/SKILL.md", &c),
    ])
}

#[tokio::test]
async fn a_folder_root_may_include_or_omit_the_archives_top_folder() {
    let fixture = Fixture::new().await;
    fixture.server.put("/x.tar", Reply::ok(repository()));
    let both = &["a/SKILL.md", "deep/b/SKILL.md"][..];
    for (folder, expected) in [
        ("skills", both),
        ("./skills/", both),
        ("repo-main/skills", both),
        ("skills/deep", &["b/SKILL.md"]),
        ("skills/a", &["SKILL.md"]),
    ] {
        let daemon = fixture.daemon(&[&format!("/x.tar#{folder}")]);
        let source = daemon.refreshed().await;
        assert_eq!(names(&source), expected, "{folder}");
        assert_eq!(codes(&source), []);
        let shown = folder.trim_start_matches("./").trim_end_matches('/');
        assert_eq!(source.root, fixture.server.url(&format!("/x.tar#{shown}")));
        assert_eq!(source.origin.as_ref(), Some(&source.root));
    }
    let whole = fixture.daemon(&["/x.tar#repo-main"]).refreshed().await;
    assert_eq!(names(&whole).len(), 4);
    let listing = fixture
        .skills(&["/x.tar#skills"])
        .refresh(None)
        .await
        .expect("refreshed");
    let listed: Vec<_> = listing.skills.iter().map(|skill| &*skill.name).collect();
    assert_eq!((listed, listing.problems), (vec!["a", "b"], vec![]));
}

#[tokio::test]
async fn a_folder_of_an_archive_that_is_one_skill_is_found_too() {
    let fixture = Fixture::new().await;
    let (own, inner) = (document("own"), document("inner"));
    let files = [
        ("v-main/SKILL.md", &*own),
        ("v-main/sub/inner/SKILL.md", &inner),
    ];
    fixture.server.put("/v.zip", Reply::ok(zip(&files)));
    for folder in ["sub", "v-main/sub"] {
        let daemon = fixture.daemon(&[&format!("/v.zip#{folder}")]);
        assert_eq!(
            names(&daemon.refreshed().await),
            ["inner/SKILL.md"],
            "{folder}"
        );
    }
}

#[tokio::test]
async fn a_missing_or_ambiguous_folder_is_a_problem_of_its_root() {
    let fixture = Fixture::new().await;
    fixture.server.put("/x.tar", Reply::ok(repository()));
    let twice = [
        ("s/s/a/SKILL.md", &*document("a")),
        ("s/b/SKILL.md", "text"),
    ];
    fixture.server.put("/s.tar", Reply::ok(tar(&twice)));
    for (root, message) in [
        ("/x.tar#none", "has no folder \"none\""),
        ("/x.tar#Skills", "at its top are \"other\", \"skills\""),
        ("/x.tar#skills/a/SKILL.md", "has no folder"),
        ("/x.tar#skills/repo-main", "has no folder"),
        ("/s.tar#s", "two folders \"s\""),
    ] {
        let source = fixture.daemon(&[root, "/x.tar"]).refreshed().await;
        assert_eq!(source.folders, SourceFolders::Missing, "{root}");
        assert_eq!(
            codes(&source),
            [(Severity::Error, "root.no_folder")],
            "{root}"
        );
        let said = &source.problems[0].message;
        assert!(said.contains(message), "{root}: {said}");
    }
    let inner = fixture.daemon(&["/s.tar#s/s"]).refreshed().await;
    assert_eq!(names(&inner), ["a/SKILL.md"]);
}

#[tokio::test]
async fn folders_of_one_archive_are_fetched_once() {
    let fixture = Fixture::new().await;
    let bytes = repository();
    let pinned = format!("/x.tar#sha256={}&skills", sha256(&bytes));
    fixture.server.put("/x.tar", Reply::ok(bytes));
    let daemon = fixture.daemon(&["/x.tar#other", "/x.tar#skills/a", "/x.tar"]);
    daemon.refreshed().await;
    assert_eq!(fixture.server.hits("/x.tar"), 1);
    assert_eq!(names(&daemon.nth_source(0)), ["c/SKILL.md"]);
    assert_eq!(names(&daemon.nth_source(1)), ["SKILL.md"]);
    assert_eq!(files(&daemon.nth_source(2)).len(), 4);
    // A pin is about the bytes of the URL, whatever folder of them is served.
    let source = fixture.daemon(&[&pinned]).refreshed().await;
    assert_eq!(names(&source), ["a/SKILL.md", "deep/b/SKILL.md"]);
    assert_eq!(source.root, fixture.server.url("/x.tar#skills"));
}

#[test]
fn a_folder_that_leaves_the_archive_is_refused() {
    let long = "a/".repeat(40);
    let digest = "0".repeat(64);
    for (fragment, folder) in [
        ("", Some("")),
        ("#", Some("")),
        ("#a/./b//", Some("a/b")),
        ("#a b/ü", Some("a b/ü")),
        (&*format!("#sha256={digest}"), Some("")),
        (&format!("#sha256={digest}&a/b"), Some("a/b")),
        ("#..", None),
        ("#a/../b", None),
        ("#/etc", None),
        ("#a\\b", None),
        ("#a\0", None),
        ("#sha256=00", None),
        ("#sha256=00&a", None),
        (&format!("#sha256={digest}&../a"), None),
        (&format!("#{long}"), None),
        (&format!("#{}", "x".repeat(600)), None),
    ] {
        let text = format!("https://skills.example/x.tar.gz?key=secret{fragment}");
        let parsed = SkillRoot::parse_url(&text);
        let shown = format!("{parsed:?}");
        assert!(!shown.contains("secret") && shown.len() < 1000, "{shown}");
        let read = parsed.ok().map(|root| match root {
            SkillRoot::Url { folder, .. } => folder,
            SkillRoot::Dir { .. } => panic!("not a URL"),
        });
        assert_eq!(read.as_deref(), folder, "{fragment:?}");
    }
}
