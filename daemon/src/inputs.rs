//! Stages inputs: copies files from other places into a workspace, under the names that a command expects.
//!
//! The inputs of a request become one archive, which is packed while it is sent (`archive_packer.rs`). The guest
//! unpacks it beside the workspace's files and moves them into place after the last byte. So a request stages all of
//! its inputs or none, and the daemon never holds them in memory as a whole. Archives of the request itself go to the
//! guest before that, one by one (`request_archive.rs`).

use std::collections::{HashSet, VecDeque};
use std::path::PathBuf;
use std::pin::pin;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use bytes::Bytes;
use skilld_common::unix_time::unix_ms;
use skilld_proto::guest::v1 as guest;
use skilld_proto::v1 as pb;
use tokio::sync::OwnedMutexGuard;
use tokio_util::sync::CancellationToken;

use crate::access::{TenantName, TenantPermits};
use crate::artifacts::{ArtifactRef, ArtifactScope, ArtifactVersionId, Artifacts, RequestedScope};
use crate::config::Config;
use crate::error::{Error, Result};
use crate::fetch::{UrlFetcher, WebUrl};
use crate::guest::ARCHIVE_ENTRIES_MAX;
use crate::shutdown::Tasks;
use crate::workspace::{Workspace, WorkspaceGrant, record};

mod archive_packer;
pub mod destination;
mod folder_listing;
mod folder_sender;
mod host_folder;
mod planned_input;
mod request_archive;
mod source_file_reader;
mod source_packer;
mod workspace_reader;

use planned_input::PlannedInput;
use request_archive::ArchiveRoom;
use source_packer::SourcePacker;
use workspace_reader::WorkspaceReader;

/// Capacity of the channel from the packer to the call that sends the archive, in messages.
const ARCHIVE_MESSAGES_MAX: usize = 4;

/// Maximum number of fetched files on the host's disk, each of at most `files.stage_bytes_max`. Further fetches wait.
const FETCHES_MAX: usize = 8;

/// Longest wait for a guest that installs a complete archive after the caller has gone away.
const INSTALL_TIMEOUT: Duration = Duration::from_secs(60);
/// Error for a caller that has gone away.
const CANCELLED: Error = Error::deadline("staging the inputs");

/// Validated input of a request.
#[derive(Debug, Clone, PartialEq)]
pub struct InputSpec {
    /// Request field of the input, for errors.
    pub field: String,
    /// Reference as the client gave it, a URL without its query, which may be a secret. Empty for bytes of the request.
    pub from: String,
    /// Source of the bytes.
    pub source: InputSource,
    /// Requested destination.
    pub to: InputDestination,
    /// Sanitised file name. Never empty.
    pub name: String,
    /// The client accepts a link instead of a copy.
    pub link: bool,
    /// Uses the version of the artifact that the workspace had before.
    pub pin: bool,
    /// Expected SHA-256 as 64 hex digits; empty skips the check.
    pub sha256: String,
}

/// Source of an input.
#[derive(Debug, Clone, PartialEq)]
pub enum InputSource {
    /// Bytes of the request.
    Data(Bytes),
    /// Tar archive of the request, compressed with gzip or not.
    Archive(Bytes),
    /// Artifact of the artifact store.
    Artifact(ArtifactRef),
    /// Absolute path on the host.
    Host(String),
    /// Resolved path in the workspace.
    Workspace(String),
    /// Resolved path in a staged skill; empty for the whole skill.
    Skill {
        /// Name of the skill.
        name: String,
        /// Path relative to the skill's root.
        path: String,
    },
    /// Web address.
    Url(WebUrl),
}

/// Requested destination of an input, resolved.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum InputDestination {
    /// Default folder `work/inputs`, under a name that no other input has.
    Default,
    /// Folder, under the input's own name.
    Folder(String),
    /// Exactly this path.
    Path(String),
}

