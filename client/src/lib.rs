//! Client of skilld: typed calls over one connection, streams that survive a broken connection, and files
//! moved safely in both directions.
//!
//! ```no_run
//! # async fn demo() -> Result<(), skilld_client::Error> {
//! use skilld_client::{Client, v1};
//!
//! let client = Client::connect("unix:/run/skilld/skilld.sock").await?;
//! let workspace = client.create_workspace(v1::CreateWorkspaceRequest::default()).await?;
//! let mut events = client.run_resuming(v1::RunExecRequest {
//!     workspace: workspace.name.clone(),
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
//! `admin` (one file per service), [`SkillArchive`], [`ExecStream`], [`Poller`], [`StdinWriter`], [`Error`]. On top of them
//! [`tools`]: the skill tools that a model is offered, [`state`]: what they remember between calls, and [`prompt`]: what a
//! model is told of skills.
//!
//! What is retried: calls that the server answered with UNAVAILABLE, which promises that nothing was
//! started, and calls for which no connection could be made. Beyond that, after a broken connection, what comes to
//! the same however often it is done: reading an exec's events, PollExec, WriteStdin with an offset, ResizeTerminal.
//! Nothing else, ever.

mod admin;
mod artifacts;
mod client;
mod endpoint;
mod error;
mod execs;
mod files;
mod messages;
mod names;
mod pack;
mod poller;
pub mod prompt;
mod resuming;
mod retry;
mod skills;
pub mod state;
mod stdin;
pub mod tools;
mod workspaces;

pub use artifacts::{ArtifactReader, SaveTarget};
pub use client::Client;
pub use endpoint::DEFAULT_ENDPOINT;
pub use error::{Error, Failure, FieldViolation};
pub use files::collect::{Collected, CollectedLink, Refused};
pub use files::read::FileReader;
pub use files::stage::{Progress, StageKind, StageTarget};
pub use messages::Messages;
pub use names::{
    artifact_name, exec_name, new_exec_id, new_workspace_id, pool_name, short_id, skill_name,
    split_version, workspace_name,
};
pub use pack::{PackLimits, SkillArchive};
pub use poller::Poller;
pub use resuming::ExecStream;
pub use retry::RetryPolicy;
pub use skilld_proto::v1;
pub use skills::SkillFileReader;
pub use stdin::StdinWriter;
