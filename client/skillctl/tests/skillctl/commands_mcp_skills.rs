//! Skills over `skillctl mcp`: long lists, and texts that refer to their skill's folder.

use serde_json::json;
use skilld_testing::skills::Kit;

use crate::commands_mcp::{Client, names, options};
use crate::commands_tool::fake;

#[tokio::test]
async fn thousands_of_skills_are_listed_by_page_and_found_by_query() {
    let fake = fake();
    let kits = (0..2000).map(|number| Kit::new(&format!("skill-{number:04}"), "1.0.0"));
    fake.state.lock().kits = kits.collect();
    let mut client = Client::start(&fake, &[]).await;
    let listed = client.call("skill_list", json!({"details": true})).await;
    let text = listed["content"][0]["text"].as_str().expect("text");
    assert!(text.len() <= 16 * 1024, "{} bytes", text.len());
    let page = &listed["structuredContent"];
    assert_eq!(page["total"], 2000);
    let (shown, next) = (page["skills"].as_array(), page["next_offset"].as_u64());
    assert_eq!(shown.map(|shown| shown.len() as u64), next);
    let found = client
        .call("skill_list", json!({"query": "skill-1234"}))
        .await;
    assert_eq!(found["structuredContent"]["result"], json!(["skill-1234"]));
}

#[tokio::test]
async fn placeholders_in_a_skills_text_are_paths_of_the_workspace() {
    let fake = fake();
    let kit = Kit::new("notes", "1.0.0")
        .file("SKILL.md", "run {baseDir}/x.sh\n")
        .file("assets/p.png", b"\x89PNG\r\n\x1a\n\0\0".to_vec());
    fake.state.lock().kits = vec![kit];
    let mut client = Client::start(&fake, &[]).await;
    let resource = json!({"uri": "skill://notes/SKILL.md"});
    let read = client
        .request("resources/read", resource)
        .await
        .expect("a file");
    let resolved = "run /workspace/skills/notes/x.sh\n";
    assert_eq!(read["contents"][0]["text"], resolved);
    client.call("skill_load", json!({"skill": "notes"})).await;
    let file = json!({"file_name": "${CLAUDE_SKILL_DIR}/SKILL.md"});
    let read = client.call("read_file", file).await;
    assert_eq!(read["structuredContent"]["content"], resolved);
    // A file that is no text is returned as what it is, by such a path too.
    let image = json!({"file_name": "{baseDir}/assets/p.png"});
    let image = client.call("read_file", image).await;
    assert_eq!(image["content"][1]["mimeType"], "image/png", "{image}");
}

#[tokio::test]
async fn a_user_only_skill_is_no_resource() {
    let fake = fake();
    for kit in &mut fake.state.lock().kits {
        kit.skill.disable_model_invocation = kit.skill.name == "skills/beta";
    }
    let mut client = Client::start(&fake, &[]).await;
    let first = client
        .request("resources/list", json!({}))
        .await
        .expect("a page")
        .to_string();
    assert!(first.contains("skill://alpha/") && !first.contains("skill://beta/"));
    for uri in ["skill://beta/SKILL.md", "skill://beta@1.0.0/SKILL.md"] {
        let read = client.request("resources/read", json!({"uri": uri})).await;
        let error = read.expect_err(uri);
        assert_eq!(error["code"], -32002, "{error}");
    }
    let unknown = json!({"uri": "skill://bet/SKILL.md"});
    let error = client
        .request("resources/read", unknown)
        .await
        .expect_err("unknown")
        .to_string();
    assert!(!error.contains("beta"), "{error}");
}

#[tokio::test]
async fn a_skill_that_vanishes_hides_no_other_among_the_resources() {
    let fake = fake();
    // The fake lists this name and finds no skill by it, as if the skill went away in between.
    let gone = Kit::new("gone@1.0.0", "1.0.0");
    fake.state.lock().kits.insert(0, gone);
    let mut client = Client::start(&fake, &[]).await;
    let listed = client
        .request("resources/list", json!({}))
        .await
        .expect("a page")
        .to_string();
    assert!(listed.contains("skill://alpha/"), "{listed}");
    assert!(!listed.contains("skill://gone"), "{listed}");
}

#[tokio::test]
async fn the_profile_workspace_offers_files_of_the_workspace() {
    let fake = fake();
    options(&fake, &json!({"profile": "workspace"}));
    let mut client = Client::start(&fake, &["--options", "o.json"]).await;
    let tools = client.tools().await;
    let names = names(&tools);
    assert!(names.contains(&"workspace_exec") && names.contains(&"workspace_write_file"));
    assert!(!names.contains(&"skill_run"), "{names:?}");
    client.call("skill_load", json!({"skill": "alpha"})).await;
    client
        .call("workspace_exec", json!({"command": "hello"}))
        .await;
    let staged = fake.staged_skills();
    assert_eq!(staged[0].skills, ["skills/alpha"]);
    assert!(staged[0].writable);
}
