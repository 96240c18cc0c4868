//! Audit log of a whole server: who did what, what is refused while it cannot be written, and what is never in it.

use std::path::PathBuf;

use serde_json::Value;
use skilld_client::{Client, ConnectOptions};
use skilld_proto::v1 as pb;
use skilld_tests::exec::argv;
use tonic::Code;
use tonic_types::StatusExt;

use super::harness::{AccessServer, connect, token};
use super::matrix::call_with;
use super::quotas::{create, set_quotas};
use crate::server::wait_until;

/// Reads the lines of an audit log.
fn lines(path: &PathBuf) -> Vec<Value> {
    let text = std::fs::read_to_string(path).unwrap_or_default();
    let complete = text.rsplit_once('\n').map_or("", |(lines, _)| lines);
    let lines = complete.lines().filter(|line| !line.is_empty());
    lines
        .map(|line| serde_json::from_str(line).expect(line))
        .collect()
}

/// Waits until the log has a line for which `is_wanted` is true, and returns it.
async fn wait_for(path: &PathBuf, is_wanted: impl Fn(&Value) -> bool) -> Value {
    wait_until("the log has the line", async || {
        lines(path).into_iter().find(&is_wanted)
    })
    .await
}

async fn create_workspace(
    client: &Client,
    id: &str,
) -> Result<pb::Workspace, skilld_client::Error> {
    let request = pb::CreateWorkspaceRequest {
        workspace_id: id.to_owned(),
        env: [("SECRET".to_owned(), "canary-env".to_owned())].into(),
        ..pb::CreateWorkspaceRequest::default()
    };
    client.create_workspace(request).await
}

async fn run(client: &Client, workspace: &str) {
    let request = pb::RunExecRequest {
        parent: workspace.to_owned(),
        spec: Some(pb::ExecSpec {
            argv: vec!["/bin/echo".to_owned(), "canary-argument".to_owned()],
            env: [("KEY".to_owned(), "canary-value".to_owned())].into(),
            ..pb::ExecSpec::default()
        }),
        ..pb::RunExecRequest::default()
    };
    let mut stream = client
        .execs()
        .run_exec(request)
        .await
        .expect("running")
        .into_inner();
    while stream.message().await.expect("events").is_some() {}
}

#[tokio::test(flavor = "multi_thread")]
async fn a_change_is_recorded_before_and_after_with_who_made_it() {
    let server = AccessServer::start_with("audit.file = {audit}\n").await;
    let path = server.path("audit.log");
    let user = server.client("a", "user").await;
    create_workspace(&user, "w").await.expect("created");
    run(&user, "workspaces/w").await;
    let is = |method: &str, event: &str| {
        let (method, event) = (method.to_owned(), event.to_owned());
        move |line: &Value| line["method"] == method && line["event"] == event
    };
    let create = "/skilld.v1.WorkspaceService/CreateWorkspace";
    let began = wait_for(&path, is(create, "call_began")).await;
    let ended = wait_for(&path, is(create, "call_ended")).await;
    for line in [&began, &ended] {
        assert_eq!(line["principal"], "a-user");
        assert_eq!(line["tenant"], "a");
        assert_eq!(line["via"], "token");
        assert_eq!(line["resource"], "workspaces/w");
        assert!(
            line["peer_address"]
                .as_str()
                .is_some_and(|it| it.starts_with("127.0.0.1:"))
        );
        assert_eq!(line["request_id"], began["request_id"]);
    }
    assert_eq!(
        (&ended["decision"], &ended["code"]),
        (&"allowed".into(), &"OK".into())
    );
    assert!(began["sequence"].as_u64() < ended["sequence"].as_u64());
    assert!(ended["bytes_in"].as_u64() > Some(10) && ended["bytes_out"].as_u64() > Some(10));
    let exec = wait_for(&path, is("/skilld.v1.ExecService/RunExec", "call_ended")).await;
    assert_eq!(exec["program"], "echo");
    assert_eq!(exec["argv_hmac"].as_str().map(str::len), Some(64));

    let observer = server.client("a", "observer").await;
    create_workspace(&observer, "x")
        .await
        .expect_err("it may not");
    let refused = |line: &Value| line["principal"] == "a-observer" && line["decision"] == "refused";
    let refused = wait_for(&path, refused).await;
    assert_eq!(
        (&refused["code"], &refused["reason"]),
        (&"PERMISSION_DENIED".into(), &"PERMISSION_DENIED".into())
    );
    // Only the handler finds this one.
    let request = pb::CreateWorkspaceTokenRequest {
        workspace: "workspaces/w".to_owned(),
        ..Default::default()
    };
    let admin = server.client("a", "tenant_admin").await;
    let minted = admin.create_workspace_token(request).await.expect("minted");
    let agent = connect(&server.with_token(minted.token)).await;
    create_workspace(&agent, "y").await.expect_err("it may not");
    let refused = |line: &Value| line["via"] == "workspace_token" && line["event"] == "call_ended";
    let refused = wait_for(&path, refused).await;
    assert_eq!(
        (&refused["decision"], &refused["reason"]),
        (&"refused".into(), &"PERMISSION_DENIED".into())
    );
    let nobody = connect(&server.tls()).await;
    nobody.get_principal().await.expect_err("no credential");
    let unknown = wait_for(&path, |line| line["code"] == "UNAUTHENTICATED").await;
    assert!(unknown["principal"].is_null(), "{unknown}");

    let text = std::fs::read_to_string(&path).expect("read");
    let secret = token("a", "user");
    for canary in ["canary", "/bin/echo", secret.as_str()] {
        assert!(!text.contains(canary), "{canary} is in the audit log");
    }
    assert!(server.stop().await);
}

