//! Packages that a skill names and that are not installed: what a model reads when it loads the skill, and when a run
//! of it failed.

use serde_json::{Value, json};
use skilld_client::v1::{GetSkillRequest, MissingPackages, Problem};
use skilld_testing::Fake;
use skilld_testing::skills::Kit;
use skilld_tools::{Family, Profile, ToolOptions};

use crate::conversation::Conversation;

const REASON: &str = "the packages of skill demo are not built for this pool";
const WARNING: &str = "not installed here: ffmpeg, npm docx; commands that need it will fail. packages of this skill are \
                       not installed: left-pad, pandas; scripts that import them will fail. Reason: the packages of \
                       skill demo are not built for this pool. The pool office has all of it";
const STAGING_WARNING: &str = "packages of this skill may not be installed, and scripts that import them will fail: the \
                               packages of skill demo are not built for this pool";

fn problem() -> Problem {
    Problem {
        code: "environment.not_built".into(),
        message: REASON.into(),
        ..Problem::default()
    }
}

/// Starts a conversation in which the skill `demo` lacks packages and the skill `fine` lacks none.
async fn conversation(options: ToolOptions) -> (Fake, Conversation) {
    let fake = Fake::start();
    let kit = |id| Kit::new(id, "1.0.0").file("scripts/run.sh", "#!/bin/sh\n");
    let mut demo = kit("demo");
    demo.skill.missing_packages = Some(MissingPackages {
        names: vec!["left-pad".into(), "pandas".into()],
        problems: vec![problem()],
        software: vec!["ffmpeg".into(), "npm docx".into()],
        pools: vec!["pools/office".into()],
    });
    fake.state.lock().kits = vec![demo, kit("fine")];
    let conversation = Conversation::new(&fake, options).await;
    (fake, conversation)
}

fn options(family: Family) -> ToolOptions {
    ToolOptions {
        family,
        additions: true,
        pool: "office".into(),
        ..ToolOptions::default()
    }
}

/// Returns the call that loads a skill in a family.
fn load(family: Family, skill: &str) -> (&'static str, Value) {
    match family {
        Family::Trpc => ("skill_load", json!({"skill": skill})),
        Family::Sherma => ("load_skill_md", json!({"skill_id": skill})),
        Family::AgentZero => (
            "skills_tool",
            json!({"method": "load", "skill_name": skill}),
        ),
    }
}

/// Returns the call that runs something of the skill `demo` in a family; its output is `said`.
fn run(family: Family, said: &str) -> (&'static str, Value) {
    let script = json!({"method": "execute_script", "skill_id": "demo", "skill_name": "demo",
        "script_path": "scripts/run.sh", "argv": [said, "1"]});
    match family {
        Family::Trpc => (
            "skill_run",
            json!({"skill": "demo", "command": format!("{said} 1")}),
        ),
        Family::Sherma => ("run_skill_script", script),
        Family::AgentZero => ("skills_tool", script),
    }
}

#[tokio::test]
async fn loading_a_skill_says_which_of_its_packages_are_not_installed() {
    for family in Family::ALL {
        let (fake, mut talk) = conversation(options(family)).await;
        let (tool, arguments) = load(family, "demo");
        let result = talk.ok(tool, arguments).await;
        let field = match family {
            Family::Trpc => &result["warnings"][0],
            Family::Sherma => &result["content"],
            Family::AgentZero => &result["text"],
        };
        let said = field.as_str().expect("text");
        assert!(said.contains(WARNING), "{family:?}: {said}");
        let (tool, arguments) = load(family, "fine");
        let quiet = talk.ok(tool, arguments).await.to_string();
        assert!(!quiet.contains("packages"), "{family:?}: {quiet}");
        let asked = fake.calls.requests::<GetSkillRequest>("GetSkill");
        let of_packages: Vec<_> = asked
            .iter()
            .filter(|request| request.check_packages)
            .collect();
        assert_eq!(of_packages.len(), 2, "{family:?}: {asked:?}");
        assert!(
            of_packages
                .iter()
                .all(|request| request.pool == "pools/office"),
            "{asked:?}"
        );
        // Neither loading stages anything.
        assert!(fake.staged_skills().is_empty());
    }
}

#[tokio::test]
async fn packages_do_not_matter_where_no_command_can_run() {
    let knowledge = |family| ToolOptions {
        profile: Profile::KnowledgeOnly,
        additions: false,
        ..options(family)
    };
    let without_scripts = ToolOptions {
        additions: false,
        ..options(Family::Sherma)
    };
    for options in [
        knowledge(Family::Trpc),
        knowledge(Family::AgentZero),
        without_scripts,
    ] {
        let family = options.family;
        let (fake, mut talk) = conversation(options).await;
        let (tool, arguments) = load(family, "demo");
        let said = talk.ok(tool, arguments).await.to_string();
        assert!(!said.contains("not installed"), "{family:?}: {said}");
        let asked = fake.calls.requests::<GetSkillRequest>("GetSkill");
        assert!(
            !asked.is_empty() && asked.iter().all(|request| !request.check_packages),
            "{asked:?}"
        );
    }
}

#[tokio::test]
async fn a_failed_run_says_that_packages_of_its_skill_are_missing() {
    for family in Family::ALL {
        let (fake, mut talk) = conversation(options(family)).await;
        fake.state.lock().stage_problems = vec![problem()];
        let (tool, arguments) = run(family, "exit");
        let failed = talk.ok(tool, arguments).await;
        let warnings = failed["warnings"].to_string();
        assert!(warnings.contains(STAGING_WARNING), "{family:?}: {failed}");
        let (tool, arguments) = run(family, "hello");
        let well = talk.ok(tool, arguments).await.to_string();
        assert!(!well.contains(REASON), "{family:?}: {well}");
    }
    // How a command ends that goes on is not known at its start.
    let (fake, mut talk) = conversation(options(Family::Trpc)).await;
    fake.state.lock().stage_problems = vec![problem()];
    let (_, arguments) = run(Family::Trpc, "ask");
    let started = talk.ok("skill_exec", arguments).await;
    assert_eq!(started["warnings"], json!([STAGING_WARNING]));
}

#[tokio::test]
async fn the_option_writable_skills_stages_writable_skills() {
    for family in Family::ALL {
        for writable_skills in [false, true] {
            let options = ToolOptions {
                writable_skills,
                ..options(family)
            };
            let (fake, mut talk) = conversation(options).await;
            // The warning must be true of the workspace.
            let told = json!(talk.definitions().await).to_string();
            let is_told = family != Family::Sherma && !writable_skills;
            assert_eq!(told.contains("read-only"), is_told, "{family:?}: {told}");
            let (tool, arguments) = run(family, "hello");
            talk.ok(tool, arguments).await;
            let staged = fake.staged_skills();
            let writable: Vec<bool> = staged.iter().map(|request| request.writable).collect();
            assert_eq!(writable, [writable_skills], "{family:?}");
        }
    }
}
