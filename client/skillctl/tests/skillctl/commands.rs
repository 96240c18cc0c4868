//! `skillctl` as a process: what it prints, and its exit codes.

use std::path::Path;
use std::process::{Output, Stdio};

use prost_types::Timestamp;
use skilld_client::v1::collect_outputs_response::Payload;
use skilld_client::v1::{
    CollectOutputsResponse, CollectSummary, FileEntry, ListFilesResponse, Skill, StragglerPolicy,
    Workspace, WorkspaceFailure, WorkspaceState,
};
use tokio::process::Command;

use skilld_testing::collection_messages::{file, skipping, summary};
use skilld_testing::{Fake, PRINTED};

pub(crate) fn skillctl(fake: &Fake, words: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_skillctl"));
    command
        .args(words)
        .env("SKILLD_ENDPOINT", fake.endpoint())
        .env("SKILLD_CONTEXTS", fake.path("contexts.toml"))
        .current_dir(fake.dir.path())
        .stdin(Stdio::null())
        .kill_on_drop(true);
    command
}

pub(crate) async fn run(fake: &Fake, words: &[&str]) -> Output {
    skillctl(fake, words).output().await.expect("runs")
}

pub(crate) fn text(bytes: &[u8]) -> &str {
    std::str::from_utf8(bytes).expect("utf-8")
}

/// Lets the fake list these files.
fn list(fake: &Fake, files: Vec<FileEntry>) {
    let listed = ListFilesResponse {
        files,
        ..Default::default()
    };
    fake.calls.reply("ListFiles", [listed]);
}

pub(crate) fn fake() -> Fake {
    let fake = Fake::start();
    let workspace = Workspace {
        name: "workspaces/w".into(),
        ..Default::default()
    };
    fake.state
        .lock()
        .workspaces
        .insert("workspaces/w".into(), workspace);
    fake
}

#[tokio::test]
async fn exec_passes_on_the_programs_code_and_says_why_it_was_killed() {
    let fake = fake();
    for (program, code, why) in [
        (vec!["exit", "0"], 0, ""),
        (vec!["exit", "7"], 7, ""),
        (vec!["exit", "255"], 255, ""),
        (vec!["timeout", "x"], 137, "timeout"),
        (vec!["segv"], 139, "SIGSEGV"),
        (vec!["missing"], 127, "ENOENT"),
    ] {
        let words = [vec!["exec", "w", "--"], program.clone()].concat();
        let output = run(&fake, &words).await;
        assert_eq!(output.status.code(), Some(code), "{program:?}");
        let said = text(&output.stderr);
        assert!(
            said.contains(why) && said.is_empty() == why.is_empty(),
            "{program:?}: {said}"
        );
    }
}

#[tokio::test]
async fn kills_for_memory_are_noted_though_the_exit_code_is_0() {
    let fake = fake();
    let note = "skillctl: 2 processes were killed for memory in the workspace while this ran";
    for words in [
        vec!["exec", "w", "--id", "x", "--", "oom", "2"],
        vec!["attach", "w/x"],
        vec!["wait", "w/x"],
        vec!["run", "csv-report", "--", "oom", "2"],
    ] {
        let output = run(&fake, &words).await;
        assert_eq!(output.status.code(), Some(0), "{words:?}");
        let said = text(&output.stderr);
        assert!(said.starts_with(note), "{words:?}: {said}");
    }
}

#[tokio::test]
async fn processes_ended_with_a_command_are_noted_unless_kept() {
    let fake = fake();
    let note = "skillctl: 1 process that the command left running was ended with it \
                (python3 -m http.server 8123): `skillctl exec --keep-processes`";
    for words in [
        vec!["exec", "w", "--id", "x", "--", "server"],
        vec!["attach", "w/x"],
        vec!["wait", "w/x"],
        vec!["poll", "w/x"],
        vec!["run", "csv-report", "--", "server"],
    ] {
        let output = run(&fake, &words).await;
        assert_eq!(output.status.code(), Some(0), "{words:?}");
        let said = text(&output.stderr);
        assert_eq!(said.matches(note).count(), 1, "{words:?}: {said}");
    }
    for words in [["exec", "w", "server"], ["attach", "w/x", "-q"]] {
        let words = [&["-o", "json"], &words[..]].concat();
        let output = run(&fake, &words).await;
        let printed: serde_json::Value = serde_json::from_slice(&output.stdout).expect("json");
        let ended = printed.pointer("/result/endedProcesses/count");
        assert_eq!(ended, Some(&1.into()), "{words:?}");
    }
    let words = ["exec", "w", "--id", "k", "--keep-processes", "server"];
    let output = run(&fake, &words).await;
    assert_eq!(text(&output.stderr), "");
    assert_eq!(fake.exec("k").spec.stragglers(), StragglerPolicy::Keep);
}

