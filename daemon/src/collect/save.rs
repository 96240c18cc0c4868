//! A guest's FILES stream that also goes into the artifact store, file by file. Nothing is held: a store that is slow
//! slows the guest down, and so does a client. A file is an artifact when all of it has come and the guest has said that
//! this was all; one that ends in any other way leaves none.

use std::time::{Duration, SystemTime};

use bytes::Bytes;
use futures::Stream;
use skilld_proto::v1 as pb;
use skilld_proto::v1::collect_outputs_response::Payload;
use skilld_proto::v1::skipped_file::Reason;
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Status, Streaming};

use crate::artifacts::{Artifacts, Name, Save, Scope};
use crate::error::{Chain, Error, Result};
use crate::fault::{self, Point};
use crate::mime;
use crate::shutdown::Tasks;

/// Messages on their way to the client.
const MESSAGES: usize = 4;
/// Pieces of a file on their way to the store.
const PIECES: usize = 2;
/// Paths of a kind that a summary names.
const NAMED_MAX: usize = 1000;
/// The same in bytes, of all kinds together: a summary is one message, and is kept beside the slot's record.
const NAMED_BYTES_MAX: usize = 512 << 10;
/// Of a path in a message besides its text.
const NAMED_BYTES: usize = 8;
/// A store may count its time in milliseconds.
const TIME_UNIT: Duration = Duration::from_millis(1);

type Message = Result<pb::CollectOutputsResponse>;

/// Under which names files are kept.
#[derive(Debug, Clone)]
pub struct SaveAs {
    prefix: String,
    scope: Scope,
    /// Set when an earlier try may have saved some of it.
    tried_since: Option<SystemTime>,
    /// Empty files are not saved, since the exec that left them failed.
    skip_empty: bool,
}

/// Why a collection ended before its summary.
#[derive(Debug)]
pub(super) enum Failure {
    /// What the guest, or the way to it, said.
    Guest(Status),
    /// It did not keep to the protocol.
    Broken(&'static str),
    /// Nobody reads it any more.
    Gone,
}

/// One collection.
pub(super) struct Saver {
    guest: Streaming<pb::CollectOutputsResponse>,
    artifacts: Artifacts,
    save_as: SaveAs,
    limits: Limits,
    client: Option<mpsc::Sender<Message>>,
    named: Named,
}

/// What the summary is to name.
#[derive(Debug)]
struct Named {
    artifacts: Vec<String>,
    skipped: Vec<pb::SkippedFile>,
    /// Bytes that it may still have.
    left: usize,
}

/// What was asked for. A guest that sends more does not fill the host's disk.
struct Limits {
    files: i64,
    file_bytes: i64,
    total_bytes: i64,
}

/// What goes to the store.
enum Piece {
    Data(Bytes),
    /// That was all; a file that ends without it is not whole.
    End,
}

// === impl SaveAs ===

impl SaveAs {
    /// Checks prefix and scope.
    ///
    /// # Errors
    /// `Invalid`, naming what is beneath `field`.
    pub fn parse(field: &str, asked: &pb::SaveAsArtifacts) -> Result<Self> {
        let scope = asked.scope.clone().unwrap_or_default();
        let scope = Scope::parse(
            &format!("{field}.scope"),
            &scope.app,
            &scope.user,
            &scope.session,
        )?;
        // Paths are good names, so it is enough that a short one is.
        Name::parse(&format!("{field}.prefix"), &format!("{}x", asked.prefix))?;
        Ok(Self {
            prefix: asked.prefix.clone(),
            scope,
            tried_since: None,
            skip_empty: false,
        })
    }

    /// Leaves out empty files if `skip` is true.
    #[must_use]
    pub fn skip_empty(mut self, skip: bool) -> Self {
        self.skip_empty = skip;
        self
    }

    /// What was saved since then by an earlier try is not saved again.
    #[must_use]
    pub fn tried_since(mut self, time: SystemTime) -> Self {
        self.tried_since = Some(time - TIME_UNIT);
        self
    }

