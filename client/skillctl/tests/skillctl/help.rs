//! Every command explains itself.

use std::process::Command;

pub(crate) fn help(words: &[&str]) -> String {
    let output = Command::new(env!("CARGO_BIN_EXE_skillctl"))
        .args(words)
        .arg("--help")
        .output()
        .expect("runs");
    assert!(output.status.success(), "{words:?}");
    String::from_utf8(output.stdout).expect("utf-8")
}

/// Names in the list of commands that a help text has.
pub(crate) fn commands(help: &str) -> Vec<String> {
    let list = help.lines().skip_while(|line| *line != "Commands:").skip(1);
    list.take_while(|line| !line.is_empty())
        .filter(|line| line.starts_with("  ") && !line.starts_with("   "))
        .filter_map(|line| line.split_whitespace().next())
        .map(ToOwned::to_owned)
        .collect()
}

#[test]
fn every_command_has_an_example_that_is_of_it() {
    let mut seen = 0;
    let mut open = vec![Vec::new()];
    while let Some(path) = open.pop() {
        let words: Vec<&str> = path.iter().map(String::as_str).collect();
        let text = help(&words);
        let example = text.split("Example:").nth(1).unwrap_or_default();
        let call = format!("skillctl {}", words.join(" "));
        assert!(
            example.contains(call.trim_end()),
            "{words:?} has no example:\n{text}"
        );
        seen += 1;
        for name in commands(&text) {
            open.push(
                words
                    .iter()
                    .map(|word| (*word).to_owned())
                    .chain([name])
                    .collect(),
            );
        }
    }
    assert_eq!(seen, 78, "commands, groups and the program itself");
}

#[test]
fn every_command_has_a_manual_page() {
    let directory = tempfile::tempdir().expect("a directory");
    let output = Command::new(env!("CARGO_BIN_EXE_skillctl"))
        .arg("man-pages")
        .arg(directory.path())
        .output()
        .expect("runs");
    assert!(output.status.success());
    for noun in commands(&help(&[])) {
        let verbs = commands(&help(&[&noun])).into_iter();
        for name in verbs
            .map(|verb| format!("{noun}-{verb}"))
            .chain([noun.clone()])
        {
            let page = directory.path().join(format!("skillctl-{name}.1"));
            assert!(page.exists(), "{}", page.display());
        }
    }
}

#[test]
fn the_documents_table_has_every_command() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/skillctl.md");
    let document = std::fs::read_to_string(path).expect("reads");
    let (_, table) = document.split_once("## Commands").expect("has the table");
    let (table, _) = table.split_once("\n## ").expect("has more");
    let listed = |words: &str| {
        table.contains(&format!("`{words}`")) || table.contains(&format!("`{words} "))
    };
    for noun in commands(&help(&[])) {
        let verbs = commands(&help(&[&noun]));
        for verb in &verbs {
            let both = format!("{noun} {verb}");
            assert!(listed(verb) || listed(&both), "{both}");
        }
        assert!(!verbs.is_empty() || listed(&noun), "{noun}");
    }
}

#[test]
fn a_wrong_command_line_is_a_usage_error() {
    for words in [
        vec!["frobnicate"],
        vec!["signal", "w/x", "NOPE"],
        vec!["-o", "yaml", "ps", "w"],
    ] {
        let output = Command::new(env!("CARGO_BIN_EXE_skillctl"))
            .args(&words)
            .output()
            .expect("runs");
        assert_eq!(output.status.code(), Some(2), "{words:?}");
        assert!(output.stdout.is_empty() && !output.stderr.is_empty());
    }
}

#[test]
fn words_of_docker_and_kubectl_are_named_with_what_to_type() {
    for (words, instead) in [
        ("help", "`skillctl --help`"),
        ("doctor", "`skilld doctor`"),
        ("describe w", "`skillctl workspace get ID`"),
        ("inspect w", "`skillctl workspace get ID`"),
        ("top", "`skillctl ps ID`"),
        ("events", "`skillctl logs ID/EXEC --follow`"),
        ("config view", "`skillctl context`"),
        ("login", "`skillctl context set NAME"),
        ("pull img", "`docker pull`"),
        ("images", "`skillctl pool list`"),
        ("logs w/x --tail 5", "`skillctl logs ID/EXEC | tail`"),
        ("exec w -w /tmp ls", "--cwd DIR"),
        ("ps", "`skillctl workspace list`"),
        ("workspace inspect w", "`skillctl workspace get ID`"),
        ("exec w -n a ls", "--tenant NAME"),
        ("ps w -n 5", "`skillctl ps ID` alone"),
        ("workspace delete w -f", "--allow-missing"),
        ("namespace create a", "`skillctl tenant list`"),
        ("secret create a", "--env KEY=VALUE"),
        ("plugin install a", "`skillctl skill publish DIR`"),
        ("taint node a", "`skillctl drain`"),
        ("kill -HUP w/x", "`skillctl signal ID/EXEC SIGNAL`"),
        ("signal w/x -9", "`skillctl signal ID/EXEC TERM`"),
    ] {
        let output = Command::new(env!("CARGO_BIN_EXE_skillctl"))
            .args(words.split(' '))
            .output()
            .expect("runs");
        assert!(!output.status.success(), "{words}");
        let said = String::from_utf8(output.stderr).expect("utf-8");
        let tips: Vec<&str> = said.split("tip: ").skip(1).collect();
        assert_eq!(tips.len(), 1, "{words}: {said}");
        assert!(tips[0].contains(instead), "{words}: {said}");
        assert!(!said.contains("similar"), "{words}: {said}");
    }
}

#[test]
fn env_is_short_wherever_it_is_an_option() {
    for words in [["exec"].as_slice(), &["run"], &["workspace", "create"]] {
        assert!(help(words).contains("-e, --env <KEY=VALUE>"), "{words:?}");
    }
}

#[test]
fn completion_needs_no_daemon() {
    let output = Command::new(env!("CARGO_BIN_EXE_skillctl"))
        .args(["completion", "bash"])
        .output()
        .expect("runs");
    assert!(output.status.success());
    let script = String::from_utf8(output.stdout).expect("utf-8");
    assert!(script.contains("_clap_complete_skillctl") && script.contains("SKILLCTL_COMPLETE"));
}
