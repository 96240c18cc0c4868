//! Conversion of StageInputs requests and answers: references of inputs and their targets.

use skilld_proto::v1 as pb;
use skilld_proto::v1::input_spec::Content as Given;

use super::file::DATA_BYTES_MAX;
use super::{ViolationCollector, int64};
use crate::artifacts::{ArtifactRef, RequestedScope};
use crate::error::{Error, Result};
use crate::fetch::{FetchError, WebUrl};
use crate::inputs::destination::{DEFAULT_FOLDER, safe_name};
use crate::inputs::{InputDestination, InputSource, InputSpec, StagedInput};
use crate::skills::{is_name, staged_folder};
use crate::workspace::WorkspaceId;
use crate::workspace_paths;

/// Maximum number of inputs in one request.
pub const INPUTS_MAX: usize = 256;
/// Maximum length of a reference, in bytes.
const FROM_BYTES_MAX: usize = 4096;
/// Maximum length of a requested name, in bytes, before it is sanitised.
const NAME_BYTES_MAX: usize = 4096;
const SOURCE_FORMS: &str = "must be artifact://NAME[@VERSION], host:///PATH, workspace://PATH, skill://NAME/PATH or \
                            an http(s) URL";

/// Checks a `StageInputsRequest`.
///
/// # Errors
/// `Invalid` with every violation; otherwise `PathEscapes` or `ReadOnly`.
pub fn check_stage_inputs(
    request: pb::StageInputsRequest,
) -> Result<(WorkspaceId, Vec<InputSpec>, RequestedScope)> {
    let mut violations = ViolationCollector::default();
    let workspace = violations.workspace_name("workspace", &request.workspace);
    violations.one_to("inputs", request.inputs.len(), INPUTS_MAX, "inputs");
    let scope = request.scope.unwrap_or_default();
    let scope = RequestedScope::parse("scope", &scope.app, &scope.user, &scope.session);
    let scope = violations.take(scope);
    let specs = request.inputs.into_iter().enumerate().take(INPUTS_MAX);
    let inputs: Vec<Option<InputSpec>> = specs
        .map(|(index, spec)| check_input(&mut violations, format!("inputs[{index}]"), spec))
        .collect();
    let (workspace, scope) = violations.finish_with(workspace.zip(scope))?;
    Ok((workspace, inputs.into_iter().flatten().collect(), scope))
}

fn check_input(
    violations: &mut ViolationCollector,
    field: String,
    spec: pb::InputSpec,
) -> Option<InputSpec> {
    let at = |name: &str| format!("{field}.{name}");
    let mode = violations.known_enum(&at("mode"), spec.mode);
    let target = violations.take(parse_target(&at("path"), &spec.path));
    let sha256 = violations.sha256(&at("sha256"), &spec.sha256);
    violations.bytes_at_most(&at("name"), spec.name.len(), NAME_BYTES_MAX);
    let (from, source) = match spec.content {
        Some(Given::Source(from)) => {
            let source = violations.take(parse_source(&at("source"), &from));
            (from, source)
        }
        Some(Given::Data(data)) => {
            check_size(violations, at("data"), data.len());
            (String::new(), Some(InputSource::Data(data)))
        }
        Some(Given::Archive(data)) => {
            check_size(violations, at("archive"), data.len());
            (String::new(), Some(InputSource::Archive(data)))
        }
        None => {
            let problem = "is missing: give `source`, `data` or `archive`";
            violations.add(at("source"), problem);
            return None;
        }
    };
    let source = source?;
    // A URL is shown without its query, which may hold secrets.
    let from = if let InputSource::Url(url) = &source {
        url.to_string()
    } else {
        from
    };
    if spec.pin && !matches!(source, InputSource::Artifact(_)) {
        violations.add(at("pin"), "is for artifacts");
    }
    let to = match (target?, &source) {
        (InputDestination::Default, InputSource::Archive(_)) if !spec.path.trim().is_empty() => {
            InputDestination::Path(DEFAULT_FOLDER.to_owned())
        }
        (InputDestination::Default, InputSource::Archive(_)) => {
            let problem = "is missing: an archive needs a folder, `./` for the workspace";
            violations.add(at("path"), problem);
            return None;
        }
        (InputDestination::Folder(path), InputSource::Archive(_)) => InputDestination::Path(path),
        (to, _) => to,
    };
    let name = if spec.name.is_empty() {
        source_name(&source)
    } else {
        &spec.name
    };
    Some(InputSpec {
        name: safe_name(name),
        field,
        from,
        to,
        link: mode == Some(pb::StageMode::Link),
        pin: spec.pin,
        sha256,
        source,
    })
}

/// Checks the size of bytes in a request.
fn check_size(violations: &mut ViolationCollector, field: String, bytes: usize) {
    if bytes > DATA_BYTES_MAX {
        let problem =
            format_args!("has {bytes} bytes; at most {DATA_BYTES_MAX}: StageFiles takes more");
        violations.add(field, problem);
    }
}