#[tokio::test]
async fn a_full_file_system_is_noted_though_the_exit_code_is_0() {
    let fake = fake();
    for words in [
        vec!["exec", "w", "--id", "x", "full"],
        vec!["attach", "w/x"],
        vec!["wait", "w/x"],
    ] {
        let output = run(&fake, &words).await;
        let said = text(&output.stderr);
        let note = "skillctl: /tmp (64.0 MiB) is full: delete files there, or use --env TMPDIR=";
        assert!(said.starts_with(note), "{words:?}: {said}");
    }
}

#[tokio::test]
async fn a_full_disk_that_only_the_output_shows_is_noted() {
    let fake = fake();
    let note =
        "skillctl: the output reports a full file system: delete files, or use --env TMPDIR=";
    for (words, code) in [
        (vec!["exec", "w", "--id", "x", "no-room"], 0),
        (vec!["attach", "w/x"], 0),
        (vec!["poll", "w/x"], 0),
        (vec!["exec", "w", "no-room", "1"], 1),
        (vec!["run", "csv-report", "no-room"], 0),
    ] {
        let output = run(&fake, &words).await;
        assert_eq!(output.status.code(), Some(code), "{words:?}");
        let said = text(&output.stderr);
        assert_eq!(said.matches(note).count(), 1, "{words:?}: {said}");
    }
    let output = run(&fake, &["-o", "json", "exec", "w", "no-room"]).await;
    let said = text(&output.stderr);
    assert!(
        said.starts_with("{\"note\":\"the output reports a full"),
        "{said}"
    );
}

#[tokio::test]
async fn a_failure_of_skillctl_is_125_where_programs_have_codes() {
    let fake = fake();
    let gone = ["--endpoint", "unix:/nowhere.sock"];
    for words in [
        vec!["exec", "nope", "grep"],
        vec!["exec", "w", "--bogus", "true"],
        vec!["exec", "w"],
        vec!["run", "csv", "true"],
        vec!["run", "csv-report", "--timeout", "soon", "true"],
        vec!["run", "csv-report", "--input", "ftp://x", "true"],
        vec!["attach", "w/nope"],
        vec!["attach"],
        vec!["wait", "w/nope"],
        vec!["wait", "w/x", "--bogus"],
        [&gone[..], &["exec", "w", "true"]].concat(),
        [&gone[..], &["wait", "w/x"]].concat(),
        vec!["-o", "json", "exec", "w", "--bogus"],
    ] {
        let output = run(&fake, &words).await;
        assert_eq!(output.status.code(), Some(125), "{words:?}");
        assert!(output.stdout.is_empty() && !output.stderr.is_empty());
    }
    // What the program itself said is passed on, also these codes.
    for code in [1, 2, 125] {
        let output = run(&fake, &["exec", "w", "exit", &code.to_string()]).await;
        assert_eq!(output.status.code(), Some(code));
        assert!(output.stderr.is_empty());
    }
    for (words, code) in [
        (vec!["cat", "w", "nope"], 1),
        (vec!["ps", "w", "--bogus"], 2),
    ] {
        let output = run(&fake, &words).await;
        assert_eq!(output.status.code(), Some(code), "{words:?}");
    }
}

#[tokio::test]
async fn output_comes_through_byte_for_byte() {
    let fake = fake();
    let output = run(&fake, &["exec", "w", "--", "print"]).await;
    assert_eq!(output.stdout, *PRINTED);
    assert_eq!(output.stderr.get(..32_768), PRINTED.get(..32_768));
}

#[tokio::test]
async fn a_command_is_for_a_shell_or_not() {
    let fake = fake();
    let output = run(&fake, &["exec", "w", "--env", "A=b", "--", "spec a|b"]).await;
    assert_eq!(text(&output.stdout), "[] spec a|b {\"A\": \"b\"}\n");
    let output = run(&fake, &["exec", "w", "--", "spec", "a b"]).await;
    assert_eq!(text(&output.stdout), "[\"spec\", \"a b\"]  {}\n");
}

