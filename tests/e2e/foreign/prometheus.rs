//! Prometheus reads the daemon's metrics: its own linter accepts them, the alerts are valid and fire when they should,
//! and every query of the dashboard has data.

use std::path::{Path, PathBuf};
use std::process::Stdio;

use anyhow::{Context, Result, ensure};
use serde_json::Value;
use skilld_client::v1::{CreateWorkspaceRequest, ErrorReason};
use skilld_tests::exec::{run, shell};
use skilld_tests::http_page::fetch_page;
use skilld_tests::{Daemon, Options, binaries, expect_refusal, wait};
use tempfile::TempDir;
use tokio::io::AsyncWriteExt;
use tokio::process::{Child, Command};

use crate::foreign::{LIMIT, output};

/// Reason of a failure without Debian's package.
const MISSING: &str = "Prometheus is missing: install it (Debian, Ubuntu: apt-get install --no-install-recommends prometheus)";

/// Number of ports that are tried.
const ATTEMPTS_MAX: usize = 10;

/// Running Prometheus. Dropping the value ends its process.
struct Prometheus {
    _child: Child,
    address: String,
}

fn promtool() -> Command {
    Command::new("promtool")
}

fn deployed(path: &str) -> PathBuf {
    binaries::repository().join("deploy").join(path)
}

impl Prometheus {
    /// Starts Prometheus with the alerts of `deploy/` and two listeners of metrics, the second one with TLS.
    async fn start(dir: &Path, targets: &[String]) -> Result<Self> {
        let config = dir.join("prometheus.yml");
        let [plain, tls] = targets else {
            anyhow::bail!("two listeners, not {targets:?}");
        };
        let text = format!(
            "global: {{scrape_interval: 1s, evaluation_interval: 1s}}\nrule_files: [{:?}]\nscrape_configs:\n\
             - job_name: skilld\n  static_configs: [{{targets: [{plain:?}]}}]\n\
             - job_name: skilld-tls\n  scheme: https\n  tls_config: {{ca_file: {:?}, server_name: localhost}}\n  \
             static_configs: [{{targets: [{tls:?}]}}]\n",
            deployed("prometheus/rules/skilld.yml"),
            dir.join("tls.crt"),
        );
        std::fs::write(&config, text)?;
        for _ in 0..ATTEMPTS_MAX {
            // Prometheus takes no socket and no port 0, so another process may take the port meanwhile: then it ends.
            let free = std::net::TcpListener::bind("127.0.0.1:0")?;
            let address = free.local_addr()?.to_string();
            drop(free);
            let mut child = Command::new("prometheus")
                .arg(format!("--config.file={}", config.display()))
                .arg(format!(
                    "--storage.tsdb.path={}",
                    dir.join("data").display()
                ))
                .arg(format!("--web.listen-address={address}"))
                .arg("--log.level=warn")
                .stderr(Stdio::from(std::fs::File::create(dir.join("log"))?))
                .kill_on_drop(true)
                .spawn()
                .context(MISSING)?;
            let is_ready = wait::until("Prometheus is ready", LIMIT, async || {
                let has_ended = child.try_wait()?.is_some();
                let page = fetch_page(&address, "/-/ready").await;
                Ok((has_ended || page.is_ok()).then_some(!has_ended))
            });
            if is_ready.await? {
                return Ok(Self {
                    _child: child,
                    address,
                });
            }
        }
        let log = std::fs::read_to_string(dir.join("log"))?;
        anyhow::bail!("Prometheus ended {ATTEMPTS_MAX} times: {log}")
    }

    /// Returns the result of a query. A query that Prometheus refuses is an error.
    async fn query(&self, expr: &str) -> Result<Vec<Value>> {
        let encoded: String = expr.bytes().map(|byte| format!("%{byte:02X}")).collect();
        let page = fetch_page(&self.address, &format!("/api/v1/query?query={encoded}")).await;
        let answer: Value = serde_json::from_str(&page.with_context(|| expr.to_owned())?)?;
        ensure!(answer["status"] == "success", "{expr}: {answer}");
        let result = answer["data"]["result"].as_array();
        Ok(result.context("a vector")?.clone())
    }

    /// Waits until a query has a result.
    async fn wait_for(&self, expr: &str) -> Result<Vec<Value>> {
        wait::until(&format!("{expr} has data"), LIMIT, async || {
            let samples = self.query(expr).await?;
            Ok((!samples.is_empty()).then_some(samples))
        })
        .await
    }
}

/// Makes a certificate for `localhost` that signs itself.
async fn make_certificate(dir: &Path) -> Result<()> {
    let mut openssl = Command::new("openssl");
    openssl
        .args(["req", "-x509", "-newkey", "ec", "-pkeyopt"])
        .args(["ec_paramgen_curve:prime256v1", "-nodes", "-days", "30"])
        .args([
            "-subj",
            "/CN=localhost",
            "-addext",
            "subjectAltName=DNS:localhost",
        ])
        .arg("-keyout")
        .arg(dir.join("tls.key"))
        .arg("-out")
        .arg(dir.join("tls.crt"));
    output(&mut openssl).await?;
    Ok(())
}

