//! FileService of the fake: keeps what is staged, lists and reads it, and collects what a test puts in.

use std::pin::Pin;

use bytes::Bytes;
use futures::{Stream, StreamExt, stream};
use prost_types::Timestamp;
use skilld_client::v1::file_service_server::FileService;
use skilld_client::v1::input_spec::Content;
use skilld_client::v1::{
    CollectOutputsRequest, CollectOutputsResponse, FileEntry, FileType, ListFilesRequest,
    ListFilesResponse, ReadFileRequest, ReadFileResponse, StageFilesHeader, StageFilesRequest,
    StageFilesResponse, StageInputsRequest, StageInputsResponse, StageSkillsRequest,
    StageSkillsResponse, StagedFile, StagedInput, StagedSkill, read_file_response,
    stage_files_request,
};
use tonic::{Code, Request, Response, Status, Streaming};

use super::skills::check_name;
use super::{FakeServices, State, refusal};

type Answers<T> = Pin<Box<dyn Stream<Item = Result<T, Status>> + Send>>;

impl FakeServices {
    /// Stages inputs by the rules of the API, without reading their bytes.
    pub(super) fn bring(
        &self,
        request: &StageInputsRequest,
    ) -> Result<StageInputsResponse, Status> {
        let staged = request.inputs.iter().map(|input| {
            let (from, size) = match input
                .content
                .clone()
                .unwrap_or(Content::Source(String::new()))
            {
                Content::Source(from) => (from, 7),
                Content::Data(data) => (String::new(), data.len()),
            };
            let kept = from.strip_prefix("workspace://work/.skilld/");
            let is_kept = |path| {
                let path = format!("work/.skilld/{path}");
                self.lock().staged.contains_key(&path)
            };
            if from.starts_with("https://refused") {
                return Err(refusal(Code::FailedPrecondition, "FETCH_FAILED", &[]));
            }
            if from.ends_with("missing") || kept.is_some_and(|path| !is_kept(path)) {
                return Err(refusal(
                    Code::NotFound,
                    "FILE_NOT_FOUND",
                    &[("path", &from)],
                ));
            }
            let source = if input.name.is_empty() {
                &from
            } else {
                &input.name
            };
            let base = source.rsplit('/').next().unwrap_or_default();
            let path = match input.path.as_str() {
                "" => format!("work/inputs/{base}"),
                to => to.to_owned(),
            };
            Ok(StagedInput {
                source: from,
                file: Some(StagedFile {
                    path,
                    size_bytes: i64::try_from(size).expect("small"),
                    ..Default::default()
                }),
                ..Default::default()
            })
        });
        Ok(StageInputsResponse {
            inputs: staged.collect::<Result<_, _>>()?,
        })
    }
}

#[tonic::async_trait]
impl FileService for FakeServices {
    type ReadFileStream = Answers<ReadFileResponse>;
    type CollectOutputsStream = Answers<CollectOutputsResponse>;

    async fn stage_skills(
        &self,
        request: Request<StageSkillsRequest>,
    ) -> Result<Response<StageSkillsResponse>, Status> {
        let request = request.into_inner();
        let state = self.lock();
        let stages_anywhere = state.kits.is_empty();
        if !(stages_anywhere || state.workspaces.contains_key(&request.workspace)) {
            return Err(refusal(Code::NotFound, "WORKSPACE_NOT_FOUND", &[]));
        }
        let skills = request.skills;
        let mut names = Vec::new();
        for skill in &skills {
            let (id, _) = check_name(skill)?;
            names.push(match stages_anywhere {
                true => id.to_owned(),
                false => state.usable_kit(skill)?.id().to_owned(),
            });
        }
        if skills.iter().any(|skill| skill == "skills/csv") {
            let near = [("nearest", "csv-report,csv-merge")];
            return Err(refusal(Code::NotFound, "SKILL_NOT_FOUND", &near));
        }
        let problems = state.stage_problems.clone();
        let staged = names.iter().map(|name| StagedSkill {
            name: format!("skills/{name}"),
            path: format!("/workspace/skills/{name}"),
            problems: problems.clone(),
            writable: request.writable,
            ..Default::default()
        });
        Ok(Response::new(StageSkillsResponse {
            skills: staged.collect(),
        }))
    }

    async fn stage_files(
        &self,
        request: Request<Streaming<StageFilesRequest>>,
    ) -> Result<Response<StageFilesResponse>, Status> {
        let mut messages = request.into_inner();
        match receive(&mut messages).await {
            Ok((header, bytes)) if header.path.starts_with("skills/") => {
                drop(bytes);
                let path = [("path", header.path.as_str())];
                Err(refusal(Code::FailedPrecondition, "READ_ONLY", &path))
            }
            Ok((header, bytes)) => {
                let mut state = self.lock();
                let answer = StageFilesResponse {
                    file_count: 1,
                    size_bytes: i64::try_from(bytes.len()).expect("small"),
                    skipped_count: i64::try_from(state.stage_skips.len()).expect("small"),
                    skipped_files: state.stage_skips.clone(),
                    ..Default::default()
                };
                state.staged.insert(header.path, bytes);
                Ok(Response::new(answer))
            }
            Err(status) => {
                self.aborted.send_modify(|count| *count += 1);
                Err(status)
            }
        }
    }

