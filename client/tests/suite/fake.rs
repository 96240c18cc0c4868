//! A server with the API's rules and no containers: what a command prints is decided by its words, what a
//! workspace has by the test. Connections and streams break where the test says.

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
mod execs;
mod files;
pub(crate) mod live;
pub(crate) mod mcp;
mod others;
mod program;
mod proxy;
mod reset;
pub(crate) mod skills;

pub(crate) use program::PRINTED;

/// The state that tests look at and change.
#[derive(Default)]
pub(crate) struct State {
    pub(crate) workspaces: BTreeMap<String, v1::Workspace>,
    pub(crate) execs: BTreeMap<String, Running>,
    /// The workspace that is never made.
    pub(crate) create_hangs: Option<String>,
    /// How many programs were started.
    pub(crate) starts: u32,
    /// Answers of GetWorkspace, before it goes to work.
    pub(crate) refusals: VecDeque<Status>,
    pub(crate) get_workspace_calls: u32,
    /// How the next streams of events end; none means well.
    pub(crate) breaks: VecDeque<Break>,
    /// What RunExec and StartExec do as long as no KillExec has missed their exec.
    pub(crate) run_exec: RunExec,
    /// Offsets of each stream of events that was opened.
    pub(crate) opened_at: Vec<v1::StreamOffsets>,
    /// What becomes of the next writes to stdin; none means well.
    pub(crate) faults: VecDeque<live::Fault>,
    /// Offset and length of each write, and whether it was the last.
    pub(crate) writes: Vec<(Option<u64>, usize, bool)>,
    /// Lengths of the messages of the last StreamStdin.
    pub(crate) streamed: Vec<usize>,
    /// Answers of PollExec, before it goes to work.
    pub(crate) poll_refusals: VecDeque<Status>,
    /// What was asked for, each time.
    pub(crate) polls: Vec<v1::PollExecRequest>,
    /// Of every exec.
    pub(crate) start_time: Option<prost_types::Timestamp>,
    /// Grace of the last kill.
    pub(crate) grace: Option<prost_types::Duration>,
    /// What was staged: path to bytes.
    pub(crate) staged: BTreeMap<String, Vec<u8>>,
    /// When files of `staged` were written, in seconds since the epoch; the others are the oldest.
    pub(crate) modified: BTreeMap<String, i64>,
    /// What is listed besides.
    pub(crate) listed: Vec<v1::FileEntry>,
    pub(crate) collect: Vec<v1::CollectOutputsResponse>,
    /// Answers of CollectOutputs, before it goes to work.
    pub(crate) collect_refusals: VecDeque<Status>,
    /// Lists of files, of skills too, and of artifacts are pages without entries, each of which has a next one.
    pub(crate) pages_are_endless: bool,
    /// Scopes of ListArtifacts.
    pub(crate) artifact_scopes: Vec<v1::ArtifactScope>,
    /// Seconds that a command may take.
    pub(crate) timeout_max: Option<i64>,
    /// How the next collections end instead of with their summary; none means well.
    pub(crate) collect_breaks: VecDeque<Status>,
    /// What is collected does not end.
    pub(crate) collect_hangs: bool,
    pub(crate) skill_body: String,
    /// Skills with versions and files; without any, there is one that has none.
    pub(crate) kits: Vec<skills::Kit>,
    /// What was searched for.
    pub(crate) searches: Vec<v1::SearchSkillsRequest>,
    /// Requests of the skill service by name, and of StageSkills.
    pub(crate) asked: Vec<String>,
    /// Answers of RunExec and StartExec, before they go to work.
    pub(crate) run_refusals: VecDeque<Status>,
    /// Answers of ListSkills, before it goes to work.
    pub(crate) list_refusals: VecDeque<Status>,
    /// DeleteWorkspace does not end.
    pub(crate) deletes_hang: bool,
    /// Answers of PublishSkill, each after the bytes came.
    pub(crate) publish_refusals: VecDeque<Status>,
    /// Streams of PublishSkill that came: name, sha256 and bytes.
    pub(crate) published: Vec<(String, String, Vec<u8>)>,
    /// What was deleted.
    pub(crate) deleted: Vec<String>,
    /// Answer of GetProblems.
    pub(crate) problems: Vec<v1::Problem>,
    /// Of RefreshSkills.
    pub(crate) refreshed: v1::RefreshSkillsResponse,
    pub(crate) collect_spec: Option<v1::CollectSpec>,
    /// The skills that there are; none means one that each name finds.
    pub(crate) skills: Vec<v1::Skill>,
    /// Their files, by `name/path`.
    pub(crate) skill_files: BTreeMap<String, Vec<u8>>,
    /// Requests of StageInputs.
    pub(crate) inputs: Vec<v1::StageInputsRequest>,
    /// Requests of StageSkills.
    pub(crate) staged_skills: Vec<v1::StageSkillsRequest>,
    /// Newest version and bytes of each artifact.
    pub(crate) artifacts: BTreeMap<String, (i64, Vec<u8>)>,
    /// Every call, as `Service/Method`.
    pub(crate) calls: Vec<String>,
}

