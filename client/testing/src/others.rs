//! The other services of the fake, as far as tests ask them.

use std::pin::Pin;
use std::time::Duration;

use futures::Stream;
use skilld_client::v1::admin_service_server::AdminService;
use skilld_client::v1::read_skill_file_response::Payload;
use skilld_client::v1::server_service_server::ServerService;
use skilld_client::v1::skill_service_server::SkillService;
use skilld_client::v1::workspace_service_server::WorkspaceService;
use skilld_client::v1::*;
use tonic::{Code, Request, Response, Status, Streaming};
use tonic_types::{ErrorDetails, StatusExt};

use super::{Shared, refusal, skills, unimplemented};

#[tonic::async_trait]
impl WorkspaceService for Shared {
    async fn create_workspace(
        &self,
        request: Request<CreateWorkspaceRequest>,
    ) -> Result<Response<Workspace>, Status> {
        let request = request.into_inner();
        if request.pool == "full" {
            let mut details = ErrorDetails::with_retry_info(Some(Duration::from_secs(3)));
            let none: [(String, String); 0] = [];
            details.set_error_info("POOL_EXHAUSTED", "skilld.dev", none);
            return Err(Status::with_error_details(
                Code::ResourceExhausted,
                "no warm container",
                details,
            ));
        }
        if self.lock().create_hangs.as_ref() == Some(&request.name) {
            std::future::pending::<()>().await;
        }
        if !request.allow_existing && self.lock().workspaces.contains_key(&request.name) {
            let mut details = ErrorDetails::new();
            let none: [(String, String); 0] = [];
            details.set_error_info("ID_TAKEN", "skilld.dev", none);
            details.set_resource_info("skilld.dev/Workspace", &request.name, "", "it exists");
            let message = format!("{} exists already", request.name);
            return Err(Status::with_error_details(
                Code::AlreadyExists,
                message,
                details,
            ));
        }
        let workspace = Workspace {
            name: request.name.clone(),
            limits: request.limits,
            pool: request.pool,
            labels: request.labels,
            env: request.env,
            state: WorkspaceState::Ready.into(),
            ..Default::default()
        };
        self.lock()
            .workspaces
            .insert(request.name, workspace.clone());
        Ok(Response::new(workspace))
    }

    async fn get_workspace(
        &self,
        request: Request<GetWorkspaceRequest>,
    ) -> Result<Response<Workspace>, Status> {
        let mut state = self.lock();
        state.get_workspace_calls += 1;
        if let Some(status) = state.refusals.pop_front() {
            return Err(status);
        }
        let workspace = state.workspaces.get(&request.into_inner().name).cloned();
        let missing = || refusal(Code::NotFound, "WORKSPACE_NOT_FOUND", &[]);
        workspace.map(Response::new).ok_or_else(missing)
    }

    /// Two to a page.
    async fn list_workspaces(
        &self,
        request: Request<ListWorkspacesRequest>,
    ) -> Result<Response<ListWorkspacesResponse>, Status> {
        let after = request.into_inner().page_token;
        let state = self.lock();
        let mut rest = state
            .workspaces
            .values()
            .filter(|workspace| workspace.name > after);
        let workspaces: Vec<Workspace> = rest.by_ref().take(2).cloned().collect();
        let last = workspaces.last().map(|workspace| workspace.name.clone());
        let next_page_token = rest.next().and(last).unwrap_or_default();
        Ok(Response::new(ListWorkspacesResponse {
            workspaces,
            next_page_token,
        }))
    }

    async fn renew_workspace(
        &self,
        request: Request<RenewWorkspaceRequest>,
    ) -> Result<Response<Workspace>, Status> {
        let name = request.into_inner().name;
        self.get_workspace(Request::new(GetWorkspaceRequest { name }))
            .await
    }

    async fn delete_workspace(
        &self,
        request: Request<DeleteWorkspaceRequest>,
    ) -> Result<Response<()>, Status> {
        let request = request.into_inner();
        self.deletes.send_modify(|count| *count += 1);
        if self.lock().deletes_hang {
            std::future::pending::<()>().await;
        }
        match self.lock().workspaces.remove(&request.name) {
            None if !request.allow_missing => {
                Err(refusal(Code::NotFound, "WORKSPACE_NOT_FOUND", &[]))
            }
            Some(_) | None => Ok(Response::new(())),
        }
    }
}

#[tonic::async_trait]
impl ServerService for Shared {
    async fn get_server_info(
        &self,
        _: Request<GetServerInfoRequest>,
    ) -> Result<Response<ServerInfo>, Status> {
        Ok(Response::new(ServerInfo {
            version: "0.1.0-fake".into(),
            limits: Some(ServerLimits {
                collect_files_max: 9999,
                ..Default::default()
            }),
            ..Default::default()
        }))
    }
}

#[tonic::async_trait]
impl AdminService for Shared {
    async fn list_pools(
        &self,
        _: Request<ListPoolsRequest>,
    ) -> Result<Response<ListPoolsResponse>, Status> {
        let pool = |name: &str, warm| Pool {
            name: format!("pools/{name}"),
            warm,
            warm_target: 4,
            ..Default::default()
        };
        Ok(Response::new(ListPoolsResponse {
            pools: vec![pool("default", 3), pool("a-much-longer-name", 4)],
        }))
    }

    async fn get_pool(&self, _: Request<GetPoolRequest>) -> Result<Response<Pool>, Status> {
        unimplemented()
    }