    fn name(&self, path: &str) -> Result<Name> {
        Name::parse("path", &format!("{}{path}", self.prefix))
    }
}

/// Saves while it passes on. The client gets the guest's messages with the artifacts' names in them; when it goes away,
/// what is saved stays and nothing half does. `workspace` is named in errors.
pub fn save(
    guest: Streaming<pb::CollectOutputsResponse>,
    spec: &pb::CollectSpec,
    save_as: SaveAs,
    artifacts: &Artifacts,
    tasks: &Tasks,
    workspace: String,
) -> impl Stream<Item = Message> + Send + Unpin + use<> {
    let (client, messages) = mpsc::channel(MESSAGES);
    let mut saver = Saver::new(guest, spec, save_as, artifacts.clone());
    saver.client = Some(client.clone());
    let stop = tasks.stop.clone();
    tasks.spawn(async move {
        let ended = tokio::select! {
            () = stop.cancelled() => return,
            ended = saver.run() => ended,
        };
        let error = match ended {
            Ok(_) | Err(Failure::Gone) => return,
            Err(Failure::Guest(status)) => Error::from_guest(&workspace, &status),
            Err(Failure::Broken(why)) => Error::Internal(format!("guest of {workspace}: {why}")),
        };
        if client.send(Err(error)).await.is_err() {
            tracing::trace!("client has gone away");
        }
    });
    ReceiverStream::new(messages)
}

// === impl Saver ===

impl Saver {
    pub(super) fn new(
        guest: Streaming<pb::CollectOutputsResponse>,
        spec: &pb::CollectSpec,
        save_as: SaveAs,
        artifacts: Artifacts,
    ) -> Self {
        Self {
            guest,
            artifacts,
            save_as,
            limits: Limits {
                files: spec.max_files,
                file_bytes: spec.max_file_bytes,
                total_bytes: spec.max_total_bytes,
            },
            client: None,
            named: Named::default(),
        }
    }

    /// To the summary.
    pub(super) async fn run(&mut self) -> Result<pb::CollectSummary, Failure> {
        loop {
            match self.next().await? {
                Payload::File(file) if !file.link_target.is_empty() => {
                    self.pass_on(Payload::File(file)).await?;
                }
                Payload::File(file) => self.file(file).await?,
                Payload::Summary(mut summary) => {
                    self.named.complete(&mut summary);
                    self.pass_on(Payload::Summary(summary.clone())).await?;
                    return Ok(summary);
                }
                Payload::Data(_) | Payload::FileEnd(_) => {
                    return Err(Failure::Broken("bytes of no file"));
                }
            }
        }
    }

    /// What was saved, of a collection that did not come to its end.
    pub(super) fn so_far(&mut self) -> pb::CollectSummary {
        let mut summary = pb::CollectSummary::default();
        self.named.complete(&mut summary);
        summary
    }

    async fn next(&mut self) -> Result<Payload, Failure> {
        let message = match &self.client {
            None => self.guest.message().await,
            Some(client) => tokio::select! {
                message = self.guest.message() => message,
                () = client.closed() => return Err(Failure::Gone),
            },
        };
        let message = message.map_err(Failure::Guest)?;
        let payload = message.and_then(|message| message.payload);
        payload.ok_or(Failure::Broken("no summary"))
    }

    async fn pass_on(&self, payload: Payload) -> Result<(), Failure> {
        let Some(client) = &self.client else {
            return Ok(());
        };
        let payload = Some(payload);
        let sent = client
            .send(Ok(pb::CollectOutputsResponse { payload }))
            .await;
        sent.map_err(|_| Failure::Gone)
    }

