//! Requests that change what is published → checked values.

use bytes::Bytes;
use skilld_proto::v1 as pb;
use skilld_proto::v1::publish_skill_header::Kind as WireKind;
use skilld_proto::v1::publish_skill_request::Payload;

use super::Faults;
use crate::error::{Error, Result};
use crate::skills::archive::Kind;
use crate::skills::{Which, is_digest, is_name};

/// What is to be published.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Publish {
    /// Of the skill.
    pub name: String,
    /// `None`: to be found out.
    pub kind: Option<Kind>,
    /// Of the stream, 64 lower-case hex digits; empty if it is not to be checked.
    pub sha256: String,
}

/// Checks the first message of a PublishSkill stream.
///
/// # Errors
/// `Invalid`.
pub fn publish(first: &pb::PublishSkillRequest) -> Result<Publish> {
    let mut faults = Faults::default();
    let name = first.name.strip_prefix("skills/").unwrap_or_default();
    if !is_name(name) {
        faults.add(
            "name",
            "is not of the form skills/{skill}, without a version",
        );
    }
    let default = pb::PublishSkillHeader::default();
    let header = match &first.payload {
        Some(Payload::Header(header)) => header,
        Some(Payload::Data(_)) | None => {
            faults.add("header", "is missing: it comes in the first message");
            &default
        }
    };
    let kind = match WireKind::try_from(header.kind) {
        Ok(WireKind::Unspecified) => None,
        Ok(WireKind::Tar) => Some(Kind::Tar),
        Ok(WireKind::TarGz) => Some(Kind::TarGz),
        Ok(WireKind::Zip) => Some(Kind::Zip),
        Err(_) => {
            faults.add("header.kind", "is not a value that this server knows");
            None
        }
    };
    let sha256 = header.sha256.to_ascii_lowercase();
    if !sha256.is_empty() && !is_digest(&sha256) {
        faults.add("header.sha256", "is not 64 hex digits");
    }
    faults.finish()?;
    Ok(Publish {
        name: name.to_owned(),
        kind,
        sha256,
    })
}

/// The bytes of a later message.
///
/// # Errors
/// `Invalid`.
pub fn data(message: pb::PublishSkillRequest) -> Result<Bytes> {
    match message.payload {
        Some(Payload::Data(data)) => Ok(data),
        Some(Payload::Header(_)) => {
            Err(Error::invalid("header", "comes in the first message only"))
        }
        None => Err(Error::invalid("data", "is missing")),
    }
}

/// Checks a `DeleteSkillRequest`. A range of versions is not understood here: what goes is named exactly.
///
/// # Errors
/// `Invalid`.
pub fn delete(request: &pb::DeleteSkillRequest) -> Result<(String, Which)> {
    let skill = request.name.strip_prefix("skills/").unwrap_or_default();
    let (name, which) = skill
        .split_once('@')
        .map_or((skill, None), |(name, which)| (name, Some(which)));
    let mut faults = Faults::default();
    if !is_name(name) {
        let form = "is not of the form skills/{skill}, skills/{skill}@VERSION or skills/{skill}@sha256:DIGEST";
        faults.add("name", form);
    }
    let which = match which.map(|which| (which, which.strip_prefix("sha256:"))) {
        None => Which::All,
        Some((_, Some(digest))) => {
            if !is_digest(digest) {
                faults.add("name", "has a digest without 64 lower-case hex digits");
            }
            Which::Digest(digest.to_owned())
        }
        Some((version, None)) => {
            if matches!(version, "" | "*" | "latest") {
                faults.add(
                    "name",
                    "needs the exact version to delete, or none for all of them",
                );
            }
            Which::Version(version.to_owned())
        }
    };
    faults.finish()?;
    Ok((name.to_owned(), which))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_to_be_deleted_is_named_exactly() {
        let digest = "a".repeat(64);
        for (name, expected) in [
            ("skills/csv", Some(("csv", Which::All))),
            (
                "skills/csv@1.2.0",
                Some(("csv", Which::Version("1.2.0".to_owned()))),
            ),
            // Nothing is published as this, so it finds nothing.
            (
                "skills/csv@^1",
                Some(("csv", Which::Version("^1".to_owned()))),
            ),
            (
                &format!("skills/csv@sha256:{digest}"),
                Some(("csv", Which::Digest(digest.clone()))),
            ),
            ("skills/csv@*", None),
            ("skills/csv@latest", None),
            ("skills/csv@", None),
            ("skills/csv@sha256:abc", None),
            ("skills/../csv", None),
            ("skills/", None),
            ("csv", None),
            ("", None),
        ] {
            let request = pb::DeleteSkillRequest {
                name: name.to_owned(),
            };
            let expected = expected.map(|(name, which)| (name.to_owned(), which));
            assert_eq!(delete(&request).ok(), expected, "{name:?}");
        }
    }

    #[test]
    fn all_faults_of_a_header_are_reported_at_once() {
        let request = pb::PublishSkillRequest {
            name: "skills/csv@1".to_owned(),
            payload: Some(Payload::Header(pb::PublishSkillHeader {
                kind: 99,
                sha256: "xyz".to_owned(),
            })),
        };
        let Err(Error::Invalid(faults)) = publish(&request) else {
            panic!("it was taken");
        };
        let fields: Vec<&str> = faults.iter().map(|fault| fault.field.as_str()).collect();
        assert_eq!(fields, ["name", "header.kind", "header.sha256"]);
    }
}
