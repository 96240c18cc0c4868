//! Streams that are open as long as their clients want, for tests of what ends them.

use skilld_client::Client;
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Status, Streaming};
use tonic_reflection::pb::v1::server_reflection_client::ServerReflectionClient;
use tonic_reflection::pb::v1::server_reflection_request::MessageRequest;
use tonic_reflection::pb::v1::{ServerReflectionRequest, ServerReflectionResponse};

use crate::server::within;

/// Stream of reflection, which is open as long as its client wants.
pub(crate) struct OpenStream {
    requests: mpsc::Sender<ServerReflectionRequest>,
    answers: Streaming<ServerReflectionResponse>,
}

impl OpenStream {
    /// Opens a stream, which must be accepted.
    pub(crate) async fn open(client: &Client) -> Self {
        Self::try_open(client).await.expect("accepted")
    }

    /// Opens a stream and asks once.
    ///
    /// # Errors
    /// The status with which the server refuses it.
    pub(crate) async fn try_open(client: &Client) -> Result<Self, Status> {
        let (requests, receiver) = mpsc::channel(1);
        let mut stub = ServerReflectionClient::new(client.channel());
        requests.send(list_request()).await.expect("open");
        let answers = stub
            .server_reflection_info(ReceiverStream::new(receiver))
            .await?
            .into_inner();
        let mut stream = Self { requests, answers };
        assert!(stream.answers.message().await?.is_some());
        Ok(stream)
    }

    /// Asserts that the stream answers.
    pub(crate) async fn assert_open(&mut self) {
        self.requests.send(list_request()).await.expect("open");
        let answer = self.answers.message().await;
        assert!(answer.expect("a valid stream goes on").is_some());
    }

    /// Waits for the end of the stream and returns its status.
    pub(crate) async fn end(&mut self) -> Status {
        within(async {
            loop {
                match self.answers.message().await {
                    Ok(Some(_)) => {}
                    Ok(None) => return Status::ok("ended"),
                    Err(status) => return status,
                }
            }
        })
        .await
    }
}

fn list_request() -> ServerReflectionRequest {
    ServerReflectionRequest {
        host: String::new(),
        message_request: Some(MessageRequest::ListServices(String::new())),
    }
}
