//! `make compat DIR=…`: tries every skill of a folder in a private daemon and prints what an agent would meet. Nothing
//! of the folder is changed, and nothing of the daemon is left. Commands of skills run in workspaces only.
//!
//! Modules in reading order: `arguments`, `check` (one skill against the daemon), `script` (one script of it), `report`
//! (table and JSON).

mod arguments;
mod check;
mod report;
mod script;

use std::io::Write as _;
use std::process::ExitCode;
use std::sync::atomic::{AtomicUsize, Ordering};

use anyhow::{Context, Result, bail, ensure};
use futures::StreamExt;
use skilld_client::v1::{ListSkillsRequest, Problem, Skill};
use skilld_tests::{Daemon, Options, docker};
use tokio::signal::unix::{SignalKind, signal};

use arguments::Arguments;
use check::SkillReport;
use report::CollectionReport;

/// Number of skills that are checked at the same time.
const CONCURRENCY: usize = 2;

/// Image of the pool `default`.
const BASE_IMAGE: &str = "skilld/base:latest";

/// Prefixes of the operator's settings that the private daemon gets too.
const SETTINGS: [&str; 2] = ["SKILLD_SKILLS__", "SKILLD_POOLS__DEFAULT__"];

#[tokio::main]
async fn main() -> ExitCode {
    match run().await {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            print_progress(&format!("{error:#}"));
            ExitCode::FAILURE
        }
    }
}

/// Prints a line on stderr. A closed stderr changes nothing.
fn print_progress(line: &str) {
    let _ = writeln!(std::io::stderr(), "{line}");
}

async fn run() -> Result<()> {
    let arguments = Arguments::parse(std::env::args().skip(1))?;
    let image = choose_image(arguments.image).await?;
    let mut options = Options::default().skills(&arguments.directory);
    let settings = std::env::vars().filter(|(name, _)| is_forwarded(name));
    options.env.extend(settings);
    print_progress(&format!(
        "starting a private daemon with {image} and the skills of {}",
        arguments.directory.display()
    ));
    // A signal waits until the daemon has started: only then does dropping it remove its containers.
    let mut interrupt = signal(SignalKind::interrupt())?;
    let mut terminate = signal(SignalKind::terminate())?;
    let daemon = Daemon::start_with(options.set("pools.default.image", &image)).await?;
    let checked = tokio::select! {
        report = check_collection(&daemon, &image) => report,
        _ = interrupt.recv() => bail!("interrupted"),
        _ = terminate.recv() => bail!("terminated"),
    };
    // A daemon that has failed meanwhile is an error here.
    daemon.stop().await.context("end the daemon")?;
    let report = checked?;
    let text = match arguments.wants_json {
        true => report.to_json(),
        false => report.to_text(),
    };
    Ok(std::io::stdout().write_all(text.as_bytes())?)
}

/// Returns `true` if the private daemon gets a variable of this name. It always reads skills from the folder only.
fn is_forwarded(name: &str) -> bool {
    SETTINGS.iter().any(|prefix| name.starts_with(prefix)) && name != "SKILLD_SKILLS__ROOTS"
}

/// Returns the image to use, which exists. Without a choice it is that of `office` if that exists.
async fn choose_image(chosen: Option<String>) -> Result<String> {
    let image = match chosen {
        Some(image) => image,
        None if docker::has_image(docker::OFFICE_IMAGE).await? => docker::OFFICE_IMAGE.to_owned(),
        None => BASE_IMAGE.to_owned(),
    };
    ensure!(
        docker::has_image(&image).await?,
        "the image {image} is missing: `make image IMAGE=NAME` makes skilld/NAME:latest, for a pool that \
         docs/images.md describes"
    );
    Ok(image)
}

async fn check_collection(daemon: &Daemon, image: &str) -> Result<CollectionReport> {
    let (skills, problems) = list_skills(daemon).await?;
    let (total, done) = (skills.len(), AtomicUsize::new(0));
    let mut rows: Vec<SkillReport> = futures::stream::iter(&skills)
        .map(async |skill| {
            let row = check::check_skill(&daemon.client, skill).await;
            let number = done.fetch_add(1, Ordering::Relaxed) + 1;
            print_progress(&format!("{number} of {total}: {}", row.name));
            row
        })
        .buffer_unordered(CONCURRENCY)
        .collect()
        .await;
    rows.sort_by(|a, b| (&a.name, &a.version).cmp(&(&b.name, &b.version)));
    Ok(CollectionReport {
        image: image.to_owned(),
        problems: problems.iter().map(report::problem_line).collect(),
        skills: rows,
    })
}

/// Returns all skills of the folder, and the problems that concern no named skill.
async fn list_skills(daemon: &Daemon) -> Result<(Vec<Skill>, Vec<Problem>)> {
    let (mut skills, mut problems) = (Vec::new(), Vec::new());
    let mut request = ListSkillsRequest::default();
    loop {
        let page = daemon.client.list_skills(request.clone()).await?;
        skills.extend(page.skills);
        problems.extend(page.problems);
        if page.next_page_token.is_empty() {
            return Ok((skills, problems));
        }
        request.page_token = page.next_page_token;
    }
}

#[test]
fn the_daemon_gets_package_and_limit_settings_but_no_root() {
    assert!(is_forwarded("SKILLD_SKILLS__WHEELHOUSE"));
    assert!(is_forwarded("SKILLD_POOLS__DEFAULT__MEMORY"));
    assert!(!is_forwarded("SKILLD_SKILLS__ROOTS"));
    assert!(!is_forwarded("SKILLD_STATE_DIR"));
}