/// Result of staging one input.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct StagedInput {
    /// Path relative to the workspace.
    pub path: String,
    /// Size of a file in bytes; 0 for folders and links.
    pub size: u64,
    /// Permission bits.
    pub mode: u32,
    /// SHA-256 of a file as 64 hex digits; empty for folders and links.
    pub sha256: String,
    /// The input was staged as a link.
    pub linked: bool,
    /// Version of an artifact; `None` for other sources.
    pub version: Option<u64>,
    /// Number of staged files and links.
    pub files: u64,
    /// Total size of staged files in bytes.
    pub bytes: u64,
    /// The workspace had this file already.
    pub unchanged: bool,
    /// Difference between request and result, for the client; usually empty.
    pub note: String,
}

/// Copies the inputs of requests from their sources into workspaces. Clones share it.
#[derive(Debug, Clone)]
pub struct InputStager {
    inner: Arc<StagerContext>,
}

#[derive(Debug)]
struct StagerContext {
    roots: host_folder::HostRoots,
    artifacts: Artifacts,
    /// `None` if the configuration forbids URLs.
    fetcher: Option<UrlFetcher>,
    /// Permits for fetched files, which stay on the host's disk until the guest has them.
    fetches: TenantPermits,
    bytes_max: u64,
    /// Directory for fetched files, which have no name in it.
    state_dir: PathBuf,
    tasks: Tasks,
}

impl InputStager {
    /// Creates a stager. It opens no source before the first request.
    pub fn new(config: &Config, artifacts: Artifacts, fetcher: UrlFetcher, tasks: Tasks) -> Self {
        let files = &config.files;
        Self {
            inner: Arc::new(StagerContext {
                roots: host_folder::HostRoots::new(files.host_roots.clone()),
                artifacts,
                fetcher: files.input_urls.then_some(fetcher),
                fetches: TenantPermits::new(FETCHES_MAX, config.auth.is_some()),
                bytes_max: files.stage_bytes_max,
                state_dir: config.state_dir.clone(),
                tasks,
            }),
        }
    }

    /// Stages all inputs or none, and returns the results in their order. When this is dropped, no input is staged,
    /// unless the guest has the complete archive: then all are staged and recorded. Archives of the request stay.
    ///
    /// # Errors
    /// [`Error::Source`] and other errors of the sources; errors of the guest that writes the files.
    pub async fn stage(
        &self,
        workspace: Workspace,
        grant: WorkspaceGrant,
        inputs: Arc<[InputSpec]>,
        scope: ArtifactScope,
    ) -> Result<Vec<StagedInput>> {
        let gone = CancellationToken::new();
        // Cancelled when this future is dropped.
        let _gone = gone.clone().drop_guard();
        // One request at a time per workspace, because the record decides which names are free.
        let turn = workspace.lock_input_staging().await;
        let shared = self.clone();
        let task = async move {
            let _turn: OwnedMutexGuard<()> = turn;
            shared
                .stage_archive(&workspace, &grant, &inputs, &scope, &gone)
                .await
        };
        let staged = self.inner.tasks.spawn(task).await;
        staged.map_err(|error| Error::Internal(format!("staging inputs: {error}")))?
    }

