//! Skills of two tenants: roots that only one was granted, and publications that only their tenant sees.

use skilld_client::{Client, ConnectOptions, Error, PackLimits, SkillArchive, TransferProgress};
use skilld_proto::v1 as pb;
use skilld_tests::authority::install;
use tonic::Code;

use super::harness::{AccessServer, connect, tenants_text, token};
use crate::server::wait_until;

/// Publishes a skill from a folder with this SKILL.md body, which must succeed.
pub(super) async fn publish(client: &Client, name: &str, version: &str, body: &str) -> pb::Skill {
    let published = try_publish(client, name, version, body).await;
    published.expect("published")
}

/// Publishes a skill from a folder with this SKILL.md body.
pub(super) async fn try_publish(
    client: &Client,
    name: &str,
    version: &str,
    body: &str,
) -> Result<pb::Skill, Error> {
    let folder = tempfile::tempdir().expect("directory");
    let dir = folder.path().join(name);
    std::fs::create_dir(&dir).expect("mkdir");
    let text = format!("---\nname: {name}\ndescription: {body}\nversion: {version}\n---\n{body}\n");
    std::fs::write(dir.join("SKILL.md"), text).expect("write");
    let archive = SkillArchive::pack(&dir, PackLimits::default()).expect("packed");
    let progress = TransferProgress::new(|_, _| {});
    client.publish_skill(name, &archive, progress).await
}

async fn names(client: &Client) -> Vec<(String, String)> {
    let listed = client
        .skills()
        .list_skills(pb::ListSkillsRequest::default())
        .await;
    let skills = listed.expect("listed").into_inner().skills.into_iter();
    skills
        .map(|skill| (skill.name, skill.description))
        .collect()
}

async fn get(client: &Client, name: &str) -> Result<pb::Skill, tonic::Status> {
    let request = pb::GetSkillRequest {
        name: format!("skills/{name}"),
        ..pb::GetSkillRequest::default()
    };
    client
        .skills()
        .get_skill(request)
        .await
        .map(tonic::Response::into_inner)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_publication_exists_for_its_tenant_only() {
    let server = AccessServer::start().await;
    let a = server.client("a", "publisher").await;
    let b = server.client("b", "publisher").await;
    let shared = get(&b, "shared").await.expect("a skill of a root");
    // Version and name are those of the shared skill, whose place it takes for its tenant.
    let own = publish(&a, "shared", "1.0", "of a").await;
    publish(&a, "private", "1.0", "secret of a").await;
    assert_eq!(get(&a, "shared").await.expect("its own").digest, own.digest);
    assert_eq!(
        get(&b, "shared").await.expect("the root's").digest,
        shared.digest
    );
    let listed = names(&b).await;
    assert!(
        listed
            .iter()
            .all(|(_, description)| !description.contains("of a")),
        "{listed:?}"
    );
    assert_eq!(
        names(&a).await.len(),
        4,
        "two own ones, and two of the roots"
    );

    let private = get(&a, "private").await.expect("its own");
    for name in [
        "private".to_owned(),
        "private@1.0".to_owned(),
        format!("private@{}", private.digest),
    ] {
        let refused = get(&b, &name).await.expect_err("another tenant's");
        assert_eq!(refused.code(), Code::NotFound, "{name}: {refused}");
        let unknown = get(&b, &name.replace("private", "unknown"))
            .await
            .expect_err("unknown");
        let (refused, unknown) = (
            refused.message().replace("private", "unknown"),
            unknown.message(),
        );
        assert_eq!(refused, unknown, "{name}");
    }
    let search = pb::SearchSkillsRequest {
        query: "secret".to_owned(),
        ..Default::default()
    };
    let found = b
        .skills()
        .search_skills(search.clone())
        .await
        .expect("searched")
        .into_inner();
    assert!(found.matches.is_empty(), "{found:?}");
    let found = a
        .skills()
        .search_skills(search)
        .await
        .expect("searched")
        .into_inner();
    assert_eq!(found.matches.len(), 1);
    for (client, code) in [(&b, Some(Code::NotFound)), (&a, None)] {
        let delete = pb::DeleteSkillRequest {
            name: "skills/private".to_owned(),
            allow_missing: false,
        };
        let deleted = client.skills().delete_skill(delete).await;
        assert_eq!(deleted.err().map(|status| status.code()), code);
    }
    // The same version with other content is no conflict between tenants.
    publish(&b, "private", "1.0", "of b").await;
    assert_eq!(names(&a).await.len(), 3);
    assert!(server.stop().await);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_tenant_sees_the_roots_that_it_was_granted() {
    let server = AccessServer::start().await;
    let (a, b) = (
        server.client("a", "user").await,
        server.client("b", "user").await,
    );
    assert_eq!((names(&a).await.len(), names(&b).await.len()), (2, 2));
    let root = server.path("root1").display().to_string();
    let granted = tenants_text("admin").replace(
        "[tenants.b]\n",
        &format!("[tenants.b]\nroots = [{root:?}]\n"),
    );
    install(&server.path("tenants.toml"), &granted, 0o644);
    wait_until("tenant b sees only the skill of its root", async || {
        (names(&b).await.len() == 1).then_some(())
    })
    .await;
    assert_eq!(
        names(&b).await,
        [("skills/shared".to_owned(), "of root1".to_owned())]
    );
    let digest = get(&a, "other").await.expect("granted").digest;
    for name in ["other".to_owned(), format!("other@{digest}")] {
        let refused = get(&b, &name).await.expect_err("not granted");
        assert_eq!(refused.code(), Code::NotFound, "{refused}");
    }
    let request = pb::CreateWorkspaceRequest {
        workspace_id: "w".to_owned(),
        ..Default::default()
    };
    b.create_workspace(request).await.expect("claimed");
    let stage = pb::StageSkillsRequest {
        workspace: "workspaces/w".to_owned(),
        skills: vec![format!("skills/other@{digest}")],
        ..Default::default()
    };
    let refused = b
        .files()
        .stage_skills(stage)
        .await
        .expect_err("not granted");
    assert_eq!(refused.code(), Code::NotFound, "{refused}");
    let options = ConnectOptions {
        tenant: Some("b".to_owned()),
        ..server.with_token(token("a", "admin"))
    };
    assert_eq!(
        names(&connect(&options).await).await.len(),
        1,
        "an admin sees what the tenant sees"
    );
    assert!(server.stop().await);
}
