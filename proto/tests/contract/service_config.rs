//! Checks docs/service-config.json, with which gRPC libraries repeat calls.

use std::collections::BTreeSet;
use std::path::Path;

use serde_json::{Value, json};
use skilld_proto::{Effect, METHODS, find_method};

/// Methods that change something and have the same effect however often they are made.
const REPEATABLE_CHANGES: [&str; 5] = [
    "/skilld.v1.ExecService/KillExec",
    "/skilld.v1.ExecService/ResizeTerminal",
    "/skilld.v1.FileService/StageSkills",
    "/skilld.v1.WorkspaceService/RenewWorkspace",
    "/skilld.v1.WorkspaceService/UpdateWorkspace",
];

/// Returns the only method configuration of the file.
fn read_method_config() -> Value {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/service-config.json");
    let text = std::fs::read_to_string(path).expect("docs/service-config.json exists");
    let config: Value = serde_json::from_str(&text).expect("JSON");
    let configs = config["methodConfig"].as_array().expect("a list");
    assert_eq!(configs.len(), 1);
    configs[0].clone()
}

#[test]
fn libraries_repeat_only_reads_and_repeatable_changes() {
    let config = read_method_config();
    let names = config["name"].as_array().expect("names").iter();
    let path = |name: &Value| {
        let part = |key: &str| name[key].as_str().expect("a text").to_owned();
        format!("/{}/{}", part("service"), part("method"))
    };
    let configured: Vec<String> = names.map(path).collect();
    let reads = METHODS
        .iter()
        .filter(|method| method.effect == Effect::Read)
        .map(|method| method.path);
    let repeatable: BTreeSet<&str> = reads.chain(REPEATABLE_CHANGES).collect();
    let expected: Vec<&str> = repeatable.into_iter().collect();
    assert_eq!(configured, expected);
    let is_method = |path: &&str| find_method(path).is_some();
    assert!(REPEATABLE_CHANGES.iter().all(is_method));
}

#[test]
fn libraries_repeat_only_calls_that_failed_with_unavailable() {
    let config = read_method_config();
    let policy = &config["retryPolicy"];
    assert_eq!(policy["retryableStatusCodes"], json!(["UNAVAILABLE"]));
    // Libraries refuse a policy with other values, and the whole configuration with it.
    assert!(matches!(policy["maxAttempts"].as_u64(), Some(2..=5)));
    assert!(
        policy["backoffMultiplier"]
            .as_f64()
            .is_some_and(|by| by > 0.0)
    );
    for key in ["initialBackoff", "maxBackoff"] {
        let text = policy[key].as_str().expect("a text");
        let seconds = text.strip_suffix('s').and_then(|text| text.parse().ok());
        assert!(seconds.is_some_and(|seconds: f64| seconds > 0.0), "{key}");
    }
}