    async fn list_files(
        &self,
        request: Request<ListFilesRequest>,
    ) -> Result<Response<ListFilesResponse>, Status> {
        let request = request.into_inner();
        let within = request.path;
        let state = self.lock();
        let wanted = |path: &str| match path.strip_prefix(&within) {
            Some(rest) => within.is_empty() || rest.is_empty() || rest.starts_with('/'),
            None => false,
        };
        let found = state
            .staged
            .iter()
            .filter(|(path, _)| wanted(path))
            .map(|(path, bytes)| entry(&state, path, bytes));
        let first: usize = request.page_token.parse().unwrap_or(0);
        let page_size = usize::try_from(request.page_size)
            .ok()
            .filter(|size| *size > 0)
            .unwrap_or(1000);
        let mut rest = found.skip(first);
        let files: Vec<FileEntry> = rest.by_ref().take(page_size).collect();
        let next = first + files.len();
        let next_page_token = match rest.next() {
            Some(_) => next.to_string(),
            None => String::new(),
        };
        Ok(Response::new(ListFilesResponse {
            files,
            next_page_token,
        }))
    }

    async fn read_file(
        &self,
        request: Request<ReadFileRequest>,
    ) -> Result<Response<Self::ReadFileStream>, Status> {
        // The one variable that tests use.
        let path = request.into_inner().path.replace("$OUTPUT_DIR", "out");
        let state = self.lock();
        let wrong = |reason| Err(refusal(Code::InvalidArgument, reason, &[("path", &path)]));
        let is_outside = path.starts_with('/') && !path.starts_with("/workspace");
        if is_outside || path.split('/').any(|name| name == "..") {
            return wrong("PATH_ESCAPES");
        }
        if state
            .staged
            .keys()
            .any(|it| it.starts_with(&format!("{path}/")))
        {
            return wrong("WRONG_FILE_TYPE");
        }
        let Some(bytes) = state.staged.get(&path) else {
            return Err(refusal(
                Code::NotFound,
                "FILE_NOT_FOUND",
                &[("path", &path)],
            ));
        };
        let mut payloads = vec![read_file_response::Payload::File(entry(
            &state, &path, bytes,
        ))];
        for chunk in bytes.chunks(256 * 1024) {
            payloads.push(read_file_response::Payload::Data(Bytes::copy_from_slice(
                chunk,
            )));
        }
        let answers = payloads.into_iter().map(|payload| {
            Ok(ReadFileResponse {
                payload: Some(payload),
            })
        });
        Ok(Response::new(stream::iter(answers).boxed()))
    }

    /// Collects what a test put in, of which a summary may be missing.
    async fn collect_outputs(
        &self,
        request: Request<CollectOutputsRequest>,
    ) -> Result<Response<Self::CollectOutputsStream>, Status> {
        let mut state = self.lock();
        state.collect_spec = request.into_inner().spec;
        let collected = state.collected.clone().into_iter().map(Ok);
        Ok(Response::new(stream::iter(collected).boxed()))
    }

    async fn stage_inputs(
        &self,
        request: Request<StageInputsRequest>,
    ) -> Result<Response<StageInputsResponse>, Status> {
        Ok(Response::new(self.bring(request.get_ref())?))
    }
}

/// Reads a stream of StageFiles to its end.
async fn receive(
    messages: &mut Streaming<StageFilesRequest>,
) -> Result<(StageFilesHeader, Vec<u8>), Status> {
    let (mut header, mut bytes) = (StageFilesHeader::default(), Vec::new());
    while let Some(message) = messages.message().await? {
        match message.payload {
            Some(stage_files_request::Payload::Header(given)) => header = given,
            Some(stage_files_request::Payload::Data(data)) => bytes.extend_from_slice(&data),
            None => return Err(Status::invalid_argument("a message without payload")),
        }
    }
    Ok((header, bytes))
}

fn entry(state: &State, path: &str, bytes: &[u8]) -> FileEntry {
    FileEntry {
        path: path.to_owned(),
        file_type: FileType::File.into(),
        size_bytes: i64::try_from(bytes.len()).expect("small"),
        mode: state.modes.get(path).copied().unwrap_or(0o644),
        modify_time: state.modified.get(path).map(|seconds| Timestamp {
            seconds: *seconds,
            nanos: 0,
        }),
        ..Default::default()
    }
}
