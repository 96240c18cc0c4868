//! The daemon's side of the guest's socket, and helpers that most tests use.

use std::path::{Path, PathBuf};
use std::process::{Child, Command};
use std::time::{Duration, Instant};

use hyper_util::rt::TokioIo;
use skilld_proto::guest::v1::guest_service_client::GuestServiceClient;
use skilld_proto::guest::{GENERATION, v1 as wire};
use skilld_proto::v1;
use skilld_proto::v1::exec_event::Event;
use skilld_proto::v1::output_event::Content;
use skilld_proto::{Outcome, count_from_int64};
use tempfile::TempDir;
use tokio::net::{UnixListener, UnixStream};
use tonic::transport::{Channel, Endpoint};
use tonic::{Status, Streaming};
use tonic_types::StatusExt;

pub(crate) type Client = GuestServiceClient<Channel>;

/// Deadline of everything that usually takes less than a second. A busy machine pauses for seconds.
pub(crate) const DEADLINE: Duration = Duration::from_secs(60);

/// Shell text that waits until the command's supervisor sleeps, or is gone. It sleeps once it has reported the start;
/// killed earlier, it loses the command.
pub(crate) const STARTED: &str = "until { read -r pid name state rest < /proc/$PPID/stat && [ $state = S ]; } \
     || [ ! -e /proc/$PPID ]; do :; done; ";

/// Flag in `/proc/PID/stat` of a process that exits (include/linux/sched.h).
const PF_EXITING: u32 = 0x4;

const MESSAGE_MAX: usize = 4 * 1024 * 1024;

/// A guest process and the daemon's end of its socket.
pub(crate) struct Guest {
    pub(crate) client: Client,
    pub(crate) child: Child,
    listener: UnixListener,
    place: TempDir,
    settings: wire::ConfigureRequest,
}

/// All events of one stream, joined.
#[derive(Debug, Default)]
pub(crate) struct SeenEvents {
    pub(crate) out: Vec<u8>,
    pub(crate) err: Vec<u8>,
    pub(crate) text: String,
    pub(crate) gaps: Vec<(u64, u64)>,
    pub(crate) started: Option<v1::StartedEvent>,
    pub(crate) result: Option<v1::ExecResult>,
    pub(crate) total: Option<v1::StreamOffsets>,
    pub(crate) ended: Option<v1::EndedProcesses>,
    pub(crate) heartbeats: usize,
    pub(crate) seqs: Vec<i64>,
}

impl Guest {
    /// Starts a guest, connects to it and configures it.
    pub(crate) async fn start() -> Self {
        Self::configured(configuration()).await
    }

    /// Starts a guest through another program, which gets the guest and its arguments as arguments.
    pub(crate) async fn launched(by: &[&str]) -> Self {
        let mut guest = Self::started(by).await;
        let configured = guest.client.configure(configuration()).await;
        configured.expect("configured");
        guest
    }

    pub(crate) async fn configured(settings: wire::ConfigureRequest) -> Self {
        let mut guest = Self::bare().await;
        guest.settings = settings.clone();
        guest.client.configure(settings).await.expect("configured");
        guest
    }

    /// Starts a guest and connects to it without configuring it.
    pub(crate) async fn bare() -> Self {
        Self::started(&[]).await
    }

    async fn started(by: &[&str]) -> Self {
        let place = tempfile::tempdir().expect("a directory");
        std::fs::create_dir(place.path().join("ws")).expect("a workspace");
        let socket = place.path().join("guest.sock");
        let listener = UnixListener::bind(&socket).expect("a socket");
        // Another build of it, for instance the static one that is shipped.
        let binary = std::env::var_os("SKILLD_TEST_GUEST")
            .unwrap_or_else(|| env!("CARGO_BIN_EXE_skilld-guest").into());
        let mut command = by.iter().map(std::ffi::OsString::from).chain([binary]);
        let program = command.next().expect("the guest at least");
        let child = Command::new(program)
            .args(command)
            .arg("--socket")
            .arg(&socket)
            .arg("--workspace")
            .arg(place.path().join("ws"))
            .env("SKILLD_NONCE", "00ff10")
            .spawn()
            .expect("the guest starts");
        let client = accept(&listener).await;
        Self {
            client,
            child,
            listener,
            place,
            settings: configuration(),
        }
    }

    /// Drops the connection, as a killed daemon does.
    pub(crate) fn disconnect(&mut self) {
        let unlinked = std::fs::remove_file(self.place.path().join("guest.sock"));
        drop(unlinked);
        // With its last channel the old connection ends.
        self.client =
            GuestServiceClient::new(Endpoint::from_static("http://nobody").connect_lazy());
    }

    /// Drops the connection and listens for the next one.
    fn listen_again(&mut self) {
        self.disconnect();
        let socket = self.place.path().join("guest.sock");
        self.listener = UnixListener::bind(socket).expect("a socket");
    }

