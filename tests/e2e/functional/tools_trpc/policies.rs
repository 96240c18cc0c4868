//! Policies: programs that a model may run, under any name and from any place.
//!
//! Docker: seccomp and the guest decide in a container which file a name leads to and whether it may run.

use anyhow::Result;
use serde_json::{Value, json};
use skilld_tests::{Daemon, DefaultDaemon};
use skilld_tools::ToolOptions;

use super::Talk;

#[tokio::test]
#[expect(clippy::too_many_lines, reason = "one conversation, in its order")]
async fn a_policy_holds_on_every_way_to_run_something() -> Result<()> {
    let daemon = DefaultDaemon::share().await?;
    let mut free = Talk::new(&daemon, "policy", ToolOptions::default())?;
    // Programs under the allowed name, where PATH would find them first and elsewhere.
    let plant = "mkdir -p .venv/bin work/bin && for f in .venv/bin/echo work/echo; do printf '#!/bin/sh\\nprintf evil' > $f; chmod +x $f; done";
    let planted = free
        .call(
            "skill_run",
            json!({"skill": "python-math", "command": plant}),
        )
        .await?;
    assert_eq!(planted["exit_code"], 0, "{planted}");
    let evil = json!({"skill": "python-math", "command": "env echo"});
    let evil = free.call("skill_run", evil).await?;
    assert_eq!(
        evil["stdout"], "evil",
        "the plant grows where nothing is restricted"
    );
    let mut options = ToolOptions {
        allowed_commands: vec!["echo".into(), "sort".into()],
        ..ToolOptions::default()
    };
    let mut talk = Talk::new(&daemon, "policy", options.clone())?;
    talk.calls = 100;
    for (tool, base) in [
        ("skill_run", json!({"skill": "python-math"})),
        (
            "skill_exec",
            json!({"skill": "python-math", "yield_ms": 60000}),
        ),
        ("workspace_exec", json!({})),
    ] {
        let with = |key: &str, value: Value| {
            let mut arguments = base.clone();
            arguments[key] = value;
            arguments
        };
        let quoted = with("command", json!("echo 'a; b' \"\" c"));
        let result = talk.run_to_end(tool, quoted).await?;
        let output = result.get("stdout").or(result.get("output")).cloned();
        assert_eq!(output, Some(json!("a; b  c\n")), "{tool}: {result}");
        for command in [
            "work/echo x",
            "/workspace/work/echo x",
            "cat x",
            "echo x; cat y",
            "echo $(cat y)",
            "bash -c 'echo x'",
        ] {
            let refused = talk
                .expect_refusal(tool, with("command", json!(command)))
                .await;
            assert!(
                refused.starts_with(&format!("COMMAND_REFUSED: {tool}: ")),
                "{tool} {command}: {refused}"
            );
        }
        let mut loaded = with("command", json!("echo x"));
        loaded["env"] = json!({"LD_PRELOAD": "/workspace/work/x.so"});
        assert!(
            talk.expect_refusal(tool, loaded)
                .await
                .contains("env must not set LD_PRELOAD")
        );
        let result = talk
            .run_to_end(tool, with("command", json!("/bin/echo x")))
            .await?;
        let output = result.get("stdout").or(result.get("output")).cloned();
        assert_eq!(output, Some(json!("x\n")), "it is that program: {result}");
    }
    let typed =
        json!({"skill": "python-math", "command": "sort", "stdin": "b\na\n", "cwd": "scripts"});
    let result = talk.call("skill_run", typed).await?;
    assert_eq!(result["stdout"], "a\nb\n", "{result}");
    options.allowed_commands.clear();
    options.denied_commands = vec!["cat".into()];
    let mut talk = Talk::new(&daemon, "policy", options)?;
    talk.calls = 200;
    for command in ["cat x", "/bin/cat x", "sh -c 'cat x'", "work/echo"] {
        let run = json!({"skill": "python-math", "command": command});
        assert!(
            talk.expect_refusal("skill_run", run)
                .await
                .starts_with("COMMAND_REFUSED"),
            "{command}"
        );
    }
    let run = json!({"skill": "python-math", "command": "python3 scripts/python_math.py fib 10"});
    assert_eq!(talk.call("skill_run", run).await?["stdout"], "55\n");
    free.end().await?;
    daemon.stop().await
}

