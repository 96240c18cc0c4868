//! Packages of Node.js: installed from a registry by the image's npm, and found by `require` and by `import`.
//!
//! Docker: the image's own npm and Node.js install and find the packages.

use serde_json::{Value, json};
use skilld_client::v1::{Problem, StageSkillsRequest};
use skilld_tests::binaries;
use skilld_tests::package_index::PackageIndex;
use skilld_tests::test_image::TestImage;
use tokio::process::Command;

use super::*;

/// Program that prints the version of the package that `import` finds.
const IMPORT: &str = "import { version } from 'skilld-compat-units'; console.log(version);\n";

/// Warning of a package whose install script a build did not run.
const NOT_RUN: &str =
    "hostile-scripts has an install script, which was not run; it may lack its binary";

/// Returns the messages of problems.
pub(super) fn messages(problems: &[Problem]) -> Vec<&str> {
    let messages = problems.iter().map(|problem| problem.message.as_str());
    messages.collect()
}

/// Builds an image of skilld/base with the npm of this host.
pub(super) async fn build_npm_image() -> Result<TestImage> {
    let printed = Command::new("bash")
        .args(["-c", "readlink -f \"$(command -v npm)\""])
        .output()
        .await?
        .stdout;
    let program = String::from_utf8(printed)?;
    // The program is in bin/ of the package.
    let npm = Path::new(program.trim())
        .ancestors()
        .nth(2)
        .context("this host has no npm")?;
    let instructions = "USER root\nCOPY . /usr/local/lib/node_modules/npm\n\
                        RUN ln -s ../lib/node_modules/npm/bin/npm-cli.js /usr/local/bin/npm\n";
    TestImage::build("npm", instructions, Some(npm))
}

/// Returns a package.json and a package-lock.json for one version of a package.
pub(super) fn manifests(package: &str, version: &str) -> (String, String) {
    let root = json!({"name": "need", "version": "1.0.0", "dependencies": {package: version}});
    let resolved = format!("https://registry.npmjs.org/{package}/-/{package}-{version}.tgz");
    let place = format!("node_modules/{package}");
    let lock = json!({
        "name": "need", "version": "1.0.0", "lockfileVersion": 3, "requires": true,
        "packages": {"": root, place: {"version": version, "resolved": resolved}},
    });
    (root.to_string(), lock.to_string())
}

/// Adds a skill that needs a version of skilld-compat-units, with further files.
fn skill(fixture: &Fixture, name: &str, version: &str, files: &[(&str, &str)]) -> Result<()> {
    let (package, lock) = manifests("skilld-compat-units", version);
    let needs = [("package.json", &*package), ("package-lock.json", &*lock)];
    fixture.skill(name, &[&needs, files].concat())
}

pub(super) async fn start_daemon(
    image: &TestImage,
    index: &PackageIndex,
    root: &Path,
) -> Result<Daemon> {
    let options = index.for_node(Options::default().skills(root));
    Daemon::start_with(options.set("pools.default.image", image.name())).await
}

/// Stages a skill, read-only or as a writable copy, whose environment must be built.
async fn stage_built(client: &Client, workspace: &str, skill: &str, writable: bool) -> Result<()> {
    let request = StageSkillsRequest {
        workspace: workspace.to_owned(),
        skills: vec![skill.to_owned()],
        writable,
    };
    let skills = client.stage_skills_with(request).await?;
    let staged = skills.first().context("one skill")?;
    ensure!(staged.environment.is_some(), "{:?}", staged.problems);
    Ok(())
}

#[tokio::test]
async fn lock_file_packages_come_from_the_registry_and_run_no_script() -> Result<()> {
    let fixture = Fixture::with_packages("tests/environments/hostile_packages.py").await?;
    let (manifest, lock) = manifests("hostile-scripts", "1.0.0");
    let mut scripted: Value = manifest.parse()?;
    scripted["scripts"] = json!({"preinstall": "exit 1", "install": "exit 1", "prepare": "exit 1"});
    let package = scripted.to_string();
    let files = [("package.json", &*package), ("package-lock.json", &*lock)];
    fixture.skill("scripted", &files)?;
    let damaged = lock.replace(
        "\"resolved\"",
        &format!(
            "\"integrity\": \"sha512-{}==\", \"resolved\"",
            "A".repeat(86)
        ),
    );
    fixture.skill(
        "damaged",
        &[("package.json", &package), ("package-lock.json", &damaged)],
    )?;
    let index = PackageIndex::serve(&fixture.wheels()).await?;
    let image = build_npm_image().await?;
    let daemon = start_daemon(&image, &index, &fixture.dir.path().join("skills")).await?;
    let client = &daemon.client;
    let name = workspace(client).await?.name;
    let staged = stage(client, &name, "scripted").await?;
    let warnings = messages(&staged.problems);
    assert_eq!(warnings, [NOT_RUN]);
    let built = staged.environment.context("an environment")?;
    assert_eq!(
        index.requests(),
        ["/npm/hostile-scripts/-/hostile-scripts-1.0.0.tgz"]
    );
    let (_, skill) = prepare(client, "scripted").await?;
    assert_eq!(messages(&skill.problems), [NOT_RUN]);
    let prepared = skill.environment.context("an environment")?;
    assert_eq!(prepared.packages[0].version, "1.0.0");
    assert!(
        prepared.packages[0].hashes.is_empty(),
        "the lock file has no integrity"
    );
    let list = format!(
        "cd {}/node/0/node_modules && find -type f | sort",
        built.path
    );
    assert_eq!(
        output(client, &name, "scripted", &list).await?,
        "./hostile-scripts/index.js\n./hostile-scripts/package.json\n"
    );
    let refused = stage(client, &name, "damaged").await?;
    assert_eq!(refused.environment, None);
    let message = &refused.problems[0].message;
    assert!(
        message.contains("hostile-scripts has another hash"),
        "{message}"
    );
    expect_environments(&daemon, 1, 2).await?;
    daemon.stop().await
}

