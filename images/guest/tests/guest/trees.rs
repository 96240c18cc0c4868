//! Process trees whose supervisor a command killed: no process of them stays, and other trees are not affected.

use std::path::Path;
use std::time::Duration;

use skilld_proto::Outcome;
use skilld_proto::guest::v1 as wire;
use skilld_proto::v1::signal_exec_request::Target;
use skilld_proto::v1::{self, ExitReason};

use crate::support::{Guest, STARTED, duration, until};

/// Returns what a command wrote to a file of the workspace.
async fn written(guest: &Guest, name: &str) -> String {
    let file = guest.workspace().join(name);
    let read = || std::fs::read_to_string(&file).unwrap_or_default();
    until(name, || read().ends_with('\n')).await;
    read().trim().to_owned()
}

async fn ready(guest: &Guest, name: &str) {
    let file = guest.workspace().join(name);
    until(name, || file.exists()).await;
}

async fn start(guest: &Guest, id: &str, script: &str) {
    let request = guest.request(id, &["bash", "-c", script]);
    let started = guest.client.clone().start_exec(request).await;
    started.expect("started");
}

async fn delete(guest: &Guest, id: &str) {
    let exec_id = id.to_owned();
    let request = wire::DeleteExecRequest { exec_id };
    let deleted = guest.client.clone().delete_exec(request).await;
    deleted.expect("deleted");
}

async fn kill(guest: &Guest, id: &str, grace: u64) -> v1::ExecResult {
    let request = wire::KillExecRequest {
        exec_id: id.to_owned(),
        grace: duration(grace),
        ..Default::default()
    };
    let exec = guest.client.clone().kill_exec(request).await;
    exec.expect("killed").into_inner().result.expect("a result")
}

/// Returns the processes that exist, zombies included.
fn existing(pids: &str) -> Vec<&str> {
    let exists = |pid: &&str| Path::new("/proc").join(pid).exists();
    pids.split_whitespace().filter(exists).collect()
}

/// Returns the processes with this text in their command line.
fn with_text(text: &str) -> usize {
    let mut count = 0;
    for entry in std::fs::read_dir("/proc").expect("/proc").flatten() {
        let line = std::fs::read(entry.path().join("cmdline")).unwrap_or_default();
        count += usize::from(String::from_utf8_lossy(&line).contains(text));
    }
    count
}

/// Shell text that starts a process tree and writes its pids to the file `pids`.
const MANY: &str = "for n in {1..60}; do setsid sleep 1000 > /dev/null 2>&1 & echo $!; done > list; \
                    mv list pids; ";

#[tokio::test]
async fn a_kill_leaves_nothing_even_after_the_supervisor_was_killed() {
    let guest = Guest::start().await;
    for round in 0..8 {
        let id = format!("waits{round}");
        let script = format!(
            "trap '' TERM; {MANY} {STARTED} kill -9 $PPID; echo > ready; while :; do sleep 1; done"
        );
        start(&guest, &id, &script).await;
        ready(&guest, "ready").await;
        let result = kill(&guest, &id, 20).await;
        assert_eq!(result.reason(), ExitReason::KilledByClient);
        assert_eq!(result.outcome(), Some(Outcome::Signal(9)));
        let pids = written(&guest, "pids").await;
        assert_eq!(existing(&pids), [""; 0], "round {round}");
        for name in ["pids", "ready"] {
            std::fs::remove_file(guest.workspace().join(name)).expect("removed");
        }

        // And one whose leader ends together with the supervisor.
        let id = format!("goes{round}");
        let script = format!("{MANY} {STARTED} kill -9 $PPID; exit 3");
        start(&guest, &id, &script).await;
        let pids = written(&guest, "pids").await;
        delete(&guest, &id).await;
        assert_eq!(existing(&pids), [""; 0], "round {round}");
        std::fs::remove_file(guest.workspace().join("pids")).expect("removed");
    }
}

