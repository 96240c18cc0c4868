//! Definitions that a model is offered.

use serde_json::{Value, json};
use skilld_tools::host_tools::HostTools;
use skilld_tools::prompt::built_in;
use skilld_tools::{Family, Profile, ToolDefinition, ToolOptions, Toolset};

use super::{Talk, skill};

const KNOWLEDGE: [&str; 6] = [
    "skill_list",
    "skill_list_tools",
    "skill_load",
    "skill_select_tools",
    "skill_list_docs",
    "skill_select_docs",
];
const RUNNING: [&str; 10] = [
    "skill_run",
    "skill_exec",
    "skill_write_stdin",
    "skill_poll_session",
    "skill_kill_session",
    "workspace_exec",
    "workspace_write_stdin",
    "workspace_kill_session",
    "workspace_save_artifact",
    "read_file",
];

async fn definitions(talk: &Talk) -> Vec<ToolDefinition> {
    let definitions = talk.tools.definitions(&talk.session, &talk.state).await;
    definitions.expect("definitions")
}

async fn names(talk: &Talk) -> Vec<String> {
    definitions(talk)
        .await
        .into_iter()
        .map(|tool| tool.name)
        .collect()
}

fn listed(tools: &[&str]) -> ToolOptions {
    ToolOptions {
        tools: Some(tools.iter().map(|tool| (*tool).to_owned()).collect()),
        ..ToolOptions::default()
    }
}

#[tokio::test]
async fn profiles_and_lists_decide_what_is_offered() {
    let all: Vec<&str> = KNOWLEDGE.into_iter().chain(RUNNING).collect();
    assert_eq!(names(&Talk::new(ToolOptions::default()).await).await, all);
    let mut talk = Talk::with_options(|options| options.profile = Profile::KnowledgeOnly).await;
    assert_eq!(names(&talk).await, KNOWLEDGE);
    // What is not offered is not there, whoever calls it.
    for tool in RUNNING {
        assert_eq!(
            talk.refused(tool, json!({})).await.0,
            "UNKNOWN_TOOL",
            "{tool}"
        );
    }
    let talk = Talk::with_options(|options| options.profile = Profile::Workspace).await;
    let shell = RUNNING.iter().filter(|tool| !tool.starts_with("skill_"));
    let workspace: Vec<&str> = KNOWLEDGE.iter().chain(shell).copied().collect();
    assert_eq!(names(&talk).await, workspace);
    let talk = Talk::new(listed(&[" Skill_Exec ", "skill_run", "read_file"])).await;
    assert_eq!(names(&talk).await, ["skill_run", "skill_exec", "read_file"]);
}

#[tokio::test]
async fn options_that_contradict_each_other_are_refused_at_the_start() {
    let talk = Talk::new(ToolOptions::default()).await;
    let client = talk.fake.client().await;
    let refused = |options: ToolOptions| {
        let made = Toolset::new(client.clone(), options, HostTools::new());
        made.expect_err("refused").to_string()
    };
    for (tools, said) in [
        (&["skill_rum"][..], "there is no tool \"skill_rum\""),
        (&["skill_exec"], "skill_exec needs skill_run"),
        (
            &["skill_run", "skill_poll_session"],
            "skill_poll_session needs skill_exec",
        ),
        (
            &["workspace_kill_session"],
            "workspace_kill_session needs workspace_exec",
        ),
    ] {
        let error = refused(listed(tools));
        assert!(error.contains(said), "{error}");
    }
    let runs = ToolOptions {
        profile: Profile::KnowledgeOnly,
        ..listed(&["skill_run"])
    };
    assert!(refused(runs).contains("skill_run needs the profile full"));
    let shell = ToolOptions {
        profile: Profile::KnowledgeOnly,
        ..listed(&["workspace_exec"])
    };
    assert!(refused(shell).contains("needs the profile workspace or full"));
    let unloadable = ToolOptions {
        require_loaded: true,
        ..listed(&["skill_run"])
    };
    assert!(refused(unloadable).contains("skill_load"));
    let nowhere = ToolOptions {
        allowed_commands: vec!["../bin/x".into()],
        ..ToolOptions::default()
    };
    assert!(refused(nowhere).contains("../bin/x"));
    for field in ["output_bytes_max", "primary_bytes_max"] {
        for bytes in [0, 3, 96 * 1024 + 1] {
            let options = serde_json::from_value(json!({field: bytes})).expect("options");
            let error = refused(options);
            assert!(error.contains(&format!("{field} is {bytes}")), "{error}");
        }
    }
}

