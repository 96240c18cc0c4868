//! Saves a guest's stream of collected files into the artifact store, file by file, and passes it on to the client.
//!
//! Nothing is buffered: a slow store slows the guest down, and so does a slow client. A file becomes an artifact only
//! when all its bytes and its end message have come.

use std::time::{Duration, SystemTime};

use bytes::Bytes;
use futures::Stream;
use prost_types::Timestamp;
use skilld_common::mime;
use skilld_proto::v1::collect_outputs_response::Payload;
use skilld_proto::v1::{self as pb, SkipReason};
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Status, Streaming};

use crate::artifacts::{ArtifactName, ArtifactScope, Artifacts, RequestedScope, SaveOptions};
use crate::collect::STOPPED;
use crate::error::{Chain, Error, Result};
use crate::fault;
use crate::shutdown::Tasks;
use crate::workspace::WorkspaceKey;

/// Capacity of the channel to the client, in messages.
const CLIENT_MESSAGES_MAX: usize = 4;
/// Capacity of the channel to the store, in pieces of one file.
const PIECES_MAX: usize = 2;
/// Maximum length of each list of a summary.
const PATHS_MAX: usize = 1000;
/// Maximum size of all lists of a summary together, in bytes.
const PATHS_BYTES_MAX: usize = 512 << 10;
/// Overhead of one path in an encoded message, in bytes.
const PATH_OVERHEAD_BYTES: usize = 8;
/// Resolution of the creation time of an artifact: its record has milliseconds.
const TIME_RESOLUTION: Duration = Duration::from_millis(1);

type ClientMessage = Result<pb::CollectOutputsResponse>;

/// Names under which collected files are saved, and files to leave out.
#[derive(Debug, Clone)]
pub struct SaveAs {
    prefix: String,
    scope: RequestedScope,
    /// Idempotency key of the collection, which counts for each of its files.
    request_id: Option<String>,
    /// Time since which an earlier attempt may have saved files; `None` without one.
    saved_since: Option<SystemTime>,
    /// Leaves out empty files, because the exec that wrote them failed.
    skip_empty: bool,
}

/// Reason for a collection that ended before its summary.
#[derive(Debug)]
enum CollectionAbort {
    /// Status from the guest or from its connection.
    Guest(Status),
    /// The guest violated the protocol by sending this.
    Protocol(&'static str),
    /// The client closed the stream.
    ClientGone,
}

/// Transfer of one collection from the guest to the store and the client.
struct CollectionSaver {
    guest: Streaming<pb::CollectOutputsResponse>,
    artifacts: Artifacts,
    save_as: SaveAs,
    /// Scope of the artifacts.
    scope: ArtifactScope,
    limits: SaveLimits,
    client: mpsc::Sender<ClientMessage>,
    lists: SummaryLists,
}

/// Lists of a summary while it is collected.
#[derive(Debug)]
struct SummaryLists {
    artifacts: Vec<String>,
    skipped: Vec<pb::SkippedFile>,
    /// Remaining size of all lists, in bytes.
    left: usize,
}

/// Remaining limits of the request. They keep a hostile guest from filling the host's disk.
struct SaveLimits {
    files: i64,
    file_bytes: i64,
    total_bytes: i64,
}

/// Piece of a file on its way to the store.
enum FilePiece {
    Data(Bytes),
    /// Last piece; a file without it is incomplete.
    End,
}

// === impl SaveAs ===

impl SaveAs {
    /// Parses prefix and scope of a request.
    ///
    /// # Errors
    /// [`Error::Invalid`] with the path of the wrong field beneath `field`.
    pub fn parse(field: &str, requested: &pb::SaveAsArtifacts) -> Result<Self> {
        let scope = requested.scope.clone().unwrap_or_default();
        let scope = RequestedScope::parse(
            &format!("{field}.scope"),
            &scope.app,
            &scope.user,
            &scope.session,
        )?;
        // Paths are valid names, so the prefix is valid if it is with a short path.
        ArtifactName::parse(
            &format!("{field}.prefix"),
            &format!("{}x", requested.prefix),
        )?;
        Ok(Self {
            prefix: requested.prefix.clone(),
            scope,
            request_id: Some(requested.request_id.clone()).filter(|id| !id.is_empty()),
            saved_since: None,
            skip_empty: false,
        })
    }

