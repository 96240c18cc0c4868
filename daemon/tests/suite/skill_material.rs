//! GetSkillMaterial: a skill with its body and documents in one answer, all of one digest. No Docker.

use std::fs;

use skilld_proto::v1 as pb;
use tonic::{Code, Status};

use crate::server::{TestServer, violated_fields};

const FRONT: &str = "name: docs\ndescription: Reads forms.";

async fn docs() -> TestServer {
    let server = TestServer::start("", &[("docs", FRONT)]).await;
    let dir = server
        .state_dir()
        .parent()
        .expect("a parent")
        .join("skills/docs");
    for (path, bytes) in [
        ("guide.md", b"In {baseDir}.\n".as_slice()),
        ("references/api.md", "# ÄPI\n".as_bytes()),
        ("scripts/fill.py", b"import json\n"),
        (".hidden.md", b"no"),
        ("logo.png", b"\x89PNG\r\n\x1a\n\0\xff\xfe"),
    ] {
        let path = dir.join(path);
        fs::create_dir_all(path.parent().expect("parent")).expect("mkdir");
        fs::write(path, bytes).expect("write");
    }
    server.client.refresh_skills().await.expect("refreshed");
    server
}

async fn material(
    server: &TestServer,
    request: pb::GetSkillMaterialRequest,
) -> Result<pb::SkillMaterial, Status> {
    let answer = server.client.skills().get_skill_material(request).await;
    answer.map(tonic::Response::into_inner)
}

fn request(name: &str, documents: &[&str]) -> pb::GetSkillMaterialRequest {
    pb::GetSkillMaterialRequest {
        name: name.to_owned(),
        documents: documents.iter().map(|&path| path.to_owned()).collect(),
        ..pb::GetSkillMaterialRequest::default()
    }
}

fn texts(material: &pb::SkillMaterial) -> Vec<(&str, &str)> {
    let documents = material.documents.iter();
    documents
        .map(|document| (document.path.as_str(), document.text.as_str()))
        .collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn one_answer_has_the_body_and_all_documents() {
    let server = docs().await;
    let all = pb::GetSkillMaterialRequest {
        all_documents: true,
        ..request("skills/docs", &[])
    };
    let found = material(&server, all).await.expect("found");
    let expected = [
        ("guide.md", "In /workspace/skills/docs.\n"),
        ("references/api.md", "# ÄPI\n"),
    ];
    assert_eq!(texts(&found), expected);
    let skill = found.skill.expect("a skill");
    let read = server.client.get_skill("docs").await.expect("read");
    assert_eq!(skill, read, "as GetSkill has it");
    // By its digest it is the same.
    let pinned = request(&format!("skills/docs@{}", skill.digest), &["guide.md"]);
    let found = material(&server, pinned).await.expect("found");
    assert_eq!(texts(&found), expected[..1]);
    assert!(server.stop().await);
}

#[tokio::test(flavor = "multi_thread")]
async fn chosen_documents_come_in_order_and_missing_ones_are_named() {
    let server = docs().await;
    let asked = [
        "scripts/fill.py",
        "none.md",
        "logo.png",
        "references",
        "./guide.md",
        "guide.md",
    ];
    let found = material(&server, request("skills/docs", &asked)).await;
    let found = found.expect("found");
    let expected = [
        ("scripts/fill.py", "import json\n"),
        ("guide.md", "In /workspace/skills/docs.\n"),
    ];
    assert_eq!(texts(&found), expected);
    assert_eq!(
        found.missing_documents,
        ["none.md", "logo.png", "references"]
    );
    assert!(server.stop().await);
}

#[tokio::test(flavor = "multi_thread")]
async fn documents_beyond_the_limit_are_cut_at_a_character() {
    let server = docs().await;
    let cut = pb::GetSkillMaterialRequest {
        // The path has 17 bytes; the second character two, of which one would fit.
        max_document_bytes: 17 + 3,
        ..request("skills/docs", &["references/api.md", "guide.md"])
    };
    let found = material(&server, cut).await.expect("found");
    assert_eq!(
        texts(&found),
        [("references/api.md", "# "), ("guide.md", "")]
    );
    let sizes = found.documents.iter().map(|document| document.size_bytes);
    assert_eq!(sizes.collect::<Vec<_>>(), [7, 14]);
    assert!(server.stop().await);
}

#[tokio::test(flavor = "multi_thread")]
async fn faults_of_a_request_for_material_are_named() {
    let server = docs().await;
    let changed = |change: fn(&mut pb::GetSkillMaterialRequest)| {
        let mut asked = request("skills/docs", &["guide.md"]);
        change(&mut asked);
        asked
    };
    for (asked, field) in [
        (changed(|asked| asked.name = "docs".to_owned()), "name"),
        (changed(|asked| asked.all_documents = true), "documents"),
        (
            changed(|asked| asked.documents = vec!["a".to_owned(); 1001]),
            "documents",
        ),
        (changed(|asked| asked.documents[0].clear()), "documents[0]"),
        (
            changed(|asked| asked.max_document_bytes = -1),
            "max_document_bytes",
        ),
        (
            changed(|asked| asked.max_document_bytes = (1 << 20) + 1),
            "max_document_bytes",
        ),
    ] {
        let refused = material(&server, asked).await.expect_err(field);
        let fields = violated_fields(&refused);
        assert_eq!(fields.first().map(String::as_str), Some(field));
    }
    let escaping = material(&server, request("skills/docs", &["../../x"])).await;
    assert_eq!(escaping.expect_err("refused").code(), Code::InvalidArgument);
    let unknown = material(&server, request("skills/none", &[])).await;
    assert_eq!(unknown.expect_err("unknown").code(), Code::NotFound);
    assert!(server.stop().await);
}
