//! Thousands of execs, as many at once as there may be.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use futures::{StreamExt, TryStreamExt, future, stream};
use skilld_client::Client;
use skilld_client::v1::{ExecState, ExitReason as Ended, ListExecsRequest};
use skilld_tests::exec::{argv, run, shell, shell_stdout, workspace};
use skilld_tests::{Daemon, usage, wait};

use crate::load::{DEADLINE, alone, options, with_deadline};

const EXECS: usize = 2_000;
const AT_ONCE: usize = 64;
/// Number of ended execs that a workspace keeps.
const RETAINED: usize = 256;
/// Number of answers of the guest before which the storm does not end.
const ANSWERS_MIN: usize = 20;
/// Time between two calls to the guest.
const ASK_EVERY: Duration = Duration::from_millis(20);

const PROGRAM: &str = r#"echo "out $1"; echo "err $1" >&2; exit "$2""#;
/// Leaves a process that does not hold the pipes and that outlives the test unless the guest ends it.
const ORPHAN: &str = "(sleep 3600 >/dev/null 2>&1 &); exit 7";

#[tokio::test(flavor = "multi_thread")]
async fn thousands_of_execs_end_while_the_guest_answers() -> Result<()> {
    let _alone = alone().await;
    let options = options()?.set("execs.count_max", &AT_ONCE.to_string());
    let daemon = Daemon::start_with(options).await?;
    let client = &daemon.client;
    let name = workspace(client).await?.name;
    daemon.warm(1).await?;

    let (over, answers) = (AtomicBool::new(false), AtomicUsize::new(0));
    let storm = async {
        let goes_on =
            |number: &usize| *number < EXECS || answers.load(Ordering::Relaxed) < ANSWERS_MIN;
        let ran = stream::iter(0..)
            .take_while(|number| future::ready(goes_on(number)))
            .map(|number| run_numbered_exec(client, &name, number))
            .buffer_unordered(AT_ONCE)
            .try_fold(0, async |ran, ()| Ok(ran + 1))
            .await;
        over.store(true, Ordering::Relaxed);
        ran
    };
    let asker = Client::connect(&daemon.endpoint()).await?;
    let (ran, ()) = tokio::try_join!(storm, ask(&asker, &name, &over, &answers))?;
    assert!(ran >= EXECS, "{ran}");

    // Only the results are left.
    let guest = usage::guest(&daemon, &name).await?;
    wait::until("only the guest is left", DEADLINE, async || {
        let all = usage::list_container_processes(guest)?;
        Ok(all
            .iter()
            .all(|one| one.name == "skilld-guest" && one.state != 'Z')
            .then_some(()))
    })
    .await?;
    let listed = client.list_execs(list(&name, 1000)).await?.execs;
    assert_eq!(listed.len(), RETAINED);
    assert!(listed.iter().all(|exec| exec.state() == ExecState::Closed));
    wait::until("forgotten execs have no directory", DEADLINE, async || {
        let printed = shell_stdout(client, &name, "ls $WORKSPACE_DIR/runs | wc -l").await?;
        let count: usize = printed.trim().parse()?;
        Ok((count <= RETAINED + AT_ONCE).then_some(()))
    })
    .await?;
    daemon.stop().await
}

/// Runs the exec with a number and checks its end and its output. A few leave an orphan or are killed.
async fn run_numbered_exec(client: &Client, name: &str, number: usize) -> Result<()> {
    let (text, code) = (number.to_string(), i32::try_from(number % 200)?);
    let spec = match number % 50 {
        7 => shell(ORPHAN),
        17 => argv(["sh", "-c", "kill -9 $$"]),
        _ => argv(["sh", "-c", PROGRAM, "sh", &text, &code.to_string()]),
    };
    let outcome = run(client, name, spec)
        .await
        .with_context(|| format!("exec {number}"))?;
    let ended = (outcome.reason(), outcome.exit_code(), outcome.signal());
    let expected = match number % 50 {
        7 => (Ended::Exited, Some(7), None),
        17 => (Ended::Signaled, None, Some(9)),
        _ => (Ended::Exited, Some(code), None),
    };
    ensure!(ended == expected, "exec {number}: {:?}", outcome.result);
    let printed = (outcome.text(), outcome.error_text());
    let expected = match number % 50 {
        7 | 17 => (String::new(), String::new()),
        _ => (format!("out {number}\n"), format!("err {number}\n")),
    };
    ensure!(printed == expected, "exec {number}: {outcome:?}");
    Ok(())
}

/// Calls the guest until the storm is over, and counts the answers.
async fn ask(client: &Client, name: &str, over: &AtomicBool, answers: &AtomicUsize) -> Result<()> {
    let mut tick = tokio::time::interval(ASK_EVERY);
    while !over.load(Ordering::Relaxed) {
        tick.tick().await;
        let listed = async { Ok(client.list_execs(list(name, 100)).await?.execs) };
        let listed = with_deadline("the guest lists its execs", listed).await?;
        answers.fetch_add(1, Ordering::Relaxed);
        let Some(last) = listed.last() else {
            continue;
        };
        // It may have been forgotten in between, with so many after it.
        match client.get_exec(&last.name).await {
            Ok(exec) => ensure!(exec.name == last.name, "{exec:?}"),
            Err(error) => ensure!(error.code() == Some(tonic::Code::NotFound), "{error}"),
        }
        answers.fetch_add(1, Ordering::Relaxed);
    }
    Ok(())
}

fn list(name: &str, page_size: i32) -> ListExecsRequest {
    ListExecsRequest {
        parent: name.to_owned(),
        page_size,
        ..ListExecsRequest::default()
    }
}
