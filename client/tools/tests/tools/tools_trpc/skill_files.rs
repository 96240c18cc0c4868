//! Files of skills before and after they are staged: by the paths that skills, prompts and models write.

use serde_json::json;
use skilld_client::v1;
use skilld_tools::ToolOptions;

use super::{Talk, skill};
use skilld_testing::skills::Kit;

const TEXT: &str = "run {baseDir}/scripts/run.sh\n";
const RESOLVED: &str = "run /workspace/skills/demo/scripts/run.sh\n";

/// A conversation with two documents that refer to their skill's folder, and nothing in a workspace.
async fn with_documents() -> Talk {
    let talk = Talk::new(ToolOptions::default()).await;
    {
        let mut state = talk.fake.state.lock();
        for path in ["REFERENCE.md", "docs/Usage.md"] {
            state.kits[0].files.insert(path.to_owned(), TEXT.into());
        }
        let document = "docs/b.md".to_owned();
        state.kits[1].files.insert(document, "b\n".into());
    }
    talk
}

#[tokio::test]
async fn a_skill_file_is_read_by_every_path_before_any_staging() {
    let mut talk = with_documents().await;
    talk.call("skill_load", json!({"skill": "demo"})).await;
    talk.calls();
    for path in [
        "skill://demo/REFERENCE.md",
        "skills/demo/REFERENCE.md",
        "workspace://skills/demo/REFERENCE.md",
        "/workspace/skills/demo/REFERENCE.md",
        "/mnt/skills/demo/reference.md",
        "$SKILLS_DIR/demo/Reference.md",
        "${CLAUDE_SKILL_DIR}/REFERENCE.md",
        "$CLAUDE_SKILL_DIR/REFERENCE.md",
        "${CLAUDE_PLUGIN_ROOT}/skills/demo/REFERENCE.md",
        "{baseDir}/reference.md",
        "REFERENCE.md",
        " reference.md ",
    ] {
        let read = talk.call("read_file", json!({"file_name": path})).await;
        assert_eq!(read["content"], RESOLVED, "{path}");
        assert_eq!(read["file_name"], "skill://demo/REFERENCE.md", "{path}");
    }
    let calls = talk.calls();
    assert!(
        calls
            .iter()
            .all(|call| call.contains("/Read") || call.contains("/Get")),
        "nothing is made or staged: {calls:?}"
    );
    assert!(talk.fake.state.lock().workspaces.is_empty());
}

#[tokio::test]
async fn an_ambiguous_path_lists_the_files_that_it_may_mean() {
    let mut talk = with_documents().await;
    let of_loaded = json!({"file_name": "${CLAUDE_SKILL_DIR}/REFERENCE.md"});
    let (code, message) = talk.refused("read_file", of_loaded.clone()).await;
    assert_eq!(code, "INVALID_ARGUMENTS");
    assert!(message.contains("none is loaded"), "{message}");
    let relative = json!({"file_name": "REFERENCE.md"});
    let unloaded = talk.refused("read_file", relative.clone()).await;
    assert_eq!(unloaded.0, "FILE_NOT_FOUND");
    talk.call("skill_load", json!({"skill": "demo"})).await;
    talk.call("skill_load", json!({"skill": "other"})).await;
    let read = talk.call("read_file", relative.clone()).await;
    assert_eq!(read["file_name"], "skill://demo/REFERENCE.md");
    {
        let mut state = talk.fake.state.lock();
        for (kit, path) in [(1, "REFERENCE.md"), (0, "docs/USAGE.md")] {
            state.kits[kit].files.insert(path.to_owned(), "x".into());
        }
    }
    for arguments in [relative, of_loaded] {
        let (code, message) = talk.refused("read_file", arguments).await;
        assert_eq!(code, "INVALID_ARGUMENTS");
        let both = "use one of skill://other/REFERENCE.md, skill://demo/REFERENCE.md";
        assert!(message.contains(both), "{message}");
    }
    // Two that differ in case only.
    let unclear = json!({"file_name": "skills/demo/docs/usage.md"});
    let (code, message) = talk.refused("read_file", unclear).await;
    assert_eq!(code, "FILE_NOT_FOUND");
    assert!(
        message.contains("docs/USAGE.md or docs/Usage.md"),
        "{message}"
    );
    let hidden = json!({"file_name": "skills/ghost/a.md"});
    assert_eq!(talk.refused("read_file", hidden).await.0, "UNKNOWN_SKILL");
}

