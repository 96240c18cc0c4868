//! Paths that prompts and results of the skill tools name exist when the next command runs, in every profile.
//!
//! Docker: what is mounted and copied into a real container decides whether a path exists there.

use std::collections::BTreeSet;

use anyhow::{Context, Result};
use serde_json::{Value, json};
use skilld_client::workspace_name;
use skilld_tests::DefaultDaemon;
use skilld_tests::exec::shell_stdout;
use skilld_tools::host_tools::HostTools;
use skilld_tools::prompt::Provider;
use skilld_tools::{Family, Profile, Session, Skills, ToolOptions, Toolset};

/// Name and arguments of a call.
type ToolCall = (&'static str, Value);

/// Calls of a profile. The first one loads the skill `image-info`; the others run something of another skill or of none,
/// read and save files, and miss one.
fn profiles() -> [(Family, Profile, Vec<ToolCall>); 4] {
    let load = ("skill_load", json!({"skill": "image-info"}));
    let shell = |command: &str| ("workspace_exec", json!({"command": command}));
    let run =
        json!({"skill": "image-info", "command": "echo a > out/a.txt", "output_files": ["out/*"]});
    let read = |path: &str| ("read_file", json!({"file_name": path}));
    let reads = [
        read("skills/image-info/references/presets.md"),
        read("scripts/image_inf.py"),
    ];
    let save = json!({"path": "/workspace/skills/image-info/out/a.txt"});
    let script = json!({"skill_id": "unit-convert", "skill_name": "unit-convert", "method": "execute_script",
        "script_path": "scripts/convert.py", "argv": ["--list"]});
    let asset = |path: &str| {
        let asset = json!({"skill_id": "image-info", "asset_path": path});
        ("load_skill_asset", asset)
    };
    let method = |method: &str, path: &str| {
        let call = json!({"method": method, "skill_name": "image-info", "file_path": path});
        ("skills_tool", call)
    };
    let in_skills = vec![load.clone(), shell("ls"), ("skill_run", run)];
    let in_workspace = vec![
        load,
        shell("echo a > out/a.txt"),
        ("workspace_save_artifact", save),
    ];
    [
        (
            Family::Trpc,
            Profile::Full,
            [in_skills, reads.to_vec()].concat(),
        ),
        (
            Family::Trpc,
            Profile::Workspace,
            [in_workspace, reads.to_vec()].concat(),
        ),
        (
            Family::Sherma,
            Profile::Full,
            vec![
                ("load_skill_md", json!({"skill_id": "image-info"})),
                ("run_skill_script", script.clone()),
                asset("assets/sample.png"),
                asset("assets/sampel.png"),
            ],
        ),
        (
            Family::AgentZero,
            Profile::Full,
            vec![
                method("load", ""),
                ("skills_tool", script),
                method("read_file", "references/presets.md"),
                method("read_file", "references/preset.md"),
            ],
        ),
    ]
}

/// Returns the paths in a text that begin at the workspace or at one of its folders, those of references included.
fn named_paths(text: &str) -> BTreeSet<String> {
    let resolved = text
        .replace("workspace://", "/workspace/")
        .replace("skill://", "/workspace/skills/");
    let is_of_path = |char: char| char.is_ascii_alphanumeric() || "/._-".contains(char);
    let words = resolved.split(|char: char| !is_of_path(char));
    let beginnings = ["/workspace/", "skills/", "work/", "out/"];
    words
        .filter(|word| beginnings.iter().any(|begin| word.starts_with(begin)))
        // A general rule names no certain skill.
        .filter(|path| !path.contains("NAME"))
        .map(|path| path.trim_end_matches(['.', '/']).to_owned())
        .collect()
}

/// Makes a call as the model does. Returns the text of its result.
async fn call(
    skills: &skilld_tools::SkillSession,
    messages: &mut Vec<Value>,
    (tool, arguments): &(&'static str, Value),
) -> Result<String> {
    let id = format!("call_{}", messages.len());
    let reply = json!({"role": "assistant", "content": null, "tool_calls": [{"id": id, "type": "function",
        "function": {"name": tool, "arguments": arguments.to_string()}}]});
    let results = skills.answer(Provider::OpenAiChat, &reply).await?;
    messages.push(reply);
    messages.extend(results);
    let result = messages
        .last()
        .and_then(|result| result["content"].as_str());
    Ok(result.context("a result")?.to_owned())
}

#[tokio::test(flavor = "multi_thread")]
async fn every_path_named_to_a_model_exists_for_the_next_command() -> Result<()> {
    let daemon = DefaultDaemon::share().await?;
    for (family, profile, calls) in profiles() {
        let options = ToolOptions {
            family,
            profile,
            additions: family == Family::Sherma,
            // Other tests publish skills, whose descriptions may name anything.
            skills: Some(vec!["image-info".into(), "unit-convert".into()]),
            ..ToolOptions::default()
        };
        let tools = Toolset::new(daemon.client.clone(), options, HostTools::new())?;
        let session = Session {
            app: "tests".into(),
            session: format!("paths-{}-{profile:?}", family.name()),
            ..Session::default()
        };
        let skills = Skills::new(tools).session_of(session.clone());
        let file = json!({"type": "file", "file": {"filename": "a.csv", "file_data": "data:text/csv;base64,YSxi"}});
        let mut messages = vec![json!({"role": "user", "content": [file]})];
        let mut texts = String::new();
        for made in &calls {
            texts += &call(&skills, &mut messages, made).await?;
            let mut body = json!({"messages": messages});
            skills.prepare(Provider::OpenAiChat, &mut body).await?;
            texts += &body["messages"].to_string();
        }
        let paths = named_paths(&texts);
        assert!(paths.contains("/workspace/skills/image-info"), "{paths:?}");
        assert!(paths.contains("work/inputs/a.csv"), "{paths:?}");
        let workspace = workspace_name(&session.workspace_id());
        for path in &paths {
            let test = format!("cd /workspace && test -e {path} && echo exists");
            let found = shell_stdout(&daemon.client, &workspace, &test).await?;
            assert_eq!(found, "exists\n", "{family:?} {profile:?} {path}");
        }
        let script = "/workspace/skills/image-info/scripts/image_info.py";
        let run = format!("python3 {script} /workspace/skills/image-info/assets/sample.png");
        let printed = shell_stdout(&daemon.client, &workspace, &run).await?;
        assert!(printed.contains("\"format\": \"png\""), "{printed}");
        skills.end().await?;
    }
    daemon.stop().await
}
