//! The words of the command line: where options end, where commands start, and what the everyday verbs do.

use std::ffi::OsStr;
use std::fmt::Debug;
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;
use std::process::{Output, Stdio};

use skilld_client::v1::ProblemSeverity;
use skilld_client::v1::{
    ArtifactScope, CollectOutputsResponse, CollectSummary, ListArtifactsRequest,
    ListProblemsResponse, ListSkillsResponse, Problem, Skill, collect_outputs_response,
};
use skilld_tests::pty::Pty;
use tokio::io::AsyncWriteExt;

use crate::commands::{fake, skillctl};
use skilld_testing::collection_messages::{file, summary};
use skilld_testing::{Fake, STARTS};

async fn run(fake: &Fake, words: &[&str]) -> Output {
    skillctl(fake, words).output().await.expect("runs")
}

fn text(bytes: &[u8]) -> &str {
    std::str::from_utf8(bytes).expect("utf-8")
}

/// The spec of the exec with this id in workspace `w`.
fn spec(fake: &Fake, id: &str) -> skilld_client::v1::ExecSpec {
    fake.exec(id).spec
}

#[tokio::test]
async fn a_command_needs_no_dashes_before_it() {
    let fake = fake();
    for (words, printed) in [
        (vec!["exec", "w", "ls"], "ls\n"),
        (
            vec!["exec", "w", "ls", "-la", "--id", "y"],
            "ls -la --id y\n",
        ),
        (
            vec!["exec", "w", "--env", "A=b", "ls", "-o", "json"],
            "ls -o json\n",
        ),
        (vec!["exec", "w", "--", "-x", "a"], "-x a\n"),
        (vec!["run", "ok", "ls", "-la"], "ls -la\n"),
    ] {
        let output = run(&fake, &words).await;
        assert_eq!(text(&output.stdout), printed, "{words:?}");
    }
    let output = run(&fake, &["exec", "w", "--frob", "ls"]).await;
    assert_eq!(
        output.status.code(),
        Some(125),
        "a mistyped option is no command"
    );
}

#[tokio::test]
async fn commands_start_where_paths_begin() {
    let fake = fake();
    for (words, cwd) in [
        (vec!["exec", "w", "--id", "a", "ls"], "."),
        (vec!["exec", "w", "--id", "b", "--cwd", "out", "ls"], "out"),
        (vec!["exec", "w", "--id", "c", "--skill", "s", "ls"], ""),
        (
            vec!["exec", "w", "--id", "d", "--skill", "s", "--cwd", "x", "ls"],
            "x",
        ),
    ] {
        assert!(run(&fake, &words).await.status.success());
        assert_eq!(spec(&fake, words[3]).cwd, cwd, "{words:?}");
    }
}

#[tokio::test]
async fn dash_e_sets_a_variable_before_and_after_the_workspace() {
    let fake = fake();
    for (id, words) in [
        ("a", ["exec", "-e", "A=1", "w", "--id", "a", "hello"]),
        ("b", ["exec", "w", "--id", "b", "-e", "A=1", "hello"]),
    ] {
        assert!(run(&fake, &words).await.status.success());
        let spec = fake.exec(id).spec;
        assert_eq!(
            (spec.env["A"].as_str(), spec.argv),
            ("1", vec!["hello".to_owned()])
        );
    }
}

#[tokio::test]
async fn run_gives_its_stdin_to_the_command() {
    let fake = fake();
    let mut command = skillctl(&fake, &["run", "ok", "-i", "cat"]);
    command.stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut child = command.spawn().expect("starts");
    let mut stdin = child.stdin.take().expect("a pipe");
    stdin.write_all(b"pear\n").await.expect("writes");
    drop(stdin);
    let output = child.wait_with_output().await.expect("ends");
    assert_eq!(
        (output.status.code(), output.stdout.as_slice()),
        (Some(0), &b"pear\n"[..])
    );
    let twice = run(&fake, &["run", "ok", "-i", "--input", "-=a", "cat"]).await;
    assert_eq!(twice.status.code(), Some(125));
    assert!(text(&twice.stderr).contains("not both"));
}

