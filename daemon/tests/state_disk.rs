//! A state directory on a disk that is full or read-only, over the fake engine and the real guest. The disk is a small
//! tmpfs, so these tests need root.

#[path = "support/server.rs"]
#[expect(dead_code, reason = "shared with tests that use more of it")]
mod server;

use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use futures::stream;
use server::TestServer;
use skilld_client::{Client, Error, RetryPolicy, SaveTarget};
use skilld_proto::v1::{self as pb, Reason};
use tonic::Code;

/// Nothing here may take longer.
const DEADLINE: Duration = Duration::from_secs(20);

/// A tmpfs at a path. Unmounted when it is dropped.
struct Tmpfs(PathBuf);

impl Tmpfs {
    /// Large enough for some copies of a guest that was built for debugging.
    fn mount(path: &Path) -> Self {
        fs::create_dir_all(path).expect("mkdir");
        let tmpfs = Self(path.to_owned());
        tmpfs.run(
            "mount",
            &[
                "-t",
                "tmpfs",
                "-o",
                "size=320m,nr_inodes=2000",
                "skilld-test",
            ],
        );
        tmpfs
    }

    /// Covers the disk by a read-only view of itself. It cannot be made read-only in place while a file is open for
    /// writing.
    fn cover(&self) {
        let path = self.0.to_string_lossy();
        self.run("mount", &["--bind", &path]);
        self.run("mount", &["-o", "remount,bind,ro"]);
    }

    fn uncover(&self) {
        self.run("umount", &["-l"]);
    }

    fn run(&self, program: &str, args: &[&str]) {
        let status = Command::new(program).args(args).arg(&self.0).status();
        assert!(status.expect("it runs").success(), "{program} {args:?}");
    }
}

impl Drop for Tmpfs {
    fn drop(&mut self) {
        // A test that failed may have left the disk covered.
        let unmount = || Command::new("umount").arg("-l").arg(&self.0).output();
        while unmount().is_ok_and(|unmounted| unmounted.status.success()) {}
    }
}

/// What a state disk can lack.
#[derive(Debug, Clone, Copy)]
enum Shortage {
    Bytes,
    Inodes,
    Writes,
}

impl Shortage {
    fn begin(self, disk: &Tmpfs) {
        let filler = disk.0.join("filler");
        fs::create_dir(&filler).expect("mkdir");
        match self {
            Self::Bytes => {
                let mut file = fs::File::create(filler.join("0")).expect("create");
                for size in [1 << 20, 4 << 10, 1] {
                    let piece = vec![0; size];
                    while file.write_all(&piece).is_ok() {}
                }
            }
            Self::Inodes => {
                let more = |number: &u32| fs::File::create(filler.join(number.to_string())).is_ok();
                let made = (0..4000).take_while(more).count();
                assert!(made < 4000, "inodes have no limit here");
            }
            Self::Writes => disk.cover(),
        }
    }

    fn end(self, disk: &Tmpfs) {
        if let Self::Writes = self {
            disk.uncover();
        }
        fs::remove_dir_all(disk.0.join("filler")).expect("removed");
    }

    fn expected(self) -> (Code, Reason, &'static str) {
        match self {
            Self::Bytes | Self::Inodes => (
                Code::ResourceExhausted,
                Reason::StateDiskFull,
                "state.disk_full",
            ),
            Self::Writes => (
                Code::Unavailable,
                Reason::StateDiskReadOnly,
                "state.disk_read_only",
            ),
        }
    }
}

async fn until<T>(what: &str, mut look: impl AsyncFnMut() -> Option<T>) -> T {
    let started = Instant::now();
    let mut tick = tokio::time::interval(Duration::from_millis(5));
    loop {
        tick.tick().await;
        if let Some(found) = look().await {
            return found;
        }
        assert!(started.elapsed() < DEADLINE, "in vain: {what}");
    }
}

async fn warm(server: &TestServer) {
    until("the pool is warm", async || {
        let pool = server.client.get_pool("default").await.expect("pool");
        (pool.warm == 1 && pool.booting == 0).then_some(())
    })
    .await;
}

