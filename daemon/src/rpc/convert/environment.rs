//! Messages of skills' environments.

use std::time::{Duration, UNIX_EPOCH};

use skilld_proto::v1 as pb;
use skilld_proto::v1::prepare_skill_response::Payload;
use skilld_proto::v1::skill_package::Kind;

use super::{int64, skill, timestamp_message};
use crate::exec::SkillEnvironment;
use crate::skills::Problem;
use crate::skills::environments::environment_record::{BuiltPackage, EnvironmentRecord};

/// Makes the message of a built environment.
#[must_use]
pub fn environment_message(record: &EnvironmentRecord) -> pb::SkillEnvironment {
    let report = &record.report;
    let python = report.packages.iter();
    let python = python.map(|package| package_message(Kind::Python, package));
    let node = report.node_packages.iter();
    let node = node.map(|package| package_message(Kind::Node, package));
    let provided = report.provided.iter();
    let provided = provided.map(|package| package_message(Kind::Python, package));
    pb::SkillEnvironment {
        need: record.key.need.clone(),
        path: mounted_environment(record).path(),
        packages: skill::keep_fitting(python.chain(node)),
        image_packages: skill::keep_fitting(provided),
        files: int64(record.files),
        bytes: int64(record.bytes),
        create_time: timestamp_message(UNIX_EPOCH + Duration::from_millis(record.create_time_ms)),
    }
}

/// Makes the last message of a PrepareSkill.
#[must_use]
pub fn prepared_message(
    record: Option<&EnvironmentRecord>,
    problems: &[Problem],
) -> pb::PrepareSkillResponse {
    pb::PrepareSkillResponse {
        payload: Some(Payload::Result(pb::PreparedSkill {
            environment: record.map(environment_message),
            problems: skill::problem_messages(problems),
        })),
    }
}

/// Makes the message of a line that a build wrote.
#[must_use]
pub fn line_message(line: String) -> pb::PrepareSkillResponse {
    pb::PrepareSkillResponse {
        payload: Some(Payload::Line(line)),
    }
}

/// Returns what commands need to know of a built environment.
#[must_use]
pub fn mounted_environment(record: &EnvironmentRecord) -> SkillEnvironment {
    SkillEnvironment {
        name: record.name.clone(),
        has_python: record.report.python.is_some(),
        has_node: !record.report.node_packages.is_empty(),
    }
}

fn package_message(kind: Kind, package: &BuiltPackage) -> pb::SkillPackage {
    pb::SkillPackage {
        kind: kind.into(),
        name: package.name.clone(),
        version: package.version.clone(),
        hashes: package.hashes.clone(),
    }
}
