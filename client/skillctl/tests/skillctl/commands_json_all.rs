//! `skillctl -o json` of every command: one object, or an exception that docs/skillctl.md names.

use std::collections::BTreeSet;
use std::path::Path;
use std::process::Output;

use serde_json::Value;
use skilld_tests::pty::Pty;

use crate::commands::{fake, skillctl};
use crate::help;
use skilld_testing::Fake;
use skilld_testing::collection_messages::{file, summary};
use skilld_testing::skills::Kit;

/// A line of each command that prints one object. They are run in this order.
const OBJECTS: [&str; 57] = [
    "run csv-report hello",
    "workspace create --id new",
    "workspace list",
    "workspace get w",
    "workspace label w team=a",
    "workspace renew w",
    "workspace token w",
    "workspace delete new",
    "stage w in.txt",
    "cp in.txt w:work/in.txt",
    "cp w:work/in.txt copy.txt",
    "exec w --id x hello",
    "exec w -d --id y forever",
    "ps w",
    "logs w/x",
    "attach w/x",
    "poll w/x",
    "wait w/x",
    "stdin w/z",
    "signal w/y TERM",
    "kill w/y",
    "forget w/x",
    "rm w/y",
    "ls w",
    "cat w work/in.txt",
    "collect w out/** --to results",
    "skill list",
    "skill show csv-report",
    "skill files csv-report",
    "skill read csv-report references/a.md",
    "skill search csv",
    "skill problems",
    "skill check csv-report",
    "skill prepare csv-report",
    "skill publish mine",
    "skill delete mine@1.0",
    "skill refresh",
    "artifact save report.txt in.txt",
    "artifact list",
    "artifact load report.txt",
    "artifact versions report.txt",
    "artifact delete report.txt --all",
    "tool list",
    "tool end --session-file s.json",
    "image check my/tools:1",
    "audit verify audit.log",
    "pool resize default 3",
    "context set a --endpoint unix:/run/a.sock",
    "context use a",
    "context list",
    "context delete a",
    "token create t --for-tenant a --file tokens",
    "token list --file tokens",
    "token revoke t --file tokens",
    "tenant show a",
    "server info",
    "version",
];

/// The other commands that do so, whose words are the command itself.
const BARE: [&str; 8] = [
    "health",
    "pool list",
    "problems",
    "drain",
    "undrain",
    "whoami",
    "usage",
    "tenant list",
];

/// Lines of these that exit with 1 although they print their object: the fake's skill is found to lack something.
const LACKING: [&str; 1] = ["skill check csv-report"];

/// Exceptions, as the document writes them, and a line that is refused with JSON, where one is.
const EXCEPTIONS: [(&str, Option<&str>); 9] = [
    ("-o jsonl", None),
    ("tool call", None),
    ("collect --tar -", Some("collect w out/** --tar -")),
    ("cp ID:PATH -", Some("cp w:work/in.txt -")),
    ("exec -t", Some("exec w -t hello")),
    ("attach -i", Some("attach -i w/terminal")),
    ("mcp", None),
    ("completion", None),
    ("--help", None),
];

async fn run(fake: &Fake, line: &str) -> Output {
    let words: Vec<&str> = ["-o", "json"].into_iter().chain(line.split(' ')).collect();
    skillctl(fake, &words).output().await.expect("runs")
}

/// Runs a line with JSON in a terminal, which some commands need in any case.
async fn is_refused_in_a_terminal(fake: &Fake, line: &str) {
    let words: Vec<&str> = ["-o", "json"].into_iter().chain(line.split(' ')).collect();
    let program = Path::new(env!("CARGO_BIN_EXE_skillctl"));
    let mut pty = Pty::run(program, &fake.endpoint(), &words);
    let shown = pty.shows("\n").await;
    let is_own = line.starts_with("exec ") || line.starts_with("attach ");
    let code = if is_own { 125 } else { 1 };
    assert_eq!(pty.ends().await, Some(code), "{line}: {shown}");
    let error: Value = serde_json::from_str(shown.trim_end()).expect(line);
    let message = error
        .pointer("/error/message")
        .and_then(Value::as_str)
        .expect(line);
    assert!(message.contains("leave out -o json"), "{line}: {message}");
}

/// Adds the commands beneath `words` that have none beneath them.
fn add_leaves(words: &str, leaves: &mut BTreeSet<String>) {
    let split: Vec<&str> = words.split_whitespace().collect();
    let beneath = help::commands(&help::help(&split));
    if beneath.is_empty() {
        leaves.insert(words.to_owned());
    }
    for name in beneath {
        add_leaves(format!("{words} {name}").trim(), leaves);
    }
}

#[tokio::test]
async fn every_command_prints_one_object_or_is_a_documented_exception() {
    let fake = fake();
    std::fs::write(fake.path("in.txt"), "x").expect("writes");
    std::fs::write(fake.path("audit.log"), "").expect("writes");
    std::fs::create_dir(fake.path("mine")).expect("a directory");
    let front = "---\nname: mine\ndescription: Mine.\n---\n";
    std::fs::write(fake.path("mine/SKILL.md"), front).expect("writes");
    fake.answer_collections([file("out/r", b"result"), vec![summary()]].concat());
    let kit = Kit::new("csv-report", "1.0.0").file("references/a.md", b"a".to_vec());
    fake.state.lock().kits.push(kit);
    run(
        &fake,
        "tool call --session-file s.json workspace_exec {\"command\":\"hello\"}",
    )
    .await;
    run(&fake, "exec w -d -i --id z cat").await;
    run(&fake, "exec w -d -i -t --id terminal cat").await;
    for line in OBJECTS.iter().chain(&BARE) {
        let output = run(&fake, line).await;
        let text = String::from_utf8(output.stdout).expect("utf-8");
        let problem = String::from_utf8_lossy(&output.stderr);
        let code = i32::from(LACKING.contains(line));
        assert_eq!(output.status.code(), Some(code), "{line}: {problem}");
        assert_eq!(text.lines().count(), 1, "{line}: {text}{problem}");
        let value: Value = serde_json::from_str(&text).expect("json");
        assert!(value.is_object(), "{line}: {value}");
    }
    for line in EXCEPTIONS.iter().filter_map(|(_, line)| *line) {
        is_refused_in_a_terminal(&fake, line).await;
    }
    let mut leaves = BTreeSet::new();
    add_leaves("", &mut leaves);
    let known: Vec<&str> = OBJECTS
        .iter()
        .chain(&BARE)
        .copied()
        .chain(EXCEPTIONS.map(|(name, _)| name))
        .collect();
    for leaf in leaves {
        let is_it = |line: &&str| **line == leaf || line.starts_with(&format!("{leaf} "));
        assert!(known.iter().any(is_it), "{leaf} is neither");
    }
}

#[test]
fn the_document_names_every_exception_to_one_object() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/skillctl.md");
    let document = std::fs::read_to_string(path).expect("reads");
    let (_, list) = document
        .split_once("These are not one object:")
        .expect("has the list");
    let (list, _) = list.split_once("\n## ").expect("has more");
    for (name, _) in EXCEPTIONS {
        assert!(list.contains(&format!("`{name}`")), "{name}");
    }
}
