//! Structured script runs: an interpreter chosen by what the file is, arguments as data, a place to start.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use anyhow::{Context, Result};
use prost_types::value::Kind;
use serde_json::{Value, json};
use skilld_client::Client;
use skilld_client::v1::exec_result::Reason as Ended;
use skilld_client::v1::{ArgStyle, ExecSpec, Reason, Script, ScriptArg, ScriptCwd};
use skilld_tests::exec::{Outcome, run, workspace};
use skilld_tests::{Daemon, Options, expect_refusal};
use tempfile::TempDir;
use tokio::process::Command;

const SHOW_PY: &str = "import json, os, sys
show = {k: v for k, v in os.environ.items() if k.startswith('SKILL_ARG_')}
print(json.dumps({'argv': sys.argv[1:], 'env': show, 'cwd': os.getcwd(), 'file': __file__}))
";
const SHOW_MJS: &str = "const env = Object.fromEntries(Object.entries(process.env).filter(([k]) => k.startsWith('SKILL_ARG_')));
console.log(JSON.stringify({argv: process.argv.slice(2), env, cwd: process.cwd()}));
";
const SHOW_SH: &str = "here=$(dirname \"${BASH_SOURCE[0]}\")\r\nif [ -n \"$here\" ]; then\r\n  printf '%s|' \"$0\" \"$PWD\" \"$@\"\r\nfi\r\n";

/// Makes a skill `kit` with a script of each kind, none of them executable.
fn root() -> Result<TempDir> {
    let root = tempfile::tempdir()?;
    fs::set_permissions(root.path(), PermissionsExt::from_mode(0o755))?;
    let write = |name: &str, text: &str| -> Result<()> {
        let path = root.path().join("kit").join(name);
        fs::create_dir_all(path.parent().context("a folder")?)?;
        Ok(fs::write(path, text)?)
    };
    write(
        "SKILL.md",
        "---\nname: kit\ndescription: Shows what scripts get.\n---\n",
    )?;
    write("scripts/show.py", SHOW_PY)?;
    write("scripts/show.mjs", SHOW_MJS)?;
    write("scripts/crlf.sh", SHOW_SH)?;
    write(
        "scripts/direct.sh",
        "#!/usr/bin/env bash\r\necho direct $1\r\n",
    )?;
    write(
        "scripts/named",
        "#!/opt/brew/bin/python3.12\nprint('by its first line')\n",
    )?;
    write(
        "scripts/ends.py",
        "import sys\nprint('out'); print('err', file=sys.stderr); sys.exit(7)\n",
    )?;
    write(
        "scripts/asks.py",
        "try: input('name? ')\nexcept EOFError: print('nobody answers')\n",
    )?;
    write("scripts/other.rb", "puts 1\n")?;
    write("scripts/note.txt", "no script\n")?;
    write("scripts/sibling.py", "VALUE = 'sibling'\n")?;
    write("scripts/__init__.py", "")?;
    write(
        "scripts/imports.py",
        "from sibling import VALUE\nfrom scripts.sibling import VALUE as same\nimport lib.deep\nprint(VALUE, same, lib.deep.VALUE)\n",
    )?;
    write("lib/deep.py", "VALUE = 'from the root'\n")?;
    write("bin/kit-tool", "#!/bin/sh\necho tool\n")?;
    Ok(root)
}

fn value(json: &Value) -> prost_types::Value {
    let kind = match json {
        Value::Null => Kind::NullValue(0),
        Value::Bool(value) => Kind::BoolValue(*value),
        Value::Number(number) => Kind::NumberValue(number.as_f64().unwrap_or_default()),
        Value::String(text) => Kind::StringValue(text.clone()),
        Value::Array(items) => Kind::ListValue(prost_types::ListValue {
            values: items.iter().map(value).collect(),
        }),
        Value::Object(fields) => Kind::StructValue(prost_types::Struct {
            fields: fields
                .iter()
                .map(|(key, item)| (key.clone(), value(item)))
                .collect(),
        }),
    };
    prost_types::Value { kind: Some(kind) }
}

