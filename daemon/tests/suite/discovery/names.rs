//! Skills of one name: which one is listed, and which version a name means.

use std::collections::{BTreeMap, HashSet};

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
async fn the_less_deep_and_plainer_folder_of_one_name_wins() {
    for (winner, others) in [
        ("a/skills/csv", ["a/preview/csv", "a/providers/acme/csv"]),
        ("a/zip/csv", ["a/.claude/csv", "a/docs/de/csv"]),
        ("a/csv", ["a/bundle/csv", "a/skills/csv"]),
        ("a/one/csv", ["a/two/csv", "b/csv"]),
    ] {
        let fixture = Fixture::new();
        for folder in others.into_iter().chain([winner]) {
            fixture.document(&format!("{folder}/SKILL.md"), "csv", folder, "1.0");
        }
        let skills = fixture.list().await.skills;
        let states = skills.iter().map(|skill| skill.state);
        use SkillState::{Loaded, Shadowed};
        assert_eq!(states.collect::<Vec<_>>(), [Loaded, Shadowed, Shadowed]);
        assert_eq!(skills[0].front_matter.description, winner);
        for shadowed in &skills[1..] {
            let said = &shadowed.problems[0].message;
            let first = fixture.path(winner).display().to_string();
            assert!(
                said.starts_with(&first) && said.contains("rename"),
                "{said}"
            );
        }
    }
}

