//! Paths of a skill's files in the families that name the skill beside the path, and placeholders in what they read.

use serde_json::json;
use skilld_testing::Fake;
use skilld_testing::skills::Kit;
use skilld_tools::{Family, ToolOptions};

use crate::conversation::Conversation;

const PATHS: [&str; 8] = [
    "references/a.md",
    "${CLAUDE_SKILL_DIR}/references/a.md",
    "{baseDir}/references/a.md",
    "skills/notes/references/a.md",
    "/workspace/skills/notes/references/a.md",
    "/mnt/skills/notes/references/a.md",
    "${CLAUDE_PLUGIN_ROOT}/references/a.md",
    "/workspace/skills/.plugins/notes/references/a.md",
];

async fn conversation(family: Family) -> (Fake, Conversation) {
    let fake = Fake::start();
    let kit = Kit::new("notes", "1.0.0")
        .file("references/a.md", "run {baseDir}/x.sh\n")
        // A skill may have such a path of its own.
        .file("skills/notes/own.md", "own\n")
        .file("own.md", "other\n");
    fake.state.lock().kits = vec![kit];
    let options = ToolOptions {
        family,
        ..ToolOptions::default()
    };
    let conversation = Conversation::new(&fake, options).await;
    (fake, conversation)
}

#[tokio::test]
async fn shermas_tools_read_a_file_by_every_path_of_the_skills_folder() {
    let (fake, mut talk) = conversation(Family::Sherma).await;
    let read = |path: &str| json!({"skill_id": "notes", "resource_path": path});
    for path in PATHS {
        let file = talk.ok("load_skill_resource", read(path)).await;
        assert_eq!(
            file["content"], "run /workspace/skills/notes/x.sh\n",
            "{path}"
        );
        assert_eq!(file["path"], "references/a.md", "{path}");
    }
    let own = talk
        .ok("load_skill_resource", read("skills/notes/own.md"))
        .await;
    assert_eq!(own["content"], "own\n");
    let other = read("skills/other/references/a.md");
    talk.check_refused("load_skill_resource", other, "FILE_NOT_FOUND")
        .await;
    assert!(fake.state.lock().workspaces.is_empty());
}

#[tokio::test]
async fn agent_zeros_tool_reads_a_file_by_every_skill_path() {
    let (fake, mut talk) = conversation(Family::AgentZero).await;
    for path in PATHS {
        let read = json!({"method": "read_file", "skill_name": "notes", "file_path": path});
        let file = talk.ok("skills_tool", read).await;
        let text = file["text"].as_str().expect("text");
        assert!(
            text.contains("run /workspace/skills/notes/x.sh\n"),
            "{text}"
        );
        assert_eq!(file["path"], "references/a.md", "{path}");
    }
    assert!(fake.state.lock().workspaces.is_empty());
}
