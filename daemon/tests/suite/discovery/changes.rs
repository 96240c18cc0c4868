//! Changes on disk: listed by themselves, after a scan, and in every page and health answer of a server.

use super::*;

/// Every kind of change, one after the other, each visible after the next scan.
#[tokio::test]
async fn a_change_is_in_the_list_after_a_scan() {
    for watches_max in WATCHING {
        let fixture = Fixture::with(|config| config.watches_max = watches_max);
        assert_eq!(fixture.names().await, [""; 0]);
        fixture.skill("a/csv", "csv");
        assert_eq!(fixture.names().await, ["csv"], "added");
        fixture.skill("a/deep/down/pdf", "pdf");
        assert_eq!(fixture.names().await, ["csv", "pdf"], "added below");

        fixture.document("a/csv/SKILL.md", "csv", "edited", "");
        assert_eq!(fixture.one("csv").await.front_matter.description, "edited");
        let replacement = fixture.path("a/csv/.SKILL.md.swp");
        fs::write(&replacement, "---\nname: csv\ndescription: renamed\n---\n").expect("write");
        fs::rename(replacement, fixture.path("a/csv/SKILL.md")).expect("rename");
        assert_eq!(fixture.one("csv").await.front_matter.description, "renamed");
        // Its name is another one: what it is listed and asked for as changes together.
        fixture.document("a/csv/SKILL.md", "tables", "d", "");
        assert_eq!(fixture.names().await, ["pdf", "tables"]);
        assert!(fixture.get("csv").await.is_err() && fixture.get("tables").await.is_ok());

        let mut digests = vec![digest(&fixture.one("tables").await).to_owned()];
        let script = fixture.write("a/csv/scripts/run.sh", "one");
        digests.push(digest(&fixture.one("tables").await).to_owned());
        fs::write(&script, "two").expect("write");
        digests.push(digest(&fixture.one("tables").await).to_owned());
        fs::set_permissions(&script, fs::Permissions::from_mode(0o755)).expect("chmod");
        digests.push(digest(&fixture.one("tables").await).to_owned());
        fixture.write("a/csv/.config/x", "hidden ones count");
        digests.push(digest(&fixture.one("tables").await).to_owned());
        fixture.write("a/csv/.config/x", "and their changes");
        digests.push(digest(&fixture.one("tables").await).to_owned());
        let distinct: std::collections::HashSet<_> = digests.iter().collect();
        assert_eq!(distinct.len(), digests.len(), "{watches_max}: {digests:?}");
        fs::remove_dir_all(fixture.path("a/csv/scripts")).expect("remove");
        fs::remove_dir_all(fixture.path("a/csv/.config")).expect("remove");
        assert_eq!(digest(&fixture.one("tables").await), digests[0]);

        fs::rename(fixture.path("a/deep/down"), fixture.path("b/up")).expect("rename");
        let moved = fixture.one("pdf").await;
        assert_eq!(moved.found_at, fixture.path("b/up/pdf"));
        fixture.document("b/up/pdf/SKILL.md", "pdf", "edited there", "");
        let moved = fixture.one("pdf").await;
        assert_eq!(moved.front_matter.description, "edited there");
        fs::remove_dir_all(fixture.path("b/up")).expect("remove");
        assert_eq!(fixture.names().await, ["tables"], "removed");
    }
}