#[tokio::test]
async fn a_workspaces_size_is_what_the_flags_say() {
    let fake = fake();
    let words = [
        "workspace",
        "create",
        "--id",
        "s",
        "--memory",
        "64MiB",
        "--disk",
        "32MiB",
        "--cpus",
        "0.5",
    ];
    assert!(run(&fake, &words).await.status.success());
    let limits = fake.state.lock().workspaces["workspaces/s"]
        .limits
        .expect("are set");
    assert_eq!(
        (limits.memory_bytes, limits.disk_bytes, limits.cpu_millis),
        (64 << 20, 32 << 20, 500)
    );
    let words = ["run", "ok", "--memory", "64MiB", "--keep", "hello"];
    assert!(run(&fake, &words).await.status.success());
    let state = fake.state.lock();
    let mut others = state
        .workspaces
        .values()
        .filter(|it| it.name != "workspaces/s");
    assert!(others.any(|it| {
        it.limits
            .is_some_and(|limits| limits.memory_bytes == 64 << 20)
    }));
}

#[tokio::test]
async fn creating_a_workspace_twice_is_an_error_unless_allowed() {
    let fake = fake();
    let create = ["workspace", "create", "--id", "x"];
    assert!(run(&fake, &create).await.status.success());
    let again = run(&fake, &create).await;
    assert_eq!(again.status.code(), Some(1));
    assert!(
        text(&again.stderr).contains("--allow-existing"),
        "{}",
        text(&again.stderr)
    );
    let allowed = run(&fake, &[&create[..], &["--allow-existing"]].concat()).await;
    assert_eq!(
        (allowed.status.code(), allowed.stdout.as_slice()),
        (Some(0), &b"x\n"[..])
    );
}

#[tokio::test]
async fn collecting_nothing_is_a_failure_that_says_so() {
    let fake = fake();
    let nothing = collect_outputs_response::Payload::Summary(CollectSummary::default());
    fake.answer_collections(vec![CollectOutputsResponse {
        payload: Some(nothing),
    }]);
    for words in [
        vec!["collect", "w", "out/*.csv", "--to", "to"],
        vec!["collect", "w", "out/*.csv", "--tar", "all.tar"],
        vec!["run", "ok", "--collect", "out/*.csv", "hello"],
    ] {
        let output = run(&fake, &words).await;
        assert_eq!(output.status.code(), Some(1), "{words:?}");
        assert!(
            text(&output.stderr).contains("no file matches"),
            "{words:?}"
        );
    }
    assert!(!fake.path("all.tar").exists());
    fake.answer_collections([file("out/r", b"x"), vec![summary()]].concat());
    assert!(
        run(&fake, &["collect", "w", "out/*"])
            .await
            .status
            .success()
    );
}

#[tokio::test]
async fn problems_of_skills_and_of_the_daemon_fail_for_errors_only() {
    let fake = fake();
    for (severities, code) in [
        (vec![], 0),
        (vec![ProblemSeverity::Warning], 0),
        (vec![ProblemSeverity::Warning, ProblemSeverity::Error], 1),
    ] {
        let problems: Vec<Problem> = severities
            .iter()
            .map(|severity| Problem {
                severity: (*severity).into(),
                code: "skill.folder_name".into(),
                ..Default::default()
            })
            .collect();
        let skill = Skill {
            name: "skills/a".into(),
            problems: problems.clone(),
            ..Default::default()
        };
        let listed = ListSkillsResponse {
            skills: vec![skill],
            ..Default::default()
        };
        fake.calls.reply("ListSkills", [listed]);
        let found = ListProblemsResponse {
            problems,
            ..Default::default()
        };
        fake.calls.reply("ListProblems", [found]);
        for words in [["problems"].as_slice(), &["skill", "problems"]] {
            let output = run(&fake, words).await;
            assert_eq!(output.status.code(), Some(code), "{words:?} {severities:?}");
            let lines = text(&output.stdout).lines().count();
            assert_eq!(lines, severities.len().max(1), "{words:?}");
        }
    }
}

#[tokio::test]
async fn logs_print_what_was_printed_and_wait_exits_with_the_code() {
    let fake = fake();
    run(&fake, &["exec", "w", "-d", "--id", "x", "forever"]).await;
    let output = run(&fake, &["logs", "w/x"]).await;
    assert_eq!(
        (output.status.code(), output.stdout.as_slice()),
        (Some(0), &b"started\n"[..])
    );
    let output = run(&fake, &["logs", "w/x", "--offset", "5"]).await;
    assert_eq!(output.stdout, b"ed\n");
    run(&fake, &["kill", "w/x"]).await;
    let output = run(&fake, &["wait", "w/x"]).await;
    assert_eq!(
        (output.status.code(), output.stdout.as_slice()),
        (Some(143), &b"w/x killed by client\n"[..])
    );
    run(&fake, &["exec", "w", "-d", "--id", "y", "exit", "3"]).await;
    let output = run(&fake, &["wait", "w/y"]).await;
    assert_eq!(
        (output.status.code(), output.stdout.as_slice()),
        (Some(3), &b"w/y exit 3\n"[..])
    );
    let output = run(&fake, &["logs", "-f", "w/y"]).await;
    assert_eq!((output.status.code(), output.stdout.len()), (Some(0), 0));
}

