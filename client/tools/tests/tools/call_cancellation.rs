//! Calls of tools that are given up: nothing of them runs on, at whatever moment that comes.

use serde_json::{Value, json};
use skilld_tools::host_tools::HostTools;
use skilld_tools::state::SessionState;
use skilld_tools::{CancelOutcome, Family, Session, ToolOptions, Toolset};

use crate::conversation::tool_call;
use skilld_testing::skills::Kit;
use skilld_testing::{DEADLINE, Fake, STARTS};

/// Tools that start something, and a call of each that does not end.
fn calls() -> Vec<(Family, &'static str, Value)> {
    let script = "scripts/run.sh";
    vec![
        (
            Family::Trpc,
            "skill_run",
            json!({"skill": "demo", "command": "forever"}),
        ),
        (
            Family::Trpc,
            "skill_exec",
            json!({"skill": "demo", "command": "hold"}),
        ),
        (
            Family::Trpc,
            "workspace_exec",
            json!({"command": "forever"}),
        ),
        (
            Family::Sherma,
            "run_skill_script",
            json!({"skill_id": "demo", "script_path": script, "argv": ["forever"]}),
        ),
        (
            Family::AgentZero,
            "skills_tool",
            json!({"method": "execute_script", "skill_name": "demo", "script_path": script, "argv": ["forever"]}),
        ),
    ]
}

async fn toolset(fake: &Fake, family: Family) -> Toolset {
    fake.state.lock().kits = vec![Kit::new("demo", "1.0.0").file("scripts/run.sh", "sleep 9")];
    let options = ToolOptions {
        family,
        additions: true,
        ..ToolOptions::default()
    };
    let client = fake.client().await;
    Toolset::new(client, options, HostTools::new()).expect("options that fit")
}

fn session() -> Session {
    Session {
        app: "app".into(),
        session: "1".into(),
        ..Session::default()
    }
}

/// Gives a call up as soon as the daemon was asked to start something.
async fn give_up(fake: &Fake, tools: &Toolset, name: &str, arguments: Value) -> CancelOutcome {
    let call = tool_call("", name, arguments);
    let given_up = fake.calls.wait_for(STARTS, 1);
    let (session, state) = (session(), SessionState::new());
    let calling = tools.call_cancellable(&session, &state, call, given_up);
    let ended = tokio::time::timeout(DEADLINE, calling).await;
    ended.expect("is given up")
}

/// Polls a session for as long as a call can wait, and gives the call up when `given_up` resolves.
async fn give_up_poll(
    tools: &Toolset,
    state: &SessionState,
    id: &Value,
    given_up: impl Future<Output = ()>,
) -> CancelOutcome {
    let arguments = json!({"session_id": id, "yield_ms": 60_000});
    let poll = tool_call("", "skill_poll_session", arguments);
    let session = session();
    let polling = tools.call_cancellable(&session, state, poll, given_up);
    let ended = tokio::time::timeout(DEADLINE, polling).await;
    ended.expect("is given up")
}

/// Gives up a call of each tool that starts something, with a daemon that is `ready` for it.
async fn all_is_ended(ready: impl Fn(&Fake)) {
    for (family, name, arguments) in calls() {
        let fake = Fake::start();
        ready(&fake);
        let tools = toolset(&fake, family).await;
        let ended = give_up(&fake, &tools, name, arguments).await;
        assert!(
            matches!(ended, CancelOutcome::Cancelled(Ok(()))),
            "{name}: {ended:?}"
        );
        let execs: Vec<_> = fake.state.lock().execs.values().cloned().collect();
        assert_eq!(execs.len(), 1, "{name}");
        let exec = execs.first().expect("one");
        assert!(*exec.killed.borrow(), "{name} runs on");
    }
}

#[tokio::test]
async fn a_command_that_starts_during_cancellation_is_killed() {
    all_is_ended(|fake| fake.calls.hold_until(STARTS, "KillExec")).await;
}

#[tokio::test]
async fn a_command_that_runs_at_cancellation_is_killed() {
    all_is_ended(|_| {}).await;
}

#[tokio::test]
async fn a_look_at_a_command_is_given_up_at_once_and_ends_nothing() {
    let fake = Fake::start();
    let tools = toolset(&fake, Family::Trpc).await;
    let (session, mut state) = (session(), SessionState::new());
    let arguments = json!({"skill": "demo", "command": "hold", "yield_ms": 1});
    let start = tool_call("", "skill_exec", arguments);
    let started = tools.call(&session, &state, start).await.expect("starts");
    state.apply(&started.delta);
    let id = started.result["session_id"].clone();
    assert!(id.is_string(), "{}", started.result);
    // The daemon never answers: a call that waits for its answer never ends.
    fake.calls.take();
    fake.calls.hold("PollExec");
    let asked = fake.calls.wait_for("PollExec", 1);
    let during = give_up_poll(&tools, &state, &id, asked).await;
    let before = give_up_poll(&tools, &state, &id, std::future::ready(())).await;
    for ended in [during, before] {
        assert!(
            matches!(ended, CancelOutcome::Cancelled(Ok(()))),
            "{ended:?}"
        );
    }
    let execs: Vec<_> = fake.state.lock().execs.values().cloned().collect();
    assert_eq!(execs.len(), 1);
    assert!(!*execs[0].killed.borrow(), "it goes on");
}

#[tokio::test]
async fn a_call_that_ends_before_it_is_given_up_has_its_answer() {
    let fake = Fake::start();
    let tools = toolset(&fake, Family::AgentZero).await;
    let ended = give_up(&fake, &tools, "skills_tool", json!({"method": "list"})).await;
    let CancelOutcome::Finished(Ok(answer)) = ended else {
        panic!("{ended:?}");
    };
    assert!(answer.result["text"].is_string());
    assert_eq!(fake.calls.count("KillExec"), 0);
}
