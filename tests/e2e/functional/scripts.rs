//! Structured script runs: an interpreter chosen by what the file is.
//!
//! Docker: the scripts run with the Python and the bash of the real image, and without its missing Ruby.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use anyhow::{Context, Result};
use skilld_client::v1::{ExecScript, ExecSpec, ExitReason as Ended};
use skilld_tests::exec::{run, workspace};
use skilld_tests::{Daemon, Options};
use tempfile::TempDir;

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
    write("scripts/crlf.sh", SHOW_SH)?;
    write(
        "scripts/direct.sh",
        "#!/usr/bin/env bash\r\necho direct $1\r\n",
    )?;
    write(
        "scripts/named",
        "#!/opt/brew/bin/python3.12\nprint('by its first line')\n",
    )?;
    write("scripts/select", "#!/usr/bin/sed -nf\n/^[ab]/p\n")?;
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

fn script(path: &str) -> ExecSpec {
    ExecSpec {
        skill: "kit".to_owned(),
        script: Some(ExecScript {
            path: path.to_owned(),
            ..Default::default()
        }),
        ..Default::default()
    }
}

async fn staged(root: &Path) -> Result<(Daemon, String)> {
    let daemon = Daemon::start_with(Options::default().skills(root)).await?;
    let name = workspace(&daemon.client).await?.name;
    daemon.client.stage_skills(&name, &["kit"]).await?;
    Ok((daemon, name))
}

#[tokio::test]
async fn an_interpreter_is_chosen_by_file_type_never_by_mode() -> Result<()> {
    let root = root()?;
    let (daemon, name) = staged(root.path()).await?;
    let client = &daemon.client;
    let outcome = run(client, &name, script("scripts/named")).await?;
    assert_eq!(outcome.text(), "by its first line\n", "{outcome:?}");
    // No interpreter is known for it, so the kernel starts it by its first line, with its own path.
    let direct = ExecSpec {
        stdin_data: "apple\ncherry\n".into(),
        ..script("scripts/select")
    };
    let outcome = run(client, &name, direct).await?;
    assert_eq!(outcome.text(), "apple\n", "{outcome:?}");
    let path = "/workspace/skills/kit/scripts/select";
    assert_eq!(outcome.spec.argv, [path]);
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
    let mut spec = script("scripts/crlf.sh");
    if let Some(script) = &mut spec.script {
        script.argv = vec!["x y".to_owned()];
    }
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