#[tokio::test]
async fn cp_copies_files_both_ways_and_directories_out() {
    let fake = fake();
    std::fs::write(fake.path("a.csv"), "a,b\n").expect("writes");
    for (target, path) in [("w:out/", "out/a.csv"), ("w:work/b.csv", "work/b.csv")] {
        assert!(run(&fake, &["cp", "a.csv", target]).await.status.success());
        assert_eq!(fake.state.lock().staged[path], b"a,b\n");
    }
    std::fs::create_dir(fake.path("to")).expect("makes");
    for (target, made) in [("b.csv", "b.csv"), ("to", "to/a.csv")] {
        assert!(
            run(&fake, &["cp", "w:out/a.csv", target])
                .await
                .status
                .success()
        );
        assert_eq!(std::fs::read(fake.path(made)).expect("reads"), b"a,b\n");
    }
    assert_eq!(
        run(&fake, &["cp", "w:out/a.csv", "-"]).await.stdout,
        b"a,b\n"
    );
    fake.answer_collections([file("out/a.csv", b"a,b\n"), vec![summary()]].concat());
    assert!(
        run(&fake, &["cp", "w:out", "results"])
            .await
            .status
            .success()
    );
    assert_eq!(
        std::fs::read(fake.path("results/a.csv")).expect("reads"),
        b"a,b\n"
    );
    assert_eq!(fake.collect_spec().globs, ["out"]);
    for words in [["cp", "a", "b"], ["cp", "w:a", "w:b"]] {
        assert_eq!(run(&fake, &words).await.status.code(), Some(1), "{words:?}");
    }
}

#[tokio::test]
async fn workspace_get_shows_slot_and_container_if_it_learns_them() {
    let fake = fake();
    let said = run(&fake, &["workspace", "get", "w"]).await.stdout;
    assert!(!text(&said).contains("slot") && !text(&said).contains("container"));
    {
        let mut state = fake.state.lock();
        let workspace = state.workspaces.get_mut("workspaces/w").expect("is there");
        workspace.slot = "7".into();
        workspace.container_id = "0123456789ab".into();
    }
    let said = run(&fake, &["workspace", "get", "w"]).await.stdout;
    for (key, value) in [("slot:", "7"), ("container:", "0123456789ab")] {
        let line = text(&said).lines().find(|line| line.starts_with(key));
        assert!(line.is_some_and(|line| line.ends_with(value)), "{key}");
    }
}

#[tokio::test]
async fn errors_of_the_daemon_name_options_and_sizes() {
    let fake = fake();
    for (field, fault, said) in [
        (
            "spec.timeout",
            "must be longer than 0 s",
            "--timeout: must be longer than 0 s",
        ),
        (
            "spec.shell",
            "180026 bytes; at most 131071",
            "the command: 175.8 KiB; at most 128.0 KiB",
        ),
        (
            "spec.argv[1]",
            "180026 bytes",
            "`skillctl cp` puts a long text",
        ),
    ] {
        let refusal = skilld_testing::invalid(&[(field, fault)]);
        fake.calls.refuse(STARTS, [refusal]);
        let output = run(&fake, &["exec", "w", "ls"]).await;
        assert_eq!(output.status.code(), Some(125));
        assert!(
            text(&output.stderr).contains(said),
            "{}",
            text(&output.stderr)
        );
    }
}

#[tokio::test]
async fn version_needs_no_daemon() {
    let fake = fake();
    let ours = format!("skillctl {}\n", env!("CARGO_PKG_VERSION"));
    let output = run(&fake, &["version"]).await;
    assert_eq!(text(&output.stdout), format!("{ours}skilld 0.1.0-fake\n"));
    let output = run(&fake, &["--endpoint", "unix:/nowhere.sock", "version"]).await;
    assert_eq!(
        (output.status.code(), text(&output.stdout)),
        (Some(0), ours.as_str())
    );
}

