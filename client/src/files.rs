//! Files of a workspace: staging, reading, listing and collecting them.

use skilld_proto::v1::file_service_client::FileServiceClient;
use skilld_proto::v1::{
    CollectOutputsRequest, CollectOutputsResponse, FileEntry, ListFilesRequest, ListFilesResponse,
    ReadFileRequest, ReadFileResponse, StageInputsRequest, StageSkillsRequest, StagedInput,
    StagedSkill, read_file_response,
};

use crate::client::retried_calls;
use crate::download::DownloadPart;
use crate::resource_names::{skill_name, workspace_name};
use crate::{Client, Download, Error, MessageStream};

pub(crate) mod collect;
mod target_directory;
pub(crate) mod upload;

retried_calls! { FileServiceClient:
    /// Returns one page of a directory's entries, or of everything beneath it, sorted by path.
    list_files(request: ListFilesRequest) -> ListFilesResponse = ListFilesRequest { parent: workspace_name(&request.parent), ..request };
}

impl Client {
    /// Puts skills, read-only, into a workspace: `name`, `name@version` or `name@sha256:digest` each. All
    /// or none.
    ///
    /// # Errors
    ///
    /// [`Error::Status`] if the daemon refuses the call or cannot be reached.
    pub async fn stage_skills<S: AsRef<str>>(
        &self,
        workspace: &str,
        skills: &[S],
    ) -> Result<Vec<StagedSkill>, Error> {
        let request = StageSkillsRequest {
            workspace: workspace.to_owned(),
            skills: skills.iter().map(|name| name.as_ref().to_owned()).collect(),
            writable: false,
        };
        self.stage_skills_with(request).await
    }

    /// Puts skills into a workspace as [`stage_skills`](Self::stage_skills) does, with the options of the request:
    /// `writable` gives the workspace copies that its commands can write. A daemon that does not know an option ignores
    /// it, which [`StagedSkill`] shows.
    ///
    /// # Errors
    ///
    /// [`Error::Status`] if the daemon refuses the call or cannot be reached.
    pub async fn stage_skills_with(
        &self,
        mut request: StageSkillsRequest,
    ) -> Result<Vec<StagedSkill>, Error> {
        request.workspace = workspace_name(&request.workspace);
        for skill in &mut request.skills {
            *skill = skill_name(skill);
        }
        self.retry_call(request, FileServiceClient::stage_skills)
            .await
            .map(|answer| answer.skills)
    }

    /// Puts inputs named by references (`artifact://`, `host://`, `workspace://`, `skill://`, URLs), and bytes, into a
    /// workspace: all or none. Staging the same ones again changes nothing, so this is retried.
    ///
    /// # Errors
    ///
    /// [`Error::Status`] if the daemon refuses the call or cannot be reached.
    pub async fn stage_inputs(
        &self,
        mut request: StageInputsRequest,
    ) -> Result<Vec<StagedInput>, Error> {
        request.workspace = workspace_name(&request.workspace);
        self.retry_call(request, FileServiceClient::stage_inputs)
            .await
            .map(|answer| answer.inputs)
    }

    /// Opens a file, or a part of it, for reading.
    ///
    /// # Errors
    ///
    /// [`Error::Status`] if the daemon refuses the call or cannot be reached.
    pub async fn read_file(
        &self,
        mut request: ReadFileRequest,
    ) -> Result<Download<FileEntry>, Error> {
        use read_file_response::Payload;
        request.workspace = workspace_name(&request.workspace);
        let messages = self
            .retry_call(request, FileServiceClient::read_file)
            .await?;
        let part = |message: ReadFileResponse| match message.payload? {
            Payload::File(entry) => Some(DownloadPart::Header(entry)),
            Payload::Data(data) => Some(DownloadPart::Data(data)),
        };
        Download::open(messages, part).await
    }

    /// Streams the files that match, or an archive of them, and a summary last.
    ///
    /// # Errors
    ///
    /// [`Error::Status`] if the daemon refuses the call or cannot be reached.
    pub async fn collect(
        &self,
        mut request: CollectOutputsRequest,
    ) -> Result<MessageStream<CollectOutputsResponse>, Error> {
        request.workspace = workspace_name(&request.workspace);
        self.retry_call(request, FileServiceClient::collect_outputs)
            .await
            .map(MessageStream::new)
    }
}
