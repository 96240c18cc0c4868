//! The server itself: its version and limits, its health, its pools and problems.

use skilld_proto::v1::admin_service_client::AdminServiceClient;
use skilld_proto::v1::server_service_client::ServerServiceClient;
use skilld_proto::v1::{
    DrainRequest, DrainResponse, GetPoolRequest, GetProblemsRequest, GetServerInfoRequest,
    ListPoolsRequest, Pool, Problem, ResizePoolRequest, ServerInfo,
};
use tonic_health::pb::HealthCheckRequest;
use tonic_health::pb::health_check_response::ServingStatus;
use tonic_health::pb::health_client::HealthClient;

use crate::resource_names::pool_name;
use crate::{Client, Error};

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

    /// Returns `true` if a service, by its full name, answers calls and the container engine does too. An empty name means
    /// the server as a whole.
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

    /// Returns all pools in the order of their names.
    ///
    /// # Errors
    ///
    /// [`Error::Status`] if the daemon refuses the call or cannot be reached.
    pub async fn list_pools(&self) -> Result<Vec<Pool>, Error> {
        self.retry_call(ListPoolsRequest {}, AdminServiceClient::list_pools)
            .await
            .map(|answer| answer.pools)
    }

    /// Returns one pool.
    ///
    /// # Errors
    ///
    /// [`Error::Status`] if the daemon refuses the call or cannot be reached.
    pub async fn get_pool(&self, name: &str) -> Result<Pool, Error> {
        let request = GetPoolRequest {
            name: pool_name(name),
        };
        self.retry_call(request, AdminServiceClient::get_pool).await
    }

    /// Sets how many warm containers a pool keeps, until the daemon's next start.
    ///
    /// # Errors
    ///
    /// [`Error::Status`] if the daemon refuses the call or cannot be reached.
    pub async fn resize_pool(&self, name: &str, warm_target: i32) -> Result<Pool, Error> {
        let request = ResizePoolRequest {
            name: pool_name(name),
            warm_target,
        };
        self.retry_call(request, AdminServiceClient::resize_pool)
            .await
    }

    /// Stops taking new work; with `remove` also deletes every workspace and warm container.
    ///
    /// # Errors
    ///
    /// [`Error::Status`] if the daemon refuses the call or cannot be reached.
    pub async fn drain(&self, request: DrainRequest) -> Result<DrainResponse, Error> {
        self.retry_call(request, AdminServiceClient::drain).await
    }

    /// Returns the problems that an operator should look at, newest last.
    ///
    /// # Errors
    ///
    /// [`Error::Status`] if the daemon refuses the call or cannot be reached.
    pub async fn problems(&self) -> Result<Vec<Problem>, Error> {
        self.retry_call(GetProblemsRequest {}, AdminServiceClient::get_problems)
            .await
            .map(|answer| answer.problems)
    }
}
