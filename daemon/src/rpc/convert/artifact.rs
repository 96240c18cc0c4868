//! Artifact requests → checked values; artifacts → messages.

use bytes::Bytes;
use skilld_proto::guest::v1 as guest;
use skilld_proto::v1 as pb;
use skilld_proto::v1::save_artifact_request::Payload;

use super::file::{DATA_BYTES_MAX, read_file, sha256};
use super::{Faults, int64, page_size, page_token, timestamp};
use crate::artifacts::{Artifact, Name, Page, Save, Scope};
use crate::error::{Error, Result};
use crate::mime;
use crate::workspace::WorkspaceId;

const PREFIX: &str = "artifacts/";
const PAGE_DEFAULT: usize = 100;
const PAGE_MAX: usize = 1000;

/// What to save.
#[derive(Debug)]
pub struct Wanted {
    /// Whose it is.
    pub scope: Scope,
    /// What it is called.
    pub name: Name,
    /// What is known of it.
    pub save: Save,
    /// A file of a workspace; `None`: what the client sends.
    pub file: Option<(WorkspaceId, guest::ReadFileRequest)>,
}

/// One artifact, or one version of it.
#[derive(Debug)]
pub struct Chosen {
    /// Whose it is.
    pub scope: Scope,
    /// What it is called.
    pub name: Name,
    /// `None`: the newest, or all.
    pub version: Option<u64>,
}

/// Checks the first message of a `SaveArtifact` stream.
///
/// # Errors
/// `Invalid` with every fault; `PathEscapes`.
pub fn save(first: pb::SaveArtifactRequest) -> Result<Wanted> {
    let Some(Payload::Header(header)) = first.payload else {
        return Err(Error::invalid(
            "header",
            "is missing: the first message says what is saved",
        ));
    };
    let mut faults = Faults::default();
    let name = named(&mut faults, &first.name);
    let scope = scope(&mut faults, "header.scope", header.scope.as_ref());
    let mime_type = faults.take("header.mime_type", mime_type(&header.mime_type));
    let sha256 = faults.take("header.sha256", sha256("header.sha256", &header.sha256));
    let file = if header.workspace.is_empty() {
        if !header.path.is_empty() {
            faults.add("header.path", "needs header.workspace");
        }
        Ok(None)
    } else {
        let request = pb::ReadFileRequest {
            workspace: header.workspace,
            path: header.path,
            ..pb::ReadFileRequest::default()
        };
        read_file(&request).map(Some)
    };
    // A path that leads out has a reason of its own, which counts when nothing else is wrong.
    let (file, escapes) = match file {
        Err(error @ Error::PathEscapes { .. }) => (None, Some(error)),
        file => (faults.take("header.path", file), None),
    };
    faults.finish()?;
    if let Some(error) = escapes {
        return Err(error);
    }
    Ok(Wanted {
        scope: scope.unwrap_or_default(),
        name: name.ok_or_else(|| Error::invalid("name", "is missing"))?,
        save: Save {
            mime_type,
            sha256: Some(sha256).filter(|sha256| !sha256.is_empty()),
        },
        file,
    })
}

/// Checks a later message of the stream.
///
/// # Errors
/// `Invalid`.
pub fn save_data(message: pb::SaveArtifactRequest) -> Result<Bytes> {
    match message.payload {
        Some(Payload::Data(data)) if data.len() <= DATA_BYTES_MAX => Ok(data),
        Some(Payload::Data(data)) => Err(Error::invalid(
            "data",
            format!("has {} bytes; at most {DATA_BYTES_MAX}", data.len()),
        )),
        Some(Payload::Header(_)) => {
            Err(Error::invalid("header", "comes in the first message only"))
        }
        None => Err(Error::invalid("data", "is missing")),
    }
}

/// Checks a `LoadArtifactRequest`.
///
/// # Errors
/// `Invalid` with every fault.
pub fn load(request: &pb::LoadArtifactRequest) -> Result<Chosen> {
    chosen(&request.name, request.scope.as_ref(), request.version)
}

/// Checks a `DeleteArtifactRequest`.
///
/// # Errors
/// `Invalid` with every fault.
pub fn delete(request: &pb::DeleteArtifactRequest) -> Result<Chosen> {
    chosen(&request.name, request.scope.as_ref(), request.version)
}

