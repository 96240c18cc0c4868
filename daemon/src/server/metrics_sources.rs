//! Metrics that are read when Prometheus asks. They are figures of pools, tenants, artifacts, skills, certificates and
//! the audit log.

use std::fmt;
use std::sync::Arc;
use std::time::SystemTime;

use futures::FutureExt;
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeGaugeValue, EncodeMetric};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::metrics::gauge::ConstGauge;

use crate::access::{TenantName, TlsSettings, WatchedFile};
use crate::audit::AuditLog;
use crate::pool::PoolSnapshot;
use crate::rpc::SharedDependencies;
use crate::skills::catalogue::skill::SkillState;

/// Sources of the metrics that are read when Prometheus asks. Reading them waits for nothing.
#[derive(Debug)]
pub(super) struct MetricsSources {
    pub(super) services: SharedDependencies,
    /// Files of all listeners with TLS.
    pub(super) tls: Vec<Arc<WatchedFile<TlsSettings>>>,
    /// Audit log; `None` if the daemon writes none.
    pub(super) audit: Option<AuditLog>,
}

/// Values of the labels and the value of the metric.
type Sample<const LABELS: usize, N> = ([String; LABELS], N);

/// Reads a figure of a pool.
type ReadFigure = fn(&PoolSnapshot) -> usize;

/// Gauges of pools: their names, values and descriptions.
const POOL_GAUGES: [(&str, ReadFigure, &str); 4] = [
    (
        "skilld_pool_warm",
        |pool| pool.warm,
        "Containers that are ready to be claimed",
    ),
    (
        "skilld_pool_booting",
        |pool| pool.booting,
        "Containers that boot",
    ),
    (
        "skilld_pool_claimed",
        |pool| pool.claimed,
        "Containers that are workspaces, or end",
    ),
    (
        "skilld_pool_waiting",
        |pool| pool.waiting,
        "Requests in the queue",
    ),
];

impl Collector for MetricsSources {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let encoder = &mut encoder;
        self.encode_pools(encoder)?;
        encode_gauges(
            encoder,
            "skilld_tenant_usage",
            "What tenants hold of the resources that quotas limit",
            ["tenant", "resource"],
            &self.read_usage(),
        )?;
        encode_gauges(
            encoder,
            "skilld_artifact_bytes",
            "Bytes of the artifacts of tenants",
            ["tenant"],
            &self.read_artifact_bytes(),
        )?;
        encode_gauges(
            encoder,
            "skilld_skills",
            "Skills of the catalogue",
            ["state"],
            &self.read_skill_counts(),
        )?;
        encode_gauges(
            encoder,
            "skilld_certificate_expiry_seconds",
            "Unix time at which the certificate of a listener expires",
            ["listener"],
            &self.read_expiries(),
        )?;
        match &self.audit {
            Some(audit) => encode_lost_records(encoder, audit.lost()),
            None => Ok(()),
        }
    }
}

impl MetricsSources {
    fn encode_pools(&self, encoder: &mut DescriptorEncoder<'_>) -> fmt::Result {
        let pools = self.services.registry.pools.iter();
        let pools: Vec<(&String, PoolSnapshot)> =
            pools.map(|(name, pool)| (name, pool.snapshot())).collect();
        for (name, value, help) in POOL_GAUGES {
            let samples: Vec<Sample<1, usize>> = pools
                .iter()
                .map(|(pool, snapshot)| ([pool.to_string()], value(snapshot)))
                .collect();
            encode_gauges(encoder, name, help, ["pool"], &samples)?;
        }
        Ok(())
    }

    fn read_usage(&self) -> Vec<Sample<2, f64>> {
        let workspaces = &self.services.registry.context.workspaces;
        let mut samples = Vec::new();
        for (tenant, _) in self.services.access.tenants() {
            let held = workspaces.usage(&tenant);
            let access = &self.services.access;
            let skills = self.services.skills.of_daemon();
            let published = skills.published_bytes(tenant.as_str());
            let environments = self.services.environments.held_bytes(&tenant);
            let artifacts = &self.services.artifacts;
            // Before the end of the first count the number is too small.
            let versions = artifacts
                .is_counted()
                .then(|| ("artifacts", to_float(artifacts.held_by(&tenant).versions)));
            let amounts = [
                ("workspaces", to_float(held.workspaces)),
                ("memory", to_float(held.memory_bytes)),
                ("cpus", to_float(held.cpu_millis) / 1000.0),
                ("execs", to_float(access.execs.count(&tenant))),
                ("streams", to_float(access.open_streams(&tenant))),
                ("connections", to_float(access.open_connections(&tenant))),
                ("published_bytes", to_float(published)),
                ("environment_bytes", to_float(environments)),
                ("staged_bytes", to_float(workspaces.staged_bytes(&tenant))),
            ];
            for (resource, amount) in amounts.into_iter().chain(versions) {
                samples.push(([tenant.to_string(), resource.to_owned()], amount));
            }
        }
        samples
    }

