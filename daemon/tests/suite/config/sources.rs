//! Sources of the configuration: flags, environment, file and defaults.

use std::path::Path;
use std::time::Duration;

use skilld::config::Config;

use super::{skilld, text};

#[test]
fn flags_override_environment_overrides_file_overrides_defaults() {
    let dir = tempfile::tempdir().expect("temporary directory");
    let file = dir.path().join("skilld.toml");
    let written = "log = \"warn\"\nstate_dir = \"/srv/file\"\n[server]\nstreams_max = 7\ndrain_timeout = \"7s\"\n";
    std::fs::write(&file, written).expect("write file");
    let file = file.to_str().expect("utf-8 path");
    let env = [
        ("SKILLD_STATE_DIR", "/srv/env"),
        ("SKILLD_SERVER__STREAMS_MAX", "8"),
        ("SKILLD_POOLS__HEAVY__MEMORY", "1GiB"),
        ("SKILLD_CONFIG", "/nowhere"),
        ("SKILLD_ENDPOINT", "unix:/nowhere"),
    ];
    let output = skilld(
        &["--check", "--config", file, "--state-dir", "/srv/flag"],
        &env,
    );
    assert!(output.status.success(), "{}", text(&output.stderr));
    let config = Config::from_toml(&text(&output.stdout))
        .expect("effective configuration")
        .config;
    assert_eq!(config.state_dir, Path::new("/srv/flag"));
    assert_eq!(config.socket, Path::new("/srv/flag/skilld.sock"));
    assert_eq!(config.server.streams_max, 8);
    assert_eq!(config.server.drain_timeout, Duration::from_secs(7));
    assert_eq!(config.log, "warn");
    assert_eq!(config.pools.len(), 3);
}

#[test]
fn variables_that_kubernetes_sets_are_ignored_with_a_warning() {
    let of_kubernetes = [
        ("SKILLD_METRICS_PORT_9464_TCP", "tcp://10.0.0.2:9464"),
        ("SKILLD_PORT", "tcp://10.0.0.1:7443"),
        ("SKILLD_PORT_7443_TCP", "tcp://10.0.0.1:7443"),
        ("SKILLD_PORT_7443_TCP_ADDR", "10.0.0.1"),
        ("SKILLD_PORT_7443_TCP_PORT", "7443"),
        ("SKILLD_PORT_7443_TCP_PROTO", "tcp"),
        ("SKILLD_SERVICE_HOST", "10.0.0.1"),
        ("SKILLD_SERVICE_PORT", "7443"),
        ("SKILLD_SERVICE_PORT_GRPC", "7443"),
    ];
    let output = skilld(&["--check"], &of_kubernetes);
    let warnings = text(&output.stderr);
    assert!(output.status.success(), "{warnings}");
    let ignored: Vec<&str> = warnings
        .lines()
        .filter_map(|line| line.strip_prefix("warning: ")?.split_once(" is ignored"))
        .map(|(name, _)| name)
        .collect();
    assert_eq!(ignored, of_kubernetes.map(|(name, _)| name), "{warnings}");
    for misspelt in [
        "SKILLD_STATEDIR",
        "SKILLD_SERVICE",
        "SKILLD_PORT_7443",
        "SKILLD_SERVER__PORT",
    ] {
        let output = skilld(&["--check"], &[(misspelt, "x")]);
        assert_eq!(output.status.code(), Some(64), "{misspelt}");
    }
}

#[test]
fn listen_and_listeners_together_are_refused() {
    let dir = tempfile::tempdir().expect("temporary directory");
    let file = dir.path().join("skilld.toml");
    let written = "[[listeners]]\nkind = \"unix\"\npath = \"/run/a/skilld.sock\"\n";
    std::fs::write(&file, written).expect("write file");
    let file = file.to_str().expect("utf-8 path");
    let output = skilld(&["--check", "--config", file], &[]);
    assert!(output.status.success(), "{}", text(&output.stderr));
    for (arguments, env) in [
        (&["--listen", "unix:/run/b.sock"][..], &[][..]),
        (&[], &[("SKILLD_LISTEN", "unix:/run/b.sock")]),
    ] {
        let output = skilld(&[&["--check", "--config", file], arguments].concat(), env);
        let error = text(&output.stderr);
        assert!(error.contains("together with [[listeners]]"), "{error}");
        assert_eq!(output.status.code(), Some(64));
    }
}

#[test]
fn docker_host_variable_is_used_if_the_key_is_not_set() {
    let output = skilld(
        &["--check"],
        &[("DOCKER_HOST", "unix:///run/user/docker.sock")],
    );
    assert!(text(&output.stdout).contains("docker_host = \"unix:///run/user/docker.sock\""));
    let env = [
        ("DOCKER_HOST", "unix:///run/user/docker.sock"),
        ("SKILLD_ENGINE__DOCKER_HOST", "unix:///other.sock"),
    ];
    assert!(
        text(&skilld(&["--check"], &env).stdout).contains("docker_host = \"unix:///other.sock\"")
    );
}

#[test]
fn directory_of_registry_credentials_is_that_of_dockers_client() {
    let with = |env: &[(&str, &str)]| text(&skilld(&["--check"], env).stdout);
    let found = with(&[("HOME", "/srv/x/"), ("DOCKER_CONFIG", "/srv/docker")]);
    assert!(found.contains("docker_config = \"/srv/docker\""), "{found}");
    let found = with(&[("HOME", "/srv/x/")]);
    assert!(
        found.contains("docker_config = \"/srv/x/.docker\""),
        "{found}"
    );
    assert!(with(&[]).contains("docker_config = \"\""));
}