/// Starts a daemon with a tenant of at most two workspaces, an audit log and listeners of metrics.
async fn start_daemon(dir: &Path) -> Result<Daemon> {
    make_certificate(dir).await?;
    let tenants = format!(
        "[tenants.a]\nworkspaces = 2\n[[peers]]\nuid = {}\ntenant = \"a\"\nroles = [\"admin\"]\n",
        nix::unistd::geteuid()
    );
    std::fs::write(dir.join("tenants.toml"), tenants)?;
    let path = |name: &str| dir.join(name).display().to_string();
    let listeners = format!(
        "[{{kind=\"metrics\",address=\"127.0.0.1:0\"}},\
         {{kind=\"metrics\",address=\"127.0.0.1:0\",tls={{cert={:?},key={:?}}}}}]",
        path("tls.crt"),
        path("tls.key")
    );
    let options = Options::default()
        .set("listeners", &listeners)
        .set("auth.tenants_file", &path("tenants.toml"))
        .set("audit.file", &path("audit.log"))
        .set("log", "info");
    Daemon::start_with(options).await
}

/// Uses the daemon so that every panel of the dashboard has something to show.
async fn use_daemon(daemon: &Daemon) -> Result<()> {
    daemon.warm(1).await?;
    let create = CreateWorkspaceRequest::default;
    let workspace = daemon.client.create_workspace(create()).await?.name;
    // The pool boots its next container, so this request waits for it.
    daemon.client.create_workspace(create()).await?;
    let refused = daemon.client.create_workspace(create()).await;
    expect_refusal(refused, ErrorReason::QuotaExceeded)?;
    run(&daemon.client, &workspace, shell("true")).await?;
    Ok(())
}

/// Returns all queries of a dashboard, with values in place of its variables.
fn dashboard_queries(path: &Path) -> Result<Vec<String>> {
    let board: Value = serde_json::from_slice(&std::fs::read(path)?)?;
    let panels = board["panels"].as_array().context("panels")?;
    let targets = panels
        .iter()
        .filter_map(|panel| panel["targets"].as_array());
    let exprs = targets
        .flatten()
        .filter_map(|target| target["expr"].as_str());
    let filled = exprs.map(|expr| {
        expr.replace("$instance", ".*")
            .replace("$__rate_interval", "5m")
    });
    Ok(filled.collect())
}

#[tokio::test]
async fn alerts_are_valid_and_fire_for_their_case_only() -> Result<()> {
    let mut check = promtool();
    check
        .args(["check", "rules"])
        .arg(deployed("prometheus/rules/skilld.yml"));
    output(&mut check).await.context(MISSING)?;
    let mut test = promtool();
    test.args(["test", "rules"])
        .arg(binaries::repository().join("tests/e2e/foreign/prometheus/rules_test.yml"));
    output(&mut test).await?;
    Ok(())
}

#[tokio::test]
async fn prometheus_reads_all_metrics_and_every_panel_has_data() -> Result<()> {
    let dir = TempDir::new()?;
    let daemon = start_daemon(dir.path()).await?;
    use_daemon(&daemon).await?;
    // The Unix socket answers before the daemon has logged its other listeners.
    let addresses = wait::until("the log names both listeners", LIMIT, async || {
        let addresses = daemon.metrics_addresses();
        Ok((addresses.len() == 2).then_some(addresses))
    })
    .await?;
    lint_metrics(addresses.first().context("plain")?).await?;

    let prometheus = Prometheus::start(dir.path(), &addresses).await?;
    // Both listeners, over HTTP and over TLS, in the format that Prometheus asks for.
    prometheus.wait_for("count(up == 1) == 2").await?;
    let queries = dashboard_queries(&deployed("grafana/dashboards/skilld.json"))?;
    assert!(queries.len() > 20, "{queries:#?}");
    for query in &queries {
        prometheus.wait_for(query).await?;
    }
    let page = fetch_page(&prometheus.address, "/api/v1/rules").await?;
    let answer: Value = serde_json::from_str(&page)?;
    let rules = answer["data"]["groups"][0]["rules"]
        .as_array()
        .context("the alerts are loaded")?;
    for rule in rules {
        ensure!(
            rule["health"] == "ok" || rule["health"] == "unknown",
            "{rule}"
        );
        // A pause of the machine makes a scrape late, which an alert notes as pending.
        ensure!(rule["state"] != "firing", "{rule}");
    }
    drop(prometheus);
    daemon.stop().await
}

/// Checks the text format with Prometheus' own linter.
async fn lint_metrics(address: &str) -> Result<()> {
    let page = fetch_page(address, "/metrics").await?;
    let mut child = promtool()
        .args(["check", "metrics"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .kill_on_drop(true)
        .spawn()
        .context(MISSING)?;
    let mut stdin = child.stdin.take().context("stdin")?;
    stdin.write_all(page.as_bytes()).await?;
    drop(stdin);
    let ended = tokio::time::timeout(LIMIT, child.wait_with_output()).await??;
    let said = String::from_utf8_lossy(&ended.stderr);
    ensure!(ended.status.success() && said.is_empty(), "{said}");
    Ok(())
}
