//! Preconditions of a start: what the daemon needs of its host before it takes anything. The start requires all of
//! them; `skilld --check` and `skilld doctor` report each one, with the message of the start. A check leaves nothing
//! behind.

use std::sync::Arc;
use std::time::Duration;

use bytesize::ByteSize;
use futures::FutureExt;
use futures::future::{BoxFuture, join_all};

use super::bound_listeners::check_listener;
use super::instance::InstanceLock;
use super::trace_export::TraceExport;
use crate::access::AccessControl;
use crate::artifacts::Artifacts;
use crate::audit::AuditLog;
use crate::config::{Config, PoolConfig, PullPolicy};
use crate::doctor::{CheckLine, RUNNING_CHECK};
use crate::engine::docker::connect_engine;
use crate::engine::{Engine, EngineInfo};
use crate::error::{Chain, Error, Result};
use crate::shutdown::Tasks;
use crate::workspace::registry::{find_pool_image, resolve_runtime};
use crate::workspace::slot_disk;

/// Name of the check of every precondition in reports.
const CHECK: &str = "start";
/// Longest wait of a report for one precondition, and for one answer of the engine. A start has no such limit.
const CHECK_TIMEOUT: Duration = Duration::from_secs(10);
/// Longest wait of a report for one answer of the artifact store. The three requests of its check fit into
/// [`CHECK_TIMEOUT`], so that the removal of its object is not cut off.
const STORE_TIMEOUT: Duration = Duration::from_secs(3);
/// Remedy beside a message that says what is wrong.
const REMEDY: &str = "correct it; until then skilld does not start";

/// Precondition of a start, with the check of it.
struct Precondition {
    /// Configuration key of what has to be usable.
    key: String,
    /// Outcome of the check, which begins when this is awaited.
    outcome: BoxFuture<'static, Result<()>>,
}

/// Checks all preconditions, for a start that has taken its state directory.
///
/// # Errors
/// That of the first precondition that the host does not meet.
pub(super) async fn require_all(config: &Arc<Config>, tasks: &Tasks) -> Result<()> {
    for precondition in list_preconditions(config, tasks, false) {
        precondition.outcome.await?;
    }
    Ok(())
}

/// Checks the state directory, all preconditions and the pools, for a report.
pub(super) async fn check_start(config: &Config) -> Vec<CheckLine> {
    crate::fetch::install_crypto_provider();
    let mut config = config.clone();
    config.artifacts.timeout = config.artifacts.timeout.min(STORE_TIMEOUT);
    let (config, tasks) = (Arc::new(config), Tasks::default());
    let state_dir = config.state_dir.clone();
    let checked = tasks.blocking(move || InstanceLock::check(&state_dir));
    let checked = within_limit(checked).await;
    let is_running = matches!(checked, Ok(true));
    let mut lines = vec![make_line("state_dir", checked.map(drop))];
    if is_running {
        let finding = format!(
            "skilld runs on {}, so addresses and files that are in use count as its own",
            config.state_dir.display()
        );
        lines.push(CheckLine::ok(RUNNING_CHECK, "daemon", finding));
    }
    let preconditions = list_preconditions(&config, &tasks, is_running).into_iter();
    let checks = preconditions
        .map(async |Precondition { key, outcome }| make_line(&key, within_limit(outcome).await));
    let (checked, pools) = tokio::join!(join_all(checks), check_pools(&config, &tasks));
    lines.extend(checked);
    lines.extend(pools);
    lines
}

/// Lists the preconditions in the order of the start. If a daemon `is_running` on the state directory, what it holds is
/// not reported as taken.
fn list_preconditions(config: &Arc<Config>, tasks: &Tasks, is_running: bool) -> Vec<Precondition> {
    let mut list = Vec::new();
    if config.auth.is_some() {
        let config = Arc::clone(config);
        let check = move || AccessControl::check(&config);
        list.push(Precondition::blocking("auth", tasks, check));
    }
    for (index, listener) in config.listeners.iter().enumerate() {
        let (key, address) = (format!("listeners.{index}"), listener.address.clone());
        let subject = key.clone();
        let check = move || check_listener(&key, &address, is_running);
        list.push(Precondition::blocking(subject, tasks, check));
    }
    if let Some(path) = config.audit.file.clone() {
        let state_dir = config.state_dir.clone();
        let check = move || AuditLog::check(&path, &state_dir, is_running);
        list.push(Precondition::blocking("audit.file", tasks, check));
    }
    if config.traces.endpoint.is_some() {
        let config = Arc::clone(config);
        let check = move || TraceExport::check(&config.traces);
        list.push(Precondition::blocking("traces", tasks, check));
    }
    let (store, tasks) = (Arc::clone(config), tasks.clone());
    list.push(Precondition {
        key: "artifacts".to_owned(),
        outcome: async move { Artifacts::check(&store.artifacts, &tasks).await }.boxed(),
    });
    list
}

/// Checks what each pool needs of the engine. Without an engine, one line says that nothing is checked.
async fn check_pools(config: &Arc<Config>, tasks: &Tasks) -> Vec<CheckLine> {
    let options = &config.engine;
    let timeout = options.timeout.min(CHECK_TIMEOUT);
    let asked = async {
        let engine = connect_engine(&options.docker_host, timeout, None).await?;
        let info = engine.describe().await?;
        Ok::<_, Error>((engine, info))
    };
    let (engine, info) = match asked.await {
        Ok(answer) => answer,
        Err(error) => {
            let finding = format!("images and OCI runtimes are not checked: {}", Chain(&error));
            let remedy = "make the engine answer, and check again";
            return vec![CheckLine::warning(CHECK, "pools", finding, remedy)];
        }
    };
    let pools = config.pools.iter();
    let mut lines =
        join_all(pools.map(|pool| check_pool(config, pool, engine.as_ref(), &info))).await;
    let config = Arc::clone(config);
    let storage = tasks.blocking(move || slot_disk::require_host_support(&config, &info));
    lines.push(make_line("pools.*.storage", within_limit(storage).await));
    lines
}

