//! `skillctl pool`, `server`, `problems`, `drain`: for those who run the daemon.

use clap::{Args, Subcommand};
use skilld_client::short_id;
use skilld_client::v1::problem::Severity;
use skilld_client::v1::{
    DrainRequest, GetProblemsResponse, ListPoolsResponse, Pool as Message, ServerInfo,
};

use crate::context::Context;
use crate::output::{self, Table};
use crate::{skill, values};

/// List and resize pools of warm containers.
#[derive(Debug, Subcommand)]
#[command(after_help = "Example:\n  skillctl pool list")]
pub(crate) enum Pool {
    #[command(visible_alias = "ls")]
    List(PoolList),
    Resize(PoolResize),
}

/// List the pools and how full they are.
#[derive(Debug, Args)]
#[command(after_help = "Example:\n  skillctl pool list")]
pub(crate) struct PoolList {}

/// Keep this many containers warm, until the daemon's next start.
#[derive(Debug, Args)]
#[command(after_help = "Example:\n  skillctl pool resize default 3")]
pub(crate) struct PoolResize {
    name: String,
    #[arg(value_name = "N", value_parser = clap::value_parser!(i32).range(0..))]
    warm: i32,
}

/// Look at the daemon.
#[derive(Debug, Subcommand)]
#[command(after_help = "Example:\n  skillctl server info")]
pub(crate) enum Server {
    Info(Info),
}

/// Show version, engine, features and limits.
#[derive(Debug, Args)]
#[command(after_help = "Example:\n  skillctl server info")]
pub(crate) struct Info {}

/// List problems of skills, roots and pools. Exits with 1 if one of them is an error; warnings do not count.
#[derive(Debug, Args)]
#[command(after_help = "Example:\n  skillctl problems")]
pub(crate) struct Problems {}

/// Stop taking new work.
#[derive(Debug, Args)]
#[command(after_help = "Example:\n  skillctl drain --remove")]
pub(crate) struct Drain {
    /// Also delete every workspace and every warm container.
    #[arg(long)]
    remove: bool,
}

impl Pool {
    pub(crate) async fn run(self, context: &Context) -> anyhow::Result<u8> {
        match self {
            Self::List(PoolList {}) => {
                let pools = context.client.list_pools().await?;
                let answer = ListPoolsResponse { pools };
                let ids = |answer: &ListPoolsResponse| {
                    let pools = answer.pools.iter().map(|pool| short_id(&pool.name));
                    pools.collect()
                };
                context
                    .output
                    .list("ListPoolsResponse", &answer, ids, |answer| {
                        table(&answer.pools)
                    })?;
            }
            Self::Resize(PoolResize { name, warm }) => {
                let pool = context.client.resize_pool(&name, warm).await?;
                context
                    .output
                    .message("Pool", &pool, |pool| table(std::slice::from_ref(pool)))?;
            }
        }
        Ok(0)
    }
}

fn table(pools: &[Message]) -> String {
    let mut table = Table::new([
        "NAME", "WARM", "BOOTING", "CLAIMED", "WAITING", "MAX", "IMAGE", "PROBLEM",
    ]);
    for pool in pools {
        table.row([
            short_id(&pool.name),
            format!("{}/{}", pool.warm, pool.warm_target),
            pool.booting.to_string(),
            pool.claimed.to_string(),
            pool.waiting.to_string(),
            pool.max.to_string(),
            pool.image.clone(),
            pool.problem.clone(),
        ]);
    }
    table.text()
}

impl Server {
    pub(crate) async fn run(self, context: &Context) -> anyhow::Result<u8> {
        let Self::Info(Info {}) = self;
        let info = context.client.server_info().await?;
        context.output.message("ServerInfo", &info, details)?;
        Ok(0)
    }
}

fn details(info: &ServerInfo) -> String {
    let engine = info.engine.clone().unwrap_or_default();
    let limits = info.limits.unwrap_or_default();
    let bytes = |count: i64| values::bytes(u64::try_from(count).unwrap_or(0));
    let available = if engine.available {
        ""
    } else {
        ", does not answer"
    };
    output::fields(&[
        ("version", info.version.clone()),
        ("instance", info.instance.clone()),
        ("up since", values::time(info.start_time.as_ref())),
        (
            "engine",
            format!(
                "{} {} (API {}, cgroup v{}{available})",
                engine.name, engine.version, engine.api_version, engine.cgroup_version
            ),
        ),
        ("runtimes", engine.oci_runtimes.join(", ")),
        ("features", info.features.join(", ")),
        ("pools", info.pools.join(", ")),
        ("default pool", info.default_pool.clone()),
        (
            "guest",
            format!(
                "{} (generation {})",
                info.guest_version, info.guest_generation
            ),
        ),
        ("seccomp", info.seccomp_digest.clone()),
        ("workspaces", format!("at most {}", limits.workspaces)),
        (
            "execs",
            format!("at most {} per workspace", limits.execs_per_workspace),
        ),
        (
            "exec timeout",
            format!(
                "{}, at most {}",
                values::span(limits.exec_timeout_default.as_ref()),
                values::span(limits.exec_timeout_max.as_ref())
            ),
        ),
        (
            "stage",
            format!("at most {} a call", bytes(limits.stage_bytes)),
        ),
        (
            "collect",
            format!(
                "at most {} files, {} each, {} in all",
                limits.collect_files_max,
                bytes(limits.collect_file_bytes_max),
                bytes(limits.collect_total_bytes_max)
            ),
        ),
    ])
}

impl Problems {
    pub(crate) async fn run(self, context: &Context) -> anyhow::Result<u8> {
        let Self {} = self;
        let problems = context.client.problems().await?;
        let answer = GetProblemsResponse { problems };
        context.output.message(
            "GetProblemsResponse",
            &answer,
            |answer| match skill::problems(&answer.problems) {
                lines if lines.is_empty() => "no problems\n".to_owned(),
                lines => format!("{}\n", lines.join("\n")),
            },
        )?;
        let mut problems = answer.problems.iter();
        let failed = problems.any(|problem| problem.severity() == Severity::Error);
        Ok(u8::from(failed))
    }
}

impl Drain {
    pub(crate) async fn run(self, context: &Context) -> anyhow::Result<u8> {
        let request = DrainRequest {
            remove: self.remove,
        };
        let done = context.client.drain(request).await?;
        context.output.message("DrainResponse", &done, |done| {
            if self.remove {
                format!(
                    "drained; removed {} workspaces and {} containers\n",
                    done.removed_workspaces, done.removed_containers
                )
            } else {
                "draining: no new workspaces, no new execs\n".to_owned()
            }
        })?;
        Ok(0)
    }
}
