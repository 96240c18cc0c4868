//! SkillService of the fake daemon: answers from the skills that the test added, or with one skill.

use futures::StreamExt;
use futures::stream::{self, BoxStream};
use skilld_client::v1::read_skill_file_response::Payload;
use skilld_client::v1::skill_service_server::SkillService;
use skilld_client::v1::*;
use tonic::{Request, Response, Status, Streaming};

use super::FakeServices;
use super::skills::{check_name, invalid};

#[tonic::async_trait]
impl SkillService for FakeServices {
    type ReadSkillFileStream = BoxStream<'static, Result<ReadSkillFileResponse, Status>>;
    type PrepareSkillStream = BoxStream<'static, Result<PrepareSkillResponse, Status>>;

    async fn list_skills(
        &self,
        request: Request<ListSkillsRequest>,
    ) -> Result<Response<ListSkillsResponse>, Status> {
        let state = self.lock();
        if !state.kits.is_empty() {
            // As many to a page as are asked for.
            let request = request.into_inner();
            let from: usize = request.page_token.parse().unwrap_or(0);
            let size = match usize::try_from(request.page_size).expect("no negative number") {
                0 => 100,
                size => size,
            };
            let mut rest = state.kits.iter().skip(from);
            let page = rest.by_ref().take(size);
            let skills = page.map(|kit| kit.skill.clone()).collect();
            return Ok(Response::new(ListSkillsResponse {
                skills,
                next_page_token: match rest.next() {
                    Some(_) => (from + size).to_string(),
                    None => String::new(),
                },
                ..Default::default()
            }));
        }
        let skill = Skill {
            name: "skills/csv-report".into(),
            description: "Profiles a CSV file.\nAnd more.".into(),
            state: SkillState::LoadedWithWarnings.into(),
            ..Default::default()
        };
        Ok(Response::new(ListSkillsResponse {
            skills: vec![skill],
            ..Default::default()
        }))
    }

    async fn get_skill(
        &self,
        request: Request<GetSkillRequest>,
    ) -> Result<Response<Skill>, Status> {
        let request = request.into_inner();
        let state = self.lock();
        check_name(&request.name)?;
        if state.kits.is_empty() {
            return Ok(Response::new(Skill {
                name: request.name,
                ..Default::default()
            }));
        }
        let mut skill = state.kit(&request.name)?.skill.clone();
        if !request.check_packages {
            skill.missing_packages = None;
        }
        Ok(Response::new(skill))
    }

    async fn get_skill_material(
        &self,
        _: Request<GetSkillMaterialRequest>,
    ) -> Result<Response<SkillMaterial>, Status> {
        Err(Status::unimplemented(
            "no client asks the fake daemon for it",
        ))
    }

    async fn search_skills(
        &self,
        request: Request<SearchSkillsRequest>,
    ) -> Result<Response<SearchSkillsResponse>, Status> {
        let request = request.into_inner();
        let state = self.lock();
        if request.query == "of the" {
            return Err(invalid("query", "has no word to look for"));
        }
        let mut matches = state.kits_like(&request.query);
        let is_left_out = |found: &SkillMatch| {
            let skill = found.skill.as_ref();
            request.for_model && skill.is_some_and(|skill| skill.disable_model_invocation)
        };
        matches.retain(|found| !is_left_out(found));
        let limit = usize::try_from(request.page_size).unwrap_or_default();
        matches.truncate(if limit == 0 { 25 } else { limit });
        Ok(Response::new(SearchSkillsResponse {
            matches,
            ..Default::default()
        }))
    }

    async fn list_skill_files(
        &self,
        request: Request<ListSkillFilesRequest>,
    ) -> Result<Response<ListSkillFilesResponse>, Status> {
        let files = self.lock().kit_files(request.get_ref())?;
        Ok(Response::new(files))
    }

    async fn read_skill_file(
        &self,
        request: Request<ReadSkillFileRequest>,
    ) -> Result<Response<Self::ReadSkillFileStream>, Status> {
        let (file, bytes) = self.lock().kit_file(request.get_ref())?;
        let pieces = bytes.chunks(1 << 20).map(|piece| bytes.slice_ref(piece));
        let payloads = std::iter::once(Payload::File(file)).chain(pieces.map(Payload::Data));
        let messages: Vec<_> = payloads
            .map(|payload| {
                Ok(ReadSkillFileResponse {
                    payload: Some(payload),
                })
            })
            .collect();
        Ok(Response::new(stream::iter(messages).boxed()))
    }

    async fn publish_skill(
        &self,
        request: Request<Streaming<PublishSkillRequest>>,
    ) -> Result<Response<Skill>, Status> {
        let mut messages = request.into_inner();
        let first = messages.message().await?.expect("a header");
        let Some(publish_skill_request::Payload::Header(header)) = first.payload else {
            return Err(invalid("header", "is missing"));
        };
        while messages.message().await?.is_some() {}
        let problem = Problem {
            severity: ProblemSeverity::Warning.into(),
            code: "skill.long_description".into(),
            subject: "/var/lib/skilld/skills/sha256/0f".into(),
            message: "use less".into(),
            line: 3,
            ..Default::default()
        };
        Ok(Response::new(Skill {
            name: match header.name.as_str() {
                "" => "skills/csv".to_owned(),
                name => name.to_owned(),
            },
            version: "1.0".into(),
            digest: "sha256:0f".into(),
            file_count: 2,
            size_bytes: 2048,
            state: SkillState::LoadedWithWarnings.into(),
            problems: vec![problem],
            ..Default::default()
        }))
    }

    async fn delete_skill(&self, _: Request<DeleteSkillRequest>) -> Result<Response<()>, Status> {
        Ok(Response::new(()))
    }

    async fn refresh_skills(
        &self,
        _: Request<RefreshSkillsRequest>,
    ) -> Result<Response<RefreshSkillsResponse>, Status> {
        Ok(Response::new(RefreshSkillsResponse::default()))
    }

    async fn preflight_skill(
        &self,
        _: Request<PreflightSkillRequest>,
    ) -> Result<Response<PreflightSkillResponse>, Status> {
        Ok(Response::new(PreflightSkillResponse::default()))
    }

    async fn prepare_skill(
        &self,
        _: Request<PrepareSkillRequest>,
    ) -> Result<Response<Self::PrepareSkillStream>, Status> {
        let result = PrepareSkillResponse {
            payload: Some(prepare_skill_response::Payload::Result(
                PreparedSkill::default(),
            )),
        };
        Ok(Response::new(stream::iter([Ok(result)]).boxed()))
    }
}
