//! Skills of a plugin in a container: their folder by its own path, the files that they share, and restricted execs.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use anyhow::{Context, Result};
use skilld_client::Client;
use skilld_client::v1::spawn_failure::Stage;
use skilld_client::v1::{ExecSpec, Programs, Script};
use skilld_tests::exec::{argv, run, shell, workspace};
use skilld_tests::{Daemon, Options};
use tempfile::TempDir;

/// Folder of the plugin of the skill `deploy` in a workspace.
const PLUGIN: &str = "/workspace/skills/.plugins/deploy";

fn write(path: &Path, text: &str, mode: u32) -> Result<()> {
    fs::create_dir_all(path.parent().context("no parent")?)?;
    fs::write(path, text)?;
    Ok(fs::set_permissions(path, PermissionsExt::from_mode(mode))?)
}

/// Makes a root with a plugin whose skill `deploy` has a script and programs, and shares a file with others.
fn root() -> Result<TempDir> {
    let root = tempfile::tempdir()?;
    fs::set_permissions(root.path(), PermissionsExt::from_mode(0o755))?;
    let plugin = root.path().join("acme");
    let skill = plugin.join("skills/deploy");
    let show = "import os.path
plugin = os.path.abspath(os.path.join(__file__, '../../../..'))
print(open(os.path.join(plugin, 'shared/note.txt')).read().strip())
";
    for (path, text, mode) in [
        (".claude-plugin/plugin.json", "{\"name\": \"acme\"}", 0o644),
        ("shared/note.txt", "shared\n", 0o644),
        ("shared/tool", "#!/bin/sh\necho tool\n", 0o755),
    ] {
        write(&plugin.join(path), text, mode)?;
    }
    for (path, text, mode) in [
        (
            "SKILL.md",
            "---\nname: deploy\ndescription: d\n---\n{baseDir} ${CLAUDE_SKILL_DIR} ${CLAUDE_PLUGIN_ROOT}\n",
            0o644,
        ),
        ("scripts/show.py", show, 0o644),
        ("bin/hello", "#!/bin/sh\necho hello\n", 0o755),
    ] {
        write(&skill.join(path), text, mode)?;
    }
    Ok(root)
}

/// Starts a daemon with the plugin and stages its skill. Returns the daemon and the workspace's name.
async fn staged() -> Result<(Daemon, TempDir, String)> {
    let root = root()?;
    let daemon = Daemon::start_with(Options::default().skills(root.path())).await?;
    let name = workspace(&daemon.client).await?.name;
    daemon.client.stage_skills(&name, &["deploy"]).await?;
    Ok((daemon, root, name))
}

fn in_skill(spec: ExecSpec) -> ExecSpec {
    ExecSpec {
        skill: "deploy".to_owned(),
        ..spec
    }
}

/// Runs a command of the skill and returns what it printed. Fails if it failed.
async fn output(client: &Client, name: &str, spec: ExecSpec) -> Result<String> {
    let outcome = run(client, name, in_skill(spec)).await?;
    assert_eq!(outcome.exit_code(), Some(0), "{outcome:?}");
    Ok(outcome.text())
}

#[tokio::test]
async fn the_folder_of_a_plugins_skill_has_no_link_in_its_path() -> Result<()> {
    let (daemon, _root, name) = staged().await?;
    let client = &daemon.client;
    let folder = format!("{PLUGIN}/skills/deploy");
    for variable in ["SKILL_DIR", "SKILL_ROOT", "CLAUDE_SKILL_DIR"] {
        for (text, expected) in [
            (
                format!("echo ${variable}; pwd"),
                format!("{folder}\n{folder}\n"),
            ),
            // Neither follows a link that it starts at.
            (
                format!("find \"${variable}\" -name show.py"),
                format!("{folder}/scripts/show.py\n"),
            ),
            (
                format!("tar -cf - \"${variable}\" 2>/dev/null | tar -tf - | grep -c show.py"),
                "1\n".to_owned(),
            ),
            // bash shortens the path as text.
            (
                format!("cd \"${variable}/..\" && cat ../shared/note.txt"),
                "shared\n".to_owned(),
            ),
            (
                format!("python3 \"${variable}/scripts/show.py\""),
                "shared\n".to_owned(),
            ),
        ] {
            assert_eq!(
                output(client, &name, shell(&text)).await?,
                expected,
                "{text}"
            );
        }
    }
    for spec in [
        shell("python3 {baseDir}/scripts/show.py"),
        argv(["python3", "${CLAUDE_SKILL_DIR}/scripts/show.py"]),
        ExecSpec {
            script: Some(Script {
                path: "scripts/show.py".to_owned(),
                ..Script::default()
            }),
            ..ExecSpec::default()
        },
    ] {
        let text = format!("{spec:?}");
        assert_eq!(output(client, &name, spec).await?, "shared\n", "{text}");
    }
    for cwd in [
        "../../shared",
        "$SKILL_DIR/../../shared",
        "${SKILL_DIR}/../../shared",
    ] {
        let spec = ExecSpec {
            cwd: cwd.to_owned(),
            ..argv(["cat", "note.txt"])
        };
        assert_eq!(output(client, &name, spec).await?, "shared\n", "{cwd}");
    }
    // The text that a model reads names the same folders.
    let skill = client.get_skill("deploy").await?;
    assert_eq!(skill.body, format!("{folder} {folder} {PLUGIN}\n"));
    // The link stays for commands that know only the skill's name.
    let text =
        "cat /workspace/skills/deploy/bin/hello /mnt/skills/deploy/bin/hello | grep -c hello";
    assert_eq!(output(client, &name, shell(text)).await?, "2\n");
    daemon.stop().await
}

