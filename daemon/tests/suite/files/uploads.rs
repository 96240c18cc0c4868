//! Tests of uploads that fail, end early or are open while the daemon stops.

use super::*;

#[tokio::test(flavor = "multi_thread")]
async fn upload_with_wrong_checksum_leaves_no_files() {
    let server = TestServer::start("", &[]).await;
    let workspace = server.workspace().await;
    let header = pb::StageFilesHeader {
        sha256: "0".repeat(64),
        ..header(StageFormat::File, "work/a")
    };
    let staged = stage_file(&server, &workspace, header, b"bytes").await;
    check_refused(staged, Code::InvalidArgument, ErrorReason::ChecksumMismatch);
    assert_no_files(&server, &workspace, "work").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn cancelled_upload_leaves_no_files() {
    let server = TestServer::start("", &[]).await;
    let workspace = server.workspace().await;
    let (sender, receiver) = mpsc::channel(4);
    sender
        .send(header_message(
            &workspace,
            header(StageFormat::File, "work/part"),
        ))
        .await
        .expect("open");
    sender
        .send(data_message(&pattern(1 << 20)))
        .await
        .expect("open");
    let mut upload = Box::pin(send_messages(&server, ReceiverStream::new(receiver)));
    // When the transport accepts a further chunk, it has sent the first one.
    for _ in 0..8 {
        tokio::select! {
            sent = sender.send(data_message(&pattern(1 << 20))) => sent.expect("open"),
            ended = &mut upload => panic!("ended early: {ended:?}"),
        }
    }
    // The client cancels the call.
    drop(upload);
    wait_until_empty(&server, &workspace).await;
}

/// Waits until the workspace has no files, temporary ones included. Stages a file and waits again, because by then the
/// guest has processed all earlier messages.
async fn wait_until_empty(server: &TestServer, workspace: &str) {
    let next = ("out/next".to_owned(), 1);
    for _ in 0..3 {
        wait_until("nothing else is left", async || {
            let others = |file: &(String, i64)| *file != next;
            let files = list_files(server, workspace, "").await.expect("listed");
            (!files.iter().any(others)).then_some(())
        })
        .await;
        stage_file(
            server,
            workspace,
            header(StageFormat::File, "out/next"),
            b"x",
        )
        .await
        .expect("staged");
        let read = read_file(server, workspace, "out/next", 0, 0).await;
        assert_eq!(read.expect("read"), b"x");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn invalid_message_ends_the_upload_and_leaves_no_files() {
    let server = TestServer::start("", &[]).await;
    let workspace = server.workspace().await;
    let good = data_message(&pattern(1 << 20));
    let invalid = (Code::InvalidArgument, ErrorReason::InvalidRequest);
    let too_large = (Code::ResourceExhausted, ErrorReason::LimitExceeded);
    for (bad, (code, reason)) in [
        (data_message(&vec![0; (1 << 20) + 1]), invalid),
        // Above the maximum message size.
        (data_message(&vec![0; 2 << 20]), too_large),
        (
            header_message(&workspace, header(StageFormat::File, "work/part")),
            invalid,
        ),
        (pb::StageFilesRequest::default(), invalid),
    ] {
        let messages = vec![
            header_message(&workspace, header(StageFormat::File, "work/part")),
            good.clone(),
            good.clone(),
            bad,
        ];
        let staged = send_messages(&server, stream::iter(messages)).await;
        check_refused(staged, code, reason);
        wait_until_empty(&server, &workspace).await;
    }
    let none = send_messages(&server, stream::empty()).await;
    check_refused(none, Code::InvalidArgument, ErrorReason::InvalidRequest);
}

#[tokio::test(flavor = "multi_thread")]
async fn error_of_the_guest_is_returned_while_the_client_still_sends() {
    let server = TestServer::start("files.stage_bytes_max = \"1MiB\"\n", &[]).await;
    let workspace = server.workspace().await;
    // A stream that never ends.
    let chunk = data_message(&pattern(600_000));
    let sent = [
        header_message(&workspace, header(StageFormat::File, "work/a")),
        chunk.clone(),
        chunk,
    ];
    let endless = stream::iter(sent).chain(stream::pending());
    // Answered while the stream is open.
    let staged = within(send_messages(&server, endless)).await;
    check_refused(staged, Code::ResourceExhausted, ErrorReason::LimitExceeded);
    wait_until_empty(&server, &workspace).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn open_upload_fails_with_draining_at_a_stop() {
    let server = TestServer::start("", &[]).await;
    let workspace = server.workspace().await;
    let (sender, receiver) = mpsc::channel(1);
    sender
        .send(header_message(
            &workspace,
            header(StageFormat::File, "work/a"),
        ))
        .await
        .expect("open");
    let mut stub = server.client.files();
    let upload = Box::pin(async move { stub.stage_files(ReceiverStream::new(receiver)).await });
    let sending = async {
        // More data than the transport buffers, so the server is reading the upload afterwards.
        for _ in 0..8 {
            sender
                .send(data_message(&pattern(1 << 20)))
                .await
                .expect("open");
        }
        let clean = server.stop().await;
        drop(sender);
        clean
    };
    let (uploaded, clean) = tokio::join!(upload, sending);
    assert!(clean);
    check_refused(uploaded, Code::Unavailable, ErrorReason::Draining);
}

#[tokio::test(flavor = "multi_thread")]
async fn silent_upload_times_out_and_leaves_no_files() {
    let server = TestServer::start("server.upload_timeout = \"300ms\"\n", &[]).await;
    let workspace = server.workspace().await;
    for begun in [false, true] {
        let (sender, receiver) = mpsc::channel(4);
        if begun {
            let opened = sender.send(header_message(
                &workspace,
                header(StageFormat::File, "work/a"),
            ));
            opened.await.expect("open");
            sender.send(data_message(b"half")).await.expect("open");
        }
        let asked = std::time::Instant::now();
        let mut stub = server.client.files();
        let uploaded = within(stub.stage_files(ReceiverStream::new(receiver))).await;
        let waited = asked.elapsed();
        let failure = check_refused(uploaded, Code::DeadlineExceeded, ErrorReason::Deadline);
        // The limit for the first message of a stream has another message.
        let message = failure.message;
        assert!(message.contains("server.upload_timeout"), "{message}");
        assert!(waited >= Duration::from_millis(300), "{waited:?}");
        drop(sender);
    }
    let request = pb::ListFilesRequest {
        parent: workspace,
        path: "work".to_owned(),
        ..Default::default()
    };
    let listed = server.client.files().list_files(request).await;
    let entries = listed.expect("listed").into_inner();
    assert!(!format!("{entries:?}").contains("work/a"), "{entries:?}");
    assert!(server.stop().await);
}

#[tokio::test(flavor = "multi_thread")]
async fn complete_upload_at_a_stop_never_fails_with_unavailable() {
    for _ in 0..3 {
        let server = TestServer::start("", &[]).await;
        let workspace = server.workspace().await;
        let names: Vec<_> = (0..4000).map(|number| format!("{number:04}")).collect();
        let files: Vec<_> = names
            .iter()
            .map(|name| (name.as_str(), &b"x"[..]))
            .collect();
        let archive = build_tar(&files);
        let (asked, is_asked) = tokio::sync::oneshot::channel();
        let mut messages = vec![header_message(
            &workspace,
            header(StageFormat::Tar, "work/many"),
        )];
        messages.extend(archive.chunks(1 << 20).map(data_message));
        let last = stream::once(async move {
            asked.send(()).expect("awaited");
            data_message(&[0; 512])
        });
        let mut stub = server.client.files();
        let messages = stream::iter(messages).chain(last);
        let staging = async move { stub.stage_files(messages).await };
        let stopping = async {
            is_asked.await.expect("asked");
            // Stop between the last byte and the response.
            while list_files(&server, &workspace, "work/many").await.is_err() {}
            server.stop().await
        };
        let (staged, _) = tokio::join!(staging, stopping);
        if let Err(status) = staged {
            assert_ne!(status.code(), Code::Unavailable, "{status:?}");
        }
    }
}
