//! Tests of the text of metrics.

use prometheus_client::encoding::DescriptorEncoder;

use super::*;

/// Collector without metrics.
#[derive(Debug)]
struct EmptyCollector;

impl Collector for EmptyCollector {
    fn encode(&self, _encoder: DescriptorEncoder<'_>) -> fmt::Result {
        Ok(())
    }
}

/// Returns the page of metrics, without those of a collector.
pub(crate) fn page_of(metrics: &Metrics) -> String {
    page(metrics, MetricsFormat::Prometheus, None)
}

fn page(metrics: &Metrics, format: MetricsFormat, tenant: Option<&str>) -> String {
    let is_visible = |label: &str, value: &str| label != "tenant" || Some(value) == tenant;
    let filter: &SampleFilter<'_> = &is_visible;
    let page = metrics.encode(format, Box::new(EmptyCollector), tenant.map(|_| filter));
    page.expect("encoded")
}

#[test]
fn formats_differ_in_the_names_of_counters_and_in_the_end() {
    let metrics = Metrics::default();
    metrics.count_exec("default", "exited");
    let sample = "skilld_execs_total{pool=\"default\",reason=\"exited\"} 1\n";
    let open = page(&metrics, MetricsFormat::OpenMetrics, None);
    assert!(open.contains("# TYPE skilld_execs counter\n"), "{open}");
    assert!(open.contains(sample), "{open}");
    assert!(open.ends_with("# EOF\n"), "{open}");
    let plain = page(&metrics, MetricsFormat::Prometheus, None);
    assert!(
        plain.contains("# TYPE skilld_execs_total counter\n"),
        "{plain}"
    );
    assert!(plain.contains(sample), "{plain}");
    assert!(!plain.contains("# EOF"), "{plain}");
}

#[test]
fn format_follows_the_accept_header() {
    let format = MetricsFormat::for_accept_header;
    let prometheus = "application/openmetrics-text;version=1.0.0;q=0.6,text/plain;q=0.5,*/*;q=0.1";
    assert_eq!(format(prometheus), MetricsFormat::OpenMetrics);
    assert_eq!(format("*/*"), MetricsFormat::Prometheus);
    assert_eq!(format(""), MetricsFormat::Prometheus);
}

#[test]
fn a_tenant_sees_no_samples_of_others() {
    let metrics = Metrics::default();
    metrics.count_quota_refusal("a", "workspaces");
    metrics.count_quota_refusal("a.b", "workspaces");
    metrics.count_exec("default", "exited");
    let own = page(&metrics, MetricsFormat::OpenMetrics, Some("a"));
    assert!(own.contains("tenant=\"a\""), "{own}");
    assert!(!own.contains("tenant=\"a.b\""), "{own}");
    assert!(own.contains("skilld_execs_total{"), "{own}");
    assert!(own.ends_with("# EOF\n"), "{own}");
    // A label whose name ends like that of the tenant is another one.
    let line = "x{subtenant=\"b\",y=\"1\"} 1\n";
    let is_visible = |label: &str, value: &str| (label, value) == ("tenant", "a");
    assert_eq!(retain_visible(line, &is_visible), line);
    let pool = "x{pool=\"p\",tenant=\"a\"} 1\n";
    assert_eq!(retain_visible(pool, &is_visible), "");
}

#[tokio::test(start_paused = true)]
async fn queue_wait_is_recorded_when_its_timer_is_dropped() {
    let metrics = Metrics::default();
    let timer = metrics.start_queue_wait("default");
    tokio::time::advance(Duration::from_secs(3)).await;
    let text = page(&metrics, MetricsFormat::Prometheus, None);
    assert!(text.contains("skilld_queue_wait_seconds_count{pool=\"default\"} 0"));
    drop(timer);
    let text = page(&metrics, MetricsFormat::Prometheus, None);
    assert!(
        text.contains("skilld_queue_wait_seconds_sum{pool=\"default\"} 3"),
        "{text}"
    );
}
