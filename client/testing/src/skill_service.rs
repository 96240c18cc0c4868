//! SkillService of the fake daemon: answers from the skills that the test added, in either form, or with one skill.

use futures::StreamExt;
use futures::stream::{self, BoxStream};
use skilld_client::short_id;
use skilld_client::v1::read_skill_file_response::Payload;
use skilld_client::v1::skill_service_server::SkillService;
use skilld_client::v1::*;
use tonic::{Request, Response, Status, Streaming};

use super::{FakeServices, skills};

impl FakeServices {
    /// Finds the skill that GetSkill returns.
    fn read_skill_of(&self, name: &str) -> Result<Skill, Status> {
        if let Some(skill) = self.known_skill(name)? {
            return Ok(skill);
        }
        let state = self.lock();
        if !state.kits.is_empty() {
            return state.kit(name).map(|kit| kit.skill.clone());
        }
        Ok(Skill {
            name: name.to_owned(),
            ..Default::default()
        })
    }
}

#[tonic::async_trait]
impl SkillService for FakeServices {
    type ReadSkillFileStream = BoxStream<'static, Result<ReadSkillFileResponse, Status>>;
    type PrepareSkillStream = BoxStream<'static, Result<PrepareSkillResponse, Status>>;

    async fn list_skills(
        &self,
        request: Request<ListSkillsRequest>,
    ) -> Result<Response<ListSkillsResponse>, Status> {
        let known = self.lock().skills.clone();
        if !known.is_empty() {
            // As many to a page as are asked for.
            let request = request.into_inner();
            let from: usize = request.page_token.parse().unwrap_or(0);
            let size = match usize::try_from(request.page_size).expect("no negative number") {
                0 => 100,
                size => size,
            };
            let mut rest = known.into_iter().skip(from);
            let skills = rest.by_ref().take(size).collect();
            return Ok(Response::new(ListSkillsResponse {
                skills,
                next_page_token: match rest.next() {
                    Some(_) => (from + size).to_string(),
                    None => String::new(),
                },
                ..Default::default()
            }));
        }
        let state = self.lock();
        if !state.kits.is_empty() {
            // Two to a page, of many as many as are asked for.
            let request = request.into_inner();
            let from: usize = request.page_token.parse().unwrap_or(0);
            let size = match state.kits.len() {
                ..100 => 2,
                _ => usize::try_from(request.page_size).expect("no negative number"),
            };
            let kits = state.kits.iter().skip(from).take(size);
            let next = from + size;
            return Ok(Response::new(ListSkillsResponse {
                skills: kits.map(|kit| kit.skill.clone()).collect(),
                next_page_token: match next < state.kits.len() {
                    true => next.to_string(),
                    false => String::new(),
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
        let mut skill = self.read_skill_of(&request.name)?;
        let state = self.lock();
        if request.packages {
            let missing = state.missing_packages.get(&short_id(&skill.name));
            skill.missing_packages = missing.cloned();
        }
        Ok(Response::new(skill))
    }

    async fn search_skills(
        &self,
        request: Request<SearchSkillsRequest>,
    ) -> Result<Response<SearchSkillsResponse>, Status> {
        let request = request.into_inner();
        let state = self.lock();
        if request.query == "of the" {
            return Err(skills::invalid("query", "has no word to look for"));
        }
        let mut matches = state.kits_like(&request.query);
        let is_left_out = |found: &SkillMatch| {
            let skill = found.skill.as_ref();
            request.for_model && skill.is_some_and(|skill| skill.disable_model_invocation)
        };
        matches.retain(|found| !is_left_out(found));
        let limit = usize::try_from(request.limit).unwrap_or_default();
        matches.truncate(if limit == 0 { 25 } else { limit });
        Ok(Response::new(SearchSkillsResponse { matches }))
    }

    async fn list_skill_files(
        &self,
        request: Request<ListSkillFilesRequest>,
    ) -> Result<Response<ListSkillFilesResponse>, Status> {
        let known = !self.lock().skills.is_empty();
        if known {
            let files = self.skill_files(request.get_ref())?;
            return Ok(Response::new(files));
        }
        let files = self.lock().kit_files(request.get_ref())?;
        Ok(Response::new(ListSkillFilesResponse {
            files,
            ..Default::default()
        }))
    }

    async fn read_skill_file(
        &self,
        request: Request<ReadSkillFileRequest>,
    ) -> Result<Response<Self::ReadSkillFileStream>, Status> {
        if !self.lock().skills.is_empty() {
            let answers = self.read_skill(&request.into_inner())?;
            return Ok(Response::new(stream::iter(answers).boxed()));
        }
        let request = request.into_inner();
        let state = self.lock();
        let (file, bytes) = state.kit_file(&request)?;
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
        while messages.message().await?.is_some() {}
        let problem = Problem {
            severity: problem::Severity::Warning.into(),
            code: "skill.long_description".into(),
            subject: "/var/lib/skilld/skills/sha256/0f".into(),
            message: "use less".into(),
            line: 3,
            ..Default::default()
        };
        Ok(Response::new(Skill {
            name: match first.name.as_str() {
                "" => "skills/csv".to_owned(),
                name => name.to_owned(),
            },
            version: "1.0".into(),
            digest: "sha256:0f".into(),
            files: 2,
            bytes: 2048,
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
