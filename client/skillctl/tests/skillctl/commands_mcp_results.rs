//! Results over `skillctl mcp`: how large a message is at most, and what the negotiated version of the protocol permits.

use serde_json::{Value, json};
use skilld_client::v1::collect_outputs_response::Payload;
use skilld_client::v1::{CollectOutputsResponse, CollectSummary, CollectedFile, FileEnd};
use skilld_testing::collection_messages::message;
use skilld_testing::skills::Kit;

use crate::commands_mcp::{Client, options};
use crate::commands_tool::fake;

/// Maximum size of a result for a model, in bytes of JSON.
const RESULT_BYTES_MAX: usize = 96 * 1024;

/// Returns what CollectOutputs sends of a text file.
fn text_file(path: &str, text: &str) -> Vec<CollectOutputsResponse> {
    let size = i64::try_from(text.len()).expect("small");
    let file = CollectedFile {
        path: path.into(),
        size_bytes: size,
        mime_type: "application/json".into(),
        is_text: true,
        ..Default::default()
    };
    let chunks = text
        .as_bytes()
        .chunks(256 * 1024)
        .map(|chunk| Payload::Data(chunk.to_vec().into()));
    let end = FileEnd {
        sha256: "5a".repeat(32),
        sent_bytes: size,
        ..Default::default()
    };
    let payloads = [Payload::File(file)]
        .into_iter()
        .chain(chunks)
        .chain([Payload::FileEnd(end)]);
    payloads.map(message).collect()
}

/// The client refuses larger messages than 4 MiB.
#[tokio::test]
async fn the_largest_results_fit_into_a_message() {
    let fake = fake();
    // In JSON it is three times as long, and a copy within a text is longer still.
    let wild = "\"\\\u{1}\n".repeat(1 << 20);
    let collected = |artifacts: Vec<String>| {
        let summary = CollectSummary {
            matched_count: 2,
            returned_count: 2,
            artifacts,
            ..Default::default()
        };
        let mut messages = text_file("out/a.json", &wild);
        messages.extend(text_file("out/b.json", &wild));
        messages.push(message(Payload::Summary(summary)));
        messages
    };
    fake.answer_collections(collected(Vec::new()));
    {
        let mut state = fake.state.lock();
        state
            .staged
            .insert("out/a.json".into(), wild.clone().into());
        let mut png = b"\x89PNG\r\n\x1a\n\0".to_vec();
        png.resize(5 << 19, 0);
        state.staged.insert("out/largest.png".into(), png);
        state
            .staged
            .insert("out/largest.bin".into(), vec![0; 1 << 20]);
    }
    let mut client = Client::start(&fake, &[]).await;
    let typed: String = wild.chars().take(1 << 20).collect();
    let run = json!({
        "skill": "alpha", "command": "cat", "stdin": typed, "output_files": ["$OUTPUT_DIR/**"],
    });
    for (tool, arguments) in [
        ("skill_run", run.clone()),
        ("workspace_exec", json!({"command": "cat", "stdin": typed})),
        ("read_file", json!({"file_name": "out/a.json"})),
        ("read_file", json!({"file_name": "out/largest.png"})),
        ("read_file", json!({"file_name": "out/largest.bin"})),
    ] {
        let result = client.call(tool, arguments.clone()).await;
        let bytes = result["structuredContent"].to_string().len();
        assert!(bytes <= RESULT_BYTES_MAX, "{tool}: {bytes} bytes");
        if tool == "skill_run" {
            let file = &result["structuredContent"]["output_files"][0];
            assert_eq!(file["truncated"], true, "{file}");
            assert_eq!(file["ref"], "workspace://out/a.json");
            let note = file["note"].to_string();
            assert!(note.contains(": read_file goes on with start_line "));
        }
    }
    let names = (100..700).map(|number| format!("artifact://out/{number}{}@0", "n".repeat(180)));
    fake.answer_collections(collected(names.collect()));
    let result = client.call("skill_run", run).await;
    let bytes = result["structuredContent"].to_string().len();
    assert!(bytes <= RESULT_BYTES_MAX, "{bytes} bytes");
    let warnings = result["structuredContent"]["warnings"].to_string();
    assert!(warnings.contains(" and others in a session that is not kept"));
    // The names of the artifacts leave it no room.
    let file = &result["structuredContent"]["output_files"][0];
    let note = "its text is left out for want of room: read_file reads it";
    assert_eq!(file["note"], note);
    let uri = json!({"uri": "workspace://out/largest.png"});
    let read = client.request("resources/read", uri).await;
    read.expect("the largest image fits");
}

