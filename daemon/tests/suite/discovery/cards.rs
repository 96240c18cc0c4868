//! Cards whose files are not beside them.

use super::*;

#[tokio::test]
async fn a_cards_files_may_be_in_a_folder_beneath_it() {
    let fixture = Fixture::new();
    for (id, base) in [("weather", "files"), ("built", "./dist/v1/")] {
        let card = format!("{{\"id\": {id:?}, \"description\": \"d\", \"base_uri\": {base:?}}}");
        fixture.write(&format!("a/{id}/skill-card.json"), card);
        fixture.write(&format!("a/{id}/notes.txt"), "no part of the skill");
        fixture.write(&format!("a/{id}/{base}/SKILL.md"), "Do it.\n");
        fixture.write(&format!("a/{id}/{base}/references/x.md"), "x");
        let skill = fixture.one(id).await;
        assert_eq!(skill.state, SkillState::Loaded, "{:?}", skill.problems);
        let wanted = SkillRef::parse("name", id).expect("valid");
        let files = fixture.skills.list_files(wanted).await.expect("listed");
        let paths: Vec<_> = files
            .files()
            .iter()
            .map(|file| file.path.as_str())
            .collect();
        assert_eq!(paths, ["SKILL.md", "references/x.md", "skill-card.json"]);
        let (_, body) = fixture.get(id).await.expect("there");
        assert_eq!(body, "Do it.\n");
    }
    // A change of the card alone is seen.
    let card = r#"{"id": "weather", "description": "other", "base_uri": "files"}"#;
    fixture.write("a/weather/skill-card.json", card);
    let skill = fixture.one("weather").await;
    assert_eq!(skill.front_matter.description, "other");
    assert_eq!(fixture.names().await, ["built", "weather"]);
}

#[tokio::test]
async fn a_card_may_list_files_that_macos_named() {
    let fixture = Fixture::new();
    let card = "{\"id\": \"menu\", \"description\": \"d\", \"files\": [\"caf\u{e9}.md\"]}";
    fixture.write("a/menu/skill-card.json", card);
    fixture.write("a/menu/SKILL.md", "Do it.\n");
    fixture.write("a/menu/cafe\u{301}.md", "x");
    let skill = fixture.one("menu").await;
    assert_eq!(skill.state, SkillState::Loaded, "{:?}", skill.problems);
}

#[tokio::test]
async fn a_card_whose_files_are_nowhere_says_where_they_were_sought() {
    let fixture = Fixture::new();
    for (id, base) in [
        ("none", "files"),
        ("up", "../elsewhere"),
        ("root", "/srv/x"),
    ] {
        let card = format!("{{\"id\": {id:?}, \"description\": \"d\", \"base_uri\": {base:?}}}");
        fixture.write(&format!("a/{id}/skill-card.json"), card);
        let skill = fixture.one(id).await;
        assert_eq!(skill.state, SkillState::Rejected);
        let problem = &skill.problems[0];
        assert_eq!(problem.code, "card.no_instructions");
        assert!(problem.message.contains(base), "{problem:?}");
    }
}
