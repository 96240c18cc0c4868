//! Tests of a state directory on a full or read-only disk, with the fake engine and the real guest. The disk is a small
//! tmpfs, so these tests do nothing without root.

use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::server::{TestServer, ignore_absent, wait_until};
use futures::stream;
use skilld_client::{
    Client, Error, PackLimits, RetryPolicy, SaveTarget, SkillArchive, TransferProgress,
};
use skilld_proto::v1::{self as pb, ErrorReason};
use tonic::Code;

/// Mounted tmpfs. Dropping it unmounts it.
struct Tmpfs(PathBuf);

impl Tmpfs {
    /// Mounts a tmpfs that has room for several copies of a debug build of the guest.
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

    /// Mounts a read-only view of the disk over it. The kernel does not remount a disk read-only while a file is open for
    /// writing.
    fn cover(&self) {
        let path = self.0.to_string_lossy();
        self.run("mount", &["--bind", &path]);
        self.run("mount", &["-o", "remount,bind,ro"]);
    }

    /// Removes the read-only view.
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
        // A failed test may have left the read-only view mounted.
        let unmount = || Command::new("umount").arg("-l").arg(&self.0).output();
        while unmount().is_ok_and(|unmounted| unmounted.status.success()) {}
    }
}

/// Resource that the state disk lacks.
#[derive(Debug, Clone, Copy)]
enum Shortage {
    Bytes,
    Inodes,
    Writes,
}

impl Shortage {
    /// Causes the shortage.
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

    /// Ends the shortage.
    fn end(self, disk: &Tmpfs) {
        if let Self::Writes = self {
            disk.uncover();
        }
        fs::remove_dir_all(disk.0.join("filler")).expect("removed");
    }

    /// Returns the expected gRPC code, error reason and problem code.
    fn expected(self) -> (Code, ErrorReason, &'static str) {
        match self {
            Self::Bytes | Self::Inodes => (
                Code::ResourceExhausted,
                ErrorReason::StateDiskFull,
                "state.disk_full",
            ),
            Self::Writes => (
                Code::Unavailable,
                ErrorReason::StateDiskReadOnly,
                "state.disk_read_only",
            ),
        }
    }
}

