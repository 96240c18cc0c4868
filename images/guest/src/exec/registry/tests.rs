//! Tests of the ended execs that are kept. No process runs.

use super::*;

/// ExecRegistry of a workspace that keeps `retained_max` ended execs, and the workspace's directory.
fn registry(retained_max: usize) -> (ExecRegistry, tempfile::TempDir) {
    let place = tempfile::tempdir().expect("a directory");
    let root = WorkspaceRoot::open(place.path()).expect("a root");
    let registry = ExecRegistry::new(Arc::new(root));
    registry.set_limits(retained_max, u64::MAX);
    (registry, place)
}

/// Starts an exec and lets its output end; processes of it may be left.
fn close(registry: &ExecRegistry, id: &str) -> Arc<Exec> {
    let (name, digest) = (format!("workspaces/w/execs/{id}"), Vec::new().into());
    let (spec, budget) = (v1::ExecSpec::default(), &registry.budget);
    let (exec, _controls) = Exec::new(name, id.to_owned(), digest, spec, None, budget);
    registry.insert(Arc::clone(&exec));
    registry.count_leader_exit();
    registry.output_ended(&exec);
    exec
}

/// The same, with nothing left.
fn end(registry: &ExecRegistry, id: &str) {
    let exec = close(registry, id);
    registry.exec_ended(&exec);
}

fn kept(registry: &ExecRegistry) -> Vec<String> {
    let execs = registry.list_after(0);
    execs.iter().map(|(_, exec)| exec.id.clone()).collect()
}

#[test]
fn newest_results_are_kept_whatever_lingers() {
    let (registry, _place) = registry(2);
    let lingering = ["l1", "l2", "l3"].map(|id| close(&registry, id));
    for id in ["e1", "e2", "e3"] {
        end(&registry, id);
    }
    assert_eq!(kept(&registry), ["l1", "l2", "l3", "e2", "e3"]);
    // Once nothing is left of them they are older than what is kept.
    for exec in &lingering {
        registry.exec_ended(exec);
    }
    assert_eq!(kept(&registry), ["e2", "e3"]);
}

#[test]
fn a_lingering_exec_takes_the_place_of_an_older_result() {
    let (registry, _place) = registry(2);
    end(&registry, "e1");
    end(&registry, "e2");
    let lingers = close(&registry, "l");
    assert_eq!(kept(&registry), ["e2", "l"]);
    registry.exec_ended(&lingers);
    assert_eq!(kept(&registry), ["e2", "l"]);
}

/// A command that lingers for long must not keep the directories of others.
#[test]
fn the_empty_directory_of_a_forgotten_exec_is_removed_at_once() {
    let (registry, place) = registry(1);
    for run in ["runs", "runs/e1", "runs/e2", "runs/full"] {
        std::fs::create_dir(place.path().join(run)).expect("a directory");
    }
    std::fs::write(place.path().join("runs/full/file"), "kept").expect("a file");
    end(&registry, "full");
    end(&registry, "e1");
    let _lingers = close(&registry, "e2");
    assert_eq!(kept(&registry), ["e2"]);
    let is_left = ["e1", "e2", "full"].map(|id| place.path().join("runs").join(id).exists());
    assert_eq!(is_left, [false, true, true]);
}

#[test]
fn an_overdue_exec_is_forgotten_once_nothing_lingers() {
    let (registry, _place) = registry(2);
    end(&registry, "e");
    let lingers = close(&registry, "l");
    let late = Instant::now() + Duration::from_secs(48 * 3600);
    assert_eq!(registry.forget_overdue(late), None);
    assert_eq!(kept(&registry), ["l"]);
    registry.exec_ended(&lingers);
    assert!(registry.forget_overdue(Instant::now()).is_some());
    assert_eq!(registry.forget_overdue(late), None);
    assert!(kept(&registry).is_empty() && registry.is_forgotten("l"));
}
