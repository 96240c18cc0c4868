//! Commands beneath the host's rules: what is refused here, and what the workspace is told.

use serde_json::json;
use skilld_tools::ToolOptions;

use super::{Talk, run};

#[tokio::test]
async fn a_policy_turns_commands_into_argv_with_allowed_variables() {
    let options = ToolOptions {
        allowed_commands: vec![
            "echo".into(),
            "/workspace/skills/demo/scripts/run.sh".into(),
        ],
        allowed_env: vec!["LEVEL".into()],
        ..ToolOptions::default()
    };
    let mut talk = Talk::new(options.clone()).await;
    talk.call(
        "skill_run",
        json!({"skill": "demo", "command": "echo 'a b' c", "cwd": "x", "env": {"LEVEL": "2"}}),
    )
    .await;
    let spec = talk.spec();
    assert_eq!(spec.argv, ["echo", "a b", "c"]);
    // The daemon sets the environment of restricted commands.
    assert_eq!(
        (spec.shell.as_str(), spec.skill.as_str(), spec.cwd.as_str()),
        ("", "skills/demo", "x")
    );
    assert_eq!(spec.env.len(), 1);
    assert_eq!(spec.env["LEVEL"], "2");
    let programs = spec.programs.expect("the workspace is told");
    assert_eq!(programs.allowed, options.allowed_commands);
    talk.forget();
    talk.call("skill_run", run("scripts/run.sh x")).await;
    assert_eq!(talk.spec().argv, ["scripts/run.sh", "x"]);
    assert_eq!(talk.spec().cwd, "");
    talk.forget();
    talk.call("workspace_exec", json!({"command": "echo x"}))
        .await;
    assert!(talk.spec().programs.is_some());
    let before = talk.fake.state.lock().starts;
    for tool in ["skill_run", "skill_exec", "workspace_exec"] {
        for (key, value) in [
            ("command", json!("echo x; id")),
            ("command", json!("id")),
            ("env", json!({"PATH": "/workspace/work"})),
            ("env", json!({"LD_PRELOAD": "x"})),
            ("env", json!({"PYTHONUSERBASE": "/workspace/work"})),
            ("env", json!({"SKILL_DIR": "/workspace/work"})),
        ] {
            let mut arguments = run("echo x");
            arguments[key] = value;
            let (code, message) = talk.refused(tool, arguments).await;
            assert_eq!(code, "COMMAND_REFUSED", "{tool} {message}");
            assert!(message.starts_with(&format!("{tool}: ")), "{message}");
        }
    }
    assert_eq!(talk.fake.state.lock().starts, before, "nothing ran");
}

#[tokio::test]
async fn an_editor_beneath_a_policy_is_the_hosts_decision() {
    let mut options = ToolOptions {
        denied_commands: vec!["curl".into()],
        ..ToolOptions::default()
    };
    let edit = json!({"skill": "demo", "command": "crontab -e", "editor_text": "t"});
    let mut talk = Talk::new(options.clone()).await;
    let (code, message) = talk.refused("skill_run", edit.clone()).await;
    assert_eq!(code, "COMMAND_REFUSED");
    assert!(message.contains("env must not set EDITOR"), "{message}");
    options.allowed_env = vec!["EDITOR".into(), "VISUAL".into()];
    let mut talk = Talk::new(options).await;
    talk.call("skill_run", edit).await;
    assert!(talk.spec().env["EDITOR"].starts_with("/workspace/work/.skilld/"));
}

#[tokio::test]
async fn a_program_that_the_workspace_forbids_is_refused() {
    let mut talk =
        Talk::with_options(|options| options.allowed_commands = vec!["forbidden".into()]).await;
    for tool in ["skill_run", "skill_exec", "workspace_exec"] {
        for background in [false, true] {
            let mut arguments = run("forbidden x");
            arguments["background"] = json!(background);
            let (code, message) = talk.refused(tool, arguments).await;
            assert_eq!(code, "COMMAND_REFUSED");
            let words = format!("{tool}: command \"forbidden\" is /bin/f, which nobody permits");
            assert_eq!(message, words);
        }
    }
}