/// Waits until the default pool has one warm container and starts none.
async fn wait_until_warm(server: &TestServer) {
    wait_until("the pool is warm", async || {
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

fn scope() -> pb::ArtifactScope {
    pb::ArtifactScope {
        app: "app".into(),
        user: "ada".into(),
        session: "1".into(),
    }
}

async fn save(client: &Client, bytes: usize) -> Result<pb::Artifact, Error> {
    let source = std::io::Cursor::new(vec![7; bytes]);
    client
        .save_artifact(SaveTarget::new("a.bin", scope()), source)
        .await
}

async fn publish(client: &Client) -> Result<pb::Skill, Error> {
    use pb::publish_skill_request::Payload;
    let message = |payload| pb::PublishSkillRequest {
        payload: Some(payload),
    };
    let header = pb::PublishSkillHeader {
        name: "skills/x".to_owned(),
        ..pb::PublishSkillHeader::default()
    };
    let messages = [
        message(Payload::Header(header)),
        message(Payload::Data(vec![7; 64 << 10].into())),
    ];
    let answer = client.skills().publish_skill(stream::iter(messages)).await;
    Ok(answer?.into_inner())
}

/// Checks that a call failed with the error of the shortage.
fn check_error<T: std::fmt::Debug>(what: &str, shortage: Shortage, answer: Result<T, Error>) {
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

/// Returns files that exist only while the daemon writes something.
fn temporary_files(dir: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    // A directory may vanish while its files are listed.
    for entry in ignore_absent(fs::read_dir(dir)).into_iter().flatten() {
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

/// Checks that all writing calls fail with the reason of the shortage, and that it is listed as a problem.
async fn check_failures(client: &Client, workspace: &str, shortage: Shortage) {
    // Labels make the metadata of this workspace larger than one memory page.
    let labels = (0..32).map(|number| (format!("{number:0128}"), "v".repeat(128)));
    let labelled = pb::CreateWorkspaceRequest {
        labels: labels.collect(),
        ..Default::default()
    };
    for request in [pb::CreateWorkspaceRequest::default(), labelled] {
        for _ in 0..5 {
            let claimed = client.create_workspace(request.clone());
            check_error("a claim", shortage, claimed.await);
        }
    }
    let request = pb::RenewWorkspaceRequest {
        name: workspace.to_owned(),
        ..Default::default()
    };
    let renewed = client.workspaces().renew_workspace(request).await;
    check_error("a renewal", shortage, renewed.map_err(Error::from));
    check_error(
        "staging",
        shortage,
        client.stage_skills(workspace, &["one"]).await,
    );
    for bytes in [10, 3 << 20] {
        check_error("saving an artifact", shortage, save(client, bytes).await);
    }
    check_error("publishing", shortage, publish(client).await);
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
    // A slot that is being created or removed has no metadata file or an empty one.
    let texts = files.filter_map(|file| fs::read_to_string(file).ok());
    for text in texts.filter(|text| !text.is_empty()) {
        let parsed = serde_json::from_str::<serde_json::Value>(&text);
        assert!(parsed.is_ok(), "{parsed:?} in {text:?}");
    }
}

/// Runs a daemon through a shortage and checks errors, recovery and clean-up.
async fn check_shortage(shortage: Shortage) {
    if !nix::unistd::geteuid().is_root() {
        // Mounting a disk requires root.
        return;
    }
    let mut mounted = None;
    let skills = [("one", "name: one\ndescription: d")];
    let toml = "engine.reconcile_interval = \"100ms\"\n";
    let server = TestServer::start_after(toml, &skills, |config| {
        mounted = Some(Tmpfs::mount(&config.state_dir));
    })
    .await;
    let disk = mounted.expect("mounted");
    let client = server.client.clone().with_retry(RetryPolicy::none());
    let workspace = server.workspace().await;
    wait_until_warm(&server).await;
    let containers = server.engine.container_ids();
    assert_eq!(state_problems(&client).await, []);

    shortage.begin(&disk);
    check_failures(&client, &workspace, shortage).await;
    check_metadata(&disk.0);
    wait_until("the warm container is given back", async || {
        let pool = client.get_pool("default").await.expect("pool");
        (pool.warm == 1).then_some(())
    })
    .await;
    wait_until("boots that failed are cleaned up", async || {
        (server.engine.container_ids() == containers).then_some(())
    })
    .await;
    let listed = pb::ListExecsRequest {
        parent: workspace.clone(),
        ..Default::default()
    };
    client.list_execs(listed).await.expect("it goes on");

    shortage.end(&disk);
    assert_eq!(state_problems(&client).await, [], "the problem is gone");
    let claimed = client.create_workspace(pb::CreateWorkspaceRequest::default());
    claimed.await.expect("claimed");
    client
        .stage_skills(&workspace, &["one"])
        .await
        .expect("staged");
    save(&client, 3 << 20).await.expect("saved");
    let now = server.engine.container_ids();
    let kept = containers.iter().all(|id| now.contains(id));
    assert!(kept, "a container was lost: {containers:?}, {now:?}");
    wait_until_warm(&server).await;
    wait_until("what was left is gone", async || {
        let slots = fs::read_dir(disk.0.join("slots")).expect("slots").count();
        (slots == 3 && temporary_files(&disk.0).is_empty()).then_some(())
    })
    .await;
    let stopped = server.shut_down().await;
    drop(disk);
    drop(stopped);
}

#[tokio::test(flavor = "multi_thread")]
async fn full_state_disk_is_reported_and_costs_no_warm_container() {
    check_shortage(Shortage::Bytes).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lack_of_inodes_is_reported_and_costs_no_warm_container() {
    check_shortage(Shortage::Inodes).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn read_only_state_disk_is_reported_and_costs_no_warm_container() {
    check_shortage(Shortage::Writes).await;
}

/// Publishes a skill from a folder.
async fn publish_folder(client: &Client) {
    let folder = tempfile::tempdir().expect("directory");
    let front = "---\nname: two\ndescription: d\n---\n";
    fs::write(folder.path().join("SKILL.md"), front).expect("write");
    let archive = SkillArchive::pack(folder.path(), PackLimits::default()).expect("packed");
    let progress = TransferProgress::new(|_, _| {});
    let published = client.publish_skill("two", &archive, progress).await;
    published.expect("published");
}

/// Restarts a daemon on a disk with a shortage. It serves what exists, and goes on when the shortage ends.
async fn check_start(shortage: Shortage) {
    if !nix::unistd::geteuid().is_root() {
        // Mounting a disk requires root.
        return;
    }
    let mut mounted = None;
    let skills = [("one", "name: one\ndescription: d")];
    let run = tempfile::tempdir().expect("directory");
    // The socket is beside the state directory, as in /run. A further container would take what becomes free.
    let toml = format!(
        "listen = \"unix:{}\"\npools.default.max = 1\n",
        run.path().join("skilld.sock").display()
    );
    let server = TestServer::start_after(&toml, &skills, |config| {
        mounted = Some(Tmpfs::mount(&config.state_dir));
    })
    .await;
    let disk = mounted.expect("mounted");
    let workspace = server.workspace().await;
    save(&server.client, 3 << 20).await.expect("saved");
    publish_folder(&server.client).await;

    let server = server.restart(|_| shortage.begin(&disk)).await;
    let client = server.client.clone().with_retry(RetryPolicy::none());
    let found = server.get_workspace(&workspace).await;
    assert_eq!(found.state(), pb::WorkspaceState::Ready);
    let request = pb::LoadArtifactRequest {
        name: "a.bin".to_owned(),
        scope: Some(scope()),
        version: None,
    };
    let mut reader = client.load_artifact(request).await.expect("it exists");
    let mut loaded = 0;
    while let Some(piece) = reader.next().await.expect("whole") {
        loaded += piece.len();
    }
    assert_eq!(loaded, 3 << 20);
    check_error("saving", shortage, save(&client, 3 << 20).await);
    match shortage {
        Shortage::Bytes | Shortage::Inodes => delete_skill_and_artifact(&client).await,
        Shortage::Writes => shortage.end(&disk),
    }
    save(&client, 2 << 20).await.expect("there is room");
    wait_until("the guest has connected again", async || {
        let listed = pb::ListExecsRequest {
            parent: workspace.clone(),
            ..Default::default()
        };
        client.list_execs(listed).await.ok()
    })
    .await;
    let stopped = server.shut_down().await;
    drop(disk);
    drop(stopped);
}

/// Makes room on a full disk.
async fn delete_skill_and_artifact(client: &Client) {
    let request = pb::DeleteSkillRequest {
        name: "skills/two".to_owned(),
        allow_missing: false,
    };
    let deleted = client.skills().delete_skill(request).await;
    deleted.expect("the skill is deleted");
    let request = pb::DeleteArtifactRequest {
        name: "a.bin".to_owned(),
        scope: Some(scope()),
        ..Default::default()
    };
    let deleted = client.delete_artifact(request).await;
    deleted.expect("the artifact is deleted");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_daemon_starts_on_a_full_state_disk_and_makes_room() {
    check_start(Shortage::Bytes).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_daemon_starts_without_free_inodes_and_makes_room() {
    check_start(Shortage::Inodes).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_daemon_starts_on_a_read_only_state_disk() {
    check_start(Shortage::Writes).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn metadata_half_written_at_a_crash_is_repaired_at_the_start() {
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
    wait_until("the file is whole", async || {
        (fs::read_to_string(&file).expect("text") == whole).then_some(())
    })
    .await;
    assert!(server.stop().await);
}