    /// Drops the connection and accepts the next one, on which the caller speaks HTTP/2 itself.
    pub(crate) async fn reconnect_raw(&mut self) -> UnixStream {
        self.listen_again();
        let (stream, _) = self.listener.accept().await.expect("the guest connects");
        stream
    }

    /// Drops the connection and accepts the next one, as a restarted daemon does.
    pub(crate) async fn reconnect(&mut self) {
        self.listen_again();
        self.client = accept(&self.listener).await;
        // As a daemon does once it serves.
        let configured = self.client.configure(self.settings.clone()).await;
        configured.expect("configured");
    }

    pub(crate) fn workspace(&self) -> PathBuf {
        self.place.path().join("ws")
    }

    /// Builds a request that runs `argv` in the workspace.
    pub(crate) fn request(&self, id: &str, argv: &[&str]) -> wire::StartExecRequest {
        wire::StartExecRequest {
            exec_id: id.to_owned(),
            request_digest: format!("{id} {argv:?}").into_bytes().into(),
            spec: Some(v1::ExecSpec {
                on_full: v1::OutputFullPolicy::Block.into(),
                ..Default::default()
            }),
            argv: argv.iter().map(|arg| (*arg).to_owned()).collect(),
            cwd: self.workspace().display().to_string(),
            env: vec!["PATH=/usr/local/bin:/usr/bin:/bin".to_owned()],
            format: v1::OutputFormat::Bytes.into(),
        }
    }

    /// Runs a request to its end.
    pub(crate) async fn run(&self, request: wire::StartExecRequest) -> SeenEvents {
        let stream = self.client.clone().run_exec(request).await.expect("runs");
        SeenEvents::all(stream.into_inner())
            .await
            .expect("ends well")
    }

    /// Runs shell text to its end.
    pub(crate) async fn sh(&self, id: &str, text: &str) -> SeenEvents {
        self.run(self.request(id, &["bash", "-c", text])).await
    }

    pub(crate) async fn attach(&self, id: &str, stdout: u64) -> Streaming<v1::ExecEvent> {
        let request = wire::AttachExecRequest {
            exec_id: id.to_owned(),
            offsets: Some(v1::StreamOffsets::from_counts([stdout, 0])),
            ..Default::default()
        };
        let stream = self.client.clone().attach_exec(request).await;
        stream.expect("attached").into_inner()
    }
}

impl Drop for Guest {
    fn drop(&mut self) {
        let _gone = self.child.kill();
        let _reaped = self.child.wait();
    }
}

/// Runs rounds with longer and longer times, in milliseconds, until one returns `true`. A round returns `false` if its
/// time was over too early, because the machine was busy. Each round gets a name of its own.
pub(crate) async fn with_longer_times(mut round: impl AsyncFnMut(&str, u64) -> bool) {
    for (name, millis) in [("round-1", 500), ("round-2", 5_000), ("round-3", 60_000)] {
        if round(name, millis).await {
            return;
        }
    }
    panic!("a minute is too short");
}

/// Waits for a future; panics at the deadline.
pub(crate) async fn in_time<T>(what: &str, future: impl Future<Output = T>) -> T {
    let ended = tokio::time::timeout(DEADLINE, future).await;
    ended.unwrap_or_else(|_| panic!("never: {what}"))
}

async fn accept(listener: &UnixListener) -> Client {
    let (stream, _) = listener.accept().await.expect("the guest connects");
    let channel = channel(stream).await;
    let mut client = GuestServiceClient::new(channel)
        .max_decoding_message_size(MESSAGE_MAX)
        .max_encoding_message_size(MESSAGE_MAX);
    let hello = wire::HelloRequest {
        generation: GENERATION,
        daemon_version: "test".to_owned(),
    };
    let hello = client.hello(hello).await.expect("says hello").into_inner();
    assert_eq!(hello.generation, GENERATION);
    assert_eq!(&*hello.nonce, [0x00, 0xff, 0x10]);
    client
}

async fn channel(stream: UnixStream) -> Channel {
    let mut stream = Some(stream);
    Endpoint::from_static("http://guest")
        .initial_stream_window_size(2 * 1024 * 1024)
        .initial_connection_window_size(64 * 1024 * 1024)
        .connect_with_connector(tower::service_fn(move |_| {
            let connection = stream.take().map(TokioIo::new);
            std::future::ready(connection.ok_or_else(|| std::io::Error::other("closed")))
        }))
        .await
        .expect("a channel")
}

impl SeenEvents {
    /// Reads a stream to its end.
    pub(crate) async fn all(mut stream: Streaming<v1::ExecEvent>) -> Result<Self, Status> {
        let mut seen = Self::default();
        while let Some(event) = stream.message().await? {
            seen.take(event);
        }
        assert!(seen.total.is_some(), "a stream ends with Closed");
        assert!(seen.seqs.is_sorted(), "{:?}", seen.seqs);
        Ok(seen)
    }