#[tokio::test(flavor = "multi_thread")]
async fn commands_of_a_setup_are_described_and_not_shown() {
    let server = AccessServer::start_with("audit.file = {audit}\n").await;
    let path = server.path("audit.log");
    let user = server.client("a", "user").await;
    create_workspace(&user, "w").await.expect("created");
    let request = pb::RunExecRequest {
        parent: "workspaces/w".to_owned(),
        spec: Some(argv(["/bin/echo"])),
        setup: Some(pb::WorkspaceSetup {
            commands: vec![argv(["pip", "canary"]), argv(["/bin/true"])],
            ..pb::WorkspaceSetup::default()
        }),
        ..pb::RunExecRequest::default()
    };
    // This server has no directory in which a command could start.
    user.execs().run_exec(request).await.expect_err("no place");
    let is_run = |line: &Value| line["method"] == "/skilld.v1.ExecService/RunExec";
    let began = wait_for(&path, is_run).await;
    assert_eq!(began["program"], "echo");
    let setup = began["setup"].as_array().expect("commands");
    let programs: Vec<&Value> = setup.iter().map(|command| &command["program"]).collect();
    assert_eq!(programs, ["pip", "true"]);
    let fingerprint = |command: &Value| command["argv_hmac"].as_str().map(str::len);
    assert!(setup.iter().all(|command| fingerprint(command) == Some(64)));
    let text = std::fs::read_to_string(&path).expect("read");
    assert!(!text.contains("canary"), "{text}");
    assert!(server.stop().await);
}

/// StartExecRequest with fields that only RunExecRequest has: `format`, here of another type, and `setup`.
#[derive(Clone, PartialEq, prost::Message)]
struct ForeignFields {
    #[prost(string, tag = "1")]
    parent: String,
    #[prost(message, optional, tag = "3")]
    spec: Option<pb::ExecSpec>,
    #[prost(string, tag = "4")]
    format: String,
    #[prost(message, optional, tag = "12")]
    setup: Option<pb::WorkspaceSetup>,
}