/// Returns the name that an input has at its source; empty if it has none.
fn source_name(source: &InputSource) -> &str {
    match source {
        InputSource::Data(_) | InputSource::Archive(_) => "",
        InputSource::Artifact(artifact) => artifact.name.as_str().trim_start_matches("user:"),
        InputSource::Host(path) | InputSource::Workspace(path) => path,
        InputSource::Skill { name, path } if path.is_empty() => name,
        InputSource::Skill { path, .. } => path,
        InputSource::Url(url) => url.url().path(),
    }
}

fn parse_source(field: &str, from: &str) -> Result<InputSource> {
    if from.len() > FROM_BYTES_MAX || from.chars().any(char::is_control) {
        let problem = format!("must be at most {FROM_BYTES_MAX} bytes without control characters");
        return Err(Error::invalid(field, problem));
    }
    let Some((scheme, rest)) = from.split_once("://") else {
        return Err(Error::invalid(field, SOURCE_FORMS));
    };
    match scheme {
        "artifact" => ArtifactRef::parse(field, from).map(InputSource::Artifact),
        "host" if rest.starts_with('/') => Ok(InputSource::Host(rest.to_owned())),
        "host" => Err(Error::invalid(
            field,
            "must be host:// and an absolute path",
        )),
        "workspace" => {
            let path = workspace_paths::resolve_path(
                field,
                rest,
                workspace_paths::PathContext::default(),
            )?;
            Ok(InputSource::Workspace(path))
        }
        "skill" => {
            let (name, path) = rest.split_once('/').unwrap_or((rest, ""));
            let name = &*staged_folder(name);
            if !is_name(name) {
                return Err(Error::invalid(field, "must be skill://NAME/PATH"));
            }
            if path.split('/').any(|part| part == "..") {
                return Err(Error::PathEscapes {
                    path: from.to_owned(),
                });
            }
            let base = workspace_paths::resolve_path(
                field,
                &format!("skills/{name}/{path}"),
                workspace_paths::PathContext::default(),
            )?;
            let path = base
                .strip_prefix(&format!("skills/{name}"))
                .unwrap_or_default();
            Ok(InputSource::Skill {
                name: name.to_owned(),
                path: path.trim_start_matches('/').to_owned(),
            })
        }
        "http" | "https" => {
            let url: Result<WebUrl, FetchError> = from.parse();
            url.map(InputSource::Url)
                .map_err(|error| Error::invalid(field, error.to_string()))
        }
        _ => Err(Error::invalid(field, SOURCE_FORMS)),
    }
}

/// Parses the target of an input: empty for the default folder, with a `/` at the end for a folder.
fn parse_target(field: &str, to: &str) -> Result<InputDestination> {
    // Blanks at the end belong to the name, unless there is nothing else.
    let to = if to.trim().is_empty() { "" } else { to };
    let path = workspace_paths::resolve_path(field, to, workspace_paths::PathContext::default())?;
    if to.is_empty() || path == DEFAULT_FOLDER {
        return Ok(InputDestination::Default);
    }
    workspace_paths::check_writable(&path).map_err(|_| Error::ReadOnly {
        path: to.to_owned(),
    })?;
    // The workspace itself can only be a folder.
    Ok(if to.ends_with('/') || path.is_empty() {
        InputDestination::Folder(path)
    } else {
        InputDestination::Path(path)
    })
}

/// Makes the answer of a StageInputs.
pub fn staged_inputs_message(
    inputs: &[InputSpec],
    staged: Vec<StagedInput>,
) -> pb::StageInputsResponse {
    let messages = inputs.iter().zip(staged).map(|(input, staged)| {
        let mode = if staged.linked {
            pb::StageMode::Link
        } else {
            pb::StageMode::Copy
        };
        pb::StagedInput {
            source: input.from.clone(),
            file: Some(pb::StagedFile {
                path: staged.path,
                size_bytes: int64(staged.size),
                mode: staged.mode,
                sha256: staged.sha256,
            }),
            mode: mode.into(),
            version: staged.version.map(int64),
            file_count: int64(staged.files),
            size_bytes: int64(staged.bytes),
            unchanged: staged.unchanged,
            note: staged.note,
        }
    });
    pb::StageInputsResponse {
        inputs: messages.collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_an_empty_target_is_the_default_folder() {
        let folder = |path: &str| InputDestination::Folder(path.to_owned());
        for (to, expected) in [
            ("", InputDestination::Default),
            ("work/inputs", InputDestination::Default),
            ("work/inputs/", InputDestination::Default),
            ("./", folder("")),
            (".", folder("")),
            ("/workspace/", folder("")),
            ("out/", folder("out")),
            ("out/a", InputDestination::Path("out/a".to_owned())),
        ] {
            assert_eq!(parse_target("to", to).expect(to), expected, "{to}");
        }
        assert!(parse_target("to", "skills/").is_err());
    }
}