    /// Packs, sends and records the inputs of one request.
    async fn stage_archive(
        &self,
        workspace: &Workspace,
        grant: &WorkspaceGrant,
        inputs: &[InputSpec],
        scope: &ArtifactScope,
        gone: &CancellationToken,
    ) -> Result<Vec<StagedInput>> {
        let view = workspace.snapshot();
        let claim = view.record.claim.as_ref();
        let recorded = claim.map_or(&[][..], |claim| claim.inputs.as_slice());
        let destinations = destination::plan_destinations(inputs, recorded, scope)?;
        let mut room = ArchiveRoom {
            entries: ARCHIVE_ENTRIES_MAX,
            bytes: self.inner.bytes_max,
        };
        let mut unpacked = VecDeque::new();
        for (input, destination) in inputs.iter().zip(&destinations) {
            let InputSource::Archive(data) = &input.source else {
                continue;
            };
            let job = PlannedInput { input, destination };
            let unpacking = request_archive::unpack_archive(grant, &job, data, &mut room);
            unpacked.push_back(tokio::select! {
                staged = unpacking => staged?,
                () = gone.cancelled() => return Err(CANCELLED),
                () = self.inner.tasks.stop.cancelled() => return Err(Error::Draining),
            });
        }
        let mut producer = SourcePacker {
            unpacked,
            inner: &self.inner,
            reader: WorkspaceReader {
                guest: grant.guest.clone(),
                workspace: workspace.id().name(),
            },
            skills: claim.map(|claim| claim.skills.clone()).unwrap_or_default(),
            scope,
        };
        let (packer, messages) =
            archive_packer::archive_channel(ARCHIVE_MESSAGES_MAX, packed_header(room));
        let mut client = grant.guest.clone();
        let put = grant.call(client.put_files(messages));
        let produced = producer.produce(packer, inputs, &destinations);
        let (mut put, mut produced) = (pin!(put), pin!(produced));
        let staged = tokio::select! {
            staged = &mut produced => staged?,
            // The guest answers before the archive is complete only with an error.
            answer = &mut put => return Err(answer.err().unwrap_or_else(ended_early)),
            () = gone.cancelled() => return Err(CANCELLED),
            () = self.inner.tasks.stop.cancelled() => return Err(Error::Draining),
        };
        // From here on the guest installs the archive even if the caller goes away. At a stop the slot's task cuts the
        // guest's connection, and `put` ends.
        let late = async {
            gone.cancelled().await;
            tokio::time::sleep(INSTALL_TIMEOUT).await;
        };
        tokio::select! {
            answer = &mut put => answer?,
            () = late => return Err(CANCELLED),
        };
        let now = SystemTime::now();
        // The record would not say which files an archive had.
        let is_recorded = |(input, _): &(&InputSpec, &StagedInput)| {
            !matches!(input.source, InputSource::Archive(_))
        };
        let records = inputs
            .iter()
            .zip(&staged)
            .filter(is_recorded)
            .map(|(input, staged)| input_record(input, staged, scope, now));
        workspace.record_inputs(records.collect()).await?;
        Ok(staged)
    }
}

/// Makes the header of the packed archive.
fn packed_header(room: ArchiveRoom) -> guest::PutFilesHeader {
    guest::PutFilesHeader {
        file: Some(pb::StageFilesHeader {
            format: pb::StageFormat::Tar.into(),
            ..pb::StageFilesHeader::default()
        }),
        entries_max: room.entries,
        bytes_max: room.bytes,
    }
}

fn ended_early() -> Error {
    Error::Internal("the guest answered before the archive was whole".into())
}

fn input_record(
    input: &InputSpec,
    staged: &StagedInput,
    scope: &ArtifactScope,
    now: SystemTime,
) -> record::InputRecord {
    let scope = if let InputSource::Artifact(artifact) = &input.source {
        scope_parts(scope, artifact)
    } else {
        Vec::new()
    };
    record::InputRecord {
        path: staged.path.clone(),
        from: input.from.clone(),
        url_sha256: destination::url_sha256(&input.source),
        name: input.name.clone(),
        scope,
        version: staged.version,
        sha256: staged.sha256.clone(),
        size: staged.size,
        time_ms: unix_ms(now),
    }
}

/// Returns the artifact versions that workspaces have as inputs.
pub fn staged_artifacts(workspaces: &[Workspace]) -> HashSet<ArtifactVersionId> {
    let mut found = HashSet::new();
    for workspace in workspaces {
        if let Some(claim) = &workspace.snapshot().record.claim {
            let inputs = claim.inputs.iter();
            found.extend(inputs.filter_map(|input| staged_version(&claim.tenant, input)));
        }
    }
    found
}

fn staged_version(tenant: &TenantName, input: &record::InputRecord) -> Option<ArtifactVersionId> {
    let [app, user, session] = input.scope.as_slice() else {
        return None;
    };
    let scope = RequestedScope::parse("scope", app, user, session).ok()?;
    Some(ArtifactVersionId {
        scope: scope.of_tenant(tenant),
        name: ArtifactRef::parse("from", &input.from).ok()?.name,
        version: input.version?,
    })
}

/// Returns the effective scope of an artifact, as the record stores it.
fn scope_parts(scope: &ArtifactScope, artifact: &ArtifactRef) -> Vec<String> {
    let effective = scope.of(&artifact.name);
    [effective.app(), effective.user(), effective.session()]
        .map(str::to_owned)
        .into()
}
