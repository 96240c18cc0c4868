//! `skillctl workspace`: create, list, get, label, renew, delete.

use std::collections::BTreeMap;
use std::time::SystemTime;

use clap::Args;
use clap_complete::engine::ArgValueCompleter;
use prost_types::{Duration, Timestamp};
use skilld_client::v1::create_workspace_request::Expiry;
use skilld_client::v1::{
    CreateWorkspaceRequest, ListWorkspacesRequest, RenewWorkspaceRequest, Workspace as Message,
};
use skilld_client::{Client, short_id};

use crate::commands::command_group::command_group;
use crate::commands::identity::WorkspaceToken;
use crate::commands::workspace_limit_args::WorkspaceLimitArgs;
use crate::commands::{complete, remove};
use crate::output::{self, value_formats};

command_group! {
    /// Create, list, look at, label, renew and delete workspaces.
    #[command(after_help = "Example:\n  id=$(skillctl workspace create --idle-timeout 1h)")]
    Workspace {
        Create(Create),
        #[command(visible_alias = "ls")]
        List(List),
        Get(Get),
        Label(Label),
        Renew(Renew),
        Token(WorkspaceToken),
        #[command(visible_alias = "rm")]
        Delete(Delete),
    }
}

/// Claim a warm container and print the workspace's id.
///
/// An --id that exists already is an error, unless --allow-existing takes that workspace. A size below the pool's makes
/// a container of its own, which takes as long as a container start.
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
    #[arg(long, value_name = "DURATION", value_parser = value_formats::parse_duration)]
    idle_timeout: Option<Duration>,
    /// Delete it after this long, whatever happens.
    #[arg(long, value_name = "DURATION", value_parser = value_formats::parse_duration)]
    max_lifetime: Option<Duration>,
    /// Environment of every exec; may be repeated.
    #[arg(short, long, value_name = "KEY=VALUE", value_parser = value_formats::parse_pair)]
    env: Vec<(String, String)>,
    /// A label to list by; may be repeated.
    #[arg(long, value_name = "KEY=VALUE", value_parser = value_formats::parse_pair)]
    label: Vec<(String, String)>,
    #[command(flatten)]
    limits: WorkspaceLimitArgs,
    /// Take the workspace with this id if there is one; without this flag that is an error.
    #[arg(long, requires = "id")]
    allow_existing: bool,
}

/// List workspaces.
#[derive(Debug, Args)]
#[command(after_help = "Example:\n  skillctl workspace list --label team=reports")]
pub(crate) struct List {
    /// Label that listed workspaces have; may be repeated.
    #[arg(long, value_name = "KEY=VALUE", value_parser = value_formats::parse_pair)]
    label: Vec<(String, String)>,
}

/// Show one workspace; to an admin also its slot and its container's id.
#[derive(Debug, Args)]
#[command(after_help = "Example:\n  skillctl workspace get job-7")]
pub(crate) struct Get {
    #[arg(add = ArgValueCompleter::new(complete::offer_workspaces))]
    id: String,
}

/// Set and remove labels of a workspace; the others stay.
#[derive(Debug, Args)]
#[command(after_help = "Example:\n  skillctl workspace label job-7 team=reports stage-")]
pub(crate) struct Label {
    #[arg(add = ArgValueCompleter::new(complete::offer_workspaces))]
    id: String,
    /// KEY=VALUE sets a label, KEY- removes it.
    #[arg(required = true, value_name = "KEY=VALUE|KEY-", value_parser = parse_label_change)]
    changes: Vec<LabelChange>,
}

/// Change of one label; without a value it is removed.
#[derive(Clone, Debug)]
struct LabelChange {
    key: String,
    value: Option<String>,
}