#[tokio::test]
async fn options_without_effect_in_a_family_are_refused_at_the_start() {
    let talk = Talk::new(ToolOptions::default()).await;
    let client = talk.fake.client().await;
    let made = |options: ToolOptions| Toolset::new(client.clone(), options, HostTools::new());
    for (options, said) in [
        (
            json!({"tools": ["skill_load"]}),
            "there is no tool \"skill_load\"",
        ),
        (json!({"primary_bytes_max": 3}), "primary_bytes_max is 3"),
        (json!({"denied_commands": ["bash"]}), "has \"bash\""),
        (
            json!({"allowed_commands": ["s/run.sh", "/bin/sh"]}),
            "has \"/bin/sh\"",
        ),
        (
            json!({"denied_commands": ["s/../t/run.sh"]}),
            "listed as SKILL/PATH",
        ),
        (json!({"denied_commands": ["s/"]}), "has \"s/\""),
        (
            json!({"denied_commands": ["s@1.0.0/run.sh"]}),
            "without a version",
        ),
    ] {
        for family in ["sherma", "agent-zero"] {
            let mut options = options.clone();
            options["family"] = family.into();
            let options: ToolOptions = serde_json::from_value(options).expect("options");
            let error = made(options).expect_err("refused");
            assert_eq!(error.code(), "INVALID_OPTIONS");
            assert!(error.to_string().contains(said), "{family}: {error}");
        }
    }
    let sherma = |options: Value| {
        let mut options = options;
        options["family"] = "sherma".into();
        made(serde_json::from_value(options).expect("options"))
    };
    for (options, said) in [
        (
            json!({"tools": ["search_skills"]}),
            "search_skills needs additions",
        ),
        (
            json!({"tools": ["run_skill_script"], "additions": true, "profile": "knowledge_only"}),
            "run_skill_script needs the profile full",
        ),
    ] {
        let error = sherma(options).expect_err("refused").to_string();
        assert!(error.contains(said), "{error}");
    }
    let good = json!({
        "tools": [" List_Skills ", "run_skill_script"],
        "additions": true,
        "allowed_commands": ["s/scripts/run.sh"],
    });
    let tools = sherma(good).expect("options that fit");
    let offered = tools
        .definitions(&talk.session, &talk.state)
        .await
        .expect("definitions");
    let names: Vec<String> = offered.into_iter().map(|tool| tool.name).collect();
    assert_eq!(names, ["list_skills", "run_skill_script"]);
}

#[tokio::test]
async fn a_host_may_offer_all_its_tools_whatever_is_loaded() {
    let options = ToolOptions {
        only_active_skills: false,
        ..ToolOptions::default()
    };
    let mut talk = Talk::with(options, host(&["look", "absent"])).await;
    assert_eq!(names(&talk).await.split_off(16), ["absent", "look"]);
    let called = talk.call("absent", json!({})).await;
    assert_eq!(called, json!({"called": "absent"}));
}

#[tokio::test]
async fn schemas_name_fields_skills_and_what_is_required() {
    let talk = Talk::new(ToolOptions::default()).await;
    let definitions = definitions(&talk).await;
    for tool in &definitions {
        assert!(!tool.description.is_empty());
        assert_eq!(tool.parameters["type"], "object", "{}", tool.name);
        let text = serde_json::to_string(&tool.parameters).expect("JSON");
        assert!(!text.contains("$ref"), "{}: {text}", tool.name);
        let fields = tool.parameters["properties"].as_object().expect("fields");
        for required in tool.parameters["required"].as_array().into_iter().flatten() {
            assert!(
                fields.contains_key(required.as_str().expect("a name")),
                "{}",
                tool.name
            );
        }
        for (name, field) in fields {
            assert!(
                field.get("description").is_some(),
                "{}.{name}: {field}",
                tool.name
            );
        }
        assert!(tool.returns.is_object());
    }
    let fields = |name: &str| {
        let tool = definitions.iter().find(|tool| tool.name == name);
        let fields = tool.expect("is offered").parameters["properties"].clone();
        fields
            .as_object()
            .expect("fields")
            .keys()
            .cloned()
            .collect::<Vec<_>>()
    };
    let run = [
        "skill",
        "command",
        "cwd",
        "env",
        "stdin",
        "editor_text",
        "output_files",
        "outputs",
        "inputs",
        "timeout",
        "save_as_artifacts",
        "omit_inline_content",
        "artifact_prefix",
    ];
    assert_eq!(fields("skill_run"), run);
    let exec = ["tty", "eof", "yield_ms", "poll_lines"];
    assert_eq!(fields("skill_exec"), [&run[..], &exec[..]].concat());
}

#[tokio::test]
async fn definitions_are_the_same_whatever_skills_there_are() {
    let talk = Talk::new(ToolOptions::default()).await;
    let before = definitions(&talk).await;
    talk.fake
        .state
        .lock()
        .kits
        .push(skill("published-later", &[]).into());
    assert_eq!(definitions(&talk).await, before);
    assert!(!json!(before).to_string().contains("demo"));
    assert!(talk.calls().is_empty(), "no list of skills is needed");
}

#[tokio::test]
async fn descriptions_say_whether_commands_can_write_a_skill() {
    for (writable_skills, said) in [
        (false, "The skill's folder is read-only."),
        (
            true,
            "The skill's folder is a copy of this conversation that commands can write.",
        ),
    ] {
        let talk = Talk::with_options(|options| options.writable_skills = writable_skills).await;
        let definitions = definitions(&talk).await;
        let run = definitions.iter().find(|tool| tool.name == "skill_run");
        let description = &run.expect("is offered").description;
        assert!(description.contains(said), "{description}");
        let all = json!(definitions).to_string();
        assert_eq!(all.contains("read-only"), !writable_skills, "{all}");
    }
    let guidance = built_in(Family::Trpc, Profile::Full);
    assert!(!guidance.contains("read-only"), "{guidance}");
}

