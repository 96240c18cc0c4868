//! Resource names and pages through a whole server: what one rpc answers, every other one takes.

use crate::server::{TestServer, violations};
use skilld_proto::v1 as pb;
use tonic::{Code, Status};
use tonic_types::StatusExt;

const SKILLS: [(&str, &str); 3] = [
    ("csv", "name: csv\ndescription: Reads tables."),
    (
        "csv-report",
        "name: csv-report\ndescription: Reads csv tables.",
    ),
    (
        "csv-write",
        "name: csv-write\ndescription: Writes csv tables.",
    ),
];
const SECOND_POOL: &str = "[pools.second]\nimage = \"example/second:1\"\nwarm = 0\n";

/// Returns the name of the resource that was not found.
#[track_caller]
fn missing_resource(status: &Status) -> String {
    assert_eq!(status.code(), Code::NotFound, "{status:?}");
    let details = status.get_error_details();
    details
        .resource_info()
        .expect("ResourceInfo")
        .resource_name
        .clone()
}

#[tokio::test(flavor = "multi_thread")]
async fn names_of_answers_are_those_of_requests() {
    let server = TestServer::start("", &SKILLS).await;
    let client = &server.client;
    let info = client.server_info().await.expect("info");
    assert_eq!(info.pools, ["pools/default"]);
    let request = pb::CreateWorkspaceRequest {
        workspace_id: "job-7".to_owned(),
        pool: info.default_pool,
        ..pb::CreateWorkspaceRequest::default()
    };
    let created = client.workspaces().create_workspace(request).await;
    let workspace = created.expect("created").into_inner();
    assert_eq!(workspace.name, "workspaces/job-7");
    assert_eq!(workspace.pool, "pools/default");
    let listed = client.list_skills(pb::ListSkillsRequest::default()).await;
    let skill = listed.expect("listed").skills.remove(0);
    let request = pb::StageSkillsRequest {
        workspace: workspace.name.clone(),
        skills: vec![format!("{}@{}", skill.name, skill.digest)],
        writable: false,
    };
    let staged = client.files().stage_skills(request).await.expect("staged");
    let staged = staged.into_inner().skills.remove(0);
    assert_eq!(staged.name, skill.name);
    let request = pb::StartExecRequest {
        parent: workspace.name.clone(),
        exec_id: "x".to_owned(),
        spec: Some(pb::ExecSpec {
            skill: staged.name.clone(),
            argv: vec!["true".to_owned()],
            ..pb::ExecSpec::default()
        }),
    };
    let exec = client.execs().start_exec(request).await.expect("started");
    let exec = exec.into_inner();
    assert_eq!(exec.name, "workspaces/job-7/execs/x");
    assert_eq!(exec.effective_spec.expect("a spec").skill, staged.name);
    let seen = server.get_workspace(&workspace.name).await;
    assert_eq!(seen.skills[0].name, staged.name);
    assert!(server.stop().await);
}

