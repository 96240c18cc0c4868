//! Skills: listing, searching, reading and publishing them, and checking what they need.

use parking_lot::Mutex;
use skilld_proto::v1::publish_skill_request::Payload;
use skilld_proto::v1::skill_service_client::SkillServiceClient;
use skilld_proto::v1::{
    DeleteSkillRequest, GetSkillRequest, ListSkillFilesRequest, ListSkillFilesResponse,
    ListSkillsRequest, ListSkillsResponse, PreflightSkillRequest, PreflightSkillResponse,
    PrepareSkillRequest, PrepareSkillResponse, PublishSkillHeader, PublishSkillRequest,
    ReadSkillFileRequest, ReadSkillFileResponse, RefreshSkillsRequest, RefreshSkillsResponse,
    SearchSkillsRequest, SearchSkillsResponse, Skill, SkillFile, read_skill_file_response,
};
use tonic::{Status, Streaming};

use crate::client::retried_calls;
use crate::download::DownloadPart;
use crate::files::upload::Upload;
use crate::resource_names::{requested_pool, skill_name};
use crate::{Client, Download, Error, SkillArchive, TransferProgress, Transport};

retried_calls! { SkillServiceClient:
    /// Returns one page of skills, in the order of their names.
    list_skills(request: ListSkillsRequest) -> ListSkillsResponse = request;

    /// Returns one skill with the text of its SKILL.md, by `name`, `name@version` or `name@sha256:digest`.
    get_skill(name: &str) -> Skill = GetSkillRequest { name: skill_name(name), ..GetSkillRequest::default() };

    /// Searches skills by words and returns the best matches.
    search_skills(request: SearchSkillsRequest) -> SearchSkillsResponse = request;

    /// Returns one page of a skill's files, sorted by path.
    list_skill_files(request: ListSkillFilesRequest) -> ListSkillFilesResponse = ListSkillFilesRequest { parent: skill_name(&request.parent), ..request };

    /// Removes what was published: `name@version` or `name@sha256:digest`, or all of it with `name` alone. Workspaces
    /// keep what they have.
    delete_skill(name: &str) -> () = DeleteSkillRequest { name: skill_name(name), allow_missing: false };

    /// Reads all roots again, remote ones from their servers. A root that is not done when the call has to be answered
    /// is a problem `root.pending`.
    refresh_skills() -> RefreshSkillsResponse = RefreshSkillsRequest {};

    /// Reports what a skill needs that a pool's image does not have. Runs nothing of the skill.
    preflight_skill(request: PreflightSkillRequest) -> PreflightSkillResponse = PreflightSkillRequest { name: skill_name(&request.name), pool: requested_pool(&request.pool), ..request };
}

impl Client {
    /// Returns one skill as [`get_skill`](Self::get_skill) does, with what else the request asks for.
    ///
    /// # Errors
    ///
    /// [`Error::Status`] if the daemon refuses the call or cannot be reached.
    pub async fn get_skill_with(&self, mut request: GetSkillRequest) -> Result<Skill, Error> {
        request.name = skill_name(&request.name);
        request.pool = requested_pool(&request.pool);
        self.retry_call(request, SkillServiceClient::get_skill)
            .await
    }

    /// Builds the environment of a skill and returns the messages of the build: its lines, and last its result.
    ///
    /// # Errors
    ///
    /// [`Error::Status`] if the daemon refuses the call or cannot be reached.
    pub async fn prepare_skill(
        &self,
        mut request: PrepareSkillRequest,
    ) -> Result<Streaming<PrepareSkillResponse>, Error> {
        request.name = skill_name(&request.name);
        request.pool = requested_pool(&request.pool);
        self.retry_call(request, SkillServiceClient::prepare_skill)
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
            read_skill_file_response::Payload::File(file) => Some(DownloadPart::Header(file)),
            read_skill_file_response::Payload::Data(data) => Some(DownloadPart::Data(data)),
        };
        Download::open(messages, part).await
    }

    /// Publishes an archive as a version of a skill; what is published already is left as it is. With an empty name the
    /// skill has the name that its documents give. The archive's sha256 goes first, so the server takes all of it or
    /// nothing. Repeated only where nothing was started.
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
        let unreadable = Mutex::new(None);
        let name = match name {
            "" => String::new(),
            name => skill_name(name),
        };
        let published = self
            .retry_call((), async |stub: &mut SkillServiceClient<Transport>, ()| {
                let upload = Upload {
                    header: PublishSkillRequest {
                        payload: Some(Payload::Header(PublishSkillHeader {
                            name: name.clone(),
                            // The server finds out by itself.
                            format: 0,
                            sha256: archive.sha256().to_owned(),
                        })),
                    },
                    message: |data| PublishSkillRequest {
                        payload: Some(Payload::Data(data)),
                    },
                    progress: progress.clone(),
                    total: Some(archive.bytes()),
                };
                let (messages, failure) = upload.into_messages(archive.chunks());
                tokio::select! {
                    biased;
                    // Leaving the call unfinished resets the stream: the server must not take half for all.
                    Ok(error) = failure => {
                        *unreadable.lock() = Some(error);
                        Err(Status::cancelled("the archive could not be read"))
                    }
                    published = stub.publish_skill(messages) => published,
                }
            })
            .await;
        match unreadable.into_inner() {
            Some(error) => Err(error),
            None => published,
        }
    }
}
