//! Tests that GetServerInfo reports every configured limit that a client can meet.

use std::collections::BTreeMap;

use prost_types::Duration;
use skilld::config::DEFAULT_TOML;
use skilld_proto::v1::{self as pb, ServerLimits};

use crate::server::TestServer;

/// Keys that GetServerInfo does not report, each with the reason.
const NOT_SHOWN: &[(&str, &str)] = &[
    ("server.socket_mode", "no limit"),
    ("server.handshake_timeout", "clients send it at once"),
    ("server.keepalive_interval", "HTTP/2 answers by itself"),
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
    ("fetch.connect_timeout", "within fetch.timeout"),
    ("fetch.proxy", "no limit"),
    ("skills.roots", "no limit"),
    (
        "skills.depth_max",
        "of roots, which are the operator's; a problem says it",
    ),
    ("skills.dirs_max", "of roots; a problem says it"),
    ("skills.entries_max", "of roots; a problem says it"),
    ("skills.watches_max", "changes nothing but speed"),
    ("skills.refresh_interval", "of roots"),
    ("skills.refresh_timeout", "of roots"),
    ("skills.download_bytes_max", "of roots; a problem says it"),
    ("skills.archive_bytes_max", "of roots; a problem says it"),
    (
        "skills.archive_file_bytes_max",
        "of roots; a problem says it",
    ),
    ("skills.archive_entries_max", "of roots; a problem says it"),
    ("skills.archive_depth_max", "of roots; a problem says it"),
    ("skills.archive_ratio_max", "of roots; a problem says it"),
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
    ("skills.builds_max", "further builds wait"),
    ("skills.build_timeout", "of builds; a problem says it"),
    ("skills.build_memory", "of builds; a problem says it"),
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
    ("server.message_bytes_max", "\"5MiB\"", |it| it.message_bytes, 5 * MIB),
    ("server.header_bytes_max", "\"17KiB\"", |it| it.header_bytes, 17 << 10),
    ("server.streams_max", "257", |it| it.concurrent_streams, 257),
    ("server.connections_max", "1001", |it| it.connections, 1001),
    ("server.connections_per_user_max", "901", |it| it.connections_per_user, 901),
    ("server.relay_bytes_max", "\"513MiB\"", |it| it.relay_bytes, 513 * MIB),
    ("server.unary_timeout", "\"91s\"", |it| seconds(it.unary_timeout), 91),
    ("server.upload_timeout", "\"61s\"", |it| seconds(it.upload_timeout), 61),
    ("workspaces.count_max", "1002", |it| it.workspaces, 1002),
    ("workspaces.idle_timeout_default", "\"901s\"", |it| seconds(it.idle_timeout_default), 901),
    ("workspaces.idle_timeout_max", "\"902s\"", |it| seconds(it.idle_timeout_max), 902),
    ("workspaces.lifetime_default", "\"903s\"", |it| seconds(it.lifetime_default), 903),
    ("workspaces.lifetime_max", "\"904s\"", |it| seconds(it.lifetime_max), 904),
    ("workspaces.failed_retention", "\"905s\"", |it| seconds(it.failed_retention), 905),
    ("execs.count_max", "33", |it| it.execs_per_workspace, 33),
    ("execs.retained_max", "257", |it| it.execs_retained, 257),
    ("execs.timeout_default", "\"301s\"", |it| seconds(it.exec_timeout_default), 301),
    ("execs.timeout_max", "\"302s\"", |it| seconds(it.exec_timeout_max), 302),
    ("execs.retain_bytes_default", "\"5MiB\"", |it| it.exec_retain_bytes_default, 5 * MIB),
    ("execs.retain_bytes_max", "\"6MiB\"", |it| it.exec_retain_bytes_max, 6 * MIB),
    ("execs.retain_bytes_total", "\"65MiB\"", |it| it.exec_retain_bytes_total, 65 * MIB),
    ("execs.retain_after_exit_default", "\"31s\"", |it| seconds(it.exec_retain_after_exit_default), 31),
    ("execs.retain_after_exit_max", "\"32s\"", |it| seconds(it.exec_retain_after_exit_max), 32),
    ("execs.kill_grace", "\"3s\"", |it| seconds(it.exec_kill_grace), 3),
    ("execs.leak_grace", "\"4s\"", |it| seconds(it.exec_leak_grace), 4),
    ("execs.disconnect_grace", "\"6s\"", |it| seconds(it.exec_disconnect_grace), 6),
    ("execs.heartbeat", "\"16s\"", |it| seconds(it.heartbeat), 16),
    ("files.archive_entries_max", "20001", |it| it.stage_archive_entries, 20_001),
    ("files.stage_bytes_max", "\"5MiB\"", |it| it.stage_bytes, 5 * MIB),
    ("files.collect_files_default", "101", |it| it.collect_files_default, 101),
    ("files.collect_files_max", "102", |it| it.collect_files_max, 102),
    ("files.collect_file_bytes_default", "\"7MiB\"", |it| it.collect_file_bytes_default, 7 * MIB),
    ("files.collect_file_bytes_max", "\"8MiB\"", |it| it.collect_file_bytes_max, 8 * MIB),
    ("files.collect_total_bytes_default", "\"9MiB\"", |it| it.collect_total_bytes_default, 9 * MIB),
    ("files.collect_total_bytes_max", "\"10MiB\"", |it| it.collect_total_bytes_max, 10 * MIB),
    ("fetch.timeout", "\"121s\"", |it| seconds(it.fetch_timeout), 121),
    ("skills.files_max", "5001", |it| it.skill_files, 5001),
    ("skills.bytes_max", "\"257MiB\"", |it| it.skill_bytes, 257 * MIB),
    ("skills.skill_md_bytes_max", "\"900KiB\"", |it| it.skill_md_bytes, 900 << 10),
    ("skills.count_max", "20002", |it| it.skills, 20_002),
    ("skills.publish_bytes_max", "\"65MiB\"", |it| it.publish_bytes, 65 * MIB),
    ("skills.publishes_max", "17", |it| it.concurrent_publishes, 17),
    ("skills.keep_unused", "\"25h\"", |it| seconds(it.skill_keep_unused), 25 * 3600),
    ("artifacts.bytes_max", "\"2GiB\"", |it| it.artifact_bytes, 2048 * MIB),
    ("artifacts.saves_max", "34", |it| it.concurrent_saves, 34),
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
    assert!(server.stop().await);
}