#[tokio::test]
async fn a_staged_skill_is_read_in_its_version_and_through_its_links() {
    let mut talk = with_documents().await;
    let old = v1::Skill {
        version: "0.9.0".into(),
        digest: format!("sha256:{}", "09".repeat(32)),
        ..skill("demo", &[])
    };
    {
        let mut state = talk.fake.state.lock();
        let files = state.kits[0].files.clone();
        let skill = old.clone();
        state.kits.push(Kit {
            skill,
            files,
            ..Kit::default()
        });
    }
    talk.call("skill_run", super::run("hello")).await;
    {
        let mut state = talk.fake.state.lock();
        let workspace = state.workspaces.values_mut().next().expect("one");
        workspace.skills = vec![v1::WorkspaceSkill {
            name: "skills/demo".into(),
            digest: old.digest.clone(),
            ..v1::WorkspaceSkill::default()
        }];
        let made = "skills/demo/out/a.txt".to_owned();
        state.staged.insert(made, b"made\n".to_vec());
    }
    talk.calls();
    let staged = json!({"file_name": "/workspace/skills/demo/REFERENCE.md"});
    let read = talk.call("read_file", staged).await;
    assert_eq!(read["content"], RESOLVED);
    let requests = talk
        .fake
        .calls
        .requests::<v1::ReadSkillFileRequest>("ReadSkillFile");
    let asked: Vec<String> = requests.into_iter().map(|request| request.name).collect();
    assert_eq!(asked, [format!("skills/demo@{}", old.digest)]);
    // The fake finds the skill by it, as the daemon does by the name that the skill's author wrote.
    for kit in &mut talk.fake.state.lock().kits {
        kit.skill.aliases = vec!["démo".into()];
    }
    for made in ["skills/demo/out/a.txt", "skills/démo/out/a.txt"] {
        let read = talk.call("read_file", json!({"file_name": made})).await;
        assert_eq!(read["content"], "made\n", "{made}");
    }
}

#[tokio::test]
async fn shared_plugin_files_are_read_by_every_path_before_staging() {
    let mut talk = with_documents().await;
    let shared = "shared/tags.md".to_owned();
    talk.fake.state.lock().kits[0]
        .plugin
        .insert(shared, TEXT.into());
    talk.call("skill_load", json!({"skill": "other"})).await;
    talk.call("skill_load", json!({"skill": "demo"})).await;
    for path in [
        "/workspace/skills/.plugins/demo/shared/tags.md",
        "workspace://skills/.plugins/demo/shared/tags.md",
        "$SKILLS_DIR/.plugins/demo/shared/Tags.md",
        "${CLAUDE_PLUGIN_ROOT}/shared/tags.md",
        "$CLAUDE_PLUGIN_ROOT/shared/tags.md",
        "../../shared/tags.md",
        "skill://demo/../../shared/tags.md",
    ] {
        let read = talk.call("read_file", json!({"file_name": path})).await;
        assert_eq!(read["content"], RESOLVED, "{path}");
        assert_eq!(
            read["file_name"], "skills/.plugins/demo/shared/tags.md",
            "{path}"
        );
    }
    for absent in [
        "${CLAUDE_PLUGIN_ROOT}/shared/none.md",
        "../../none.md",
        "../../../a",
    ] {
        let absent = json!({"file_name": absent});
        assert_eq!(talk.refused("read_file", absent).await.0, "FILE_NOT_FOUND");
    }
    assert!(talk.fake.state.lock().workspaces.is_empty());
}