    async fn file(&mut self, file: pb::CollectedFile) -> Result<(), Failure> {
        self.limits.files -= 1;
        if self.limits.files < 0 {
            return Err(Failure::Broken("more files than asked for"));
        }
        let name = self.name_of(&file);
        let (path, mime_type) = (file.path.clone(), file.mime_type.clone());
        self.pass_on(Payload::File(file)).await?;
        let (mut end, saved) = match name {
            Err(reason) => (self.feed(None).await?.0, Err(reason)),
            Ok(name) => self.save_as(&name, mime_type).await?,
        };
        match saved {
            Ok(version) => {
                self.named.artifact(&version);
                end.artifact = version;
                fault::reach(Point::CollectSaved);
            }
            Err(reason) => {
                let reason = if end.truncated {
                    Reason::NotWhole
                } else {
                    reason
                };
                self.named.skip(path, reason);
            }
        }
        self.pass_on(Payload::FileEnd(end)).await
    }

    /// A name that is not text would be another file's.
    fn name_of(&self, file: &pb::CollectedFile) -> Result<Name, Reason> {
        if file.size > self.limits.file_bytes {
            return Err(Reason::NotWhole);
        }
        if file.size == 0 && self.save_as.skip_empty {
            return Err(Reason::EmptyAfterFailure);
        }
        if !file.path_bytes.is_empty() {
            return Err(Reason::NotSaved);
        }
        self.save_as.name(&file.path).map_err(|_| Reason::NotSaved)
    }

    /// Feeds one file to the store; `artifact://name@version`, or why there is none.
    async fn save_as(
        &mut self,
        name: &Name,
        mime_type: String,
    ) -> Result<(pb::FileEnd, Result<String, Reason>), Failure> {
        let (sender, receiver) = mpsc::channel(PIECES);
        let (artifacts, scope) = (self.artifacts.clone(), self.save_as.scope.clone());
        let save = Save {
            // A guest may say anything.
            mime_type: Some(mime_type).filter(|text| mime::is_type(text)),
            ..Save::default()
        };
        let saving = artifacts.save(&scope, name, save, pieces(receiver));
        let (fed, saved) = tokio::join!(self.feed(Some((name, sender))), saving);
        let (end, before) = fed?;
        let version = match (before, saved) {
            (Some(before), _) => Ok(before),
            (None, Ok(artifact)) => Ok(artifact.version),
            (None, Err(error)) => {
                if !end.truncated {
                    tracing::warn!(error = %Chain(&error), "collected file was not saved");
                }
                Err(Reason::NotSaved)
            }
        };
        let version = version.map(|version| format!("artifact://{}@{version}", name.as_str()));
        Ok((end, version))
    }

    /// Passes the bytes of one file on, and gives them to the store. Ends with the guest's word on it, and with the
    /// version that an earlier try has made of it.
    async fn feed(
        &mut self,
        mut store: Option<(&Name, mpsc::Sender<Piece>)>,
    ) -> Result<(pb::FileEnd, Option<u64>), Failure> {
        loop {
            match self.next().await? {
                Payload::Data(data) => {
                    self.limits.total_bytes -= i64::try_from(data.len()).unwrap_or(i64::MAX);
                    if self.limits.total_bytes < 0 {
                        return Err(Failure::Broken("more bytes than asked for"));
                    }
                    if let Some((_, sender)) = &store
                        && sender.send(Piece::Data(data.clone())).await.is_err()
                    {
                        // It will say why.
                        store = None;
                    }
                    self.pass_on(Payload::Data(data)).await?;
                }
                Payload::FileEnd(end) => {
                    let Some((name, sender)) = store.filter(|_| !end.truncated) else {
                        return Ok((end, None));
                    };
                    let before = self.saved_before(name, &end.sha256).await;
                    if before.is_none() && sender.send(Piece::End).await.is_err() {
                        tracing::debug!("store did not wait for the end of a file");
                    }
                    return Ok((end, before));
                }
                Payload::File(_) | Payload::Summary(_) => {
                    return Err(Failure::Broken("a file without an end"));
                }
            }
        }
    }

