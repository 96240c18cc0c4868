//! `skillctl pool`, `server`, `problems`, `drain`: for those who run the daemon.

use clap::Args;
use skilld_client::v1::{
    DrainRequest, ListPoolsRequest, ListProblemsRequest, Pool as Message, ServerInfo,
};
use skilld_client::{Client, short_id};

use crate::commands::command_group::command_group;
use crate::commands::skill;
use crate::output::{self, value_formats};

command_group! {
    /// List and resize pools of warm containers.
    #[command(after_help = "Example:\n  skillctl pool list")]
    Pool {
        /// List the pools and how full they are.
        #[command(visible_alias = "ls", after_help = "Example:\n  skillctl pool list")]
        List => list_pools,
        Resize(PoolResize),
    }
}

/// Keep this many containers warm, until the daemon's next start.
#[derive(Debug, Args)]
#[command(after_help = "Example:\n  skillctl pool resize default 3")]
pub(crate) struct PoolResize {
    name: String,
    #[arg(value_name = "N", value_parser = clap::value_parser!(i32).range(0..))]
    warm: i32,
}

command_group! {
    /// Look at the daemon.
    #[command(after_help = "Example:\n  skillctl server info")]
    Server {
        /// Show version, engine, features and limits.
        #[command(after_help = "Example:\n  skillctl server info")]
        Info => print_server_info,
    }
}

/// Refuse new workspaces, and let existing ones finish. `skillctl undrain` or a restart of the daemon ends it.
#[derive(Debug, Args)]
#[command(after_help = "Example:\n  skillctl drain --remove")]
pub(crate) struct Drain {
    /// Also refuse new execs in existing workspaces.
    #[arg(long)]
    execs: bool,
    /// Also delete every workspace and every warm container.
    #[arg(long)]
    remove: bool,
}

/// Lets the daemon accept new work again.
pub(crate) async fn undrain(client: &Client) -> anyhow::Result<u8> {
    let answer = client.undrain().await?;
    output::print_message(&answer, "accepting new work\n")
}

/// Prints the pools.
async fn list_pools(client: &Client) -> anyhow::Result<u8> {
    let answer = client.read_all_pages(ListPoolsRequest::default()).await?;
    let id = |pool: &Message| short_id(&pool.name);
    output::print_list(&answer, &answer.pools, id, POOL_HEADER, pool_row)
}

impl PoolResize {
    async fn run(self, client: &Client) -> anyhow::Result<u8> {
        let pool = client.resize_pool(&self.name, self.warm).await?;
        let table = output::text_table(POOL_HEADER, [pool_row(&pool)]);
        output::print_message(&pool, &table)
    }
}

const POOL_HEADER: [&str; 8] = [
    "NAME", "WARM", "BOOTING", "CLAIMED", "WAITING", "MAX", "IMAGE", "PROBLEM",
];

fn pool_row(pool: &Message) -> [String; 8] {
    [
        short_id(&pool.name),
        format!("{}/{}", pool.warm, pool.warm_target),
        pool.booting.to_string(),
        pool.claimed.to_string(),
        pool.waiting.to_string(),
        pool.workspaces_max.to_string(),
        pool.image.clone(),
        pool.problem.clone(),
    ]
}

/// Prints what the daemon says about itself.
async fn print_server_info(client: &Client) -> anyhow::Result<u8> {
    let info = client.server_info().await?;
    output::print_message(&info, &server_details(&info))
}

fn server_details(info: &ServerInfo) -> String {
    let engine = info.engine.clone().unwrap_or_default();
    let limits = info.limits.unwrap_or_default();
    let available = match engine.available {
        true => "",
        false => ", does not answer",
    };
    let (name, version) = (&engine.name, &engine.version);
    let (api, cgroup) = (&engine.api_version, &engine.cgroup_version);
    let (guest, generation) = (&info.guest_version, info.guest_generation);
    let timeout = value_formats::format_duration(limits.exec_timeout_default.as_ref());
    let timeout_max = value_formats::format_duration(limits.exec_timeout_max.as_ref());
    let (workspaces, execs) = (limits.workspaces, limits.execs_per_workspace);
    let stage = value_formats::format_size(limits.stage_bytes);
    let files = limits.collect_files_max;
    let file_bytes = value_formats::format_size(limits.collect_file_bytes_max);
    let total_bytes = value_formats::format_size(limits.collect_total_bytes_max);
    let pools: Vec<String> = info.pools.iter().map(|pool| short_id(pool)).collect();
    let engine_text = format!("{name} {version} (API {api}, cgroup v{cgroup}{available})");
    let collect = format!("at most {files} files, {file_bytes} each, {total_bytes} in all");
    output::text_fields(&[
        ("version", info.version.clone()),
        ("instance", info.instance.clone()),
        (
            "up since",
            value_formats::format_time(info.start_time.as_ref()),
        ),
        ("engine", engine_text),
        ("runtimes", engine.oci_runtimes.join(", ")),
        ("features", info.features.join(", ")),
        ("pools", pools.join(", ")),
        ("default pool", short_id(&info.default_pool)),
        ("guest", format!("{guest} (generation {generation})")),
        ("seccomp", info.seccomp_digest.clone()),
        ("workspaces", format!("at most {workspaces}")),
        ("execs", format!("at most {execs} per workspace")),
        ("exec timeout", format!("{timeout}, at most {timeout_max}")),
        ("stage", format!("at most {stage} a call")),
        ("collect", collect),
    ])
}

/// Prints the problems of the daemon; returns the exit code.
pub(crate) async fn print_problems(client: &Client) -> anyhow::Result<u8> {
    let problems = client
        .read_all_pages(ListProblemsRequest::default())
        .await?;
    skill::print_problems(&problems)
}

impl Drain {
    pub(crate) async fn run(self, client: &Client) -> anyhow::Result<u8> {
        let request = DrainRequest {
            remove_workspaces: self.remove,
            refuse_execs: self.execs,
        };
        let done = client.drain(request).await?;
        let text = match (self.remove, self.execs) {
            (true, _) => format!(
                "drained; removed {} workspaces and {} containers\n",
                done.removed_workspace_count, done.removed_container_count
            ),
            (false, true) => "draining: no new workspaces, no new execs\n".to_owned(),
            (false, false) => "draining: no new workspaces\n".to_owned(),
        };
        output::print_message(&done, &text)
    }
}