/// Waits until a skill is listed with this description, without a request to look for changes.
async fn wait_until_listed(fixture: &Fixture, name: &str, description: &str) {
    let what = format!("{name} is listed with the description {description}");
    wait_until(&what, async || {
        let listing = fixture.skills.list().await.expect("list");
        let mut skills = listing.skills.iter();
        let found = skills.find(|skill| skill.name == name)?;
        (found.front_matter.description == description).then_some(())
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_change_is_listed_by_itself_watched_or_not() {
    for watches_max in WATCHING {
        let fixture = Fixture::with(|config| config.watches_max = watches_max);
        fixture.skill("a/csv", "csv");
        wait_until_listed(&fixture, "csv", "d").await;
        fixture.document("a/csv/SKILL.md", "csv", "edited", "");
        wait_until_listed(&fixture, "csv", "edited").await;
        fixture.document("a/new/deep/SKILL.md", "deep", "added", "");
        wait_until_listed(&fixture, "deep", "added").await;
        fixture.document("a/new/deep/SKILL.md", "deep", "edited", "");
        wait_until_listed(&fixture, "deep", "edited").await;
        fs::rename(fixture.path("a/new"), fixture.path("b/new")).expect("rename");
        fixture.document("b/new/deep/SKILL.md", "deep", "moved", "");
        wait_until_listed(&fixture, "deep", "moved").await;
    }
}

#[tokio::test]
async fn a_root_that_goes_is_a_problem_and_is_back_when_it_is_back() {
    for watches_max in WATCHING {
        let fixture = Fixture::with(|config| config.watches_max = watches_max);
        let readable = fixture.skills.is_readable();
        fixture.skill("a/csv", "csv");
        fixture.skill("b/pdf", "pdf");
        assert_eq!(fixture.names().await, ["csv", "pdf"]);
        assert!(*readable.borrow());

        fs::rename(fixture.path("a"), fixture.path("away")).expect("rename");
        let listing = fixture.list().await;
        assert_eq!(listing.skills.len(), 1);
        assert_eq!(codes(&listing.problems), ["root.unreadable"]);
        assert_eq!(
            listing.problems[0].subject,
            fixture.path("a").display().to_string()
        );
        assert!(!*readable.borrow());

        fs::write(fixture.path("a"), "a file").expect("write");
        assert_eq!(fixture.problems().await, ["root.unreadable"]);
        fs::remove_file(fixture.path("a")).expect("remove");
        fixture.skill("a/new", "new");
        assert_eq!(fixture.names().await, ["new", "pdf"]);
        fs::remove_dir_all(fixture.path("a")).expect("remove");
        fs::rename(fixture.path("away"), fixture.path("a")).expect("rename");
        assert_eq!(fixture.names().await, ["csv", "pdf"]);
        assert_eq!(fixture.problems().await, [""; 0]);
        assert!(*readable.borrow());
        fixture.document("a/csv/SKILL.md", "csv", "edited", "");
        assert_eq!(fixture.one("csv").await.front_matter.description, "edited");
    }
}

#[tokio::test]
async fn only_what_changed_is_read_again() {
    let fixture = Fixture::new();
    for number in 0..200 {
        fixture.skill(&format!("a/s{number:03}"), &format!("s{number:03}"));
    }
    let first = fixture.catalogue().await;
    let again = fixture.catalogue().await;
    assert!(Arc::ptr_eq(&first, &again), "nothing changed");
    // A file of a skill changes its digest and no other skill, an unknown name changes nothing.
    fixture.write("a/s000/scripts/x.py", "x");
    let second = fixture.catalogue().await;
    let pairs = first.skills.iter().zip(&second.skills);
    let changed: Vec<&str> = pairs
        .filter(|(before, after)| !Arc::ptr_eq(before, after))
        .map(|(_, after)| after.name.as_str())
        .collect();
    assert_eq!(changed, ["s000"]);
    assert!(fixture.get("nobody").await.is_err());
    assert_eq!(fixture.catalogue().await.generation, second.generation);

    fixture.document("a/s100/SKILL.md", "s100", "edited", "");
    let third = fixture.catalogue().await;
    assert!(third.generation > second.generation);
    let pairs = second.skills.iter().zip(&third.skills);
    let changed: Vec<&str> = pairs
        .filter(|(before, after)| !Arc::ptr_eq(before, after))
        .map(|(_, after)| after.name.as_str())
        .collect();
    assert_eq!(changed, ["s100"]);
    // A refresh reads all of them.
    let refreshed = fixture.skills.refresh(None).await.expect("refreshed");
    assert_eq!(refreshed.skills.len(), 200);
}

#[tokio::test]
async fn more_folders_than_can_be_watched_are_looked_at_instead() {
    let fixture = Fixture::with(|config| config.watches_max = 5);
    for number in 0..20 {
        fixture.skill(&format!("a/s{number:02}/in"), &format!("s{number:02}"));
    }
    assert_eq!(fixture.names().await.len(), 20);
    for number in 0..20 {
        let (path, name) = (
            format!("a/s{number:02}/in/SKILL.md"),
            format!("s{number:02}"),
        );
        fixture.document(&path, &name, "edited", "");
        assert_eq!(fixture.one(&name).await.front_matter.description, "edited");
        let script = fixture.write(&format!("a/s{number:02}/in/x"), "x");
        let before = digest(&fixture.one(&name).await).to_owned();
        fs::write(script, "y").expect("write");
        assert_ne!(digest(&fixture.one(&name).await), before);
    }
}

#[tokio::test]
async fn more_changes_than_the_kernel_keeps_are_seen_too() {
    let fixture = Fixture::new();
    fixture.skill("a/csv", "csv");
    fixture.skill("a/pdf", "pdf");
    let before = fixture.one("csv").await;
    let limit: usize = fs::read_to_string("/proc/sys/fs/inotify/max_queued_events")
        .expect("there")
        .trim()
        .parse()
        .expect("a number");
    let (one, other) = (fixture.write("a/csv/one", "x"), fixture.path("a/csv/other"));
    for _ in 0..limit.min(200_000) / 2 + 100 {
        fs::rename(&one, &other).expect("rename");
        fs::rename(&other, &one).expect("rename");
    }
    fixture.document("a/pdf/SKILL.md", "pdf", "edited", "");
    assert_eq!(fixture.one("pdf").await.front_matter.description, "edited");
    assert_ne!(digest(&fixture.one("csv").await), digest(&before));
}

#[tokio::test(flavor = "multi_thread")]
async fn pages_hold_every_skill_once_whatever_comes_and_goes() {
    let fixture = Fixture::new();
    for number in 0..20 {
        fixture.skill(&format!("a/s{number:02}"), &format!("s{number:02}"));
        for version in 0..3 {
            let path = format!("b/many{number:02}-{version}/SKILL.md");
            fixture.document(&path, "many", "d", &format!("{number}.{version}"));
        }
    }
    let (mut after, mut seen) = (None, Vec::new());
    loop {
        fixture.skills.rescan().await.expect("scanned");
        let page = fixture
            .skills
            .list_page(after, 7, ValidationProfile::Lenient)
            .await
            .expect("page");
        seen.extend(page.skills.iter().map(Skill::cursor));
        after = page.skills.last().map(Skill::cursor);
        // The last one of the page goes, and another one comes before it.
        let last = page.skills.last().expect("not empty");
        fs::remove_dir_all(&last.dir).expect("remove");
        fixture.skill(&format!("a/a{}", seen.len()), &format!("a{}", seen.len()));
        if !page.has_more {
            break;
        }
    }
    assert_eq!(seen.len(), 80);
    let mut distinct = seen.clone();
    distinct.dedup();
    assert_eq!(distinct.len(), 80);
    let versions: Vec<&str> = seen
        .iter()
        .filter(|place| place.name == "many")
        .map(|place| place.version.as_str())
        .collect();
    assert_eq!((versions[0], versions[59]), ("19.2", "0.0"));
}

/// Waits until health says so of a service.
async fn becomes(server: &TestServer, service: &str, serving: bool) {
    wait_until(&format!("{service} {serving}"), async || {
        let found = server.client.is_serving(service).await.expect("health");
        (found == serving).then_some(())
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_root_that_cannot_be_read_is_in_lists_problems_and_health() {
    let server = TestServer::start("", &[("csv", "name: csv\ndescription: d")]).await;
    let root = {
        let csv = server.client.get_skill("csv").await.expect("there");
        assert!(csv.source.ends_with("/csv"), "{}", csv.source);
        PathBuf::from(csv.root)
    };
    let away = root.with_file_name("away");
    fs::rename(&root, &away).expect("rename");
    let mut service = server.client.skills();
    let refreshed = service.refresh_skills(pb::RefreshSkillsRequest {}).await;
    refreshed.expect("refreshed");
    let listed = service
        .list_skills(pb::ListSkillsRequest::default())
        .await
        .expect("listed")
        .into_inner();
    assert_eq!(listed.skills.len(), 0);
    assert_eq!(listed.problems[0].code, "root.unreadable");
    let problems = server.client.problems().await.expect("listed");
    assert!(problems.iter().any(|it| it.code == "root.unreadable"));
    becomes(&server, "skilld.v1.SkillService", false).await;
    becomes(&server, "skilld.v1.ExecService", true).await;
    fs::rename(&away, &root).expect("rename");
    becomes(&server, "skilld.v1.SkillService", true).await;
    let refreshed = service
        .refresh_skills(pb::RefreshSkillsRequest {})
        .await
        .expect("refreshed")
        .into_inner();
    assert_eq!(
        (
            refreshed.loaded_count,
            refreshed.rejected_count,
            refreshed.shadowed_count
        ),
        (1, 0, 0)
    );
    assert!(refreshed.problems.is_empty());
    assert!(server.stop().await);
}
