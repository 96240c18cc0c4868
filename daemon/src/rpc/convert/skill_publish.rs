//! Checks of PublishSkill and DeleteSkill requests.

use bytes::Bytes;
use skilld_proto::v1::publish_skill_request::Payload;
use skilld_proto::v1::{self as pb, SkillArchiveFormat};

use super::{ViolationCollector, check_upload_data};
use crate::error::Result;
use crate::skills::archive::ArchiveKind;
use crate::skills::{VersionSelector, is_digest, requested_id};

/// Checked header of a PublishSkill stream.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PublishRequest {
    /// Id of the skill; empty if its documents give it.
    pub name: String,
    /// Format of the archive; `None` means that the daemon detects it.
    pub kind: Option<ArchiveKind>,
    /// Expected SHA-256 of the archive, 64 lower-case hex digits; empty means no check.
    pub sha256: String,
}

/// Checks the first message of a PublishSkill stream.
///
/// # Errors
/// `Invalid`.
pub fn publish(first: &pb::PublishSkillRequest) -> Result<PublishRequest> {
    let mut violations = ViolationCollector::default();
    let default = pb::PublishSkillHeader::default();
    let header = match &first.payload {
        Some(Payload::Header(header)) => header,
        Some(Payload::Data(_)) | None => {
            violations.add("header", "is missing: it comes in the first message");
            &default
        }
    };
    let name = match header.name.as_str() {
        "" => Some(String::new()),
        name => published_id(name),
    };
    if name.is_none() {
        violations.add(
            "header.name",
            "is not of the form skills/{skill}, without a version; the name needs a letter or digit",
        );
    }
    let kind = match violations.known_enum("header.format", header.format) {
        Some(SkillArchiveFormat::Tar) => Some(ArchiveKind::Tar),
        Some(SkillArchiveFormat::TarGz) => Some(ArchiveKind::TarGz),
        Some(SkillArchiveFormat::Zip) => Some(ArchiveKind::Zip),
        None | Some(SkillArchiveFormat::Unspecified) => None,
    };
    let sha256 = violations.sha256("header.sha256", &header.sha256);
    Ok(PublishRequest {
        name: violations.finish_with(name)?,
        kind,
        sha256,
    })
}

/// Returns the id of `skills/{skill}` without a version.
fn published_id(name: &str) -> Option<String> {
    let skill = name.strip_prefix("skills/")?;
    requested_id(skill).filter(|_| !skill.contains('@'))
}

/// Checks a later message of a PublishSkill stream and returns its bytes.
///
/// # Errors
/// `Invalid`.
pub fn data(message: pb::PublishSkillRequest) -> Result<Bytes> {
    check_upload_data(message.payload.map(|payload| match payload {
        Payload::Data(data) => Some(data),
        Payload::Header(_) => None,
    }))
}

/// Checks a `DeleteSkillRequest`, which names one exact version, one digest, or all versions; never a range.
///
/// # Errors
/// `Invalid`.
pub fn delete(request: &pb::DeleteSkillRequest) -> Result<(String, VersionSelector)> {
    let skill = request.name.strip_prefix("skills/").unwrap_or_default();
    let (name, which) = skill
        .split_once('@')
        .map_or((skill, None), |(name, which)| (name, Some(which)));
    let mut violations = ViolationCollector::default();
    let name = requested_id(name);
    if name.is_none() {
        let form = "is not of the form skills/{skill}, skills/{skill}@VERSION or skills/{skill}@sha256:DIGEST";
        violations.add("name", form);
    }
    let which = match which.map(|which| (which, which.strip_prefix("sha256:"))) {
        None => VersionSelector::All,
        Some((_, Some(digest))) => {
            if !is_digest(digest) {
                violations.add("name", "has a digest without 64 lower-case hex digits");
            }
            VersionSelector::Digest(digest.to_owned())
        }
        Some((version, None)) => {
            if matches!(version, "" | "*" | "latest") {
                violations.add(
                    "name",
                    "needs the exact version to delete, or none for all of them",
                );
            }
            VersionSelector::Version(version.to_owned())
        }
    };
    Ok((violations.finish_with(name)?, which))
}

