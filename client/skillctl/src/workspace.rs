//! `skillctl workspace`: create, list, get, renew, delete.

use std::time::SystemTime;

use clap::{Args, Subcommand};
use clap_complete::engine::ArgValueCompleter;
use prost_types::{Duration, Timestamp};
use skilld_client::v1::create_workspace_request::Expiry;
use skilld_client::v1::{
    CreateWorkspaceRequest, ListWorkspacesRequest, RenewWorkspaceRequest, Workspace as Message,
};
use skilld_client::{Client, short_id, workspace_name};

use crate::pages::read_all_pages;
use crate::workspace_size::LimitArgs;
use crate::{complete, output, remove, values};

/// Create, list, look at, renew and delete workspaces.
#[derive(Debug, Subcommand)]
#[command(after_help = "Example:\n  id=$(skillctl workspace create --idle-timeout 1h)")]
pub(crate) enum Workspace {
    Create(Create),
    #[command(visible_alias = "ls")]
    List(List),
    Get(Get),
    Renew(Renew),
    #[command(visible_alias = "rm")]
    Delete(Delete),
}

/// Claim a warm container and print the workspace's id.
///
/// An --id that exists already is an error, unless --allow-existing takes that workspace. A size below the pool's makes a
/// container of its own, which takes as long as a container start.
#[derive(Debug, Args)]
#[command(
    after_help = "Example:\n  skillctl workspace create --id job-7 --pool default --idle-timeout 1h\n  skillctl workspace create --memory 256MiB --disk 128MiB --cpus 0.5"
)]
pub(crate) struct Create {
    /// Lower case letters, digits, '.', '_' and '-'; made up if left out.
    #[arg(long)]
    id: Option<String>,
    /// Pool to claim from; the server's default if left out.
    #[arg(long, default_value = "", hide_default_value = true)]
    pool: String,
    /// Delete it after this long without a call or a running exec.
    #[arg(long, value_name = "DURATION", value_parser = values::parse_duration)]
    idle_timeout: Option<Duration>,
    /// Delete it after this long, whatever happens.
    #[arg(long, value_name = "DURATION", value_parser = values::parse_duration)]
    max_lifetime: Option<Duration>,
    /// Environment of every exec; may be repeated.
    #[arg(long, value_name = "KEY=VALUE", value_parser = values::parse_pair)]
    env: Vec<(String, String)>,
    /// A label to list by; may be repeated.
    #[arg(long, value_name = "KEY=VALUE", value_parser = values::parse_pair)]
    label: Vec<(String, String)>,
    #[command(flatten)]
    limits: LimitArgs,
    /// Take the workspace with this id if there is one; without this flag that is an error.
    #[arg(long, requires = "id")]
    allow_existing: bool,
}

/// List workspaces.
#[derive(Debug, Args)]
#[command(after_help = "Example:\n  skillctl workspace list --label team=reports")]
pub(crate) struct List {
    /// Label that listed workspaces have; may be repeated.
    #[arg(long, value_name = "KEY=VALUE", value_parser = values::parse_pair)]
    label: Vec<(String, String)>,
}

/// Show one workspace.
#[derive(Debug, Args)]
#[command(after_help = "Example:\n  skillctl workspace get job-7")]
pub(crate) struct Get {
    #[arg(add = ArgValueCompleter::new(complete::offer_workspaces))]
    id: String,
}

/// Restart a workspace's idle timeout, and change it or move the end of its life if asked.
#[derive(Debug, Args)]
#[command(
    after_help = "Example:\n  skillctl workspace renew job-7 --idle-timeout 2h --expires-in 8h"
)]
pub(crate) struct Renew {
    #[arg(add = ArgValueCompleter::new(complete::offer_workspaces))]
    id: String,
    /// The new idle timeout.
    #[arg(long, value_name = "DURATION", value_parser = values::parse_duration)]
    idle_timeout: Option<Duration>,
    /// The new end of life, from now.
    #[arg(long, value_name = "DURATION", value_parser = values::parse_duration)]
    expires_in: Option<Duration>,
}

/// Delete workspaces with everything in them.
#[derive(Debug, Args)]
#[command(after_help = "Example:\n  skillctl workspace delete job-7")]
pub(crate) struct Delete {
    #[arg(required = true, value_name = "ID", add = ArgValueCompleter::new(complete::offer_workspaces))]
    ids: Vec<String>,
    /// Succeed for those that do not exist.
    #[arg(long)]
    allow_missing: bool,
}

impl Workspace {
    pub(crate) async fn run(self, client: &Client) -> anyhow::Result<u8> {
        match self {
            Self::Create(command) => command.run(client).await,
            Self::List(command) => command.run(client).await,
            Self::Get(Get { id }) => {
                let workspace = client.get_workspace(&id).await?;
                output::print_message("Workspace", &workspace, &workspace_details(&workspace))?;
                Ok(0)
            }
            Self::Renew(command) => command.run(client).await,
            Self::Delete(command) => command.run(client).await,
        }
    }
}

