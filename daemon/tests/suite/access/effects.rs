//! The effect that each rpc declares: while the audit log cannot be written, exactly the changes are refused.

use skilld_client::Client;
use skilld_proto::v1 as pb;
use skilld_proto::{Effect, METHODS};
use tonic::{Code, Status};
use tonic_types::StatusExt;

use super::auditing::fill_disk;
use super::harness::AccessServer;
use super::matrix::call;
use super::tenants::claim;
use crate::server::wait_until;

/// Starts a daemon whose audit log is on a full disk. Returns it with an admin that has the workspace `w`.
async fn start_with_full_disk() -> (AccessServer, Client) {
    let server = AccessServer::start_with_audit_disk().await;
    let admin = server.client("a", "admin").await;
    claim(&admin, "w").await.expect("created");
    fill_disk(&server);
    (server, admin)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_full_audit_disk_refuses_exactly_the_declared_changes() {
    let (server, admin) = start_with_full_disk().await;
    for method in METHODS {
        let path = method.path;
        if path.ends_with("/Drain") {
            // If the disk has room for its record, it ends the server.
            continue;
        }
        if method.effect == Effect::Change {
            // The last free bytes may take a few records.
            wait_until(&format!("{path} is refused"), async || {
                let code = call(admin.channel(), path).await;
                (code == Code::Unavailable).then_some(())
            })
            .await;
        } else {
            let code = call(admin.channel(), path).await;
            assert_ne!(code, Code::Unavailable, "{path} changes nothing");
        }
    }
    assert!(server.stop().await);
}

/// Collects the outputs of the workspace `w` to the end of the answer.
async fn collect(client: &Client, is_saved: bool) -> Result<(), Status> {
    let scope = pb::ArtifactScope {
        app: "app".to_owned(),
        ..pb::ArtifactScope::default()
    };
    let saved = pb::SaveAsArtifacts {
        prefix: String::new(),
        scope: Some(scope),
        request_id: String::new(),
    };
    let request = pb::CollectOutputsRequest {
        workspace: "workspaces/w".to_owned(),
        spec: Some(pb::CollectSpec {
            globs: vec!["out/**".to_owned()],
            save_as_artifacts: is_saved.then_some(saved),
            ..pb::CollectSpec::default()
        }),
    };
    let mut answer = client.files().collect_outputs(request).await?.into_inner();
    while answer.message().await?.is_some() {}
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_collection_changes_something_only_if_it_saves_artifacts() {
    let (server, admin) = start_with_full_disk().await;
    let refused = wait_until("a collection that saves is refused", async || {
        collect(&admin, true).await.err()
    })
    .await;
    let details = refused.get_error_details();
    let reason = details.error_info().map(|info| info.reason.as_str());
    assert_eq!(reason, Some("AUDIT_UNAVAILABLE"), "{refused}");
    collect(&admin, false).await.expect("a read");
    assert!(server.stop().await);
}
