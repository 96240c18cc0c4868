//! Compatibility with published skills: the cases of tests/skills-compat in real workspaces of all images.
//!
//! SKILLD_COMPAT_CASE names one case to run. SKILLD_COMPAT_IN_GATE=1 leaves out the cases of
//! skilld/web:latest, and those of skilld/office:latest if that image does not exist.

mod case;
mod run;

use std::fs;
use std::io::Write as _;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::time::Instant;

use anyhow::{Context, Result, ensure};
use futures::StreamExt;
use skilld_client::Client;
use skilld_tests::package_index::{MAKE_WHEELS, PackageIndex, make_packages};
use skilld_tests::{Daemon, Options, binaries, docker};

use case::{Case, Image};

/// Number of cases that run at the same time.
const CONCURRENCY: usize = 2;

/// Prints a line at once, also in a test that passes.
fn print_line(line: &str) {
    // A closed standard output changes no result.
    let _ = writeln!(std::io::stdout(), "{line}");
}

/// Returns the settings of a daemon with all cases' skills, the wheels and a pool for each image.
fn options(cases: &[Case], wheels: &Path, index: &PackageIndex) -> Options {
    let roots = cases.iter().map(|case| case.folder.join("skills"));
    let base = Options {
        skill_roots: roots.collect(),
        ..Options::default()
    };
    let with_wheels = base.set("skills.wheelhouse", &wheels.to_string_lossy());
    let mut options = index.for_node(with_wheels);
    for image in [Image::Office, Image::Web] {
        if !cases.iter().any(|case| case.image == image) {
            continue;
        }
        let key = |name: &str| format!("pools.{}.{name}", image.pool());
        options = options
            .set(&key("image"), image.reference())
            .set(&key("warm"), "1")
            .set(&key("max"), "4")
            // LibreOffice and a browser need more than the default pool has.
            .set(&key("memory"), "1GiB")
            // The daemon's own default is too short to boot a container on a busy machine.
            .set(&key("claim_timeout"), "4m");
    }
    options
}

/// Returns the cases to run. In the gate, cases of an image are left out, and printed, if it is missing or the web image.
async fn select_cases() -> Result<Vec<Case>> {
    let mut cases = Case::read_all()?;
    if let Some(name) = std::env::var_os("SKILLD_COMPAT_CASE") {
        cases.retain(|case| *case.name == *name);
        ensure!(
            !cases.is_empty(),
            "no case {name:?}: see tests/skills-compat/cases"
        );
    }
    let in_gate = std::env::var_os("SKILLD_COMPAT_IN_GATE").is_some_and(|value| value == "1");
    for image in [Image::Office, Image::Web] {
        let users = cases.iter().filter(|case| case.image == image);
        let names: Vec<_> = users.map(|case| case.name.as_str()).collect();
        let reference = image.reference();
        let is_left_out = in_gate && image == Image::Web;
        if names.is_empty() || (!is_left_out && docker::has_image(reference).await?) {
            continue;
        }
        let list = names.join(" ");
        ensure!(
            in_gate,
            "{reference} is missing, which these cases need: run `make image IMAGE={}`: {list}",
            image.pool()
        );
        print_line(&format!(
            "left out, make compat runs them in {reference}: {list}"
        ));
        cases.retain(|case| case.image != image);
    }
    Ok(cases)
}

/// Runs a case, prints its line, and returns the reason if it failed.
async fn judge_case(client: &Client, case: &Case) -> Option<String> {
    let started = Instant::now();
    let outcome = run::run_case(client, case).await;
    let seconds = started.elapsed().as_secs_f64();
    let (line, failure) = match outcome {
        Ok(()) => (format!("ok {} {seconds:.1}", case.name), None),
        Err(error) => {
            let text = format!("{}: {error:#}", case.name);
            (format!("FAILED {text}"), Some(text))
        }
    };
    print_line(&line);
    failure
}

#[tokio::test(flavor = "multi_thread")]
async fn published_shapes_of_skills_run_unchanged() -> Result<()> {
    let directory = tempfile::tempdir()?;
    fs::set_permissions(directory.path(), PermissionsExt::from_mode(0o755))?;
    let wheels = directory.path().join("wheels");
    make_packages(MAKE_WHEELS, &wheels, &[]).await?;
    let index = PackageIndex::serve(&wheels).await?;
    let cases = select_cases().await?;
    let daemon = Daemon::start_with(options(&cases, &wheels, &index)).await?;
    let client = &daemon.client;
    let failures: Vec<_> = futures::stream::iter(&cases)
        .map(|case| judge_case(client, case))
        .buffer_unordered(CONCURRENCY)
        .filter_map(std::future::ready)
        .collect()
        .await;
    let log = daemon.log();
    daemon.stop().await.context("end the daemon")?;
    let warnings = log.lines().filter(|line| line.contains("WARN"));
    ensure!(
        failures.is_empty(),
        "{} of {} cases failed:\n{}\nwarnings of the daemon:\n{}",
        failures.len(),
        cases.len(),
        failures.join("\n"),
        warnings.collect::<Vec<_>>().join("\n")
    );
    Ok(())
}

#[test]
fn cases_are_those_of_the_readme() -> Result<()> {
    let readme = fs::read_to_string(binaries::repository().join("tests/skills-compat/README.md"))?;
    let rows: Vec<_> = readme
        .lines()
        .filter_map(|line| {
            let (name, rest) = line.strip_prefix("| `")?.split_once("` | ")?;
            let is_case = ["base", "office", "web"]
                .iter()
                .any(|pool| rest.starts_with(pool));
            is_case.then_some(name)
        })
        .filter(|name| *name != "pool")
        .collect();
    let cases = Case::read_all()?;
    let names: Vec<_> = cases.iter().map(|case| case.name.as_str()).collect();
    assert_eq!(names, rows);
    Ok(())
}