#[tokio::test]
async fn tables_are_aligned_and_pages_are_one_list() {
    let fake = fake();
    for id in ["a", "b", "c", "d"] {
        let output = run(
            &fake,
            &["workspace", "create", "--id", id, "--label", "k=v"],
        )
        .await;
        assert_eq!(text(&output.stdout), format!("{id}\n"));
    }
    let output = run(&fake, &["workspace", "list"]).await;
    let ids: Vec<_> = text(&output.stdout)
        .lines()
        .skip(1)
        .map(|line| &line[..1])
        .collect();
    assert_eq!(ids, ["a", "b", "c", "d", "w"]);
    let output = run(&fake, &["pool", "list"]).await;
    let columns: Vec<_> = text(&output.stdout)
        .lines()
        .map(|line| line.find("/4").or(line.find("WARM")))
        .collect();
    assert_eq!(columns, [Some(20), Some(21), Some(21)]);
    let output = run(&fake, &["workspace", "delete", "a", "nope", "b"]).await;
    assert_eq!(output.status.code(), Some(1));
    assert!(text(&output.stderr).contains("skillctl workspace list"));
    assert!(
        !fake.state.lock().workspaces.contains_key("workspaces/b"),
        "the others are deleted"
    );
}

#[tokio::test]
async fn files_go_in_and_come_out() {
    let fake = fake();
    std::fs::write(fake.path("sales.csv"), "a,b\n").expect("writes");
    let output = run(
        &fake,
        &[
            "stage",
            "w",
            "--skill",
            "csv-report",
            "sales.csv",
            "sales.csv=work/x/",
        ],
    )
    .await;
    assert!(output.status.success(), "{}", text(&output.stderr));
    let output = run(&fake, &["cat", "w", "work/x/sales.csv"]).await;
    assert_eq!(text(&output.stdout), "a,b\n");
    let output = run(&fake, &["ls", "w"]).await;
    assert!(
        text(&output.stdout).contains("-rw-r--r--  4"),
        "{}",
        text(&output.stdout)
    );

    fake.answer_collections([file("out/report.md", b"# Report"), vec![summary()]].concat());
    let output = run(&fake, &["collect", "w", "out/**", "--to", "results"]).await;
    assert!(output.status.success(), "{}", text(&output.stderr));
    let report = std::fs::read_to_string(fake.path("results/out/report.md"));
    assert_eq!(report.expect("reads"), "# Report");
    assert_eq!(
        fake.collect_spec().max_files,
        9999,
        "the server's maximum unless told otherwise"
    );
}

#[tokio::test]
async fn files_of_any_time_are_listed() {
    let fake = fake();
    let times = [-62_135_596_800, -1, 0, 253_402_300_800, 99_999_999_999_999];
    let files = times.iter().map(|seconds| FileEntry {
        path: "out/f".into(),
        modify_time: Some(Timestamp {
            seconds: *seconds,
            nanos: 0,
        }),
        ..Default::default()
    });
    list(&fake, files.collect());
    let output = run(&fake, &["ls", "w", "out"]).await;
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
    let shown: Vec<_> = text(&output.stdout)
        .lines()
        .skip(1)
        .filter_map(|line| line.split_whitespace().nth(2))
        .collect();
    assert_eq!(
        shown,
        [
            "@-62135596800",
            "@-1",
            "1970-01-01T00:00:00Z",
            "@253402300800",
            "@99999999999999"
        ]
    );
}

#[tokio::test]
async fn a_file_that_a_directory_keeps_out_is_a_failure() {
    let fake = fake();
    std::fs::create_dir_all(fake.path("to/r")).expect("makes");
    fake.answer_collections([file("r", b"x"), vec![summary()]].concat());
    for words in [
        vec!["collect", "w", "r", "--to", "to"],
        vec!["run", "ok", "--to", "to", "--", "exit", "0"],
    ] {
        let output = run(&fake, &words).await;
        assert_eq!(output.status.code(), Some(1), "{words:?}");
        assert!(text(&output.stderr).contains("left out r: it has the name of a directory"));
    }
}

/// A terminal obeys none of it; `lines` is how many there are to be, so that nothing makes up a line either.
fn assert_plain(what: &str, bytes: &[u8], lines: usize) {
    let text = text(bytes);
    assert!(text.contains("EVIL"), "{what}: {text:?}");
    let unsafe_char = |c: char| {
        let hides = matches!(c, '\u{202e}' | '\u{200b}' | '\u{2066}' | '\u{2028}');
        hides || (c.is_control() && c != '\n' && c != '\t')
    };
    assert!(!text.contains(unsafe_char), "{what}: {text:?}");
    assert_eq!(text.lines().count(), lines, "{what}: {text:?}");
}

