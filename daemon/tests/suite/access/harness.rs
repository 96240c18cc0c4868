//! Daemon with a Unix and a TLS listener, all authenticators, and the tenants `a` and `b`.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use data_encoding::{BASE64URL_NOPAD, HEXLOWER};
use sha2::{Digest, Sha256};
use skilld::config::Config;
use skilld::engine::fake::FakeEngine;
use skilld::server::Server;
use skilld::shutdown::Tasks;
use skilld_client::{Client, ConnectOptions, TokenSource};
use skilld_tests::authority::{Authority, IssuedFiles, Validity, install};
use skilld_tests::task_dir::TaskDir;
use skilld_tests::web_tokens::WebTokenIssuer;
use tempfile::TempDir;
use tokio::sync::mpsc;
use tokio::task::JoinHandle;

pub(crate) use crate::server::connect;
use crate::server::{guest_path, parse_config};
use crate::workspace_mount::{MOUNTING_GUEST, write_mounting_guest};

/// Names of the roles, the lowest first.
pub(crate) const ROLES: [&str; 5] = ["observer", "user", "publisher", "tenant_admin", "admin"];
/// Names of the tenants.
pub(crate) const TENANTS: [&str; 2] = ["a", "b"];

/// Line of the usual configuration: a web token may have every role.
const ROLE_MAX: &str = "role_max = \"admin\"\n";

/// Mount options of the disk of an audit log.
const AUDIT_DISK: &str = "size=256k";

/// Tables of listeners of metrics.
const METRICS_LISTENERS: &str = r#"
[[listeners]]
kind = "metrics"
address = "127.0.0.1:0"
[[listeners]]
kind = "metrics"
address = "127.0.0.1:0"
tls = { cert = {cert}, key = {key} }
authenticators = ["token"]
"#;

/// Running daemon and the files of its identities.
pub(crate) struct AccessServer {
    /// In the way of the removal of `files`, so before it: fields are dropped in this order.
    _disk: Option<SmallDisk>,
    pub(crate) files: TempDir,
    pub(crate) authority: Authority,
    pub(crate) issuer: WebTokenIssuer,
    pub(crate) address: SocketAddr,
    /// Listeners of metrics: a plain one, and one with TLS and tokens; empty unless the test asked for them.
    pub(crate) metrics: Vec<SocketAddr>,
    signals: mpsc::Sender<()>,
    running: JoinHandle<bool>,
    config: Config,
    tasks: Tasks,
    pub(crate) engine: Arc<FakeEngine>,
    _dir: TaskDir,
}

/// Returns the token of a tenant's principal with a role.
pub(crate) fn token(tenant: &str, role: &str) -> String {
    let secret = Sha256::digest(format!("{tenant} {role}"));
    format!(
        "skt_{}_{}",
        token_id(tenant, role),
        BASE64URL_NOPAD.encode(&secret)
    )
}

fn token_id(tenant: &str, role: &str) -> String {
    format!("{tenant}-{}", role.replace('_', "-"))
}

/// Returns the line of a token in the file of tokens.
pub(crate) fn token_line(tenant: &str, role: &str, expiry: &str) -> String {
    let hash = HEXLOWER.encode(&Sha256::digest(token(tenant, role).as_bytes()));
    format!(
        "{} {hash} {tenant} {role} {expiry}\n",
        token_id(tenant, role)
    )
}

/// Returns the text of a file with all tokens.
pub(crate) fn all_tokens() -> String {
    let lines = TENANTS
        .iter()
        .flat_map(|tenant| ROLES.iter().map(move |role| token_line(tenant, role, "-")));
    lines.collect()
}

/// Returns the text of a file with both tenants, the user of this process as `uid_role`, and certificates.
pub(crate) fn tenants_text(uid_role: &str) -> String {
    let uid = nix::unistd::geteuid();
    let mut text = String::from("[tenants.a]\n[tenants.b]\n");
    text += &format!("[[peers]]\nuid = {uid}\ntenant = \"a\"\nroles = [\"{uid_role}\"]\n");
    for (tenant, role) in TENANTS
        .iter()
        .flat_map(|t| ROLES.iter().map(move |r| (t, r)))
    {
        text += &format!(
            "[[certificates]]\nname = \"spiffe://test/{tenant}/{role}\"\ntenant = \"{tenant}\"\nroles = [\"{role}\"]\n"
        );
    }
    text
}

impl AccessServer {
    /// Starts a daemon with all authenticators.
    pub(crate) async fn start() -> Self {
        Self::start_with("").await
    }

    /// Starts a daemon with an audit log on a disk of 256 KiB.
    pub(crate) async fn start_with_audit_disk() -> Self {
        let files = tempfile::tempdir().expect("directory");
        let disk = SmallDisk::mount(&files.path().join("small"), AUDIT_DISK);
        let server = Self::start_in(files, "audit.file = {small}\n", "", ROLE_MAX, |_| {}).await;
        Self {
            _disk: Some(disk),
            ..server
        }
    }

