//! Staging of skills by `skillctl`: writable copies, and notes about packages that are not installed.

use serde_json::Value;
use skilld_client::v1::Problem;
use skilld_testing::Fake;
use skilld_testing::skills::Kit;

use crate::commands::{fake, skillctl};

/// Runs a command that succeeds. Returns its stdout and stderr.
async fn run(fake: &Fake, words: &[&str]) -> (String, String) {
    let output = skillctl(fake, words).output().await.expect("runs");
    let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).expect("utf-8");
    let (stdout, stderr) = (text(&output.stdout), text(&output.stderr));
    assert_eq!(output.status.code(), Some(0), "{words:?}: {stdout}{stderr}");
    (stdout, stderr)
}

#[tokio::test]
async fn every_staging_command_can_request_writable_skills() {
    for (words, flag) in [
        (vec!["stage", "w", "--skill", "csv-report"], "--writable"),
        (vec!["run", "csv-report", "hello"], "--writable"),
        (
            vec![
                "tool",
                "call",
                "skill_run",
                "{\"skill\": \"csv-report\", \"command\": \"hello\"}",
            ],
            "--writable-skills",
        ),
    ] {
        for is_set in [false, true] {
            let fake = fake();
            // The options of `run` come before its command.
            let mut words = words.clone();
            if is_set {
                let at = if words[0] == "run" { 1 } else { words.len() };
                words.insert(at, flag);
            }
            run(&fake, &words).await;
            let staged = fake.staged_skills();
            let writable: Vec<bool> = staged.iter().map(|request| request.writable).collect();
            assert_eq!(writable, [is_set], "{words:?}");
        }
    }
}

#[tokio::test]
async fn all_skills_that_do_not_exist_are_named() {
    let fake = fake();
    fake.state.lock().kits = vec![Kit::new("there", "1.0.0")];
    let words = [
        "stage", "w", "--skill", "nope", "--skill", "there", "--skill", "nope2",
    ];
    let output = skillctl(&fake, &words).output().await.expect("runs");
    assert_eq!(output.status.code(), Some(1));
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    let begin = "error: the skills nope, nope2 do not exist: ";
    assert!(said.starts_with(begin), "{said}");
    assert!(
        said.contains("SKILL_NOT_FOUND") && said.contains("skillctl skill list"),
        "{said}"
    );
}

#[tokio::test]
async fn stage_says_whether_a_skill_is_writable() {
    let fake = fake();
    let words = ["stage", "w", "--skill", "csv-report"];
    let (stdout, _) = run(&fake, &words).await;
    assert!(!stdout.contains("writable"), "{stdout}");
    let (stdout, _) = run(&fake, &[&words[..], &["--writable"]].concat()).await;
    assert!(stdout.ends_with(", writable)\n"), "{stdout}");
    let json = [&["-o", "json"], &words[..], &["--writable"]].concat();
    let (stdout, _) = run(&fake, &json).await;
    let staged: Value = serde_json::from_str(&stdout).expect("JSON");
    assert_eq!(staged["skills"][0]["writable"], true);
}

#[tokio::test]
async fn stage_and_run_note_which_packages_are_not_installed() {
    let fake = fake();
    fake.state.lock().stage_problems = vec![Problem {
        code: "environment.not_built".into(),
        message: "the packages of skill csv-report are not built".into(),
        ..Problem::default()
    }];
    let note = "skillctl: the packages of skill csv-report are not built (environment.not_built)\n";
    let (_, said) = run(&fake, &["stage", "w", "--skill", "csv-report"]).await;
    assert_eq!(said, note);
    let (stdout, said) = run(&fake, &["run", "csv-report", "hello"]).await;
    assert_eq!((stdout.as_str(), said.as_str()), ("hello\n", note));
    // The object has them already.
    let json = ["-o", "json", "stage", "w", "--skill", "csv-report"];
    let (stdout, said) = run(&fake, &json).await;
    assert_eq!(said, "");
    assert!(stdout.contains("environment.not_built"), "{stdout}");
}
