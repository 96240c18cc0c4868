//! Functions of the fuzz targets in `fuzz_targets/`: they feed hostile bytes to the guest's decoders and request
//! handlers and check what must hold for any input. The shipped guest does not contain this module. The tests below run
//! the same functions on the corpus, on changed corpus files, and on random bytes.
//!
//! No function starts a process, because a fuzzed request would run its command on this machine.

#![expect(
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "a panic is how a target fails"
)]

use std::path::Path;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::{BufMut, BytesMut};
use hyper::body::{Body, Frame};
use prost_types::Duration as Span;
use skilld_proto::guest::v1 as wire;
use skilld_proto::guest::v1::guest_service_server::GuestServiceServer;
use skilld_proto::v1::{self, StageFormat};
use tempfile::TempDir;
use tonic::codegen::{Bytes, Service as _, http};
use tonic::{Code, Status};

use crate::file_collection::glob::GlobSet;
use crate::guest::{Guest, build_launch};
use crate::output_window::{OutputBudget, OutputWindow};
use crate::service::GuestRpcService;
use crate::supervisor::SupervisorPool;
use crate::supervisor::protocol::{SupervisorOrder, SupervisorReport, SupervisorRequest};

/// RPCs on files and on execs that do not exist. WarmUp, Shutdown and Configure are left out, because they start or
/// end processes. A limit of 0 refuses RunExec and StartExec after they are decoded.
const METHODS: [&str; 17] = [
    "Hello",
    "RunExec",
    "StartExec",
    "AttachExec",
    "PollExec",
    "WriteStdin",
    "StreamStdin",
    "ResizeTerminal",
    "DeleteExec",
    "SignalExec",
    "KillExec",
    "GetExec",
    "ListExecs",
    "PutFiles",
    "ReadFile",
    "ListFiles",
    "Collect",
];
const PUT_FILES: usize = 13;
/// Separator between two messages of one request.
const SEAM: [u8; 2] = [0xff, 0xfe];
/// Time limit for an answer.
const ANSWER_MAX: Duration = Duration::from_secs(10);
const ENTRIES_MAX: u64 = 64;
const BYTES_MAX: u64 = 1 << 20;
/// File beside the workspace that must not change.
const CANARY: &str = "canary";

thread_local! {
    static PLACE: FuzzGuest = FuzzGuest::new();
}

/// Guest without processes, in a directory of its own.
struct FuzzGuest {
    runtime: tokio::runtime::Runtime,
    guest: Arc<Guest>,
    directory: TempDir,
}

/// Request body in one piece.
struct WholeBody(Option<Bytes>);

impl Body for WholeBody {
    type Data = Bytes;
    type Error = Status;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        _context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
        Poll::Ready(self.0.take().map(|data| Ok(Frame::data(data))))
    }
}

impl FuzzGuest {
    fn new() -> Self {
        let directory = tempfile::tempdir().expect("a directory");
        let workspace = directory.path().join("ws");
        std::fs::create_dir(&workspace).expect("a workspace");
        std::fs::write(directory.path().join(CANARY), CANARY).expect("a canary");
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .expect("a runtime");
        let guest = Guest::new(&workspace, Bytes::new(), SupervisorPool::new()).expect("a guest");
        let settings = wire::ConfigureRequest {
            workspace: "workspaces/fuzz".to_owned(),
            execs_max: 0,
            retain_bytes_total: 1 << 20,
            retained_execs_max: 1,
            heartbeat: Some(Span {
                seconds: 1,
                nanos: 0,
            }),
            ..Default::default()
        };
        guest.configure(&settings).expect("configured");
        let place = Self {
            runtime,
            guest,
            directory,
        };
        place.fill();
        place
    }

    /// Creates a few files to find.
    fn fill(&self) {
        let work = self.directory.path().join("ws/work");
        std::fs::create_dir_all(work.join("a/b")).expect("directories");
        std::fs::write(work.join("a/b/file.txt"), "text\n").expect("a file");
        let _there = std::os::unix::fs::symlink("../../../canary", work.join("a/out"));
    }

