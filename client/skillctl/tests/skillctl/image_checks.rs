//! `skillctl image check`: what it prints of an image, and its exit code.

use prost_types::Duration;
use skilld_client::v1::ProblemSeverity;
use skilld_client::v1::{CheckImageResponse, ImageFinding};
use skilld_testing::Fake;

use crate::commands::{fake, skillctl};

/// Runs a command. Returns its code, its stdout and its stderr.
async fn run(fake: &Fake, words: &[&str]) -> (Option<i32>, String, String) {
    let output = skillctl(fake, words).output().await.expect("runs");
    let text = |bytes| String::from_utf8(bytes).expect("utf-8");
    (
        output.status.code(),
        text(output.stdout),
        text(output.stderr),
    )
}

#[tokio::test]
async fn image_check_prints_its_findings_and_fails_for_an_error() {
    let fake = fake();
    let finding = |severity: ProblemSeverity, code: &str, message: &str| ImageFinding {
        severity: severity.into(),
        code: code.into(),
        message: message.into(),
    };
    let missing = "uv is missing: scripts that name their packages do not run";
    let missing = finding(ProblemSeverity::Warning, "image.program_missing", missing);
    let checked = CheckImageResponse {
        findings: vec![missing.clone()],
        usable: true,
        image_id: "sha256:0123".into(),
        size_bytes: 300 << 20,
        start_duration: Some(Duration {
            seconds: 0,
            nanos: 620_000_000,
        }),
        program_count: Some(914),
        python_version: "3.13.5".into(),
        python_package_count: Some(41),
        node_package_count: Some(12),
        ..Default::default()
    };
    fake.calls.reply("CheckImage", [checked]);
    let (code, found, said) = run(&fake, &["image", "check", "my/tools:1"]).await;
    assert_eq!(code, Some(0));
    let expected = "\
image:      sha256:0123
size:       300.0 MiB
started in: 620ms
programs:   914
python:     3.13.5, 41 packages
node:       12 packages
SEVERITY  FINDING                WHAT TO DO
warning   image.program_missing  uv is missing: scripts that name their packages do not run
";
    assert_eq!(found, expected);
    assert_eq!(said, "skillctl: my/tools:1 is usable\n");
    let broken = finding(
        ProblemSeverity::Error,
        "image.no_bash",
        "bash does not work",
    );
    let checked = CheckImageResponse {
        findings: vec![broken, missing],
        ..Default::default()
    };
    fake.calls.reply("CheckImage", [checked]);
    let (code, found, said) = run(
        &fake,
        &["image", "check", "bad/tools:1", "--pool", "office"],
    )
    .await;
    assert_eq!(code, Some(1));
    assert!(
        found.contains("error     image.no_bash          bash does not work"),
        "{found}"
    );
    assert_eq!(said, "skillctl: bad/tools:1 is not usable\n");
}
