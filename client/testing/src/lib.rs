//! Server with the API's rules and no containers, for tests of clients. The words of a command decide what it prints,
//! and the test decides what a workspace has. Connections break where the test says; `calls` records, refuses, holds and
//! breaks calls.

#![expect(
    missing_docs,
    missing_debug_implementations,
    reason = "test helpers that nobody prints"
)]

use std::collections::{BTreeMap, HashMap, VecDeque};
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
use tonic_health::pb::health_server::HealthServer;
use tonic_health::server::{HealthReporter, HealthService};
use tonic_types::{ErrorDetails, StatusExt};

mod access;
mod artifacts;
mod call_body;
mod calls;
pub mod collection_messages;
mod execs;
mod files;
pub mod live;
pub mod mcp;
mod program;
mod proxy;
mod skill_service;
pub mod skills;
mod whole_runs;
mod workspaces;

pub use calls::{CallFaults, CallService, EVENTS, STARTS};
pub use program::PRINTED;

/// Deadline of everything that usually takes less than a second. A busy machine pauses for seconds.
pub const DEADLINE: Duration = Duration::from_secs(60);

/// State of the fake daemon that tests read and change.
#[derive(Default)]
pub struct State {
    pub workspaces: BTreeMap<String, v1::Workspace>,
    pub execs: BTreeMap<String, FakeExec>,
    /// `true` keeps a workspace that a run ends in the state CLOSING until a call deletes it.
    pub keeps_closing: bool,
    /// Number of programs that were started.
    pub starts: u32,
    /// Faults of the next writes to stdin; empty if all succeed.
    pub faults: VecDeque<live::Fault>,
    /// Start time that every exec reports.
    pub start_time: Option<prost_types::Timestamp>,
    /// Bytes of staged files by path.
    pub staged: BTreeMap<String, Vec<u8>>,
    /// Entries that every StageFiles leaves out.
    pub stage_skips: Vec<v1::SkippedFile>,
    /// Permission bits of files of `staged`; the others have 0644.
    pub modes: BTreeMap<String, u32>,
    /// Modification times of files of `staged`, in seconds since the epoch; the others are the oldest.
    pub modified: BTreeMap<String, i64>,
    /// Maximum timeout of a command in seconds; `None` for any.
    pub timeout_max: Option<i64>,
    /// Skills that exist, the versions of each from the highest to the lowest; if there are none, every name finds a
    /// skill without files.
    pub kits: Vec<skills::Kit>,
    /// Problems of every staged skill.
    pub stage_problems: Vec<v1::Problem>,
    /// Messages of every collection. A run that collects ends with a summary also if none is among them.
    pub collected: Vec<v1::CollectOutputsResponse>,
    /// Specification of the last collection; `None` before the first one.
    pub collect_spec: Option<v1::CollectSpec>,
    /// Newest version and bytes of each artifact.
    pub artifacts: BTreeMap<String, (i64, Vec<u8>)>,
}

/// Exec of the fake daemon.
#[derive(Clone)]
pub struct FakeExec {
    pub spec: v1::ExecSpec,
    pub killed: watch::Sender<bool>,
    /// Input of the execs whose output depends on it.
    pub input: watch::Sender<live::Input>,
    /// Number of open streams.
    pub readers: watch::Sender<u32>,
}

/// Fake daemon, which ends when this value is dropped.
pub struct Fake {
    pub state: FakeServices,
    /// Record and faults of its calls.
    pub calls: CallFaults,
    pub dir: TempDir,
    /// Health that the server reports, at first SERVING.
    pub health: HealthReporter,
    tasks: JoinSet<()>,
    /// Endpoint of the proxy that clients connect to; `None` without a proxy.
    front: Option<String>,
}

#[derive(Clone, Default)]
pub struct FakeServices {
    state: Arc<Mutex<State>>,
    /// Counts streams of StageFiles that broke.
    pub aborted: Arc<watch::Sender<u32>>,
}

impl FakeServices {
    pub fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().expect("no test panics with it")
    }
}