    /// Sends a request, reads its answer to the end and returns the status code.
    fn call(&self, method: &str, body: Bytes) -> Code {
        let mut service = GuestServiceServer::new(GuestRpcService::new(Arc::clone(&self.guest)));
        let uri = format!("http://guest/skilld.guest.v1.GuestService/{method}");
        let request = http::Request::post(uri)
            .header("content-type", "application/grpc")
            .body(WholeBody(Some(body)))
            .expect("a request");
        let answer = async {
            let Ok(response) = service.call(request).await;
            let mut status = Status::from_header_map(response.headers());
            let mut body = response.into_body();
            while let Some(frame) =
                std::future::poll_fn(|context| Pin::new(&mut body).poll_frame(context)).await
            {
                let frame = frame.expect("an answer's frame");
                status = status.or_else(|| Status::from_header_map(frame.trailers_ref()?));
            }
            status.expect("a status").code()
        };
        let answered = async { tokio::time::timeout(ANSWER_MAX, answer).await };
        let answered = self.runtime.block_on(answered);
        answered.unwrap_or_else(|_| panic!("{method} does not end"))
    }

    /// Checks that nothing outside of the workspace changed.
    fn check(&self) {
        let canary = std::fs::read(self.directory.path().join(CANARY)).expect("the canary");
        assert_eq!(canary, CANARY.as_bytes());
        let entries = std::fs::read_dir(self.directory.path()).expect("the directory");
        assert_eq!(entries.count(), 2, "something lies beside the workspace");
    }

    /// Removes staged files.
    fn clear(&self) {
        let workspace = self.directory.path().join("ws");
        for entry in std::fs::read_dir(&workspace)
            .expect("the workspace")
            .flatten()
        {
            let _file = std::fs::remove_dir_all(entry.path())
                .or_else(|_| std::fs::remove_file(entry.path()));
        }
        for directory in ["work", "out", "runs"] {
            std::fs::create_dir_all(workspace.join(directory)).expect("a directory");
        }
        self.fill();
    }
}

/// Frames messages as gRPC does.
fn framed<'a>(messages: impl Iterator<Item = &'a [u8]>) -> Bytes {
    let mut body = BytesMut::new();
    for message in messages {
        body.put_u8(0);
        body.put_u32(u32::try_from(message.len()).unwrap_or(u32::MAX));
        body.put_slice(message);
    }
    body.freeze()
}

fn split_at_seams(data: &[u8]) -> Vec<&[u8]> {
    let mut parts = Vec::new();
    let mut rest = data;
    while let Some(at) = rest.windows(2).position(|pair| pair == SEAM) {
        parts.push(&rest[..at]);
        rest = &rest[at + 2..];
    }
    parts.push(rest);
    parts
}

/// Fuzzes one RPC. The first byte selects it. The rest are its messages, or the raw body if the highest bit is set.
pub fn request(data: &[u8]) {
    let Some((first, rest)) = data.split_first() else {
        return;
    };
    handle(*first, rest);
    start(rest);
}

fn handle(first: u8, rest: &[u8]) -> Code {
    let method = usize::from(first & 0x7f) % METHODS.len();
    let body = if first & 0x80 == 0 {
        framed(split_at_seams(rest).into_iter())
    } else {
        Bytes::copy_from_slice(rest)
    };
    PLACE.with(|place| {
        let code = place.call(METHODS[method], body);
        place.check();
        if method == PUT_FILES {
            place.clear();
        }
        code
    })
}

/// Checks a start request as StartExec does before it starts a program.
fn start(data: &[u8]) {
    use prost::Message as _;
    let Ok(request) = wire::StartExecRequest::decode(data) else {
        return;
    };
    let spec = request.spec.unwrap_or_default();
    let (argv, env, cwd) = (request.argv, request.env, request.cwd);
    if let Ok(launch) = build_launch(argv.clone(), env, cwd, spec.limits.as_ref()) {
        assert_eq!(launch.argv, argv);
        let (head, body) = launch.encode(false);
        let Some(SupervisorRequest::Start(start)) = SupervisorRequest::decode(&head) else {
            panic!("a build_launch that its supervisor does not understand: {launch:?}");
        };
        assert_eq!(start.body_bytes, body.len());
        assert_eq!(
            body.iter().filter(|byte| **byte == 0).count(),
            2 + start.args + start.envs
        );
        assert_eq!(start.limits, launch.limits);
    }
}

/// Fuzzes the messages between guest and supervisor, which shares its uid with commands.
pub fn supervisor(data: &[u8]) {
    if let Some(report) = SupervisorReport::decode(data) {
        assert_eq!(SupervisorReport::decode(&report.encode()), Some(report));
    }
    if let Some(SupervisorRequest::Order(order)) = SupervisorRequest::decode(data) {
        let again: SupervisorOrder = order;
        assert_eq!(
            SupervisorRequest::decode(&again.encode()),
            Some(SupervisorRequest::Order(order))
        );
    }
}