/// Checks a `ListArtifactsRequest`: whose, after which name, how many.
///
/// # Errors
/// `Invalid` with every fault.
pub fn list(request: &pb::ListArtifactsRequest) -> Result<(Scope, Option<Name>, usize)> {
    let mut faults = Faults::default();
    let scope = scope(&mut faults, "scope", request.scope.as_ref());
    let size = page_size(request.page_size, PAGE_DEFAULT, PAGE_MAX);
    let size = faults.take("page_size", size);
    let token = faults.take("page_token", page_token(&request.page_token));
    let after = Name::parse("page_token", token).ok();
    known(&mut faults, token, after.is_some());
    faults.finish()?;
    Ok((scope.unwrap_or_default(), after, size))
}

/// Checks a `ListArtifactVersionsRequest`: which, after which version, how many.
///
/// # Errors
/// `Invalid` with every fault.
pub fn versions(request: &pb::ListArtifactVersionsRequest) -> Result<(Chosen, Option<u64>, usize)> {
    let mut faults = Faults::default();
    let name = named(&mut faults, &request.name);
    let scope = scope(&mut faults, "scope", request.scope.as_ref());
    let size = page_size(request.page_size, PAGE_DEFAULT, PAGE_MAX);
    let size = faults.take("page_size", size);
    let token = faults.take("page_token", page_token(&request.page_token));
    let after = token.parse().ok();
    known(&mut faults, token, after.is_some());
    faults.finish()?;
    let chosen = Chosen {
        scope: scope.unwrap_or_default(),
        name: name.ok_or_else(|| Error::invalid("name", "is missing"))?,
        version: None,
    };
    Ok((chosen, after, size))
}

/// One artifact for the wire.
#[must_use]
pub fn artifact(artifact: &Artifact) -> pb::Artifact {
    pb::Artifact {
        name: format!("{PREFIX}{}", artifact.name),
        scope: Some(pb::ArtifactScope {
            app: artifact.scope.app().to_owned(),
            user: artifact.scope.user().to_owned(),
            session: artifact.scope.session().to_owned(),
        }),
        version: int64(artifact.version),
        size: int64(artifact.size),
        mime_type: artifact.mime_type.clone(),
        sha256: artifact.sha256.clone(),
        create_time: timestamp(artifact.create_time),
    }
}

/// A page for the wire, with its token.
#[must_use]
pub fn page<T: ToString>(page: &Page<T>) -> (Vec<pb::Artifact>, String) {
    let token = page.next.as_ref().map(ToString::to_string);
    let artifacts = page.artifacts.iter().map(artifact).collect();
    (artifacts, token.unwrap_or_default())
}

fn chosen(name: &str, given: Option<&pb::ArtifactScope>, version: Option<i64>) -> Result<Chosen> {
    let mut faults = Faults::default();
    let name = named(&mut faults, name);
    let scope = scope(&mut faults, "scope", given);
    let version = version.map(u64::try_from).transpose();
    let version = version.map_err(|_| Error::invalid("version", "must not be negative"));
    let version = faults.take("version", version);
    faults.finish()?;
    Ok(Chosen {
        scope: scope.unwrap_or_default(),
        name: name.ok_or_else(|| Error::invalid("name", "is missing"))?,
        version,
    })
}

fn named(faults: &mut Faults, name: &str) -> Option<Name> {
    let Some(name) = name.strip_prefix(PREFIX) else {
        faults.add("name", "is not of the form artifacts/{name}");
        return None;
    };
    faults.take("name", Name::parse("name", name).map(Some))
}

fn scope(faults: &mut Faults, field: &str, given: Option<&pb::ArtifactScope>) -> Option<Scope> {
    let given = given?;
    let parsed = Scope::parse(field, &given.app, &given.user, &given.session);
    faults.take(field, parsed.map(Some))
}

fn known(faults: &mut Faults, token: &str, read: bool) {
    if !read && !token.is_empty() {
        faults.add("page_token", "is not one that this server made");
    }
}