async fn state_problems(client: &Client) -> Vec<pb::Problem> {
    let mut problems = client.problems().await.expect("problems");
    problems.retain(|problem| problem.code.starts_with("state."));
    problems
}

async fn save(client: &Client, bytes: usize) -> Result<pb::Artifact, Error> {
    let scope = pb::ArtifactScope {
        app: "app".into(),
        user: "ada".into(),
        session: "1".into(),
    };
    let source = std::io::Cursor::new(vec![7; bytes]);
    client
        .save_artifact(SaveTarget::new("a.bin", scope), source)
        .await
}

async fn publish(client: &Client) -> Result<pb::Skill, Error> {
    let message = |name: &str, payload| pb::PublishSkillRequest {
        name: name.to_owned(),
        payload: Some(payload),
    };
    let header = pb::PublishSkillHeader::default();
    let messages = [
        message(
            "skills/x",
            pb::publish_skill_request::Payload::Header(header),
        ),
        message(
            "",
            pb::publish_skill_request::Payload::Data(vec![7; 64 << 10].into()),
        ),
    ];
    let answer = client.skills().publish_skill(stream::iter(messages)).await;
    Ok(answer?.into_inner())
}

fn check<T: std::fmt::Debug>(what: &str, shortage: Shortage, answer: Result<T, Error>) {
    let error = answer.expect_err(what);
    let (code, reason, _) = shortage.expected();
    assert_eq!(
        (error.code(), error.reason()),
        (Some(code), Some(reason)),
        "{what} with a shortage of {shortage:?}: {error}"
    );
    let message = error.to_string();
    assert!(
        message.contains("a disk of the server"),
        "no remedy: {message}"
    );
    assert!(
        !message.contains("/slots/"),
        "a path of the host: {message}"
    );
}

/// Files that are only there while something is being written.
fn temporary_files(dir: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in fs::read_dir(dir).expect("list") {
        let path = entry.expect("entry").path();
        let name = path.file_name().expect("name").to_string_lossy();
        let beneath = ["tmp", "pending"]
            .iter()
            .any(|parent| dir.ends_with(parent));
        if beneath || name.starts_with(".tmp") || name.starts_with(".stage-") || name.contains('#')
        {
            found.push(path.clone());
        } else if path.is_dir() && !path.is_symlink() {
            found.extend(temporary_files(&path));
        }
    }
    found
}

/// Checks that every call that writes fails with the reason of the shortage, which is also listed as a problem.
async fn check_failures(client: &Client, workspace: &str, shortage: Shortage) {
    // The metadata of such a workspace takes more than one page.
    let labels = (0..32).map(|number| (format!("{number:0128}"), "v".repeat(128)));
    let labelled = pb::CreateWorkspaceRequest {
        labels: labels.collect(),
        ..Default::default()
    };
    for request in [pb::CreateWorkspaceRequest::default(), labelled] {
        for _ in 0..5 {
            let claimed = client.create_workspace(request.clone());
            check("a claim", shortage, claimed.await);
        }
    }
    let request = pb::RenewWorkspaceRequest {
        name: workspace.to_owned(),
        ..Default::default()
    };
    let renewed = client.workspaces().renew_workspace(request).await;
    check("a renewal", shortage, renewed.map_err(Error::from));
    check(
        "staging",
        shortage,
        client.stage_skills(workspace, &["one"]).await,
    );
    for bytes in [10, 3 << 20] {
        check("saving an artifact", shortage, save(client, bytes).await);
    }
    check("publishing", shortage, publish(client).await);
    let problems = state_problems(client).await;
    let codes: Vec<&str> = problems
        .iter()
        .map(|problem| problem.code.as_str())
        .collect();
    assert_eq!(codes, [shortage.expected().2]);
    for problem in &problems {
        let message = &problem.message;
        assert!(message.contains("running commands go on"), "{message}");
        let names_disk = format!("the disk of the state directory {}", problem.subject);
        assert!(message.contains(&names_disk), "{message}");
    }
}