#[cfg(test)]
mod tests {
    use super::super::file::DATA_BYTES_MAX;
    use super::*;
    use crate::error::Error;

    #[test]
    fn a_delete_names_one_exact_version() {
        let digest = "a".repeat(64);
        for (name, expected) in [
            ("skills/csv", Some(("csv", VersionSelector::All))),
            (
                "skills/csv@1.2.0",
                Some(("csv", VersionSelector::Version("1.2.0".to_owned()))),
            ),
            // This is an exact version text, which no published skill has.
            (
                "skills/csv@^1",
                Some(("csv", VersionSelector::Version("^1".to_owned()))),
            ),
            (
                &format!("skills/csv@sha256:{digest}"),
                Some(("csv", VersionSelector::Digest(digest.clone()))),
            ),
            (
                "skills/My Skill@1.0",
                Some(("my-skill", VersionSelector::Version("1.0".to_owned()))),
            ),
            (
                "skills/数据报表",
                Some(("skill-ef1c3801", VersionSelector::All)),
            ),
            ("skills/csv@*", None),
            ("skills/csv@latest", None),
            ("skills/csv@", None),
            ("skills/csv@sha256:abc", None),
            ("skills/../csv", None),
            // These are aliases of skills with other ids.
            ("skills/tools/csv", None),
            ("skills/acme:csv", None),
            ("skills/", None),
            ("csv", None),
            ("", None),
        ] {
            let request = pb::DeleteSkillRequest {
                name: name.to_owned(),
                allow_missing: false,
            };
            let wanted = expected.map(|(name, which)| (name.to_owned(), which));
            assert_eq!(delete(&request).ok(), wanted, "{name:?}");
        }
    }

    #[test]
    fn a_skill_is_published_under_its_written_name_or_its_own() {
        for (name, expected) in [
            ("skills/csv", Some("csv")),
            ("skills/数据报表", Some("skill-ef1c3801")),
            ("", Some("")),
            ("skills/", None),
            ("skills/..", None),
            ("skills/acme:csv", None),
            ("csv", None),
        ] {
            let header = pb::PublishSkillHeader {
                name: name.to_owned(),
                ..pb::PublishSkillHeader::default()
            };
            let request = pb::PublishSkillRequest {
                payload: Some(Payload::Header(header)),
            };
            let name = publish(&request).ok().map(|request| request.name);
            assert_eq!(name.as_deref(), expected);
        }
    }

    #[test]
    fn all_faults_of_a_header_are_reported_at_once() {
        let request = pb::PublishSkillRequest {
            payload: Some(Payload::Header(pb::PublishSkillHeader {
                name: "skills/csv@1".to_owned(),
                format: 99,
                sha256: "xyz".to_owned(),
            })),
        };
        let Err(Error::Invalid(faults)) = publish(&request) else {
            panic!("it was taken");
        };
        let fields: Vec<&str> = faults.iter().map(|fault| fault.field.as_str()).collect();
        assert_eq!(fields, ["header.name", "header.format", "header.sha256"]);
    }

    #[test]
    fn an_archive_follows_its_header_in_small_messages() {
        let field = |payload| match data(pb::PublishSkillRequest { payload }) {
            Err(Error::Invalid(faults)) => faults.into_iter().map(|fault| fault.field).collect(),
            taken => taken.map(|_| String::new()).expect("another error"),
        };
        let bytes = |count: usize| Some(Payload::Data(vec![0; count].into()));
        let header = Payload::Header(pb::PublishSkillHeader::default());
        assert_eq!(field(bytes(0)), "");
        assert_eq!(field(bytes(DATA_BYTES_MAX)), "");
        assert_eq!(field(bytes(DATA_BYTES_MAX + 1)), "data");
        assert_eq!(field(None), "data");
        assert_eq!(field(Some(header)), "header");
    }
}