#[tokio::test]
async fn an_identical_copy_is_shadowed_without_a_warning() {
    let fixture = Fixture::new();
    for folder in ["a/skills/csv", "a/preview/csv", "b/csv"] {
        fixture.document(&format!("{folder}/SKILL.md"), "csv", "same", "1.0");
    }
    let skills = fixture.list().await.skills;
    let states: Vec<_> = skills
        .iter()
        .map(|skill| (skill.state, skill.problems.len()))
        .collect();
    use SkillState::{Loaded, Shadowed};
    assert_eq!(states, [(Loaded, 0), (Shadowed, 0), (Shadowed, 0)]);
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
    let skills = fixture.list().await.skills;
    let usable: Vec<String> = skills
        .into_iter()
        .filter(Skill::is_usable)
        .map(|it| it.front_matter.version.clone())
        .collect();
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

#[tokio::test]
async fn names_of_every_script_are_ids_of_their_own() {
    let fixture = Fixture::new();
    let names = ["数据报表", "my-技能-v2", "my-报表-v2", "redacteur-français"];
    for name in names {
        fixture.document(&format!("a/{name}/SKILL.md"), name, name, "");
    }
    fixture.document("b/full/SKILL.md", "ｆｕｌｌ　Ｗｉｄｔｈ", "wide", "");
    let skills = fixture.list().await.skills;
    let ids: HashSet<&str> = skills.iter().map(|skill| skill.name.as_str()).collect();
    assert_eq!((skills.len(), ids.len()), (5, 5), "{ids:?}");
    assert!(ids.iter().all(|id| id.is_ascii()), "{ids:?}");
    for skill in skills.iter().filter(|skill| skill.root.ends_with('a')) {
        assert_eq!(skill.state, SkillState::Loaded, "{:?}", skill.problems);
    }
    let decomposed = "redacteur-franc\u{327}ais";
    for (asked, description) in names.map(|name| (name, name)).into_iter().chain([
        (decomposed, "redacteur-français"),
        ("full Width", "wide"),
        ("ｆｕｌｌ　Ｗｉｄｔｈ@*", "wide"),
    ]) {
        let (skill, body) = fixture.get(asked).await.expect(asked);
        assert_eq!(skill.front_matter.description, description, "{asked}");
        assert!(body.starts_with("Body of"), "{asked}");
        let wanted = SkillRef::parse("skills", asked).expect("valid");
        let leased = fixture.skills.lease_to_stage(vec![wanted]).await;
        let staged = fixture
            .skills
            .stage(&fixture.path("slot/skills"), leased.expect("leased"))
            .await
            .expect("staged");
        assert_eq!(staged[0].name, skill.name, "{asked}");
        assert!(fixture.path("slot/skills").join(&skill.name).is_dir());
    }
    let Err(Error::SkillNotFound { name, nearest }) = fixture.get("数据报告").await else {
        panic!("there is no such skill");
    };
    assert_eq!(name, "数据报告");
    let (report, _) = fixture.get("数据报表").await.expect("listed");
    assert_eq!(nearest, [report.name]);
}

#[tokio::test]
async fn two_names_with_one_id_are_reported() {
    let fixture = Fixture::new();
    fixture.document("a/first/SKILL.md", "read & write", "first", "1.0");
    fixture.document("a/second/SKILL.md", "read-write", "second", "2.0");
    fixture.document("b/third/SKILL.md", "Read Write", "third", "3.0");
    let skills = fixture.list().await.skills;
    let reported: BTreeMap<_, _> = skills
        .iter()
        .map(|skill| {
            let is_reported = codes(&skill.problems).contains(&"skill.same_id");
            (skill.front_matter.description.as_str(), is_reported)
        })
        .collect();
    let expected = BTreeMap::from([("first", false), ("second", true), ("third", true)]);
    assert_eq!(reported, expected);
    assert!(skills.iter().all(|skill| skill.name == "read-write"));
}

#[tokio::test]
async fn the_title_of_a_card_names_it_unless_two_have_it() {
    let fixture = Fixture::new();
    let card = |id: &str, name: &str| {
        let card = format!("{{\"id\": {id:?}, \"name\": {name:?}, \"description\": \"d\"}}");
        fixture.write(&format!("a/{id}/skill-card.json"), card);
        fixture.write(&format!("a/{id}/SKILL.md"), "Do it.\n");
    };
    card("weather", "天气预报");
    let (skill, _) = fixture.get("天气预报").await.expect("its title");
    assert_eq!(skill.name, "weather");
    card("forecast", "天气预报");
    let Err(Error::SkillNotFound { nearest, .. }) = fixture.get("天气预报").await else {
        panic!("it may mean two");
    };
    assert_eq!(nearest, ["forecast", "weather"]);
}

#[tokio::test]
async fn a_plugin_may_have_a_name_of_any_script() {
    let fixture = Fixture::new();
    fixture.write(
        "a/kit/.claude-plugin/plugin.json",
        "\u{feff}{\"name\": \"数据插件\"}",
    );
    fixture.skill("a/kit/skills/数据报表", "数据报表");
    fixture.skill("b/数据报表", "数据报表");
    let (skill, _) = fixture.get("数据插件:数据报表").await.expect("found");
    assert!(skill.plugin_name().starts_with("skill-"), "{skill:?}");
    assert!(skill.is_usable() && skill.name.contains("--"), "{skill:?}");
}

#[tokio::test]
async fn searches_for_a_model_leave_out_what_only_persons_start() {
    let fixture = Fixture::new();
    for (name, key) in [
        ("ship-it", "disable-model-invocation: true"),
        ("ship-too", "disable-model-invocation: yes"),
        ("ship-plan", "user-invocable: false"),
    ] {
        let text = format!("---\nname: {name}\ndescription: Ships.\n{key}\n---\nBody.\n");
        fixture.write(&format!("a/{name}/SKILL.md"), text);
    }
    fixture.list().await;
    for is_compat in [false, true] {
        let search = async |limit: usize, is_for_model: bool| {
            let query = "ship".to_owned();
            let found = fixture
                .skills
                .search(query, limit, is_compat, is_for_model)
                .await
                .expect("words");
            let names = found.into_iter().map(|found| found.skill.name);
            names.collect::<Vec<_>>()
        };
        assert_eq!(search(10, true).await, ["ship-plan"]);
        // Skills that are left out take no other's room.
        assert_eq!(search(1, true).await, ["ship-plan"]);
        let all = ["ship-it", "ship-plan", "ship-too"];
        assert_eq!(search(10, false).await, all);
    }
    assert!(fixture.get("ship-it").await.is_ok());
}
