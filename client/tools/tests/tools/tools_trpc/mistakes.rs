//! Mistakes of a model, in the words of its tool's arguments, and what is kept in spite of them.

use serde_json::{Value, json};
use skilld_client::v1;
use skilld_client::v1::SkipReason;
use skilld_tools::ToolOptions;
use tonic::Code;

use super::{Talk, file, run, summary};
use skilld_testing::{STARTS, invalid, refusal};

fn asking(globs: &[&str]) -> Value {
    let mut arguments = run("hello");
    arguments["output_files"] = json!(globs);
    arguments
}

#[tokio::test]
async fn fields_refused_by_the_daemon_are_named_as_arguments() {
    for (tool, arguments, refused, said) in [
        (
            "skill_run",
            asking(&["out/a", "$NOPE/b"]),
            invalid(&[("outputs.spec.globs[1]", "unknown variable $NOPE")]),
            "output_files \"$NOPE/b\": unknown variable $NOPE",
        ),
        (
            "skill_exec",
            asking(&["../b"]),
            refusal(Code::InvalidArgument, "PATH_ESCAPES", &[("path", "../b")]),
            "output_files \"../b\": leads out of the workspace",
        ),
        (
            "skill_run",
            run("hello"),
            invalid(&[
                ("spec.shell", "too long"),
                ("spec.env[\"A=B\"]", "is not a name"),
            ]),
            "command: too long; env[\"A=B\"]: is not a name",
        ),
        (
            "workspace_exec",
            json!({"command": "hello", "cwd": "../x"}),
            refusal(Code::InvalidArgument, "PATH_ESCAPES", &[("path", "../x")]),
            "\"../x\" leads out of the workspace: paths are relative to it",
        ),
        (
            "workspace_exec",
            json!({"command": "cat", "background": true}),
            invalid(&[("spec.timeout", "must be longer than 0 s")]),
            "timeout_sec: must be longer than 0 s",
        ),
    ] {
        let mut talk = Talk::new(ToolOptions::default()).await;
        talk.fake.calls.refuse(STARTS, [refused]);
        let (code, message) = talk.refused(tool, arguments).await;
        assert_eq!(
            (code.as_str(), message),
            ("INVALID_ARGUMENTS", format!("invalid args: {said}"))
        );
    }
}

#[tokio::test]
async fn a_refused_output_is_named_by_the_argument_that_was_passed() {
    let glob = invalid(&[("spec.planned_collect.globs[0]", "is no glob")]);
    let prefix = || {
        invalid(&[(
            "spec.planned_collect.save_as_artifacts.prefix",
            "begins with a slash",
        )])
    };
    let escapes = refusal(Code::InvalidArgument, "PATH_ESCAPES", &[("path", "../b")]);
    for (arguments, refused, said) in [
        (
            json!({"outputs": {"globs": ["out/[a"]}}),
            glob.clone(),
            "outputs.globs \"out/[a\": is no glob",
        ),
        (
            json!({"outputs": {"globs": ["out/a"]}, "output_files": ["out/[a"]}),
            glob,
            "output_files \"out/[a\": is no glob",
        ),
        (
            json!({"outputs": {"globs": ["a"]}}),
            invalid(&[("spec.planned_collect.globs", "65 globs")]),
            "outputs.globs: 65 globs",
        ),
        (
            json!({"outputs": {"globs": ["../b"]}}),
            escapes,
            "outputs.globs \"../b\": leads out of the workspace",
        ),
        (
            json!({"outputs": {"globs": ["a"], "save": true, "name_template": "/x"}}),
            prefix(),
            "outputs.name_template: begins with a slash",
        ),
        (
            json!({"outputs": {"globs": ["a"], "save": true}, "artifact_prefix": "/x"}),
            prefix(),
            "artifact_prefix: begins with a slash",
        ),
    ] {
        for tool in ["skill_run", "skill_exec"] {
            let mut talk = Talk::new(ToolOptions::default()).await;
            let refused = refused.clone();
            talk.fake.calls.refuse(STARTS, [refused]);
            let mut asked = run("hello");
            for (name, value) in arguments.as_object().into_iter().flatten() {
                asked[name] = value.clone();
            }
            let (code, message) = talk.refused(tool, asked).await;
            assert_eq!(
                (code.as_str(), message),
                ("INVALID_ARGUMENTS", format!("invalid args: {said}")),
                "{tool}"
            );
        }
    }
}

#[tokio::test]
async fn a_refused_host_setting_is_no_invalid_argument() {
    let mut talk = Talk::new(ToolOptions::default()).await;
    let refused = invalid(&[("spec.programs.allowed", "300 entries; at most 256")]);
    talk.fake.calls.refuse(STARTS, [refused]);
    let (code, _) = talk.refused("skill_run", run("hello")).await;
    assert_eq!(code, "DAEMON");
}