    async fn saved_before(&self, name: &Name, sha256: &str) -> Option<u64> {
        let since = self.save_as.tried_since?;
        let newest = self.artifacts.get(&self.save_as.scope, name, None).await;
        let same = newest
            .ok()
            .filter(|newest| newest.sha256 == sha256 && newest.create_time >= since);
        same.map(|artifact| artifact.version)
    }
}

// === impl Named ===

impl Default for Named {
    fn default() -> Self {
        Self {
            artifacts: Vec::new(),
            skipped: Vec::new(),
            left: NAMED_BYTES_MAX,
        }
    }
}

impl Named {
    fn fits(&mut self, text: &str) -> bool {
        let left = self.left.checked_sub(text.len() + NAMED_BYTES);
        self.left = left.unwrap_or(self.left);
        left.is_some()
    }

    fn artifact(&mut self, version: &str) {
        if self.artifacts.len() < NAMED_MAX && self.fits(version) {
            self.artifacts.push(version.to_owned());
        }
    }

    fn skip(&mut self, path: String, reason: Reason) {
        if self.skipped.len() < NAMED_MAX && self.fits(&path) {
            let reason = reason.into();
            self.skipped.push(pb::SkippedFile { path, reason });
        }
    }

    /// The guest's own lists have what is left.
    fn complete(&mut self, summary: &mut pb::CollectSummary) {
        summary.artifacts = std::mem::take(&mut self.artifacts);
        summary.truncated.truncate(NAMED_MAX);
        summary.truncated.retain(|path| self.fits(path));
        summary.skipped.truncate(NAMED_MAX);
        summary.skipped.retain(|file| self.fits(&file.path));
        let outside = summary.outside.len();
        summary.outside.truncate(NAMED_MAX);
        summary.outside.retain(|path| self.fits(path));
        summary.outside_cut |= summary.outside.len() < outside;
        summary.skipped.append(&mut self.skipped);
        summary.skipped.sort_by(|a, b| a.path.cmp(&b.path));
        summary.skipped.truncate(NAMED_MAX);
    }
}

/// The bytes of a file for the store; an error if their end did not come.
fn pieces(receiver: mpsc::Receiver<Piece>) -> impl Stream<Item = Result<Bytes>> + Send + 'static {
    futures::stream::unfold(Some(receiver), |receiver| async {
        let mut receiver = receiver?;
        match receiver.recv().await {
            Some(Piece::Data(data)) => Some((Ok(data), Some(receiver))),
            Some(Piece::End) => None,
            None => {
                let doing = "collecting a file that was cut";
                Some((Err(Error::Deadline { doing }), None))
            }
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use prost::Message;

    #[test]
    fn a_guests_word_on_a_type_is_taken_within_the_rules_of_a_save() {
        assert!(mime::is_type("text/csv; charset=utf-8"));
        let long = format!("a/{}", "x".repeat(300));
        for bad in ["", "text", "a/\n", &long] {
            assert!(!mime::is_type(bad), "{bad:?}");
        }
    }

    #[test]
    fn a_summary_fits_into_a_message_whatever_files_are_called() {
        let path = |number: usize| format!("{number}{}", "x".repeat(4000));
        let mut named = Named::default();
        for number in 0..2000 {
            named.skip(path(number), Reason::NotSaved);
        }
        let mut summary = pb::CollectSummary {
            truncated: (0..2000).map(path).collect(),
            skipped: (0..2000)
                .map(|number| pb::SkippedFile {
                    path: path(number),
                    reason: Reason::Gone.into(),
                })
                .collect(),
            ..pb::CollectSummary::default()
        };
        named.complete(&mut summary);
        assert!(!summary.skipped.is_empty());
        let bytes = summary.encoded_len();
        assert!(bytes <= NAMED_BYTES_MAX + (64 << 10), "{bytes}");

        // Names of a usual length are all there.
        let mut named = Named::default();
        let version = |number: usize| format!("artifact://results/plot-{number}.png@0");
        for number in 0..2000 {
            named.artifact(&version(number));
            named.skip(format!("out/tmp/{number}"), Reason::NotSaved);
        }
        let mut summary = pb::CollectSummary::default();
        named.complete(&mut summary);
        let lists = (summary.artifacts.len(), summary.skipped.len());
        assert_eq!(lists, (NAMED_MAX, NAMED_MAX));
    }
}