impl Fake {
    pub fn start() -> Self {
        let dir = tempfile::tempdir().expect("a directory");
        let listener = UnixListener::bind(dir.path().join("s")).expect("a socket");
        let state = FakeServices::default();
        let calls = CallFaults::default();
        let health = HealthReporter::new();
        let server = tonic::transport::Server::builder()
            .layer(calls.clone())
            .add_service(HealthServer::new(HealthService::from_health_reporter(
                health.clone(),
            )))
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
            .add_service(v1::access_service_server::AccessServiceServer::new(
                state.clone(),
            ))
            .add_service(v1::tenant_service_server::TenantServiceServer::new(
                state.clone(),
            ))
            .serve_with_incoming(UnixListenerStream::new(listener));
        let mut tasks = JoinSet::new();
        tasks.spawn(async move { server.await.expect("serves") });
        Self {
            state,
            calls,
            dir,
            health,
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

    /// Returns a client that repeats calls after short waits.
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

    /// Answers collections with these messages from now on.
    pub fn answer_collections(&self, messages: Vec<v1::CollectOutputsResponse>) {
        self.state.lock().collected = messages;
    }

    /// Returns what the last collection was asked for.
    pub fn collect_spec(&self) -> v1::CollectSpec {
        let asked = self.state.lock().collect_spec.clone();
        asked.expect("was asked")
    }

    /// Returns the requests to stage skills: those of StageSkills, then those of runs.
    pub fn staged_skills(&self) -> Vec<v1::StageSkillsRequest> {
        let alone = self.calls.requests("StageSkills").into_iter();
        let of_runs = self.runs().into_iter().filter(|run| !run.skills.is_empty());
        let of_runs = of_runs.map(|run| v1::StageSkillsRequest {
            workspace: run.parent,
            skills: run.skills,
            writable: run.writable_skills,
        });
        alone.chain(of_runs).collect()
    }

    /// Returns the requests to stage inputs: those of StageInputs, then those of runs.
    pub fn staged_inputs(&self) -> Vec<v1::StageInputsRequest> {
        let alone = self.calls.requests("StageInputs").into_iter();
        let of_runs = self.runs().into_iter().filter(|run| !run.inputs.is_empty());
        let of_runs = of_runs.map(|run| v1::StageInputsRequest {
            workspace: run.parent,
            inputs: run.inputs,
            scope: run.scope,
        });
        alone.chain(of_runs).collect()
    }

    /// Returns the requests to run a command.
    pub fn runs(&self) -> Vec<v1::RunExecRequest> {
        self.calls.requests("RunExec")
    }

    /// Returns the exec with this id in the workspace `w`.
    pub fn exec(&self, id: &str) -> FakeExec {
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

/// Returns the default retry policy with shorter waits.
pub fn hasty() -> RetryPolicy {
    RetryPolicy {
        backoff_first: Duration::from_millis(1),
        ..RetryPolicy::default()
    }
}

/// Returns an error status as skilld makes it.
pub fn refusal(code: Code, reason: &str, metadata: &[(&str, &str)]) -> Status {
    let details = error_details(reason, metadata);
    let message = format!("{} happened", reason.to_lowercase());
    Status::with_error_details(code, message, details)
}

/// Returns the error details of a reason of skilld.
pub(crate) fn error_details(reason: &str, metadata: &[(&str, &str)]) -> ErrorDetails {
    let metadata: HashMap<_, _> = metadata
        .iter()
        .map(|(key, value)| ((*key).to_owned(), (*value).to_owned()))
        .collect();
    ErrorDetails::with_error_info(reason, "skilld.dev", metadata)
}

/// Returns the daemon's status for wrong fields.
pub fn invalid(violations: &[(&str, &str)]) -> Status {
    let mut details = error_details("INVALID_REQUEST", &[]);
    for (field, description) in violations {
        details.add_bad_request_violation(*field, *description);
    }
    Status::with_error_details(Code::InvalidArgument, "wrong fields", details)
}

pub fn unimplemented<T>() -> Result<T, Status> {
    Err(refusal(Code::Unimplemented, "NOT_IMPLEMENTED", &[]))
}

/// Returns pseudo-random bytes, so that misplaced ones are noticed.
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
