//! Builds of two tenants whose skills need the same packages.

use skilld_client::Client;
use skilld_proto::v1 as pb;
use skilld_proto::v1::prepare_skill_response::Payload;
use tonic::Streaming;

use super::harness::AccessServer;
use crate::server::within;
use crate::written_files::write_file;

/// Number of builds that one tenant begins: fewer than may wait.
const BUILDS: usize = 24;

/// Begins the build of a skill's packages, or joins it.
async fn prepare(client: &Client, number: usize) -> Streaming<pb::PrepareSkillResponse> {
    let request = pb::PrepareSkillRequest {
        name: format!("skills/needy-{number}"),
        ..pb::PrepareSkillRequest::default()
    };
    let prepared = client.skills().prepare_skill(request).await;
    prepared.expect("accepted").into_inner()
}

#[tokio::test(flavor = "multi_thread")]
async fn builds_of_one_tenant_keep_no_build_of_another_waiting() {
    let server = AccessServer::start_with("engine.boot_timeout = \"10m\"\n").await;
    for number in 0..BUILDS {
        let skill = server.path("root1").join(format!("needy-{number}"));
        let text = format!("---\nname: needy-{number}\ndescription: d\n---\n");
        write_file(&skill.join("SKILL.md"), text, 0o644);
        let needs = format!("package-{number}\n");
        write_file(&skill.join("requirements.txt"), needs, 0o644);
    }
    let admin = server.client("a", "admin").await;
    let request = pb::RefreshSkillsRequest {};
    let refreshed = admin.skills().refresh_skills(request).await;
    refreshed.expect("refreshed");
    // The containers of builds start and never answer.
    server.engine.start_without_guest();
    let (a, b) = (
        server.client("a", "user").await,
        server.client("b", "user").await,
    );
    let mut of_a = Vec::new();
    for number in 0..BUILDS {
        of_a.push(prepare(&a, number).await);
    }
    // If this joined the build of tenant a, it would not report the begin.
    let mut of_b = prepare(&b, 0).await;
    let first = within(of_b.message()).await.expect("a message");
    let line = match first.and_then(|message| message.payload) {
        Some(Payload::Line(line)) => line,
        other => panic!("{other:?}"),
    };
    assert!(line.starts_with("starting a container"), "{line}");
    drop(of_a);
    assert!(server.stop().await);
}
