//! Names of another tenant's workspaces and execs: their guests are not asked, so no answer depends on them.

use skilld_client::Client;
use skilld_proto::v1 as pb;
use tonic::Code;

use super::harness::AccessServer;
use super::tenants::{claim, write_file};
use crate::frozen_guests::FrozenGuests;
use crate::server::within;

/// Makes a call that names a workspace, and returns the code of its status; `None` if it succeeds.
async fn call_code(client: &Client, call: &str, id: &str) -> Option<Code> {
    let (workspace, exec) = (
        format!("workspaces/{id}"),
        format!("workspaces/{id}/execs/write"),
    );
    let refused = match call {
        "GetWorkspace" => client.get_workspace(&workspace).await.err(),
        "GetExec" => client.get_exec(&exec).await.err(),
        "PollExec" => {
            let request = pb::PollExecRequest {
                name: exec,
                ..pb::PollExecRequest::default()
            };
            client.poll_exec(request).await.err()
        }
        _ => {
            let request = pb::ReadFileRequest {
                workspace,
                path: "out/file".to_owned(),
                ..pb::ReadFileRequest::default()
            };
            client.read_file(request).await.err()
        }
    };
    refused.and_then(|error| error.code())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_name_of_another_tenant_is_refused_without_its_guest() {
    let server = AccessServer::start().await;
    let (a, b) = (
        server.client("a", "user").await,
        server.client("b", "user").await,
    );
    claim(&a, "victim").await.expect("claimed");
    write_file(&a, "workspaces/victim", "text").await;
    let frozen = FrozenGuests::stop(server.state_dir());
    for call in ["GetWorkspace", "GetExec", "PollExec", "ReadFile"] {
        for id in ["victim", "absent"] {
            let code = within(call_code(&b, call, id)).await;
            assert_eq!(code, Some(Code::NotFound), "{call} {id}");
        }
    }
    drop(frozen);
    assert!(server.stop().await);
}
