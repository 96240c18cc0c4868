//! Published cards whose files are in a folder beneath them.

use super::*;

#[tokio::test]
async fn a_card_is_published_with_its_files_beneath_it() {
    let fixture = Fixture::new();
    let card = r#"{"id": "weather", "description": "d", "base_uri": "files/"}"#;
    let archive = tar_of([
        ("weather/skill-card.json", card.as_bytes(), 0o644),
        ("weather/files/SKILL.md", b"Do it.\n".as_slice(), 0o644),
        ("weather/files/scripts/x.sh", b"echo\n", 0o644),
        ("weather/notes.txt", b"no part of the skill", 0o644),
    ]);
    let published = fixture
        .publish("weather", &archive)
        .await
        .expect("published");
    assert_eq!(
        published.state,
        SkillState::Loaded,
        "{:?}",
        published.problems
    );
    assert_eq!(published.content.expect("content").files, 3);
    fixture.stage("s1", "weather").await.expect("staged");
    let staged = fixture.path("state/slots/s1/skills/weather");
    assert!(staged.join("SKILL.md").is_file() && staged.join("scripts/x.sh").is_file());
}