/// Fuzzes an archive that is unpacked into `work`; the first byte says whether it is compressed.
pub fn archive(data: &[u8]) {
    if let Some((first, archive)) = data.split_first() {
        unpack(*first, archive);
    }
}

/// Unpacks an archive. Returns the status code, and the numbers of entries and bytes afterwards.
fn unpack(first: u8, archive: &[u8]) -> (Code, u64, u64) {
    use prost::Message as _;
    let kind = if first & 1 == 0 {
        StageFormat::Tar
    } else {
        StageFormat::TarGz
    };
    let header = wire::PutFilesHeader {
        file: Some(v1::StageFilesHeader {
            format: kind.into(),
            path: "work/unpacked".to_owned(),
            ..Default::default()
        }),
        entries_max: ENTRIES_MAX,
        bytes_max: BYTES_MAX,
    };
    let message = |payload| {
        wire::PutFilesRequest {
            payload: Some(payload),
        }
        .encode_to_vec()
    };
    let mut messages = vec![message(wire::put_files_request::Payload::Header(header))];
    for piece in archive.chunks(1 + usize::from(first >> 1) * 16) {
        let data = Bytes::copy_from_slice(piece);
        messages.push(message(wire::put_files_request::Payload::Data(data)));
    }
    PLACE.with(|place| {
        let code = place.call("PutFiles", framed(messages.iter().map(Vec::as_slice)));
        place.check();
        let (mut entries, mut bytes) = (0, 0);
        count(
            &place.directory.path().join("ws/work/unpacked"),
            &mut entries,
            &mut bytes,
        );
        assert!(bytes <= BYTES_MAX, "{bytes} bytes were unpacked");
        // Parents of entries count on top.
        assert!(
            entries <= ENTRIES_MAX * 200,
            "{entries} entries were unpacked"
        );
        place.clear();
        (code, entries, bytes)
    })
}

fn count(directory: &Path, entries: &mut u64, bytes: &mut u64) {
    for entry in std::fs::read_dir(directory).into_iter().flatten().flatten() {
        *entries += 1;
        let stat = entry.path().symlink_metadata().expect("an entry");
        if stat.is_dir() {
            count(&entry.path(), entries, bytes);
        } else if stat.is_file() {
            *bytes += stat.len();
        }
    }
}

/// Fuzzes globs, one per line, against paths after an empty line: a match is always beneath directories that are
/// entered, and one of the first rank beneath directories of that rank.
pub fn globs(data: &[u8]) {
    let mut lines = data.split(|byte| *byte == b'\n');
    let globs: Vec<String> = lines
        .by_ref()
        .take_while(|line| !line.is_empty())
        .map(|line| String::from_utf8_lossy(line).into_owned())
        .collect();
    let Ok(globs) = GlobSet::new(&globs) else {
        return;
    };
    for path in lines {
        let plain = |name: &[u8]| !matches!(name, b"" | b"." | b"..");
        if !path.split(|byte| *byte == b'/').all(plain) || !globs.matches(path) {
            continue;
        }
        let slashes = path.iter().enumerate().filter(|(_, byte)| **byte == b'/');
        for (at, _) in slashes {
            let above = path.get(..at).unwrap_or_default();
            assert!(globs.may_match_beneath(above), "{}", above.escape_ascii());
            let is_found = globs.is_secondary(path) || !globs.is_secondary(above);
            assert!(is_found, "{}", above.escape_ascii());
        }
    }
}

