//! The connection: one channel, one stub per service, and the loops that repeat a call.

use skilld_proto::v1::admin_service_client::AdminServiceClient;
use skilld_proto::v1::artifact_service_client::ArtifactServiceClient;
use skilld_proto::v1::exec_service_client::ExecServiceClient;
use skilld_proto::v1::file_service_client::FileServiceClient;
use skilld_proto::v1::server_service_client::ServerServiceClient;
use skilld_proto::v1::skill_service_client::SkillServiceClient;
use skilld_proto::v1::workspace_service_client::WorkspaceServiceClient;
use tokio::time::Instant;
use tonic::transport::Channel;
use tonic::{Response, Status};

use crate::endpoint::{self, MESSAGE_BYTES_MAX};
use crate::retry::asked_for;
use crate::{Error, RetryPolicy};

/// A client of one daemon. Cheap to clone; clones share the connection, which is made again when it breaks.
#[derive(Clone, Debug)]
pub struct Client {
    endpoint: String,
    channel: Channel,
    retry: RetryPolicy,
}

impl Client {
    /// Connects to `unix:/path`, `unix:///path` or `http://127.0.0.1:port`. Fails after 5 s at the latest.
    pub async fn connect(endpoint: &str) -> Result<Self, Error> {
        Ok(Self {
            endpoint: endpoint.to_owned(),
            channel: endpoint::connect(endpoint).await?,
            retry: RetryPolicy::default(),
        })
    }

    /// The same client with other bounds for repeating calls.
    #[must_use]
    pub fn with_retry(mut self, retry: RetryPolicy) -> Self {
        self.retry = retry;
        self
    }

    /// Where it is connected to, as given.
    #[must_use]
    pub fn endpoint(&self) -> &str {
        &self.endpoint
    }

    /// The channel, for stubs of services that this crate does not know.
    #[must_use]
    pub fn channel(&self) -> Channel {
        self.channel.clone()
    }

    pub(crate) fn retry(&self) -> &RetryPolicy {
        &self.retry
    }

    /// Generated stub, without retries. Messages of at most 4 MiB, like all stubs here.
    #[must_use]
    pub fn workspaces(&self) -> WorkspaceServiceClient<Channel> {
        WorkspaceServiceClient::new(self.channel()).max_decoding_message_size(MESSAGE_BYTES_MAX)
    }

    /// Generated stub, without retries.
    #[must_use]
    pub fn execs(&self) -> ExecServiceClient<Channel> {
        ExecServiceClient::new(self.channel()).max_decoding_message_size(MESSAGE_BYTES_MAX)
    }

    /// Generated stub, without retries.
    #[must_use]
    pub fn files(&self) -> FileServiceClient<Channel> {
        FileServiceClient::new(self.channel()).max_decoding_message_size(MESSAGE_BYTES_MAX)
    }

    /// Generated stub, without retries.
    #[must_use]
    pub fn skills(&self) -> SkillServiceClient<Channel> {
        SkillServiceClient::new(self.channel()).max_decoding_message_size(MESSAGE_BYTES_MAX)
    }

    /// Generated stub, without retries.
    #[must_use]
    pub fn artifacts(&self) -> ArtifactServiceClient<Channel> {
        ArtifactServiceClient::new(self.channel()).max_decoding_message_size(MESSAGE_BYTES_MAX)
    }

    /// Generated stub, without retries.
    #[must_use]
    pub fn server(&self) -> ServerServiceClient<Channel> {
        ServerServiceClient::new(self.channel()).max_decoding_message_size(MESSAGE_BYTES_MAX)
    }

    /// Generated stub, without retries.
    #[must_use]
    pub fn admin(&self) -> AdminServiceClient<Channel> {
        AdminServiceClient::new(self.channel()).max_decoding_message_size(MESSAGE_BYTES_MAX)
    }

    /// Makes a call until it is answered with something else than a promise that nothing was started, or
    /// until the policy's bounds are reached. `call` makes the request anew each time.
    pub(crate) async fn retrying<T, F>(&self, mut call: impl FnMut() -> F) -> Result<T, Error>
    where
        F: Future<Output = Result<Response<T>, Status>>,
    {
        let mut attempt = 0;
        loop {
            let status = match call().await {
                Ok(response) => return Ok(response.into_inner()),
                Err(status) => status,
            };
            attempt += 1;
            match self.retry.after(&status, attempt) {
                Some(wait) => tokio::time::sleep(wait).await,
                None => return Err(Error::from(status)),
            }
        }
    }

    /// Makes a call that may be made any number of times, until it is answered with something else than a broken
    /// connection, in the sense of `may_repeat`, or no answer came for the policy's resume window.
    pub(crate) async fn insisting<T, F>(
        &self,
        may_repeat: fn(&Status) -> bool,
        mut call: impl FnMut() -> F,
    ) -> Result<T, Error>
    where
        F: Future<Output = Result<Response<T>, Status>>,
    {
        let window = self.retry.resume_window;
        let (mut failures, mut since) = (0, None);
        loop {
            let called = Instant::now();
            let status = match call().await {
                Ok(response) => return Ok(response.into_inner()),
                Err(status) => status,
            };
            let now = Instant::now();
            // A call that was under way for so long had a server.
            if now - called >= window {
                since = None;
            }
            let quiet = now - *since.get_or_insert(now);
            if quiet >= window || !may_repeat(&status) {
                return Err(Error::from(status));
            }
            failures += 1;
            let wait = asked_for(&status).unwrap_or_else(|| self.retry.backoff(failures));
            tokio::time::sleep(wait.min(self.retry.backoff_max)).await;
        }
    }
}
