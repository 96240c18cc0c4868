//! The bytes that the calls of one tenant leave on the server's disk: they stay within its quotas, whichever rpc writes it.

use std::collections::BTreeMap;
use std::path::Path;

use skilld::skills::held_bytes::measure_held_bytes;
use skilld_client::{Client, Error, SaveTarget};
use skilld_proto::v1::{self as pb, ErrorReason};

use super::harness::AccessServer;
use super::quotas::{set_quotas, usage};
use super::skills::{self, try_publish};
use super::tenants::claim;
use crate::server::wait_until;

/// Workspace of each tenant.
const WORKSPACE: &str = "workspaces/w";
/// Quotas of bytes on disk that a test uses up.
const BYTE_QUOTAS: [&str; 3] = ["artifact_bytes", "published_bytes", "staged_bytes"];
/// Number of rounds of which one has a workspace of its own.
const WORKSPACE_ROUNDS: usize = 4;
/// Files and directories that tenants share, such as those of the stores and of containers that are about to start: at
/// most these have appeared since the start.
const SHARED_OBJECTS: u64 = 300;

async fn save(client: &Client, session: String, bytes: usize) -> Result<pb::Artifact, Error> {
    let scope = pb::ArtifactScope {
        session,
        ..pb::ArtifactScope::default()
    };
    let data = std::io::Cursor::new(vec![7; bytes]);
    client
        .save_artifact(SaveTarget::new("x", scope), data)
        .await
}

async fn publish(client: &Client, name: &str) -> Result<pb::Skill, Error> {
    try_publish(client, name, "1.0", "body").await
}

async fn delete_skill(client: &Client, name: &str) {
    let request = pb::DeleteSkillRequest {
        name: format!("skills/{name}"),
        allow_missing: true,
    };
    let deleted = client.skills().delete_skill(request).await;
    deleted.expect("deleted");
}

/// Starts a command that runs for long. Returns its name.
pub(super) async fn start_sleep(client: &Client) -> String {
    let start = pb::StartExecRequest {
        parent: WORKSPACE.to_owned(),
        spec: Some(pb::ExecSpec {
            argv: vec!["/bin/sleep".to_owned(), "1000".to_owned()],
            ..pb::ExecSpec::default()
        }),
        ..pb::StartExecRequest::default()
    };
    client.start_exec(start).await.expect("started").name
}

/// Starts a server with a workspace, and with two versions of the skill `csv` to stage there.
async fn start_with_two_versions() -> (AccessServer, Client) {
    let server = AccessServer::start_with_commands().await;
    let client = server.client("a", "publisher").await;
    claim(&client, "w").await.expect("claimed");
    for version in ["1.0", "2.0"] {
        skills::publish(&client, "csv", version, "body").await;
    }
    (server, client)
}

/// Checks that the quota of this resource refused a call.
#[track_caller]
fn check_refused<T: std::fmt::Debug>(answer: Result<T, Error>, resource: &str) {
    let error = answer.expect_err("over the quota");
    assert_eq!(error.reason(), Some(ErrorReason::QuotaExceeded), "{error}");
    assert!(error.to_string().contains(resource), "{error}");
}

/// Collects what matches a glob, and saves it under names with a prefix.
async fn collect_outputs(client: &Client, glob: &str, prefix: String) -> pb::CollectSummary {
    let request = pb::CollectOutputsRequest {
        workspace: WORKSPACE.to_owned(),
        spec: Some(pb::CollectSpec {
            globs: vec![glob.to_owned()],
            max_files: 1000,
            save_as_artifacts: Some(pb::SaveAsArtifacts {
                prefix,
                ..pb::SaveAsArtifacts::default()
            }),
            ..pb::CollectSpec::default()
        }),
    };
    let mut messages = client.collect(request).await.expect("collected");
    while let Some(message) = messages.next().await.expect("a message") {
        if let Some(pb::collect_outputs_response::Payload::Summary(summary)) = message.payload {
            return summary;
        }
    }
    panic!("no summary");
}

