//! `skillctl skill publish`, `delete` and `refresh`: what they send, print and note.

use std::fs;
use std::os::unix::fs::symlink;
use std::process::Output;

use skilld_client::v1::ProblemSeverity;
use skilld_client::v1::{DeleteSkillRequest, Problem, RefreshSkillsResponse};
use tonic::Code;

use crate::commands::skillctl;
use crate::publishing::{published, skill, write};
use skilld_testing::{Fake, invalid, refusal};

async fn run(fake: &Fake, words: &[&str]) -> (Option<i32>, String, String) {
    let Output {
        status,
        stdout,
        stderr,
    } = skillctl(fake, words).output().await.expect("runs");
    let text = |bytes| String::from_utf8(bytes).expect("utf-8");
    (status.code(), text(stdout), text(stderr))
}

#[tokio::test]
async fn skillctl_publishes_folders_and_archives() {
    let fake = Fake::start();
    let dir = skill();
    let folder = dir.path().display().to_string();
    let (code, said, noted) = run(&fake, &["skill", "publish", &folder]).await;
    assert_eq!(
        (code, said.as_str()),
        (Some(0), "csv 1.0 sha256:0f (2 files, 2.0 KiB)\n"),
        "{noted}"
    );
    assert_eq!(
        noted,
        "skillctl: warning skill.long_description SKILL.md:3: use less\n"
    );
    let first = published(&fake).remove(0);
    assert_eq!(first.0, "", "the name is that of the skill");
    let path = dir.path().join("other-1.0.tar.gz");
    fs::write(&path, &first.2).expect("writes");
    let archive = path.display().to_string();
    let words = ["-o", "json", "skill", "publish", &archive, "--name", "csv"];
    let (code, said, noted) = run(&fake, &words).await;
    assert_eq!((code, noted.as_str()), (Some(0), ""));
    assert!(said.contains(r#""digest":"sha256:0f""#), "{said}");
    let (name, sha256, bytes) = published(&fake).remove(0);
    assert_eq!(
        (name.as_str(), sha256, bytes),
        ("skills/csv", first.1, first.2)
    );
}

#[tokio::test]
async fn the_name_of_an_archives_file_is_the_last_resort() {
    let fake = Fake::start();
    let dir = tempfile::tempdir().expect("a directory");
    write(dir.path(), "csv-1.1.tar.gz", "x");
    let archive = dir.path().join("csv-1.1.tar.gz").display().to_string();
    let (code, _, noted) = run(&fake, &["skill", "publish", &archive]).await;
    assert_eq!(code, Some(0), "{noted}");
    let nameless = || invalid(&[("name", "is empty, and the skill has none")]);
    fake.calls.refuse("PublishSkill", [nameless()]);
    let (code, said, noted) = run(&fake, &["skill", "publish", &archive]).await;
    assert_eq!(code, Some(0), "{noted}");
    assert!(said.starts_with("csv-1.1 "), "{said}");
    // A name that the user gave is not replaced.
    fake.calls.refuse("PublishSkill", [nameless()]);
    let (code, ..) = run(&fake, &["skill", "publish", &archive, "--name", "x"]).await;
    assert_eq!(code, Some(1));
    let archives = published(&fake).into_iter();
    let names: Vec<String> = archives.map(|(name, ..)| name).collect();
    assert_eq!(names, ["", "", "skills/csv-1.1", "skills/x"]);
}

#[tokio::test]
async fn files_left_out_of_a_published_skill_are_noted() {
    let fake = Fake::start();
    let dir = skill();
    symlink("/etc/passwd", dir.path().join("link")).expect("links");
    let folder = dir.path().display().to_string();
    let (code, _, noted) = run(&fake, &["skill", "publish", &folder]).await;
    assert_eq!(code, Some(0), "{noted}");
    let expected = "skillctl: left out link: it is a link to /etc/passwd, out of the skill\n";
    assert!(noted.contains(expected), "{noted}");
}

#[tokio::test]
async fn skillctl_says_why_nothing_was_published() {
    let fake = Fake::start();
    let dir = skill();
    let folder = dir.path().display().to_string();
    for (status, reason) in [
        (Code::FailedPrecondition, "SKILL_INVALID"),
        (Code::PermissionDenied, "PERMISSION_DENIED"),
        (Code::AlreadyExists, "ID_TAKEN"),
    ] {
        let refused = refusal(status, reason, &[]);
        fake.calls.refuse("PublishSkill", [refused]);
        let (code, said, noted) = run(&fake, &["skill", "publish", &folder]).await;
        assert_eq!((code, said.as_str()), (Some(1), ""));
        assert!(
            noted.starts_with(&format!("error: {} happened", reason.to_lowercase()))
                && noted.contains(reason),
            "{noted}"
        );
        assert!(!noted.contains("skill show"), "{noted}");
    }
    fake.calls.take();
    fs::remove_file(dir.path().join("SKILL.md")).expect("removes");
    for path in [folder.as_str(), "/dev/null", "missing"] {
        let (code, _, noted) = run(&fake, &["skill", "publish", path]).await;
        assert_eq!(code, Some(1), "{noted}");
    }
    assert_eq!(fake.calls.count("PublishSkill"), 0, "nothing was sent");
}

#[tokio::test]
async fn skillctl_deletes_one_version_or_all_when_told_so() {
    let fake = Fake::start();
    for (words, code, printed) in [
        (vec!["csv"], 1, ""),
        (vec!["csv@1.0"], 0, "csv@1.0\n"),
        (vec!["csv@sha256:0f"], 0, "csv@sha256:0f\n"),
        (vec!["csv", "--all"], 0, "csv\n"),
        (vec!["csv@1.0", "--all"], 1, ""),
    ] {
        let words = [vec!["skill", "delete"], words].concat();
        let (ended, said, noted) = run(&fake, &words).await;
        assert_eq!((ended, said.as_str()), (Some(code), printed), "{noted}");
    }
    let deleted = ["skills/csv@1.0", "skills/csv@sha256:0f", "skills/csv"];
    let asked = fake.calls.requests::<DeleteSkillRequest>("DeleteSkill");
    let names: Vec<String> = asked.into_iter().map(|request| request.name).collect();
    assert_eq!(names, deleted);
}

#[tokio::test]
async fn skillctl_refresh_fails_when_not_all_is_there() {
    let fake = Fake::start();
    let answer = |problems| RefreshSkillsResponse {
        loaded_count: 3,
        problems,
        ..Default::default()
    };
    fake.calls.reply("RefreshSkills", [answer(Vec::new())]);
    let (code, said, _) = run(&fake, &["skill", "refresh"]).await;
    assert_eq!(
        (code, said.as_str()),
        (Some(0), "3 loaded, 0 rejected, 0 shadowed\n")
    );
    for (severity, problem, expected) in [
        (ProblemSeverity::Warning, "root.skill_skipped", 0),
        (ProblemSeverity::Warning, "root.pending", 1),
        (ProblemSeverity::Error, "root.unreachable", 1),
    ] {
        let found = Problem {
            severity: severity.into(),
            code: problem.into(),
            subject: "https://example.com/".into(),
            ..Default::default()
        };
        fake.calls.reply("RefreshSkills", [answer(vec![found])]);
        let (code, _, noted) = run(&fake, &["skill", "refresh"]).await;
        assert_eq!(code, Some(expected), "{problem}");
        assert!(noted.contains(problem), "{noted}");
        let (code, said, _) = run(&fake, &["-o", "json", "skill", "refresh"]).await;
        assert_eq!(code, Some(expected));
        assert!(said.contains(problem), "{said}");
    }
}
