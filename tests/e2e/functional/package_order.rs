//! Node.js packages: `require` and `import` find them in one order, wherever the program is.
//!
//! Docker: the image's own Node.js resolves the packages, with the file that its NODE_OPTIONS names.

use anyhow::{Context, Result, ensure};
use skilld_client::Client;
use skilld_tests::exec::{run, shell, workspace};
use skilld_tests::test_image::TestImage;
use skilld_tests::{Daemon, Options};

/// Programs that print, for each package, what `require` and `import` found.
const PROGRAMS: &str = r#"
write_programs() {
    mkdir -p "$1" && cd "$1"
    echo 'console.log(process.argv.slice(2).map((name) => require(name)).join())' >x.cjs
    echo 'for (const name of process.argv.slice(2)) console.log((await import(name)).default)' >x.mjs
    echo 'import first from "first"; console.log(first)' >first.mjs
}
show() { node x.cjs "$@" && node x.mjs "$@" | paste -sd, && node first.mjs; }
"#;

/// Makes an image that has packages in the folders of an environment, of npm and of Debian.
fn build_image() -> Result<TestImage> {
    let mut script = String::new();
    for (folder, names) in [
        ("/opt/env/node_modules", "first"),
        ("/usr/local/lib/node_modules", "first second"),
        ("/usr/share/nodejs", "first second third"),
    ] {
        script.push_str(&format!(
            "for name in {names}; do mkdir -p {folder}/$name; \
             echo 'module.exports = \"{folder}\"' >{folder}/$name/index.js; done; "
        ));
    }
    // A package for `import` only.
    script.push_str(
        "cd /usr/local/lib/node_modules && mkdir modern && \
         echo '{\"name\": \"modern\", \"exports\": {\"./part\": {\"import\": \"./part.mjs\"}}}' >modern/package.json && \
         echo 'export default \"modern\"' >modern/part.mjs",
    );
    let encoded = script.replace('\'', "'\\''");
    TestImage::build(
        "packages",
        &format!("USER root\nRUN bash -euc '{encoded}'\n"),
        None,
    )
}

async fn start() -> Result<(Daemon, TestImage)> {
    let image = build_image()?;
    let options = Options::default().set("pools.default.image", image.name());
    Ok((Daemon::start_with(options).await?, image))
}

/// Runs the programs in a folder, with these commands before them.
async fn output(client: &Client, workspace: &str, text: &str) -> Result<String> {
    let text = format!("set -eu{PROGRAMS}{text}");
    let outcome = run(client, workspace, shell(&text)).await?;
    ensure!(outcome.exit_code() == Some(0), "{text}: {outcome:?}");
    Ok(outcome.text())
}

#[tokio::test]
async fn require_and_import_find_packages_in_one_order() -> Result<()> {
    let (daemon, _image) = start().await?;
    let client = &daemon.client;
    let name = workspace(client).await?.name;
    let (environment, image, debian) = (
        "/opt/env/node_modules",
        "/usr/local/lib/node_modules",
        "/usr/share/nodejs",
    );
    for folder in ["/tmp/a", "$OUTPUT_DIR/a", "$WORK_DIR/a"] {
        let text = format!("write_programs \"{folder}\"; show first second third");
        let line = [image, image, debian].join(",");
        assert_eq!(
            output(client, &name, &text).await?,
            format!("{line}\n{line}\n{image}\n"),
            "{folder}"
        );
        let text = format!("export NODE_PATH={environment}; {text}");
        let line = [environment, image, debian].join(",");
        assert_eq!(
            output(client, &name, &text).await?,
            format!("{line}\n{line}\n{environment}\n"),
            "{folder}"
        );
    }
    // A program from an option, from stdin, and for a thread.
    for text in [
        "node -e 'import(\"modern/part\").then((found) => console.log(found.default))'",
        "node --input-type=module -e 'import part from \"modern/part\"; console.log(part)'",
        "echo 'import part from \"modern/part\"; console.log(part)' | node --input-type=module",
        "cd /tmp; echo 'import part from \"modern/part\"; console.log(part)' >part.mjs; \
         node -e 'new (require(\"worker_threads\").Worker)(\"/tmp/part.mjs\")'",
    ] {
        assert_eq!(output(client, &name, text).await?, "modern\n", "{text}");
    }
    daemon.stop().await
}

#[tokio::test]
async fn only_own_node_modules_come_before_the_environment() -> Result<()> {
    let (daemon, _image) = start().await?;
    let client = &daemon.client;
    let name = workspace(client).await?.name;
    let own = "mkdir -p /tmp/node_modules/first; echo 'module.exports = \"own\"' >/tmp/node_modules/first/index.js";
    for (folder, expected) in [
        ("/tmp/b", "own"),
        ("$WORK_DIR/b", "/opt/env/node_modules"),
        ("$OUTPUT_DIR/b", "/opt/env/node_modules"),
    ] {
        let text = format!(
            "export NODE_PATH=/opt/env/node_modules; {own}; write_programs \"{folder}\"; show first"
        );
        assert_eq!(
            output(client, &name, &text).await?,
            format!("{expected}\n{expected}\n{expected}\n"),
            "{folder}"
        );
    }
    daemon.stop().await
}

#[tokio::test]
async fn programs_see_what_node_says_of_missing_packages() -> Result<()> {
    let (daemon, _image) = start().await?;
    let client = &daemon.client;
    let name = workspace(client).await?.name;
    let text = "cd /tmp; echo 'import \"no-such-package\"' >x.mjs; node x.mjs";
    let outcome = run(client, &name, shell(text)).await?;
    assert_eq!(outcome.exit_code(), Some(1));
    let message = "Cannot find package 'no-such-package' imported from /tmp/x.mjs";
    assert!(outcome.error_text().contains(message), "{outcome:?}");
    // A name of the preloaded file, and a trace that does not show it.
    let text = "cd /tmp; echo 'throw new Error(1)' >node_preload.js; node node_preload.js";
    let outcome = run(client, &name, shell(text)).await?;
    let trace = outcome.error_text();
    let line = trace.lines().next().context("an error")?.to_owned();
    assert_eq!(line, "/tmp/node_preload.js:1");
    assert!(!trace.contains("/usr/share/skilld"), "{trace}");
    // The variable of the environment is as the command set it.
    let text = "NODE_PATH=/a node -p process.env.NODE_PATH; node -p process.env.NODE_PATH";
    assert_eq!(output(client, &name, text).await?, "/a\nundefined\n");
    daemon.stop().await
}
