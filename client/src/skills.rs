//! Skills: what there is to stage, what is in it, and what it needs.

use std::io;
use std::sync::{Arc, Mutex, PoisonError};

use bytes::Bytes;
use futures::{Stream, StreamExt, future, stream};
use skilld_proto::v1::read_skill_file_response::Payload;
use skilld_proto::v1::{
    DeleteSkillRequest, GetSkillRequest, ListSkillFilesRequest, ListSkillFilesResponse,
    ListSkillsRequest, ListSkillsResponse, PreflightSkillRequest, PreflightSkillResponse,
    PublishSkillHeader, PublishSkillRequest, ReadSkillFileRequest, ReadSkillFileResponse,
    RefreshSkillsRequest, RefreshSkillsResponse, SearchSkillsRequest, SearchSkillsResponse, Skill,
    SkillFile, publish_skill_request,
};
use tokio_util::io::ReaderStream;

use crate::files::stage::CHUNK_BYTES;
use crate::names::skill_name;
use crate::{Client, Error, Messages, Progress, SkillArchive};

/// A skill's file as it comes.
#[derive(Debug)]
pub struct SkillFileReader {
    file: SkillFile,
    messages: Messages<ReadSkillFileResponse>,
}

impl SkillFileReader {
    /// What is read; its path is the one that it really has, its size the whole file's.
    #[must_use]
    pub fn file(&self) -> &SkillFile {
        &self.file
    }

    /// The next bytes, at most 256 KiB; none at the end. Cancel safe.
    pub async fn next(&mut self) -> Result<Option<Bytes>, Error> {
        match self.messages.next().await?.map(|message| message.payload) {
            Some(Some(Payload::Data(data))) => Ok(Some(data)),
            Some(Some(Payload::File(_)) | None) => Err(Error::protocol(
                "it described a file in the middle of its bytes",
            )),
            None => Ok(None),
        }
    }
}

impl Client {
    /// One page of skills, in order of their names.
    pub async fn list_skills(
        &self,
        request: ListSkillsRequest,
    ) -> Result<ListSkillsResponse, Error> {
        self.retrying(|| {
            let (mut stub, request) = (self.skills(), request.clone());
            async move { stub.list_skills(request).await }
        })
        .await
    }

    /// One skill with the text of its SKILL.md; `name`, `name@version` or `name@sha256:digest`.
    pub async fn get_skill(&self, name: &str) -> Result<Skill, Error> {
        let request = GetSkillRequest {
            name: skill_name(name),
            ..GetSkillRequest::default()
        };
        self.retrying(|| {
            let (mut stub, request) = (self.skills(), request.clone());
            async move { stub.get_skill(request).await }
        })
        .await
    }

    /// The best skills for some words.
    pub async fn search_skills(
        &self,
        request: SearchSkillsRequest,
    ) -> Result<SearchSkillsResponse, Error> {
        self.retrying(|| {
            let (mut stub, request) = (self.skills(), request.clone());
            async move { stub.search_skills(request).await }
        })
        .await
    }

    /// One page of a skill's files, sorted by path.
    pub async fn list_skill_files(
        &self,
        mut request: ListSkillFilesRequest,
    ) -> Result<ListSkillFilesResponse, Error> {
        request.name = skill_name(&request.name);
        self.retrying(|| {
            let (mut stub, request) = (self.skills(), request.clone());
            async move { stub.list_skill_files(request).await }
        })
        .await
    }

    /// Opens a file of a skill, or a part of it, for reading.
    pub async fn read_skill_file(
        &self,
        mut request: ReadSkillFileRequest,
    ) -> Result<SkillFileReader, Error> {
        request.name = skill_name(&request.name);
        let messages = self
            .retrying(|| {
                let (mut stub, request) = (self.skills(), request.clone());
                async move { stub.read_skill_file(request).await }
            })
            .await?;
        let mut messages = Messages::new(messages);
        match messages.next().await?.and_then(|first| first.payload) {
            Some(Payload::File(file)) => Ok(SkillFileReader { file, messages }),
            Some(Payload::Data(_)) | None => {
                Err(Error::protocol("it did not describe the file first"))
            }
        }
    }

    /// Publishes an archive as a version of a skill; what is published already is left as it is. Its sha256 goes first, so
    /// the server takes all of it or nothing. Repeated only where nothing was started.
    pub async fn publish_skill(
        &self,
        name: &str,
        archive: &SkillArchive,
        progress: Progress,
    ) -> Result<Skill, Error> {
        let failure = Arc::new(Mutex::new(None));
        let published = self.retrying(|| {
            let mut stub = self.skills();
            let messages = messages(name, archive, progress.clone(), &failure);
            async move { stub.publish_skill(messages).await }
        });
        let published = published.await;
        let failed = failure
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .take();
        match failed {
            // The server can only say that the bytes are not what was announced.
            Some(source) => Err(Error::Io {
                path: archive.path().to_owned(),
                source,
            }),
            None => published,
        }
    }

    /// Removes what was published: `name@version` or `name@sha256:digest`, or all of it with `name` alone. Workspaces
    /// keep what they have.
    pub async fn delete_skill(&self, name: &str) -> Result<(), Error> {
        let request = DeleteSkillRequest {
            name: skill_name(name),
        };
        self.retrying(|| {
            let (mut stub, request) = (self.skills(), request.clone());
            async move { stub.delete_skill(request).await }
        })
        .await
    }

    /// Reads all roots again, remote ones from their servers. A root that is not done when the call has to be answered
    /// is a problem `root.pending`.
    pub async fn refresh_skills(&self) -> Result<RefreshSkillsResponse, Error> {
        self.retrying(|| {
            let mut stub = self.skills();
            async move { stub.refresh_skills(RefreshSkillsRequest {}).await }
        })
        .await
    }

    /// What a skill needs that a pool's image does not have. Runs nothing of the skill.
    pub async fn preflight_skill(
        &self,
        mut request: PreflightSkillRequest,
    ) -> Result<PreflightSkillResponse, Error> {
        request.name = skill_name(&request.name);
        self.retrying(|| {
            let (mut stub, request) = (self.skills(), request.clone());
            async move { stub.preflight_skill(request).await }
        })
        .await
    }
}

/// The header and the bytes of an archive. Where they cannot be read it ends early, and says so in `failure`.
fn messages(
    name: &str,
    archive: &SkillArchive,
    progress: Progress,
    failure: &Arc<Mutex<Option<io::Error>>>,
) -> impl Stream<Item = PublishSkillRequest> + Send + 'static {
    let header = PublishSkillRequest {
        name: skill_name(name),
        payload: Some(publish_skill_request::Payload::Header(PublishSkillHeader {
            // It finds out by itself.
            kind: 0,
            sha256: archive.sha256().to_owned(),
        })),
    };
    let total = archive.bytes();
    let chunks = match archive.reader() {
        Ok(file) => ReaderStream::with_capacity(file, CHUNK_BYTES).left_stream(),
        Err(error) => stream::iter([Err(error)]).right_stream(),
    };
    let failure = Arc::clone(failure);
    let mut sent = 0;
    let data = chunks.scan((), move |(), chunk| {
        let message = match chunk {
            Ok(data) => {
                sent += data.len() as u64;
                progress.tell(sent, Some(total));
                Some(PublishSkillRequest {
                    name: String::new(),
                    payload: Some(publish_skill_request::Payload::Data(data)),
                })
            }
            Err(error) => {
                *failure.lock().unwrap_or_else(PoisonError::into_inner) = Some(error);
                None
            }
        };
        future::ready(message)
    });
    stream::once(future::ready(header)).chain(data)
}