    /// Leaves out files that an earlier attempt has saved since the start of an exec; with `skip_empty` also empty files,
    /// if the exec failed. `result` is `None` before its end.
    #[must_use]
    pub fn after_exec(
        mut self,
        start_time: Option<Timestamp>,
        result: Option<&pb::ExecResult>,
        skip_empty: bool,
    ) -> Self {
        let start: Option<SystemTime> = start_time.and_then(|time| time.try_into().ok());
        self.saved_since = start.map(|start| start - TIME_RESOLUTION);
        self.skip_empty = skip_empty && result.is_some_and(|result| !result.success);
        self
    }

    fn name(&self, path: &str) -> Result<ArtifactName> {
        ArtifactName::parse("path", &format!("{}{path}", self.prefix))
    }
}

/// Saves the files of a guest's stream and returns the stream for the client, with the names of the artifacts in it.
/// When the client goes away, saved files stay and no incomplete one does. `workspace` names the tenant of the artifacts.
pub fn save_collected_files(
    guest: Streaming<pb::CollectOutputsResponse>,
    spec: &pb::CollectSpec,
    save_as: SaveAs,
    artifacts: &Artifacts,
    tasks: &Tasks,
    workspace: &WorkspaceKey,
) -> impl Stream<Item = ClientMessage> + Send + Unpin + use<> {
    let (client, messages) = mpsc::channel(CLIENT_MESSAGES_MAX);
    let mut saver = CollectionSaver {
        guest,
        artifacts: artifacts.clone(),
        scope: save_as.scope.clone().of_tenant(&workspace.tenant),
        save_as,
        limits: SaveLimits {
            files: spec.max_files,
            file_bytes: spec.max_file_bytes,
            total_bytes: spec.max_total_bytes,
        },
        client: client.clone(),
        lists: SummaryLists::default(),
    };
    let stop = tasks.stop.clone();
    let workspace_name = workspace.id.name();
    tasks.spawn(async move {
        let ended = tokio::select! {
            () = stop.cancelled() => {
                // A full channel has messages, and then the layer around the call ends the answer.
                drop(client.try_send(Err(STOPPED)));
                return;
            }
            ended = saver.run() => ended,
        };
        let error = match ended {
            Ok(()) | Err(CollectionAbort::ClientGone) => return,
            Err(CollectionAbort::Guest(status)) => Error::from_guest(&workspace_name, &status),
            Err(CollectionAbort::Protocol(why)) => {
                Error::Internal(format!("guest of {workspace_name}: {why}"))
            }
        };
        if client.send(Err(error)).await.is_err() {
            tracing::trace!("client has gone away");
        }
    });
    ReceiverStream::new(messages)
}

// === impl CollectionSaver ===

impl CollectionSaver {
    /// Transfers all files, and then the summary.
    async fn run(&mut self) -> Result<(), CollectionAbort> {
        loop {
            match self.next().await? {
                Payload::File(file) if !file.link_target.is_empty() => {
                    self.pass_on(Payload::File(file)).await?;
                }
                Payload::File(file) => self.on_file(file).await?,
                Payload::Summary(mut summary) => {
                    self.lists.move_into(&mut summary);
                    return self.pass_on(Payload::Summary(summary)).await;
                }
                Payload::Data(_) | Payload::FileEnd(_) => {
                    return Err(CollectionAbort::Protocol("bytes of no file"));
                }
            }
        }
    }

    async fn next(&mut self) -> Result<Payload, CollectionAbort> {
        let message = tokio::select! {
            message = self.guest.message() => message.map_err(CollectionAbort::Guest)?,
            () = self.client.closed() => return Err(CollectionAbort::ClientGone),
        };
        let payload = message.and_then(|message| message.payload);
        payload.ok_or(CollectionAbort::Protocol("no summary"))
    }

    async fn pass_on(&self, payload: Payload) -> Result<(), CollectionAbort> {
        let payload = Some(payload);
        let sent = self
            .client
            .send(Ok(pb::CollectOutputsResponse { payload }))
            .await;
        sent.map_err(|_| CollectionAbort::ClientGone)
    }

    async fn on_file(&mut self, file: pb::CollectedFile) -> Result<(), CollectionAbort> {
        self.limits.files -= 1;
        if self.limits.files < 0 {
            return Err(CollectionAbort::Protocol("more files than asked for"));
        }
        let name = self.artifact_name(&file);
        let (path, mime_type) = (file.path.clone(), file.mime_type.clone());
        self.pass_on(Payload::File(file)).await?;
        let (mut end, saved) = match name {
            Err(reason) => (self.transfer_file(None).await?.0, Err(reason)),
            Ok(name) => self.save_file(&name, mime_type).await?,
        };
        match saved {
            Ok(version) => {
                self.lists.add_artifact(&version);
                end.artifact = version;
                fault::reach("collect.saved");
            }
            Err(reason) => {
                let reason = if end.truncated {
                    SkipReason::NotWhole
                } else {
                    reason
                };
                self.lists.add_skipped(path, reason);
            }
        }
        self.pass_on(Payload::FileEnd(end)).await
    }