async fn check_pool(
    config: &Config,
    pool: &PoolConfig,
    engine: &dyn Engine,
    info: &EngineInfo,
) -> CheckLine {
    let (key, image) = (format!("pools.{}", pool.name), &pool.image);
    let found = match resolve_runtime(pool.clone(), info) {
        Ok(_) => find_pool_image(engine, pool, pool.name == config.default_pool).await,
        Err(error) => Err(error),
    };
    match found {
        Ok(Ok(found)) => {
            let finding = format!("image {image}, {}", ByteSize::b(found.size_bytes));
            CheckLine::ok(CHECK, key, finding)
        }
        Ok(Err(error @ Error::ImageMissing { .. })) => {
            let remedy = match pool.pull == PullPolicy::Missing {
                true => format!("skilld pulls it; `docker pull {image}` does so at once"),
                false => format!(
                    "until then the pool does not serve; {key}.warm = 0 and {key}.max = 0 switch it off"
                ),
            };
            CheckLine::warning(CHECK, key, error.to_string(), remedy)
        }
        // The daemon starts without it.
        Ok(Err(error)) => {
            let remedy = format!(
                "correct the image; until then the pool does not serve; {key}.warm = 0 and {key}.max = 0 switch it off"
            );
            CheckLine::failed(CHECK, key, error.to_string(), remedy)
        }
        Err(error) => make_line(&key, Err(error)),
    }
}

/// Ends a check that takes too long.
async fn within_limit<T>(check: impl Future<Output = Result<T>>) -> Result<T> {
    let checked = tokio::time::timeout(CHECK_TIMEOUT, check).await;
    checked.unwrap_or_else(|_| {
        let why = format!("no answer within {CHECK_TIMEOUT:?}");
        Err(Error::start("its file system or its server", why))
    })
}

/// Makes the line of a precondition.
fn make_line(key: &str, outcome: Result<()>) -> CheckLine {
    match outcome {
        Ok(()) => CheckLine::ok(CHECK, key, "usable"),
        Err(error) => CheckLine::failed(CHECK, key, Chain(&error).to_string(), REMEDY),
    }
}

impl Precondition {
    /// Makes a precondition whose check is blocking work.
    fn blocking(
        key: impl Into<String>,
        tasks: &Tasks,
        work: impl FnOnce() -> Result<()> + Send + 'static,
    ) -> Self {
        let (key, tasks) = (key.into(), tasks.clone());
        let outcome = async move { tasks.blocking(work).await }.boxed();
        Self { key, outcome }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::doctor::CheckState;
    use crate::engine::ImageInfo;
    use crate::engine::fake::FakeEngine;

    /// Returns the line of a pool for a configuration.
    async fn check(text: &str, name: &str, engine: &FakeEngine) -> CheckLine {
        let config = Config::from_toml(text).expect("valid").config;
        let mut pools = config.pools.iter();
        let pool = pools.find(|pool| pool.name == name).expect("the pool");
        let info = engine.describe().await.expect("described");
        check_pool(&config, pool, engine, &info).await
    }

    #[tokio::test]
    async fn missing_image_fails_only_where_the_daemon_does_not_start() {
        let engine = FakeEngine::new();
        let line = check("", "default", &engine).await;
        assert_eq!(line.state, CheckState::Ok, "{line:?}");
        for image in ["skilld/base:latest", "skilld/office:latest"] {
            engine.remove_image(image);
        }
        for (text, pool, expected, part) in [
            ("", "default", CheckState::Failed, "run `make image`"),
            (
                "[pools.default]\npull = \"missing\"",
                "default",
                CheckState::Warning,
                "skilld pulls it",
            ),
            ("", "office", CheckState::Warning, "make image IMAGE=office"),
            (
                "default_pool = \"office\"",
                "office",
                CheckState::Failed,
                "make image IMAGE=office",
            ),
        ] {
            let line = check(text, pool, &engine).await;
            assert_eq!(line.state, expected, "{line:?}");
            assert!(format!("{line:?}").contains(part), "{line:?}");
        }
    }

    #[tokio::test]
    async fn unusable_image_or_runtime_fails_in_every_pool() {
        let engine = FakeEngine::new();
        for (name, image) in [
            ("default", "skilld/base:latest"),
            ("office", "skilld/office:latest"),
        ] {
            let text = format!("[pools.{name}]\noci_runtime = \"kata\"");
            let line = check(&text, name, &engine).await;
            assert_eq!(line.state, CheckState::Failed, "{line:?}");
            let expected = format!("pool {name} wants kata");
            assert!(line.finding.contains(&expected), "{line:?}");
            engine.describe_image(ImageInfo {
                reference: image.to_owned(),
                volumes: vec!["/data".to_owned()],
                ..ImageInfo::default()
            });
            let line = check("", name, &engine).await;
            assert_eq!(line.state, CheckState::Failed, "{line:?}");
            assert!(line.finding.contains("VOLUME /data"), "{line:?}");
        }
    }
}
