//! Listing and staging skills through a whole server.

use super::*;

/// Front matter of a valid and of an invalid skill.
const FRONTS: [(&str, &str); 2] = [
    (
        "csv",
        "name: csv\ndescription: Reads tables.\nversion: 1.10",
    ),
    ("broken", "name: broken"),
];

#[tokio::test(flavor = "multi_thread")]
async fn clients_see_skills_with_their_state_and_problems() {
    let server = TestServer::start("", &FRONTS).await;
    let request = pb::ListSkillsRequest::default();
    let listed = server.client.skills().list_skills(request).await;
    let skills = listed.expect("listed").into_inner().skills;
    let states: Vec<(&str, pb::SkillState)> = skills
        .iter()
        .map(|skill| (skill.name.as_str(), skill.state()))
        .collect();
    let expected = [
        ("skills/broken", pb::SkillState::Rejected),
        ("skills/csv", pb::SkillState::Loaded),
    ];
    assert_eq!(states, expected);
    assert_eq!(skills[0].problems[0].code, "skill.no_description");
    let csv = server.client.get_skill("csv@1.10").await.expect("there");
    assert_eq!(
        (csv.body.as_str(), csv.version.as_str()),
        ("# Body\n", "1.10")
    );
    assert_eq!(csv.digest, skills[1].digest);
    let problems = server.client.problems().await.expect("listed");
    assert!(
        problems
            .iter()
            .any(|problem| problem.code == "skill.no_description")
    );
    assert!(server.stop().await);
}

#[tokio::test(flavor = "multi_thread")]
async fn clients_stage_skills_and_the_workspace_says_which() {
    let server = TestServer::start("", &FRONTS).await;
    let workspace = server.workspace().await;
    let stage = |name: &'static str| {
        let (client, workspace) = (server.client.clone(), workspace.clone());
        async move { client.stage_skills(&workspace, &[name]).await }
    };
    let staged = stage("csv").await.expect("staged");
    assert_eq!((staged[0].file_count, staged[0].unchanged), (1, false));
    assert_eq!(staged[0].path, "/workspace/skills/csv");
    assert!(stage("csv").await.expect("staged")[0].unchanged);
    let seen = server.get_workspace(&workspace).await;
    assert_eq!(seen.skills[0].name, "skills/csv");
    assert_eq!(seen.skills[0].digest, staged[0].digest);

    let error = stage("csw").await.expect_err("unknown");
    assert_eq!(error.reason(), Some(ErrorReason::SkillNotFound));
    let nearest = error
        .failure()
        .and_then(|failure| failure.metadata.get("nearest"));
    assert_eq!(nearest.map(String::as_str), Some("skills/csv"));
    let error = stage("broken").await.expect_err("rejected");
    assert_eq!(error.reason(), Some(ErrorReason::SkillInvalid));
    assert!(server.stop().await);
}

#[tokio::test(flavor = "multi_thread")]
async fn clients_use_a_skill_by_the_name_that_it_writes() {
    let front = "name: 数据报表\ndescription: 汇总表格\ndisable-model-invocation: true";
    let server = TestServer::start("", &[("数据报表", front), FRONTS[0]]).await;
    let skill = server.client.get_skill("数据报表").await.expect("found");
    let id = "skill-ef1c3801";
    assert_eq!(skill.name, format!("skills/{id}"));
    assert_eq!(skill.display_name, "数据报表");
    assert_eq!(skill.state(), pb::SkillState::Loaded);
    assert!(skill.disable_model_invocation);
    let workspace = server.workspace().await;
    let staged = server
        .client
        .stage_skills(&workspace, &["数据报表@*"])
        .await
        .expect("staged");
    assert_eq!(staged[0].path, format!("/workspace/skills/{id}"));
    let both = server
        .client
        .stage_skills(&workspace, &["数据报表", id])
        .await;
    let error = both.expect_err("named twice");
    assert_eq!(error.reason(), Some(ErrorReason::InvalidRequest));
    let search = async |for_model: bool| {
        let request = pb::SearchSkillsRequest {
            query: "表格".to_owned(),
            for_model,
            ..pb::SearchSkillsRequest::default()
        };
        let found = server.client.search_skills(request).await.expect("found");
        found.matches.len()
    };
    assert_eq!((search(false).await, search(true).await), (1, 0));
    let request = pb::DeleteSkillRequest {
        name: "skills/数据报表".to_owned(),
        ..pb::DeleteSkillRequest::default()
    };
    let deleted = server.client.skills().delete_skill(request).await;
    let status = deleted.expect_err("it is of a root");
    assert_eq!(status.code(), tonic::Code::FailedPrecondition);
    assert!(server.stop().await);
}

/// Returns the number of waiters for the lock of a directory.
fn waiting(dir: &Path) -> usize {
    let inode = format!(":{} ", fs::metadata(dir).expect("there").ino());
    let locks = fs::read_to_string("/proc/locks").expect("the kernel's locks");
    let waits = |line: &&str| line.contains("-> FLOCK") && line.contains(&inode);
    locks.lines().filter(waits).count()
}

