//! Compatibility with published skills: the cases of tests/skills-compat in real workspaces of both images.
//!
//! SKILLD_COMPAT_CASE names one case to run. SKILLD_COMPAT_WITHOUT_OFFICE=1 leaves out the cases of skilld/office:latest
//! if that image does not exist.

mod case;
mod run;

use std::fs;
use std::io::Write as _;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::time::Instant;

use anyhow::{Context, Result, bail, ensure};
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
    let options = index.for_node(with_wheels);
    let has_office = cases.iter().any(|case| case.image == Image::Office);
    if !has_office {
        return options;
    }
    options
        .set("pools.office.image", docker::OFFICE_IMAGE)
        .set("pools.office.warm", "1")
        .set("pools.office.max", "4")
        // The daemon's own default is too short to boot a container on a busy machine.
        .set("pools.office.claim_timeout", "4m")
}

/// Returns the cases to run. Cases whose image is missing are left out, and printed, only if the environment allows it.
async fn select_cases() -> Result<Vec<Case>> {
    let mut cases = Case::read_all()?;
    if let Some(name) = std::env::var_os("SKILLD_COMPAT_CASE") {
        cases.retain(|case| *case.name == *name);
        ensure!(
            !cases.is_empty(),
            "no case {name:?}: see tests/skills-compat/cases"
        );
    }
    let office = cases.iter().filter(|case| case.image == Image::Office);
    let names: Vec<_> = office.map(|case| case.name.as_str()).collect();
    if names.is_empty() || docker::has_image(docker::OFFICE_IMAGE).await? {
        return Ok(cases);
    }
    let list = names.join(" ");
    if std::env::var_os("SKILLD_COMPAT_WITHOUT_OFFICE").is_none_or(|value| value != "1") {
        bail!(
            "{} is missing, which these cases need: run `make image IMAGE=office`: {list}",
            docker::OFFICE_IMAGE
        );
    }
    print_line(&format!(
        "left out because {} is missing: {list}",
        docker::OFFICE_IMAGE
    ));
    cases.retain(|case| case.image == Image::Base);
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
            let is_case = rest.starts_with("base") || rest.starts_with("office");
            is_case.then_some(name)
        })
        .filter(|name| *name != "pool")
        .collect();
    let cases = Case::read_all()?;
    let names: Vec<_> = cases.iter().map(|case| case.name.as_str()).collect();
    assert_eq!(names, rows);
    Ok(())
}