#[tokio::test]
async fn completion_offers_the_names_that_the_daemon_knows() {
    let fake = fake();
    run(&fake, &["exec", "w", "-d", "--id", "x", "forever"]).await;
    let artifact = (0, b"x".to_vec());
    fake.state.lock().artifacts = [("artifacts/out/r.csv".to_owned(), artifact)].into();
    for (words, offered) in [
        (vec!["skillctl", "rm", ""], "w"),
        (vec!["skillctl", "rm", "w"], "w/"),
        (vec!["skillctl", "rm", "w/"], "w/x"),
        (vec!["skillctl", "artifact", "load", "o"], "out/r.csv"),
        (vec!["skillctl", "artifact", "versions", "o"], "out/r.csv"),
        (vec!["skillctl", "work"], "workspace"),
        (vec!["skillctl", "workspace", "get", ""], "w"),
        (vec!["skillctl", "kill", ""], "w/"),
        (vec!["skillctl", "kill", "w/"], "w/x"),
        (vec!["skillctl", "run", "csv"], "csv-report"),
        (vec!["skillctl", "exec", "w", "--skill", "c"], "csv-report"),
        (vec!["skillctl", "cp", "w"], "w:"),
    ] {
        check_offered(&fake, &words, offered).await;
    }
}

/// Number of tries of a completion, which offers nothing if the daemon's answer is late.
const TRIES: usize = 5;

/// Checks that a word is among those that complete the last one. Returns all of them.
async fn check_offered(
    fake: &Fake,
    words: &[impl AsRef<OsStr> + Debug],
    offered: &str,
) -> Vec<String> {
    let mut lines = Vec::new();
    for _ in 0..TRIES {
        lines = completions(fake, words).await;
        if lines.iter().any(|line| line == offered) {
            return lines;
        }
    }
    panic!("{words:?}: {lines:?}");
}

/// Completes the last word as a shell does that sends words. The tests in bash complete lines.
async fn completions(fake: &Fake, words: &[impl AsRef<OsStr>]) -> Vec<String> {
    let output = skillctl(fake, &[])
        .arg("--")
        .args(words)
        .env("SKILLCTL_COMPLETE", "elvish")
        .env("_CLAP_COMPLETE_INDEX", (words.len() - 1).to_string())
        .output()
        .await
        .expect("runs");
    text(&output.stdout).lines().map(str::to_owned).collect()
}

/// Returns the scopes in which artifacts were listed since the calls were forgotten, and forgets the calls.
fn artifact_scopes(fake: &Fake) -> Vec<ArtifactScope> {
    let asked = fake.calls.requests::<ListArtifactsRequest>("ListArtifacts");
    fake.calls.take();
    asked
        .into_iter()
        .filter_map(|request| request.scope)
        .collect()
}

#[tokio::test]
async fn artifacts_are_completed_in_the_scope_of_the_line() {
    let fake = fake();
    for (words, (app, user, session)) in [
        (
            vec!["artifact", "load", "--app", "shop", "--user=ada", "x"],
            ("shop", "ada", ""),
        ),
        (
            vec!["artifact", "delete", "--session", "s 1", "x"],
            ("", "", "s 1"),
        ),
    ] {
        let words = [vec!["skillctl"], words].concat();
        let mut asked = Vec::new();
        for _ in 0..TRIES {
            completions(&fake, &words).await;
            asked = artifact_scopes(&fake);
            if !asked.is_empty() {
                break;
            }
        }
        let wanted = ArtifactScope {
            app: app.into(),
            user: user.into(),
            session: session.into(),
        };
        assert_eq!(asked, [wanted], "{words:?}");
    }
}

#[tokio::test]
async fn names_that_deceive_a_terminal_are_not_offered() {
    let fake = fake();
    let names = ["x-plain", "x-\u{202e}evil"];
    let artifact = |name: &str| (format!("artifacts/{name}"), (0, b"x".to_vec()));
    fake.state.lock().artifacts = names.map(artifact).into();
    let words = ["skillctl", "artifact", "load", "x-"];
    assert_eq!(check_offered(&fake, &words, "x-plain").await, ["x-plain"]);
}

/// Prompt of bash. The terminal hands each key to readline once bash shows it.
const PROMPT: &str = "ready> ";

