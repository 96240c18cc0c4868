//! Limits of HTTP/2 against hostile peers, which leave the connection of a good client open.

use skilld_proto::v1::load_artifact_response::Payload;
use skilld_proto::v1::server_service_client::ServerServiceClient;
use skilld_proto::v1::workspace_service_client::WorkspaceServiceClient;
use tonic::codec::CompressionEncoding;
use tonic_types::StatusExt;

use super::*;

/// Code of a stream that its client cancels.
const CANCEL: [u8; 4] = 8_u32.to_be_bytes();

/// Encodes the headers of a call of GetServerInfo.
fn call_headers() -> Vec<u8> {
    let rest = [
        indexed_header(":authority", "localhost"),
        indexed_header("te", "trailers"),
        indexed_header("content-type", "application/grpc"),
    ];
    [pseudo_headers(), rest.concat()].concat()
}

fn reason(status: &tonic::Status) -> Option<String> {
    let details = status.get_error_details();
    details.error_info().map(|info| info.reason.clone())
}

#[tokio::test]
async fn a_client_may_cancel_all_of_its_calls_at_once() {
    let server = TestServer::start("", &[]).await;
    let mut client = RawClient::connect(&server).await;
    let mut frames = Vec::new();
    for _ in 0..256 {
        let id = client.next_stream;
        client.next_stream += 2;
        frames.extend(encode_frame(HEADERS, END_HEADERS, id, &call_headers()));
        frames.extend(encode_frame(RST_STREAM, 0, id, &CANCEL));
    }
    client.stream.write_all(&frames).await.expect("write");
    assert!(client.is_answered(&call_headers()).await);
    assert!(server.stop().await);
}

#[tokio::test]
async fn thousands_of_malformed_calls_leave_the_connection_open() {
    let server = TestServer::start("", &[]).await;
    let mut client = RawClient::connect(&server).await;
    let block = [pseudo_headers(), indexed_header("te", "gzip")].concat();
    let mut frames = Vec::new();
    // More than the 1,024 that h2 resets on one connection by default.
    for _ in 0..2_000 {
        let id = client.next_stream;
        client.next_stream += 2;
        frames.extend(encode_frame(HEADERS, END_HEADERS, id, &block));
    }
    client.stream.write_all(&frames).await.expect("write");
    assert!(client.is_answered(&call_headers()).await);
    assert!(server.stop().await);
}

#[tokio::test]
async fn metadata_over_the_limit_is_refused_with_its_reason() {
    let server = TestServer::start("", &[]).await;
    let mut changes = watch_health(&server.client).await;
    assert_eq!(next_status(&mut changes).await, 1);
    let mut request = tonic::Request::new(pb::GetServerInfoRequest {});
    let value = "x".repeat(40 << 10).parse().expect("ASCII");
    request.metadata_mut().insert("x-filler", value);
    let called = server.client.server().get_server_info(request).await;
    let status = called.expect_err("too much metadata");
    assert_eq!(status.code(), tonic::Code::ResourceExhausted, "{status:?}");
    assert_eq!(reason(&status).as_deref(), Some("LIMIT_EXCEEDED"));
    assert!(status.message().contains("metadata"), "{status:?}");
    server.engine.set_unavailable(true);
    assert_eq!(next_status(&mut changes).await, 2, "the connection stays");
    assert!(server.stop().await);
}

/// Encodes the headers of a call of GetServerInfo with many entries of metadata that have these bytes in all.
fn headers_with_entries(bytes: usize) -> Vec<u8> {
    let entry = |number: usize| indexed_header("x-filler", &format!("{number:0>90}"));
    let entries: Vec<u8> = (0..bytes / entry(0).len()).flat_map(entry).collect();
    [call_headers(), entries].concat()
}

/// Encodes the headers of a call of GetServerInfo with a single entry of metadata that has these bytes.
fn headers_with_one_entry(bytes: usize) -> Vec<u8> {
    // A literal that is not stored, with a length beyond the 127 of the first byte.
    let mut block = [call_headers(), b"\0\x08x-filler\x7f".to_vec()].concat();
    let mut length = bytes - 127;
    while length >= 128 {
        block.push(u8::try_from(length % 128 + 128).expect("one byte"));
        length /= 128;
    }
    block.push(u8::try_from(length).expect("one byte"));
    block.resize(block.len() + bytes, b'x');
    block
}

