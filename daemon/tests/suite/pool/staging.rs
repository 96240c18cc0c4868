//! Tests of staging skills that name packages: nothing else waits for a build, and a missing environment fails no staging.

use std::path::Path;

use super::*;
use crate::server::names;

const SKILLS: [(&str, &str); 2] = [
    ("packages", "name: packages\ndescription: d"),
    ("plain", "name: plain\ndescription: d"),
];

/// Lets the skill `packages` name a package.
fn name_package(state: &Path) {
    let root = state.parent().expect("a parent").join("skills");
    let path = root.join("packages/requirements.txt");
    std::fs::write(path, "pandas\n").expect("written");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_build_delays_no_other_staging_and_stages_nothing_early() {
    let toml = "engine.boot_timeout = \"10m\"\n";
    let server =
        TestServer::start_after(toml, &SKILLS, |config| name_package(&config.state_dir)).await;
    let workspace = server.workspace().await;
    wait_for_pool(&server, "warm", |pool| pool.warm == 1).await;
    // The container of the build starts and never answers.
    server.engine.start_without_guest();
    let started = server.engine.call_count(EngineOperation::Start);
    let (client, name) = (server.client.clone(), workspace.clone());
    let mut building = tokio::task::JoinSet::new();
    building.spawn(async move { client.stage_skills(&name, &["packages"]).await });
    wait_until("the build has begun", async || {
        (server.engine.call_count(EngineOperation::Start) > started).then_some(())
    })
    .await;
    let staged = server.client.stage_skills(&workspace, &["plain"]).await;
    assert_eq!(staged.expect("staged").len(), 1);
    assert!(building.try_join_next().is_none());
    let skills = server.get_workspace(&workspace).await.skills;
    let recorded: Vec<_> = skills.iter().map(|skill| skill.name.as_str()).collect();
    assert_eq!(recorded, ["skills/plain"]);
    let slots = server.state_dir().join("slots");
    let published: Vec<String> = names(&slots)
        .iter()
        .flat_map(|slot| names(&slots.join(slot).join("skills")))
        .filter(|name| !name.starts_with('.'))
        .collect();
    assert_eq!(published, ["plain"]);
    building.abort_all();
    assert!(server.stop().await);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_workspace_of_a_removed_pool_stages_skills_with_packages() {
    let server = TestServer::start("skills.environment_builds = \"never\"\n", &SKILLS).await;
    create_workspace(&server, "kept").await;
    wait_for_pool(&server, "warm", |pool| pool.warm == 1).await;
    let server = server
        .restart(|state| {
            name_package(state);
            for slot in names(&state.join("slots")) {
                let record = state.join("slots").join(slot).join("record.json");
                let text = std::fs::read_to_string(&record)
                    .expect("a record")
                    .replace("\"pool\": \"default\"", "\"pool\": \"gone\"");
                std::fs::write(record, text).expect("written");
            }
        })
        .await;
    assert_eq!(server.get_workspace("kept").await.pool, "pools/gone");
    let staged = server
        .client
        .stage_skills("kept", &["packages"])
        .await
        .expect("staged")
        .remove(0);
    assert_eq!(staged.environment, None);
    let codes: Vec<_> = staged
        .problems
        .iter()
        .map(|problem| &problem.code)
        .collect();
    assert_eq!(codes, ["environment.not_built"]);
    assert!(server.stop().await);
}