/// Each tool that runs something, with a command.
fn ways(command: &str) -> [(&'static str, Value); 4] {
    [
        (
            "skill_run",
            json!({"skill": "python-math", "command": command}),
        ),
        (
            "skill_exec",
            json!({"skill": "python-math", "command": command, "yield_ms": 60000}),
        ),
        (
            "workspace_exec",
            json!({"command": command, "cwd": "skills/python-math"}),
        ),
        (
            "workspace_exec",
            json!({"command": command, "cwd": "skills/python-math", "yield_time_ms": 60000}),
        ),
    ]
}

#[tokio::test]
#[expect(clippy::too_many_lines, reason = "lists of names, on one daemon")]
async fn a_program_is_denied_under_every_name_and_in_every_copy() -> Result<()> {
    let daemon = DefaultDaemon::share().await?;
    let mut free = Talk::new(&daemon, "denied", ToolOptions::default())?;
    let plant = "mkdir -p out/x work/x && cp $(realpath $(command -v python3)) out/x/py && ln -s $(command -v python3) work/x/link \
                 && ln -s $(command -v bash) work/x/run && ln -s $(command -v wc) work/x/wc && ln -s $(command -v wc) work/x/other && echo ok";
    let planted = json!({"skill": "python-math", "command": plant});
    assert_eq!(free.call("skill_run", planted).await?["stdout"], "ok\n");
    let denied = |entries: &[&str]| ToolOptions {
        denied_commands: entries.iter().map(|entry| (*entry).to_owned()).collect(),
        ..ToolOptions::default()
    };
    let mut talk = Talk::new(&daemon, "denied", denied(&["python3", "/usr/bin/node"]))?;
    talk.calls = 100;
    for command in [
        "python -c 1",
        "python3.13 -c 1",
        "/usr/bin/python -c 1",
        "/usr//bin/./python3 -c 1",
        "nodejs -e 1",
        // Copies and links, by every way of writing their paths.
        "out/x/py -c 1",
        ".//out/x/py -c 1",
        "/workspace/skills/python-math//out/x/py -c 1",
        "/workspace/skills//python-math/out/x/py -c 1",
        "/workspace/skills/python-math/scripts/../out/x/py -c 1",
        "work/x/link -c 1",
        "/workspace/work/x/link -c 1",
        // Programs that run others, under other names.
        "work/x/run -c 'python3 -c 1'",
        "rbash -c 'python3 -c 1'",
        "gawk 'BEGIN{system(\"python3 -c 1\")}'",
        "/lib64/ld-linux-x86-64.so.2 /usr/bin/python3 -c 1",
    ] {
        for (tool, arguments) in ways(command) {
            let refused = talk.try_call(tool, arguments).await;
            let refused = match refused {
                Err(error) => format!("{}: {error}", error.code()),
                Ok(result) => anyhow::bail!("{tool} {command}: {result}"),
            };
            assert!(
                refused.starts_with(&format!("COMMAND_REFUSED: {tool}: ")),
                "{command}: {refused}"
            );
        }
    }
    for command in [
        "wc --version",
        "/usr/bin/wc --version",
        "work/x/other --version",
    ] {
        for (tool, arguments) in ways(command) {
            let result = talk.run_to_end(tool, arguments).await?;
            assert_eq!(result["exit_code"], 0, "{tool} {command}: {result}");
        }
    }

    let allowed = ToolOptions {
        allowed_commands: vec!["/usr/bin/wc".into(), "sort".into()],
        ..ToolOptions::default()
    };
    let mut talk = Talk::new(&daemon, "denied", allowed)?;
    talk.calls = 300;
    for (command, runs) in [
        ("wc --version", true),
        ("/bin/wc --version", true),
        ("work/x/wc --version", true),
        ("/usr/bin/sort --version", true),
        ("work/x/other --version", false),
        ("out/x/wc --version", false),
        // Of the workspace's own processes, none of the command's.
        ("/proc/self/cwd/work/x/wc --version", false),
        ("cat --version", false),
    ] {
        for (tool, arguments) in ways(command) {
            let ran = talk
                .run_to_end(tool, arguments)
                .await
                .is_ok_and(|result| result["exit_code"] == 0);
            assert_eq!(ran, runs, "{tool} {command}");
        }
    }
    free.end().await?;
    daemon.stop().await
}

#[tokio::test]
async fn an_allowed_program_loads_nothing_that_a_command_left() -> Result<()> {
    let daemon = DefaultDaemon::share().await?;
    let mut free = Talk::new(&daemon, "planted", ToolOptions::default())?;
    let script = "/workspace/skills/python-math/scripts/python_math.py";
    let plant = "for d in $(python3 -c 'import site; print(site.getusersitepackages())') work/lib; do \
                 mkdir -p $d && echo \"open('/workspace/work/ran', 'a')\" | tee $d/usercustomize.py > $d/sitecustomize.py; done; \
                 cp work/lib/usercustomize.py work/evil.py; echo ok";
    let planted = json!({"skill": "python-math", "command": plant});
    assert_eq!(free.call("skill_run", planted).await?["stdout"], "ok\n");
    let run = json!({"skill": "python-math", "command": format!("{script} fib 10")});
    let look = json!({"command": "test -e work/ran && rm work/ran && echo ran; true"});
    assert_eq!(free.call("skill_run", run.clone()).await?["exit_code"], 0);
    let ran = free.call("workspace_exec", look.clone()).await?;
    assert_eq!(
        ran["output"], "ran\n",
        "it is loaded where nothing is restricted"
    );

    let options = ToolOptions {
        allowed_commands: vec!["echo".into(), script.into()],
        ..ToolOptions::default()
    };
    let mut talk = Talk::new(&daemon, "planted", options)?;
    talk.calls = 100;
    // A text of the model's, put where Python would load it from before the command.
    let typed = json!({"skill": "python-math", "command": "echo x", "editor_text": "import os"});
    let refused = talk.expect_refusal("skill_exec", typed).await;
    assert!(refused.starts_with("COMMAND_REFUSED"), "{refused}");
    let to = "work/.local/lib/python3.13/site-packages/usercustomize.py";
    let inputs = json!([{"from": "workspace://work/evil.py", "to": to}]);
    for (tool, mut arguments) in ways(&format!("{script} fib 10")) {
        if tool != "workspace_exec" {
            arguments["inputs"] = inputs.clone();
        }
        let result = talk.run_to_end(tool, arguments.clone()).await?;
        let output = result.get("stdout").or(result.get("output")).cloned();
        assert_eq!(output, Some(json!("55\n")), "{tool}: {result}");
        for (name, value) in [
            ("PYTHONUSERBASE", "/workspace/work/.local"),
            ("PYTHONPATH", "/workspace/work/lib"),
            ("HOME", "/workspace/work"),
            ("SKILL_DIR", "/workspace/work"),
        ] {
            arguments["env"] = json!({name: value});
            let refused = talk.expect_refusal(tool, arguments.clone()).await;
            assert!(
                refused.contains(&format!("env must not set {name}")),
                "{refused}"
            );
        }
    }
    free.calls = 50;
    let ran = free.call("workspace_exec", look).await?;
    assert_eq!(ran["output"], "", "nothing of it ran");
    free.end().await?;
    daemon.stop().await
}

#[tokio::test]
async fn a_skills_own_programs_run_while_commands_are_restricted() -> Result<()> {
    use std::os::unix::fs::PermissionsExt;
    let root = tempfile::tempdir()?;
    let bin = root.path().join("kit/bin");
    std::fs::create_dir_all(&bin)?;
    std::fs::write(
        root.path().join("kit/SKILL.md"),
        "---\nname: kit\ndescription: Has programs.\n---\n# Kit\n",
    )?;
    for (name, text) in [("hello", "echo kit $1"), ("wc", "echo not the image\'s")] {
        let path = bin.join(name);
        std::fs::write(&path, format!("#!/bin/sh\n{text}\n"))?;
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755))?;
    }
    let roots = skilld_tests::Options::default().skills(root.path());
    let daemon = Daemon::start_with(roots).await?;
    for entry in ["hello", "bin/hello"] {
        let options = ToolOptions {
            allowed_commands: vec![entry.into(), "wc".into()],
            ..ToolOptions::default()
        };
        let mut talk = Talk::new(&daemon, &entry.replace('/', "-"), options)?;
        for command in [
            "hello x",
            "bin/hello x",
            "/workspace/skills/kit/bin/hello x",
        ] {
            let run = json!({"skill": "kit", "command": command});
            let result = talk.call("skill_run", run).await?;
            assert_eq!(result["stdout"], "kit x\n", "{entry} {command}: {result}");
        }
        // A skill takes no other program's place.
        let run = json!({"skill": "kit", "command": "wc --version"});
        let result = talk.call("skill_run", run).await?;
        let stdout = result["stdout"].as_str().unwrap_or_default();
        assert!(stdout.starts_with("wc (GNU"), "{result}");
        let run = json!({"skill": "kit", "command": "bin/wc"});
        assert!(
            talk.expect_refusal("skill_run", run)
                .await
                .starts_with("COMMAND_REFUSED")
        );
        // In no skill the entry is no program.
        for command in ["hello x", "/workspace/skills/kit/bin/hello x"] {
            let ran = talk
                .try_call("workspace_exec", json!({"command": command}))
                .await;
            let is_permitted = ran.is_ok_and(|result| result["output"] == "kit x\n");
            assert!(!is_permitted, "{entry} {command}");
        }
    }
    daemon.stop().await
}
