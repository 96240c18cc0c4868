//! Loaded skills are in the workspace when the next command runs, whichever tool runs it.

use serde_json::{Value, json};
use skilld_client::v1::{Problem, StageSkillsRequest};
use skilld_testing::skills::{Kit, digest};
use skilld_testing::{Fake, invalid, refusal};
use skilld_tools::{Family, Profile, ToolOptions};
use tonic::Code;

use crate::conversation::{check_warning, conversation_about};
use crate::tools_trpc::{Talk, run, skill};

/// Call of a tool: its name and arguments.
type ToolRequest = (&'static str, Value);

/// Options of a host, the call that loads the skill `alpha`, its staged reference, and calls that run something.
#[rustfmt::skip]
fn profiles() -> Vec<(ToolOptions, ToolRequest, String, Vec<ToolRequest>)> {
    let options = |family, profile| ToolOptions {
        family,
        profile,
        additions: family == Family::Sherma,
        ..ToolOptions::default()
    };
    let shell = vec![
        ("workspace_exec", json!({"command": "hello"})),
        ("workspace_exec", json!({"command": "hold", "background": true})),
    ];
    let of_skill = json!({"skill": "beta", "command": "hello"});
    let commands = [("skill_run", of_skill.clone()), ("skill_exec", of_skill)];
    let all = shell.iter().cloned().chain(commands).collect();
    let script = json!({"skill_id": "beta", "method": "execute_script", "skill_name": "beta",
        "script_path": "scripts/run.sh", "argv": ["hello"]});
    let (alpha, pinned) = ("skills/alpha".to_owned(), format!("skills/alpha@{}", digest("alpha", "1.0.0")));
    let trpc = ("skill_load", json!({"skill": "alpha"}));
    let sherma = ("load_skill_md", json!({"skill_id": "alpha"}));
    let agent_zero = ("skills_tool", json!({"method": "load", "skill_name": "alpha"}));
    vec![
        (options(Family::Trpc, Profile::Full), trpc.clone(), alpha.clone(), all),
        (options(Family::Trpc, Profile::Workspace), trpc, alpha.clone(), shell),
        (options(Family::Sherma, Profile::Full), sherma, pinned, vec![("run_skill_script", script.clone())]),
        (options(Family::AgentZero, Profile::Full), agent_zero, alpha, vec![("skills_tool", script)]),
    ]
}

fn last_staging(fake: &Fake) -> StageSkillsRequest {
    let last = fake.staged_skills().pop();
    last.expect("something is staged")
}

#[tokio::test]
async fn every_tool_stages_loaded_skills_before_its_command() {
    for (options, load, reference, commands) in profiles() {
        for (tool, arguments) in commands {
            let kits = ["alpha", "beta"]
                .map(|id| Kit::new(id, "1.0.0").file("scripts/run.sh", "#!/bin/sh\n"));
            let (fake, mut talk) = conversation_about(kits.into(), options.clone()).await;
            talk.ok(load.0, load.1.clone()).await;
            assert!(fake.staged_skills().is_empty());
            let case = format!("{:?} {tool} {arguments}", options.profile);
            talk.ok(tool, arguments).await;
            let staged = last_staging(&fake);
            assert!(staged.skills.contains(&reference), "{case}: {staged:?}");
            let is_writable = options.profile == Profile::Workspace;
            assert_eq!(staged.writable, is_writable, "{case}");
            let calls = fake.calls.take();
            let position = |wanted: &[&str]| {
                calls
                    .iter()
                    .position(|call| wanted.iter().any(|end| call.ends_with(end)))
            };
            // RunExec stages before it starts.
            let started = position(&["/StartExec"]);
            let is_staged = started.is_none_or(|_| position(&["/StageSkills"]) < started);
            assert!(is_staged, "{case}: {calls:?}");
        }
    }
}

#[tokio::test]
async fn a_new_workspace_gets_the_loaded_skills_too() {
    let mut talk = Talk::new(ToolOptions::default()).await;
    talk.call("skill_load", json!({"skill": "demo"})).await;
    let command = json!({"command": "hello"});
    talk.call("workspace_exec", command.clone()).await;
    talk.fake.state.lock().workspaces.clear();
    talk.calls();
    let result = talk.call("workspace_exec", command).await;
    assert_eq!(result["output"], "hello\n");
    let staged: Vec<_> = talk.fake.runs().into_iter().map(|run| run.skills).collect();
    assert_eq!(staged, [["skills/demo"]; 2]);
    let calls = talk.calls();
    let end = ["WorkspaceService/CreateWorkspace", "ExecService/RunExec"];
    assert!(calls.ends_with(&end.map(str::to_owned)), "{calls:?}");
}

#[tokio::test]
async fn a_loaded_skill_that_is_gone_is_a_warning_of_the_command() {
    for (tool, arguments) in [
        ("workspace_exec", json!({"command": "hello"})),
        ("skill_run", json!({"skill": "third", "command": "hello"})),
    ] {
        let mut talk = Talk::new(ToolOptions::default()).await;
        talk.fake.state.lock().kits.push(skill("third", &[]).into());
        for name in ["demo", "other"] {
            talk.call("skill_load", json!({"skill": name})).await;
        }
        talk.fake.state.lock().kits.remove(0);
        let result = talk.call(tool, arguments).await;
        check_warning(
            &result,
            "the loaded skill demo is not in the workspace: unknown skill: demo",
        );
        let requests = talk.fake.staged_skills();
        let staged: Vec<String> = requests
            .iter()
            .map(|request| request.skills.join(" "))
            .collect();
        match tool {
            "skill_run" => {
                let all = "skills/third skills/demo skills/other";
                assert_eq!(staged, ["skills/demo", "skills/other", all, "skills/third"]);
            }
            _ => assert_eq!(
                staged,
                ["skills/demo", "skills/other", "skills/demo skills/other"]
            ),
        }
    }
}

#[tokio::test]
async fn a_loaded_skill_beyond_a_limit_is_a_warning_of_the_command() {
    for (tool, arguments) in [
        ("workspace_exec", json!({"command": "hello"})),
        ("skill_run", json!({"skill": "other", "command": "hello"})),
        ("skill_exec", json!({"skill": "other", "command": "hello"})),
    ] {
        let mut talk = Talk::new(ToolOptions::default()).await;
        talk.call("skill_load", json!({"skill": "demo"})).await;
        let limit = || [refusal(Code::ResourceExhausted, "LIMIT_EXCEEDED", &[])];
        match tool {
            "skill_exec" => talk.fake.calls.refuse("StageSkills", limit()),
            _ => talk.fake.calls.refuse("RunExec", limit()),
        }
        talk.fake.calls.refuse("StageSkills", limit());
        let result = talk.call(tool, arguments).await;
        check_warning(&result, "the loaded skill demo is not in the workspace: ");
    }
}

#[tokio::test]
async fn a_fault_of_the_command_stages_no_skill_alone() {
    let mut talk = Talk::new(ToolOptions::default()).await;
    talk.call("skill_load", json!({"skill": "demo"})).await;
    let fault = invalid(&[("spec.timeout", "is too long")]);
    talk.fake.calls.refuse("RunExec", [fault]);
    let arguments = json!({"skill": "other", "command": "hello"});
    let (code, _) = talk.refused("skill_run", arguments).await;
    assert_eq!(code, "INVALID_ARGUMENTS");
    assert_eq!(talk.fake.calls.count("StageSkills"), 0);
}

#[tokio::test]
async fn a_command_runs_in_the_version_of_a_loaded_skill_it_names() {
    let mut talk = Talk::new(ToolOptions::default()).await;
    for name in ["demo", "other"] {
        talk.call("skill_load", json!({"skill": name})).await;
    }
    let pinned = format!("demo@sha256:{}", "0f".repeat(32));
    let arguments = json!({"skill": pinned, "command": "hello"});
    talk.call("skill_run", arguments).await;
    assert_eq!(
        last_staging(&talk.fake).skills,
        [format!("skills/{pinned}"), "skills/other".to_owned()]
    );
}

#[tokio::test]
async fn a_loaded_skill_is_staged_once_whatever_name_the_command_uses() {
    let mut talk = Talk::new(ToolOptions::default()).await;
    talk.fake.state.lock().kits[0].skill.aliases = vec!["kit/demo".into()];
    talk.call("skill_load", json!({"skill": "kit/demo"})).await;
    let arguments = json!({"skill": "kit/demo", "command": "hello"});
    talk.call("skill_run", arguments).await;
    let pinned = format!("skills/demo@sha256:{}", "0f".repeat(32));
    assert_eq!(last_staging(&talk.fake).skills, [pinned]);
}

#[tokio::test]
async fn a_command_in_the_folder_of_a_loaded_skill_runs_in_that_skill() {
    let mut talk = Talk::new(ToolOptions::default()).await;
    // The fake finds the skill by it, as the daemon does by the name that the skill's author wrote.
    talk.fake.state.lock().kits[0].skill.aliases = vec!["démo".into()];
    talk.call("skill_load", json!({"skill": "demo"})).await;
    for (cwd, skill, resolved) in [
        ("skills/demo", "skills/demo", "/workspace/skills/demo"),
        (
            "skills/demo/scripts",
            "skills/demo",
            "/workspace/skills/demo/scripts",
        ),
        (
            "skills/démo/scripts",
            "skills/demo",
            "/workspace/skills/demo/scripts",
        ),
        ("skills/dèmo", "", "skills/dèmo"),
        ("/skills/demo", "skills/demo", "/workspace/skills/demo"),
        ("$SKILLS_DIR/demo/", "skills/demo", "$SKILLS_DIR/demo/"),
        ("skills/other", "", "skills/other"),
        ("work", "", "work"),
        ("", "", "$WORKSPACE_DIR"),
    ] {
        talk.forget();
        let arguments = json!({"command": "hello", "cwd": cwd});
        talk.call("workspace_exec", arguments).await;
        let spec = talk.spec();
        assert_eq!((spec.skill.as_str(), spec.cwd.as_str()), (skill, resolved));
    }
    talk.fake.state.lock().stage_problems = vec![Problem {
        code: "environment.not_built".into(),
        message: "not built".into(),
        ..Problem::default()
    }];
    let failing = json!({"command": "exit 3", "cwd": "skills/demo"});
    let result = talk.call("workspace_exec", failing).await;
    check_warning(&result, "packages of this skill may not be installed");
}

#[tokio::test]
async fn no_skill_is_staged_for_a_command_while_none_is_loaded() {
    let mut talk = Talk::new(ToolOptions::default()).await;
    talk.call("workspace_exec", json!({"command": "hello"}))
        .await;
    assert!(talk.fake.staged_skills().is_empty());
    talk.call("skill_run", run("hello")).await;
    assert_eq!(last_staging(&talk.fake).skills, ["skills/demo"]);
}
