//! Limits of the number of streams. A stalled stream costs the guest its buffers, and cancelled ones end no other.

use futures::StreamExt;
use futures::stream::{self, pending};
use prost::Message as _;
use skilld_proto::guest::v1 as wire;
use skilld_proto::v1;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::UnixStream;
use tokio::task::JoinSet;
use tonic::{Code, Status, Streaming};

use crate::support::{Guest, in_time, reason};

const OF_ONE: usize = 128;
const OF_ALL: usize = 512;
const INPUTS: usize = 32;

const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
const DATA: u8 = 0;
const HEADERS: u8 = 1;
const RST_STREAM: u8 = 3;
const SETTINGS: u8 = 4;
const PING: u8 = 6;
const GOAWAY: u8 = 7;
const ACK: u8 = 1;
const END_STREAM: u8 = 1;
const END_HEADERS: u8 = 4;
/// Code of a stream that its client cancels.
const CANCEL: [u8; 4] = 8_u32.to_be_bytes();

fn assert_too_many<T: std::fmt::Debug>(answer: Result<T, Status>) {
    let status = answer.expect_err("too many");
    let seen = (status.code(), &*reason(&status));
    assert_eq!(
        seen,
        (Code::ResourceExhausted, "QUOTA_EXCEEDED"),
        "{status}"
    );
}

async fn attach(guest: &Guest, id: &str) -> Result<Streaming<v1::ExecEvent>, Status> {
    let exec_id = id.to_owned();
    let request = wire::AttachExecRequest {
        exec_id,
        ..Default::default()
    };
    let stream = guest.client.clone().attach_exec(request).await?;
    Ok(stream.into_inner())
}

#[tokio::test]
async fn event_streams_are_bounded_and_a_refused_one_starts_nothing() {
    let guest = Guest::start().await;
    let mut client = guest.client.clone();
    let mut streams = Vec::new();
    for id in ["a", "b", "c", "d", "e"] {
        let request = guest.request(id, &["sleep", "100"]);
        client.start_exec(request).await.expect("started");
    }
    for id in ["a", "b", "c", "d"] {
        for _ in 0..OF_ONE {
            streams.push(attach(&guest, id).await.expect("attached"));
        }
        assert_too_many(attach(&guest, id).await);
    }
    assert_eq!(streams.len(), OF_ALL);
    assert_too_many(attach(&guest, "e").await);
    let request = guest.request("f", &["touch", "ran"]);
    assert_too_many(client.run_exec(request.clone()).await);
    let exec_id = "f".to_owned();
    let get = client.get_exec(wire::GetExecRequest { exec_id }).await;
    assert_eq!(get.expect_err("not started").code(), Code::NotFound);
    assert!(!guest.workspace().join("ran").exists());
    // Places come back with those that go.
    drop(streams);
    while let Err(status) = attach(&guest, "e").await {
        assert_too_many(Err::<(), _>(status));
    }
    guest.run(request).await;
}

#[tokio::test]
async fn streams_of_input_are_bounded() {
    let guest = Guest::start().await;
    let mut client = guest.client.clone();
    let mut request = guest.request("cat", &["cat"]);
    if let Some(spec) = &mut request.spec {
        spec.open_stdin = true;
    }
    client.start_exec(request).await.expect("started");
    let message = wire::WriteStdinRequest {
        exec_id: "cat".to_owned(),
        data: b"x".as_slice().into(),
        ..Default::default()
    };
    let mut open = JoinSet::new();
    for _ in 0..INPUTS {
        let mut client = guest.client.clone();
        let first = stream::iter([message.clone()]);
        open.spawn(async move { client.stream_stdin(first.chain(pending())).await });
    }
    // Each has written its byte when all are there.
    let mut events = attach(&guest, "cat").await.expect("attached");
    let mut bytes = 0;
    while bytes < INPUTS {
        let event = events.message().await.expect("an event").expect("runs on");
        if let Some(v1::exec_event::Event::Output(output)) = event.event
            && let Some(v1::output_event::Content::Data(data)) = output.content
        {
            bytes += data.len();
        }
    }
    let once = || stream::iter([message.clone()]);
    assert_too_many(client.stream_stdin(once()).await);
    open.abort_all();
    while let Err(status) = client.stream_stdin(once()).await {
        assert_too_many(Err::<(), _>(status));
    }
}

