//! `skillctl pool`, `server`, `problems`, `drain`: for those who run the daemon.

use clap::{Args, Subcommand};
use skilld_client::v1::problem::Severity;
use skilld_client::v1::{
    DrainRequest, GetProblemsResponse, ListPoolsResponse, Pool as Message, ServerInfo,
};
use skilld_client::{Client, short_id};

use crate::{output, skill, values};

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
    pub(crate) async fn run(self, client: &Client) -> anyhow::Result<u8> {
        match self {
            Self::List(PoolList {}) => {
                let pools = client.list_pools().await?;
                let answer = ListPoolsResponse { pools };
                let ids = answer.pools.iter().map(|pool| short_id(&pool.name));
                let table = pool_table(&answer.pools);
                output::print_list("ListPoolsResponse", &answer, ids, &table)?;
            }
            Self::Resize(PoolResize { name, warm }) => {
                let pool = client.resize_pool(&name, warm).await?;
                let table = pool_table(std::slice::from_ref(&pool));
                output::print_message("Pool", &pool, &table)?;
            }
        }
        Ok(0)
    }
}

fn pool_table(pools: &[Message]) -> String {
    let header = [
        "NAME", "WARM", "BOOTING", "CLAIMED", "WAITING", "MAX", "IMAGE", "PROBLEM",
    ];
    let rows = pools.iter().map(|pool| {
        [
            short_id(&pool.name),
            format!("{}/{}", pool.warm, pool.warm_target),
            pool.booting.to_string(),
            pool.claimed.to_string(),
            pool.waiting.to_string(),
            pool.max.to_string(),
            pool.image.clone(),
            pool.problem.clone(),
        ]
    });
    output::text_table(header, rows)
}

impl Server {
    pub(crate) async fn run(self, client: &Client) -> anyhow::Result<u8> {
        let Self::Info(Info {}) = self;
        let info = client.server_info().await?;
        output::print_message("ServerInfo", &info, &server_details(&info))?;
        Ok(0)
    }
}

fn server_details(info: &ServerInfo) -> String {
    let engine = info.engine.clone().unwrap_or_default();
    let limits = info.limits.unwrap_or_default();
    let available = if engine.available {
        ""
    } else {
        ", does not answer"
    };
    output::text_fields(&[
        ("version", info.version.clone()),
        ("instance", info.instance.clone()),
        ("up since", values::format_time(info.start_time.as_ref())),
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
                values::format_duration(limits.exec_timeout_default.as_ref()),
                values::format_duration(limits.exec_timeout_max.as_ref())
            ),
        ),
        (
            "stage",
            format!("at most {} a call", values::format_size(limits.stage_bytes)),
        ),
        (
            "collect",
            format!(
                "at most {} files, {} each, {} in all",
                limits.collect_files_max,
                values::format_size(limits.collect_file_bytes_max),
                values::format_size(limits.collect_total_bytes_max)
            ),
        ),
    ])
}

impl Problems {
    pub(crate) async fn run(self, client: &Client) -> anyhow::Result<u8> {
        let Self {} = self;
        let problems = client.problems().await?;
        let answer = GetProblemsResponse { problems };
        let text = match skill::problem_lines(&answer.problems) {
            lines if lines.is_empty() => "no problems\n".to_owned(),
            lines => output::text_lines(lines.iter()),
        };
        output::print_message("GetProblemsResponse", &answer, &text)?;
        let mut problems = answer.problems.iter();
        let failed = problems.any(|problem| problem.severity() == Severity::Error);
        Ok(u8::from(failed))
    }
}

impl Drain {
    pub(crate) async fn run(self, client: &Client) -> anyhow::Result<u8> {
        let request = DrainRequest {
            remove: self.remove,
        };
        let done = client.drain(request).await?;
        let text = match self.remove {
            true => format!(
                "drained; removed {} workspaces and {} containers\n",
                done.removed_workspaces, done.removed_containers
            ),
            false => "draining: no new workspaces, no new execs\n".to_owned(),
        };
        output::print_message("DrainResponse", &done, &text)?;
        Ok(0)
    }
}