#[tokio::test]
async fn es_modules_find_the_packages_of_their_own_skill() -> Result<()> {
    let fixture = Fixture::new().await?;
    skill(&fixture, "one", "1.0.0", &[("scripts/lib/x.mjs", IMPORT)])?;
    skill(&fixture, "two", "2.0.0", &[("x.mjs", IMPORT)])?;
    let own = "node_modules/skilld-compat-units/index.js";
    let own_package = "node_modules/skilld-compat-units/package.json";
    let own_files = [
        ("x.mjs", IMPORT),
        (own, "export const version = 'own';\n"),
        (
            own_package,
            "{\"name\": \"skilld-compat-units\", \"type\": \"module\", \"main\": \"index.js\"}",
        ),
    ];
    skill(&fixture, "vendored", "1.0.0", &own_files)?;
    fixture.skill("plain", &[("x.mjs", IMPORT)])?;
    let index = PackageIndex::serve(&fixture.wheels()).await?;
    let image = build_npm_image().await?;
    let daemon = start_daemon(&image, &index, &fixture.dir.path().join("skills")).await?;
    let client = &daemon.client;
    let name = workspace(client).await?.name;
    for staged in ["one", "two"] {
        stage_built(client, &name, staged, false).await?;
    }
    client.stage_skills(&name, &["vendored", "plain"]).await?;
    for (skill, text, expected) in [
        ("one", "node scripts/lib/x.mjs", "1.0.0\n"),
        ("two", "node x.mjs", "2.0.0\n"),
        (
            "two",
            "node /workspace/skills/one/scripts/lib/x.mjs",
            "1.0.0\n",
        ),
        ("vendored", "node x.mjs", "own\n"),
        (
            "one",
            "node -p 'require(\"skilld-compat-units\").version'",
            "1.0.0\n",
        ),
        // A program that the agent writes.
        (
            "one",
            "cp scripts/lib/x.mjs work/ && cd work && ln -s \"$NODE_PATH\" node_modules && node x.mjs",
            "1.0.0\n",
        ),
    ] {
        assert_eq!(
            output(client, &name, skill, text).await?,
            expected,
            "{skill}: {text}"
        );
    }
    let none = run(client, &name, in_skill("plain", "node x.mjs")).await?;
    assert_eq!(none.exit_code(), Some(1));
    assert!(
        none.error_text().contains("ERR_MODULE_NOT_FOUND"),
        "{none:?}"
    );

    // A writable copy, and a new version that needs another one of the package.
    stage_built(client, &name, "one", true).await?;
    let node = "node scripts/lib/x.mjs";
    assert_eq!(output(client, &name, "one", node).await?, "1.0.0\n");
    skill(&fixture, "one", "2.0.0", &[("scripts/lib/x.mjs", IMPORT)])?;
    client.refresh_skills().await?;
    stage_built(client, &name, "one", false).await?;
    assert_eq!(output(client, &name, "one", node).await?, "2.0.0\n");
    daemon.stop().await
}

#[tokio::test]
async fn es_modules_of_a_plugin_find_hashed_lock_file_packages() -> Result<()> {
    let fixture = Fixture::new().await?;
    let case = "tests/skills-compat/cases/node-modules/skills/route-notes";
    let case = binaries::repository().join(case);
    let plugin = fixture.dir.path().join("skills/acme");
    fs::create_dir_all(plugin.join(".claude-plugin"))?;
    fs::create_dir_all(plugin.join("skills"))?;
    fs::write(
        plugin.join(".claude-plugin/plugin.json"),
        "{\"name\": \"acme\"}",
    )?;
    fs::write(
        plugin.join("shared.json"),
        "[{\"place\": \"Kiel\", \"km\": 100}]",
    )?;
    let copied = Command::new("cp")
        .arg("-r")
        .args([case, plugin.join("skills")])
        .output()
        .await?;
    ensure!(copied.status.success(), "{copied:?}");
    let index = PackageIndex::serve(&fixture.wheels()).await?;
    let image = build_npm_image().await?;
    let daemon = start_daemon(&image, &index, &fixture.dir.path().join("skills")).await?;
    let name = workspace(&daemon.client).await?.name;
    stage_built(&daemon.client, &name, "route-notes", false).await?;
    let text = "node scripts/notes.js ../../shared.json | tail -1";
    let printed = output(&daemon.client, &name, "route-notes", text).await?;
    assert_eq!(printed, "- Kiel: 100 km = 62.1 mi\n");
    daemon.stop().await
}
