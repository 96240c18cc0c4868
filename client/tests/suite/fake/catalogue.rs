//! Skills of the fake and what is brought into its workspaces: what the test put there.

use skilld_client::v1::input_spec::Source;
use skilld_client::v1::read_skill_file_response::Payload;
use skilld_client::v1::skill_file::Kind;
use skilld_client::v1::{
    ReadSkillFileRequest, ReadSkillFileResponse, Skill, SkillFile, StageInputsRequest,
    StageInputsResponse, StagedFile, StagedInput,
};
use tonic::{Code, Status};

use super::{Shared, refusal};

impl Shared {
    /// The skill of a name, if the test put any there.
    pub(super) fn known_skill(&self, name: &str) -> Result<Option<Skill>, Status> {
        let name = format!("skills/{}", name.trim_start_matches("skills/"));
        let state = self.lock();
        if state.skills.is_empty() {
            return Ok(None);
        }
        let found = state.skills.iter().find(|skill| skill.name == name);
        let near: Vec<&str> = state.skills.iter().map(|skill| &skill.name[7..]).collect();
        match found {
            Some(skill) => Ok(Some(skill.clone())),
            None => {
                let near = [("nearest", near.join(","))];
                let near = near.each_ref().map(|(key, names)| (*key, names.as_str()));
                Err(refusal(Code::NotFound, "SKILL_NOT_FOUND", &near))
            }
        }
    }

    pub(super) fn skill_files(&self, name: &str) -> Result<Vec<SkillFile>, Status> {
        self.known_skill(name)?;
        let prefix = format!("{}/", name.trim_start_matches("skills/"));
        let state = self.lock();
        let files = state.skill_files.iter();
        let files = files.filter_map(|(path, bytes)| {
            let path = path.strip_prefix(&prefix)?;
            Some(described(path, bytes))
        });
        Ok(files.collect())
    }

    pub(super) fn read_skill(
        &self,
        request: &ReadSkillFileRequest,
    ) -> Result<Vec<Result<ReadSkillFileResponse, Status>>, Status> {
        self.known_skill(&request.name)?;
        let name = request.name.trim_start_matches("skills/");
        let path = format!("{name}/{}", request.path);
        let bytes = self.lock().skill_files.get(&path).cloned();
        let near = [("path", request.path.as_str()), ("nearest", "USAGE.md")];
        let missing = || refusal(Code::NotFound, "FILE_NOT_FOUND", &near);
        let bytes = bytes.ok_or_else(missing)?;
        let file = described(&request.path, &bytes);
        let payloads = [Payload::File(file), Payload::Data(bytes.into())];
        let answer = |payload| {
            Ok(ReadSkillFileResponse {
                payload: Some(payload),
            })
        };
        Ok(payloads.into_iter().map(answer).collect())
    }

    /// As the API says, without looking at what it is.
    pub(super) fn bring(
        &self,
        request: &StageInputsRequest,
    ) -> Result<StageInputsResponse, Status> {
        let staged = request.inputs.iter().map(|input| {
            let (from, size) = match input.source.clone().unwrap_or(Source::From(String::new())) {
                Source::From(from) => (from, 7),
                Source::Data(data) => (String::new(), data.len()),
            };
            if from.ends_with("missing") {
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
