//! Skills of the fake and what is brought into its workspaces: what the test put there.

use skilld_client::v1::input_spec::Source;
use skilld_client::v1::read_skill_file_response::Payload;
use skilld_client::v1::skill_file::Kind;
use skilld_client::v1::{
    ListSkillFilesRequest, ListSkillFilesResponse, ReadSkillFileRequest, ReadSkillFileResponse,
    Skill, SkillFile, SkillState, StageInputsRequest, StageInputsResponse, StagedFile, StagedInput,
};
use tonic::{Code, Status};

use super::skills::{invalid, with_workspace_paths};
use super::{FakeServices, refusal};

/// Maximum number of files of one page.
const PAGE: usize = 4;

impl FakeServices {
    /// Finds a skill by name, if the test added any: the highest version, a pre-release only where there is nothing
    /// else, or the one that is asked for. Versions of a skill are listed as the daemon does, the highest first.
    pub(super) fn known_skill(&self, name: &str) -> Result<Option<Skill>, Status> {
        let (name, wanted) = name.split_once('@').unwrap_or((name, ""));
        let short = name.trim_start_matches("skills/");
        if short.contains([' ', '\n']) || short.starts_with('.') {
            return Err(invalid("name", "is no name"));
        }
        let state = self.lock();
        if state.skills.is_empty() {
            return Ok(None);
        }
        let is_called = |skill: &&Skill| {
            skill.name == format!("skills/{short}") || skill.aliases.iter().any(|it| it == short)
        };
        let of_name: Vec<&Skill> = state.skills.iter().filter(is_called).collect();
        let usable = |skill: &&&Skill| skill.state() != SkillState::Rejected;
        let mut usable = of_name.iter().filter(usable);
        let found = match wanted {
            "" => usable
                .clone()
                .find(|skill| !skill.version.contains('-'))
                .or_else(|| usable.next())
                .or(of_name.first()),
            wanted => of_name
                .iter()
                .find(|skill| skill.version == wanted || skill.digest == wanted),
        };
        match found {
            Some(skill) => Ok(Some((*skill).clone())),
            None => {
                let mut near: Vec<&str> =
                    state.skills.iter().map(|skill| &skill.name[7..]).collect();
                near.dedup();
                let near = [("nearest", near.join(","))];
                let near = near.each_ref().map(|(key, names)| (*key, names.as_str()));
                Err(refusal(Code::NotFound, "SKILL_NOT_FOUND", &near))
            }
        }
    }

    /// Finds a usable skill for reading or staging.
    pub(super) fn usable_skill(&self, name: &str) -> Result<Option<Skill>, Status> {
        let skill = self.known_skill(name)?;
        match skill {
            Some(skill) if skill.state() == SkillState::Rejected => {
                let problem = [("problem", "no front matter")];
                Err(refusal(Code::FailedPrecondition, "SKILL_INVALID", &problem))
            }
            skill => Ok(skill),
        }
    }

    /// Lists the files of a skill, a few to a page.
    pub(super) fn skill_files(
        &self,
        request: &ListSkillFilesRequest,
    ) -> Result<ListSkillFilesResponse, Status> {
        let skill = self.usable_skill(&request.name)?.unwrap_or_default();
        let prefix = format!("{}/", skill.name.trim_start_matches("skills/"));
        let from: usize = request.page_token.parse().unwrap_or(0);
        let state = self.lock();
        let all = state.skill_files.iter().filter_map(|(path, bytes)| {
            let path = path.strip_prefix(&prefix)?;
            Some(described(path, bytes))
        });
        let mut all = all.skip(from);
        let files = all.by_ref().take(PAGE).collect();
        Ok(ListSkillFilesResponse {
            files,
            next_page_token: match all.next() {
                Some(_) => (from + PAGE).to_string(),
                None => String::new(),
            },
        })
    }

