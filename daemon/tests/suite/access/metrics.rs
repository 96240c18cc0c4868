//! Every metric of docs/metrics.md: the daemon shows it, and it changes with what it counts.

use std::collections::{BTreeMap, BTreeSet};
use std::io::Write;
use std::net::SocketAddr;

use skilld::engine::Engine;
use skilld_client::{Client, SaveTarget};
use skilld_proto::v1 as pb;
use skilld_tests::authority::Validity;

use super::harness::{AccessServer, connect};
use super::metrics_listener::fetch;
use super::quotas::{create, set_quotas};
use crate::server::wait_until;

/// Labels that metrics may have. None of them has a value that a client chooses.
const LABELS: [&str; 12] = [
    "le",
    "listener",
    "pool",
    "reason",
    "resource",
    "result",
    "rpc_method",
    "rpc_response_status_code",
    "source",
    "state",
    "tenant",
    "via",
];

/// Samples of a page by the name of their family.
type Families = BTreeMap<String, BTreeSet<String>>;

/// Returns the families of a page in the format of OpenMetrics. A counter has the name of its samples.
fn parse_families(page: &str) -> Families {
    let mut families = Families::new();
    let mut name = String::new();
    for line in page.lines() {
        if let Some(described) = line.strip_prefix("# TYPE ") {
            let (family, kind) = described.split_once(' ').expect("a type");
            let suffix = if kind == "counter" { "_total" } else { "" };
            name = format!("{family}{suffix}");
            families.entry(name.clone()).or_default();
        } else if !line.starts_with('#') {
            assert!(line.starts_with(&name), "{line} belongs to {name}");
            let samples = families.get_mut(&name).expect("described first");
            assert!(samples.insert(line.to_owned()), "{line} comes twice");
        }
    }
    families
}

/// Scrapes of one daemon.
struct Scrapes {
    address: SocketAddr,
    first: Families,
    /// Families that once differed from the first scrape.
    changed: BTreeSet<String>,
}

impl Scrapes {
    /// Scrapes a daemon for the first time, once it has warmed a container and scanned the skills.
    async fn begin(server: &AccessServer) -> Self {
        let mut scrapes = Self {
            address: *server.metrics.first().expect("plain"),
            first: Families::new(),
            changed: BTreeSet::new(),
        };
        scrapes.wait_for("skilld_pool_warm{pool=\"default\"}").await;
        scrapes.wait_for("skilld_skills{state=\"loaded\"}").await;
        scrapes.wait_for_family("skilld_artifact_bytes").await;
        scrapes.first = scrapes.scrape().await;
        scrapes.changed.clear();
        scrapes
    }

    async fn scrape(&mut self) -> Families {
        let (status, page) = fetch(self.address, "GET", "/metrics", "").await;
        assert_eq!(status, 200, "{page}");
        assert!(page.ends_with("# EOF\n"), "{page}");
        let families = parse_families(&page);
        let changed = families
            .iter()
            .filter(|(name, samples)| self.first.get(*name) != Some(samples));
        self.changed.extend(changed.map(|(name, _)| name.clone()));
        families
    }

    /// Scrapes until a family is shown.
    async fn wait_for_family(&mut self, name: &str) {
        wait_until(name, async || {
            self.scrape().await.contains_key(name).then_some(())
        })
        .await;
    }

    /// Scrapes until a family has a sample that begins so and is not zero.
    async fn wait_for(&mut self, sample: &str) {
        wait_until(sample, async || {
            let families = self.scrape().await;
            let mut samples = families.values().flatten();
            samples
                .any(|line| line.starts_with(sample) && !line.ends_with(" 0"))
                .then_some(())
        })
        .await;
    }
}

/// Returns the names in the table of docs/metrics.md, of which one row may have several.
fn documented_names() -> BTreeSet<String> {
    let text = include_str!("../../../../docs/metrics.md");
    let rows = text.lines().filter(|line| line.starts_with("| `"));
    let cells = rows.filter_map(|row| row.split('|').nth(1));
    cells
        .flat_map(|cell| cell.split('`').skip(1).step_by(2))
        .filter(|name| name.starts_with("skilld_") || name.starts_with("rpc_"))
        .map(str::to_owned)
        .collect()
}

