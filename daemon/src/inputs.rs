//! Inputs: files from elsewhere, put into a workspace under the names that a command expects.
//!
//! Whatever their sources, all inputs of a request become one archive that is made as it is sent (`pack.rs`). The
//! guest unpacks it beside the workspace's files and puts it into place at its end, so a request stages all of its
//! inputs or none, and nothing of it is ever held in memory as a whole.

use std::path::PathBuf;
use std::pin::pin;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use bytes::Bytes;
use skilld_proto::guest::v1 as guest;
use skilld_proto::v1 as pb;
use tokio::sync::{OwnedMutexGuard, Semaphore};
use tokio_util::sync::CancellationToken;

use crate::artifacts::{ArtifactRef, Artifacts, Scope};
use crate::config::Config;
use crate::error::{Error, Result};
use crate::fetch::{Fetcher, WebUrl};
use crate::shutdown::Tasks;
use crate::workspace::lease::unix_ms;
use crate::workspace::{Grant, Workspace, record};

mod host;
mod pack;
mod produce;
pub mod target;
mod within;

use produce::Producer;
use within::Within;

/// Messages between what makes the archive and what sends it.
const AHEAD: usize = 4;

/// Fetched files on the host's disk at once, each of at most `files.stage_bytes_max`; the next one waits.
const FETCHES_MAX: usize = 8;

/// How long a guest that has a whole archive may take to put it into place when nobody waits for it any more.
const PLACE_TIMEOUT: Duration = Duration::from_secs(60);
/// Whoever asked has gone away, and does not see this.
const CANCELLED: Error = Error::Deadline {
    doing: "staging the inputs",
};

/// One input of a request, checked.
#[derive(Debug, Clone, PartialEq)]
pub struct Input {
    /// The field that it came from, for errors.
    pub field: String,
    /// As asked for, a URL without its query, which may be a secret; empty for bytes that came with the request.
    pub from: String,
    /// Where its bytes are.
    pub source: Source,
    /// Where it goes.
    pub to: To,
    /// The name in a folder, made safe. Never empty.
    pub name: String,
    /// A link is enough.
    pub link: bool,
    /// Of an artifact: the version that the workspace had before.
    pub pin: bool,
    /// 64 hex digits, or empty.
    pub sha256: String,
}

/// Where an input comes from.
#[derive(Debug, Clone, PartialEq)]
pub enum Source {
    /// The request.
    Data(Bytes),
    /// The artifact store.
    Artifact(ArtifactRef),
    /// An absolute path on the host.
    Host(String),
    /// A path of the workspace, resolved.
    Workspace(String),
    /// A path in a staged skill, resolved; empty for all of it.
    Skill {
        /// Of the skill.
        name: String,
        /// Relative to its root.
        path: String,
    },
    /// The network.
    Url(WebUrl),
}

/// Where an input goes, resolved.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum To {
    /// work/inputs/, under a name that no other input has.
    Default,
    /// A folder, under the input's name.
    Folder(String),
    /// There.
    Path(String),
}

/// One staged input.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Staged {
    /// Relative to the workspace.
    pub path: String,
    /// Of a file.
    pub size: u64,
    /// Permission bits.
    pub mode: u32,
    /// Of a file.
    pub sha256: String,
    /// It became a link.
    pub linked: bool,
    /// Of an artifact.
    pub version: Option<u64>,
    /// Files and links.
    pub files: u64,
    /// Of files.
    pub bytes: u64,
    /// It was there.
    pub unchanged: bool,
    /// What was done otherwise than asked.
    pub note: String,
}

/// What stages inputs. Clones share it.
#[derive(Debug, Clone)]
pub struct Inputs {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    roots: host::Roots,
    artifacts: Artifacts,
    /// `None` where URLs are not allowed.
    fetcher: Option<Fetcher>,
    /// A fetched file is on the host's disk until its workspace has it.
    fetches: Semaphore,
    entries_max: u64,
    bytes_max: u64,
    /// Fetched files have no name there.
    state_dir: PathBuf,
    tasks: Tasks,
}

impl Inputs {
    /// Reads nothing yet.
    #[must_use]
    pub fn new(config: &Config, artifacts: Artifacts, fetcher: Fetcher, tasks: Tasks) -> Self {
        let files = &config.files;
        Self {
            inner: Arc::new(Inner {
                roots: host::Roots::new(files.host_roots.clone()),
                artifacts,
                fetcher: files.input_urls.then_some(fetcher),
                fetches: Semaphore::new(FETCHES_MAX),
                entries_max: files.archive_entries_max,
                bytes_max: files.stage_bytes_max,
                state_dir: config.state_dir.clone(),
                tasks,
            }),
        }
    }

