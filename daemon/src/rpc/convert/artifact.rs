//! Conversion of artifact requests and artifacts.

use bytes::Bytes;
use skilld_common::mime;
use skilld_proto::guest::v1 as guest;
use skilld_proto::v1 as pb;
use skilld_proto::v1::save_artifact_request::Payload;

use super::{ViolationCollector, check_upload_data, int64, timestamp_message};
use crate::artifacts::{Artifact, ArtifactName, ArtifactPage, RequestedScope, SaveOptions};
use crate::error::{Error, Result};
use crate::workspace::WorkspaceId;
use crate::workspace_paths::{self, PathContext};

/// Prefix of an artifact's resource name.
const NAME_PREFIX: &str = "artifacts/";
const PAGE_SIZE_DEFAULT: usize = 100;
const PAGE_SIZE_MAX: usize = 1000;

/// Checked header of a SaveArtifact stream.
#[derive(Debug)]
pub struct SaveRequest {
    /// Owner of the artifact.
    pub scope: RequestedScope,
    /// Name without its prefix.
    pub name: ArtifactName,
    /// MIME type and expected digest.
    pub save: SaveOptions,
    /// Workspace file to save; `None` if the client sends the bytes.
    pub file: Option<(WorkspaceId, guest::ReadFileRequest)>,
}

/// Checked reference to one artifact.
#[derive(Debug)]
pub struct ArtifactSelector {
    /// Owner of the artifact.
    pub scope: RequestedScope,
    /// Name without its prefix.
    pub name: ArtifactName,
    /// Version number; `None` means the newest one, or all of them.
    pub version: Option<u64>,
}

/// Checks the first message of a SaveArtifact stream.
///
/// # Errors
/// [`Error::Invalid`] with every violation; otherwise [`Error::PathEscapes`].
pub fn check_save_header(first: pb::SaveArtifactRequest) -> Result<SaveRequest> {
    let Some(Payload::Header(header)) = first.payload else {
        return Err(Error::invalid(
            "header",
            "is missing: the first message says what is saved",
        ));
    };
    let mut violations = ViolationCollector::default();
    let name = check_name(&mut violations, "header.name", &header.name);
    let scope = check_scope(&mut violations, "header.scope", header.scope.as_ref());
    if !header.mime_type.is_empty() && !mime::is_type(&header.mime_type) {
        let rule = format_args!(
            "is not of the form type/subtype, in at most {} printable bytes",
            mime::TYPE_BYTES_MAX
        );
        violations.add("header.mime_type", rule);
    }
    let sha256 = violations.sha256("header.sha256", &header.sha256);
    violations.request_id("header.request_id", &header.request_id);
    let file = if header.workspace.is_empty() {
        if !header.path.is_empty() {
            violations.add("header.path", "needs header.workspace");
        }
        None
    } else {
        let workspace = violations.workspace_name("header.workspace", &header.workspace);
        let path = violations.take(workspace_paths::resolve_path(
            "header.path",
            &header.path,
            PathContext::default(),
        ));
        let request = path.map(|path| guest::ReadFileRequest {
            path,
            ..guest::ReadFileRequest::default()
        });
        workspace.zip(request)
    };
    let name = violations.finish_with(name)?;
    Ok(SaveRequest {
        scope,
        name,
        save: SaveOptions {
            mime_type: Some(header.mime_type).filter(|mime_type| !mime_type.is_empty()),
            sha256: Some(sha256).filter(|sha256| !sha256.is_empty()),
            request_id: Some(header.request_id).filter(|id| !id.is_empty()),
        },
        file,
    })
}

/// Checks a later message of a SaveArtifact stream and returns its bytes.
///
/// # Errors
/// [`Error::Invalid`].
pub fn check_save_data(message: pb::SaveArtifactRequest) -> Result<Bytes> {
    check_upload_data(message.payload.map(|payload| match payload {
        Payload::Data(data) => Some(data),
        Payload::Header(_) => None,
    }))
}

