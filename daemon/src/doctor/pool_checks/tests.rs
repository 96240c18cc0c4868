//! Tests of the checks of pools: states of images and runtimes, and the lines that follow from them.

use std::collections::BTreeMap;

use super::super::docker_facts::SocketAccess;
use super::super::report::CheckState;
use super::*;
use crate::engine::EngineInfo;

fn config(text: &str) -> Config {
    Config::from_toml(text).expect("valid").config
}

fn docker(images: &[(&str, ImageState)]) -> DockerFacts {
    let runtimes = [("runc", "runc"), ("runsc", "/usr/bin/runsc")];
    let runtimes = runtimes.map(|(name, path)| (name.to_owned(), path.to_owned()));
    let images = images
        .iter()
        .map(|(name, state)| ((*name).to_owned(), state.clone()));
    DockerFacts {
        socket: "/run/d.sock".to_owned(),
        mode: None,
        access: SocketAccess::Connected,
        report: Ok(DockerReport {
            info: EngineInfo {
                default_runtime: "runc".to_owned(),
                ..EngineInfo::default()
            },
            runtime_paths: BTreeMap::from(runtimes),
            ..DockerReport::default()
        }),
        images: images.collect(),
        missing_runtimes: Vec::new(),
        disk_fault: None,
    }
}

/// Returns the line of one check of one pool.
fn find(config: &Config, docker: &DockerFacts, check: &str, pool: &str) -> CheckLine {
    let subject = format!("pool {pool}");
    let mut lines = check_pools(config, docker).into_iter();
    let line = lines.find(|line| line.check == check && line.subject == subject);
    line.expect("a line of this pool")
}

const BASE: &str = "skilld/base:latest";
const OFFICE: &str = "skilld/office:latest";

#[test]
fn a_missing_image_fails_only_where_the_daemon_does_not_start() {
    let usable = ImageState::Usable { size_bytes: 1 };
    let pull = "[pools.default]\npull = \"missing\"";
    for (text, pool, state, expected, remedy) in [
        ("", "default", &usable, CheckState::Ok, ""),
        (
            "",
            "default",
            &ImageState::Missing,
            CheckState::Failed,
            "run `make image`",
        ),
        (
            pull,
            "default",
            &ImageState::Missing,
            CheckState::Warning,
            "docker pull skilld/base:latest",
        ),
        (
            "",
            "office",
            &ImageState::Missing,
            CheckState::Warning,
            "make image IMAGE=office",
        ),
        (
            "default_pool = \"office\"",
            "office",
            &ImageState::Missing,
            CheckState::Failed,
            "make image IMAGE=office",
        ),
    ] {
        let docker = docker(&[(BASE, state.clone()), (OFFICE, state.clone())]);
        let line = find(&config(text), &docker, "pool.image", pool);
        assert_eq!(line.state, expected, "{line:?}");
        assert!(line.remedy.unwrap_or_default().contains(remedy), "{text}");
    }
}

#[test]
fn an_image_from_which_no_container_can_be_made_fails_in_every_pool() {
    let why = "it declares VOLUME /a: b: build it without volumes";
    let docker = docker(&[
        (BASE, ImageState::Unusable(why.to_owned())),
        (OFFICE, ImageState::Unusable("it is odd".to_owned())),
    ]);
    let line = find(&config(""), &docker, "pool.image", "default");
    assert_eq!(line.state, CheckState::Failed);
    assert!(
        line.finding.ends_with("it declares VOLUME /a: b"),
        "{line:?}"
    );
    assert_eq!(line.remedy.as_deref(), Some("build it without volumes"));
    let line = find(&config(""), &docker, "pool.image", "office");
    assert_eq!(
        line.remedy.as_deref(),
        Some("set pools.office.image to another one")
    );
}

#[test]
fn an_image_that_docker_does_not_answer_about_is_a_warning() {
    let docker = docker(&[(BASE, ImageState::Unknown("timeout".to_owned()))]);
    for pool in ["default", "office"] {
        let line = find(&config(""), &docker, "pool.image", pool);
        assert_eq!(line.state, CheckState::Warning, "{line:?}");
    }
}

#[test]
fn a_runtime_must_be_registered_and_exist() {
    let runtime = |name: &str| config(&format!("[pools.default]\noci_runtime = \"{name}\""));
    let mut docker = docker(&[]);
    let check =
        |config: &Config, docker: &DockerFacts| find(config, docker, "pool.runtime", "default");
    assert_eq!(check(&config(""), &docker).state, CheckState::Ok);
    assert_eq!(check(&runtime("runsc"), &docker).state, CheckState::Ok);
    let line = check(&runtime("kata"), &docker);
    assert_eq!(line.state, CheckState::Failed, "{line:?}");
    assert!(
        line.remedy
            .is_some_and(|text| text.ends_with("runc, runsc"))
    );
    docker.missing_runtimes = vec!["/usr/bin/runsc".to_owned()];
    let line = check(&runtime("runsc"), &docker);
    assert_eq!(line.state, CheckState::Failed, "{line:?}");
    assert_eq!(check(&runtime("runc"), &docker).state, CheckState::Ok);
    // An engine that reports no runtimes decides by itself.
    docker.report = Ok(DockerReport::default());
    assert_eq!(check(&config(""), &docker).state, CheckState::Ok);
}

#[test]
fn without_docker_one_line_says_that_pools_are_not_checked() {
    let docker = DockerFacts {
        report: Err("no answer".to_owned()),
        ..docker(&[])
    };
    let lines = check_pools(&config(""), &docker);
    assert_eq!(lines.len(), 1);
    assert_eq!(lines[0].state, CheckState::Warning);
    assert!(
        lines[0]
            .remedy
            .as_deref()
            .is_some_and(|text| text.contains("/run/d.sock"))
    );
}

#[test]
fn a_pool_on_disk_fails_with_what_the_host_lacks() {
    let config = config("[pools.default]\nstorage = \"disk\"");
    let mut docker = docker(&[]);
    let line = find(&config, &docker, "pool.storage", "default");
    assert_eq!(line.state, CheckState::Ok, "{line:?}");
    assert!(line.finding.starts_with("256.0 MiB on disk"), "{line:?}");

    docker.disk_fault = Some("losetup is missing: install mount".to_owned());
    let line = find(&config, &docker, "pool.storage", "default");
    assert_eq!(line.state, CheckState::Failed, "{line:?}");
    assert!(line.finding.contains("losetup is missing"), "{line:?}");
    let remedy = line.remedy.expect("a remedy");
    assert!(
        remedy.starts_with("install mount; or set pools.default.storage"),
        "{remedy}"
    );

    let lines = check_pools(&config, &docker);
    let about = lines.iter().filter(|line| line.check == "pool.storage");
    assert_eq!(about.count(), 1, "the office pool is in memory");
}