    /// Stages inputs, all or none; answers in their order. When this is dropped there are none, unless the guest has all of
    /// them already: then they come to be, and are on record.
    ///
    /// # Errors
    /// `SourceUnusable` and what the sources say; what the guest says of the files it writes.
    pub async fn stage(
        &self,
        workspace: Workspace,
        grant: Grant,
        inputs: Arc<[Input]>,
        scope: Scope,
    ) -> Result<Vec<Staged>> {
        let gone = CancellationToken::new();
        // Dropped with this future.
        let _gone = gone.clone().drop_guard();
        // One at a time in a workspace: which names are taken is decided by what is on record.
        let turn = workspace.staging_inputs().await;
        let shared = self.clone();
        let task = async move {
            let _turn: OwnedMutexGuard<()> = turn;
            shared
                .place(&workspace, &grant, &inputs, &scope, &gone)
                .await
        };
        let staged = self.inner.tasks.spawn(task).await;
        staged.map_err(|error| Error::Internal(format!("staging inputs: {error}")))?
    }

    /// One turn: to the record of what the guest has, or to nothing.
    async fn place(
        &self,
        workspace: &Workspace,
        grant: &Grant,
        inputs: &[Input],
        scope: &Scope,
        gone: &CancellationToken,
    ) -> Result<Vec<Staged>> {
        let view = workspace.view();
        let claim = view.record.claim.as_ref();
        let recorded = claim.map_or(&[][..], |claim| claim.inputs.as_slice());
        let targets = target::plan(inputs, recorded, scope)?;
        let producer = Producer {
            inner: &self.inner,
            within: Within {
                guest: grant.guest.clone(),
                workspace: workspace.id().name(),
            },
            skills: claim.map(|claim| claim.skills.clone()).unwrap_or_default(),
            scope,
        };
        let (packer, messages) = pack::channel(AHEAD, self.header());
        let mut client = grant.guest.clone();
        let put = client.put_files(messages);
        let produced = producer.produce(packer, inputs, &targets);
        let (mut put, mut produced) = (pin!(put), pin!(produced));
        let lost = |status| Error::from_guest(&workspace.id().name(), &status);
        let staged = tokio::select! {
            staged = &mut produced => staged?,
            // It ends first only by failing, and says why.
            answer = &mut put => return Err(answer.map_or_else(lost, |_| ended_early())),
            () = gone.cancelled() => return Err(CANCELLED),
            () = self.inner.tasks.stop.cancelled() => return Err(Error::Draining),
        };
        // From here on the guest puts all of it into place, whoever waits for that. At a stop the slot's task cuts the
        // guest's connection, and `put` ends.
        let late = async {
            gone.cancelled().await;
            tokio::time::sleep(PLACE_TIMEOUT).await;
        };
        tokio::select! {
            answer = &mut put => answer.map_err(lost)?,
            () = late => return Err(CANCELLED),
        };
        let now = SystemTime::now();
        let records = inputs.iter().zip(&staged);
        let records = records.map(|(input, staged)| remember(input, staged, scope, now));
        workspace.record_inputs(records.collect()).await?;
        Ok(staged)
    }

    fn header(&self) -> guest::PutFilesHeader {
        guest::PutFilesHeader {
            file: Some(pb::StageFilesHeader {
                kind: pb::stage_files_header::Kind::Tar.into(),
                ..pb::StageFilesHeader::default()
            }),
            entries_max: self.inner.entries_max,
            bytes_max: self.inner.bytes_max,
        }
    }
}

fn ended_early() -> Error {
    Error::Internal("the guest answered before the archive was whole".into())
}

fn remember(input: &Input, staged: &Staged, scope: &Scope, now: SystemTime) -> record::Input {
    let scope = if let Source::Artifact(artifact) = &input.source {
        parts(scope, artifact)
    } else {
        Vec::new()
    };
    record::Input {
        path: staged.path.clone(),
        from: input.from.clone(),
        url_sha256: target::url_sha256(&input.source),
        name: input.name.clone(),
        scope,
        version: staged.version,
        sha256: staged.sha256.clone(),
        size: staged.size,
        time_ms: unix_ms(now),
    }
}

/// The scope that an artifact is really in, for the record.
fn parts(scope: &Scope, artifact: &ArtifactRef) -> Vec<String> {
    let scope = scope.of(&artifact.name);
    [scope.app(), scope.user(), scope.session()]
        .map(str::to_owned)
        .into()
}