    async fn resize_pool(
        &self,
        request: Request<ResizePoolRequest>,
    ) -> Result<Response<Pool>, Status> {
        let request = request.into_inner();
        Ok(Response::new(Pool {
            name: request.name,
            warm_target: request.warm_target,
            ..Default::default()
        }))
    }

    async fn drain(&self, _: Request<DrainRequest>) -> Result<Response<DrainResponse>, Status> {
        Ok(Response::new(DrainResponse {
            removed_workspaces: 2,
            removed_containers: 5,
        }))
    }

    async fn get_problems(
        &self,
        _: Request<GetProblemsRequest>,
    ) -> Result<Response<GetProblemsResponse>, Status> {
        let problems = self.lock().problems.clone();
        Ok(Response::new(GetProblemsResponse { problems }))
    }
}

#[tonic::async_trait]
impl SkillService for Shared {
    type ReadSkillFileStream =
        Pin<Box<dyn Stream<Item = Result<ReadSkillFileResponse, Status>> + Send>>;

    async fn list_skills(
        &self,
        request: Request<ListSkillsRequest>,
    ) -> Result<Response<ListSkillsResponse>, Status> {
        if let Some(status) = self.lock().list_refusals.pop_front() {
            return Err(status);
        }
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
            // Two to a page.
            let from: usize = request.into_inner().page_token.parse().unwrap_or(0);
            let skills = state.kits.iter().map(|kit| kit.skill.clone());
            let next = from + 2;
            return Ok(Response::new(ListSkillsResponse {
                skills: skills.skip(from).take(2).collect(),
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
        let name = request.into_inner().name;
        self.got_skills.send_modify(|count| *count += 1);
        let mut held = self.holds_skills.subscribe();
        held.wait_for(|held| !held).await.expect("is kept");
        if let Some(skill) = self.known_skill(&name)? {
            return Ok(Response::new(skill));
        }
        let mut state = self.lock();
        state.asked.push(name.clone());
        if !state.kits.is_empty() {
            return state.kit(&name).map(|kit| Response::new(kit.skill.clone()));
        }
        Ok(Response::new(Skill {
            name,
            body: state.skill_body.clone(),
            ..Default::default()
        }))
    }

    async fn search_skills(
        &self,
        request: Request<SearchSkillsRequest>,
    ) -> Result<Response<SearchSkillsResponse>, Status> {
        let request = request.into_inner();
        let mut state = self.lock();
        if request.query == "of the" {
            return Err(skills::invalid("query", "has no word to look for"));
        }
        let mut matches = state.kits_like(&request.query);
        let limit = usize::try_from(request.limit).unwrap_or_default();
        matches.truncate(if limit == 0 { 25 } else { limit });
        state.searches.push(request);
        Ok(Response::new(SearchSkillsResponse { matches }))
    }

    async fn list_skill_files(
        &self,
        request: Request<ListSkillFilesRequest>,
    ) -> Result<Response<ListSkillFilesResponse>, Status> {
        if self.lock().pages_are_endless {
            return Ok(Response::new(ListSkillFilesResponse {
                next_page_token: "next".to_owned(),
                ..Default::default()
            }));
        }
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
            return Ok(Response::new(Box::pin(futures::stream::iter(answers))));
        }
        let request = request.into_inner();
        let mut state = self.lock();
        state.asked.push(request.name.clone());
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
        Ok(Response::new(Box::pin(futures::stream::iter(messages))))
    }

    async fn publish_skill(
        &self,
        request: Request<Streaming<PublishSkillRequest>>,
    ) -> Result<Response<Skill>, Status> {
        let mut messages = request.into_inner();
        let first = messages.message().await?.expect("a header");
        let Some(publish_skill_request::Payload::Header(header)) = first.payload else {
            return Err(Status::invalid_argument("no header"));
        };
        let mut bytes = Vec::new();
        while let Some(message) = messages.message().await? {
            match message.payload {
                Some(publish_skill_request::Payload::Data(data)) => bytes.extend_from_slice(&data),
                Some(publish_skill_request::Payload::Header(_)) | None => {
                    return Err(Status::invalid_argument("no bytes"));
                }
            }
        }
        let mut state = self.lock();
        state
            .published
            .push((first.name.clone(), header.sha256, bytes));
        if let Some(refusal) = state.publish_refusals.pop_front() {
            return Err(refusal);
        }
        let problem = Problem {
            severity: problem::Severity::Warning.into(),
            code: "skill.long_description".into(),
            subject: "/var/lib/skilld/skills/sha256/0f".into(),
            message: "use less".into(),
            line: 3,
            ..Default::default()
        };
        Ok(Response::new(Skill {
            name: first.name,
            version: "1.0".into(),
            digest: "sha256:0f".into(),
            files: 2,
            bytes: 2048,
            state: SkillState::LoadedWithWarnings.into(),
            problems: vec![problem],
            ..Default::default()
        }))
    }

    async fn delete_skill(
        &self,
        request: Request<DeleteSkillRequest>,
    ) -> Result<Response<()>, Status> {
        self.lock().deleted.push(request.into_inner().name);
        Ok(Response::new(()))
    }

    async fn refresh_skills(
        &self,
        _: Request<RefreshSkillsRequest>,
    ) -> Result<Response<RefreshSkillsResponse>, Status> {
        Ok(Response::new(self.lock().refreshed.clone()))
    }

    async fn preflight_skill(
        &self,
        _: Request<PreflightSkillRequest>,
    ) -> Result<Response<PreflightSkillResponse>, Status> {
        Ok(Response::new(PreflightSkillResponse::default()))
    }
}
