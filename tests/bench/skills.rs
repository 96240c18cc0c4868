//! Section `skills`: times of scanning, listing and searching a thousand and ten thousand skills.

use std::fmt::Write as _;
use std::path::Path;
use std::time::Instant;

use anyhow::{Context, Result, ensure};
use skilld_client::Client;
use skilld_proto::v1::{ListSkillsRequest, RefreshSkillsRequest, SearchSkillsRequest};
use skilld_tests::Daemon;
use tempfile::TempDir;

use crate::reference::spawn_local;
use crate::report::{Budget, FigureSeries, TableRow};
use crate::{BenchOptions, daemon_calls};

/// Largest page size.
const PAGE: i32 = 1000;
/// Number of folders of a root, so that none has ten thousand entries.
const GROUPS: usize = 100;
/// Words of the skills; most are in many of them, as in real collections.
const WORDS: [&str; 32] = [
    "report",
    "table",
    "image",
    "invoice",
    "calendar",
    "deploy",
    "kubernetes",
    "database",
    "backup",
    "email",
    "summary",
    "translate",
    "audio",
    "video",
    "chart",
    "spreadsheet",
    "contract",
    "release",
    "changelog",
    "security",
    "audit",
    "terraform",
    "python",
    "markdown",
    "slides",
    "research",
    "weather",
    "travel",
    "budget",
    "recipe",
    "music",
    "map",
];
/// Search queries: a name, common words, prefixes, a rare word among common ones, a sentence, and a word of no skill.
const QUERIES: [&str; 8] = [
    "invoice-map-0031",
    "kubernetes",
    "summary of an email",
    "spread",
    "audit terraform 4711",
    "make slides from a research report and translate them",
    "te",
    "zymurgy",
];

/// Figures of one number of skills.
#[derive(Default)]
struct CatalogueTimes {
    cold: FigureSeries,
    again: FigureSeries,
    one: FigureSeries,
    changed: FigureSeries,
    tar: FigureSeries,
    memory: FigureSeries,
    page: FigureSeries,
    all: FigureSeries,
    search: FigureSeries,
}

impl CatalogueTimes {
    fn new() -> Self {
        Self {
            memory: FigureSeries::bytes(),
            ..Self::default()
        }
    }
}

pub(crate) async fn skills(bench: &BenchOptions) -> Result<Vec<TableRow>> {
    let mut rows = Vec::new();
    for count in [1_000, 10_000] {
        let times = measure(bench, count)
            .await
            .with_context(|| format!("{count} skills"))?;
        let named = |what: &str| what.replace('#', &thousands(count));
        let row = |what: &str, series| TableRow::new(&named(what), series, Budget::None);
        rows.push(
            row("start, scan and list # skills", &times.cold).against("tar c of them", &times.tar),
        );
        rows.push(
            row(
                "read # unchanged skills again (RefreshSkills)",
                &times.again,
            )
            .against("tar c of them", &times.tar),
        );
        rows.push(row(
            "refresh and list one page after one of # changed",
            &times.changed,
        ));
        rows.push(row("daemon's memory with # skills", &times.memory));
        rows.push(row("list one of # skills", &times.one));
        // The budgets of 20 ms and 5 ms are for ten thousand skills.
        let soon = |most: u64| match count {
            10_000 => Budget::Soon {
                p50: Some(most),
                p99: None,
            },
            _ => Budget::None,
        };
        let page = named("list a page of 1,000 of # skills");
        rows.push(TableRow::new(&page, &times.page, soon(20_000_000)));
        rows.push(row("list all # skills, page by page", &times.all));
        let search = named("search among # skills");
        rows.push(TableRow::new(&search, &times.search, soon(5_000_000)));
    }
    Ok(rows)
}

