//! The server itself: what it is, whether it is well, its pools.

use skilld_proto::v1::{
    DrainRequest, DrainResponse, GetPoolRequest, GetProblemsRequest, GetServerInfoRequest,
    ListPoolsRequest, Pool, Problem, ResizePoolRequest, ServerInfo,
};
use tonic_health::pb::HealthCheckRequest;
use tonic_health::pb::health_check_response::ServingStatus;
use tonic_health::pb::health_client::HealthClient;

use crate::names::pool_name;
use crate::{Client, Error};

impl Client {
    /// Version, instance, engine, features and every limit.
    pub async fn server_info(&self) -> Result<ServerInfo, Error> {
        self.retrying(|| {
            let mut stub = self.server();
            async move { stub.get_server_info(GetServerInfoRequest {}).await }
        })
        .await
    }

    /// Whether a service serves, by its full name; empty asks for the server as a whole. False also while the
    /// engine does not answer.
    pub async fn is_serving(&self, service: &str) -> Result<bool, Error> {
        let request = HealthCheckRequest {
            service: service.to_owned(),
        };
        let answer = self
            .retrying(|| {
                let (mut stub, request) = (HealthClient::new(self.channel()), request.clone());
                async move { stub.check(request).await }
            })
            .await?;
        Ok(answer.status() == ServingStatus::Serving)
    }

    /// All pools, in order of their names.
    pub async fn list_pools(&self) -> Result<Vec<Pool>, Error> {
        self.retrying(|| {
            let mut stub = self.admin();
            async move { stub.list_pools(ListPoolsRequest {}).await }
        })
        .await
        .map(|answer| answer.pools)
    }

    /// One pool.
    pub async fn get_pool(&self, name: &str) -> Result<Pool, Error> {
        let request = GetPoolRequest {
            name: pool_name(name),
        };
        self.retrying(|| {
            let (mut stub, request) = (self.admin(), request.clone());
            async move { stub.get_pool(request).await }
        })
        .await
    }

    /// Sets how many warm containers a pool keeps, until the daemon's next start.
    pub async fn resize_pool(&self, name: &str, warm_target: i32) -> Result<Pool, Error> {
        let request = ResizePoolRequest {
            name: pool_name(name),
            warm_target,
        };
        self.retrying(|| {
            let (mut stub, request) = (self.admin(), request.clone());
            async move { stub.resize_pool(request).await }
        })
        .await
    }

    /// Stops taking new work; with `remove` also deletes every workspace and warm container.
    pub async fn drain(&self, request: DrainRequest) -> Result<DrainResponse, Error> {
        self.retrying(|| {
            let mut stub = self.admin();
            async move { stub.drain(request).await }
        })
        .await
    }

    /// What somebody should look at, newest last.
    pub async fn problems(&self) -> Result<Vec<Problem>, Error> {
        self.retrying(|| {
            let mut stub = self.admin();
            async move { stub.get_problems(GetProblemsRequest {}).await }
        })
        .await
        .map(|answer| answer.problems)
    }
}