fn args(pairs: &[(&str, Value)]) -> Vec<ScriptArg> {
    let made = pairs.iter().map(|(key, json)| ScriptArg {
        key: (*key).to_owned(),
        value: Some(value(json)),
        literal: String::new(),
    });
    made.collect()
}

fn script(path: &str) -> ExecSpec {
    ExecSpec {
        skill: "kit".to_owned(),
        script: Some(Script {
            path: path.to_owned(),
            ..Default::default()
        }),
        ..Default::default()
    }
}

fn with_args(path: &str, style: ArgStyle, pairs: &[(&str, Value)]) -> ExecSpec {
    let mut spec = script(path);
    if let Some(script) = &mut spec.script {
        script.args = args(pairs);
        script.set_arg_style(style);
    }
    spec
}

async fn staged(root: &Path) -> Result<(Daemon, String)> {
    let daemon = Daemon::start_with(Options::default().skills(root)).await?;
    let name = workspace(&daemon.client).await?.name;
    daemon.client.stage_skills(&name, &["kit"]).await?;
    Ok((daemon, name))
}

fn shown(outcome: &Outcome) -> Result<Value> {
    serde_json::from_slice(&outcome.stdout).with_context(|| format!("{outcome:?}"))
}

/// Checks arguments that other systems spoil, row by row, in Python and in Node.
async fn check_rows(client: &Client, name: &str) -> Result<()> {
    let rows = [
        (json!(true), json!(["--the_key"]), "true"),
        (json!(false), json!([]), "false"),
        (json!(null), json!([]), ""),
        (
            json!(["a", "b"]),
            json!(["--the_key", "a", "b"]),
            r#"["a","b"]"#,
        ),
        (
            json!({"k": 1}),
            json!(["--the_key", r#"{"k":1}"#]),
            r#"{"k":1}"#,
        ),
        (json!(3), json!(["--the_key", "3"]), "3"),
        (json!("-v"), json!(["--the_key=-v"]), "-v"),
        (
            json!("中文 😀 \"'$(id)`;\n"),
            json!(["--the_key", "中文 😀 \"'$(id)`;\n"]),
            "中文 😀 \"'$(id)`;\n",
        ),
    ];
    for (given, argv, variable) in &rows {
        for path in ["scripts/show.py", "scripts/show.mjs"] {
            let spec = with_args(path, ArgStyle::Named, &[("the_key", given.clone())]);
            let shown = shown(&run(client, name, spec).await?)?;
            assert_eq!(&shown["argv"], argv, "{path} {given}");
            assert_eq!(
                shown["env"],
                json!({ "SKILL_ARG_THE_KEY": variable }),
                "{path} {given}"
            );
        }
    }
    Ok(())
}

#[tokio::test]
async fn arguments_arrive_unchanged_in_every_style() -> Result<()> {
    let root = root()?;
    let (daemon, name) = staged(root.path()).await?;
    let client = &daemon.client;
    check_rows(client, &name).await?;
    let pairs = [
        ("z", json!("last")),
        ("flag", json!(true)),
        ("a", json!([1, 2])),
    ];
    for (style, expected) in [
        (
            ArgStyle::Unspecified,
            json!(["sub", "last", "true", "1", "2"]),
        ),
        (
            ArgStyle::Named,
            json!(["sub", "--z", "last", "--flag", "--a", "1", "2"]),
        ),
        (
            ArgStyle::NamedRepeated,
            json!(["sub", "--z", "last", "--flag", "--a", "1", "--a", "2"]),
        ),
        (ArgStyle::Env, json!(["sub"])),
    ] {
        let mut spec = with_args("scripts/show.py", style, &pairs);
        if let Some(script) = &mut spec.script {
            script.argv = vec!["sub".to_owned()];
        }
        let outcome = run(client, &name, spec).await?;
        let got = shown(&outcome)?;
        assert_eq!(got["argv"], expected, "{style:?}");
        let env = json!({"SKILL_ARG_Z": "last", "SKILL_ARG_FLAG": "true", "SKILL_ARG_A": "[1,2]"});
        assert_eq!(got["env"], env, "{style:?}");
        let path = "/workspace/skills/kit/scripts/show.py";
        assert_eq!(got["file"], path);
        assert_eq!(
            outcome.spec.argv[..3],
            ["python3", path, "sub"],
            "the effective spec says what ran"
        );
    }
    daemon.stop().await
}

#[tokio::test]
async fn an_interpreter_is_chosen_by_file_type_never_by_mode() -> Result<()> {
    let root = root()?;
    let (daemon, name) = staged(root.path()).await?;
    let client = &daemon.client;
    let outcome = run(client, &name, script("scripts/named")).await?;
    assert_eq!(outcome.text(), "by its first line\n", "{outcome:?}");
    let outcome = run(client, &name, script("scripts/imports.py")).await?;
    assert_eq!(
        outcome.text(),
        "sibling sibling from the root\n",
        "{outcome:?}"
    );

    let outcome = run(client, &name, script("scripts/ends.py")).await?;
    assert_eq!(
        (outcome.text().as_str(), outcome.error_text().as_str()),
        ("out\n", "err\n")
    );
    assert_eq!(outcome.exit_code(), Some(7));
    let outcome = run(client, &name, script("scripts/asks.py")).await?;
    assert_eq!(
        outcome.text(),
        "name? nobody answers\n",
        "a prompt does not hang"
    );

    // The image has no ruby: said as an exec that could not start, not as a failure of the call.
    let outcome = run(client, &name, script("scripts/other.rb")).await?;
    assert_eq!(outcome.reason(), Ended::SpawnFailed, "{outcome:?}");
    let failure = outcome.result.spawn_failure.clone().unwrap_or_default();
    assert!(
        failure.message.contains("ENOENT") && failure.message.contains("ruby"),
        "{failure:?}"
    );
    daemon.stop().await
}

#[tokio::test]
async fn shell_scripts_with_windows_line_ends_run() -> Result<()> {
    let root = root()?;
    let (daemon, name) = staged(root.path()).await?;
    let client = &daemon.client;
    let spec = with_args(
        "scripts/crlf.sh",
        ArgStyle::Positional,
        &[("a", json!("x y"))],
    );
    let outcome = run(client, &name, spec).await?;
    let path = "/workspace/skills/kit/scripts/crlf.sh";
    assert_eq!(
        outcome.text(),
        format!("{path}|/workspace/work|x y|"),
        "{outcome:?}"
    );
    // And as a document would have it: directly, though it came without an executable bit.
    let shell = ExecSpec {
        skill: "kit".to_owned(),
        shell: "./scripts/direct.sh you; kit-tool; stat -c %a scripts/direct.sh scripts/note.txt"
            .to_owned(),
        ..Default::default()
    };
    let outcome = run(client, &name, shell).await?;
    assert_eq!(
        outcome.text(),
        "direct you\ntool\n755\n644\n",
        "{outcome:?}"
    );
    daemon.stop().await
}

#[tokio::test]
async fn a_script_starts_where_it_was_asked_to() -> Result<()> {
    let root = root()?;
    let (daemon, name) = staged(root.path()).await?;
    let client = &daemon.client;
    for (cwd, expected) in [
        (ScriptCwd::Unspecified, "/workspace/work"),
        (ScriptCwd::Workspace, "/workspace/work"),
        (ScriptCwd::SkillRoot, "/workspace/skills/kit"),
        (ScriptCwd::ScriptDir, "/workspace/skills/kit/scripts"),
    ] {
        let mut spec = script("scripts/show.py");
        if let Some(script) = &mut spec.script {
            script.set_cwd(cwd);
        }
        let shown = shown(&run(client, &name, spec).await?)?;
        assert_eq!(shown["cwd"], expected, "{cwd:?}");
    }
    for (cwd, expected) in [
        ("$SKILLS_DIR/$SKILL_NAME/lib", "/workspace/skills/kit/lib"),
        ("$OUTPUT_DIR", "/workspace/out"),
        ("scripts", "/workspace/skills/kit/scripts"),
    ] {
        let spec = ExecSpec {
            cwd: cwd.to_owned(),
            ..script("scripts/show.py")
        };
        let shown = shown(&run(client, &name, spec).await?)?;
        assert_eq!(shown["cwd"], expected, "{cwd}");
    }
    daemon.stop().await
}

#[tokio::test]
async fn a_script_that_cannot_run_is_refused_with_its_reason() -> Result<()> {
    let root = root()?;
    std::os::unix::fs::symlink("show.py", root.path().join("kit/scripts/link.py"))?;
    let (daemon, name) = staged(root.path()).await?;
    let client = &daemon.client;
    run(client, &name, script("scripts/link.py")).await?;
    let bad = Reason::InvalidRequest;
    for (path, reason) in [
        ("../kit/scripts/show.py", bad),
        ("/workspace/skills/kit/scripts/show.py", bad),
        ("scripts", bad),
        ("scripts/note.txt", bad),
        // Links to the workspace's own folders, which the container can write.
        ("work/x.py", bad),
        ("out/x.py", bad),
        ("", bad),
        ("scripts/shwo.py", Reason::FileNotFound),
        ("show.py", Reason::FileNotFound),
    ] {
        let failure = expect_refusal(run(client, &name, script(path)).await, reason)
            .with_context(|| path.to_owned())?;
        if reason == Reason::FileNotFound {
            let nearest = failure.metadata.get("nearest").cloned().unwrap_or_default();
            assert!(nearest.contains("scripts/show.py"), "{path}: {nearest}");
        }
    }
    let same = with_args(
        "scripts/show.py",
        ArgStyle::Named,
        &[("a-b", json!(1)), ("a_b", json!(2))],
    );
    let hostile = with_args("scripts/show.py", ArgStyle::Named, &[("x; rm", json!(1))]);
    let mut taken = with_args("scripts/show.py", ArgStyle::Env, &[("a", json!(1))]);
    taken.env = [("SKILL_ARG_A".to_owned(), "2".to_owned())].into();
    for spec in [same, hostile, taken] {
        expect_refusal(run(client, &name, spec).await, Reason::InvalidRequest)?;
    }
    daemon.stop().await
}

#[tokio::test]
async fn skillctl_runs_scripts_with_arguments_as_data() -> Result<()> {
    let root = root()?;
    let (daemon, name) = staged(root.path()).await?;
    let id = name.trim_start_matches("workspaces/").to_owned();
    let words = "--skill kit --script scripts/show.py --arg-style named --script-cwd skill-root";
    let skillctl = |first: Vec<String>, last: &[&str]| {
        let mut command = Command::new(skilld_tests::binaries::binary("skillctl")?);
        command.arg("--endpoint").arg(daemon.endpoint()).args(first);
        command.args(last);
        anyhow::Ok(command)
    };
    let mut first = vec!["exec".to_owned(), id];
    first.extend(words.split(' ').map(str::to_owned));
    let last = [
        "--arg",
        "top_n=1.0",
        "--arg",
        "all=true",
        "--arg",
        "text=a b",
        "--",
        "sub",
        "-x",
    ];
    let done = skillctl(first, &last)?.output().await?;
    assert!(done.status.success(), "{done:?}");
    let shown: Value = serde_json::from_slice(&done.stdout)?;
    assert_eq!(
        shown["argv"],
        json!(["sub", "-x", "--top_n", "1.0", "--all", "--text", "a b"])
    );
    assert_eq!(shown["cwd"], "/workspace/skills/kit");

    let run = ["run", "kit", "--script", "scripts/ends.py"].map(str::to_owned);
    let done = skillctl(run.into(), &[])?.output().await?;
    assert_eq!(done.status.code(), Some(7), "{done:?}");
    assert_eq!(
        (done.stdout.as_slice(), done.stderr.as_slice()),
        (&b"out\n"[..], &b"err\n"[..])
    );
    daemon.stop().await
}