    /// Starts a daemon with listeners of metrics, and an audit log on a disk of 256 KiB whose faults refuse nothing.
    pub(crate) async fn start_with_metrics() -> Self {
        let files = tempfile::tempdir().expect("directory");
        let disk = SmallDisk::mount(&files.path().join("small"), AUDIT_DISK);
        // No collector listens there, so each span is counted as failed.
        let lines = "audit.file = {small}\naudit.delivery = \"best_effort\"\n\
                     traces.endpoint = \"http://127.0.0.1:1\"\n";
        let server = Self::start_in(files, lines, METRICS_LISTENERS, ROLE_MAX, |_| {}).await;
        Self {
            _disk: Some(disk),
            ..server
        }
    }

    /// Starts a daemon with further lines of configuration, in which `{audit}` is the path of an audit log.
    pub(crate) async fn start_with(lines: &str) -> Self {
        let files = tempfile::tempdir().expect("directory");
        Self::start_in(files, lines, "", ROLE_MAX, |_| {}).await
    }

    /// Starts a daemon after `change` was called with its configuration.
    pub(crate) async fn start_after(change: impl FnOnce(&mut Config)) -> Self {
        let files = tempfile::tempdir().expect("directory");
        Self::start_in(files, "", "", ROLE_MAX, change).await
    }

    /// Starts a daemon whose commands run, in workspaces of their own.
    pub(crate) async fn start_with_commands() -> Self {
        let files = tempfile::tempdir().expect("directory");
        write_mounting_guest(files.path(), &guest_path());
        Self::start_in(files, "", "", ROLE_MAX, |_| {}).await
    }

    /// Starts such a daemon with its state directory on a disk of 32 MiB and 4000 inodes.
    pub(crate) async fn start_on_small_disk() -> Self {
        let files = tempfile::tempdir().expect("directory");
        write_mounting_guest(files.path(), &guest_path());
        let mut disk = None;
        let mount = |config: &mut Config| {
            let options = "size=32m,nr_inodes=4000";
            disk = Some(SmallDisk::mount(&config.state_dir, options));
        };
        let server = Self::start_in(files, "", "", ROLE_MAX, mount).await;
        Self {
            _disk: disk,
            ..server
        }
    }

    /// Starts a daemon with another line about the highest role of a web token, or with none.
    pub(crate) async fn start_with_role_max(line: &str) -> Self {
        let files = tempfile::tempdir().expect("directory");
        Self::start_in(files, "", "", line, |_| {}).await
    }

    /// Starts a daemon with `lines` before the usual configuration, `tables` after it, and `role_max` in place of
    /// [`ROLE_MAX`], after `prepare` was called with the configuration.
    async fn start_in(
        files: TempDir,
        lines: &str,
        tables: &str,
        role_max: &str,
        prepare: impl FnOnce(&mut Config),
    ) -> Self {
        let authority = Authority::new(files.path(), "ca");
        let issuer = WebTokenIssuer::generate();
        authority.issue_server("server", &["localhost"], Validity::Valid);
        authority.revoke(&files.path().join("revoked.pem"), &[]);
        let keys = serde_json::json!({"keys": [issuer.public_key("k1")]});
        let path = |name: &str| files.path().join(name);
        install(&path("jwks.json"), &keys.to_string(), 0o644);
        install(&path("tokens"), &all_tokens(), 0o600);
        install(&path("tenants.toml"), &tenants_text("admin"), 0o644);
        std::fs::create_dir(path("run")).expect("mkdir");
        for (root, name) in [("root1", "shared"), ("root2", "other")] {
            let dir = path(root).join(name);
            std::fs::create_dir_all(&dir).expect("mkdir");
            let front = format!("name: {name}\ndescription: of {root}\nversion: \"1.0\"");
            let text = format!("---\n{front}\n---\n# Body\n");
            std::fs::write(dir.join("SKILL.md"), text).expect("write");
        }

        let tasks = Tasks::default();
        let dir = TaskDir::new(&tasks.for_skills().tracker);
        let quoted = |path: PathBuf| format!("{:?}", path.display().to_string());
        let lines = lines
            .replace("{audit}", &quoted(path("audit.log")))
            .replace("{small}", &quoted(path("small").join("audit.log")));
        let tables = tables
            .replace("{cert}", &quoted(path("server.crt")))
            .replace("{key}", &quoted(path("server.key")));
        let usual = configuration(dir.path(), files.path()).replace(ROLE_MAX, role_max);
        let mut config = parse_config(&(lines + &usual + &tables));
        prepare(&mut config);
        let engine = Arc::new(FakeEngine::new());
        let server = Server::start(config.clone(), Arc::clone(&engine) as _)
            .await
            .expect("started");
        let address = *server.tcp_addresses().first().expect("one");
        let metrics = server.metrics_addresses().to_vec();
        let (signals, received) = mpsc::channel(2);
        let running = tasks.spawn(server.run(received));
        Self {
            _disk: None,
            files,
            authority,
            issuer,
            address,
            metrics,
            signals,
            running,
            config,
            tasks,
            engine,
            _dir: dir,
        }
    }

