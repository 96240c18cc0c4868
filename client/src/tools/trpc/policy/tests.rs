//! What a policy lets through, and what not.

use super::*;

fn options(allowed: &[&str], denied: &[&str]) -> Options {
    let list = |entries: &[&str]| entries.iter().map(|entry| (*entry).to_owned()).collect();
    Options {
        allowed_commands: list(allowed),
        denied_commands: list(denied),
        ..Options::default()
    }
}

fn run_with(options: &Options, command: &str, env: &[&str]) -> Result<ExecSpec, String> {
    let env = env.iter().map(|name| ((*name).to_owned(), "x".to_owned()));
    let mut spec = ExecSpec {
        env: env.collect(),
        ..ExecSpec::default()
    };
    restrict("skill_run", options, command, &mut spec, Some("demo"))
        .map(|()| spec)
        .map_err(|error| error.to_string())
}

fn run(options: &Options, command: &str) -> Result<Vec<String>, String> {
    run_with(options, command, &[]).map(|spec| spec.argv)
}

#[test]
fn what_no_entry_names_does_not_get_as_far_as_the_workspace() {
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
fn what_an_entry_denies_by_name_does_not_either() {
    let options = options(&[], &["curl", "/usr/bin/git"]);
    for command in [
        "curl x",
        "/usr/bin/curl x",
        "./curl",
        "/usr/bin/git x",
        "bash -c 'curl x'",
        "gawk 'BEGIN{system(\"curl x\")}'",
        "env curl",
        "/bin/busybox curl",
    ] {
        assert!(run(&options, command).is_err(), "{command}");
    }
    for command in ["python3 x.py", "scripts/x.sh", "/usr/bin/python3 x", "git"] {
        assert!(run(&options, command).is_ok(), "{command}");
    }
}

#[test]
fn the_workspace_is_told_what_may_start() {
    let programs = |options| run_with(&options, "ls", &[]).map(|spec| spec.programs);
    let allowed = programs(options(&["ls", "/usr/bin/wc"], &["curl"]));
    let allowed = allowed.expect("runs").expect("told");
    assert_eq!(allowed.allowed, ["ls", "/usr/bin/wc"]);
    assert_eq!(allowed.denied, ["curl"]);
    let denied = programs(options(&[], &["curl"]))
        .expect("runs")
        .expect("told");
    assert_eq!(
        (denied.allowed.len(), denied.denied[0].as_str()),
        (0, "curl")
    );
    for launcher in ["bash", "rbash", "gawk", "/lib64/ld-linux-x86-64.so.2"] {
        assert!(denied.denied.iter().any(|entry| entry == launcher));
    }
}

#[test]
fn an_entry_in_a_skills_folder_is_a_program_of_the_skill_that_runs() {
    let options = options(&["bin/tool"], &["bin/other"]);
    let spec = |skill| {
        let mut spec = ExecSpec::default();
        restrict("skill_run", &options, "bin/tool x", &mut spec, skill).map(|()| spec)
    };
    let in_skill = spec(Some("demo")).expect("permitted");
    assert_eq!(in_skill.argv, ["bin/tool", "x"]);
    let programs = in_skill.programs.expect("told");
    assert_eq!(programs.allowed, ["/workspace/skills/demo/bin/tool"]);
    assert_eq!(programs.denied, ["/workspace/skills/demo/bin/other"]);
    assert!(run(&options, "tool").is_ok(), "it is in PATH");
    assert!(run(&options, "bin/other").is_err());
    // In no skill the entry leads nowhere, and the list must not be empty: that would permit everything.
    let programs = spec(None).expect("for the workspace to refuse").programs;
    assert_eq!(programs.expect("told").allowed, ["/nonexistent/bin/tool"]);
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
        let starts = format!("skill_run: env must not set {name}");
        assert!(error.starts_with(&starts), "{error}");
    }
    options.allowed_env.push("LEVEL".into());
    let spec = run_with(&options, "ls", &["LEVEL"]).expect("the host named it");
    assert_eq!(spec.env["LEVEL"], "x");
    assert!(run_with(&options, "ls", &["LEVEL", "level"]).is_err());
}

#[test]
fn nothing_in_the_environment_leads_to_where_commands_write() {
    let mut options = options(&["ls"], &[]);
    let spec = run_with(&options, "ls", &[]).expect("runs");
    for (name, value) in [
        ("HOME", "/nonexistent"),
        (
            "PATH",
            format!("{PATH}:/workspace/skills/demo/bin").as_str(),
        ),
        ("PYTHONNOUSERSITE", "1"),
        ("PYTHONPATH", "/workspace/skills/demo"),
        ("SKILL_DIR", "/workspace/skills/demo"),
        ("SKILL_NAME", "demo"),
    ] {
        assert_eq!(spec.env[name], value);
    }
    options.env.insert("PATH".into(), "/opt/bin".into());
    options.env.insert("HOME".into(), "/opt/home".into());
    let spec = run_with(&options, "ls", &[]).expect("runs");
    assert_eq!(
        (&*spec.env["PATH"], &*spec.env["HOME"]),
        ("/opt/bin:/workspace/skills/demo/bin", "/opt/home")
    );
    options.allowed_env.push("SKILL_DIR".into());
    assert!(check(&options).is_err(), "it would have no effect");
}

#[test]
fn entries_that_can_match_nothing_are_a_mistake_of_the_host() {
    for entry in ["", "a b", "./x", "bin/../x", "bin/", "/usr/bin/"] {
        assert!(check(&options(&[entry], &[])).is_err(), "{entry:?}");
        assert!(check(&options(&[], &[entry])).is_err(), "{entry:?}");
    }
    assert!(
        check(&options(
            &["ls", "/usr/bin/wc", "bin/x"],
            &["x.sh", "bin/y"]
        ))
        .is_ok()
    );
}
