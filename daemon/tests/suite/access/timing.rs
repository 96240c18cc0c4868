//! The time of an answer discloses nothing about another tenant.

use std::time::{Duration, Instant};

use skilld_client::Client;
use skilld_proto::v1 as pb;
use tonic::Code;

use super::harness::AccessServer;
use super::tenants::{claim, write_file};

/// Number of calls per name in a round.
const CALLS: usize = 300;
/// Number of rounds of which one has to pass: a busy machine lengthens some calls, a difference in the code all of them.
const ROUNDS: usize = 5;

/// Makes a call that names a workspace, and returns its time. The answer has to be NOT_FOUND.
async fn refusal_time(client: &Client, call: &str, id: &str) -> Duration {
    let (workspace, exec) = (
        format!("workspaces/{id}"),
        format!("workspaces/{id}/execs/write"),
    );
    let started = Instant::now();
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
    let time = started.elapsed();
    assert_eq!(
        refused.and_then(|error| error.code()),
        Some(Code::NotFound),
        "{call}"
    );
    time
}

fn median(mut times: Vec<Duration>) -> Duration {
    times.sort_unstable();
    times.get(times.len() / 2).copied().unwrap_or_default()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_name_of_another_tenant_is_refused_in_the_time_of_an_unknown_one() {
    let server = AccessServer::start().await;
    let (a, b) = (
        server.client("a", "user").await,
        server.client("b", "user").await,
    );
    claim(&a, "victim").await.expect("claimed");
    write_file(&a, "workspaces/victim", "text").await;
    for call in ["GetWorkspace", "GetExec", "PollExec", "ReadFile"] {
        let mut seen = Vec::new();
        let is_alike = async |seen: &mut Vec<(Duration, Duration)>| {
            let (mut foreign, mut unknown) = (Vec::new(), Vec::new());
            for _ in 0..CALLS {
                foreign.push(refusal_time(&b, call, "victim").await);
                unknown.push(refusal_time(&b, call, "absent").await);
            }
            let (foreign, unknown) = (median(foreign), median(unknown));
            seen.push((foreign, unknown));
            foreign.abs_diff(unknown) < unknown / 10
        };
        let mut passed = false;
        for _ in 0..ROUNDS {
            passed = passed || is_alike(&mut seen).await;
        }
        assert!(
            passed,
            "{call}: medians of a foreign and an unknown name: {seen:?}"
        );
    }
    assert!(server.stop().await);
}