async fn run_exec(user: &Client, workspace: &str) {
    let spec = pb::ExecSpec {
        argv: vec!["/bin/true".to_owned()],
        ..pb::ExecSpec::default()
    };
    let request = pb::RunExecRequest {
        parent: workspace.to_owned(),
        spec: Some(spec.clone()),
        ..pb::RunExecRequest::default()
    };
    let mut stream = user
        .execs()
        .run_exec(request)
        .await
        .expect("running")
        .into_inner();
    while stream.message().await.expect("events").is_some() {}
    let request = pb::StartExecRequest {
        parent: workspace.to_owned(),
        spec: Some(spec),
        ..pb::StartExecRequest::default()
    };
    user.execs().start_exec(request).await.expect("started");
}

/// Claims a warm container, one by way of the queue, and one with limits of its own.
async fn claim_from_all_sources(server: &AccessServer, scrapes: &mut Scrapes) {
    let user = server.client("a", "user").await;
    // The container that refills the pool boots, and never answers, until both figures were seen.
    server.engine.start_without_guest();
    create(&user, "warm").await.expect("a warm container");
    let seen = async {
        for figure in ["booting", "waiting"] {
            let sample = format!("skilld_pool_{figure}{{pool=\"default\"}}");
            scrapes.wait_for(&sample).await;
        }
        let silent = wait_until("a container without a guest runs", async || {
            let newest = server.engine.container_ids().pop()?;
            let state = server.engine.inspect(&newest).await.ok()??;
            (state.running && state.pid == 0).then_some(newest)
        })
        .await;
        server.engine.start_with_guest();
        server.engine.kill_container(&silent).await;
    };
    let (queued, ()) = tokio::join!(create(&user, "queued"), seen);
    queued.expect("a container by way of the queue");
    let request = pb::CreateWorkspaceRequest {
        workspace_id: "booted".to_owned(),
        limits: Some(pb::WorkspaceLimits {
            cpu_millis: 100,
            ..pb::WorkspaceLimits::default()
        }),
        ..pb::CreateWorkspaceRequest::default()
    };
    user.create_workspace(request).await.expect("booted for it");
    let claims = "skilld_claim_duration_seconds_count{pool=\"default\",source=";
    for source in ["warm", "queued", "booted"] {
        scrapes.wait_for(&format!("{claims}\"{source}\"}}")).await;
    }
}

/// Meets a quota, and presents an unknown token.
async fn be_refused(server: &AccessServer, scrapes: &mut Scrapes) {
    set_quotas(server, "workspaces = 3", "workspaces", 3).await;
    let user = server.client("a", "user").await;
    create(&user, "fourth").await.expect_err("over the quota");
    let refused = "skilld_quota_refused_total{tenant=\"a\",resource=\"workspaces\"} 1";
    scrapes.wait_for(refused).await;
    let wrong = format!("skt_a-user_{}", "x".repeat(43));
    let nobody = connect(&server.with_token(wrong)).await;
    nobody.get_principal().await.expect_err("unknown");
    let refused = "skilld_authentications_total{via=\"token\",result=\"unauthenticated\"}";
    scrapes.wait_for(refused).await;
}

/// Saves an artifact of five bytes, which counts a block for each of its files and directories as well.
async fn save_artifact(server: &AccessServer, scrapes: &mut Scrapes) {
    let user = server.client("a", "user").await;
    let target = SaveTarget::new("x", pb::ArtifactScope::default());
    user.save_artifact(target, &b"bytes"[..])
        .await
        .expect("saved");
    scrapes
        .wait_for("skilld_artifact_bytes{tenant=\"a\"} 16389")
        .await;
}

/// Adds a skill to a root.
async fn add_skill(server: &AccessServer) {
    let skill = server.path("root1/new");
    std::fs::create_dir(&skill).expect("mkdir");
    let front = "---\nname: new\ndescription: it is new\n---\n";
    std::fs::write(skill.join("SKILL.md"), front).expect("write");
    let admin = server.client("a", "admin").await;
    admin.refresh_skills().await.expect("refreshed");
}