async fn measure(bench: &BenchOptions, count: usize) -> Result<CatalogueTimes> {
    let root = root(count)?;
    let mut times = CatalogueTimes::new();
    for _ in 0..bench.times(3, 1) {
        let started = Instant::now();
        let daemon = start(root.path()).await?;
        ensure!(
            list(&daemon.client, None).await? == count,
            "not all are there"
        );
        times.cold.time(started.elapsed())?;
        let started = Instant::now();
        spawn_local(&["tar", "-C", text(root.path())?, "-c", "."]).await?;
        times.tar.time(started.elapsed())?;
        daemon.stop().await?;
    }
    let daemon = start(root.path()).await?;
    let client = &daemon.client;
    list(client, None).await?;
    for _ in 0..bench.times(10, 2) {
        let started = Instant::now();
        client
            .skills()
            .refresh_skills(RefreshSkillsRequest {})
            .await?;
        times.again.time(started.elapsed())?;
    }
    let pid = daemon.pid().context("the daemon has ended")?;
    times.memory.size(daemon_calls::resident_bytes(pid)?)?;
    for _ in 0..bench.times(50, 10) {
        let started = Instant::now();
        ensure!(list(client, None).await? == count, "not all are there");
        times.all.time(started.elapsed())?;
    }
    for _ in 0..bench.times(200, 50) {
        let started = Instant::now();
        ensure!(list(client, Some(PAGE)).await? > 0, "nothing is there");
        times.page.time(started.elapsed())?;
        let started = Instant::now();
        ensure!(list(client, Some(1)).await? == 1, "nothing is there");
        times.one.time(started.elapsed())?;
    }
    for turn in 0..bench.times(20, 5) {
        let skill = root.path().join("0").join(name(0));
        write(&skill, 0, &format!("Changed for the time {turn}."))?;
        let started = Instant::now();
        client
            .skills()
            .refresh_skills(RefreshSkillsRequest {})
            .await?;
        ensure!(list(client, Some(1)).await? == 1, "nothing is there");
        times.changed.time(started.elapsed())?;
    }
    // The first search after a change prepares the next ones.
    for query in QUERIES {
        search(client, query).await?;
    }
    for query in QUERIES.into_iter().cycle().take(bench.times(4000, 400)) {
        let started = Instant::now();
        search(client, query).await?;
        times.search.time(started.elapsed())?;
    }
    daemon.stop().await?;
    Ok(times)
}

async fn start(root: &Path) -> Result<Daemon> {
    // Without containers the daemon does nothing else.
    let options = daemon_calls::daemon_options()
        .skills(root)
        .set("pools.default.warm", "0");
    Daemon::start_with(options).await
}

/// Lists one page of a size, or all pages, and returns the number of skills.
async fn list(client: &Client, page: Option<i32>) -> Result<usize> {
    let (mut count, mut page_token) = (0, String::new());
    loop {
        let request = ListSkillsRequest {
            page_size: page.unwrap_or(PAGE),
            page_token,
            ..ListSkillsRequest::default()
        };
        let answer = client.list_skills(request).await?;
        count += answer.skills.len();
        page_token = answer.next_page_token;
        if page.is_some() || page_token.is_empty() {
            return Ok(count);
        }
    }
}

async fn search(client: &Client, query: &str) -> Result<()> {
    let request = SearchSkillsRequest {
        query: query.to_owned(),
        ..SearchSkillsRequest::default()
    };
    let answer = client.search_skills(request).await?;
    ensure!(
        answer.matches.is_empty() == (query == "zymurgy"),
        "{query:?} found {} skills",
        answer.matches.len()
    );
    Ok(())
}

/// Makes a root with a number of skills of three files each.
fn root(count: usize) -> Result<TempDir> {
    let root = tempfile::Builder::new().prefix("skb").tempdir()?;
    for number in 0..count {
        let group = root.path().join((number % GROUPS).to_string());
        write(&group.join(name(number)), number, "")?;
    }
    Ok(root)
}

fn word(number: usize) -> &'static str {
    WORDS.get(number % WORDS.len()).copied().unwrap_or_default()
}

fn name(number: usize) -> String {
    let (first, second) = (word(number), word(number / WORDS.len() + number * 7));
    format!("{first}-{second}-{number:04}")
}

fn write(dir: &Path, number: usize, more: &str) -> Result<()> {
    std::fs::create_dir_all(dir.join("scripts"))?;
    std::fs::create_dir_all(dir.join("references"))?;
    let mut about = format!("---\nname: {}\ndescription: Makes", name(number));
    for place in 0..24 {
        write!(
            about,
            " {} and a {}",
            word(number * 3 + place * 5),
            word(number + place)
        )?;
    }
    writeln!(
        about,
        ". Use it when the user asks for number {number}. {more}"
    )?;
    write!(
        about,
        "license: MIT\nmetadata:\n  version: 1.{number}.0\n  tags: [{}, {}]\n",
        word(number),
        word(number + 9)
    )?;
    write!(
        about,
        "allowed-tools: Read Write Bash\n---\n# {}\n",
        name(number)
    )?;
    about.push_str(&"Do this, and then do that, until it is done.\n".repeat(60));
    std::fs::write(dir.join("SKILL.md"), about)?;
    std::fs::write(
        dir.join("scripts/run.py"),
        format!("print({number})\n").repeat(40),
    )?;
    Ok(std::fs::write(
        dir.join("references/more.md"),
        "More of it.\n".repeat(200),
    )?)
}

fn thousands(count: usize) -> String {
    format!("{},{:03}", count / 1000, count % 1000)
}

fn text(path: &Path) -> Result<&str> {
    path.to_str().context("a path that is not text")
}