async fn stage_input(client: &Client, round: usize) {
    let input = pb::InputSpec {
        content: Some(pb::input_spec::Content::Data(vec![7; 100].into())),
        path: format!("work/inputs/{round}-{}", "x".repeat(200)),
        ..pb::InputSpec::default()
    };
    let request = pb::StageInputsRequest {
        workspace: WORKSPACE.to_owned(),
        inputs: vec![input],
        scope: None,
    };
    client.stage_inputs(request).await.expect("staged");
}

/// Number of refusals by each quota of a tenant.
#[derive(Default)]
struct Refusals(BTreeMap<&'static str, u32>);

impl Refusals {
    /// Counts a refusal. Any other failure fails the test.
    #[track_caller]
    fn count<T>(&mut self, answer: Result<T, Error>) {
        let Err(error) = answer else {
            return;
        };
        assert_eq!(error.reason(), Some(ErrorReason::QuotaExceeded), "{error}");
        let text = error.to_string();
        let quota = BYTE_QUOTAS
            .into_iter()
            .chain(["replaced versions"])
            .find(|quota| text.contains(quota))
            .unwrap_or_else(|| panic!("{error}"));
        *self.0.entry(quota).or_default() += 1;
    }
}

/// Calls every rpc that writes to the disk, except PrepareSkill: a build needs an image.
async fn call_writers(client: &Client, round: usize, refusals: &mut Refusals) {
    // Nothing, a byte, and what only a few times fits, each in a scope of its own.
    let bytes = match round % 3 {
        0 => 0,
        1 => 1,
        _ => 50 << 10,
    };
    refusals.count(save(client, format!("s{round}"), bytes).await);
    let skill = format!("skill-{round:02}");
    let published = publish(client, &skill).await;
    // All that are staged stay in the workspace, the versions of another one in turns.
    let staged = match &published {
        Ok(_) => client.stage_skills(WORKSPACE, &[&skill]).await.map(drop),
        Err(_) => Ok(()),
    };
    refusals.count(published);
    refusals.count(staged);
    let is_even = round.is_multiple_of(2);
    let version = if is_even { "csv@1.0" } else { "csv@2.0" };
    refusals.count(client.stage_skills(WORKSPACE, &[version]).await);
    // Every second one stays published.
    if is_even {
        delete_skill(client, &skill).await;
    }
    stage_input(client, round).await;
    let uploaded = client.upload_bytes(WORKSPACE, "out/f", vec![7; 10 << 10]);
    uploaded.await.expect("uploaded");
    collect_outputs(client, "out/f", format!("c{round}/")).await;
    if round.is_multiple_of(WORKSPACE_ROUNDS) {
        let id = format!("x{round}");
        let workspace = claim(client, &id).await.expect("claimed").name;
        refusals.count(client.stage_skills(&workspace, &["shared"]).await);
        let deleted = client.delete_workspace(&workspace).await;
        deleted.expect("deleted");
    }
}

/// Returns the bytes that a state directory holds, without the disks of its containers.
fn measure_state(state_dir: &Path) -> u64 {
    let slots = std::fs::read_dir(state_dir.join("slots")).expect("slots");
    let disks: u64 = slots
        .map(|slot| slot.expect("slot").path().join("fake-workspace"))
        .map(|disk| measure_held_bytes(&disk))
        .sum();
    measure_held_bytes(state_dir).saturating_sub(disks)
}

#[tokio::test(flavor = "multi_thread")]
async fn no_rpc_leaves_more_on_the_disk_than_the_quotas_of_its_tenant() {
    const SMALL: i64 = 400 << 10;
    const ROUNDS: usize = 40;
    let server = AccessServer::start_on_small_disk().await;
    let keys = BYTE_QUOTAS.map(|quota| format!("{quota} = \"{SMALL}B\"\n"));
    set_quotas(&server, &keys.concat(), "staged_bytes", SMALL).await;
    let (a, b) = (
        server.client("a", "publisher").await,
        server.client("b", "publisher").await,
    );
    for client in [&a, &b] {
        claim(client, "w").await.expect("claimed");
    }
    let before = measure_state(server.state_dir());
    for version in ["1.0", "2.0"] {
        skills::publish(&a, "csv", version, "body").await;
    }
    // Beside it, versions of skills stay that are replaced.
    start_sleep(&a).await;
    let mut refusals = Refusals::default();
    for round in 0..ROUNDS {
        call_writers(&a, round, &mut refusals).await;
    }
    for quota in BYTE_QUOTAS {
        assert!(refusals.0.contains_key(quota), "{quota}: {:?}", refusals.0);
        let (used, limit) = usage(&a, quota).await;
        assert!(used > SMALL / 2 && used <= SMALL, "{quota}: {used}");
        assert_eq!(limit, Some(SMALL), "{quota}");
    }
    let quotas = 3 * SMALL.unsigned_abs();
    let most = quotas + SHARED_OBJECTS * 4096;
    let after = measure_state(server.state_dir());
    assert!(after <= before + most, "{before} bytes became {after}");
    // The other tenant goes on.
    save(&b, "s".to_owned(), 100 << 10).await.expect("saved");
    publish(&b, "skill-b").await.expect("published");
    claim(&b, "w2").await.expect("claimed");
    let staged = b.stage_skills("workspaces/w2", &["skill-b"]).await;
    staged.expect("staged");
    stage_input(&b, 0).await;
    assert!(server.stop().await);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_deleted_skill_counts_until_the_workspace_that_has_it_ends() {
    let server = AccessServer::start().await;
    let publisher = server.client("a", "publisher").await;
    claim(&publisher, "w").await.expect("claimed");
    publish(&publisher, "skill-00").await.expect("published");
    let (one, _) = usage(&publisher, "published_bytes").await;
    let staged = publisher.stage_skills("workspaces/w", &["skill-00"]).await;
    staged.expect("staged");
    delete_skill(&publisher, "skill-00").await;
    assert_eq!(usage(&publisher, "published_bytes").await.0, one);
    let deleted = publisher.delete_workspace("workspaces/w").await;
    deleted.expect("deleted");
    wait_until("the skill no longer counts", async || {
        (usage(&publisher, "published_bytes").await.0 == 0).then_some(())
    })
    .await;
    assert!(server.stop().await);
}

#[tokio::test(flavor = "multi_thread")]
async fn staged_copies_count_until_their_workspace_ends() {
    let server = AccessServer::start().await;
    let user = server.client("a", "user").await;
    for id in ["w1", "w2"] {
        claim(&user, id).await.expect("claimed");
    }
    let stage = async |user: &Client, id: &str| {
        let workspace = format!("workspaces/{id}");
        user.stage_skills(&workspace, &["shared"]).await
    };
    stage(&user, "w1").await.expect("staged");
    let (one, limit) = usage(&user, "staged_bytes").await;
    assert!(one > 4096 && limit == Some(10 << 30), "{one} of {limit:?}");
    let keys = format!("staged_bytes = \"{}B\"", one + 1);
    set_quotas(&server, &keys, "staged_bytes", one + 1).await;
    let refused = stage(&user, "w2").await;
    check_refused(refused, "staged_bytes");
    // Without a copy there is nothing to count.
    assert!(stage(&user, "w1").await.expect("it is there")[0].unchanged);
    let server = server.restart().await;
    let user = server.client("a", "user").await;
    assert_eq!(usage(&user, "staged_bytes").await.0, one);
    user.delete_workspace("workspaces/w1").await.expect("gone");
    wait_until("the copies no longer count", async || {
        (usage(&user, "staged_bytes").await.0 == 0).then_some(())
    })
    .await;
    let keys = format!("staged_bytes = \"{}B\"", 10 * one);
    set_quotas(&server, &keys, "staged_bytes", 10 * one).await;
    stage(&user, "w2").await.expect("there is room");
    assert!(server.stop().await);
}

#[tokio::test(flavor = "multi_thread")]
async fn versions_of_ended_commands_make_room_for_the_next_one() {
    let (server, client) = start_with_two_versions().await;
    let stage = async |version: &str| {
        let skill = format!("csv@{version}");
        client.stage_skills("workspaces/w", &[skill.as_str()]).await
    };
    stage("1.0").await.expect("staged");
    let (one, _) = usage(&client, "staged_bytes").await;
    // Room for two copies, and for the links that a copy may get at most.
    let limit = 2 * one + (32 << 10);
    let keys = format!("staged_bytes = \"{limit}B\"");
    set_quotas(&server, &keys, "staged_bytes", limit).await;
    let exec = start_sleep(&client).await;
    stage("2.0").await.expect("beside the version it replaces");
    let (two, _) = usage(&client, "staged_bytes").await;
    assert!(two > one, "{two}");
    client.kill_exec(&exec).await.expect("killed");
    wait_until("there is room for another version", async || {
        stage("1.0").await.ok()
    })
    .await;
    assert_eq!(usage(&client, "staged_bytes").await.0, one);
    assert!(server.stop().await);
}

#[tokio::test(flavor = "multi_thread")]
async fn processes_that_are_kept_keep_their_version_of_a_skill() {
    let (server, client) = start_with_two_versions().await;
    let stage = async |version: &str| {
        let skill = format!("csv@{version}");
        let staged = client.stage_skills("workspaces/w", &[skill.as_str()]).await;
        staged.expect("staged");
        usage(&client, "staged_bytes").await.0
    };
    let one = stage("1.0").await;
    let start = pb::StartExecRequest {
        parent: "workspaces/w".to_owned(),
        spec: Some(pb::ExecSpec {
            argv: ["/bin/sh", "-c", "sleep 1000 > /dev/null 2>&1 &"]
                .map(str::to_owned)
                .into(),
            stragglers: pb::StragglerPolicy::Keep.into(),
            ..pb::ExecSpec::default()
        }),
        ..pb::StartExecRequest::default()
    };
    let exec = client.start_exec(start).await.expect("started").name;
    wait_until("the daemon has counted the end", async || {
        (usage(&client, "execs").await.0 == 0).then_some(())
    })
    .await;
    assert!(stage("2.0").await > one, "both versions are there");
    client.kill_exec(&exec).await.expect("killed");
    wait_until("one version is left", async || {
        stage("2.0").await;
        (stage("1.0").await == one).then_some(())
    })
    .await;
    assert!(server.stop().await);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_quota_of_artifacts_counts_versions_of_any_size() {
    let server = AccessServer::start().await;
    let user = server.client("a", "user").await;
    for (resource, default) in [("artifacts", 100_000), ("requests_per_second", 200)] {
        assert_eq!(usage(&user, resource).await, (0, Some(default)));
    }
    set_quotas(&server, "artifacts = 3", "artifacts", 3).await;
    for session in ["1", "1", "2"] {
        let saved = save(&user, session.to_owned(), 0).await;
        saved.expect("saved");
    }
    assert_eq!(usage(&user, "artifacts").await, (3, Some(3)));
    let refused = save(&user, "3".to_owned(), 0).await;
    check_refused(refused, "artifacts");
    let request = pb::DeleteArtifactRequest {
        name: "x".to_owned(),
        scope: Some(pb::ArtifactScope {
            session: "1".to_owned(),
            ..pb::ArtifactScope::default()
        }),
        ..pb::DeleteArtifactRequest::default()
    };
    user.delete_artifact(request).await.expect("both versions");
    assert_eq!(usage(&user, "artifacts").await.0, 1);
    save(&user, "3".to_owned(), 0).await.expect("there is room");
    assert!(server.stop().await);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_collection_saves_no_more_artifacts_than_its_quota_permits() {
    let server = AccessServer::start().await;
    let user = server.client("a", "user").await;
    claim(&user, "w").await.expect("claimed");
    for path in ["out/1", "out/2", "out/3"] {
        let uploaded = user.upload_bytes(WORKSPACE, path, &b""[..]);
        uploaded.await.expect("uploaded");
    }
    set_quotas(&server, "artifacts = 2", "artifacts", 2).await;
    let summary = collect_outputs(&user, "out/*", String::new()).await;
    let saved = ["artifact://out/1@0", "artifact://out/2@0"];
    assert_eq!(summary.artifacts, saved);
    let skipped: Vec<_> = summary
        .skipped_files
        .iter()
        .map(|file| (file.path.as_str(), file.reason()))
        .collect();
    let refused = pb::SkipReason::QuotaExceeded;
    assert_eq!(skipped, [("out/3", refused)]);
    assert_eq!(usage(&user, "artifacts").await, (2, Some(2)));
    assert!(server.stop().await);
}
