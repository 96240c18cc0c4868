//! Tests of the configuration: defaults, all kinds of faults, the order of sources, and the generated reference.

use std::path::Path;
use std::process::{Command, Output};
use std::time::Duration;

mod sources;

use skilld::config::{Config, ConfigFaults, DEFAULT_TOML, PullPolicy, WorkspaceStorage};

/// Returns the faults of a configuration file with this text.
fn faults(text: &str) -> Vec<String> {
    match Config::from_toml(text) {
        Ok(_) => Vec::new(),
        Err(ConfigFaults(faults)) => faults,
    }
}

#[track_caller]
fn check_fault(text: &str, expected: &[&str]) {
    let found = faults(text);
    assert_eq!(found.len(), expected.len(), "for {text:?}: {found:#?}");
    for (found, expected) in found.iter().zip(expected) {
        assert!(
            found.starts_with(expected),
            "for {text:?}\n   found {found}\nexpected {expected}"
        );
    }
}

/// Checks the cases of a table, `settings => beginning of their only fault` a line.
#[track_caller]
fn check_faults(table: &str) {
    for case in table.trim().lines() {
        let (text, expected) = case.trim().split_once(" => ").expect("a case");
        check_fault(text, &[expected]);
    }
}

/// Runs the skilld binary with only `env` as its environment, and a state directory that every user could make.
fn skilld(args: &[&str], env: &[(&str, &str)]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_skilld"))
        .args(args)
        .env_clear()
        // The images of this host's Docker must not decide about a test.
        .env("DOCKER_HOST", "unix:///nowhere/docker.sock")
        .env("SKILLD_STATE_DIR", std::env::temp_dir().join("skilld-none"))
        .envs(env.iter().copied())
        // Any existing file is accepted as the guest.
        .env("SKILLD_ENGINE__GUEST_PATH", env!("CARGO_BIN_EXE_skilld"))
        .output()
        .expect("run skilld")
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

#[test]
fn default_toml_is_complete_and_loads() {
    let loaded = Config::from_toml("").expect("defaults load");
    let config = loaded.config;
    assert_eq!(config.state_dir, Path::new("/var/lib/skilld"));
    assert_eq!(config.socket, Path::new("/run/skilld/skilld.sock"));
    assert_eq!(config.server.connections_per_user_max(), 900);
    assert_eq!(config.engine.docker_host, "unix:///var/run/docker.sock");
    assert_eq!(
        (config.engine.uid_base, config.engine.uid_count),
        (200_000, 65_536)
    );
    assert_eq!(
        config.workspaces.idle_timeout_default,
        Duration::from_secs(15 * 60)
    );
    assert_eq!(
        config.workspaces.idle_timeout_max,
        Duration::from_secs(24 * 3600)
    );
    assert_eq!(config.execs.timeout_default, Duration::from_secs(300));
    assert_eq!(config.execs.retain_bytes_default(), 4 << 20);
    assert_eq!(config.execs.retain_bytes_max(), 32 << 20);
    assert_eq!(config.execs.kill_grace, Duration::from_secs(2));
    assert!(config.skills.options.roots.is_empty());
    assert_eq!(
        config.engine.docker_config, None,
        "tests read no environment"
    );
    assert_eq!(config.pools.len(), 2);
    let office = &config.pools[1];
    assert_eq!(
        (office.name.as_str(), office.image.as_str()),
        ("office", "skilld/office:latest")
    );
    assert_eq!(
        (office.warm, office.max, office.pull),
        (1, 16, PullPolicy::Never)
    );
    assert_eq!(office.limits().memory_bytes, 2 << 30);
    assert_eq!(office.limits().disk_bytes, 512 << 20);
    let pool = &config.pools[0];
    assert_eq!(pool.pull, PullPolicy::Never);
    assert_eq!(
        (pool.name.as_str(), pool.image.as_str()),
        ("default", "skilld/base:latest")
    );
    assert_eq!((pool.warm, pool.max, pool.queue_max), (2, 64, 128));
    assert_eq!(pool.claim_timeout, Duration::from_secs(10));
    assert_eq!(pool.oci_runtime, None);
    assert_eq!(pool.limits().memory_bytes, 512 << 20);
    assert_eq!(pool.limits().cpu_millis, 1000);
    assert_eq!(pool.limits().pids, 512);
    assert_eq!(pool.limits().disk_bytes, 256 << 20);
    assert_eq!(pool.limits().inodes, 65_536);
    assert_eq!((pool.tmp_bytes, pool.shm_bytes), (64 << 20, 64 << 20));
}

#[test]
fn output_of_check_loads_to_the_same_configuration() {
    let first = Config::from_toml("[pools.heavy]\nmemory = \"2GiB\"\n").expect("loads");
    let second = Config::from_toml(&first.effective).expect("what was printed loads");
    assert_eq!(first.effective, second.effective);
    assert_eq!(second.config.pools[1].limits().memory_bytes, 2 << 30);
}

#[test]
fn pool_inherits_missing_keys_from_the_default_pool() {
    let text = "[pools.default]\nwarm = 7\n[pools.heavy]\nmemory = \"2GiB\"\nmax = 3\n";
    let pools = Config::from_toml(text).expect("loads").config.pools;
    let names: Vec<&str> = pools.iter().map(|pool| pool.name.as_str()).collect();
    assert_eq!(names, ["default", "heavy", "office"]);
    assert_eq!(pools[0].warm, 7);
    // Values come from the built-in defaults and not from the other pool of the file.
    assert_eq!(pools[1].warm, 2);
    assert_eq!(pools[1].limits().memory_bytes, 2 << 30);
    assert_eq!(pools[1].limits().disk_bytes, 256 << 20);
}

#[test]
fn a_pool_inherits_the_default_pools_sandbox_unless_set() {
    let runtimes = |text: &str| -> Vec<(String, Option<String>)> {
        let pools = Config::from_toml(text).expect("loads").config.pools;
        let runtimes = pools.into_iter();
        runtimes.map(|pool| (pool.name, pool.oci_runtime)).collect()
    };
    let pair = |name: &str, runtime: &str| {
        let runtime = (!runtime.is_empty()).then(|| runtime.to_owned());
        (name.to_owned(), runtime)
    };
    assert_eq!(
        runtimes("[pools.default]\noci_runtime = \"runsc\"\n"),
        [pair("default", "runsc"), pair("office", "runsc")]
    );
    // Another pool changes nothing, and a pool may name the engine's default.
    let text = "[pools.default]\noci_runtime = \"runsc\"\n[pools.fast]\noci_runtime = \"\"\n\
                [pools.kata]\noci_runtime = \"kata\"\n";
    let expected = [
        pair("default", "runsc"),
        pair("fast", ""),
        pair("kata", "kata"),
        pair("office", "runsc"),
    ];
    assert_eq!(runtimes(text), expected);
    // The pool of workspaces that name none decides, whatever its name is.
    let off = "[pools.default]\nwarm = 0\nmax = 0\n";
    let text = format!("default_pool = \"small\"\n{off}[pools.small]\noci_runtime = \"runsc\"\n");
    assert_eq!(
        runtimes(&text),
        [pair("office", "runsc"), pair("small", "runsc")]
    );
    let text = format!("default_pool = \"small\"\n{off}oci_runtime = \"runsc\"\n[pools.small]\n");
    assert_eq!(
        runtimes(&text),
        [pair("office", "runsc"), pair("small", "runsc")]
    );
}

#[test]
fn pool_with_max_0_is_disabled() {
    let text =
        "default_pool = \"small\"\n[pools.default]\nwarm = 0\nmax = 0\n[pools.small]\nmax = 4\n";
    let config = Config::from_toml(text).expect("loads").config;
    let names: Vec<&str> = config.pools.iter().map(|pool| pool.name.as_str()).collect();
    assert_eq!(names, ["office", "small"]);
    assert_eq!(config.default_pool, "small");
}

#[test]
fn socket_of_a_private_instance_is_in_its_state_dir() {
    let config = Config::from_toml("state_dir = \"/srv/one\"")
        .expect("loads")
        .config;
    assert_eq!(config.socket, Path::new("/srv/one/skilld.sock"));
    let text = "state_dir = \"/srv/one\"\nlisten = \"unix:/tmp/x.sock\"";
    assert_eq!(
        Config::from_toml(text).expect("loads").config.socket,
        Path::new("/tmp/x.sock")
    );
}

#[test]
fn unknown_keys_and_wrong_types_are_named_with_their_key() {
    check_faults(
        r#"
        color = 1 => color: is not a key; there are: state_dir, listen, listeners, auth, server,
        server.strems_max = 1 => server.strems_max: is not a key; did you mean streams_max?
        pools.default.memry = 1 => pools.default.memry: is not a key; did you mean memory?
        pools.x = 1 => pools.x: invalid type: found signed int 1, expected a table
        server.streams_max = "many" => server.streams_max: invalid type
        server.streams_max = -1 => server.streams_max: invalid
        server.streams_max = 0 => server.streams_max: must be at least 1
        skills.roots = [1] => skills.roots.0: invalid type
        "#,
    );
}

#[test]
fn malformed_values_are_named_with_their_key() {
    check_faults(
        r#"
        log = "=,=" => log:
        log_format = "xml" => log_format: "xml" is neither
        listeners = [{ kind = "unix", path = "/x", mode = "0999" }] => listeners.0.mode: "0999" is not a mode
        execs.kill_grace = "2" => execs.kill_grace: "2" is not a time
        execs.kill_grace = "0s" => execs.kill_grace: must be over zero
        skills.bytes_max = "2 apples" => skills.bytes_max: "2 apples" is not a size
        skills.packages.csv = ["simpy", "-e ."] => skills.packages.csv: "-e ." is an option of pip
        skills.packages.csv = ["npm:a/b/c", ".."] => skills.packages.csv: "npm:a/b/c" names a path
        skills.packages.csv = ["x", "git+https://x.example/y"] => skills.packages.csv: "git+https
        skills.packages."../x" = [] => skills.packages.../x: "../x" is not the name of a skill
        skills.packages.csv = "simpy" => skills.packages.csv: invalid type
        skills.infer_packages = "yes" => skills.infer_packages: invalid type
        listen = "https://0.0.0.0:443" => listen: takes only unix:PATH: for TCP add
        listen = "/run/x.sock" => listen: "/run/x.sock" is not of the form unix:PATH
        engine.docker_host = "tcp://1.2.3.4" => engine.docker_host:
        engine.uid_base = 0 => engine.uid_base: must be at least 1000
        engine.uid_base = 4294967290 => engine.uid_count: uid_base + uid_count
        pools.default.storage = "nfs" => pools.default.storage: "nfs" is not a storage; use "tmpfs" or "disk"
        pools.default.cpus = 0 => pools.default.cpus: must be between 0.01 and
        pools.Bad_.warm = 1 => pools.Bad_: is not a pool name
        pools.default.pull = "always" => pools.default.pull: "always" is not a policy; use "never" or "missing"
        pools.default.image = "" => pools.default.image: must name an image
        pools.default.image = "../x" => pools.default.image: is not an image reference
        pools.default.image = "x@sha256:1" => pools.default.image: has a digest that is not
        "#,
    );
}

#[test]
fn a_disk_may_exceed_memory_within_file_system_limits() {
    let pool = |text: &str| {
        let text = format!("[pools.big]\nstorage = \"disk\"\n{text}");
        Config::from_toml(&text)
    };
    let loaded = pool("disk = \"4GiB\"").expect("valid").config;
    let big = loaded
        .pools
        .iter()
        .find(|pool| pool.name == "big")
        .expect("configured");
    assert_eq!(big.storage, WorkspaceStorage::Disk);
    assert!(big.disk_bytes > big.memory_bytes);
    assert_eq!(loaded.workspaces.disk_reserve_bytes, 1 << 30);
    for (text, fault) in [
        (
            "disk = \"512KiB\"",
            "pools.big.disk: a workspace on disk has at least",
        ),
        (
            "disk = \"16MiB\"",
            "pools.big.inodes: a disk of 16777216 bytes has at most 4096",
        ),
        (
            "disk = \"1TiB\"",
            "pools.big.inodes: a disk of 1099511627776 bytes has at least 131072",
        ),
        (
            "tmp = \"512MiB\"",
            "pools.big.tmp: must be below pools.big.memory",
        ),
    ] {
        let faults = pool(text).expect_err(text).to_string();
        assert!(faults.contains(fault), "{faults}");
    }
}

#[test]
fn relations_between_values_are_checked() {
    check_faults(
        r#"
        default_pool = "x" => default_pool: "x" is not a pool; there are: default
        pools.default.warm = 65 => pools.default.warm: must not be over pools.default.max
        pools.default.disk = "512MiB" => pools.default.disk: must be below pools.default.memory
        pools.default.fonts = "/var/lib/skilld/slots" => pools.default.fonts: must not contain state_dir or lie in it
        pools.default.fonts = "/var" => pools.default.fonts: must not contain state_dir or lie in it
        pools.default.fonts = "/srv/a:b" => pools.default.fonts: and state_dir must not contain a comma
        engine.uid_count = 79 => engine.uid_count: 79 are fewer than the 80
        execs.timeout_max = "1s" => execs.timeout_default: must not be over execs.timeout_max
        execs.retain_bytes_total = "1GiB" => execs.retain_bytes_total: must be below pools.default.memory
        server.unary_timeout = "60s" => server.unary_timeout: must be over the 60s
        pools.default.claim_timeout = "90s" => pools.default.claim_timeout: must be below
        engine.remove_timeout = "90s" => engine.remove_timeout: must be below server.unary_timeout
        "#,
    );
    check_fault("engine.remove_timeout = \"89s\"", &[]);
}

#[test]
fn invalid_socket_paths_are_rejected() {
    let long = "x".repeat(100);
    check_fault(
        &format!("listen = \"unix:/tmp/{long}.sock\""),
        &["listen: the path of a Unix socket has at most 107 bytes"],
    );
    check_fault(
        &format!(
            "listen = \"unix:/tmp/s\"\nstate_dir = \"/{}\"",
            "x".repeat(75)
        ),
        &["state_dir: "],
    );
    let fits = format!(
        "listen = \"unix:/tmp/s\"\nstate_dir = \"/{}\"",
        "x".repeat(74)
    );
    check_fault(&fits, &[]);
}

#[test]
fn all_faults_are_reported_together() {
    let text = "color = 1\n[server]\nshape = 2\nstreams_max = \"many\"\nstop_timeout = \"soon\"\n[execs]\ncount_max = 0\n";
    let found = faults(text);
    for key in [
        "color",
        "server.shape",
        "server.streams_max",
        "server.stop_timeout",
        "execs.count_max",
    ] {
        let count = found
            .iter()
            .filter(|fault| fault.starts_with(&format!("{key}:")))
            .count();
        assert_eq!(count, 1, "{key} in {found:#?}");
    }
    assert_eq!(found.len(), 5, "{found:#?}");
}

#[test]
fn one_fault_names_all_elements_of_a_list_that_are_wrong() {
    let found = faults("[skills]\nroots = [\"/a\", \"ftp://x/y\", \"\", \"/b\"]\n");
    assert_eq!(found.len(), 1, "{found:#?}");
    let fault = &found[0];
    assert!(fault.starts_with("skills.roots: "), "{fault}");
    assert!(fault.contains("http:// and https://"), "{fault}");
    assert!(fault.contains("; must be a path or a URL"), "{fault}");
}

#[test]
fn artifact_settings_are_checked_with_the_rest() {
    check_fault(
        "[artifacts]\nurl = \"s3://b/a b\"\nbytes_max = \"65GiB\"",
        &[
            "artifacts.url: must be empty, ",
            "artifacts.bytes_max: must be between",
        ],
    );
    let plain = "[artifacts]\nurl = \"s3://b\"\nendpoint = \"http://127.0.0.1:9000\"\n";
    check_fault(plain, &["artifacts.endpoint: must be https://"]);
    check_fault(&format!("{plain}allow_http = true\n"), &[]);
    check_fault(
        "[artifacts]\ncredentials_file = \"/nowhere/keys\"",
        &["artifacts.credentials_file: /nowhere/keys: No such file"],
    );
}

#[test]
fn invalid_configuration_exits_64_and_names_the_key() {
    let dir = tempfile::tempdir().expect("temporary directory");
    let file = dir.path().join("skilld.toml");
    std::fs::write(&file, "[server]\nshape = 2\n").expect("write file");
    let path = file.to_str().expect("utf-8 path");
    let env = [("SKILLD_EXECS__KILL_GRACE", "soon")];
    let output = skilld(&["--check", "--config", path], &env);
    assert_eq!(output.status.code(), Some(64));
    let stderr = text(&output.stderr);
    assert!(
        stderr.contains("error: server.shape: is not a key; there are: streams_max, "),
        "{stderr}"
    );
    assert!(stderr.contains(&format!("(in {path})")), "{stderr}");
    assert!(
        stderr.contains("error: execs.kill_grace: \"soon\" is not a time"),
        "{stderr}"
    );
    assert!(stderr.contains("SKILLD_EXECS__KILL_GRACE"), "{stderr}");
    assert!(output.stdout.is_empty());

    let output = skilld(&["--config", "/nowhere/skilld.toml"], &[]);
    assert_eq!(output.status.code(), Some(64));
    assert!(text(&output.stderr).contains("/nowhere/skilld.toml: cannot be read"));

    // A pipe whose contents were read would leave the defaults in force.
    let pipe = dir.path().join("pipe");
    nix::unistd::mkfifo(&pipe, nix::sys::stat::Mode::S_IRWXU).expect("mkfifo");
    let output = skilld(&["--check", "--config", pipe.to_str().expect("utf-8")], &[]);
    assert_eq!(output.status.code(), Some(64));
    assert!(
        text(&output.stderr).contains("pipe: is not a regular file: it is read more than once")
    );

    assert_eq!(skilld(&["--frobnicate"], &[]).status.code(), Some(64));
}

#[test]
fn refused_check_makes_no_state_directory() {
    let dir = tempfile::tempdir().expect("temporary directory");
    let state_dir = dir.path().join("state");
    let arguments = ["--check", "--state-dir", state_dir.to_str().expect("utf-8")];
    let env = [("SKILLD_POOLS__DEFAULT__STORAGE", "nfs")];
    let output = skilld(&arguments, &env);
    assert_eq!(output.status.code(), Some(64));
    let stderr = text(&output.stderr);
    assert!(
        stderr.contains("pools.default.storage: \"nfs\" is not a storage"),
        "{stderr}"
    );
    assert!(!state_dir.exists(), "{stderr}");
}

#[test]
fn missing_guest_is_reported_with_a_remedy() {
    let output = Command::new(env!("CARGO_BIN_EXE_skilld"))
        .arg("--check")
        .env_clear()
        .env("SKILLD_ENGINE__GUEST_PATH", "/nowhere/skilld-guest")
        .output()
        .expect("run skilld");
    assert_eq!(output.status.code(), Some(64));
    let stderr = text(&output.stderr);
    assert!(
        stderr.contains("no guest binary at /nowhere/skilld-guest; build it with `make guest`"),
        "{stderr}"
    );
}

#[test]
fn version_completion_and_manual_page_need_no_configuration() {
    let output = skilld(&["--version"], &[("SKILLD_COLOR", "red")]);
    assert!(output.status.success());
    assert_eq!(
        text(&output.stdout),
        format!("skilld {}\n", env!("CARGO_PKG_VERSION"))
    );
    let output = skilld(&["--completion", "bash"], &[]);
    assert!(output.status.success());
    assert!(text(&output.stdout).contains("_skilld()"));
    let output = skilld(&["--man-page"], &[("SKILLD_COLOR", "red")]);
    assert!(output.status.success());
    let page = text(&output.stdout);
    assert!(page.contains(".TH skilld 8"), "{page}");
    assert!(page.contains("adopt"), "{page}");
}

// === docs/configuration.md ===

/// Generates `docs/configuration.md` from `default.toml`: comments become text, keys become table rows.
fn reference() -> String {
    let mut page = String::from(
        "# Configuration\n\n<!-- Generated from daemon/default.toml: change that, then run \
         UPDATE_DOCS=1 cargo test -p skilld --test suite config:: -->\n",
    );
    let (mut comment, mut section) = (Vec::new(), String::new());
    for line in DEFAULT_TOML.lines() {
        if let Some(words) = line.strip_prefix('#') {
            comment.push(words);
            continue;
        }
        if let Some(name) = line.strip_prefix('[') {
            section = name.trim_end_matches(']').to_owned();
            page.push_str(&format!("\n## [{section}]\n"));
        }
        let text = markdown(&std::mem::take(&mut comment));
        if !text.is_empty() && line.is_empty() || line.starts_with('[') && !text.is_empty() {
            page.push_str(&format!("\n{text}\n"));
        } else if let Some((key, value)) = line.split_once(" = ") {
            let variable = format!("{section}.{key}").to_uppercase().replace('.', "__");
            page.push_str(&format!(
                "\n### `{key} = {value}`\n\n`SKILLD_{}`\n",
                variable.trim_start_matches('_')
            ));
            if !text.is_empty() {
                page.push_str(&format!("\n{text}\n"));
            }
        }
    }
    page
}

/// Returns a comment as text. Indented lines are an example; an empty line ends a paragraph.
fn markdown(comment: &[&str]) -> String {
    const INDENT: &str = "   ";
    let mut blocks = Vec::new();
    for paragraph in comment.split(|line| line.trim().is_empty()) {
        for run in paragraph.chunk_by(|a, b| a.starts_with(INDENT) == b.starts_with(INDENT)) {
            let lines = run.iter().map(|line| line.trim()).collect::<Vec<_>>();
            let is_example = run.first().is_some_and(|line| line.starts_with(INDENT));
            blocks.push(match is_example {
                true => format!("```toml\n{}\n```", lines.join("\n")),
                false => lines.join(" "),
            });
        }
    }
    blocks.join("\n\n")
}

#[test]
fn configuration_reference_matches_default_toml() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/configuration.md");
    let expected = reference();
    if std::env::var_os("UPDATE_DOCS").is_some() {
        std::fs::write(&path, &expected).expect("write docs/configuration.md");
    }
    let found = std::fs::read_to_string(&path).unwrap_or_default();
    assert!(
        found == expected,
        "docs/configuration.md is stale: run UPDATE_DOCS=1 cargo test -p skilld --test suite config::"
    );
}

