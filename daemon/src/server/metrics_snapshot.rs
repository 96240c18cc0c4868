//! Metrics that are read when Prometheus asks. They are figures of pools, tenants, artifacts, skills, certificates and
//! the audit log.

use std::fmt;
use std::sync::Arc;
use std::time::SystemTime;

use futures::FutureExt;
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{
    DescriptorEncoder, EncodeCounterValue, EncodeGaugeValue, EncodeMetric,
};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::metrics::gauge::ConstGauge;

use crate::access::{TenantName, TlsSettings, WatchedFile};
use crate::audit::AuditLog;
use crate::rpc::SharedDependencies;
use crate::skills::catalogue::skill::SkillState;

/// Sources of a snapshot.
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

/// Figures at one time.
#[derive(Debug, Default)]
pub(super) struct MetricsSnapshot {
    warm: Vec<Sample<1, usize>>,
    booting: Vec<Sample<1, usize>>,
    claimed: Vec<Sample<1, usize>>,
    waiting: Vec<Sample<1, usize>>,
    usage: Vec<Sample<2, f64>>,
    artifacts: Vec<Sample<1, u64>>,
    skills: Vec<Sample<1, usize>>,
    expiries: Vec<Sample<1, u64>>,
    audit_lost: Option<u64>,
}

impl MetricsSources {
    /// Reads all figures. Waits for nothing.
    pub(super) fn take_snapshot(&self) -> MetricsSnapshot {
        let mut snapshot = MetricsSnapshot {
            audit_lost: self.audit.as_ref().map(AuditLog::lost),
            ..MetricsSnapshot::default()
        };
        for (name, pool) in self.services.registry.pools.iter() {
            let figures = pool.snapshot();
            let labels = || [name.clone()];
            snapshot.warm.push((labels(), figures.warm));
            snapshot.booting.push((labels(), figures.booting));
            snapshot.claimed.push((labels(), figures.claimed));
            snapshot.waiting.push((labels(), figures.waiting));
        }
        self.read_usage(&mut snapshot);
        self.read_artifacts(&mut snapshot);
        self.read_skills(&mut snapshot);
        for listener in &self.tls {
            let expires = listener.current().expires;
            let since_1970 = expires.duration_since(SystemTime::UNIX_EPOCH);
            let seconds = since_1970.unwrap_or_default().as_secs();
            let key = &listener.key;
            let name = key.strip_suffix(".tls").unwrap_or(key);
            snapshot.expiries.push(([name.to_owned()], seconds));
        }
        snapshot
    }

    fn read_usage(&self, snapshot: &mut MetricsSnapshot) {
        let workspaces = &self.services.registry.context.workspaces;
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
                let labels = [tenant.to_string(), resource.to_owned()];
                snapshot.usage.push((labels, amount));
            }
        }
    }

    fn read_artifacts(&self, snapshot: &mut MetricsSnapshot) {
        let artifacts = &self.services.artifacts;
        // Before the end of the first count the amounts are too small.
        if !artifacts.is_counted() {
            return;
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
        let samples = tenants
            .iter()
            .map(|tenant| ([tenant.to_string()], artifacts.held_by(tenant).bytes));
        snapshot.artifacts.extend(samples);
    }

    fn read_skills(&self, snapshot: &mut MetricsSnapshot) {
        let skills = self.services.skills.of_daemon();
        // Before the end of the first scan nothing is known.
        let Some(Ok(catalogue)) = skills.catalogue().now_or_never() else {
            return;
        };
        for (state, name) in [
            (SkillState::Loaded, "loaded"),
            (SkillState::LoadedWithWarnings, "loaded_with_warnings"),
            (SkillState::Rejected, "rejected"),
            (SkillState::Shadowed, "shadowed"),
        ] {
            let skills = catalogue.skills.iter();
            let count = skills.filter(|skill| skill.state == state).count();
            snapshot.skills.push(([name.to_owned()], count));
        }
    }
}

impl Collector for MetricsSnapshot {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let encoder = &mut encoder;
        let pools = [
            (
                "skilld_pool_warm",
                "Containers that are ready to be claimed",
                &self.warm,
            ),
            ("skilld_pool_booting", "Containers that boot", &self.booting),
            (
                "skilld_pool_claimed",
                "Containers that are workspaces, or end",
                &self.claimed,
            ),
            (
                "skilld_pool_waiting",
                "Requests in the queue",
                &self.waiting,
            ),
        ];
        for (name, help, samples) in pools {
            encode_gauges(encoder, name, help, ["pool"], samples)?;
        }
        encode_gauges(
            encoder,
            "skilld_tenant_usage",
            "What tenants hold of the resources that quotas limit",
            ["tenant", "resource"],
            &self.usage,
        )?;
        encode_gauges(
            encoder,
            "skilld_artifact_bytes",
            "Bytes of the artifacts of tenants",
            ["tenant"],
            &self.artifacts,
        )?;
        encode_gauges(
            encoder,
            "skilld_skills",
            "Skills of the catalogue",
            ["state"],
            &self.skills,
        )?;
        encode_gauges(
            encoder,
            "skilld_certificate_expiry_seconds",
            "Unix time at which the certificate of a listener expires",
            ["listener"],
            &self.expiries,
        )?;
        match self.audit_lost {
            Some(lost) => encode_counter(
                encoder,
                "skilld_audit_lost",
                "Records of the audit log that were lost",
                lost,
            ),
            None => Ok(()),
        }
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

fn encode_counter<N: EncodeCounterValue>(
    encoder: &mut DescriptorEncoder<'_>,
    name: &str,
    help: &str,
    value: N,
) -> fmt::Result {
    let family = encoder.encode_descriptor(name, help, None, MetricType::Counter)?;
    ConstCounter::new(value).encode(family)
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

    #[test]
    fn lost_records_are_a_counter_and_absent_figures_have_no_family() {
        let snapshot = MetricsSnapshot {
            audit_lost: Some(3),
            ..MetricsSnapshot::default()
        };
        let page = Metrics::default()
            .encode(MetricsFormat::OpenMetrics, Box::new(snapshot), None)
            .expect("encoded");
        assert!(
            page.contains("# TYPE skilld_audit_lost counter\n"),
            "{page}"
        );
        assert!(page.contains("\nskilld_audit_lost_total 3\n"), "{page}");
        assert!(!page.contains("skilld_pool_warm"), "{page}");
    }
}
