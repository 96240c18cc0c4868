//! Skills of one name: which one is listed, and which version a name means.

use super::*;

#[tokio::test]
async fn a_duplicate_is_shadowed_and_says_which_two() {
    let fixture = Fixture::new();
    fixture.document("a/x/csv/SKILL.md", "csv", "first", "1.0");
    fixture.document("b/y/csv/SKILL.md", "csv", "second", "1.0");
    let listing = fixture.list().await;
    let states: Vec<_> = listing
        .skills
        .iter()
        .map(|skill| (skill.state, skill.front_matter.description.as_str()))
        .collect();
    assert_eq!(
        states,
        [
            (SkillState::Loaded, "first"),
            (SkillState::Shadowed, "second")
        ]
    );
    let problem = &listing.skills[1].problems[0];
    assert_eq!(problem.code, "skill.shadowed");
    assert_eq!(
        problem.subject,
        fixture.path("b/y/csv").display().to_string()
    );
    let winner = fixture.path("a/x/csv").display().to_string();
    assert!(problem.message.contains(&winner), "{problem:?}");
    // Once the first one is gone, the other one has the name.
    fs::remove_dir_all(fixture.path("a/x")).expect("remove");
    assert_eq!(
        fixture.states().await,
        [("csv".to_owned(), SkillState::Loaded)]
    );
}

#[tokio::test]
async fn versions_of_a_name_stand_side_by_side() {
    let fixture = Fixture::new();
    for (folder, version) in [
        ("a/csv-1", "1.2.0"),
        ("a/csv-10", "1.10.0"),
        ("a/csv-pre", "3.0.0-beta.1"),
        ("b/csv-2", "2.0.0"),
        ("b/csv-10", "1.10.0"),
    ] {
        fixture.document(&format!("{folder}/SKILL.md"), "csv", folder, version);
    }
    let usable = fixture.list().await.skills.into_iter();
    let usable = usable
        .filter(Skill::is_usable)
        .map(|it| it.front_matter.version.clone());
    let usable: Vec<String> = usable.collect();
    assert_eq!(usable, ["3.0.0-beta.1", "1.10.0", "1.2.0", "2.0.0"]);
    for (asked, folder) in [
        ("csv", "a/csv-10"),
        ("csv@latest", "a/csv-10"),
        ("csv@*", "a/csv-10"),
        ("csv@>=1", "b/csv-2"),
        ("csv@^1.2", "a/csv-10"),
        ("csv@~1.2", "a/csv-1"),
        ("csv@==2.0", "b/csv-2"),
        ("csv@3.0.0-beta.1", "a/csv-pre"),
    ] {
        let (skill, _) = fixture.get(asked).await.expect(asked);
        assert_eq!(skill.front_matter.description, folder, "{asked}");
        let by_digest = format!("csv@sha256:{}", digest(&skill));
        let (same, _) = fixture.get(&by_digest).await.expect("there");
        assert_eq!(same.front_matter.description, folder);
    }
    let Err(Error::SkillNotFound { nearest, .. }) = fixture.get("csv@^9").await else {
        panic!("there is no such version");
    };
    assert_eq!(nearest[0], "csv@3.0.0-beta.1");
}

#[tokio::test]
async fn a_name_means_a_stable_version_wherever_its_previews_are() {
    for (preview, stable) in [
        ("2.0.0-beta.1", "1.2.0"),
        ("2.0rc1", "1.2.0"),
        ("2.0.0-beta.1", ""),
    ] {
        let fixture = Fixture::new();
        fixture.document("a/csv-pre/SKILL.md", "csv", "preview", preview);
        fixture.document("b/csv-old/SKILL.md", "csv", "older", "1.0");
        // While one root has both, and while the preview's root comes first.
        for folder in ["a/csv", "b/csv"] {
            fixture.document(&format!("{folder}/SKILL.md"), "csv", folder, stable);
            for asked in ["csv", "csv@*", "csv@latest"] {
                let (skill, _) = fixture.get(asked).await.expect(asked);
                let description = &skill.front_matter.description;
                assert_eq!(description, folder, "{asked} beside {preview}");
            }
            let named = format!("csv@{preview}");
            for asked in [&named, "csv@>=2.0.0a1"] {
                let (skill, _) = fixture.get(asked).await.expect(asked);
                assert_eq!(skill.front_matter.description, "preview", "{asked}");
            }
            fs::remove_dir_all(fixture.path(folder)).expect("remove");
            if stable.is_empty() {
                // Without a version it would not be the highest one of root b.
                break;
            }
        }
        fs::remove_dir_all(fixture.path("b/csv-old")).expect("remove");
        let (skill, _) = fixture.get("csv").await.expect("nothing else");
        assert_eq!(skill.front_matter.description, "preview");
    }
}