#[tokio::test]
async fn metadata_of_any_size_ends_at_most_its_call() {
    let server = TestServer::start("", &[]).await;
    let mut client = RawClient::connect(&server).await;
    // h2 ends the connection beyond about 110 KiB.
    for (kib, answered) in [(31, true), (70, false), (90, false), (110, false)] {
        let one = headers_with_one_entry(kib << 10);
        assert_eq!(client.is_answered(&one).await, answered, "{kib} KiB");
        // Each entry counts as 32 bytes more, so the smaller ones are over the limit.
        let many = headers_with_entries(kib << 10);
        assert!(!client.is_answered(&many).await, "{kib} KiB");
        assert!(client.is_answered(&call_headers()).await, "{kib} KiB");
    }
    drop(client);
    assert!(server.stop().await);
}

#[tokio::test]
async fn compressed_requests_are_accepted_within_the_message_limit() {
    let server = TestServer::start("", &[]).await;
    let channel = server.client.channel();
    let mut compressed =
        ServerServiceClient::new(channel.clone()).send_compressed(CompressionEncoding::Gzip);
    let info = compressed.get_server_info(pb::GetServerInfoRequest {});
    within(info).await.expect("answered");
    let mut health = HealthClient::new(channel.clone()).send_compressed(CompressionEncoding::Gzip);
    let checked = health.check(HealthCheckRequest::default());
    within(checked).await.expect("answered");

    // 5 MiB that take a few KiB packed.
    let mut workspaces =
        WorkspaceServiceClient::new(channel.clone()).send_compressed(CompressionEncoding::Gzip);
    let request = pb::CreateWorkspaceRequest {
        workspace_id: "x".repeat(5 << 20),
        ..pb::CreateWorkspaceRequest::default()
    };
    let created = within(workspaces.create_workspace(request)).await;
    let status = created.expect_err("too large unpacked");
    assert_eq!(reason(&status).as_deref(), Some("LIMIT_EXCEEDED"));
    assert_eq!(status.message(), "the message is over the limit of 4194304");
    assert!(server.stop().await);
}

#[tokio::test]
async fn another_compression_is_refused_with_those_that_are_accepted() {
    let server = TestServer::start("", &[]).await;
    let mut request = tonic::Request::new(pb::GetServerInfoRequest {});
    let zstd = "zstd".parse().expect("ASCII");
    request.metadata_mut().insert("grpc-encoding", zstd);
    let called = server.client.server().get_server_info(request).await;
    let status = called.expect_err("unknown");
    assert_eq!(status.code(), tonic::Code::Unimplemented, "{status:?}");
    assert_eq!(reason(&status).as_deref(), Some("NOT_IMPLEMENTED"));
    let accepted = status
        .metadata()
        .get("grpc-accept-encoding")
        .and_then(|value| value.to_str().ok());
    assert_eq!(accepted, Some("gzip,identity"));
    assert!(server.stop().await);
}

#[tokio::test]
async fn an_unread_stream_ends_no_stream_of_another_client() {
    // Room for sixteen streams.
    let server = TestServer::start("server.relay_bytes_max = \"16MiB\"", &[]).await;
    let scope = pb::ArtifactScope {
        app: "app".to_owned(),
        user: "ada".to_owned(),
        session: "1".to_owned(),
    };
    // Larger than all windows and buffers of a stream together.
    let bytes = 8 << 20;
    let source = std::io::Cursor::new(vec![7; bytes]);
    let target = SaveTarget::new("a.bin", scope);
    let saved = server
        .client
        .save_artifact(target, source)
        .await
        .expect("saved");
    let load = async |client: &Client| {
        let request = pb::LoadArtifactRequest {
            name: saved.name.clone(),
            scope: saved.scope.clone(),
            version: None,
        };
        let loading = client.artifacts().load_artifact(request).await;
        loading.expect("loads").into_inner()
    };
    let endpoint = format!("unix:{}", socket_path(&server).display());
    let mut unread = Vec::new();
    for _ in 0..4 {
        let other = connect(&ConnectOptions::new(endpoint.clone())).await;
        for _ in 0..16 {
            let mut loading = load(&other).await;
            // The first message may be the end of a stream for which there is no room.
            drop(within(loading.message()).await);
            unread.push((other.clone(), loading));
        }
    }
    let (mut loading, mut read) = (load(&server.client).await, 0);
    while let Some(message) = within(loading.message()).await.expect("read to the end") {
        if let Some(Payload::Data(data)) = message.payload {
            read += data.len();
        }
    }
    assert_eq!(read, bytes);
    drop(unread);
    assert!(server.stop().await);
}