    /// Takes the events of an open stream until a condition holds; panics at the deadline.
    pub(crate) async fn take_until(
        &mut self,
        stream: &mut Streaming<v1::ExecEvent>,
        what: &str,
        holds: impl Fn(&Self) -> bool,
    ) {
        let taking = async {
            while !holds(self) {
                let event = stream.message().await.expect("an event");
                self.take(event.expect("open"));
            }
        };
        let taken = tokio::time::timeout(DEADLINE, taking).await;
        assert!(taken.is_ok(), "never {what}: {:?}", self.stdout());
    }

    pub(crate) fn take(&mut self, event: v1::ExecEvent) {
        self.seqs.push(event.seq);
        match event.event.expect("an event") {
            Event::Started(started) => {
                assert!(self.started.replace(started).is_none());
            }
            Event::Output(output) => self.output(output),
            Event::Gap(gap) => self.gaps.push((
                count_from_int64(gap.start_offset),
                count_from_int64(gap.end_offset),
            )),
            Event::Heartbeat(_) => self.heartbeats += 1,
            Event::Workspace(_)
            | Event::Staged(_)
            | Event::File(_)
            | Event::FileData(_)
            | Event::FileEnd(_)
            | Event::Summary(_) => panic!("not an event of a guest"),
            Event::Exited(exited) => {
                assert!(self.result.is_none() && self.total.is_none());
                self.result = exited.result;
            }
            Event::Closed(closed) => {
                assert!(self.result.is_some() && self.total.is_none());
                self.total = closed.total;
                self.ended = closed.ended_processes;
            }
        }
    }

    fn output(&mut self, output: v1::OutputEvent) {
        let stream = output.stream();
        match output.content.expect("content") {
            Content::Data(data) => {
                assert!(!data.is_empty() && data.len() <= 64 * 1024);
                let to = match stream {
                    v1::OutputStream::Stdout => &mut self.out,
                    v1::OutputStream::Stderr => &mut self.err,
                    v1::OutputStream::Unspecified => panic!("no stream"),
                };
                if self.gaps.is_empty() {
                    assert_eq!(count_from_int64(output.offset), to.len() as u64);
                }
                to.extend_from_slice(&data);
            }
            Content::Text(text) => self.text.push_str(&text),
        }
    }

    pub(crate) fn outcome(&self) -> Outcome {
        let result = self.result.as_ref().expect("a result");
        result.outcome().expect("an outcome")
    }

    pub(crate) fn reason(&self) -> v1::ExitReason {
        self.result.as_ref().expect("a result").reason()
    }

    pub(crate) fn stdout(&self) -> String {
        String::from_utf8_lossy(&self.out).into_owned()
    }
}

/// Returns the default configuration of a daemon, with shorter graces.
pub(crate) fn configuration() -> wire::ConfigureRequest {
    wire::ConfigureRequest {
        workspace: "workspaces/test".to_owned(),
        execs_max: 64,
        leak_grace: duration(500),
        disconnect_grace: duration(500),
        kill_grace: duration(200),
        heartbeat: duration(15_000),
        retain_bytes_total: 1 << 30,
        retained_execs_max: 1000,
    }
}

pub(crate) fn duration(millis: u64) -> Option<prost_types::Duration> {
    prost_types::Duration::try_from(Duration::from_millis(millis)).ok()
}

/// Returns the reason in the ErrorInfo of a status.
pub(crate) fn reason(status: &Status) -> String {
    let info = status.get_details_error_info().expect("an ErrorInfo");
    assert_eq!(info.domain, "skilld.dev");
    info.reason
}

/// Waits until a condition of the outside world holds; panics at the deadline.
pub(crate) async fn until(what: &str, mut holds: impl FnMut() -> bool) {
    let begin = Instant::now();
    while !holds() {
        assert!(begin.elapsed() < DEADLINE, "never: {what}");
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
}

/// Returns the fields of `/proc/PID/stat` behind the program's name; `None` if there is no such process.
fn stat_fields(pid: &str) -> Option<String> {
    let stat = std::fs::read_to_string(Path::new("/proc").join(pid).join("stat")).ok()?;
    let (_, fields) = stat.rsplit_once(") ")?;
    Some(fields.to_owned())
}

/// Returns the state of a process as the kernel names it, such as `S` (sleeping) and `T` (stopped); `None` if there is
/// no such process.
pub(crate) fn process_state(pid: &str) -> Option<char> {
    stat_fields(pid)?.chars().next()
}

/// Returns `true` if a process exists and can still run: it is no zombie, and the kernel does not end it. A process
/// closes its streams before the kernel calls it a zombie, so a reader may see their end first.
pub(crate) fn alive(pid: &str) -> bool {
    stat_fields(pid).is_some_and(|fields| {
        let flags: u32 = fields
            .split_ascii_whitespace()
            .nth(6)
            .and_then(|flags| flags.parse().ok())
            .unwrap_or(0);
        !fields.starts_with('Z') && flags & PF_EXITING == 0
    })
}
