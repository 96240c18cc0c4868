//! Folders of a skill with Node.js packages: each has its own, what is refused is named, and nothing but package.json and
//! the lock file decides what is installed.
//!
//! Docker: the image's own npm and Node.js install and find the packages.

use serde_json::{Value, json};
use skilld_tests::package_index::PackageIndex;

use super::node_packages::{build_npm_image, manifests, messages, start_daemon};
use super::*;

/// Program that prints the version of the package that `import` finds.
const IMPORT: &str = "import { version } from 'skilld-compat-units'; console.log(version);\n";

#[tokio::test]
async fn each_folder_with_a_package_json_has_its_packages() -> Result<()> {
    let fixture = Fixture::new().await?;
    let (first, first_lock) = manifests("skilld-compat-units", "1.0.0");
    let (second, second_lock) = manifests("skilld-compat-units", "2.0.0");
    fixture.skill(
        "folders",
        &[
            ("package.json", &first),
            ("package-lock.json", &first_lock),
            ("x.mjs", IMPORT),
            ("scripts/package.json", &second),
            // A lock file by its other name.
            ("scripts/npm-shrinkwrap.json", &second_lock),
            ("scripts/lib/x.mjs", IMPORT),
        ],
    )?;
    let index = PackageIndex::serve(&fixture.wheels()).await?;
    let image = build_npm_image().await?;
    let daemon = start_daemon(&image, &index, &fixture.skills()).await?;
    let client = &daemon.client;
    let (_, prepared) = prepare(client, "folders").await?;
    assert_eq!(prepared.problems, []);
    let built = prepared.environment.context("an environment")?;
    let versions: Vec<&str> = built.packages.iter().map(|one| &*one.version).collect();
    assert_eq!(versions, ["1.0.0", "2.0.0"]);
    let name = workspace(client).await?.name;
    stage(client, &name, "folders").await?;
    for (text, expected) in [
        ("node x.mjs", "1.0.0\n"),
        ("node scripts/lib/x.mjs", "2.0.0\n"),
        ("cd scripts && node lib/x.mjs", "2.0.0\n"),
        // A program in another folder finds the packages of the skill's root first.
        (
            "cd /tmp && node -p 'require(\"skilld-compat-units\").version'",
            "1.0.0\n",
        ),
    ] {
        assert_eq!(
            output(client, &name, "folders", text).await?,
            expected,
            "{text}"
        );
    }
    daemon.stop().await
}

#[tokio::test]
async fn a_refused_package_is_named_and_the_others_are_installed() -> Result<()> {
    let fixture = Fixture::new().await?;
    let (package, lock) = manifests("skilld-compat-units", "1.0.0");
    let (mut package, mut lock): (Value, Value) = (package.parse()?, lock.parse()?);
    let origin = "git+ssh://git@example.com/cloned.git#0000000000000000000000000000000000000000";
    package["dependencies"]["cloned"] = json!("git+ssh://git@example.com/cloned.git");
    lock["packages"][""] = package.clone();
    lock["packages"]["node_modules/cloned"] = json!({"version": "1.0.0", "resolved": origin});
    let (package, lock) = (package.to_string(), lock.to_string());
    let files = [
        ("package.json", &*package),
        ("package-lock.json", &*lock),
        (
            "requirements.txt",
            "skilld-compat-greeting\n--index-url https://example.org/simple\n",
        ),
    ];
    fixture.skill("partly", &files)?;
    let index = PackageIndex::serve(&fixture.wheels()).await?;
    let image = build_npm_image().await?;
    let options = index.for_node(fixture.options());
    let options = options.set("pools.default.image", image.name());
    let daemon = Daemon::start_with(options).await?;
    let client = &daemon.client;
    let name = workspace(client).await?.name;
    let staged = stage(client, &name, "partly").await?;
    let refused = messages(&staged.problems);
    for part in ["cloned", "--index-url"] {
        assert!(
            refused.iter().any(|text| text.contains(part)),
            "{refused:?}"
        );
    }
    assert_eq!(refused.len(), 2, "{refused:?}");
    assert!(staged.environment.is_some(), "{refused:?}");
    let text = "node -p 'require(\"skilld-compat-units\").version' && python3 -c 'import skilld_compat_greeting'";
    assert_eq!(output(client, &name, "partly", text).await?, "1.0.0\n");
    daemon.stop().await
}

#[tokio::test]
async fn an_npmrc_of_a_skill_does_not_configure_its_build() -> Result<()> {
    let fixture = Fixture::with_packages("tests/environments/hostile_packages.py").await?;
    let hostile =
        "registry=http://127.0.0.1:9/\nignore-scripts=false\n//127.0.0.1:9/:_authToken=x\n";
    let package = json!({
        "dependencies": {"hostile-scripts": "1"}, "scripts": {"prepare": "exit 1"},
        "publishConfig": {"registry": "http://127.0.0.1:9/"}, "packageManager": "pnpm@9.0.0",
    });
    let files = [
        ("package.json", &*package.to_string()),
        (".npmrc", hostile),
        (".yarnrc", "registry \"http://127.0.0.1:9/\"\n"),
    ];
    fixture.skill("configured", &files)?;
    let index = PackageIndex::serve(&fixture.wheels()).await?;
    let image = build_npm_image().await?;
    let daemon = start_daemon(&image, &index, &fixture.skills()).await?;
    let client = &daemon.client;
    let name = workspace(client).await?.name;
    let staged = stage(client, &name, "configured").await?;
    let warnings = messages(&staged.problems);
    assert_eq!(
        warnings,
        [
            "package.json has no package-lock.json: another build may install other versions",
            "hostile-scripts has an install script, which was not run; it may lack its binary",
        ]
    );
    let requests = [
        "/npm/hostile-scripts",
        "/npm/hostile-scripts/-/hostile-scripts-1.0.0.tgz",
    ];
    assert_eq!(index.requests(), requests);
    // The environment keeps what npm resolved.
    let again = stage(client, &name, "configured").await?;
    assert_eq!(
        (again.environment, again.problems),
        (staged.environment, staged.problems)
    );
    assert_eq!(index.requests(), requests);
    expect_environments(&daemon, 1, 2).await?;
    daemon.stop().await
}