/// An exec of the fake.
#[derive(Clone)]
pub(crate) struct Running {
    pub(crate) spec: v1::ExecSpec,
    pub(crate) killed: watch::Sender<bool>,
    /// For those that live off it.
    pub(crate) input: watch::Sender<live::Input>,
    /// Its streams that are not at their end.
    pub(crate) readers: watch::Sender<u32>,
}

/// What becomes of a RunExec or StartExec.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
pub(crate) enum RunExec {
    #[default]
    Starts,
    /// It may be repeated.
    Refused,
    /// It starts after the first KillExec that missed it.
    Late,
}

/// After so many events a stream ends: with this status, or as if all were well.
pub(crate) struct Break {
    pub(crate) after: usize,
    pub(crate) status: Option<Status>,
}

/// The server; ends with this value.
pub(crate) struct Fake {
    pub(crate) state: Shared,
    pub(crate) dir: TempDir,
    tasks: JoinSet<()>,
    /// Where clients connect to, if not to the server itself.
    front: Option<String>,
}

#[derive(Clone, Default)]
pub(crate) struct Shared {
    state: Arc<Mutex<State>>,
    /// Counts streams of StageFiles that broke.
    pub(crate) aborted: Arc<watch::Sender<u32>>,
    /// Counts calls of RunExec and StartExec.
    pub(crate) run_calls: Arc<watch::Sender<u32>>,
    /// Counts calls of KillExec for an exec that was not there.
    pub(crate) missed_kills: Arc<watch::Sender<u32>>,
    /// Counts calls of GetSkill.
    pub(crate) got_skills: Arc<watch::Sender<u32>>,
    /// GetSkill waits as long as this is so.
    pub(crate) holds_skills: Arc<watch::Sender<bool>>,
    /// Counts calls of DeleteWorkspace.
    pub(crate) deletes: Arc<watch::Sender<u32>>,
}

impl Shared {
    pub(crate) fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().expect("no test panics with it")
    }

    fn called(&self, request: &tonic::codegen::http::Request<tonic::body::Body>) {
        let path = request.uri().path();
        let call = path.trim_start_matches("/skilld.v1.");
        self.lock().calls.push(call.to_owned());
    }
}

impl Fake {
    pub(crate) fn start() -> Self {
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

    pub(crate) fn endpoint(&self) -> String {
        let server = || format!("unix:{}", self.dir.path().join("s").display());
        self.front.clone().unwrap_or_else(server)
    }

    /// From here on clients connect in such a way that `end` ends their connections, too.
    pub(crate) fn mortal(mut self) -> Self {
        self.front = Some(self.breaking_endpoint(Vec::new()));
        self
    }

    /// A client that waits no longer than it must.
    pub(crate) async fn client(&self) -> Client {
        let client = Client::connect(&self.endpoint()).await.expect("connects");
        client.with_retry(hasty())
    }

    /// Another endpoint of the same server, whose connections break when they have carried so many bytes to
    /// the client: the first connection after the first number, and so on, the rest never.
    pub(crate) fn breaking_endpoint(&mut self, cuts: Vec<u64>) -> String {
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
    pub(crate) fn exec(&self, id: &str) -> Running {
        let name = format!("workspaces/w/execs/{id}");
        self.state
            .lock()
            .execs
            .get(&name)
            .expect("is there")
            .clone()
    }

    /// Nobody listens any more, and every connection breaks if it is `mortal`.
    pub(crate) fn end(&mut self) {
        self.tasks.abort_all();
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }
}

/// The usual bounds with shorter waits.
pub(crate) fn hasty() -> RetryPolicy {
    RetryPolicy {
        backoff_first: Duration::from_millis(1),
        ..RetryPolicy::default()
    }
}

/// A status as skilld makes it.
pub(crate) fn refusal(code: Code, reason: &str, metadata: &[(&str, &str)]) -> Status {
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

/// What the daemon says of fields that are wrong.
pub(crate) fn invalid(violations: &[(&str, &str)]) -> Status {
    let mut details = ErrorDetails::new();
    let none: [(String, String); 0] = [];
    details.set_error_info("INVALID_REQUEST", "skilld.dev", none);
    for (field, description) in violations {
        details.add_bad_request_violation(*field, *description);
    }
    Status::with_error_details(Code::InvalidArgument, "wrong fields", details)
}

pub(crate) fn unimplemented<T>() -> Result<T, Status> {
    Err(refusal(Code::Unimplemented, "NOT_IMPLEMENTED", &[]))
}

/// Bytes that differ everywhere.
pub(crate) fn noise(len: usize) -> Bytes {
    let mut x: u32 = 0x9e37_79b9;
    let bytes = std::iter::repeat_with(|| {
        x ^= x << 13;
        x ^= x >> 17;
        x ^= x << 5;
        x.to_le_bytes()[0]
    });
    bytes.take(len).collect()
}
