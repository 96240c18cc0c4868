//! The server itself: its version and limits, its health, its pools and problems.

use skilld_proto::v1::admin_service_client::AdminServiceClient;
use skilld_proto::v1::server_service_client::ServerServiceClient;
use skilld_proto::v1::{
    CheckImageRequest, CheckImageResponse, DrainRequest, DrainResponse, GetPoolRequest,
    GetServerInfoRequest, ListPoolsRequest, ListPoolsResponse, ListProblemsRequest,
    ListProblemsResponse, Pool, Problem, ResizePoolRequest, ServerInfo, UndrainRequest,
    UndrainResponse,
};
use tonic_health::pb::HealthCheckRequest;
use tonic_health::pb::health_check_response::ServingStatus;
use tonic_health::pb::health_client::HealthClient;

use crate::client::retried_calls;
use crate::resource_names::{pool_name, requested_pool};
use crate::{Client, Error};

retried_calls! { AdminServiceClient:
    /// Returns a pool by id or name.
    get_pool(name: &str) -> Pool = GetPoolRequest { name: pool_name(name) };

    /// Sets how many warm containers a pool keeps, until the daemon's next start.
    resize_pool(name: &str, warm_target: i32) -> Pool = ResizePoolRequest { name: pool_name(name), warm_target: Some(warm_target) };

    /// Checks an image as a pool would use it. Faults of the image are findings.
    check_image(request: CheckImageRequest) -> CheckImageResponse = CheckImageRequest { pool: requested_pool(&request.pool), ..request };

    /// Returns one page of pools, in the order of their names.
    list_pools(request: ListPoolsRequest) -> ListPoolsResponse = request;

    /// Returns one page of the problems that an operator should look at.
    list_problems(request: ListProblemsRequest) -> ListProblemsResponse = request;

    /// Accepts new work again after a drain.
    undrain() -> UndrainResponse = UndrainRequest {};

    /// Refuses new workspaces; with `refuse_execs` also execs, with `remove_workspaces` also deletes every workspace and warm container.
    drain(request: DrainRequest) -> DrainResponse = request;
}

impl Client {
    /// Returns the version, instance, engine, features and every limit of the server.
    ///
    /// # Errors
    ///
    /// [`Error::Status`] if the daemon refuses the call or cannot be reached.
    pub async fn server_info(&self) -> Result<ServerInfo, Error> {
        self.retry_call(
            GetServerInfoRequest {},
            ServerServiceClient::get_server_info,
        )
        .await
    }

    /// Returns all problems that an operator should look at.
    ///
    /// # Errors
    ///
    /// [`Error::Status`] if the daemon refuses a call or cannot be reached.
    pub async fn problems(&self) -> Result<Vec<Problem>, Error> {
        let all = self.read_all_pages(ListProblemsRequest::default()).await?;
        Ok(all.problems)
    }

    /// Returns `true` if a service, by its full name, answers calls and the container engine does too. An empty name
    /// means the server as a whole.
    ///
    /// # Errors
    ///
    /// [`Error::Status`] if the daemon refuses the call or cannot be reached.
    pub async fn is_serving(&self, service: &str) -> Result<bool, Error> {
        let request = HealthCheckRequest {
            service: service.to_owned(),
        };
        let answer = self.retry_call(request, HealthClient::check).await?;
        Ok(answer.status() == ServingStatus::Serving)
    }
}
