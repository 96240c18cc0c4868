//! Files: into a workspace (`stage`), out of it (`read`, `collect`), and what is there.

use skilld_proto::v1::{
    CollectOutputsRequest, CollectOutputsResponse, ListFilesRequest, ListFilesResponse,
    StageInputsRequest, StageSkillsRequest, StagedInput, StagedSkill,
};

use crate::names::workspace_name;
use crate::{Client, Error, Messages};

mod beneath;
pub(crate) mod collect;
pub(crate) mod read;
pub(crate) mod stage;
pub(crate) mod tree;

impl Client {
    /// Puts skills, read-only, into a workspace: `name`, `name@version` or `name@sha256:digest` each. All
    /// or none.
    pub async fn stage_skills<S: AsRef<str>>(
        &self,
        workspace: &str,
        skills: &[S],
    ) -> Result<Vec<StagedSkill>, Error> {
        let request = StageSkillsRequest {
            workspace: workspace_name(workspace),
            skills: skills.iter().map(|name| name.as_ref().to_owned()).collect(),
        };
        self.retrying(|| {
            let (mut stub, request) = (self.files(), request.clone());
            async move { stub.stage_skills(request).await }
        })
        .await
        .map(|answer| answer.skills)
    }

    /// Puts inputs named by references (`artifact://`, `host://`, `workspace://`, `skill://`, URLs), and bytes, into a
    /// workspace: all or none. Staging the same ones again changes nothing, so this is retried.
    pub async fn stage_inputs(
        &self,
        mut request: StageInputsRequest,
    ) -> Result<Vec<StagedInput>, Error> {
        request.workspace = workspace_name(&request.workspace);
        self.retrying(|| {
            let (mut stub, request) = (self.files(), request.clone());
            async move { stub.stage_inputs(request).await }
        })
        .await
        .map(|answer| answer.inputs)
    }

    /// One page of a directory, or of everything beneath it, sorted by path.
    pub async fn list_files(
        &self,
        mut request: ListFilesRequest,
    ) -> Result<ListFilesResponse, Error> {
        request.workspace = workspace_name(&request.workspace);
        self.retrying(|| {
            let (mut stub, request) = (self.files(), request.clone());
            async move { stub.list_files(request).await }
        })
        .await
    }

    /// Streams the files that match, or an archive of them, and a summary last.
    pub async fn collect(
        &self,
        mut request: CollectOutputsRequest,
    ) -> Result<Messages<CollectOutputsResponse>, Error> {
        request.workspace = workspace_name(&request.workspace);
        self.retrying(|| {
            let (mut stub, request) = (self.files(), request.clone());
            async move { stub.collect_outputs(request).await }
        })
        .await
        .map(Messages::new)
    }
}