/// Checks a `ListArtifactsRequest`. Returns the scope, the name after which the page begins, and the page's size.
///
/// # Errors
/// [`Error::Invalid`] with every violation.
pub fn check_list_artifacts(
    request: &pb::ListArtifactsRequest,
) -> Result<(RequestedScope, Option<ArtifactName>, usize)> {
    let mut violations = ViolationCollector::default();
    let scope = check_scope(&mut violations, "scope", request.scope.as_ref());
    let size = violations.page_size(request.page_size, PAGE_SIZE_DEFAULT, PAGE_SIZE_MAX);
    let token = violations.page_token(&request.page_token);
    let after = ArtifactName::parse("page_token", token).ok();
    if after.is_none() && !token.is_empty() {
        violations.unknown_page_token();
    }
    violations.finish()?;
    Ok((scope, after, size))
}

/// Checks a `ListArtifactVersionsRequest`. Returns the artifact, the version after which the page begins, and the
/// page's size.
///
/// # Errors
/// [`Error::Invalid`] with every violation.
pub fn check_list_artifact_versions(
    request: &pb::ListArtifactVersionsRequest,
) -> Result<(ArtifactSelector, Option<u64>, usize)> {
    let mut violations = ViolationCollector::default();
    let name = check_name(&mut violations, "parent", &request.parent);
    let scope = check_scope(&mut violations, "scope", request.scope.as_ref());
    let size = violations.page_size(request.page_size, PAGE_SIZE_DEFAULT, PAGE_SIZE_MAX);
    let token = violations.page_token(&request.page_token);
    let after = token.parse().ok();
    if after.is_none() && !token.is_empty() {
        violations.unknown_page_token();
    }
    let selector = ArtifactSelector {
        scope,
        name: violations.finish_with(name)?,
        version: None,
    };
    Ok((selector, after, size))
}

/// Checks the fields of a `LoadArtifactRequest` or `DeleteArtifactRequest`.
///
/// # Errors
/// [`Error::Invalid`] with every violation.
pub fn check_selector(
    name: &str,
    scope: Option<&pb::ArtifactScope>,
    version: Option<i64>,
) -> Result<ArtifactSelector> {
    let mut violations = ViolationCollector::default();
    let name = check_name(&mut violations, "name", name);
    let scope = check_scope(&mut violations, "scope", scope);
    let version = version.map(|version| violations.not_negative("version", version));
    Ok(ArtifactSelector {
        scope,
        name: violations.finish_with(name)?,
        version,
    })
}

fn check_name(
    violations: &mut ViolationCollector,
    field: &str,
    name: &str,
) -> Option<ArtifactName> {
    let Some(name) = name.strip_prefix(NAME_PREFIX) else {
        violations.add(field, "is not of the form artifacts/{name}");
        return None;
    };
    violations.take(ArtifactName::parse(field, name))
}

fn check_scope(
    violations: &mut ViolationCollector,
    field: &str,
    scope: Option<&pb::ArtifactScope>,
) -> RequestedScope {
    scope
        .map(|scope| RequestedScope::parse(field, &scope.app, &scope.user, &scope.session))
        .and_then(|scope| violations.take(scope))
        .unwrap_or_default()
}

/// Makes the message of one artifact.
pub fn artifact_message(artifact: &Artifact) -> pb::Artifact {
    pb::Artifact {
        name: format!("{NAME_PREFIX}{}", artifact.name),
        scope: Some(pb::ArtifactScope {
            app: artifact.scope.app().to_owned(),
            user: artifact.scope.user().to_owned(),
            session: artifact.scope.session().to_owned(),
        }),
        version: int64(artifact.version),
        size_bytes: int64(artifact.size),
        mime_type: artifact.mime_type.clone(),
        sha256: artifact.sha256.clone(),
        create_time: timestamp_message(artifact.create_time),
    }
}