#[tokio::test(flavor = "multi_thread")]
async fn bare_names_are_refused_with_the_right_form() {
    let server = TestServer::start("", &SKILLS).await;
    let client = &server.client;
    let request = pb::CreateWorkspaceRequest {
        pool: "default".to_owned(),
        workspace_id: "workspaces/w".to_owned(),
        ..pb::CreateWorkspaceRequest::default()
    };
    let refused = client.workspaces().create_workspace(request).await;
    let found = violations(&refused.expect_err("bare"));
    assert_eq!(
        (found[0].0.as_str(), found[1].0.as_str()),
        ("workspace_id", "pool")
    );
    assert_eq!(found[1].1, "\"default\" is not of the form pools/{pool}");
    let workspace = server.workspace().await;
    let request = pb::StageSkillsRequest {
        workspace: workspace.clone(),
        skills: vec!["csv".to_owned()],
        writable: false,
    };
    let refused = client.files().stage_skills(request).await;
    let found = violations(&refused.expect_err("bare"));
    let expected = "\"csv\" is not of the form skills/{skill}";
    assert_eq!(found, [("skills[0]".to_owned(), expected.to_owned())]);
    let request = pb::StartExecRequest {
        parent: workspace,
        spec: Some(pb::ExecSpec {
            skill: "csv".to_owned(),
            argv: vec!["true".to_owned()],
            ..pb::ExecSpec::default()
        }),
        ..pb::StartExecRequest::default()
    };
    let refused = client.execs().start_exec(request).await;
    let found = violations(&refused.expect_err("bare"));
    assert_eq!(found, [("spec.skill".to_owned(), expected.to_owned())]);
    assert!(server.stop().await);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_missing_resource_has_its_full_name() {
    let server = TestServer::start("", &SKILLS).await;
    let client = &server.client;
    let request = pb::GetPoolRequest {
        name: "pools/none".to_owned(),
    };
    let refused = client.admin().get_pool(request).await.expect_err("none");
    assert_eq!(missing_resource(&refused), "pools/none");
    let details = refused.get_error_details();
    let metadata = &details.error_info().expect("ErrorInfo").metadata;
    assert_eq!(metadata["pools"], "pools/default");
    let request = pb::GetSkillRequest {
        name: "skills/none@1".to_owned(),
        ..pb::GetSkillRequest::default()
    };
    let refused = client.skills().get_skill(request).await.expect_err("none");
    assert_eq!(missing_resource(&refused), "skills/none@1");
    let request = pb::LoadArtifactRequest {
        name: "artifacts/none.txt".to_owned(),
        ..pb::LoadArtifactRequest::default()
    };
    let refused = client.artifacts().load_artifact(request).await;
    let refused = refused.expect_err("none");
    assert_eq!(missing_resource(&refused), "artifacts/none.txt");
    // An artifact whose own name begins like the collection.
    let request = pb::LoadArtifactRequest {
        name: "artifacts/artifacts/none.txt".to_owned(),
        ..pb::LoadArtifactRequest::default()
    };
    let refused = client.artifacts().load_artifact(request).await;
    let refused = refused.expect_err("none");
    assert_eq!(missing_resource(&refused), "artifacts/artifacts/none.txt");
    assert!(server.stop().await);
}

#[tokio::test(flavor = "multi_thread")]
async fn pools_problems_and_matches_come_in_pages() {
    let broken = [("broken", "no: name"), ("other", "- list")];
    let server = TestServer::start(SECOND_POOL, &[&SKILLS[..], &broken].concat()).await;
    let client = &server.client;
    let (mut pools, mut page_token) = (Vec::new(), String::new());
    for _ in 0..2 {
        let request = pb::ListPoolsRequest {
            page_size: 1,
            page_token,
        };
        let page = client.list_pools(request).await.expect("a page");
        assert_eq!(page.pools.len(), 1);
        pools.extend(page.pools.into_iter().map(|pool| pool.name));
        page_token = page.next_page_token;
    }
    assert_eq!(pools, ["pools/default", "pools/second"]);
    assert_eq!(page_token, "");
    let search = |page_size, page_token: &str| {
        let request = pb::SearchSkillsRequest {
            query: "csv".to_owned(),
            page_size,
            page_token: page_token.to_owned(),
            ..pb::SearchSkillsRequest::default()
        };
        client.search_skills(request)
    };
    let all = search(0, "").await.expect("found");
    assert_eq!((all.matches.len(), all.next_page_token.as_str()), (3, ""));
    let first = search(2, "").await.expect("found");
    let second = search(2, &first.next_page_token).await.expect("found");
    assert_eq!(second.next_page_token, "");
    let paged = [first.matches, second.matches].concat();
    assert_eq!(paged, all.matches);
    let (mut problems, mut page_token) = (Vec::new(), String::new());
    loop {
        let request = pb::ListProblemsRequest {
            page_size: 1,
            page_token,
        };
        let page = client.list_problems(request).await.expect("a page");
        assert!(page.problems.len() <= 1);
        problems.extend(page.problems);
        page_token = page.next_page_token;
        if page_token.is_empty() {
            break;
        }
    }
    let whole = client
        .list_problems(pb::ListProblemsRequest::default())
        .await;
    assert_eq!(problems, whole.expect("all").problems);
    assert!(problems.len() >= 2, "{problems:?}");
    let request = pb::ListProblemsRequest {
        page_token: "x".to_owned(),
        ..pb::ListProblemsRequest::default()
    };
    let refused = client.admin().list_problems(request).await;
    assert_eq!(
        violations(&refused.expect_err("foreign"))[0].0,
        "page_token"
    );
    assert!(server.stop().await);
}

#[tokio::test(flavor = "multi_thread")]
async fn labels_are_replaced_and_survive_a_restart() {
    let server = TestServer::start("", &[]).await;
    let name = server.workspace().await;
    let update = |server: &TestServer, label: Option<&str>, paths: &[&str]| {
        let labels = label.map(|value| ("team".to_owned(), value.to_owned()));
        let request = pb::UpdateWorkspaceRequest {
            workspace: Some(pb::Workspace {
                name: name.clone(),
                labels: labels.into_iter().collect(),
                ..pb::Workspace::default()
            }),
            update_mask: Some(prost_types::FieldMask {
                paths: paths.iter().map(|path| (*path).to_owned()).collect(),
            }),
        };
        let mut stub = server.client.workspaces();
        async move { stub.update_workspace(request).await }
    };
    update(&server, Some("a"), &[]).await.expect("set");
    let left = update(&server, None, &[]).await.expect("unchanged");
    assert_eq!(left.into_inner().labels["team"], "a");
    update(&server, Some("b"), &["labels"])
        .await
        .expect("replaced");
    let refused = update(&server, Some("c"), &["pool"]).await;
    assert_eq!(violations(&refused.expect_err("fixed"))[0].0, "update_mask");
    let refused = update(&server, Some(&"x".repeat(129)), &["labels"]).await;
    let refused = violations(&refused.expect_err("too long"));
    assert_eq!(refused[0].0, "workspace.labels[\"team\"]");
    let server = server.restart(|_| {}).await;
    assert_eq!(server.get_workspace(&name).await.labels["team"], "b");
    let listed = pb::ListWorkspacesRequest {
        labels: [("team".to_owned(), "b".to_owned())].into(),
        ..pb::ListWorkspacesRequest::default()
    };
    let listed = server.client.list_workspaces(listed).await.expect("listed");
    assert_eq!(listed.workspaces.len(), 1);
    let cleared = update(&server, None, &["*"]).await.expect("cleared");
    assert!(cleared.into_inner().labels.is_empty());
    assert!(server.stop().await);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_unset_target_does_not_empty_a_pool() {
    let server = TestServer::start("", &[]).await;
    let resize = |warm_target| {
        let request = pb::ResizePoolRequest {
            name: "pools/default".to_owned(),
            warm_target,
        };
        let mut stub = server.client.admin();
        async move { stub.resize_pool(request).await }
    };
    let refused = resize(None).await.expect_err("unset");
    assert_eq!(violations(&refused)[0].0, "warm_target");
    let emptied = resize(Some(0)).await.expect("emptied").into_inner();
    assert_eq!(emptied.warm_target, 0);
    assert!(server.stop().await);
}

#[tokio::test(flavor = "multi_thread")]
async fn negative_offsets_are_refused() {
    let server = TestServer::start("", &[]).await;
    let name = format!("{}/execs/x", server.workspace().await);
    let offsets = Some(pb::StreamOffsets {
        stdout_bytes: -1,
        stderr_bytes: i64::MIN,
    });
    let expected = ["offsets.stdout_bytes", "offsets.stderr_bytes"];
    let fields = |status: Status| -> Vec<String> {
        let found = violations(&status).into_iter();
        found.map(|(field, _)| field).collect()
    };
    let attach = pb::AttachExecRequest {
        name: name.clone(),
        offsets,
        ..pb::AttachExecRequest::default()
    };
    let refused = server.client.execs().attach_exec(attach).await;
    assert_eq!(fields(refused.expect_err("negative")), expected);
    let poll = pb::PollExecRequest {
        name: name.clone(),
        offsets,
        ..pb::PollExecRequest::default()
    };
    let refused = server.client.execs().poll_exec(poll).await;
    assert_eq!(fields(refused.expect_err("negative")), expected);
    let write = pb::WriteStdinRequest {
        name,
        offset: Some(-1),
        ..pb::WriteStdinRequest::default()
    };
    let refused = server.client.execs().write_stdin(write).await;
    assert_eq!(fields(refused.expect_err("negative")), ["offset"]);
    assert!(server.stop().await);
}
