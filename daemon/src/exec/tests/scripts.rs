//! Tests of resolving execs that run a script of a skill.

use super::*;

fn scripted(path: &str, cwd: pb::ScriptCwd) -> pb::ExecSpec {
    let text = Kind::StringValue("a b; id".into());
    pb::ExecSpec {
        skill: "skills/csv-report".into(),
        script: Some(pb::ExecScript {
            path: path.into(),
            argv: vec!["sub".into()],
            args: vec![pb::ScriptArg {
                key: "name".into(),
                value: Some(prost_types::Value { kind: Some(text) }),
                literal: String::new(),
            }],
            arg_style: pb::ScriptArgStyle::Named.into(),
            cwd: cwd.into(),
        }),
        ..Default::default()
    }
}

#[test]
fn script_runs_with_its_interpreter_and_absolute_path() {
    let spec = scripted("scripts/x.py", pb::ScriptCwd::Unspecified);
    let request = resolve_spec(spec, StartMode::Run).expect("good");
    let path = "/workspace/skills/csv-report/scripts/x.py";
    assert_eq!(request.argv, ["python3", path, "sub", "--name", "a b; id"]);
    assert!(request.env.contains(&"SKILL_ARG_NAME=a b; id".to_owned()));
    let effective = request.spec.expect("spec");
    assert_eq!(effective.argv, request.argv, "the client sees what runs");
    assert!(effective.script.is_some());
}

#[test]
fn a_script_started_by_its_first_line_is_the_program_itself() {
    let folder = SkillFolder {
        name: "csv-report".into(),
        path_in_plugin: None,
    };
    let interpreter: &[&str] = &[];
    let path = "x".to_owned();
    let program = script::ScriptProgram { interpreter, path };
    let spec = scripted("x", pb::ScriptCwd::Unspecified);
    let command = build_command(Some(&folder), &spec, Some(&program)).expect("good");
    assert_eq!(command.argv[0], "/workspace/skills/csv-report/x");
}

#[test]
fn script_cwd_applies_unless_the_spec_sets_cwd() {
    let root = "/workspace/skills/csv-report";
    for (path, cwd, expected) in [
        (
            "scripts/x.py",
            pb::ScriptCwd::Unspecified,
            "/workspace/work",
        ),
        ("scripts/x.py", pb::ScriptCwd::Workspace, "/workspace/work"),
        ("scripts/x.py", pb::ScriptCwd::SkillRoot, root),
        (
            "a/b/x.py",
            pb::ScriptCwd::ScriptDir,
            "/workspace/skills/csv-report/a/b",
        ),
        ("x.py", pb::ScriptCwd::ScriptDir, root),
    ] {
        let request = resolve_spec(scripted(path, cwd), StartMode::Run).expect("good");
        assert_eq!(request.cwd, expected, "{path} {cwd:?}");
    }
    let spec = pb::ExecSpec {
        cwd: "$OUTPUT_DIR".into(),
        ..scripted("x.py", pb::ScriptCwd::SkillRoot)
    };
    assert_eq!(
        resolve_spec(spec, StartMode::Run).expect("good").cwd,
        "/workspace/out"
    );
}
