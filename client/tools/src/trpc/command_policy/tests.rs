//! Commands that a policy permits and refuses.

use super::*;

fn options(allowed: &[&str], denied: &[&str]) -> ToolOptions {
    let list = |entries: &[&str]| entries.iter().map(|entry| (*entry).to_owned()).collect();
    ToolOptions {
        allowed_commands: list(allowed),
        denied_commands: list(denied),
        ..ToolOptions::default()
    }
}

fn run_with(options: &ToolOptions, command: &str, env: &[&str]) -> Result<ExecSpec, String> {
    let env = env
        .iter()
        .map(|name| ((*name).to_owned(), "x".to_owned()))
        .collect();
    let mut spec = ExecSpec {
        env,
        ..ExecSpec::default()
    };
    restrict_command(options, command, &mut spec).map(|()| spec)
}

fn run(options: &ToolOptions, command: &str) -> Result<Vec<String>, String> {
    run_with(options, command, &[]).map(|spec| spec.argv)
}

#[test]
fn commands_that_no_entry_names_never_reach_the_workspace() {
    let options = options(&["ls", "/usr/bin/wc"], &[]);
    for (command, argv) in [
        ("ls -l 'a b' \"\" c\\ d", vec!["ls", "-l", "a b", "", "c d"]),
        ("/usr/bin/wc -l", vec!["/usr/bin/wc", "-l"]),
        // Whether they are these programs the workspace sees.
        ("wc", vec!["wc"]),
        ("./ls", vec!["./ls"]),
        ("/usr//bin/../bin/wc", vec!["/usr//bin/../bin/wc"]),
    ] {
        let argv: Vec<String> = argv.into_iter().map(str::to_owned).collect();
        assert_eq!(run(&options, command), Ok(argv), "{command}");
    }
    for command in ["cat", "/bin/cat", "LS", "lsx", "A=1 ls", "ls/", "", "''"] {
        assert!(run(&options, command).is_err(), "{command}");
    }
}

#[test]
fn quoted_text_is_literal_and_unquoted_shell_syntax_is_refused() {
    let options = options(&["echo"], &[]);
    for (command, word) in [
        ("echo 'a; b | c > d & $e `f`'", "a; b | c > d & $e `f`"),
        ("echo \"a; b\nc\"", "a; b\nc"),
        ("echo \"\\$5\"", "$5"),
        ("echo a\\;b", "a;b"),
        ("\u{feff}echo 'a\r\nb'\r\n", "a\nb"),
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
fn commands_denied_by_name_never_reach_the_workspace() {
    let options = options(&[], &["curl", "/usr/bin/git"]);
    for command in ["curl x", "/usr/bin/curl x", "./curl", "/usr/bin/git x"] {
        assert!(run(&options, command).is_err(), "{command}");
    }
    // The daemon denies programs that run others.
    for command in [
        "python3 x.py",
        "scripts/x.sh",
        "/usr/bin/python3 x",
        "git",
        "bash -c 'curl x'",
    ] {
        assert!(run(&options, command).is_ok(), "{command}");
    }
}

#[test]
fn the_workspace_is_told_what_may_start() {
    let programs = |options: &ToolOptions| {
        let spec = run_with(options, "ls", &[]).expect("runs");
        let programs = spec.programs.expect("told");
        assert_eq!(list_programs(options, Some("demo")), Some(programs.clone()));
        (programs.allowed, programs.denied)
    };
    let (allowed, denied) = programs(&options(&["ls", "/usr/bin/wc"], &["curl"]));
    assert_eq!(allowed, ["ls", "/usr/bin/wc"]);
    assert_eq!(denied, ["curl"]);
    let (allowed, denied) = programs(&options(&[], &["curl"]));
    assert_eq!((allowed.len(), denied), (0, vec!["curl".to_owned()]));
    assert_eq!(list_programs(&ToolOptions::default(), None), None);
}

#[test]
fn a_relative_entry_means_a_program_of_the_running_skill() {
    let options = options(&["bin/tool"], &["bin/other"]);
    assert_eq!(
        run(&options, "bin/tool x").expect("permitted"),
        ["bin/tool", "x"]
    );
    let programs = list_programs(&options, Some("demo")).expect("told");
    assert_eq!(programs.allowed, ["/workspace/skills/demo/bin/tool"]);
    assert_eq!(programs.denied, ["/workspace/skills/demo/bin/other"]);
    assert!(run(&options, "tool").is_ok(), "it is in PATH");
    assert!(run(&options, "bin/other").is_err());
    // In no skill the entry leads nowhere, and the list must not be empty: that would permit everything.
    let programs = list_programs(&options, None).expect("told");
    assert_eq!(programs.allowed, ["/nonexistent/bin/tool"]);
}

#[test]
fn deny_beats_allow() {
    assert!(run(&options(&["ls"], &["ls"]), "ls").is_err());
}

#[test]
fn only_variables_that_the_host_names_may_be_set() {
    let mut options = options(&["ls"], &[]);
    for name in [
        "PATH",
        "path",
        "HOME",
        "LD_PRELOAD",
        "BASH_FUNC_ls%%",
        "PYTHONUSERBASE",
        "PYTHONWARNINGS",
        "SKILL_DIR",
        "SKILLS_DIR",
        "TAR_OPTIONS",
        "GIT_SSH",
        "XDG_CONFIG_HOME",
        "EDITOR",
        "LEVEL",
    ] {
        let error = run_with(&options, "ls", &[name]).expect_err(name);
        let starts = format!("env must not set {name}");
        assert!(error.starts_with(&starts), "{error}");
    }
    options.allowed_env.push("LEVEL".into());
    let spec = run_with(&options, "ls", &["LEVEL"]).expect("the host named it");
    assert_eq!(spec.env["LEVEL"], "x");
    assert!(run_with(&options, "ls", &["LEVEL", "level"]).is_err());
}

#[test]
fn the_host_cannot_allow_variables_reserved_by_the_daemon() {
    for name in RESERVED_VARIABLES {
        let mut options = options(&["ls"], &[]);
        options.allowed_env.push(name.into());
        assert!(check_lists(&options).is_err(), "{name}");
    }
}

#[test]
fn entries_that_can_match_nothing_are_a_mistake_of_the_host() {
    for entry in ["", "a b", "./x", "bin/../x", "bin/", "/usr/bin/"] {
        assert!(check_lists(&options(&[entry], &[])).is_err(), "{entry:?}");
        assert!(check_lists(&options(&[], &[entry])).is_err(), "{entry:?}");
    }
    assert!(
        check_lists(&options(
            &["ls", "/usr/bin/wc", "bin/x"],
            &["x.sh", "bin/y"]
        ))
        .is_ok()
    );
}
