//! Retention, collection and repair of published skills in the store, also with many callers at once.

use super::*;

#[tokio::test]
async fn unused_content_leaves_the_store_and_used_content_stays() {
    let mut fixture = Fixture::keeping(Duration::from_nanos(1));
    fixture.root("local", "1.0");
    let local = fixture.stage("s1", "local").await.expect("staged").digest;
    let mut digests = Vec::new();
    for version in ["1.0", "2.0"] {
        let skill = fixture.publish_skill("csv", version).await;
        digests.push(skill.content.expect("content").digest);
    }
    // All of them are referred to: by the root, by their records.
    assert_eq!(fixture.collect(&[]).await, 0);
    // Another version in the root: now only the workspace refers to the first one.
    fixture.root("local", "1.1");
    fixture.skills.rescan().await.expect("scanned");
    assert_eq!(fixture.collect(&[&local]).await, 0);
    assert_eq!(fixture.collect(&[]).await, 1);
    assert!(!fixture.stored().contains(&local));
    // The skill of the root goes, and its content with it.
    fixture.remove_root("local");
    fixture.skills.rescan().await.expect("scanned");
    assert_eq!(fixture.collect(&[]).await, 1);
    fixture
        .skills
        .delete("csv".to_owned(), VersionSelector::Version("1.0".to_owned()))
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
    assert_eq!(error.kind().1, ErrorReason::SkillNotFound);
    fixture.publish_skill("csv", "1.0").await;
    fixture.stage("s2", &pinned).await.expect("staged");
    // What a root had stays for a time after its last use, whoever asks, and across a restart.
    fixture.root("local", "2.0");
    let local = fixture.stage("s1", "local").await.expect("staged").digest;
    fixture.config.keep_unused = Duration::from_secs(3600);
    fixture.reopen();
    fixture.remove_root("local");
    fixture.skills.rescan().await.expect("scanned");
    assert_eq!(fixture.collect(&[]).await, 0);
    let local = format!("local@sha256:{local}");
    fixture.stage("s2", &local).await.expect("from the store");
    assert_eq!(fixture.script("s2", "local"), "echo 2.0\n");
    fixture.config.keep_unused = Duration::from_nanos(1);
    fixture.reopen();
    assert_eq!(fixture.collect(&[]).await, 1);
    assert_eq!(fixture.stored().len(), 2);
}

#[tokio::test]
async fn deleted_publications_leave_the_store_at_once() {
    let mut fixture = Fixture::keeping(Duration::from_secs(3600));
    let mut digests = Vec::new();
    for version in ["1.0", "2.0"] {
        let skill = fixture.publish_skill("csv", version).await;
        digests.push(skill.content.expect("content").digest);
    }
    fixture.reopen();
    let held = fixture.skills.published_bytes("default");
    let deleted = fixture
        .skills
        .delete("csv".to_owned(), VersionSelector::All);
    deleted.await.expect("deleted");
    assert_eq!(fixture.skills.published_bytes("default"), held);
    // Only what a workspace has stays. It counts for its tenant, and can be staged by its digest.
    let staged: HashSet<String> = [digests[0].clone()].into();
    let removed = fixture.skills.remove_orphans(staged).await;
    assert_eq!(removed.expect("removed"), 1);
    assert_eq!(fixture.stored(), [digests[0].as_str()]);
    assert_eq!(fixture.skills.published_bytes("default"), held / 2);
    let pinned = format!("csv@sha256:{}", digests[0]);
    fixture.stage("s1", &pinned).await.expect("from the store");
    assert_eq!(fixture.script("s1", "csv"), "echo 1.0\n");
    let removed = fixture.skills.remove_orphans(HashSet::new()).await;
    assert_eq!(removed.expect("removed"), 1);
    assert_empty(&fixture.path("state/skills/sha256"));
    assert_empty(&fixture.path("state/skills/used"));
    assert_eq!(fixture.skills.published_bytes("default"), 0);
}