    /// Returns the path of a file of the identities.
    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.files.path().join(name)
    }

    /// Returns the state directory.
    pub(crate) fn state_dir(&self) -> &Path {
        &self.config.state_dir
    }

    /// Returns options for the TLS listener without credentials.
    pub(crate) fn tls(&self) -> ConnectOptions {
        ConnectOptions {
            ca_file: Some(self.authority.ca_file.clone()),
            ..ConnectOptions::new(format!("https://localhost:{}", self.address.port()))
        }
    }

    /// Returns options for the TLS listener with a token.
    pub(crate) fn with_token(&self, token: impl Into<String>) -> ConnectOptions {
        ConnectOptions {
            token: Some(TokenSource::Token(token.into())),
            ..self.tls()
        }
    }

    /// Returns options for the TLS listener with a client certificate.
    pub(crate) fn with_certificate(&self, issued: IssuedFiles) -> ConnectOptions {
        ConnectOptions {
            cert_file: Some(issued.cert),
            key_file: Some(issued.key),
            ..self.tls()
        }
    }

    /// Connects to the TLS listener with the token of a tenant's principal.
    pub(crate) async fn client(&self, tenant: &str, role: &str) -> Client {
        connect(&self.with_token(token(tenant, role))).await
    }

    /// Returns options for the Unix socket, where the user of this process is the credential.
    pub(crate) fn unix(&self) -> ConnectOptions {
        let socket = self.path("run/skilld.sock");
        ConnectOptions::new(format!("unix:{}", socket.display()))
    }

    /// Stops the daemon and starts it again on the same state and engine.
    pub(crate) async fn restart(mut self) -> Self {
        let (signals, received) = mpsc::channel(2);
        for _ in 0..2 {
            // The daemon may have stopped before the second signal.
            self.signals.send(()).await.unwrap_or_default();
        }
        assert!(self.running.await.expect("no panic"), "stopped in time");
        let server = Server::start(self.config.clone(), Arc::clone(&self.engine) as _)
            .await
            .expect("started again");
        self.address = *server.tcp_addresses().first().expect("one");
        self.running = self.tasks.spawn(server.run(received));
        self.signals = signals;
        self
    }

    /// Stops the daemon and returns the directory of its files.
    pub(crate) async fn stop_keeping_files(self) -> TempDir {
        for _ in 0..2 {
            // The daemon may have stopped before the second signal.
            self.signals.send(()).await.unwrap_or_default();
        }
        assert!(self.running.await.expect("no panic"), "stopped in time");
        self.files
    }

    /// Stops the daemon. Returns `true` if all tasks ended in time.
    pub(crate) async fn stop(self) -> bool {
        for _ in 0..2 {
            // The daemon may have stopped before the second signal.
            self.signals.send(()).await.unwrap_or_default();
        }
        self.running.await.expect("no panic")
    }
}

/// Mounted tmpfs, which is unmounted when it is dropped.
struct SmallDisk(PathBuf);

impl SmallDisk {
    fn mount(path: &Path, options: &str) -> Self {
        std::fs::create_dir(path).expect("mkdir");
        let mounted = std::process::Command::new("mount")
            .args(["-t", "tmpfs", "-o", options, "skilld-test"])
            .arg(path)
            .status();
        assert!(mounted.expect("mount runs").success(), "mounted");
        Self(path.to_owned())
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        let unmounted = std::process::Command::new("umount")
            .arg("-l")
            .arg(&self.0)
            .status();
        drop(unmounted);
    }
}

/// Returns the configuration of a daemon with its state in `state` and its identities in `files`.
pub(crate) fn configuration(state: &Path, files: &Path) -> String {
    let file = |name: &str| format!("{:?}", files.join(name).display().to_string());
    let mounting = files.join(MOUNTING_GUEST);
    let guest = match mounting.exists() {
        true => mounting,
        false => guest_path(),
    };
    format!(
        r#"
state_dir = {state:?}
engine.guest_path = {guest:?}
skills.roots = [{root1}, {root2}]
[[listeners]]
kind = "unix"
path = {socket}
authenticators = ["peer", "token"]
[[listeners]]
kind = "tcp"
address = "127.0.0.1:0"
tls = {{ cert = {cert}, key = {key}, client_ca = {ca}, crl = {crl} }}
authenticators = ["mtls", "token", "jwt"]
[auth]
tenants_file = {tenants}
tokens_file = {tokens}
[auth.jwt]
issuer = "https://issuer.test"
audience = "skilld"
algorithm = "ES256"
jwks_file = {jwks}
roles_claim = "realm_access.roles"
role_max = "admin"
[pools.default]
warm = 1
warm_up = []
claim_timeout = "1m"
[pools.office]
warm = 0
max = 0
"#,
        state = state.join("state").display().to_string(),
        guest = guest.display().to_string(),
        root1 = file("root1"),
        root2 = file("root2"),
        socket = file("run/skilld.sock"),
        cert = file("server.crt"),
        key = file("server.key"),
        ca = file("ca.pem"),
        crl = file("revoked.pem"),
        tenants = file("tenants.toml"),
        tokens = file("tokens"),
        jwks = file("jwks.json"),
    )
}
