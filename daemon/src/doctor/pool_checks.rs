//! Checks of each pool: its image, its OCI runtime and its storage. Pure.

use bytesize::ByteSize;

use super::docker_facts::{DockerFacts, ImageState};
use super::report::{CheckLine, split_remedy};
use crate::config::{Config, PoolConfig, PullPolicy, WorkspaceStorage};
use crate::engine::docker::DockerReport;
use crate::error::MissingImageRemedy;

/// Checks image and OCI runtime of each pool, and the storage of those on disk. Without Docker, one line says that they are not known.
pub(super) fn check_pools(config: &Config, docker: &DockerFacts) -> Vec<CheckLine> {
    let Ok(report) = &docker.report else {
        return vec![CheckLine::warning(
            "pool.image",
            "pools",
            "images and OCI runtimes are not checked: the engine does not answer",
            format!("make it answer at {}, and check again", docker.socket),
        )];
    };
    let lines = config.pools.iter().flat_map(|pool| {
        [
            Some(check_image(config, pool, docker.images.get(&pool.image))),
            Some(check_runtime(pool, report, &docker.missing_runtimes)),
            check_storage(pool, docker.disk_fault.as_deref()),
        ]
    });
    lines.flatten().collect()
}

/// Checks that the host can have the disks of a pool; `None` for a pool in memory.
fn check_storage(pool: &PoolConfig, disk_fault: Option<&str>) -> Option<CheckLine> {
    if pool.storage == WorkspaceStorage::Tmpfs {
        return None;
    }
    let (check, subject) = ("pool.storage", format!("pool {}", pool.name));
    let Some(fault) = disk_fault else {
        let finding = format!(
            "{} on disk for each workspace",
            ByteSize::b(pool.disk_bytes)
        );
        return Some(CheckLine::ok(check, subject, finding));
    };
    let other = format!("set pools.{}.storage = \"tmpfs\"", pool.name);
    let (fault, remedy) = split_remedy(fault, &other);
    Some(CheckLine::failed(
        check,
        subject,
        format!("no workspace on disk is possible: {fault}: skilld does not start"),
        format!("{remedy}; or {other}"),
    ))
}

/// Checks the image of a pool. Only the default pool must have its image at the start; others may wait for theirs.
fn check_image(config: &Config, pool: &PoolConfig, state: Option<&ImageState>) -> CheckLine {
    let (check, subject) = ("pool.image", format!("pool {}", pool.name));
    let image = &pool.image;
    let is_default = pool.name == config.default_pool;
    match state {
        Some(ImageState::Usable { size_bytes }) => {
            let finding = format!("image {image}, {}", ByteSize::b(*size_bytes));
            CheckLine::ok(check, subject, finding)
        }
        Some(ImageState::Missing) if pool.pull == PullPolicy::Missing => CheckLine::warning(
            check,
            subject,
            format!(
                "image {image} is not there: skilld pulls it, and the pool serves once it is there"
            ),
            format!("run `docker pull {image}` (with Podman `podman pull`) to have it at once"),
        ),
        Some(ImageState::Missing) if is_default => {
            let finding = format!("image {image} is not there: skilld does not start without it");
            CheckLine::failed(
                check,
                subject,
                finding,
                MissingImageRemedy(image).to_string(),
            )
        }
        Some(ImageState::Missing) => {
            let finding = format!("image {image} is not there: the pool serves once it is there");
            let remedy = format!(
                "{}; or switch the pool off with pools.{name}.warm = 0 and pools.{name}.max = 0",
                MissingImageRemedy(image),
                name = pool.name
            );
            CheckLine::warning(check, subject, finding, remedy)
        }
        Some(ImageState::Unusable(why)) => {
            let other = format!("set pools.{}.image to another one", pool.name);
            let (why, remedy) = split_remedy(why, &other);
            let finding = format!("no container can be made from image {image}: {why}");
            CheckLine::failed(check, subject, finding, remedy)
        }
        Some(ImageState::Unknown(why)) => {
            let finding = format!("image {image} can't be checked: {why}");
            CheckLine::warning(
                check,
                subject,
                finding,
                "check again when the engine answers",
            )
        }
        None => {
            let finding = format!("image {image} was not checked");
            CheckLine::warning(check, subject, finding, "check again")
        }
    }
}

fn check_runtime(pool: &PoolConfig, report: &DockerReport, missing: &[String]) -> CheckLine {
    let (check, subject) = ("pool.runtime", format!("pool {}", pool.name));
    let registered = &report.runtime_paths;
    let name = match &pool.oci_runtime {
        Some(name) => name,
        None => &report.info.default_runtime,
    };
    let key = format!("pools.{}.oci_runtime", pool.name);
    let title = report.kind().title();
    let Some(path) = registered.get(name) else {
        // Without a choice of the operator, the engine decides.
        if pool.oci_runtime.is_none() {
            return CheckLine::ok(check, subject, format!("{title}'s default OCI runtime"));
        }
        let names: Vec<&str> = registered.keys().map(String::as_str).collect();
        return CheckLine::failed(
            check,
            subject,
            format!("OCI runtime {name} is not registered with {title}: skilld does not start"),
            format!(
                "{}, or set {key} to one of: {}",
                report.kind().runtime_registration(),
                names.join(", ")
            ),
        );
    };
    if missing.contains(path) {
        return CheckLine::failed(
            check,
            subject,
            format!(
                "OCI runtime {name} is registered with {title} as {path}, which does not exist"
            ),
            format!("install it there, or set {key} to another one"),
        );
    }
    CheckLine::ok(check, subject, format!("OCI runtime {name}"))
}

#[cfg(test)]
mod tests;