#[tokio::test]
async fn a_description_says_what_is_restricted() {
    let options = ToolOptions {
        allowed_commands: (0..25).map(|number| format!("c{number:02}")).collect(),
        ..ToolOptions::default()
    };
    let definitions = definitions(&Talk::new(options).await).await;
    for name in ["skill_run", "skill_exec", "workspace_exec"] {
        let tool = definitions
            .iter()
            .find(|tool| tool.name == name)
            .expect("is offered");
        assert!(tool.description.contains("c00, c01") && tool.description.contains("(+5 more)"));
        assert!(!tool.description.contains("c20"));
    }
}

pub(super) fn host(names: &[&str]) -> HostTools {
    let mut host = HostTools::new();
    for name in names {
        let definition = ToolDefinition {
            name: (*name).into(),
            description: "a tool of the host".into(),
            parameters: json!({"type": "object"}),
            returns: json!({}),
        };
        let called = (*name).to_owned();
        let handler = move |arguments: Value| {
            let called = called.clone();
            async move {
                match arguments["fail"].as_str() {
                    Some(why) => Err(why.to_owned()),
                    None => Ok(json!({"called": called})),
                }
            }
        };
        host.register(definition, handler);
    }
    host
}

/// The pool is an allow-list, and only loaded skills bring anything up, in one order.
#[tokio::test]
async fn host_tools_are_offered_while_a_loaded_skill_names_them() {
    let pool = host(&["look", "touch", "secret", "skill_run"]);
    let mut talk = Talk::with(ToolOptions::default(), pool).await;
    talk.fake.state.lock().kits = vec![
        skill("demo", &["touch", "look", "touch", "absent", "skill_run"]).into(),
        skill("other", &["look"]).into(),
    ];
    async fn brought(talk: &Talk) -> Vec<String> {
        names(talk).await.split_off(16)
    }
    assert!(brought(&talk).await.is_empty());
    // A choice of a skill that is not loaded brings nothing up.
    let choice = json!({"skill": "demo", "tools": ["look"]});
    talk.call("skill_select_tools", choice).await;
    assert!(brought(&talk).await.is_empty());
    assert_eq!(talk.refused("look", json!({})).await.0, "UNKNOWN_TOOL");
    let clear = json!({"skill": "demo", "include_all_tools": true});
    talk.call("skill_select_tools", clear).await;
    talk.call("skill_load", json!({"skill": "demo"})).await;
    assert_eq!(brought(&talk).await, ["look", "touch"]);
    talk.call("skill_load", json!({"skill": "other"})).await;
    assert_eq!(
        brought(&talk).await,
        ["look", "touch"],
        "the first one's stay"
    );
    assert_eq!(
        talk.call("look", json!({})).await,
        json!({"called": "look"})
    );
    let failed = talk.refused("look", json!({"fail": "no light"})).await;
    assert_eq!(failed, ("TOOL_FAILED".into(), "look: no light".into()));
    // Arguments are an object to it, however a model wrote them.
    let as_text = json!("{\"fail\": \"no light\"}");
    assert_eq!(talk.refused("look", as_text).await, failed);
    let (code, _) = talk.refused("look", json!("[1]")).await;
    assert_eq!(code, "INVALID_ARGUMENTS");
    // What is in no pool cannot be chosen; what the pool has can, and is there only then.
    assert_eq!(talk.refused("secret", json!({})).await.0, "UNKNOWN_TOOL");
    let choice = json!({"skill": "demo", "tools": ["hidden", "touch", "secret"]});
    let chosen = talk.call("skill_select_tools", choice).await;
    assert_eq!(chosen["unknown_tools"], json!(["hidden"]));
    assert_eq!(brought(&talk).await, ["look", "secret", "touch"]);
    assert_eq!(talk.refused("hidden", json!({})).await.0, "UNKNOWN_TOOL");
    // Ours is ours, whatever a skill or a host calls its own.
    let ran = talk.call("skill_run", super::run("hello")).await;
    assert_eq!(ran["stdout"], "hello\n");
}

#[tokio::test]
async fn a_restricted_command_is_not_called_a_shell_command() {
    for (allowed, is_shell) in [(Vec::new(), true), (vec!["ls".to_owned()], false)] {
        let talk = Talk::with_options(|options| options.allowed_commands = allowed).await;
        for tool in definitions(&talk).await {
            let command = &tool.parameters["properties"]["command"]["description"];
            let Some(said) = command.as_str() else {
                continue;
            };
            assert_eq!(said.contains("bash"), is_shell, "{}: {said}", tool.name);
            let without = said.contains("without a shell");
            assert_eq!(without, !is_shell, "{}: {said}", tool.name);
        }
    }
}