    pub(super) fn read_skill(
        &self,
        request: &ReadSkillFileRequest,
    ) -> Result<Vec<Result<ReadSkillFileResponse, Status>>, Status> {
        let skill = self.usable_skill(&request.name)?.unwrap_or_default();
        let name = skill.name.trim_start_matches("skills/");
        let state = self.lock();
        let plugin = format!(".plugins/{name}");
        let has_plugin = || state.skill_files.keys().any(|it| it.starts_with(&plugin));
        // The folders of skills are in one of the plugin.
        let shared = request.path.strip_prefix("../../");
        let (root, inner) = match shared.filter(|_| has_plugin()) {
            Some(shared) => (plugin.as_str(), shared),
            None if request.in_plugin && has_plugin() => (plugin.as_str(), request.path.as_str()),
            None => (name, request.path.as_str()),
        };
        let path = format!("{root}/{inner}");
        let wrong = |reason| Err(refusal(Code::InvalidArgument, reason, &[]));
        if inner.starts_with('/') || inner.split('/').any(|part| part == "..") {
            return wrong("PATH_ESCAPES");
        }
        let folder = format!("{path}/");
        if state.skill_files.keys().any(|it| it.starts_with(&folder)) {
            return wrong("WRONG_FILE_TYPE");
        }
        // Else the only file that differs in case only.
        let alike = state
            .skill_files
            .keys()
            .filter(|it| it.eq_ignore_ascii_case(&path));
        let alike: Vec<&str> = alike.map(|it| &it[root.len() + 1..]).collect();
        let near = match alike.is_empty() {
            true => "USAGE.md".to_owned(),
            false => alike.join(","),
        };
        let near = [("path", request.path.as_str()), ("nearest", near.as_str())];
        let missing = || refusal(Code::NotFound, "FILE_NOT_FOUND", &near);
        let found = match (state.skill_files.contains_key(&path), alike.as_slice()) {
            (true, _) => inner,
            (false, [only]) => only,
            (false, _) => return Err(missing()),
        };
        let bytes = state.skill_files.get(&format!("{root}/{found}"));
        let bytes = match bytes.ok_or_else(missing)? {
            bytes if request.workspace_paths => &with_workspace_paths(name, bytes),
            bytes => bytes,
        };
        let up = if root == name { "" } else { "../../" };
        let file = described(&format!("{up}{found}"), bytes);
        let number = |given: i64| usize::try_from(given).expect("no negative number");
        let from = number(request.offset).min(bytes.len());
        let to = match number(request.length) {
            0 => bytes.len(),
            length => (from + length).min(bytes.len()),
        };
        let data = bytes.get(from..to).unwrap_or_default().to_vec().into();
        let answer = |payload| {
            Ok(ReadSkillFileResponse {
                payload: Some(payload),
            })
        };
        let payloads = [Payload::File(file), Payload::Data(data)];
        Ok(payloads.into_iter().map(answer).collect())
    }

    /// Stages inputs by the rules of the API, without reading their bytes.
    pub(super) fn bring(
        &self,
        request: &StageInputsRequest,
    ) -> Result<StageInputsResponse, Status> {
        let staged = request.inputs.iter().map(|input| {
            let (from, size) = match input.source.clone().unwrap_or(Source::From(String::new())) {
                Source::From(from) => (from, 7),
                Source::Data(data) => (String::new(), data.len()),
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
            let path = match input.to.as_str() {
                "" => format!("work/inputs/{base}"),
                to => to.to_owned(),
            };
            Ok(StagedInput {
                from,
                file: Some(StagedFile {
                    path,
                    size: i64::try_from(size).expect("small"),
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

fn described(path: &str, bytes: &[u8]) -> SkillFile {
    let kind = match path.split('/').next() {
        Some("references") => Kind::Reference,
        Some("assets") => Kind::Asset,
        Some("scripts") => Kind::Script,
        _ => Kind::Document,
    };
    SkillFile {
        path: path.to_owned(),
        size: i64::try_from(bytes.len()).expect("small"),
        kind: kind.into(),
        is_text: !bytes.contains(&0),
        mime_type: "text/markdown".into(),
        ..Default::default()
    }
}
