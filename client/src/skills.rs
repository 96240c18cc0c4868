//! Skills: listing, searching, reading and publishing them, and checking what they need.

use std::io;
use std::sync::{Arc, Mutex, PoisonError};

use futures::{Stream, StreamExt, future, stream};
use skilld_proto::v1::read_skill_file_response::Payload;
use skilld_proto::v1::skill_service_client::SkillServiceClient;
use skilld_proto::v1::{
    DeleteSkillRequest, GetSkillRequest, ListSkillFilesRequest, ListSkillFilesResponse,
    ListSkillsRequest, ListSkillsResponse, PreflightSkillRequest, PreflightSkillResponse,
    PublishSkillHeader, PublishSkillRequest, ReadSkillFileRequest, ReadSkillFileResponse,
    RefreshSkillsRequest, RefreshSkillsResponse, SearchSkillsRequest, SearchSkillsResponse, Skill,
    SkillFile, publish_skill_request,
};
use tokio_util::io::ReaderStream;
use tonic::transport::Channel;
use tonic::{Response, Status};

use crate::download::DownloadPart;
use crate::files::upload::CHUNK_BYTES;
use crate::resource_names::skill_name;
use crate::{Client, Download, Error, SkillArchive, TransferProgress};

impl Client {
    /// Returns one page of skills, in the order of their names.
    ///
    /// # Errors
    ///
    /// [`Error::Status`] if the daemon refuses the call or cannot be reached.
    pub async fn list_skills(
        &self,
        request: ListSkillsRequest,
    ) -> Result<ListSkillsResponse, Error> {
        self.retry_call(request, SkillServiceClient::list_skills)
            .await
    }

    /// Returns one skill with the text of its SKILL.md, by `name`, `name@version` or `name@sha256:digest`.
    ///
    /// # Errors
    ///
    /// [`Error::Status`] if the daemon refuses the call or cannot be reached.
    pub async fn get_skill(&self, name: &str) -> Result<Skill, Error> {
        let request = GetSkillRequest {
            name: skill_name(name),
            ..GetSkillRequest::default()
        };
        self.retry_call(request, SkillServiceClient::get_skill)
            .await
    }

    /// Searches skills by words and returns the best matches.
    ///
    /// # Errors
    ///
    /// [`Error::Status`] if the daemon refuses the call or cannot be reached.
    pub async fn search_skills(
        &self,
        request: SearchSkillsRequest,
    ) -> Result<SearchSkillsResponse, Error> {
        self.retry_call(request, SkillServiceClient::search_skills)
            .await
    }

    /// Returns one page of a skill's files, sorted by path.
    ///
    /// # Errors
    ///
    /// [`Error::Status`] if the daemon refuses the call or cannot be reached.
    pub async fn list_skill_files(
        &self,
        mut request: ListSkillFilesRequest,
    ) -> Result<ListSkillFilesResponse, Error> {
        request.name = skill_name(&request.name);
        self.retry_call(request, SkillServiceClient::list_skill_files)
            .await
    }

    /// Opens a file of a skill, or a part of it, for reading.
    ///
    /// # Errors
    ///
    /// [`Error::Status`] if the daemon refuses the call or cannot be reached.
    pub async fn read_skill_file(
        &self,
        mut request: ReadSkillFileRequest,
    ) -> Result<Download<SkillFile>, Error> {
        request.name = skill_name(&request.name);
        let messages = self
            .retry_call(request, SkillServiceClient::read_skill_file)
            .await?;
        let part = |message: ReadSkillFileResponse| match message.payload? {
            Payload::File(file) => Some(DownloadPart::Header(file)),
            Payload::Data(data) => Some(DownloadPart::Data(data)),
        };
        Download::open(messages, part).await
    }

    /// Publishes an archive as a version of a skill; what is published already is left as it is. Its sha256 goes first, so
    /// the server takes all of it or nothing. Repeated only where nothing was started.
    ///
    /// # Errors
    ///
    /// [`Error::Status`] if the daemon refuses the call or cannot be reached.
    pub async fn publish_skill(
        &self,
        name: &str,
        archive: &SkillArchive,
        progress: TransferProgress,
    ) -> Result<Skill, Error> {
        let failure = Arc::new(Mutex::new(None));
        let attempt = PublishAttempt {
            name,
            archive,
            progress: &progress,
            failure: &failure,
        };
        let published = self.retry_call(attempt, publish_once).await;
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
    ///
    /// # Errors
    ///
    /// [`Error::Status`] if the daemon refuses the call or cannot be reached.
    pub async fn delete_skill(&self, name: &str) -> Result<(), Error> {
        let request = DeleteSkillRequest {
            name: skill_name(name),
        };
        self.retry_call(request, SkillServiceClient::delete_skill)
            .await
    }

    /// Reads all roots again, remote ones from their servers. A root that is not done when the call has to be answered
    /// is a problem `root.pending`.
    ///
    /// # Errors
    ///
    /// [`Error::Status`] if the daemon refuses the call or cannot be reached.
    pub async fn refresh_skills(&self) -> Result<RefreshSkillsResponse, Error> {
        self.retry_call(RefreshSkillsRequest {}, SkillServiceClient::refresh_skills)
            .await
    }

    /// Reports what a skill needs that a pool's image does not have. Runs nothing of the skill.
    ///
    /// # Errors
    ///
    /// [`Error::Status`] if the daemon refuses the call or cannot be reached.
    pub async fn preflight_skill(
        &self,
        mut request: PreflightSkillRequest,
    ) -> Result<PreflightSkillResponse, Error> {
        request.name = skill_name(&request.name);
        self.retry_call(request, SkillServiceClient::preflight_skill)
            .await
    }
}

/// Input of one attempt to publish an archive.
#[derive(Clone, Copy)]
struct PublishAttempt<'a> {
    name: &'a str,
    archive: &'a SkillArchive,
    progress: &'a TransferProgress,
    /// Gets the error if the archive cannot be read.
    failure: &'a Arc<Mutex<Option<io::Error>>>,
}

async fn publish_once(
    stub: &mut SkillServiceClient<Channel>,
    attempt: PublishAttempt<'_>,
) -> Result<Response<Skill>, Status> {
    stub.publish_skill(attempt.messages()).await
}

impl PublishAttempt<'_> {
    /// Returns the header and the bytes of the archive as messages. They end early if the bytes cannot be read.
    fn messages(self) -> impl Stream<Item = PublishSkillRequest> + Send + 'static {
        let header = PublishSkillRequest {
            name: skill_name(self.name),
            payload: Some(publish_skill_request::Payload::Header(PublishSkillHeader {
                // The server finds out by itself.
                kind: 0,
                sha256: self.archive.sha256().to_owned(),
            })),
        };
        let chunks = match self.archive.reader() {
            Ok(file) => ReaderStream::with_capacity(file, CHUNK_BYTES).left_stream(),
            Err(error) => stream::iter([Err(error)]).right_stream(),
        };
        let (total, progress) = (self.archive.bytes(), self.progress.clone());
        let failure = Arc::clone(self.failure);
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
}
