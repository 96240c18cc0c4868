//! Roots: nested folders, unreadable ones, and links that lead out of them.

use super::*;

#[tokio::test]
async fn nested_folders_are_found_and_the_first_root_wins() {
    let fixture = Fixture::with(|config| {
        let second = Path::new(config.roots[0].text()).with_file_name("second");
        fs::create_dir_all(second.join("deep")).expect("mkdir");
        let front = "---\nname: deep\ndescription: second\n---\n";
        fs::write(second.join("deep/SKILL.md"), front).expect("write");
        config.roots.push(SkillRoot::dir(&second));
    });
    for (path, name) in [
        ("a/b/c/deep", "deep"),
        ("a/b/c/d/e/f/g/lost", "lost"),
        (".git/x", "x"),
        ("node_modules/y", "y"),
    ] {
        let front = format!("---\nname: {name}\ndescription: first\n---\n");
        fixture.write(&format!("{path}/SKILL.md"), front);
    }
    fixture.skills.rescan().await.expect("scanned");
    let listing = fixture.skills.list().await.expect("list");
    let listed: Vec<(&str, SkillState, &str)> = listing
        .skills
        .iter()
        .map(|skill| {
            let description = skill.front_matter.description.as_str();
            (skill.name.as_str(), skill.state, description)
        })
        .collect();
    assert_eq!(
        listed,
        [
            ("deep", SkillState::Loaded, "first"),
            ("deep", SkillState::Shadowed, "second")
        ]
    );
    let codes: Vec<&str> = listing
        .problems
        .iter()
        .map(|problem| problem.code)
        .collect();
    assert_eq!(codes, ["root.too_deep"]);
}

#[tokio::test]
async fn a_root_that_cannot_be_read_is_a_problem_until_it_can() {
    let fixture = Fixture::with(|config| {
        let later = Path::new(config.roots[0].text()).with_file_name("later");
        config.roots.push(SkillRoot::dir(&later));
    });
    fixture.skill("csv", "1");
    fixture.skills.rescan().await.expect("scanned");
    let listing = fixture.skills.list().await.expect("list");
    assert_eq!(listing.skills.len(), 1);
    assert_eq!(listing.problems[0].code, "root.unreadable");
    assert!(
        listing.problems[0].subject.ends_with("later"),
        "{:?}",
        listing.problems
    );

    let later = fixture.path("later/new");
    fs::create_dir_all(&later).expect("mkdir");
    fs::write(
        later.join("SKILL.md"),
        "---\nname: new\ndescription: d\n---\nBody\n",
    )
    .expect("write");
    let new = SkillRef::parse("name", "new").expect("valid");
    fixture.skills.rescan().await.expect("scanned");
    let (new, body) = fixture
        .skills
        .get(new, ValidationProfile::Lenient)
        .await
        .expect("there");
    assert_eq!((new.state, body.as_str()), (SkillState::Loaded, "Body\n"));
    assert!(
        fixture
            .skills
            .list()
            .await
            .expect("list")
            .problems
            .is_empty()
    );
}

#[tokio::test]
async fn links_in_a_root_are_followed_only_into_roots() {
    let fixture = Fixture::new();
    fixture.skill("real", "1");
    fs::create_dir_all(fixture.path("elsewhere")).expect("mkdir");
    symlink(fixture.path("elsewhere"), fixture.path("root/out")).expect("symlink");
    symlink(fixture.path("root"), fixture.path("root/circle")).expect("symlink");
    symlink("real", fixture.path("root/again")).expect("symlink");
    fixture.skills.rescan().await.expect("scanned");
    let listing = fixture.skills.list().await.expect("list");
    assert_eq!(listing.skills.len(), 1, "{:?}", listing.skills);
    let codes: Vec<&str> = listing
        .problems
        .iter()
        .map(|problem| problem.code)
        .collect();
    assert_eq!(codes, ["root.link_outside"]);
}