#[tokio::test(flavor = "multi_thread")]
async fn fields_of_another_request_hide_no_command() {
    let server = AccessServer::start_with("audit.file = {audit}\n").await;
    let path = server.path("audit.log");
    let user = server.client("a", "user").await;
    create_workspace(&user, "w").await.expect("created");
    let setup = pb::WorkspaceSetup {
        commands: vec![argv(["/bin/true"])],
        ..pb::WorkspaceSetup::default()
    };
    let method = "/skilld.v1.ExecService/StartExec";
    for format in ["", "text"] {
        let request = ForeignFields {
            parent: "workspaces/w".to_owned(),
            spec: Some(argv(["/bin/true"])),
            format: format.to_owned(),
            setup: Some(setup.clone()),
        };
        call_with(user.channel(), method, request).await;
    }
    let began = wait_until("the log has the calls", async || {
        let mut found = lines(&path);
        found.retain(|line| line["method"] == method && line["event"] == "call_began");
        (found.len() == 2).then_some(found)
    });
    for line in began.await {
        assert_eq!(line["program"], "true", "{line}");
        assert!(line["setup"].is_null(), "{line}");
    }
    assert!(server.stop().await);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_end_of_a_call_names_what_it_created() {
    let server = AccessServer::start_with("audit.file = {audit}\n").await;
    let path = server.path("audit.log");
    let admin = server.client("a", "tenant_admin").await;
    // The client's own function would choose a name.
    let request = pb::CreateWorkspaceRequest::default();
    let created = admin.workspaces().create_workspace(request).await;
    let workspace = created.expect("created").into_inner().name;
    let spec = || {
        Some(pb::ExecSpec {
            argv: vec!["/bin/true".to_owned()],
            ..pb::ExecSpec::default()
        })
    };
    run(&admin, &workspace).await;
    let start = pb::StartExecRequest {
        parent: workspace.clone(),
        exec_id: "own-id".to_owned(),
        spec: spec(),
    };
    admin.execs().start_exec(start).await.expect("started");
    let request = pb::CreateWorkspaceTokenRequest {
        workspace: workspace.clone(),
        ..Default::default()
    };
    let minted = admin.create_workspace_token(request).await.expect("minted");
    let token_id = minted.principal.expect("known").id;
    let files = server.stop_keeping_files().await;
    let resource = |method: &str, event: &str| {
        let mut found = lines(&path);
        found.retain(|line| {
            let path = line["method"].as_str().unwrap_or_default();
            path.ends_with(method) && line["event"] == event
        });
        assert_eq!(found.len(), 1, "{method} {event}");
        found.pop().expect("one")["resource"].take()
    };
    assert!(resource("/CreateWorkspace", "call_began").is_null());
    assert_eq!(resource("/CreateWorkspace", "call_ended"), *workspace);
    let own_id = format!("{workspace}/execs/own-id");
    assert_eq!(resource("/StartExec", "call_ended"), *own_id);
    let created = resource("/RunExec", "call_ended");
    let ran = created.as_str().expect("text");
    assert!(ran.starts_with(&format!("{workspace}/execs/")), "{ran}");
    let token = format!("{workspace}/tokens/{token_id}");
    assert_eq!(resource("/CreateWorkspaceToken", "call_ended"), *token);
    assert_eq!(resource("/CreateWorkspaceToken", "call_began"), *workspace);
    let text = std::fs::read_to_string(&path).expect("read");
    assert!(!text.contains(&minted.token));
    drop(files);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_anonymous_flood_has_two_records_and_delays_no_client() {
    const FLOOD: usize = 300;
    // A pause of the machine may let the delay pass before the other client is served.
    const ROUNDS: usize = 5;
    let server = AccessServer::start_with("audit.file = {audit}\n").await;
    let path = server.path("audit.log");
    let (nobody, user) = (
        connect(&server.tls()).await,
        server.client("a", "user").await,
    );
    let mut refusals = 0;
    let served_first = async || {
        let flood = futures::future::join_all((0..FLOOD).map(|_| nobody.get_principal()));
        let mut flood = std::pin::pin!(flood);
        // The answers beyond the first hundred are delayed.
        let early = tokio::select! {
            ended = &mut flood => Some(ended),
            served = user.get_principal() => {
                assert_eq!(served.expect("served").id, "a-user");
                None
            }
        };
        let is_first = early.is_none();
        let refused = match early {
            Some(ended) => ended,
            None => flood.await,
        };
        for refused in refused {
            let error = refused.expect_err("no credential");
            assert_eq!(error.code(), Some(Code::Unauthenticated), "{error}");
        }
        is_first
    };
    for round in 1.. {
        refusals += FLOOD;
        if served_first().await {
            break;
        }
        assert!(round < ROUNDS, "the flood delays another client");
    }
    let files = server.stop_keeping_files().await;
    let mut refused = lines(&path);
    refused.retain(|line| line["code"] == "UNAUTHENTICATED");
    let [first, others] = &refused[..] else {
        panic!("{refused:#?}");
    };
    assert_eq!(
        (&first["event"], &others["event"]),
        (&"call_ended".into(), &"calls_refused".into())
    );
    assert_eq!(others["refusals"], refusals - 1);
    assert!(others["peer_address"].is_string() && others["decision"] == "refused");
    drop(files);
}

#[tokio::test(flavor = "multi_thread")]
async fn repeated_forbidden_calls_have_two_records_and_use_the_rate() {
    const CALLS: usize = 300;
    let server = AccessServer::start_with("audit.file = {audit}\n").await;
    let path = server.path("audit.log");
    let observer = server.client("a", "observer").await;
    let calls = (0..CALLS).map(|_| create(&observer, "w"));
    for refused in futures::future::join_all(calls).await {
        let status = refused.expect_err("an observer");
        assert_eq!(status.code(), Code::PermissionDenied, "{status}");
    }
    let rate = "requests_per_second = 1\nrequests_burst = 5";
    set_quotas(&server, rate, "requests_per_second", 1).await;
    wait_until("one of twenty calls at once is refused", async || {
        let calls = (0..20).map(|_| create(&observer, "w"));
        let answers = futures::future::join_all(calls).await;
        let mut statuses = answers
            .into_iter()
            .map(|answer| answer.expect_err("an observer"));
        statuses
            .any(|status| status.code() == Code::ResourceExhausted)
            .then_some(())
    })
    .await;
    let files = server.stop_keeping_files().await;
    let mut refused = lines(&path);
    refused.retain(|line| line["reason"] == "PERMISSION_DENIED");
    let [first, others] = &refused[..] else {
        panic!("{refused:#?}");
    };
    assert_eq!(
        (&first["event"], &others["event"]),
        (&"call_ended".into(), &"calls_refused".into())
    );
    assert_eq!(others["principal"], "a-observer");
    assert!(
        others["refusals"].as_u64() >= Some(CALLS as u64 - 1),
        "{others}"
    );
    drop(files);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_call_for_another_tenant_is_recorded_with_both_tenants() {
    let server = AccessServer::start_with("audit.file = {audit}\n").await;
    let path = server.path("audit.log");
    let for_b = |role: &str| ConnectOptions {
        tenant: Some("b".to_owned()),
        ..server.with_token(token("a", role))
    };
    let admin = connect(&for_b("admin")).await;
    // A call without a resource.
    admin.get_tenant_usage().await.expect("an admin may");
    create(&admin, "w").await.expect("an admin may");
    let user = connect(&for_b("user")).await;
    user.get_tenant_usage().await.expect_err("a user may not");
    let own = server.client("a", "admin").await;
    own.get_tenant_usage().await.expect("served");
    let files = server.stop_keeping_files().await;
    let mut found: Vec<[Value; 4]> = lines(&path)
        .into_iter()
        .filter(|line| line["event"] == "call_ended")
        .map(|mut line| {
            assert_eq!(line["tenant"], "a", "{line}");
            ["principal", "for_tenant", "resource", "decision"].map(|key| line[key].take())
        })
        .collect();
    let none = Value::Null;
    let mut expected = [
        ["a-admin".into(), "b".into(), none.clone(), "allowed".into()],
        [
            "a-admin".into(),
            "b".into(),
            "workspaces/w".into(),
            "allowed".into(),
        ],
        ["a-user".into(), "b".into(), none.clone(), "refused".into()],
        ["a-admin".into(), none.clone(), none, "allowed".into()],
    ];
    // A client may have its answer before the end of its call is recorded.
    found.sort_by_key(|keys| format!("{keys:?}"));
    expected.sort_by_key(|keys| format!("{keys:?}"));
    assert_eq!(found, expected);
    drop(files);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_storm_of_hangups_while_rotating_loses_no_record() {
    let server = AccessServer::start_with("audit.file = {audit}\n").await;
    let (path, rotated) = (server.path("audit.log"), server.path("audit.log.1"));
    let user = server.client("a", "user").await;
    create_workspace(&user, "before").await.expect("created");
    wait_for(&path, |line| line["resource"] == "workspaces/before").await;
    std::fs::rename(&path, &rotated).expect("rename");
    for index in 0..100 {
        nix::sys::signal::raise(nix::sys::signal::Signal::SIGHUP).expect("sent");
        if index % 10 == 0 {
            user.get_workspace("workspaces/before")
                .await
                .expect("served");
        }
    }
    // Until then records go to the renamed file.
    wait_until("the log is opened again", async || {
        path.exists().then_some(())
    })
    .await;
    create_workspace(&user, "after").await.expect("created");
    wait_for(&path, |line| line["resource"] == "workspaces/after").await;
    let files = server.stop_keeping_files().await;
    let all: Vec<Value> = [lines(&rotated), lines(&path)].concat();
    let sequences: Vec<u64> = all
        .iter()
        .filter_map(|line| line["sequence"].as_u64())
        .collect();
    let expected: Vec<u64> = (1..).take(all.len()).collect();
    assert_eq!(sequences, expected);
    drop(files);
}

/// Fills the disk of the audit log, and returns the path of the file that does.
pub(super) fn fill_disk(server: &AccessServer) -> PathBuf {
    let path = server.path("small/filler");
    let filler = std::fs::File::create(&path).expect("file");
    let mut block = 1 << 16;
    while block > 0 {
        match std::io::Write::write(&mut &filler, &vec![0; block]) {
            Ok(_) => {}
            Err(_) => block /= 2,
        }
    }
    path
}

#[tokio::test(flavor = "multi_thread")]
async fn a_full_disk_refuses_uploads_with_the_reason() {
    let server = AccessServer::start_with_audit_disk().await;
    let user = server.client("a", "user").await;
    create_workspace(&user, "w").await.expect("created");
    fill_disk(&server);
    let refused = wait_until("an upload is refused", async || {
        let header = pb::stage_files_request::Payload::Header(pb::StageFilesHeader {
            workspace: "workspaces/w".to_owned(),
            path: "work/x".to_owned(),
            ..Default::default()
        });
        let upload = pb::StageFilesRequest {
            payload: Some(header),
        };
        let uploads = futures::stream::iter([upload]);
        user.files().stage_files(uploads).await.err()
    })
    .await;
    // Also of the first refused call, whose request breaks off because its record is not written.
    assert_eq!(refused.code(), Code::Unavailable, "{refused}");
    let details = refused.get_error_details();
    let info = details.error_info().expect("a reason");
    assert_eq!(info.reason, "AUDIT_UNAVAILABLE");
    assert!(server.stop().await);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_full_disk_refuses_changes_and_permits_reads_and_deletions() {
    let server = AccessServer::start_with_audit_disk().await;
    let path = server.path("small/audit.log");
    let admin = server.client("a", "admin").await;
    create_workspace(&admin, "doomed").await.expect("created");
    let filler = fill_disk(&server);
    let problem_time = async || {
        let problems = admin.problems().await.expect("a read is never refused");
        let unwritable = |problem: &&pb::Problem| problem.code == "audit.unwritable";
        let problem = problems.iter().find(unwritable)?;
        Some(problem.detect_time.expect("a time"))
    };
    // The short line of a recovery may fit into the last bytes of the disk, and the next record fails again.
    let refused = wait_until("a change is refused and the problem lasts", async || {
        let refused = match create_workspace(&admin, "new").await {
            Err(error) if error.code() == Some(Code::Unavailable) => error,
            Err(error) => panic!("{error}"),
            Ok(workspace) => {
                let deleted = admin.delete_workspace(&workspace.name).await;
                deleted.expect("deleted");
                return None;
            }
        };
        let read = admin.get_workspace("workspaces/doomed").await;
        read.expect("a read is never refused");
        let began = problem_time().await?;
        (problem_time().await? == began).then_some(refused)
    })
    .await;
    assert_eq!(
        refused.reason(),
        Some(pb::ErrorReason::AuditUnavailable),
        "{refused}"
    );
    admin
        .delete_workspace("workspaces/doomed")
        .await
        .expect("a deletion is never refused");
    std::fs::remove_file(filler).expect("room again");
    wait_until("the log recovers", async || {
        let reason = match create_workspace(&admin, "again").await {
            Ok(_) => return Some(()),
            Err(error) => error.reason(),
        };
        assert_eq!(reason, Some(pb::ErrorReason::AuditUnavailable));
        None
    })
    .await;
    wait_for(&path, |line| line["resource"] == "workspaces/again").await;
    assert!(server.stop().await);
}
