//! The arguments of tools as clients of MCP see them: schemas that every provider of models takes, and errors with a way out.

use data_encoding::BASE64;
use serde_json::{Value, json};

use crate::commands_mcp::{Client, options};
use crate::commands_tool::fake;

/// Returns arguments that write a file of the largest size and one of a byte more, as base64 and as text that JSON
/// escapes, each with the size of the file if it is permitted.
pub(crate) fn largest_files() -> Vec<(Value, Option<usize>)> {
    let most = 8 * 1024 * 1024;
    let calls = [most, most + 1].map(|size| {
        let base64 = BASE64.encode(&vec![0; size]);
        let base64 = json!({"path": format!("work/base64-{size}"), "content_base64": base64});
        let text = json!({"path": format!("work/text-{size}"), "content": "\"".repeat(size)});
        [base64, text].map(|arguments| (arguments, (size == most).then_some(size)))
    });
    calls.into_iter().flatten().collect()
}

/// Keywords that some providers refuse, or that a validator warns of.
const REFUSED: [&str; 8] = [
    "$ref", "$schema", "allOf", "default", "format", "maximum", "minimum", "title",
];

/// Collects the faults of a schema, at any depth, with their places.
fn find_faults(schema: &Value, place: &str, faults: &mut Vec<String>) {
    let Some(schema) = schema.as_object() else {
        return;
    };
    for (key, value) in schema {
        let place = format!("{place}/{key}");
        match (key.as_str(), value) {
            (key, _) if REFUSED.contains(&key) => faults.push(place),
            ("type", kind) if !kind.is_string() => faults.push(format!("{place} is {kind}")),
            ("properties", Value::Object(fields)) => {
                for (name, field) in fields {
                    find_faults(field, &format!("{place}/{name}"), faults);
                }
            }
            ("anyOf" | "oneOf", Value::Array(schemas)) => {
                for schema in schemas {
                    find_faults(schema, &place, faults);
                }
            }
            ("items" | "additionalProperties", schema) => find_faults(schema, &place, faults),
            _ => {}
        }
    }
}

#[tokio::test]
async fn every_schema_is_one_that_all_providers_take() {
    for family in ["trpc", "sherma", "agent-zero"] {
        let fake = fake();
        options(&fake, &json!({"family": family, "additions": true}));
        let mut client = Client::start(&fake, &["--options", "o.json"]).await;
        for tool in client.tools().await {
            let (name, mut faults) = (&tool["name"], Vec::new());
            let input = &tool["inputSchema"];
            find_faults(input, "", &mut faults);
            find_faults(&tool["outputSchema"], "/outputSchema", &mut faults);
            assert_eq!(faults, Vec::<String>::new(), "{family}: {name}");
            assert_eq!(input["type"], "object", "{family}: {name}");
            let fields = input["properties"].as_object().expect("fields");
            for (field, schema) in fields {
                assert!(schema["type"].is_string(), "{family}: {name}.{field}");
                let alternatives = ["anyOf", "oneOf"].map(|key| schema.get(key).is_some());
                assert_eq!(alternatives, [false; 2], "{family}: {name}.{field}");
            }
            for required in input["required"].as_array().into_iter().flatten() {
                let required = required.as_str().expect("a name");
                assert!(fields.contains_key(required), "{family}: {name}.{required}");
            }
        }
    }
}

#[tokio::test]
async fn a_content_that_is_null_or_empty_counts_as_left_out() {
    let fake = fake();
    let mut client = Client::start(&fake, &[]).await;
    for (arguments, written) in [
        (json!({"content": "hi", "content_base64": ""}), "hi"),
        (json!({"content": "hi", "content_base64": null}), "hi"),
        (json!({"content": "", "content_base64": "aGk="}), "hi"),
        (
            json!({"content": null, "content_base64": " aG\nk=\r\n"}),
            "hi",
        ),
        (json!({"content": 5}), "5"),
        // A file may be empty.
        (json!({"content": ""}), ""),
        (json!({"content": "", "content_base64": ""}), ""),
    ] {
        let mut call = arguments.clone();
        call["path"] = "/out/a".into();
        client.call("workspace_write_file", call).await;
        let file = fake.state.lock().staged.remove("out/a");
        assert_eq!(file.as_deref(), Some(written.as_bytes()), "{arguments}");
    }
}

#[tokio::test]
async fn a_file_of_the_largest_size_is_written_over_stdio() {
    let fake = fake();
    let mut client = Client::start(&fake, &[]).await;
    for (arguments, size) in largest_files() {
        let path = arguments["path"].as_str().expect("a path").to_owned();
        let id = client.begin_call("workspace_write_file", arguments).await;
        let result = client.answer(id).await.expect("a result");
        assert_eq!(result["isError"], size.is_none(), "{path}");
        let written = fake.state.lock().staged.get(&path).map(Vec::len);
        assert_eq!(written, size, "{path}");
        let said = result.to_string().contains("at most 8 MiB");
        assert_eq!(said, size.is_none(), "{path}");
    }
}

#[tokio::test]
async fn errors_name_the_tool_that_writes_files_where_it_is_offered() {
    let long = json!({"command": "x".repeat(131_072)});
    let unknown = json!({});
    for family in ["trpc", "sherma", "agent-zero"] {
        let fake = fake();
        options(&fake, &json!({"family": family, "additions": true}));
        let mut client = Client::start(&fake, &["--options", "o.json"]).await;
        let id = client.begin_call("no_such_tool", unknown.clone()).await;
        let error = client.answer(id).await.expect_err("unknown").to_string();
        assert!(error.contains(", workspace_write_file"), "{error}");
    }
    let fake = fake();
    let mut client = Client::start(&fake, &[]).await;
    let id = client.begin_call("workspace_exec", long).await;
    let refused = client.answer(id).await.expect("a result");
    let said = "command: 131072 bytes; at most 131071: pass long text with stdin or in a file; workspace_write_file makes one";
    assert!(refused.to_string().contains(said), "{refused}");
    assert!(fake.state.lock().workspaces.is_empty());
}