    fn read_artifact_bytes(&self) -> Vec<Sample<1, u64>> {
        let artifacts = &self.services.artifacts;
        // Before the end of the first count the amounts are too small.
        if !artifacts.is_counted() {
            return Vec::new();
        }
        let mut tenants: Vec<TenantName> = self
            .services
            .access
            .tenants()
            .into_iter()
            .map(|(tenant, _)| tenant)
            .collect();
        if tenants.is_empty() {
            // Without authentication everything belongs to it.
            tenants.push(TenantName::default());
        }
        let sample = |tenant: &TenantName| ([tenant.to_string()], artifacts.held_by(tenant).bytes);
        tenants.iter().map(sample).collect()
    }

    fn read_skill_counts(&self) -> Vec<Sample<1, usize>> {
        let skills = self.services.skills.of_daemon();
        // Before the end of the first scan nothing is known.
        let Some(Ok(catalogue)) = skills.catalogue().now_or_never() else {
            return Vec::new();
        };
        let mut samples = Vec::new();
        for (state, name) in [
            (SkillState::Loaded, "loaded"),
            (SkillState::LoadedWithWarnings, "loaded_with_warnings"),
            (SkillState::Rejected, "rejected"),
            (SkillState::Shadowed, "shadowed"),
        ] {
            let skills = catalogue.skills.iter();
            let count = skills.filter(|skill| skill.state == state).count();
            samples.push(([name.to_owned()], count));
        }
        samples
    }

    fn read_expiries(&self) -> Vec<Sample<1, u64>> {
        let mut samples = Vec::new();
        for listener in &self.tls {
            let expires = listener.current().expires;
            let since_1970 = expires.duration_since(SystemTime::UNIX_EPOCH);
            let seconds = since_1970.unwrap_or_default().as_secs();
            let key = &listener.key;
            let name = key.strip_suffix(".tls").unwrap_or(key);
            samples.push(([name.to_owned()], seconds));
        }
        samples
    }
}

/// Encodes one family of gauges; nothing without samples.
fn encode_gauges<const LABELS: usize, N: EncodeGaugeValue + Copy>(
    encoder: &mut DescriptorEncoder<'_>,
    name: &str,
    help: &str,
    labels: [&str; LABELS],
    samples: &[Sample<LABELS, N>],
) -> fmt::Result {
    if samples.is_empty() {
        return Ok(());
    }
    let mut family = encoder.encode_descriptor(name, help, None, MetricType::Gauge)?;
    for (values, value) in samples {
        let pairs: Vec<(&str, &str)> = labels
            .into_iter()
            .zip(values.iter().map(String::as_str))
            .collect();
        ConstGauge::new(*value).encode(family.encode_family(&pairs)?)?;
    }
    Ok(())
}

fn encode_lost_records(encoder: &mut DescriptorEncoder<'_>, lost: u64) -> fmt::Result {
    let (name, help) = (
        "skilld_audit_lost",
        "Records of the audit log that were lost",
    );
    let counter = encoder.encode_descriptor(name, help, None, MetricType::Counter)?;
    ConstCounter::new(lost).encode(counter)
}

/// Converts an amount to a gauge's value, as exactly as Prometheus can store it.
#[expect(
    clippy::cast_precision_loss,
    reason = "Prometheus stores floats; amounts over 2^53 need no exact value"
)]
fn to_float(amount: u64) -> f64 {
    amount as f64
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::metrics::{Metrics, MetricsFormat};

    /// Collector of a gauge without samples and of the number of lost records.
    #[derive(Debug)]
    struct AuditCollector;

    impl Collector for AuditCollector {
        fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
            encode_gauges::<1, usize>(&mut encoder, "skilld_pool_warm", "", ["pool"], &[])?;
            encode_lost_records(&mut encoder, 3)
        }
    }

    #[test]
    fn lost_records_are_a_counter_and_absent_figures_have_no_family() {
        let page = Metrics::default()
            .encode(MetricsFormat::OpenMetrics, Box::new(AuditCollector), None)
            .expect("encoded");
        assert!(
            page.contains("# TYPE skilld_audit_lost counter\n"),
            "{page}"
        );
        assert!(page.contains("\nskilld_audit_lost_total 3\n"), "{page}");
        assert!(!page.contains("skilld_pool_warm"), "{page}");
    }
}
