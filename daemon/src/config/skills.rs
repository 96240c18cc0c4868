//! Section `[skills]`: roots of skills, limits of one skill, and limits of what is fetched for roots that are URLs.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

use serde::Deserialize;
use serde::de::{Deserializer, Error as _};
use skilld_skills::fetch::IndexHost;
use skilld_skills::{
    ADDED_PACKAGES_MAX, AddedPackages, ArchiveBounds, RemoteOptions, SkillRoot, SkillsOptions,
    is_name,
};

use super::environments::{self, EnvironmentBuilds, EnvironmentOptions, PackageIndex};
use super::skill_roots::parse_skill_root;
use super::{SkillsConfig, values};
use crate::fetch::FetchOptions;

/// Maximum number of archives that are received and unpacked at the same time. Each takes up to twice `bytes_max` of the
/// disk until it is published.
const PUBLISHES_MAX: usize = 16;

/// Keys of section `[skills]`.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct SkillsSection {
    #[serde(deserialize_with = "skill_roots")]
    roots: Vec<SkillRoot>,
    #[serde(deserialize_with = "values::count")]
    files_max: u64,
    #[serde(deserialize_with = "values::size")]
    bytes_max: u64,
    packages: BTreeMap<SkillName, PackageList>,
    infer_packages: bool,
    environment_builds: EnvironmentBuilds,
    #[serde(deserialize_with = "values::optional_path")]
    wheelhouse: Option<PathBuf>,
    #[serde(deserialize_with = "environments::package_index")]
    package_index: Option<PackageIndex>,
    #[serde(deserialize_with = "environments::package_index")]
    node_package_index: Option<PackageIndex>,
    #[serde(deserialize_with = "environments::package_hosts")]
    package_hosts: Vec<IndexHost>,
    #[serde(deserialize_with = "values::optional_path")]
    package_ca_file: Option<PathBuf>,
    source_builds: bool,
    #[serde(deserialize_with = "values::count")]
    builds_max: usize,
    #[serde(deserialize_with = "values::time")]
    build_timeout: Duration,
    #[serde(deserialize_with = "values::size")]
    build_disk: u64,
    #[serde(deserialize_with = "values::size")]
    environments_disk: u64,
    #[serde(deserialize_with = "values::time")]
    keep_unused: Duration,
    #[serde(deserialize_with = "values::time")]
    refresh_interval: Duration,
    allow_private_addresses: bool,
    #[serde(deserialize_with = "values::size")]
    archive_bytes_max: u64,
}

/// Name of a skill as a key.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord, Deserialize)]
#[serde(try_from = "String")]
struct SkillName(String);

impl TryFrom<String> for SkillName {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        if is_name(&text) {
            return Ok(Self(text));
        }
        Err(format!(
            "{text:?} is not the name of a skill as `skillctl skill list` shows it"
        ))
    }
}

/// Packages that the operator adds to one skill.
#[derive(Debug)]
struct PackageList(AddedPackages);

impl<'de> Deserialize<'de> for PackageList {
    fn deserialize<D: Deserializer<'de>>(source: D) -> Result<Self, D::Error> {
        let mut packages = AddedPackages::default();
        let add = |text: &str| {
            let added = packages.add(text);
            added.map_err(|reason| format!("{text:?} {reason}"))
        };
        let count = values::list(source, add)?.len();
        if count > ADDED_PACKAGES_MAX {
            let message = format!("has {count} packages; at most {ADDED_PACKAGES_MAX}");
            return Err(D::Error::custom(message));
        }
        Ok(Self(packages))
    }
}

/// Deserializes section `[skills]`. The fetch options of remote roots are a stand-in until section `[fetch]` is known.
pub(super) fn skills_config<'de, D: Deserializer<'de>>(
    source: D,
) -> Result<SkillsConfig, D::Error> {
    let section = SkillsSection::deserialize(source)?;
    let options = SkillsOptions {
        roots: section.roots,
        depth_max: SkillsOptions::DEPTH_MAX,
        dirs_max: SkillsOptions::DIRS_MAX,
        entries_max: SkillsOptions::ENTRIES_MAX,
        watches_max: SkillsOptions::WATCHES_MAX,
        files_max: section.files_max,
        bytes_max: section.bytes_max,
        skill_md_bytes_max: SkillsOptions::SKILL_MD_BYTES_MAX,
        skills_max: SkillsOptions::SKILLS_MAX,
        keep_unused: section.keep_unused,
        packages: section
            .packages
            .into_iter()
            .map(|(SkillName(name), PackageList(packages))| (name, packages))
            .collect(),
        infers_packages: section.infer_packages,
        remote: RemoteOptions {
            refresh_interval: section.refresh_interval,
            allow_private_addresses: section.allow_private_addresses,
            published_urls: false,
            published_private_addresses: false,
            archive: ArchiveBounds::of_root(section.archive_bytes_max),
            fetch: FetchOptions {
                connect_timeout: FetchOptions::CONNECT_TIMEOUT,
                timeout: FetchOptions::CONNECT_TIMEOUT,
                proxy: None,
                ca_file: None,
            },
        },
    };
    Ok(SkillsConfig {
        options,
        publishes_max: PUBLISHES_MAX,
        environments: EnvironmentOptions {
            builds: section.environment_builds,
            wheelhouse: section.wheelhouse,
            package_index: section.package_index,
            node_package_index: section.node_package_index,
            package_hosts: section.package_hosts,
            ca_file: section.package_ca_file,
            source_builds: section.source_builds,
            disk_bytes: section.environments_disk,
            builds_max: section.builds_max,
            build_timeout: section.build_timeout,
            build_disk_bytes: section.build_disk,
        },
    })
}

fn skill_roots<'de, D: Deserializer<'de>>(source: D) -> Result<Vec<SkillRoot>, D::Error> {
    values::list(source, parse_skill_root)
}
