//! StageInputs: references and places → what is staged; what was staged → messages.

use skilld_proto::v1 as pb;
use skilld_proto::v1::input_spec::Source as Given;

use super::file::{Checks, DATA_BYTES_MAX, sha256};
use super::int64;
use crate::artifacts::{ArtifactRef, Scope};
use crate::error::{Error, Result};
use crate::fetch::{FetchError, WebUrl};
use crate::inputs::target::{DEFAULT_FOLDER, safe_name};
use crate::inputs::{Input, Source, Staged, To};
use crate::paths;
use crate::skills::is_name;
use crate::workspace::WorkspaceId;

/// Inputs of one request.
pub const INPUTS_MAX: usize = 256;
/// Of a reference, bytes.
const FROM_BYTES_MAX: usize = 4096;
/// Of a name that is asked for, bytes; it is then made safe.
const NAME_BYTES_MAX: usize = 4096;
const FORMS: &str = "must be artifact://NAME[@VERSION], host:///PATH, workspace://PATH, skill://NAME/PATH or \
                     an http(s) URL";

/// Checks a `StageInputsRequest`.
///
/// # Errors
/// `Invalid` with every fault; `PathEscapes`; `ReadOnly`.
pub fn stage_inputs(request: pb::StageInputsRequest) -> Result<(WorkspaceId, Vec<Input>, Scope)> {
    let mut checks = Checks::default();
    let workspace = checks.workspace(&request.workspace);
    let count = request.inputs.len();
    if !(1..=INPUTS_MAX).contains(&count) {
        let problem = format!("{count} inputs; 1 to {INPUTS_MAX} can be staged at once");
        checks.faults.add("inputs", problem);
    }
    let scope = request.scope.unwrap_or_default();
    let scope = Scope::parse("scope", &scope.app, &scope.user, &scope.session);
    let scope = checks.take("scope", scope);
    let specs = request.inputs.into_iter().enumerate().take(INPUTS_MAX);
    let inputs: Vec<Option<Input>> = specs
        .map(|(index, spec)| input(&mut checks, format!("inputs[{index}]"), spec))
        .collect();
    let workspace = checks.finish(workspace)?;
    Ok((workspace, inputs.into_iter().flatten().collect(), scope))
}

fn input(checks: &mut Checks, field: String, spec: pb::InputSpec) -> Option<Input> {
    let at = |name: &str| format!("{field}.{name}");
    let link = match pb::StageMode::try_from(spec.mode) {
        Ok(mode) => mode == pb::StageMode::Link,
        Err(_) => {
            let problem = "is not a value that this server knows";
            checks.faults.add(at("mode"), problem);
            false
        }
    };
    let to = checks.take(&at("to"), place(&at("to"), &spec.to).map(Some));
    let digest = checks.take(&at("sha256"), sha256(&at("sha256"), &spec.sha256));
    if spec.name.len() > NAME_BYTES_MAX {
        let problem = format!("is longer than {NAME_BYTES_MAX} bytes");
        checks.faults.add(at("name"), problem);
    }
    let (from, source) = match spec.source {
        Some(Given::From(from)) => {
            let source = source(&at("from"), &from);
            (from, checks.take(&at("from"), source.map(Some)))
        }
        Some(Given::Data(data)) if data.len() > DATA_BYTES_MAX => {
            let problem = format!(
                "has {} bytes; at most {DATA_BYTES_MAX}: StageFiles takes more",
                data.len()
            );
            checks.faults.add(at("data"), problem);
            return None;
        }
        Some(Given::Data(data)) => (String::new(), Some(Source::Data(data))),
        None => {
            let problem = "is missing: give `from` or `data`";
            checks.faults.add(at("from"), problem);
            return None;
        }
    };
    let source = source?;
    let from = if let Source::Url(url) = &source {
        url.to_string()
    } else {
        from
    };
    if spec.pin && !matches!(source, Source::Artifact(_)) {
        checks.faults.add(at("pin"), "is for artifacts");
    }
    let name = if spec.name.is_empty() {
        source_name(&source)
    } else {
        &spec.name
    };
    Some(Input {
        name: safe_name(name),
        field,
        from,
        to: to?,
        link,
        pin: spec.pin,
        sha256: digest,
        source,
    })
}