/// A bash that has read the completion script as docs/skillctl.md says.
async fn bash_with_completion(fake: &Fake) -> Pty {
    let options = ["--norc", "--noprofile", "-i"];
    let mut bash = Pty::run(Path::new("bash"), &fake.endpoint(), &options);
    let program = Path::new(env!("CARGO_BIN_EXE_skillctl"));
    let directory = program.parent().expect("is in a directory").display();
    bash.types(&format!(
        "unset HISTFILE; PATH='{directory}':$PATH; source <(skillctl completion bash); PS1='re''ady> '\n"
    ))
    .await;
    bash.shows(PROMPT).await;
    bash
}

/// Types a line and a tab at the prompt until bash completes it, and then clears the line.
async fn check_completed(bash: &mut Pty, fake: &Fake, line: &str, added: &str) {
    let mut shown = String::new();
    for _ in 0..TRIES {
        fake.calls.take();
        // Readline reads the next key when the completion has ended. It shows what it adds, or the whole word anew.
        // Ctrl-U clears the line; a Ctrl-C would also take away what is typed after it.
        let keys = format!("skillctl {line}\t\x15echo do''ne\n");
        bash.types(&keys).await;
        shown = bash.shows("done").await;
        bash.shows(PROMPT).await;
        if shown.contains(added) {
            return;
        }
    }
    panic!("bash does not complete {line} with {added}: {shown:?}");
}

#[tokio::test]
async fn bash_completes_values_after_an_equals_sign_and_in_quotes() {
    let fake = fake();
    let artifact = (0, b"x".to_vec());
    fake.state.lock().artifacts = [
        ("artifacts/out/r.csv".to_owned(), artifact.clone()),
        ("artifacts/user:notes.txt".to_owned(), artifact),
    ]
    .into();
    let mut bash = bash_with_completion(&fake).await;
    for (line, added, user) in [
        ("artifact load --user=ada o", "r.csv ", Some("ada")),
        ("artifact load --user 'ada l' o", "r.csv ", Some("ada l")),
        ("artifact load --user=\"ada l\" o", "r.csv ", Some("ada l")),
        ("artifact load --user=a\\ b o", "r.csv ", Some("a b")),
        ("artifact load user:n", "otes.txt ", Some("")),
        (
            "--endpoint=unix:/nowhere workspace get w --out",
            "put ",
            None,
        ),
        ("--output=te", "xt ", None),
        ("exec w --skill=csv-r", "eport ", None),
        ("exec w --skill=", "csv-report ", None),
        ("exec w --skill=\"csv-r", "eport\" ", None),
    ] {
        check_completed(&mut bash, &fake, line, added).await;
        let asked = artifact_scopes(&fake);
        let users: Vec<_> = asked.iter().map(|scope| scope.user.as_str()).collect();
        assert_eq!(users, Vec::from_iter(user), "{line}");
    }
    bash.types("exit\n").await;
    bash.ends().await;
}

#[tokio::test]
async fn bash_completion_never_inserts_names_with_shell_syntax() {
    let fake = fake();
    let dir = tempfile::tempdir().expect("a directory");
    let marker = dir.path().join("marker");
    let touch = format!("touch {}", marker.display());
    let names = [
        format!("a;{touch}"),
        format!("b$({touch})"),
        "fine.csv".to_owned(),
    ];
    fake.state.lock().artifacts = names
        .map(|name| (format!("artifacts/{name}"), (0, b"x".to_vec())))
        .into();
    let mut bash = bash_with_completion(&fake).await;
    check_completed(&mut bash, &fake, "artifact load f", "ine.csv ").await;
    for line in ["artifact load a\t\n", "artifact load \"b\t\"\n"] {
        bash.types(&format!("skillctl {line}")).await;
        bash.types("echo ne''xt\n").await;
        bash.shows("next").await;
    }
    assert!(!marker.exists(), "a name was run");
    bash.types("exit\n").await;
    bash.ends().await;
}

#[tokio::test]
async fn words_that_are_not_utf8_are_no_panic() {
    let fake = fake();
    let odd = OsStr::from_bytes(b"\xff");
    let words = ["skillctl", "exec", "--cwd"].map(OsStr::new);
    let words = [&words[..], &[odd, OsStr::new("w")]].concat();
    check_offered(&fake, &words, "w").await;
    let output = skillctl(&fake, &["-o", "json", "exec", "w", "--timeout"])
        .arg(odd)
        .output()
        .await
        .expect("runs");
    assert_eq!(output.status.code(), Some(125));
    assert!(text(&output.stderr).starts_with("{\"error\""));
}
