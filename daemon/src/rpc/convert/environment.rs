//! Conversion of skills' environments to messages.

use skilld_common::unix_time::from_unix_ms;
use skilld_proto::v1::prepare_skill_response::Payload;
use skilld_proto::v1::{self as pb, PackageKind};

use super::page::keep_fitting;
use super::{int64, skill, timestamp_message};
use crate::exec::SkillEnvironment;
use crate::skills::environments::environment_record::{BuiltPackage, EnvironmentRecord};
use crate::skills::{AddedPackages, Problem};

/// Makes the message of a built environment without its packages. An answer about many skills has no room for these.
pub fn environment_summary(record: &EnvironmentRecord) -> pb::SkillEnvironment {
    let report = &record.report;
    pb::SkillEnvironment {
        need: record.key.need.clone(),
        path: mounted_environment(record).path(),
        package_count: int64((report.packages.len() + report.node_packages.len()) as u64),
        file_count: int64(record.files),
        size_bytes: int64(record.bytes),
        create_time: timestamp_message(from_unix_ms(record.create_time_ms)),
        ..pb::SkillEnvironment::default()
    }
}

/// Makes the message of a built environment with its packages.
fn environment_message(record: &EnvironmentRecord) -> pb::SkillEnvironment {
    let report = &record.report;
    let python = report
        .packages
        .iter()
        .map(|package| package_message(PackageKind::Python, package));
    let node = report
        .node_packages
        .iter()
        .map(|package| package_message(PackageKind::Node, package));
    let provided = report
        .provided
        .iter()
        .map(|package| package_message(PackageKind::Python, package));
    let node_provided = report
        .node_provided
        .iter()
        .map(|package| package_message(PackageKind::Node, package));
    pb::SkillEnvironment {
        packages: keep_fitting(python.chain(node)),
        image_packages: keep_fitting(provided.chain(node_provided)),
        ..environment_summary(record)
    }
}

/// Makes the last message of a PrepareSkill.
pub fn prepared_message(
    record: Option<&EnvironmentRecord>,
    problems: &[Problem],
    added: &AddedPackages,
) -> pb::PrepareSkillResponse {
    pb::PrepareSkillResponse {
        payload: Some(Payload::Result(pb::PreparedSkill {
            environment: record.map(environment_message),
            problems: skill::problem_messages(problems),
            added_packages: added.texts(),
        })),
    }
}

/// Makes the message of a line that a build wrote.
pub fn line_message(line: String) -> pb::PrepareSkillResponse {
    pb::PrepareSkillResponse {
        payload: Some(Payload::Line(line)),
    }
}

/// Returns what commands need to know of a built environment.
pub fn mounted_environment(record: &EnvironmentRecord) -> SkillEnvironment {
    SkillEnvironment {
        name: record.name.clone(),
        has_python: record.report.python.is_some(),
        node_projects: record.report.node_projects,
    }
}

fn package_message(kind: PackageKind, package: &BuiltPackage) -> pb::SkillPackage {
    pb::SkillPackage {
        kind: kind.into(),
        name: package.name.clone(),
        version: package.version.clone(),
        hashes: package.hashes.clone(),
    }
}

#[cfg(test)]
mod tests {
    use prost::Message;

    use super::*;
    use crate::skills::environments::environment_record::{BuildReport, VERSION};

    #[test]
    fn a_summary_is_small_however_many_packages_there_are() {
        let package = BuiltPackage {
            name: "a-package".into(),
            version: "1.0".into(),
            hashes: vec![format!("sha256:{}", "0".repeat(64)); 80],
        };
        let packages = vec![package; 1000];
        let record = EnvironmentRecord {
            version: VERSION,
            name: "0".repeat(32),
            report: BuildReport {
                packages: packages.clone(),
                provided: packages.clone(),
                node_packages: packages,
                ..BuildReport::default()
            },
            ..EnvironmentRecord::default()
        };
        let summary = environment_summary(&record);
        assert_eq!(summary.package_count, 2000);
        assert!(summary.encoded_len() < 1024, "{}", summary.encoded_len());
        let whole = environment_message(&record);
        assert!(!whole.packages.is_empty() && !whole.image_packages.is_empty());
    }
}