/// Makes the messages of one page of artifacts, and the token of the next page (empty on the last one).
pub fn artifact_page_message<T: ToString>(page: &ArtifactPage<T>) -> (Vec<pb::Artifact>, String) {
    let token = page.next.as_ref().map(ToString::to_string);
    let artifacts = page.artifacts.iter().map(artifact_message).collect();
    (artifacts, token.unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use super::super::file::DATA_BYTES_MAX;
    use super::*;

    fn fields(error: Error) -> Vec<String> {
        let Error::Invalid(violations) = error else {
            panic!("{error}");
        };
        violations.into_iter().map(|fault| fault.field).collect()
    }

    #[test]
    fn all_faults_of_a_save_are_reported_at_once() {
        let header = pb::SaveArtifactHeader {
            name: "artifacts/../x".into(),
            scope: Some(pb::ArtifactScope {
                app: "a\0".into(),
                user: "u".repeat(257),
                session: String::new(),
            }),
            mime_type: "text".into(),
            sha256: "12".into(),
            workspace: String::new(),
            path: "out/x".into(),
            request_id: "é".into(),
        };
        let request = pb::SaveArtifactRequest {
            payload: Some(Payload::Header(header)),
        };
        let found = fields(check_save_header(request).expect_err("faults"));
        let expected = [
            "header.name",
            "header.scope.app",
            "header.scope.user",
            "header.mime_type",
            "header.sha256",
            "header.request_id",
            "header.path",
        ];
        assert_eq!(found, expected);
    }

    #[test]
    fn data_has_to_follow_a_header_in_small_messages() {
        let message = |payload| pb::SaveArtifactRequest { payload };
        let data = |bytes: usize| Some(Payload::Data(vec![0; bytes].into()));
        assert_eq!(
            fields(check_save_header(message(data(1))).expect_err("no header")),
            ["header"]
        );
        assert_eq!(
            fields(check_save_header(message(None)).expect_err("no header")),
            ["header"]
        );
        check_save_data(message(data(DATA_BYTES_MAX))).expect("the largest");
        check_save_data(message(data(0))).expect("the smallest");
        let large = check_save_data(message(data(DATA_BYTES_MAX + 1))).expect_err("too large");
        assert_eq!(fields(large), ["data"]);
        let again = Some(Payload::Header(pb::SaveArtifactHeader::default()));
        assert_eq!(
            fields(check_save_data(message(again)).expect_err("twice")),
            ["header"]
        );
    }

    #[test]
    fn a_path_out_of_the_workspace_has_its_own_reason() {
        let request = |name: &str| pb::SaveArtifactRequest {
            payload: Some(Payload::Header(pb::SaveArtifactHeader {
                name: name.into(),
                workspace: "workspaces/w".into(),
                path: "../etc/passwd".into(),
                ..pb::SaveArtifactHeader::default()
            })),
        };
        let error = check_save_header(request("artifacts/a")).expect_err("leads out");
        assert!(matches!(error, Error::PathEscapes { .. }), "{error}");
        // Violations come first.
        assert_eq!(
            fields(check_save_header(request("a")).expect_err("malformed")),
            ["header.name"]
        );
    }

    #[test]
    fn tokens_and_versions_are_checked() {
        let list_with = |token: &str| {
            check_list_artifacts(&pb::ListArtifactsRequest {
                page_token: token.into(),
                ..pb::ListArtifactsRequest::default()
            })
        };
        let (_, after, size) = list_with("user:a/b").expect("ours");
        assert_eq!(
            (after.expect("given").as_str(), size),
            ("user:a/b", PAGE_SIZE_DEFAULT)
        );
        assert_eq!(
            fields(list_with("../x").expect_err("not ours")),
            ["page_token"]
        );
        let versions_with = |token: &str| {
            check_list_artifact_versions(&pb::ListArtifactVersionsRequest {
                parent: "artifacts/a".into(),
                page_token: token.into(),
                page_size: -1,
                ..pb::ListArtifactVersionsRequest::default()
            })
        };
        let found = fields(versions_with("-1").expect_err("not ours"));
        assert_eq!(found, ["page_size", "page_token"]);
        let negative = check_selector("artifacts/a", None, Some(-1));
        assert_eq!(fields(negative.expect_err("negative")), ["version"]);
    }
}
