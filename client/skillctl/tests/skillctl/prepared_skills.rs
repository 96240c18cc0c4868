//! `skillctl skill prepare`: the packages that it adds, and what it notes.

use std::process::Output;

use skilld_client::v1::ProblemSeverity;
use skilld_client::v1::prepare_skill_response::Payload;
use skilld_client::v1::{PrepareSkillRequest, PrepareSkillResponse, PreparedSkill, Problem};
use skilld_testing::Fake;

use crate::commands::skillctl;

async fn run(fake: &Fake, words: &[&str]) -> (Option<i32>, String) {
    let Output { status, stderr, .. } = skillctl(fake, words).output().await.expect("runs");
    (status.code(), String::from_utf8(stderr).expect("utf-8"))
}

fn reply(fake: &Fake, result: PreparedSkill) {
    let message = PrepareSkillResponse {
        payload: Some(Payload::Result(result)),
    };
    fake.calls.reply("PrepareSkill", [message]);
}

#[tokio::test]
async fn prepare_sends_the_packages_of_its_line() {
    let fake = Fake::start();
    let line = "skill prepare csv --package simpy --package pandas>=2,<3 --npm docx@^9 --npm @s/x --pool office";
    let words: Vec<&str> = line.split(' ').collect();
    assert_eq!(run(&fake, &words).await.0, Some(0));
    assert_eq!(
        run(&fake, &["skill", "prepare", "csv", "--no-packages"])
            .await
            .0,
        Some(0)
    );
    let texts = |texts: &[&str]| texts.iter().map(ToString::to_string).collect::<Vec<_>>();
    let added = PrepareSkillRequest {
        name: "skills/csv".to_owned(),
        pool: "pools/office".to_owned(),
        packages: texts(&["simpy", "pandas>=2,<3"]),
        npm_packages: texts(&["docx@^9", "@s/x"]),
        ..PrepareSkillRequest::default()
    };
    let forgotten = PrepareSkillRequest {
        name: "skills/csv".to_owned(),
        forget_packages: true,
        ..PrepareSkillRequest::default()
    };
    let requests: Vec<PrepareSkillRequest> = fake.calls.requests("PrepareSkill");
    assert_eq!(requests, [added, forgotten]);
    let both = ["skill", "prepare", "csv", "--no-packages", "--npm", "docx"];
    assert_eq!(run(&fake, &both).await.0, Some(2));
    assert_eq!(fake.calls.count("PrepareSkill"), 2);
}

#[tokio::test]
async fn prepare_advises_to_add_packages_where_none_are_named() {
    let fake = Fake::start();
    let (code, noted) = run(&fake, &["skill", "prepare", "csv"]).await;
    assert_eq!(
        (code, noted.as_str()),
        (
            Some(0),
            "skillctl: csv names no packages, so there is nothing to install: if its SKILL.md says to install some, add \
             them with --package NAME (Python) and --npm NAME (Node.js)\n"
        )
    );
}

#[tokio::test]
async fn prepare_names_added_packages_also_after_a_failure() {
    let fake = Fake::start();
    reply(
        &fake,
        PreparedSkill {
            problems: vec![Problem {
                code: "environment.build_failed".to_owned(),
                message: "the index has no package".to_owned(),
                ..Problem::default()
            }],
            added_packages: vec!["simpyy".to_owned(), "npm:docx@9".to_owned()],
            ..PreparedSkill::default()
        },
    );
    let (code, noted) = run(&fake, &["skill", "prepare", "csv"]).await;
    assert_eq!(code, Some(1), "{noted}");
    let expected =
        "skillctl: packages that were added to those that csv names: simpyy, npm:docx@9\n";
    assert!(noted.starts_with(expected), "{noted}");
    assert!(noted.contains("the index has no package"), "{noted}");
}

#[tokio::test]
async fn prepare_succeeds_unless_a_problem_is_more_than_a_warning() {
    for (severity, expected) in [(ProblemSeverity::Warning, 0), (ProblemSeverity::Error, 1)] {
        let fake = Fake::start();
        let problems = vec![Problem {
            severity: severity.into(),
            ..Problem::default()
        }];
        reply(
            &fake,
            PreparedSkill {
                problems,
                ..PreparedSkill::default()
            },
        );
        let (code, noted) = run(&fake, &["skill", "prepare", "csv"]).await;
        assert_eq!(code, Some(expected), "{noted}");
    }
}