#[tokio::test]
async fn foreign_text_does_not_control_the_terminal() {
    const EVIL: &str = "a\x1b]0;EVIL\x07\u{9b}2J\u{202e}\u{200b}\u{2066}\u{2028}\r\nb";
    let fake = fake();
    let file_called_evil = FileEntry {
        path: EVIL.into(),
        ..Default::default()
    };
    list(&fake, vec![file_called_evil]);
    let skill = Skill {
        name: "skills/x".into(),
        body: format!("{EVIL}\n\tcode"),
        ..Default::default()
    };
    fake.calls.reply("GetSkill", [skill]);
    let collected = [file(EVIL, b"x"), vec![skipping(EVIL)]].concat();
    fake.answer_collections(collected);
    {
        let mut state = fake.state.lock();
        let workspace = state.workspaces.get_mut("workspaces/w").expect("is there");
        workspace.failure = Some(WorkspaceFailure {
            message: EVIL.into(),
            ..Default::default()
        });
        workspace.pool = EVIL.into();
        workspace.state = WorkspaceState::Failed.into();
    }
    for (words, lines) in [
        (vec!["ls", "w"], 2),
        (vec!["workspace", "get", "w"], 5),
        (vec!["workspace", "list"], 2),
        (vec!["collect", "w", "x", "--to", "to"], 1),
    ] {
        let output = run(&fake, &words).await;
        assert_plain(&format!("{words:?}"), &output.stdout, lines);
        let output = run(&fake, &[&["-o", "json"], &words[..]].concat()).await;
        assert_plain(&format!("{words:?} as JSON"), &output.stdout, 1);
    }
    let output = run(&fake, &["collect", "w", "x", "--to", "to"]).await;
    assert_plain("a note", &output.stderr, 2);
    let (damaged, other) = (file(EVIL, b"x"), file(EVIL, b"y"));
    fake.answer_collections([&damaged[..2], &other[2..]].concat());
    let output = run(&fake, &["collect", "w", "x", "--to", "to"]).await;
    assert_plain("an error", &output.stderr, 1);
    // A body keeps its lines and its tabs.
    let output = run(&fake, &["skill", "show", "x"]).await;
    let body = text(&output.stdout).replace('\u{fffd}', "");
    assert!(body.ends_with("\na]0;EVIL2J\nb\n\tcode\n"), "{body:?}");
    // The program's own bytes pass as they are.
    let output = run(&fake, &["exec", "w", "--", "echo", EVIL]).await;
    assert_eq!(text(&output.stdout), format!("echo {EVIL}\n"));
}

#[tokio::test]
async fn files_that_nothing_collects_are_noted() {
    let fake = fake();
    for (outside, is_cut, noted) in [
        (
            vec!["/tmp/a"],
            true,
            "skillctl: not collected: /tmp/a is outside of out/ and work/\n\
             skillctl: not collected: perhaps more files outside of out/ and work/\n",
        ),
        // No file was found in the part that was looked at.
        (
            vec![],
            true,
            "skillctl: not collected: perhaps files outside of out/ and work/\n",
        ),
        (vec![], false, ""),
    ] {
        let summary = CollectSummary {
            matched_count: 1,
            outside_paths: outside.into_iter().map(str::to_owned).collect(),
            outside_paths_truncated: is_cut,
            ..Default::default()
        };
        fake.answer_collections(vec![CollectOutputsResponse {
            payload: Some(Payload::Summary(summary)),
        }]);
        let output = run(&fake, &["collect", "w", "out/**"]).await;
        assert_eq!(text(&output.stderr), noted);
    }
}

#[tokio::test]
async fn failures_say_what_to_do_next() {
    let fake = fake();
    for (words, said) in [
        (
            vec!["stage", "w", "--skill", "csv"],
            "`skillctl skill list`",
        ),
        (
            vec!["exec", "nope", "--", "ls"],
            "`skillctl workspace list`",
        ),
        (vec!["kill", "w/nope"], "`skillctl ps ID`"),
        (
            vec!["workspace", "create", "--pool", "full"],
            "`skillctl pool list`",
        ),
        (vec!["cat", "w", "nope"], "FILE_NOT_FOUND"),
        (vec!["stage", "w"], "nothing to stage"),
        (
            vec!["--endpoint", "unix:/nowhere.sock", "ps", "w"],
            "start the daemon",
        ),
        (
            vec!["--endpoint", "https://x", "ps", "w"],
            "write https://HOST:PORT",
        ),
    ] {
        let output = run(&fake, &words).await;
        let code = if words[0] == "exec" { 125 } else { 1 };
        assert_eq!(output.status.code(), Some(code), "{words:?}");
        assert!(output.stdout.is_empty());
        let text = text(&output.stderr);
        assert!(
            text.starts_with("error: ") && text.contains(said),
            "{words:?}: {text}"
        );
    }
}

