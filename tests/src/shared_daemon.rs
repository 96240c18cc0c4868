//! A daemon that authenticates its callers, with the files of its identities: a Unix socket for the operator, TLS for
//! the tenant `a` with client certificates, tokens and web tokens, and metrics.

use std::fmt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use serde_json::json;
use skilld_client::v1::{CreateWorkspaceRequest, CreateWorkspaceTokenRequest};
use skilld_client::{Client, ConnectOptions, Error, TokenSource};
use tempfile::TempDir;
use tokio::process::Command;

use crate::authority::{Authority, Validity, install};
use crate::daemon::{Daemon, Options};
use crate::web_tokens::{WebTokenIssuer, claims};
use crate::{binaries, wait};

/// Time within which the daemon notices that a file of identities changed.
const NOTICED_WITHIN: Duration = Duration::from_secs(120);

/// Time within which the daemon takes a connection.
const CONNECTED_WITHIN: Duration = Duration::from_secs(120);

/// Time within which the daemon logs where it serves.
const LOGGED_WITHIN: Duration = Duration::from_secs(120);

/// Daemon that serves a Unix socket and TLS. Its [`Daemon::client`] is an admin of the tenant `ops`.
pub struct SharedDaemon {
    /// The daemon, which its user stops.
    pub daemon: Daemon,
    /// `localhost:PORT` of the TLS listener.
    pub target: String,
    files: TempDir,
    authority: Authority,
    issuer: WebTokenIssuer,
}

impl fmt::Debug for SharedDaemon {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut shown = f.debug_struct("SharedDaemon");
        shown.field("target", &self.target).finish_non_exhaustive()
    }
}

impl SharedDaemon {
    /// Starts the daemon with the default settings and one warm container.
    ///
    /// # Errors
    /// When it does not serve in time.
    pub async fn start() -> Result<Self> {
        Self::start_with(Options::default()).await
    }

    /// Starts the daemon with other settings; its configuration file is that of this module.
    ///
    /// # Errors
    /// When it does not serve in time.
    pub async fn start_with(options: Options) -> Result<Self> {
        let files = tempfile::tempdir()?;
        let path = |name: &str| files.path().join(name);
        let authority = Authority::new(files.path(), "ca");
        authority.issue_server("server", &["localhost"], Validity::Valid);
        let issuer = WebTokenIssuer::generate();
        let keys = json!({"keys": [issuer.public_key("k1")]});
        install(&path("jwks.json"), &keys.to_string(), 0o644);
        install(&path("tokens"), "", 0o600);
        let uid = nix::unistd::geteuid();
        // The benchmark calls as fast as it can.
        let rate = "requests_per_second = \"unlimited\"";
        let tenants = format!(
            "[tenants.ops]\n{rate}\n[tenants.a]\n{rate}\n[[peers]]\nuid = {uid}\ntenant = \"ops\"\nroles = [\"admin\"]\n\
             [[certificates]]\nname = \"spiffe://test/a\"\ntenant = \"a\"\nroles = [\"user\"]\n"
        );
        install(&path("tenants.toml"), &tenants, 0o644);
        let daemon = Daemon::start_with(Options {
            config: Some(configuration(files.path())),
            ..options
        })
        .await?;
        // The Unix socket answers before the daemon has logged its other listeners.
        let target = wait::until("the log names the listeners", LOGGED_WITHIN, async || {
            let port = tls_port(&daemon.log()).filter(|_| !daemon.metrics_addresses().is_empty());
            Ok(port.map(|port| format!("localhost:{port}")))
        })
        .await?;
        Ok(Self {
            daemon,
            target,
            files,
            authority,
            issuer,
        })
    }

    /// Returns the path of a file beside the daemon's: `token` has the latest token, `audit.log` the audit log.
    #[must_use]
    pub fn path(&self, name: &str) -> PathBuf {
        self.files.path().join(name)
    }

    /// Returns the PEM file of the authority that signed the server's certificate.
    #[must_use]
    pub fn ca_file(&self) -> &Path {
        &self.authority.ca_file
    }

    /// Issues a certificate of a user of the tenant `a`. Returns the PEM files of the certificate and its key.
    #[must_use]
    pub fn issue_client_certificate(&self) -> (PathBuf, PathBuf) {
        let issued = self
            .authority
            .issue_client("client", "spiffe://test/a", Validity::Valid, 7);
        (issued.cert, issued.key)
    }

    /// Returns a web token of a user of the tenant `a`.
    #[must_use]
    pub fn web_token(&self) -> String {
        self.issuer.sign("k1", &claims("a", "user", 600))
    }

