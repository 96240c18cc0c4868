//! Thousands of execs, as many at once as there may be.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use futures::{StreamExt, TryStreamExt, stream};
use skilld_client::Client;
use skilld_client::v1::exec_result::Reason as Ended;
use skilld_client::v1::{ExecState, ListExecsRequest};
use skilld_tests::exec::{argv, run, workspace};
use skilld_tests::{Daemon, usage, wait};

use crate::{KILL_MAX_ON_A_BUSY_HOST, alone, options};

const EXECS: usize = 5_000;
const AT_ONCE: usize = 64;
/// Longest time of 95 of 100 answers of the guest under load.
const ANSWER_MAX: Duration = Duration::from_secs(1);
/// Time between two calls to the guest.
const ASK_EVERY: Duration = Duration::from_millis(20);

const PROGRAM: &str = r#"echo "out $1"; echo "err $1" >&2; exit "$2""#;

#[tokio::test(flavor = "multi_thread")]
async fn thousands_of_execs_end_while_the_guest_answers() -> Result<()> {
    let _alone = alone().await;
    let options = options()?.set("execs.count_max", &AT_ONCE.to_string());
    let daemon = Daemon::start_with(options).await?;
    let client = &daemon.client;
    let name = workspace(client).await?.name;
    daemon.warm(1).await?;

    let over = AtomicBool::new(false);
    let storm = async {
        let started = Instant::now();
        let ran = stream::iter(0..EXECS)
            .map(|number| one(client, &name, number))
            .buffer_unordered(AT_ONCE)
            .try_fold(0, async |ran, ()| Ok(ran + 1))
            .await;
        over.store(true, Ordering::Relaxed);
        println!("{EXECS} execs took {:?}", started.elapsed());
        ran
    };
    let asker = Client::connect(&daemon.endpoint()).await?;
    let (ran, mut answers) = tokio::try_join!(storm, ask(&asker, &name, &over))?;
    assert_eq!(ran, EXECS);
    answers.sort_unstable();
    assert!(answers.len() > 20, "asked {} times only", answers.len());
    let [half, slow] = [50, 95].map(|percent| answers[answers.len() * percent / 100]);
    let worst = *answers.last().context("no answer")?;
    let count = answers.len();
    println!("{count} answers, p50 {half:?}, p95 {slow:?}, max {worst:?}");
    assert!(slow <= ANSWER_MAX, "p95 {slow:?}");
    assert!(worst < KILL_MAX_ON_A_BUSY_HOST, "max {worst:?}");

    // Only the results are left.
    let guest = usage::guest(&daemon, &name).await?;
    wait::until(
        "only the guest is left",
        Duration::from_secs(2),
        async || {
            let all = usage::list_container_processes(guest)?;
            Ok(all
                .iter()
                .all(|one| one.name == "skilld-guest" && one.state != 'Z')
                .then_some(()))
        },
    )
    .await?;
    let listed = client.list_execs(list(&name, 1000)).await?.execs;
    assert_eq!(listed.len(), 256, "execs.retained_max");
    assert!(listed.iter().all(|exec| exec.state() == ExecState::Closed));
    daemon.stop().await
}

/// Runs an exec with an exit code and output of its own, and checks them.
async fn one(client: &Client, name: &str, number: usize) -> Result<()> {
    let (text, code) = (number.to_string(), i32::try_from(number % 200)?);
    let spec = argv(["sh", "-c", PROGRAM, "sh", &text, &code.to_string()]);
    let outcome = run(client, name, spec).await;
    let outcome = outcome.with_context(|| format!("exec {number}"))?;
    ensure!(
        outcome.exit_code() == Some(code) && outcome.reason() == Ended::Exited,
        "exec {number}: {:?}",
        outcome.result
    );
    ensure!(outcome.text() == format!("out {number}\n"), "{outcome:?}");
    ensure!(
        outcome.error_text() == format!("err {number}\n"),
        "{outcome:?}"
    );
    Ok(())
}

/// Calls the guest until the storm is over, and returns the time of each answer.
async fn ask(client: &Client, name: &str, over: &AtomicBool) -> Result<Vec<Duration>> {
    let mut tick = tokio::time::interval(ASK_EVERY);
    let mut answers = Vec::new();
    while !over.load(Ordering::Relaxed) {
        tick.tick().await;
        let started = Instant::now();
        let listed = client.list_execs(list(name, 100)).await?.execs;
        answers.push(started.elapsed());
        let Some(last) = listed.last() else {
            continue;
        };
        let started = Instant::now();
        // It may have been forgotten in between, with so many after it.
        match client.get_exec(&last.name).await {
            Ok(exec) => ensure!(exec.name == last.name, "{exec:?}"),
            Err(error) => ensure!(error.code() == Some(tonic::Code::NotFound), "{error}"),
        }
        answers.push(started.elapsed());
    }
    Ok(answers)
}

fn list(name: &str, page_size: i32) -> ListExecsRequest {
    ListExecsRequest {
        workspace: name.to_owned(),
        page_size,
        ..ListExecsRequest::default()
    }
}
