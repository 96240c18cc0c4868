//! Tests that GetServerInfo reports every configured limit that a client can meet.

use std::collections::BTreeMap;

use prost_types::Duration;
use skilld::config::DEFAULT_TOML;
use skilld_proto::v1::{self as pb, ServerLimits};

use crate::server::TestServer;

/// Keys that GetServerInfo does not report, each with the reason.
const NOT_SHOWN: &[(&str, &str)] = &[
    ("server.keepalive_timeout", "HTTP/2 answers by itself"),
    ("server.drain_timeout", "of the daemon's end"),
    ("server.stop_timeout", "of the daemon's end"),
    ("server.reflection", "a feature"),
    (
        "files.host_roots",
        "a feature; which ones is the operator's business",
    ),
    ("files.input_urls", "a feature"),
    ("files.input_private_addresses", "the refusal says it"),
    ("fetch.proxy", "no limit"),
    ("skills.roots", "no limit"),
    ("skills.refresh_interval", "of roots"),
    ("skills.archive_bytes_max", "of roots; a problem says it"),
    (
        "skills.allow_private_addresses",
        "of roots; a problem says it",
    ),
    ("skills.environment_builds", "a feature; a problem says it"),
    ("skills.wheelhouse", "of builds; a problem says it"),
    ("skills.package_index", "of builds; a problem says it"),
    ("skills.node_package_index", "of builds; a problem says it"),
    ("skills.package_hosts", "of builds; a problem says it"),
    ("skills.package_ca_file", "of builds; a problem says it"),
    ("skills.source_builds", "of builds; a problem says it"),
    ("skills.packages", "no limit"),
    ("skills.infer_packages", "a feature"),
    ("skills.builds_max", "further builds wait"),
    ("skills.build_timeout", "of builds; a problem says it"),
    ("skills.build_disk", "of builds; a problem says it"),
    ("skills.environments_disk", "of builds; a problem says it"),
    (
        "workspaces.disk_reserve",
        "of the host's disk; STATE_DISK_FULL says it",
    ),
    (
        "artifacts.retention_age",
        "removes what exists, and refuses no request",
    ),
    (
        "artifacts.retention_versions",
        "removes what exists, and refuses no request",
    ),
    (
        "artifacts.retention_bytes",
        "removes what exists, and refuses no request",
    ),
    ("artifacts.url", "no limit"),
    ("artifacts.endpoint", "no limit"),
    ("artifacts.region", "no limit"),
    ("artifacts.allow_http", "no limit"),
    ("artifacts.credentials_file", "no limit"),
    (
        "artifacts.timeout",
        "of one request to the store; STORAGE_UNAVAILABLE says it",
    ),
];

/// Key, value in TOML that is not the default, getter, and expected value in GetServerInfo.
type ReportedLimit = (&'static str, &'static str, fn(&ServerLimits) -> i64, i64);

fn seconds(shown: Option<Duration>) -> i64 {
    shown.map_or(0, |shown| shown.seconds)
}

const MIB: i64 = 1 << 20;

#[rustfmt::skip]
const SHOWN: &[ReportedLimit] = &[
    ("server.streams_max", "257", |it| it.concurrent_streams, 257),
    ("server.connections_max", "1001", |it| it.connections, 1001),
    ("server.relay_bytes_max", "\"513MiB\"", |it| it.relay_bytes, 513 * MIB),
    ("server.unary_timeout", "\"91s\"", |it| seconds(it.unary_timeout), 91),
    ("server.upload_timeout", "\"61s\"", |it| seconds(it.upload_timeout), 61),
    ("workspaces.count_max", "1002", |it| it.workspaces, 1002),
    ("workspaces.idle_timeout_default", "\"901s\"", |it| seconds(it.idle_timeout_default), 901),
    ("workspaces.idle_timeout_max", "\"902s\"", |it| seconds(it.idle_timeout_max), 902),
    ("workspaces.lifetime_default", "\"903s\"", |it| seconds(it.lifetime_default), 903),
    ("workspaces.lifetime_max", "\"904s\"", |it| seconds(it.lifetime_max), 904),
    ("execs.count_max", "33", |it| it.execs_per_workspace, 33),
    ("execs.timeout_default", "\"301s\"", |it| seconds(it.exec_timeout_default), 301),
    ("execs.timeout_max", "\"302s\"", |it| seconds(it.exec_timeout_max), 302),
    ("execs.retain_bytes_total", "\"65MiB\"", |it| it.exec_retain_bytes_total, 65 * MIB),
    ("execs.kill_grace", "\"3s\"", |it| seconds(it.exec_kill_grace), 3),
    ("execs.disconnect_grace", "\"6s\"", |it| seconds(it.exec_disconnect_grace), 6),
    ("files.stage_bytes_max", "\"5MiB\"", |it| it.stage_bytes, 5 * MIB),
    ("fetch.timeout", "\"121s\"", |it| seconds(it.fetch_timeout), 121),
    ("skills.files_max", "5001", |it| it.skill_files, 5001),
    ("skills.bytes_max", "\"257MiB\"", |it| it.skill_bytes, 257 * MIB),
    ("skills.keep_unused", "\"25h\"", |it| seconds(it.unused_skill_retention), 25 * 3600),
    ("artifacts.bytes_max", "\"2GiB\"", |it| it.artifact_bytes, 2048 * MIB),
];

