//! TenantService: usage and quotas of tenants.

use std::fmt::Write;
use std::time::{Duration, UNIX_EPOCH};

use skilld_proto::v1 as pb;
use skilld_proto::v1::tenant_service_server::TenantService;
use tonic::{Request, Response, Status};

use super::SharedDependencies;
use super::convert::page::Page;
use super::convert::{duration_message, int64, timestamp_message};
use crate::access::{Caller, TenantLimits, TenantName};
use crate::usage::{DAY_MS, UsageCounters};

/// Number of bytes of a GiB.
const GIB: f64 = (1 << 30) as f64;

/// Implementation of TenantService.
#[derive(Debug, Clone)]
pub struct TenantRpc(pub SharedDependencies);

#[tonic::async_trait]
impl TenantService for TenantRpc {
    async fn get_tenant_usage(
        &self,
        request: Request<pb::GetTenantUsageRequest>,
    ) -> Result<Response<pb::TenantUsage>, Status> {
        let caller = Caller::of(&request)?;
        caller.require_whole_tenant()?;
        self.0.registry.context.account_usage();
        let usage = self.usage_message(caller.tenant(), caller.limits());
        Ok(Response::new(usage))
    }

    async fn list_tenant_usages(
        &self,
        request: Request<pb::ListTenantUsagesRequest>,
    ) -> Result<Response<pb::ListTenantUsagesResponse>, Status> {
        let request = request.get_ref();
        let page = Page::requested(request.page_size, &request.page_token)?;
        self.0.registry.context.account_usage();
        let all = self.0.access.tenants().into_iter();
        let usage = all.map(|(tenant, limits)| self.usage_message(&tenant, &limits));
        let (tenant_usages, next_page_token) = page.take(usage);
        Ok(Response::new(pb::ListTenantUsagesResponse {
            tenant_usages,
            next_page_token,
        }))
    }
}

impl TenantRpc {
    fn usage_message(&self, tenant: &TenantName, limits: &TenantLimits) -> pb::TenantUsage {
        let context = &self.0.registry.context;
        let held = context.workspaces.usage(tenant);
        let used = context.usage.read(tenant);
        let access = &self.0.access;
        let rate = |rate: Option<crate::access::RateLimit>| rate.map(|it| it.count.get().into());
        let connections = access.open_connections(tenant);
        let skills = self.0.skills.of_daemon();
        let artifacts = self.0.artifacts.held_by(tenant);
        let environments = &self.0.environments;
        let resources = [
            ("artifact_bytes", artifacts.bytes, limits.artifact_bytes),
            ("artifacts", artifacts.versions, limits.artifacts),
            ("connections", connections, limits.connections),
            ("cpus", held.cpu_millis, limits.cpu_millis),
            (
                "environment_bytes",
                environments.held_bytes(tenant),
                environments.bytes_quota(tenant),
            ),
            ("execs", access.execs.count(tenant), limits.execs),
            ("memory", held.memory_bytes, limits.memory_bytes),
            (
                "published_bytes",
                skills.published_bytes(tenant.as_str()),
                limits.published_bytes,
            ),
            ("requests_per_second", 0, rate(limits.requests)),
            (
                "staged_bytes",
                context.workspaces.staged_bytes(tenant),
                limits.staged_bytes,
            ),
            ("streams", access.open_streams(tenant), limits.streams),
            ("workspace_creates_per_minute", 0, rate(limits.creates)),
            ("workspaces", held.workspaces, limits.workspaces),
        ]
        .map(|(resource, used, limit)| pb::ResourceUsage {
            resource: resource.to_owned(),
            used: int64(used),
            limit: limit.map(int64),
        });
        pb::TenantUsage {
            tenant: tenant.to_string(),
            resources: resources.to_vec(),
            start_time: timestamp_message(context.usage.start_time()),
            since_start: Some(counters_message(&used.since_start)),
            days: used.days.iter().rev().filter_map(day_message).collect(),
        }
    }
}

/// Makes the message of a day; `None` for a day after the year 9999.
fn day_message((day, counters): (&u64, &UsageCounters)) -> Option<pb::DailyUsage> {
    let begin = UNIX_EPOCH.checked_add(Duration::from_millis(day.checked_mul(DAY_MS)?))?;
    let mut date = String::new();
    write!(date, "{}", humantime::format_rfc3339_seconds(begin)).ok()?;
    date.truncate("2026-11-27".len());
    Some(pb::DailyUsage {
        date,
        counters: Some(counters_message(counters)),
    })
}

#[expect(
    clippy::cast_precision_loss,
    reason = "amounts over 2^53 need no exact value"
)]
fn counters_message(counters: &UsageCounters) -> pb::UsageCounters {
    let execs = counters.execs.iter();
    pb::UsageCounters {
        workspace_duration: duration_message(Duration::from_millis(counters.workspace_ms)),
        memory_gib_seconds: counters.memory_byte_ms as f64 / GIB / 1e3,
        cpu_duration: duration_message(Duration::from_micros(counters.cpu_us)),
        execs: execs
            .map(|(reason, count)| pb::ExecCount {
                reason: *reason,
                count: int64(*count),
            })
            .collect(),
        bytes_in: int64(counters.bytes_in),
        bytes_out: int64(counters.bytes_out),
        bytes_stored: int64(counters.bytes_stored),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_day_after_the_year_9999_has_no_message() {
        let date = |day: u64| Some(day_message((&day, &UsageCounters::default()))?.date);
        assert_eq!(date(20_784).as_deref(), Some("2026-11-27"));
        assert_eq!(date(2_932_896).as_deref(), Some("9999-12-31"));
        for hostile in [2_932_897, u64::MAX / DAY_MS, u64::MAX] {
            assert_eq!(date(hostile), None, "{hostile}");
        }
    }
}
