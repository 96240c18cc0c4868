//! Tests of ExecService with a client, a whole server and the real guest: calls that time out.

use std::time::{Duration, Instant};

use skilld_proto::v1::{self as pb, Reason};
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Code, Status};
use tonic_types::StatusExt;

use crate::server::{TestServer, within};

#[track_caller]
fn check_refused(status: &Status, code: Code, reason: Reason) {
    let details = status.get_error_details();
    let found = details.error_info().expect("ErrorInfo").reason.clone();
    let expected = reason.as_str_name().trim_start_matches("REASON_");
    assert_eq!(
        (status.code(), found.as_str()),
        (code, expected),
        "{status:?}"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn silent_stdin_stream_ends_at_the_upload_timeout() {
    let server = TestServer::start("server.upload_timeout = \"300ms\"\n", &[]).await;
    let (sender, receiver) = mpsc::channel::<pb::StreamStdinRequest>(1);
    let asked = Instant::now();
    let mut stub = server.client.execs();
    let written = within(stub.stream_stdin(ReceiverStream::new(receiver))).await;
    let status = written.expect_err("silent");
    check_refused(&status, Code::DeadlineExceeded, Reason::Deadline);
    // The limit for the first message of a stream has another message.
    let message = status.message();
    assert!(message.contains("server.upload_timeout"), "{message}");
    let waited = asked.elapsed();
    assert!(waited >= Duration::from_millis(300), "{waited:?}");
    drop(sender);
    assert!(server.stop().await);
}