#[tokio::test(flavor = "multi_thread")]
async fn an_abandoned_staging_is_recorded_before_another_begins() {
    let server = TestServer::start("", &FRONTS).await;
    let workspace = server.workspace().await;
    // Until the pool is warm again, the directory of its next slot may have no skills yet.
    wait_until("the pool is warm", async || {
        let pool = server.client.get_pool("default").await.expect("pool");
        (pool.warm == 1).then_some(())
    })
    .await;
    let slots = fs::read_dir(server.state_dir().join("slots")).expect("slots");
    let targets: Vec<PathBuf> = slots
        .map(|slot| slot.expect("a slot").path().join("skills"))
        .collect();
    // Whichever slot it is, staging waits for its lock.
    let locks: Vec<fs::File> = targets
        .iter()
        .map(|dir| fs::File::open(dir).expect("opens"))
        .collect();
    for lock in &locks {
        lock.lock().expect("locked");
    }
    let all_waiting = || targets.iter().map(|dir| waiting(dir)).sum::<usize>();
    let begun = wait_until("a staging waits for a lock", async || {
        (all_waiting() > 0).then_some(())
    });
    tokio::select! {
        () = begun => {}
        done = server.client.stage_skills(&workspace, &["csv"]) => panic!("not locked: {done:?}"),
    }
    // The server knows that the first one's client has gone by when it has answered so many others.
    let skills = async || {
        let got = server.get_workspace(&workspace).await;
        got.skills
            .into_iter()
            .map(|skill| skill.name)
            .collect::<Vec<_>>()
    };
    for _ in 0..50 {
        assert_eq!(skills().await, Vec::<String>::new());
    }
    let (client, name) = (server.client.clone(), workspace.clone());
    let second = Tasks::default().spawn(async move { client.stage_skills(&name, &["csv"]).await });
    for _ in 0..50 {
        skills().await;
    }
    assert_eq!(all_waiting(), 1, "both are at it");
    drop(locks);
    let staged = second.await.expect("no panic").expect("staged");
    assert!(staged[0].unchanged, "the first one was staged and recorded");
    assert_eq!(skills().await, ["skills/csv"]);
    assert!(server.stop().await);
}

/// Writes a version of a skill beneath a root.
fn write_version(root: &Path, name: &str, version: &str) {
    fs::create_dir_all(root.join(name)).expect("mkdir");
    let text = format!("---\nname: {name}\ndescription: d\nversion: {version}\n---\n# Body\n");
    fs::write(root.join(name).join("SKILL.md"), text).expect("write");
}

#[tokio::test(flavor = "multi_thread")]
async fn concurrent_stagings_leave_the_recorded_versions() {
    let skills = ["csv", "pdf"];
    let server = TestServer::start("", &FRONTS).await;
    let workspace = server.workspace().await;
    let root = PathBuf::from(server.client.get_skill("csv").await.expect("there").root);
    // Digests of both skills in each version.
    let mut digests = Vec::new();
    for version in ["1", "2"] {
        for name in skills {
            write_version(&root, name, version);
        }
        let request = pb::RefreshSkillsRequest {};
        let refreshed = server.client.skills().refresh_skills(request).await;
        refreshed.expect("refreshed");
        let staged = server.client.stage_skills(&workspace, &skills).await;
        let of_version: Vec<_> = staged
            .expect("staged")
            .into_iter()
            .map(|skill| skill.digest)
            .collect();
        digests.push(of_version);
    }
    // Each of the four combinations is asked for four times.
    let calls = (0..16).map(|call| {
        let of_csv = format!("csv@{}", digests[call % 2][0]);
        let of_pdf = format!("pdf@{}", digests[call / 2 % 2][1]);
        let (client, workspace) = (server.client.clone(), workspace.clone());
        async move { client.stage_skills(&workspace, &[of_csv, of_pdf]).await }
    });
    for staged in futures::future::join_all(calls).await {
        staged.expect("staged");
    }
    let recorded = server.get_workspace(&workspace).await.skills;
    let slots = fs::read_dir(server.state_dir().join("slots")).expect("slots");
    let mut dirs = slots.map(|slot| slot.expect("a slot").path().join("skills"));
    let dir = dirs.find(|dir| dir.join("csv").is_dir()).expect("staged");
    assert_eq!(recorded.len(), skills.len(), "{recorded:?}");
    for (at, name) in skills.iter().enumerate() {
        let text = fs::read_to_string(dir.join(name).join("SKILL.md")).expect("a document");
        let is_new = text.contains("\nversion: 2\n");
        assert!(is_new || text.contains("\nversion: 1\n"), "{text}");
        let expected = &digests[usize::from(is_new)][at];
        let found = recorded
            .iter()
            .find(|skill| skill.name == format!("skills/{name}"));
        assert_eq!(&found.expect("recorded").digest, expected, "{text}");
    }
    assert!(server.stop().await);
}