fn parse_label_change(text: &str) -> Result<LabelChange, String> {
    let (key, value) = match (text.split_once('='), text.strip_suffix('-')) {
        (Some((key, value)), _) => (key, Some(value.to_owned())),
        (None, Some(key)) => (key, None),
        (None, None) => return Err("must be KEY=VALUE, or KEY- to remove the label".into()),
    };
    let key = key.to_owned();
    Ok(LabelChange { key, value })
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
    #[arg(long, value_name = "DURATION", value_parser = value_formats::parse_duration)]
    idle_timeout: Option<Duration>,
    /// The new end of life, from now.
    #[arg(long, value_name = "DURATION", value_parser = value_formats::parse_duration)]
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

impl Get {
    async fn run(self, client: &Client) -> anyhow::Result<u8> {
        let workspace = client.get_workspace(&self.id).await?;
        output::print_message(&workspace, &workspace_details(&workspace))
    }
}

impl Create {
    async fn run(self, client: &Client) -> anyhow::Result<u8> {
        let request = CreateWorkspaceRequest {
            workspace_id: self.id.unwrap_or_default(),
            pool: self.pool,
            labels: value_formats::to_map(&self.label),
            idle_timeout: self.idle_timeout,
            expiry: self.max_lifetime.map(Expiry::MaxLifetime),
            env: value_formats::to_map(&self.env),
            limits: self.limits.request(),
            allow_existing: self.allow_existing,
            ..CreateWorkspaceRequest::default()
        };
        let workspace = client.create_workspace(request).await?;
        let text = format!("{}\n", short_id(&workspace.name));
        output::print_message(&workspace, &text)
    }
}

impl List {
    async fn run(self, client: &Client) -> anyhow::Result<u8> {
        let request = ListWorkspacesRequest {
            labels: value_formats::to_map(&self.label),
            ..Default::default()
        };
        let all = client.read_all_pages(request).await?;
        let header = ["ID", "STATE", "POOL", "CREATED", "EXPIRES", "SKILLS"];
        let id = |workspace: &Message| short_id(&workspace.name);
        let row = |workspace: &Message| {
            [
                id(workspace),
                workspace_state(workspace),
                short_id(&workspace.pool),
                value_formats::format_relative_time(workspace.create_time.as_ref()),
                value_formats::format_relative_time(workspace.expire_time.as_ref()),
                skill_names(workspace),
            ]
        };
        output::print_list(&all, &all.workspaces, id, header, row)
    }
}

impl Label {
    async fn run(self, client: &Client) -> anyhow::Result<u8> {
        let mut labels = client.get_workspace(&self.id).await?.labels;
        for LabelChange { key, value } in self.changes {
            match value {
                Some(value) => drop(labels.insert(key, value)),
                None => drop(labels.remove(&key)),
            }
        }
        let workspace = client.update_workspace(&self.id, labels).await?;
        output::print_message(&workspace, &format!("{}\n", pairs(&workspace.labels)))
    }
}

impl Renew {
    async fn run(self, client: &Client) -> anyhow::Result<u8> {
        let wait = self.expires_in.map(std::time::Duration::try_from);
        let expire_time = wait
            .transpose()?
            .map(|wait| Timestamp::from(SystemTime::now() + wait));
        let request = RenewWorkspaceRequest {
            name: self.id,
            idle_timeout: self.idle_timeout,
            expire_time,
        };
        let workspace = client.renew_workspace(request).await?;
        let expires = value_formats::format_relative_time(workspace.expire_time.as_ref());
        let text = format!("{} expires {expires}\n", short_id(&workspace.name));
        output::print_message(&workspace, &text)
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
    value_formats::enum_words(workspace.state().as_str_name(), "WORKSPACE_STATE_")
}

fn skill_names(workspace: &Message) -> String {
    let names = workspace.skills.iter().map(|skill| short_id(&skill.name));
    names.collect::<Vec<_>>().join(",")
}

fn pairs(map: &BTreeMap<String, String>) -> String {
    let pairs = map.iter().map(|(key, value)| format!("{key}={value}"));
    pairs.collect::<Vec<_>>().join(" ")
}

fn workspace_details(workspace: &Message) -> String {
    let limits = workspace.limits.unwrap_or_default();
    let limits = format!(
        "memory {}, cpu {} m, pids {}, disk {}, inodes {}",
        value_formats::format_size(limits.memory_bytes),
        limits.cpu_millis,
        limits.pids,
        value_formats::format_size(limits.disk_bytes),
        limits.inodes
    );
    let failure = workspace.failure.clone().unwrap_or_default().message;
    let time = |time: &Option<Timestamp>| value_formats::format_time(time.as_ref());
    let duration = |duration: &Option<Duration>| value_formats::format_duration(duration.as_ref());
    output::text_fields(&[
        ("id", short_id(&workspace.name)),
        ("state", workspace_state(workspace)),
        ("failure", failure),
        ("pool", short_id(&workspace.pool)),
        ("image", workspace.image.clone()),
        ("created", time(&workspace.create_time)),
        (
            "expires",
            value_formats::format_relative_time(workspace.expire_time.as_ref()),
        ),
        ("idle timeout", duration(&workspace.idle_timeout)),
        ("max lifetime", duration(&workspace.max_lifetime)),
        ("limits", limits),
        ("labels", pairs(&workspace.labels)),
        ("env", pairs(&workspace.env)),
        ("skills", skill_names(workspace)),
        ("guest", workspace.guest_version.clone()),
        ("slot", workspace.slot.clone()),
        ("container", workspace.container_id.clone()),
    ])
}
