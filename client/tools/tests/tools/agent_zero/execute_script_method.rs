//! Scripts: each runs once, and what it did and said is never lost.

use serde_json::{Value, json};
use skilld_client::v1::SkipReason;
use skilld_client::v1::collect_outputs_response::Payload;
use skilld_client::v1::{CollectOutputsResponse, CollectSummary, FileEnd, SkippedFile};
use skilld_tools::{Family, ToolOptions};
use tonic::{Code, Status};

use super::{conversation, conversation_with, options, run, text, use_tool};
use crate::conversation::{check_fields, check_warning};
use skilld_testing::collection_messages::file;
use skilld_testing::{EVENTS, refusal};

fn gone() -> Status {
    refusal(Code::NotFound, "WORKSPACE_NOT_FOUND", &[])
}

fn failed() -> Status {
    let state = [("state", "failed")];
    refusal(Code::FailedPrecondition, "WORKSPACE_NOT_READY", &state)
}

/// Only before it started could nothing have happened.
#[tokio::test]
async fn a_started_script_is_not_repeated_when_its_workspace_goes() {
    for lost in [gone(), failed()] {
        let (fake, mut talk) = conversation(options()).await;
        use_tool(&mut talk, run(&json!({"argv": ["one"]}))).await;
        fake.calls.break_after(EVENTS, 1, Some(lost));
        let again = run(&json!({"argv": ["two"]}));
        let (code, message) = talk.refused("skills_tool", again).await;
        assert_eq!(code, "WORKSPACE_LOST", "{message}");
        assert_eq!(fake.state.lock().starts, 2);
    }
}

#[tokio::test]
async fn a_scripts_result_survives_a_failed_collection() {
    let broken = refusal(Code::Internal, "INTERNAL", &[]);
    for (status, said) in [
        (gone(), "workspace_not_found"),
        (broken, "internal happened"),
    ] {
        let (fake, mut talk) = conversation(options()).await;
        // After what was staged, the start, the output and both ends.
        fake.calls.break_after(EVENTS, 5, Some(status));
        let ran = use_tool(&mut talk, run(&json!({"argv": ["hello"]}))).await;
        check_fields(
            &ran,
            &json!({"exit_code": 0, "stdout": "hello\n", "files": []}),
        );
        let warning = ran["warnings"][0].as_str().expect("a warning");
        assert!(
            warning.starts_with("its files could not be collected: ") && warning.contains(said),
            "{warning}"
        );
        assert!(text(&ran).contains(&format!("Note: {warning}\n")), "{ran}");
        assert_eq!(fake.state.lock().starts, 1);
    }
}

#[tokio::test]
async fn a_call_id_is_for_one_script() {
    let (fake, mut talk) = conversation(options()).await;
    let first = run(&json!({"argv": ["one"]}));
    talk.call_as("call-1", "skills_tool", first)
        .await
        .expect("runs");
    let other = run(&json!({"argv": ["two"]}));
    let error = talk
        .call_as("call-1", "skills_tool", other)
        .await
        .expect_err("it is taken");
    assert_eq!(error["error"], "CALL_ID_TAKEN", "{error}");
    assert_eq!(fake.state.lock().starts, 1);
}

#[tokio::test]
async fn saved_files_are_named_and_unsaved_or_unread_ones_reported() {
    let (fake, mut talk) = conversation_with(|options| options.force_save_artifacts = true).await;
    let mut files = file("out/form.pdf", b"bytes");
    for message in &mut files {
        if let Some(Payload::FileEnd(FileEnd { artifact, .. })) = &mut message.payload {
            *artifact = "artifact://out/form.pdf@1".into();
        }
    }
    let skipped = |path: &str, reason: SkipReason| SkippedFile {
        path: path.into(),
        reason: reason.into(),
    };
    files.push(CollectOutputsResponse {
        payload: Some(Payload::Summary(CollectSummary {
            limits_hit: true,
            skipped_files: vec![
                skipped("out/big", SkipReason::NotSaved),
                skipped("out/half", SkipReason::NotWhole),
                skipped("out/pipe", SkipReason::FileType),
            ],
            ..CollectSummary::default()
        })),
    });
    fake.answer_collections(files);
    let ran = use_tool(&mut talk, run(&json!({"argv": ["x"]}))).await;
    assert_eq!(ran["files"][0]["artifact"], "artifact://out/form.pdf@1");
    assert_eq!(ran["limits_hit"], true);
    let said = [
        "not saved as artifacts: out/big, out/half",
        "not listed, since they are no regular files, cannot be read or lie too deep: out/pipe",
    ];
    assert_eq!(ran["warnings"], json!(said));
    let spec = fake.collect_spec();
    let save = spec.save_as_artifacts.expect("saved");
    assert_eq!(save.scope, Some(talk.session.scope()));
}

#[tokio::test]
async fn a_script_reads_what_it_is_given_on_its_stdin() {
    let (_fake, mut talk) = conversation(options()).await;
    for given in ["in", "two\nlines 😀\n"] {
        let ran = use_tool(&mut talk, run(&json!({"argv": ["cat"], "stdin": given}))).await;
        assert_eq!(ran["stdout"], given);
    }
}

#[tokio::test]
async fn shermas_scripts_take_arguments_that_are_text_of_a_map_too() {
    let (fake, mut talk) = conversation(ToolOptions {
        family: Family::Sherma,
        additions: true,
        ..ToolOptions::default()
    })
    .await;
    let run = |args: Value| json!({"skill_id": "pdf-editing", "script_path": "scripts/fill.py", "script_args": args});
    for args in [json!({"z": 1, "a": true}), json!(r#"{"z": 1, "a": true}"#)] {
        talk.ok("run_skill_script", run(args)).await;
        let (_, exec) = fake.state.lock().execs.pop_first().expect("one");
        let args = exec.spec.script.expect("a script").args;
        let keys: Vec<&str> = args.iter().map(|arg| arg.key.as_str()).collect();
        assert_eq!(keys, ["z", "a"]);
    }
    let (code, message) = talk.refused("run_skill_script", run(json!("a b"))).await;
    assert_eq!(code, "INVALID_ARGUMENTS");
    assert!(message.contains("script_args must be a map"), "{message}");
}

#[tokio::test]
async fn causes_hidden_by_the_exit_code_are_notes_in_the_text() {
    let (_fake, mut talk) = conversation(options()).await;
    let ran = use_tool(&mut talk, run(&json!({"argv": ["oom", "1"]}))).await;
    assert_eq!(
        (&ran["exit_code"], &ran["outcome"]),
        (&json!(0), &json!("exited"))
    );
    let oom = "1 process was killed for memory";
    assert!(text(&ran).contains(&format!("Note: {oom}")), "{ran}");
    check_warning(&ran, oom);
    let in_skill = json!({"argv": ["readonly"], "cwd": "skill_root"});
    let ran = use_tool(&mut talk, run(&in_skill)).await;
    let read_only = "skills are read-only: write to out/ or work/";
    assert!(text(&ran).contains(&format!("Note: {read_only}")), "{ran}");
    check_warning(&ran, read_only);
}
