//! Skills: what there is to stage, what is in it, and what it needs.

use bytes::Bytes;
use skilld_proto::v1::read_skill_file_response::Payload;
use skilld_proto::v1::{
    GetSkillRequest, ListSkillFilesRequest, ListSkillFilesResponse, ListSkillsRequest,
    ListSkillsResponse, PreflightSkillRequest, PreflightSkillResponse, ReadSkillFileRequest,
    ReadSkillFileResponse, SearchSkillsRequest, SearchSkillsResponse, Skill, SkillFile,
};

use crate::names::skill_name;
use crate::{Client, Error, Messages};

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