/// Encodes an HTTP/2 frame.
fn encode_frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let length = u32::try_from(payload.len()).expect("short").to_be_bytes();
    let id = stream.to_be_bytes();
    [&length[1..], &[kind, flags], &id, payload].concat()
}

/// Encodes the headers of a call in HPACK, with literals.
fn call_headers(method: &str) -> Vec<u8> {
    let literal =
        |text: &str| [&[u8::try_from(text.len()).expect("short")], text.as_bytes()].concat();
    let path = format!("/skilld.guest.v1.GuestService/{method}");
    // `:method: POST` and `:scheme: http`; 0x44 is `:path`, 0x41 `:authority` and 0x5f `content-type`.
    let (path, authority) = (literal(&path), literal("guest"));
    let (te, trailers) = (literal("te"), literal("trailers"));
    let content_type = literal("application/grpc");
    let parts: [&[u8]; 9] = [
        &[0x83, 0x86, 0x44],
        &path,
        &[0x41],
        &authority,
        &[0x5f],
        &content_type,
        &[0x40],
        &te,
        &trailers,
    ];
    parts.concat()
}

/// Reads the type, the flags, the stream and the payload of a frame.
async fn read_frame(connection: &mut UnixStream) -> (u8, u8, u32, Vec<u8>) {
    let mut head = [0; 9];
    let read = connection.read_exact(&mut head);
    in_time("a frame", read)
        .await
        .expect("the connection stays");
    let mut payload = vec![0; u32::from_be_bytes([0, head[0], head[1], head[2]]) as usize];
    let read = connection.read_exact(&mut payload);
    in_time("its payload", read)
        .await
        .expect("the connection stays");
    assert_ne!(head[3], GOAWAY, "{}", String::from_utf8_lossy(&payload));
    let stream = u32::from_be_bytes([head[5], head[6], head[7], head[8]]);
    (head[3], head[4], stream, payload)
}

/// A guest whose processor is busy reads the calls after their ends.
#[tokio::test]
async fn calls_cancelled_before_the_guest_reads_them_end_no_exec() {
    let mut guest = Guest::start().await;
    let mut connection = guest.reconnect_raw().await;
    let run = "until [ -e go ]; do sleep 0.01; done; echo goes on";
    let message = guest.request("long", &["bash", "-c", run]).encode_to_vec();
    let length = u32::try_from(message.len()).expect("short").to_be_bytes();
    let message = [&[0_u8][..], &length, &message].concat();
    let mut frames = [
        PREFACE.to_vec(),
        encode_frame(SETTINGS, 0, 0, &[]),
        encode_frame(HEADERS, END_HEADERS, 1, &call_headers("RunExec")),
        encode_frame(DATA, END_STREAM, 1, &message),
    ]
    .concat();
    let cancelled = call_headers("GetExec");
    for number in 1..=2000 {
        let stream = 2 * number + 1;
        frames.extend(encode_frame(HEADERS, END_HEADERS, stream, &cancelled));
        frames.extend(encode_frame(RST_STREAM, 0, stream, &CANCEL));
    }
    frames.extend(encode_frame(PING, 0, 0, b"all read"));
    connection.write_all(&frames).await.expect("written");
    loop {
        let (kind, flags, ..) = read_frame(&mut connection).await;
        if kind == PING && flags == ACK {
            break;
        }
    }
    std::fs::write(guest.workspace().join("go"), "").expect("written");
    loop {
        let (kind, _, stream, payload) = read_frame(&mut connection).await;
        if (kind, stream) == (DATA, 1) && payload.windows(7).any(|text| text == b"goes on") {
            break;
        }
    }
}