/// Calls until a record of the audit log is lost on its full disk.
async fn lose_record(server: &AccessServer, scrapes: &mut Scrapes) {
    fill_disk(server);
    let admin = server.client("a", "admin").await;
    let is_lost = |families: &Families| {
        let samples = families.get("skilld_audit_lost_total");
        samples.is_some_and(|samples| samples.iter().any(|line| !line.ends_with(" 0")))
    };
    wait_until("a record is lost", async || {
        if is_lost(&scrapes.scrape().await) {
            return Some(());
        }
        // It does not exist, which the log records.
        let deleted = admin.delete_workspace("workspaces/none").await;
        deleted.expect_err("absent");
        None
    })
    .await;
}

/// Fills the disk of the audit log.
fn fill_disk(server: &AccessServer) {
    let mut filler = std::fs::File::create(server.path("small/filler")).expect("file");
    let mut block = 1 << 16;
    while block > 0 {
        if filler.write(&vec![0; block]).is_err() {
            block /= 2;
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn every_documented_metric_changes_with_what_it_counts() {
    let server = AccessServer::start_with_metrics().await;
    let mut scrapes = Scrapes::begin(&server).await;
    claim_from_all_sources(&server, &mut scrapes).await;
    run_exec(&server.client("a", "user").await, "workspaces/warm").await;
    // The guest of the fake engine has no /workspace in which a command could run.
    for sample in [
        "skilld_execs_total{pool=\"default\",reason=\"spawn_failed\"}",
        "skilld_execs_total{pool=\"default\",reason=\"detached\"}",
        "skilld_tenant_usage{tenant=\"a\",resource=\"memory\"}",
        "skilld_trace_spans_total{result=\"failed\"}",
    ] {
        scrapes.wait_for(sample).await;
    }
    be_refused(&server, &mut scrapes).await;
    save_artifact(&server, &mut scrapes).await;
    add_skill(&server).await;
    lose_record(&server, &mut scrapes).await;
    // The last change, since no client trusts the new certificate.
    server
        .authority
        .issue_server("server", &["localhost"], Validity::Expired);
    let end_of_2020 = "skilld_certificate_expiry_seconds{listener=\"listeners.1\"} 1609459200";
    scrapes.wait_for(end_of_2020).await;

    let last = scrapes.scrape().await;
    let shown: BTreeSet<String> = last.keys().cloned().collect();
    assert_eq!(shown, documented_names());
    assert_eq!(scrapes.changed, shown, "families that changed, and all");
    for (name, samples) in &last {
        for label in samples.iter().flat_map(|line| label_names(line)) {
            assert!(LABELS.contains(&label), "{name} has the label {label}");
        }
    }
    assert!(server.stop().await);
}

#[tokio::test(flavor = "multi_thread")]
async fn every_quota_of_an_amount_has_a_gauge() {
    let server = AccessServer::start_with_metrics().await;
    let user = server.client("a", "user").await;
    let usage = user.get_tenant_usage().await.expect("usage");
    let mut scrapes = Scrapes::begin(&server).await;
    let page = scrapes.scrape().await;
    let samples: BTreeSet<&str> = page
        .values()
        .flatten()
        .filter_map(|line| Some(line.rsplit_once(' ')?.0))
        .collect();
    for resource in usage.resources {
        let name = resource.resource;
        let sample = match name.as_str() {
            // Rates hold nothing.
            "requests_per_second" | "workspace_creates_per_minute" => continue,
            "artifact_bytes" => "skilld_artifact_bytes{tenant=\"a\"}".to_owned(),
            name => format!("skilld_tenant_usage{{tenant=\"a\",resource=\"{name}\"}}"),
        };
        assert!(samples.contains(sample.as_str()), "{sample}: {samples:?}");
    }
    assert!(server.stop().await);
}

/// Returns the names of a sample's labels, whose values have no commas and no quotes.
fn label_names(line: &str) -> Vec<&str> {
    let labels = line
        .split_once('{')
        .and_then(|(_, rest)| rest.split_once('}'));
    let pairs = labels.map_or("", |(labels, _)| labels).split(',');
    pairs
        .filter_map(|pair| Some(pair.split_once('=')?.0))
        .collect()
}