#[tokio::test]
async fn a_skill_that_is_staged_alone_again_has_its_own_folder_again() -> Result<()> {
    let (daemon, root, name) = staged().await?;
    let client = &daemon.client;
    fs::remove_dir_all(root.path().join("acme/shared"))?;
    client.refresh_skills().await?;
    client.stage_skills(&name, &["deploy"]).await?;
    let dir = output(
        client,
        &name,
        shell("echo $SKILL_DIR $CLAUDE_PLUGIN_ROOT; pwd"),
    )
    .await?;
    let alone = "/workspace/skills/deploy";
    assert_eq!(dir, format!("{alone} {alone}\n{alone}\n"));
    daemon.stop().await
}

#[tokio::test]
async fn programs_of_a_plugins_skill_run_while_programs_are_restricted() -> Result<()> {
    let (daemon, _root, name) = staged().await?;
    let client = &daemon.client;
    let link = "/workspace/skills/deploy/bin/hello";
    let physical = format!("{PLUGIN}/skills/deploy/bin/hello");
    let restricted = |allowed: &[&str], program: &str| {
        let allowed = allowed.iter().map(|&entry| entry.to_owned()).collect();
        in_skill(ExecSpec {
            programs: Some(Programs {
                allowed,
                denied: Vec::new(),
            }),
            ..argv([program])
        })
    };
    for entry in ["hello", link, &physical] {
        for program in ["hello", "bin/hello", "./bin/hello", link, &physical] {
            let printed = output(client, &name, restricted(&[entry], program)).await?;
            assert_eq!(printed, "hello\n", "{entry} {program}");
        }
    }
    // Links that lead out of the skill: to the workspace's files, and of those to programs of the image.
    let plant = "cp bin/hello work/hello; ln -s /usr/bin/id work/wc; ln -s \"$SKILL_DIR/bin/hello\" work/again";
    output(client, &name, shell(plant)).await?;
    for (allowed, program, why) in [
        (&["hello"][..], "work/hello", "commands can write"),
        (&[][..], "work/hello", "commands can write"),
        (&["hello", "wc"][..], "work/wc", "none of those"),
        // It is the allowed file under a name that is not.
        (&["hello"][..], "work/again", "none of those"),
        (&["hello"][..], "../../shared/tool", "none of those"),
    ] {
        let outcome = run(client, &name, restricted(allowed, program)).await?;
        let failure = outcome.result.spawn_failure.clone();
        let failure = failure.with_context(|| format!("{program} ran: {outcome:?}"))?;
        assert_eq!(failure.stage(), Stage::Program, "{failure:?}");
        assert!(failure.message.contains(why), "{program}: {failure:?}");
    }
    // What the plugin shares is as read-only as the skill.
    let tool = format!("{PLUGIN}/shared/tool");
    let printed = output(client, &name, restricted(&[&tool], "../../shared/tool")).await?;
    assert_eq!(printed, "tool\n");
    daemon.stop().await
}

#[tokio::test]
async fn shared_files_that_are_not_staged_are_a_problem_of_the_skill_and_of_the_daemon()
-> Result<()> {
    let root = root()?;
    let large = root.path().join("acme/shared/large.bin");
    fs::File::create(&large)?.set_len(17 << 20)?;
    let daemon = Daemon::start_with(Options::default().skills(root.path())).await?;
    let client = &daemon.client;
    let name = workspace(client).await?.name;
    let code = "plugin.files_not_staged";
    let staged = client.stage_skills(&name, &["deploy"]).await?;
    let problem = staged[0].problems.first().context("no problem")?;
    assert_eq!(problem.code, code);
    assert!(problem.message.contains("plugin acme"), "{problem:?}");
    assert!(problem.message.contains("16777216 bytes"), "{problem:?}");
    let listed = client.problems().await?;
    assert!(listed.contains(problem), "{listed:?}");
    assert!(problem.subject.ends_with("/acme"), "{problem:?}");
    // Once the files can be staged, the problem is gone.
    fs::remove_file(large)?;
    client.refresh_skills().await?;
    let staged = client.stage_skills(&name, &["deploy"]).await?;
    assert_eq!(staged[0].problems, []);
    assert!(
        client
            .problems()
            .await?
            .iter()
            .all(|problem| problem.code != code)
    );
    assert_eq!(
        output(client, &name, shell("cat ../../shared/note.txt")).await?,
        "shared\n"
    );
    daemon.stop().await
}
