//! TLS: which certificates, versions and protocols are accepted, and what a client is told.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::server::WebPkiClientVerifier;
use rustls::version::{TLS12, TLS13};
use rustls::{ClientConfig, RootCertStore, SupportedProtocolVersion};
use skilld::config::Config;
use skilld::engine::fake::FakeEngine;
use skilld::server::Server;
use skilld::shutdown::Tasks;
use skilld_client::{Client, ConnectOptions};
use skilld_tests::authority::{Authority, Validity, install};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio_rustls::{TlsAcceptor, TlsConnector};

use super::harness::{AccessServer, configuration, connect, token};
use crate::server::{wait_until, within};

/// Number of handshakes that are begun and not completed.
const HALF_OPEN: usize = 1000;

/// Connects and makes a first call until that fails with an error that has this word; case does not matter. Returns the
/// error.
async fn wait_for_failure(options: &ConnectOptions, word: &str) -> String {
    wait_until(word, async || {
        let error = match Client::connect_with(options).await {
            Err(error) => error.to_string(),
            Ok(client) => client.get_principal().await.err()?.to_string(),
        };
        let has_word = error.to_lowercase().contains(&word.to_lowercase());
        has_word.then_some(error)
    })
    .await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_is_told_what_is_wrong_with_the_servers_certificate() {
    let server = AccessServer::start().await;
    let other = Authority::new(server.files.path(), "other");
    let unknown = ConnectOptions {
        ca_file: Some(other.ca_file.clone()),
        ..server.with_token(token("a", "user"))
    };
    let error = wait_for_failure(&unknown, "UnknownIssuer").await;
    assert!(error.contains("--ca-file"), "{error}");

    let mut wrong_name = server.with_token(token("a", "user"));
    wrong_name.endpoint = format!("https://127.0.0.1:{}", server.address.port());
    let error = wait_for_failure(&wrong_name, "not valid for name").await;
    assert!(error.contains("localhost"), "{error}");

    server
        .authority
        .issue_server("server", &["localhost"], Validity::Expired);
    wait_for_failure(&server.with_token(token("a", "user")), "expired").await;
    let mut plain = server.tls();
    plain.ca_file = None;
    plain.endpoint = format!("http://127.0.0.1:{}", server.address.port());
    wait_for_failure(&plain, "").await;
    assert!(server.stop().await);
}

#[tokio::test(flavor = "multi_thread")]
async fn expired_foreign_and_revoked_client_certificates_are_refused() {
    let server = AccessServer::start().await;
    let name = "spiffe://test/a/user";
    let other = Authority::new(server.files.path(), "other");
    server.authority.revoke(&server.path("revoked.pem"), &[3]);
    let cases = [
        (
            server
                .authority
                .issue_client("expired", name, Validity::Expired, 2),
            "expired",
        ),
        (server.authority.issue_user("revoked", 3), "revoked"),
        (other.issue_user("foreign", 4), "unknown"),
        (
            server
                .authority
                .issue_client("nobody", "spiffe://test/c/user", Validity::Valid, 5),
            "no tenant has a name",
        ),
        (
            server
                .authority
                .issue_client("dns", "a.example.org", Validity::Valid, 6),
            "a.example.org",
        ),
    ];
    for (issued, word) in cases {
        let options = server.with_certificate(issued);
        // The list of revoked certificates takes effect within seconds.
        wait_for_failure(&options, word).await;
    }
    assert!(server.stop().await);
}

/// Waits until the list of revoked certificates has a problem with this text, or has none.
async fn wait_for_list_problem(admin: &Client, text: Option<&str>) {
    wait_until(
        &format!("the problem of the list is {text:?}"),
        async || {
            let problems = admin.problems().await.expect("problems");
            let found = problems
                .into_iter()
                .find(|problem| problem.subject == "listeners.1.tls.crl");
            let is_wanted = match (&found, text) {
                (None, None) => true,
                (Some(problem), Some(text)) => problem.message.contains(text),
                (None, Some(_)) | (Some(_), None) => false,
            };
            is_wanted.then_some(())
        },
    )
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_outdated_revocation_list_applies_and_is_a_problem() {
    let server = AccessServer::start().await;
    let admin = server.client("a", "admin").await;
    let file = server.path("revoked.pem");
    let kept = server.with_certificate(server.authority.issue_user("kept", 7));
    let revoked = server.with_certificate(server.authority.issue_user("revoked", 8));
    server.authority.revoke_until(&file, &[8], 2021);
    wait_for_list_problem(&admin, Some("replaced by 2021-01-01T00:00:00Z")).await;
    let client = connect(&kept).await;
    client.get_principal().await.expect("not revoked");
    wait_for_failure(&revoked, "revoked").await;
    let other = Authority::new(server.files.path(), "other");
    other.revoke(&file, &[8]);
    wait_for_list_problem(&admin, Some("no authority in client_ca")).await;
    server.authority.revoke(&file, &[8]);
    wait_for_list_problem(&admin, None).await;
    assert!(server.stop().await);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_authority_with_a_renewed_key_keeps_its_clients_and_lists() {
    let server = AccessServer::start().await;
    let admin = server.client("a", "admin").await;
    let (old, dir) = (&server.authority, server.path("renewed"));
    std::fs::create_dir(&dir).expect("directory");
    let renewed = Authority::new(&dir, "ca");
    let issue = |file, serial| {
        [old, &renewed].map(|authority| server.with_certificate(authority.issue_user(file, serial)))
    };
    let (kept, revoked) = (issue("kept", 7), issue("revoked", 8));
    let read = |file: &Path| std::fs::read_to_string(file).expect("PEM");
    let mut authorities = [read(&old.ca_file), read(&renewed.ca_file)];
    let mut lists = [old, &renewed].map(|authority| {
        let file = server.path("list.pem");
        authority.revoke(&file, &[8]);
        read(&file)
    });
    let (authorities_file, lists_file) = (server.path("ca.pem"), server.path("revoked.pem"));
    for _ in 0..2 {
        install(&authorities_file, &authorities.concat(), 0o644);
        install(&lists_file, &lists.concat(), 0o644);
        for (kept, revoked) in kept.iter().zip(&revoked) {
            wait_for_failure(revoked, "revoked").await;
            wait_until("the client is accepted", async || {
                let client = Client::connect_with(kept).await.ok()?;
                client.get_principal().await.ok()
            })
            .await;
        }
        wait_for_list_problem(&admin, None).await;
        authorities.reverse();
        lists.reverse();
    }
    let stranger = Authority::new(&dir, "ca");
    stranger.revoke(&lists_file, &[8]);
    let why = "a key that no authority of this name in client_ca has";
    wait_for_list_problem(&admin, Some(why)).await;
    assert!(server.stop().await);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_certificate_for_an_old_key_brings_no_revoked_client_back() {
    let server = AccessServer::start().await;
    let (old, dir) = (&server.authority, server.path("renewed"));
    std::fs::create_dir(&dir).expect("directory");
    let renewed = Authority::new(&dir, "ca");
    let kept = server.with_certificate(renewed.issue_user("kept", 7));
    let revoked = server.with_certificate(old.issue_user("revoked", 8));
    let read = |file: &Path| std::fs::read_to_string(file).expect("PEM");
    let authorities = read(&old.ca_file) + &read(&renewed.ca_file);
    install(&server.path("ca.pem"), &authorities, 0o644);
    wait_until("both authorities are accepted", async || {
        let client = Client::connect_with(&kept).await.ok()?;
        client.get_principal().await.ok()
    })
    .await;
    // The client shows a path to the authority that has no list.
    let file = revoked.cert_file.clone().expect("a file");
    let path = read(&file) + &renewed.certify_key_of(old, "ca");
    install(&file, &path, 0o644);
    let client = connect(&revoked).await;
    client.get_principal().await.expect("not revoked yet");
    old.revoke(&server.path("revoked.pem"), &[8]);
    wait_for_failure(&revoked, "revoked").await;
    assert!(server.stop().await);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_unconfigured_authoritys_list_applies_as_its_problem_says() {
    let server = AccessServer::start().await;
    let admin = server.client("a", "admin").await;
    let read = |file: &Path| std::fs::read_to_string(file).expect("PEM");
    // Two keys of one intermediate authority.
    let [old, renewed] = ["old", "renewed"].map(|dir| {
        let dir = server.path(dir);
        std::fs::create_dir(&dir).expect("directory");
        Authority::new(&dir, "middle")
    });
    let issue = |middle: &Authority, serial: u64| {
        let issued = middle.issue_user(&format!("user-{serial}"), serial);
        let path = read(&issued.cert) + &server.authority.certify_key_of(middle, "middle");
        install(&issued.cert, &path, 0o644);
        server.with_certificate(issued)
    };
    let (kept, revoked, other) = (issue(&old, 7), issue(&old, 8), issue(&renewed, 9));
    let client = connect(&other).await;
    client.get_principal().await.expect("no list yet");
    old.revoke(&server.path("revoked.pem"), &[8]);
    let why = "refuses those that another key of that authority has signed";
    wait_for_list_problem(&admin, Some(why)).await;
    wait_for_failure(&revoked, "revoked").await;
    let client = connect(&kept).await;
    client.get_principal().await.expect("not revoked");
    wait_for_failure(&other, "").await;
    assert!(server.stop().await);
}

/// Connects with one version of TLS and returns the bytes of the server's first frame.
async fn first_frame(
    server: &AccessServer,
    version: &'static SupportedProtocolVersion,
) -> std::io::Result<[u8; 9]> {
    let mut roots = RootCertStore::empty();
    let certificate = CertificateDer::from_pem_file(&server.authority.ca_file).expect("PEM");
    roots.add(certificate).expect("authority");
    let mut config = ClientConfig::builder_with_protocol_versions(&[version])
        .with_root_certificates(roots)
        .with_no_client_auth();
    config.alpn_protocols = vec![b"h2".to_vec()];
    let stream = TcpStream::connect(server.address).await?;
    let name = ServerName::try_from("localhost").expect("name");
    let mut stream = TlsConnector::from(Arc::new(config))
        .connect(name, stream)
        .await?;
    stream
        .write_all(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0")
        .await?;
    let mut frame = [0; 9];
    stream.read_exact(&mut frame).await?;
    Ok(frame)
}

#[tokio::test(flavor = "multi_thread")]
async fn tls_1_2_and_1_3_are_served() {
    let server = AccessServer::start().await;
    for version in [&TLS12, &TLS13] {
        let frame = first_frame(&server, version).await.expect("served");
        assert_eq!(
            frame.get(3),
            Some(&4),
            "the first frame has the server's settings"
        );
    }
    assert!(server.stop().await);
}

#[tokio::test(flavor = "multi_thread")]
async fn half_open_handshakes_keep_no_client_out() {
    // None of them times out while the test runs.
    let server = AccessServer::start().await;
    let mut half_open = Vec::new();
    for index in 0..HALF_OPEN {
        let mut stream = TcpStream::connect(server.address).await.expect("connected");
        if index % 2 == 0 {
            // The head of a record of a handshake, whose rest never comes. The server may have closed it meanwhile.
            stream
                .write_all(&[0x16, 3, 1, 2, 0])
                .await
                .unwrap_or_default();
        }
        half_open.push(stream);
    }
    let client = server.client("a", "user").await;
    let principal = within(client.get_principal()).await;
    assert_eq!(principal.expect("served").id, "a-user");
    drop(half_open);
    assert!(server.stop().await);
}

#[tokio::test(flavor = "multi_thread")]
async fn half_open_handshakes_are_closed_silently_after_the_timeout() {
    let timeout = Duration::from_secs(1);
    let server = AccessServer::start_after(|it| it.server.handshake_timeout = timeout).await;
    let mut half_open = Vec::new();
    for sent in [&[][..], &[0x16, 3, 1, 2, 0]] {
        let mut stream = TcpStream::connect(server.address).await.expect("connected");
        // The server may have closed it meanwhile.
        stream.write_all(sent).await.unwrap_or_default();
        half_open.push(stream);
    }
    for stream in &mut half_open {
        let read = within(stream.read(&mut [0; 64])).await;
        assert!(matches!(read, Ok(0) | Err(_)), "{read:?}");
    }
    assert!(server.stop().await);
}

/// Makes the TLS side of a server that requires a client certificate of the authority of `server`. Its own certificate
/// is one of `authority`, in the file `file`.
fn certificate_acceptor(server: &AccessServer, authority: &Authority, file: &str) -> TlsAcceptor {
    let issued = authority.issue_server(file, &["localhost"], Validity::Valid);
    let mut roots = RootCertStore::empty();
    let ca = CertificateDer::from_pem_file(&server.authority.ca_file).expect("PEM");
    roots.add(ca).expect("authority");
    let clients = WebPkiClientVerifier::builder(Arc::new(roots)).build();
    let chain = vec![CertificateDer::from_pem_file(&issued.cert).expect("PEM")];
    let key = PrivateKeyDer::from_pem_file(&issued.key).expect("PEM");
    let mut config = rustls::ServerConfig::builder()
        .with_client_cert_verifier(clients.expect("verifier"))
        .with_single_cert(chain, key)
        .expect("pair");
    config.alpn_protocols = vec![b"h2".to_vec()];
    TlsAcceptor::from(Arc::new(config))
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_without_a_certificate_is_told_that_it_needs_one() {
    let server = AccessServer::start().await;
    let acceptor = certificate_acceptor(&server, &server.authority, "strict");
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("bound");
    let port = listener.local_addr().expect("address").port();
    let task = Tasks::default().spawn(async move {
        while let Ok((socket, _)) = listener.accept().await {
            drop(acceptor.accept(socket).await);
        }
    });
    let options = ConnectOptions {
        endpoint: format!("https://localhost:{port}"),
        ..server.tls()
    };
    wait_until("the error names the certificate", async || {
        let text = Client::connect_with(&options).await.err()?.to_string();
        text.contains("requires a client certificate").then_some(())
    })
    .await;
    task.abort();
    assert!(server.stop().await);
}

/// TLS server that asks for a client certificate. Its first connection has a certificate of the authority of `server`,
/// further ones of another authority.
struct SwitchingServer {
    address: std::net::SocketAddr,
    /// Number of clients that completed the handshake on further connections, and so presented their certificates.
    presented: Arc<AtomicUsize>,
    task: tokio::task::JoinHandle<()>,
}

impl SwitchingServer {
    /// Starts the server. `is_silent` keeps the first connection open without an answer.
    async fn start(server: &AccessServer, is_silent: bool) -> Self {
        let other = Authority::new(server.files.path(), "other");
        let (good, foreign) = (
            certificate_acceptor(server, &server.authority, "good"),
            certificate_acceptor(server, &other, "foreign"),
        );
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("bound");
        let address = listener.local_addr().expect("address");
        let presented = Arc::new(AtomicUsize::new(0));
        let count = Arc::clone(&presented);
        let task = Tasks::default().spawn(async move {
            let (socket, _) = listener.accept().await.expect("accepted");
            let first = good.accept(socket).await.expect("trusted");
            let _kept = is_silent.then_some(first);
            while let Ok((socket, _)) = listener.accept().await {
                if foreign.accept(socket).await.is_ok() {
                    count.fetch_add(1, Ordering::SeqCst);
                }
            }
        });
        Self {
            address,
            presented,
            task,
        }
    }

    /// Connects with a client certificate.
    async fn connect(&self, server: &AccessServer) -> Result<Client, skilld_client::Error> {
        let options = ConnectOptions {
            endpoint: format!("https://localhost:{}", self.address.port()),
            ..server.with_certificate(server.authority.issue_user("client", 9))
        };
        Client::connect_with(&options).await
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_shows_its_certificate_to_no_untrusted_server() {
    let server = AccessServer::start().await;
    // A client looks at the second certificate for a limited time.
    wait_until("the second certificate is not trusted", async || {
        let switching = SwitchingServer::start(&server, false).await;
        let refused = switching.connect(&server).await.err();
        assert_eq!(switching.presented.load(Ordering::SeqCst), 0);
        switching.task.abort();
        let text = refused?.to_string();
        text.contains("UnknownIssuer").then_some(())
    })
    .await;
    assert!(server.stop().await);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_looks_for_the_cause_of_a_refusal_for_a_limited_time() {
    let server = AccessServer::start().await;
    let switching = SwitchingServer::start(&server, true).await;
    // The first call reports what is wrong.
    let connected = within(switching.connect(&server)).await;
    assert!(connected.is_ok(), "a silent server has not refused");
    switching.task.abort();
    assert!(server.stop().await);
}

/// Starts a daemon with a changed file or configuration, which must fail, and returns the message.
async fn start_failure(change: impl FnOnce(&Path, &mut String)) -> String {
    let (files, state) = (
        tempfile::tempdir().expect("dir"),
        tempfile::tempdir().expect("dir"),
    );
    let authority = Authority::new(files.path(), "ca");
    authority.issue_server("server", &["localhost"], Validity::Valid);
    authority.revoke(&files.path().join("revoked.pem"), &[]);
    let issuer = skilld_tests::web_tokens::WebTokenIssuer::generate();
    let keys = serde_json::json!({"keys": [issuer.public_key("k1")]}).to_string();
    install(&files.path().join("jwks.json"), &keys, 0o644);
    install(&files.path().join("tokens"), "", 0o600);
    install(&files.path().join("tenants.toml"), "[tenants.a]\n", 0o644);
    std::fs::create_dir(files.path().join("run")).expect("mkdir");
    let mut text = configuration(state.path(), files.path());
    change(files.path(), &mut text);
    let config = match Config::from_toml(&text) {
        Ok(loaded) => loaded.config,
        Err(faults) => return faults.to_string(),
    };
    let started = Server::start(config, Arc::new(FakeEngine::new())).await;
    started.expect_err("it must not start").to_string()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_faulty_file_at_the_start_is_named_with_its_remedy() {
    for (file, text, mode, word) in [
        ("tokens", "", 0o644, "chmod 0600"),
        ("server.key", "x", 0o600, "no private key in PEM"),
        ("server.crt", "x", 0o644, "no certificate in PEM"),
        ("ca.pem", "", 0o644, "no certificate in PEM"),
        ("revoked.pem", "x", 0o644, "no list of revoked certificates"),
        ("jwks.json", "{\"keys\": []}", 0o644, "no key for ES256"),
        ("jwks.json", "[", 0o644, "not a JSON web key set"),
        ("tenants.toml", "[tenants.A]", 0o644, "not a tenant's name"),
        (
            "tenants.toml",
            "[tenants.a]\npools = [\"x\"]",
            0o644,
            "no pool \"x\"",
        ),
        (
            "tenants.toml",
            "[[peers]]\ntenant = \"a\"\nroles = [\"user\"]",
            0o644,
            "needs uid or gid",
        ),
        (
            "tenants.toml",
            "[[peers]]\nuid = 1\ntenant = \"a\"\nroles = []",
            0o644,
            "at least one role",
        ),
    ] {
        let error = start_failure(|files, _| install(&files.join(file), text, mode)).await;
        assert!(
            error.contains(word) && error.contains(file),
            "{file}: {error}"
        );
    }
    let error = start_failure(|files, _| {
        let other = Authority::new(files, "other");
        let key = std::fs::read_to_string(files.join("server.key")).expect("read");
        other.issue_server("server", &["localhost"], Validity::Valid);
        install(&files.join("server.key"), &key, 0o600);
    })
    .await;
    assert!(error.contains("do not belong together"), "{error}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_listener_that_would_let_anybody_in_is_refused() {
    for (from, to, word) in [
        (
            "authenticators = [\"mtls\", \"token\", \"jwt\"]",
            "",
            "listeners.1: has no authenticators",
        ),
        (
            "[\"mtls\", \"token\", \"jwt\"]",
            "[\"peer\"]",
            "works on Unix sockets only",
        ),
        ("127.0.0.1:0\"\ntls", "0.0.0.0:0\"\n#", "needs tls"),
        (
            "127.0.0.1:0\"\ntls",
            "0.0.0.0:0\"\ninsecure_loopback = true\n#",
            "loopback interface only",
        ),
        ("client_ca =", "client_key =", "listeners"),
        ("kind = \"tcp\"", "kind = \"udp\"", "not a kind"),
        (
            "kind = \"tcp\"",
            "kind = \"tcp\"\nmode = \"0660\"",
            "has no key mode",
        ),
        ("role_max = \"admin\"", "role_max = \"root\"", "not a role"),
        ("ES256", "none", "not an algorithm that is accepted"),
        ("ES256", "HS256", "not an algorithm that is accepted"),
    ] {
        let error = start_failure(|_, text| *text = text.replace(from, to)).await;
        assert!(error.contains(word), "{from}: {error}");
    }
    let error = start_failure(|_, text| {
        let end = text.find("[auth]").expect("section");
        let pools = text.find("[pools.default]").expect("section");
        text.replace_range(end..pools, "");
    })
    .await;
    assert!(error.contains("needs the section [auth]"), "{error}");
}