#[tokio::test]
async fn outputs_are_checked_before_the_command_starts() {
    let mut arguments = asking(&["out/*"]);
    arguments["save_as_artifacts"] = true.into();
    arguments["artifact_prefix"] = "p/".into();
    for (tool, command) in [("skill_run", "hello"), ("skill_exec", "cat")] {
        let mut talk = Talk::new(ToolOptions::default()).await;
        arguments["command"] = command.into();
        talk.call(tool, arguments.clone()).await;
        let outputs = talk.fake.runs().pop().and_then(|run| run.outputs);
        let of_run = outputs.and_then(|outputs| outputs.spec);
        let checked = of_run.or(talk.spec().planned_collect).expect("checked");
        assert_eq!(checked.globs, ["out/*"], "{tool}");
        let prefix = checked.save_as_artifacts.map(|save| save.prefix);
        assert_eq!(prefix.as_deref(), Some("p/"), "{tool}");
    }
}

#[tokio::test]
async fn files_that_nothing_collects_are_a_warning() {
    let mut talk = Talk::new(ToolOptions::default()).await;
    for (outside, is_cut, said) in [
        (
            vec!["/tmp/a"],
            false,
            Some("the command left /tmp/a outside of out/ and work/,"),
        ),
        (
            vec!["/tmp/a"],
            true,
            Some("the command left /tmp/a, and perhaps more, outside of out/ and work/,"),
        ),
        // No file was found in the part that was looked at.
        (
            vec![],
            true,
            Some("the command perhaps left files outside of out/ and work/,"),
        ),
        (vec![], false, None),
    ] {
        talk.fake
            .answer_collections(vec![summary(v1::CollectSummary {
                outside_paths: outside.into_iter().map(str::to_owned).collect(),
                outside_paths_truncated: is_cut,
                ..Default::default()
            })]);
        let result = talk.call("skill_run", run("hello")).await;
        let rest = " where files are not collected: write to $OUTPUT_DIR";
        let wanted = said.map(|said| json!([format!("{said}{rest}")]));
        assert_eq!(result.get("warnings"), wanted.as_ref());
    }
}

#[tokio::test]
async fn a_requested_file_that_was_not_changed_is_reported() {
    let mut talk = Talk::new(ToolOptions::default()).await;
    let unchanged = v1::SkippedFile {
        path: "out/old.txt".into(),
        reason: SkipReason::Unchanged.into(),
    };
    talk.fake
        .answer_collections(vec![summary(v1::CollectSummary {
            skipped_files: vec![unchanged],
            unchanged_count: 1,
            ..Default::default()
        })]);
    let result = talk.call("skill_run", asking(&["out/old.txt"])).await;
    let skipped = json!([{"name": "out/old.txt", "reason": "UNCHANGED"}]);
    assert_eq!(result["skipped_files"], skipped);
    let said = "not changed by this command, and so not among output_files: out/old.txt; read_file reads them";
    assert_eq!(result["warnings"], json!([said]));
    // A pattern that matches old files only.
    talk.fake
        .answer_collections(vec![summary(v1::CollectSummary {
            unchanged_count: 3,
            ..Default::default()
        })]);
    let result = talk.call("skill_run", asking(&["out/*"])).await;
    let said = "not changed by this command, and so not among output_files: all 3 files that match; read_file reads them";
    assert_eq!(result["warnings"], json!([said]));
    // Old files beside new ones are nothing to report, and neither are any where no file was asked for.
    let result = talk.call("skill_run", run("hello")).await;
    assert_eq!(result.get("warnings"), None);
}

#[tokio::test]
async fn a_file_that_was_not_saved_is_a_warning() {
    let mut talk = Talk::new(ToolOptions::default()).await;
    let skipped = |path: &str, reason: SkipReason| v1::SkippedFile {
        path: path.into(),
        reason: reason.into(),
    };
    talk.fake
        .answer_collections(vec![summary(v1::CollectSummary {
            skipped_files: vec![
                skipped("out/a", SkipReason::NotSaved),
                skipped("out/b", SkipReason::EmptyAfterFailure),
            ],
            ..Default::default()
        })]);
    let mut arguments = asking(&["out/*"]);
    arguments["save_as_artifacts"] = true.into();
    let result = talk.call("skill_run", arguments).await;
    assert_eq!(
        result["warnings"],
        json!(["not saved as artifacts: out/a, out/b"])
    );
    assert!(talk.fake.collect_spec().skip_empty_after_failure);
}

#[tokio::test]
async fn a_result_names_the_scope_of_its_artifacts() {
    let mut talk = Talk::new(ToolOptions::default()).await;
    talk.fake.answer_collections(
        [
            file("out/a", b"text", 4, true),
            vec![summary(v1::CollectSummary {
                artifacts: vec!["artifact://out/a@0".into()],
                ..Default::default()
            })],
        ]
        .concat(),
    );
    let mut arguments = run("hello");
    arguments["save_as_artifacts"] = true.into();
    let result = talk.call("skill_run", arguments).await;
    let scope = json!({"app": "app", "user": "ann", "session": "1"});
    assert_eq!(result["artifact_scope"], scope);
    talk.fake
        .answer_collections(vec![summary(v1::CollectSummary::default())]);
    let result = talk.call("skill_run", run("hello")).await;
    assert_eq!(result.get("artifact_scope"), None);
}