#[tokio::test]
async fn run_stages_executes_collects_and_deletes() {
    let fake = fake();
    std::fs::write(fake.path("in.txt"), "x").expect("writes");
    fake.answer_collections([file("out/r", b"result"), vec![summary()]].concat());
    let words = [
        "run",
        "csv-report@1",
        "--input",
        "in.txt",
        "--to",
        "res",
        "--timing",
        "--",
        "exit",
        "3",
    ];
    let output = run(&fake, &words).await;
    assert_eq!(output.status.code(), Some(3));
    let said = text(&output.stderr);
    for step in ["check", "start", "exec", "collect"] {
        assert!(said.contains(&format!("{step} took ")), "{said}");
    }
    assert_eq!(
        std::fs::read_to_string(fake.path("res/out/r")).expect("reads"),
        "result"
    );
    assert_eq!(fake.staged_inputs()[0].inputs[0].path, "inputs/in.txt");
    let calls = fake.calls.take();
    let steps = ["GetServerInfo", "PreflightSkill", "RunExec"];
    let methods = calls.iter().filter_map(|call| call.rsplit('/').next());
    assert_eq!(methods.collect::<Vec<_>>(), steps);
    let state = fake.state.lock();
    assert_eq!(state.workspaces.len(), 1, "its own workspace is gone");
    assert_eq!(
        state.execs.values().next().expect("one").spec.skill,
        "skills/csv-report"
    );
}

#[tokio::test]
async fn run_deletes_its_workspace_after_a_failure_too() {
    let fake = fake();
    let output = run(&fake, &["run", "csv", "--", "ls"]).await;
    assert_eq!(output.status.code(), Some(125));
    assert_eq!(fake.state.lock().workspaces.len(), 1);
    let output = run(&fake, &["run", "ok", "--input", "missing.txt", "--", "ls"]).await;
    assert_eq!(output.status.code(), Some(125));
    assert!(text(&output.stderr).contains("missing.txt"));
    assert_eq!(fake.state.lock().workspaces.len(), 1);
    let output = run(&fake, &["run", "ok", "--keep", "--", "ls"]).await;
    assert_eq!(output.status.code(), Some(0));
    assert_eq!(fake.state.lock().workspaces.len(), 2);
    assert!(Path::new(&fake.path("s")).exists());
}

#[tokio::test]
async fn a_context_keeps_flags_and_no_variables() {
    let fake = fake();
    let with_variables = |words: &[&str]| {
        let mut command = skillctl(&fake, words);
        command
            .env("SKILLD_TOKEN_FILE", "/run/secrets/of-a-job")
            .env("SKILLD_TENANT", "of-the-environment")
            .env("SKILLD_CA_FILE", "/run/ca.pem");
        command
    };
    let set = with_variables(&["context", "set", "none"])
        .output()
        .await
        .expect("runs");
    assert_eq!(set.status.code(), Some(1));
    let stderr = text(&set.stderr);
    assert!(stderr.contains("a context needs --endpoint"), "{stderr}");
    for words in [
        &["context", "set", "a", "--endpoint", "unix:/run/a.sock"][..],
        &["--endpoint", "unix:/run/a.sock", "context", "set", "b"],
        &[
            "--tenant",
            "t",
            "context",
            "set",
            "c",
            "--endpoint",
            "unix:/run/a.sock",
        ],
    ] {
        let set = with_variables(words).output().await.expect("runs");
        assert!(set.status.success(), "{}", text(&set.stderr));
    }
    let saved = std::fs::read_to_string(fake.path("contexts.toml")).expect("saved");
    let expected = "[contexts.a]\nendpoint = \"unix:/run/a.sock\"\n\n\
                    [contexts.b]\nendpoint = \"unix:/run/a.sock\"\n\n\
                    [contexts.c]\nendpoint = \"unix:/run/a.sock\"\ntenant = \"t\"\n";
    assert_eq!(saved, expected);
}
