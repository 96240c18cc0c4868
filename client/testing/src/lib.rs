//! A server with the API's rules and no containers: what a command prints is decided by its words, what a
//! workspace has by the test. Connections and streams break where the test says.

#![expect(
    missing_docs,
    missing_debug_implementations,
    reason = "test helpers that nobody prints"
)]

use std::collections::{BTreeMap, VecDeque};
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use bytes::Bytes;
use skilld_client::{Client, RetryPolicy, v1};
use tempfile::TempDir;
use tokio::net::UnixListener;
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio_stream::wrappers::UnixListenerStream;
use tonic::{Code, Status};
use tonic_types::{ErrorDetails, StatusExt};

mod artifacts;
mod catalogue;
pub mod collected;
mod execs;
mod files;
pub mod live;
pub mod mcp;
mod others;
mod program;
mod proxy;
mod reset;
pub mod skills;

pub use program::PRINTED;

/// The state that tests look at and change.
#[derive(Default)]
pub struct State {
    pub workspaces: BTreeMap<String, v1::Workspace>,
    pub execs: BTreeMap<String, Running>,
    /// The workspace that is never made.
    pub create_hangs: Option<String>,
    /// Number of started programs.
    pub starts: u32,
    /// Answers of GetWorkspace, before it goes to work.
    pub refusals: VecDeque<Status>,
    pub get_workspace_calls: u32,
    /// Breaks of the next streams of events; empty for none.
    pub breaks: VecDeque<Break>,
    /// Behaviour of RunExec and StartExec until a KillExec has missed their exec.
    pub run_exec: RunExec,
    /// Offsets of each stream of events that was opened.
    pub opened_at: Vec<v1::StreamOffsets>,
    /// Faults of the next writes to stdin; empty for none.
    pub faults: VecDeque<live::Fault>,
    /// Offset and length of each write, and whether it was the last.
    pub writes: Vec<(Option<u64>, usize, bool)>,
    /// Lengths of the messages of the last StreamStdin.
    pub streamed: Vec<usize>,
    /// Answers of PollExec, before it goes to work.
    pub poll_refusals: VecDeque<Status>,
    /// Requests of PollExec.
    pub polls: Vec<v1::PollExecRequest>,
    /// Start time of every exec.
    pub start_time: Option<prost_types::Timestamp>,
    /// Grace of the last kill.
    pub grace: Option<prost_types::Duration>,
    /// Staged files: path to bytes.
    pub staged: BTreeMap<String, Vec<u8>>,
    /// Modification times of files of `staged`, in seconds since the epoch; the others are the oldest.
    pub modified: BTreeMap<String, i64>,
    /// Further entries of listings.
    pub listed: Vec<v1::FileEntry>,
    pub collect: Vec<v1::CollectOutputsResponse>,
    /// Answers of CollectOutputs, before it goes to work.
    pub collect_refusals: VecDeque<Status>,
    /// Lists of files, of skills too, and of artifacts are pages without entries, each of which has a next one.
    pub pages_are_endless: bool,
    /// Scopes of ListArtifacts.
    pub artifact_scopes: Vec<v1::ArtifactScope>,
    /// Seconds that a command may take.
    pub timeout_max: Option<i64>,
    /// Errors that end the next collections instead of their summary; empty for none.
    pub collect_breaks: VecDeque<Status>,
    /// `true` if collections never end.
    pub collect_hangs: bool,
    pub skill_body: String,
    /// Skills with versions and files; without any, there is one that has none.
    pub kits: Vec<skills::Kit>,
    /// Requests of SearchSkills.
    pub searches: Vec<v1::SearchSkillsRequest>,
    /// Requests of the skill service by name, and of StageSkills.
    pub asked: Vec<String>,
    /// Answers of RunExec and StartExec, before they go to work.
    pub run_refusals: VecDeque<Status>,
    /// Answers of ListSkills, before it goes to work.
    pub list_refusals: VecDeque<Status>,
    /// DeleteWorkspace does not end.
    pub deletes_hang: bool,
    /// Answers of PublishSkill, each after the bytes came.
    pub publish_refusals: VecDeque<Status>,
    /// Streams of PublishSkill that came: name, sha256 and bytes.
    pub published: Vec<(String, String, Vec<u8>)>,
    /// Names of deleted skills.
    pub deleted: Vec<String>,
    /// Answer of GetProblems.
    pub problems: Vec<v1::Problem>,
    /// Answer of RefreshSkills.
    pub refreshed: v1::RefreshSkillsResponse,
    pub collect_spec: Option<v1::CollectSpec>,
    /// The skills that there are; none means one that each name finds.
    pub skills: Vec<v1::Skill>,
    /// Their files, by `name/path`.
    pub skill_files: BTreeMap<String, Vec<u8>>,
    /// Requests of StageInputs.
    pub inputs: Vec<v1::StageInputsRequest>,
    /// Requests of StageSkills.
    pub staged_skills: Vec<v1::StageSkillsRequest>,
    /// Newest version and bytes of each artifact.
    pub artifacts: BTreeMap<String, (i64, Vec<u8>)>,
    /// Calls in their order, as `Service/Method`.
    pub calls: Vec<String>,
}

