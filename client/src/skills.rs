//! Skills: what there is to stage.

use skilld_proto::v1::{GetSkillRequest, ListSkillsRequest, ListSkillsResponse, Skill};

use crate::names::skill_name;
use crate::{Client, Error};

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
}
