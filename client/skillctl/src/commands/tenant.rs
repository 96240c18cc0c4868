//! `skillctl usage` and `skillctl tenant`: what tenants hold, their quotas, and what they have used.

use anyhow::Context as _;
use clap::Args;
use skilld_client::Client;
use skilld_client::v1::{ListTenantUsagesRequest, ResourceUsage, TenantUsage, UsageCounters};

use crate::commands::command_group::command_group;
use crate::output::{self, value_formats};

command_group! {
    /// Look at all tenants; needs the role admin.
    #[command(after_help = "Example:\n  skillctl tenant list")]
    Tenant {
        /// List the tenants and what they hold.
        #[command(visible_alias = "ls", after_help = "Example:\n  skillctl tenant list")]
        List => list_tenants,
        Show(TenantShow),
    }
}

/// Show what one tenant holds, its quotas, and what it has used.
#[derive(Debug, Args)]
#[command(after_help = "Example:\n  skillctl tenant show billing")]
pub(crate) struct TenantShow {
    name: String,
}

/// Prints the usage of the caller's tenant.
pub(crate) async fn print_own_usage(client: &Client) -> anyhow::Result<u8> {
    print_usage(&client.get_tenant_usage().await?)
}

/// Prints the tenants.
async fn list_tenants(client: &Client) -> anyhow::Result<u8> {
    let answer = client
        .read_all_pages(ListTenantUsagesRequest::default())
        .await?;
    let id = |tenant: &TenantUsage| tenant.tenant.clone();
    output::print_list(
        &answer,
        &answer.tenant_usages,
        id,
        TENANT_HEADER,
        tenant_row,
    )
}

impl TenantShow {
    async fn run(self, client: &Client) -> anyhow::Result<u8> {
        let answer = client
            .read_all_pages(ListTenantUsagesRequest::default())
            .await?;
        let found = answer
            .tenant_usages
            .into_iter()
            .find(|tenant| tenant.tenant == self.name)
            .with_context(|| {
                format!(
                    "there is no tenant {:?}; `skillctl tenant list` shows those that exist",
                    self.name
                )
            })?;
        print_usage(&found)
    }
}

const TENANT_HEADER: [&str; 7] = [
    "TENANT",
    "WORKSPACES",
    "MEMORY",
    "CPUS",
    "EXECS",
    "STREAMS",
    "CONNECTIONS",
];
const PERIOD_HEADER: [&str; 8] = [
    "USED",
    "WORKSPACE TIME",
    "MEMORY TIME",
    "CPU TIME",
    "EXECS",
    "IN",
    "OUT",
    "STORED",
];

fn tenant_row(tenant: &TenantUsage) -> [String; 7] {
    let of = |name: &str| {
        let found = tenant.resources.iter().find(|usage| usage.resource == name);
        found.map(used_of_limit).unwrap_or_default()
    };
    [
        tenant.tenant.clone(),
        of("workspaces"),
        of("memory"),
        of("cpus"),
        of("execs"),
        of("streams"),
        of("connections"),
    ]
}

fn print_usage(usage: &TenantUsage) -> anyhow::Result<u8> {
    let rows = usage.resources.iter().map(|resource| {
        let [used, limit] = amounts(resource);
        [resource.resource.clone(), used, limit]
    });
    let table = output::text_table(["RESOURCE", "USED", "LIMIT"], rows);
    let none = UsageCounters::default();
    let since_start = usage.since_start.as_ref().unwrap_or(&none);
    let start = value_formats::format_time(usage.start_time.as_ref());
    let days = usage
        .days
        .iter()
        .map(|day| (day.date.clone(), day.counters.as_ref().unwrap_or(&none)));
    let periods = std::iter::once((format!("since {start}"), since_start))
        .chain(days)
        .map(period_row);
    let used = output::text_table(PERIOD_HEADER, periods);
    let mut text = format!("tenant {}\n{table}\n{used}", usage.tenant);
    if !since_start.execs.is_empty() {
        let execs = since_start
            .execs
            .iter()
            .map(|execs| {
                let reason = execs.reason().short_name();
                format!("{} {}", execs.count, reason.to_lowercase())
            })
            .collect::<Vec<_>>()
            .join(", ");
        text += &format!("\nexecs since {start}: {execs}\n");
    }
    output::print_message(usage, &text)
}

fn period_row((period, used): (String, &UsageCounters)) -> [String; 8] {
    let execs: i64 = used.execs.iter().map(|execs| execs.count).sum();
    [
        period,
        value_formats::format_duration(used.workspace_duration.as_ref()),
        format!("{:.3} GiB h", used.memory_gib_seconds / 3600.0),
        value_formats::format_duration(used.cpu_duration.as_ref()),
        execs.to_string(),
        value_formats::format_size(used.bytes_in),
        value_formats::format_size(used.bytes_out),
        value_formats::format_size(used.bytes_stored),
    ]
}

fn used_of_limit(usage: &ResourceUsage) -> String {
    let [used, limit] = amounts(usage);
    format!("{used}/{limit}")
}

/// Returns the used amount and the limit for people.
fn amounts(usage: &ResourceUsage) -> [String; 2] {
    let format = |amount: i64| match usage.resource.as_str() {
        "memory" => value_formats::format_size(amount),
        bytes if bytes.ends_with("_bytes") => value_formats::format_size(amount),
        "cpus" => format!("{}.{:03}", amount / 1000, amount % 1000),
        _ => amount.to_string(),
    };
    let used =
        match usage.resource.ends_with("_per_second") || usage.resource.ends_with("_per_minute") {
            true => "-".to_owned(),
            false => format(usage.used),
        };
    [used, usage.limit.map_or("unlimited".to_owned(), format)]
}