/// An exec of the fake.
#[derive(Clone)]
pub struct Running {
    pub spec: v1::ExecSpec,
    pub killed: watch::Sender<bool>,
    /// Input of execs that live off it.
    pub input: watch::Sender<live::Input>,
    /// Number of open streams.
    pub readers: watch::Sender<u32>,
}

/// Behaviour of a RunExec or StartExec.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
pub enum RunExec {
    #[default]
    Starts,
    /// Refuses the call, which may be repeated.
    Refused,
    /// Starts the exec after the first KillExec that missed it.
    Late,
}

/// Break of a stream after a number of events: with a status, or as if the stream ended well.
pub struct Break {
    pub after: usize,
    pub status: Option<Status>,
}

/// The server; ends with this value.
pub struct Fake {
    pub state: Shared,
    pub dir: TempDir,
    tasks: JoinSet<()>,
    /// Endpoint of the clients if it is not the server itself.
    front: Option<String>,
}

#[derive(Clone, Default)]
pub struct Shared {
    state: Arc<Mutex<State>>,
    /// Counts streams of StageFiles that broke.
    pub aborted: Arc<watch::Sender<u32>>,
    /// Counts calls of RunExec and StartExec.
    pub run_calls: Arc<watch::Sender<u32>>,
    /// Counts calls of KillExec for an exec that was not there.
    pub missed_kills: Arc<watch::Sender<u32>>,
    /// Counts calls of GetSkill.
    pub got_skills: Arc<watch::Sender<u32>>,
    /// GetSkill waits as long as this is so.
    pub holds_skills: Arc<watch::Sender<bool>>,
    /// Counts calls of DeleteWorkspace.
    pub deletes: Arc<watch::Sender<u32>>,
}

impl Shared {
    pub fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().expect("no test panics with it")
    }

    fn called(&self, request: &tonic::codegen::http::Request<tonic::body::Body>) {
        let path = request.uri().path();
        let call = path.trim_start_matches("/skilld.v1.");
        self.lock().calls.push(call.to_owned());
    }
}

