//! What a policy lets through, and what not.

use std::collections::BTreeMap;

use super::*;

const ROOT: &str = "/workspace/skills/demo";

fn options(allowed: &[&str], denied: &[&str]) -> Options {
    let list = |entries: &[&str]| entries.iter().map(|entry| (*entry).to_owned()).collect();
    Options {
        allowed_commands: list(allowed),
        denied_commands: list(denied),
        ..Options::default()
    }
}

fn run(options: &Options, command: &str) -> Result<Vec<String>, String> {
    argv("skill_run", options, command, &BTreeMap::new(), Some(ROOT))
        .map_err(|error| error.to_string())
}

#[test]
fn an_allowed_name_is_that_name_and_no_path_that_ends_like_it() {
    let options = options(
        &["ls", "/usr/bin/wc", "/workspace/skills/demo/scripts/x.sh"],
        &[],
    );
    for (command, argv) in [
        ("ls -l 'a b' \"\" c\\ d", vec!["ls", "-l", "a b", "", "c d"]),
        ("/usr/bin/wc -l", vec!["/usr/bin/wc", "-l"]),
        (
            "scripts/x.sh 1",
            vec!["/workspace/skills/demo/scripts/x.sh", "1"],
        ),
        (
            "./scripts/x.sh",
            vec!["/workspace/skills/demo/scripts/x.sh"],
        ),
    ] {
        let argv: Vec<String> = argv.into_iter().map(str::to_owned).collect();
        assert_eq!(run(&options, command), Ok(argv), "{command}");
    }
    for command in [
        "/tmp/evil/ls",
        "./ls",
        "/bin/ls",
        "wc",
        "/workspace/work/wc",
        "scripts/../scripts/x.sh",
        "/usr/bin/../../workspace/work/wc",
        "LS",
        "A=1 ls",
        "",
        "''",
    ] {
        let error = run(&options, command).expect_err(command);
        assert!(error.starts_with("skill_run: "), "{error}");
    }
}

#[test]
fn text_in_quotes_is_text_and_a_shells_signs_outside_are_refused() {
    let options = options(&["echo"], &[]);
    for (command, word) in [
        ("echo 'a; b | c > d & $e `f`'", "a; b | c > d & $e `f`"),
        ("echo \"a; b\nc\"", "a; b\nc"),
        ("echo \"\\$5\"", "$5"),
        ("echo a\\;b", "a;b"),
        ("echo {}", "{}"),
        ("echo a#b", "a#b"),
    ] {
        assert_eq!(
            run(&options, command).map(|argv| argv.last().cloned()),
            Ok(Some(word.to_owned())),
            "{command}"
        );
    }
    for command in [
        "echo a; ls",
        "echo a && ls",
        "echo a | sh",
        "echo a > b",
        "echo a < b",
        "echo $(ls)",
        "echo `ls`",
        "echo $HOME",
        "echo \"$(ls)\"",
        "echo \"`ls`\"",
        "echo a\nls",
        "echo a\rls",
        "echo *",
        "echo a?",
        "echo [a]",
        "echo {a,b}",
        "echo ~",
        "echo a # b",
        "(echo a)",
        "echo a \\\nb",
        "echo 'a",
        "echo \"a",
        "echo a\\",
    ] {
        assert!(run(&options, command).is_err(), "{command:?}");
    }
}

#[test]
fn a_denied_program_is_denied_by_every_path_and_launcher() {
    let options = options(&[], &["curl", "/usr/bin/git"]);
    for command in [
        "curl x",
        "/usr/bin/curl x",
        "/bin/git x",
        "git x",
        "./curl",
        "bash -c 'curl x'",
        "env curl",
        "xargs curl",
        "timeout 1 curl",
        "/bin/busybox curl",
        "/workspace/work/x",
        "work/x",
        "/tmp/x",
        "out/x",
        ".venv/bin/python",
        "/proc/self/cwd/x",
        "/lib64/ld-linux-x86-64.so.2 /usr/bin/curl",
    ] {
        assert!(run(&options, command).is_err(), "{command}");
    }
    for command in ["python3 x.py", "scripts/x.sh", "/usr/bin/python3 x"] {
        assert!(run(&options, command).is_ok(), "{command}");
    }
}

#[test]
fn deny_beats_allow() {
    assert!(run(&options(&["ls"], &["ls"]), "ls").is_err());
}

#[test]
fn variables_that_decide_what_runs_are_refused() {
    let options = options(&["ls"], &[]);
    for name in [
        "PATH",
        "path",
        "LD_PRELOAD",
        "DYLD_LIBRARY_PATH",
        "BASH_ENV",
        "BASH_FUNC_ls%%",
        "PYTHONPATH",
        "GIT_SSH",
    ] {
        let env = BTreeMap::from([(name.to_owned(), "x".to_owned())]);
        let error = argv("workspace_exec", &options, "ls", &env, None).expect_err(name);
        assert!(
            error
                .to_string()
                .starts_with("workspace_exec: env must not set"),
            "{error}"
        );
    }
    let env = BTreeMap::from([("LEVEL".to_owned(), "x".to_owned())]);
    assert!(argv("workspace_exec", &options, "ls", &env, None).is_ok());
}

#[test]
fn a_relative_program_needs_a_known_place() {
    let options = options(&["/workspace/skills/demo/x"], &[]);
    let env = BTreeMap::new();
    assert!(argv("skill_run", &options, "./x", &env, Some(ROOT)).is_ok());
    assert!(argv("skill_run", &options, "./x", &env, None).is_err());
}

#[test]
fn entries_that_can_match_nothing_are_a_mistake_of_the_host() {
    for entry in ["", "a b", "bin/x", "./x", "/usr/../x"] {
        assert!(check(&options(&[entry], &[])).is_err(), "{entry:?}");
        assert!(check(&options(&[], &[entry])).is_err(), "{entry:?}");
    }
    assert!(check(&options(&["ls", "/usr/bin/wc"], &["x.sh"])).is_ok());
}
