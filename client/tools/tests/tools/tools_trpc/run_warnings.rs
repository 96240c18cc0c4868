//! Warnings about runs: kills for memory that an exit code hides, and writes into a skill's folder.

use serde_json::{Value, json};
use skilld_tools::ToolOptions;

use super::{Talk, run};
use crate::conversation::check_warning;

const OOM: &str = "killed for memory in the workspace while this ran, whatever the exit code says";
const READ_ONLY: &str = "skills are read-only: write to out/ or work/";

#[tokio::test]
async fn every_tool_warns_of_oom_kills_in_a_chain_that_exits_with_0() {
    let mut talk = Talk::new(ToolOptions::default()).await;
    let result = talk.call("skill_run", run("oom 2 && echo done")).await;
    assert_eq!(
        (&result["exit_code"], &result["reason"]),
        (&json!(0), &json!("exited"))
    );
    check_warning(&result, &format!("2 processes were {OOM}"));
    let one = format!("1 process was {OOM}");
    let shell = json!({"command": "oom 1"});
    let result = talk.call("workspace_exec", shell.clone()).await;
    assert_eq!(result["exit_code"], 0);
    check_warning(&result, &one);
    // Sessions report it once: with the result that a skill's command has, else beside the exit code.
    let ended = talk.call("skill_exec", run("oom 1")).await;
    assert_eq!(ended["status"], "exited");
    check_warning(&ended["result"], &one);
    assert_eq!(ended.get("warnings"), None);
    let mut session = shell;
    session["background"] = true.into();
    let ended = talk.call("workspace_exec", session).await;
    assert_eq!(ended["status"], "exited");
    check_warning(&ended, &one);
}

#[tokio::test]
async fn a_failed_write_into_a_skills_folder_says_where_to_write() {
    let mut talk = Talk::new(ToolOptions::default()).await;
    let result = talk.call("skill_run", run("readonly")).await;
    assert_eq!(result["exit_code"], 1);
    check_warning(&result, READ_ONLY);
    // In the workspace's own folders, and where no skill is, this message means something else.
    let mut elsewhere = run("readonly");
    elsewhere["cwd"] = "$WORK_DIR".into();
    for (tool, arguments) in [
        ("skill_run", elsewhere),
        ("workspace_exec", json!({"command": "readonly"})),
    ] {
        let result = talk.call(tool, arguments).await;
        assert_eq!(result["exit_code"], 1, "{tool}");
        assert_eq!(result["warnings"], Value::Null, "{tool}");
    }
    let inside = json!({"command": "readonly", "cwd": "/skills/demo"});
    check_warning(&talk.call("workspace_exec", inside).await, READ_ONLY);
}