impl Fake {
    pub fn start() -> Self {
        let dir = tempfile::tempdir().expect("a directory");
        let listener = UnixListener::bind(dir.path().join("s")).expect("a socket");
        let state = Shared::default();
        let called = state.clone();
        let server = tonic::transport::Server::builder()
            .layer(tower::util::MapRequestLayer::new(move |request| {
                called.called(&request);
                reset::seen(request)
            }))
            .add_service(v1::artifact_service_server::ArtifactServiceServer::new(
                state.clone(),
            ))
            .add_service(v1::workspace_service_server::WorkspaceServiceServer::new(
                state.clone(),
            ))
            .add_service(v1::exec_service_server::ExecServiceServer::new(
                state.clone(),
            ))
            .add_service(v1::file_service_server::FileServiceServer::new(
                state.clone(),
            ))
            .add_service(v1::skill_service_server::SkillServiceServer::new(
                state.clone(),
            ))
            .add_service(v1::server_service_server::ServerServiceServer::new(
                state.clone(),
            ))
            .add_service(v1::admin_service_server::AdminServiceServer::new(
                state.clone(),
            ))
            .serve_with_incoming(UnixListenerStream::new(listener));
        let mut tasks = JoinSet::new();
        tasks.spawn(async move { server.await.expect("serves") });
        Self {
            state,
            dir,
            tasks,
            front: None,
        }
    }

    pub fn endpoint(&self) -> String {
        let server = || format!("unix:{}", self.dir.path().join("s").display());
        self.front.clone().unwrap_or_else(server)
    }

    /// Returns the server behind a proxy, so that `end` also breaks the connections of clients that connect from now
    /// on.
    pub fn mortal(mut self) -> Self {
        self.front = Some(self.breaking_endpoint(Vec::new()));
        self
    }

    /// A client that waits no longer than it must.
    pub async fn client(&self) -> Client {
        let client = Client::connect(&self.endpoint()).await.expect("connects");
        client.with_retry(hasty())
    }

    /// Returns another endpoint of the server. Its connections break when they have carried that many bytes to the
    /// client: the first connection after the first number, and so on, the rest never.
    pub fn breaking_endpoint(&mut self, cuts: Vec<u64>) -> String {
        let path = self.dir.path().join("p");
        proxy::start(
            &mut self.tasks,
            self.dir.path().join("s"),
            path.clone(),
            cuts,
        );
        format!("unix:{}", path.display())
    }

    /// The exec with this id in the workspace `w`.
    pub fn exec(&self, id: &str) -> Running {
        let name = format!("workspaces/w/execs/{id}");
        self.state
            .lock()
            .execs
            .get(&name)
            .expect("is there")
            .clone()
    }

    /// Stops the server; every connection breaks if it is `mortal`.
    pub fn end(&mut self) {
        self.tasks.abort_all();
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }
}

/// The usual bounds with shorter waits.
pub fn hasty() -> RetryPolicy {
    RetryPolicy {
        backoff_first: Duration::from_millis(1),
        ..RetryPolicy::default()
    }
}

/// A status as skilld makes it.
pub fn refusal(code: Code, reason: &str, metadata: &[(&str, &str)]) -> Status {
    let metadata: Vec<(String, String)> = metadata
        .iter()
        .map(|(key, value)| ((*key).to_owned(), (*value).to_owned()))
        .collect();
    let mut details = ErrorDetails::new();
    details.set_error_info(
        reason,
        "skilld.dev",
        metadata
            .into_iter()
            .collect::<std::collections::HashMap<_, _>>(),
    );
    let message = format!("{} happened", reason.to_lowercase());
    Status::with_error_details(code, message, details)
}

/// Returns the daemon's status for wrong fields.
pub fn invalid(violations: &[(&str, &str)]) -> Status {
    let mut details = ErrorDetails::new();
    let none: [(String, String); 0] = [];
    details.set_error_info("INVALID_REQUEST", "skilld.dev", none);
    for (field, description) in violations {
        details.add_bad_request_violation(*field, *description);
    }
    Status::with_error_details(Code::InvalidArgument, "wrong fields", details)
}

pub fn unimplemented<T>() -> Result<T, Status> {
    Err(refusal(Code::Unimplemented, "NOT_IMPLEMENTED", &[]))
}

/// Bytes that differ everywhere.
pub fn noise(len: usize) -> Bytes {
    let mut x: u32 = 0x9e37_79b9;
    let bytes = std::iter::repeat_with(|| {
        x ^= x << 13;
        x ^= x >> 17;
        x ^= x << 5;
        x.to_le_bytes()[0]
    });
    bytes.take(len).collect()
}
