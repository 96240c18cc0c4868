//! What a root that hangs may not do to everything else.

use super::*;
use crate::config::Config;

#[test]
fn roots_that_hang_leave_threads_to_others() {
    let dir = tempfile::tempdir().expect("a directory");
    let config = Config::from_toml("").expect("the defaults").config.skills;
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .max_blocking_threads(LOOKS_MAX + COPIES_MAX + 1)
        .enable_all()
        .build();
    let runtime = runtime.expect("a runtime");
    let tasks = Tasks::default();
    let _entered = runtime.enter();
    let skills = Skills::open(&config, dir.path(), tasks.clone()).expect("open");
    let hanging = skills.inner.roots.hang();
    let asked: Vec<_> = (0..200)
        .map(|number| {
            let skills = skills.clone();
            let target = dir.path().join("skills");
            let csv = SkillRef::parse("name", "csv").expect("a name");
            tasks.spawn(async move {
                match number % 3 {
                    0 => skills.list().await.map(drop),
                    1 => skills.get(csv, Profile::Lenient).await.map(drop),
                    _ => skills.stage(&target, vec![csv]).await.map(drop),
                }
            })
        })
        .collect();
    runtime.block_on(async {
        // All that there are places for have begun.
        while skills.looks.available_permits() + skills.copies.available_permits() > 0 {
            tokio::task::yield_now().await;
        }
        let other = tasks.blocking(|| Ok(()));
        let other = tokio::time::timeout(Duration::from_secs(30), other).await;
        other.expect("a thread is left").expect("done");
        // Who does not wait any more takes no place.
        for asked in &asked {
            asked.abort();
        }
    });
    drop(hanging);
    let listed = runtime.block_on(skills.list());
    assert_eq!(listed.expect("listed").skills.len(), 0);
}