    /// Returns the artifact name of a file, or the reason to skip it. A path that is not UTF-8 has none: its text form
    /// could be that of another file.
    fn artifact_name(&self, file: &pb::CollectedFile) -> Result<ArtifactName, SkipReason> {
        if file.size_bytes > self.limits.file_bytes {
            return Err(SkipReason::NotWhole);
        }
        if file.size_bytes == 0 && self.save_as.skip_empty {
            return Err(SkipReason::EmptyAfterFailure);
        }
        if !file.raw_path.is_empty() {
            return Err(SkipReason::NotSaved);
        }
        self.save_as
            .name(&file.path)
            .map_err(|_| SkipReason::NotSaved)
    }

    /// Saves one file. Returns its end message, and `artifact://name@version` or the reason why it was not saved.
    async fn save_file(
        &mut self,
        name: &ArtifactName,
        mime_type: String,
    ) -> Result<(pb::FileEnd, Result<String, SkipReason>), CollectionAbort> {
        let (sender, receiver) = mpsc::channel(PIECES_MAX);
        let (artifacts, scope) = (self.artifacts.clone(), self.scope.clone());
        let save = SaveOptions {
            // The guest is not trusted to send a valid type.
            mime_type: Some(mime_type).filter(|text| mime::is_type(text)),
            request_id: self.save_as.request_id.clone(),
            ..SaveOptions::default()
        };
        let saving = artifacts.save(&scope, name, save, file_bytes(receiver));
        let (fed, saved) = tokio::join!(self.transfer_file(Some((name, sender))), saving);
        let (end, before) = fed?;
        let number = match (before, saved) {
            (Some(before), _) => Ok(before),
            (None, Ok(artifact)) => Ok(artifact.version),
            (None, Err(error)) => {
                if !end.truncated {
                    tracing::warn!(error = %Chain(&error), "collected file was not saved");
                }
                Err(if matches!(error, Error::TenantQuota { .. }) {
                    SkipReason::QuotaExceeded
                } else {
                    SkipReason::NotSaved
                })
            }
        };
        let version = number.map(|number| format!("artifact://{}@{number}", name.as_str()));
        Ok((end, version))
    }

    /// Sends the bytes of one file to the client and to the store. Returns the file's end message, and the version that
    /// an earlier attempt has saved.
    async fn transfer_file(
        &mut self,
        mut store: Option<(&ArtifactName, mpsc::Sender<FilePiece>)>,
    ) -> Result<(pb::FileEnd, Option<u64>), CollectionAbort> {
        loop {
            match self.next().await? {
                Payload::Data(data) => {
                    self.limits.total_bytes -= i64::try_from(data.len()).unwrap_or(i64::MAX);
                    if self.limits.total_bytes < 0 {
                        return Err(CollectionAbort::Protocol("more bytes than asked for"));
                    }
                    if let Some((_, sender)) = &store
                        && sender.send(FilePiece::Data(data.clone())).await.is_err()
                    {
                        // The result of the save has the reason.
                        store = None;
                    }
                    self.pass_on(Payload::Data(data)).await?;
                }
                Payload::FileEnd(end) => {
                    let Some((name, sender)) = store.filter(|_| !end.truncated) else {
                        return Ok((end, None));
                    };
                    let before = self.find_saved_version(name, &end.sha256).await;
                    if before.is_none() && sender.send(FilePiece::End).await.is_err() {
                        tracing::debug!("store did not wait for the end of a file");
                    }
                    return Ok((end, before));
                }
                Payload::File(_) | Payload::Summary(_) => {
                    return Err(CollectionAbort::Protocol("a file without an end"));
                }
            }
        }
    }