#[tokio::test]
async fn content_of_a_refused_publication_leaves_the_store() {
    let mut fixture = Fixture::new();
    fixture.config.skills_max = 1;
    fixture.reopen();
    fixture.publish_skill("one", "1.0").await;
    let held = fixture.skills.published_bytes("default");
    let refused = fixture.publish("two", &skill("two", "1.0")).await;
    refused.expect_err("one is the maximum");
    assert_eq!(fixture.stored().len(), 2);
    assert_eq!(fixture.skills.published_bytes("default"), 2 * held);
    let removed = fixture.skills.remove_orphans(HashSet::new()).await;
    assert_eq!(removed.expect("removed"), 1);
    assert_eq!(fixture.stored().len(), 1);
    assert_eq!(fixture.skills.published_bytes("default"), held);
}

#[tokio::test]
async fn an_archive_is_unpacked_only_up_to_its_tenants_quota() {
    let fixture = Fixture::new();
    // Beyond the quota's 256 files the archive has one twice, which nobody gets to see.
    let names: Vec<String> = (0..300).map(|number| (number % 299).to_string()).collect();
    let files = names.iter().map(|name| (name.as_str(), &b""[..], 0o644));
    let mut file = fixture.skills.create_upload().await.expect("made");
    file.write_all(&tar_of(files)).expect("written");
    let published = fixture
        .skills
        .publish("csv".to_owned(), file, None, Some(1 << 20));
    let error = Error::from(published.await.expect_err("refused"));
    assert!(matches!(error, Error::TenantQuota { .. }), "{error}");
    fixture.assert_untouched("a refused archive");
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
async fn content_lost_in_a_power_cut_is_copied_again() {
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
    fixture.publish_skill("csv", "1.0").await;
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
    assert_eq!(error.kind().1, ErrorReason::SkillInvalid);
    let listed = fixture.listed("csv").await;
    assert_eq!(listed[0].state, SkillState::Rejected);
    assert_eq!(listed[0].problems[0].code, "skill.damaged");
    fixture.publish_skill("csv", "1.0").await;
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
    fixture.publish_skill("csv", "1.0").await;
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
    fixture.publish_skill("csv", "1.0").await;
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
    // The root of this test is empty.
    assert_eq!(
        codes,
        [
            "root.no_skills",
            "published.unreadable",
            "published.unreadable"
        ]
    );
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
    assert_empty(&fixture.path("state/skills/tmp"));
}

/// A thousand steps of four, on the same two skills, with a store that keeps nothing a moment longer than it must.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn concurrent_publish_delete_stage_and_collect_corrupt_nothing() {
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
                0 => VersionSelector::All,
                one => VersionSelector::Version(format!("{}.0", one - 1)),
            };
            let deleted = fixture.skills.delete("csv".to_owned(), which).await;
            if let Err(error) = deleted.map_err(Error::from) {
                assert_eq!(error.kind().1, ErrorReason::SkillNotFound, "{error}");
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
                    let absent = matches!(
                        error.kind().1,
                        ErrorReason::SkillNotFound | ErrorReason::SkillInvalid
                    );
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
    fixture.publish_skill("csv", "9.0").await;
    fixture.collect(&[]).await;
    fixture.assert_whole().await;
    assert_empty(&fixture.path("state/skills/tmp"));
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
            let deleted = fixture
                .skills
                .delete("csv".to_owned(), VersionSelector::All);
            deleted.await.expect("deleted");
            let wanted = SkillRef::parse("skills", &format!("csv@sha256:{digest}"));
            let file = fixture.skills.open_file(
                wanted.expect("valid"),
                "bin/run.sh".to_owned(),
                false,
                false,
            );
            match file.await.map_err(Error::from) {
                Ok((file, mut opened_file)) => {
                    opened += 1;
                    let mut text = String::new();
                    opened_file.read_to_string(&mut text).expect("read");
                    assert_eq!((text.as_str(), file.size), ("echo 1.0\n", 9));
                }
                // Collected before it was asked for; anything else would be our fault.
                Err(error) => assert_eq!(error.kind().1, ErrorReason::SkillNotFound, "{error}"),
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
    let deleted = fixture
        .skills
        .delete("one".to_owned(), VersionSelector::All);
    deleted.await.expect("deleted");
    assert!(fixture.listed("one").await.is_empty());
    assert_eq!(fixture.listed("two").await.len(), 1);
}

#[tokio::test]
async fn publishing_again_restores_lost_content() {
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