fn mime_type(text: &str) -> Result<Option<String>> {
    match text {
        "" => Ok(None),
        _ if mime::is_type(text) => Ok(Some(text.to_owned())),
        _ => Err(Error::invalid(
            "header.mime_type",
            format!(
                "is not of the form type/subtype, in at most {} printable bytes",
                mime::TYPE_BYTES_MAX
            ),
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fields(error: Error) -> Vec<String> {
        let Error::Invalid(violations) = error else {
            panic!("{error}");
        };
        violations.into_iter().map(|fault| fault.field).collect()
    }

    #[test]
    fn all_faults_of_a_save_are_told_at_once() {
        let header = pb::SaveArtifactHeader {
            scope: Some(pb::ArtifactScope {
                app: "a\0".into(),
                user: "u".repeat(257),
                session: String::new(),
            }),
            mime_type: "text".into(),
            sha256: "12".into(),
            workspace: String::new(),
            path: "out/x".into(),
        };
        let request = pb::SaveArtifactRequest {
            name: "artifacts/../x".into(),
            payload: Some(Payload::Header(header)),
        };
        let found = fields(save(request).expect_err("faults"));
        let expected = [
            "name",
            "header.scope.app",
            "header.scope.user",
            "header.mime_type",
            "header.sha256",
            "header.path",
        ];
        assert_eq!(found, expected);
    }

    #[test]
    fn data_has_to_follow_a_header_in_small_messages() {
        let message = |payload| pb::SaveArtifactRequest {
            name: "artifacts/x".into(),
            payload,
        };
        let data = |bytes: usize| Some(Payload::Data(vec![0; bytes].into()));
        assert_eq!(
            fields(save(message(data(1))).expect_err("no header")),
            ["header"]
        );
        assert_eq!(
            fields(save(message(None)).expect_err("no header")),
            ["header"]
        );
        save_data(message(data(DATA_BYTES_MAX))).expect("the largest");
        save_data(message(data(0))).expect("the smallest");
        let large = save_data(message(data(DATA_BYTES_MAX + 1))).expect_err("too large");
        assert_eq!(fields(large), ["data"]);
        let again = Some(Payload::Header(pb::SaveArtifactHeader::default()));
        assert_eq!(
            fields(save_data(message(again)).expect_err("twice")),
            ["header"]
        );
    }

    #[test]
    fn a_path_out_of_the_workspace_has_its_own_reason() {
        let header = pb::SaveArtifactHeader {
            workspace: "workspaces/w".into(),
            path: "../etc/passwd".into(),
            ..pb::SaveArtifactHeader::default()
        };
        let request = |name: &str| pb::SaveArtifactRequest {
            name: name.into(),
            payload: Some(Payload::Header(header.clone())),
        };
        let error = save(request("artifacts/a")).expect_err("leads out");
        assert!(matches!(error, Error::PathEscapes { .. }), "{error}");
        // What is malformed is told first.
        assert_eq!(fields(save(request("a")).expect_err("malformed")), ["name"]);
    }

    #[test]
    fn tokens_and_versions_are_checked() {
        let list_with = |token: &str| {
            list(&pb::ListArtifactsRequest {
                page_token: token.into(),
                ..pb::ListArtifactsRequest::default()
            })
        };
        let (_, after, size) = list_with("user:a/b").expect("ours");
        assert_eq!(
            (after.expect("given").as_str(), size),
            ("user:a/b", PAGE_DEFAULT)
        );
        assert_eq!(
            fields(list_with("../x").expect_err("not ours")),
            ["page_token"]
        );
        let versions_with = |token: &str| {
            versions(&pb::ListArtifactVersionsRequest {
                name: "artifacts/a".into(),
                page_token: token.into(),
                page_size: 1001,
                ..pb::ListArtifactVersionsRequest::default()
            })
        };
        let found = fields(versions_with("-1").expect_err("not ours"));
        assert_eq!(found, ["page_size", "page_token"]);
        let negative = load(&pb::LoadArtifactRequest {
            name: "artifacts/a".into(),
            version: Some(-1),
            ..pb::LoadArtifactRequest::default()
        });
        assert_eq!(fields(negative.expect_err("negative")), ["version"]);
    }
}