    async fn find_saved_version(&self, name: &ArtifactName, sha256: &str) -> Option<u64> {
        let since = self.save_as.saved_since?;
        let newest = self.artifacts.get(&self.scope, name, None).await;
        let same = newest
            .ok()
            .filter(|newest| newest.sha256 == sha256 && newest.create_time >= since);
        same.map(|artifact| artifact.version)
    }
}

// === impl SummaryLists ===

impl Default for SummaryLists {
    fn default() -> Self {
        Self {
            artifacts: Vec::new(),
            skipped: Vec::new(),
            left: PATHS_BYTES_MAX,
        }
    }
}

impl SummaryLists {
    fn reserve(&mut self, text: &str) -> bool {
        let left = self.left.checked_sub(text.len() + PATH_OVERHEAD_BYTES);
        self.left = left.unwrap_or(self.left);
        left.is_some()
    }

    fn add_artifact(&mut self, version: &str) {
        if self.artifacts.len() < PATHS_MAX && self.reserve(version) {
            self.artifacts.push(version.to_owned());
        }
    }

    fn add_skipped(&mut self, path: String, reason: SkipReason) {
        if self.skipped.len() < PATHS_MAX && self.reserve(&path) {
            self.skipped.push(pb::SkippedFile {
                path,
                reason: reason.into(),
            });
        }
    }

    /// Moves the lists into a summary. The guest's own lists get the remaining size.
    fn move_into(&mut self, summary: &mut pb::CollectSummary) {
        summary.artifacts = std::mem::take(&mut self.artifacts);
        summary.truncated_paths.truncate(PATHS_MAX);
        summary.truncated_paths.retain(|path| self.reserve(path));
        summary.skipped_files.truncate(PATHS_MAX);
        summary
            .skipped_files
            .retain(|file| self.reserve(&file.path));
        let outside = summary.outside_paths.len();
        summary.outside_paths.truncate(PATHS_MAX);
        summary.outside_paths.retain(|path| self.reserve(path));
        summary.outside_paths_truncated |= summary.outside_paths.len() < outside;
        summary.unmatched_globs.truncate(PATHS_MAX);
        summary.unmatched_globs.retain(|glob| self.reserve(glob));
        summary.skipped_files.append(&mut self.skipped);
        summary.skipped_files.sort_by(|a, b| a.path.cmp(&b.path));
        summary.skipped_files.truncate(PATHS_MAX);
    }
}

/// Returns the bytes of a file as a stream for the store. It fails if the last piece does not come.
fn file_bytes(
    receiver: mpsc::Receiver<FilePiece>,
) -> impl Stream<Item = Result<Bytes>> + Send + 'static {
    futures::stream::unfold(Some(receiver), |receiver| async {
        let mut receiver = receiver?;
        match receiver.recv().await {
            Some(FilePiece::Data(data)) => Some((Ok(data), Some(receiver))),
            Some(FilePiece::End) => None,
            None => {
                let doing = "collecting a file that was cut";
                Some((Err(Error::deadline(doing)), None))
            }
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use prost::Message;

    #[test]
    fn mime_types_of_a_guest_follow_the_rules_of_a_save() {
        assert!(mime::is_type("text/csv; charset=utf-8"));
        let long = format!("a/{}", "x".repeat(300));
        for bad in ["", "text", "a/\n", &long] {
            assert!(!mime::is_type(bad), "{bad:?}");
        }
    }

    #[test]
    fn summary_fits_into_a_message_for_any_file_names() {
        let path = |number: usize| format!("{number}{}", "x".repeat(4000));
        let mut lists = SummaryLists::default();
        for number in 0..2000 {
            lists.add_skipped(path(number), SkipReason::NotSaved);
        }
        let mut summary = pb::CollectSummary {
            truncated_paths: (0..2000).map(path).collect(),
            skipped_files: (0..2000)
                .map(|number| pb::SkippedFile {
                    path: path(number),
                    reason: SkipReason::Gone.into(),
                })
                .collect(),
            ..pb::CollectSummary::default()
        };
        lists.move_into(&mut summary);
        assert!(!summary.skipped_files.is_empty());
        let bytes = summary.encoded_len();
        assert!(bytes <= PATHS_BYTES_MAX + (64 << 10), "{bytes}");

        // Names of a usual length all fit.
        let mut lists = SummaryLists::default();
        let version = |number: usize| format!("artifact://results/plot-{number}.png@0");
        for number in 0..2000 {
            lists.add_artifact(&version(number));
            lists.add_skipped(format!("out/tmp/{number}"), SkipReason::NotSaved);
        }
        let mut summary = pb::CollectSummary::default();
        lists.move_into(&mut summary);
        let lists = (summary.artifacts.len(), summary.skipped_files.len());
        assert_eq!(lists, (PATHS_MAX, PATHS_MAX));
    }
}