#[tokio::test]
async fn a_fork_chain_without_a_supervisor_does_not_outlive_its_exec() {
    let guest = Guest::start().await;
    let mark = format!("chain-of-{}", guest.child.id());
    // Each forks the next and ends. Bounded by itself as well, lest a defect here takes the machine along.
    let chain = "$end = time() + 15; while (time() < $end) { exit if fork(); }";
    let script = format!(
        "for n in 1 2 3; do perl -e '{chain}' {mark} & done; sleep 0.1; {STARTED} kill -9 $PPID; \
         [ $0 = ends ] && exit 3; echo > ready; sleep 100"
    );
    let request = |id: &str| guest.request(id, &["bash", "-c", &script, id]);
    let client = guest.client.clone();
    client
        .clone()
        .start_exec(request("ends"))
        .await
        .expect("started");
    delete(&guest, "ends").await;
    assert_eq!(with_text(&mark), 0);
    client
        .clone()
        .start_exec(request("waits"))
        .await
        .expect("started");
    ready(&guest, "ready").await;
    kill(&guest, "waits", 20).await;
    assert_eq!(with_text(&mark), 0);
    tokio::time::sleep(Duration::from_millis(50)).await;
    assert_eq!(with_text(&mark), 0);
}

#[tokio::test]
async fn real_time_signals_arrive() {
    let guest = Guest::start().await;
    let script = format!(
        "trap 'echo rt >> heard' 34; trap 'echo max >> heard' 64; {STARTED} \
         [ $0 = orphan ] && kill -9 $PPID && while [ -e /proc/$PPID ]; do sleep 0.01; done; \
         echo > $0.ready; while :; do sleep 0.01; done"
    );
    for id in ["child", "orphan"] {
        let request = guest.request(id, &["bash", "-c", &script, id]);
        guest
            .client
            .clone()
            .start_exec(request)
            .await
            .expect("started");
        ready(&guest, &format!("{id}.ready")).await;
        let mut heard = 0;
        for target in [Target::Leader, Target::Group, Target::Tree] {
            for signal in [34, 64] {
                let request = wire::SignalExecRequest {
                    exec_id: id.to_owned(),
                    signal,
                    target: target.into(),
                    ..Default::default()
                };
                let sent = guest.client.clone().signal_exec(request).await;
                sent.expect("sent");
                heard += 1;
                let file = guest.workspace().join("heard");
                let read = || std::fs::read_to_string(&file).unwrap_or_default();
                let what = format!("{signal} of {id} by {target:?}");
                until(&what, || read().lines().count() >= heard).await;
            }
        }
        let file = guest.workspace().join("heard");
        let text = std::fs::read_to_string(&file).expect("written");
        assert_eq!(text, "rt\nmax\n".repeat(3));
        std::fs::remove_file(file).expect("removed");
        kill(&guest, id, 0).await;
    }
}

#[tokio::test]
async fn the_end_of_one_orphaned_tree_spares_the_leader_of_another() {
    let guest = Guest::start().await;
    for round in 0..20 {
        let survivor = format!("survivor{round}");
        let script = "echo $PPID > parent; while [ ! -e go ]; do sleep 0.01; done; exit 7";
        start(&guest, &survivor, script).await;
        let parent = written(&guest, "parent").await;
        let victim = format!("victim{round}");
        let script = format!("{STARTED} kill -9 {parent} $PPID; exit 0");
        start(&guest, &victim, &script).await;
        delete(&guest, &victim).await;
        std::fs::write(guest.workspace().join("go"), "").expect("written");
        let stream = guest.attach(&survivor, 0).await;
        let seen = crate::support::SeenEvents::all(stream)
            .await
            .expect("ends well");
        assert_eq!(seen.outcome(), Outcome::ExitCode(7), "round {round}");
        assert_eq!(seen.reason(), ExitReason::Exited);
        for name in ["go", "parent"] {
            std::fs::remove_file(guest.workspace().join(name)).expect("removed");
        }
    }
}

/// A look through `/proc` takes longer with more processes. With many, it overlaps the start of another exec.
#[tokio::test]
async fn ending_an_orphaned_tree_spares_a_newly_orphaned_leader() {
    let guest = Guest::start().await;
    let crowd = "for n in {1..200}; do sleep 1000 & done; echo > ready; wait";
    start(&guest, "crowd", crowd).await;
    ready(&guest, "ready").await;
    let alone = async |task: usize| {
        for round in 0..80 {
            let script = format!("{STARTED} kill -9 $PPID; echo alive");
            let request = guest.request(&format!("alone{task}-{round}"), &["sh", "-c", &script]);
            let seen = guest.run(request).await;
            assert_eq!(seen.reason(), ExitReason::Exited, "{task}, round {round}");
            assert_eq!(seen.stdout(), "alive\n", "{task}, round {round}");
        }
    };
    tokio::join!(alone(0), alone(1), alone(2), alone(3));
}