/// Getters of limits that are no keys, and their values in GetServerInfo. Some follow from the keys above.
type FixedLimit = (&'static str, fn(&ServerLimits) -> i64, i64);

#[rustfmt::skip]
const FIXED: &[FixedLimit] = &[
    ("message_bytes", |it| it.message_bytes, 4 * MIB),
    ("header_bytes", |it| it.header_bytes, 32 << 10),
    ("connections_per_user", |it| it.connections_per_user, 900),
    ("failed_retention", |it| seconds(it.failed_retention), 600),
    ("execs_retained", |it| it.execs_retained, 256),
    ("exec_retain_bytes_default", |it| it.exec_retain_bytes_default, 4 * MIB),
    ("exec_retain_bytes_max", |it| it.exec_retain_bytes_max, 65 * MIB / 2),
    ("exec_retain_after_exit_default", |it| seconds(it.exec_retain_after_exit_default), 30 * 60),
    ("exec_retain_after_exit_max", |it| seconds(it.exec_retain_after_exit_max), 24 * 3600),
    ("exec_leak_grace", |it| it.exec_leak_grace.map_or(0, |grace| grace.nanos.into()), 500_000_000),
    ("heartbeat", |it| seconds(it.heartbeat_interval), 15),
    ("stage_archive_entries", |it| it.stage_archive_entries, 50_000),
    ("collect_files_default", |it| it.collect_files_default, 100),
    ("collect_files_max", |it| it.collect_files_max, 50_000),
    ("collect_file_bytes_default", |it| it.collect_file_bytes_default, 4 * MIB),
    ("collect_file_bytes_max", |it| it.collect_file_bytes_max, 4096 * MIB),
    ("collect_total_bytes_default", |it| it.collect_total_bytes_default, 64 * MIB),
    ("collect_total_bytes_max", |it| it.collect_total_bytes_max, 16_384 * MIB),
    ("skill_md_bytes", |it| it.skill_md_bytes, MIB),
    ("skills", |it| it.skills, 100_000),
    ("publish_bytes", |it| it.publish_bytes, 257 * MIB),
    ("concurrent_publishes", |it| it.concurrent_publishes, 16),
    ("concurrent_saves", |it| it.concurrent_saves, 32),
];

/// Configuration sections with limits of requests. GetPool and Workspace report those of engine and pools.
const SECTIONS: [&str; 6] = ["server", "workspaces", "execs", "files", "fetch", "skills"];

#[tokio::test]
async fn every_configured_limit_is_reported_or_explained() {
    let defaults: toml::Table = DEFAULT_TOML.parse().expect("TOML");
    let mut keys = Vec::new();
    for section in SECTIONS.iter().chain(&["artifacts"]) {
        let table = defaults[*section].as_table().expect("a section");
        keys.extend(table.keys().map(|key| format!("{section}.{key}")));
    }
    let shown = SHOWN.iter().map(|(key, ..)| *key);
    let known: BTreeMap<&str, usize> = shown.chain(NOT_SHOWN.iter().map(|(key, _)| *key)).fold(
        BTreeMap::new(),
        |mut known, key| {
            *known.entry(key).or_default() += 1;
            known
        },
    );
    let once = |key: &String| known.get(key.as_str()) == Some(&1);
    let missing: Vec<&String> = keys.iter().filter(|key| !once(key)).collect();
    assert!(
        missing.is_empty(),
        "neither shown nor explained: {missing:?}"
    );
    assert_eq!(
        known.len(),
        keys.len(),
        "a key is listed that does not exist"
    );

    let set: String = SHOWN
        .iter()
        .map(|(key, value, ..)| format!("{key} = {value}\n"))
        .collect();
    let server = TestServer::start(&set, &[]).await;
    let info: pb::ServerInfo = server.client.server_info().await.expect("info");
    let limits = info.limits.expect("limits");
    for (key, _, get, expected) in SHOWN {
        assert_eq!(get(&limits), *expected, "{key}");
    }
    for (name, get, expected) in FIXED {
        assert_eq!(get(&limits), *expected, "{name}");
    }
    assert!(server.stop().await);
}
