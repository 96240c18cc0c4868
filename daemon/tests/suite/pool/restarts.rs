//! Tests of restarts and stops of the daemon with workspaces and warm containers.

use std::path::Path;

use serde_json::Value;
use skilld::config::environments::EnvironmentBuilds;

use super::*;
use crate::server::{ignore_absent, names};

#[tokio::test(flavor = "multi_thread")]
async fn restart_keeps_workspaces_and_warm_slots() {
    let server = TestServer::start("", &[]).await;
    let request = CreateWorkspaceRequest {
        request_id: "one".into(),
        ..create_request("kept")
    };
    server
        .client
        .create_workspace(request.clone())
        .await
        .expect("created");
    wait_for_pool(&server, "warm", |pool| pool.warm == 1).await;
    let mut before = server.engine.container_ids();
    before.sort();
    let server = server.restart(|_| {}).await;
    assert_eq!(workspace_names(&server).await, ["workspaces/kept"]);
    server
        .client
        .list_execs(list_request("workspaces/kept"))
        .await
        .expect("usable at once");
    wait_for_pool(&server, "warm", |pool| pool.warm == 1).await;
    let mut after = server.engine.container_ids();
    after.sort();
    assert_eq!(after, before, "nothing was made anew");
    // The same request still returns the same workspace.
    server
        .client
        .create_workspace(request)
        .await
        .expect("the same request");
    assert_eq!(workspace_names(&server).await.len(), 1);
    assert!(server.stop().await);
}

#[tokio::test(flavor = "multi_thread")]
async fn unknown_files_of_a_slot_hinder_no_adoption_and_go_with_it() {
    let server = TestServer::start("", &[]).await;
    create_workspace(&server, "kept").await;
    wait_for_pool(&server, "warm", |pool| pool.warm == 1).await;
    let server = server
        .restart(|state| {
            for slot in std::fs::read_dir(state.join("slots")).expect("slots") {
                let records = slot.expect("entry").path().join("collects");
                std::fs::create_dir(&records).expect("mkdir");
                std::fs::write(records.join("job"), "a record").expect("written");
            }
        })
        .await;
    assert_eq!(workspace_names(&server).await, ["workspaces/kept"]);
    server
        .client
        .list_execs(list_request("workspaces/kept"))
        .await
        .expect("usable at once");
    let deleted = server.client.delete_workspace("workspaces/kept").await;
    deleted.expect("deleted");
    let slots = names(&server.state_dir().join("slots"));
    assert_eq!(slots.len(), 1, "only the warm one: {slots:?}");
    assert!(server.stop().await);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_restart_removes_what_nobody_owns() {
    let server = TestServer::start("", &[]).await;
    create_workspace(&server, "lost").await;
    wait_for_pool(&server, "warm", |pool| pool.warm == 1).await;
    let before = server.engine.container_ids();
    let server = server
        .restart(|state| {
            let slots: Vec<_> = std::fs::read_dir(state.join("slots"))
                .expect("slots")
                .collect();
            assert_eq!(slots.len(), 2);
            for slot in slots {
                let record = slot.expect("entry").path().join("record.json");
                std::fs::write(record, "{ \"version\": 1, ").expect("damaged");
            }
            std::fs::create_dir_all(state.join("slots/half-made/run")).expect("mkdir");
        })
        .await;
    assert_eq!(workspace_names(&server).await, Vec::<String>::new());
    wait_for_pool(&server, "warm", |pool| pool.warm == 1).await;
    let after = server.engine.container_ids();
    assert_eq!(after.len(), 1, "only the new one: {after:?}");
    assert!(
        !before.contains(&after[0]),
        "containers without a record are orphans"
    );
    assert!(server.stop().await);
}

#[tokio::test(flavor = "multi_thread")]
async fn restart_replaces_warm_slots_that_lack_todays_mounts() {
    let server = TestServer::start("skills.environment_builds = \"never\"\n", &[]).await;
    wait_for_pool(&server, "warm", |pool| pool.warm == 1).await;
    let created = server.engine.call_count(EngineOperation::Create);
    let mut stopped = server.shut_down().await;
    stopped.config.skills.environments.builds = EnvironmentBuilds::Stage;
    let server = stopped.start().await;
    wait_for_pool(&server, "warm with environments", |pool| pool.warm == 1).await;
    assert_eq!(
        server.engine.call_count(EngineOperation::Create),
        created + 1
    );
    // A slot of a release that recorded no mounts may have none.
    let server = server.restart(remove_recorded_mounts).await;
    wait_for_pool(&server, "warm again", |pool| pool.warm == 1).await;
    assert_eq!(
        server.engine.call_count(EngineOperation::Create),
        created + 2
    );
    assert!(server.stop().await);
}

/// Removes the mounts from the records of all slots.
fn remove_recorded_mounts(state: &Path) {
    for slot in std::fs::read_dir(state.join("slots")).expect("slots") {
        let path = slot.expect("entry").path().join("record.json");
        // The directory of a slot that is gone may still be there.
        let Some(bytes) = ignore_absent(std::fs::read(&path)) else {
            continue;
        };
        let mut record: Value = serde_json::from_slice(&bytes).expect("JSON");
        record
            .as_object_mut()
            .expect("an object")
            .remove("shared_dirs");
        std::fs::write(&path, record.to_string()).expect("written");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn start_without_engine_removes_no_workspace() {
    let server = TestServer::start("", &[]).await;
    create_workspace(&server, "kept").await;
    wait_for_pool(&server, "warm", |pool| pool.warm == 1).await;
    let away = skilld::error::Error::EngineUnavailable {
        message: "for a moment".into(),
    };
    server.engine.fail_next(EngineOperation::Inspect, away);
    let (error, stopped) = server.fail_to_restart().await;
    assert!(
        matches!(error, skilld::error::Error::EngineUnavailable { .. }),
        "{error}"
    );
    let server = stopped.start().await;
    assert_eq!(workspace_names(&server).await, ["workspaces/kept"]);
    let kept = server.get_workspace("kept").await;
    assert_eq!(kept.state(), WorkspaceState::Ready, "{kept:?}");
    server
        .client
        .list_execs(list_request("workspaces/kept"))
        .await
        .expect("usable");
    assert!(server.stop().await);
}

#[tokio::test(flavor = "multi_thread")]
async fn stop_does_not_wait_for_a_hanging_engine() {
    let server = TestServer::start("", &[]).await;
    server.workspace().await;
    wait_for_pool(&server, "warm", |pool| pool.warm == 1).await;
    let looks = server.engine.call_count(EngineOperation::Inspect);
    let hang = Duration::from_secs(3600);
    server.engine.set_delay(EngineOperation::Inspect, hang);
    let containers = server.engine.container_ids();
    server.engine.kill_container(&containers[0]).await;
    wait_until("the daemon inspects the container", async || {
        (server.engine.call_count(EngineOperation::Inspect) >= looks + 2).then_some(())
    })
    .await;
    assert!(server.stop().await, "in time");
}
