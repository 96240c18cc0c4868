//! `make compat DIR=…` over a folder with a good skill, one that lacks modules, and one that can't be loaded.

#![expect(
    clippy::panic_in_result_fn,
    reason = "an assertion is how a test fails"
)]

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use anyhow::Result;
use serde_json::{Value, json};
use tokio::process::Command;

fn write(root: &Path, path: &str, text: &str) -> Result<()> {
    let path = root.join(path);
    fs::create_dir_all(path.parent().unwrap_or(root))?;
    Ok(fs::write(path, text)?)
}

fn make_collection(root: &Path) -> Result<()> {
    fs::set_permissions(root, PermissionsExt::from_mode(0o755))?;
    for name in ["good", "lacking"] {
        let text = format!("---\nname: {name}\ndescription: d\n---\n");
        write(root, &format!("{name}/SKILL.md"), &text)?;
    }
    write(root, "broken/SKILL.md", "no front matter")?;
    let parser = "import argparse\nargparse.ArgumentParser().parse_args()\n";
    write(root, "good/scripts/a.py", parser)?;
    write(
        root,
        "good/scripts/b.sh",
        "echo \"Usage: b.sh FILE\" >&2; exit 1\n",
    )?;
    write(root, "good/scripts/data.json", "{}\n")?;
    write(root, "lacking/requirements.txt", "no-such-package\n")?;
    write(root, "lacking/scripts/a.py", "import no_such_module\n")?;
    write(root, "lacking/scripts/b.sh", "set -e\nno-such-command\n")?;
    write(root, "lacking/scripts/c.rb", "puts 1\n")?;
    // It reads stdin, and gets none.
    write(root, "lacking/scripts/d.sh", "read -r line; exit 7\n")
}

#[tokio::test]
async fn report_says_of_each_skill_what_keeps_it_from_running() -> Result<()> {
    let root = tempfile::tempdir()?;
    make_collection(root.path())?;
    let output = Command::new(env!("CARGO_BIN_EXE_collection-report"))
        .arg("--dir")
        .arg(root.path())
        .args(["--pool", "default", "-o", "json"])
        .output()
        .await?;
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(0), "{stderr}");
    assert!(stderr.contains("3 of 3: "), "{stderr}");
    let report: Value = serde_json::from_slice(&output.stdout)?;
    let at = |path: &str| report.pointer(path).cloned().unwrap_or_default();
    let totals = json!({
        "found": 3, "loaded": 2, "ready": 1, "environments_missing": 1,
        "scripts": 6, "scripts_started": 2, "scripts_broken": 3, "scripts_unclear": 1,
    });
    assert_eq!(at("/totals"), totals, "{report:#}");
    assert_eq!(at("/skills/0/name"), "broken");
    assert!(at("/skills/0/problems/0").to_string().contains("skill."));
    let why: Vec<_> = (0..4)
        .map(|index| at(&format!("/skills/2/scripts/{index}/reason")).to_string())
        .collect();
    for (why, part) in why
        .iter()
        .zip(["no_such_module", "no-such-command", "ruby", "exit code 7"])
    {
        assert!(why.contains(part), "{part}: {report:#}");
    }
    assert_eq!(at("/skills/2/lacks"), json!(["no-such-package"]));
    Ok(())
}