#[tokio::test]
async fn a_document_that_a_plugin_shares_is_loaded_by_every_path() {
    let mut talk = Talk::with_options(|options| options.inline_skills = true).await;
    {
        let mut state = talk.fake.state.lock();
        for (path, text) in [("tags.md", TEXT), ("logo.png", "\0"), ("b.md", "b\n")] {
            let path = format!("shared/{path}");
            state.kits[0].plugin.insert(path, text.into());
        }
    }
    let docs = json!([
        "../../shared/tags.md",
        "${CLAUDE_PLUGIN_ROOT}/shared/b.md",
        "../../shared/logo.png",
        "../../../etc/passwd",
    ]);
    for tool in ["skill_load", "skill_select_docs"] {
        let loaded = talk
            .call(tool, json!({"skill": "demo", "docs": docs}))
            .await;
        let chosen = json!(["../../shared/tags.md", "../../shared/b.md"]);
        assert_eq!(loaded["selected_docs"], chosen, "{tool}");
        let unknown = json!(["../../shared/logo.png", "../../../etc/passwd"]);
        assert_eq!(loaded["unknown_docs"], unknown, "{tool}");
        let content = loaded["content"].as_str().expect("text");
        assert!(content.contains(RESOLVED), "{tool}: {content}");
    }
    let material = talk
        .tools
        .material(&talk.session, &talk.state)
        .await
        .expect("material");
    let docs: Vec<(&str, &str)> = material.loaded[0]
        .docs
        .iter()
        .map(|doc| (doc.path.as_str(), doc.content.as_str()))
        .collect();
    let wanted = [
        ("../../shared/tags.md", RESOLVED),
        ("../../shared/b.md", "b\n"),
    ];
    assert_eq!(docs, wanted);
}

#[tokio::test]
async fn a_writable_skill_is_read_with_the_changes_of_its_commands() {
    let mut talk = with_documents().await;
    talk.call("skill_load", json!({"skill": "demo"})).await;
    talk.call("skill_run", super::run("hello")).await;
    {
        let mut state = talk.fake.state.lock();
        let shared = "shared/tags.md".to_owned();
        state.kits[0].plugin.insert(shared, TEXT.into());
        let digest = state.kits[0].skill.digest.clone();
        let workspace = state.workspaces.values_mut().next().expect("one");
        workspace.skills = vec![v1::WorkspaceSkill {
            name: "skills/demo".into(),
            digest,
            writable: true,
        }];
        for path in ["demo/REFERENCE.md", ".plugins/demo/shared/tags.md"] {
            let changed = format!("skills/{path}");
            state.staged.insert(changed, b"changed\n".to_vec());
        }
    }
    for path in [
        "skills/demo/REFERENCE.md",
        "/workspace/skills/demo/reference.md",
        "${CLAUDE_SKILL_DIR}/REFERENCE.md",
        "REFERENCE.md",
        "/workspace/skills/.plugins/demo/shared/tags.md",
        "${CLAUDE_PLUGIN_ROOT}/shared/tags.md",
    ] {
        let read = talk.call("read_file", json!({"file_name": path})).await;
        assert_eq!(read["content"], "changed\n", "{path}");
    }
    // The store has what was published, and a file that a command removed is gone.
    let published = json!({"file_name": "skill://demo/REFERENCE.md"});
    let read = talk.call("read_file", published).await;
    assert_eq!(read["content"], RESOLVED);
    let removed = json!({"file_name": "skills/demo/docs/Usage.md"});
    assert_eq!(talk.refused("read_file", removed).await.0, "FILE_NOT_FOUND");
}

#[tokio::test]
async fn a_document_is_chosen_by_every_path_in_unambiguous_case() {
    let mut talk = with_documents().await;
    talk.fake.state.lock().kits[0]
        .files
        .insert("docs/USAGE.md".to_owned(), "x".into());
    let docs = json!([
        "reference.md",
        "${CLAUDE_SKILL_DIR}/references/A.md",
        "/mnt/skills/demo/usage.md",
        "docs/usage.md",
        "a.MD",
        "nope.md",
    ]);
    for tool in ["skill_load", "skill_select_docs"] {
        let chosen = talk
            .call(tool, json!({"skill": "demo", "docs": docs}))
            .await;
        let wanted = json!(["REFERENCE.md", "references/a.md", "USAGE.md"]);
        assert_eq!(chosen["selected_docs"], wanted, "{tool}");
        assert_eq!(
            chosen["unknown_docs"],
            json!(["docs/usage.md", "a.MD", "nope.md"])
        );
        let similar = json!({
            "docs/usage.md": ["docs/USAGE.md", "docs/Usage.md"],
            "a.MD": ["references/a.md"],
        });
        assert_eq!(chosen["similar_docs"], similar, "{tool}");
    }
}