/// Fuzzes a window against a vector. Two bytes are the capacity and each further byte is an operation.
pub fn window(data: &[u8]) {
    let [low, high, commands @ ..] = data else {
        return;
    };
    let capacity = 1 + u64::from(u16::from_le_bytes([*low, *high])) * 3;
    let budget = OutputBudget::new(u64::MAX);
    let mut window = OutputWindow::new(capacity, Arc::clone(&budget));
    let mut model: Vec<u8> = Vec::new();
    let mut needed = 0;
    for (index, command) in commands.iter().enumerate().take(256) {
        let size = usize::from(*command >> 2) * 1031;
        match command & 3 {
            // Bytes that no reader needs may be dropped.
            0 => {
                let held = window.end() - window.start();
                needed = window.start() + held * u64::from(*command) / 256;
            }
            1 => {
                let room = usize::try_from(window.room(needed)).unwrap_or(usize::MAX);
                let fill = u8::try_from(index % 251).unwrap_or(0);
                let mut data = BytesMut::from(vec![fill; size.min(room)].as_slice());
                model.extend_from_slice(&data);
                window.push(&mut data, needed);
                assert!(
                    data.is_empty() && window.start() <= needed,
                    "what was needed is gone"
                );
            }
            2 => {
                let mut data = BytesMut::from(vec![*command; size].as_slice());
                model.extend_from_slice(&data);
                window.push(&mut data, u64::MAX);
                needed = needed.max(window.start());
            }
            _ => {
                let start = usize::try_from(window.start()).expect("small");
                let from = start + size.min(model.len() - start);
                let read = window.read_joined(from as u64, size);
                let wanted = &model[from..];
                assert_eq!(read, &wanted[..wanted.len().min(size)]);
            }
        }
        assert_eq!(window.end(), model.len() as u64);
        assert!(window.start() <= window.end());
        assert!(
            window.end() - window.start() <= capacity,
            "more is held than may be"
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use proptest::sample::Index;

    type Target = fn(&[u8]);

    const TARGETS: [(&str, Target); 5] = [
        ("request", request),
        ("supervisor", supervisor),
        ("archive", archive),
        ("window", window),
        ("globs", globs),
    ];

    /// Returns the corpus of a target: earlier findings, and one file of each kind.
    fn corpus(target: &str) -> Vec<Vec<u8>> {
        let directory = Path::new(env!("CARGO_MANIFEST_DIR"))
            .join("fuzz/corpus")
            .join(target);
        let entries = std::fs::read_dir(&directory).expect("a corpus");
        let paths = entries.map(|entry| entry.expect("an entry").path());
        let files = paths.map(|path| std::fs::read(path).expect("a file"));
        files.collect()
    }

    #[test]
    fn the_corpus_still_passes() {
        for (name, target) in TARGETS {
            let files = corpus(name);
            assert!(!files.is_empty(), "{name} has no corpus");
            for file in files {
                target(&file);
            }
        }
    }

    /// Fuzzed requests reach the handlers and are not all refused early.
    #[test]
    fn good_requests_are_carried_out() {
        let read = |name: &str| {
            let file = format!("{}/fuzz/corpus/{name}", env!("CARGO_MANIFEST_DIR"));
            std::fs::read(file).expect("a file of the corpus")
        };
        for (name, expected) in [
            ("hello", Code::Ok),
            ("startexec", Code::ResourceExhausted),
            ("getexec", Code::NotFound),
            ("listexecs", Code::Ok),
            ("putfiles", Code::Ok),
            ("putfiles-dots", Code::InvalidArgument),
            ("readfile", Code::Ok),
            ("listfiles", Code::Ok),
            ("collect", Code::Ok),
        ] {
            let data = read(&format!("request/{name}"));
            assert_eq!(handle(data[0], &data[1..]), expected, "{name}");
        }
        for (name, expected) in [
            ("plain", (Code::Ok, 3, 5)),
            ("gzip", (Code::Ok, 1, 5)),
            ("pax-long-name", (Code::Ok, 2, 1)),
            ("dots", (Code::InvalidArgument, 0, 0)),
            ("gzip-bomb", (Code::ResourceExhausted, 0, 0)),
        ] {
            let data = read(&format!("archive/{name}"));
            assert_eq!(unpack(data[0], &data[1..]), expected, "{name}");
        }
    }

    proptest! {
        #[test]
        fn changed_files_of_the_corpus_pass(
            file in any::<Index>(),
            cut in any::<Index>(),
            changes in proptest::collection::vec((any::<Index>(), any::<u8>()), 0..8),
        ) {
            for (name, target) in TARGETS {
                let files = corpus(name);
                let mut data = file.get(&files).clone();
                for (at, byte) in &changes {
                    let at = at.index(data.len().max(1));
                    if let Some(place) = data.get_mut(at) {
                        *place = *byte;
                    }
                }
                target(&data);
                data.truncate(cut.index(data.len() + 1));
                target(&data);
            }
        }

        #[test]
        fn bytes_at_random_pass(data in proptest::collection::vec(any::<u8>(), 0..600)) {
            for (_, target) in TARGETS {
                target(&data);
            }
        }
    }
}