/// Checks that the metadata of every slot is valid JSON.
fn check_metadata(state_dir: &Path) {
    let slots = fs::read_dir(state_dir.join("slots")).expect("slots");
    let files = slots.map(|slot| slot.expect("slot").path().join("skills/.metadata.json"));
    // A slot that is being made or removed has none, or an empty one.
    let texts = files.filter_map(|file| fs::read_to_string(file).ok());
    for text in texts.filter(|text| !text.is_empty()) {
        let parsed = serde_json::from_str::<serde_json::Value>(&text);
        assert!(parsed.is_ok(), "{parsed:?} in {text:?}");
    }
}

async fn suffers(shortage: Shortage) {
    if !nix::unistd::geteuid().is_root() {
        // Only root can make a disk that is full.
        return;
    }
    let mut disk = None;
    let skills = [("one", "name: one\ndescription: d")];
    let toml = "engine.reconcile_interval = \"100ms\"\n";
    let server = TestServer::start_prepared(toml, &skills, |state_dir| {
        disk = Some(Tmpfs::mount(state_dir));
    })
    .await;
    let disk = disk.expect("mounted");
    let client = server.client.clone().with_retry(RetryPolicy::none());
    let workspace = server.workspace().await;
    warm(&server).await;
    let containers = server.engine.containers();
    assert_eq!(state_problems(&client).await, []);

    shortage.begin(&disk);
    check_failures(&client, &workspace, shortage).await;
    check_metadata(&disk.0);
    until("the warm container is given back", async || {
        let pool = client.get_pool("default").await.expect("pool");
        (pool.warm == 1).then_some(())
    })
    .await;
    until("boots that failed are cleaned up", async || {
        (server.engine.containers() == containers).then_some(())
    })
    .await;
    let listed = pb::ListExecsRequest {
        workspace: workspace.clone(),
        ..Default::default()
    };
    client.list_execs(listed).await.expect("it goes on");

    shortage.end(&disk);
    assert_eq!(state_problems(&client).await, [], "it is over");
    let claimed = client.create_workspace(pb::CreateWorkspaceRequest::default());
    claimed.await.expect("claimed");
    client
        .stage_skills(&workspace, &["one"])
        .await
        .expect("staged");
    save(&client, 3 << 20).await.expect("saved");
    let now = server.engine.containers();
    let kept = containers.iter().all(|id| now.contains(id));
    assert!(kept, "a container was lost: {containers:?}, {now:?}");
    warm(&server).await;
    until("what was left is gone", async || {
        let slots = fs::read_dir(disk.0.join("slots")).expect("slots").count();
        (slots == 3 && temporary_files(&disk.0).is_empty()).then_some(())
    })
    .await;
    let stopped = server.stopped().await;
    drop(disk);
    drop(stopped);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_full_state_disk_has_a_reason_and_costs_no_warm_container() {
    suffers(Shortage::Bytes).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_state_disk_without_inodes_has_a_reason_and_costs_no_warm_container() {
    suffers(Shortage::Inodes).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_read_only_state_disk_has_a_reason_and_costs_no_warm_container() {
    suffers(Shortage::Writes).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn metadata_that_a_crash_left_half_written_is_whole_after_the_start() {
    let server = TestServer::start("", &[]).await;
    server.workspace().await;
    let slots = server.state_dir().join("slots");
    let find = || {
        let entries = fs::read_dir(&slots).expect("slots");
        let mut files =
            entries.map(|slot| slot.expect("slot").path().join("skills/.metadata.json"));
        let is_workspace = |path: &PathBuf| {
            fs::read_to_string(path).is_ok_and(|text| text.contains("workspaces/"))
        };
        files.find(is_workspace).expect("the workspace's")
    };
    let file = find();
    let whole = fs::read_to_string(&file).expect("text");
    let server = server
        .restart(|_| {
            let half = format!("{{\"workspace\": \"new\"{whole}");
            fs::write(&file, half).expect("write");
        })
        .await;
    until("it is whole", async || {
        (fs::read_to_string(&file).expect("text") == whole).then_some(())
    })
    .await;
    assert!(server.stop().await);
}