impl Create {
    async fn run(self, client: &Client) -> anyhow::Result<u8> {
        let mut request = CreateWorkspaceRequest {
            name: self.id.as_deref().map(workspace_name).unwrap_or_default(),
            pool: self.pool,
            labels: values::to_map(&self.label),
            idle_timeout: self.idle_timeout,
            expiry: self.max_lifetime.map(Expiry::MaxLifetime),
            env: values::to_map(&self.env),
            limits: self.limits.request(),
            ..CreateWorkspaceRequest::default()
        };
        request.allow_existing = self.allow_existing;
        let workspace = client.create_workspace(request).await?;
        let text = format!("{}\n", short_id(&workspace.name));
        output::print_message("Workspace", &workspace, &text)?;
        Ok(0)
    }
}

impl List {
    async fn run(self, client: &Client) -> anyhow::Result<u8> {
        let labels = values::to_map(&self.label);
        let all = read_all_pages(async |page_token| {
            let request = ListWorkspacesRequest {
                page_size: 1000,
                labels: labels.clone(),
                page_token,
            };
            client.list_workspaces(request).await
        });
        let all = all.await?;
        let ids = all.workspaces.iter().map(|found| short_id(&found.name));
        let rows = all.workspaces.iter().map(|workspace| {
            [
                short_id(&workspace.name),
                workspace_state(workspace),
                workspace.pool.clone(),
                values::format_relative_time(workspace.create_time.as_ref()),
                values::format_relative_time(workspace.expire_time.as_ref()),
                skill_names(workspace),
            ]
        });
        let table = output::text_table(
            ["ID", "STATE", "POOL", "CREATED", "EXPIRES", "SKILLS"],
            rows,
        );
        output::print_list("ListWorkspacesResponse", &all, ids, &table)?;
        Ok(0)
    }
}

impl Renew {
    async fn run(self, client: &Client) -> anyhow::Result<u8> {
        let expire_time = match self.expires_in {
            Some(wait) => {
                let wait = std::time::Duration::try_from(wait)?;
                Some(Timestamp::from(SystemTime::now() + wait))
            }
            None => None,
        };
        let request = RenewWorkspaceRequest {
            name: self.id,
            idle_timeout: self.idle_timeout,
            expire_time,
        };
        let workspace = client.renew_workspace(request).await?;
        let expires = values::format_relative_time(workspace.expire_time.as_ref());
        let text = format!("{} expires {expires}\n", short_id(&workspace.name));
        output::print_message("Workspace", &workspace, &text)?;
        Ok(0)
    }
}

impl Delete {
    async fn run(self, client: &Client) -> anyhow::Result<u8> {
        remove::delete_each(&self.ids, async |id| match self.allow_missing {
            true => client.delete_workspace_if_exists(id).await,
            false => client.delete_workspace(id).await,
        })
        .await
    }
}

fn workspace_state(workspace: &Message) -> String {
    values::enum_words(workspace.state().as_str_name(), "WORKSPACE_STATE_")
}

fn skill_names(workspace: &Message) -> String {
    let names = workspace.skills.iter().map(|skill| skill.name.as_str());
    names.collect::<Vec<_>>().join(",")
}

fn workspace_details(workspace: &Message) -> String {
    let pairs = |map: &std::collections::BTreeMap<String, String>| {
        let pairs = map.iter().map(|(key, value)| format!("{key}={value}"));
        pairs.collect::<Vec<_>>().join(" ")
    };
    let limits = workspace.limits.unwrap_or_default();
    let limits = format!(
        "memory {}, cpu {} m, pids {}, disk {}, inodes {}",
        values::format_size(limits.memory_bytes),
        limits.cpu_millis,
        limits.pids,
        values::format_size(limits.disk_bytes),
        limits.inodes
    );
    let failure = workspace.failure.as_ref();
    output::text_fields(&[
        ("id", short_id(&workspace.name)),
        ("state", workspace_state(workspace)),
        (
            "failure",
            failure
                .map(|failure| failure.message.clone())
                .unwrap_or_default(),
        ),
        ("pool", workspace.pool.clone()),
        ("image", workspace.image.clone()),
        (
            "created",
            values::format_time(workspace.create_time.as_ref()),
        ),
        (
            "expires",
            values::format_relative_time(workspace.expire_time.as_ref()),
        ),
        (
            "idle timeout",
            values::format_duration(workspace.idle_timeout.as_ref()),
        ),
        (
            "max lifetime",
            values::format_duration(workspace.max_lifetime.as_ref()),
        ),
        ("limits", limits),
        ("labels", pairs(&workspace.labels)),
        ("env", pairs(&workspace.env)),
        ("skills", skill_names(workspace)),
        ("guest", workspace.guest_version.clone()),
    ])
}
