//! Sources of the configuration: flags, environment, file and defaults.

use std::time::Duration;

use skilld::config::{Config, ConfigFlags};

use super::{skilld, text};

#[test]
fn flags_override_environment_overrides_file_overrides_defaults() {
    let dir = tempfile::tempdir().expect("temporary directory");
    let path = dir.path().join("skilld.toml");
    let written = "log = \"warn\"\nstate_dir = \"/srv/file\"\n[server]\nstreams_max = 7\ndrain_timeout = \"7s\"\n";
    std::fs::write(&path, written).expect("write file");
    let file = path.to_str().expect("utf-8 path");
    let env = [
        ("SKILLD_STATE_DIR", "/srv/env"),
        ("SKILLD_SERVER__STREAMS_MAX", "8"),
        ("SKILLD_POOLS__HEAVY__MEMORY", "1GiB"),
        ("SKILLD_CONFIG", "/nowhere"),
        ("SKILLD_ENDPOINT", "unix:/nowhere"),
    ];
    let state_dir = dir.path().join("flag");
    let flag = state_dir.to_str().expect("utf-8 path");
    let output = skilld(&["--check", "--config", file, "--state-dir", flag], &env);
    assert!(output.status.success(), "{}", text(&output.stderr));
    let config = Config::from_toml(&text(&output.stdout))
        .expect("effective configuration")
        .config;
    assert_eq!(config.state_dir, state_dir);
    assert_eq!(config.socket, state_dir.join("skilld.sock"));
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
fn a_toml_error_is_one_message_that_names_the_file() {
    let dir = tempfile::tempdir().expect("temporary directory");
    let file = dir.path().join("skilld.toml");
    std::fs::write(&file, "log = \"info\"\n[server\n").expect("write file");
    let path = file.to_str().expect("utf-8 path");
    let output = skilld(&["--config", path], &[]);
    assert_eq!(output.status.code(), Some(64));
    let error = text(&output.stderr);
    let expected = "error: TOML parse error at line 2, column 8: invalid table header; ";
    assert!(error.starts_with(expected), "{error}");
    assert!(error.ends_with(&format!(" (in {path})\n")), "{error}");
    assert_eq!(error.lines().count(), 1, "{error}");
}

#[test]
fn a_misspelt_variable_gets_the_nearest_key_suggested() {
    let output = skilld(&["--check"], &[("SKILLD_STATEDIR", "/x")]);
    let expected = "error: statedir: is not a key; did you mean state_dir? (in the environment, SKILLD_STATEDIR)\n";
    assert_eq!(text(&output.stderr), expected);
}

#[test]
fn listen_and_listeners_together_are_refused() {
    let dir = tempfile::tempdir().expect("temporary directory");
    let path = dir.path().join("skilld.toml");
    let socket = dir.path().join("run/skilld.sock");
    let written = format!("[[listeners]]\nkind = \"unix\"\npath = {socket:?}\n");
    std::fs::write(&path, written).expect("write file");
    let file = path.to_str().expect("utf-8 path");
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
fn a_file_of_authorities_counts_for_fetches_buckets_and_builds() {
    let dir = tempfile::tempdir().expect("temporary directory");
    let pem = dir.path().join("ca.pem");
    std::fs::write(&pem, "-----BEGIN CERTIFICATE-----\n").expect("write file");
    let file = dir.path().join("skilld.toml");
    std::fs::write(&file, format!("skills.package_ca_file = {pem:?}\n")).expect("write file");
    let flags = ConfigFlags {
        config: Some(file),
        ..ConfigFlags::default()
    };
    // Variables of the tests' own, such as SKILLD_GUEST, are faults here.
    let (loaded, _faults) = Config::load_for_report(&flags);
    let config = loaded.expect("a configuration");
    for found in [
        &config.fetch.ca_file,
        &config.skills.options.remote.fetch.ca_file,
        &config.artifacts.ca_file,
        &config.skills.environments.ca_file,
    ] {
        assert_eq!(found.as_deref(), Some(pem.as_path()));
    }

    let of_variable = [("SSL_CERT_FILE", pem.to_str().expect("utf-8 path"))];
    let output = skilld(&["--check"], &of_variable);
    let expected = format!("package_ca_file = {pem:?}\n");
    assert!(text(&output.stdout).contains(&expected));
}

#[test]
fn an_unusable_authority_file_ends_a_start_only_as_a_key() {
    let dir = tempfile::tempdir().expect("temporary directory");
    let (bad, absent) = (dir.path().join("bad.pem"), dir.path().join("absent.pem"));
    std::fs::write(&bad, "no certificate").expect("write file");
    for (file, why) in [(&bad, "has no certificate"), (&absent, "cannot be read")] {
        let path = file.to_str().expect("utf-8 path");
        let output = skilld(&["--check"], &[("SSL_CERT_FILE", path)]);
        let warning = text(&output.stderr);
        assert!(output.status.success(), "{warning}");
        let expected = ["warning: SSL_CERT_FILE is ignored for builds", path, why];
        let mut words = expected.iter();
        assert!(words.all(|words| warning.contains(words)), "{warning}");
        let effective = text(&output.stdout);
        assert!(effective.contains("package_ca_file = \"\""), "{effective}");

        let output = skilld(&["--check"], &[("SKILLD_SKILLS__PACKAGE_CA_FILE", path)]);
        let error = text(&output.stderr);
        assert_eq!(output.status.code(), Some(64), "{error}");
        let named = error.contains("skills.package_ca_file: ") && error.contains(why);
        assert!(named, "{error}");
    }
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
