//! What the fuzz targets in `fuzz/` call: hostile bytes for the guest's decoders and its handling of requests, and what
//! must hold whatever they are. It is not in the guest that is shipped. The tests below do the same with the corpus, with
//! its files cut and changed, and with bytes at random.
//!
//! A process is never started: what an exec's request says would be run on the machine that fuzzes.

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
use skilld_proto::v1;
use skilld_proto::v1::stage_files_header::Kind;
use tempfile::TempDir;
use tonic::codegen::{Bytes, Service as _, http};
use tonic::{Code, Status};

use crate::collect::glob::Globs;
use crate::guest::{Guest, launch};
use crate::output::{Budget, Window};
use crate::service::Service;
use crate::supervisor::Supervisors;
use crate::supervisor::wire::{Order, Report, Request};

/// Rpcs that act on files and on execs that are not there. Those that start or end processes are left out: WarmUp,
/// Shutdown, Configure. RunExec and StartExec are refused, after their decoding, by a limit of 0.
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
/// Between two messages of one request.
const SEAM: [u8; 2] = [0xff, 0xfe];
/// What a guest answers whatever it is asked, and it is asked for no more than there is.
const ANSWER_MAX: Duration = Duration::from_secs(10);
const ENTRIES_MAX: u64 = 64;
const BYTES_MAX: u64 = 1 << 20;
/// Beside the workspace, and none of its business.
const CANARY: &str = "canary";

thread_local! {
    static PLACE: Place = Place::new();
}

/// A guest without processes, in a directory of its own.
struct Place {
    runtime: tokio::runtime::Runtime,
    guest: Arc<Guest>,
    directory: TempDir,
}

/// A whole request body.
struct Sent(Option<Bytes>);

impl Body for Sent {
    type Data = Bytes;
    type Error = Status;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        _context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
        Poll::Ready(self.0.take().map(|data| Ok(Frame::data(data))))
    }
}

impl Place {
    fn new() -> Self {
        let directory = tempfile::tempdir().expect("a directory");
        let workspace = directory.path().join("ws");
        std::fs::create_dir(&workspace).expect("a workspace");
        std::fs::write(directory.path().join(CANARY), CANARY).expect("a canary");
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .expect("a runtime");
        let guest = Guest::new(&workspace, Bytes::new(), Supervisors::new()).expect("a guest");
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

    /// A few things to be found.
    fn fill(&self) {
        let work = self.directory.path().join("ws/work");
        std::fs::create_dir_all(work.join("a/b")).expect("directories");
        std::fs::write(work.join("a/b/file.txt"), "text\n").expect("a file");
        let _there = std::os::unix::fs::symlink("../../../canary", work.join("a/out"));
    }

    /// Sends a request, and hears its answer to the end: what it ended with.
    fn call(&self, method: &str, body: Bytes) -> Code {
        let mut service = GuestServiceServer::new(Service::new(Arc::clone(&self.guest)));
        let uri = format!("http://guest/skilld.guest.v1.GuestService/{method}");
        let request = http::Request::post(uri)
            .header("content-type", "application/grpc")
            .body(Sent(Some(body)))
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

    /// Nothing came out of the workspace.
    fn check(&self) {
        let canary = std::fs::read(self.directory.path().join(CANARY)).expect("the canary");
        assert_eq!(canary, CANARY.as_bytes());
        let entries = std::fs::read_dir(self.directory.path()).expect("the directory");
        assert_eq!(entries.count(), 2, "something lies beside the workspace");
    }

    /// Takes away what was staged.
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

/// Messages as gRPC frames them.
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

/// The first byte names an rpc; what follows are its messages, or with the highest bit the body as it is.
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

/// What StartExec checks once it may start something.
fn start(data: &[u8]) {
    use prost::Message as _;
    let Ok(request) = wire::StartExecRequest::decode(data) else {
        return;
    };
    let spec = request.spec.unwrap_or_default();
    let (argv, env, cwd) = (request.argv, request.env, request.cwd);
    if let Ok(launch) = launch(argv.clone(), env, cwd, spec.limits.as_ref()) {
        assert_eq!(launch.argv, argv);
        let (head, body) = launch.encode(false);
        let Some(Request::Start(start)) = Request::decode(&head) else {
            panic!("a launch that its supervisor does not understand: {launch:?}");
        };
        assert_eq!(start.body_bytes, body.len());
        assert_eq!(
            body.iter().filter(|byte| **byte == 0).count(),
            2 + start.args + start.envs
        );
        assert_eq!(start.limits, launch.limits);
    }
}

/// What guest and supervisor say to each other; a supervisor shares its uid with the commands.
pub fn supervisor(data: &[u8]) {
    if let Some(report) = Report::decode(data) {
        assert_eq!(Report::decode(&report.encode()), Some(report));
    }
    if let Some(Request::Order(order)) = Request::decode(data) {
        let again: Order = order;
        assert_eq!(
            Request::decode(&again.encode()),
            Some(Request::Order(order))
        );
    }
}

/// An archive, plain or compressed as the first byte says, unpacked into `work`.
pub fn archive(data: &[u8]) {
    if let Some((first, archive)) = data.split_first() {
        unpack(*first, archive);
    }
}

/// What PutFiles answered, and how many entries and bytes there were then.
fn unpack(first: u8, archive: &[u8]) -> (Code, u64, u64) {
    use prost::Message as _;
    let kind = if first & 1 == 0 {
        Kind::Tar
    } else {
        Kind::TarGz
    };
    let header = wire::PutFilesHeader {
        file: Some(v1::StageFilesHeader {
            kind: kind.into(),
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
        // Directories on the way to an entry come on top.
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

/// Globs, a line each, and behind an empty line paths: what matches is found, since nothing above it is passed over.
pub fn globs(data: &[u8]) {
    let mut lines = data.split(|byte| *byte == b'\n');
    let globs = lines.by_ref().take_while(|line| !line.is_empty());
    let globs: Vec<String> = globs
        .map(|line| String::from_utf8_lossy(line).into_owned())
        .collect();
    let Ok(globs) = Globs::new(&globs) else {
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
        }
    }
}

/// A window against a plain vector: a byte's worth of commands after two for the capacity.
pub fn window(data: &[u8]) {
    let [low, high, commands @ ..] = data else {
        return;
    };
    let capacity = 1 + u64::from(u16::from_le_bytes([*low, *high])) * 3;
    let budget = Budget::new(u64::MAX);
    let mut window = Window::new(capacity, Arc::clone(&budget));
    let mut model: Vec<u8> = Vec::new();
    let mut needed = 0;
    for (index, command) in commands.iter().enumerate().take(256) {
        let size = usize::from(*command >> 2) * 1031;
        match command & 3 {
            // What no reader needs may go.
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

    /// The corpus of a target: what once failed, and one of each kind.
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

    /// Not everything is refused at the door: what fuzzing changes reaches the handlers.
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
