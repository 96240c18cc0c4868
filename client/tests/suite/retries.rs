//! Calls are repeated when the server promised that nothing was started, and errors say what to do.

use std::time::Duration;

use skilld_client::v1::{
    CreateWorkspaceRequest, ErrorReason, ExecSpec, SignalExecRequest, StartExecRequest,
};
use skilld_client::{Client, Error};
use tonic::{Code, Status};
use tonic_types::{ErrorDetails, StatusExt};

use skilld_testing::{Fake, refusal};

async fn client(fake: &Fake) -> Client {
    let client = fake.client().await;
    let request = CreateWorkspaceRequest {
        workspace_id: "w".into(),
        ..Default::default()
    };
    client.create_workspace(request).await.expect("creates");
    client
}

#[tokio::test]
async fn unavailable_is_repeated_until_it_works() {
    let fake = Fake::start();
    let client = client(&fake).await;
    let refusals = (0..3).map(|_| refusal(Code::Unavailable, "DRAINING", &[]));
    fake.calls.refuse("GetWorkspace", refusals);
    let workspace = client.get_workspace("w").await.expect("in the end");
    assert_eq!(workspace.name, "workspaces/w");
    assert_eq!(fake.calls.count("GetWorkspace"), 4);
}

#[tokio::test]
async fn repetition_ends_after_five_calls() {
    let fake = Fake::start();
    let client = client(&fake).await;
    let refusals = (0..9).map(|_| refusal(Code::Unavailable, "ENGINE_UNAVAILABLE", &[]));
    fake.calls.refuse("GetWorkspace", refusals);
    let error = client.get_workspace("w").await.expect_err("unavailable");
    assert_eq!(error.reason(), Some(ErrorReason::EngineUnavailable));
    assert_eq!(fake.calls.count("GetWorkspace"), 5);
}

#[tokio::test]
async fn nothing_else_is_repeated() {
    let fake = Fake::start();
    let client = client(&fake).await;
    for code in (1..=16)
        .map(Code::from_i32)
        .filter(|code| *code != Code::Unavailable)
    {
        fake.calls.take();
        let refused = refusal(code, "INTERNAL", &[]);
        fake.calls.refuse("GetWorkspace", [refused]);
        let error = client.get_workspace("w").await.expect_err("refused");
        assert_eq!(error.code(), Some(code));
        assert_eq!(fake.calls.count("GetWorkspace"), 1, "{code:?}");
    }
}

#[tokio::test]
async fn a_connection_that_broke_is_made_again() {
    let mut fake = Fake::start();
    let direct = client(&fake).await;
    let endpoint = fake.breaking_endpoint(vec![600]);
    let client = Client::connect(&endpoint).await.expect("connects");
    let mut failures = 0;
    // Each answer is some 100 bytes: the connection breaks among these, and at most one call pays for it.
    for _ in 0..20 {
        failures += u32::from(client.get_workspace("w").await.is_err());
    }
    assert!(failures <= 1, "{failures} calls failed");
    drop(direct);
}

/// The daemon sends one signal for an id, however often the call comes.
#[tokio::test]
async fn a_signal_is_repeated_with_its_request_id() {
    let fake = Fake::start();
    let client = client(&fake).await;
    let request = StartExecRequest {
        parent: "w".into(),
        exec_id: "x".into(),
        spec: Some(ExecSpec {
            argv: vec!["forever".into()],
            ..Default::default()
        }),
    };
    client.start_exec(request).await.expect("starts");
    for chosen in ["", "", "mine"] {
        // The daemon has the call, and its answer is lost.
        for _ in 0..2 {
            let broken = Status::unknown("transport error");
            fake.calls.break_after("SignalExec", 0, Some(broken));
        }
        let request = SignalExecRequest {
            name: "w/x".into(),
            signal: 15,
            request_id: chosen.into(),
            ..Default::default()
        };
        client.signal_exec(request).await.expect("in the end");
    }
    let calls: Vec<SignalExecRequest> = fake.calls.requests("SignalExec");
    let ids: Vec<&str> = calls.iter().map(|call| call.request_id.as_str()).collect();
    let [first, second, third] = [0, 3, 6].map(|at| ids[at]);
    assert_eq!(ids, [[first; 3], [second; 3], [third; 3]].concat());
    assert!(!first.is_empty() && first != second, "{ids:?}");
    assert_eq!(third, "mine");
}

#[tokio::test]
async fn failures_show_their_fields_and_details() {
    let fake = Fake::start();
    let client = client(&fake).await;
    let mut details = ErrorDetails::new();
    let none: [(String, String); 0] = [];
    details.set_error_info("INVALID_REQUEST", "skilld.dev", none);
    details.add_bad_request_violation("name", "has a slash");
    details.add_bad_request_violation("labels", "too many");
    let status = Status::with_error_details(Code::InvalidArgument, "bad request", details);
    fake.calls.refuse("GetWorkspace", [status]);
    let error = client.get_workspace("w").await.expect_err("invalid");
    let text = error.to_string();
    for words in ["name: has a slash", "labels: too many", "INVALID_REQUEST"] {
        assert!(text.contains(words), "{text}");
    }
    let failure = error.failure().expect("a status");
    assert_eq!(failure.violations.len(), 2);

    let error = client
        .stage_skills("w", &["csv"])
        .await
        .expect_err("unknown");
    let failure = error.failure().expect("a status");
    assert_eq!(failure.metadata["nearest"], "csv-report,csv-merge");

    let request = CreateWorkspaceRequest {
        pool: "full".into(),
        ..Default::default()
    };
    let error = client
        .create_workspace(request)
        .await
        .expect_err("exhausted");
    let failure = error.failure().expect("a status");
    assert_eq!(failure.retry_after, Some(Duration::from_secs(3)));
}

#[tokio::test]
async fn a_daemon_that_is_not_there_is_said_in_plain_words() {
    let dir = tempfile::tempdir().expect("a directory");
    let path = dir.path().join("none.sock");
    let check = async |words: &str| {
        let error = Client::connect(&format!("unix:{}", path.display()))
            .await
            .expect_err("nobody");
        assert!(matches!(error, Error::Connect { .. }));
        let text = error.to_string();
        assert!(
            text.contains(words) && text.contains("--endpoint"),
            "{text}"
        );
    };
    check("no such socket").await;
    drop(std::os::unix::net::UnixListener::bind(&path).expect("binds"));
    check("nobody listens").await;
}