#[tokio::test]
async fn the_largest_results_of_the_other_families_fit_into_a_message() {
    let wild = "\"\\\u{1}\n".repeat(1 << 18);
    let mut png = b"\x89PNG\r\n\x1a\n\0".to_vec();
    png.resize(5 << 19, 0);
    let mut large = Kit::new("large", "1.0.0")
        .file("assets/largest.png", png)
        .file("references/long.md", wild.clone())
        .file("scripts/run.sh", "#!/bin/sh\n");
    large.skill.body.clone_from(&wild);
    let run = json!({"script_path": "scripts/run.sh", "argv": ["cat"], "stdin": wild});
    let image = "assets/largest.png";
    let sherma = [
        ("load_skill_md", json!({})),
        ("load_skill_asset", json!({"asset_path": image})),
        (
            "load_skill_resource",
            json!({"resource_path": "references/long.md"}),
        ),
        ("run_skill_script", run.clone()),
    ];
    let agent_zero = [
        ("load", json!({})),
        ("read_file", json!({"file_path": image})),
        ("read_file", json!({"file_path": "references/long.md"})),
        ("execute_script", run),
    ];
    for (family, calls) in [("sherma", sherma), ("agent-zero", agent_zero)] {
        let fake = fake();
        fake.state.lock().kits = vec![large.clone()];
        options(
            &fake,
            &json!({"family": family, "additions": true, "inline_skills": true}),
        );
        let mut client = Client::start(&fake, &["--options", "o.json"]).await;
        for (name, mut arguments) in calls {
            let mut tool = name;
            arguments["skill_id"] = "large".into();
            if family == "agent-zero" {
                arguments["skill_name"] = "large".into();
                arguments["method"] = name.into();
                tool = "skills_tool";
            }
            let has_image = arguments.to_string().contains(image);
            let result = client.call(tool, arguments).await;
            let bytes = result["structuredContent"].to_string().len();
            assert!(bytes <= RESULT_BYTES_MAX, "{name}: {bytes} bytes");
            assert_eq!(result["content"][1]["type"] == "image", has_image, "{name}");
        }
    }
}

#[tokio::test]
async fn a_batch_on_stdio_is_refused_and_the_session_goes_on() {
    let fake = fake();
    let mut client = Client::start(&fake, &[]).await;
    let list = json!({"jsonrpc": "2.0", "id": 7, "method": "tools/list"});
    client.send(json!([list])).await;
    let refused = client.line().await;
    assert_eq!(refused["error"]["code"], -32600, "{refused}");
    client.call("skill_list", json!({})).await;
}

/// The parts of tools and results that not every version has.
fn parts(of: &Value) -> [bool; 4] {
    ["title", "annotations", "outputSchema", "structuredContent"].map(|part| of.get(part).is_some())
}

#[tokio::test]
async fn a_client_gets_only_what_its_version_knows() {
    for (version, tool_parts, is_structured) in [
        ("2024-11-05", [false, false, false, false], false),
        ("2025-03-26", [false, true, false, false], false),
        ("2025-06-18", [true, true, true, false], true),
    ] {
        let fake = fake();
        fake.state
            .lock()
            .staged
            .insert("out/a.txt".into(), b"a".to_vec());
        let words = ["--resource-links"];
        let mut client = Client::start_with_version(&fake, &words, version).await;
        let tools = client.tools().await;
        let saves = tools
            .iter()
            .find(|tool| tool["name"] == "workspace_save_artifact");
        assert_eq!(parts(saves.expect("is offered")), tool_parts, "{version}");
        let saved = json!({"path": "out/a.txt"});
        let saved = client.call("workspace_save_artifact", saved).await;
        assert_eq!(
            parts(&saved),
            [false, false, false, is_structured],
            "{version}"
        );
        let text = saved["content"][0]["text"].as_str().expect("text");
        let result: Value = serde_json::from_str(text).expect("the result");
        assert_eq!(result["ref"], "artifact://out/a.txt@0", "{version}");
        let blocks = saved["content"].as_array().expect("blocks").iter();
        let has_link = blocks.clone().any(|block| block["type"] == "resource_link");
        assert_eq!(has_link, is_structured, "{version}");
    }
}

#[tokio::test]
async fn results_link_to_artifacts_only_where_the_user_asks_for_it() {
    for (words, has_link) in [(&[][..], false), (&["--resource-links"], true)] {
        let fake = fake();
        fake.state
            .lock()
            .staged
            .insert("out/a.txt".into(), b"a".to_vec());
        let mut client = Client::start(&fake, words).await;
        let saved = json!({"path": "out/a.txt"});
        let saved = client.call("workspace_save_artifact", saved).await;
        assert_eq!(saved["structuredContent"]["ref"], "artifact://out/a.txt@0");
        let link = json!({
            "type": "resource_link",
            "uri": "artifact://out/a.txt@0",
            "name": "out/a.txt@0",
        });
        let blocks = saved["content"].as_array().expect("blocks");
        assert_eq!(blocks.contains(&link), has_link, "{saved}");
        let links = blocks.iter().filter(|block| block["type"] != "text");
        assert_eq!(links.count(), usize::from(has_link), "{saved}");
    }
}

#[tokio::test]
async fn agent_zeros_text_is_the_content_and_its_fields_the_structure() {
    let fake = fake();
    options(&fake, &json!({"family": "agent-zero"}));
    let mut client = Client::start(&fake, &["--options", "o.json"]).await;
    let load = json!({"method": "load", "skill_name": "alpha"});
    let loaded = client.call("skills_tool", load).await;
    let text = loaded["content"][0]["text"].as_str().expect("text");
    assert!(text.starts_with("Skill: alpha\n"), "{text}");
    assert_eq!(loaded["structuredContent"]["text"], text);
    assert_eq!(loaded["structuredContent"]["name"], "alpha");
}