#[test]
fn a_path_of_blanks_is_refused() {
    // Values of the environment are trimmed, so only a file can contain a path of blanks.
    let dir = tempfile::tempdir().expect("temporary directory");
    let file = dir.path().join("skilld.toml");
    std::fs::write(&file, "[files]\nhost_roots = [\"  \"]\n").expect("write file");
    let refused = skilld(&["--check", "--config", file.to_str().expect("utf-8")], &[]);
    let why = text(&refused.stderr);
    assert!(
        why.contains("files.host_roots") && why.contains("must be a path"),
        "{why}"
    );
}

#[test]
fn root_and_proxy_urls_are_checked_without_showing_secrets() {
    for (keys, says) in [
        (
            "skills.roots = [\"https://user:secret@x.example/a.zip\"]",
            "a user name or a password",
        ),
        (
            "skills.roots = [\"https://x.example/a.zip?secret#sha256=1\"]",
            "64 hex digits",
        ),
        (
            "skills.roots = [\"ftp://x.example/a.zip?secret\"]",
            "only http:// and https://",
        ),
        (
            "fetch.proxy = \"http://user:secret@proxy:3128\"",
            "without credentials",
        ),
        ("fetch.proxy = \"secret\"", "must be http://HOST:PORT"),
    ] {
        let faults = Config::from_toml(keys).expect_err(keys).to_string();
        assert!(faults.contains(says), "{keys}: {faults}");
        assert!(!faults.contains("secret"), "{keys}: {faults}");
    }
}
