//! Cards in folders and archives whose files are at a URL.

use std::io::Write as _;
use std::path::Path;

use super::{Fixture, tar};
use crate::catalogue::skill::{Skill, SkillState};
use crate::error::Error;
use crate::fetch::tests::server::Reply;
use crate::parse::skill_ref::SkillRef;
use crate::skills_options::SkillRoot;
use crate::skills_service::Skills;

/// The card of a skill whose files are beneath `/base` of the server.
fn card(fixture: &Fixture) -> String {
    let base = fixture.server.url("/base");
    serde_json::json!({ "id": "weather", "description": "d", "base_uri": base, "files": ["references/x.md"] })
        .to_string()
}

fn put_files(fixture: &Fixture) {
    for path in ["/base/SKILL.md", "/base/references/x.md"] {
        fixture.server.put(path, Reply::ok("Do it.\n"));
    }
}

/// The skills of a root with the card in a folder.
fn open_folder(fixture: &Fixture) -> Skills {
    let root = fixture.dir.path().join("root");
    std::fs::create_dir_all(root.join("weather")).expect("mkdir");
    std::fs::write(root.join("weather/skill-card.json"), card(fixture)).expect("written");
    open(fixture, &root)
}

fn open(fixture: &Fixture, root: &Path) -> Skills {
    let mut config = fixture.config.clone();
    config.roots = vec![SkillRoot::dir(root)];
    let state = fixture.dir.path().join("state");
    std::fs::create_dir_all(&state).expect("mkdir");
    Skills::open(&config, &state, fixture.tasks.clone()).expect("open")
}

/// Publishes an archive that has the card only.
async fn publish(fixture: &Fixture, skills: &Skills) -> Result<Skill, Error> {
    let mut file = skills.create_upload().await?;
    let archive = tar(&[("skill-card.json", &card(fixture))]);
    file.write_all(&archive).expect("written");
    skills.publish(String::new(), file, None, None).await
}

/// The skill once everything is fetched: the first refresh finds the card.
async fn fetched(skills: &Skills) -> Skill {
    skills.refresh(None).await.expect("refreshed");
    let listing = skills.refresh(None).await.expect("refreshed");
    listing.skills.into_iter().next().expect("one skill")
}

async fn assert_whole(skills: &Skills) {
    let wanted = SkillRef::parse("name", "weather").expect("valid");
    let files = skills.list_files(wanted).await.expect("listed");
    let paths: Vec<_> = files.files().iter().map(|file| &*file.path).collect();
    assert_eq!(paths, ["SKILL.md", "references/x.md", "skill-card.json"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn files_of_a_card_are_fetched_from_its_url_in_a_folder() {
    let fixture = Fixture::new().await;
    put_files(&fixture);
    let skills = open_folder(&fixture);
    let skill = fetched(&skills).await;
    assert_eq!(skill.state, SkillState::Loaded, "{:?}", skill.problems);
    assert_whole(&skills).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn files_of_a_card_are_fetched_from_its_url_in_a_remote_root() {
    let fixture = Fixture::new().await;
    put_files(&fixture);
    let archive = tar(&[("pack/weather/skill-card.json", &card(&fixture))]);
    fixture.server.put("/x.tar", Reply::ok(archive));
    let skills = fixture.skills(&["/x.tar"]);
    let skill = fetched(&skills).await;
    assert_eq!(skill.state, SkillState::Loaded, "{:?}", skill.problems);
    assert_whole(&skills).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn files_of_a_published_card_are_fetched_from_its_url() {
    let fixture = Fixture::with(|remote| {
        (remote.published_urls, remote.published_private_addresses) = (true, true);
    })
    .await;
    put_files(&fixture);
    let skills = fixture.skills(&[]);
    let skill = publish(&fixture, &skills).await.expect("published");
    assert_eq!(skill.name, "weather");
    assert_eq!(skill.state, SkillState::Loaded, "{:?}", skill.problems);
    assert_whole(&skills).await;
    fixture.server.put("/base/SKILL.md", Reply::status(404));
    let error = publish(&fixture, &skills)
        .await
        .expect_err("there is no SKILL.md");
    let is_reported = |problem: &str| problem.contains("root.unreachable");
    assert!(
        matches!(&error, Error::SkillInvalid { problem, .. } if is_reported(problem)),
        "{error}"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn urls_of_published_cards_are_bounded_by_settings_of_their_own() {
    for (urls, private_addresses, reason) in [
        (false, true, "files.input_urls"),
        (true, false, "root.refused"),
    ] {
        let fixture = Fixture::with(|remote| {
            remote.published_urls = urls;
            remote.published_private_addresses = private_addresses;
        })
        .await;
        put_files(&fixture);
        let error = publish(&fixture, &fixture.skills(&[]))
            .await
            .expect_err("refused")
            .to_string();
        assert!(error.contains(reason), "{error}");
        assert_eq!(fixture.server.hits("/base/SKILL.md"), 0);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_card_whose_url_fails_says_why_until_it_answers() {
    let fixture = Fixture::new().await;
    let skills = open_folder(&fixture);
    let skill = fetched(&skills).await;
    assert_eq!(skill.state, SkillState::Rejected);
    let codes: Vec<_> = skill.problems.iter().map(|problem| problem.code).collect();
    assert_eq!(codes[..2], ["root.unreachable", "card.no_instructions"]);
    put_files(&fixture);
    let skill = fetched(&skills).await;
    assert_eq!(skill.state, SkillState::Loaded, "{:?}", skill.problems);
    // A failure keeps what was fetched.
    fixture.server.set_down(true);
    let skill = fetched(&skills).await;
    assert!(skill.is_usable(), "{:?}", skill.problems);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_card_is_fetched_by_the_rules_of_roots() {
    let fixture = Fixture::with(|remote| remote.allow_private_addresses = false).await;
    put_files(&fixture);
    let skill = fetched(&open_folder(&fixture)).await;
    assert_eq!(skill.state, SkillState::Rejected);
    assert_eq!(skill.problems[0].code, "root.refused");
    assert_eq!(fixture.server.hits("/base/SKILL.md"), 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn records_of_what_went_away_without_a_daemon_are_removed() {
    let fixture = Fixture::new().await;
    put_files(&fixture);
    fetched(&open_folder(&fixture)).await;
    let records = fixture.dir.path().join("state/skills/remote");
    let count = || std::fs::read_dir(&records).expect("records").count();
    assert_eq!(count(), 1);
    let root = fixture.dir.path().join("root");
    std::fs::remove_dir_all(root.join("weather")).expect("removed");
    open(&fixture, &root).rescan().await.expect("scanned");
    assert_eq!(count(), 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_card_that_is_gone_is_fetched_no_more() {
    let fixture = Fixture::new().await;
    put_files(&fixture);
    let skills = open_folder(&fixture);
    fetched(&skills).await;
    std::fs::remove_dir_all(fixture.dir.path().join("root/weather")).expect("removed");
    skills.rescan().await.expect("scanned");
    let hits = fixture.server.hits("/base/SKILL.md");
    skills.refresh(None).await.expect("refreshed");
    assert_eq!(fixture.server.hits("/base/SKILL.md"), hits);
}
