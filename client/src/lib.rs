//! Client of skilld: typed calls, streams that survive a broken connection, and safe transfers of files. All calls of a
//! client share one connection.
//!
//! ```no_run
//! # async fn demo() -> Result<(), skilld_client::Error> {
//! use skilld_client::{Client, v1};
//!
//! let client = Client::connect("unix:/run/skilld/skilld.sock").await?;
//! let workspace = client.create_workspace(v1::CreateWorkspaceRequest::default()).await?;
//! let mut events = client.run_resuming(v1::RunExecRequest {
//!     parent: workspace.name.clone(),
//!     spec: Some(v1::ExecSpec { shell: "echo hello".into(), ..Default::default() }),
//!     ..Default::default()
//! });
//! while let Some(event) = events.next().await? {
//!     println!("{event:?}");
//! }
//! client.delete_workspace(&workspace.name).await?;
//! # Ok(())
//! # }
//! ```
//!
//! In reading order: [`Client`] (connection, stubs, retries), `workspaces`, `execs`, `files`, `skills`, `artifacts`,
//! `admin`, `access` (one file per service), [`PagedRequest`] (listings of several pages), [`Download`],
//! [`SkillArchive`], [`ExecStream`], [`ExecPoller`], [`StdinWriter`], [`Error`]. The crate `skilld-tools` offers the
//! skill tools on top of these calls.
//!
//! The client repeats calls that skilld itself answered with UNAVAILABLE, which promises that nothing was started, and
//! calls for which no connection could be made. After a broken connection it also repeats calls that have the same
//! effect however often they are made: reading an exec's events, PollExec, WriteStdin with an offset or a
//! `request_id`, ResizeTerminal, SignalExec. It repeats nothing else.

mod access;
mod admin;
mod artifacts;
mod client;
mod connect_options;
mod credentials;
mod download;
mod endpoint;
mod environment;
mod error;
mod exec_poller;
mod exec_stream;
mod execs;
mod files;
mod message_stream;
mod pack;
mod paged_lists;
mod resource_names;
mod retry;
mod skill_archive;
mod skills;
mod stdin;
mod tls_refusal;
mod workspaces;

pub use artifacts::SaveTarget;
pub use client::Client;
pub use connect_options::{ConnectOptions, DEFAULT_ENDPOINT};
pub use credentials::{Credentials, TokenSource};
pub use download::Download;
pub use endpoint::Transport;
pub use environment::environment_variable;
pub use error::{Error, Failure, FieldViolation};
pub use exec_poller::ExecPoller;
pub use exec_stream::ExecStream;
pub use files::collect::{CollectedFiles, CollectedLink, CollectionWriter, SkippedFile};
pub use files::upload::{TransferProgress, UploadKind, UploadTarget};
pub use message_stream::MessageStream;
pub use pack::PackLimits;
pub use paged_lists::PagedRequest;
pub use resource_names::{
    artifact_name, exec_name, new_exec_id, new_workspace_id, pool_name, short_id, skill_name,
    split_version, staged_skill_name, workspace_name,
};
pub use retry::RetryPolicy;
pub use skill_archive::SkillArchive;
pub use skilld_proto::json::to_proto_value;
pub use skilld_proto::{Outcome, code_name, count_from_int64, int64_from_count, v1};
pub use stdin::StdinWriter;

/// Download of a file of a workspace.
pub type FileReader = Download<v1::FileEntry>;
/// Download of a file of a skill.
pub type SkillFileReader = Download<v1::SkillFile>;
/// Download of one version of an artifact.
pub type ArtifactReader = Download<v1::Artifact>;
