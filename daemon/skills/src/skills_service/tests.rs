//! Roots and calls that hang, as on a network file system whose server is gone.

use std::sync::{Mutex, mpsc};
use std::time::Duration;

use skilld_tests::task_dir::TaskDir;

use super::*;

#[test]
fn hanging_root_keeps_listings_and_other_threads_available() {
    let dir = tempfile::tempdir().expect("a directory");
    let options = SkillsOptions::for_tests();
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .max_blocking_threads(4)
        .enable_all()
        .build()
        .expect("a runtime");
    let tasks = TaskSpawner::default();
    let _entered = runtime.enter();
    let skills = Skills::open(&options, dir.path(), tasks.clone()).expect("open");
    runtime.block_on(skills.list()).expect("listed");
    let hanging = options.scan_gate.lock().expect("free");
    let rescan = tasks.spawn({
        let skills = skills.clone();
        async move { skills.rescan().await }
    });
    let answers = async {
        for _ in 0..50 {
            let csv = SkillRef::parse("name", "csv").expect("a name");
            skills.list().await.expect("listed");
            let missing = skills.get(csv.clone(), ValidationProfile::Lenient).await;
            assert!(matches!(missing, Err(Error::SkillNotFound { .. })));
            let missing = skills.lease_to_stage(vec![csv]).await;
            assert!(matches!(missing, Err(Error::SkillNotFound { .. })));
        }
    };
    let deadline = Duration::from_secs(60);
    runtime
        .block_on(async { tokio::time::timeout(deadline, answers).await })
        .expect("answered while the scan hangs");
    drop(hanging);
    let rescanned = runtime.block_on(rescan).expect("not panicked");
    assert_eq!(rescanned.expect("scanned").skills.len(), 0);
}

#[tokio::test]
async fn calls_of_one_tenant_that_hang_keep_no_other_tenant_waiting() {
    let tasks = TaskSpawner::default();
    let dir = TaskDir::new(&tasks.tracker);
    let options = SkillsOptions::for_tests();
    let skills = Skills::open(&options, dir.path(), tasks.clone()).expect("open");
    let (hold, held) = mpsc::channel::<()>();
    let held = Arc::new(Mutex::new(held));
    let calls = (0..=BLOCKING_MAX).map(|_| {
        let (skills, held) = (skills.working_for("a"), Arc::clone(&held));
        let hang = move || {
            // Until the sender is dropped.
            held.lock().expect("no panic").recv().unwrap_or_default();
            Ok(())
        };
        tasks.spawn(async move { skills.blocking(hang).await })
    });
    let hanging: Vec<_> = calls.collect();
    tokio::task::yield_now().await;
    let deadline = Duration::from_secs(60);
    for skills in [&skills.working_for("b"), &skills] {
        let call = skills.blocking(|| Ok(()));
        let answered = tokio::time::timeout(deadline, call).await;
        answered.expect("not behind tenant a").expect("answered");
    }
    drop(hold);
    for call in hanging {
        call.await.expect("not panicked").expect("answered");
    }
}