    /// Makes a token of the tenant `a` with skillctl, which writes its line into the daemon's file, and waits until the
    /// daemon knows it.
    ///
    /// # Errors
    /// When skillctl fails, or the daemon does not notice the token.
    pub async fn create_token(&self, id: &str, role: &str) -> Result<String> {
        let create = Command::new(binaries::binary("skillctl")?)
            .args(["token", "create", id, "--for-tenant", "a", "--role", role])
            .arg("--file")
            .arg(self.path("tokens"))
            .output()
            .await?;
        let errors = String::from_utf8_lossy(&create.stderr);
        ensure!(create.status.success(), "token create: {errors}");
        let token = String::from_utf8(create.stdout)?.trim().to_owned();
        install(&self.path("token"), &token, 0o600);
        wait::until("the token is known", NOTICED_WITHIN, async || {
            let mut whoami = self.skillctl(&["whoami"])?;
            Ok(whoami.output().await?.status.success().then_some(()))
        })
        .await?;
        Ok(token)
    }

    /// Creates a workspace of the tenant `a` and a token for that workspace alone, installs the token for later
    /// connections and returns it.
    ///
    /// # Errors
    /// When skillctl, a connection, CreateWorkspace or CreateWorkspaceToken fails.
    pub async fn create_workspace_token(&self, id: &str) -> Result<String> {
        self.create_token("creator", "tenant_admin").await?;
        let creator = self.connect().await?;
        let request = CreateWorkspaceRequest {
            workspace_id: id.to_owned(),
            ..CreateWorkspaceRequest::default()
        };
        let workspace = creator.create_workspace(request).await?.name;
        let request = CreateWorkspaceTokenRequest {
            workspace,
            ..CreateWorkspaceTokenRequest::default()
        };
        let token = creator.create_workspace_token(request).await?.token;
        install(&self.path("token"), &token, 0o600);
        Ok(token)
    }

    /// Connects over TLS with the latest token. A daemon that had no processor for the time of a handshake is asked again.
    ///
    /// # Errors
    /// When the connection fails.
    pub async fn connect(&self) -> Result<Client> {
        let options = ConnectOptions {
            endpoint: format!("https://{}", self.target),
            ca_file: Some(self.authority.ca_file.clone()),
            token: Some(TokenSource::File(self.path("token"))),
            ..ConnectOptions::default()
        };
        let started = Instant::now();
        loop {
            match Client::connect_with(&options).await {
                Err(Error::Connect { .. }) if started.elapsed() < CONNECTED_WITHIN => {
                    tokio::time::sleep(Duration::from_millis(10)).await;
                }
                connected => return Ok(connected?),
            }
        }
    }

    /// Makes a command of skillctl for the TLS listener with the latest token.
    ///
    /// # Errors
    /// When the tests have no skillctl.
    pub fn skillctl(&self, args: &[&str]) -> Result<Command> {
        let mut command = Command::new(binaries::binary("skillctl")?);
        command
            .args(args)
            .env("SKILLD_ENDPOINT", format!("https://{}", self.target))
            .env("SKILLD_CA_FILE", &self.authority.ca_file)
            .env("SKILLD_TOKEN_FILE", self.path("token"))
            .env("HOME", self.files.path())
            .kill_on_drop(true);
        Ok(command)
    }
}

/// Returns the port of the TLS listener, once the log names it.
fn tls_port(log: &str) -> Option<String> {
    let mut lines = log
        .lines()
        .filter(|line| line.contains("serving") && line.contains("tls=true"));
    let address = lines.find_map(|line| line.split("127.0.0.1:").nth(1))?;
    address.split_whitespace().next().map(str::to_owned)
}

fn configuration(files: &Path) -> String {
    let file = |name: &str| format!("{:?}", files.join(name).display().to_string());
    format!(
        r#"
[[listeners]]
kind = "unix"
path = "{{socket}}"
authenticators = ["peer"]
[[listeners]]
kind = "tcp"
address = "127.0.0.1:0"
tls = {{ cert = {cert}, key = {key}, client_ca = {ca} }}
authenticators = ["mtls", "token", "jwt"]
[[listeners]]
kind = "metrics"
address = "127.0.0.1:0"
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
[audit]
file = {audit}
"#,
        cert = file("server.crt"),
        key = file("server.key"),
        ca = file("ca.pem"),
        tenants = file("tenants.toml"),
        tokens = file("tokens"),
        jwks = file("jwks.json"),
        audit = file("audit.log"),
    )
}