/// What a source is called where it comes from.
fn source_name(source: &Source) -> &str {
    match source {
        Source::Data(_) => "",
        Source::Artifact(artifact) => artifact.name.as_str().trim_start_matches("user:"),
        Source::Host(path) | Source::Workspace(path) => path,
        Source::Skill { name, path } if path.is_empty() => name,
        Source::Skill { path, .. } => path,
        Source::Url(url) => url.url().path(),
    }
}

fn source(field: &str, from: &str) -> Result<Source> {
    if from.len() > FROM_BYTES_MAX || from.chars().any(char::is_control) {
        let problem = format!("must be at most {FROM_BYTES_MAX} bytes without control characters");
        return Err(Error::invalid(field, problem));
    }
    let Some((scheme, rest)) = from.split_once("://") else {
        return Err(Error::invalid(field, FORMS));
    };
    match scheme {
        "artifact" => ArtifactRef::parse(field, from).map(Source::Artifact),
        "host" if rest.starts_with('/') => Ok(Source::Host(rest.to_owned())),
        "host" => Err(Error::invalid(
            field,
            "must be host:// and an absolute path",
        )),
        "workspace" => {
            let path = paths::resolve(field, rest, paths::Scope::default())?;
            Ok(Source::Workspace(path))
        }
        "skill" => {
            let (name, path) = rest.split_once('/').unwrap_or((rest, ""));
            if !is_name(name) {
                return Err(Error::invalid(field, "must be skill://NAME/PATH"));
            }
            if path.split('/').any(|part| part == "..") {
                return Err(Error::PathEscapes {
                    path: from.to_owned(),
                });
            }
            let base = paths::resolve(
                field,
                &format!("skills/{name}/{path}"),
                paths::Scope::default(),
            )?;
            let path = base
                .strip_prefix(&format!("skills/{name}"))
                .unwrap_or_default();
            Ok(Source::Skill {
                name: name.to_owned(),
                path: path.trim_start_matches('/').to_owned(),
            })
        }
        "http" | "https" => {
            let url: Result<WebUrl, FetchError> = from.parse();
            url.map(Source::Url)
                .map_err(|error| Error::invalid(field, error.to_string()))
        }
        _ => Err(Error::invalid(field, FORMS)),
    }
}

fn place(field: &str, to: &str) -> Result<To> {
    // Blanks at the end of a name are of the name.
    let to = if to.trim().is_empty() { "" } else { to };
    let path = paths::resolve(field, to, paths::Scope::default())?;
    if to.is_empty() || path == DEFAULT_FOLDER {
        return Ok(To::Default);
    }
    paths::writable(&path).map_err(|_| Error::ReadOnly {
        path: to.to_owned(),
    })?;
    // The workspace itself can only be a folder.
    Ok(if to.ends_with('/') || path.is_empty() {
        To::Folder(path)
    } else {
        To::Path(path)
    })
}

/// What was staged, for the wire.
#[must_use]
pub fn staged(inputs: &[Input], staged: Vec<Staged>) -> pb::StageInputsResponse {
    let inputs = inputs.iter().zip(staged).map(|(input, staged)| {
        let mode = if staged.linked {
            pb::StageMode::Link
        } else {
            pb::StageMode::Copy
        };
        pb::StagedInput {
            from: input.from.clone(),
            file: Some(pb::StagedFile {
                path: staged.path,
                size: int64(staged.size),
                mode: staged.mode,
                sha256: staged.sha256,
            }),
            mode: mode.into(),
            version: staged.version.map_or(0, int64),
            files_total: int64(staged.files),
            bytes_total: int64(staged.bytes),
            unchanged: staged.unchanged,
            note: staged.note,
        }
    });
    pb::StageInputsResponse {
        inputs: inputs.collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_no_place_at_all_is_the_default_one() {
        let folder = |path: &str| To::Folder(path.to_owned());
        for (to, expected) in [
            ("", To::Default),
            ("work/inputs", To::Default),
            ("work/inputs/", To::Default),
            ("./", folder("")),
            (".", folder("")),
            ("/workspace/", folder("")),
            ("out/", folder("out")),
            ("out/a", To::Path("out/a".to_owned())),
        ] {
            assert_eq!(place("to", to).expect(to), expected, "{to}");
        }
        assert!(place("to", "skills/").is_err());
    }
}
