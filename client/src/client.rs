//! Connection to a daemon: one channel, one stub per service, and the loops that repeat a call.

use skilld_proto::v1::access_service_client::AccessServiceClient;
use skilld_proto::v1::admin_service_client::AdminServiceClient;
use skilld_proto::v1::artifact_service_client::ArtifactServiceClient;
use skilld_proto::v1::exec_service_client::ExecServiceClient;
use skilld_proto::v1::file_service_client::FileServiceClient;
use skilld_proto::v1::server_service_client::ServerServiceClient;
use skilld_proto::v1::skill_service_client::SkillServiceClient;
use skilld_proto::v1::tenant_service_client::TenantServiceClient;
use skilld_proto::v1::workspace_service_client::WorkspaceServiceClient;
use tokio::time::Instant;
use tonic::{Response, Status};
use tonic_health::pb::health_client::HealthClient;

use crate::connect_options::ConnectOptions;
use crate::endpoint::{self, MESSAGE_BYTES_MAX, Transport};
use crate::retry::requested_wait;
use crate::{Error, RetryPolicy};

/// Generated stub of one service, which retries nothing.
pub(crate) trait ServiceStub {
    /// Makes the stub over a channel; it takes messages of at most 4 MiB.
    fn over_channel(channel: Transport) -> Self;
}

/// Implements [`ServiceStub`] for each stub, and the method of [`Client`] that returns it.
macro_rules! service_stubs {
    ($($method:ident: $stub:ident,)*) => {
        $(impl ServiceStub for $stub<Transport> {
            fn over_channel(channel: Transport) -> Self {
                Self::new(channel).max_decoding_message_size(MESSAGE_BYTES_MAX)
            }
        })*

        impl Client {
            $(#[doc = concat!("Returns the generated stub `", stringify!($stub), "`, which retries nothing.")]
            #[must_use]
            pub fn $method(&self) -> $stub<Transport> {
                ServiceStub::over_channel(self.channel())
            })*
        }
    };
}

service_stubs! {
    workspaces: WorkspaceServiceClient,
    execs: ExecServiceClient,
    files: FileServiceClient,
    skills: SkillServiceClient,
    artifacts: ArtifactServiceClient,
    server: ServerServiceClient,
    admin: AdminServiceClient,
    access: AccessServiceClient,
    tenants: TenantServiceClient,
}

/// Implements methods of [`Client`] that make one call each by the stub's method of the same name: documentation,
/// arguments, answer and request.
macro_rules! retried_calls {
    ($stub:ident: $($(#[$doc:meta])* $method:ident($($name:ident: $type:ty),*) -> $answer:ty = $request:expr;)+) => {
        impl $crate::Client {
            $($(#[$doc])*
            ///
            /// # Errors
            ///
            /// [`Error::Status`] if the daemon refuses the call or cannot be reached.
            pub async fn $method(&self, $($name: $type),*) -> Result<$answer, Error> {
                self.retry_call($request, $stub::$method).await
            })+
        }
    };
}
pub(crate) use retried_calls;

impl ServiceStub for HealthClient<Transport> {
    fn over_channel(channel: Transport) -> Self {
        Self::new(channel)
    }
}

/// A client of one daemon. Cheap to clone; clones share the connection, which is made again when it breaks.
#[derive(Clone, Debug)]
pub struct Client {
    endpoint: String,
    channel: Transport,
    pub(crate) retry: RetryPolicy,
}

impl Client {
    /// Connects to `unix:/path`, `unix:///path`, `https://host:port` or `http://127.0.0.1:port` without a token and
    /// without files. Fails after 10 s at the latest (5 s for TCP, 5 s for TLS), and after 3 s more if the server
    /// refuses clients without a certificate.
    ///
    /// # Errors
    ///
    /// [`Error::Endpoint`] for an endpoint of another form, [`Error::Connect`] if no connection is made in time.
    pub async fn connect(endpoint: &str) -> Result<Self, Error> {
        Self::connect_with(&ConnectOptions::new(endpoint)).await
    }

    /// Connects with certificates and a token. Fails after 10 s at the latest (5 s for TCP, 5 s for TLS), and after 3 s
    /// more if the server refuses the client certificate.
    ///
    /// # Errors
    ///
    /// As [`Self::connect`]; [`Error::Credential`] or [`Error::Io`] if a credential cannot be read.
    pub async fn connect_with(options: &ConnectOptions) -> Result<Self, Error> {
        Ok(Self {
            endpoint: options.endpoint.clone(),
            channel: endpoint::connect(options).await?,
            retry: RetryPolicy::default(),
        })
    }

    /// Returns the client with other limits for repeated calls.
    #[must_use]
    pub fn with_retry(mut self, retry: RetryPolicy) -> Self {
        self.retry = retry;
        self
    }

    /// Returns the endpoint as the caller gave it.
    #[must_use]
    pub fn endpoint(&self) -> &str {
        &self.endpoint
    }

    /// Returns the channel, for stubs of services that this crate does not know.
    #[must_use]
    pub fn channel(&self) -> Transport {
        self.channel.clone()
    }

    /// Makes a call, and repeats it while the server answers with a promise that nothing was started, within the
    /// policy's bounds.
    pub(crate) async fn retry_call<S: ServiceStub, R: Clone, T>(
        &self,
        request: R,
        call: impl AsyncFn(&mut S, R) -> Result<Response<T>, Status>,
    ) -> Result<T, Error> {
        let (mut stub, mut attempt) = (S::over_channel(self.channel()), 0);
        loop {
            let status = match call(&mut stub, request.clone()).await {
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

    /// Makes a call that may be made any number of times, and repeats it while it ends with a broken connection, in the
    /// sense of `may_repeat`, until no answer came for the policy's resume window.
    pub(crate) async fn repeat_call<S: ServiceStub, R: Clone, T>(
        &self,
        may_repeat: fn(&Status) -> bool,
        request: R,
        call: impl AsyncFn(&mut S, R) -> Result<Response<T>, Status>,
    ) -> Result<T, Error> {
        let window = self.retry.resume_window;
        let mut stub = S::over_channel(self.channel());
        let (mut failures, mut since) = (0, None);
        loop {
            let called = Instant::now();
            let status = match call(&mut stub, request.clone()).await {
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
            let wait = requested_wait(&status).unwrap_or_else(|| self.retry.backoff(failures));
            tokio::time::sleep(wait.min(self.retry.backoff_max)).await;
        }
    }
}
