//! Section `[skills]`: roots of skills, limits of one skill, and limits of what is fetched for roots that are URLs.

use std::path::PathBuf;
use std::time::Duration;

use serde::Deserialize;
use serde::de::Deserializer;
use skilld_skills::fetch::IndexHost;
use skilld_skills::{ArchiveBounds, RemoteOptions, SkillRoot, SkillsOptions};

use super::environments::{self, EnvironmentBuilds, EnvironmentOptions, PackageIndex};
use super::skill_roots::parse_skill_root;
use super::{SkillsConfig, values};
use crate::fetch::FetchOptions;

/// Keys of section `[skills]`.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct SkillsSection {
    #[serde(deserialize_with = "skill_roots")]
    roots: Vec<SkillRoot>,
    #[serde(deserialize_with = "values::count")]
    depth_max: usize,
    #[serde(deserialize_with = "values::count")]
    dirs_max: usize,
    #[serde(deserialize_with = "values::count")]
    entries_max: usize,
    watches_max: usize,
    #[serde(deserialize_with = "values::count")]
    files_max: u64,
    #[serde(deserialize_with = "values::size")]
    bytes_max: u64,
    #[serde(deserialize_with = "values::size")]
    skill_md_bytes_max: u64,
    #[serde(deserialize_with = "values::count")]
    count_max: usize,
    #[serde(deserialize_with = "values::size")]
    publish_bytes_max: u64,
    #[serde(deserialize_with = "values::count")]
    publishes_max: usize,
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
    build_memory: u64,
    #[serde(deserialize_with = "values::size")]
    build_disk: u64,
    #[serde(deserialize_with = "values::size")]
    environments_disk: u64,
    #[serde(deserialize_with = "values::time")]
    keep_unused: Duration,
    #[serde(deserialize_with = "values::time")]
    refresh_interval: Duration,
    #[serde(deserialize_with = "values::time")]
    refresh_timeout: Duration,
    allow_private_addresses: bool,
    #[serde(deserialize_with = "values::size")]
    download_bytes_max: u64,
    #[serde(deserialize_with = "values::size")]
    archive_bytes_max: u64,
    #[serde(deserialize_with = "values::size")]
    archive_file_bytes_max: u64,
    #[serde(deserialize_with = "values::count")]
    archive_entries_max: u64,
    #[serde(deserialize_with = "values::count")]
    archive_depth_max: usize,
    #[serde(deserialize_with = "values::count")]
    archive_ratio_max: u64,
}

/// Deserializes section `[skills]`. The fetch options of remote roots are a stand-in until section `[fetch]` is known.
pub(super) fn skills_config<'de, D: Deserializer<'de>>(
    source: D,
) -> Result<SkillsConfig, D::Error> {
    let section = SkillsSection::deserialize(source)?;
    let options = SkillsOptions {
        roots: section.roots,
        depth_max: section.depth_max,
        dirs_max: section.dirs_max,
        entries_max: section.entries_max,
        watches_max: section.watches_max,
        files_max: section.files_max,
        bytes_max: section.bytes_max,
        skill_md_bytes_max: section.skill_md_bytes_max,
        skills_max: section.count_max,
        keep_unused: section.keep_unused,
        remote: RemoteOptions {
            refresh_interval: section.refresh_interval,
            refresh_timeout: section.refresh_timeout,
            allow_private_addresses: section.allow_private_addresses,
            published_urls: false,
            published_private_addresses: false,
            download_bytes_max: section.download_bytes_max,
            archive: ArchiveBounds {
                bytes: section.archive_bytes_max,
                file_bytes: section.archive_file_bytes_max,
                entries: section.archive_entries_max,
                depth: section.archive_depth_max,
                ratio: section.archive_ratio_max,
            },
            fetch: FetchOptions {
                connect_timeout: section.refresh_timeout,
                timeout: section.refresh_timeout,
                proxy: None,
                ca_file: None,
            },
        },
    };
    Ok(SkillsConfig {
        options,
        publish_bytes_max: section.publish_bytes_max,
        publishes_max: section.publishes_max,
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
            build_memory_bytes: section.build_memory,
            build_disk_bytes: section.build_disk,
        },
    })
}

fn skill_roots<'de, D: Deserializer<'de>>(source: D) -> Result<Vec<SkillRoot>, D::Error> {
    values::list(source, parse_skill_root)
}
